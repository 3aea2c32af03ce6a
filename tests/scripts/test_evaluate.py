"""`scripts.evaluate`: counts, intervals and calibration against scikit-learn and by hand."""

import json
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import accuracy_score, f1_score, log_loss, top_k_accuracy_score

from modeling_vit_custom import ViTCustomImageProcessor
from scripts import evaluate
from scripts.common.sources import open_class_folders
from scripts.evaluate import calibration_error, share, summarise
from tests.scripts.conftest import save_vit, write_pictures
from tests.tiny import tiny_model


NAMES = [f"class {index}" for index in range(7)]


def test_a_summary_is_scikit_learn_s():
    random = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(200, 7, generator=random), torch.randint(7, (200,), generator=random)
    logits[torch.arange(200), labels] += 1
    found, scores = summarise(logits, labels, NAMES), logits.double().softmax(dim=1)
    assert found["top1"]["accuracy"] == accuracy_score(labels, scores.argmax(dim=1))
    assert found["top5"]["accuracy"] == top_k_accuracy_score(labels, scores, k=5)
    assert found["top1"]["correct"] == (scores.argmax(dim=1) == labels).sum()
    assert found["loss"] == pytest.approx(log_loss(labels, scores), rel=1e-5)
    f1 = f1_score(labels, scores.argmax(dim=1), average=None)
    assert [row["f1"] for row in found["classes"].values()] == pytest.approx(f1.tolist())
    confusion = np.array(found["confusion"])
    assert confusion.sum() == 200 and np.trace(confusion) == found["top1"]["correct"]
    assert confusion.sum(axis=1).tolist() == [row["pictures"] for row in found["classes"].values()]


def test_the_loss_of_a_confident_mistake_is_whole():
    assert summarise(torch.tensor([[200.0, 0.0]]), torch.tensor([1]), ["a", "b"])["loss"] == pytest.approx(200)


def test_few_classes_have_no_top_five():
    assert "top5" not in summarise(torch.randn(9, 5), torch.arange(9) % 5, NAMES[:5])


def test_an_interval_is_wilson_s():
    """Brown, Cai and DasGupta 2001, equation 4."""
    found, z = share(torch.arange(10) < 9), 1.959963984540054
    p, n = 0.9, 10
    centre, half = (p + z**2 / 2 / n) / (1 + z**2 / n), z / (1 + z**2 / n) * np.sqrt(p * (1 - p) / n + z**2 / 4 / n**2)
    assert (found["low"], found["high"]) == pytest.approx((centre - half, centre + half))
    assert share(torch.ones(5, dtype=torch.bool))["high"] == 1.0


def test_calibration_by_hand():
    """Half in one bin, at 0.9 and right 3 times in 4; half in another, at 0.5 and right 2 in 4."""
    confidence, hits = np.array([0.9] * 4 + [0.5] * 4), np.array([1, 1, 1, 0, 1, 1, 0, 0])
    assert calibration_error(confidence, hits) == pytest.approx(0.5 * 0.15 + 0.5 * 0.0)
    assert calibration_error(np.array([1.0, 1.0]), np.array([1, 1])) == 0


@pytest.fixture
def model_folder(tmp_path) -> Path:
    """A model with the classes in another order than the folder, and one more."""
    model = tiny_model(id2label={0: "dog", 1: "bird", 2: "cat"})
    model.save_pretrained(tmp_path / "model")
    ViTCustomImageProcessor.for_model(model.config).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("options", [[], ["--workers", "2", "--batch-size", "3"]])
def test_a_folder_is_evaluated(options, model_folder, tmp_path, capsys):
    write_pictures(tmp_path / "data" / "train", 1)
    write_pictures(tmp_path / "data" / "test", 4, seed=1)
    evaluate.main([str(model_folder), str(tmp_path / "data"), "--out", str(tmp_path / "out"), *options])
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    model, correct = tiny_model(id2label={0: "dog", 1: "bird", 2: "cat"}), 0
    processor = ViTCustomImageProcessor.for_model(model.config)
    for path in (tmp_path / "data" / "test").rglob("*.png"):
        logits = model(**processor(path, return_tensors="pt")).logits[0]
        correct += model.config.id2label[logits.argmax().item()] == path.parent.name
    assert (result["pictures"], result["unreadable"], result["top1"]["correct"]) == (8, 0, correct)
    assert [result["classes"][name]["pictures"] for name in ("dog", "bird", "cat")] == [4, 0, 4]
    out = capsys.readouterr().out
    assert f"{correct} of 8" in out and "calibration error" in out and "pictures/s" in out
    assert np.asarray(Image.open(tmp_path / "out" / "confusion.png")).std() > 5


def test_what_cannot_be_read_is_listed_and_not_counted(model_folder, tmp_path, capsys):
    write_pictures(tmp_path / "data", 3)
    (tmp_path / "data" / "dog" / "1.png").write_bytes(b"no picture")
    with pytest.raises(SystemExit, match="1"):
        evaluate.main([str(model_folder), str(tmp_path / "data"), "--out", str(tmp_path / "out")])
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert (result["pictures"], result["unreadable"]) == (5, 1)
    assert "dog/1.png (row 4): cannot identify" in capsys.readouterr().err


def test_figures_of_no_pictures_are_none():
    found = summarise(torch.eye(3)[[0, 0, 1]], torch.tensor([0, 0, 0]), ["a", "b", "c"])["classes"]
    assert (found["a"]["precision"], found["a"]["recall"]) == (1.0, pytest.approx(2 / 3))
    assert (found["b"]["precision"], found["b"]["recall"]) == (0.0, None)
    assert (found["c"]["precision"], found["c"]["recall"], found["c"]["f1"]) == (None, None, None)


def test_other_names_are_translated(model_folder, tmp_path):
    write_pictures(tmp_path / "data", 2)
    (tmp_path / "data" / "cat").rename(tmp_path / "data" / "n01")
    (tmp_path / "classes.json").write_text(json.dumps({"n01": "cat"}))
    options = ["--out", str(tmp_path / "out"), "--classes", str(tmp_path / "classes.json")]
    evaluate.main([str(model_folder), str(tmp_path / "data"), *options])
    assert json.loads((tmp_path / "out" / "result.json").read_text())["classes"]["cat"]["pictures"] == 2
    (tmp_path / "data" / "dog").rename(tmp_path / "data" / "kitten")
    (tmp_path / "classes.json").write_text(json.dumps({"n01": "cat", "kitten": "cat"}))
    evaluate.main([str(model_folder), str(tmp_path / "data"), *options])
    assert json.loads((tmp_path / "out" / "result.json").read_text())["classes"]["cat"]["pictures"] == 4
    (tmp_path / "classes.json").write_text("[1]")
    with pytest.raises(SystemExit, match="must hold a table of names"):
        evaluate.main([str(model_folder), str(tmp_path / "data"), *options])
    (tmp_path / "classes.json").write_text(json.dumps({"n01": "wolf"}))
    with pytest.raises(SystemExit, match="the model has no class 'wolf'"):
        evaluate.main([str(model_folder), str(tmp_path / "data"), *options])


def test_a_split_is_the_one_asked_for(model_folder, tmp_path):
    write_pictures(tmp_path / "data", 2)
    rows = open_class_folders(tmp_path / "data")
    unlabelled = rows.remove_columns("label").add_column("label", [-1] * 4, feature=rows.features["label"])
    datasets.DatasetDict(train=rows).save_to_disk(tmp_path / "one")
    datasets.DatasetDict(test=unlabelled, validation=rows.select([0])).save_to_disk(tmp_path / "two")
    for split in ("test", "val", "tset"):
        with pytest.raises(SystemExit, match=f"has no split '{split}', but train"):
            evaluate.main([str(model_folder), str(tmp_path / "one"), "--split", split, "--out", str(tmp_path / "out")])
    for folder, options, count in (
        ("one", [], 4),
        ("one", ["--split", "train"], 4),
        ("two", [], 1),
        ("two", ["--split", "val"], 1),
    ):
        evaluate.main([str(model_folder), str(tmp_path / folder), *options, "--out", str(tmp_path / "out")])
        assert json.loads((tmp_path / "out" / "result.json").read_text())["pictures"] == count


def test_classes_of_one_name_are_refused(tmp_path):
    save_vit(tmp_path / "model", id2label={0: "crane", 1: "dog", 2: "crane"})
    with pytest.raises(SystemExit, match="several classes called 'crane'"):
        evaluate.main([str(tmp_path / "model"), str(tmp_path), "--out", str(tmp_path / "out")])


def test_a_place_that_cannot_be_written_is_found_first(model_folder, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match="error: --out"):
        evaluate.main([str(model_folder), "sklearn:digits", "--out", str(tmp_path / "file")])


@pytest.mark.parametrize("change, named", [
    ("classes", r"holds the classes \['wolf'\], which are none of \['dog', 'bird', 'cat'\]"),
    ("splits", "choose one with --split"), ("column", "no column 'picture'"), ("unreadable", "no picture could be read"),
    ("nowhere", "no such file or folder"),
])  # fmt: skip
def test_data_that_does_not_fit_is_named(change, named, model_folder, tmp_path):
    data, more = tmp_path / "data", []
    write_pictures(data, 2)
    if change == "splits":
        rows = open_class_folders(data)
        datasets.DatasetDict(one=rows, two=rows).save_to_disk(tmp_path / "saved")
        data = tmp_path / "saved"
    if change == "classes":
        (data / "dog").rename(data / "wolf")
    if change == "column":
        more = ["--image-column", "picture"]
    if change == "unreadable":
        for path in data.rglob("*.png"):
            path.write_bytes(b"")
    if change == "nowhere":
        data = tmp_path / "nowhere"
    with pytest.raises(SystemExit, match=f"error: .*{named}"):
        evaluate.main([str(model_folder), str(data), "--out", str(tmp_path / "out"), *more])
    assert not list((tmp_path / "out").iterdir())
