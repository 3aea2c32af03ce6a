"""The learning rate as a function of the step, and which weights decay."""

from itertools import pairwise

import pytest
import torch
from transformers import get_linear_schedule_with_warmup

from modeling_vit_custom import ViTCustomForImageClassification
from scripts.common.optim import build_optimizer, parameter_groups
from scripts.common.recipe import OptimRecipe, ScheduleRecipe
from scripts.common.schedule import FALLS, lr_factor
from tests.tiny import tiny_config


@pytest.mark.parametrize("kind", FALLS)
@pytest.mark.parametrize("warmup", [0.0, 0.2])
def test_it_rises_to_the_peak_and_falls_to_the_end(kind, warmup):
    schedule = ScheduleRecipe(kind=kind, warmup=warmup, final=0.1)
    factors = [lr_factor(step, 50, schedule) for step in range(50)]
    rise = round(warmup * 50)
    assert factors[rise] == max(factors) == 1
    assert all(0 < early < late for early, late in pairwise(factors[: rise + 1]))
    assert all(late <= early for early, late in pairwise(factors[rise:]))
    after = lr_factor(50, 50, schedule)
    assert after == pytest.approx(1 if kind == "constant" else 0.1) and factors[-1] >= after
    assert factors[-1] < 0.13 or kind == "constant"


def test_the_linear_fall_is_transformers_s():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = get_linear_schedule_with_warmup(optimizer, 0, 40)
    schedule = ScheduleRecipe(kind="linear", warmup=0.0)
    for step in range(40):
        assert lr_factor(step, 40, schedule) == pytest.approx(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()


@pytest.mark.parametrize("total", [1, 2, 3])
def test_very_short_runs(total):
    factors = [lr_factor(step, total, ScheduleRecipe(warmup=0.5)) for step in range(total)]
    assert all(0 < factor <= 1 for factor in factors)


def test_only_weights_of_layers_decay_and_every_parameter_is_in_one_group():
    options = {"num_register_tokens": 4, "layerscale_value": 0.1, "pooling": "map", "position_embedding": "learned_2d"}
    model = ViTCustomForImageClassification(tiny_config(**options))
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    decayed, rest = [[names[id(p)] for p in group["params"]] for group in parameter_groups(model, 0.1)]
    assert sorted(decayed + rest) == sorted(names.values())
    assert all(name.endswith("weight") and "norm" not in name for name in decayed)
    kept = ("bias", "gamma", "cls_token", "register_tokens", "probe", "rows", "columns", "prefix")
    assert all(name.endswith(kept) or "norm" in name for name in rest)


def test_frozen_parameters_are_left_out():
    model = ViTCustomForImageClassification(tiny_config())
    model.vit.requires_grad_(False)
    groups = build_optimizer(model, OptimRecipe()).param_groups
    assert [len(group["params"]) for group in groups] == [1, 1]
    assert [group["weight_decay"] for group in groups] == [0.05, 0.0]
