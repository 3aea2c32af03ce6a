"""Initial weights: functions of (tensor, std), and which of them each scheme uses where."""

from torch import Tensor, nn
from transformers import initialization as init


def trunc_normal_(weight: Tensor, std: float) -> None:
    """Normal, cut at two standard deviations (BEiT, DeiT; JAX's `truncated_normal`)."""
    init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def normal_(weight: Tensor, std: float) -> None:
    """Normal: the position table of vit_jax, models_vit.py."""
    init.normal_(weight, std=std)


def zeros_(weight: Tensor, std: float) -> None:
    """Zero: biases; the class token of vit_jax, models_vit.py."""
    init.zeros_(weight)


def tiny_normal_(weight: Tensor, std: float) -> None:
    """Normal with standard deviation 1e-6: the biases of `MlpBlock`, vit_jax, models_vit.py."""
    init.normal_(weight, std=1e-6)


def xavier_uniform_(weight: Tensor, std: float) -> None:
    """Glorot and Bengio 2010: the kernels of attention and `MlpBlock`, vit_jax, models_vit.py."""
    init.xavier_uniform_(weight)


def lecun_normal_(weight: Tensor, std: float) -> None:
    """Truncated normal of variance 1 / fan-in, Flax's default: the patch embedding and `pre_logits` of vit_jax."""
    shrinkage = 0.87962566103423978  # standard deviation of a unit normal cut at two
    trunc_normal_(weight, weight[0].numel() ** -0.5 / shrinkage)


# scheme: role: (weight, bias) of layers, or the one function of tokens and tables. `role_of` says which is which.
INITIALIZERS = {
    "trunc_normal": {
        "linear": (trunc_normal_, zeros_),
        "ffn": (trunc_normal_, zeros_),
        "patch": (trunc_normal_, zeros_),
        "pre_logits": (trunc_normal_, zeros_),
        "cls_token": trunc_normal_,
        "table": trunc_normal_,
    },
    "jax": {
        "linear": (xavier_uniform_, zeros_),
        "ffn": (xavier_uniform_, tiny_normal_),
        "patch": (lecun_normal_, zeros_),
        "pre_logits": (lecun_normal_, zeros_),
        "cls_token": zeros_,
        "table": normal_,
    },
}


def role_of(layer: nn.Module) -> str:
    """The row of a scheme that initialises a Linear or Conv2d."""
    return getattr(layer, "init_role", "patch" if isinstance(layer, nn.Conv2d) else "linear")


def with_role(role: str, layer: nn.Linear) -> nn.Linear:
    """`layer`, marked with the row of a scheme that initialises it."""
    layer.init_role = role
    return layer
