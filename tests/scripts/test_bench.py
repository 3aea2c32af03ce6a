"""`scripts.bench` runs; what it measures is for people to read."""

from functools import partial

from torchvision.models import VisionTransformer

from scripts import bench


def test_preprocess_prints_a_row_for_each_way(capsys):
    bench.main(["preprocess", "--threads", "1", "--rounds", "1", "--batch-size", "2"])
    lines = capsys.readouterr().out.splitlines()
    rows = {line[:36].strip(): line.split() for line in lines if "ViTCustom" in line or "transformers" in line}
    assert len(rows) == 4
    assert all(float(row[-1]) <= 1 for row in rows.values())


def test_loading_prints_a_row_for_each_way(capsys):
    bench.main(["loading", "--workers", "0", "--rounds", "1", "--pictures", "20", "--batch-size", "8"])
    out = capsys.readouterr().out
    assert "scripts.train" in out and "torchvision ImageFolder" in out and "datasets imagefolder" in out


def test_conversion_prints_time_and_memory(capsys, monkeypatch):
    """Of a file with the width, the blocks and the size that name ViT-L/16, but little more."""
    monkeypatch.setattr(bench, "vit_l_16", partial(VisionTransformer, 224, 16, 24, 16, 128, 128))
    monkeypatch.setattr(bench, "TOLD", {**bench.TOLD, "num_attention_heads": 16})
    monkeypatch.setattr(bench, "IMPORT", bench.IMPORT.replace('"bilinear"', '"bilinear", "num_attention_heads": 16'))
    bench.main(["conversion", "--rounds", "1"])
    assert "times as long as copying the file" in capsys.readouterr().out
