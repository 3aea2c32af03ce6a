"""The model card of a run."""

from pathlib import Path

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from torch import nn

from conversion.card import escape
from scripts.common.data import Splits
from scripts.common.recipe import Recipe


TEXT = """---
{metadata}
---

# {name}

A `{model_type}` image classifier with {parameters:,} parameters that tells {classes} classes apart: {names}.

| split | pictures | accuracy | loss |
| --- | --- | --- | --- |
{results}

Trained on {pictures:,} pictures for {epochs:g} epochs with a batch of {batch_size} and a learning rate of {lr:g}; the
whole recipe is in `recipe.json` of the run.

```python
from transformers import pipeline

classify = pipeline("image-classification", model="OWNER/{name}", trust_remote_code=True)
classify("picture.jpg")
```
"""


def public_name(source: str) -> str:
    """A source by its name alone if it is a path here, which is nobody else's business."""
    path = Path(source).expanduser()
    return path.name if path.exists() else source


def write_card(path: Path, recipe: Recipe, model: nn.Module, splits: Splits, log: list[dict]) -> None:
    """Writes the card with the last result of each split in `log`."""
    name, last = Path(recipe.run.folder).name, {entry["split"]: entry for entry in log if entry["split"] != "train"}
    data_name = (
        Path(recipe.data.train).name if Path(recipe.data.train).exists() else recipe.data.train
    )  # no path of ours
    results = [
        EvalResult(
            task_type="image-classification", dataset_type=data_name, dataset_name=data_name,
            metric_type="accuracy", metric_value=entry["accuracy"], dataset_split=split,
        )
        for split, entry in last.items()
    ]  # fmt: skip
    base_model = recipe.model.pretrained and public_name(recipe.model.pretrained)
    data = ModelCardData(
        library_name="transformers", pipeline_tag="image-classification", tags=[model.config.model_type], model_name=name, base_model=base_model,
        eval_results=results,
    )  # fmt: skip
    rows = [f"| {s} | {e['pictures']} | {e['accuracy']:.4f} | {e['loss']:.4f} |" for s, e in last.items()]
    shown = ", ".join(escape(label) for label in splits.names[:20]) + (", ..." if len(splits.names) > 20 else "")
    text = TEXT.format(
        metadata=data.to_yaml(), name=name, model_type=model.config.model_type, parameters=sum(p.numel() for p in model.parameters()),
        classes=len(splits.names), names=shown, results="\n".join(rows), pictures=len(splits.train),
        epochs=recipe.run.epochs, batch_size=recipe.optim.batch_size, lr=recipe.optim.lr,
    )  # fmt: skip
    ModelCard(text).save(path)
