"""
The losses of image classification, one for each problem type.

Each gives the sum over the labels that count and their number, so that the mean over a batch does not depend on the parts in
which it is worked through.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from .configuration_vit_custom import ViTCustomConfig


IGNORED_LABEL = -100


def single_label_loss(logits: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Cross-entropy with class numbers (B,), of which -100 is left out, or soft targets (B, classes)."""
    if labels.is_floating_point():
        check_shape("soft targets", labels, logits.shape)
        total = F.cross_entropy(logits, labels.to(logits.dtype), label_smoothing=smoothing, reduction="sum")
        return total * labels.shape[1], count_of(labels)  # a row is one target, but as many numbers as classes
    check_shape("class numbers", labels, logits.shape[:1])
    labels = labels.long()
    counted = labels != IGNORED_LABEL
    check_range(labels, counted, 0, logits.shape[1] - 1)
    total = F.cross_entropy(logits, labels, label_smoothing=smoothing, ignore_index=IGNORED_LABEL, reduction="sum")
    return total, counted.sum()


def multi_label_loss(logits: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Binary cross-entropy with a 0, 1 or probability for each class (B, classes), of which -100 is left out."""
    check_shape("multi-label targets", labels, logits.shape)
    refuse_smoothing(smoothing)
    counted = labels != IGNORED_LABEL
    check_range(labels, counted, 0, 1)
    targets = torch.where(counted, labels, 0).to(logits.dtype)
    losses = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    return (losses * counted).sum(), counted.sum()


def regression_loss(logits: Tensor, labels: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Squared error with targets (B, outputs), or (B,) for one output; every number counts."""
    logits = logits[:, 0] if labels.ndim == 1 and logits.shape[1] == 1 else logits
    check_shape("regression targets", labels, logits.shape)
    refuse_smoothing(smoothing)
    return F.mse_loss(logits, labels.to(logits.dtype), reduction="sum"), count_of(labels)


LOSSES = {
    "single_label_classification": single_label_loss,
    "multi_label_classification": multi_label_loss,
    "regression": regression_loss,
}


def count_of(labels: Tensor) -> Tensor:
    """The number of elements, as a tensor that compiled graphs need not be specialised to."""
    return torch.ones_like(labels, dtype=torch.long).sum()


def refuse_smoothing(smoothing: float) -> None:
    """Raises `ValueError` for label smoothing where it has no meaning."""
    if smoothing:
        raise ValueError(
            f"label_smoothing={smoothing} belongs to problem_type='single_label_classification'; set it to 0"
        )


def check_shape(kind: str, labels: Tensor, shape: torch.Size) -> None:
    """Raises `ValueError` for labels that are not of `shape`, saying what kind of labels they were taken for."""
    if labels.shape != shape:
        raise ValueError(
            f"{kind} must be {tuple(shape)}, got {tuple(labels.shape)} of {labels.dtype}; config.problem_type and the "
            "type of the labels say which kind they are"
        )


def check_range(labels: Tensor, counted: Tensor, low: int, high: int) -> None:
    """Raises `ValueError` for labels outside low..high; on the CPU only, since a look at the values holds up a GPU."""
    if labels.device.type != "cpu" or torch.compiler.is_compiling():
        return
    wrong = labels[counted & ~((labels >= low) & (labels <= high))]
    if wrong.numel():
        raise ValueError(f"labels must be in {low}..{high}, got {wrong[0].item()}; see num_labels and problem_type")


def problem_type_of(config: ViTCustomConfig, labels: Tensor) -> str:
    """`config.problem_type`, or what the labels can only be; the configuration is left as it is."""
    if config.problem_type is not None:
        return config.problem_type
    if config.num_labels == 1:
        return "regression"
    if not labels.is_floating_point():
        return "multi_label_classification" if labels.ndim == 2 else "single_label_classification"
    raise ValueError(
        "labels that are floats may be soft targets or independent labels: set config.problem_type to "
        "'single_label_classification', 'multi_label_classification' or 'regression'"
    )
