"""Accuracy and loss of a model on labelled pictures: sums and a count, divided once."""

from collections.abc import Callable

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader


TOP = 5


def measure(logits: Tensor, labels: Tensor) -> Tensor:
    """Loss, hit and hit among the first five of each picture, (B, 3), of logits (B, classes) and labels (B,)."""
    hits = logits.topk(min(TOP, logits.shape[1])).indices == labels[:, None]
    losses = F.cross_entropy(logits.float(), labels, reduction="none")
    return torch.stack([losses, hits[:, 0], hits.any(dim=1)], dim=1)


@torch.no_grad()
def evaluate(
    model: nn.Module,
    loader: DataLoader,
    accelerator: Accelerator,
    normalise: Callable[[Tensor], Tensor],
) -> dict[str, float]:
    """
    Mean loss and accuracy over all pictures of a prepared `loader` and their number, the same in every process: the copies
    that fill up the last batch across processes don't count. Top-5 accuracy where there are more than five classes.
    """
    was_training, sums, count = model.training, torch.zeros(3, dtype=torch.float64), 0
    model.eval()
    for batch in loader:
        with accelerator.autocast():
            logits = model(pixel_values=normalise(batch["pixel_values"])).logits
        rows = accelerator.gather_for_metrics(measure(logits, batch["labels"]))
        sums, count = sums + rows.double().sum(dim=0).cpu(), count + len(rows)
    model.train(was_training)
    loss, accuracy, top_accuracy = (sums / count).tolist()
    top = {f"top{TOP}_accuracy": top_accuracy} if logits.shape[1] > TOP else {}
    return {"loss": loss, "accuracy": accuracy, **top, "pictures": count}
