"""
The demonstration: a small ViT from random weights on scikit-learn's handwritten digits.

Source: scikit-learn's `load_digits`, 1,797 scans of 8 x 8 pixels; a fifth of them is the test split.
Expected: at least 97.5 % test accuracy.
Hardware: 2 CPU cores, under 4 minutes.
Command: python -m scripts.train --recipe digits
"""

from scripts.common.recipe import AugmentRecipe, DataRecipe, ModelRecipe, OptimRecipe, Recipe, RunRecipe


RECIPE = Recipe(
    model=ModelRecipe(
        variant=None,
        config={
            "image_size": 16,
            "patch_size": 4,
            "hidden_size": 64,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "intermediate_size": 128,
            "pooling": "mean",
            "weight_init": "jax",
            "drop_path_rate": 0.1,
            "label_smoothing": 0.1,
        },
    ),
    data=DataRecipe(train="sklearn:digits", workers=0),
    augment=AugmentRecipe(crop_scale=(0.7, 1.0), horizontal_flip=0.0, rotation=15.0),
    optim=OptimRecipe(batch_size=32, lr=2e-3, weight_decay=0.3, betas=(0.9, 0.95)),
    run=RunRecipe(folder="runs/digits", epochs=60, log_every=50, eval_epochs=3, save_epochs=10),
)
