"""The image processor of each family whose original is a file in `fixtures`, against its own evaluation transform."""

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torchvision import transforms

from conversion import FAMILIES, import_checkpoint
from tests.conversion.originals import ORIGINALS
from tests.conversion.test_golden import FIXTURES, REQUESTS, meta_of, name_of


SIZE = 32


def jax(photo: Image.Image) -> Image.Image:
    """`tf.image.resize`: the centre of each new pixel between its four neighbours."""
    scale = (photo.width / SIZE, 0, 0, 0, photo.height / SIZE, 0)
    return photo.transform((SIZE, SIZE), Image.Transform.AFFINE, scale, Image.Resampling.BILINEAR)


def cropped(shorter: int) -> transforms.Compose:
    bicubic = transforms.InterpolationMode.BICUBIC
    return transforms.Compose([transforms.Resize(shorter, bicubic), transforms.CenterCrop(SIZE)])


IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
CLIP = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])
# Beginning of a case's name: what its library does to a photograph, then mean and deviation.
TRANSFORMS = {
    "vit_jax": (jax, [0.5] * 3, [0.5] * 3),
    "big_vision": (jax, [0.5] * 3, [0.5] * 3),
    "facebook": (cropped(SIZE * 256 // 224), *IMAGENET),
    "open": (cropped(SIZE), *CLIP),
}


MADE = ("deit-pth", "deit3-pth", "ijepa-pth")  # files of facebookresearch that timm's code writes
ELSEWHERE = {"timm", "torchvision"}  # in test_families.py; transformers' in test_transformers.py


def same_pixels(processor, transform, mean, std) -> bool:
    """Whether the photographs come to the same levels, to one."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (mean, std))
    worst = 0.0
    for photo in load_sample_images().images:
        levels = torch.from_numpy(np.array(transform(Image.fromarray(photo)))).permute(2, 0, 1)
        got = processor(photo, return_tensors="pt").pixel_values[0]
        assert got.shape == (3, SIZE, SIZE)
        worst = max(worst, ((got * std + mean) * 255 - levels).abs().max().item())
    return worst <= 1.01


@pytest.mark.parametrize("case", FIXTURES, ids=name_of)
def test_pixels_are_the_original_s_to_one_grey_level(case):
    _, processor, _ = import_checkpoint(case / meta_of(case)["file"], **REQUESTS.get(case.name, {}))
    assert same_pixels(processor, *next(row for name, row in TRANSFORMS.items() if case.name.startswith(name)))


@pytest.mark.parametrize("name", MADE)
def test_pixels_of_deit_and_ijepa(name, tmp_path):
    original = ORIGINALS[name]
    _, processor, _ = import_checkpoint(original.write(original.build(), tmp_path), **original.request)
    assert same_pixels(processor, *TRANSFORMS["facebook"])


def test_no_family_is_without_a_test_of_its_pixels():
    golden = {import_checkpoint(c / meta_of(c)["file"], **REQUESTS.get(c.name, {})).report.family for c in FIXTURES}
    tested = golden | {ORIGINALS[name].family for name in MADE} | ELSEWHERE
    assert tested == {name for name in FAMILIES if not name.startswith("transformers")}
