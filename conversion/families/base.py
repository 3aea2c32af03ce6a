"""What a family of checkpoints is: how it is recognised, its facts, its table of names and its pixels."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from conversion.errors import ConversionError, FactNeeded
from conversion.mapping import Shape, Table
from modeling_vit_custom import VARIANTS, ViTCustomConfig, ViTCustomImageProcessor
from modeling_vit_custom.configuration_vit_custom import pair
from modeling_vit_custom.image_processing_vit_custom import MAX_SIDE


Facts = dict[str, Any]

IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
BILINEAR, BICUBIC = 2, 3  # Pillow's numbers


@dataclass
class Found:
    """
    A state dict that a family claims: names without the prefix, and what came with them.

    `told` are the fields that the person supplied; they win over documented facts, not over what the file says. `live` is
    the model itself where one was given in place of a file; `stored` reads a tensor. `assumed` are documented facts that were
    taken because neither the file nor the person says them.
    """

    shapes: Mapping[str, Shape]
    config: Facts | None = None
    processor: Facts | None = None
    told: Facts = field(default_factory=dict)
    layout: str = ""
    live: nn.Module | None = None
    stored: Callable[[str], Tensor] | None = None
    assumed: Facts = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.shapes

    @property
    def is_bare(self) -> bool:
        """Whether there are weights alone, without a configuration or model that says what they are."""
        return self.config is None and self.live is None

    def has(self, part: str) -> bool:
        """Whether any name contains `part`."""
        return any(part in name for name in self.shapes)

    def size(self, name: str, axis: int = 0) -> int:
        """One side of the tensor `name`, which must be there."""
        if name not in self.shapes:
            raise ConversionError(f"{name} is missing in the file")
        if len(self.shapes[name]) <= axis:
            raise ConversionError(f"{name} has the shape {self.shapes[name]}")
        return self.shapes[name][axis]

    def depth(self, before: str) -> int:
        """Number of blocks `{before}0`, `{before}1`, ...; they must be numbered without gaps."""
        numbers = {number_at(name, before) for name in self.shapes if name.startswith(before)}
        depth = len(numbers)
        if numbers != {str(index) for index in range(depth)} or not depth:
            raise ConversionError(
                f"blocks {before}N are numbered {', '.join(sorted(numbers)) or 'not at all'}, not 0, 1, 2, ..."
            )
        return depth

    def ask(self, name: str, why: str, default: Any = None) -> Any:
        """A fact that is not in the file: told, or the family's documented one, or asked for."""
        if name in self.told:
            return self.told[name]
        if default is None:
            raise FactNeeded(f"{why}; say it with --set {name}=...", name)
        self.assumed[name] = default
        return default

    def heads(self, width: int, inner: int, depth: int, sizes: Sequence[tuple[int, ...]]) -> int:
        """The number of heads of a fused projection: that of the one size of `sizes` with these numbers, or asked for."""
        found = sorted({row[3] for row in sizes if row[:3] == (width, inner, depth)})
        several = f"that of several, with {' or '.join(map(str, found))} heads" if found else "no named size"
        why = f"the number of heads is not in the file, and {width} x {inner} x {depth} (width, MLP, blocks) is {several}"
        return self.ask("num_attention_heads", why, found[0] if len(found) == 1 else None)

    def grid(self, rows: int, patch: tuple[int, int], prefixes: tuple[int, ...]) -> tuple[int, Any]:
        """
        How many of the `rows` of a table belong to prefix tokens, of the numbers possible, and the picture's size. Where none is
        told, the grid must be square, as it is in all files of the families.
        """
        if "image_size" in self.told:
            size = self.told["image_size"]
            height, width = sides(size)
            fits = [p for p in prefixes if rows - p == height // patch[0] * (width // patch[1])]
        else:
            fits = [p for p in prefixes if rows - p > 0 and math.isqrt(rows - p) ** 2 == rows - p]
            side = math.isqrt(rows - fits[0]) if fits else 0
            size = one_or_two(side * patch[0], side * patch[1])
            self.assumed["image_size"] = size
        if len(fits) != 1:
            raise FactNeeded(
                f"a position table of {rows} rows, of which {' or '.join(map(str, prefixes))} belong to prefix tokens, does not "
                f"tell the size of the picture{' ' + str(self.told['image_size']) if 'image_size' in self.told else ''}; "
                "say it with --set image_size=HEIGHT,WIDTH",
                "image_size",
            )
        return fits[0], size


def entry(
    table: Facts, path: str, kind: type | tuple[type, ...], default: Any = None, file: str = "config.json"
) -> Any:
    """
    What a JSON table says at `path` (`a.b` for a table in a table), or `default` where it says nothing or null.

    Raises:
        `ConversionError`: naming `file` and the entry, if it is not of the `kind`.
    """
    kinds = kind if isinstance(kind, tuple) else (kind,)
    table_path, _, name = path.rpartition(".")
    table = entry(table, table_path, dict, {}, file) if table_path else table
    value = table.get(name)
    if value is None:
        return default
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise ConversionError(f"{file}: {path}={value!r} must be of the type {' or '.join(k.__name__ for k in kinds)}")
    return value


NUMBER = (int, float)
MOST = {
    "num_labels": 100_000,
    "num_hidden_layers": 1000,
    "hidden_size": 1 << 15,
}  # beyond any ViT; a small file can claim more


def check_modest(facts: Facts, where: str) -> None:
    """Raises `ConversionError` for a number that no model has; a model of it would take for ever, or all memory."""
    for name, most in MOST.items():
        if (facts.get(name) or 0) > most:
            raise ConversionError(f"{where} claims {name}={facts[name]:,}; more than {most:,} are not read")


def distinct(names: Sequence[str]) -> list[str]:
    """Names of classes; of two classes with one name, as in ImageNet, the second gets its number."""
    found: dict[str, None] = {}
    for index, name in enumerate(names):
        found[f"{name} ({index})" if name in found else name] = None
    return list(found)


def sides(size: Any, name: str = "image_size") -> tuple[int, int]:
    """
    Height and width of a size in pixels.

    Raises:
        `ConversionError`: if it is none.
    """
    numbers = size if isinstance(size, list | tuple) else [size, size]
    if len(numbers) != 2 or not all(
        isinstance(n, int) and not isinstance(n, bool) and 0 < n <= MAX_SIDE for n in numbers
    ):
        raise ConversionError(
            f"{name}={size!r} must be a number of pixels, or two, HEIGHT,WIDTH, of at most {MAX_SIDE}"
        )
    return numbers[0], numbers[1]


def one_or_two(height: int, width: int) -> int | list[int]:
    """A size as our configuration has it: one number for a square."""
    return height if height == width else [height, width]


def centre_cropped(config: ViTCustomConfig, shorter: int) -> Facts:
    """Arguments of the processor: the shorter side resized to `shorter`, then the model's size out of the middle."""
    height, width = pair(config.image_size)
    return {
        "size": {"shortest_edge": shorter},
        "do_center_crop": True,
        "crop_size": {"height": height, "width": width},
    }


def number_at(name: str, before: str) -> str:
    """The digits of `name` right after `before`."""
    rest = name[len(before) :]
    return rest[: next((i for i, c in enumerate(rest) if not c.isdigit()), len(rest))]


# (width, MLP, blocks, heads) of the sizes that a plain ViT has in public.
NAMED_SIZES = tuple(row[:4] for row in VARIANTS.values())


@dataclass(frozen=True)
class Family:
    """
    One format of checkpoint.

    Args:
        name: As given to `--family` and `--to`.
        title: What it is, for `conversion list`.
        reference: The implementation that its tests compare with.
        anchors: Names that every file of the family has; what stands before them is the prefix.
        recognise: Whether a state dict with an anchor is of this family.
        facts: The fields of our configuration that the file says, with what the family documents.
        table: Our names and theirs, for a configuration and a layout.
        pixels: Arguments of the image processor for a configuration.
        layout: Which of several spellings a file has.
        layouts: The spellings.
        spelling: The one to write for a configuration where nothing says another; by default the first.
        asked: Fields that the files don't hold and that may therefore be told.
        kept: Names (with `*`) that our model has no place for, and that are written back on export.
        unused: Further such names, of tensors in this file that its own library would not use.
        made: What stands in for those of a model that never had them, so that the original loads the file.
        beside: Names (with `*`), outside the prefix, of what isn't the image encoder; left behind.
        suffix: Of the file that `export` writes: `.npz`, `.pth`, or nothing for a folder.
        config: The JSON files of a folder format, by name, out of our configuration, processor and record.
        at_size: The configuration that lies beside a file without tables, with the size of ours.
        wrap: The container that the family's own file has.
        prefix: What stands before the names in the family's own file.
        bases: Prefixes of an encoder whose heads stand beside it, as `vit.` in transformers; the first is written.
        heads: Names (with `*`) of those heads.
    """

    name: str
    title: str
    reference: str
    anchors: tuple[str, ...]
    recognise: Callable[[Found], bool]
    facts: Callable[[Found], Facts]
    table: Callable[[ViTCustomConfig, str], Table]
    pixels: Callable[[Found, ViTCustomConfig], Facts]
    layout: Callable[[Found], str] = lambda found: ""
    layouts: tuple[str, ...] = ("",)
    spelling: Callable[[ViTCustomConfig], str] | None = None
    asked: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    unused: Callable[[Found], tuple[str, ...]] = lambda found: ()
    made: Callable[[ViTCustomConfig], dict[str, Tensor]] = lambda config: {}
    beside: tuple[str, ...] = ()
    suffix: str = ".pth"
    config: Callable[[ViTCustomConfig, ViTCustomImageProcessor, Facts], dict[str, Facts]] | None = None
    at_size: Callable[[Facts, ViTCustomConfig], Facts] = lambda theirs, config: theirs
    wrap: str = ""
    prefix: str = ""
    bases: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    labels: Callable[[Found], list[str] | None] = lambda found: None

    def unsaid(self, found: Found) -> tuple[str, ...]:
        """The fields of `asked` that this source leaves open; a configuration or a model beside the weights says nearly all."""
        return self.asked if found.is_bare else tuple(name for name in self.asked if name == "position_resampling")
