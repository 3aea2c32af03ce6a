"""The learning rate, as a pure function of the optimiser step."""

import math

from scripts.common.recipe import ScheduleRecipe


# What is left of the peak after a share `t` of the fall, before `final` is laid under it.
FALLS = {
    "cosine": lambda t: (1 + math.cos(math.pi * t)) / 2,
    "linear": lambda t: 1 - t,
    "constant": lambda t: 1.0,
}


def lr_factor(step: int, total_steps: int, schedule: ScheduleRecipe) -> float:
    """
    Share of the peak learning rate at optimiser step `step`, of 0 to `total_steps - 1`.

    It rises linearly over the first `warmup` of the steps and falls towards `final`, which the step after the last would have:
    no step is lost to a rate of 0.
    """
    warmup_steps = round(schedule.warmup * total_steps)
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    t = (step - warmup_steps) / (total_steps - warmup_steps)
    return schedule.final + (1 - schedule.final) * FALLS[schedule.kind](t)
