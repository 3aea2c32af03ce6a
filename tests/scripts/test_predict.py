"""`scripts.predict`: what pipelines say, whatever the batches, processes and forms; nothing unread is lost."""

import csv
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import CLIPImageProcessor, ViTImageProcessor, pipeline

from modeling_vit_custom import ViTCustomImageProcessor, ViTCustomModel
from scripts import predict
from scripts.common.inference import Item, Outcome, Reader, classify, find_pictures
from tests.scripts.conftest import save_vit
from tests.tiny import tiny_model


NAMES = ["cat", "dog", "a $bird", "fish", 'ünïcode, "quoted"']


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    model = tiny_model(id2label=dict(enumerate(NAMES)))
    model.save_pretrained(folder)
    ViTCustomImageProcessor.for_model(model.config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """Seven pictures in two folders, of several kinds and sizes."""
    folder, random = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    (folder / "more").mkdir()
    for index, name in enumerate(["a.png", "b.JPG", "c.Jpeg", "d.webp", "more/e.bmp", "more/f.tif", "more/g.gif"]):
        Image.fromarray(random.integers(0, 256, (20 + index, 30, 3), dtype=np.uint8)).save(folder / name)
    (folder / "notes.txt").write_text("no picture")
    (folder / ".hidden.png").write_text("no picture")
    return folder


def expected(model_folder: Path, paths: list[str]) -> list[list[dict]]:
    classifier = pipeline("image-classification", model=str(model_folder), trust_remote_code=False)
    return classifier(paths, top_k=5)


def json_lines(capsys) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("options", [
    [], ["--batch-size", "1"], ["--batch-size", "3"], ["--workers", "2", "--batch-size", "2"], ["--device", "cpu"],
])  # fmt: skip
def test_it_says_what_a_pipeline_says(options, model_folder, pictures, capsys):
    predict.main([str(model_folder), str(pictures), "--json", "--top-k", "5", *options])
    found = json_lines(capsys)
    paths = [row["picture"] for row in found]
    assert [Path(path).name for path in paths] == ["a.png", "b.JPG", "c.Jpeg", "d.webp", "e.bmp", "f.tif", "g.gif"]
    for row, theirs in zip(found, expected(model_folder, paths), strict=True):
        assert [p["label"] for p in row["predictions"]] == [p["label"] for p in theirs]
        assert [p["score"] for p in row["predictions"]] == pytest.approx([p["score"] for p in theirs], abs=1e-5)


def test_another_library_s_model_predicts_too(tmp_path, pictures, capsys):
    save_vit(tmp_path, num_labels=3)
    ViTImageProcessor(size={"height": 16, "width": 16}, image_mean=[0.1, 0.2, 0.3]).save_pretrained(tmp_path)
    path = str(pictures / "a.png")
    predict.main([str(tmp_path), path, "--json", "--top-k", "2"])
    theirs = expected(tmp_path, [path])[0]
    assert json_lines(capsys)[0]["predictions"][0]["score"] == pytest.approx(theirs[0]["score"], abs=1e-5)


def test_the_table_and_the_files_left_out(model_folder, pictures, capsys):
    predict.main([str(model_folder), str(pictures), "--top-k", "2"])
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].split() == ["picture", "1.", "2."] and len(lines) == 8
    assert len({line.index("%") for line in lines[1:] if "cat" in line.split("%")[0]}) <= 2
    assert "1 files are no pictures" in err


def test_csv_holds_what_json_holds(model_folder, pictures, capsys):
    arguments = [str(model_folder), str(pictures / "a.png"), str(pictures / "notes.txt"), "--top-k", "3"]
    with pytest.raises(SystemExit, match="1"):
        predict.main([*arguments, "--csv"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    with pytest.raises(SystemExit, match="1"):
        predict.main([*arguments, "--json"])
    good, bad = json_lines(capsys)
    assert [rows[0][f"label_{rank}"] for rank in (1, 2, 3)] == [p["label"] for p in good["predictions"]]
    assert float(rows[0]["score_1"]) == good["predictions"][0]["score"]
    assert rows[1]["error"] == bad["error"] and "notes.txt" in rows[1]["picture"]


@pytest.mark.parametrize("workers", ["0", "2"])
def test_what_cannot_be_read_is_listed_and_costs_nothing_else(workers, model_folder, pictures, tmp_path, capsys):
    (tmp_path / "bad.png").write_bytes(b"no picture")
    Image.new("1", (30_000, 30_000)).save(tmp_path / "bomb.png")
    (tmp_path / "empty").mkdir()
    paths = [pictures / "a.png", tmp_path / "bad.png", tmp_path / "bomb.png", tmp_path / "nowhere.png", tmp_path / "empty",
             tmp_path / "*.jpg", pictures / "b.JPG"]  # fmt: skip
    with pytest.raises(SystemExit, match="1"):
        predict.main([str(model_folder), *map(str, paths), "--batch-size", "2", "--workers", workers])
    out, err = capsys.readouterr()
    assert "a.png" in out and "b.JPG" in out
    errors = [line.removeprefix(f"error: {tmp_path}/") for line in err.splitlines() if line.startswith("error")]
    named = [
        "bad.png: cannot identify",
        "bomb.png:",
        "nowhere.png: No such file",
        "empty: is a folder",
        "*.jpg: No such file",
    ]
    assert len(errors) == 5 and all(error.startswith(start) for error, start in zip(errors, named, strict=True))


@pytest.mark.parametrize("size", ["1", "2", "9"])
def test_rows_keep_the_order_of_the_pictures_and_repeat_what_is_repeated(
    size, model_folder, pictures, tmp_path, capsys
):
    (tmp_path / "bad.png").write_bytes(b"")
    paths = [tmp_path / "bad.png", pictures / "a.png", tmp_path / "bad.png", pictures / "b.JPG", pictures / "a.png"]
    with pytest.raises(SystemExit, match="1"):
        predict.main([str(model_folder), *map(str, paths), "--json", "--batch-size", size])
    rows = json_lines(capsys)
    assert [row["picture"] for row in rows] == list(map(str, paths))
    assert ["error" in row for row in rows] == [True, False, True, False, False]


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_limit_above_the_processor_s_own_counts_too(model_folder, tmp_path, capsys):
    Image.new("1", (9500, 9500)).save(tmp_path / "large.png")
    with pytest.raises(SystemExit, match="1"):
        predict.main([str(model_folder), str(tmp_path / "large.png")])
    predict.main([str(model_folder), str(tmp_path / "large.png"), "--max-pixels", "100000000"])
    assert "large.png" in capsys.readouterr().out


def test_links_and_folders_that_a_pattern_matches_are_followed(model_folder, pictures, tmp_path, capsys):
    (tmp_path / "tree" / "deep").mkdir(parents=True)
    shutil.copy(pictures / "a.png", tmp_path / "tree" / "deep" / "a.png")
    (tmp_path / "tree" / "link").symlink_to(pictures / "more")
    (tmp_path / "tree" / "round").symlink_to(tmp_path / "tree")
    for path in (tmp_path / "tree", tmp_path / "tree" / "[dl]*"):
        predict.main([str(model_folder), str(path), "--json"])
        assert [Path(row["picture"]).name for row in json_lines(capsys)] == ["a.png", "e.bmp", "f.tif", "g.gif"]
    (tmp_path / "tree" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(SystemExit, match="1"):
        predict.main([str(model_folder), str(tmp_path / "tree"), "--json"])
    assert "gone.png: No such file" in capsys.readouterr().err


def test_names_that_are_no_text(model_folder, pictures, tmp_path):
    """Bytes that are no UTF-8, ends of lines and what steers a terminal, in every form and from standard input."""
    for name in (b"caf\xe9.png", b"two\nlines.png", b"red\x1b[31m.png"):
        shutil.copy(pictures / "a.png", bytes(tmp_path) + b"/" + name)
    names = b"\0".join(sorted(bytes(path) for path in tmp_path.iterdir())) + b"\0"
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    for form in ([], ["--json"], ["--csv"]):
        command = [sys.executable, "-m", "scripts.predict", str(model_folder), "-", "--null", *form]
        done = subprocess.run(
            command, input=names, capture_output=True, cwd=Path(__file__).parents[2], env=environment
        )
        assert done.returncode == 0, done.stderr
        if form == ["--json"]:
            found = [json.loads(line)["picture"] for line in done.stdout.decode("utf-8").splitlines()]
            assert [os.fsencode(name) for name in found] == names.rstrip(b"\0").split(b"\0")
        if not form:
            assert b"\x1b" not in done.stdout and done.stdout.count(b"\n") == 4


def test_a_model_whose_outputs_are_no_numbers_is_refused(tmp_path, pictures):
    model = tiny_model()
    model.classifier.bias.data[0] = float("nan")
    model.save_pretrained(tmp_path)
    ViTCustomImageProcessor.for_model(model.config).save_pretrained(tmp_path)
    with pytest.raises(SystemExit, match="a.png: the model's outputs are NaN"):
        predict.main([str(tmp_path), str(pictures / "a.png")])


def test_a_class_alone_is_a_yes_or_no(tmp_path, pictures, capsys):
    model = tiny_model(id2label={0: "cat"})
    model.save_pretrained(tmp_path)
    ViTCustomImageProcessor.for_model(model.config).save_pretrained(tmp_path)
    predict.main([str(tmp_path), str(pictures / "a.png"), "--json"])
    theirs = expected(tmp_path, [str(pictures / "a.png")])[0]
    assert json_lines(capsys)[0]["predictions"][0]["score"] == pytest.approx(theirs[0]["score"], abs=1e-5)


@pytest.mark.parametrize("size, channels", [(30, 3), (16, 1)])
def test_a_processor_that_does_not_fit_is_named(size, channels, model_folder, pictures, tmp_path):
    shutil.copytree(model_folder, tmp_path / "model")
    other = ViTCustomImageProcessor(size=size, image_mean=[0.5] * channels, image_std=[0.5] * channels)
    other.save_pretrained(tmp_path / "model")
    with pytest.raises(
        SystemExit, match="ViTCustomImageProcessor does not fit ViTCustomForImageClassification"
    ) as caught:
        predict.main([str(tmp_path / "model"), str(pictures / "a.png")])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("sheet", ["nowhere/sheet.png", "sheet.foo", "."])
def test_a_sheet_that_cannot_be_written_is_found_first(sheet, model_folder, pictures, tmp_path, capsys):
    with pytest.raises(SystemExit, match="error: --sheet"):
        predict.main([str(model_folder), str(pictures / "a.png"), "--sheet", str(tmp_path / sheet)])
    assert not capsys.readouterr().out


def test_ctrl_c_still_lists_what_could_not_be_read(model_folder, pictures, tmp_path, monkeypatch, capsys):
    def interrupted(*arguments):
        yield [Outcome(Item("bad.png", "bad.png"), "bad.png: damaged")]
        raise KeyboardInterrupt

    monkeypatch.setattr(predict, "classify", interrupted)
    with pytest.raises(SystemExit, match="130"):
        predict.main([str(model_folder), str(pictures)])
    assert "error: bad.png: damaged" in capsys.readouterr().err


def test_a_limit_of_pixels_can_be_set(model_folder, pictures, capsys):
    with pytest.raises(SystemExit, match="1"):
        predict.main([str(model_folder), str(pictures / "a.png"), "--max-pixels", "599"])
    assert "a.png: cannot be decoded: 30 x 20 = 600 pixels exceeds limit" in capsys.readouterr().err
    predict.main([str(model_folder), str(pictures / "a.png"), "--max-pixels", "600"])


def test_patterns_are_looked_up(model_folder, pictures, capsys):
    predict.main([str(model_folder), str(pictures / "*" / "*.[bt]*"), "--json"])
    assert {Path(row["picture"]).name for row in json_lines(capsys)} == {"e.bmp", "f.tif"}
    with pytest.raises(SystemExit, match="1"):
        predict.main([str(model_folder), str(pictures / "**"), "--json"])
    assert len(json_lines(capsys)) == 8  # each once, and the notes
    predict.main([str(model_folder), str(pictures / "**" / "*.JPG"), "--json"])
    assert [Path(row["picture"]).name for row in json_lines(capsys)] == ["b.JPG"]


def test_names_come_from_standard_input(model_folder, pictures, capsys, monkeypatch):
    names = f"{pictures}/a.png\r\n\n{pictures}/more\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(names))
    predict.main([str(model_folder), "-", "--json"])
    assert [Path(row["picture"]).name for row in json_lines(capsys)] == ["a.png", "e.bmp", "f.tif", "g.gif"]
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    with pytest.raises(SystemExit, match="error: no pictures"):
        predict.main([str(model_folder), "-"])


def test_the_sheet_shows_the_pictures(model_folder, pictures, tmp_path, capsys):
    predict.main([str(model_folder), str(pictures), "--sheet", str(tmp_path / "sheet.png")])
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert np.asarray(sheet.convert("L")).std() > 10


def test_a_reader_that_has_had_enough_is_no_error(model_folder, pictures):
    many = " ".join([str(pictures / "a.png")] * 300)
    command = f"{sys.executable} -m scripts.predict {model_folder} {many} | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.stdout.startswith("picture") and "Traceback" not in done.stderr


def test_many_labels_are_independent_and_regression_is_refused(tmp_path, pictures, capsys):
    for kind in ("multi_label_classification", "regression"):
        model = tiny_model(id2label=dict(enumerate(NAMES)), problem_type=kind)
        model.save_pretrained(tmp_path / kind)
        ViTCustomImageProcessor.for_model(model.config).save_pretrained(tmp_path / kind)
    path = str(pictures / "a.png")
    predict.main([str(tmp_path / "multi_label_classification"), path, "--json", "--top-k", "5"])
    found = json_lines(capsys)[0]["predictions"]
    theirs = expected(tmp_path / "multi_label_classification", [path])[0]
    assert [p["score"] for p in found] == pytest.approx([p["score"] for p in theirs], abs=1e-5)
    with pytest.raises(SystemExit, match="regression model"):
        predict.main([str(tmp_path / "regression"), path])


def test_a_thin_picture_is_refused_for_another_library_s_processor(tmp_path, pictures, capsys):
    save_vit(tmp_path, num_labels=3)
    crop = {"height": 16, "width": 16}
    CLIPImageProcessor(size={"shortest_edge": 224}, crop_size=crop).save_pretrained(tmp_path)
    Image.new("L", (600_000, 1)).save(tmp_path / "thin.png")
    with pytest.raises(SystemExit, match="1"):
        predict.main([str(tmp_path), str(tmp_path / "thin.png"), str(pictures / "a.png")])
    out, err = capsys.readouterr()
    assert "a.png" in out and "thin.png: 600000 x 1 pixels would become" in err


def test_pictures_that_are_padded_are_as_the_processor_has_them(pictures):
    model = tiny_model(image_size=[24, 48])
    processor = ViTCustomImageProcessor(size=16, do_pad=True, pad_size={"height": 24, "width": 48})
    (outcomes,) = classify(model, processor, find_pictures([str(pictures / "a.png")]))
    expected = model(**processor(pictures / "a.png", return_tensors="pt")).logits[0]
    torch.testing.assert_close(outcomes[0].logits, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("channels", [1, 4])
def test_models_of_other_channels(channels, tmp_path, pictures, capsys):
    model = tiny_model(num_channels=channels)
    model.save_pretrained(tmp_path)
    ViTCustomImageProcessor.for_model(model.config).save_pretrained(tmp_path)
    predict.main([str(tmp_path), str(pictures), "--json"])
    assert len(json_lines(capsys)) == 7


def test_wrong_arguments_are_named(model_folder, capsys):
    for arguments, named in (
        ([], "PATH"),
        (["a", "--top-k", "0"], "top-k"),
        (["a", "--json", "--csv"], "not allowed"),
    ):
        with pytest.raises(SystemExit, match="2"):
            predict.main([str(model_folder), *arguments])
        assert named in capsys.readouterr().err
    with pytest.raises(SystemExit, match="error: --device nothing"):
        predict.main([str(model_folder), "a", "--device", "nothing"])


def test_what_is_no_whole_classifier_is_refused(model_folder, pictures, tmp_path):
    picture = str(pictures / "a.png")
    ViTCustomModel.from_pretrained(model_folder).save_pretrained(tmp_path / "base")
    shutil.copy(model_folder / "preprocessor_config.json", tmp_path / "base")
    for name in ("torn", "odd"):
        shutil.copytree(model_folder, tmp_path / name)
    (tmp_path / "torn" / "model.safetensors").write_bytes((model_folder / "model.safetensors").read_bytes()[:1000])
    config = (model_folder / "config.json").read_text().replace('"hidden_size": 48', '"hidden_size": "48"')
    (tmp_path / "odd" / "config.json").write_text(config)
    (tmp_path / "run" / "final").mkdir(parents=True)
    found = [
        ("base", "no whole classifier"),
        ("torn", "header"),
        ("odd", "hidden_size"),
        ("run", "did you mean .*final"),
    ]
    for source, named in [*((tmp_path / name, named) for name, named in found), ("/nowhere/at/all", "no such folder")]:
        with pytest.raises(SystemExit, match=f"error: {source}.*{named}") as caught:
            predict.main([str(source), picture])
        assert "\n" not in str(caught.value)


# ---------------------------------------------------------------------------------------------------------------------
# Underneath


def test_pictures_are_looked_for_as_they_are_needed(pictures):
    """A stream without an end is read batch by batch."""
    asked = []

    def endless():
        while True:
            asked.append(1)
            yield str(pictures / "a.png")

    model = tiny_model()
    batches = classify(model, ViTCustomImageProcessor.for_model(model.config), find_pictures(endless()), batch_size=4)
    for _ in range(3):
        assert [outcome.logits.shape for outcome in next(batches)] == [(5,)] * 4
    assert len(asked) <= 17


def test_pictures_of_several_shapes_keep_their_order(pictures):
    model = tiny_model()
    processor = ViTCustomImageProcessor(size={"shortest_edge": 16}, do_resize=False)
    arrays = [np.random.default_rng(i).integers(0, 256, (8 * (1 + i % 2), 16, 3), dtype=np.uint8) for i in range(5)]
    items = []
    for index, array in enumerate(arrays):
        stored = io.BytesIO()
        Image.fromarray(array).save(stored, "PNG")
        items.append(Item(str(index), stored.getvalue()))
    (outcomes,) = classify(model, processor, items)
    for outcome, array in zip(outcomes, arrays, strict=True):
        alone = model(**processor(Image.fromarray(array), return_tensors="pt")).logits[0]
        torch.testing.assert_close(outcome.logits, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("processor", [ViTCustomImageProcessor(), ViTImageProcessor()])
def test_readers_can_go_to_processes_that_are_started_anew(processor):
    """Where processes don't fork, what they work with is pickled."""
    assert isinstance(pickle.loads(pickle.dumps(Reader(processor))), Reader)
