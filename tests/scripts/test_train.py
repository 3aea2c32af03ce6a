"""Whole runs: what they leave, that they resume exactly, and what does not depend on how the work is split."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import (
    AutoImageProcessor,
    AutoModelForImageClassification,
    BeitConfig,
    BeitForImageClassification,
    PvtConfig,
    PvtForImageClassification,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
)

from scripts import bench, evaluate, plot, predict, train
from scripts.common.errors import UserError
from scripts.common.recipe import load_recipe, read_recipe
from scripts.common.run_folder import RunFolder, read_log
from tests.clean_room import run_clean_room
from tests.scripts.conftest import TINY, save_vit, write_pictures


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
    return [
        {k: v for k, v in e.items() if k != "images_per_second"} for e in read_log(run.path) if e["split"] == split
    ]


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


FINAL_IN_A_CLEAN_ROOM = """
    import sys
    from transformers import pipeline

    classify = pipeline("image-classification", model=sys.argv[1], trust_remote_code=True)
    for name in ("cat", "dog"):
        assert classify(f"{sys.argv[2]}/{name}/0.png")[0]["label"] == name
"""


def test_it_learns_and_the_final_folder_needs_no_package(make_recipe, pictures_folder, tmp_path):
    run = train.train(make_recipe("run.epochs=6"))
    assert log(run, "test")[0]["accuracy"] == 1.0
    done = run_clean_room(FINAL_IN_A_CLEAN_ROOM, run.final, pictures_folder / "test", home=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]


class Killed(Exception):
    pass


def kill_after(monkeypatch, saves: int) -> None:
    """Ends the run right after its checkpoint number `saves`."""
    new, done = RunFolder.new_checkpoint, []

    @contextmanager
    def save_and_die(self, *arguments):
        with new(self, *arguments) as folder:
            yield folder
        done.append(folder)
        if len(done) == saves:
            raise Killed

    monkeypatch.setattr(RunFolder, "new_checkpoint", save_and_die)


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
    (Path(broken.run.folder) / "checkpoints" / "tmp-killed").mkdir()
    with open(Path(broken.run.folder) / "metrics.jsonl", "a") as file:  # what it logged after its last checkpoint
        file.write(json.dumps({"split": "train", "step": 10_000, "loss": 0.0}) + "\n" + '{"split": "tr')
    resumed = train.train(broken, resume=True)
    torch.testing.assert_close(weights(resumed.final), weights(whole.final), atol=0, rtol=0)
    for split in ("train", "validation", "test"):
        assert log(resumed, split) == log(whole, split)
    assert not list(resumed.path.rglob("tmp-*"))


def test_a_run_killed_after_its_last_step_only_finishes(make_recipe, monkeypatch):
    whole, recipe = train.train(make_recipe(folder="whole")), make_recipe(folder="broken")
    with monkeypatch.context() as context:
        context.setattr(train, "finish", lambda *arguments: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            train.train(recipe)
    resumed = train.train(recipe, resume=True)
    assert log(resumed, "test") == log(whole, "test")
    torch.testing.assert_close(weights(resumed.final), weights(whole.final), atol=0, rtol=0)


@pytest.mark.parametrize("change, named", [("class", "classes was"), ("picture", "training_pictures was 24")])
def test_a_run_does_not_go_on_with_other_data(change, named, make_recipe, tmp_path, monkeypatch):
    write_pictures(tmp_path / "data" / "train", 13)
    recipe = make_recipe(f"data.train={tmp_path / 'data'}")
    with monkeypatch.context() as context:
        kill_after(context, saves=1)
        with pytest.raises(Killed):
            train.train(recipe)
    cats = tmp_path / "data" / "train" / "cat"
    cats.rename(cats.with_name("zebra")) if change == "class" else (cats / "0.png").unlink()
    with pytest.raises(UserError, match=f"the data changed since .*{named}"):
        train.train(recipe, resume=True)


def test_names_of_classes_may_hold_what_figures_and_cards_read_as_commands(make_recipe, tmp_path):
    write_pictures(tmp_path / "data", 4)
    (tmp_path / "data" / "cat").rename(tmp_path / "data" / "a$x_$|`b`<i>")
    run = train.train(make_recipe(f"data.train={tmp_path / 'data'}", "run.epochs=1"))
    assert r"a\$x\_\$\|\`b\`\<i\>" in (run.final / "README.md").read_text()
    assert str(tmp_path) not in (run.final / "README.md").read_text()
    assert len(list((run.path / "examples").iterdir())) == 2


@pytest.mark.parametrize("figure", ["plot_curves", "plot_predictions"])
def test_nothing_cosmetic_can_cost_the_model_and_a_resume_makes_up_for_it(figure, make_recipe, monkeypatch):
    recipe = make_recipe("run.epochs=1")
    with monkeypatch.context() as context:
        context.setattr(train, figure, lambda *arguments: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            train.train(recipe)
    run = RunFolder(recipe, resume=True)
    model = AutoModelForImageClassification.from_pretrained(run.final)
    assert not run.finished
    resumed = train.train(recipe, resume=True)
    assert resumed.finished and (resumed.path / "curves.png").exists() and (resumed.path / "examples").exists()
    torch.testing.assert_close(weights(resumed.final), model.state_dict(), atol=0, rtol=0)


def test_evaluation_needs_no_more_memory_than_a_part_of_training(make_recipe, monkeypatch):
    sizes, make = [], train.eval_loader
    monkeypatch.setattr(train, "eval_loader", lambda *a: sizes.append(a[2]) or make(*a))
    train.train(make_recipe("run.epochs=1", "optim.accumulation_steps=4"))
    assert sizes == [2, 2]


@pytest.mark.parametrize("norm", ["nan", "inf"])
def test_gradients_that_are_not_finite_move_no_weight(norm, make_recipe, monkeypatch):
    moved = []
    monkeypatch.setattr(Accelerator, "clip_grad_norm_", lambda *_: torch.tensor(float(norm)))
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda *_: moved.append(1))
    with pytest.raises(UserError, match=f"the norm of the gradients is {norm} at step 0"):
        train.train(make_recipe())
    assert not moved


def test_optimiser_and_durations_are_those_of_the_recipe(make_recipe, monkeypatch):
    made = []
    build = train.build_optimizer
    monkeypatch.setattr(train, "build_optimizer", lambda *arguments: made.append(build(*arguments)) or made[0])
    options = [
        "optim.betas=[0.5,0.6]",
        "optim.weight_decay=0.3",
        "run.epochs=4",
        "run.eval_epochs=2",
        "run.log_every=5",
    ]
    run = train.train(make_recipe(*options))
    assert made[0].param_groups[0]["betas"] == (0.5, 0.6)
    assert [group["weight_decay"] for group in made[0].param_groups] == [0.3, 0.0]
    assert [entry["step"] for entry in log(run, "validation")] == [6, 12]
    assert [entry["step"] for entry in log(run, "train")] == [5, 10, 12]


def test_gradients_are_clipped(make_recipe, monkeypatch):
    """With plain gradient descent the step is as long as the clipped gradient allows."""
    monkeypatch.setattr(train, "build_optimizer", lambda model, _: torch.optim.SGD(model.parameters(), lr=1.0))
    monkeypatch.setattr(train, "set_lr", lambda optimizer, lr: None)
    options = ["optim.clip_norm=1e-3", "run.epochs=0.3"]
    torch.manual_seed(0)
    recipe = make_recipe(*options)
    before = train.build_model(recipe.model, ["cat", "dog"])[0].state_dict()
    run = train.train(recipe)
    after = weights(run.final)
    moved = torch.sqrt(sum((after[name] - before[name]).square().sum() for name in after)).item()
    assert log(run, "train")[0]["grad_norm"] > 0.1
    assert moved == pytest.approx(1e-3, rel=1e-2)


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


def test_a_field_that_the_pretrained_model_lacks_is_named(make_recipe, tmp_path):
    ViTConfig().save_pretrained(tmp_path / "vit")
    recipe = make_recipe(f"model.pretrained={tmp_path / 'vit'}", 'model.config={"drop_path_rate": 0.1}')
    with pytest.raises(UserError, match="drop_path_rate: ViTConfig of .* has no such field"):
        train.train(recipe)


def test_ctrl_c_says_how_to_go_on(pictures_folder, tmp_path, monkeypatch, capsys):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "load_splits", interrupt)
    with pytest.raises(SystemExit, match="130"):
        train.main(arguments_of(f"data.train={pictures_folder}", f"run.folder={tmp_path / 'run'}"))
    assert "--resume" in capsys.readouterr().err


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
    assert "`vit` image classifier" in (run.final / "README.md").read_text()


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
    (["model.pretrained=who/what"], "who/what"),
    (["model.config.hidden_size=text"], "hidden_size"),
    (["model.config.num_channels=5"], "5 channels"),
    (["model.from_rgb=true"], "model.from_rgb needs model.pretrained"),
    (["model.variant=B/17"], "did you mean 'B/16'"),
    (["optim.batch_size=9", "optim.accumulation_steps=2"], "optim.batch_size=9"),
    (["optim.lr=1e30"], " is nan at step"),
    (["model.config.num_labels=3"], "model.config.num_labels cannot be set"),
    (["augment.crop_scale=[0.9,0.2]"], "augment.crop_scale"),
    (["model.pretrained=~/nowhere/at/all"], "no such folder"),
    (["run.folder=/dev/null/run"], "run.folder=/dev/null/run"),
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


def test_a_checkpoint_without_its_head_is_refused_not_filled_at_random(make_recipe, monkeypatch):
    recipe = make_recipe()
    with monkeypatch.context() as context:
        kill_after(context, saves=1)
        with pytest.raises(Killed):
            train.train(recipe)
    file = RunFolder(recipe, resume=True).checkpoints()[-1] / "model.safetensors"
    whole = load_file(file)
    save_file({name: value for name, value in whole.items() if "classifier" not in name}, file, {"format": "pt"})
    with pytest.raises(UserError, match="classifier.bias, classifier.weight missing"):
        train.train(recipe, resume=True)


def test_a_torn_state_is_named(make_recipe, monkeypatch):
    recipe = make_recipe()
    with monkeypatch.context() as context:
        kill_after(context, saves=1)
        with pytest.raises(Killed):
            train.train(recipe)
    checkpoint = RunFolder(recipe, resume=True).checkpoints()[-1]
    (checkpoint / "state.json").write_text("{")
    with pytest.raises(UserError, match=f"{checkpoint} cannot be read; delete it"):
        train.train(recipe, resume=True)


def test_plot_lays_runs_over_each_other(make_recipe, tmp_path, capsys):
    runs = [train.train(make_recipe("run.epochs=1", f"run.seed={n}", folder=f"seed{n}")) for n in (0, 1)]
    plot.main([*(str(run.path) for run in runs), "--out", str(tmp_path / "both.png")])
    assert Image.open(tmp_path / "both.png").size[0] > 1000
    with pytest.raises(SystemExit, match="error: .*metrics.jsonl"):
        plot.main([str(tmp_path)])
    with pytest.raises(SystemExit, match="error: .*nowhere"):
        plot.main([str(runs[0].path), "--out", str(tmp_path / "nowhere" / "x.png")])


@pytest.mark.parametrize("module", [train, predict, evaluate, plot, bench])
def test_help_names_the_command(module, capsys):
    with pytest.raises(SystemExit, match="0"):
        module.main(["--help"])
    assert f"python -m {module.__name__}" in capsys.readouterr().out


# ---------------------------------------------------------------------------------------------------------------------
# Channels


@pytest.mark.parametrize("channels", [1, 4])
def test_models_of_other_channels_train_and_predict(channels, make_recipe, pictures_folder):
    run = train.train(make_recipe(f"model.config.num_channels={channels}", "augment.policy=none", "run.epochs=6"))
    model = AutoModelForImageClassification.from_pretrained(run.final)
    processor = AutoImageProcessor.from_pretrained(run.final)
    inputs = processor(pictures_folder / "test" / "cat" / "0.png", return_tensors="pt")
    assert inputs.pixel_values.shape[1] == model.config.num_channels == channels
    assert model.config.id2label[model(**inputs).logits.argmax().item()] == "cat"
    assert log(run, "test")[0]["accuracy"] == 1


@pytest.mark.parametrize("channels", [1, 4])
def test_a_model_for_rgb_can_be_started_from(channels, make_recipe):
    first, options = train.train(make_recipe("run.epochs=6")), ["optim.lr=0", "augment.policy=none"]
    start = [f"model.pretrained={first.final}", f"model.config.num_channels={channels}", *options]
    with pytest.raises(UserError, match=r"projection\.weight missing or of another shape.*model\.from_rgb=true"):
        train.train(make_recipe(*start, folder="refused"))
    second = train.train(make_recipe(*start, "model.from_rgb=true", folder="second"))
    old, new = (weights(run.final)["vit.embeddings.patch_embeddings.projection.weight"] for run in (first, second))
    expected = old.sum(dim=1, keepdim=True) if channels == 1 else old
    assert torch.equal(new[:, :3], expected) and not new[:, 3:].any()
    assert log(second, "test")[0]["accuracy"] == log(first, "test")[0]["accuracy"]


def test_another_library_s_model_is_not_started_from_for_other_channels(make_recipe, tmp_path):
    save_vit(tmp_path / "vit")
    options = [f"model.pretrained={tmp_path / 'vit'}", "model.config.num_channels=1", "model.from_rgb=true"]
    with pytest.raises(UserError, match="ViTForImageClassification cannot change its channels"):
        train.train(make_recipe(*options))


def test_a_model_that_takes_uint8_trains(make_recipe, pictures_folder):
    statistics = ["model.config.pixel_mean=[127.5,127.5,127.5]", "model.config.pixel_std=[127.5,127.5,127.5]"]
    plain, run = train.train(make_recipe(folder="plain")), train.train(make_recipe(*statistics))
    assert [e["loss"] for e in log(run, "train")] == pytest.approx([e["loss"] for e in log(plain, "train")], abs=1e-5)
    assert AutoImageProcessor.from_pretrained(run.final)(
        pictures_folder / "test" / "cat" / "0.png", return_tensors="pt"
    ).pixel_values.dtype == torch.uint8  # fmt: skip


@pytest.mark.parametrize("problem_type", ["regression", "multi_label_classification"])
def test_a_model_for_another_problem_is_started_from_as_a_classifier(problem_type, make_recipe, tmp_path):
    save_vit(tmp_path / "vit", num_labels=2, problem_type=problem_type)
    run = train.train(make_recipe(f"model.pretrained={tmp_path / 'vit'}"))
    assert json.loads((run.final / "config.json").read_text())["problem_type"] == "single_label_classification"


def test_a_head_that_has_not_as_many_outputs_as_classes_is_refused(make_recipe, tmp_path):
    """PVT's configuration keeps `num_labels` whatever `id2label` says."""
    config = PvtConfig(image_size=32, depths=[1, 1, 1, 1], hidden_sizes=[8, 8, 8, 8], num_attention_heads=[1, 1, 1, 1])
    PvtForImageClassification(config).save_pretrained(tmp_path / "pvt")
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path / "pvt")
    with pytest.raises(UserError, match="outputs for 2 classes"):
        train.train(make_recipe(f"model.pretrained={tmp_path / 'pvt'}", "model.config={}"))


def test_models_that_keep_tensors_for_later_calls_train(make_recipe, tmp_path):
    """BEiT's index of positions is made once and kept; the look at a blank picture must leave it fit for training."""
    sizes = {"image_size": 16, "patch_size": 8, "hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2}
    config = BeitConfig(**sizes, intermediate_size=24, use_relative_position_bias=True, out_indices=[1, 2, 3, 4])
    BeitForImageClassification(config).save_pretrained(tmp_path / "beit")
    ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(tmp_path / "beit")
    train.train(make_recipe(f"model.pretrained={tmp_path / 'beit'}", "model.config={}", "run.epochs=1"))
