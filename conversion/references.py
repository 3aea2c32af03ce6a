"""
Implementations that someone else wrote and that run a source file here, to compare ours with.

The original itself for torchvision, timm and transformers, and OpenCLIP where it is installed. For the others timm is a second
reference that reads the same file with its own loader, with the constants of `PUBLISHED`, not those of our import.
"""

import copy
import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

from conversion.errors import ConversionError
from conversion.families.timm_config import architecture
from conversion.families.timm_model import build, described
from conversion.locate import Place, Source
from modeling_vit_custom import ViTCustomConfig
from modeling_vit_custom.configuration_vit_custom import pair


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
    to compare.
    """

    name: str
    run: Callable[[Tensor], Any]
    points: Points
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


NEWER = "is the installed library as new as the file?"
OPEN_CLIP = "pip install open_clip_torch for its original"
BY_HAND = "only its original on JAX can, which verify does not run"
ADVICE = {"openai_clip": OPEN_CLIP, "open_clip": OPEN_CLIP, "vit_jax": BY_HAND, "big_vision": BY_HAND}


def state_of(place: Place) -> dict[str, Tensor]:
    """The tensors of the image encoder, by the names that they have in the file without the prefix."""
    return {name: place.weights.stored(full).float() for name, full in place.names.items()}


# ---------------------------------------------------------------------------------------------------------------------
# Originals


def of_torchvision(source: Source, place: Place, config: ViTCustomConfig) -> Reference:
    from torchvision.models import VisionTransformer

    model = VisionTransformer(
        config.image_size, config.patch_size, config.num_hidden_layers, config.num_attention_heads, config.hidden_size,
        config.intermediate_size, num_classes=config.num_labels, representation_size=config.representation_size,
    ).eval()  # fmt: skip
    state = {
        n.replace("mlp.linear_1", "mlp.0").replace("mlp.linear_2", "mlp.3"): t for n, t in state_of(place).items()
    }
    if not config.num_labels:
        model.heads = nn.Identity()
    model.load_state_dict(state)
    points = Points(list(model.encoder.layers), model.encoder.ln, model.heads)
    return Reference(f"torchvision {version('torchvision')}", model, points)


NORMS = ("layernorm", "norm", "post_layernorm")
POOLED_INTO = ("classifier", "cls_classifier", "visual_projection")
MAY_BE_NEW = ("mask_token", "position_ids", "pooler.")  # not in a file without effect; a pooler is then taken out
EXACT = ("CLIPVisionModelWithProjection", "DeiTForImageClassificationWithTeacher")


def of_transformers(source: Source, place: Place, config: ViTCustomConfig) -> Reference:
    import transformers

    auto = transformers.AutoModelForImageClassification if config.num_labels else transformers.AutoModel
    name = (source.config.get("architectures") or [""])[0]
    loader = getattr(transformers, name) if name in EXACT else auto
    options = {"dtype": torch.float32, "attn_implementation": "eager", "output_loading_info": True}
    model, info = loader.from_pretrained(source.path, **options)
    new = [key for key in info["missing_keys"] if not any(part in key for part in MAY_BE_NEW)]
    if new:
        raise ConversionError(f"{source.path}: transformers finds no {', '.join(sorted(new)[:4])} and makes them up")
    if any("pooler." in key for key in info["missing_keys"]):
        model.base_model.pooler = None
    if hasattr(model.config, "mask_ratio"):
        model.config.mask_ratio = 0.0
    encoder = getattr(model, "vision_model", model)
    modules = {n: m for n, m in encoder.named_modules() if "decoder" not in n and "head" not in n}
    lists = [m for m in modules.values() if isinstance(m, nn.ModuleList) and len(m) == config.num_hidden_layers]
    norms = [m for n, m in modules.items() if n.rpartition(".")[2] in NORMS]
    heads = [getattr(model, n) for n in POOLED_INTO if isinstance(getattr(model, n, None), nn.Module)]
    points = Points(list(lists[0]), norms[0], heads[0] if heads else None)
    takes = inspect.signature(encoder.forward).parameters
    resizes = "interpolate_pos_encoding" in takes or "dinov" in place.family.name
    square = len(set(pair(config.image_size))) == 1  # their table is reshaped to one
    run = transformers_run(model.eval(), takes, config)
    return Reference(f"transformers {transformers.__version__}", run, points, resizes and square)


def transformers_run(model: nn.Module, takes: Any, config: ViTCustomConfig) -> Callable[[Tensor], Tensor | None]:
    """Runs the image tower of any of them, with patches in their order; nothing where the model has no pooled vector."""

    def run(pixels: Tensor) -> Tensor | None:
        options: dict[str, Any] = {}
        if "interpolate_pos_encoding" in takes and tuple(pixels.shape[2:]) != pair(config.image_size):
            options["interpolate_pos_encoding"] = True
        if "noise" in takes:
            (height, width), (ph, pw) = pixels.shape[2:], pair(config.patch_size)
            options["noise"] = torch.arange(height // ph * (width // pw)).expand(len(pixels), -1)
        if hasattr(model, "text_model"):  # two towers
            pooled = model.vision_model(pixels, **options).get("pooler_output")
            return model.visual_projection(pooled) if hasattr(model, "visual_projection") else pooled
        output = model(pixels, **options)
        found = (output.get(name) for name in ("logits", "image_embeds", "pooler_output"))
        return next((value for value in found if value is not None), None)

    return run


def of_timm(source: Source, place: Place, config: ViTCustomConfig) -> Reference:
    if place.found.live is not None:
        return timm_reference(place.found.live, config, getattr(place.found.live, "dynamic_img_size", False))
    model = build_real(described(place.found) or architecture(config))
    model.load_state_dict(state_of(place))
    return timm_reference(model, config, resizes=True)


def of_open_clip(source: Source, place: Place, config: ViTCustomConfig) -> Reference:
    from open_clip import transformer

    model = transformer.VisionTransformer(
        config.image_size, config.patch_size, config.hidden_size, config.num_hidden_layers, config.num_attention_heads,
        config.intermediate_size / config.hidden_size, config.layerscale_value, no_ln_pre=not config.embedding_norm,
        output_dim=config.projection_dim or config.hidden_size,
        act_layer=transformer.QuickGELU if published(place, config).hidden_act == "quick_gelu" else nn.GELU,
    ).eval()  # fmt: skip
    if not config.projection_dim:
        model.proj = None
    model.load_state_dict(state_of(place))
    return Reference(
        f"open_clip {version('open_clip_torch')}", model, Points(list(model.transformer.resblocks), None, None)
    )


# ---------------------------------------------------------------------------------------------------------------------
# timm as a second reference


def published(place: Place, config: ViTCustomConfig) -> ViTCustomConfig:
    """The sizes of `config` with the constants of the original's code."""
    changed = copy.deepcopy(config)
    for name, value in PUBLISHED.get(place.family.name, {}).items():
        setattr(changed, name, value)
    return changed


def build_real(description: dict, resizes: bool = True) -> nn.Module:
    """A model of timm with memory for its weights."""
    import timm

    meta = build(description)
    arguments = {k: v for k, v in (description.get("model_args") or {}).items() if v is not None}
    arguments.setdefault("num_classes", meta.num_classes)
    arguments.setdefault("img_size", tuple(meta.patch_embed.img_size))
    arguments.setdefault("global_pool", meta.global_pool)
    return timm.create_model(description["architecture"], pretrained=False, **arguments, dynamic_img_size=resizes)


def timm_reference(model: nn.Module, config: ViTCustomConfig, resizes: bool) -> Reference:
    norm, pools = None if isinstance(model.norm, nn.Identity) else model.norm, config.pooling != "none"
    points = Points(list(model.eval().blocks), norm, model.head if pools else None)
    return Reference(f"timm {version('timm')}", model, points, resizes)


def timm_reading(load: Callable[[Source, Place, nn.Module], None]) -> Builder:
    """A builder that makes a model of timm of the file's sizes and fills it from the file by `load`."""

    def builder(source: Source, place: Place, config: ViTCustomConfig) -> Reference:
        if config.representation_size or config.position_embedding.startswith("sincos"):
            raise ValueError("timm has neither a representation layer nor a computed position table")
        description = architecture(published(place, config))
        description["model_args"] |= further(config)
        model = build_real(description)
        load(source, place, model)
        return timm_reference(model, config, resizes=config.position_embedding in ("rope_2d", "none"))

    return builder


def further(config: ViTCustomConfig) -> dict:
    """Arguments for what timm says in another way: CLIP's projection is its head, registers without positions its class token's."""
    if config.projection_dim:
        return {"num_classes": config.projection_dim, "fc_norm": False}
    if config.num_register_tokens and config.position_embedding == "learned" and config.prefix_positions == "class":
        return {"no_embed_class": True}
    return {}


def renamed(source: Source, place: Place, model: nn.Module) -> None:
    """Facebook's names, which are timm's but for a few."""
    state = {name: tensor for name, tensor in state_of(place).items() if not place.is_kept(name)}
    names = {"gamma_1": "ls1.gamma", "gamma_2": "ls2.gamma", "register_tokens": "reg_token"}
    for theirs, ours in names.items():
        state = {name.replace(theirs, ours): tensor for name, tensor in state.items()}
    if getattr(model, "no_embed_class", False) and state["pos_embed"].shape[1] > model.patch_embed.num_patches:
        own, state["pos_embed"] = state["pos_embed"][:, :1], state["pos_embed"][:, 1:]
        state["cls_token"] = state["cls_token"] + own
    model.load_state_dict(state)


def by_filter(source: Source, place: Place, model: nn.Module) -> None:
    """Through timm's own conversion of OpenAI's and DINOv3's names."""
    import timm.models.eva
    import timm.models.vision_transformer

    eva = type(model).__name__ == "Eva"
    module = timm.models.eva if eva else timm.models.vision_transformer
    prefix = "" if eva else "visual."
    state = module.checkpoint_filter_fn({prefix + name: tensor for name, tensor in state_of(place).items()}, model)
    model.load_state_dict(state)


def from_npz(source: Source, place: Place, model: nn.Module) -> None:
    """Through timm's own reader of Google's files."""
    model.load_pretrained(str(source.path))


# By family: what runs if it can be imported, and what runs otherwise.
ORIGINALS: dict[str, Builder] = {"openai_clip": of_open_clip, "open_clip": of_open_clip}
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
