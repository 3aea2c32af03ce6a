"""Changes on the way in: another number of classes, another size."""

from huggingface_hub.errors import StrictDataclassError
from torch import nn

from conversion.errors import ConversionError
from conversion.records import Report, Request
from modeling_vit_custom import ViTCustomForImageClassification, ViTCustomPreTrainedModel
from modeling_vit_custom.positions_vit_custom import resample_grid


def change(model: ViTCustomPreTrainedModel, request: Request, report: Report) -> None:
    """What was asked for beyond what the source is: another number of classes, another size."""
    config = model.config
    if request.num_labels is not None and request.num_labels != config.num_labels:
        if not isinstance(model, ViTCustomForImageClassification) or config.distillation_token:
            raise ConversionError(
                f"--num-labels {request.num_labels}: {report.source} has no single classifier to replace"
            )
        report.notes.append(
            f"a new head: {config.num_labels} classes become {request.num_labels}, from random weights"
        )
        names = request.labels or [f"LABEL_{index}" for index in range(request.num_labels)]
        if len(names) != request.num_labels:
            raise ConversionError(f"--num-labels {request.num_labels} but there are {len(names)} labels")
        try:
            config.id2label = dict(enumerate(names))
            config.validate_architecture()
        except (ValueError, StrictDataclassError) as error:
            raise ConversionError(f"--labels: {' '.join(str(error).split())}") from error
        model.num_labels, old = request.num_labels, model.classifier
        model.classifier = nn.Linear(old.in_features, request.num_labels, dtype=old.weight.dtype)
        model._init_weights(model.classifier)
    if request.image_size is not None and request.image_size != config.image_size:
        resize(model, request.image_size, report)


def resize(model: ViTCustomPreTrainedModel, image_size: int | list[int], report: Report) -> None:
    """Brings a model to `image_size`, its position table with the family's own operator."""
    config, position = model.config, model.base_model.embeddings.position
    old_size, old_grid = config.image_size, config.grid_size
    if config.position_embedding not in ("learned", "sincos_1d", "sincos_2d", "rope_2d", "none"):
        raise ConversionError(f"--image-size: a {config.position_embedding} table is not resized")
    try:
        config.image_size = image_size
        config.validate_architecture()
    except (ValueError, StrictDataclassError) as error:
        raise ConversionError(f"--image-size {image_size}: {' '.join(str(error).split())}") from error
    if config.position_embedding == "learned":
        table = resample_grid(position.grid.detach(), config.grid_size, config.position_resampling)
        position.grid = nn.Parameter(table.contiguous())
    report.told = {**report.told, "image_size": image_size}
    report.notes.append(
        f"size {old_size} -> {image_size}: grid {old_grid} -> {config.grid_size}, {config.position_resampling}"
    )
