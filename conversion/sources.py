"""
Readers of checkpoint files that believe nothing: what a file claims is compared with its size before memory is taken for it,
and nothing in it is run.

A reader knows names, shapes and types at once and reads a tensor when asked, into memory of its own.
"""

import io
import json
import math
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from conversion import pth
from conversion.errors import ConversionError
from conversion.mapping import Shape
from conversion.weights import Containers, Weights


SAFETENSORS_TYPES = {
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
MAX_HEADER = 100_000_000  # bytes, of safetensors itself
MAX_NPY_HEADER = 1 << 16  # bytes
MAX_RATIO = 1100  # of packed bytes; deflate comes to 1032
HEAD_OF_LFS = b"version https://git-lfs"


def open_weights(path: Path, mapped: bool = False) -> Containers:
    """
    The state dicts of a file, whose format is told by its first bytes; `mapped` to look at names and shapes alone.

    Raises:
        `ConversionError`: for a file of no known format, a damaged one, and one that would run code.
    """
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            head = file.read(32)
    except OSError as error:
        raise ConversionError(f"{path} cannot be read: {error}") from error
    if not head:
        raise ConversionError(f"{path} is empty; download it again")
    if head.startswith(HEAD_OF_LFS):
        raise ConversionError(f"{path} is a pointer of Git LFS, not the file itself; run `git lfs pull`")
    if path.suffix == ".safetensors":
        return {"": open_safetensors(path)}
    if head.startswith(b"PK"):
        return open_zip(path, mapped)
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= max(MAX_HEADER, size):
        return {"": open_safetensors(path)}
    if head[:1] == b"\x80":
        return pth.open_torch(path)
    raise ConversionError(f"{path} is no safetensors, .pth or .npz file (it begins with {head[:8]!r})")


# ---------------------------------------------------------------------------------------------------------------------
# safetensors


def open_safetensors(path: Path) -> Weights:
    """A safetensors file; its own library checks the header."""
    try:
        with safe_open(path, framework="pt") as file:
            list(file.keys())
    except (SafetensorError, OSError, ValueError) as error:
        raise ConversionError(f"{path} is no whole safetensors file: {error}") from error
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    entries = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            dtype = SAFETENSORS_TYPES.get(entry["dtype"])
            reader = bytes_reader(path, 8 + length + begin, end - begin, dtype or torch.uint8, entry["shape"])
            entries[name] = (entry["shape"], dtype or entry["dtype"], reader)
    return Weights(path, entries)


def bytes_reader(path: Path, start: int, length: int, dtype: torch.dtype, shape: list[int]) -> Callable[[], Tensor]:
    def read() -> Tensor:
        tensor = torch.empty(shape, dtype=dtype)
        with open(path, "rb") as file:
            file.seek(start)
            if length and file.readinto(tensor.view(-1).view(torch.uint8).numpy()) != length:
                raise ConversionError(f"{path} ends too early")
        return tensor

    return read


# ---------------------------------------------------------------------------------------------------------------------
# Zip archives: .npz of numpy, .pth of torch, archives of TorchScript


def open_zip(path: Path, mapped: bool = False) -> Containers:
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except Exception as error:  # zipfile raises what a broken field happens to break
        raise ConversionError(f"{path} is cut short or damaged: {error}") from error
    names = [member.filename for member in members]
    if any(name.endswith("data.pkl") for name in names):
        is_script = any(name.endswith("constants.pkl") for name in names)
        read = [member for member in members if not is_script or pth.is_weights(member.filename)]
        size, claimed = path.stat().st_size, sum(member.file_size for member in read)
        if claimed > size or any(member.compress_type != zipfile.ZIP_STORED for member in read):
            raise ConversionError(f"{path} claims {claimed:,} bytes but has {size:,}; torch packs no weights")
        return pth.open_torchscript(path) if is_script else pth.open_torch(path, mapped=mapped)
    if names and all(name.endswith(".npy") for name in names):
        return {"": open_npz(path, members)}
    raise ConversionError(f"{path} is a zip archive, but of neither torch nor numpy")


def open_npz(path: Path, members: list[zipfile.ZipInfo]) -> Weights:
    entries = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        if name in entries:
            raise ConversionError(f"{path} holds {name} twice")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ConversionError(f"{path}: {name} is packed in a way that numpy doesn't write")
        try:
            with zipfile.ZipFile(path) as archive, archive.open(member) as file:
                shape, fortran, dtype = npy_header(file)
        except Exception as error:  # of zipfile, zlib and numpy's reading of a text
            raise ConversionError(f"{path}: {name} is no numpy array: {error!r}") from error
        if dtype.hasobject:
            raise ConversionError(f"{path}: {name} holds Python objects, which could run code; refused")
        claimed = math.prod(shape) * dtype.itemsize
        if claimed + 10 > member.file_size or member.file_size > MAX_RATIO * max(1, member.compress_size):
            raise ConversionError(f"{path}: {name} claims {claimed:,} bytes that are not there")
        entries[name] = (shape, torch_type(dtype), npy_reader(path, member, shape, fortran, dtype))
    return Weights(path, entries)


def npy_header(file: Any) -> tuple[Shape, bool, np.dtype]:
    version = np.lib.format.read_magic(io.BytesIO(file.read(8)))
    readers = {(1, 0): (2, np.lib.format.read_array_header_1_0), (2, 0): (4, np.lib.format.read_array_header_2_0)}
    if version not in readers:
        raise ValueError(f"version {version} of the format")
    width, reader = readers[version]
    length = file.read(width)
    if int.from_bytes(length, "little") > MAX_NPY_HEADER:
        raise ValueError("a header of more than 64 kB")
    return reader(io.BytesIO(length + file.read(int.from_bytes(length, "little"))))


def torch_type(dtype: np.dtype) -> torch.dtype | str:
    """The type of the tensor; two raw bytes are a bfloat16 of JAX."""
    names = {"|V2": torch.bfloat16, "<f2": torch.float16, "<f4": torch.float32, "<f8": torch.float64}
    return names.get(dtype.str, str(dtype))


def npy_reader(
    path: Path, member: zipfile.ZipInfo, shape: Shape, fortran: bool, dtype: np.dtype
) -> Callable[[], Tensor]:
    def read() -> Tensor:
        array = np.empty(math.prod(shape), dtype=np.uint16 if dtype.str == "|V2" else dtype)
        buffer = memoryview(array.view(np.uint8))
        try:
            with zipfile.ZipFile(path) as archive, archive.open(member) as file:
                npy_header(file)
                got = 0
                while got < len(buffer) and (count := file.readinto(buffer[got:])):
                    got += count
        except Exception as error:
            raise ConversionError(f"{path} is damaged at {member.filename}: {error}") from error
        if got < len(buffer):
            raise ConversionError(f"{path}: {member.filename} ends too early")
        array = array.reshape(shape, order="F" if fortran else "C")
        tensor = torch.from_numpy(np.ascontiguousarray(array).reshape(shape))
        return tensor.view(torch.bfloat16) if dtype.str == "|V2" else tensor

    return read
