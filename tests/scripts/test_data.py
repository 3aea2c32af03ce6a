"""Labelled pictures from every kind of source, and the order in which training sees them."""

import re
import shutil
import time
from collections import Counter

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from scripts.common.data import PictureDataset, SampleStream, load_splits, mix, prepare, split_off
from scripts.common.errors import UserError
from scripts.common.recipe import DataRecipe
from tests.scripts.conftest import write_pictures


def load(source, **options):
    return load_splits(DataRecipe(train=str(source), **options), seed=0)


def pixels(rows) -> list[np.ndarray]:
    return [
        np.asarray(PictureDataset(rows, lambda picture: picture)[index]["pixel_values"]) for index in range(len(rows))
    ]


def test_every_kind_of_source_gives_the_same_rows(pictures_folder, tmp_path):
    found = datasets.load_dataset("imagefolder", data_dir=str(pictures_folder))
    found.save_to_disk(tmp_path / "disk")
    (tmp_path / "parquet").mkdir()
    for name, rows in found.items():
        rows.to_parquet(tmp_path / "parquet" / f"{name}.parquet")
    expected = load(pictures_folder)
    assert (len(expected.train), len(expected.validation), len(expected.test)) == (24, 2, 10)
    assert expected.names == ["cat", "dog"]
    parquet = {"train": tmp_path / "parquet" / "train.parquet", "test": str(tmp_path / "parquet" / "test.parquet")}
    others = [load(tmp_path / "disk"), load(tmp_path / "parquet"), load(parquet["train"], test=parquet["test"])]
    for splits in others:
        assert splits.names == expected.names
        for split in ("train", "validation", "test"):
            ours, theirs = getattr(splits, split), getattr(expected, split)
            assert list(ours["label"]) == list(theirs["label"])
            assert all(np.array_equal(*pair) for pair in zip(pixels(ours), pixels(theirs), strict=True))


def test_extensions_of_any_case_and_other_files(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for file in ("a.jpg", "b.JPG", "c.Jpeg", "d.PNG", "e.webp", "f.bmp", "g.tif"):
            Image.new("RGB", (9, 9)).save(tmp_path / name / file)
        (tmp_path / name / "notes.txt").write_text("no picture")
    splits = load(tmp_path)
    assert len(splits.train) + len(splits.validation) == 14


def test_a_name_on_the_hub_is_given_to_datasets(pictures_folder, monkeypatch):
    rows = datasets.load_dataset("imagefolder", data_dir=str(pictures_folder))
    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *arguments: asked.append(arguments) or rows)
    assert len(load("owner/name").test) == 10
    assert asked == [("owner/name",)]


def folder_of(root, *files) -> None:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (6, 6)).save(root / file)


@pytest.mark.parametrize("names", [("train", "plane", "car"), ("test", "exam"), ("a$x_$", "b"), ("o[1]", "o*", "o")])
def test_classes_may_have_any_name(names, tmp_path):
    for name in names:
        folder_of(tmp_path / "data [1]", *(f"{name}/{file}.png" for file in ("train_0", "test_1", "dog_test_4", "x")))
    splits = load(tmp_path / "data [1]")
    assert splits.names == sorted(names) and splits.test is None
    assert len(splits.train) + len(splits.validation) == 4 * len(names)


def test_pictures_may_lie_deeper_in_the_folder_of_their_class(tmp_path):
    folder_of(
        tmp_path, "x/p/1.png", "y/p/1.png", "y/q/1.png", "y/2.png", "x/3.png", ".hidden/z/1.png", "x/.hidden.png"
    )
    splits = load(tmp_path)
    assert splits.names == ["x", "y"]
    assert Counter([*splits.train["label"], *splits.validation["label"]]) == {0: 2, 1: 3}


def test_splits_by_any_of_their_names(tmp_path):
    folder_of(tmp_path, *(f"{s}/{c}/{n}.png" for s in ("Training", "val", "TEST") for c in "ab" for n in range(3)))
    splits = load(tmp_path)
    assert [len(rows) for rows in (splits.train, splits.validation, splits.test)] == [6, 6, 6]


@pytest.mark.parametrize("files, named", [
    (("train/a/1.png", "train/b/1.png", "holdout/a/1.png"), "beside holdout"),
    (("val/a/1.png", "valid/a/1.png", "train/a/1.png"), "two splits of one kind"),
    (("a/1.png", "b/1.png", "stray.png"), "stray.png lies in no folder of a class"),
    (("train/a/1.png", "train/b/1.png", "train/stray.png", "test/a/1.png"), "stray.png lies in no folder of a class"),
])  # fmt: skip
def test_a_folder_that_may_mean_two_things_is_refused(files, named, tmp_path):
    folder_of(tmp_path, *files)
    with pytest.raises(UserError, match=re.escape(named)):
        load(tmp_path)


def test_files_that_are_no_pictures_are_counted(tmp_path, capsys):
    folder_of(tmp_path, *(f"{name}/{index}.png" for name in "ab" for index in range(3)))
    (tmp_path / "a" / "notes.txt").write_text("no picture")
    load(tmp_path)
    assert "1 files are no pictures and left out, such as notes.txt" in capsys.readouterr().out


def rows_with(labels: list, feature) -> datasets.Dataset:
    features = datasets.Features(image=datasets.Image(), label=feature)
    rows = {"image": [Image.new("RGB", (4, 4))] * len(labels), "label": labels}
    return datasets.Dataset.from_dict(rows, features=features)


def test_whole_numbers_are_classes_in_their_order():
    found = prepare(rows_with([10, 2, 1, 10], datasets.Value("int64")), "rows", DataRecipe())
    assert found.features["label"].names == ["1", "2", "10"] and list(found["label"]) == [2, 1, 0, 2]


@pytest.mark.parametrize("labels, feature, named", [
    ([0, None, 1], datasets.Value("int64"), "row 1 has no label"), (["a", "b", None], datasets.Value("string"), "row 2"),
    ([0.5, 1.5], datasets.Value("float32"), "float32"), ([[0], [1, 2]], datasets.Sequence(datasets.Value("int64")), "labels"),
])  # fmt: skip
def test_labels_of_no_class_are_refused(labels, feature, named):
    with pytest.raises(UserError, match=named):
        prepare(rows_with(labels, feature), "rows", DataRecipe())


def test_a_test_split_without_labels_is_left_out(tmp_path, capsys):
    names = datasets.ClassLabel(names=["a", "b"])
    splits = {"train": rows_with([0, 1] * 4, names), "test": rows_with([-1] * 3, names)}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "rows")
    assert load(tmp_path / "rows").test is None
    assert "the test split has no labels and is left out" in capsys.readouterr().out


def test_other_splits_may_lack_classes_and_are_numbered_by_name(tmp_path):
    folder_of(tmp_path / "train", *(f"{name}/{index}.png" for name in ("ant", "bee", "cow") for index in range(3)))
    folder_of(tmp_path / "test", "cow/1.png", "bee/1.png")
    splits = load(tmp_path / "train", test=str(tmp_path / "test"))
    assert [splits.names[label] for label in splits.test["label"]] == ["bee", "cow"]


@pytest.mark.parametrize("splits, named", [
    (("test",), "['test'], none of them for train"), (("validation", "test"), "none of them for train"),
    (("a", "b"), "none of them for train"), (("training", "train"), "two splits of one kind"),
])  # fmt: skip
def test_nothing_but_training_pictures_is_trained_on(splits, named, tmp_path):
    rows = rows_with([0, 1] * 4, datasets.ClassLabel(names=["a", "b"]))
    datasets.DatasetDict(dict.fromkeys(splits, rows)).save_to_disk(tmp_path / "rows")
    with pytest.raises(UserError, match=re.escape(named)):
        load(tmp_path / "rows")


def test_splits_of_a_dataset_go_by_any_of_their_names(tmp_path):
    names = datasets.ClassLabel(names=["a", "b"])
    rows = {"Training": rows_with([0, 1] * 4, names), "TEST": rows_with([0, 1], names), "val": rows_with([1], names)}
    datasets.DatasetDict(rows).save_to_disk(tmp_path / "rows")
    splits = load(tmp_path / "rows")
    assert [len(rows) for rows in (splits.train, splits.validation, splits.test)] == [8, 1, 2]
    datasets.DatasetDict(all=rows["Training"]).save_to_disk(tmp_path / "one")
    assert len(load(tmp_path / "one").train) == 6


def test_a_source_without_labels_that_was_asked_for_is_refused(pictures_folder, tmp_path):
    rows_with([-1] * 3, datasets.ClassLabel(names=["cat", "dog"])).save_to_disk(tmp_path / "rows")
    with pytest.raises(UserError, match="row 0 has no label"):
        load(pictures_folder, test=str(tmp_path / "rows"))


def test_a_source_named_for_a_split_is_taken_instead_of_the_training_source_s(pictures_folder, tmp_path):
    write_pictures(tmp_path / "other", 2)
    assert len(load(pictures_folder, test=str(tmp_path / "other")).test) == 4
    assert len(load(pictures_folder, validation=str(tmp_path / "other")).validation) == 4


def test_a_row_without_a_picture_is_named():
    rows = rows_with([0, 1], datasets.ClassLabel(names=["a", "b"]))
    rows = rows.map(
        lambda row, index: {"image": None if index else row["image"]}, with_indices=True, features=rows.features
    )
    data = PictureDataset(prepare(rows, "rows", DataRecipe()), lambda picture: 0)
    with pytest.raises(UserError, match="row 1 has no picture"):
        data[1]


def test_text_labels_become_classes_by_name():
    rows = {"photo": [Image.new("RGB", (4, 4))] * 6, "kind": ["b", "a", "b", "a", "c", "c"]}
    features = datasets.Features(photo=datasets.Image(), kind=datasets.Value("string"))
    recipe = DataRecipe(image_column="photo", label_column="kind")
    found = prepare(datasets.Dataset.from_dict(rows, features=features), "rows", recipe)
    assert found.features["label"].names == ["a", "b", "c"]
    assert list(found["label"]) == [1, 0, 1, 0, 2, 2]


def test_the_digits_need_no_network():
    splits = load("sklearn:digits")
    assert len(splits.train) + len(splits.validation) == 1437 and len(splits.test) == 360
    assert set(Counter(splits.test["label"]).values()) <= {35, 36, 37}


def test_the_validation_split_is_stratified_and_disjoint():
    labels = [0] * 40 + [1] * 10 + [2]
    rows = datasets.Dataset.from_dict({"label": labels, "row": range(51)})
    rest, held_out = split_off(rows, 0.2, seed=0)
    assert Counter(held_out["label"]) == {0: 8, 1: 2}
    assert sorted([*rest["row"], *held_out["row"]]) == list(range(51))
    again, other = (list(split_off(rows, 0.2, seed)[1]["row"]) for seed in (0, 1))
    assert again == list(held_out["row"]) != other


@pytest.mark.parametrize("case, named", [
    ("unset", "data.train is not set"), ("missing", "no such file or folder"), ("empty", "no pictures in"),
    ("one class", "one class, 'cat'"), ("text file", "expected a .parquet file"), ("column", "image_column"),
    ("other classes", "holds the classes ['wolf']"), ("not on the Hub", "nobody/nothing"),
])  # fmt: skip
def test_what_cannot_be_trained_on_is_an_error_that_names_it(case, named, pictures_folder, tmp_path):
    options, source = {}, tmp_path / "data"
    source.mkdir()
    if case == "unset":
        source = ""
    elif case == "missing":
        source = tmp_path / "nowhere"
    elif case == "one class":
        shutil.copytree(pictures_folder / "train" / "cat", source / "cat")
    elif case == "text file":
        source = source / "notes.txt"
        source.write_text("text")
    elif case == "column":
        source, options = pictures_folder, {"image_column": "photo"}
    elif case == "other classes":
        write_pictures(source, 2)
        (source / "dog").rename(source / "wolf")
        source, options = pictures_folder, {"test": str(source)}
    elif case == "not on the Hub":
        source = "nobody/nothing"
    with pytest.raises(UserError, match=re.escape(named)) as caught:
        load(source, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("label, named", [(-1, "row 1 has no label"), (3, "row 1 has label 3, outside 0..1")])
def test_labels_outside_the_classes_are_named(label, named, tmp_path):
    features = datasets.Features(image=datasets.Image(), label=datasets.Value("int64"))
    rows = datasets.Dataset.from_dict({"image": [Image.new("RGB", (4, 4))] * 3, "label": [0, 1, 1]}, features=features)
    rows = rows.cast_column("label", datasets.ClassLabel(names=["a", "b"]))
    table = rows.data.table.set_column(1, "label", [[0, label, 1]])
    datasets.Dataset(table, info=rows.info).save_to_disk(tmp_path / "rows")
    with pytest.raises(UserError, match=re.escape(named)):
        load(tmp_path / "rows")


@pytest.mark.parametrize("content", [b"", b"no picture"])
def test_a_picture_that_cannot_be_read_is_named_with_its_row(content, pictures_folder, tmp_path):
    shutil.copytree(pictures_folder / "train", tmp_path / "data")
    (tmp_path / "data" / "dog" / "3.png").write_bytes(content)
    splits = load(tmp_path / "data")
    rows = datasets.concatenate_datasets([splits.train, splits.validation])
    with pytest.raises(UserError, match=r"dog/3\.png \(row \d+\): cannot identify.*repair or remove it"):
        list(PictureDataset(rows, lambda picture: 0))


def test_every_epoch_holds_every_row_once_in_another_order():
    stream = list(SampleStream(size=10, seed=0, start=0, stop=35))
    assert [epoch for epoch, _ in stream] == [0] * 10 + [1] * 10 + [2] * 10 + [3] * 5
    orders = [tuple(index for e, index in stream if e == epoch) for epoch in range(3)]
    assert all(sorted(order) == list(range(10)) for order in orders) and len(set(orders)) == 3
    assert list(SampleStream(10, seed=1, start=0, stop=10)) != stream[:10]


@pytest.mark.parametrize("start", [0, 7, 10, 23, 35])
def test_a_stream_goes_on_where_it_was_left(start):
    stream = SampleStream(size=10, seed=0, start=start, stop=35)
    assert list(stream) == list(SampleStream(10, 0, 0, 35))[start:]
    assert len(stream) == 35 - start


def test_random_transforms_are_a_function_of_seed_epoch_and_row(pictures_folder):
    rows = load(pictures_folder).train
    data = PictureDataset(rows, lambda picture: torch.rand(3), seed=0)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = data[0, 4]["pixel_values"]
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(data[0, 4]["pixel_values"], first)
    other_seed = PictureDataset(rows, data.transform, seed=1)
    assert not any(torch.equal(x["pixel_values"], first) for x in (data[1, 4], data[0, 5], other_seed[0, 4]))


def test_threads_do_not_share_random_draws(pictures_folder):
    def slow(picture):
        drawn = torch.rand(2)
        time.sleep(0.002)
        return torch.cat([drawn, torch.rand(2)])

    rows, keys = load(pictures_folder).train, [(0, index) for index in range(20)]
    one, four = (PictureDataset(rows, slow, threads=count).__getitems__(keys) for count in (1, 4))
    assert all(torch.equal(a["pixel_values"], b["pixel_values"]) for a, b in zip(one, four, strict=True))


def test_mixed_seeds_are_unlike():
    seeds = {mix(a, b, c) for a in range(10) for b in range(10) for c in range(10)}
    assert len(seeds) == 1000 and all(0 <= seed < 2**63 for seed in seeds)
