"""
Figures of runs.

    python -m scripts.plot RUN [RUN ...] [--out curves.png]
"""

import argparse
import math
from pathlib import Path

import matplotlib


matplotlib.use("Agg")

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
    columns = min(8, len(examples))
    rows = math.ceil(len(examples) / columns)
    figure, axes = plt.subplots(rows, columns, figsize=(1.7 * columns, 2 * rows), layout="constrained", squeeze=False)
    for axis in axes.flat:
        axis.set_axis_off()
    for axis, (picture, label), score, index in zip(axes.flat, examples, scores.tolist(), best.tolist(), strict=False):
        predicted = model.config.id2label[index]
        axis.imshow(picture, interpolation="nearest")
        is_right = predicted == label
        text = f"{predicted} {score:.0%}" if is_right else f"{predicted} {score:.0%}\nis {label}"
        axis.set_title(text, fontsize=9, color="tab:green" if is_right else "tab:red", parse_math=False)
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
