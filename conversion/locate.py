"""Finding the image encoder in a source: what is given, which state dict, which prefix, which family."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from huggingface_hub import snapshot_download
from torch import Tensor, nn

from conversion.errors import ConversionError
from conversion.families import FAMILIES, Family
from conversion.families.base import Facts, Found
from conversion.folders import expanded, json_in, open_folder
from conversion.sources import open_weights
from conversion.weights import Containers, Weights


# What wrappers put before a name, in any order.
WRAPPERS = {
    "module", "_orig_mod", "model", "backbone", "encoder", "visual", "trunk", "teacher", "student", "net", "params", "opt",
    "target", "img", "vision_model", "vision_tower", "image_encoder", "base_model", "vit", "ema",
}  # fmt: skip
# Those that do not tell one encoder from another.
SILENT = {"", "module", "_orig_mod", "backbone", "visual", "trunk", "params", "opt", "target", "img"}
# Files of a Hub repository that say something about the weights.
HUB_FILES = ["*.json", "*.safetensors", "*.bin", "*.npz", "*.pth", "*.pt"]


@dataclass
class Source:
    """A file or folder: its state dicts, the files they are in, and the tables of JSON beside them."""

    path: Path
    name: str
    containers: Containers
    files: list[Path]
    config: Facts | None = None
    processor: Facts | None = None
    live: nn.Module | None = None

    def sha256(self) -> dict[str, str]:
        """The SHA-256 of each file, by its name."""
        return {path.name: digest(path) for path in self.files}


def digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_source(source: str | Path | nn.Module, file: str | None = None, mapped: bool = False) -> Source:
    """
    A file, a folder, the name of a Hub repository, which is downloaded or taken out of the cache, or a live
    model. `file` chooses one of a folder's; `mapped` to look at names and shapes alone, without the numbers.

    Raises:
        `ConversionError`: if there is no such thing, or it is not what it should be.
    """
    if isinstance(source, nn.Module):
        name = type(source).__name__
        state = {n: (t.shape, t.dtype, t.detach().clone) for n, t in source.state_dict().items()}
        return Source(Path(name), name, {"": Weights(Path(name), state)}, [], live=source)
    path = expanded(source)
    if path.is_file():
        if file is not None:
            raise ConversionError(f"--file {file}: {path} is a file, not a folder")
        return Source(path, path.name, open_weights(path, mapped), [path])
    if not path.exists():
        path = hub_folder(str(source))
    containers, files = open_folder(path, file, mapped)
    is_open_clip = files[0].name.startswith("open_clip_")
    tables = [json_in(path, name) for name in sorted(("config.json", "open_clip_config.json"), reverse=is_open_clip)]
    config = next((table for table in tables if table is not None), None)
    return Source(path, Path(source).name, containers, files, config, json_in(path, "preprocessor_config.json"))


def hub_folder(name: str) -> Path:
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise ConversionError(f"{name} is neither a file nor a folder")
    try:
        return Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConversionError(f"{name} is no file or folder here, and the Hub does not give it: {reason}") from error


@dataclass
class Place:
    """
    Where an image encoder was found: state dict, prefix of its names (with `base`, which heads stand outside of), family.

    `names` gives the full name of each tensor; `beside` are the others, of which `siblings` belong to an encoder that was not
    chosen.
    """

    family: Family
    container: str
    prefix: str
    base: str
    weights: Weights
    names: dict[str, str]
    found: Found
    beside: list[str]
    siblings: list[str] = field(default_factory=list)

    @property
    def key(self) -> str:
        """What `--weights` calls it: the container, and the prefix where it says something."""
        parts = [part for part in self.prefix.replace("/", ".").split(".") if part not in SILENT]
        return ".".join([self.container, *parts] if self.container else parts)

    def is_kept(self, name: str) -> bool:
        """Whether a tensor of this name is kept beside the model, which has no place for it."""
        return belongs(name, (*self.family.kept, *self.family.unused(self.found)))

    def chosen(self, keys: list[str]) -> "Place":
        """This one, without the tensors beside it that belong to the others of `keys`."""
        roots = {key.removeprefix(self.container).strip(".").partition(".")[0] for key in keys if key != self.key}
        self.siblings = [name for name in self.beside if without_wrappers(name).partition(".")[0] in roots]
        return self

    @property
    def where(self) -> str:
        """For a message."""
        return (
            f"{self.family.name} under {self.container or 'the top'}{f', prefix {self.prefix}' if self.prefix else ''}"
        )


def locate(source: Source, family: str | None, weights: str | None, told: Facts) -> Place:
    """
    The one image encoder of `source`.

    Raises:
        `ConversionError`: if there is none, or there are several and neither `family` nor `weights` chooses one.
    """
    if family is not None and family not in FAMILIES:
        raise ConversionError(f"unknown family {family!r}; known: {', '.join(FAMILIES)}")
    containers = source.containers
    places = [
        place
        for container, state in containers.items()
        for candidate in FAMILIES.values()
        if family in (None, candidate.name)
        for place in places_in(source, container, state, candidate, told)
    ]
    if weights is not None:
        keys = sorted({place.key for place in places})
        places = [place.chosen(keys) for place in places if place.key == weights]
        if not places:
            raise ConversionError(
                f"{source.path} has no weights {weights!r}; it has {', '.join(map(repr, keys)) or 'none'}"
            )
    if not places:
        total = sum(len(state.shapes) for state in containers.values())
        some = [name for state in containers.values() for name in state.shapes][:6]
        raise ConversionError(
            f"{source.path} is no {family or 'plain ViT of a known family'}: it has {total} tensors, such as {', '.join(some)}; "
            "`python -m conversion list` says what is read"
        )
    by_family = {place.family.name: place for place in places}
    keys = sorted({place.key for place in places})
    if len(keys) > 1:
        raise ConversionError(f"{source.path} holds several image encoders: choose with --weights {' or '.join(keys)}")
    if len(by_family) > 1:
        raise ConversionError(
            f"{source.path} has the names of several families, which differ in facts that are not in the file: choose with "
            f"--family {' or '.join(by_family)}"
        )
    return places[0]


def places_in(source: Source, container: str, state: Weights, family: Family, told: Facts) -> list[Place]:
    """The encoders of `family` in one state dict, one for each prefix."""
    places, prefixes = [], set()
    for anchor in family.anchors:
        prefixes |= {name.removesuffix(anchor) for name in state.shapes if name.endswith(anchor)}
    for prefix in sorted(prefixes):
        base = next((base for base in family.bases if prefix.endswith(base)), "")
        outer = prefix.removesuffix(base)
        if not is_wrapper(outer, family):
            continue
        names = {name.removeprefix(prefix): name for name in state.shapes if name.startswith(prefix)}
        heads = {name.removeprefix(outer): name for name in state.shapes if name.startswith(outer)}
        names |= {name: full for name, full in heads.items() if base and belongs(name, family.heads)}
        shapes = {name: state.shapes[full] for name, full in names.items()}
        stored = partial(stored_as, state, names)
        found = Found(shapes, source.config, source.processor, told, live=source.live, stored=stored)
        if family.recognise(found):
            found.layout = family.layout(found)
            used = set(names.values())
            beside = [name for name in state.shapes if name not in used]
            places.append(Place(family, container, outer, base, state, names, found, beside))
    return places


def stored_as(weights: Weights, names: Mapping[str, str], name: str) -> Tensor:
    """A tensor as it is, by its name without the prefix."""
    return weights.stored(names[name])


def is_wrapper(prefix: str, family: Family) -> bool:
    """Whether `prefix` is nothing, the family's own, or made of what wrappers put before a name."""
    *parts, rest = re.split("[./]", prefix)
    return prefix == family.prefix or (not rest and all(part in WRAPPERS for part in parts))


def belongs(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether `name` is one of `patterns`, in which `*` stands for anything."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def without_wrappers(name: str) -> str:
    """`module.text.x` as `text.x`."""
    while name.partition(".")[0] in ("module", "_orig_mod"):
        name = name.partition(".")[2]
    return name
