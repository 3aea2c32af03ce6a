"""Every odd picture right, or refused by name; none crashes, none fills the memory, nothing of Pillow's settings changes."""

import ipaddress
import json
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from modeling_vit_custom import ViTCustomImageProcessor, fetching_vit_custom, load_picture
from tests.modeling.odd_pictures import CASES, photo, stored


LEVEL = 2 / 255  # of pixels normalised to -1..1
PROCESSOR = ViTCustomImageProcessor(size={"height": 32, "width": 48})


def pixels_of(source, **options) -> torch.Tensor:
    return PROCESSOR(source, return_tensors="pt", **options).pixel_values


def assert_right_or_refused(case, source, plain) -> None:
    if case.refused is not None:
        with pytest.raises(case.error, match=case.refused):
            pixels_of(source, **case.options)
        return
    found, expected = pixels_of(source, **case.options), pixels_of(plain)
    assert found.shape == expected.shape and found.dtype == torch.float32 and not found.requires_grad
    assert (found - expected).abs().max() <= case.levels * LEVEL + 1e-5


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning", "ignore:Corrupt EXIF")
@pytest.mark.parametrize("name", CASES)
def test_odd_picture(name, tmp_path):
    case = CASES[name]
    made = case.make(tmp_path)
    source, plain = (made, None) if case.refused else made
    assert_right_or_refused(case, source, plain)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("name", [name for name in CASES if name.startswith(("file_", "bytes_", "bomb_", "path_"))])
def test_a_file_is_refused_by_its_place_in_a_batch(name, tmp_path):
    case = CASES[name]
    if case.refused:
        with pytest.raises(case.error, match=r"images\[2\]"):
            pixels_of([photo(), photo(), case.make(tmp_path)])


def test_a_picture_is_never_changed(tmp_path):
    turned = Image.open(CASES["exif_6"].make(tmp_path)[0])
    for picture in (photo(), photo().convert("RGBA"), turned):
        before = picture.tobytes(), picture.size, picture.mode, picture.getexif().get(0x0112)
        found = ViTCustomImageProcessor(do_resize=False, do_rescale=False, do_normalize=False)(picture)
        found.pixel_values[0].fill_(0)
        assert (picture.tobytes(), picture.size, picture.mode, picture.getexif().get(0x0112)) == before
    array = np.array(photo())
    ViTCustomImageProcessor(do_resize=False, do_rescale=False, do_normalize=False)(array).pixel_values[0].fill_(0)
    assert np.array_equal(array, photo())


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_turned_once(orientation, tmp_path):
    path = CASES[f"exif_{orientation}"].make(tmp_path)[0]
    assert torch.equal(pixels_of(load_picture(load_picture(path))), pixels_of(photo()))


def test_settings_of_pillow_stay(tmp_path):
    assert (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES) == (89_478_485, False)


HOSTILE = ["bomb_400_megapixels", "bomb_header_lies", "bomb_text_chunk", "large_99_megapixels"]
WATCHED = """
import json, resource, sys, time, warnings
import numpy as np
from modeling_vit_custom import ViTCustomImageProcessor
warnings.simplefilter("ignore")
processor = ViTCustomImageProcessor()
processor(np.zeros((9, 9, 3), np.uint8))
memory = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
for path in sys.argv[1:]:
    before, began = memory(), time.monotonic()
    try:
        processor(path)
        outcome = "read"
    except ValueError as error:
        outcome = str(error)
    print(json.dumps([outcome, memory() - before, time.monotonic() - began]))
"""


def test_bombs_cost_neither_memory_nor_time(tmp_path):
    """In a process of its own: megabytes and seconds that each file costs."""
    paths = [tmp_path / f"{name}.png" for name in HOSTILE]
    for name, path in zip(HOSTILE, paths, strict=True):
        made = CASES[name].make(tmp_path)
        path.write_bytes(made if isinstance(made, bytes) else made.read_bytes())
    command = [sys.executable, "-c", WATCHED, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    for path, line in zip(paths, done.stdout.splitlines(), strict=True):
        outcome, megabytes, seconds = json.loads(line)
        assert path.name in outcome
        assert megabytes < 150 and seconds < 10, (path.name, megabytes, seconds)


# ---------------------------------------------------------------------------------------------------------------------
# Addresses


class Pages(BaseHTTPRequestHandler):
    """A few pages."""

    def do_GET(self):
        content = stored(photo(), "PNG")
        if self.path == "/redirect":
            self.send_response(302)
            self.send_header("Location", "/photo.png")
        elif self.path == "/loop":
            self.send_response(302)
            self.send_header("Location", "/loop")
        elif self.path == "/elsewhere":
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{self.server.server_port}/photo.png")
        elif self.path == "/file":
            self.send_response(302)
            self.send_header("Location", "file:///etc/hostname")
        else:
            self.send_response(404 if self.path == "/404" else 200)
        self.end_headers()
        pages = {
            "/photo.png": content,
            "/html": b"<html>hello</html>",
            "/cut": content[:200],
            "/large": b"\0" * 3_000_000,
        }
        self.wfile.write(pages.get(self.path, b""))

    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.mark.parametrize("page", ["photo.png", "redirect"])
def test_an_address_is_fetched(page, server):
    assert torch.equal(pixels_of(f"{server}/{page}"), pixels_of(photo()))
    assert torch.equal(pixels_of(f"{server}/{page}".replace("http", "HTTP")), pixels_of(photo()))
    assert torch.equal(pixels_of([photo(), f"{server}/{page}"]), pixels_of([photo(), photo()]))


@pytest.mark.parametrize("page, named", [
    ("404", "404"), ("html", "HTML"), ("cut", "truncated"), ("empty", "empty"), ("loop", "redirected more than"),
    ("elsewhere", "redirected to localhost, a private host"), ("file", "cannot be fetched"), ("large", "too large"),
])  # fmt: skip
def test_an_address_without_a_picture_is_refused(page, named, server, monkeypatch):
    monkeypatch.setattr(fetching_vit_custom, "MAX_BYTES", 2**20)
    with pytest.raises(ValueError, match=rf"{server}/{page}: .*{named}"):
        pixels_of(f"{server}/{page}")


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.0.0.1", "::1", "224.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "fe80::1"]
)
def test_private_addresses_are_known(address):
    assert fetching_vit_custom.is_private(ipaddress.ip_address(address))
    assert not fetching_vit_custom.is_private(ipaddress.ip_address("8.8.8.8"))


def test_passwords_are_not_repeated():
    with pytest.raises(ValueError, match="http://127.0.0.1:9/a.png: cannot be fetched") as caught:
        pixels_of("http://user:secret@127.0.0.1:9/a.png")
    assert "secret" not in str(caught.value)


def test_an_address_that_drips_is_given_up(monkeypatch):
    """Whatever the server sends in time for single steps: the time is one for all."""
    monkeypatch.setattr(fetching_vit_custom, "MAX_SECONDS", 1)
    listening = socket.create_server(("127.0.0.1", 0))

    def drip():
        connection, _ = listening.accept()
        connection.sendall(b"HTTP/1.1 200 OK\r\n")
        with suppress(OSError):
            for index in range(60):
                connection.sendall(b"X-%d: y\r\n" % index)
                time.sleep(0.1)

    threading.Thread(target=drip, daemon=True).start()
    began = time.monotonic()
    with pytest.raises(ValueError, match="not complete after 1 s"):
        pixels_of(f"http://127.0.0.1:{listening.getsockname()[1]}/a.png")
    assert time.monotonic() - began < 5


def test_an_address_that_does_not_answer_is_refused(monkeypatch):
    monkeypatch.setattr(fetching_vit_custom, "MAX_SECONDS", 0.3)
    silent = ThreadingHTTPServer(("127.0.0.1", 0), Pages)  # listens, never serves
    for address in (f"http://127.0.0.1:{silent.server_port}/a.png", "http://127.0.0.1:9/a.png"):
        with pytest.raises(ValueError, match=rf"{address}: cannot be fetched"):
            pixels_of(address)
    silent.server_close()


# ---------------------------------------------------------------------------------------------------------------------
# Others of the same kinds

SIDE = st.integers(1, 40)
FEW = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def reference(picture: Image.Image, size: tuple[int, int]) -> torch.Tensor:
    """Pillow's own resize, then -1..1."""
    pixels = np.asarray(picture.convert("RGB").resize(size[::-1], Image.BILINEAR)).astype(np.float32)
    return torch.from_numpy(pixels / 127.5 - 1).permute(2, 0, 1)


@FEW
@given(SIDE, SIDE, st.sampled_from(["1", "L", "P", "RGB", "CMYK", "YCbCr", "HSV"]), st.integers(0, 99), SIDE, SIDE)
def test_any_mode_and_size_is_pillow_s(width, height, mode, seed, new_width, new_height):
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    picture = Image.fromarray(noise).convert(mode)
    found = pixels_of(picture, size={"height": new_height, "width": new_width})[0]
    away = (found - reference(picture, (new_height, new_width))).abs()
    assert away.max() <= 2 * LEVEL + 1e-5  # of noise; of photographs one, see test_image_processing.py


DTYPES = [np.uint8, np.int16, np.int32, np.int64, np.uint32, np.float16, np.float32, np.float64]


@FEW
@given(SIDE, SIDE, st.sampled_from(DTYPES), st.sampled_from(["HW", "HWC", "CHW", "NHWC", "NCHW"]),
       st.sampled_from([1, 3]), st.booleans(), st.booleans(), st.integers(0, 99))  # fmt: skip
def test_any_layout_and_dtype_is_the_picture_or_asked_for(width, height, dtype, layout, channels, tensor, unit, seed):
    channels = 1 if layout == "HW" else channels
    levels = np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)
    levels[0, 0, 0] = 255
    array = levels.astype(dtype)
    if unit and array.dtype.kind == "f":
        array = array / np.asarray(255, dtype)
    shapes = {"HW": array[..., 0], "HWC": array, "CHW": array.transpose(2, 0, 1)}
    array = shapes[layout.removeprefix("N")]
    array = array[None] if layout.startswith("N") else array
    source = torch.from_numpy(np.ascontiguousarray(array)) if tensor and dtype is not np.uint32 else array
    if layout != "HW" and {array.shape[-3], array.shape[-1]} <= {1, 3, 4}:
        with pytest.raises(ValueError, match="ambiguous"):
            pixels_of(source)
        options = {"input_data_format": "channels_last" if layout.endswith("C") else "channels_first"}
    else:
        options = {}
    picture = Image.fromarray(levels.squeeze(-1) if channels == 1 else levels)
    away = (pixels_of(source, **options)[0] - reference(picture, (32, 48))).abs()
    assert away.max() <= 2 * LEVEL + 1e-5  # of noise; of photographs one, see test_image_processing.py


ENCODED = {
    kind: stored(photo(), kind, **options)
    for kind, options in {"JPEG": {}, "PNG": {}, "GIF": {}, "BMP": {}, "TIFF": {"compression": "tiff_lzw"}, "WEBP": {}, "PPM": {}}.items()
}  # fmt: skip


@FEW
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::PIL.Image.DecompressionBombWarning")
@given(
    st.sampled_from(sorted(ENCODED)),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=8),
    st.floats(0, 1),
)
def test_any_damage_is_read_or_refused_by_name(kind, changes, length):
    """Bytes changed anywhere and the end cut off: a picture or a `ValueError`, nothing else."""
    content = bytearray(ENCODED[kind])
    for place, value in changes:
        content[min(int(place * len(content)), len(content) - 1)] = value
    content = bytes(content[: max(1, int(length * len(content)))])
    try:
        found = pixels_of([photo(), content])
    except ValueError as error:
        assert str(error).startswith("images[1]: ")
    else:
        assert found.shape == (2, 3, 32, 48) and torch.isfinite(found).all()
