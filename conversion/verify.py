"""Parity: an original implementation and ours on the same pictures, layer by layer."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from conversion.errors import ConversionError
from conversion.folders import expanded
from conversion.importing import import_checkpoint, plan_import
from conversion.locate import open_source
from conversion.ours import model_class, open_ours
from conversion.records import Request
from conversion.references import Layers, Points, Reference, reference_of
from modeling_vit_custom import ViTCustomConfig, ViTCustomPreTrainedModel
from modeling_vit_custom.configuration_vit_custom import pair


PICTURES = 2


@dataclass
class Layer:
    """The largest difference in a layer on pictures of a size, absolute and over the largest value there."""

    name: str
    size: tuple[int, int]
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

    @property
    def sizes(self) -> dict[tuple[int, int], list[Layer]]:
        """The layers by the size of the pictures, the native one first."""
        sizes = dict.fromkeys(layer.size for layer in self.layers)
        return {size: [layer for layer in self.layers if layer.size == size] for size in sizes}

    def __str__(self) -> str:
        lines = [f"against {self.reference}"]
        for (height, width), layers in self.sizes.items():
            title = f"{height} x {width} pixels"
            lines.append(f"{title:18} {'largest difference':>18} {'over largest value':>18}")
            lines += [
                f"{layer.name:18} {layer.difference:18.2e} {layer.relative:18.2e}"
                + ("" if layer.relative <= self.tolerance else "  <--")
                for layer in layers
            ]
        return "\n".join([*lines, f"{'within' if self.within else 'NOT within'} the tolerance of {self.tolerance:g}"])


def verify(
    path: str | Path | nn.Module,
    folder: str | Path | None = None,
    tolerance: float = 1e-5,
    plot: str | Path | None = None,
    **request: Any,
) -> Verification:
    """
    Runs an implementation that someone else wrote, and ours, in float32 on random pictures of the model's size and, where
    theirs takes it, of another.

    Args:
        path: The source, as for `import_checkpoint`; so is `request`.
        folder: What was imported; by default the source is imported anew.
        tolerance: The largest difference in a layer, over the largest value in it.
        plot: A PNG to draw the differences to.

    Raises:
        `ConversionError`: if the source can't be read, or no installed implementation can run it.
    """
    if not 0 <= tolerance < math.inf:
        raise ConversionError(f"--tolerance {tolerance} must be 0 or more")
    asked = Request(**request)
    source = open_source(path, asked.file)
    plan = plan_import(source, asked)
    reference = reference_of(source, plan.place, plan.config)
    model = import_checkpoint(path, **{**request, "dtype": "float32"}).model if folder is None else opened(folder)
    layers = []
    for size in sizes_of(plan.config, reference):
        pixels = torch.randn(PICTURES, plan.config.num_channels, *size, generator=torch.Generator().manual_seed(0))
        theirs, ours = theirs_of(reference, plan.config, pixels), ours_of(model, pixels)
        check_layers(theirs, ours, folder or path)
        layers += [compare(name, size, theirs[name], ours[name]) for name in theirs]
    result = Verification(reference.name, layers, tolerance)
    if plot is not None:
        draw(result, Path(plot))
    return result


def opened(folder: str | Path) -> ViTCustomPreTrainedModel:
    """The model of a folder in float32."""
    path = expanded(folder)
    config = open_ours(path).config
    return model_class(config).from_pretrained(path, dtype=torch.float32).eval()


def sizes_of(config: ViTCustomConfig, reference: Reference) -> list[tuple[int, int]]:
    """The native size, and one that is a patch smaller in one direction and two larger in the other."""
    (height, width), (ph, pw) = pair(config.image_size), pair(config.patch_size)
    other = (max(ph, height - ph), width + 2 * pw)
    return [(height, width), other] if reference.resizes else [(height, width)]


# ---------------------------------------------------------------------------------------------------------------------
# What goes on in a model


def watch(points: Points, run: Callable[[], Any]) -> tuple[Layers, Any]:
    """What passes `points` while `run` runs, and what it returns."""
    seen: Layers = {}

    def keep(name: str, value: Tensor | tuple) -> None:
        seen[name] = (value[0] if isinstance(value, tuple) else value).detach().clone()

    def entering(module: nn.Module, name: str) -> Any:
        return module.register_forward_pre_hook(lambda _, args: keep(name, args))

    def leaving(module: nn.Module, name: str) -> Any:
        return module.register_forward_hook(lambda _, __, output: keep(name, output))

    hooks = [entering(points.blocks[0], "embeddings")]
    hooks += [leaving(block, f"block {index}") for index, block in enumerate(points.blocks, start=1)]
    hooks += [leaving(points.norm, "last norm")] if points.norm is not None else []
    hooks += [entering(points.head, "pooled")] if points.head is not None else []
    try:
        with torch.no_grad():
            output = run()
    finally:
        for hook in hooks:
            hook.remove()
    return seen, output


def theirs_of(reference: Reference, config: ViTCustomConfig, pixels: Tensor) -> Layers:
    """The layers of the original that ours has too."""
    if reference.points is None:
        return reference.run(pixels)
    seen, output = watch(reference.points, lambda: reference.run(pixels))
    if config.final_norm != "tokens":
        seen.pop("last norm", None)  # theirs norms all tokens, ours the pooled vector: that one counts
    return (
        seen if output is None or config.pooling == "none" else {**seen, last_layer(bool(config.num_labels)): output}
    )


def ours_of(model: ViTCustomPreTrainedModel, pixels: Tensor) -> Layers:
    base = model.base_model
    points = Points(list(base.layers), base.norm, base.pooler.pre_logits if base.pooler is not None else None)
    seen, output = watch(points, lambda: model(pixels))
    last = output.logits if "logits" in output else output.get("pooler_output")
    return seen if last is None else {**seen, last_layer("logits" in output): last}


def last_layer(classifies: bool) -> str:
    return "logits" if classifies else "output"


def check_layers(theirs: Layers, ours: Layers, where: Any) -> None:
    """Raises `ConversionError` where one has a block or an output that the other lacks."""
    names = {name for name in ours if name.startswith("block ")} ^ {
        name for name in theirs if name.startswith("block ")
    }
    if faults := sorted(names | (theirs.keys() - ours.keys())):
        raise ConversionError(f"{where} and the original do not both have: {', '.join(faults)}")


def compare(name: str, size: tuple[int, int], theirs: Tensor, ours: Tensor) -> Layer:
    """NaN where the shapes differ, which is within no tolerance."""
    if theirs.shape != ours.shape:
        return Layer(name, size, float("nan"), float("nan"))
    difference = (theirs.double() - ours.double()).abs().max().item()
    largest = theirs.double().abs().max().item()
    return Layer(name, size, difference, 0.0 if difference == 0 else difference / max(largest, 1e-300))


# ---------------------------------------------------------------------------------------------------------------------
# The figure


def draw(result: Verification, path: Path) -> None:
    """A line for each size on a logarithmic scale, with the tolerance; what is equal bit for bit is at the bottom, NaN on top."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    known = [
        value
        for value in (1e-8, result.tolerance, *(layer.relative for layer in result.layers))
        if 0 < value < float("inf")
    ]
    smallest, largest = min(known) / 10, max(known) * 10
    names = [layer.name for layer in next(iter(result.sizes.values()))]
    figure, axes = pyplot.subplots(figsize=(max(7, 0.35 * len(names)), 4.5), layout="constrained")
    for (height, width), marker in zip(result.sizes, "os", strict=False):
        layers = result.sizes[height, width]
        heights = [min(max(layer.relative, smallest), largest) if layer.relative >= 0 else largest for layer in layers]
        axes.plot(range(len(layers)), heights, marker=marker, label=f"{height} x {width} pixels", alpha=0.8)
        bad = [i for i, layer in enumerate(layers) if not layer.relative <= result.tolerance]
        axes.plot(bad, [heights[i] for i in bad], "x", color="tab:red", markersize=11, markeredgewidth=2)
    axes.axhline(
        max(result.tolerance, smallest), color="black", linestyle="--", label=f"tolerance {result.tolerance:g}"
    )
    axes.plot([], [], "x", color="tab:red", label="beyond it")
    axes.axhline(smallest, color="lightgrey", linestyle=":", label="equal bit for bit")
    axes.set_yscale("log")
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right")
    axes.set_ylabel("largest difference / largest value")
    axes.set_title(f"Ours against {result.reference}")
    axes.grid(axis="y", alpha=0.3)
    axes.legend(loc="best")
    try:
        figure.savefig(path, dpi=120, format="png")
    finally:
        pyplot.close(figure)
