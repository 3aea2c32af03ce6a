"""
The Vision Transformer of Dosovitskiy et al. 2020 (arXiv 2010.11929), with the axes that later models added.

Read it downwards: attention, feed-forward, block, pooling, the model, its heads; what goes in is in
`embeddings_vit_custom.py`. An option is a row in a table of classes, chosen once when a module is built.

Letters in names are axes: B batch, C channels, h w grid of patches, N = h * w patches, P prefix tokens, T = P + N tokens,
S tokens attended to, D width, H heads, K head width, E width of the pooled vector.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.backbone_utils import BackboneMixin
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BackboneOutput,
    BaseModelOutputWithPooling,
    ImageClassifierOutput,
    MaskedImageModelingOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel
from transformers.utils.generic import can_return_tuple

from .configuration_vit_custom import ViTCustomConfig, pair
from .embeddings_vit_custom import PatchDropout, ViTCustomEmbeddings
from .initialization_vit_custom import INITIALIZERS, role_of, with_role
from .losses_vit_custom import LOSSES, problem_type_of
from .positions_vit_custom import Rotary, at_least_float32, rotate, unpatchify


NORMS = {"layer_norm": nn.LayerNorm, "rms_norm": nn.RMSNorm}


def build_norm(config: ViTCustomConfig, width: int) -> nn.Module:
    """A norm over the last axis, of `width`."""
    return NORMS[config.norm_type](width, eps=config.layer_norm_eps)


# ---------------------------------------------------------------------------------------------------------------------
# Encoder block


def eager_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs,
) -> tuple[Tensor, Tensor]:
    """Attention in plain tensor operations: (B, H, T, K) -> (B, T, H, K), and the weights (B, H, T, S)."""
    scores = query @ key.transpose(2, 3) * scaling
    scores = scores if attention_mask is None else scores + attention_mask
    weights = scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(query.dtype)
    output = F.dropout(weights, p=dropout, training=module.training) @ value
    return output.transpose(1, 2), weights


class ViTCustomAttention(nn.Module):
    """Multi-head attention of `x` over `context`, by any implementation in transformers' attention interface."""

    is_causal = False

    def __init__(self, config: ViTCustomConfig, qk_norm: bool):
        super().__init__()
        self.config = config
        D, K = config.hidden_size, config.head_dim
        self.scaling = K**-0.5
        self.q_proj = nn.Linear(D, D, bias=config.query_bias)
        self.k_proj = nn.Linear(D, D, bias=config.key_bias)
        self.v_proj = nn.Linear(D, D, bias=config.value_bias)
        self.o_proj = nn.Linear(D, D, bias=config.proj_bias)
        self.q_norm = build_norm(config, K) if qk_norm else nn.Identity()
        self.k_norm = build_norm(config, K) if qk_norm else nn.Identity()

    def forward(
        self,
        x_BTD: Tensor,
        context_BSD: Tensor,
        rotary: Rotary | None = None,
        bias: Tensor | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        heads = (-1, self.config.head_dim)
        q_BHTK = self.q_norm(self.q_proj(x_BTD).unflatten(2, heads)).transpose(1, 2)
        k_BHSK = self.k_norm(self.k_proj(context_BSD).unflatten(2, heads)).transpose(1, 2)
        v_BHSK = self.v_proj(context_BSD).unflatten(2, heads).transpose(1, 2)
        if rotary is not None:
            q_BHTK, k_BHSK = rotate(q_BHTK, *rotary), rotate(k_BHSK, *rotary)
        attend = self.implementation(bias, output_attentions)
        dropout = self.config.attention_probs_dropout_prob if self.training else 0.0
        y_BTHK, weights_BHTS = attend(self, q_BHTK, k_BHSK, v_BHSK, bias, dropout=dropout, scaling=self.scaling)
        return self.o_proj(y_BTHK.flatten(2)), weights_BHTS

    def implementation(self, bias: Tensor | None, output_attentions: bool) -> Callable:
        """The configured attention function; the eager one where the weights are asked for, since only it has them."""
        name = "eager" if output_attentions else self.config._attn_implementation
        if bias is not None and name not in ("eager", "sdpa"):
            raise ValueError(
                f"position_embedding='relative' adds a bias that attn_implementation={name!r} ignores; use 'sdpa'"
            )
        return ALL_ATTENTION_FUNCTIONS.get_interface(name, eager_attention_forward)


class ViTCustomMLP(nn.Module):
    """Two layers with an activation between them."""

    def __init__(self, config: ViTCustomConfig):
        super().__init__()
        self.fc1 = with_role("ffn", nn.Linear(config.hidden_size, config.intermediate_size))
        self.activation = ACT2FN[config.hidden_act]
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.fc2 = with_role("ffn", nn.Linear(config.intermediate_size, config.hidden_size))

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.fc2(self.dropout(self.activation(self.fc1(x_BTD))))


class ViTCustomSwiGLU(nn.Module):
    """Gated feed-forward network (Shazeer 2020): down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ViTCustomConfig):
        super().__init__()
        self.gate_proj = with_role("ffn", nn.Linear(config.hidden_size, config.intermediate_size))
        self.activation = ACT2FN[config.hidden_act]
        self.up_proj = with_role("ffn", nn.Linear(config.hidden_size, config.intermediate_size))
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.down_proj = with_role("ffn", nn.Linear(config.intermediate_size, config.hidden_size))

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.down_proj(self.dropout(self.activation(self.gate_proj(x_BTD)) * self.up_proj(x_BTD)))


FFNS = {"mlp": ViTCustomMLP, "swiglu": ViTCustomSwiGLU}


class LayerScale(nn.Module):
    """A learned factor for each channel of a residual branch (Touvron et al. 2021b, CaiT)."""

    def __init__(self, width: int):
        super().__init__()
        self.gamma = nn.Parameter(torch.empty(width))

    def forward(self, x_BTD: Tensor) -> Tensor:
        return x_BTD * self.gamma


class DropPath(nn.Module):
    """Stochastic depth (Huang et al. 2016): in training, drops the whole branch of a picture and scales up the others."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x_BTD: Tensor) -> Tensor:
        if not self.training:
            return x_BTD
        keep_B11 = torch.rand(x_BTD.shape[0], 1, 1, device=x_BTD.device) >= self.rate
        return x_BTD * keep_B11.to(x_BTD.dtype) / (1 - self.rate)

    def extra_repr(self) -> str:
        return f"rate={self.rate:.3f}"


class ViTCustomLayer(GradientCheckpointingLayer):
    """One encoder block: x + attention(norm(x)), then x + ffn(norm(x))."""

    def __init__(self, config: ViTCustomConfig, index: int):
        super().__init__()
        D = config.hidden_size
        self.norm1 = build_norm(config, D)
        self.attention = ViTCustomAttention(config, config.qk_norm)
        self.branch1 = residual_branch(config, index)
        self.norm2 = build_norm(config, D)
        self.ffn = FFNS[config.ffn_type](config)
        self.branch2 = residual_branch(config, index)

    def forward(
        self,
        x_BTD: Tensor,
        rotary: Rotary | None = None,
        bias: Tensor | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        y_BTD = self.norm1(x_BTD)
        y_BTD, weights_BHTT = self.attention(y_BTD, y_BTD, rotary, bias, output_attentions)
        x_BTD = x_BTD + self.branch1(y_BTD)
        x_BTD = x_BTD + self.branch2(self.ffn(self.norm2(x_BTD)))
        return x_BTD, weights_BHTT


def residual_branch(config: ViTCustomConfig, index: int) -> nn.Sequential:
    """What a branch passes through before it is added in block `index`: dropout, LayerScale, stochastic depth."""
    rate = config.drop_path_rate * index / max(1, config.num_hidden_layers - 1)
    branch = nn.Sequential()
    if config.hidden_dropout_prob:
        branch.add_module("dropout", nn.Dropout(config.hidden_dropout_prob))
    if config.layerscale_value is not None:
        branch.add_module("scale", LayerScale(config.hidden_size))
    if rate:
        branch.add_module("drop_path", DropPath(rate))
    return branch


# ---------------------------------------------------------------------------------------------------------------------
# Pooling


class Pool(nn.Module):
    """Base of the pools that take class token or patches out of the sequence."""

    def __init__(self, config: ViTCustomConfig):
        super().__init__()
        self.num_prefix_tokens = config.num_prefix_tokens

    def mean(self, x_BTD: Tensor) -> Tensor:
        """The mean of the patches, without prefix tokens."""
        return x_BTD[:, self.num_prefix_tokens :].mean(dim=1)


class ClassPool(Pool):
    """The class token: (B, D)."""

    def forward(self, x_BTD: Tensor) -> Tensor:
        return x_BTD[:, 0]


class MeanPool(Pool):
    """The mean of the patches: (B, D)."""

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.mean(x_BTD)


class ClassMeanPool(Pool):
    """The class token and the mean of the patches, side by side (DINOv2's linear head): (B, 2D)."""

    def forward(self, x_BTD: Tensor) -> Tensor:
        return torch.cat([x_BTD[:, 0], self.mean(x_BTD)], dim=-1)


class AttentionPool(Pool):
    """Attention of a learned probe over the patches, then an FFN (Zhai et al. 2022, `MAPHead` of big_vision): (B, D)."""

    def __init__(self, config: ViTCustomConfig):
        super().__init__(config)
        self.probe = nn.Parameter(torch.empty(1, 1, config.hidden_size))
        self.attention = ViTCustomAttention(config, qk_norm=False)
        self.norm = build_norm(config, config.hidden_size)
        self.ffn = FFNS[config.ffn_type](config)

    def forward(self, x_BTD: Tensor) -> Tensor:
        y_B1D, _ = self.attention(self.probe.expand(x_BTD.shape[0], -1, -1), x_BTD[:, self.num_prefix_tokens :])
        y_B1D = y_B1D + self.ffn(self.norm(y_B1D))
        return y_B1D[:, 0]


POOLINGS = {"cls": ClassPool, "mean": MeanPool, "cls_mean": ClassMeanPool, "map": AttentionPool}


class ViTCustomPooler(nn.Module):
    """One vector for each picture: pooling, the last norm if it stands here, representation layer, projection."""

    def __init__(self, config: ViTCustomConfig):
        super().__init__()
        E, hidden, projected = config.pooled_size, config.representation_size, config.projection_dim
        self.pool = POOLINGS[config.pooling](config)
        self.norm = build_norm(config, E) if config.final_norm == "pooled" else nn.Identity()
        self.pre_logits = nn.Sequential()
        if hidden is not None:
            self.pre_logits = nn.Sequential(with_role("pre_logits", nn.Linear(E, hidden)), nn.Tanh())
        self.projection = nn.Identity()
        if projected is not None:
            self.projection = nn.Linear(hidden or E, projected, bias=False)
        self.output_size = projected or hidden or E

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.projection(self.pre_logits(self.norm(self.pool(x_BTD))))


# ---------------------------------------------------------------------------------------------------------------------
# Model


class ViTCustomPreTrainedModel(PreTrainedModel):
    """Loading, saving and initialisation, common to the model and its heads."""

    config: ViTCustomConfig
    base_model_prefix = "vit"
    main_input_name = "pixel_values"
    input_modalities = ("image",)
    supports_gradient_checkpointing = True
    _no_split_modules = ["ViTCustomEmbeddings", "ViTCustomLayer"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True

    def __init__(self, config: ViTCustomConfig, *args, **kwargs):
        config.validate_architecture()  # fields may have been set since the configuration was made
        super().__init__(config, *args, **kwargs)

    def _init_weights(self, module: nn.Module) -> None:
        rules, std = INITIALIZERS[self.config.weight_init], self.config.initializer_range
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            for parameter, initialise in zip((module.weight, module.bias), rules[role_of(module)], strict=True):
                if parameter is not None:
                    initialise(parameter, std)
        elif isinstance(module, tuple(NORMS.values())):
            super()._init_weights(module)
        elif isinstance(module, LayerScale):
            init.constant_(module.gamma, self.config.layerscale_value)
        else:
            for name, parameter in module.named_parameters(recurse=False):
                rules["cls_token" if name == "cls_token" else "table"](parameter, std)

    def resize_channels(self, num_channels: int) -> None:
        """
        Makes of a model for RGB one for `num_channels`, in place: for 1 it gives for grey what it gave for the same grey in
        all three channels (the sum of their weights); of more than 3, the first are red, green and blue and the others
        start without effect (at zero).

        Raises:
            `ValueError`: for other numbers of channels, and for a model that reconstructs pixels or takes uint8.
        """
        if hasattr(self, "decoder") or self.config.pixel_mean is not None:
            raise ValueError(
                "resize_channels changes the input alone: not for a decoder to pixels, nor with pixel_mean"
            )
        self.base_model.embeddings.patch_embeddings.resize_channels(num_channels)
        self.config.num_channels = num_channels

    @property
    def dummy_inputs(self) -> dict[str, Tensor]:
        """One blank picture."""
        return {"pixel_values": torch.zeros(1, self.config.num_channels, *pair(self.config.image_size))}


class ViTCustomModel(ViTCustomPreTrainedModel):
    """
    The encoder: tokens and, unless `add_pooling_layer` is false or `config.pooling` is `"none"`, one pooled vector.

    `use_mask_token` adds the token that `bool_masked_pos` puts in place of patches.
    """

    def __init__(self, config: ViTCustomConfig, add_pooling_layer: bool = True, use_mask_token: bool = False):
        super().__init__(config)
        self.embeddings = ViTCustomEmbeddings(config, use_mask_token)
        self.patch_dropout = PatchDropout(config)
        self.embedding_norm = build_norm(config, config.hidden_size) if config.embedding_norm else nn.Identity()
        self.layers = nn.ModuleList(ViTCustomLayer(config, index) for index in range(config.num_hidden_layers))
        self.norm = build_norm(config, config.hidden_size) if config.final_norm == "tokens" else nn.Identity()
        self.pooler = ViTCustomPooler(config) if add_pooling_layer and config.pooling != "none" else None
        if config.pooling == "map":
            self._no_split_modules = [*self._no_split_modules, "AttentionPool"]
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.patch_embeddings.projection

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor,
        bool_masked_pos: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> BaseModelOutputWithPooling:
        """
        Args:
            pixel_values: (B, C, height, width), of any size whose sides are multiples of the patch; normalised or, if
                the configuration has `pixel_mean`, also uint8.
            bool_masked_pos: (B, N) or (B, h, w), true where the mask token takes a patch's place.
            output_hidden_states: Also return the depth + 1 token sequences (B, T, D): what the embeddings give and what
                each block gives, all before the last norm.
            output_attentions: Also return the weights (B, H, T, T) of each block; computed eagerly for this call,
                whichever implementation is set.

        Returns:
            `last_hidden_state` (B, T, D), prefix tokens first, normalised unless `config.final_norm` is `"pooled"`;
            `pooler_output` (B, E).

        Raises:
            `ValueError`: if the pictures don't fit the channels or the patch.
        """
        keep_states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        keep_weights = self.config.output_attentions if output_attentions is None else output_attentions

        x_BTD, rotary, bias = self.patch_dropout(*self.embeddings(pixel_values, bool_masked_pos))
        x_BTD = self.embedding_norm(x_BTD)
        states, weights = [x_BTD], []
        for layer in self.layers:
            x_BTD, weights_BHTT = layer(x_BTD, rotary, bias, keep_weights)
            if keep_states:
                states.append(x_BTD)
            if keep_weights:
                weights.append(weights_BHTT)
        x_BTD = self.norm(x_BTD)

        return BaseModelOutputWithPooling(
            last_hidden_state=x_BTD,
            pooler_output=None if self.pooler is None else self.pooler(x_BTD),
            hidden_states=tuple(states) if keep_states else None,
            attentions=tuple(weights) if keep_weights else None,
        )


# ---------------------------------------------------------------------------------------------------------------------
# Image classification


@dataclass
class ViTCustomImageClassifierOutput(ImageClassifierOutput):
    """
    `logits` (B, classes); with a distillation token they are the mean of `cls_logits` and `distillation_logits`, the two
    heads' own (Touvron et al. 2021, section 4).
    """

    cls_logits: Tensor | None = None
    distillation_logits: Tensor | None = None


class ViTCustomForImageClassification(ViTCustomPreTrainedModel):
    """The encoder with a linear classifier on the pooled vector; none if `config.num_labels` is 0."""

    accepts_loss_kwargs = True

    def __init__(self, config: ViTCustomConfig):
        super().__init__(config)
        if config.pooling == "none":
            raise ValueError("pooling='none' gives nothing to classify; use 'cls', 'mean', 'cls_mean' or 'map'")
        self.num_labels = config.num_labels
        self.vit = ViTCustomModel(config)
        self.classifier = self.build_head(self.vit.pooler.output_size)
        self.distillation_classifier = self.build_head(config.hidden_size) if config.distillation_token else None
        self.post_init()

    def build_head(self, width: int) -> nn.Module:
        return nn.Linear(width, self.num_labels) if self.num_labels else nn.Identity()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if self.config.zero_init_head and module in (self.classifier, self.distillation_classifier):
            init.zeros_(module.weight)

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> ViTCustomImageClassifierOutput:
        """
        Args:
            pixel_values: As for [`ViTCustomModel`].
            labels: Class numbers (B,); soft targets (B, classes) with
                `config.problem_type="single_label_classification"`; a 0 or 1 for each class (B, classes), as integers or with
                `problem_type="multi_label_classification"`; numbers (B, outputs) with `"regression"`. Of classes, -100
                is left out of the loss.
            num_items_in_batch: Label elements of the whole batch, if this is only one of the parts that its gradient is
                accumulated over; the loss is then this part's share.
            output_hidden_states, output_attentions: As for [`ViTCustomModel`].

        Raises:
            `ValueError`: if labels don't fit the problem type or, on the CPU, are out of range.
        """
        outputs = self.vit(
            pixel_values,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            return_dict=True,
        )
        logits, own_logits = self.classifier(outputs.pooler_output), {}
        if self.distillation_classifier is not None:
            distilled = self.distillation_classifier(outputs.last_hidden_state[:, 1])
            own_logits = {"cls_logits": logits, "distillation_logits": distilled}
            logits = (logits + distilled) / 2
        return ViTCustomImageClassifierOutput(
            loss=None if labels is None else self.loss(logits, labels, num_items_in_batch),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            **own_logits,
        )

    def loss(self, logits: Tensor, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """The loss of `config.problem_type`: a mean over the labels, or their share of `num_items_in_batch`."""
        smoothing = self.config.label_smoothing if self.training else 0.0
        logits = logits.to(at_least_float32(logits.dtype))  # sums over a batch are too large for half precision
        total, count = LOSSES[problem_type_of(self.config, labels)](logits, labels, smoothing)
        return total / (count.clamp(min=1) if num_items_in_batch is None else num_items_in_batch)


# ---------------------------------------------------------------------------------------------------------------------
# Masked image modelling and backbone


def refuse_patch_dropout(config: ViTCustomConfig, model: str) -> None:
    """Raises `ValueError` if `config` leaves patches out, which `model` can't do without."""
    if config.patch_drop_rate:
        raise ValueError(f"{model} needs all patches: patch_drop_rate={config.patch_drop_rate} must be 0")


class ViTCustomForMaskedImageModeling(ViTCustomPreTrainedModel):
    """The encoder with a linear decoder to pixels: SimMIM (Xie et al. 2021, arXiv 2111.09886)."""

    def __init__(self, config: ViTCustomConfig):
        super().__init__(config)
        refuse_patch_dropout(config, "masked image modelling")
        self.patch_size = pair(config.patch_size)
        self.vit = ViTCustomModel(config, add_pooling_layer=False, use_mask_token=True)
        pixels = config.num_channels * self.patch_size[0] * self.patch_size[1]
        self.decoder = nn.Linear(config.hidden_size, pixels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        pixel_values: Tensor,
        bool_masked_pos: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> MaskedImageModelingOutput:
        """
        Arguments as for [`ViTCustomModel`]. Returns `reconstruction` (B, C, height, width) and, where a mask is given,
        `loss`: the mean absolute error of the masked pixels (SimMIM, section 3.4).
        """
        outputs = self.vit(
            pixel_values,
            bool_masked_pos,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            return_dict=True,
        )
        grid = tuple(side // patch for side, patch in zip(pixel_values.shape[2:], self.patch_size, strict=True))
        patches_BND = outputs.last_hidden_state[:, self.config.num_prefix_tokens :]
        reconstruction = unpatchify(self.decoder(patches_BND), grid, self.patch_size)
        return MaskedImageModelingOutput(
            loss=None if bool_masked_pos is None else self.loss(reconstruction, pixel_values, bool_masked_pos, grid),
            reconstruction=reconstruction,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def loss(
        self, reconstruction: Tensor, pixel_values: Tensor, bool_masked_pos: Tensor, grid: tuple[int, int]
    ) -> Tensor:
        mask_BNK = bool_masked_pos.reshape(len(pixel_values), -1, 1).expand(
            -1, -1, self.patch_size[0] * self.patch_size[1]
        )
        dtype = at_least_float32(reconstruction.dtype)  # sums over all pixels are too large for half precision
        mask_B1HW = unpatchify(mask_BNK.to(dtype), grid, self.patch_size)
        target = self.vit.embeddings.patch_embeddings.normalise(pixel_values)
        errors = (reconstruction.to(dtype) - target.to(dtype)).abs() * mask_B1HW
        return errors.sum() / (mask_B1HW.sum() + 1e-5) / self.config.num_channels


class ViTCustomBackbone(BackboneMixin, ViTCustomPreTrainedModel):
    """Feature maps of chosen stages, for UperNet, DETR and other users of transformers' backbone interface."""

    def __init__(self, config: ViTCustomConfig):
        config.set_output_features_output_indices(config._out_features, config._out_indices)
        super().__init__(config)
        refuse_patch_dropout(config, "a backbone")
        if config.apply_layernorm and config.final_norm == "pooled":
            raise ValueError(
                "final_norm='pooled' leaves no norm for feature maps: set apply_layernorm=False for a backbone"
            )
        self.patch_size = pair(config.patch_size)
        self.num_features = [config.hidden_size] * len(config.stage_names)
        self.vit = ViTCustomModel(config, add_pooling_layer=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self, pixel_values: Tensor, output_hidden_states: bool | None = None, output_attentions: bool | None = None
    ) -> BackboneOutput:
        """
        Arguments as for [`ViTCustomModel`]. Returns `feature_maps`, one (B, D, h, w) for each of `config.out_features`:
        `"stem"` is the embeddings' output, `"stage1"` the first block's; normalised if `config.apply_layernorm`.
        """
        keep_states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        outputs = self.vit(
            pixel_values, output_hidden_states=True, output_attentions=output_attentions, return_dict=True
        )
        grid = tuple(side // patch for side, patch in zip(pixel_values.shape[2:], self.patch_size, strict=True))
        normalise = self.vit.norm if self.config.apply_layernorm else nn.Identity()
        maps = []
        for index in self.config.out_indices:
            patches_BND = normalise(outputs.hidden_states[index])[:, self.config.num_prefix_tokens :]
            maps.append(patches_BND.transpose(1, 2).unflatten(2, grid))
        return BackboneOutput(
            feature_maps=tuple(maps),
            hidden_states=outputs.hidden_states if keep_states else None,
            attentions=outputs.attentions,
        )


__all__ = [
    "ViTCustomBackbone",
    "ViTCustomForImageClassification",
    "ViTCustomForMaskedImageModeling",
    "ViTCustomModel",
    "ViTCustomPreTrainedModel",
]
