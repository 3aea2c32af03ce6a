"""Parity: an original implementation and ours on the same pictures, layer by layer."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from conversion.errors import ConversionError
from conversion.importing import import_checkpoint, plan_import
from conversion.locate import open_source
from conversion.records import Request
from conversion.references import Reference, reference_of
from modeling_vit_custom import (
    ViTCustomConfig,
    ViTCustomForImageClassification,
    ViTCustomModel,
    ViTCustomPreTrainedModel,
)
from modeling_vit_custom.configuration_vit_custom import pair


PICTURES = 2


@dataclass
class Layer:
    """The largest difference in a layer, absolute and over the largest value there."""

    name: str
    difference: float
    relative: float


@dataclass
class Verification:
    """What `verify` found; prints as a table."""

    reference: str
    layers: list[Layer]
    tolerance: float

    @property
    def within(self) -> bool:
        """Whether every layer is within the tolerance (not so where a number is NaN)."""
        return all(layer.relative <= self.tolerance for layer in self.layers)

    def __str__(self) -> str:
        lines = [f"against {self.reference}", f"{'layer':12} {'largest difference':>18} {'over largest value':>18}"]
        lines += [f"{layer.name:12} {layer.difference:18.2e} {layer.relative:18.2e}" for layer in self.layers]
        verdict = "within" if self.within else "NOT within"
        return "\n".join([*lines, f"{verdict} the tolerance of {self.tolerance:g}"])


def verify(
    path: str | Path | nn.Module,
    folder: str | Path | None = None,
    tolerance: float = 1e-5,
    plot: str | Path | None = None,
    **request: Any,
) -> Verification:
    """
    Runs an implementation that someone else wrote, and ours, in float32 on random pictures of the model's size.

    Args:
        path: The source, as for `import_checkpoint`; so is `request`.
        folder: What was imported; by default the source is imported anew.
        tolerance: The largest difference in a layer, over the largest value in it or 1.
        plot: A PNG to draw the differences to.

    Raises:
        `ConversionError`: if the source can't be read, or no installed implementation can run it.
    """
    source = open_source(path)
    plan = plan_import(source, Request(**request))
    reference = reference_of(source, plan.place, plan.config)
    model = import_checkpoint(path, **{**request, "dtype": "float32"}).model if folder is None else opened(folder)
    size = pair(plan.config.image_size)
    pixels = torch.randn(PICTURES, plan.config.num_channels, *size, generator=torch.Generator().manual_seed(0))
    theirs, ours = theirs_of(reference, pixels), ours_of(model, pixels)
    if theirs.keys() != ours.keys():
        raise ConversionError(f"{folder} has {len(ours)} layers to compare, the original {len(theirs)}")
    result = Verification(reference.name, [compare(name, theirs[name], ours[name]) for name in theirs], tolerance)
    if plot is not None:
        draw(result, Path(plot))
    return result


def opened(folder: str | Path) -> ViTCustomPreTrainedModel:
    """The model of a folder in float32."""
    try:
        config = ViTCustomConfig.from_pretrained(folder)
        model_class = ViTCustomForImageClassification if config.num_labels else ViTCustomModel
        return model_class.from_pretrained(folder, dtype=torch.float32).eval()
    except (OSError, ValueError, RuntimeError) as error:
        raise ConversionError(f"{folder}: {' '.join(str(error).split())}") from error


@contextmanager
def watched(blocks: list[nn.Module]) -> Iterator[dict[str, Tensor]]:
    """What goes into the first of `blocks` and comes out of each."""
    seen: dict[str, Tensor] = {}

    def keep(name: str, value: Tensor | tuple) -> None:
        seen[name] = (value[0] if isinstance(value, tuple) else value).detach()

    hooks = [blocks[0].register_forward_pre_hook(lambda _, args: keep("embeddings", args))]
    for index, block in enumerate(blocks, start=1):
        hooks.append(block.register_forward_hook(lambda _, __, out, n=f"block {index}": keep(n, out)))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def theirs_of(reference: Reference, pixels: Tensor) -> dict[str, Tensor]:
    with watched(reference.blocks) as seen:
        output = reference.run(pixels)
    return {**seen, "output": output}


@torch.no_grad()
def ours_of(model: ViTCustomPreTrainedModel, pixels: Tensor) -> dict[str, Tensor]:
    with watched(list(model.base_model.layers)) as seen:
        output = model(pixels)
    return {**seen, "output": output.logits if "logits" in output else output.pooler_output}


def compare(name: str, theirs: Tensor, ours: Tensor) -> Layer:
    """NaN where the shapes differ, which is within no tolerance."""
    if theirs.shape != ours.shape:
        return Layer(name, float("nan"), float("nan"))
    difference = (theirs.double() - ours.double()).abs().max().item()
    return Layer(name, difference, difference / max(1.0, theirs.abs().max().item()))


def draw(result: Verification, path: Path) -> None:
    """A bar for each layer on a logarithmic scale, and the tolerance."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    smallest = result.tolerance * 1e-6
    figure, axes = pyplot.subplots(figsize=(max(6, 0.35 * len(result.layers)), 4), layout="constrained")
    heights = [max(layer.relative, smallest) for layer in result.layers]
    colours = ["tab:blue" if layer.relative <= result.tolerance else "tab:red" for layer in result.layers]
    axes.bar(range(len(heights)), heights, color=colours)
    axes.axhline(result.tolerance, color="black", linestyle="--", label=f"tolerance {result.tolerance:g}")
    axes.set_yscale("log")
    axes.set_xticks(range(len(heights)), [layer.name for layer in result.layers], rotation=60, ha="right")
    axes.set_ylabel("largest difference / largest value")
    axes.set_title(f"Difference from {result.reference}")
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
