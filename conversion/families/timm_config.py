"""The `config.json` of a timm folder: its pixels and labels, and the one for a configuration of ours."""

import math

from conversion.errors import ConversionError
from conversion.families.base import IMAGENET, NUMBER, Facts, distinct, entry
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


# ---------------------------------------------------------------------------------------------------------------------
# In


def pretrained(theirs: Facts) -> Facts:
    """The table of the pixels; in the files of before timm 0.9 its entries are among the others."""
    return entry(theirs, "pretrained_cfg", dict, theirs)


def pixels_of(cfg: Facts, config: ViTCustomConfig) -> Facts:
    """`timm.data.create_transform` of a pretrained configuration: resized to cover size / crop_pct, centre crop."""
    height, width = pair(config.image_size)
    mode, crop = entry(cfg, "crop_mode", str, "center"), entry(cfg, "crop_pct", NUMBER, 0.875)
    interpolation = entry(cfg, "interpolation", str, "bicubic")
    if interpolation not in INTERPOLATIONS or mode not in ("center", "squash"):
        raise ConversionError(f"timm's interpolation={interpolation!r} with crop_mode={mode!r} is not one of ours")
    if not 0 < crop <= 1:
        raise ConversionError(f"crop_pct={crop} must be over 0 and at most 1")
    facts = {
        "image_mean": list(entry(cfg, "mean", (list, tuple), IMAGENET["image_mean"])),
        "image_std": list(entry(cfg, "std", (list, tuple), IMAGENET["image_std"])),
        "resample": INTERPOLATIONS[interpolation],
    }
    if mode == "squash":
        scaled = {"height": int(height / crop), "width": int(width / crop)}
        return {**facts, "size": scaled, "do_center_crop": True, "crop_size": {"height": height, "width": width}}
    return {**facts, "size": {"height": height, "width": width}, "crop_pct": crop}


def label_names(theirs: Facts) -> list[str] | None:
    """The names of the classes."""
    labels = entry(theirs, "label_names", list)
    if labels is None:
        return None
    if not all(isinstance(label, str) for label in labels):
        raise ConversionError(f"config.json: label_names must be a list of texts, not {str(labels)[:80]}")
    return distinct(labels)


# ---------------------------------------------------------------------------------------------------------------------
# Out


def files(config: ViTCustomConfig, processor: ViTCustomImageProcessor, record: Facts) -> dict[str, Facts]:
    """`config.json` as timm's Hub folders have it: theirs where the folder came from one, with what has changed since."""
    theirs = record.get("their_config") or {}
    if not is_of(theirs, config):
        theirs = architecture(config)
    cfg = pretrained(theirs)
    if "mean" not in cfg or shown(
        ViTCustomImageProcessor.for_model(config, **pixels_of(cfg, config)), config
    ) != shown(processor, config):
        changed = pretrained_cfg(config, processor)
        theirs = (
            {**theirs, "pretrained_cfg": {**cfg, **changed}} if "pretrained_cfg" in theirs else {**theirs, **changed}
        )
    names = list(config.id2label.values()) if config.num_labels else None
    is_default = names == [f"LABEL_{index}" for index in range(config.num_labels)]
    old = label_names(theirs)
    if names != old and not (is_default and old is None):
        theirs = {name: value for name, value in theirs.items() if name not in ("label_names", "label_descriptions")}
        theirs |= {} if names is None else {"label_names": names}
    return {"config.json": theirs}


def is_of(theirs: Facts, config: ViTCustomConfig) -> bool:
    """Whether a description is of a model with these classes and this size."""
    size = entry(theirs, "model_args.img_size", (int, list)) or entry(pretrained(theirs), "input_size", list, [])[1:]
    return theirs.get("num_classes") == config.num_labels and pair(size or 0) == pair(config.image_size)


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
        "pretrained_cfg": {},
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


def resized(processor: ViTCustomImageProcessor, config: ViTCustomConfig) -> tuple[str, int, int]:
    """timm's name of the way to the size, and what a picture is resized to, or to cover."""
    height, width = pair(config.image_size)
    if processor.crop_pct:
        return "center", int(height / processor.crop_pct), int(width / processor.crop_pct)
    if not processor.size.shortest_edge:
        return "squash", processor.size.height, processor.size.width
    if height != width:
        raise ConversionError(f"timm cannot express size={dict(processor.size)} with {height} x {width} pixels")
    return "center", processor.size.shortest_edge, processor.size.shortest_edge


def shown(processor: ViTCustomImageProcessor, config: ViTCustomConfig) -> Facts:
    """
    What decides the pixels that a model gets, in one way of saying it.

    Raises:
        `ConversionError`: for what timm has no word for.
    """
    statistics = {"mean": processor.image_mean, "std": processor.image_std}
    fixed = {
        "antialias": True, "crop_rounding": "even", "do_resize": True, "do_rescale": True, "do_normalize": True,
        "rescale_factor": 1 / 255,
    }  # fmt: skip
    if config.pixel_mean is not None:
        statistics = {"mean": [v / 255 for v in config.pixel_mean], "std": [v / 255 for v in config.pixel_std]}
        fixed |= {"do_normalize": False, "rescale_factor": 1.0}
    for name, value in fixed.items():
        if getattr(processor, name) != value:
            raise ConversionError(
                f"timm cannot express {name}={getattr(processor, name)!r}; its transform has {value!r}"
            )
    height, width = pair(config.image_size)
    crop = processor.crop_size if processor.do_center_crop else processor.size
    if not processor.crop_pct and (crop.height, crop.width) != (height, width):
        raise ConversionError(f"timm cannot express pictures of {dict(crop)} for a model of {height} x {width}")
    return {
        "resized": resized(processor, config),
        "interpolation": {number: name for name, number in INTERPOLATIONS.items()}[int(processor.resample)],
        **{name: list(values) for name, values in statistics.items()},
    }


def pretrained_cfg(config: ViTCustomConfig, processor: ViTCustomImageProcessor) -> Facts:
    height, width = pair(config.image_size)
    facts = shown(processor, config)
    mode, *target = facts.pop("resized")
    ratios = [processor.crop_pct or 1.0, height / target[0], width / target[1]]
    fits = [
        crop
        for crop in (*ratios, *(math.nextafter(ratio, 0) for ratio in ratios))
        if [int(height / crop), int(width / crop)] == target
    ]
    if not fits:
        raise ConversionError(f"timm cannot express a picture resized to {target} for {height} x {width} pixels")
    return {"input_size": [config.num_channels, height, width], "crop_pct": fits[0], "crop_mode": mode, **facts}
