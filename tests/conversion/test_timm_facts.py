"""What timm's files say about a model beyond its weights: read strictly, and asked for where only the weights are there."""

import json

import pytest
import timm
import torch
import torchvision

from conversion import FAMILIES, ConversionError, FactNeeded, import_checkpoint, import_to_folder
from conversion.families.base import Found
from conversion.families.timm import facts_of_bare
from conversion.families.timm_model import refuse_what_differs
from conversion.locate import open_source
from tests.conversion.originals import BARE, TIMM, TOLD, pth, timm_folder, timm_model
from tests.tiny import pictures


def shapes_of(model: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def found_of(model: torch.nn.Module, told: dict) -> Found:
    return Found(shapes_of(model), told=told)


def changed_folder(tmp_path, change) -> tuple:
    """A folder of timm whose `config.json` was changed."""
    folder = timm_folder(timm_model("vit_base_patch16_224"), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def setting(path: str, value):
    *tables, name = path.split(".")

    def change(config: dict) -> None:
        for table in tables:
            config = config[table]
        config[name] = value

    return change


@pytest.mark.parametrize(
    "name",
    [
        "checkpoint_path",
        "pretrained",
        "pretrained_cfg",
        "pretrained_cfg_overlay",
        "cache_dir",
        "scriptable",
        "block_fn",
    ],
)
def test_no_argument_that_opens_a_file_reaches_timm(name, tmp_path, monkeypatch):
    folder = changed_folder(tmp_path, lambda c: c["model_args"].update({name: str(tmp_path / "evil.pth")}))
    monkeypatch.setattr(torch, "load", lambda *a, **k: pytest.fail("a file was opened"))
    monkeypatch.setattr(timm, "create_model", lambda *a, **k: pytest.fail("timm was called"))
    with pytest.raises(ConversionError, match=f"model_args has {name}="):
        import_checkpoint(folder)


@pytest.mark.parametrize(
    "name", ["local-dir:{}", "hf-hub:timm/vit_tiny", "hf_hub:a/b", "{}/timm", "a/b", "vit_nowhere", "", "*"]
)
def test_an_architecture_is_a_name_that_timm_knows(name, tmp_path, monkeypatch):
    folder = changed_folder(tmp_path, setting("architecture", name.format(tmp_path)))
    monkeypatch.setattr(timm, "create_model", lambda *a, **k: pytest.fail("timm was called"))
    with pytest.raises(ConversionError, match="architecture|several families"):
        import_checkpoint(folder)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("architecture", 5), ("architecture", ["vit_base_patch16_224"]), ("model_args", 5), ("model_args", "a"), ("model_args", []),
        ("model_args.depth", "x"), ("model_args.depth", -1), ("model_args.depth", 10**9), ("model_args.depth", True),
        ("model_args.num_heads", "x"), ("model_args.num_heads", 0), ("model_args.num_heads", {}), ("model_args.mlp_ratio", [[]]),
        ("model_args.norm_layer", "os.system"), ("model_args.act_layer", {"a": 1}), ("model_args.img_size", "x"),
        ("pretrained_cfg", 5), ("pretrained_cfg", "x"), ("pretrained_cfg.input_size", 5), ("pretrained_cfg.mean", "x"),
        ("pretrained_cfg.mean", [1]), ("pretrained_cfg.mean", ["a"] * 3), ("pretrained_cfg.std", 5), ("pretrained_cfg.std", [0] * 3),
        ("pretrained_cfg.crop_pct", "x"), ("pretrained_cfg.crop_pct", -1), ("pretrained_cfg.crop_pct", 3),
        ("pretrained_cfg.crop_mode", 5), ("pretrained_cfg.crop_mode", "border"), ("pretrained_cfg.interpolation", 5),
        ("pretrained_cfg.interpolation", "random"), ("label_names", 5), ("label_names", "abcde"), ("label_names", [1, 2, 3, 4, 5]),
        ("label_names", ["a"]), ("num_classes", "x"), ("global_pool", 5),
        ("global_pool", "max"), ("model_cfg", 5), ("model_cfg", {"vision_cfg": 5}),
        ("model_cfg", {"vision_cfg": {"timm_model_name": 5}}),
    ],
)  # fmt: skip
def test_a_malformed_description_is_named(path, value, tmp_path):
    folder = changed_folder(tmp_path, setting(path, value))
    with pytest.raises(ConversionError):
        import_to_folder(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_description_without_pixels_has_timm_s_own(tmp_path):
    folder = changed_folder(
        tmp_path, lambda c: [c["pretrained_cfg"].pop(name, None) for name in ("mean", "std", "crop_pct")]
    )
    _, processor, _ = import_checkpoint(folder)
    expected = timm.data.resolve_data_config(pretrained_cfg={"input_size": (3, 32, 32)})
    assert list(processor.image_mean) == list(expected["mean"]) and list(processor.image_std) == list(expected["std"])
    assert processor.crop_pct == expected["crop_pct"]


def test_bare_weights_without_positions_are_no_guess(tmp_path):
    for name in ("dinov3", "dinov3-bias", "dinov3-swiglu"):
        architecture, options = TIMM[name]
        folder = tmp_path / name
        folder.mkdir()
        source = pth()(timm_model(architecture, **options), folder)
        with pytest.raises(ConversionError, match=r"without pos_embed .* config\.json"):
            import_checkpoint(source, family="timm", set={**TOLD, **BARE})
    state = dict(timm_model("vit_base_patch16_224").state_dict())
    del state["pos_embed"]
    torch.save(state, tmp_path / "none.pth")
    for family in ("timm", "deit", "mae", "dino", None):
        with pytest.raises(ConversionError, match="pos_embed|none.pth"):
            import_checkpoint(tmp_path / "none.pth", family=family, set={**TOLD, **BARE})


@pytest.mark.parametrize("name", ["clip", "clip-quickgelu", "siglip", "siglip2-tanh", "siglip-gap", "registers-gap"])
def test_the_activation_is_asked_for_where_bare_weights_leave_it_open(name, tmp_path):
    architecture, options = TIMM[name]
    their = timm_model(architecture, **options)
    source = pth()(their, tmp_path)
    request = {"family": "timm", "set": {**TOLD, **BARE}}
    with pytest.raises(FactNeeded, match="--set hidden_act="):
        import_checkpoint(source, **request)
    act = {"clip-quickgelu": "quick_gelu", "siglip2-tanh": "gelu_pytorch_tanh"}.get(name, "gelu")
    request["set"]["hidden_act"] = act
    model, _, _ = import_checkpoint(source, **request)
    with torch.no_grad():
        pixels = pictures(2, tuple(their.patch_embed.img_size))
        expected = their(pixels)
        assert (model(pixels).logits - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize(
    "options",
    [
        {"rope_rotate_half": False}, {"rope_grid_offset": 0.5}, {"rope_grid_indexing": "xy"}, {"rope_type": "cat"},
        {"rope_type": "mixed", "rope_rotate_half": False}, {"use_rot_pos_emb": False, "use_abs_pos_emb": True},
    ],
)  # fmt: skip
def test_a_rotation_that_is_not_dinov3_s_is_refused(options):
    """Or, where there is none, gives what timm gives."""
    their = timm_model("vit_small_patch16_dinov3", **options)
    if "use_abs_pos_emb" not in options:
        with pytest.raises(ConversionError, match="rotation"):
            import_checkpoint(their)
        return
    with pytest.raises(ConversionError, match="several|known|pos_embed"):
        import_checkpoint(their)


@pytest.mark.parametrize(("name", "value"), [("normalize_coords", "max"), ("min_period", 0.1), ("max_period", 9.0)])
def test_an_option_of_the_rotation_that_no_argument_sets_is_refused(name, value):
    their = timm_model("vit_small_patch16_dinov3")
    setattr(their.rope, name, value)
    with pytest.raises(ConversionError, match=f"rotation has {name}="):
        import_checkpoint(their)


def test_another_base_of_the_rotation_is_read():
    their = timm_model("vit_small_patch16_dinov3", rope_temperature=30.0)
    model, _, _ = import_checkpoint(their)
    with torch.no_grad():
        expected = their(pictures(2, (32, 32)))
        assert (model(pictures(2, (32, 32))).logits - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_norms_of_several_epsilons_are_refused():
    their = timm_model("vit_base_patch16_224")
    their.norm.eps = 1e-3
    with pytest.raises(ConversionError, match=r"several epsilons, 1e-06, 0\.001"):
        import_checkpoint(their)


def test_a_subclass_may_compute_anything_and_is_refused():
    class Other(timm.models.VisionTransformer):
        pass

    with pytest.raises(ConversionError, match="Other"):
        import_checkpoint(Other(img_size=32, patch_size=8, embed_dim=48, depth=1, num_heads=2))


def test_a_folder_s_own_description_wins_over_the_architecture_s(tmp_path):
    """`model_args` as timm writes them, one of each kind."""
    their = timm_model("vit_base_patch16_224", reg_tokens=2, global_pool="avg", act_layer="gelu_tanh", init_values=0.1)
    model, _, _ = import_checkpoint(timm_folder(their, tmp_path))
    assert model.config.num_register_tokens == 2 and model.config.hidden_act == "gelu_pytorch_tanh"
    assert len(open_source(tmp_path / "timm").containers[""].shapes) == len(their.state_dict())


def test_heads_of_bare_weights_are_timm_s_or_asked_for():
    """Of every architecture that is a plain ViT."""
    checked = 0
    for name in timm.list_models(["vit_*", "deit*", "flexivit*"]):
        with torch.device("meta"):
            model = timm.create_model(name)
        try:
            refuse_what_differs(model)
            facts = facts_of_bare(found_of(model, {"hidden_act": "gelu"}))
        except FactNeeded as error:
            assert error.field == "num_attention_heads", name
        except ConversionError:
            continue
        else:
            checked += 1
            assert facts["num_attention_heads"] == model.blocks[0].attn.num_heads, name
    assert checked > 60


SIZES = {"H": (1280, 5120, 32), "g": (1408, 6144, 40)}


@pytest.mark.parametrize("family", ["torchvision", "deit", "dino", "mae", "ijepa", "timm"])
@pytest.mark.parametrize("name", SIZES)
def test_heads_of_large_sizes(name, family):
    """16 in all of them; DINOv3's H+ of the same numbers has 20."""
    width, inner, depth = SIZES[name]
    with torch.device("meta"):
        if family == "torchvision":
            shapes = shapes_of(torchvision.models.VisionTransformer(28, 14, depth, 16, width, inner))
        else:
            head = {"num_classes": 5} if family in ("deit", "timm") else {"num_classes": 0}
            token = {"class_token": False, "global_pool": "avg", "fc_norm": False} if family == "ijepa" else {}
            model = timm.models.VisionTransformer(
                img_size=28,
                patch_size=14,
                embed_dim=width,
                depth=depth,
                num_heads=16,
                mlp_ratio=inner / width + 1e-6,
                **head,
                **token,
            )
            shapes = shapes_of(model)
    found = Found(shapes, layout="new" if family == "torchvision" else "")
    assert FAMILIES[family].facts(found)["num_attention_heads"] == 16 and found.assumed["num_attention_heads"] == 16


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda m: setattr(m.blocks[1], "attn", timm.layers.Attention(48, num_heads=2)), "blocks differ"),
        (lambda m: setattr(m.blocks[1].mlp, "act", torch.nn.ReLU()), "blocks differ"),
        (lambda m: setattr(m.patch_embed, "norm", torch.nn.LayerNorm(48)), "several epsilons|patch_embed.norm"),
        (lambda m: setattr(m.patch_embed.proj, "stride", (4, 4)), "overlap"),
        (lambda m: setattr(m.blocks[0].mlp, "norm", torch.nn.LayerNorm(72)), "blocks differ|mlp.norm"),
    ],
)  # fmt: skip
def test_a_live_model_that_was_changed_is_refused(change, named):
    model = timm_model("vit_base_patch16_224")
    change(model)
    with pytest.raises(ConversionError, match=named):
        import_checkpoint(model)


@pytest.mark.parametrize("options", [{"num_classes": 0}, {"reg_tokens": 2}])
def test_a_distilled_model_that_pools_otherwise_is_refused(options):
    with pytest.raises(ConversionError, match="distilled"):
        import_checkpoint(timm_model("deit_tiny_distilled_patch16_224", **options))


@pytest.mark.parametrize(
    ("path", "value"), [("global_pool", "avg"), ("num_features", 9), ("num_classes", 9)]
)  # fmt: skip
def test_what_the_description_says_twice_must_agree(path, value, tmp_path):
    """timm builds what `model_args` say."""
    folder = changed_folder(tmp_path, setting(path, value))
    with pytest.raises(ConversionError, match=f"config.json says {path}={value!r}"):
        import_checkpoint(folder)


def test_an_activation_that_is_none_of_pooling_is_named(tmp_path):
    with pytest.raises(ConversionError, match="pooling"):
        import_checkpoint(timm_model("vit_base_patch16_224", global_pool=""))


def test_what_was_taken_for_granted_is_said(tmp_path):
    source = pth()(timm_model("vit_base_patch16_224"), tmp_path)
    (note,) = import_checkpoint(source, family="timm", set={**TOLD, **BARE}).report.notes
    assert (
        all(f"{name}=" in note for name in ("hidden_act", "layer_norm_eps", "pooling", "image_size"))
        and "heads" not in note
    )
