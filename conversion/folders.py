"""Folders as Hub repositories hold them: weights whole or in shards, JSON beside them; and writing all or nothing."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conversion.errors import ConversionError
from conversion.sources import open_weights
from conversion.weights import Containers, Weights


MAX_JSON = 50_000_000  # bytes
WHOLE = ("model.safetensors", "open_clip_model.safetensors", "pytorch_model.bin", "open_clip_pytorch_model.bin")
INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


def read_json(path: Path) -> dict[str, Any]:
    """
    Raises:
        `ConversionError`: for a file that is no JSON table in UTF-8.
    """
    try:
        if path.stat().st_size > MAX_JSON:
            raise ValueError(f"it has {path.stat().st_size:,} bytes")
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConversionError(f"{path} is no JSON file: {error}") from error
    if not isinstance(content, dict):
        raise ConversionError(f"{path} must hold a table, not a {type(content).__name__}")
    return content


def open_folder(folder: Path) -> tuple[Containers, list[Path]]:
    """
    The weights of a folder as a Hub repository holds it, whole or in shards, and the files they are in.

    Raises:
        `ConversionError`: for no weights, missing shards, and an index that leads out of the folder.
    """
    for name in WHOLE:
        if (folder / name).exists() or (folder / name).is_symlink():
            return open_weights(existing(folder / name)), [folder / name]
    for name in INDICES:
        if (folder / name).exists():
            return open_shards(folder, name)
    adapter = (
        " (an adapter alone: merge it into its base model first)" if (folder / "adapter_config.json").exists() else ""
    )
    raise ConversionError(f"{folder} holds none of {', '.join(WHOLE + INDICES)}{adapter}")


def existing(path: Path) -> Path:
    if not path.is_file():
        raise ConversionError(f"{path} leads to no file")
    return path


def open_shards(folder: Path, index: str) -> tuple[Containers, list[Path]]:
    table = read_json(folder / index).get("weight_map")
    if not isinstance(table, dict) or not table or not all(isinstance(value, str) for value in table.values()):
        raise ConversionError(f"{folder / index} has no weight_map of names and files")
    shards = {}
    for name in sorted(set(table.values())):
        if os.path.basename(name) != name or name in ("", ".", "..") or "\\" in name:
            raise ConversionError(f"{folder / index} names {name!r}, which leads out of the folder; refused")
        if not (folder / name).is_file():
            raise ConversionError(f"{folder / index} names {name}, which is missing")
        (shards[name],) = open_weights(folder / name).values()
    entries = {}
    for tensor, name in table.items():
        if tensor not in shards[name].shapes:
            raise ConversionError(f"{folder / index} says that {tensor} is in {name}, but it is not")
        shard = shards[name]
        entries[tensor] = (shard.shapes[tensor], shard.dtypes[tensor], lambda s=shard, t=tensor: s.read(t))
    stray = sorted({t for shard in shards.values() for t in shard.shapes} - set(table))
    if stray:
        raise ConversionError(f"{folder / index} does not list {', '.join(stray[:8])}, which the shards hold")
    return {"": Weights(folder, entries)}, [folder / name for name in shards]


@contextmanager
def whole_or_nothing(target: Path) -> Iterator[Path]:
    """
    A path beside `target` to write a file or folder to; it becomes `target` if nothing goes wrong.

    Raises:
        `ConversionError`: if `target` exists.
    """
    if target.exists() or target.is_symlink():
        raise ConversionError(f"{target} exists already; choose another name or remove it")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="tmp-") as room:
        written = Path(room) / target.name
        yield written
        written.replace(target)
