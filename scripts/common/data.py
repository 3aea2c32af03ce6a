"""Labelled pictures from wherever they are, and the order in which training sees them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import datasets
import numpy as np
import torch
from torch.utils.data import Dataset, Sampler

from modeling_vit_custom import load_picture
from scripts.common.errors import UserError, last_line
from scripts.common.recipe import DataRecipe


PICTURE_EXTENSIONS = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp"}
VALIDATION_NAMES = ("validation", "valid", "val", "dev")


# ---------------------------------------------------------------------------------------------------------------------
# Sources


def load_digits() -> datasets.DatasetDict:
    """Scikit-learn's 1,797 scans of handwritten digits, 8 x 8 in 16 greys; a fifth of them, stratified, for the test."""
    from sklearn.datasets import load_digits

    scans, labels = load_digits(return_X_y=True)
    pictures = (scans.reshape(-1, 8, 8) * (255 / 16)).round().astype(np.uint8)
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=[str(n) for n in range(10)]))
    dataset = datasets.Dataset.from_dict({"image": list(pictures), "label": labels}, features=features)
    return dataset.train_test_split(test_size=0.2, stratify_by_column="label", seed=0)


def open_source(source: str) -> datasets.DatasetDict:
    """The splits of a source, which is what [`DataRecipe`] says it may be."""
    if source == "sklearn:digits":
        return load_digits()
    path = Path(source).expanduser()
    try:
        found = open_path(path) if path.exists() else open_hub(source)
    except UserError:
        raise
    except Exception as error:  # whatever a reader of `datasets` raises
        raise UserError(f"{source}: {last_line(error)}") from error
    return found if isinstance(found, dict) else datasets.DatasetDict(train=found)


def open_path(path: Path) -> datasets.DatasetDict | datasets.Dataset:
    if path.is_file():
        if path.suffix != ".parquet":
            raise UserError(f"{path} is a file; expected a .parquet file or a folder")
        return datasets.load_dataset("parquet", data_files=str(path))
    if (path / "dataset_dict.json").exists() or (path / "state.json").exists():
        return datasets.load_from_disk(str(path))
    if any(path.rglob("*.parquet")):
        return datasets.load_dataset(str(path))
    if not any(file.suffix.lower() in PICTURE_EXTENSIONS for file in path.rglob("*")):
        raise UserError(f"no pictures in {path}: expected a folder for each class, with pictures in it")
    return datasets.load_dataset("imagefolder", data_dir=str(path), drop_labels=False)


def open_hub(source: str) -> datasets.DatasetDict:
    if source.count("/") != 1 or source.startswith((".", "~")):
        raise UserError(f"{source}: no such file or folder, and no name of a dataset on the Hub (owner/name)")
    try:
        return datasets.load_dataset(source)
    except Exception as error:
        raise UserError(
            f"{source}: no such folder here, and not to be had from the Hub: {last_line(error)}"
        ) from error


# ---------------------------------------------------------------------------------------------------------------------
# Splits


@dataclass(frozen=True)
class Splits:
    """Rows of picture and label; `names` are the classes in the order of their numbers."""

    train: datasets.Dataset
    validation: datasets.Dataset
    test: datasets.Dataset | None
    names: list[str]


def load_splits(recipe: DataRecipe, seed: int) -> Splits:
    """
    The splits of a recipe, their columns named `image` and `label`.

    Raises:
        `UserError`: for a source that isn't there or holds no labelled pictures of two classes or more.
    """
    if not recipe.train:
        raise UserError("data.train is not set: --set data.train=FOLDER, with a folder for each class in it")
    found = open_source(recipe.train)
    train = prepare(found.get("train", next(iter(found.values()))), recipe.train, recipe)
    names = train.features["label"].names
    if len(names) < 2:
        raise UserError(
            f"{recipe.train} holds one class, {names[0]!r}: a classifier needs two or more, a folder for each"
        )

    def other(source: str | None, split_names: tuple[str, ...]) -> datasets.Dataset | None:
        splits = open_source(source) if source else found
        name = next((name for name in split_names if name in splits), None)
        if name is None and source:
            name = next(iter(splits))
        return None if name is None else prepare(splits[name], source or f"{recipe.train} ({name})", recipe, names)

    test = other(recipe.test, ("test",))
    validation = other(recipe.validation, VALIDATION_NAMES)
    if validation is None:
        train, validation = split_off(train, recipe.validation_fraction, seed)
    return Splits(train, validation, test, names)


def prepare(
    rows: datasets.Dataset, source: str, recipe: DataRecipe, names: list[str] | None = None
) -> datasets.Dataset:
    """`rows` with undecoded pictures in `image` and class numbers in `label`, checked; `names` are what they must name."""
    columns = {recipe.image_column: "image", recipe.label_column: "label"}
    for field, column in (("data.image_column", recipe.image_column), ("data.label_column", recipe.label_column)):
        if column not in rows.column_names:
            raise UserError(f"{source} has no column {column!r}, but {rows.column_names}; set {field}")
    rows = rows.select_columns(list(columns)).rename_columns({old: new for old, new in columns.items() if old != new})
    if len(rows) == 0:
        raise UserError(f"{source} holds no pictures")
    if not isinstance(rows.features["image"], datasets.Image):
        raise UserError(f"column {recipe.image_column!r} of {source} holds no pictures but {rows.features['image']}")
    if not isinstance(rows.features["label"], datasets.ClassLabel):
        rows = rows.class_encode_column("label")
    found = rows.features["label"].names
    if names is not None and found != names:
        raise UserError(
            f"the classes of {source} are {found}, those of the training pictures {names}; they must agree"
        )
    numbers = np.asarray(rows["label"])
    wrong = np.flatnonzero((numbers < 0) | (numbers >= len(found)))
    if len(wrong):
        raise UserError(f"{source}: row {wrong[0]} has label {numbers[wrong[0]]}, outside 0..{len(found) - 1}")
    return rows.cast_column("image", datasets.Image(decode=False))


def split_off(rows: datasets.Dataset, fraction: float, seed: int) -> tuple[datasets.Dataset, datasets.Dataset]:
    """
    `rows` without a `fraction` of each class, and that fraction: one picture of a class at least, if it has two.
    """
    numbers, random = np.asarray(rows["label"]), np.random.default_rng(seed)
    held_out = []
    for number in np.unique(numbers):
        members = random.permutation(np.flatnonzero(numbers == number))
        count = min(len(members) - 1, max(1, round(fraction * len(members))))
        held_out += members[:count].tolist()
    if not held_out:
        raise UserError(
            "too few pictures to hold some out for validation: set data.validation, or give two of each class"
        )
    rest = np.setdiff1d(np.arange(len(numbers)), held_out)
    return rows.select(rest), rows.select(sorted(held_out))


# ---------------------------------------------------------------------------------------------------------------------
# Rows to tensors


class PictureDataset(Dataset):
    """
    Decoded and transformed rows.

    A key is (epoch, index): what a random transform draws is a function of `seed` and key alone, so that neither workers
    nor a resumed run change it.
    """

    def __init__(self, rows: datasets.Dataset, transform: Callable, seed: int = 0):
        self.rows, self.transform, self.seed = rows, transform, seed

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: int | tuple[int, int]) -> dict[str, torch.Tensor]:
        epoch, index = (0, key) if isinstance(key, int) else key
        row = self.rows[index]
        picture = self.picture(index, row)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mix(self.seed, epoch, index))
            pixels = self.transform(picture)
        return {"pixel_values": pixels, "labels": row["label"]}

    def picture(self, index: int, row: dict | None = None):
        """The decoded picture of a row; an error names file and row."""
        image = (row or self.rows[index])["image"]
        name = f"{image['path'] or 'picture'} (row {index})"
        try:
            return load_picture(image["bytes"] if image["bytes"] is not None else image["path"], name)
        except (OSError, ValueError) as error:
            raise UserError(f"{last_line(error)}; repair or remove it") from error


def mix(*numbers: int) -> int:
    """One seed out of several numbers, unlike for unlike ones."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


class SampleStream(Sampler):
    """
    The keys (epoch, index) of the samples `start` to `stop` of an endless stream: one shuffled epoch after the other.

    Nothing is dropped at the end of an epoch: a batch may hold the end of one and the start of the next.
    """

    def __init__(self, size: int, seed: int, start: int, stop: int):
        self.size, self.seed, self.start, self.stop = size, seed, start, stop

    def __len__(self) -> int:
        return self.stop - self.start

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for epoch in range(self.start // self.size, -(-self.stop // self.size)):
            order = np.random.default_rng([self.seed, epoch]).permutation(self.size)
            first, last = max(0, self.start - epoch * self.size), min(self.size, self.stop - epoch * self.size)
            yield from ((epoch, int(index)) for index in order[first:last])
