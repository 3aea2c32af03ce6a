"""What a model of timm is, built from its description or live: the facts that its weights do not say."""

import re

import torch
from torch import nn

from conversion.errors import ConversionError
from conversion.families.base import NUMBER, Facts, Found, check_modest, entry, one_or_two
from conversion.families.clip import CONFIG
from conversion.families.timm_config import POOLINGS
from conversion.mapping import listed


# Arguments of timm's VisionTransformer and Eva that a `config.json` may give: numbers, switches and names of layers. Nothing else
# reaches timm, whose `create_model` also takes paths of files to load.
ARGUMENTS = {
    "img_size", "patch_size", "in_chans", "num_classes", "global_pool", "embed_dim", "depth", "num_heads", "mlp_ratio", "qkv_bias",
    "qk_norm", "scale_attn_norm", "scale_mlp_norm", "proj_bias", "init_values", "class_token", "pos_embed", "no_embed_class",
    "reg_tokens", "pre_norm", "final_norm", "fc_norm", "pool_include_prefix", "dynamic_img_size", "dynamic_img_pad", "drop_rate",
    "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate", "weight_init", "fix_init",
    "norm_layer", "act_layer", "num_kv_heads", "qkv_fused", "swiglu_mlp", "swiglu_align_to", "scale_mlp", "scale_attn_inner",
    "attn_type", "attn_only_layer_scale", "num_reg_tokens", "use_abs_pos_emb", "use_rot_pos_emb", "rope_type", "rope_grid_offset",
    "rope_grid_indexing", "rope_temperature", "rope_rotate_half", "rope_shift_coords", "rope_jitter_coords",
    "rope_rescale_coords", "use_post_norm", "use_pre_transformer_norm", "use_post_transformer_norm", "use_fc_norm",
    "ref_feat_shape", "head_init_scale", "strict_img_size",
}  # fmt: skip
SIZES = {"depth": "num_hidden_layers", "num_classes": "num_labels", "embed_dim": "hidden_size"}
# Modules that may stand for nothing in a model of ours; anything else in their place changes the function.
PLAIN = {
    "model": {"VisionTransformer", "VisionTransformerDistilled", "Eva"},
    "block": {"Block", "EvaBlock", "LayerScaleBlock"},
    "attention": {"Attention", "EvaAttention"},
}
ACTIVATIONS = {
    "QuickGELU": "quick_gelu", "GELUTanh": "gelu_pytorch_tanh", "SiLU": "silu", "ReLU": "relu", "SwiGLU": "silu",
}  # fmt: skip
NORMS = {"LayerNorm": "layer_norm", "RmsNorm": "rms_norm", "RMSNorm": "rms_norm"}
# What DINOv3's rotation is, of the options that timm gives to its own.
DINOV3_ROPE = {
    "min_period": None, "max_period": None, "normalize_coords": "separate", "grid_offset": 0, "grid_indexing": "ij",
    "rotate_half": True,
}  # fmt: skip


def described(found: Found) -> Facts:
    """timm's `config.json`; that of OpenCLIP in the same words, for its towers that are models of timm; empty for neither."""
    config = found.config or {}
    if "model_cfg" not in config:
        return config
    vision = entry(config, "model_cfg.vision_cfg", dict, {}, CONFIG)
    arguments = {
        "img_size": entry(vision, "image_size", (int, list), 224, CONFIG),
        "num_classes": 0,
        "global_pool": entry(vision, "timm_pool", str, "avg", CONFIG),
    }
    return {"architecture": entry(vision, "timm_model_name", str, None, CONFIG), "model_args": arguments}


def is_described(found: Found) -> bool:
    """Whether a live model, no configuration, or one about timm comes with the weights."""
    return found.is_bare or found.live is not None or bool(described(found).get("architecture"))


def model_of(found: Found) -> nn.Module | None:
    """
    The live model, or the one that the configuration describes; none for bare weights.

    Raises:
        `ConversionError`: if the model and the weights have other names or shapes.
    """
    if found.is_bare:
        return None
    model = build(described(found)) if found.live is None else found.live
    theirs = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    faults = listed("missing in the file", [name for name in theirs if name not in found])
    faults += listed("in the file, but not in the architecture", [name for name in found.shapes if name not in theirs])
    both = [name for name in theirs if name in found and theirs[name] != tuple(found.shapes[name])]
    faults += listed("of another shape", [f"{name} {found.shapes[name]} for {theirs[name]}" for name in both])
    if faults:
        raise ConversionError(f"the architecture {type(model).__name__} and the weights differ: {'; '.join(faults)}")
    return model


def build(config: Facts) -> nn.Module:
    """
    The model that a `config.json` of timm describes, without memory for its weights.

    Raises:
        `ConversionError`: if timm is not installed or doesn't know it, and for arguments that say something else than what a
            ViT is.
    """
    try:
        import timm
    except ImportError as error:
        raise ConversionError(
            "a timm checkpoint needs timm for the facts of its architecture: pip install timm"
        ) from error
    architecture = entry(config, "architecture", str)
    known = {name: value for name, value in entry(config, "model_args", dict, {}).items() if value is not None}
    if entry(config, "num_classes", int) is not None:
        known.setdefault("num_classes", config["num_classes"])
    size = entry(config, "pretrained_cfg.input_size", list)
    if size and "img_size" not in known:
        known["img_size"] = tuple(size[1:])
    check_arguments(known)
    if not re.fullmatch(r"[\w.]+", architecture) or not timm.is_model(architecture.partition(".")[0]):
        raise ConversionError(f"config.json: architecture={architecture!r} is not one of timm {timm.__version__}")
    try:
        with torch.device("meta"):
            model = timm.create_model(architecture, pretrained=False, **known)
    except Exception as error:
        raise ConversionError(f"timm cannot build {architecture!r}: {error}") from error
    for name, kind in (("num_classes", int), ("num_features", int), ("global_pool", str)):
        said, built = entry(config, name, kind), getattr(model, name, None)
        if said is not None and said != built:
            raise ConversionError(
                f"config.json says {name}={said!r}, but timm builds the model with {built!r}; correct it, or model_args"
            )
    return model


def check_arguments(arguments: Facts) -> None:
    """Raises `ConversionError` for arguments that are not of a ViT's constructor, and for numbers that no model has."""
    for name, value in arguments.items():
        parts = value if isinstance(value, list | tuple) else [value]
        if name not in ARGUMENTS or not all(isinstance(part, (*NUMBER, str)) for part in parts):
            raise ConversionError(
                f"config.json: model_args has {name}={value!r}, which is no argument of a ViT of timm"
            )
    check_modest({ours: entry(arguments, name, int, 0) for name, ours in SIZES.items()}, "config.json")


def facts_of_model(model: nn.Module) -> Facts:
    """What a model of timm says that its weights don't."""
    refuse_what_differs(model)
    block, pool = model.blocks[0], model.global_pool
    if pool not in POOLINGS:
        raise ConversionError(f"timm's global_pool={pool!r} is not one of ours ({', '.join(map(repr, POOLINGS))})")
    kind = type(block.norm1).__name__
    if kind not in NORMS:
        raise ConversionError(f"timm's norm {kind} is not one of ours")
    pooled = not isinstance(getattr(model, "fc_norm", nn.Identity()), nn.Identity)
    facts = {
        "num_attention_heads": block.attn.num_heads,
        "hidden_act": activation(getattr(block.mlp, "act", None) or block.mlp),
        "norm_type": NORMS[kind],
        "layer_norm_eps": epsilon(model),
        "pooling": POOLINGS[pool],
        "final_norm": "pooled" if pooled else "tokens",
        "image_size": one_or_two(*model.patch_embed.img_size),
        "prefix_positions": positions_of_prefix(model),
    }
    if getattr(model, "rope", None) is not None:
        return {**facts, **facts_of_rope(model.rope)}
    return facts if getattr(model, "pos_embed", None) is not None else {**facts, "position_embedding": "none"}


def refuse_what_differs(model: nn.Module) -> None:
    """Raises `ConversionError` for a model, a block or an attention that computes something else than ours."""
    block = model.blocks[0]
    for what, place in (("model", ""), ("block", "blocks.0"), ("attention", "blocks.0.attn")):
        kind = type(model.get_submodule(place)).__name__
        if kind not in PLAIN[what]:
            raise ConversionError(f"timm's {what} {kind} is not the plain one of a ViT")
    kinds = {kind_of(block) for block in model.blocks}
    if len(kinds) > 1:
        differing = sorted(set.union(*map(set, kinds)) - set.intersection(*map(set, kinds)))
        raise ConversionError(f"the blocks differ in {', '.join(differing[:6])}; ours are alike")
    if hasattr(model, "dist_token") and (model.num_classes == 0 or getattr(model, "reg_token", None) is not None):
        raise ConversionError(
            "a distilled model of timm without heads pools the mean of its two tokens, and leaves registers out; ours doesn't"
        )
    for name in ("attn.norm", "mlp.norm", "patch_embed.norm"):
        try:
            inner = (model if name.startswith("patch_embed") else block).get_submodule(name)
        except AttributeError:
            continue
        if not isinstance(inner, nn.Identity):
            raise ConversionError(f"timm's {name} is a norm that our block does not have")
    projection = getattr(model.patch_embed, "proj", None)
    if not isinstance(projection, nn.Conv2d):
        raise ConversionError(
            f"the patch embedding is a {type(model.patch_embed).__name__}, such as a hybrid's convolutional stem"
        )
    if projection.stride != projection.kernel_size:
        raise ConversionError(f"patches of {projection.kernel_size} with a stride of {projection.stride} overlap")
    if getattr(model, "pool_include_prefix", False) and model.global_pool != "token" and model.num_prefix_tokens:
        raise ConversionError("pool_include_prefix: the pooling takes in the prefix tokens, which ours does not")


def kind_of(block: nn.Module) -> tuple[str, ...]:
    """What must be the same in all blocks: the kinds of its modules, and the heads."""
    kinds = [
        f"{name} {type(module).__name__}"
        for name, module in block.named_modules()
        if not isinstance(module, nn.Identity)
    ]
    drops = ("DropPath", "Dropout")
    return (f"{block.attn.num_heads} heads", *(kind for kind in kinds if not kind.endswith(drops)))


def activation(module: nn.Module) -> str:
    """Our name of timm's activation."""
    kind = type(module).__name__
    if kind == "GELU":
        return {"none": "gelu", "tanh": "gelu_pytorch_tanh"}[getattr(module, "approximate", "none")]
    if kind not in ACTIVATIONS:
        raise ConversionError(f"timm's activation {kind} is not one of ours")
    return ACTIVATIONS[kind]


def epsilon(model: nn.Module) -> float:
    """The epsilon of the norms, which ours has one of."""
    found = {module.eps for module in model.modules() if type(module).__name__ in NORMS}
    if len(found) != 1:
        raise ConversionError(f"the norms have several epsilons, {', '.join(map(str, sorted(found)))}; ours has one")
    return found.pop()


def positions_of_prefix(model: nn.Module) -> str:
    if getattr(model, "no_embed_class", False):
        return "none"
    return "all" if getattr(model, "num_reg_tokens", 0) and not hasattr(model, "dist_token") else "class"


def facts_of_rope(rope: nn.Module) -> Facts:
    if type(rope).__name__ != "RotaryEmbeddingDinoV3":
        raise ConversionError(f"timm's rotation {type(rope).__name__} is not DINOv3's")
    for name, wanted in DINOV3_ROPE.items():
        if getattr(rope, name) != wanted:
            raise ConversionError(
                f"timm's rotation has {name}={getattr(rope, name)!r}; ours is DINOv3's, with {wanted!r}"
            )
    return {"position_embedding": "rope_2d", "rope_theta": rope.temperature, "prefix_positions": "class"}
