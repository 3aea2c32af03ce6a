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
from sklearn.metrics import confusion_matrix, log_loss, precision_recall_fscore_support
from torch import Tensor
from tqdm import tqdm
from transformers.utils.logging import disable_progress_bar as disable_transformers_bar

from scripts.common.data import choose, prepare
from scripts.common.errors import UserError, as_user_error, one_line
from scripts.common.inference import Item, classify, pick_device
from scripts.common.model import load_model
from scripts.common.recipe import DataRecipe
from scripts.common.sources import SPLIT_NAMES, open_source
from scripts.plot import plot_confusion
from scripts.predict import add_reading_arguments, list_unread


BINS = 15


def evaluate(options: argparse.Namespace) -> tuple[dict, dict[str, str]]:
    """
    What `summarise` says of MODEL on DATA, with throughput, and what is wrong with the pictures that can't be read.

    Raises:
        `UserError`: if there is no such model or data, or the model lacks a class of them.
    """
    model, processor = load_model(options.model)
    if model.config.problem_type not in (None, "single_label_classification"):
        raise UserError(f"{options.model} is for {model.config.problem_type}: pictures here have one class each")
    model.eval().to(pick_device(options.device))
    names = [model.config.id2label[index] for index in range(len(model.config.id2label))]
    rows = open_rows(options, names)
    logits, labels, unread, began = [], [], {}, time.perf_counter()
    with tqdm(total=len(rows), unit="picture", disable=not sys.stderr.isatty()) as bar:
        reading = (options.batch_size, options.workers, options.max_pixels)
        for batch in classify(model, processor, items_of(rows), *reading):
            if batch.items:
                logits.append(batch.logits)
                labels += [item.label for item in batch.items]
            unread.update(batch.errors)
            bar.update(len(batch.items) + len(batch.errors))
    seconds = time.perf_counter() - began
    if not logits:
        raise UserError(f"{options.data}: no picture could be read; the first: {next(iter(unread.values()))}")
    result = summarise(torch.cat(logits), torch.tensor(labels), names)
    return {"model": options.model, "data": options.data, "unreadable": len(unread), **result,
            "pictures_per_second": round(len(labels) / seconds, 1)}, unread  # fmt: skip


def open_rows(options: argparse.Namespace, names: list[str]) -> Dataset:
    """The split asked for, or test, else validation, else the only one, its labels numbered as the model's."""
    splits = open_source(options.data)
    split = SPLIT_NAMES.get(options.split, options.split) or next(
        (name for name in ("test", "validation") if name in splits), None
    )
    if split is None and len(splits) > 1:
        raise UserError(f"{options.data} has the splits {list(splits)}: choose one with --split")
    rows = choose(splits, split, options.data) if split else next(iter(splits.values()))
    recipe = DataRecipe(image_column=options.image_column, label_column=options.label_column)
    return prepare(rows, options.data, recipe, names)


def items_of(rows: Dataset) -> Iterator[Item]:
    for index, row in enumerate(rows):
        image = row["image"]
        yield Item(f"{(image or {}).get('path') or 'picture'} (row {index})", image, row["label"])


def summarise(logits: Tensor, labels: Tensor, names: list[str]) -> dict:
    """
    Counts, accuracies with their 95 % confidence intervals (Wilson), calibration and a table of the classes, of logits
    (N, classes) and labels (N,).
    """
    order = logits.argsort(dim=1, descending=True, stable=True)
    ranks = (order == labels[:, None]).int().argmax(dim=1)
    probabilities = logits.double().softmax(dim=1)
    predicted, everything = order[:, 0], list(range(len(names)))
    table = precision_recall_fscore_support(labels, predicted, labels=everything, zero_division=0)
    classes = {
        name: {"precision": precision, "recall": recall, "f1": f1, "pictures": int(support)}
        for name, precision, recall, f1, support in zip(names, *(column.tolist() for column in table), strict=True)
    }
    result = {"pictures": len(labels), "top1": share(ranks < 1)}
    if len(names) > 5:
        result["top5"] = share(ranks < 5)
    return {
        **result,
        "loss": float(log_loss(labels, probabilities, labels=everything)),
        "calibration_error": calibration_error(probabilities.max(dim=1).values.numpy(), (ranks < 1).numpy()),
        "classes": classes,
        "confusion": confusion_matrix(labels, predicted, labels=everything).tolist(),
    }


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
        print(
            f"{name.ljust(width)}   {row['precision']:9.1%} {row['recall']:8.1%} {row['f1']:8.1%} {row['pictures']:10,}"
        )
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
    parser.add_argument(
        "--split", help="train, validation or test (default: test, else validation, else the only one)"
    )
    parser.add_argument("--image-column", default="image", help="column of the pictures (default: %(default)s)")
    parser.add_argument("--label-column", default="label", help="column of the labels (default: %(default)s)")
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
    try:
        result, unread = evaluate(options)
        with as_user_error(str(options.out)):
            options.out.mkdir(parents=True, exist_ok=True)
            (options.out / "result.json").write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
            plot_confusion(np.array(result["confusion"]), list(result["classes"]), options.out / "confusion.png")
    except UserError as error:
        raise SystemExit(f"error: {one_line(error)}") from error
    print_result(result)
    print(f"\n{options.out / 'result.json'}\n{options.out / 'confusion.png'}")
    list_unread(unread)
    if unread:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
