"""The optimiser and its parameter groups."""

import torch
from torch import nn

from scripts.common.recipe import OptimRecipe


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """
    Two groups: the weights of linear and convolutional layers, which are decayed, and the rest, which isn't: biases,
    norms, LayerScale, tokens, position tables.
    """
    decayed = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d))
    }
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        {"params": [p for p in trained if id(p) in decayed], "weight_decay": weight_decay},
        {"params": [p for p in trained if id(p) not in decayed], "weight_decay": 0.0},
    ]


def build_optimizer(model: nn.Module, recipe: OptimRecipe) -> torch.optim.Optimizer:
    """AdamW over the parameter groups."""
    groups = parameter_groups(model, recipe.weight_decay)
    return torch.optim.AdamW(groups, lr=recipe.lr, betas=recipe.betas, fused=True)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr
