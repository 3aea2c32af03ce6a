"""
`vit_custom`: one configurable Vision Transformer for the Hugging Face ecosystem.

Importing the package makes `AutoModel.from_pretrained` and its kin know the model type without remote code.
"""

from transformers import (
    AutoBackbone,
    AutoConfig,
    AutoImageProcessor,
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForMaskedImageModeling,
)

from .configuration_vit_custom import VARIANTS, ViTCustomConfig
from .image_processing_vit_custom import ViTCustomImageProcessor
from .modeling_vit_custom import (
    ViTCustomBackbone,
    ViTCustomForImageClassification,
    ViTCustomForMaskedImageModeling,
    ViTCustomModel,
    ViTCustomPreTrainedModel,
)
from .pictures_vit_custom import load_picture


__version__ = "0.1.0"

AUTO_MODELS = {
    AutoModel: ViTCustomModel,
    AutoModelForImageClassification: ViTCustomForImageClassification,
    AutoModelForMaskedImageModeling: ViTCustomForMaskedImageModeling,
    AutoBackbone: ViTCustomBackbone,
}


def register() -> None:
    """Makes transformers' Auto classes know ours, and what is saved carry the code."""
    AutoConfig.register(ViTCustomConfig.model_type, ViTCustomConfig, exist_ok=True)
    ViTCustomConfig.register_for_auto_class()
    for auto_class, model_class in AUTO_MODELS.items():
        auto_class.register(ViTCustomConfig, model_class, exist_ok=True)
        model_class.register_for_auto_class(auto_class.__name__)
    processors = {"torchvision": ViTCustomImageProcessor}
    AutoImageProcessor.register(ViTCustomConfig, image_processor_classes=processors, exist_ok=True)
    ViTCustomImageProcessor.register_for_auto_class()


register()

__all__ = [
    "VARIANTS",
    "ViTCustomBackbone",
    "ViTCustomConfig",
    "ViTCustomForImageClassification",
    "ViTCustomForMaskedImageModeling",
    "ViTCustomImageProcessor",
    "ViTCustomModel",
    "ViTCustomPreTrainedModel",
    "load_picture",
]
