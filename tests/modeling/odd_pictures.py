"""
What people give an image processor: one entry for each case, with the plain RGB picture that it stands for, or what the error
must say.
"""

import base64
import io
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageCms


@dataclass(frozen=True)
class Case:
    """`make(folder)` gives the source and, unless `refused` says what the error names, the plain picture or pictures."""

    make: Callable[[Path], Any]
    refused: str | None = None
    options: dict = field(default_factory=dict)
    levels: float = 1.0
    error: type | tuple = ValueError


CASES: dict[str, Case] = {}


def case(name: str, **options) -> Callable:
    def add(make: Callable) -> Callable:
        assert name not in CASES
        CASES[name] = Case(make, **options)
        return make

    return add


def photo(width: int = 60, height: int = 40, seed: int = 0) -> Image.Image:
    """Smooth colours with edges and a little noise."""
    y, x = np.mgrid[:height, :width]
    channels = [128 + 100 * np.sin(x / 7), 128 + 100 * np.cos(y / 5), 60 + 130 * ((x // 9 + y // 9) % 2)]
    noise = np.random.default_rng(seed).normal(0, 5, (height, width, 3))
    return Image.fromarray((np.stack(channels, axis=-1) + noise).clip(0, 255).astype(np.uint8))


def grey(**size) -> Image.Image:
    return photo(**size).convert("L")


def array(**size) -> np.ndarray:
    return np.array(photo(**size))


def over_white(picture: Image.Image, opacity: np.ndarray) -> Image.Image:
    share = opacity[..., None] / 255
    return Image.fromarray((np.asarray(picture) * share + 255 * (1 - share)).round().astype(np.uint8))


def stored(picture: Image.Image, kind: str, **options) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def written(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def opacity_ramp(width: int = 60, height: int = 40) -> np.ndarray:
    return np.linspace(0, 255, width).round().astype(np.uint8)[None].repeat(height, axis=0)


def png(width: int, height: int, pixels: bytes = b"", depth: int = 8, colour: int = 0, more: bytes = b"") -> bytes:
    """A PNG by hand: what no encoder would write."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + more + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")


# ---------------------------------------------------------------------------------------------------------------------
# Modes

for mode in ("RGB", "1", "L", "YCbCr", "HSV", "CMYK", "RGBX", "P"):
    case(f"mode_{mode}")(lambda folder, mode=mode: (photo().convert(mode), photo().convert(mode).convert("RGB")))


@case("mode_LA")
def _(folder):
    picture = grey()
    picture.putalpha(Image.fromarray(opacity_ramp()))
    return picture, over_white(grey().convert("RGB"), opacity_ramp())


@case("mode_La", levels=4)  # premultiplied in 8 bits: what is nearly transparent has lost its colour
def _(folder):
    picture = grey()
    picture.putalpha(Image.fromarray(opacity_ramp()))
    return picture.convert("La"), over_white(grey().convert("RGB"), opacity_ramp())


@case("mode_RGBa", levels=4)
def _(folder):
    picture = photo()
    picture.putalpha(Image.fromarray(opacity_ramp()))
    return picture.convert("RGBa"), over_white(photo(), opacity_ramp())


@case("mode_P_transparency")
def _(folder):
    indexed = photo().quantize(16)
    opacity = np.where(np.asarray(indexed) == 3, 0, 255)
    path = written(folder, "a.png", stored(indexed, "PNG", transparency=3))
    return path, over_white(indexed.convert("RGB"), opacity)


@case("mode_P_opacities")
def _(folder):
    indexed = photo().quantize(16)
    opacities = bytes(range(0, 256, 16))
    path = written(folder, "a.png", stored(indexed, "PNG", transparency=opacities))
    return path, over_white(indexed.convert("RGB"), np.frombuffer(opacities, np.uint8)[np.asarray(indexed)])


@case("mode_PA")
def _(folder):
    indexed = photo().quantize(64)
    return indexed.convert("PA"), indexed.convert("RGB")


@case("mode_L_transparency")
def _(folder):
    path = written(folder, "a.png", stored(grey(), "PNG", transparency=100))
    return path, over_white(grey().convert("RGB"), np.where(np.asarray(grey()) == 100, 0, 255))


@case("mode_RGB_transparency")
def _(folder):
    pixels = array()
    pixels[:20, :20] = (1, 2, 3)
    picture = Image.fromarray(pixels)
    path = written(folder, "a.png", stored(picture, "PNG", transparency=(1, 2, 3)))
    return path, over_white(picture, np.where((pixels == (1, 2, 3)).all(axis=-1), 0, 255))


@case("mode_RGBA_opaque")
def _(folder):
    return photo().convert("RGBA"), photo()


@case("mode_RGBA")
def _(folder):
    picture = photo()
    picture.putalpha(Image.fromarray(opacity_ramp()))
    return written(folder, "a.png", stored(picture, "PNG")), over_white(photo(), opacity_ramp())


@case("mode_RGBA_on_red", options={"background": [255, 0, 0]})
def _(folder):
    picture = photo()
    picture.putalpha(0)
    return picture, Image.new("RGB", picture.size, (255, 0, 0))


@case("mode_CMYK_jpeg", levels=3)
def _(folder):
    content = stored(photo().convert("CMYK"), "JPEG", quality=98)
    return written(folder, "a.jpg", content), Image.open(io.BytesIO(content)).convert("RGB")


@case("mode_CMYK_tiff")
def _(folder):
    return written(folder, "a.tif", stored(photo().convert("CMYK"), "TIFF")), photo().convert("CMYK").convert("RGB")


def lab() -> Image.Image:
    profiles = [ImageCms.createProfile(name) for name in ("sRGB", "LAB")]
    return ImageCms.profileToProfile(photo(), *profiles, outputMode="LAB")


case("mode_LAB", refused="LAB")(lambda folder: lab())
case("mode_LAB_tiff", refused="LAB")(lambda folder: written(folder, "a.tif", stored(lab(), "TIFF")))
case("mode_I", refused="mode 'I'")(lambda folder: Image.fromarray(np.asarray(grey()).astype(np.int32) * 257))
case("mode_F", refused="mode 'F'")(lambda folder: Image.fromarray(np.asarray(grey()).astype(np.float32) / 255))


@case("mode_I;16")
def _(folder):
    deep = Image.fromarray(np.asarray(grey()).astype(np.uint16) * 257)
    return written(folder, "a.png", stored(deep, "PNG")), grey().convert("RGB")


@case("mode_I;16_in_memory")
def _(folder):
    return Image.fromarray(np.asarray(grey()).astype(np.uint16) * 257), grey().convert("RGB")


@case("mode_I;16B")
def _(folder):
    deep = Image.fromarray(np.asarray(grey()).astype(np.uint16) * 257).convert("I").convert("I;16B")
    return deep, grey().convert("RGB")


@case("mode_I;16_transparency")
def _(folder):
    deep = np.asarray(grey()).astype(np.uint16) * 257
    transparent = int(deep[0, 0])
    more = struct.pack(">I", 2) + b"tRNS" + struct.pack(">H", transparent)
    more += struct.pack(">I", zlib.crc32(more[4:]))
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in deep)
    expected = over_white(grey().convert("RGB"), np.where(deep == transparent, 0, 255))
    return png(60, 40, rows, depth=16, more=more), expected


@case("mode_RGB_16bit")
def _(folder):
    rows = b"".join(b"\0" + (row.astype(np.uint16) * 257).astype(">u2").tobytes() for row in array())
    return written(folder, "a.png", png(60, 40, rows, depth=16, colour=2)), photo()


case("mode_RGB_kept", options={"do_convert_rgb": False})(lambda folder: (photo(), photo()))
case("mode_L_not_converted", refused="mode 'L'.*do_convert_rgb", options={"do_convert_rgb": False})(
    lambda folder: grey()
)


def tiff(width: int, height: int, bits: int, photometric: int, pixels: bytes) -> bytes:
    """A grey TIFF by hand."""
    tags = [(256, 4, width), (257, 4, height), (258, 3, bits), (259, 3, 1), (262, 3, photometric), (273, 4, 8), (277, 3, 1),
            (278, 4, height), (279, 4, len(pixels))]  # fmt: skip
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    return b"II*\0" + struct.pack("<I", 8 + len(pixels)) + pixels + struct.pack("<H", len(tags)) + entries + bytes(4)


@case("tiff_16_bit_white_is_zero")
def _(folder):
    deep = 65535 - np.asarray(grey()).astype("<u2") * 257
    return tiff(60, 40, 16, 0, deep.tobytes()), grey().convert("RGB")


@case("tiff_12_bit")
def _(folder):
    values = np.rint(np.asarray(grey()) / 255 * 4095).astype(int).reshape(-1, 2)
    packed = np.stack([values[:, 0] >> 4, (values[:, 0] & 15) << 4 | values[:, 1] >> 8, values[:, 1] & 255], axis=1)
    return tiff(60, 40, 12, 1, packed.astype(np.uint8).tobytes()), grey().convert("RGB")


@case("pgm_16_bit")
def _(folder):
    deep = np.asarray(grey()).astype(">u2") * 257
    return b"P5 60 40 65535\n" + deep.astype(">u2").tobytes(), grey().convert("RGB")


@case("pgm_10_bit")
def _(folder):
    deep = np.rint(np.asarray(grey()) / 255 * 1023).astype(">u2")
    return b"P5 60 40 1023\n" + deep.tobytes(), grey().convert("RGB")


def transparent(key: bytes) -> bytes:
    chunk = b"tRNS" + key
    return struct.pack(">I", len(key)) + chunk + struct.pack(">I", zlib.crc32(chunk))


for bits in (2, 4):

    @case(f"png_{bits}_bit_transparency")
    def _(folder, bits=bits):
        levels = np.arange(60 * 40).reshape(40, 60) % 2**bits
        rows = np.packbits((levels[..., None] >> np.arange(bits)[::-1] & 1).reshape(40, -1).astype(np.uint8), axis=1)
        content = png(60, 40, b"".join(b"\0" + row.tobytes() for row in rows), depth=bits, more=transparent(b"\0\2"))
        expected = np.where(levels == 2, 255, levels * (255 // (2**bits - 1)))
        return content, Image.fromarray(expected.astype(np.uint8)).convert("RGB")


@case("png_48_bit_transparency")
def _(folder):
    deep = array().astype(">u2") * 256 + 7
    key = deep[0, 0]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in deep)
    content = png(60, 40, rows, depth=16, colour=2, more=transparent(key.astype(">u2").tobytes()))
    return content, over_white(photo(), np.where((deep == key).all(axis=-1), 0, 255))


case("png_palette_missing", refused="cannot be decoded")(lambda folder: png(60, 40, b"\0" * 61 * 40, colour=3))


def with_info(picture: Image.Image, transparency: object) -> Image.Image:
    picture.info["transparency"] = transparency
    return picture


case("transparency_of_a_wrong_kind_L", refused="picture: cannot")(lambda folder: with_info(grey(), b"abc"))
case("transparency_of_a_wrong_kind_RGB", refused="picture: cannot")(lambda folder: with_info(photo(), b"abc"))

# ---------------------------------------------------------------------------------------------------------------------
# EXIF

TURNED = {
    2: Image.FLIP_LEFT_RIGHT, 3: Image.ROTATE_180, 4: Image.FLIP_TOP_BOTTOM, 5: Image.TRANSPOSE, 6: Image.ROTATE_90,
    7: Image.TRANSVERSE, 8: Image.ROTATE_270,
}  # fmt: skip


def turned(orientation: int, kind: str = "PNG") -> bytes:
    """The photo as a camera stores it."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = photo().transpose(TURNED[orientation]) if orientation in TURNED else photo()
    return stored(picture, kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {}))


for orientation in range(1, 9):
    case(f"exif_{orientation}")(lambda folder, o=orientation: (written(folder, "a.png", turned(o)), photo()))
    case(f"exif_{orientation}_bytes")(lambda folder, o=orientation: (turned(o), photo()))
    case(f"exif_{orientation}_pil")(lambda folder, o=orientation: (Image.open(io.BytesIO(turned(o))), photo()))
case("exif_6_webp")(lambda folder: (turned(6, "WEBP"), photo()))
case("exif_6_tiff")(lambda folder: (turned(6, "TIFF"), photo()))
case("exif_0")(lambda folder: (turned(0), photo()))
case("exif_invalid_value")(lambda folder: (turned(9), photo()))


@case("exif_6_jpeg", levels=12)
def _(folder):
    exif = Image.Exif()
    exif[0x0112] = 6
    content = stored(photo().transpose(Image.ROTATE_90), "JPEG", exif=exif, quality=98, subsampling=0)
    return written(folder, "a.jpg", content), photo()


@case("exif_broken_block", levels=12)
def _(folder):
    content = stored(photo(), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff" + b"\xff" * 40, quality=98, subsampling=0)
    return written(folder, "a.jpg", content), photo()


@case("exif_6_with_damaged_tags")
def _(folder):
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010F], exif[0x011A], exif[0x0132] = "maker", 72.0, "2026:01:01"
    content = exif.tobytes()
    place = content.index(b"\x01\x1a") if b"\x01\x1a" in content else content.index(b"\x1a\x01")
    damaged = content[: place + 2] + b"\x02\x00" + content[place + 4 :]
    return stored(photo().transpose(Image.ROTATE_90), "PNG", exif=damaged), photo()


@case("exif_no_block", levels=12)
def _(folder):
    return stored(photo(), "JPEG", exif=b"Exif\0\0rubbish", quality=98, subsampling=0), photo()


# ---------------------------------------------------------------------------------------------------------------------
# Sizes

for width, height in [
    (1, 1), (2, 2), (3, 3), (40, 3), (40, 1), (3, 40), (1, 40), (1, 2000), (2000, 1), (5000, 4), (224, 224), (223, 225),
]:  # fmt: skip
    size = {"width": width, "height": height}
    case(f"size_{width}x{height}")(lambda folder, s=size: (photo(**s), photo(**s)))
    case(f"size_{width}x{height}_png")(lambda folder, s=size: (stored(photo(**s), "PNG"), photo(**s)))
case("size_1x1_L")(lambda folder: (grey(width=1, height=1), grey(width=1, height=1).convert("RGB")))
case("size_0x0", refused="empty")(lambda folder: Image.new("RGB", (0, 0)))
case("size_5x0", refused="empty")(lambda folder: Image.new("RGB", (5, 0)))

# ---------------------------------------------------------------------------------------------------------------------
# Damage


def half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def wrong_checksum() -> bytes:
    content = bytearray(stored(photo(), "PNG"))
    content[content.index(b"IDAT") + 20] ^= 0xFF
    return bytes(content)


JPEG = stored(photo(), "JPEG", quality=95)
CUT = r"truncat|incomplete|corrupt"
UNKNOWN = r"cannot identify|not an? .*image|unsupported"

case("file_zero_bytes", refused="empty|0 bytes")(lambda folder: written(folder, "a.jpg", b""))
case("bytes_zero", refused="empty|0 bytes")(lambda folder: b"")
case("file_truncated_jpeg", refused=CUT)(lambda folder: written(folder, "a.jpg", half(JPEG)))
case("file_truncated_jpeg_bytes", refused=CUT)(lambda folder: half(JPEG))
case("file_truncated_jpeg_pil", refused=CUT)(lambda folder: Image.open(written(folder, "a.jpg", half(JPEG))))
for kind in ("PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM"):
    case(f"file_truncated_{kind.lower()}", refused="cannot")(
        lambda folder, kind=kind: written(folder, "a." + kind.lower(), half(stored(photo(), kind)))
    )
case("file_png_bad_crc", refused="cannot be decoded")(lambda folder: written(folder, "a.png", wrong_checksum()))
case("file_jpeg_header_only", refused=UNKNOWN)(lambda folder: written(folder, "a.jpg", b"\xff\xd8\xff"))
case("file_png_header_only", refused="cannot")(lambda folder: written(folder, "a.png", stored(photo(), "PNG")[:33]))
case("file_random_bytes", refused=UNKNOWN)(
    lambda folder: written(folder, "a.jpg", np.random.default_rng(0).bytes(5000))
)
case("file_text_as_png", refused=UNKNOWN)(lambda folder: written(folder, "a.png", b"just some words\n" * 20))
case("file_html_as_jpg", refused=UNKNOWN + "|HTML")(
    lambda folder: written(folder, "a.jpg", b"<!DOCTYPE html><html>404</html>")
)
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n"
case("file_lfs_pointer", refused="LFS pointer")(lambda folder: written(folder, "a.jpg", LFS))
case("file_svg", refused="SVG")(lambda folder: written(folder, "a.svg", b"<svg xmlns='http://www.w3.org/2000/svg'/>"))
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n"
case("file_postscript_as_jpg", refused="PostScript")(lambda folder: written(folder, "a.jpg", EPS))
case("file_eps", refused="PostScript")(lambda folder: written(folder, "a.eps", EPS))
case("file_pdf", refused="PDF")(lambda folder: written(folder, "a.pdf", b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n"))
case("file_ico", refused=UNKNOWN)(lambda folder: written(folder, "a.ico", stored(photo(), "ICO")))
case("path_missing", refused="(?i)no such file.*|nowhere", error=FileNotFoundError)(
    lambda folder: str(folder / "nowhere.png")
)
case("path_missing_path", refused="nowhere", error=FileNotFoundError)(lambda folder: folder / "nowhere.png")
case("path_nul", refused="null|nul|invalid path")(lambda folder: "a\0b.png")
case("path_folder", refused="folder", error=IsADirectoryError)(lambda folder: folder)
case("path_device", refused="not a regular file")(lambda folder: "/dev/zero")
case("path_too_long", refused="(?i)too long", error=OSError)(lambda folder: "a-" * 3000)
case("file_trailing_bytes")(lambda folder: (written(folder, "a.png", stored(photo(), "PNG") + b"more" * 99), photo()))
BOMB = r"exceeds limit|decompression bomb|too large"
case("bomb_400_megapixels", refused=BOMB)(
    lambda folder: written(folder, "a.png", png(20_000, 20_000, b"\0" * 2501 * 20_000, depth=1))
)
case("bomb_400_megapixels_pil", refused=BOMB + "|400000000", error=(ValueError, Image.DecompressionBombError))(
    lambda folder: png(20_000, 20_000, b"\0" * 2501 * 20_000, depth=1)
)
case("bomb_header_lies", refused=BOMB)(lambda folder: png(2**31 - 1, 2**31 - 1))
case("bomb_text_chunk", refused="(?i)too large|decompress|text")(
    lambda folder: png(60, 40, b"\0" * 61 * 40, more=text_chunk(2**26 + 2**20))
)
case("large_99_megapixels", refused=BOMB)(lambda folder: png(9950, 9950, b"\0" * 1245 * 9950, depth=1))
case("large_for_the_limit", refused="max_pixels", options={"max_pixels": 1000})(lambda folder: stored(photo(), "PNG"))
case("small_for_the_limit", options={"max_pixels": 2400})(lambda folder: (stored(photo(), "PNG"), photo()))


def text_chunk(length: int) -> bytes:
    content = b"comment\0\0" + zlib.compress(b" " * length, 9)
    head = struct.pack(">I", len(content)) + b"zTXt" + content
    return head + struct.pack(">I", zlib.crc32(head[4:]))


# ---------------------------------------------------------------------------------------------------------------------
# Containers and names

case("name_png_as_jpg")(lambda folder: (written(folder, "a.jpg", stored(photo(), "PNG")), photo()))
case("name_bmp_as_png")(lambda folder: (written(folder, "a.png", stored(photo(), "BMP")), photo()))
case("name_no_extension")(lambda folder: (written(folder, "picture", stored(photo(), "PNG")), photo()))
case("name_unicode_http_prefix")(
    lambda folder: (str(written(folder, "http_grüße 图.png", stored(photo(), "PNG"))), photo())
)
case("name_spaces_and_percent")(lambda folder: (str(written(folder, "a b%20c.png", stored(photo(), "PNG"))), photo()))
FRAMES = [photo(), photo(seed=1).rotate(180), photo(seed=2).rotate(90)]


def animated(kind: str, **options) -> bytes:
    return stored(FRAMES[0], kind, save_all=True, append_images=FRAMES[1:], **options)


@case("animated_gif")
def _(folder):
    content = animated("GIF")
    return written(folder, "a.gif", content), Image.open(io.BytesIO(stored(FRAMES[0], "GIF"))).convert("RGB")


case("animated_png")(lambda folder: (written(folder, "a.png", animated("PNG")), FRAMES[0]))
case("animated_webp")(lambda folder: (written(folder, "a.webp", animated("WEBP", lossless=True)), FRAMES[0]))
case("several_pages_tiff")(lambda folder: (written(folder, "a.tif", animated("TIFF")), FRAMES[0]))
case("webp")(lambda folder: (written(folder, "a.webp", stored(photo(), "WEBP", lossless=True)), photo()))
for name, options in {"progressive": {"progressive": True}, "baseline": {}, "mpo": {}}.items():
    case(f"{name}_jpeg", levels=12)(
        lambda folder, name=name, o=options: (
            stored(photo(), "MPO", save_all=True, append_images=[FRAMES[1]], quality=98, subsampling=0)
            if name == "mpo" else stored(photo(), "JPEG", quality=98, subsampling=0, **o), photo(),
        )
    )  # fmt: skip
case("gray_jpeg", levels=8)(lambda folder: (stored(grey(), "JPEG", quality=98), grey().convert("RGB")))
for kind in ("BMP", "PPM", "TIFF", "PNG"):
    case(f"format_{kind.lower()}")(
        lambda folder, kind=kind: (written(folder, "a." + kind, stored(photo(), kind)), photo())
    )
case("format_tif_deflate")(lambda folder: (stored(photo(), "TIFF", compression="tiff_adobe_deflate"), photo()))
case("format_pgm")(lambda folder: (stored(grey(), "PPM"), grey().convert("RGB")))
case("format_gif_transparency")(
    lambda folder: (
        stored(photo().quantize(16), "GIF", transparency=2),
        over_white(photo().quantize(16).convert("RGB"), np.where(np.asarray(photo().quantize(16)) == 2, 0, 255)),
    )
)

# ---------------------------------------------------------------------------------------------------------------------
# Arrays and tensors


def both(name: str, make: Callable[[], np.ndarray], plain: Callable | None = None, **options) -> None:
    """A case for the array and one for the tensor of it."""
    plain = plain or photo
    for kind, wrap in (("array", lambda x: x), ("tensor", lambda x: torch.from_numpy(np.array(x)))):
        if options.get("refused"):
            case(f"{kind}_{name}", **options)(lambda folder, wrap=wrap: wrap(make()))
        else:
            case(f"{kind}_{name}", **options)(lambda folder, wrap=wrap: (wrap(make()), plain()))


def chw(**size) -> np.ndarray:
    return array(**size).transpose(2, 0, 1)


def rgba() -> np.ndarray:
    return np.concatenate([array(), opacity_ramp()[..., None]], axis=-1)


def white() -> np.ndarray:
    """The photo with a black and a white corner."""
    pixels = array()
    pixels[0, 0], pixels[-1, -1] = 0, 255
    return pixels


def plain_grey() -> Image.Image:
    return grey().convert("RGB")


LAST, FIRST = ({"input_data_format": f"channels_{end}"} for end in ("last", "first"))
SHAPE = "dim|shape|ndim"

both("u8_hwc", array)
both("u8_chw", chw)
both("u8_hw", lambda: np.array(grey()), plain_grey)
both("u8_hw1", lambda: np.array(grey())[..., None], plain_grey)
both("u8_1hw", lambda: np.array(grey())[None], plain_grey)
both("u8_hw4", rgba, lambda: over_white(photo(), opacity_ramp()))
both("u8_4hw", lambda: rgba().transpose(2, 0, 1), lambda: over_white(photo(), opacity_ramp()))
both("f32_hw4_0_1", lambda: rgba().astype(np.float32) / 255, lambda: over_white(photo(), opacity_ramp()))
both("u8_hw2", lambda: rgba()[..., :2], refused=SHAPE)
both("u8_hw5", lambda: rgba()[..., [0, 1, 2, 3, 3]], refused=SHAPE)
both("3x3x3", lambda: array(width=3, height=3), refused="ambiguous.*input_data_format")
both("3x40x3", lambda: array(width=40, height=3), refused="ambiguous.*input_data_format")
both("1x40x3", lambda: array(width=40, height=1), refused="ambiguous")
both("40x3x3_batch", lambda: array(width=3, height=3)[None].repeat(40, 0), refused="ambiguous")
both("3x3x3_hinted", lambda: array(width=3, height=3), lambda: photo(width=3, height=3), options=LAST)
both("3x3x3_hinted_first", lambda: chw(width=3, height=3), lambda: photo(width=3, height=3), options=FIRST)
both("3x40x3_hinted", lambda: array(width=40, height=3), lambda: photo(width=40, height=3), options=LAST)
both("hint_that_is_wrong", array, refused="channels_first", options=FIRST)
both("f32_0_1", lambda: array().astype(np.float32) / 255)
both("f64_0_1", lambda: array() / 255)
both("f16_0_1", lambda: (array() / 255).astype(np.float16))
both("f32_0_1_no_rescale", lambda: array().astype(np.float32) / 255, options={"do_rescale": False})
both("f32_0_255", lambda: array().astype(np.float32))
both("f64_0_255", lambda: array().astype(np.float64))
both("f16_0_255", lambda: array().astype(np.float16))
both("u16", lambda: array().astype(np.uint16) * 257)
both("u16_small", lambda: array().astype(np.uint16), refused="uint16")
both("u16_black", lambda: array().astype(np.uint16) * 0, lambda: Image.new("RGB", (60, 40)))
for kind in ("u4", "u8", "i2", "i4", "i8"):
    both(f"{kind}_0_255", lambda kind=kind: array().astype(kind)) if kind[0] == "i" else case(f"array_{kind}_0_255")(
        lambda folder, kind=kind: (array().astype(kind), photo())
    )
both("i8_0_127", lambda: (array() // 2).astype(np.int8), lambda: Image.fromarray(array() // 2))
both("i16_negative", lambda: array().astype(np.int16) - 300, refused="range|negative|dtype")
both("i32_0_65535", lambda: array().astype(np.int32) * 257, refused="range")
both("bool_hw", lambda: np.array(grey()) > 128, lambda: Image.fromarray(np.array(grey()) > 128).convert("RGB"))
both("u8_only_0_and_1", lambda: array() % 2, lambda: Image.fromarray(array() % 2))


def spoilt(value: float) -> np.ndarray:
    pixels = array().astype(np.float32)
    pixels[3, 4, 1] = value
    return pixels


both("nan", lambda: spoilt(np.nan), refused="(?i)nan|finite")
both("inf", lambda: spoilt(np.inf), refused="(?i)inf|finite")
both("minus_inf", lambda: spoilt(-np.inf), refused="(?i)inf|finite")
both("nan_no_rescale", lambda: spoilt(np.nan), refused="(?i)nan|finite", options={"do_rescale": False})
both("f32_0_255000", lambda: array().astype(np.float32) * 1000, refused="finite")
both("f32_minus_1_1", lambda: array().astype(np.float32) / 127.5 - 1, refused="range")
both("f32_0_1_rounded_up", lambda: white() / np.float32(255) * np.float32(1.0000002), lambda: Image.fromarray(white()))
both("f32_0_1_rounded_down", lambda: white() / np.float32(255) - np.float32(1e-7), lambda: Image.fromarray(white()))
both("f32_0_255_rounded", lambda: array().astype(np.float32) - np.float32(1e-4))
both("f32_0_to_one_and_a_half", lambda: array().astype(np.float32) / 255 * 1.5, refused="ambiguous")
both("f64_1e300", lambda: array().astype(np.float64) * 1e300, refused="finite", options={"do_rescale": False})
both("f32_hw4_no_rescale", lambda: rgba().astype(np.float32) / 255, refused=SHAPE, options={"do_rescale": False})
both("complex", lambda: array().astype(np.complex64), refused="complex|dtype")
case("array_object", refused="object|dtype")(lambda folder: array().astype(object))
case("array_text", refused="str|<U|dtype")(lambda folder: array().astype(str))
case("array_date", refused="dtype")(lambda folder: array().astype("datetime64[s]"))
case("array_structured", refused="dtype")(lambda folder: np.zeros((40, 60), dtype=[("r", "u1"), ("g", "u1")]))
case("array_masked", refused="masked")(lambda folder: np.ma.masked_less(array(), 50))
case("array_strided")(
    lambda folder: (array(width=120, height=80)[::2, ::2], Image.fromarray(array(width=120, height=80)[::2, ::2]))
)
case("array_flipped")(lambda folder: (array()[::-1, ::-1], photo().rotate(180)))
case("array_bgr_view")(lambda folder: (array()[..., ::-1][..., ::-1], photo()))
case("array_fortran")(lambda folder: (np.asfortranarray(array()), photo()))
case("array_big_endian")(lambda folder: ((array().astype(">u2") * 257).astype(">u2"), photo()))
case("array_big_endian_float")(lambda folder: (array().astype(">f4"), photo()))
case("array_longdouble")(lambda folder: (array().astype(np.longdouble), photo()))


@case("array_readonly")
def _(folder):
    pixels = array()
    pixels.setflags(write=False)
    return pixels, photo()


@case("array_memmap")
def _(folder):
    np.save(folder / "a.npy", array())
    return np.load(folder / "a.npy", mmap_mode="r"), photo()


both("empty_0x0", lambda: np.zeros((0, 0, 3), np.uint8), refused=r"empty|zero|\b0\b")
both("empty_0xw", lambda: np.zeros((0, 60, 3), np.uint8), refused=r"empty|zero|\b0\b")
both("empty_no_channels", lambda: np.zeros((40, 60, 0), np.uint8), refused=r"empty|zero|\b0\b")
both("empty_batch", lambda: np.zeros((0, 40, 60, 3), np.uint8), refused=r"empty|zero|\b0\b")
both("0d", lambda: np.array(5, dtype=np.uint8), refused=SHAPE)
both("1d", lambda: array().ravel(), refused=SHAPE)
both("5d", lambda: array()[None, None], refused=SHAPE)
both("no_channel_axis", lambda: np.zeros((7, 40, 60), np.uint8), refused=SHAPE)
both("nhwc", lambda: np.stack([array(), array(seed=1)]), lambda: [photo(), photo(seed=1)])
both("nchw", lambda: np.stack([chw(), chw(seed=1)]), lambda: [photo(), photo(seed=1)])
both("nhw1", lambda: np.stack([np.array(grey())] * 2)[..., None], lambda: [plain_grey()] * 2)

case("tensor_requires_grad")(lambda folder: (torch.from_numpy(chw().astype(np.float32)).requires_grad_(), photo()))
case("tensor_noncontiguous")(lambda folder: (torch.from_numpy(array()).permute(2, 0, 1), photo()))
case("tensor_bf16_0_255")(lambda folder: (torch.from_numpy(chw()).bfloat16(), photo()))
case("tensor_bf16_0_1", levels=2)(lambda folder: ((torch.from_numpy(chw()).float() / 255).bfloat16(), photo()))
for kind in (torch.uint16, torch.uint32, torch.uint64):
    scale = 257 if kind == torch.uint16 else 1
    case(f"tensor_{kind}")(lambda folder, k=kind, s=scale: ((torch.from_numpy(chw()).int() * s).to(k), photo()))
case("tensor_float8", levels=20)(lambda folder: (torch.from_numpy(chw()).float().to(torch.float8_e4m3fn), photo()))
case("tensor_sparse", refused="sparse")(lambda folder: torch.from_numpy(chw()).to_sparse())
case("tensor_meta", refused="meta")(lambda folder: torch.empty(3, 40, 60, device="meta"))
case("tensor_inference_mode")(lambda folder: (inference_tensor(), photo()))


def inference_tensor() -> torch.Tensor:
    with torch.inference_mode():
        return torch.from_numpy(chw()).float() + 0


if torch.cuda.is_available():
    case("tensor_cuda")(lambda folder: (torch.from_numpy(chw()).cuda(), photo()))

# ---------------------------------------------------------------------------------------------------------------------
# Batches

SIZES = [{"width": 60, "height": 40}, {"width": 30, "height": 70}, {"width": 224, "height": 224}]


def several(wrap: Callable = lambda pictures: pictures) -> Callable:
    return lambda folder: (wrap([photo(**size) for size in SIZES]), [photo(**size) for size in SIZES])


case("batch_mixed_sizes")(several())
case("batch_tuple")(several(tuple))
case("batch_generator")(several(iter))
case("batch_nested")(several(lambda pictures: [[pictures[0]], [pictures[1:]]]))
case("batch_mixed_kinds")(several(lambda p: [p[0], np.array(p[1]), torch.from_numpy(np.array(p[2]))]))
case("batch_mixed_layouts")(several(lambda p: [np.array(p[0]), np.array(p[1]).transpose(2, 0, 1), p[2]]))
case("batch_mixed_modes")(
    lambda folder: (
        [photo(), grey(), photo().convert("CMYK")],
        [photo(), plain_grey(), photo().convert("CMYK").convert("RGB")],
    )
)
case("batch_arrays_and_batches")(several(lambda p: [np.array(p[0])[None], np.array(p[1]), stored(p[2], "PNG")]))
case("batch_list_of_one")(lambda folder: ([photo()], [photo()]))
case("batch_set_of_arrays")(lambda folder: (dict.fromkeys(["a"], array()).values(), [photo()]))
case("batch_object_array")(several(lambda p: np.array([np.array(p[0]), np.array(p[1]), np.array(p[2])], dtype=object)))
case("batch_of_two_scales", refused=r"images\[1\].*0\.\.1.*images\[0\].*0\.\.255")(
    lambda folder: [array().astype(np.float32), array().astype(np.float32) / 255]
)
case("batch_of_a_black_float")(
    lambda folder: (
        [array().astype(np.float32), 0 * array().astype(np.float32)],
        [photo(), Image.new("RGB", (60, 40))],
    )
)
case("batch_too_deep", refused="deep")(lambda folder: nested(3000))


def nested(depth: int) -> list:
    images = photo()
    for _ in range(depth):
        images = [images]
    return images


case("batch_none_inside", refused=r"images\[1\].*None", error=TypeError)(lambda folder: [photo(), None, photo()])
case("batch_broken_inside", refused=r"images\[1\].*truncated\.jpg")(
    lambda folder: [photo(), written(folder, "truncated.jpg", half(JPEG)), photo()]
)
case("batch_nan_inside", refused=r"images\[2\]")(lambda folder: [photo(), photo(), spoilt(np.nan)])
case("batch_empty", refused="empty|no images|at least one")(lambda folder: [])
case("batch_empty_nested", refused="empty|no images|at least one")(lambda folder: [[], []])


@case("batch_repeated")
def _(folder):
    picture = Image.open(io.BytesIO(stored(photo(), "PNG")))
    return [picture, picture, photo(seed=1)], [photo(), photo(), photo(seed=1)]


@case("batch_repeated_transparent")
def _(folder):
    levels = np.arange(60 * 40).reshape(40, 60) % 4
    rows = np.packbits((levels[..., None] >> np.arange(2)[::-1] & 1).reshape(40, -1).astype(np.uint8), axis=1)
    content = png(60, 40, b"".join(b"\0" + row.tobytes() for row in rows), depth=2, more=transparent(b"\0\2"))
    picture = Image.open(io.BytesIO(content))
    plain = Image.fromarray(np.where(levels == 2, 255, levels * 85).astype(np.uint8)).convert("RGB")
    return [picture, picture], [plain, plain]


@case("batch_repeated_file")
def _(folder):
    file = io.BytesIO(stored(photo(), "PNG"))
    return [file] * 8, [photo()] * 8


# ---------------------------------------------------------------------------------------------------------------------
# Other kinds

WRONG = {"refused": "type|image|expected", "error": TypeError}
case("other_none", **WRONG)(lambda folder: None)
case("other_int", **WRONG)(lambda folder: 7)
case("other_dict", **WRONG)(lambda folder: {"image": photo()})
case("other_list_of_numbers", **WRONG)(lambda folder: [1, 2, 3])
case("other_empty_text", refused="empty|path|source")(lambda folder: "")
case("other_path_text")(lambda folder: (str(written(folder, "a.png", stored(photo(), "PNG"))), photo()))
case("other_path")(lambda folder: (written(folder, "a.png", stored(photo(), "PNG")), photo()))
case("other_bytes")(lambda folder: (stored(photo(), "PNG"), photo()))
case("other_bytearray")(lambda folder: (bytearray(stored(photo(), "PNG")), photo()))
case("other_memoryview")(lambda folder: (memoryview(stored(photo(), "PNG")), photo()))
case("other_bytesio")(lambda folder: (io.BytesIO(stored(photo(), "PNG")), photo()))
case("other_dict_of_bytes")(lambda folder: ({"bytes": stored(photo(), "PNG"), "path": None}, photo()))
case("other_dict_of_path")(
    lambda folder: ({"bytes": None, "path": str(written(folder, "a.png", stored(photo(), "PNG")))}, photo())
)
case("other_dict_of_nothing", **WRONG)(lambda folder: {"bytes": None, "path": None})


@case("other_bytesio_at_its_end")
def _(folder):
    file = io.BytesIO()
    photo().save(file, "PNG")
    return file, photo()


@case("other_open_file")
def _(folder):
    return open(written(folder, "a.png", stored(photo(), "PNG")), "rb"), photo()


class Pipe(io.RawIOBase):
    """What can be read once."""

    def __init__(self, content: bytes):
        self.rest = io.BytesIO(content)

    def read(self, size: int = -1) -> bytes:
        return self.rest.read(size)

    def readable(self) -> bool:
        return True


case("other_pipe")(lambda folder: (Pipe(stored(photo(), "PNG")), photo()))


class OnlyReads:
    """The least that is a file."""

    def __init__(self, content: bytes):
        self.read = io.BytesIO(content).read


case("other_file_that_only_reads")(lambda folder: (OnlyReads(stored(photo(), "PNG")), photo()))
case("path_missing_long", refused="(?i)no such file", error=FileNotFoundError)(
    lambda folder: "/data/images/train/n01440764/" + "a" * 60
)
case("other_text_file", refused="text", error=TypeError)(lambda folder: io.StringIO("words"))


@case("other_closed", refused="closed")
def _(folder):
    with open(written(folder, "a.png", stored(photo(), "PNG")), "rb") as file:
        return Image.open(file)


@case("other_closed_picture", refused="closed")
def _(folder):
    picture = photo()
    picture.close()
    return picture


@case("other_closed_file", refused="closed")
def _(folder):
    file = io.BytesIO(stored(photo(), "PNG"))
    file.close()
    return file


TEXT = base64.b64encode(stored(photo(), "PNG")).decode()
case("other_data_url")(lambda folder: (f"data:image/png;base64,{TEXT}", photo()))
case("other_base64")(lambda folder: (TEXT, photo()))
case("other_data_url_of_text", refused=UNKNOWN)(lambda folder: "data:text/plain,no%20picture")
case("other_data_url_broken", refused="cannot")(lambda folder: "data:image/png;base64,xyz")
case("other_url_file_scheme", refused="http")(
    lambda folder: f"file://{written(folder, 'a.png', stored(photo(), 'PNG'))}"
)
case("other_url_file_scheme_capitals", refused="http")(lambda folder: "FILE:///etc/hostname")
case("file_tiff_of_a_strange_kind", refused="TIFF of bits")(lambda folder: tiff(60, 40, 12, 0, b"\0" * 3600))
case("other_url_ftp_scheme", refused="http")(lambda folder: "ftp://127.0.0.1/a.png")
