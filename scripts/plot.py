"""
Figures of runs.

    python -m scripts.plot RUN [RUN ...] [--out curves.png]
"""

import argparse
import math
import textwrap
from pathlib import Path

import matplotlib


matplotlib.use("Agg")

import numpy as np
import torch
from matplotlib import pyplot as plt
from PIL import Image
from torch import nn
from transformers import BaseImageProcessor

from scripts.common.errors import UserError
from scripts.common.run_folder import read_log


SPLITS = {"train": "-", "validation": "--"}


def plot_curves(runs: list[Path], path: Path) -> None:
    """Loss, accuracy and learning rate over the epochs of one run or several."""
    figure, axes = plt.subplots(1, 3, figsize=(15, 4.2), layout="constrained")
    for number, run in enumerate(runs):
        log = read_log(run)
        if not log:
            raise UserError(f"{run} holds no metrics.jsonl with a line in it: give the folder of a run")
        label = f"{run.name} " if len(runs) > 1 else ""
        for axis, metric in zip(axes, ("loss", "accuracy", "lr"), strict=True):
            for split, style in SPLITS.items():
                points = [
                    (entry["epoch"], entry[metric]) for entry in log if entry["split"] == split and metric in entry
                ]
                if points:
                    axis.plot(*zip(*points, strict=True), style, color=f"C{number}", label=f"{label}{split}")
        for entry in log:
            if entry["split"] == "test":
                axes[1].plot(entry["epoch"], entry["accuracy"], "o", color=f"C{number}", label=f"{label}test")
    for axis, title in zip(axes, ("loss", "accuracy", "learning rate"), strict=True):
        axis.set(title=title, xlabel="epoch")
        axis.grid(alpha=0.3)
        if axis.get_legend_handles_labels()[0]:
            for text in axis.legend().get_texts():
                text.set_parse_math(False)  # a name may hold a dollar
    figure.savefig(path, dpi=120)
    plt.close(figure)


@torch.no_grad()
def plot_predictions(
    model: nn.Module, processor: BaseImageProcessor, examples: list[tuple[Image.Image, str]], path: Path
) -> None:
    """A sheet of pictures with what the model takes them for, in green where it is the class given with each, else in red."""
    was_training = model.training
    inputs = processor([picture for picture, _ in examples], return_tensors="pt")
    scores, best = model.eval()(**inputs.to(model.device)).logits.softmax(dim=1).max(dim=1)
    model.train(was_training)
    cells = []
    for (picture, label), score, index in zip(examples, scores.tolist(), best.tolist(), strict=True):
        predicted = model.config.id2label[index]
        text, is_right = f"{predicted} {score:.0%}", predicted == label
        cells.append((picture, text if is_right else f"{text}\nis {label}", "tab:green" if is_right else "tab:red"))
    plot_sheet(cells, path)


def plot_sheet(cells: list[tuple[Image.Image, str, str]], path: Path) -> None:
    """A sheet of pictures, each under its text in its colour."""
    columns = min(8, len(cells))
    rows = math.ceil(len(cells) / columns)
    figure, axes = plt.subplots(rows, columns, figsize=(1.7 * columns, 2 * rows), layout="constrained", squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, (picture, text, colour) in zip(axes.flat, cells, strict=False):
        axis.imshow(picture, interpolation="nearest", cmap="gray")
        lines = [line for part in text.splitlines() for line in textwrap.wrap(part, 22)[:3]]
        axis.set_title("\n".join(lines), fontsize=9, color=colour, parse_math=False)
    figure.savefig(path, dpi=120, format="png")
    plt.close(figure)


def plot_confusion(counts: np.ndarray, names: list[str], path: Path) -> None:
    """The confusion matrix: pictures of each class (rows) by the class they were taken for (columns), as shares of the rows."""
    size = max(4.0, min(20.0, 0.45 * len(names) + 2))
    figure, axis = plt.subplots(figsize=(size, size), layout="constrained")
    shares = counts / counts.sum(axis=1, keepdims=True).clip(min=1)
    image = axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axis.set(xlabel="taken for", ylabel="is")
    if len(names) <= 60:
        axis.set_xticks(range(len(names)), names, rotation=90, fontsize=8)
        axis.set_yticks(range(len(names)), names, fontsize=8)
        for text in [*axis.get_xticklabels(), *axis.get_yticklabels()]:
            text.set_parse_math(False)
    if len(names) <= 25:
        for row, column in np.argwhere(counts):
            colour = "white" if shares[row, column] > 0.5 else "black"
            axis.text(column, row, str(counts[row, column]), ha="center", va="center", color=colour, fontsize=7)
    figure.colorbar(image, ax=axis, shrink=0.7, label="share of the class")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.plot", description="Plots the curves of runs.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run")
    parser.add_argument("--out", type=Path, default=Path("curves.png"), help="the figure (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        plot_curves(options.runs, options.out)
    except (UserError, OSError) as error:
        raise SystemExit(f"error: {error}") from error
    print(options.out)


if __name__ == "__main__":
    main()
