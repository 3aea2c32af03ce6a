"""
From whatever holds a picture to an upright one in the channels of a model, or an error that names picture and trouble.

Decoding is Pillow's, of the formats listed here alone, in bounded memory; Pillow's global settings stay as they are.
"""

import base64
import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any
from urllib.parse import unquote_to_bytes

import numpy as np
from PIL import ExifTags, Image, ImageOps

from .fetching_vit_custom import MAX_BYTES, fetch


# Raster formats whose decoders run in this process; PostScript and the like would start others. The frequent ones first.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")

# The mode of Pillow for a number of channels.
MODES = {1: "L", 3: "RGB", 4: "RGBA"}

# Modes that Pillow turns into RGB as they are meant. Not LAB, whose numbers it would keep, nor I and F, whose range nobody knows.
READABLE = {"1", "L", "LA", "La", "P", "PA", "RGB", "RGBX", "RGBA", "RGBa", "CMYK", "YCbCr", "HSV"}
STRAIGHT = {"La": "LA", "RGBa": "RGBA"}

WHITE = (255, 255, 255)

# Where Pillow itself begins to warn of a decompression bomb.
MAX_PIXELS = 89_478_485

BASE64 = re.compile(r"[A-Za-z0-9+/\s]{64,}={0,2}\s*")

# How files begin that people take for pictures.
NO_PICTURES = {
    b"version https://git-lfs": "a Git LFS pointer, not the picture itself; `git lfs pull` fetches it",
    b"%!ps": "PostScript, a format that is not read",
    b"\xc5\xd0\xd3\xc6": "PostScript (EPS), a format that is not read",
    b"%pdf": "a PDF document, not an image",
    b"<svg": "SVG, a vector format that is not read",
    b"<?xml": "XML (SVG?), not an image",
    b"<html": "an HTML page, not an image",
    b"<!doctype": "an HTML page, not an image",
}


def load_picture(
    source: Any,
    name: str | None = None,
    channels: int = 3,
    background: tuple[int, int, int] = WHITE,
    max_pixels: int = MAX_PIXELS,
) -> Image.Image:
    """
    The picture in `source`, upright and in `channels` channels; see [`open_picture`] and [`to_channels`].
    """
    return to_channels(open_picture(source, name, max_pixels), channels, background, name or name_of(source))


# ---------------------------------------------------------------------------------------------------------------------
# Opening


def open_picture(source: Any, name: str | None = None, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """
    The decoded picture in `source`, turned upright as its EXIF data say, in its own mode; of several frames the first.

    `source` is a path, the bytes of a file, an open binary file, an `http(s)://` or `data:` address, base64 text, a Pillow
    picture, or the `{"bytes": ..., "path": ...}` of `datasets.Image(decode=False)`. `name` is what errors call it.

    Raises:
        `ValueError`: if it cannot be decoded, or has more than `max_pixels` pixels.
        `OSError`: if there is no such file, or it cannot be read.
        `TypeError`: if it is of no such kind.
    """
    name = name or name_of(source)
    if isinstance(source, Image.Image):
        with decoding(name):
            return decode(source, max_pixels)
    file = file_of(source, name)
    with decoding(name, file), Image.open(file, formats=FORMATS) as picture:
        return decode(picture, max_pixels)


def decode(picture: Image.Image, max_pixels: int) -> Image.Image:
    width, height = picture.size
    if width * height > max_pixels:
        raise ValueError(f"{width} x {height} = {width * height:,} pixels exceeds limit of max_pixels={max_pixels:,}")
    if not width * height:
        raise ValueError(f"it is empty: {width} x {height} pixels")
    picture.load()
    turned = orientation(picture) not in (None, 1)
    return ImageOps.exif_transpose(picture) if turned else picture


def orientation(picture: Image.Image) -> int | None:
    """The EXIF orientation, 1 to 8; `None` without one, or if it can't be read, which is no fault of the pixels."""
    try:
        value = picture.getexif().get(ExifTags.Base.Orientation)
    except Exception:
        return None
    return value if value in range(1, 9) else None


@contextmanager
def decoding(name: str, file: Any = None) -> Iterator[None]:
    """Whatever a decoder raises becomes a `ValueError` that names the picture; a file that can't be read stays an `OSError`."""
    try:
        yield
    except Image.UnidentifiedImageError as error:
        raise ValueError(f"{name}: cannot identify image file: {what_it_is(file)}") from error
    except OSError as error:
        if error.errno is not None:
            raise type(error)(error.errno, f"{name}: {error.strerror}") from error
        raise ValueError(f"{name}: cannot be decoded: {error}") from error
    except Exception as error:
        raise ValueError(f"{name}: cannot be decoded: {str(error) or type(error).__name__}") from error


def what_it_is(file: Any) -> str:
    """What a file is that is no picture, by its first bytes."""
    if isinstance(file, (str, os.PathLike)):
        with open(file, "rb") as opened:
            start = opened.read(64)
    else:
        file.seek(0)
        start = file.read(64)
    for beginning, kind in NO_PICTURES.items():
        if start.lstrip(b"\xef\xbb\xbf \t\r\n").lower().startswith(beginning):
            return kind
    return "it is empty (0 bytes)" if not start else f"not an image in one of the formats {', '.join(FORMATS)}"


def name_of(source: Any) -> str:
    """What an error calls a picture that was given no name."""
    if isinstance(source, dict):
        source = source.get("path")
    if not isinstance(source, (str, os.PathLike)):
        source = getattr(source, "filename", None) or getattr(source, "name", None)
    if not isinstance(source, (str, os.PathLike)):
        return "picture"
    text = os.fspath(source)
    return text if len(text) <= 200 or not isinstance(text, str) else f"{text[:60]}..."


# ---------------------------------------------------------------------------------------------------------------------
# What may hold a picture


def file_of(source: Any, name: str) -> Any:
    """What `Image.open` takes, for any `source` but a Pillow picture."""
    if isinstance(source, dict) and source.keys() == {"bytes", "path"}:
        source = source["path"] if source["bytes"] is None else source["bytes"]
    if isinstance(source, (bytes, bytearray, memoryview)):
        return BytesIO(source)
    if isinstance(source, str):
        return file_of_text(source, name)
    if isinstance(source, os.PathLike):
        return regular_file(source, name)
    if callable(getattr(source, "read", None)):
        return file_of_stream(source, name)
    kinds = "a path, address, bytes, binary file, Pillow picture, numpy array or torch tensor"
    raise TypeError(f"{name}: expected an image, which is {kinds}; its type is {type(source).__name__}")


def file_of_text(text: str, name: str) -> Any:
    if text.startswith(("http://", "https://")):
        return BytesIO(fetch(text, name))
    if text.startswith("data:"):
        header, _, body = text.partition(",")
        with decoding(name):
            return BytesIO(base64.b64decode(body) if header.endswith(";base64") else unquote_to_bytes(body))
    if re.match(r"[a-z][a-z0-9+.-]+://", text):
        raise ValueError(f"{name}: pictures are fetched from http:// and https:// alone; give a file by its path")
    if BASE64.fullmatch(text) and not os.path.exists(text):
        with decoding(name):
            return BytesIO(base64.b64decode(text))
    return regular_file(text, name)


def regular_file(path: str | os.PathLike, name: str) -> str | os.PathLike:
    """`path`, if it is one of a file: a pipe would block, a folder is no picture."""
    if not os.fspath(path):
        raise ValueError("the path of a picture is empty")
    try:
        found = os.stat(path)
    except ValueError as error:
        raise ValueError(f"{name!r}: invalid path: {error}") from error
    except OSError as error:
        raise type(error)(error.errno, f"{name}: {error.strerror}") from error
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, f"{name}: is a folder, not a picture; give picture files")
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{name}: not a regular file")
    return path


def file_of_stream(stream: Any, name: str) -> Any:
    """An open binary file from its start, or the rest of one that can't go back there."""
    with decoding(name):
        is_seekable = stream.seekable()
        if is_seekable:
            stream.seek(0)
        start = stream.read(0 if is_seekable else MAX_BYTES + 1)
    if not isinstance(start, bytes):
        raise TypeError(f"{name}: opened as text; open a picture with mode 'rb'")
    if len(start) > MAX_BYTES:
        raise ValueError(f"{name}: more than {MAX_BYTES // 2**20} MiB, too large for a file that can't be read twice")
    return stream if is_seekable else BytesIO(start)


# ---------------------------------------------------------------------------------------------------------------------
# Channels


def to_channels(
    picture: Image.Image, channels: int = 3, background: tuple[int, int, int] = WHITE, name: str = "picture"
) -> Image.Image:
    """
    A picture in grey (1 channel), RGB (3) or RGBA (4), 8 bits each.

    16-bit grey is scaled, where Pillow would clip it; grey is made of colours as ITU-R 601 says. What is transparent shows
    `background`, but for four channels, the last of which is opacity.

    Raises:
        `ValueError`: for a number of channels that no picture has, and for modes that can't be read rightly.
    """
    if channels not in MODES:
        raise ValueError(f"{name}: a picture has 1, 3 or 4 channels, the model takes {channels}; give it arrays")
    if picture.mode.startswith("I;16"):
        picture = scale_to_8_bits(picture)
    if picture.mode not in READABLE:
        raise ValueError(
            f"{name}: mode {picture.mode!r} cannot be read as colours; give RGB or, of numbers, an array in a range that it names"
        )
    if picture.mode in STRAIGHT:
        picture = picture.convert(STRAIGHT[picture.mode])
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        if channels != 4:
            picture = Image.alpha_composite(Image.new("RGBA", picture.size, (*background, 255)), picture)
    elif picture.mode not in ("L", "RGB"):
        picture = picture.convert("RGB")
    return picture if picture.mode == MODES[channels] else picture.convert(MODES[channels])


def scale_to_8_bits(picture: Image.Image) -> Image.Image:
    """16-bit grey in 8 bits; with opacity, if one of its values stands for transparent pixels."""
    grey = np.asarray(picture)
    scaled = Image.fromarray(np.rint(grey / 257).astype(np.uint8))
    if "transparency" in picture.info:
        scaled.putalpha(Image.fromarray(np.where(grey == picture.info["transparency"], 0, 255).astype(np.uint8)))
    return scaled
