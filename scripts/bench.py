"""
Measures speed, paired: each round runs every implementation once, in another order, and ratios are taken within a round.

    python -m scripts.bench preprocess [--photos FOLDER]   # JPEG bytes to a normalised batch
    python -m scripts.bench loading [--photos FOLDER]      # an epoch of random crops from files
    python -m scripts.bench conversion                     # importing ViT-L against copying its file

Needs the development dependencies. Without `--photos` it makes JPEG files of scikit-learn's two photographs. Absolute figures mean
little on a shared machine; ratios say more.
"""

import argparse
import io
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import datasets
import numpy as np
import timm.data
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.models import vit_l_16
from torchvision.transforms import InterpolationMode, v2
from transformers import ViTImageProcessor, ViTImageProcessorPil

from conversion import import_to_folder
from modeling_vit_custom import ViTCustomImageProcessor
from scripts.common.augment import Normalise, picture_loader, train_transform
from scripts.common.data import PictureDataset, SampleStream, threads_per_worker
from scripts.common.recipe import AugmentRecipe
from scripts.common.sources import is_picture, open_class_folders
from scripts.predict import natural, positive


SIZE = (500, 375)
Way = Callable[[], Tensor | None]


def photographs(folder: Path | None, count: int) -> list[bytes]:
    """JPEG files of 500 x 375, from a folder or cut out of scikit-learn's photographs; repeated if there are too few."""
    if folder is None:
        samples, random_place = [Image.fromarray(image) for image in load_sample_images().images], random.Random(0)
        found = []
        for index in range(count):
            sample, stored = samples[index % len(samples)], io.BytesIO()
            x, y = random_place.randint(0, sample.width - SIZE[0]), random_place.randint(0, sample.height - SIZE[1])
            sample.crop((x, y, x + SIZE[0], y + SIZE[1])).save(stored, "JPEG", quality=92)
            found.append(stored.getvalue())
        return found
    files = sorted(path for path in folder.rglob("*") if is_picture(path))
    found = [path.read_bytes() for path in files if is_plain(path)]
    if not found:
        raise SystemExit(f"error: {folder} holds no RGB JPEG files of {SIZE[0]} x {SIZE[1]}")
    return (found * (count // len(found) + 1))[:count]


def is_plain(path: Path) -> bool:
    with Image.open(path) as picture:
        return picture.format == "JPEG" and picture.mode == "RGB" and picture.size == SIZE


# ---------------------------------------------------------------------------------------------------------------------
# Preprocessing


def preprocess_ways(files: list[bytes], resample: str) -> dict[str, Way]:
    """Ways from JPEG bytes to `pixel_values` (B, 3, 224, 224) of -1..1, the last to levels of uint8."""
    mode = Image.Resampling[resample.upper()]
    ours, theirs, theirs_pil = (
        kind(resample=mode) for kind in (ViTCustomImageProcessor, ViTImageProcessor, ViTImageProcessorPil)
    )
    raw = ViTCustomImageProcessor(resample=mode, rescale_factor=1, do_normalize=False)
    timm_s = timm.data.create_transform(
        (3, 224, 224), interpolation=resample, crop_pct=1.0, crop_mode="squash", mean=[0.5] * 3, std=[0.5] * 3
    )
    torchvision_s = v2.Compose([
        v2.ToImage(), v2.Resize((224, 224), InterpolationMode(resample)), v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([0.5] * 3, [0.5] * 3),
    ])  # fmt: skip

    def opened() -> list[Image.Image]:
        return [Image.open(io.BytesIO(content)) for content in files]

    return {
        "transformers ViTImageProcessor": lambda: theirs(opened(), return_tensors="pt").pixel_values,
        "transformers ViTImageProcessorPil": lambda: theirs_pil(opened(), return_tensors="pt").pixel_values,
        "timm transform": lambda: torch.stack([timm_s(picture.convert("RGB")) for picture in opened()]),
        "torchvision v2": lambda: torch.stack([torchvision_s(picture.convert("RGB")) for picture in opened()]),
        "ViTCustomImageProcessor": lambda: ours(files, return_tensors="pt").pixel_values,
        "ViTCustomImageProcessor, uint8": lambda: raw(files, return_tensors="pt").pixel_values,
    }


def pillow_s(files: list[bytes], resample: str) -> Tensor:
    """Levels 0..255 by Pillow's own resize."""
    mode = Image.Resampling[resample.upper()]
    pictures = (Image.open(io.BytesIO(content)).convert("RGB").resize((224, 224), mode) for content in files)
    return torch.from_numpy(np.stack([np.asarray(picture) for picture in pictures])).permute(0, 3, 1, 2).float()


def bench_preprocess(options: argparse.Namespace) -> None:
    files = photographs(options.photos, options.batch_size)
    expected = pillow_s(files, options.resample)
    for threads in options.threads:
        torch.set_num_threads(threads)
        ways, away = preprocess_ways(files, options.resample), {}
        for name, way in ways.items():
            found = way().float()
            levels = found if found.max() > 2 else (found + 1) * 127.5
            away[name] = f"{(levels - expected).abs().max():.2f}"
        title = f"{len(files)} JPEG files of {SIZE[0]} x {SIZE[1]} to (B, 3, 224, 224), {options.resample}, {threads} thread(s)"
        print_table(title, measure(ways, options.rounds), len(files), {"largest difference, levels": away})


# ---------------------------------------------------------------------------------------------------------------------
# Loading


def loading_ways(folder: Path, workers: int, batch_size: int) -> dict[str, Way]:
    """Ways through an epoch of a folder: random crops of 224, half of them mirrored, normalised, in batches."""
    theirs = v2.Compose([
        v2.RandomResizedCrop(224, (0.2, 1.0)), v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([0.5] * 3, [0.5] * 3),
    ])  # fmt: skip
    torchvision_s = ImageFolder(str(folder), transform=theirs)
    imagefolder = datasets.load_dataset("imagefolder", data_dir=str(folder), split="train").with_transform(
        lambda rows: {"pixels": [theirs(picture.convert("RGB")) for picture in rows["image"]], "label": rows["label"]}
    )
    processor = ViTCustomImageProcessor()
    rows = open_class_folders(folder).cast_column("image", datasets.Image(decode=False))
    transform, threads = train_transform(AugmentRecipe(), processor), threads_per_worker(workers)
    ours = PictureDataset(rows, transform, 0, picture_loader(processor), threads)
    normalise, stream = Normalise(processor), SampleStream(len(rows), 0, 0, len(rows))

    def each(data: datasets.Dataset, use: Callable = lambda batch: None, **order: object) -> Way:
        def epoch() -> None:
            for batch in DataLoader(data, batch_size, num_workers=workers, **order):
                use(batch)

        return epoch

    return {
        "datasets imagefolder": each(imagefolder, shuffle=True),
        "torchvision ImageFolder": each(torchvision_s, shuffle=True),
        "scripts.train": each(ours, lambda batch: normalise(batch["pixel_values"]), sampler=stream),
    }


def bench_loading(options: argparse.Namespace) -> None:
    files = photographs(options.photos, 60)
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as name:
        for index in range(options.pictures):
            folder = Path(name) / str(index % 10)
            folder.mkdir(exist_ok=True)
            (folder / f"{index}.jpg").write_bytes(files[index % len(files)])
        for workers in options.workers:
            ways = loading_ways(Path(name), workers, options.batch_size)
            title = f"an epoch of {options.pictures} JPEG files of {SIZE[0]} x {SIZE[1]}, {workers} worker(s)"
            print_table(title, measure(ways, options.rounds), options.pictures, {})


# ---------------------------------------------------------------------------------------------------------------------
# Measuring


def measure(ways: dict[str, Way], rounds: int) -> dict[str, list[float]]:
    """Seconds of each way in each round, after one round to warm up."""
    seconds, order = {name: [] for name in ways}, list(ways)
    for turn in range(rounds + 1):
        random.Random(turn).shuffle(order)
        for name in order:
            time.sleep(0.05)  # until idle threads of the way before no longer spin
            began = time.perf_counter()
            ways[name]()
            if turn:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def print_table(title: str, seconds: dict[str, list[float]], items: int, more: dict[str, dict[str, str]]) -> None:
    """Medians, and the medians and quartiles of the ratios to the first row."""
    first = next(iter(seconds.values()))
    print(f"\n{title}; {len(first)} rounds")
    print(f"{'':36} {'ms':>8} {'pictures/s':>11} {'times as fast':>14} {'quartiles':>12}   {'   '.join(more)}")
    for name, times in seconds.items():
        ratios = [a / b for a, b in zip(first, times, strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        median = statistics.median(times)
        cells = "   ".join(column[name].rjust(len(key)) for key, column in more.items())
        print(
            f"{name:36} {median * 1e3:8.1f} {items / median:11.0f} {statistics.median(ratios):14.2f}  {low:5.2f}-{high:5.2f}   "
            f"{cells}".rstrip()
        )


TOLD = {"resample": "bilinear"}  # which pixels a ViT-L/16 of torchvision takes isn't in its file


def bench_conversion(options: argparse.Namespace) -> None:
    """Prints time over that of copying the file, and memory over the file's size, of importing ViT-L/16 in float32."""
    with tempfile.TemporaryDirectory() as room:
        source, copy, out = (Path(room) / name for name in ("vit_l_16.pth", "copy.pth", "out"))
        torch.save(vit_l_16().state_dict(), source)
        rounds = []
        for _ in range(options.rounds + 1):  # the first one warms up
            times = [
                timed(lambda: shutil.copyfile(source, copy)),
                timed(lambda: import_to_folder(source, out, set=TOLD)),
            ]
            rounds.append(times[1] / times[0])
            shutil.rmtree(out)
            copy.unlink()
        before = peak_memory(room, [])
        grown = peak_memory(room, [str(source)]) - before
        size = source.stat().st_size
    print(f"importing takes {statistics.median(rounds[1:]):.2f} times as long as copying the file ({min(rounds[1:]):.2f} to "
          f"{max(rounds[1:]):.2f}), and memory of {grown / size:.2f} times its {size / 1e9:.2f} GB")  # fmt: skip


def timed(work: Callable[[], object]) -> float:
    """Seconds until `work` is done and on the disk."""
    start = time.perf_counter()
    work()
    os.sync()
    return time.perf_counter() - start


IMPORT = """
import sys
import torch, transformers
from conversion import import_to_folder
for source in sys.argv[2:]:
    import_to_folder(source, sys.argv[1] + "/measured", set={"resample": "bilinear"})
print(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0])
"""


def peak_memory(room: str, sources: list[str]) -> int:
    """The most memory in bytes of a process that imports `sources`."""
    done = subprocess.run([sys.executable, "-c", IMPORT, room, *sources], capture_output=True, text=True, check=True)
    return 1024 * int(done.stdout.split()[-1])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench", description="Measures speed against other libraries."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    preprocess = commands.add_parser("preprocess", help="JPEG bytes to a normalised batch")
    preprocess.add_argument(
        "--threads", type=positive, nargs="+", default=[1, 2], help="numbers of threads (default: 1 2)"
    )
    preprocess.add_argument("--resample", choices=["bilinear", "bicubic"], default="bilinear", help="the filter")
    loading = commands.add_parser("loading", help="an epoch of random crops from files")
    loading.add_argument(
        "--workers", type=natural, nargs="+", default=[0, 1, 2], help="numbers of workers (default: 0 1 2)"
    )
    loading.add_argument("--pictures", type=positive, default=600, help="files in the epoch (default: %(default)s)")
    conversion = commands.add_parser("conversion", help="importing ViT-L against copying its file")
    conversion.add_argument("--rounds", type=positive, default=5, help="rounds measured (default: %(default)s)")
    for command, rounds in ((preprocess, 15), (loading, 5)):
        command.add_argument("--photos", type=Path, help="folder with JPEG files of 500 x 375")
        command.add_argument(
            "--batch-size", type=positive, default=32, help="pictures in a batch (default: %(default)s)"
        )
        command.add_argument("--rounds", type=positive, default=rounds, help="rounds measured (default: %(default)s)")
    options = parser.parse_args(arguments)
    ways = {"preprocess": bench_preprocess, "loading": bench_loading, "conversion": bench_conversion}
    ways[options.command](options)


if __name__ == "__main__":
    main()
