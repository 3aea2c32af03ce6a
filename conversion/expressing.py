"""Whether a family can say what a model is: what would be written is read back, as a reader would who knows nothing else."""

from huggingface_hub.errors import StrictDataclassError

from conversion.errors import ConversionError, FactNeeded
from conversion.families import Family
from conversion.families.base import Found
from conversion.ours import Ours
from conversion.records import PROCESSOR_FIELDS
from modeling_vit_custom import ViTCustomConfig, ViTCustomImageProcessor
from modeling_vit_custom.configuration_vit_custom import pair


# Fields that don't change what a model computes: of training and initialisation, and of a backbone.
FREE = {
    "attention_probs_dropout_prob", "hidden_dropout_prob", "drop_path_rate", "patch_drop_rate", "label_smoothing", "weight_init",
    "zero_init_head", "initializer_range", "apply_layernorm", "layerscale_value", "pixel_mean", "pixel_std",
}  # fmt: skip
COMPARED = (set(ViTCustomConfig.__annotations__) & ViTCustomConfig.field_names()) - FREE


# Fields that a kind of position doesn't read.
UNUSED = {
    "none": {"position_resampling", "sincos_frequencies", "rope_theta", "prefix_positions"},
    "learned": {"sincos_frequencies", "rope_theta"},
    "sincos_2d": {"position_resampling", "rope_theta", "prefix_positions"},
    "rope_2d": {"position_resampling", "sincos_frequencies", "prefix_positions"},
}


SIZES = ("image_size", "patch_size")


def check_expressed(family: Family, config: ViTCustomConfig, found: Found) -> None:
    """
    Compares what a reader would find with `config`.

    Raises:
        `ConversionError`: naming the field that the family can't express.
    """
    if not family.recognise(found):
        raise ConversionError(
            f"{family.name} cannot express this model: what it would write is not its own kind of file"
        )
    back = read_back(family, found, config)
    unread = UNUSED.get(config.position_embedding, set()) | (
        set() if config.num_prefix_tokens else {"prefix_positions"}
    )
    for name in sorted(COMPARED - unread):
        ours, again = getattr(config, name), getattr(back, name)
        if (pair(ours) != pair(again)) if name in SIZES else (ours != again):
            hint = f"; --{name.replace('_', '-')} {again} writes it so" if name == "position_resampling" else ""
            raise ConversionError(f"{family.name} cannot express {name}={ours!r}; a file of it means {again!r}{hint}")


def read_back(family: Family, found: Found, config: ViTCustomConfig) -> ViTCustomConfig:
    """
    What a reader of the file takes it for, who is told what it asks for, and the size where no table says it or where the
    picture is no square, which `notes_of` says.
    """
    if config.position_embedding != "learned" or is_to_be_told(family, found, config):
        found.told["image_size"] = config.image_size
    try:
        facts = family.facts(found)
        return ViTCustomConfig(**{**facts, **{n: found.told[n] for n in family.unsaid(found) if n in found.told}})
    except FactNeeded as error:
        if error.field in found.told:
            reason = str(error).partition("; say")[0]
            raise ConversionError(f"{family.name} cannot express this model: {reason}") from error
        found.told[error.field] = getattr(config, error.field)
        return read_back(family, found, config)
    except (ValueError, TypeError, StrictDataclassError) as error:
        raise ConversionError(f"{family.name} cannot express this model: {' '.join(str(error).split())}") from error


def is_to_be_told(family: Family, found: Found, config: ViTCustomConfig) -> bool:
    """Whether a reader can't know the size, since it is no square."""
    return "image_size" in family.unsaid(found) and len({*pair(config.image_size)}) > 1


def notes_of(family: Family, ours: Ours, found: Found) -> list[str]:
    """What a file without tables can't hold: the sides of a rectangle, pixels that are not the family's own, the names of classes."""
    notes, config = [], ours.config
    if is_to_be_told(family, found, config):
        height, width = pair(config.image_size)
        notes.append(f"not in the file: the size; a reader must be told --set image_size={height},{width}")
    if ours.processor is not None and (changed := changed_pixels(family, ours, found)):
        notes.append(f"not in the file: pixels, which differ from those of {family.name}: {', '.join(changed)}")
    if config.num_labels and list(config.id2label.values()) != [f"LABEL_{i}" for i in range(config.num_labels)]:
        notes.append("not in the file: the names of the classes")
    return notes


def changed_pixels(family: Family, ours: Ours, found: Found) -> list[str]:
    """The fields of the image processor that are not as the family has them, and how it has them."""
    try:
        theirs = ViTCustomImageProcessor.for_model(ours.config, **family.pixels(found, ours.config)).to_dict()
    except ConversionError:  # the family asks for them
        return []
    mine = ours.processor.to_dict()
    both = [(name, mine.get(name), theirs.get(name)) for name in sorted(PROCESSOR_FIELDS)]
    return [f"{name}={value!r} ({other!r})" for name, value, other in both if value != other]
