"""timm, torchvision and what shares their code: outputs of the original, round trips, pixels, accounting."""

import json

import numpy as np
import pytest
import timm.data
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_sample_images
from torchvision import transforms
from torchvision.models import (
    VisionTransformer,
    ViT_B_16_Weights,
    ViT_B_32_Weights,
    ViT_H_14_Weights,
    ViT_L_16_Weights,
    ViT_L_32_Weights,
)
from torchvision.transforms._presets import ImageClassification

from conversion import FAMILIES, ConversionError, FactNeeded, export_checkpoint, import_checkpoint, import_to_folder
from conversion.locate import open_source
from conversion.table import markdown
from modeling_vit_custom import ViTCustomForImageClassification, ViTCustomImageProcessor, ViTCustomModel
from tests.conversion.originals import BARE, ORIGINALS, SIZES, TIMM, TOLD, pth, timm_folder, timm_model, vit
from tests.tiny import pictures, randomise, tiny_model


IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
PHOTOS = [Image.fromarray(photo) for photo in load_sample_images().images]


def ours(model, pixels: torch.Tensor) -> torch.Tensor:
    output = model(pixels)
    return output.pooler_output if isinstance(model, ViTCustomModel) else output.logits


@pytest.mark.parametrize("name", ORIGINALS)
def test_outputs_are_the_original_s(name, tmp_path):
    original = ORIGINALS[name]
    their = original.build()
    model, _, report = import_checkpoint(original.write(their, tmp_path), **original.request)
    assert report.family == original.family and not report.left_behind
    for dtype, limit in ((torch.float32, 1e-5), (torch.float64, 1e-9)):
        their, model = their.to(dtype), model.to(dtype)
        if dtype == torch.float64 and "dinov3" in name:
            limit = 1e-5  # the angles of timm are float32
        native = tuple(their.patch_embed.img_size) if hasattr(their, "patch_embed") else (32, 32)
        for size in original.sizes if dtype == torch.float32 else [native]:  # timm resamples in float32
            with torch.no_grad():
                pixels = pictures(2, size).to(dtype)
                expected, got = their(pixels), ours(model, pixels)
            assert (got - expected).abs().max() <= limit * max(1, expected.abs().max()), (size, dtype)


@pytest.mark.parametrize("name", ORIGINALS)
def test_the_file_comes_back_bit_for_bit(name, tmp_path):
    original = ORIGINALS[name]
    source = original.write(original.build(), tmp_path)
    report = import_to_folder(source, tmp_path / "ours", **original.request)
    export_checkpoint(tmp_path / "ours", tmp_path / "theirs", original.family)
    theirs = open_source(source).containers[report.container]
    (back,) = open_source(tmp_path / "theirs").containers.values()
    assert set(back.shapes) == set(theirs.shapes)
    for key in back.shapes:
        a, b = theirs.read(key), back.read(key)
        assert a.dtype == b.dtype and torch.equal(a, b), key
    again = import_to_folder(tmp_path / "theirs", tmp_path / "again", **original.request)
    first, second = (load_file(tmp_path / folder / "model.safetensors") for folder in ("ours", "again"))
    assert again.family == report.family and first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert (tmp_path / "ours/config.json").read_text() == (tmp_path / "again/config.json").read_text()


@pytest.mark.parametrize("name", sorted(TIMM))
def test_timm_loads_what_is_exported_to_it(name, tmp_path):
    """Built anew from our configuration, without the folder's record."""
    their = ORIGINALS[f"timm-{name}"].build()
    import_to_folder(timm_folder(their, tmp_path), tmp_path / "ours")
    (tmp_path / "ours/conversion.json").unlink()
    export_checkpoint(tmp_path / "ours", tmp_path / "timm2", "timm")
    model = timm.create_model(f"local-dir:{tmp_path / 'timm2'}", pretrained=True).eval()
    with torch.no_grad():
        pixels = pictures(2, tuple(their.patch_embed.img_size))
        assert (model(pixels) - their(pixels)).abs().max() <= 1e-5 * their(pixels).abs().max()


# ---------------------------------------------------------------------------------------------------------------------
# Pixels


def one_level(processor, transform, mean, std) -> float:
    """The largest difference in grey levels on the photographs."""
    worst = 0.0
    for photo in PHOTOS:
        theirs = torch.as_tensor(np.asarray(transform(photo)))
        got = processor(photo, return_tensors="pt").pixel_values[0]
        assert got.shape == theirs.shape
        worst = max(worst, ((got - theirs).abs() * torch.tensor(std)[:, None, None] * 255).max().item())
    return worst


@pytest.mark.parametrize("name", ["vit", "clip", "siglip", "dinov2", "deit3", "flexivit", "dinov3", "registers-gap"])
def test_pixels_are_timm_s(name, tmp_path):
    their = timm_model(TIMM[name][0], **{**TIMM[name][1], "img_size": 64})
    config = timm.data.resolve_model_data_config(their)
    config["input_size"] = (3, 64, 64)
    folder = timm_folder(their, tmp_path)
    transform = timm.data.create_transform(**config)
    _, processor, _ = import_checkpoint(folder)
    assert one_level(processor, transform, config["mean"], config["std"]) <= 1.01


WEIGHTS = [
    weights
    for size in (ViT_B_16_Weights, ViT_B_32_Weights, ViT_L_16_Weights, ViT_L_32_Weights, ViT_H_14_Weights)
    for weights in size
]
SEVERAL = {  # whose widths, patches and sizes are those of others too
    ViT_B_16_Weights.IMAGENET1K_V1: "bilinear", ViT_B_16_Weights.IMAGENET1K_SWAG_LINEAR_V1: "bicubic",
    ViT_L_16_Weights.IMAGENET1K_V1: "bilinear", ViT_L_16_Weights.IMAGENET1K_SWAG_LINEAR_V1: "bicubic",
}  # fmt: skip
WIDTHS = {"B": (768, 12), "L": (1024, 16), "H": (1280, 16)}


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_pixels_are_torchvision_s(weights, tmp_path):
    _, letter, patch, *_ = type(weights).__name__.split("_")
    width, heads = WIDTHS[letter]
    transform = weights.transforms()
    size = transform.crop_size[0]
    source = pth()(VisionTransformer(size, int(patch), 1, heads, width, 36, num_classes=3), tmp_path)
    told = {"num_attention_heads": heads}
    if weights in SEVERAL:
        with pytest.raises(FactNeeded, match="bilinear for IMAGENET1K_V1.*--set resample="):
            import_checkpoint(source, set=told)
        told["resample"] = SEVERAL[weights]
    _, processor, _ = import_checkpoint(source, set=told)
    assert one_level(processor, transform, transform.mean, transform.std) <= 1.01


def test_pixels_of_a_model_of_torchvision_that_is_not_public_are_its_references(tmp_path):
    _, processor, _ = import_checkpoint(pth()(vit(), tmp_path), set=TOLD)
    transform = ImageClassification(crop_size=32, resize_size=36)
    assert one_level(processor, transform, transform.mean, transform.std) <= 1.01


@pytest.mark.parametrize(("size", "resized"), [(32, 36), (224, 256), (256, 256), (448, 448)])
def test_pixels_of_mae_crop_nothing_above_224(size, resized, tmp_path):
    their = timm_model("vit_base_patch16_224", img_size=size, patch_size=32 if size > 32 else 8, global_pool="avg")
    _, processor, _ = import_checkpoint(pth("model")(their, tmp_path), family="mae", set=TOLD)
    transform = transforms.Compose([
        transforms.Resize(resized, interpolation=3), transforms.CenterCrop(size), transforms.ToTensor(),
        transforms.Normalize(*IMAGENET),
    ])  # fmt: skip
    assert one_level(processor, transform, *IMAGENET) <= 1.01


# ---------------------------------------------------------------------------------------------------------------------
# Accounting, facts, changes

FOLDERLESS = {
    "torchvision": (vit, {"set": TOLD}),
    "timm": (lambda: timm_model("vit_base_patch16_224"), {"family": "timm", "set": {**TOLD, **BARE}}),
}


@pytest.mark.parametrize("family", FOLDERLESS)
@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda w: w.update({"odd.weight": torch.ones(3)}), "odd.weight"),
        (
            lambda w: w.pop(next(n for n in w if (n.endswith("1.bias") and "norm" in n) or n.endswith("ln_1.bias"))),
            "bias",
        ),
        (
            lambda w: w.update({n: w[n][:-1] for n in list(w) if n.endswith(("norm.bias", "encoder.ln.bias"))}),
            "ln.bias|norm.bias",
        ),
    ],
    ids=["extra", "missing", "shape"],
)
def test_what_does_not_fit_is_named(family, damage, named, tmp_path):
    build, request = FOLDERLESS[family]
    weights = dict(build().state_dict())
    damage(weights)
    torch.save(weights, tmp_path / "weights.pth")
    with pytest.raises(ConversionError, match=named):
        import_to_folder(tmp_path / "weights.pth", tmp_path / "out", **request)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["weights.pth"]


def test_facts_that_are_not_in_the_file_are_asked_for(tmp_path):
    source = pth()(timm_model("vit_base_patch16_224"), tmp_path)
    with pytest.raises(ConversionError, match=r"--family timm or deit or dino|--family"):
        import_checkpoint(source)
    with pytest.raises(FactNeeded, match="num_attention_heads"):
        import_checkpoint(source, family="timm")
    with pytest.raises(FactNeeded, match="image_mean"):
        import_checkpoint(source, family="timm", set=TOLD)
    with pytest.raises(ConversionError, match="num_attention_hats"):
        import_checkpoint(source, family="timm", set={"num_attention_hats": 3})
    with pytest.raises(ConversionError, match="means 48; what the file or its library says"):
        import_checkpoint(source, family="timm", set={**TOLD, **BARE, "hidden_size": 96})


def test_a_live_model(tmp_path):
    their = timm_model("vit_base_patch16_224", reg_tokens=2)
    model, processor, _ = import_checkpoint(their)
    with torch.no_grad():
        assert (model(pictures(2, (32, 32))).logits - their(pictures(2, (32, 32)))).abs().max() < 1e-5
    assert list(processor.image_mean) == list(their.pretrained_cfg["mean"])


def test_labels_head_and_size_change_when_asked(tmp_path):
    source = pth()(vit(), tmp_path)
    request = {"set": TOLD}
    names = ["a", "b", "c", "d", "e"]
    assert list(import_checkpoint(source, labels=names, **request).model.config.id2label.values()) == names
    with pytest.raises(ConversionError, match="5 outputs but there are 4 labels"):
        import_checkpoint(source, labels=names[:4], **request)
    model, _, report = import_checkpoint(source, num_labels=3, **request)
    assert model(pictures(1, (32, 32))).logits.shape == (1, 3) and "3, from random" in report.notes[-1]
    assert import_checkpoint(source, num_labels=3, labels=["x", "y", "z"], **request).model.config.id2label[2] == "z"
    with pytest.raises(ConversionError, match="3 but there are 5 labels"):
        import_checkpoint(source, num_labels=3, labels=names, **request)
    model, _, report = import_checkpoint(source, drop_head=True, **request)
    assert isinstance(model, ViTCustomModel) and sorted(report.left_behind) == ["heads.head.bias", "heads.head.weight"]
    model, processor, report = import_checkpoint(source, image_size=[48, 24], **request)
    assert model.config.grid_size == (6, 3) and model.base_model.embeddings.position.grid.shape == (1, 6, 3, 48)
    assert processor(PHOTOS[0], return_tensors="pt").pixel_values.shape[2:] == (48, 24)
    with pytest.raises(ConversionError, match="multiple"):
        import_checkpoint(source, image_size=33, **request)


def test_what_a_family_cannot_express_is_refused_with_the_reason(tmp_path):
    for options, family, reason in (
        ({"pooling": "mean", "image_size": 32, "patch_size": 8}, "torchvision", "pooling='mean'"),
        ({"image_size": [32, 24], "patch_size": 8}, "torchvision", "no model for pictures of"),
        ({"image_size": 32, "patch_size": [4, 8]}, "torchvision", "no patches of 4 x 8"),
        ({"layer_norm_eps": 1e-5, "image_size": 32, "patch_size": 8}, "torchvision", "layer_norm_eps"),
        ({"num_register_tokens": 3}, "torchvision", "register_tokens"),
        ({"position_embedding": "learned_2d"}, "timm", "columns"),
        ({"hidden_act": "relu", "image_size": 32, "patch_size": 8}, "dino", "dino cannot express"),
    ):
        folder = tmp_path / f"{family}-{next(iter(options))}"
        tiny_model(**options).save_pretrained(folder)
        ViTCustomImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
        with pytest.raises(ConversionError, match=reason):
            export_checkpoint(folder, tmp_path / f"out-{family}-{next(iter(options))}", family)


def test_one_family_s_file_becomes_another_s(tmp_path):
    their = vit()
    import_to_folder(pth()(their, tmp_path), tmp_path / "ours", set=TOLD)
    with pytest.raises(ConversionError, match="hidden_act='gelu'"):
        export_checkpoint(tmp_path / "ours", tmp_path / "jax", "vit_jax")
    with pytest.raises(
        ConversionError, match="position_resampling='bicubic_align_corners'.* --position-resampling bicubic_antialias"
    ):
        export_checkpoint(tmp_path / "ours", tmp_path / "timm", "timm")
    export_checkpoint(tmp_path / "ours", tmp_path / "timm", "timm", position_resampling="bicubic_antialias")
    model = timm.create_model(f"local-dir:{tmp_path / 'timm'}", pretrained=True).eval()
    with torch.no_grad():
        expected = their(pictures(2, (32, 32)))
        assert (model(pictures(2, (32, 32))) - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_the_folder_says_where_it_came_from(tmp_path):
    source = pth()(vit(), tmp_path)
    report = import_to_folder(source, tmp_path / "ours", set=TOLD)
    assert {path.name for path in (tmp_path / "ours").iterdir()} >= {
        "README.md",
        "config.json",
        "preprocessor_config.json",
        "conversion.json",
    }
    card = (tmp_path / "ours/README.md").read_text()
    assert report.sha256["weights.pth"] in card and "torchvision" in card
    model = ViTCustomForImageClassification.from_pretrained(tmp_path / "ours")
    assert model.config.num_labels == 5


def test_the_card_shows_any_file_name(tmp_path):
    """A name that Markdown or HTML would read as something else."""
    name = "a|b_`c`_<img src=x>_[d](e)#.pth"
    pth()(vit(), tmp_path).rename(tmp_path / name)
    import_to_folder(tmp_path / name, tmp_path / "ours", set=TOLD)
    card = (tmp_path / "ours/README.md").read_text()
    assert r"a\|b\_\`c\`\_\<img src=x\>" in card and "<img" not in card.replace(r"\<img", "")


def test_types_stay_as_stored_unless_asked(tmp_path):
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        folder = tmp_path / str(dtype)
        folder.mkdir()
        source = pth()(vit().to(dtype), folder)
        model, _, _ = import_checkpoint(source, set=TOLD)
        assert {p.dtype for p in model.parameters()} == {dtype} and model.config.dtype == dtype
        assert {p.dtype for p in import_checkpoint(source, set=TOLD, dtype="float32").model.parameters()} == {
            torch.float32
        }


def test_every_family_has_a_row_in_the_table_and_a_test_of_each_kind():
    table = markdown()
    assert all(f"| `{name}` |" in table for name in FAMILIES)
    assert {"timm", "torchvision", "deit", "ijepa", "dino"} <= {original.family for original in ORIGINALS.values()}
    assert SIZES["embed_dim"] == 48


def test_one_of_several_encoders_is_chosen(tmp_path):
    """The teacher of a training checkpoint: two containers, or two prefixes of one."""
    teacher, student = (timm_model("vit_base_patch16_224", num_classes=0) for _ in range(2))
    with torch.no_grad():
        student.cls_token += 1
    states = [{f"backbone.{n}": t for n, t in m.state_dict().items()} for m in (teacher, student)]
    for state in states:
        state["head.mlp.0.weight"] = torch.ones(3, 3)
    torch.save(
        {"teacher": states[0], "student": {f"module.{n}": t for n, t in states[1].items()}, "epoch": 3},
        tmp_path / "a.pth",
    )
    both = {
        f"{key}.{n}": t
        for key, state in zip(("teacher", "student"), states, strict=True)
        for n, t in state.items()
        if "head" not in n
    }
    torch.save({"model": both}, tmp_path / "b.pth")
    for path, prefix in (("a.pth", ""), ("b.pth", "model.")):
        with pytest.raises(ConversionError, match=rf"--weights {prefix}student or {prefix}teacher"):
            import_checkpoint(tmp_path / path, family="dino", set=TOLD)
        for name, model in (("teacher", teacher), ("student", student)):
            request = {"family": "dino", "weights": f"{prefix}{name}", "set": TOLD}
            report = import_to_folder(tmp_path / path, tmp_path / f"{path}-{name}", **request)
            weights = load_file(tmp_path / f"{path}-{name}/model.safetensors")
            assert torch.equal(weights["embeddings.cls_token"], model.cls_token) and report.left_behind
        with pytest.raises(ConversionError, match="teacher"):
            import_checkpoint(tmp_path / path, family="dino", weights="pupil", set=TOLD)


def test_a_timm_tower_of_open_clip(tmp_path):
    their = timm.create_model("vit_tiny_patch16_224", num_classes=0, global_pool="avg", fc_norm=True)
    state = {
        f"visual.trunk.{name}": tensor.contiguous() for name, tensor in randomise(their.eval()).state_dict().items()
    }
    save_file(
        {**state, "text.ln.weight": torch.ones(3), "logit_scale": torch.ones(1)},
        tmp_path / "open_clip_model.safetensors",
    )
    tower = {"image_size": 224, "timm_model_name": "vit_tiny_patch16_224", "timm_pool": "avg", "timm_proj": "none"}
    pixels = {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic", "resize_mode": "squash"}

    def write(tower: dict) -> None:
        config = {"model_cfg": {"vision_cfg": tower}, "preprocess_cfg": pixels}
        (tmp_path / "open_clip_config.json").write_text(json.dumps(config))

    write(tower)
    model, processor, report = import_checkpoint(tmp_path)
    with torch.no_grad():
        expected = their(pictures(1, (224, 224)))
        assert (model(pictures(1, (224, 224))).pooler_output - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert sorted(report.left_behind) == ["logit_scale", "text.ln.weight"]
    assert processor(PHOTOS[0], return_tensors="pt").pixel_values.shape == (1, 3, 224, 224)
    write({**tower, "timm_model_name": "vit_small_patch16_224"})
    with pytest.raises(ConversionError, match="of another shape: cls_token"):
        import_checkpoint(tmp_path)


def test_what_was_changed_on_the_way_is_exported(tmp_path):
    folder = timm_folder(timm_model("vit_base_patch16_224"), tmp_path)
    import_to_folder(folder, tmp_path / "ours", num_labels=3, image_size=64)
    export_checkpoint(tmp_path / "ours", tmp_path / "timm2", "timm")
    model = timm.create_model(f"local-dir:{tmp_path / 'timm2'}", pretrained=True).eval()
    mine = ViTCustomForImageClassification.from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        expected = mine(pictures(1, (64, 64))).logits
        assert (model(pictures(1, (64, 64))) - expected).abs().max() <= 1e-5 * expected.abs().max()


STRANGERS = {
    "vit_tiny_r_s16_p8_224": "backbone",
    "vit_small_patch16_rope_224": "AttentionRope",
    "vit_base_patch16_rpn_224": "ResPostBlock",
    "vit_base_patch16_xp_224": "known family",
    "beit_base_patch16_224": "Beit",
    "samvit_base_patch16": "VisionTransformerSAM",
    "vit_small_patch16_18x2_224": "known family",
    "eva02_tiny_patch14_224": "RotaryEmbeddingCat",
    "vit_relpos_small_patch16_224": "VisionTransformerRelPos",
    "vit_dlittle_patch16_reg1_gap_256": "DiffAttention",
    "vit_intern300m_patch14_448": "norm.weight",
}


@pytest.mark.parametrize("architecture", STRANGERS)
def test_models_of_timm_that_are_no_plain_vit_are_refused(architecture):
    with torch.device("meta"):
        model = timm.create_model(architecture)
    with pytest.raises(ConversionError, match=STRANGERS[architecture]):
        import_checkpoint(model)


def test_a_pooling_over_prefix_tokens_is_refused():
    with pytest.raises(ConversionError, match="pool_include_prefix"):
        import_checkpoint(timm_model("vit_medium_patch16_reg4_gap_256", pool_include_prefix=True))
