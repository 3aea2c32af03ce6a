"""What a reference is, and what the originals' code says that a file does not."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from conversion.locate import Place, Source
from modeling_vit_custom import ViTCustomConfig


Layers = dict[str, Tensor]


@dataclass
class Points:
    """Where to look in a model of torch: blocks, the norm after them, and what the pooled vector goes into, where there is one."""

    blocks: list[nn.Module]
    norm: nn.Module | None
    head: nn.Module | None


@dataclass
class Reference:
    """
    A runnable original: what ran, and whether it takes pictures of another size. `run` gives logits, pooled vectors or nothing
    to compare; without `points`, it gives the layers themselves.
    """

    name: str
    run: Callable[[Tensor], Any]
    points: Points | None
    resizes: bool = False


Builder = Callable[[Source, Place, ViTCustomConfig], Reference]

# Of the second references: what the originals' code says and a file does not; so a wrong fact of ours is not in both.
GOOGLE = {"layer_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh", "final_norm": "tokens"}
PLAIN = {"layer_norm_eps": 1e-6, "hidden_act": "gelu"}
PUBLISHED: dict[str, dict[str, Any]] = {
    "vit_jax": GOOGLE,
    "big_vision": GOOGLE,
    "deit": PLAIN,
    "dino": PLAIN,
    "dinov2": {"layer_norm_eps": 1e-6},
    "dinov3": {"layer_norm_eps": 1e-5},
    "mae": PLAIN,
    "ijepa": {**PLAIN, "pooling": "mean", "final_norm": "tokens"},
    "openai_clip": {"layer_norm_eps": 1e-5, "hidden_act": "quick_gelu"},
    "open_clip": {"layer_norm_eps": 1e-5},
}


def published(place: Place, config: ViTCustomConfig) -> ViTCustomConfig:
    """The sizes of `config` with the constants of the original's code."""
    changed = copy.deepcopy(config)
    for name, value in PUBLISHED.get(place.family.name, {}).items():
        setattr(changed, name, value)
    return changed


def state_of(place: Place) -> dict[str, Tensor]:
    """The tensors of the image encoder, by the names that they have in the file without the prefix."""
    return {name: place.weights.stored(full).float() for name, full in place.names.items()}
