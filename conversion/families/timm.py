"""timm's `vit_*`, `deit*`, `deit3*`, `flexivit*`: a folder of the Hub, a bare state dict or a live model."""

import torch
from torch import nn

from conversion.errors import ConversionError, FactNeeded
from conversion.families.base import Facts, Family, Found, one_or_two
from conversion.families.clip import TEXT
from conversion.families.timm_config import INTERPOLATIONS, POOLINGS, files
from conversion.families.torch_names import QKV, SCALES, gated_name, geometry, names, table_positions
from conversion.mapping import PARAMETER, SAME, Table, Their, listed
from modeling_vit_custom import ViTCustomConfig
from modeling_vit_custom.configuration_vit_custom import pair


# Modules that may stand for nothing in a block of ours; anything else in their place changes the function.
PLAIN_BLOCKS = {"Block", "EvaBlock", "LayerScaleBlock"}


def activation(module: nn.Module) -> str:
    """Our name of timm's activation."""
    kinds = {
        "QuickGELU": "quick_gelu",
        "GELUTanh": "gelu_pytorch_tanh",
        "SiLU": "silu",
        "ReLU": "relu",
        "SwiGLU": "silu",
    }
    kind = type(module).__name__
    if kind == "GELU":
        return {"none": "gelu", "tanh": "gelu_pytorch_tanh"}[getattr(module, "approximate", "none")]
    if kind not in kinds:
        raise ConversionError(f"timm's activation {kind} is not one of ours")
    return kinds[kind]


def build(config: Facts) -> nn.Module:
    """
    The model that a `config.json` of timm describes, without memory for its weights.

    Raises:
        `ConversionError`: if timm is not installed or doesn't know it.
    """
    try:
        import timm
    except ImportError as error:
        raise ConversionError(
            "a timm checkpoint needs timm for the facts of its architecture: pip install timm"
        ) from error
    known = {k: v for k, v in (config.get("model_args") or {}).items() if v is not None}
    for name in ("num_classes", "global_pool"):
        if config.get(name) is not None:
            known.setdefault(name, config[name])
    size = (config.get("pretrained_cfg") or {}).get("input_size")
    if size and "img_size" not in known:
        known["img_size"] = tuple(size[1:])
    check_modest(known)
    try:
        with torch.device("meta"):
            return timm.create_model(config["architecture"], pretrained=False, **known)
    except Exception as error:
        raise ConversionError(f"timm cannot build {config['architecture']!r}: {error}") from error


def check_modest(arguments: Facts) -> None:
    """Raises `ConversionError` for numbers that no model has; building one would take for ever."""
    for name, limit in {"depth": 1000, "num_classes": 10**7, "embed_dim": 10**6}.items():
        value = arguments.get(name, 0)
        if not isinstance(value, int) or not 0 <= value <= limit:
            raise ConversionError(f"config.json: {name}={value!r} is no sensible number")


def described(found: Found) -> Facts:
    """timm's `config.json`; that of OpenCLIP in the same words, for its towers that are models of timm; empty for neither."""
    config = found.config or {}
    if "model_cfg" not in config:
        return config
    vision, pixels = config["model_cfg"]["vision_cfg"], config.get("preprocess_cfg", {})
    arguments = {"img_size": vision["image_size"], "num_classes": 0, "global_pool": vision.get("timm_pool")}
    squash = {"crop_mode": "squash" if pixels.get("resize_mode") == "squash" else "center", "crop_pct": 1.0}
    return {
        "architecture": vision["timm_model_name"], "model_args": arguments, "pretrained_cfg": {**pixels, **squash},
    }  # fmt: skip


def model_of(found: Found) -> nn.Module | None:
    """The live model, or the one that the configuration describes; none for bare weights."""
    config = described(found)
    if found.live is not None:
        return found.live
    return build(config) if "architecture" in config else None


def is_described(found: Found) -> bool:
    """Whether a live model, no configuration, or one about timm comes with the weights."""
    vision = (found.config or {}).get("model_cfg", {}).get("vision_cfg", {})
    return found.is_bare or found.live is not None or "architecture" in found.config or "timm_model_name" in vision


def refuse_what_differs(model: nn.Module) -> None:
    """Raises `ConversionError` for a block or an attention that computes something else than ours."""
    block = model.blocks[0]
    wanted = {"block": (block, PLAIN_BLOCKS), "attention": (block.attn, {"Attention", "EvaAttention"})}
    for what, (module, plain) in wanted.items():
        if type(module).__name__ not in plain:
            raise ConversionError(f"timm's {what} {type(module).__name__} is not the plain one of a ViT")
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


def facts_of_model(model: nn.Module) -> Facts:
    """What a model of timm says that its weights don't."""
    refuse_what_differs(model)
    block, pool = model.blocks[0], model.global_pool
    if pool not in POOLINGS:
        raise ConversionError(f"timm's global_pool={pool!r} is not one of ours ({', '.join(map(repr, POOLINGS))})")
    norms = {"LayerNorm": "layer_norm", "RmsNorm": "rms_norm", "RMSNorm": "rms_norm"}
    kind = type(block.norm1).__name__
    if kind not in norms:
        raise ConversionError(f"timm's norm {kind} is not one of ours")
    pooled = not isinstance(getattr(model, "fc_norm", nn.Identity()), nn.Identity)
    rope = getattr(model, "rope", None)
    facts = {
        "num_attention_heads": block.attn.num_heads,
        "hidden_act": activation(getattr(block.mlp, "act", None) or block.mlp),
        "norm_type": norms[kind],
        "layer_norm_eps": block.norm1.eps,
        "pooling": POOLINGS[pool],
        "final_norm": "pooled" if pooled else "tokens",
        "image_size": one_or_two(*model.patch_embed.img_size),
        "prefix_positions": positions_of_prefix(model),
    }
    if rope is not None:
        return {**facts, **facts_of_rope(rope)}
    return facts if getattr(model, "pos_embed", None) is not None else {**facts, "position_embedding": "none"}


def positions_of_prefix(model: nn.Module) -> str:
    if getattr(model, "no_embed_class", False):
        return "none"
    return "all" if getattr(model, "num_reg_tokens", 0) and not hasattr(model, "dist_token") else "class"


def facts_of_rope(rope: nn.Module) -> Facts:
    if type(rope).__name__ != "RotaryEmbeddingDinoV3":
        raise ConversionError(f"timm's rotation {type(rope).__name__} is not DINOv3's")
    return {"position_embedding": "rope_2d", "rope_theta": float(rope.temperature), "prefix_positions": "class"}


def facts(found: Found) -> Facts:
    """Shapes, and what the architecture says; of bare weights, timm's defaults and what is told."""
    model = model_of(found)
    if model is not None:
        told = facts_of_model(model)
        found.told = {**found.told, "num_attention_heads": told["num_attention_heads"]}
        agree(model, found)
        shape_facts = geometry(found, "bicubic_antialias")
        if told.get("position_embedding") == "rope_2d":
            shape_facts |= biases_of_eva(found)
        return {**shape_facts, **told}
    shape_facts = geometry(found, "bicubic_antialias")
    clip = shape_facts["embedding_norm"]
    shape_facts["patch_bias"] = not clip
    pooled = "fc_norm.weight" in found
    pooling = "map" if found.has("attn_pool.") else "mean" if pooled or not shape_facts["class_token"] else "cls"
    return {
        **shape_facts,
        "hidden_act": shape_facts.get("hidden_act") or found.ask("hidden_act", "", "gelu"),
        "layer_norm_eps": found.ask("layer_norm_eps", "", 1e-5 if clip else 1e-6),
        "pooling": found.ask("pooling", "", pooling),
        "final_norm": "pooled" if pooled else "tokens",
        **(table_positions(found, shape_facts) if "pos_embed" in found else {"position_embedding": "none"}),
    }


def agree(model: nn.Module, found: Found) -> None:
    """Raises `ConversionError` where the architecture and the weights have other names or shapes."""
    theirs = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    faults = listed("missing in the file", [name for name in theirs if name not in found])
    faults += listed("in the file, but not in the architecture", [name for name in found.shapes if name not in theirs])
    both = [name for name in theirs if name in found and theirs[name] != tuple(found.shapes[name])]
    faults += listed("of another shape", [f"{name} {found.shapes[name]} for {theirs[name]}" for name in both])
    if faults:
        raise ConversionError(f"the architecture {type(model).__name__} and the weights differ: {'; '.join(faults)}")


def biases_of_eva(found: Found) -> Facts:
    fused = "blocks.0.attn.qkv.bias" in found
    some = fused or "blocks.0.attn.q_bias" in found
    return {"query_bias": some, "key_bias": fused, "value_bias": some}


def table(config: ViTCustomConfig, layout: str) -> Table:
    spelling, _, gated = layout.partition("+")
    table = dict(names(config, scales=SCALES[1] if spelling == "eva" else SCALES[0], gated=gated or "mlp.fc1"))
    if spelling == "eva" and not config.key_bias:
        table[QKV] = Their("blocks.{i}.attn.qkv", {"weight": (".weight", SAME)})
        table["layers.{i}.attention.q_proj.bias"] = Their("blocks.{i}.attn.q_bias", PARAMETER)
        table["layers.{i}.attention.v_proj.bias"] = Their("blocks.{i}.attn.v_bias", PARAMETER)
    return {
        **table,
        "pooler.pool.probe": Their("attn_pool.latent", PARAMETER),
        "pooler.pool.attention.q_proj": "attn_pool.q",
        "pooler.pool.attention.{k,v}_proj": "attn_pool.kv",
        "pooler.pool.attention.o_proj": "attn_pool.proj",
        "pooler.pool.norm": "attn_pool.norm",
        "pooler.pool.ffn.fc1": "attn_pool.mlp.fc1",
        "pooler.pool.ffn.fc2": "attn_pool.mlp.fc2",
    }


def layout(found: Found) -> str:
    """`vit` or `eva`, and the spelling of a gate."""
    return f"{'eva' if 'blocks.0.gamma_1' in found else 'vit'}+{gated_name(found)}"


def spelling(config: ViTCustomConfig) -> str:
    """The layout that timm has for a configuration."""
    if config.position_embedding != "rope_2d":
        return "vit+mlp.fc1"
    return "eva+mlp.fc1_g" if config.ffn_type == "swiglu" else "eva+mlp.fc1"


# ---------------------------------------------------------------------------------------------------------------------
# Pixels


def pixels(found: Found, config: ViTCustomConfig) -> Facts:
    """`timm.data.create_transform` of the pretrained configuration: resized to cover size / crop_pct, centre crop."""
    cfg = described(found).get("pretrained_cfg") or getattr(found.live, "pretrained_cfg", None)
    if not cfg:
        needed = [name for name in ("image_mean", "image_std") if name not in found.told]
        if needed:
            raise FactNeeded(
                "the mean and standard deviation of the pixels are not in bare weights of timm; say them with --set image_mean=0.485,"
                "0.456,0.406 --set image_std=0.229,0.224,0.225 (ImageNet), or 0.5,0.5,0.5 for both, as the model was trained"
            )
        cfg = {"mean": found.told["image_mean"], "std": found.told["image_std"], "crop_pct": 0.875}
    height, width = pair(config.image_size)
    mode, crop = cfg.get("crop_mode") or "center", cfg.get("crop_pct") or 0.875
    interpolation = cfg.get("interpolation") or "bicubic"
    if interpolation not in INTERPOLATIONS or mode not in ("center", "squash"):
        raise ConversionError(f"timm's interpolation={interpolation!r} with crop_mode={mode!r} is not one of ours")
    facts = {"image_mean": list(cfg["mean"]), "image_std": list(cfg["std"]), "resample": INTERPOLATIONS[interpolation]}
    if mode == "squash":
        scaled = {"height": int(height / crop), "width": int(width / crop)}
        return {**facts, "size": scaled, "do_center_crop": True, "crop_size": {"height": height, "width": width}}
    return {**facts, "size": {"height": height, "width": width}, "crop_pct": crop}


TIMM = Family(
    name="timm",
    title="timm vit_*, deit*, deit3*, flexivit* (Hub folder, state dict, live model)",
    reference="timm",
    anchors=("patch_embed.proj.weight",),
    recognise=lambda found: (
        "blocks.0.attn.qkv.weight" in found
        and "rope_embed.periods" not in found
        and "mask_token" not in found
        and not ("blocks.0.gamma_1" in found and "pos_embed" in found)
        and is_described(found)
    ),
    facts=facts,
    table=table,
    pixels=pixels,
    layout=layout,
    layouts=("vit+mlp.fc1", "eva+mlp.fc1", "eva+mlp.fc1_g"),
    spelling=spelling,
    asked=("num_attention_heads", "image_size", "hidden_act", "layer_norm_eps", "pooling", "position_resampling"),
    beside=TEXT,
    suffix="",
    config=files,
    labels=lambda found: (found.config or {}).get("label_names"),
)
