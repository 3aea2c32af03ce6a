"""
Implementations that someone else wrote and that run a source file here, to compare ours with.

Where the original cannot be installed, timm is a second reference that reads the same file with its own loader.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch
from torch import Tensor, nn

from conversion.errors import ConversionError
from conversion.families.timm import build, described
from conversion.families.timm_config import architecture
from conversion.locate import Place, Source
from modeling_vit_custom import ViTCustomConfig


@dataclass
class Reference:
    """A runnable original: its blocks in order, and what `run` gives: logits, or the pooled vector of a model without head."""

    name: str
    model: nn.Module
    blocks: list[nn.Module]
    run: Callable[[Tensor], Tensor]


def reference_of(source: Source, place: Place, config: ViTCustomConfig) -> Reference:
    """
    The reference for a source.

    Raises:
        `ConversionError`: if none that is installed can run it.
    """
    kind = "transformers" if place.family.name.startswith("transformers") else place.family.name
    try:
        return BUILDERS.get(kind, timm_reading(renamed))(source, place, config)
    except ConversionError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        raise ConversionError(f"no implementation that is installed here can run {source.path}: {reason}") from error


def state_of(place: Place) -> dict[str, Tensor]:
    """The tensors of the image encoder, by the names that they have in the file without the prefix."""
    return {name: place.weights.stored(full).float() for name, full in place.names.items()}


def of_torchvision(source: Source, place: Place, config: ViTCustomConfig) -> Reference:
    from torchvision.models import VisionTransformer

    model = VisionTransformer(
        config.image_size, config.patch_size, config.num_hidden_layers, config.num_attention_heads, config.hidden_size,
        config.intermediate_size, num_classes=config.num_labels, representation_size=config.representation_size,
    )  # fmt: skip
    state = {
        n.replace("mlp.linear_1", "mlp.0").replace("mlp.linear_2", "mlp.3"): t for n, t in state_of(place).items()
    }
    if not config.num_labels:
        model.heads = nn.Identity()
    model.load_state_dict(state)
    return Reference(f"torchvision {version('torchvision')}", model.eval(), list(model.encoder.layers), model)


def of_transformers(source: Source, place: Place, config: ViTCustomConfig) -> Reference:
    import transformers

    auto = transformers.AutoModelForImageClassification if config.num_labels else transformers.AutoModel
    name = (source.config.get("architectures") or [""])[0]
    model_class = (
        getattr(transformers, name, auto) if name.startswith(("CLIPVision", "SiglipVision", "DeiT")) else auto
    )
    model = model_class.from_pretrained(source.path, dtype=torch.float32).eval()
    model = getattr(model, "vision_model", model) if name in ("CLIPModel", "SiglipModel") else model
    lists = [m for n, m in model.named_modules() if isinstance(m, nn.ModuleList) and "decoder" not in n]
    blocks = next(m for m in lists if len(m) == config.num_hidden_layers)

    def run(pixels: Tensor) -> Tensor:
        output = model(pixels)
        for name in ("logits", "image_embeds", "pooler_output"):
            if output.get(name) is not None:
                return output[name]
        return output.last_hidden_state

    return Reference(f"transformers {transformers.__version__}", model, list(blocks), run)


def of_timm(source: Source, place: Place, config: ViTCustomConfig) -> Reference:
    found = place.found
    if found.live is not None:
        return timm_reference(found.live)
    model = build_real(described(found) or architecture(config))
    model.load_state_dict(state_of(place))
    return timm_reference(model)


def build_real(description: dict) -> nn.Module:
    """A model of timm with memory for its weights."""
    import timm

    meta = build(description)
    arguments = {k: v for k, v in (description.get("model_args") or {}).items() if v is not None}
    arguments.setdefault("num_classes", meta.num_classes)
    arguments.setdefault("img_size", tuple(meta.patch_embed.img_size))
    arguments.setdefault("global_pool", meta.global_pool)
    return timm.create_model(description["architecture"], pretrained=False, **arguments)


def timm_reference(model: nn.Module) -> Reference:
    return Reference(f"timm {version('timm')}", model.eval(), list(model.blocks), model)


Loader = Callable[[Source, Place, nn.Module], None]


def timm_reading(load: Loader) -> Callable[[Source, Place, ViTCustomConfig], Reference]:
    """A builder that makes a model of timm for our configuration and fills it from the file by `load`."""

    def builder(source: Source, place: Place, config: ViTCustomConfig) -> Reference:
        if config.representation_size or config.position_embedding.startswith("sincos"):
            raise ConversionError(
                "timm has neither a representation layer nor a computed position table; run the original, "
                f"{place.family.reference}, by hand"
            )
        description = architecture(config)
        description["model_args"] |= further(config)
        model = build_real(description)
        load(source, place, model)
        return timm_reference(model)

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
    model.load_pretrained(str(Path(source.path)))


BUILDERS = {
    "torchvision": of_torchvision,
    "transformers": of_transformers,
    "timm": of_timm,
    "vit_jax": timm_reading(from_npz),
    "big_vision": timm_reading(from_npz),
    "openai_clip": timm_reading(by_filter),
    "open_clip": timm_reading(by_filter),
    "dinov3": timm_reading(by_filter),
}
