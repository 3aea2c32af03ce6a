"""The image towers of OpenAI CLIP and OpenCLIP."""

import math
from collections.abc import Mapping
from typing import Any

from conversion.errors import ConversionError
from conversion.families.base import (
    BICUBIC,
    BILINEAR,
    CLIP,
    NUMBER,
    Facts,
    Family,
    Found,
    centre_cropped,
    entry,
    one_or_two,
)
from conversion.families.torch_names import POSITION_ROWS, QKV, flat_positions, vector
from conversion.mapping import IN_PROJ, PARAMETER, TRANSPOSE, Table, Their, parameter
from modeling_vit_custom import ViTCustomConfig
from modeling_vit_custom.configuration_vit_custom import pair


BLOCK = "transformer.resblocks."
TEXT = (
    "text.*", "transformer.*", "token_embedding.*", "positional_embedding", "ln_final.*", "text_projection", "logit_scale",
    "logit_bias", "attn_mask", "input_resolution", "context_length", "vocab_size",
)  # fmt: skip
HEAD_WIDTH = 64  # clip/model.py: heads = width // 64
# OpenCLIP's model_configs: the widths whose heads are of another width, and those of 64.
OPEN_CLIP_HEADS = {1280: 16, 1408: 16, 1664: 16, 1792: 16} | {
    width: width // 64 for width in (384, 512, 640, 768, 896, 1024)
}
CONFIG = "open_clip_config.json"
# Of `vision_cfg`: what doesn't change what is computed, and the values that mean a tower as ours.
FREE = {"patch_dropout", "output_tokens", "attn_pooler_queries", "attn_pooler_heads"}
KNOWN: dict[str, tuple] = {
    "attentional_pool": (False,), "block_type": ("default",), "qk_norm": (False,), "scaled_cosine_attn": (False,),
    "scale_heads": (False,), "scale_attn_inner": (False,), "scale_attn": (False,), "scale_fc": (False,),
    "pos_embed_type": ("learnable", "sin_cos_2d"),
}  # fmt: skip
SIZES = {  # ours, and the default
    "width": ("hidden_size", 768), "layers": ("num_hidden_layers", 12), "patch_size": ("patch_size", 16), "image_size": ("image_size", 224),
}  # fmt: skip
READ = {
    *SIZES, "head_width", "mlp_ratio", "ls_init_value", "no_ln_pre", "final_ln_after_pool", "pool_type", "act_kwargs", "norm_kwargs",
}  # fmt: skip
POOLINGS = {"tok": "cls", "avg": "mean"}
KERNELS = {"bicubic": BICUBIC, "random": BICUBIC, "bilinear": BILINEAR}
PIXELS = {
    "size",
    "mode",
    "mean",
    "std",
    "interpolation",
    "resize_mode",
    "fill_color",
}  # the colour is of a mode that is refused


def geometry(found: Found, heads: Mapping[int, int]) -> Facts:
    """What the shapes say: a norm before the blocks, no patch bias, a projection without bias; the class token pooled and normed."""
    width, channels, patch_height, patch_width = (found.size("conv1.weight", axis) for axis in range(4))
    _, size = found.grid(found.size("positional_embedding"), (patch_height, patch_width), (1,))
    why = f"the number of heads is not in the file, and a width of {width} is none of a public model"
    return {
        "image_size": size,
        "patch_size": one_or_two(patch_height, patch_width),
        "num_channels": channels,
        "hidden_size": width,
        "num_hidden_layers": found.depth(BLOCK),
        "num_attention_heads": found.ask("num_attention_heads", why, heads.get(width)),
        "intermediate_size": found.size(f"{BLOCK}0.mlp.c_fc.weight"),
        "layer_norm_eps": 1e-5,
        "embedding_norm": True,
        "final_norm": "pooled",
        "patch_bias": "conv1.bias" in found,
        "layerscale_value": 1.0 if found.has(".ls_1.gamma") else None,
        "position_resampling": "bicubic_antialias",
        "projection_dim": found.size("proj", 1) if "proj" in found else None,
        "num_labels": 0,
    }


def openai_facts(found: Found) -> Facts:
    """clip/model.py: QuickGELU, heads of 64."""
    width = found.size("conv1.weight")
    heads = {width: width // HEAD_WIDTH} if width % HEAD_WIDTH == 0 else {}
    return {**geometry(found, heads), "hidden_act": "quick_gelu"}


def open_clip_facts(found: Found) -> Facts:
    """open_clip/transformer.py, model.py: the defaults of `CLIPVisionCfg` where the configuration says nothing else."""
    if found.is_bare:
        return facts_of_bare(found)
    model = entry(found.config, "model_cfg", dict, {}, CONFIG)
    vision = entry(model, "vision_cfg", dict, {}, CONFIG)
    refuse_what_differs(vision)

    def say(name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
        return entry(vision, name, kind, default, CONFIG)

    width, head_width, size = say("width", int, 768), say("head_width", int, 64), say("image_size", (int, list), 224)
    if head_width < 1 or width % head_width:
        raise ConversionError(f"{CONFIG}: width={width} is not made of heads of {head_width}")
    found.told = {**found.told, "image_size": size, "num_attention_heads": width // head_width}
    pooling, after = say("pool_type", str, "tok"), say("final_ln_after_pool", bool, False)
    if pooling not in POOLINGS:
        raise ConversionError(f"{CONFIG}: pool_type={pooling!r} is not one of ours ({', '.join(POOLINGS)})")
    facts = {
        **geometry(found, {}),
        "hidden_act": activation(entry(model, "quick_gelu", bool, False, CONFIG), say("act_kwargs", dict, {})),
        "layer_norm_eps": epsilon(say("norm_kwargs", dict, {})),
        "embedding_norm": not say("no_ln_pre", bool, False),
        "pooling": POOLINGS[pooling],
        "final_norm": "pooled" if after or pooling == "tok" else "tokens",
    }
    ratio, embedded, scale = (
        say("mlp_ratio", NUMBER, 4.0),
        entry(model, "embed_dim", int, None, CONFIG),
        say("ls_init_value", NUMBER),
    )
    inner = int(width * ratio) if math.isfinite(ratio) else ratio
    said = [(name, say(name, (int, list), default), facts[ours]) for name, (ours, default) in SIZES.items()]
    said += [
        ("width * mlp_ratio", inner, facts["intermediate_size"]),
        ("embed_dim", embedded, facts["projection_dim"]),
        ("ls_init_value", scale is not None, facts["layerscale_value"] is not None),
    ]
    for name, theirs, ours in said:
        if theirs is not None and pair(theirs) != pair(ours):
            raise ConversionError(f"{CONFIG} says {name}={theirs}, but the weights are of {ours}")
    return facts


def refuse_what_differs(vision: Facts) -> None:
    """Raises `ConversionError` for an entry that isn't known, or that asks for another block or pooling than ours."""
    for name, value in vision.items():
        if (name.startswith("timm_") and name != "timm_model_name") or value is None:
            continue
        if name not in READ | FREE | KNOWN.keys():
            raise ConversionError(f"{CONFIG}: vision_cfg has {name}={value!r}, which is not known")
        if name in KNOWN and value not in KNOWN[name]:
            raise ConversionError(
                f"{CONFIG}: {name}={value!r} makes another model than ours, which has {KNOWN[name][0]!r}"
            )


def activation(quick: bool, arguments: Facts) -> str:
    """Our name of OpenCLIP's activation."""
    acts = {"none": "gelu", "tanh": "gelu_pytorch_tanh"}
    form = arguments.get("approximate", "none")
    if arguments.keys() - {"approximate"} or form not in list(acts) or (quick and arguments):
        raise ConversionError(f"{CONFIG}: act_kwargs={arguments} with quick_gelu={quick} is not one of ours")
    return "quick_gelu" if quick else acts[form]


def epsilon(arguments: Facts) -> float:
    """The epsilon of `norm_kwargs`."""
    if arguments.keys() - {"eps"}:
        raise ConversionError(f"{CONFIG}: norm_kwargs={arguments} is more than an eps")
    return float(entry(arguments, "eps", NUMBER, 1e-5, CONFIG))


def facts_of_bare(found: Found) -> Facts:
    """Which GELU is in the model's configuration, not in the weights; nor is the pooling of those without `ln_pre`."""
    normed = "ln_pre.weight" in found
    why = "the activation is not in the file: 'quick_gelu' for OpenAI's weights and *-quickgelu, 'gelu' for others"
    which = "the pooling is not in weights without ln_pre: 'mean' for CLIPA, 'cls' for others"
    return {
        **geometry(found, OPEN_CLIP_HEADS),
        "hidden_act": found.ask("hidden_act", why),
        "layer_norm_eps": found.ask("layer_norm_eps", "", 1e-5),
        "embedding_norm": normed,
        "pooling": found.ask("pooling", which, "cls" if normed else None),
        "final_norm": found.ask("final_norm", "", "pooled"),
    }


def table(config: ViTCustomConfig, layout: str) -> Table:
    block = f"{BLOCK}{{i}}"
    return {
        "embeddings.cls_token": Their("class_embedding", vector(config)),
        POSITION_ROWS: Their("positional_embedding", parameter(flat_positions(config, axes=2))),
        "embeddings.patch_embeddings.projection": "conv1",
        "embedding_norm": "ln_pre",
        "layers.{i}.norm1": f"{block}.ln_1",
        QKV: Their(f"{block}.attn.in_proj", IN_PROJ),
        "layers.{i}.attention.o_proj": f"{block}.attn.out_proj",
        "layers.{i}.branch1.scale.gamma": Their(f"{block}.ls_1.gamma", PARAMETER),
        "layers.{i}.norm2": f"{block}.ln_2",
        "layers.{i}.ffn.fc1": f"{block}.mlp.c_fc",
        "layers.{i}.ffn.fc2": f"{block}.mlp.c_proj",
        "layers.{i}.branch2.scale.gamma": Their(f"{block}.ls_2.gamma", PARAMETER),
        "norm": "ln_post",
        "pooler.norm": "ln_post",
        "pooler.projection.weight": Their("proj", parameter(TRANSPOSE)),
    }


def pixels(found: Found, config: ViTCustomConfig) -> Facts:
    """clip.py `_transform`: shorter side to the size, bicubic, centre crop."""
    return {**CLIP, "resample": BICUBIC, **centre_cropped(config, min(pair(config.image_size)))}


def open_clip_pixels(found: Found, config: ViTCustomConfig) -> Facts:
    """open_clip/transform.py `image_transform`: that of `preprocess_cfg`, with the model's size."""
    told = entry(found.config or {}, "preprocess_cfg", dict, {}, CONFIG)
    height, width = pair(config.image_size)
    for name, value in told.items():
        if name not in PIXELS or (name == "mode" and value not in (None, "RGB")):
            raise ConversionError(f"{CONFIG}: preprocess_cfg has {name}={value!r}, which is not known")
    mode, kernel = (
        entry(told, "resize_mode", str, "shortest", CONFIG),
        entry(told, "interpolation", str, "bicubic", CONFIG),
    )
    if mode not in ("shortest", "squash") or kernel not in KERNELS:
        raise ConversionError(
            f"{CONFIG}: resize_mode={mode!r} with interpolation={kernel!r} is not one of the image processor's"
        )
    facts = {
        "image_mean": channels(told, "mean", CLIP["image_mean"]),
        "image_std": channels(told, "std", CLIP["image_std"]),
        "resample": KERNELS[kernel],
        "size": {"height": height, "width": width},
    }
    if mode == "squash":
        return facts
    square = {} if height == width else {"resample": BICUBIC}  # their resizing to a rectangle knows no other
    return {**facts, "crop_pct": 1.0, **square}


def channels(told: Facts, name: str, default: list[float]) -> list[float]:
    """A number for each channel; one stands for all three."""
    value = entry(told, name, (list, *NUMBER), default, CONFIG)
    return value if isinstance(value, list) else [value] * 3


def at_size(theirs: Facts, config: ViTCustomConfig) -> Facts:
    """`open_clip_config.json` for pictures of another size."""
    model = entry(theirs, "model_cfg", dict, {}, CONFIG)
    vision = entry(model, "vision_cfg", dict, {}, CONFIG)
    if pair(entry(vision, "image_size", (int, list), 224, CONFIG)) == pair(config.image_size):
        return theirs
    return {**theirs, "model_cfg": {**model, "vision_cfg": {**vision, "image_size": config.image_size}}}


def is_tower(found: Found) -> bool:
    return "class_embedding" in found and "ln_post.weight" in found


def common(**options) -> Family:
    return Family(anchors=("conv1.weight",), table=table, beside=TEXT, prefix="visual.", suffix=".pth", **options)


OPENAI_CLIP = common(
    name="openai_clip",
    title="OpenAI CLIP image tower (.pt, state dict or TorchScript)",
    reference="openai/CLIP",
    recognise=lambda found: found.is_bare and is_tower(found),
    facts=openai_facts,
    pixels=pixels,
    asked=("num_attention_heads", "image_size", "position_resampling"),
)
OPEN_CLIP = common(
    name="open_clip",
    title="OpenCLIP image tower (.pt, safetensors)",
    reference="mlfoundations/open_clip",
    recognise=lambda found: (found.is_bare or "model_cfg" in (found.config or {})) and is_tower(found),
    facts=open_clip_facts,
    pixels=open_clip_pixels,
    asked=(
        "num_attention_heads",
        "image_size",
        "hidden_act",
        "layer_norm_eps",
        "pooling",
        "final_norm",
        "position_resampling",
    ),
    at_size=at_size,
    wrap="state_dict",
)
