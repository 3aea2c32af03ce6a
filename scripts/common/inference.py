"""Pictures from anywhere through a classifier: decoded by worker processes, in batches, in their order, in flat memory."""

import glob
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers import BaseImageProcessor, PreTrainedModel

from modeling_vit_custom import ViTCustomImageProcessor
from modeling_vit_custom.fetching_vit_custom import without_password
from modeling_vit_custom.preprocessing_vit_custom import map_in_threads
from scripts.common.augment import Normalise, eval_transform, picture_loader
from scripts.common.data import threads_per_worker
from scripts.common.errors import UserError, one_line
from scripts.common.sources import is_picture


THUMBNAIL = (256, 256)


@dataclass(frozen=True)
class Item:
    """A picture to be read: its name, what holds it, its class where that is known, and whether a small copy is wanted."""

    name: str
    source: Any
    label: int | None = None
    wants_thumbnail: bool = False


@dataclass
class Outcome:
    """What became of an item: logits (classes), or what is wrong with it."""

    item: Item
    error: str | None = None
    logits: Tensor | None = None
    thumbnail: Image.Image | None = None


@dataclass
class Pixels:
    """Outcomes without logits, and the pixels of those without error: (places, pixels (n, C, height, width)) of each shape."""

    outcomes: list[Outcome]
    groups: list[tuple[list[int], Tensor]]


class Reader(Dataset):
    """Items to pixels; a picture that can't be read costs nothing but itself."""

    def __init__(self, processor: BaseImageProcessor, threads: int | None = None):
        self.load, self.transform, self.threads = picture_loader(processor), eval_transform(processor), threads

    def __getitems__(self, items: list[Item]) -> Pixels:
        outcomes, groups = [], defaultdict(list)
        for place, (outcome, pixels) in enumerate(map_in_threads(self.read, items, threads=self.threads)):
            outcomes.append(outcome)
            if pixels is not None:
                groups[pixels.shape].append((place, pixels))
        return Pixels(
            outcomes, [([p for p, _ in group], torch.stack([x for _, x in group])) for group in groups.values()]
        )

    def read(self, item: Item) -> tuple[Outcome, Tensor | None]:
        """The pixels (C, height, width) of an item, or an error."""
        try:
            picture = self.load(item.source, item.name)
            outcome, pixels = Outcome(item), self.transform(picture)
            if item.wants_thumbnail:
                outcome.thumbnail = picture.copy()
                outcome.thumbnail.thumbnail(THUMBNAIL)
            return outcome, pixels
        except (OSError, ValueError, TypeError, RuntimeError, MemoryError) as error:
            text = one_line(error.strerror if isinstance(error, OSError) and error.strerror else error)
            return Outcome(item, text if item.name in text else f"{item.name}: {text}"), None


@torch.no_grad()
def classify(
    model: PreTrainedModel,
    processor: BaseImageProcessor,
    items: Iterable[Item],
    batch_size: int = 32,
    workers: int = 0,
) -> Iterator[list[Outcome]]:
    """
    The outcomes of `items` in their order, batch by batch; few are in memory at a time.

    Raises:
        `UserError`: if the model gives NaN or infinity.
    """
    normalise = Normalise(processor) if isinstance(processor, ViTCustomImageProcessor) else nn.Identity()
    normalise.to(model.device)
    reader, chunks = Reader(processor, threads_per_worker(workers)), batched(items, batch_size)
    loader = DataLoader(reader, batch_sampler=chunks, num_workers=workers, collate_fn=as_it_is)
    for batch in loader:
        for places, pixels in batch.groups:
            logits = model(pixel_values=normalise(pixels.to(model.device))).logits.float().cpu()
            for place, row in zip(places, logits, strict=True):
                batch.outcomes[place].logits = row
                if not row.isfinite().all():
                    raise UserError(f"{batch.outcomes[place].item.name}: the model's outputs are NaN or infinite")
        yield batch.outcomes


def as_it_is(pixels: Pixels) -> Pixels:
    return pixels


def batched(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    items = iter(items)
    while chunk := list(islice(items, size)):
        yield chunk


def find_pictures(paths: Iterable[str], leave_out: Callable[[str], None] = lambda name: None) -> Iterator[Item]:
    """
    The pictures that `paths` say, one by one: files, addresses, folders with all pictures in them by their extensions
    (`leave_out` is told of the other files), and patterns such as `photos/**/*.jpg`. A path that leads to none is given as it
    is, to be listed with what can't be read.
    """
    for path in paths:
        is_pattern = glob.has_magic(path) and "://" not in path and not os.path.lexists(path)
        matches = sorted(glob.glob(path, recursive=True)) if is_pattern else [path]
        if "**" in path and is_pattern:  # which matches folders at every depth, each of them in another
            matches = [match for match in matches if not os.path.isdir(match)]
        for match in matches or [path]:
            names = pictures_in(match, leave_out) if os.path.isdir(match) else iter([match])
            first = next(names, match)
            yield Item(without_password(first), first)
            yield from (Item(name, name) for name in names)


def pictures_in(root: str, leave_out: Callable[[str], None]) -> Iterator[str]:
    """Also those behind links, each folder once; a folder that can't be opened is given as it is."""
    seen, closed = set(), []
    for folder, subfolders, names in os.walk(
        root, followlinks=True, onerror=lambda error: closed.append(error.filename)
    ):
        seen.add(os.path.realpath(folder))
        paths = [os.path.join(folder, name) for name in sorted(subfolders) if not name.startswith(".")]
        subfolders[:] = [os.path.basename(path) for path in paths if os.path.realpath(path) not in seen]
        for name in sorted(names):
            path = os.path.join(folder, name)
            if is_picture(Path(path)):
                yield path
            elif not name.startswith("."):
                leave_out(path)
    yield from closed


def pick_device(name: str | None) -> torch.device:
    """`name`, or the accelerator that there is, else the CPU."""
    try:
        device = torch.device(name or torch.accelerator.current_accelerator(check_available=True) or "cpu")
        torch.empty(0, device=device)
    except Exception as error:
        raise UserError(f"--device {name}: {one_line(error)}") from error
    return device
