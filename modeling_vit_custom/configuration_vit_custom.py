"""Configuration of the Vision Transformer: every axis of the model, checked, and the table of named sizes."""

# No `from __future__ import annotations` here: it would turn off the type checks of the strict dataclass.
import dataclasses
import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from huggingface_hub.dataclasses import strict
from transformers.activations import ACT2FN
from transformers.backbone_utils import BackboneConfigMixin
from transformers.configuration_utils import PreTrainedConfig


if TYPE_CHECKING:  # saving follows these lines, so that a folder saved from any one class carries the code of all
    from .image_processing_vit_custom import ViTCustomImageProcessor  # noqa: F401
    from .modeling_vit_custom import ViTCustomModel  # noqa: F401


# Written into every config.json: whichever class was saved, each Auto class finds its own code in the folder.
AUTO_MAP = {
    "AutoConfig": "configuration_vit_custom.ViTCustomConfig",
    "AutoModel": "modeling_vit_custom.ViTCustomModel",
    "AutoModelForImageClassification": "modeling_vit_custom.ViTCustomForImageClassification",
    "AutoModelForMaskedImageModeling": "modeling_vit_custom.ViTCustomForMaskedImageModeling",
    "AutoBackbone": "modeling_vit_custom.ViTCustomBackbone",
    "AutoImageProcessor": "image_processing_vit_custom.ViTCustomImageProcessor",
}

# name: (hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, usual patch sizes)
VARIANTS = {
    "Ti": (192, 768, 12, 3, (16,)),  # Touvron et al. 2021, table 1
    "S": (384, 1536, 12, 6, (8, 14, 16, 32)),  # Touvron et al. 2021, table 1
    "M": (512, 2048, 12, 8, (16, 32)),  # big_vision, models/vit.py
    "B": (768, 3072, 12, 12, (8, 14, 16, 32)),  # Dosovitskiy et al. 2020, table 1
    "L": (1024, 4096, 24, 16, (14, 16, 32)),  # Dosovitskiy et al. 2020, table 1
    "H": (1280, 5120, 32, 16, (14, 16)),  # Dosovitskiy et al. 2020, table 1
    "so400m": (1152, 4304, 27, 16, (14, 16)),  # Alabdulmohsin et al. 2023
    "g": (1408, 6144, 40, 16, (14, 16)),  # Zhai et al. 2022, table 2
    "G": (1664, 8192, 48, 16, (14,)),  # Zhai et al. 2022, table 2
}

# Keys that are no fields of ours but that transformers or PEFT puts into a configuration.
FRAMEWORK_KEYS = {
    "attn_implementation",
    "auto_map",
    "custom_pipelines",
    "distributed_config",
    "experts_implementation",
    "fusion_config",
    "model_type",
    "name_or_path",
    "num_labels",
    "out_features",
    "out_indices",
    "output_attentions",
    "pretraining_tp",
    "quantization_config",
    "tie_last_hidden_states",
    "tie_word_embeddings",
    "torch_dtype",
    "transformers_weights",
    "use_cache",
}
DEFAULT_LABELS = 2  # of transformers, which leaves the names of so many out of the file
NO_LABEL_TABLE = "id2label must be a table of class numbers and names, {0: 'cat', ...}"
NOT_THE_INVERSE = "label2id is not the inverse of id2label; leave label2id out to have it derived"
PROBLEM_TYPES = ("single_label_classification", "multi_label_classification", "regression")
MINIMUM = {
    "num_channels": 1,
    "hidden_size": 1,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "intermediate_size": 1,
    "num_register_tokens": 0,
}
POSITIVE = ["layer_norm_eps", "rope_theta", "initializer_range"]
RATES = [
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "drop_path_rate",
    "patch_drop_rate",
    "label_smoothing",
]


def pair(size: int | list[int]) -> tuple[int, int]:
    """(height, width) of a size that is given as one number or as two."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def did_you_mean(name: str, known: list[str]) -> str:
    """The end of an error message about an unknown name: the near ones, or all of them."""
    near = [candidate for candidate in known if candidate.lower() == name.lower()]
    near = near or difflib.get_close_matches(name, known, n=3)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {', '.join(sorted(known))}."


@strict
class ViTCustomConfig(BackboneConfigMixin, PreTrainedConfig):
    """
    Configuration of a [`ViTCustomModel`]. The defaults are ViT-B/16 of Dosovitskiy et al. 2020 (arXiv 2010.11929).

    Sizes are in pixels, `(height, width)` where two numbers are given. Misspelt keys, wrong types and impossible
    combinations raise an error that names the field.

    Args:
        image_size (`int` or pair, defaults to 224): Size that the position table is made for; inputs may have another.
        patch_size (`int` or pair, defaults to 16): Size of a patch, which is also the stride.
        num_channels (`int`, defaults to 3): Channels of the input.
        pixel_mean, pixel_std (`list[float]`, *optional*): Mean and standard deviation of each channel's values 0..255, for a
            model that also takes uint8 `pixel_values` and normalises them itself: the same as `image_mean` and `image_std` of
            an image processor, times 255. [`ViTCustomImageProcessor.for_model`] then leaves the pixels as they are.
        hidden_size (`int`, defaults to 768): Width D of the tokens.
        num_hidden_layers (`int`, defaults to 12): Number of encoder blocks.
        num_attention_heads (`int`, defaults to 12): Heads of every attention; divides `hidden_size`.
        intermediate_size (`int`, defaults to 3072): Inner width of the feed-forward network.
        ffn_type (`str`, defaults to `"mlp"`): `"mlp"` (two layers) or `"swiglu"` (gated, Shazeer 2020).
        hidden_act (`str`, defaults to `"gelu"`): Activation by its name in transformers: `"gelu"` is exact,
            `"gelu_pytorch_tanh"` is the approximation of the JAX checkpoints, `"quick_gelu"` is CLIP's. `"silu"` for `"swiglu"`.
        norm_type (`str`, defaults to `"layer_norm"`): `"layer_norm"` or `"rms_norm"`.
        layer_norm_eps (`float`, defaults to 1e-6): Epsilon of every norm.
        embedding_norm (`bool`, defaults to `False`): A norm between the embeddings and the blocks (CLIP).
        final_norm (`str`, defaults to `"tokens"`): Where the last norm stands: on all `"tokens"` before pooling, or on
            the `"pooled"` vector only (CLIP, MAE's fine-tuned models).
        patch_bias, query_bias, key_bias, value_bias, proj_bias (`bool`, default to `True`): Bias of the patch
            projection and of the four projections of attention.
        qk_norm (`bool`, defaults to `False`): A norm on the queries and keys of each head (Dehghani et al. 2023).
        layerscale_value (`float`, *optional*): Initial value of LayerScale (Touvron et al. 2021b); `None` for no LayerScale.
        class_token (`bool`, defaults to `True`): A learned class token in front of the patches.
        distillation_token (`bool`, defaults to `False`): DeiT's second token, with a head of its own.
        num_register_tokens (`int`, defaults to 0): Register tokens (Darcet et al. 2024), after the class token.
        prefix_positions (`str`, defaults to `"class"`): Which prefix tokens have a learned position of their own:
            `"none"`, `"class"` (class and distillation token) or `"all"` (the registers too).
        position_embedding (`str`, defaults to `"learned"`): `"none"`; `"learned"`, the paper's table; `"learned_2d"`,
            a row and a column table of half the width each (the paper's appendix D.4); `"sincos_1d"` (Vaswani et al. 2017);
            `"sincos_2d"`; `"relative"`, a bias for each head over (dy, dx); `"rope_2d"`, axial rotation as in DINOv3.
        position_resampling (`str`, defaults to `"bicubic"`): How a table is brought to another grid; see
            `RESAMPLING` in `positions_vit_custom.py`.
        sincos_frequencies (`str`, defaults to `"mae"`): Frequencies of `"sincos_2d"`, as in MAE or in big_vision.
        rope_theta (`float`, defaults to 100.0): Base of the periods of `"rope_2d"`.
        pooling (`str`, defaults to `"cls"`): `"cls"`, `"mean"` (of the patches), `"cls_mean"` (both, concatenated),
            `"map"` (attention of a learned probe to the patches, Zhai et al. 2022) or `"none"`.
        representation_size (`int`, *optional*): Width of a Linear + tanh after pooling, the paper's pre-training head.
        projection_dim (`int`, *optional*): Width of a bias-free projection after pooling (CLIP).
        hidden_dropout_prob (`float`, defaults to 0.0): Dropout after the embeddings and in every residual branch.
        attention_probs_dropout_prob (`float`, defaults to 0.0): Dropout of the attention weights.
        drop_path_rate (`float`, defaults to 0.0): Stochastic depth of the last block; grows linearly from 0.
        patch_drop_rate (`float`, defaults to 0.0): Share of the patches left out in training (Li et al. 2023).
        label_smoothing (`float`, defaults to 0.0): Label smoothing of the single-label loss, in training only.
        weight_init (`str`, defaults to `"trunc_normal"`): `"trunc_normal"` or `"jax"`; see `INITIALIZERS` in
            `modeling_vit_custom.py`.
        zero_init_head (`bool`, defaults to `False`): Start the classifier at zero, as the JAX code does.
        initializer_range (`float`, defaults to 0.02): Standard deviation of the initial weights and tables.
        apply_layernorm (`bool`, defaults to `True`): Whether [`ViTCustomBackbone`] normalises its feature maps with the
            model's last norm.

    Raises:
        `ValueError`: for an unknown key, a value out of range or fields that exclude each other.
    """

    model_type: ClassVar[str] = "vit_custom"
    keys_to_ignore_at_inference: ClassVar[list[str]] = [
        "hidden_states",
        "attentions",
        "cls_logits",
        "distillation_logits",
    ]

    # Geometry
    image_size: int | list[int] | tuple[int, int] = 224
    patch_size: int | list[int] | tuple[int, int] = 16
    num_channels: int = 3
    pixel_mean: list[float | int] | None = None
    pixel_std: list[float | int] | None = None
    # Width
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    # Block
    ffn_type: Literal["mlp", "swiglu"] = "mlp"
    hidden_act: str = "gelu"
    norm_type: Literal["layer_norm", "rms_norm"] = "layer_norm"
    layer_norm_eps: float | int = 1e-6
    embedding_norm: bool = False
    final_norm: Literal["tokens", "pooled"] = "tokens"
    patch_bias: bool = True
    query_bias: bool = True
    key_bias: bool = True
    value_bias: bool = True
    proj_bias: bool = True
    qk_norm: bool = False
    layerscale_value: float | int | None = None
    # Tokens
    class_token: bool = True
    distillation_token: bool = False
    num_register_tokens: int = 0
    prefix_positions: Literal["none", "class", "all"] = "class"
    # Positions
    position_embedding: Literal["none", "learned", "learned_2d", "sincos_1d", "sincos_2d", "relative", "rope_2d"] = (
        "learned"
    )
    position_resampling: Literal[
        "bicubic",
        "bicubic_antialias",
        "bicubic_align_corners",
        "bicubic_offset",
        "bilinear",
        "bilinear_antialias",
        "bilinear_align_corners",
    ] = "bicubic"
    sincos_frequencies: Literal["mae", "big_vision"] = "mae"
    rope_theta: float | int = 100.0
    # Pooling and head
    pooling: Literal["cls", "mean", "cls_mean", "map", "none"] = "cls"
    representation_size: int | None = None
    projection_dim: int | None = None
    # Regularisation
    hidden_dropout_prob: float | int = 0.0
    attention_probs_dropout_prob: float | int = 0.0
    drop_path_rate: float | int = 0.0
    patch_drop_rate: float | int = 0.0
    label_smoothing: float | int = 0.0
    # Initialisation
    weight_init: Literal["trunc_normal", "jax"] = "trunc_normal"
    zero_init_head: bool = False
    initializer_range: float | int = 0.02
    # Backbone
    apply_layernorm: bool = True
    _out_features: list[str] | None = None
    _out_indices: list[int] | None = None

    @classmethod
    def from_variant(cls, name: str, **overrides: Any) -> "ViTCustomConfig":
        """
        The configuration of a named size, such as `from_variant("B/16", num_labels=10)`; `overrides` are further fields.

        Raises:
            `ValueError`: if `VARIANTS` has no such size with that patch.
        """
        known = {f"{size}/{patch}": (size, patch) for size, row in VARIANTS.items() for patch in row[-1]}
        if name not in known:
            raise ValueError(f"unknown variant {name!r}: {did_you_mean(name, list(known))}")
        size, patch = known[name]
        width, inner, depth, heads, _ = VARIANTS[size]
        fields = {"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": depth}
        return cls(**{**fields, "num_attention_heads": heads, "patch_size": patch, **overrides})

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> "ViTCustomConfig":
        """As in transformers, but fields given as keywords pass through the same checks as the file's own values."""
        fields = cls.field_names()
        for key in sorted(kwargs.keys() - fields - FRAMEWORK_KEYS):
            if difflib.get_close_matches(key, fields, cutoff=0.8):
                raise ValueError(f"unknown configuration key {key!r}: {did_you_mean(key, list(fields))}")
        overrides = {key: kwargs.pop(key) for key in list(kwargs) if key in fields}
        if kwargs.get("num_labels") is None:
            kwargs.pop("num_labels", None)
        saved_labels = len(config_dict.get("id2label") or range(DEFAULT_LABELS))
        if {"id2label", "label2id"} & overrides.keys() or kwargs.get("num_labels", saved_labels) != saved_labels:
            config_dict = {key: value for key, value in config_dict.items() if key not in ("id2label", "label2id")}
        return super().from_dict({**config_dict, **overrides}, **kwargs)

    @classmethod
    def field_names(cls) -> set[str]:
        """Names that a configuration may be given, without those that transformers keeps for itself."""
        return {field.name for field in dataclasses.fields(cls) if not field.name.startswith("_")}

    def __post_init__(self, **kwargs: Any):
        self._check_keys(kwargs)
        if kwargs.get("num_labels") is None:
            kwargs.pop("num_labels", None)
        self._name_labels(kwargs.get("num_labels"))
        out_features, out_indices = kwargs.pop("out_features", None), kwargs.pop("out_indices", None)
        kwargs["auto_map"] = {**AUTO_MAP, **(kwargs.pop("auto_map", None) or {})}
        super().__post_init__(**kwargs)
        # Lists, so that the object equals what its JSON file gives back.
        self.image_size = list(self.image_size) if isinstance(self.image_size, tuple) else self.image_size
        self.patch_size = list(self.patch_size) if isinstance(self.patch_size, tuple) else self.patch_size
        self.validate_architecture()  # here too: the decorator would wrap the ValueError
        if out_features is not None or out_indices is not None:
            self.set_output_features_output_indices(out_features, out_indices)

    def _name_labels(self, num_labels: int | None) -> None:
        """Derives of `id2label` and `label2id` the one that isn't given, and compares them with `num_labels`."""
        if num_labels is not None and (type(num_labels) is not int or num_labels < 0):
            raise ValueError(f"num_labels={num_labels!r}: expected a whole number, 0 for a model without classifier")
        given = self.label2id
        for name in ("id2label", "label2id"):
            if not isinstance(getattr(self, name), dict | None):
                raise ValueError(f"{name} must be a table of class numbers and names, got {getattr(self, name)!r}")
        if self.id2label is None and given is not None:
            self.id2label = {index: label for label, index in given.items()}
        if self.id2label is None:
            return
        names = {int(index): name for index, name in self.id2label.items() if str(index).isdecimal()}
        if len(names) < len(self.id2label):
            raise ValueError(f"{NO_LABEL_TABLE}; got {self.id2label}")
        if num_labels is not None and num_labels != len(names):
            raise ValueError(f"num_labels={num_labels} but id2label has {len(names)} names; leave one of them out")
        self.id2label = names
        if given is not None and not self._is_inverse(given):
            raise ValueError(NOT_THE_INVERSE)

    def _is_inverse(self, label2id: dict) -> bool:
        """Whether `label2id` gives each name of `id2label` its number, as a number or as text."""
        numbers = {name: str(number) for name, number in label2id.items()}
        return numbers == {name: str(index) for index, name in self.id2label.items() if isinstance(name, str)}

    def __setattr__(self, key: str, value: Any) -> None:
        """Setting `id2label` sets `label2id` too."""
        super().__setattr__(key, value)
        if key == "id2label" and isinstance(value, dict):
            super().__setattr__("label2id", {name: i for i, name in value.items() if isinstance(name, str)})

    def validate_architecture(self) -> None:
        """Checks ranges and relations of the fields. Runs at construction, when a model is built and when saving."""
        self._check_keys(vars(self))
        self._check_labels()
        self._check_ranges()
        self._check_pixels()
        self._check_geometry()
        self._check_tokens_and_pooling()
        self._check_block()

    def _check_keys(self, keys: Iterable[str]) -> None:
        known = self.field_names()
        unknown = sorted(key for key in keys if key not in known | FRAMEWORK_KEYS and not key.startswith("_"))
        if unknown:
            raise ValueError(f"unknown configuration key {unknown[0]!r}: {did_you_mean(unknown[0], list(known))}")

    def _check_labels(self) -> None:
        names = self.id2label
        if not all(isinstance(name, str) for name in names.values()):
            raise ValueError(f"{NO_LABEL_TABLE}; got {names}")
        if sorted(names) != list(range(len(names))):
            raise ValueError(
                f"id2label must number the classes 0 to {len(names) - 1} without gaps, got {sorted(names)}"
            )
        if len(set(names.values())) < len(names):
            twice = next(name for name in names.values() if list(names.values()).count(name) > 1)
            raise ValueError(f"id2label has the name {twice!r} twice; make the names of the classes distinct")
        if not self._is_inverse(self.label2id):
            raise ValueError(NOT_THE_INVERSE)

    def _check_ranges(self) -> None:
        for name, minimum in MINIMUM.items():
            if not getattr(self, name) >= minimum:
                raise ValueError(f"{name}={getattr(self, name)} must be at least {minimum}")
        for name in RATES:
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 0 and below 1")
        for name in ("representation_size", "projection_dim"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1, or None for no such layer")
        for name in POSITIVE:
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name}={getattr(self, name)} must be a positive number")
        if self.layerscale_value is not None and not abs(self.layerscale_value) < float("inf"):
            raise ValueError(f"layerscale_value={self.layerscale_value} must be a number, or None for no LayerScale")
        if self.problem_type not in (None, *PROBLEM_TYPES):
            raise ValueError(
                f"problem_type={self.problem_type!r}: {did_you_mean(str(self.problem_type), list(PROBLEM_TYPES))}"
            )
        if self.label_smoothing and self.problem_type not in (None, "single_label_classification"):
            raise ValueError(
                f"label_smoothing={self.label_smoothing} has no meaning for problem_type={self.problem_type!r}"
            )

    def _check_pixels(self) -> None:
        mean, std = self.pixel_mean, self.pixel_std
        if mean is None and std is None:
            return
        if mean is None or std is None or not len(mean) == len(std) == self.num_channels:
            raise ValueError(
                f"pixel_mean={mean} and pixel_std={std}: one number each for num_channels={self.num_channels}"
            )
        if not all(abs(value) < float("inf") for value in mean) or not all(0 < value < float("inf") for value in std):
            raise ValueError(f"pixel_mean={mean} must be finite and pixel_std={std} finite and above 0")

    def _check_geometry(self) -> None:
        for name in ("image_size", "patch_size"):
            value = getattr(self, name)
            sides = [value] * 2 if isinstance(value, int) else value
            if len(sides) != 2 or min(sides) < 1:
                raise ValueError(f"{name}={value} must be a positive number of pixels, or two: (height, width)")
        for side, image, patch in zip(("height", "width"), pair(self.image_size), pair(self.patch_size), strict=True):
            if image % patch:
                below, above = image // patch * patch, (image // patch + 1) * patch
                raise ValueError(
                    f"the {side} of image_size={self.image_size} is not a multiple of patch_size={self.patch_size}: "
                    f"{image} is not; {' or '.join(str(size) for size in (below, above) if size)} would be"
                )

    def _check_tokens_and_pooling(self) -> None:
        if self.pooling in ("cls", "cls_mean") and not self.class_token:
            raise ValueError(
                f"pooling={self.pooling!r} needs class_token=True; without one use 'mean', 'map' or 'none'"
            )
        if self.pooling == "none":
            for name in ("representation_size", "projection_dim"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name}={getattr(self, name)} needs a pooled vector, but pooling='none'")
            if self.final_norm == "pooled":
                raise ValueError(
                    "final_norm='pooled' needs a pooled vector, but pooling='none'; use final_norm='tokens'"
                )
        if self.distillation_token:
            wanted = {"class_token": True, "pooling": "cls", "final_norm": "tokens"}
            wanted |= {"representation_size": None, "projection_dim": None}
            for name, value in wanted.items():
                if getattr(self, name) != value:
                    raise ValueError(f"distillation_token=True needs {name}={value!r}, got {getattr(self, name)!r}")

    def _check_block(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} is not divisible by num_attention_heads={self.num_attention_heads}"
            )
        if self.hidden_act not in ACT2FN:
            raise ValueError(f"hidden_act={self.hidden_act!r}: {did_you_mean(self.hidden_act, list(ACT2FN))}")
        if self.ffn_type == "swiglu" and self.hidden_act != "silu":
            raise ValueError(f"ffn_type='swiglu' gates with hidden_act='silu', got {self.hidden_act!r}")
        if self.position_embedding == "rope_2d" and self.head_dim % 4:
            raise ValueError(
                f"position_embedding='rope_2d' needs a head dimension divisible by 4, got {self.head_dim} "
                f"(hidden_size={self.hidden_size} / num_attention_heads={self.num_attention_heads})"
            )
        divisor = {"learned_2d": 2, "sincos_1d": 2, "sincos_2d": 4}.get(self.position_embedding, 1)
        if self.hidden_size % divisor:
            raise ValueError(
                f"position_embedding={self.position_embedding!r} needs a hidden_size divisible by {divisor}, "
                f"got {self.hidden_size}"
            )
        if self.position_embedding == "sincos_2d" and self.sincos_frequencies == "big_vision" and self.hidden_size < 8:
            raise ValueError(
                f"sincos_frequencies='big_vision' needs a hidden_size of 8 or more, got {self.hidden_size}"
            )

    @property
    def grid_size(self) -> tuple[int, int]:
        """Patches (down, across) of a picture of `image_size`."""
        (height, width), (patch_height, patch_width) = pair(self.image_size), pair(self.patch_size)
        return height // patch_height, width // patch_width

    @property
    def num_prefix_tokens(self) -> int:
        """Tokens in front of the patches: class, distillation and register tokens."""
        return self.class_token + self.distillation_token + self.num_register_tokens

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def pooled_size(self) -> int:
        """Width of the pooled vector before `representation_size` and `projection_dim`."""
        return self.hidden_size * (2 if self.pooling == "cls_mean" else 1)

    @property
    def stage_names(self) -> list[str]:
        """Names that a backbone's `out_features` may hold: the embeddings and every block."""
        return ["stem", *(f"stage{index + 1}" for index in range(self.num_hidden_layers))]

    def __eq__(self, other: object) -> bool:
        """Equal settings, wherever and by whichever version of transformers they were saved."""
        return isinstance(other, type(self)) and self._settings() == other._settings()

    def _settings(self) -> dict[str, Any]:
        return {key: value for key, value in self.to_diff_dict().items() if key != "transformers_version"}
