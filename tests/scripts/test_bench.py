"""`scripts.bench` runs; what it measures is for people to read."""

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
