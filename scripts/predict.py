"""
Says what is in pictures.

    python -m scripts.predict MODEL photo.jpg folder 'many/**/*.png'
    find . -name '*.jpg' -print0 | python -m scripts.predict MODEL - --null --json > found.jsonl

The exit status is 0 if all pictures could be read, 1 if not, with a list of the others at the end, 2 for wrong arguments and 130
after Ctrl-C.
"""

import argparse
import csv
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from torch import Tensor
from tqdm import tqdm
from transformers import BaseImageProcessor, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from scripts.common.errors import UserError, as_user_error, one_line
from scripts.common.inference import Item, Outcome, classify, find_pictures, pick_device
from scripts.common.model import check_fit, load_model
from scripts.plot import plot_sheet


SHEET = 48
LABEL_WIDTH = 24  # of a column, where labels are longer


class Table:
    """A line for each picture that could be read, its best labels side by side."""

    def __init__(self, top_k: int, labels: list[str]):
        self.top_k, self.name_width = top_k, 0
        self.label_width = min(LABEL_WIDTH, max(map(len, labels))) + len(" 100.0%")

    def __call__(self, rows: list[tuple[Outcome, list[tuple[str, float]]]]) -> None:
        rows = [(printable(outcome.item.name), best) for outcome, best in rows if not outcome.error]
        if rows and not self.name_width:
            self.name_width = max(len("picture"), *(len(name) for name, _ in rows))
            self.print_line("picture", [f"{rank + 1}." for rank in range(self.top_k)])
        for name, best in rows:
            self.print_line(name, [f"{printable(label)} {score:.1%}" for label, score in best])

    def print_line(self, name: str, cells: list[str]) -> None:
        print("   ".join([name.ljust(self.name_width), *(cell.ljust(self.label_width) for cell in cells)]).rstrip())


class JsonLines:
    """An object for each picture: `picture` and `predictions`, or `error`."""

    def __init__(self, top_k: int, labels: list[str]):
        """Needs neither."""

    def __call__(self, rows: list[tuple[Outcome, list[tuple[str, float]]]]) -> None:
        for outcome, best in rows:
            found = [{"label": label, "score": round(score, 6)} for label, score in best]
            rest = {"error": outcome.error} if outcome.error else {"predictions": found}
            text = json.dumps({"picture": outcome.item.name, **rest}, ensure_ascii=False)
            print(text if text.isprintable() else json.dumps({"picture": outcome.item.name, **rest}))


class Csv:
    """A row for each picture: `picture`, `label_1`, `score_1`, ..., `error`."""

    def __init__(self, top_k: int, labels: list[str]):
        self.top_k, self.writer = top_k, csv.writer(sys.stdout, lineterminator="\n")
        ranks = (f"{kind}_{rank + 1}" for rank in range(top_k) for kind in ("label", "score"))
        self.writer.writerow(["picture", *ranks, "error"])

    def __call__(self, rows: list[tuple[Outcome, list[tuple[str, float]]]]) -> None:
        for outcome, best in rows:
            cells = [cell for label, score in best for cell in (label, f"{score:.6f}")] or [""] * (2 * self.top_k)
            self.writer.writerow([outcome.item.name, *cells, outcome.error or ""])


WRITERS = {"table": Table, "json": JsonLines, "csv": Csv}


def predict(options: argparse.Namespace, unread: list[str]) -> None:
    """
    Writes what is in the pictures to standard output as they come, and adds to `unread` what is wrong with those that can't be
    read.

    Raises:
        `UserError`: if there is no such model, nothing to look at, or no place for the sheet.
    """
    if options.sheet and (options.sheet.suffix.lower() != ".png" or not options.sheet.absolute().parent.is_dir()):
        raise UserError(f"--sheet {options.sheet}: must be a .png file in a folder that is there")
    model, processor = open_classifier(options)
    labels = model.config.id2label
    top_k = min(options.top_k, len(labels))
    write, sheet, left_out, count = WRITERS[options.format](top_k, list(labels.values())), [], [0], 0

    def leave_out(name: str) -> None:
        left_out[0] += 1

    items = with_thumbnails(find_pictures(given_paths(options), leave_out), SHEET if options.sheet else 0)
    has_bar = sys.stderr.isatty()
    total = sum(1 for _ in find_pictures(options.paths)) if has_bar and "-" not in options.paths else None
    with tqdm(total=total, unit="picture", disable=not has_bar) as bar:
        for outcomes in classify(model, processor, items, options.batch_size, options.workers):
            rows = [(outcome, best_labels(outcome.logits, model, top_k)) for outcome in outcomes]
            with bar.external_write_mode():
                write(rows)
                sys.stdout.flush()
            unread += [outcome.error for outcome in outcomes if outcome.error]
            sheet += [(outcome.thumbnail, *best[0]) for outcome, best in rows if outcome.thumbnail]
            count += len(outcomes)
            bar.update(len(outcomes))
    if not count:
        raise UserError("no pictures: give files, folders, patterns or, with -, their names on standard input")
    if left_out[0]:
        print(f"{left_out[0]} files are no pictures by their names and left out", file=sys.stderr)
    if sheet:
        with as_user_error(f"--sheet {options.sheet}"):
            plot_sheet([(picture, f"{label} {score:.0%}", "black") for picture, label, score in sheet], options.sheet)
        print(options.sheet, file=sys.stderr)


def open_classifier(options: argparse.Namespace) -> tuple[PreTrainedModel, BaseImageProcessor]:
    """The model on its device and its image processor, with the limit of pixels that was asked for."""
    model, processor = load_model(options.model)
    if model.config.problem_type == "regression":
        raise UserError(f"{options.model} is a regression model: its outputs are no classes")
    model.eval().to(pick_device(options.device))
    check_fit(model, processor, options.model)
    if options.max_pixels is not None:
        processor.max_pixels = options.max_pixels
    return model, processor


def best_labels(logits: Tensor | None, model: PreTrainedModel, top_k: int) -> list[tuple[str, float]]:
    """The first labels with their probabilities: each by itself where a picture may have several."""
    if logits is None:
        return []
    are_independent = model.config.problem_type == "multi_label_classification" or len(logits) == 1
    scores, indices = (logits.sigmoid() if are_independent else logits.softmax(dim=0)).topk(top_k)
    return [
        (model.config.id2label[index], score) for index, score in zip(indices.tolist(), scores.tolist(), strict=True)
    ]


def with_thumbnails(items: Iterator[Item], count: int) -> Iterator[Item]:
    """Wants small copies of the first `count`."""
    for index, item in enumerate(items):
        yield replace(item, wants_thumbnail=True) if index < count else item


def given_paths(options: argparse.Namespace) -> Iterator[str]:
    """The paths of the command line, and in place of `-` the names on standard input."""
    for path in options.paths:
        if path != "-":
            yield path
        elif options.null:
            yield from filter(None, sys.stdin.read().split("\0"))
        else:
            yield from (line.rstrip("\r\n") for line in sys.stdin if line.strip())


def printable(text: str) -> str:
    """`text` with what would steer a terminal, or is no character at all, escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


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
    parser.add_argument("--null", action="store_true", help="names on standard input end with NUL, as of find -print0")
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
    for stream in (sys.stdin, sys.stdout):  # names of files need not be text
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="surrogateescape")
    unread: list[str] = []
    with exit_status(unread):
        predict(options, unread)


@contextmanager
def exit_status(unread: list[str]) -> Iterator[None]:
    """Ends a command as all that look at pictures do: with the pictures in `unread` listed, and no traceback for what is usual."""
    try:
        yield
    except UserError as error:
        raise SystemExit(f"error: {one_line(error)}") from error
    except BrokenPipeError as error:  # whoever reads has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from error
    except KeyboardInterrupt as error:
        raise SystemExit(130) from error
    finally:
        for trouble in unread:
            print(f"error: {printable(trouble)}", file=sys.stderr)
    if unread:
        raise SystemExit(1)


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} must be 1 or more")
    return number


def natural(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} must be 0 or more")
    return number


def add_reading_arguments(parser: argparse.ArgumentParser) -> None:
    """How pictures are read and where the model runs: the same for all commands that look at pictures."""
    parser.add_argument("--batch-size", type=positive, default=32, help="pictures at a time (default: %(default)s)")
    parser.add_argument("--workers", type=natural, default=0, help="processes that decode; 0: the threads of this one")
    parser.add_argument(
        "--max-pixels",
        type=positive,
        help="the most pixels that a picture may have (default: the image processor's; Pillow allows 178,956,970)",
    )
    parser.add_argument("--device", help="where the model runs, such as cpu or cuda:1 (default: the accelerator)")


if __name__ == "__main__":
    main()
