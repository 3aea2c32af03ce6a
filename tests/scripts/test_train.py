"""Whole runs: what they leave, that they resume exactly, and what does not depend on how the work is split."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoImageProcessor, AutoModelForImageClassification, ViTConfig, ViTForImageClassification

from scripts import plot, predict, train
from scripts.common.errors import UserError
from scripts.common.recipe import load_recipe, read_recipe
from scripts.common.run_folder import RunFolder
from tests.scripts.conftest import TINY, write_pictures


RANDOM = ["model.config.drop_path_rate=0.2", "model.config.hidden_dropout_prob=0.1", "run.epochs=3"]
STILL = [
    "model.config.drop_path_rate=0",
    "augment.crop_scale=[1,1]",
    "augment.policy=none",
    "augment.horizontal_flip=0",
]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def log(run: RunFolder, split: str) -> list[dict]:
    return [{k: v for k, v in e.items() if k != "images_per_second"} for e in run.read_log() if e["split"] == split]


def test_a_run_leaves_all_that_it_promises(make_recipe, tmp_path):
    recipe = make_recipe("run.epochs=1")
    run = train.train(recipe)
    names = {path.name for path in run.path.iterdir()}
    assert names == {
        "recipe.json", "metrics.jsonl", "checkpoints", "curves.png", "predictions.png", "examples", "final",
    }  # fmt: skip
    assert read_recipe(run.path / "recipe.json") == recipe
    assert [entry["step"] for entry in log(run, "train")] == [1, 2, 3]
    assert log(run, "validation")[-1]["pictures"] == 2 and log(run, "test")[0]["pictures"] == 10
    for figure in ("curves.png", "predictions.png"):
        assert np.asarray(Image.open(run.path / figure)).std() > 1
    assert len(list((run.path / "examples").glob("*-cat.png"))) == 5

    model = AutoModelForImageClassification.from_pretrained(run.final)
    assert model.config.id2label == {0: "cat", 1: "dog"} and model.dtype == torch.float32
    assert dict(AutoImageProcessor.from_pretrained(run.final).size) == {"height": 16, "width": 16}
    assert (run.final / "modeling_vit_custom.py").exists()
    torch.testing.assert_close(model.state_dict(), weights(run.checkpoints()[-1]), atol=0, rtol=0)
    card = (run.final / "README.md").read_text()
    assert "pipeline_tag: image-classification" in card and f"{log(run, 'test')[0]['accuracy']:.4f}" in card


def test_it_learns(make_recipe):
    run = train.train(make_recipe("run.epochs=6"))
    assert log(run, "test")[0]["accuracy"] == 1.0


class Killed(Exception):
    pass


def kill_after(monkeypatch, saves: int) -> None:
    """Ends the run right after its checkpoint number `saves`."""
    save, done = RunFolder.save_checkpoint, []

    def save_and_die(self, *arguments):
        save(self, *arguments)
        done.append(1)
        if len(done) == saves:
            raise Killed

    monkeypatch.setattr(RunFolder, "save_checkpoint", save_and_die)


@pytest.mark.parametrize("options", [
    [], ["data.workers=2"], ["optim.accumulation_steps=2", "run.save_epochs=0.7"],
], ids=["plain", "workers", "accumulation, mid-epoch"])  # fmt: skip
def test_a_resumed_run_equals_an_uninterrupted_one(options, make_recipe, monkeypatch):
    """Bit for bit, with random augmentation, dropout and stochastic depth; the log too."""
    whole = train.train(make_recipe(*RANDOM, *options, folder="whole"))
    broken = make_recipe(*RANDOM, *options, folder="broken")
    with monkeypatch.context() as context:
        kill_after(context, saves=2)
        with pytest.raises(Killed):
            train.train(broken)
    assert not (Path(broken.run.folder) / "final").exists()
    with open(Path(broken.run.folder) / "metrics.jsonl", "a") as file:  # what it logged after its last checkpoint
        file.write(json.dumps({"split": "train", "step": 10_000, "loss": 0.0}) + "\n")
    resumed = train.train(broken, resume=True)
    torch.testing.assert_close(weights(resumed.final), weights(whole.final), atol=0, rtol=0)
    for split in ("train", "validation", "test"):
        assert log(resumed, split) == log(whole, split)


def test_a_half_written_checkpoint_is_not_taken(make_recipe, monkeypatch):
    recipe = make_recipe("run.epochs=2")

    def die(*arguments, **options):
        raise Killed

    with monkeypatch.context() as context:
        context.setattr(torch, "save", die)
        with pytest.raises(Killed):
            train.train(recipe)
    run = RunFolder(recipe, resume=True)
    assert run.checkpoints() == [] and list((run.path / "checkpoints").iterdir()) == []
    assert train.train(recipe, resume=True).finished


def test_only_the_last_checkpoints_are_kept(make_recipe):
    run = train.train(make_recipe("run.epochs=4", "run.keep=2"))
    assert [json.loads((path / "state.json").read_text())["step"] for path in run.checkpoints()] == [9, 12]


def test_the_split_into_parts_changes_neither_learning_rate_nor_result(make_recipe):
    runs = [train.train(make_recipe(*STILL, f"optim.accumulation_steps={n}", folder=str(n))) for n in (1, 4)]
    one, four = [log(run, "train") for run in runs]
    assert [entry["lr"] for entry in one] == [entry["lr"] for entry in four]
    assert [entry["loss"] for entry in one] == pytest.approx([entry["loss"] for entry in four], rel=1e-4)
    torch.testing.assert_close(*(weights(run.final) for run in runs), atol=1e-4, rtol=1e-3)


def test_two_processes_are_one_with_the_same_batch(pictures_folder, tmp_path, make_recipe):
    """Two processes on this machine, through torchrun and gloo; 10 test pictures in batches of 8 are uneven."""
    one = train.train(make_recipe(*STILL, folder="one"))
    assignments = [*TINY, *STILL, f"data.train={pictures_folder}", f"run.folder={tmp_path / 'two'}"]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node=2",
        "-m",
        "scripts.train",
    ]
    command += ["--recipe", "finetune", *(word for text in assignments for word in ("--set", text))]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "x 2 processes" in done.stdout
    two = RunFolder(load_recipe("finetune", assignments), resume=True)
    for split in ("train", "validation", "test"):
        for ours, theirs in zip(log(two, split), log(one, split), strict=True):
            assert ours.pop("split") == theirs.pop("split")
            assert ours == pytest.approx(theirs, rel=1e-3)
    assert [entry["lr"] for entry in log(two, "train")] == [entry["lr"] for entry in log(one, "train")]
    torch.testing.assert_close(weights(two.final), weights(one.final), atol=1e-4, rtol=1e-3)


def test_a_run_goes_on_from_a_model_with_other_classes(make_recipe, tmp_path):
    first = train.train(make_recipe("run.epochs=1", folder="first"))
    write_pictures(tmp_path / "birds" / "train", 3)
    (tmp_path / "birds" / "train" / "cat").rename(tmp_path / "birds" / "train" / "owl")
    write_pictures(tmp_path / "birds2", 3)
    (tmp_path / "birds2" / "cat").rename(tmp_path / "birds" / "train" / "wren")
    recipe = make_recipe(
        f"model.pretrained={first.final}", f"data.train={tmp_path / 'birds'}", "model.config={}", "run.epochs=1", "optim.lr=0",
        folder="second",
    )  # fmt: skip
    second = train.train(recipe)
    before, after = weights(first.final), weights(second.final)
    assert after["classifier.weight"].shape == (3, 16)
    for name in before.keys() - {"classifier.weight", "classifier.bias"}:
        assert torch.equal(before[name], after[name])


def test_half_precision_weights_are_trained_in_float32(make_recipe, tmp_path):
    first = train.train(make_recipe("run.epochs=1", folder="first"))
    model = AutoModelForImageClassification.from_pretrained(first.final, dtype=torch.float16)
    model.save_pretrained(first.final)
    recipe = make_recipe(f"model.pretrained={first.final}", "model.config={}", "run.epochs=1", folder="second")
    assert {value.dtype for value in weights(train.train(recipe).final).values()} == {torch.float32}


def test_another_library_s_model_trains_too(make_recipe, tmp_path):
    config = ViTConfig(
        image_size=16, patch_size=8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    (tmp_path / "vit" / "preprocessor_config.json").write_text(
        json.dumps({"image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 16}})
    )
    run = train.train(make_recipe(f"model.pretrained={tmp_path / 'vit'}", "model.config={}", "run.epochs=1"))
    assert type(AutoModelForImageClassification.from_pretrained(run.final)) is ViTForImageClassification


def test_bf16(make_recipe):
    run = train.train(make_recipe("run.precision=bf16", "run.epochs=1"))
    assert {value.dtype for value in weights(run.final).values()} == {torch.float32}
    assert all(np.isfinite(entry["loss"]) for entry in log(run, "train"))


# ---------------------------------------------------------------------------------------------------------------------
# Bad input


def fails(capsys, *arguments: str) -> str:
    """What `scripts.train` says before it gives up: one line."""
    with pytest.raises(SystemExit) as caught:
        train.main(list(arguments))
    message = str(caught.value)
    assert message.startswith("error: ") and "\n" not in message
    return message


def arguments_of(*assignments: str) -> list[str]:
    return ["--recipe", "finetune", *(word for text in (*TINY, *assignments) for word in ("--set", text))]


def test_an_existing_run_is_never_overwritten(make_recipe, pictures_folder, tmp_path, capsys):
    run = train.train(make_recipe("run.epochs=1"))
    where = [f"data.train={pictures_folder}", f"run.folder={run.path}", "run.epochs=1"]
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    assert "exists already: --resume" in fails(capsys, *arguments_of(*where))
    assert "optim.lr: 0.01 -> 0.02" in fails(capsys, *arguments_of(*where, "optim.lr=0.02"), "--resume")
    train.main([*arguments_of(*where), "--resume"])
    assert "finished already" in capsys.readouterr().out
    assert before == {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


def test_a_folder_with_other_things_in_it_is_left_alone(pictures_folder, tmp_path, capsys):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("dear")
    where = [f"data.train={pictures_folder}", f"run.folder={tmp_path / 'letters'}"]
    assert "holds no run" in fails(capsys, *arguments_of(*where), "--resume")
    assert "exists already" in fails(capsys, *arguments_of(*where))


@pytest.mark.parametrize("assignments, named", [
    (["data.train=/nowhere/at/all"], "/nowhere/at/all"),
    (["model.pretrained=/nowhere/at/all"], "/nowhere/at/all"),
    (["model.config.image_size=30"], "image_size=30"),
    (["model.config.hidden_size=text"], "hidden_size"),
    (["model.config.num_channels=1"], "num_channels=1"),
    (["model.variant=B/17"], "did you mean 'B/16'"),
    (["optim.batch_size=9", "optim.accumulation_steps=2"], "optim.batch_size=9"),
    (["optim.lr=inf"], "loss is"),
])  # fmt: skip
def test_bad_input_is_one_line_that_names_it(assignments, named, pictures_folder, tmp_path, capsys):
    where = [f"data.train={pictures_folder}", f"run.folder={tmp_path / 'run'}"]
    assert named in fails(capsys, *arguments_of(*where, *assignments))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_unreadable_picture_stops_the_run_and_is_named(workers, tmp_path, capsys):
    write_pictures(tmp_path / "data", 6)
    for index in range(6):
        (tmp_path / "data" / "dog" / f"{index}.png").write_bytes(b"no picture")
    where = [f"data.train={tmp_path / 'data'}", f"run.folder={tmp_path / 'run'}", f"data.workers={workers}"]
    assert "/dog/" in fails(capsys, *arguments_of(*where))


def test_a_model_that_lacks_more_than_a_head_is_refused(make_recipe, tmp_path):
    first = train.train(make_recipe("run.epochs=1", folder="first"))
    recipe = make_recipe(f"model.pretrained={first.final}", 'model.config={"image_size": 32}', folder="second")
    with pytest.raises(UserError, match="embeddings.position.grid.*only a head may be new"):
        train.train(recipe)


# ---------------------------------------------------------------------------------------------------------------------
# The other scripts


def test_predict_prints_a_table_and_fails_for_what_it_cannot_read(make_recipe, pictures_folder, tmp_path, capsys):
    run = train.train(make_recipe("run.epochs=6"))
    capsys.readouterr()
    paths = [str(pictures_folder / "test" / name / "0.png") for name in ("cat", "dog")]
    predict.main([str(run.final), *paths, "--top-k", "9"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and lines[0].split() == ["picture", "1.", "2."]
    assert [line.split()[1] for line in lines[1:]] == ["cat", "dog"]

    (tmp_path / "bad.png").write_bytes(b"no picture")
    with pytest.raises(SystemExit, match="1"):
        predict.main([str(run.final), paths[0], str(tmp_path / "bad.png")])
    out = capsys.readouterr()
    assert "0.png" in out.out and "bad.png: cannot be decoded" in out.err
    with pytest.raises(SystemExit, match="error: /nowhere/at/all"):
        predict.main(["/nowhere/at/all", paths[0]])


def test_plot_lays_runs_over_each_other(make_recipe, tmp_path, capsys):
    runs = [train.train(make_recipe("run.epochs=1", f"run.seed={n}", folder=f"seed{n}")) for n in (0, 1)]
    plot.main([*(str(run.path) for run in runs), "--out", str(tmp_path / "both.png")])
    assert Image.open(tmp_path / "both.png").size[0] > 1000
    with pytest.raises(SystemExit, match="error: .*metrics.jsonl"):
        plot.main([str(tmp_path)])


@pytest.mark.parametrize("module", ["train", "predict", "plot"])
def test_help_names_every_option(module, capsys):
    with pytest.raises(SystemExit, match="0"):
        {"train": train, "predict": predict, "plot": plot}[module].main(["--help"])
    assert f"python -m scripts.{module}" in capsys.readouterr().out
