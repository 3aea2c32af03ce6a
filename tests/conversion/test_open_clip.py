"""OpenCLIP's towers by its own code: what `open_clip_config.json` says is read or refused, and pixels are its transform."""

import json
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
import transformers
from open_clip import factory
from open_clip import model as open_clip_model
from open_clip import transform as open_clip_transform
from PIL import Image
from safetensors.torch import save_file
from sklearn.datasets import load_sample_images
from torch import nn

from conversion import ConversionError, FactNeeded, export_checkpoint, import_checkpoint, import_to_folder
from conversion.families.clip import OPEN_CLIP_HEADS
from conversion.locate import open_source
from conversion.verify import verify
from modeling_vit_custom import ViTCustomModel
from tests.tiny import pictures, randomise


TINY = {"image_size": 32, "patch_size": 8, "width": 48, "layers": 2, "head_width": 12, "mlp_ratio": 1.5}
TOWERS = {
    "plain": {},
    "heads": {"head_width": 24},
    "layerscale": {"ls_init_value": 0.1},
    "rectangle": {"image_size": [24, 40]},
    "clipa": {"no_ln_pre": True, "pool_type": "avg", "final_ln_after_pool": True},
    "average": {"pool_type": "avg"},
    "norm-last": {"final_ln_after_pool": True},
    "tanh": {"act_kwargs": {"approximate": "tanh"}},
    "eps": {"norm_kwargs": {"eps": 1e-3}},
    "sincos": {"pos_embed_type": "sin_cos_2d"},
    "training": {"patch_dropout": 0.5, "output_tokens": False, "timm_drop": 0.0},
}
PHOTOS = [Image.fromarray(photo) for photo in load_sample_images().images]


def tower(vision: dict, quick_gelu: bool = False) -> nn.Module:
    return randomise(open_clip_model._build_vision_tower(20, vision, quick_gelu).eval(), scale=0.3)


def folder_of(path: Path, their: nn.Module, vision: dict, preprocess: dict | None = None, **model) -> Path:
    """As `open_clip.push_to_hf_hub` writes it."""
    path.mkdir(parents=True, exist_ok=True)
    state = {f"visual.{name}": tensor.contiguous() for name, tensor in their.state_dict().items()}
    save_file({**state, "logit_scale": torch.ones(())}, path / "open_clip_model.safetensors")
    config = {"model_cfg": {"embed_dim": 20, "vision_cfg": vision, "text_cfg": {"layers": 2}, **model}}
    config["preprocess_cfg"] = preprocess if preprocess is not None else {}
    (path / "open_clip_config.json").write_text(json.dumps(config))
    return path


def assert_same(their: nn.Module, model, size: tuple[int, int]) -> None:
    for dtype, limit in ((torch.float32, 1e-5), (torch.float64, 1e-9)):
        pixels = pictures(2, size).to(dtype)
        with torch.no_grad():
            expected, got = their.to(dtype)(pixels), model.to(dtype)(pixels).pooler_output
        assert (got - expected).abs().max() <= limit * max(1, expected.abs().max()), dtype


@pytest.mark.parametrize(
    ("name", "quick"), [(name, quick) for name in TOWERS for quick in (False, True) if not (quick and name == "tanh")]
)
def test_outputs_are_open_clip_s(name, quick, tmp_path):
    vision = {**TINY, **TOWERS[name]}
    their = tower(vision, quick)
    folder = folder_of(tmp_path / "theirs", their, vision, **({"quick_gelu": True} if quick else {}))
    model, _, report = import_checkpoint(folder)
    assert report.family == "open_clip" and report.left_behind == ["logit_scale"]
    size = vision["image_size"]
    assert_same(their, model, tuple(size) if isinstance(size, list) else (size, size))
    assert verify(folder).within


@pytest.mark.parametrize("name", TOWERS)
def test_a_folder_comes_back_as_a_file(name, tmp_path):
    vision = {**TINY, **TOWERS[name]}
    folder = folder_of(tmp_path / "theirs", tower(vision), vision)
    import_to_folder(folder, tmp_path / "ours")
    export_checkpoint(tmp_path / "ours", tmp_path / "back.pth", "open_clip")
    theirs, (back,) = open_source(folder).containers[""], open_source(tmp_path / "back.pth").containers.values()
    assert set(back.shapes) == set(theirs.shapes) - {"logit_scale"}
    assert all(torch.equal(back.read(key), theirs.read(key)) for key in back.shapes)


def test_a_tower_of_another_size_goes_out_with_its_configuration_brought_up_to_date(tmp_path):
    folder = folder_of(tmp_path / "theirs", tower(TINY), TINY)
    import_to_folder(folder, tmp_path / "ours", image_size=48)
    done = export_checkpoint(tmp_path / "ours", tmp_path / "back.pth", "open_clip")
    assert "with image_size=48" in done.notes[-1]
    state = torch.load(tmp_path / "back.pth", weights_only=True)
    their = open_clip_model._build_vision_tower(20, {**TINY, "image_size": 48}, False).eval()
    their.load_state_dict({name.removeprefix("visual."): tensor for name, tensor in state.items()})
    mine = ViTCustomModel.from_pretrained(tmp_path / "ours").eval()
    assert_same(their, mine, (48, 48))


PUBLIC = [
    name
    for name in open_clip.list_models()
    if "width" in (vision := open_clip.get_model_config(name)["vision_cfg"])
    and isinstance(vision["layers"], int)
    and not vision.get("attentional_pool")
]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_tower_has_its_heads_with_and_without_the_configuration(name, tmp_path):
    config = open_clip.get_model_config(name)
    vision = config["vision_cfg"]
    width, head_width = vision["width"], vision.get("head_width", 64)
    assert OPEN_CLIP_HEADS[width] == width // head_width
    small = {**vision, "image_size": 2 * vision["patch_size"], "layers": 1, "mlp_ratio": 0.25}
    their = randomise(
        open_clip_model._build_vision_tower(16, small, config.get("quick_gelu", False)).eval(), scale=0.1
    )
    model, _, _ = import_checkpoint(
        folder_of(tmp_path, their, small, quick_gelu=config.get("quick_gelu", False), embed_dim=16)
    )
    assert model.config.num_attention_heads == width // head_width
    with torch.no_grad():
        pixels = pictures(1, (small["image_size"],) * 2)
        expected = their(pixels)
        expected = expected[0] if isinstance(expected, tuple) else expected  # CoCa's gives the tokens too
        assert (model(pixels).pooler_output - expected).abs().max() <= 1e-5 * max(1, expected.abs().max())


def test_what_a_bare_file_leaves_open_is_asked_for(tmp_path):
    vision = {**TINY, "width": 1280, "head_width": 80, "layers": 1, "mlp_ratio": 0.1}
    their = tower(vision)
    torch.save({f"visual.{n}": t for n, t in their.state_dict().items()}, tmp_path / "h.pt")
    with pytest.raises(ConversionError, match="--family openai_clip or open_clip"):
        import_checkpoint(tmp_path / "h.pt")
    with pytest.raises(FactNeeded, match="hidden_act"):
        import_checkpoint(tmp_path / "h.pt", family="open_clip")
    model, _, _ = import_checkpoint(tmp_path / "h.pt", family="open_clip", set={"hidden_act": "gelu"})
    assert model.config.num_attention_heads == 16
    assert_same(their, model, (32, 32))
    clipa = {**TINY, **TOWERS["clipa"]}
    their = tower(clipa)
    torch.save(their.state_dict(), tmp_path / "clipa.pt")
    told = {"hidden_act": "gelu", "num_attention_heads": 4}
    with pytest.raises(FactNeeded, match="set num_attention_heads"):
        import_checkpoint(tmp_path / "clipa.pt", family="open_clip", set={"hidden_act": "gelu"})
    with pytest.raises(FactNeeded, match="set pooling"):
        import_checkpoint(tmp_path / "clipa.pt", family="open_clip", set=told)
    model, _, _ = import_checkpoint(tmp_path / "clipa.pt", family="open_clip", set={**told, "pooling": "mean"})
    assert_same(their, model, (32, 32))
    with pytest.raises(ConversionError, match=r"ln_pre"):
        import_checkpoint(tmp_path / "clipa.pt", family="openai_clip", set={"num_attention_heads": 4})


def test_a_repository_of_two_libraries(tmp_path):
    """As those of LAION on the Hub: each file goes with its own configuration."""
    folder = folder_of(tmp_path / "both", tower(TINY), TINY)
    sizes = {"image_size": 32, "patch_size": 8, "hidden_size": 48, "num_hidden_layers": 2, "intermediate_size": 72}
    config = transformers.CLIPVisionConfig(**sizes, num_attention_heads=4, projection_dim=20)
    model = randomise(transformers.CLIPVisionModelWithProjection(config))
    model.save_pretrained(folder)
    transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=32).save_pretrained(folder)
    with pytest.raises(
        ConversionError, match=r"model.safetensors and open_clip_model.safetensors, which differ.* --file"
    ):
        import_checkpoint(folder)
    for file, family in (
        ("model.safetensors", "transformers_clip_vision"),
        ("open_clip_model.safetensors", "open_clip"),
    ):
        assert import_checkpoint(folder, file=file).report.family == family


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"attentional_pool": True}, "attentional_pool"), ({"block_type": "custom"}, "block_type"), ({"qk_norm": True}, "qk_norm"),
        ({"scale_fc": True}, "scale_fc"), ({"pool_type": "none"}, "pool_type"), ({"act_kwargs": {"inplace": True}}, "act_kwargs"),
        ({"act_kwargs": 5}, "act_kwargs"), ({"norm_kwargs": {"bias": False}}, "norm_kwargs"), ({"norm_kwargs": {"eps": "x"}}, "eps"),
        ({"width": 96}, "width=96"), ({"width": "x"}, "width"), ({"layers": 3}, "layers=3"), ({"patch_size": 4}, "patch_size"),
        ({"mlp_ratio": 2.0}, "mlp_ratio"), ({"head_width": 7}, "heads of 7"), ({"head_width": 0}, "heads of 0"),
        ({"image_size": 64}, "64"), ({"image_size": "x"}, "image_size"), ({"no_ln_pre": True}, "embedding_norm|ln_pre"),
        ({"rotary": True}, "rotary"), ({"image_size": [32]}, "image_size"), ({"image_size": [32, "a"]}, "image_size"),
    ],
)  # fmt: skip
def test_what_the_configuration_says_otherwise_is_refused(change, named, tmp_path):
    folder = folder_of(tmp_path / "theirs", tower(TINY), {**TINY, **change})
    with pytest.raises(ConversionError, match=named):
        import_to_folder(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_the_configuration_says_is_not_told_otherwise(tmp_path):
    folder = folder_of(tmp_path, tower(TINY), TINY)
    for name, value in (
        ("hidden_act", "quick_gelu"),
        ("num_attention_heads", 2),
        ("pooling", "mean"),
        ("layer_norm_eps", 1e-6),
    ):
        with pytest.raises(ConversionError, match=f"--set {name}={value}: a file of open_clip means"):
            import_checkpoint(folder, set={name: value})


PIXELS = {
    "none": {},
    "squash": {"resize_mode": "squash", "mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.4]},
    "mobileclip": {"mean": [0, 0, 0], "std": [1, 1, 1], "interpolation": "bilinear", "resize_mode": "shortest"},
    "siglip": {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic", "resize_mode": "squash"},
    "one-number": {"mean": 0.5, "std": 0.25},
    "random": {"interpolation": "random"},
}


@pytest.mark.parametrize("size", [64, [64, 96]])
@pytest.mark.parametrize("name", PIXELS)
def test_pixels_are_open_clip_s(name, size, tmp_path):
    vision = {**TINY, "image_size": size}
    their = tower(vision)
    _, processor, _ = import_checkpoint(folder_of(tmp_path, their, vision, PIXELS[name]))
    merged = factory.merge_preprocess_dict(open_clip_transform.PreprocessCfg(), {**PIXELS[name], "size": size})
    transform = open_clip_transform.image_transform_v2(open_clip_transform.PreprocessCfg(**merged), is_train=False)
    std = torch.tensor(processor.image_std)[:, None, None]
    for photo in PHOTOS:
        expected = torch.as_tensor(np.asarray(transform(photo)))
        got = processor(photo, return_tensors="pt").pixel_values[0]
        assert got.shape == expected.shape and ((got - expected).abs() * std * 255).max() <= 1.01


@pytest.mark.parametrize(
    ("pixels", "named"),
    [
        ({"resize_mode": "longest"}, "longest"), ({"interpolation": "nearest"}, "nearest"), ({"mean": "x"}, "mean"),
        ({"mean": [0.5]}, "image_mean"), ({"std": [0, 0, 0]}, "std"), ({"resize_mode": 5}, "resize_mode"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("timm", [False, True])
def test_pixels_that_are_not_ours_are_refused(pixels, named, timm, tmp_path):
    vision = {"timm_model_name": "vit_tiny_patch16_224", "timm_pool": "token", "timm_proj": "none"} if timm else TINY
    folder = folder_of(tmp_path, tower(TINY), TINY, pixels)
    if timm:
        import timm as library

        their = library.create_model("vit_tiny_patch16_224", num_classes=0)
        state = {f"visual.trunk.{name}": tensor.contiguous() for name, tensor in their.state_dict().items()}
        save_file(state, folder / "open_clip_model.safetensors")
        config = {"model_cfg": {"vision_cfg": vision}, "preprocess_cfg": pixels}
        (folder / "open_clip_config.json").write_text(json.dumps(config))
    with pytest.raises(ConversionError, match=named):
        import_checkpoint(folder)


@pytest.mark.parametrize("name", PIXELS)
def test_a_tower_of_timm_has_open_clip_s_pixels(name, tmp_path):
    import timm

    their = timm.create_model("vit_tiny_patch16_224", num_classes=0, img_size=64)
    state = {f"visual.trunk.{name}": tensor.contiguous() for name, tensor in their.state_dict().items()}
    save_file(state, tmp_path / "open_clip_model.safetensors")
    vision = {"timm_model_name": "vit_tiny_patch16_224", "timm_pool": "token", "timm_proj": "none", "image_size": 64}
    config = {"model_cfg": {"vision_cfg": vision}, "preprocess_cfg": PIXELS[name]}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    _, processor, _ = import_checkpoint(tmp_path)
    merged = factory.merge_preprocess_dict(open_clip_transform.PreprocessCfg(), {**PIXELS[name], "size": 64})
    transform = open_clip_transform.image_transform_v2(open_clip_transform.PreprocessCfg(**merged), is_train=False)
    expected = torch.as_tensor(np.asarray(transform(PHOTOS[0])))
    got = processor(PHOTOS[0], return_tensors="pt").pixel_values[0]
    std = torch.tensor(processor.image_std)[:, None, None]
    assert ((got - expected).abs() * std * 255).max() <= 1.01
