"""The `config.json` of a timm folder for a configuration of ours."""

from conversion.errors import ConversionError
from conversion.families.base import Facts
from modeling_vit_custom import ViTCustomConfig, ViTCustomImageProcessor
from modeling_vit_custom.configuration_vit_custom import pair


POOLINGS = {"token": "cls", "avg": "mean", "map": "map", "": "none"}
INTERPOLATIONS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}
# What a model is built from on export: architecture by (rotary, gated, distilled, eps 1e-5), the rest is arguments.
ARCHITECTURES = {
    (False, False, False, False): "vit_base_patch16_224",
    (False, False, False, True): "vit_base_patch16_clip_224",
    (False, True, False, False): "vit_giant_patch14_dinov2",
    (False, False, True, False): "deit_base_distilled_patch16_224",
    (True, False, False, True): "vit_small_patch16_dinov3",
    (True, True, False, True): "vit_small_plus_patch16_dinov3",
}


def files(config: ViTCustomConfig, processor: ViTCustomImageProcessor, record: Facts) -> dict[str, Facts]:
    """`config.json` as timm's Hub folders have it."""
    theirs = record.get("their_config") or {}
    size = (theirs.get("model_args") or {}).get("img_size") or (theirs.get("pretrained_cfg") or {}).get(
        "input_size", []
    )[1:]
    same_size = list(pair(size or 0)) == list(pair(config.image_size))
    if theirs.get("num_classes") == config.num_labels and same_size:
        return {"config.json": theirs}
    return {
        "config.json": {**architecture(config), "pretrained_cfg": pretrained_cfg(config, processor), **labels(config)}
    }


def architecture(config: ViTCustomConfig) -> Facts:
    """An architecture and the arguments that make it ours."""
    rotary, gated = config.position_embedding == "rope_2d", config.ffn_type == "swiglu"
    key = (rotary, gated, config.distillation_token, config.layer_norm_eps == 1e-5)
    if key not in ARCHITECTURES:
        raise ConversionError(
            f"timm has no architecture to start from for layer_norm_eps={config.layer_norm_eps}, {key}"
        )
    ratio = config.intermediate_size * (2 if gated and not rotary else 1) / config.hidden_size
    pool = {ours: theirs for theirs, ours in POOLINGS.items()}.get(config.pooling)
    arguments = {
        "img_size": config.image_size,
        "patch_size": config.patch_size,
        "in_chans": config.num_channels,
        "embed_dim": config.hidden_size,
        "depth": config.num_hidden_layers,
        "num_heads": config.num_attention_heads,
        "mlp_ratio": ratio if int(config.hidden_size * ratio) == ratio * config.hidden_size else ratio + 1e-4,
        "num_classes": config.num_labels,
        "global_pool": pool,
    }
    if not rotary and not config.distillation_token:
        arguments |= options(config)
    return {
        "architecture": ARCHITECTURES[key] + ("_qkvb" if rotary and config.query_bias else ""),
        "num_classes": config.num_labels,
        "global_pool": pool,
        "model_args": arguments,
    }


def options(config: ViTCustomConfig) -> Facts:
    """Further arguments of timm's VisionTransformer."""
    return {
        "class_token": config.class_token,
        "reg_tokens": config.num_register_tokens,
        "no_embed_class": config.prefix_positions == "none" and bool(config.num_prefix_tokens),
        "pos_embed": "none" if config.position_embedding == "none" else "learn",
        "pre_norm": config.embedding_norm,
        "init_values": config.layerscale_value,
        "qkv_bias": config.query_bias,
        "qk_norm": config.qk_norm,
        "proj_bias": config.proj_bias,
        "fc_norm": config.final_norm == "pooled",
        "act_layer": {"gelu_pytorch_tanh": "gelu_tanh"}.get(config.hidden_act, config.hidden_act),
    }


def pretrained_cfg(config: ViTCustomConfig, processor: ViTCustomImageProcessor) -> Facts:
    height, width = pair(config.image_size)
    names = {number: name for name, number in INTERPOLATIONS.items()}
    edge = processor.size["shortest_edge"] if processor.size.shortest_edge else None
    crop = processor.crop_pct or (min(height, width) / edge if edge else 1.0)
    return {
        "input_size": [config.num_channels, height, width],
        "mean": list(processor.image_mean),
        "std": list(processor.image_std),
        "interpolation": names[int(processor.resample)],
        "crop_pct": crop,
        "crop_mode": "center" if processor.crop_pct or edge else "squash",
    }


def labels(config: ViTCustomConfig) -> Facts:
    return {"label_names": list(config.id2label.values())} if config.num_labels else {}
