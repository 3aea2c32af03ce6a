"""Checkpoints of other libraries in, exactly, and out again."""

from conversion.errors import ConversionError, FactNeeded
from conversion.exporting import export_checkpoint
from conversion.families import FAMILIES
from conversion.importing import Imported, import_checkpoint, import_to_folder
from conversion.records import Report


__all__ = [
    "FAMILIES",
    "ConversionError",
    "FactNeeded",
    "Imported",
    "Report",
    "export_checkpoint",
    "import_checkpoint",
    "import_to_folder",
]
