"""A folder that nothing is known about but its configuration and weights: written in a family's own format, and read back."""

import pytest
import torch
from safetensors.torch import load_file

from conversion import export_checkpoint, import_to_folder
from conversion.families import FAMILIES
from modeling_vit_custom import ViTCustomConfig
from tests.conversion.test_accounting import SOURCES


@pytest.mark.parametrize("family", SOURCES)
def test_ours_to_theirs_to_ours(family, tmp_path):
    path, request = SOURCES[family](tmp_path)
    import_to_folder(path, tmp_path / "ours", **request)
    for name in ("conversion.json", "kept.safetensors"):
        (tmp_path / "ours" / name).unlink(missing_ok=True)
    export_checkpoint(tmp_path / "ours", tmp_path / "theirs", family)
    config = ViTCustomConfig.from_pretrained(tmp_path / "ours")
    told = {name: getattr(config, name) for name in FAMILIES[family].asked}
    import_to_folder(tmp_path / "theirs", tmp_path / "again", family=family, set=told)
    ours, again = (load_file(tmp_path / folder / "model.safetensors") for folder in ("ours", "again"))
    assert ours.keys() == again.keys() and all(torch.equal(ours[name], again[name]) for name in ours)
    assert all(ours[name].dtype == again[name].dtype for name in ours)
    back = ViTCustomConfig.from_pretrained(tmp_path / "again")
    back.id2label = config.id2label
    assert back == config
