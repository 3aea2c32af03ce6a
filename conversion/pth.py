"""
Files of `torch.save` and archives of TorchScript: the tables of tensors in them, without running anything.
"""

import mmap
import shutil
import tempfile
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from conversion.errors import ConversionError
from conversion.weights import Containers, Weights


class Inert:
    """Stands for an object of another class: takes what was saved of it and does nothing."""

    state: dict = {}

    def __init__(self, *_: Any):
        pass

    def __setstate__(self, state: Any):
        self.state = state if isinstance(state, dict) else {}


# Calls that torch lets a file make, and that take as much memory as it says.
ALLOCATING = (b"cbuiltins\nbytearray\n", b"c__builtin__\nbytearray\n")
# What may stand beside the weights: options, numbers of numpy and paths.
BESIDE = [
    "argparse.Namespace", "numpy.dtype", "numpy._core.multiarray.scalar", "numpy.core.multiarray.scalar",
    *(f"{module}.{kind}" for module in ("pathlib", "pathlib._local")
      for kind in ("PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath")),
]  # fmt: skip
SCRIPTED = ("__torch__.", "torch.jit._pickle.")  # the modules of TorchScript, and its lists
NOT_WEIGHTS = ("epoch", "step", "args", "name")  # of a table whose other entries are the weights


def open_torch(path: Path, script: str | None = None, mapped: bool = False) -> Containers:
    """
    The state dicts of a `.pth`, read by torch's restricted unpickler. `script` names the file that `path` is a part of, an
    archive of TorchScript, whose modules are read as tables. `mapped` leaves the numbers in the file, for a look at names and shapes.
    """
    inert = list(BESIDE)
    try:
        if any(pickled.find(call) >= 0 for pickled in pickles(path) for call in ALLOCATING):
            raise ValueError("GLOBAL bytearray, of a size that nothing bounds")
        if script:
            names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
            inert += [name for name in names if name.startswith(SCRIPTED)]
        with torch.serialization.safe_globals([(Inert, name) for name in inert]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
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
    return {place: owned(Path(script or path), tensors) for place, tensors in found.items()}


def pickles(path: Path) -> Iterator[Any]:
    """What of a file torch unpickles, as something to search in: the tables of an archive, or the whole of an old file."""
    with open(path, "rb") as file:
        is_archive = file.read(2) == b"PK"  # as torch tells them
    if is_archive:
        with zipfile.ZipFile(path) as archive:
            yield from (archive.read(name) for name in archive.namelist() if name.endswith(".pkl"))
    else:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            yield content


def containers(content: dict) -> Iterator[tuple[str, dict]]:
    """The tables of tensors in `content`, at any depth, by their place; those of optimisers have numbers for keys."""
    waiting, seen = [("", content)], set()
    for place, table in waiting:  # grows on the way
        if id(table) in seen:
            continue
        seen.add(id(table))
        if any(isinstance(value, Tensor) for value in table.values()) and all(isinstance(key, str) for key in table):
            yield place, table
        for key, value in table.items():
            if isinstance(value, dict) and isinstance(key, str):
                waiting.append((f"{place}.{key}" if place else key, value))


def owned(path: Path, table: dict) -> Weights:
    """The tensors of a table that was read; each leaves it when it is read, in memory of its own."""
    for name, value in table.items():
        if isinstance(value, Tensor):
            check_plain(path, name, value)
    tensors = {name: value for name, value in table.items() if isinstance(value, Tensor)}
    users = Counter(value.untyped_storage().data_ptr() for value in tensors.values())

    def read(name: str) -> Tensor:
        tensor = table.pop(name).detach()
        storage = tensor.untyped_storage()
        alone = users[storage.data_ptr()] == 1 and tensor.nbytes == storage.nbytes()
        return tensor if alone else tensor.clone()

    entries = {}
    for name, value in table.items():
        if name in tensors:
            entries[name] = (value.shape, value.dtype, lambda name=name: read(name))
        elif not isinstance(value, dict) and name not in NOT_WEIGHTS:
            entries[name] = ((), f"a {type(value).__name__} and no tensor", lambda: None)
    return Weights(path, entries)


def check_plain(path: Path, name: str, tensor: Tensor) -> None:
    """
    Raises:
        `ConversionError`: for a tensor without numbers of its own, and one that claims more than are in the file.
    """
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided
    if not plain or tensor.is_nested or tensor.is_meta or tensor.is_quantized or tensor.is_neg():
        raise ConversionError(f"{path}: {name} is a tensor without plain numbers in it")
    if tensor.nbytes > tensor.untyped_storage().nbytes():
        raise ConversionError(f"{path}: {name} claims {tensor.numel():,} numbers, which the file does not hold")


def is_weights(member: str) -> bool:
    """Whether a member of an archive of TorchScript is read; the others are its code and constants."""
    inside = member.partition("/")[2]
    return inside in ("data.pkl", "version", "byteorder") or inside.startswith("data/")


def open_torchscript(path: Path) -> Containers:
    """The weights of an archive of TorchScript, taken out of it without its code."""
    with tempfile.TemporaryDirectory() as room:
        plain = Path(room) / "weights.pth"
        try:
            with zipfile.ZipFile(path) as archive, zipfile.ZipFile(plain, "w") as copy:
                for member in filter(is_weights, archive.namelist()):
                    target = f"archive/{member.partition('/')[2]}"
                    with archive.open(member) as source, copy.open(target, "w", force_zip64=True) as written:
                        shutil.copyfileobj(source, written)
        except Exception as error:  # zipfile raises what a broken field happens to break
            raise ConversionError(f"{path} is damaged: {error}") from error
        return open_torch(plain, script=str(path))


def state_of_modules(root: Any) -> dict[str, Tensor]:
    """The state dict of a tree of modules that were read as tables."""
    state, waiting, seen = {}, [("", root)], set()
    for prefix, module in waiting:  # grows on the way
        if not isinstance(module, Inert) or id(module) in seen:
            continue
        seen.add(id(module))
        state |= {prefix + name: value for name, value in module.state.items() if isinstance(value, Tensor)}
        waiting += [(f"{prefix}{name}.", value) for name, value in module.state.items()]
    return state
