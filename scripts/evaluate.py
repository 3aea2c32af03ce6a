"""
Measures a classifier on labelled pictures.

    python -m scripts.evaluate MODEL DATA [--split test] [--out evaluation]

DATA is what `data.train` of a recipe may be: a folder with a folder for each class, a saved dataset, parquet, a dataset on the
Hub. The classes are matched by their names. Pictures that can't be read are listed and not counted; the exit status is then 1.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from datasets import Dataset
from datasets import disable_progress_bars as disable_datasets_bars
from scipy.stats import binomtest
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm
from transformers.utils.logging import disable_progress_bar as disable_transformers_bar

from scripts.common.data import is_unlabelled, label_names, prepare, row_name
from scripts.common.errors import UserError, as_user_error
from scripts.common.inference import Item, classify
from scripts.common.recipe import DataRecipe
from scripts.common.sources import SPLIT_NAMES, open_source
from scripts.plot import plot_confusion
from scripts.predict import add_reading_arguments, exit_status, open_classifier, printable


BINS = 15


def measure(options: argparse.Namespace, unread: list[str]) -> dict:
    """
    What `summarise` says of MODEL on DATA, with throughput; adds to `unread` what is wrong with pictures that can't be read.

    Raises:
        `UserError`: if there is no such model or data, or the model lacks a class of them.
    """
    model, processor = open_classifier(options)
    if model.config.problem_type == "multi_label_classification":
        raise UserError(f"{options.model} is for several labels: pictures here have one class each")
    names = [model.config.id2label[index] for index in range(len(model.config.id2label))]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(f"{options.model} has several classes called {twice[0]!r}: classes are matched by their names")
    rows = open_rows(options, names)
    logits, labels, began = [], [], time.perf_counter()
    with tqdm(total=len(rows), unit="picture", disable=not sys.stderr.isatty()) as bar:
        for outcomes in classify(model, processor, items_of(rows), options.batch_size, options.workers):
            logits += [outcome.logits for outcome in outcomes if not outcome.error]
            labels += [outcome.item.label for outcome in outcomes if not outcome.error]
            unread += [outcome.error for outcome in outcomes if outcome.error]
            bar.update(len(outcomes))
    seconds = time.perf_counter() - began
    if not logits:
        raise UserError(f"{options.data}: no picture could be read")
    result = {"model": options.model, "data": options.data, "unreadable": len(unread)}
    result |= summarise(torch.stack(logits), torch.tensor(labels), names)
    return {**result, "pictures_per_second": round(len(labels) / seconds, 1)}


def open_rows(options: argparse.Namespace, names: list[str]) -> Dataset:
    """
    The split asked for; without one, the test split or else the validation split, if they have labels, or the only one. Its
    labels are numbered as the model's.
    """
    splits = open_source(options.data)
    recipe = DataRecipe(image_column=options.image_column, label_column=options.label_column)
    asked = None if options.split is None else SPLIT_NAMES.get(options.split.lower(), options.split)
    if asked is not None and asked not in splits:
        raise UserError(f"{options.data} has no split {options.split!r}, but {', '.join(splits)}")
    usual = [name for name in ("test", "validation") if name in splits and not is_unlabelled(splits[name], recipe)]
    split = asked or (usual[0] if usual else next(iter(splits)))
    if asked is None and not usual and len(splits) > 1:
        raise UserError(f"{options.data} has the splits {', '.join(splits)}: choose one with --split")
    rows = splits[split]
    if options.classes is not None:
        rows = translated(rows, options, names)
    return prepare(rows, options.data, recipe, names)


def translated(rows: Dataset, options: argparse.Namespace, names: list[str]) -> Dataset:
    """`rows` with their classes called as the file of `--classes` says: {"name in the data": "name in the model", ...}."""
    path, column = options.classes, options.label_column
    with as_user_error(f"--classes {path}"):
        table = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
            raise UserError(f"--classes {path}: must hold a table of names, {{name in the data: name in the model}}")
        unknown = sorted(set(table.values()) - set(names))
        if unknown:
            raise UserError(f"--classes {path}: the model has no class {unknown[0]!r}")
    if column not in rows.column_names:
        return rows  # whose lack of it is named later
    found = label_names(rows.select_columns([column]).rename_columns({column: "label"}), options.data)
    return rows.remove_columns(column).add_column(column, [table.get(name, name) for name in found])


def items_of(rows: Dataset) -> Iterator[Item]:
    for index, row in enumerate(rows):
        yield Item(row_name(index, row["image"]), row["image"], row["label"])


def summarise(logits: Tensor, labels: Tensor, names: list[str]) -> dict:
    """
    Counts, accuracies with their 95 % confidence intervals (Wilson), calibration and a table of the classes, of logits
    (N, classes) and labels (N,).
    """
    order = logits.argsort(dim=1, descending=True, stable=True)
    ranks = (order == labels[:, None]).int().argmax(dim=1)
    probabilities = logits.double().softmax(dim=1)
    predicted, everything = order[:, 0], list(range(len(names)))
    table = precision_recall_fscore_support(labels, predicted, labels=everything, zero_division=np.nan)
    classes = {
        name: {"precision": known(precision), "recall": known(recall), "f1": known(f1), "pictures": int(support)}
        for name, precision, recall, f1, support in zip(names, *(column.tolist() for column in table), strict=True)
    }
    result = {"pictures": len(labels), "top1": share(ranks < 1)}
    if len(names) > 5:
        result["top5"] = share(ranks < 5)
    return {
        **result,
        "loss": F.cross_entropy(logits.double(), labels).item(),
        "calibration_error": calibration_error(probabilities.max(dim=1).values.numpy(), (ranks < 1).numpy()),
        "classes": classes,
        "confusion": confusion_matrix(labels, predicted, labels=everything).tolist(),
    }


def known(value: float) -> float | None:
    """`None` where a figure is of no pictures."""
    return None if np.isnan(value) else value


def share(hits: Tensor) -> dict:
    """How many of how many, exactly, and between what bounds the share of all such pictures lies."""
    correct, count = int(hits.sum()), len(hits)
    interval = binomtest(correct, count).proportion_ci(0.95, method="wilson")
    return {"correct": correct, "accuracy": correct / count, "low": interval.low, "high": interval.high}


def calibration_error(confidence: np.ndarray, hits: np.ndarray) -> float:
    """The expected calibration error (Guo et al. 2017, equation 3): 15 bins of equal width."""
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = [abs(hits[bins == b].mean() - confidence[bins == b].mean()) * (bins == b).mean() for b in np.unique(bins)]
    return float(sum(gaps))


def print_result(result: dict) -> None:
    """The result as a person reads it."""
    width = max(len("class"), *map(len, result["classes"]))
    print(f"{'class'.ljust(width)}   precision   recall       f1   pictures")
    for name, row in result["classes"].items():
        precision, recall, f1 = (
            "–" if row[key] is None else f"{row[key]:.1%}" for key in ("precision", "recall", "f1")
        )
        print(f"{printable(name).ljust(width)}   {precision:>9} {recall:>8} {f1:>8} {row['pictures']:10,}")
    print()
    for key, text in (("top1", "top-1 accuracy"), ("top5", "top-5 accuracy")):
        if key in result:
            found = result[key]
            counts = f"{found['correct']:,} of {result['pictures']:,}"
            print(f"{text:18} {found['accuracy']:.2%}  (95 %: {found['low']:.2%} to {found['high']:.2%}; {counts})")
    print(f"{'loss':18} {result['loss']:.4f}")
    print(f"{'calibration error':18} {result['calibration_error']:.4f}")
    print(f"{'pictures/s':18} {result['pictures_per_second']:,}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.evaluate", description="Measures a classifier on labelled pictures.",
        epilog="Exit status: 0, or 1 if a picture could not be read (they are listed at the end and not counted).",
    )  # fmt: skip
    parser.add_argument("model", help="folder or Hub id of an image classifier")
    parser.add_argument(
        "data", help="folder with a folder for each class, saved dataset, parquet or dataset on the Hub"
    )
    parser.add_argument("--split", help="the split to take (default: test, else validation, else the only one)")
    parser.add_argument("--image-column", default="image", help="column of the pictures (default: %(default)s)")
    parser.add_argument("--label-column", default="label", help="column of the labels (default: %(default)s)")
    parser.add_argument(
        "--classes",
        type=Path,
        metavar="JSON",
        help='where names differ: a file with {"name in the data": "name in the model"}',
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("evaluation"),
        help="folder for result.json and confusion.png (default: %(default)s)",
    )
    add_reading_arguments(parser)
    options = parser.parse_args(arguments)
    disable_datasets_bars()
    disable_transformers_bar()
    unread: list[str] = []
    with exit_status(unread):
        with as_user_error(f"--out {options.out}"):
            options.out.mkdir(parents=True, exist_ok=True)
        result = measure(options, unread)
        print_result(result)
        with as_user_error(f"--out {options.out}"):
            (options.out / "result.json").write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
            plot_confusion(np.array(result["confusion"]), list(result["classes"]), options.out / "confusion.png")
        print(f"\n{options.out / 'result.json'}\n{options.out / 'confusion.png'}")


if __name__ == "__main__":
    main()
