"""Folders as Hub repositories hold them: weights whole or in shards, JSON beside them; and writing all or nothing."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from conversion.errors import ConversionError
from conversion.sources import open_weights
from conversion.weights import Containers, Weights


MAX_JSON = 50_000_000  # bytes
INDEX = ".index.json"
FILES = (  # the first that is there is read; the others must hold the same
    "model.safetensors", "open_clip_model.safetensors", "model.safetensors" + INDEX,
    "pytorch_model.bin", "open_clip_pytorch_model.bin", "pytorch_model.bin" + INDEX,
)  # fmt: skip


def read_json(path: Path) -> dict[str, Any]:
    """
    Raises:
        `ConversionError`: for a file that is no JSON table in UTF-8.
    """
    try:
        if not path.is_file() or path.stat().st_size > MAX_JSON:
            raise ValueError(f"no regular file of at most {MAX_JSON:,} bytes")
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConversionError(f"{path} is no JSON file: {error}") from error
    if not isinstance(content, dict):
        raise ConversionError(f"{path} must hold a table, not a {type(content).__name__}")
    return content


def json_in(folder: Path, name: str) -> dict[str, Any] | None:
    """The table of a file of `folder`, or nothing if there is no such file."""
    path = folder / name
    return read_json(inside(folder, name)) if path.exists() or path.is_symlink() else None


def expanded(path: str | Path) -> Path:
    """A path with `~` for somebody's home."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConversionError(f"{path}: {error}") from error


def open_folder(folder: Path, file: str | None = None, mapped: bool = False) -> tuple[Containers, list[Path]]:
    """
    The weights of a folder as a Hub repository holds it, whole or in shards, and the files they are in. Where there are several,
    `file` chooses, unless they hold the same; `mapped` as for `open_weights`.

    Raises:
        `ConversionError`: for no weights, different ones, missing shards, and an index that leads out of the folder.
    """
    if file is not None:
        if os.path.basename(file) != file:
            raise ConversionError(f"--file {file}: give the name of a file of {folder}")
        return open_one(folder, file, mapped)
    there = [name for name in FILES if (folder / name).exists() or (folder / name).is_symlink()]
    if not there:
        has_adapter = (folder / "adapter_config.json").exists()
        adapter = " (an adapter alone: merge it into its base model first)" if has_adapter else ""
        raise ConversionError(f"{folder} holds none of {', '.join(FILES)}{adapter}")
    first, *others = there
    containers, files = open_one(folder, first, mapped)
    for name in others:
        other = open_one(folder, name, mapped)[0]
        same = containers.keys() == other.keys()
        if not same or not all(weights.equals(other[key], not mapped) for key, weights in containers.items()):
            raise ConversionError(f"{folder} holds {first} and {name}, which differ: choose with --file")
    return (
        open_one(folder, first, mapped) if others else (containers, files)
    )  # numbers that were compared are given away


def open_one(folder: Path, name: str, mapped: bool) -> tuple[Containers, list[Path]]:
    path = inside(folder, name)
    return open_shards(folder, name) if name.endswith(INDEX) else (open_weights(path, mapped), [path])


def inside(folder: Path, name: str) -> Path:
    """
    The file `name` of `folder`. A link may lead to a file of the folder and, in the cache of the Hub, to its blobs.

    Raises:
        `ConversionError`: if there is no such file, or if it is elsewhere.
    """
    path = folder / name
    if not path.is_file():
        raise ConversionError(f"{path} {'is a link that leads to no' if path.is_symlink() else 'is no'} file")
    real, home = path.resolve(), folder.resolve()
    repository = next((parent.parent for parent in home.parents if parent.name == "snapshots"), None)
    stores = [repository / "blobs", repository.parent / "blobs"] if repository else []  # the second is of all
    if not any(real.is_relative_to(place) for place in [home, *stores]):
        raise ConversionError(f"{path} is a link that leads out of the folder, to {real}; refused")
    return path


def open_shards(folder: Path, index: str) -> tuple[Containers, list[Path]]:
    table = read_json(folder / index).get("weight_map")
    if not isinstance(table, dict) or not table or not all(isinstance(value, str) for value in table.values()):
        raise ConversionError(f"{folder / index} has no weight_map of names and files")
    shards, present = {}, set(os.listdir(folder))
    for name in sorted(set(table.values())):
        if os.path.basename(name) != name or name in ("", ".", "..") or "\\" in name:
            raise ConversionError(f"{folder / index} names {name!r}, which leads out of the folder; refused")
        if name not in present:
            raise ConversionError(f"{folder / index} names {name!r}, which is missing")
        shards[name] = only(open_weights(inside(folder, name)), folder / name)
    entries = {}
    for tensor, name in table.items():
        shard = shards[name]
        if tensor not in shard.shapes:
            raise ConversionError(f"{folder / index} says that {tensor} is in {name}, but it is not")
        entries[tensor] = (shard.shapes[tensor], shard.dtypes[tensor], lambda s=shard, t=tensor: s.read(t))
    stray = [f"{t} of {name}" for name, shard in shards.items() for t in shard.shapes if table.get(t) != name]
    if stray:
        raise ConversionError(f"{folder / index} does not list {', '.join(stray[:8])}")
    return {"": Weights(folder, entries)}, [folder / name for name in shards]


def only(containers: Containers, path: Path) -> Weights:
    if len(containers) != 1:
        raise ConversionError(f"{path} is no shard: it holds {len(containers)} state dicts ({', '.join(containers)})")
    return next(iter(containers.values()))


@contextmanager
def whole_or_nothing(target: Path) -> Iterator[Path]:
    """
    A path beside `target` to write a file or folder to; it becomes `target` if nothing goes wrong.

    Raises:
        `ConversionError`: if `target` exists.
    """
    target = Path(os.path.abspath(target))
    if target.exists() or target.is_symlink():
        raise ConversionError(f"{target} exists already; choose another name or remove it")
    parents = [parent for parent in target.parents if not parent.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConversionError(f"{target} cannot be written: {error}") from error
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix="tmp-") as room:
            written = Path(room) / target.name
            yield written
            written.replace(target)
    except BaseException:
        with suppress(OSError):  # another may be in use by now
            for parent in parents:
                parent.rmdir()
        raise
