"""
Implementations that someone else wrote and that run a source file here, to compare ours with.

The original itself for torchvision, timm and transformers, and OpenCLIP and Google's on JAX where they are installed. For the
others timm is a second reference that reads the same file with its own loader, with the constants of `PUBLISHED`, not those of
our import.
"""

from contextlib import suppress

from conversion.errors import ConversionError
from conversion.locate import Place, Source
from conversion.references.base import Builder, Layers, Points, Reference
from conversion.references.jax import of_big_vision, of_vit_jax
from conversion.references.timm import by_filter, from_npz, of_timm, renamed, timm_reading
from conversion.references.torch import of_open_clip, of_torchvision, of_transformers
from modeling_vit_custom import ViTCustomConfig


__all__ = ["Layers", "Points", "Reference", "reference_of"]

# By family: what runs if it can be imported, and what runs otherwise.
ORIGINALS: dict[str, Builder] = {
    "openai_clip": of_open_clip, "open_clip": of_open_clip, "vit_jax": of_vit_jax, "big_vision": of_big_vision,
}  # fmt: skip
INSTALLED: dict[str, Builder] = {
    "torchvision": of_torchvision,
    "transformers": of_transformers,
    "timm": of_timm,
    "vit_jax": timm_reading(from_npz),
    "big_vision": timm_reading(from_npz),
    "openai_clip": timm_reading(by_filter),
    "open_clip": timm_reading(by_filter),
    "dinov3": timm_reading(by_filter),
}
NEWER = "is the installed library as new as the file?"
OPEN_CLIP = "pip install open_clip_torch for its original"
ON_JAX = "install jax and flax, and put {0} on PYTHONPATH, for its original on JAX"
ADVICE = {
    "openai_clip": OPEN_CLIP, "open_clip": OPEN_CLIP, "vit_jax": ON_JAX.format("google-research/vision_transformer"),
    "big_vision": ON_JAX.format("google-research/big_vision"),
}  # fmt: skip


def reference_of(source: Source, place: Place, config: ViTCustomConfig) -> Reference:
    """
    The reference for a source: the first of the family's that is installed.

    Raises:
        `ConversionError`: if none that is installed can run it, with what to install.
    """
    kind = "transformers" if place.family.name.startswith("transformers") else place.family.name
    try:
        if kind in ORIGINALS:
            with suppress(ImportError):
                return ORIGINALS[kind](source, place, config)
        return INSTALLED.get(kind, timm_reading(renamed))(source, place, config)
    except ConversionError:
        raise
    except ImportError as error:
        raise ConversionError(f"verify of {place.family.name} needs {error.name}: pip install {error.name}") from error
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ConversionError(
            f"no implementation that is installed here can run {source.path}: {reason}; {ADVICE.get(kind, NEWER)}"
        ) from error
