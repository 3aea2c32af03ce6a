"""`python -m conversion`: its commands, exit statuses and messages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torchvision.models import VisionTransformer

from conversion.__main__ import main, parse_value
from conversion.table import markdown
from tests.conversion.originals import pth, timm_folder, timm_model, vit


ROOT = Path(__file__).parent.parent.parent
HEADS = ["--set", "num_attention_heads=4"]


@pytest.fixture
def source(tmp_path: Path) -> str:
    return str(pth()(vit(), tmp_path))


def test_list_is_the_table_of_the_readme(capsys):
    assert main(["list"]) == 0
    assert capsys.readouterr().out.strip() == markdown()
    assert markdown() in (ROOT / "README.md").read_text()


def test_inspect_says_what_a_file_is(source, capsys):
    assert main(["inspect", source, *HEADS]) == 0
    said = capsys.readouterr().out
    for fact in (
        "torchvision",
        "float32",
        "32 pixels, patches of 8",
        "5 classes",
        "grid (4, 4)",
        "num_attention_heads=4",
    ):
        assert fact in said
    assert main(["inspect", source]) == 2
    assert "--set num_attention_heads=" in capsys.readouterr().err


def test_import_export_and_verify(source, tmp_path, capsys):
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs.pth")
    assert main(["import", source, ours, *HEADS]) == 0
    assert main(["export", ours, theirs, "--to", "torchvision"]) == 0
    before, after = (torch.load(path, weights_only=True) for path in (source, theirs))
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    capsys.readouterr()
    assert main(["verify", source, ours, *HEADS, "--plot", str(tmp_path / "plot.png")]) == 0
    assert "block 2" in capsys.readouterr().out and (tmp_path / "plot.png").exists()
    config = tmp_path / "ours/config.json"
    config.write_text(config.read_text().replace('"hidden_act": "gelu"', '"hidden_act": "quick_gelu"'))
    if "quick_gelu" not in config.read_text():
        config.write_text(config.read_text().replace("{", '{\n  "hidden_act": "quick_gelu",', 1))
    assert main(["verify", source, ours, *HEADS]) == 1


def test_options_of_import(source, tmp_path, capsys):
    labels = tmp_path / "labels.txt"
    labels.write_text("ant\nbee\ncat\ndog\nemu\n")
    assert main(["import", source, str(tmp_path / "a"), *HEADS, "--labels", str(labels), "--image-size", "48,24"]) == 0
    assert "grid (4, 4) -> (6, 3)" in capsys.readouterr().out
    assert '"bee"' in (tmp_path / "a/config.json").read_text()
    assert main(["import", source, str(tmp_path / "b"), *HEADS, "--max-shard-size", "100KB"]) == 0
    assert (tmp_path / "b/model.safetensors.index.json").exists()
    assert main(["import", source, str(tmp_path / "b"), *HEADS]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["import", source, str(tmp_path / "c"), *HEADS, "--labels", str(tmp_path / "none.txt")]) == 2
    assert main(["import", str(tmp_path / "nothing"), str(tmp_path / "c")]) == 2
    assert not (tmp_path / "c").exists()


def test_values_on_the_command_line():
    texts = {
        "3": 3,
        "1e-6": 1e-6,
        "none": None,
        "true": True,
        "0.5,0.5": [0.5, 0.5],
        "224,196": [224, 196],
        "gelu": "gelu",
    }
    assert {text: parse_value(text) for text in texts} == texts


def test_a_folder_of_timm_needs_no_flags(tmp_path):
    folder = timm_folder(timm_model("vit_base_patch16_224"), tmp_path)
    assert main(["import", str(folder), str(tmp_path / "ours")]) == 0


LEAN = """
import sys
import torch, transformers, torchvision
from conversion import import_to_folder
from conversion.__main__ import main

def peak():
    return 1024 * int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0])

import_to_folder(sys.argv[1], sys.argv[3], set={"num_attention_heads": 4})
main(["inspect", sys.argv[1], "--set", "num_attention_heads=4"])
before = peak()
main(["inspect", sys.argv[2], "--set", "num_attention_heads=16"])
print(peak() - before)
before = peak()
import_to_folder(sys.argv[2], sys.argv[4], set={"num_attention_heads": 16})
print(peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of memory as Linux gives it")
def test_a_look_needs_no_memory_and_an_import_little_more_than_the_file_has(source, tmp_path):
    torch.save(VisionTransformer(224, 32, 6, 16, 1024, 4096).state_dict(), tmp_path / "large.pth")
    arguments = [source, str(tmp_path / "large.pth"), str(tmp_path / "small"), str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-c", LEAN, *arguments], capture_output=True, text=True, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    looked, imported = (int(line) for line in done.stdout.splitlines() if line.isdigit())
    size = (tmp_path / "large.pth").stat().st_size
    assert looked <= 0.1 * size and imported <= 1.3 * size


WRONG = {
    "--image-size 0": "image_size=0",
    "--image-size abc": "image_size",
    "--image-size 33": "multiple",
    "--num-labels 0": "--drop-head",
    "--num-labels -1": "1 or more",
    "--set image_mean=abc": "image_mean",
    "--set num_attention_heads=x": "num_attention_heads",
    "--set num_attention_heads=5": "num_attention_heads=5",
    "--set layer_norm_eps=1e-5": "means 1e-06",
    "--set crop_pct=3": "crop_pct",
    "--set heads=3": "heads",
    "--max-shard-size foo": "cannot be written",
    "--weights model_ema": "model_ema",
    "--family vit_jax": "vit_jax",
}


@pytest.mark.parametrize("option", WRONG)
def test_what_is_wrong_is_one_line_and_nothing_is_written(option, source, tmp_path, capsys):
    arguments = HEADS if "heads=" not in option or "set heads" in option else []
    assert main(["import", source, str(tmp_path / "out"), *arguments, *option.split()]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("error: ") and WRONG[option] in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["weights.pth"]
