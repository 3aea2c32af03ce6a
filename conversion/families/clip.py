"""The image towers of OpenAI CLIP and OpenCLIP."""

from conversion.families.base import BICUBIC, CLIP, Facts, Family, Found, centre_cropped, one_or_two
from conversion.families.torch_names import POSITION_ROWS, QKV, flat_positions, vector
from conversion.mapping import IN_PROJ, PARAMETER, TRANSPOSE, Table, Their, parameter
from modeling_vit_custom import ViTCustomConfig
from modeling_vit_custom.configuration_vit_custom import pair


BLOCK = "transformer.resblocks."
TEXT = (
    "text.*", "transformer.*", "token_embedding.*", "positional_embedding", "ln_final.*", "text_projection", "logit_scale",
    "logit_bias", "attn_mask", "input_resolution", "context_length", "vocab_size",
)  # fmt: skip
HEAD_WIDTH = 64  # clip/model.py: heads = width // 64; OpenCLIP's default


def geometry(found: Found, hidden_act: str, resampling: str) -> Facts:
    """A norm before the blocks, no patch bias, a norm of the class token alone, a projection without bias, eps 1e-5."""
    width, channels, patch_height, patch_width = (found.size("conv1.weight", axis) for axis in range(4))
    _, size = found.grid(found.size("positional_embedding"), (patch_height, patch_width), (1,))
    default = width // HEAD_WIDTH if width % HEAD_WIDTH == 0 else None
    why = f"the number of heads is not in the file, and a width of {width} is not made of heads of {HEAD_WIDTH}"
    return {
        "image_size": size,
        "patch_size": one_or_two(patch_height, patch_width),
        "num_channels": channels,
        "hidden_size": width,
        "num_hidden_layers": found.depth(BLOCK),
        "num_attention_heads": found.ask("num_attention_heads", why, default),
        "intermediate_size": found.size(f"{BLOCK}0.mlp.c_fc.weight"),
        "hidden_act": hidden_act,
        "layer_norm_eps": 1e-5,
        "embedding_norm": "ln_pre.weight" in found,
        "final_norm": "pooled",
        "patch_bias": "conv1.bias" in found,
        "layerscale_value": 1.0 if found.has(".ls_1.gamma") else None,
        "position_resampling": resampling,
        "projection_dim": found.size("proj", 1) if "proj" in found else None,
        "num_labels": 0,
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
        "pooler.norm": "ln_post",
        "pooler.projection.weight": Their("proj", parameter(TRANSPOSE)),
    }


def pixels(found: Found, config: ViTCustomConfig) -> Facts:
    """clip.py `_transform`, open_clip/transform.py: shorter side to the size, bicubic, centre crop."""
    return {**CLIP, "resample": BICUBIC, **centre_cropped(config, min(pair(config.image_size)))}


def open_clip_facts(found: Found) -> Facts:
    """open_clip/transformer.py; which GELU is in the model's configuration, not in the weights."""
    vision = (found.config or {}).get("model_cfg") or {}
    act = {True: "quick_gelu", False: "gelu"}[bool(vision.get("quick_gelu"))] if vision else None
    why = "the activation is not in the file: 'quick_gelu' for OpenAI's weights and *-quickgelu, 'gelu' for others"
    return geometry(found, act or found.ask("hidden_act", why), "bicubic_antialias")


def common(**options) -> Family:
    return Family(
        anchors=("conv1.weight",), table=table, pixels=pixels, beside=TEXT, prefix="visual.", suffix=".pth", **options
    )


OPENAI_CLIP = common(
    name="openai_clip",
    title="OpenAI CLIP image tower (.pt, state dict or TorchScript)",
    reference="openai/CLIP",
    recognise=lambda found: "class_embedding" in found and "ln_post.weight" in found,
    facts=lambda found: geometry(found, "quick_gelu", "bicubic_antialias"),
    asked=("num_attention_heads", "image_size", "position_resampling"),
)
OPEN_CLIP = common(
    name="open_clip",
    title="OpenCLIP image tower (.pt, safetensors)",
    reference="mlfoundations/open_clip",
    recognise=lambda found: "class_embedding" in found and "ln_post.weight" in found,
    facts=open_clip_facts,
    asked=("num_attention_heads", "image_size", "hidden_act", "position_resampling"),
    wrap="state_dict",
)
