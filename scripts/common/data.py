"""The splits of labelled pictures, and the order in which training sees them."""

import hashlib
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Lock
from typing import Any

import datasets
import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset, Sampler

from modeling_vit_custom import load_picture
from modeling_vit_custom.preprocessing_vit_custom import map_in_threads
from scripts.common.errors import UserError, one_line
from scripts.common.recipe import DataRecipe
from scripts.common.sources import SPLIT_NAMES, open_source


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
    train = prepare(choose(found, "train", recipe.train), recipe.train, recipe)
    names = train.features["label"].names
    if len(names) < 2:
        raise UserError(
            f"{recipe.train} holds one class, {names[0]!r}: a classifier needs two or more, a folder for each"
        )

    def other(source: str | None, kind: str) -> datasets.Dataset | None:
        if source is not None:
            return prepare(choose(open_source(source), kind, source), source, recipe, names)
        rows = found.get(kind)
        if rows is not None and is_unlabelled(rows, recipe):
            print(f"{recipe.train}: the {kind} split has no labels and is left out")
            return None
        return None if rows is None else prepare(rows, f"{recipe.train} ({kind})", recipe, names)

    test, validation = other(recipe.test, "test"), other(recipe.validation, "validation")
    if validation is None:
        train, validation = split_off(train, recipe.validation_fraction, seed)
    return Splits(train, validation, test, names)


def choose(splits: datasets.DatasetDict, kind: str, source: str) -> datasets.Dataset:
    """The split of a `kind`, or the only one that there is, unless it is named for another kind."""
    only = next(iter(splits))
    is_free = len(splits) == 1 and (only not in SPLIT_NAMES.values() or kind != "train")
    if kind not in splits and not is_free:
        raise UserError(f"{source} has the splits {list(splits)}, none of them for {kind}")
    return splits.get(kind, splits[only])


def is_unlabelled(rows: datasets.Dataset, recipe: DataRecipe) -> bool:
    """Whether every label is missing or -1, as in the test splits of some public datasets."""
    return recipe.label_column in rows.column_names and set(rows[recipe.label_column]) <= {None, -1}


def prepare(
    rows: datasets.Dataset, source: str, recipe: DataRecipe, names: list[str] | None = None
) -> datasets.Dataset:
    """
    `rows` with undecoded pictures in `image` and class numbers in `label`, checked; `names` are the classes to number them
    by, those of the rows if `None`.
    """
    columns = {recipe.image_column: "image", recipe.label_column: "label"}
    for kind, column in (("image", recipe.image_column), ("label", recipe.label_column)):
        if column not in rows.column_names:
            ways = f"data.{kind}_column, or --{kind}-column in evaluation"
            raise UserError(f"{source} has no column {column!r}, but {rows.column_names}; set {ways}")
    rows = rows.select_columns(list(columns)).rename_columns({old: new for old, new in columns.items() if old != new})
    if len(rows) == 0:
        raise UserError(f"{source} holds no pictures")
    if not isinstance(rows.features["image"], datasets.Image):
        raise UserError(f"column {recipe.image_column!r} of {source} holds no pictures but {rows.features['image']}")
    labels = label_names(rows, source)
    missing = next((row for row, label in enumerate(labels) if label is None), None)
    if missing is not None:
        raise UserError(f"{source}: row {missing} has no label")
    names = names or class_names(rows, labels)
    unknown = sorted(set(labels) - set(names))
    if unknown:
        known = f"{len(names)} classes" if len(names) > 10 else names
        raise UserError(f"{source} holds the classes {unknown[:5]}, which are none of {known}")
    number = {name: index for index, name in enumerate(names)}
    numbers, feature = [number[label] for label in labels], datasets.ClassLabel(names=names)
    rows = rows.remove_columns("label").add_column("label", numbers, feature=feature)
    return rows.cast_column("image", datasets.Image(decode=False))


def label_names(rows: datasets.Dataset, source: str) -> list[str | None]:
    """The name of each row's class; `None` for -1, which public datasets have for no label."""
    feature, labels = rows.features["label"], list(rows["label"])
    if isinstance(feature, datasets.ClassLabel):
        wrong = next((row for row, n in enumerate(labels) if n is not None and not -1 <= n < len(feature.names)), None)
        if wrong is not None:
            raise UserError(f"{source}: row {wrong} has label {labels[wrong]}, outside 0..{len(feature.names) - 1}")
        return [None if n is None or n < 0 else feature.names[n] for n in labels]
    kind = getattr(feature, "dtype", "")
    if not kind.startswith(("int", "uint", "string", "large_string", "bool")):
        raise UserError(f"the labels of {source} are {kind or feature}; expected names or whole numbers of classes")
    return [None if label is None else str(label) for label in labels]


def class_names(rows: datasets.Dataset, labels: list[str]) -> list[str]:
    """The classes in the order of their numbers: as the dataset says, else sorted, whole numbers by their value."""
    feature = rows.features["label"]
    if isinstance(feature, datasets.ClassLabel):
        return feature.names
    return sorted(set(labels), key=int if "int" in feature.dtype else str)


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
    nor a resumed run change it. A batch is decoded in `threads` threads, as many as torch has by default.
    """

    def __init__(
        self,
        rows: datasets.Dataset,
        transform: Callable,
        seed: int = 0,
        loader: Callable[..., Image.Image] = load_picture,
        threads: int | None = None,
    ):
        self.rows, self.transform, self.seed, self.loader, self.threads = rows, transform, seed, loader, threads

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: int | tuple[int, int]) -> dict[str, Any]:
        return self.__getitems__([key])[0]

    def __getitems__(self, keys: list[int | tuple[int, int]]) -> list[dict[str, Any]]:
        """Those of a batch; asked for by `DataLoader`. Decoded side by side, transformed one by one: torch has one generator."""
        keys = [(0, key) if isinstance(key, int) else key for key in keys]
        rows, lock = self.rows[[index for _, index in keys]], Lock()

        def sample(key: tuple[int, int], image: dict, label: int) -> dict[str, Any]:
            picture = self.picture(key[1], image)
            with lock:
                torch.default_generator.manual_seed(mix(self.seed, *key))
                return {"pixel_values": self.transform(picture), "labels": label}

        with torch.random.fork_rng(devices=[]):
            return map_in_threads(sample, keys, rows["image"], rows["label"], threads=self.threads)

    def picture(self, index: int, image: dict | None = None) -> Image.Image:
        """The decoded picture of a row; an error names file and row."""
        image = image or self.rows[index]["image"]
        if image is None:
            raise UserError(f"row {index} has no picture")
        try:
            return self.loader(image, row_name(index, image))
        except (OSError, ValueError) as error:
            raise UserError(f"{one_line(error)}; repair or remove it") from error


def row_name(index: int, image: dict | None) -> str:
    """What an error calls the picture of a row."""
    return f"{(image or {}).get('path') or 'picture'} (row {index})"


def mix(*numbers: int) -> int:
    """One seed out of several numbers, unlike for unlike ones."""
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest(), "little") >> 1


def threads_per_worker(workers: int) -> int | None:
    """The cores that there are for each worker process; `None` without any, where torch's own number counts."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // workers) if workers else None


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
        for epoch in range(self.start // self.size, math.ceil(self.stop / self.size)):
            order = np.random.default_rng([self.seed, epoch]).permutation(self.size)
            first, last = max(0, self.start - epoch * self.size), min(self.size, self.stop - epoch * self.size)
            yield from ((epoch, int(index)) for index in order[first:last])
