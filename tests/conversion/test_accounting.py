"""Every family: what is left over, missing or of a wrong shape is named, and nothing is read before that is settled."""

import pytest

from conversion import FAMILIES, ConversionError
from conversion.importing import plan_import
from conversion.locate import open_source
from conversion.records import Request
from conversion.table import markdown
from tests.conversion.originals import ORIGINALS
from tests.conversion.test_golden import FIXTURES, REQUESTS, meta_of


def golden(name: str):
    case = next(path for path in FIXTURES if path.name == name)
    return lambda path: (case / meta_of(case)["file"], REQUESTS.get(name, {}))


def made(name: str):
    original = ORIGINALS[name]
    return lambda path: (original.write(original.build(), path), original.request)


# One source for each family.
SOURCES = {
    "vit_jax": golden("vit_jax_token"),
    "big_vision": golden("big_vision_scan_map_bf16"),
    "timm": made("timm-registers-gap"),
    "torchvision": made("torchvision"),
    "deit": made("deit-pth-distilled"),
    "dino": golden("facebook_dino_v1"),
    "dinov2": golden("facebook_dinov2_reg4"),
    "dinov3": golden("facebook_dinov3"),
    "mae": golden("facebook_mae_finetuned_gap"),
    "ijepa": made("ijepa-pth"),
    "openai_clip": golden("openai_clip_state_dict"),
    "open_clip": golden("openclip_quickgelu_pt"),
}


def test_the_table_lists_every_family_and_every_family_is_tested():
    transformers = {name for name in FAMILIES if name.startswith("transformers")}  # see test_transformers.py
    assert set(SOURCES) | transformers == set(FAMILIES)
    assert all(f"| `{name}` |" in markdown() for name in FAMILIES)


@pytest.mark.parametrize("family", SOURCES)
def test_what_does_not_fit_is_named(family, tmp_path):
    path, request = SOURCES[family](tmp_path)
    request = Request(**request)

    def planned():
        source = open_source(path)
        plan = plan_import(source, request)
        return source, plan

    _, plan = planned()
    assert plan.place.family.name == family
    vector = next(row.theirs for row in plan.rows if len(row.ours) == 1 and row.theirs.endswith(("bias", "scale")))
    full = plan.place.names[vector]
    extra = full.replace(vector, "odd/thing" if "/" in vector else "odd.thing")

    def damaged(change) -> str:
        source = open_source(path)
        (state,) = [s for s in source.containers.values() if full in s.shapes]
        change(state)
        with pytest.raises(ConversionError) as error:
            plan_import(source, request)
        return str(error.value)

    def add(state):
        state.shapes[extra], state.dtypes[extra] = (3,), state.dtypes[full]

    def widen(state):
        state.shapes[full] = (*state.shapes[full][:-1], state.shapes[full][-1] + 1)

    assert "odd" in damaged(add)
    assert vector in damaged(lambda state: state.shapes.pop(full))
    assert vector in damaged(widen) or str(plan.config.hidden_size + 1) in damaged(widen)
