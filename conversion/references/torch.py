"""Originals on torch: torchvision, transformers, OpenCLIP."""

import inspect
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor, nn

from conversion.errors import ConversionError
from conversion.locate import Place, Source
from conversion.references.base import Points, Reference, published, state_of
from modeling_vit_custom import ViTCustomConfig
from modeling_vit_custom.configuration_vit_custom import pair


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


def of_open_clip(source: Source, place: Place, config: ViTCustomConfig) -> Reference:
    from open_clip.model import _build_vision_tower

    if source.config:
        told = source.config["model_cfg"]
    else:
        height, width = pair(config.image_size)
        vision = {
            "image_size": (height, width), "patch_size": config.patch_size, "width": config.hidden_size,
            "layers": config.num_hidden_layers, "head_width": config.head_dim, "no_ln_pre": not config.embedding_norm,
            "mlp_ratio": config.intermediate_size / config.hidden_size, "ls_init_value": config.layerscale_value,
            "pool_type": {"cls": "tok", "mean": "avg"}[config.pooling], "final_ln_after_pool": config.final_norm == "pooled",
        }  # fmt: skip
        told = {"vision_cfg": vision, "quick_gelu": published(place, config).hidden_act == "quick_gelu"}
    model = _build_vision_tower(
        config.projection_dim or config.hidden_size,
        **{name: told[name] for name in ("vision_cfg", "quick_gelu") if name in told},
    ).eval()
    if not config.projection_dim:
        model.proj = None
    model.load_state_dict(state_of(place))
    return Reference(
        f"open_clip {version('open_clip_torch')}", model, Points(list(model.transformer.resblocks), None, None)
    )
