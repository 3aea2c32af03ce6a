"""Accuracy and loss of a model on labelled pictures: sums and counts, divided once."""

from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader


TOP = 5


@dataclass(frozen=True)
class Metrics:
    """Sums over `count` pictures."""

    count: int = 0
    loss_sum: float = 0.0
    correct: int = 0
    correct_top: int = 0
    classes: int = 0

    def __add__(self, other: "Metrics") -> "Metrics":
        return Metrics(
            self.count + other.count,
            self.loss_sum + other.loss_sum,
            self.correct + other.correct,
            self.correct_top + other.correct_top,
            other.classes,
        )

    def summary(self) -> dict[str, float]:
        """Means; top-5 accuracy only where there are more than five classes."""
        means = {"loss": self.loss_sum / self.count, "accuracy": self.correct / self.count}
        if self.classes > TOP:
            means[f"top{TOP}_accuracy"] = self.correct_top / self.count
        return {**means, "pictures": self.count}


def measure(logits: Tensor, labels: Tensor) -> Metrics:
    """The sums of one batch: logits (B, classes), labels (B,)."""
    best = logits.topk(min(TOP, logits.shape[1])).indices
    hits = best == labels[:, None]
    losses = F.cross_entropy(logits.float(), labels, reduction="sum")
    return Metrics(len(labels), losses.item(), int(hits[:, 0].sum()), int(hits.sum()), logits.shape[1])


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader, accelerator: Accelerator) -> Metrics:
    """
    Metrics over all pictures of a prepared `loader`, the same in every process; the copies that fill up the last batch
    across processes are not counted.
    """
    was_training = model.training
    model.eval()
    total = Metrics()
    for batch in loader:
        with accelerator.autocast():
            logits = model(pixel_values=batch["pixel_values"]).logits
        total += measure(*accelerator.gather_for_metrics((logits, batch["labels"])))
    model.train(was_training)
    return total
