"""timm: the original of its own files, and a second reference that reads those of others with its own loaders."""

from collections.abc import Callable
from importlib.metadata import version

from torch import nn

from conversion.families.timm_config import architecture
from conversion.families.timm_model import build, described
from conversion.locate import Place, Source
from conversion.references.base import Builder, Points, Reference, published, state_of
from modeling_vit_custom import ViTCustomConfig


def of_timm(source: Source, place: Place, config: ViTCustomConfig) -> Reference:
    if place.found.live is not None:
        return timm_reference(place.found.live, config, getattr(place.found.live, "dynamic_img_size", False))
    model = build_real(described(place.found) or architecture(config))
    model.load_state_dict(state_of(place))
    return timm_reference(model, config, resizes=True)


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
