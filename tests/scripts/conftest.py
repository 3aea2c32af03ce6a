"""A folder of small labelled pictures, and a recipe that trains on them in a second."""

from pathlib import Path

import numpy as np
import pytest
from accelerate.state import AcceleratorState
from PIL import Image
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

from scripts.common.recipe import Recipe, load_recipe


CLASSES = {"cat": 60, "dog": 180}
TINY = [
    "model.variant=none", "model.config.image_size=16", "model.config.patch_size=8", "model.config.hidden_size=16",
    "model.config.num_hidden_layers=2", "model.config.num_attention_heads=2", "model.config.intermediate_size=24",
    "data.workers=0", "optim.batch_size=8", "optim.lr=1e-2", "run.epochs=2", "run.log_every=1",
]  # fmt: skip


def write_pictures(folder: Path, count: int, seed: int = 0) -> None:
    """`count` noisy pictures of each class, dark cats and bright dogs."""
    random = np.random.default_rng(seed)
    for name, level in CLASSES.items():
        (folder / name).mkdir(parents=True)
        for index in range(count):
            pixels = random.normal(level, 40, (20, 24, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index}.png")


def save_vit(folder: Path, **options) -> None:
    """A tiny classifier of transformers with its image processor."""
    sizes = {"image_size": 16, "patch_size": 8, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    ViTForImageClassification(ViTConfig(**sizes, intermediate_size=24, **options)).save_pretrained(folder)
    ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(folder)


@pytest.fixture(autouse=True)
def new_accelerator():
    """Each run of a test is its own process's first, as far as Accelerate can tell."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture(scope="session")
def pictures_folder(tmp_path_factory) -> Path:
    """13 training and 5 test pictures of each class."""
    folder = tmp_path_factory.mktemp("pictures")
    write_pictures(folder / "train", 13)
    write_pictures(folder / "test", 5, seed=1)
    return folder


@pytest.fixture
def make_recipe(pictures_folder, tmp_path):
    """A function that gives the tiny recipe, with further assignments."""

    def make(*assignments: str, folder: str = "run") -> Recipe:
        where = [f"data.train={pictures_folder}", f"run.folder={tmp_path / folder}"]
        return load_recipe("finetune", [*TINY, *where, *assignments])

    return make
