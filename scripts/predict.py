"""
Says what is in pictures.

    python -m scripts.predict MODEL photo.jpg folder 'many/**/*.png'
    find . -name '*.jpg' | python -m scripts.predict MODEL - --json > found.jsonl

The exit status is 0 if all pictures could be read, else 1, with a list of the others at the end, and 2 for wrong arguments.
"""

import argparse
import csv
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import torch
from tqdm import tqdm
from transformers.utils.logging import disable_progress_bar

from scripts.common.errors import UserError, one_line
from scripts.common.inference import classify, find_pictures, pick_device
from scripts.common.model import load_model


Prediction = list[tuple[str, float]]
SHEET = 48
SCORES = {"multi_label_classification": torch.sigmoid, "regression": None}


class Table:
    """A line for each picture, its best labels side by side; the columns are as wide as the longest label."""

    def __init__(self, top_k: int, labels: list[str]):
        self.top_k, self.label_width, self.name_width = top_k, max(map(len, labels)) + len(" 100.0%"), 0

    def __call__(self, rows: list[tuple[str, Prediction]], errors: dict[str, str]) -> None:
        if rows and not self.name_width:
            self.name_width = max(len("picture"), *(len(name) for name, _ in rows))
            self.print_line("picture", [f"{rank + 1}." for rank in range(self.top_k)])
        for name, best in rows:
            self.print_line(name, [f"{label} {score:.1%}" for label, score in best])

    def print_line(self, name: str, cells: list[str]) -> None:
        print("   ".join([name.ljust(self.name_width), *(cell.ljust(self.label_width) for cell in cells)]).rstrip())


class JsonLines:
    """An object for each picture: `picture` and `predictions`, or `error`."""

    def __init__(self, top_k: int, labels: list[str]):
        pass

    def __call__(self, rows: list[tuple[str, Prediction]], errors: dict[str, str]) -> None:
        for name, best in rows:
            found = [{"label": label, "score": round(score, 6)} for label, score in best]
            print(json.dumps({"picture": name, "predictions": found}, ensure_ascii=False))
        for name, error in errors.items():
            print(json.dumps({"picture": name, "error": error}, ensure_ascii=False))


class Csv:
    """A row for each picture: `picture`, `label_1`, `score_1`, ..., `error`."""

    def __init__(self, top_k: int, labels: list[str]):
        self.top_k, self.writer = top_k, csv.writer(sys.stdout, lineterminator="\n")
        ranks = (f"{kind}_{rank + 1}" for rank in range(top_k) for kind in ("label", "score"))
        self.writer.writerow(["picture", *ranks, "error"])

    def __call__(self, rows: list[tuple[str, Prediction]], errors: dict[str, str]) -> None:
        for name, best in rows:
            self.writer.writerow([name, *(cell for label, score in best for cell in (label, f"{score:.6f}")), ""])
        for name, error in errors.items():
            self.writer.writerow([name, *[""] * (2 * self.top_k), error])


WRITERS = {"table": Table, "json": JsonLines, "csv": Csv}


def predict(options: argparse.Namespace) -> dict[str, str]:
    """
    Writes what is in the pictures to standard output as they come, and returns what is wrong with those that can't be read.

    Raises:
        `UserError`: if there is no such model, no such folder, or nothing to look at.
    """
    model, processor = load_model(options.model)
    model.eval().to(pick_device(options.device))
    scores_of = SCORES.get(model.config.problem_type, partial(torch.softmax, dim=1))
    if scores_of is None:
        raise UserError(f"{options.model} is a regression model: its outputs are no classes")
    labels = model.config.id2label
    top_k = min(options.top_k, len(labels))
    write = WRITERS[options.format](top_k, list(labels.values()))
    unread, sheet, count, left_out = {}, [], 0, Counter()
    items = find_pictures(given_paths(options.paths), lambda name: left_out.update(files=1))
    total = count_pictures(options.paths) if sys.stderr.isatty() else None
    with tqdm(total=total, unit="picture", disable=not sys.stderr.isatty()) as bar:
        for batch in classify(model, processor, items, options.batch_size, options.workers, options.max_pixels):
            rows = []
            if batch.items:
                best = scores_of(batch.logits).topk(top_k)
                for item, values, indices in zip(
                    batch.items, best.values.tolist(), best.indices.tolist(), strict=True
                ):
                    named = [labels[index] for index in indices]
                    rows.append((item.name, list(zip(named, values, strict=True))))
            with bar.external_write_mode():
                write(rows, batch.errors)
                sys.stdout.flush()
            sheet += [(name, *best[0]) for name, best in rows[: SHEET - len(sheet)]] if options.sheet else []
            unread.update(batch.errors)
            count += len(batch.items) + len(batch.errors)
            bar.update(len(batch.items) + len(batch.errors))
    if not count:
        raise UserError("no pictures: give files, folders, patterns or, with -, their names on standard input")
    if left_out:
        print(f"{left_out['files']} files are no pictures by their names and left out", file=sys.stderr)
    if options.sheet and sheet:
        save_sheet(options.sheet, sheet)
    return unread


def given_paths(paths: list[str]) -> Iterator[str]:
    """The paths of the command line, and in place of `-` the lines of standard input."""
    for path in paths:
        if path == "-":
            yield from (line.rstrip("\r\n") for line in sys.stdin if line.strip())
        else:
            yield path


def count_pictures(paths: list[str]) -> int | None:
    """How many there are, if that can be known before."""
    return None if "-" in paths else sum(1 for _ in find_pictures(paths))


def save_sheet(path: Path, found: Iterable[tuple[str, str, float]]) -> None:
    """The first pictures with their best labels, as a figure."""
    from modeling_vit_custom import load_picture
    from scripts.plot import plot_sheet

    plot_sheet([(load_picture(name), f"{label} {score:.0%}", "black") for name, label, score in found], path)
    print(path, file=sys.stderr)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.predict", description="Says what is in pictures.",
        epilog="Exit status: 0, or 1 if a picture could not be read (they are listed at the end).",
    )  # fmt: skip
    parser.add_argument("model", help="folder or Hub id of an image classifier")
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="picture files, folders, patterns, addresses, or - for names on standard input",
    )
    parser.add_argument("--top-k", type=positive, default=3, help="labels of each picture (default: %(default)s)")
    formats = parser.add_mutually_exclusive_group()
    for name, text in (("json", "JSON, an object a line"), ("csv", "CSV")):
        formats.add_argument(f"--{name}", action="store_const", const=name, dest="format", help=f"write {text}")
    parser.set_defaults(format="table")
    parser.add_argument(
        "--sheet", type=Path, metavar="PNG", help=f"also draw the first {SHEET} pictures with their labels"
    )
    add_reading_arguments(parser)
    options = parser.parse_args(arguments)
    disable_progress_bar()
    try:
        unread = predict(options)
    except UserError as error:
        raise SystemExit(f"error: {one_line(error)}") from error
    except BrokenPipeError:  # whoever reads has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    list_unread(unread)
    if unread:
        raise SystemExit(1)


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} must be 1 or more")
    return number


def add_reading_arguments(parser: argparse.ArgumentParser) -> None:
    """How pictures are read and where the model runs: the same for all commands that look at pictures."""
    parser.add_argument("--batch-size", type=positive, default=32, help="pictures at a time (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=0, help="processes that decode; 0: the threads of this one")
    parser.add_argument("--max-pixels", type=positive, help="the most pixels that a picture may have")
    parser.add_argument("--device", help="where the model runs, such as cpu or cuda:1 (default: the accelerator)")


def list_unread(unread: dict[str, str]) -> None:
    """Says on standard error which pictures could not be read, and why."""
    for error in unread.values():
        print(f"error: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
