"""The model card of an imported checkpoint."""

import re
from pathlib import Path

from huggingface_hub import ModelCard, ModelCardData

from conversion.records import Report
from modeling_vit_custom import ViTCustomPreTrainedModel


TEXT = """---
{metadata}
---

# {name}

A `vit_custom` model with {parameters:,} parameters, converted from a checkpoint of another library; it computes what that
library computes.

| | |
| --- | --- |
| family | {title} (`{family}`) |
| source | {files} |
| size | {size} pixels, patches of {patch} |

```python
from transformers import AutoImageProcessor, {auto}

model = {auto}.from_pretrained("OWNER/NAME", trust_remote_code=True)
processor = AutoImageProcessor.from_pretrained("OWNER/NAME", trust_remote_code=True)
```

`python -m conversion export FOLDER OUT --to {family}` writes it back.
{notes}
"""


def escape(text: str) -> str:
    """Text that Markdown and HTML leave as it is."""
    return re.sub(r"([\\`*_{}\[\]<>()#+!|~$&])", r"\\\1", text)


def write_card(path: Path, model: ViTCustomPreTrainedModel, report: Report, title: str) -> None:
    """Writes the card: family, the SHA-256 of each source file, size and use."""
    config = model.config
    classifies = bool(config.num_labels)
    data = ModelCardData(
        library_name="transformers",
        pipeline_tag="image-classification" if classifies else "image-feature-extraction",
        tags=[config.model_type],
    )
    text = TEXT.format(
        metadata=data.to_yaml(),
        name=escape(" ".join(Path(report.source).stem.split())),
        parameters=sum(p.numel() for p in model.parameters()),
        title=title,
        family=report.family,
        files="<br>".join(f"{escape(name)}, SHA-256 `{sha}`" for name, sha in report.sha256.items()),
        size=config.image_size,
        patch=config.patch_size,
        auto="AutoModelForImageClassification" if classifies else "AutoModel",
        notes="".join(f"\n- {escape(note)}" for note in report.notes),
    )
    ModelCard(text).save(path)
