"""Pairs of a peer's model and ours that share one set of random weights."""

from collections.abc import Callable
from dataclasses import dataclass

import timm
import timm.layers
import torch
import torchvision
import transformers
from torch import Tensor, nn

from modeling_vit_custom import ViTCustomConfig, ViTCustomForImageClassification, ViTCustomForMaskedImageModeling
from modeling_vit_custom import ViTCustomModel as Base
from tests.tiny import randomise


Classifier = ViTCustomForImageClassification
SIZES = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 80}
NATIVE, LARGER, RECTANGLE = (32, 32), (48, 48), (24, 48)


@dataclass
class Pair:
    """
    `theirs` and `ours` map pictures to the numbers compared, at each of `sizes`; `model` is our model itself.

    `float64` is false for a peer that computes a part of its result in float32 whatever its type.
    """

    theirs: nn.Module
    ours: nn.Module
    model: nn.Module
    sizes: list[tuple[int, int]]
    float64: bool = True


class Output(nn.Module):
    """A model, and what of its output is compared."""

    def __init__(self, model: nn.Module, take: Callable, **options):
        super().__init__()
        self.model, self.take, self.options = model, take, options

    def forward(self, images: Tensor) -> Tensor:
        return self.take(self.model(images, **self.options))


def logits(output) -> Tensor:
    return output.logits


def changed(config: ViTCustomConfig, **options) -> ViTCustomConfig:
    return ViTCustomConfig.from_dict(config.to_dict(), **options)


def our_config(**options) -> ViTCustomConfig:
    return ViTCustomConfig(**{**SIZES, "image_size": 32, "patch_size": 8, "num_labels": 5, **options})


def renamed(weights: dict[str, Tensor], names: dict[str, str]) -> dict[str, Tensor]:
    """`weights` with each part of a name replaced that `names` lists, in its order."""
    for theirs, ours in names.items():
        weights = {name.replace(theirs, ours): value for name, value in weights.items()}
    return weights


def split_qkv(weights: dict[str, Tensor], fused: str) -> dict[str, Tensor]:
    """Fused projections `...{fused}...`, rows q, k, v, as three."""
    found = {}
    for name, value in weights.items():
        parts = zip("qkv", value.chunk(3), strict=True) if fused in name else [("", value)]
        found |= {name.replace(fused, f"{part}_proj"): rows for part, rows in parts}
    return found


def split_positions(weights: dict[str, Tensor], name: str, position: str, grid: tuple[int, int]) -> None:
    """A flat table (1, P + N, D) as our prefix rows and grid."""
    table = weights.pop(name).reshape(1, -1, SIZES["hidden_size"])
    prefix = table.shape[1] - grid[0] * grid[1]
    weights[f"{position}.grid"] = table[:, prefix:].unflatten(1, grid)
    if prefix:
        weights[f"{position}.prefix"] = table[:, :prefix]


def pair_of(peer: nn.Module, take, config, model_class, weights, ours=logits, sizes=(NATIVE,), **options) -> Pair:
    model = model_class(config).eval()
    model.load_state_dict(weights)
    return Pair(Output(peer, take, **options), Output(model, ours), model, list(sizes))


# ---------------------------------------------------------------------------------------------------------------------
# timm

TIMM_NAMES = {
    "cls_token": "embeddings.cls_token", "reg_token": "embeddings.register_tokens", "pos_embed": "pos_embed",
    "patch_embed.proj": "embeddings.patch_embeddings.projection", "norm_pre": "embedding_norm", "blocks.": "layers.",
    ".attn.": ".attention.", "attention.proj": "attention.o_proj", ".ls1": ".branch1.scale", ".ls2": ".branch2.scale",
    ".mlp.": ".ffn.",
}  # fmt: skip
TIMM_CASES = {
    "cls": {},
    "mean-fc-norm": {"peer": {"global_pool": "avg"}, "ours": {"pooling": "mean", "final_norm": "pooled"}},
    "mean-no-class-token": {
        "peer": {"global_pool": "avg", "class_token": False, "fc_norm": False},
        "ours": {"pooling": "mean", "class_token": False},
    },
    "registers": {"peer": {"reg_tokens": 3}, "ours": {"num_register_tokens": 3, "prefix_positions": "all"}},
    "registers-no-embed-class": {
        "peer": {"reg_tokens": 3, "no_embed_class": True},
        "ours": {"num_register_tokens": 3, "prefix_positions": "none"},
    },
    "layer-scale": {"peer": {"init_values": 0.1}, "ours": {"layerscale_value": 0.1}},
    "qk-norm": {"peer": {"qk_norm": True}, "ours": {"qk_norm": True}},
    "no-qkv-bias": {"peer": {"qkv_bias": False}, "ours": dict.fromkeys(["query_bias", "key_bias", "value_bias"], False)},
    "pre-norm": {"peer": {"pre_norm": True}, "ours": {"embedding_norm": True, "patch_bias": False}},
    "quick-gelu": {"peer": {"act_layer": "quick_gelu"}, "ours": {"hidden_act": "quick_gelu"}},
    "tanh-gelu": {"peer": {"act_layer": "gelu_tanh"}, "ours": {"hidden_act": "gelu_pytorch_tanh"}},
    "no-position": {"peer": {"pos_embed": "none"}, "ours": {"position_embedding": "none"}},
    "rms-norm": {
        "peer": {"norm_layer": lambda width, **_: nn.RMSNorm(width, eps=1e-6)},
        "ours": {"norm_type": "rms_norm"},
    },
    "rectangle": {"peer": {"img_size": (24, 48)}, "ours": {"image_size": [24, 48]}},
}  # fmt: skip


def timm_vit(peer: dict | None = None, ours: dict | None = None, small_residual: bool = False) -> Pair:
    """timm's VisionTransformer, resampling its table at run time (bicubic with antialias)."""
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 4, "num_classes": 5}
    their = timm.models.VisionTransformer(**{**sizes, "mlp_ratio": 80 / 48, "dynamic_img_size": True, **(peer or {})})
    randomise(their.eval())
    if small_residual:  # so that the epsilon of the norms shows
        with torch.no_grad():
            for name, weight in their.named_parameters():
                if name.startswith(("cls_token", "pos_embed", "patch_embed")) or ".proj." in name or ".fc2." in name:
                    weight.mul_(2e-3)
    config = our_config(position_resampling="bicubic_antialias", **(ours or {}))
    last = {"fc_norm": "pooler.norm"} if config.final_norm == "pooled" else {}
    weights = renamed(split_qkv(their.state_dict(), "qkv"), {**TIMM_NAMES, **last})
    weights = {name if name.startswith("head.") else f"vit.{name}": value for name, value in weights.items()}
    weights = renamed(weights, {"head.": "classifier."})
    if "vit.pos_embed" in weights:
        split_positions(weights, "vit.pos_embed", "vit.embeddings.position", config.grid_size)
    sizes = [RECTANGLE, LARGER, NATIVE] if config.image_size == [24, 48] else [NATIVE, LARGER, RECTANGLE]
    return pair_of(their, lambda output: output, config, Classifier, weights, sizes=sizes)


def timm_swiglu() -> Pair:
    """timm's VisionTransformer with a packed SwiGLU, rows gate, up."""
    their = timm.models.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=4, num_classes=5, mlp_ratio=2 * 80 / 48,
        mlp_layer=timm.layers.SwiGLUPacked, act_layer=nn.SiLU,
    )  # fmt: skip
    randomise(their.eval())
    weights = {}
    for name, value in renamed(split_qkv(their.state_dict(), "qkv"), TIMM_NAMES).items():
        if ".ffn.fc1." in name:
            gate, up = value.chunk(2)
            weights |= {name.replace("fc1", "gate_proj"): gate, name.replace("fc1", "up_proj"): up}
        else:
            weights[name.replace("fc2", "down_proj")] = value
    weights = {name if name.startswith("head.") else f"vit.{name}": value for name, value in weights.items()}
    weights = renamed(weights, {"head.": "classifier."})
    split_positions(weights, "vit.pos_embed", "vit.embeddings.position", (4, 4))
    config = our_config(ffn_type="swiglu", hidden_act="silu")
    return pair_of(their, lambda output: output, config, Classifier, weights)


# ---------------------------------------------------------------------------------------------------------------------
# transformers

VIT_NAMES = {
    "patch_embeddings.projection": "patch_embeddings.projection", "layernorm_before": "norm1",
    "layernorm_after": "norm2", ".mlp.": ".ffn.", "layernorm": "norm",
}  # fmt: skip


def their_model(model_class, config_class, **options) -> nn.Module:
    sizes = {**SIZES, "image_size": 32, "patch_size": 8, "num_labels": 5}
    return randomise(model_class(config_class(**{**sizes, **options})).eval())


def transformers_vit() -> Pair:
    their = their_model(transformers.ViTForImageClassification, transformers.ViTConfig, layer_norm_eps=1e-6)
    weights = renamed(their.state_dict(), VIT_NAMES)
    split_positions(weights, "vit.embeddings.position_embeddings", "vit.embeddings.position", (4, 4))
    sizes = [NATIVE, LARGER, RECTANGLE]
    config = our_config()
    return pair_of(their, logits, config, Classifier, weights, sizes=sizes, interpolate_pos_encoding=True)


def transformers_deit() -> Pair:
    """Two tokens, two heads, averaged; the default epsilon of transformers."""
    their = their_model(transformers.DeiTForImageClassificationWithTeacher, transformers.DeiTConfig)
    names = {"deit.": "vit.", "cls_classifier": "CLS", "distillation_classifier": "DIST"}
    weights = renamed(their.state_dict(), {**names, **VIT_NAMES})
    weights = renamed(weights, {"CLS": "classifier", "DIST": "distillation_classifier"})
    split_positions(weights, "vit.embeddings.position_embeddings", "vit.embeddings.position", (4, 4))
    config = our_config(distillation_token=True, layer_norm_eps=1e-12)

    def all_logits(output):
        return torch.stack([output.logits, output.cls_logits, output.distillation_logits])

    return pair_of(their, all_logits, config, Classifier, weights, all_logits)


def transformers_dinov2() -> Pair:
    """Registers without positions, LayerScale, class token and mean of the patches, concatenated."""
    options = {"num_register_tokens": 3, "mlp_ratio": 2}
    their = their_model(
        transformers.Dinov2WithRegistersForImageClassification, transformers.Dinov2WithRegistersConfig, **options
    )
    names = {
        "dinov2_with_registers.": "vit.", "attention.attention.": "attention.", "attention.output.dense": "attention.o_proj",
        "layer_scale1.lambda1": "branch1.scale.gamma", "layer_scale2.lambda1": "branch2.scale.gamma", ".mlp.": ".ffn.",
        "layernorm.": "norm.", "vit.encoder.layer.": "vit.layers.",
    }  # fmt: skip
    weights = renamed(their.state_dict(), names)
    weights.pop("vit.embeddings.mask_token")
    split_positions(weights, "vit.embeddings.position_embeddings", "vit.embeddings.position", (4, 4))
    config = our_config(
        num_register_tokens=3, layerscale_value=1.0, pooling="cls_mean", intermediate_size=96,
        position_resampling="bicubic_antialias",
    )  # fmt: skip
    return pair_of(their, logits, config, Classifier, weights, sizes=[NATIVE, LARGER, RECTANGLE])


def transformers_dinov3() -> Pair:
    """Rotation, registers, no key bias, gated FFN."""
    options = {"num_register_tokens": 3, "use_gated_mlp": True, "hidden_act": "silu", "rope_theta": 30.0}
    their = their_model(transformers.DINOv3ViTModel, transformers.DINOv3ViTConfig, **options)
    names = {
        "patch_embeddings.": "patch_embeddings.projection.", "layer_scale1.lambda1": "branch1.scale.gamma",
        "layer_scale2.lambda1": "branch2.scale.gamma", ".mlp.": ".ffn.", "model.layer": "layer",
        "layer.": "layers.",
    }  # fmt: skip
    weights = renamed(their.state_dict(), names)
    weights = {name: value for name, value in weights.items() if "mask_token" not in name and "inv_freq" not in name}
    config = our_config(
        position_embedding="rope_2d", rope_theta=30.0, num_register_tokens=3, key_bias=False, layerscale_value=1.0, layer_norm_eps=1e-5,
        ffn_type="swiglu", hidden_act="silu",
    )  # fmt: skip

    def tokens(output):
        return output.last_hidden_state

    pair = pair_of(their, tokens, config, Base, weights, tokens, [NATIVE, LARGER, RECTANGLE])
    pair.float64 = False  # the angles
    return pair


def transformers_clip() -> Pair:
    """A norm before the blocks, no patch bias, quick GELU, a norm of the pooled token only, a projection."""
    their = their_model(transformers.CLIPVisionModelWithProjection, transformers.CLIPVisionConfig, projection_dim=7)
    names = {
        "vision_model.": "", "embeddings.class_embedding": "embeddings.cls_token", "pre_layrnorm": "embedding_norm",
        "embeddings.patch_embedding": "embeddings.patch_embeddings.projection", "encoder.layers": "layers",
        "layer_norm1": "norm1", "layer_norm2": "norm2", "self_attn.": "attention.", "out_proj": "o_proj", ".mlp.": ".ffn.",
        "post_layernorm": "pooler.norm", "visual_projection": "pooler.projection",
    }  # fmt: skip
    weights = renamed(their.state_dict(), names)
    weights.pop("embeddings.position_ids", None)
    weights["embeddings.cls_token"] = weights["embeddings.cls_token"].reshape(1, 1, -1)
    split_positions(weights, "embeddings.position_embedding.weight", "embeddings.position", (4, 4))
    config = our_config(
        embedding_norm=True, patch_bias=False, hidden_act="quick_gelu", layer_norm_eps=1e-5, final_norm="pooled",
        projection_dim=7,
    )  # fmt: skip
    return pair_of(
        their, lambda o: o.image_embeds, config, Base, weights, lambda o: o.pooler_output,
        [NATIVE, LARGER, RECTANGLE], interpolate_pos_encoding=True,
    )  # fmt: skip


def transformers_siglip() -> Pair:
    """No class token, tanh GELU, attention pooling."""
    their = their_model(transformers.SiglipVisionModel, transformers.SiglipVisionConfig)
    names = {
        "vision_model.": "", "embeddings.patch_embedding": "embeddings.patch_embeddings.projection",
        "encoder.layers": "layers", "layer_norm1": "norm1", "layer_norm2": "norm2", "self_attn.": "attention.",
        "out_proj": "o_proj", "post_layernorm": "norm", "head.": "pooler.pool.", "pool.layernorm": "pool.norm",
        ".mlp.": ".ffn.", "attention.in_proj_weight": "attention.IN.weight", "attention.in_proj_bias": "attention.IN.bias",
    }  # fmt: skip
    weights = split_qkv(renamed(their.state_dict(), names), "IN")
    weights.pop("embeddings.position_ids", None)
    split_positions(weights, "embeddings.position_embedding.weight", "embeddings.position", (4, 4))
    config = our_config(class_token=False, hidden_act="gelu_pytorch_tanh", pooling="map")
    pooled = lambda output: output.pooler_output  # noqa: E731
    return pair_of(
        their, pooled, config, Base, weights, pooled, [NATIVE, LARGER, RECTANGLE], interpolate_pos_encoding=True
    )


def transformers_beit() -> Pair:
    """A relative bias shared by the blocks, no key bias, LayerScale, a norm of the mean."""
    options = {"use_shared_relative_position_bias": True, "layer_scale_init_value": 0.1, "use_mean_pooling": True}
    their = their_model(
        transformers.BeitModel, transformers.BeitConfig, attn_implementation="eager", layer_norm_eps=1e-6, **options,
    )  # fmt: skip
    weights = dict(their.state_dict())
    table = next(name for name in weights if name.endswith("relative_position_bias_table"))
    rows = weights.pop(table)
    weights["embeddings.position.grid"] = rows[:-3].reshape(1, 2 * 4 - 1, 2 * 4 - 1, 4)
    weights["embeddings.position.prefix"] = rows[-3:]
    names = {
        "encoder.layer.": "layers.", "attention.attention.": "attention.", "attention.output.dense": "attention.o_proj",
        "lambda_1": "branch1.scale.gamma", "lambda_2": "branch2.scale.gamma", "layernorm_before": "norm1",
        "layernorm_after": "norm2", "intermediate.dense": "ffn.fc1", "output.dense": "ffn.fc2", ".mlp.": ".ffn.",
        "query.": "q_proj.", "key.": "k_proj.", "value.": "v_proj.", "pooler.layernorm": "pooler.norm",
    }  # fmt: skip
    weights = {name: value for name, value in renamed(weights, names).items() if "mask_token" not in name}
    config = our_config(
        position_embedding="relative", key_bias=False, layerscale_value=0.1, pooling="mean", final_norm="pooled",
    )  # fmt: skip
    pooled = lambda output: output.pooler_output  # noqa: E731
    pair = pair_of(their, pooled, config, Base, weights, pooled)
    pair.float64 = False  # the softmax
    return pair


def transformers_ijepa() -> Pair:
    """No class token, the mean of the normalised patches."""
    their = their_model(transformers.IJepaForImageClassification, transformers.IJepaConfig, layer_norm_eps=1e-6)
    weights = renamed(their.state_dict(), {"ijepa.": "vit.", **VIT_NAMES})
    split_positions(weights, "vit.embeddings.position_embeddings", "vit.embeddings.position", (4, 4))
    config = our_config(class_token=False, pooling="mean")
    return pair_of(their, logits, config, Classifier, weights, sizes=[NATIVE, LARGER], interpolate_pos_encoding=True)


def transformers_simmim() -> Pair:
    """The reconstruction of a masked picture, with its loss in front."""
    their = their_model(
        transformers.ViTForMaskedImageModeling, transformers.ViTConfig, encoder_stride=8, layer_norm_eps=1e-6
    )
    weights = renamed(their.state_dict(), {**VIT_NAMES, "decoder.0.": "decoder."})
    weights["decoder.weight"] = weights["decoder.weight"].flatten(1)
    weights["vit.embeddings.mask_token"] = weights["vit.embeddings.mask_token"].flatten()
    split_positions(weights, "vit.embeddings.position_embeddings", "vit.embeddings.position", (4, 4))

    def take(output):
        return torch.cat([output.loss.reshape(1), output.reconstruction.flatten()])

    mask = torch.rand(2, 16, generator=torch.Generator().manual_seed(3)) < 0.5
    pair = pair_of(their, take, our_config(), ViTCustomForMaskedImageModeling, weights, take, bool_masked_pos=mask)
    pair.ours.options, pair.float64 = {"bool_masked_pos": mask}, False  # the divisor of the loss
    return pair


# ---------------------------------------------------------------------------------------------------------------------
# torchvision


def torchvision_vit() -> Pair:
    """Linear, tanh, Linear: the paper's pre-training head."""
    their = torchvision.models.VisionTransformer(32, 8, 2, 4, 48, 80, num_classes=5, representation_size=9).eval()
    names = {
        "class_token": "vit.embeddings.cls_token", "conv_proj": "vit.embeddings.patch_embeddings.projection",
        "encoder.layers.encoder_layer_": "vit.layers.", "ln_1": "norm1", "ln_2": "norm2", "self_attention": "attention",
        "in_proj_weight": "IN.weight", "in_proj_bias": "IN.bias", "out_proj": "o_proj", "mlp.0": "ffn.fc1", "mlp.3": "ffn.fc2",
        "encoder.ln": "vit.norm", "heads.pre_logits": "vit.pooler.pre_logits.0", "heads.head": "classifier",
    }  # fmt: skip
    weights = split_qkv(renamed(randomise(their).state_dict(), names), "IN")
    split_positions(weights, "encoder.pos_embedding", "vit.embeddings.position", (4, 4))
    return pair_of(their, lambda output: output, our_config(representation_size=9), Classifier, weights)
