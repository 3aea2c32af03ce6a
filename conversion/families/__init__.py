"""The families of checkpoints; a new one is a file here and a line below."""

from conversion.families.base import Family
from conversion.families.clip import OPEN_CLIP, OPENAI_CLIP
from conversion.families.facebook import DEIT, DINO, DINOV2, DINOV3, IJEPA, MAE
from conversion.families.jax import BIG_VISION, VIT_JAX
from conversion.families.timm import TIMM
from conversion.families.torchvision import TORCHVISION
from conversion.families.transformers import TRANSFORMERS


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        VIT_JAX,
        BIG_VISION,
        TIMM,
        TORCHVISION,
        DEIT,
        DINO,
        DINOV2,
        DINOV3,
        MAE,
        IJEPA,
        OPENAI_CLIP,
        OPEN_CLIP,
        *TRANSFORMERS,
    )
}
