"""
Files of `torch.save` and archives of TorchScript: the tables of tensors in them, without running anything.
"""

import argparse
import pathlib
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from conversion.errors import ConversionError
from conversion.weights import Containers, Weights


def allowed() -> list:
    """What may stand beside the weights: options, numbers of numpy and paths, none of which does anything."""
    scalar = np._core.multiarray.scalar
    types = [
        getattr(np.dtypes, name) for name in ("Float64DType", "Float32DType", "Int64DType", "Int32DType", "BoolDType")
    ]
    numbers = [(scalar, "numpy._core.multiarray.scalar"), (scalar, "numpy.core.multiarray.scalar"), np.dtype]
    paths = [pathlib.PosixPath, pathlib.PurePosixPath, pathlib.WindowsPath, pathlib.PureWindowsPath]
    return [argparse.Namespace, *types, *numbers, *paths]


def open_torch(path: Path, script: str | None = None) -> Containers:
    """
    The state dicts of a `.pth`, read by torch's restricted unpickler. `script` names the file that `path` is a part of, an
    archive of TorchScript, whose modules are read as tables.
    """
    classes = allowed()
    try:
        if script:
            names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
            classes += [(type("Module", (), {}), name) for name in names if name.startswith("__torch__.")]
        with torch.serialization.safe_globals(classes), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        unsafe = next((line for line in reason if "GLOBAL" in line or "nsupported" in line), reason[0])
        raise ConversionError(
            f"{script or path} cannot be read without running code from it, or is damaged: {unsafe.strip()}"
        ) from error
    if script:
        content = state_of_modules(content)
    if not isinstance(content, dict):
        raise ConversionError(f"{path} holds a {type(content).__name__}, not a table of weights")
    found = dict(containers(content))
    if not found:
        raise ConversionError(f"{path} holds no table of weights; its keys: {', '.join(map(repr, list(content)[:8]))}")
    return {place: owned(Path(script or path), place, tensors) for place, tensors in found.items()}


def containers(content: dict, place: str = "") -> Iterator[tuple[str, dict]]:
    """The tables of tensors in `content`, at any depth, by their place; those of optimisers have numbers for keys."""
    if any(isinstance(value, Tensor) for value in content.values()) and all(isinstance(key, str) for key in content):
        yield place, content
    for key, value in content.items():
        if isinstance(value, dict) and isinstance(key, str):
            yield from containers(value, f"{place}.{key}" if place else key)


def owned(path: Path, place: str, table: dict) -> Weights:
    """The tensors of a table that was read; each leaves it when it is read."""
    entries = {}
    for name, value in list(table.items()):
        if isinstance(value, dict) and place == "" and not any(isinstance(v, Tensor) for v in value.values()):
            continue
        if isinstance(value, dict):
            continue
        if not isinstance(value, Tensor):
            if name in ("epoch", "step", "args", "name"):
                continue
            raise ConversionError(f"{path}: {name} is a {type(value).__name__} among the weights, not a tensor")
        if value.is_meta or value.layout != torch.strided or value.is_quantized:
            raise ConversionError(f"{path}: {name} is a tensor without plain numbers in it")
        if value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise ConversionError(f"{path}: {name} claims {value.numel():,} numbers, which the file does not hold")
        entries[name] = (value.shape, value.dtype, lambda name=name: table.pop(name).detach())
    return Weights(path, entries)


def open_torchscript(path: Path) -> Containers:
    """The weights of an archive of TorchScript, taken out of it without its code."""
    with tempfile.TemporaryDirectory() as room:
        plain = Path(room) / "weights.pth"
        with zipfile.ZipFile(path) as archive, zipfile.ZipFile(plain, "w") as copy:
            for member in archive.infolist():
                inside = member.filename.partition("/")[2]
                if inside in ("data.pkl", "version", "byteorder") or inside.startswith("data/"):
                    with (
                        archive.open(member) as source,
                        copy.open(f"archive/{inside}", "w", force_zip64=True) as target,
                    ):
                        shutil.copyfileobj(source, target)
        return open_torch(plain, script=str(path))


def state_of_modules(module: Any, prefix: str = "") -> dict[str, Tensor]:
    """The state dict of a tree of modules that were read as tables."""
    state = {}
    for name, value in vars(module).items() if hasattr(module, "__dict__") else ():
        if isinstance(value, Tensor):
            state[prefix + name] = value
        elif type(value).__name__ == "Module":
            state |= state_of_modules(value, f"{prefix}{name}.")
    return state
