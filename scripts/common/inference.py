"""Pictures from anywhere through a classifier: decoded by worker processes, in batches, in their order, in flat memory."""

import glob
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from transformers import BaseImageProcessor, PreTrainedModel

from scripts.common.augment import Normalise, eval_transform, picture_loader
from scripts.common.errors import UserError, one_line
from scripts.common.sources import is_picture


@dataclass(frozen=True)
class Item:
    """A picture to be read: its name, what holds it, and its class where that is known."""

    name: str
    source: Any
    label: int | None = None


@dataclass
class Batch:
    """
    What became of some items, in their order: those read, and the errors of the others. `groups` are the pixels, of one shape
    each, with the places of their items; `logits` (n, classes) come in the end.
    """

    items: list[Item]
    errors: dict[str, str]
    groups: list[tuple[list[int], Tensor]]
    logits: Tensor | None = None


class Reader(Dataset):
    """Items to batches of pixels; a picture that can't be read costs nothing but itself."""

    def __init__(self, processor: BaseImageProcessor, max_pixels: int | None = None):
        limit = {} if max_pixels is None else {"max_pixels": max_pixels}
        self.load, self.transform = partial(picture_loader(processor), **limit), eval_transform(processor)

    def __getitems__(self, items: list[Item]) -> Batch:
        threads = torch.get_num_threads()
        with ThreadPoolExecutor(threads) as pool:
            found = list((pool.map if threads > 1 else map)(self.read, items))
        read = [(item, pixels) for item, pixels in zip(items, found, strict=True) if isinstance(pixels, Tensor)]
        errors = {item.name: error for item, error in zip(items, found, strict=True) if isinstance(error, str)}
        places = defaultdict(list)
        for place, (_, pixels) in enumerate(read):
            places[pixels.shape].append(place)
        groups = [(group, torch.stack([read[place][1] for place in group])) for group in places.values()]
        return Batch([item for item, _ in read], errors, groups)

    def read(self, item: Item) -> Tensor | str:
        """The pixels (C, height, width) of an item, or what is wrong with it."""
        try:
            return self.transform(self.load(item.source, item.name))
        except (OSError, ValueError, TypeError) as error:
            return one_line(error.strerror if isinstance(error, OSError) and error.strerror else error)


@torch.inference_mode()
def classify(
    model: PreTrainedModel,
    processor: BaseImageProcessor,
    items: Iterable[Item],
    batch_size: int = 32,
    workers: int = 0,
    max_pixels: int | None = None,
) -> Iterator[Batch]:
    """Batches of `items` in their order, with the logits of those that could be read; few are in memory at a time."""
    normalise = Normalise(processor).to(model.device)
    loader = DataLoader(
        Reader(processor, max_pixels),
        batch_sampler=batched(items, batch_size),
        num_workers=workers,
        collate_fn=as_it_is,
    )
    for batch in loader:
        rows = {}
        for places, pixels in batch.groups:
            logits = model(pixel_values=normalise(pixels.to(model.device))).logits.float().cpu()
            rows.update(zip(places, logits, strict=True))
        yield Batch(
            batch.items, batch.errors, [], torch.stack([rows[place] for place in sorted(rows)]) if rows else None
        )


def as_it_is(batch: Batch) -> Batch:
    return batch


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
        names = [path]
        if os.path.isdir(path):
            names = pictures_in(path, leave_out)
        elif not os.path.exists(path) and glob.has_magic(path) and "://" not in path:
            names = (name for name in glob.iglob(path, recursive=True) if not os.path.isdir(name))
        yield from (Item(name, name) for name in or_else(names, path))


def pictures_in(root: str, leave_out: Callable[[str], None]) -> Iterator[str]:
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        for name in sorted(names):
            path = os.path.join(folder, name)
            if is_picture(Path(path)):
                yield path
            elif not name.startswith("."):
                leave_out(path)


def or_else(names: Iterable[str], otherwise: str) -> Iterator[str]:
    """`names`, or `otherwise` if there are none."""
    names = iter(names)
    yield next(names, otherwise)
    yield from names


def pick_device(name: str | None) -> torch.device:
    """`name`, or the accelerator that there is, else the CPU."""
    try:
        device = torch.device(name or torch.accelerator.current_accelerator(check_available=True) or "cpu")
        torch.empty(0, device=device)
    except Exception as error:
        raise UserError(f"--device {name}: {one_line(error)}") from error
    return device
