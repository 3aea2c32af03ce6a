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
from PIL import ExifTags, Image

from .fetching_vit_custom import MAX_BYTES, fetch, name_of


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

# Base64 text of a file that begins as one of the formats does.
BASE64 = re.compile(r"(/9j/|iVBOR|UklGR|R0lGO|Qk|SUkq|TU0A)[A-Za-z0-9+/\s]{60,}={0,2}\s*")

# What turns a picture upright, by its EXIF orientation, and where its orientation may be written.
TURNS = ("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90")
UPRIGHT = {orientation: Image.Transpose[turn] for orientation, turn in enumerate(TURNS, start=2)}
METADATA = ("exif", "Raw profile type exif", "XML:com.adobe.xmp", "xmp")

# The factors between a PNG's transparent grey and its level, by its bits.
GREY_KEYS = {"L;2": 85, "L;4": 17}

# How files begin that people take for pictures.
NO_PICTURES = {
    b"version https://git-lfs": "a Git LFS pointer, not the picture itself; `git lfs pull` fetches it",
    b"%!ps": "PostScript, a format that is not read",
    b"\xc5\xd0\xd3\xc6": "PostScript (EPS), a format that is not read",
    b"%pdf": "a PDF document, not an image",
    b"ii*\0": "a TIFF of bits or samples that Pillow does not read",
    b"mm\0*": "a TIFF of bits or samples that Pillow does not read",
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
    The decoded picture in `source`, turned upright as its EXIF data say, in its own mode; of several
    frames a file's first, and the current one of a Pillow picture.

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
    if getattr(picture, "tag_v2", {}).get(ExifTags.Base.SampleFormat) == (2,):
        raise ValueError("its samples are signed, of which nobody knows what is black and white; give an array")
    key = picture.__dict__.setdefault(
        "transparent_level", transparent_level(picture)
    )  # not to be known once it is loaded
    picture.load()
    if key is not None:
        picture = picture.copy()
        picture.info["transparency"] = key
    turn = UPRIGHT.get(orientation(picture))
    if picture.mode.startswith("I;16") or (picture.mode, picture.format) == ("I", "PPM"):
        picture = scale_to_8_bits(picture)
    if turn is not None:
        picture = picture.transpose(turn)
        for key in METADATA:
            picture.info.pop(key, None)
    return picture


def orientation(picture: Image.Image) -> int | None:
    """The EXIF orientation, 1 to 8; `None` without one, or if it can't be read, which is no fault of the pixels."""
    try:
        return picture.getexif().get(ExifTags.Base.Orientation)
    except Exception:
        return None


def transparent_level(picture: Image.Image) -> int | tuple[int, ...] | None:
    """
    The transparent value of a PNG of 2, 4 or 48 bits in the 8 bits of its pixels, which Pillow does not scale. Of 48 bits
    Pillow keeps 24, so that colours as near as that are transparent too.
    """
    key, tile = picture.info.get("transparency"), getattr(picture, "tile", None)
    if picture.format != "PNG" or key is None or not tile:
        return None
    bits = tile[0][3] if isinstance(tile[0][3], str) else tile[0][3][0]
    if bits == "RGB;16B":
        return tuple(value >> 8 for value in key)
    return key * GREY_KEYS[bits] if bits in GREY_KEYS else None


def scale_to_8_bits(picture: Image.Image) -> Image.Image:
    """Grey of 9 to 16 bits in 8; with opacity, if one of its values stands for transparent pixels."""
    tags = getattr(picture, "tag_v2", {})
    full = 2 ** tags.get(ExifTags.Base.BitsPerSample, (16,))[0] - 1
    levels = np.rint(np.arange(2**16).clip(max=full) * (255 / full)).astype(np.uint8)
    levels = levels[::-1][2**16 - 1 - full :] if tags.get(ExifTags.Base.PhotometricInterpretation) == 0 else levels
    grey, scaled = np.asarray(picture), np.empty((picture.height, picture.width), np.uint8)
    for top in range(0, picture.height, 256):  # in strips, since the indices take eight bytes each
        scaled[top : top + 256] = levels[grey[top : top + 256].clip(max=full)]
    result, key = Image.fromarray(scaled), picture.info.get("transparency")
    if key is not None:
        result.putalpha(Image.fromarray(np.where(grey == key, 0, 255).astype(np.uint8)))
    return result


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
        text = str(error) or type(error).__name__
        raise ValueError(text if text.startswith(f"{name}: ") else f"{name}: cannot be decoded: {text}") from error


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
    if text.lower().startswith(("http://", "https://")):
        return BytesIO(fetch(text, name))
    if text.startswith("data:"):
        header, _, body = text.partition(",")
        with decoding(name):
            return BytesIO(base64.b64decode(body) if header.endswith(";base64") else unquote_to_bytes(body))
    if re.match(r"(?i)[a-z][a-z0-9+.-]+://", text):
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
        is_seekable = hasattr(stream, "seekable") and stream.seekable()
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
    if picture.mode not in READABLE:
        raise ValueError(
            f"{name}: mode {picture.mode!r} cannot be read as colours; give RGB or, of numbers, an array in a range that it names"
        )
    with decoding(name):
        if picture.mode in STRAIGHT:
            picture = picture.convert(STRAIGHT[picture.mode])
        if picture.has_transparency_data:
            picture = picture.convert("RGBA")
            if channels != 4:
                ground = Image.new("RGB", picture.size, tuple(background))
                ground.paste(picture, mask=picture)
                picture = ground
        elif picture.mode not in ("L", "RGB"):
            picture = picture.convert("RGB")
        return picture if picture.mode == MODES[channels] else picture.convert(MODES[channels])
