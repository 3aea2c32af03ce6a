"""
Says what is in pictures.

    python -m scripts.predict MODEL PICTURE [PICTURE ...] [--top-k 3]
"""

import argparse
import sys
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar

from modeling_vit_custom import load_picture
from scripts.common.errors import UserError
from scripts.common.model import load_model


@torch.no_grad()
def predict(source: str, paths: list[Path], top_k: int) -> tuple[dict[Path, list[tuple[str, float]]], dict[Path, str]]:
    """
    The `top_k` best (label, score) of each picture, and what is wrong with those that can't be read.

    Raises:
        `UserError`: if there is no such model.
    """
    model, processor = load_model(source)
    model.eval()
    found, unread = {}, {}
    for path in paths:
        try:
            picture = load_picture(path)
        except ValueError as error:
            unread[path] = str(error)
            continue
        except OSError as error:
            unread[path] = error.strerror
            continue
        scores = model(**processor(picture, return_tensors="pt")).logits.softmax(dim=1)[0]
        best = scores.topk(min(top_k, len(scores)))
        labels = [model.config.id2label[index] for index in best.indices.tolist()]
        found[path] = list(zip(labels, best.values.tolist(), strict=True))
    return found, unread


def print_table(found: dict[Path, list[tuple[str, float]]]) -> None:
    """A line for each picture, its best labels side by side."""
    cells = [["picture", *(f"{rank + 1}." for rank in range(max(map(len, found.values()), default=0)))]]
    for path, best in found.items():
        cells.append([path.name, *(f"{label} {score:.1%}" for label, score in best)])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        print("   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.predict", description="Says what is in pictures.")
    parser.add_argument("model", help="folder or Hub id of an image classifier")
    parser.add_argument("pictures", nargs="+", type=Path, metavar="PICTURE", help="picture files")
    parser.add_argument("--top-k", type=int, default=3, help="labels shown for each picture (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.top_k < 1:
        parser.error("--top-k must be 1 or more")
    disable_progress_bar()
    try:
        found, unread = predict(options.model, options.pictures, options.top_k)
    except UserError as error:
        raise SystemExit(f"error: {error}") from error
    print_table(found)
    for trouble in unread.values():
        print(f"error: {trouble}", file=sys.stderr)
    if unread:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
