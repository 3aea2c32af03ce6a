"""
A folder of one's own pictures, a folder for each class.

Source: fine-tuning as in Steiner et al. 2021 (arXiv 2106.10270, appendix B): a short schedule, little augmentation.
Expected: depends on the pictures; well above chance from `model.pretrained`, less from random weights.
Hardware: one GPU; a few thousand pictures take minutes. A small set also trains on a CPU.
Command: python -m scripts.train --recipe finetune --set data.train=FOLDER --set model.pretrained=MODEL
"""

from scripts.common.recipe import AugmentRecipe, ModelRecipe, OptimRecipe, Recipe, RunRecipe, ScheduleRecipe


RECIPE = Recipe(
    model=ModelRecipe(variant="Ti/16"),
    augment=AugmentRecipe(crop_scale=(0.4, 1.0), policy="trivial_augment"),
    optim=OptimRecipe(batch_size=32, lr=2e-4, weight_decay=0.05),
    schedule=ScheduleRecipe(kind="cosine", warmup=0.1),
    run=RunRecipe(folder="runs/finetune", epochs=20),
)
