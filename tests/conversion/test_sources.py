"""Every hostile or odd file and folder: read bit for bit, or refused by name; nothing in it runs, nothing is written."""

import argparse
import io
import json
import os
import pathlib
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save
from torch import Tensor, nn

from conversion import ConversionError, export_checkpoint, import_checkpoint, import_to_folder
from conversion.folders import read_json, whole_or_nothing


pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit")
State = dict[str, Tensor]
HEADS = {"num_attention_heads": 4}
FIXTURES = Path(__file__).parent / "fixtures"
MARKER = "ran"  # the file that code of a checkpoint would write


def random_state(seed: int) -> State:
    torch.manual_seed(seed)
    model = torchvision.models.VisionTransformer(32, 8, 2, 4, 48, 80, num_classes=5)
    return {name: torch.randn(tensor.shape) for name, tensor in model.state_dict().items()}


def random_arrays() -> dict[str, np.ndarray]:
    """A checkpoint of vit_jax: width 48, 4 heads, 2 blocks."""
    attention = {f"{x}/{leaf}": shape for x in ("query", "key", "value") for leaf, shape in
                 (("kernel", (48, 4, 12)), ("bias", (4, 12)))}  # fmt: skip
    attention |= {"out/kernel": (4, 12, 48), "out/bias": (48,)}
    block = {f"MultiHeadDotProductAttention_1/{name}": shape for name, shape in attention.items()}
    block |= {f"LayerNorm_{i}/{leaf}": (48,) for i in (0, 2) for leaf in ("scale", "bias")}
    block |= {"MlpBlock_3/Dense_0/kernel": (48, 80), "MlpBlock_3/Dense_0/bias": (80,)}
    block |= {"MlpBlock_3/Dense_1/kernel": (80, 48), "MlpBlock_3/Dense_1/bias": (48,)}
    shapes = {f"Transformer/encoderblock_{i}/{name}": shape for i in (0, 1) for name, shape in block.items()}
    shapes |= {"cls": (1, 1, 48), "Transformer/posembed_input/pos_embedding": (1, 17, 48)}
    shapes |= {"embedding/kernel": (8, 8, 3, 48), "embedding/bias": (48,), "head/kernel": (48, 5), "head/bias": (5,)}
    shapes |= {"Transformer/encoder_norm/scale": (48,), "Transformer/encoder_norm/bias": (48,)}
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


STATE, OTHER, ARRAYS = random_state(1), random_state(2), random_arrays()
FUSED = "encoder.layers.encoder_layer_1.self_attention.in_proj_weight"
KERNEL = "Transformer/encoderblock_1/MlpBlock_3/Dense_0/kernel"


class Evil:
    """Writes the marker when it is unpickled."""

    def __init__(self, folder: Path):
        self.command = f"touch '{folder / MARKER}'"

    def __reduce__(self):
        return os.system, (self.command,)


class Windows:
    """A path, pickled under Windows."""

    def __reduce__(self):
        return pathlib.WindowsPath, ("C:", "data")


# ---------------------------------------------------------------------------------------------------------------------
# Files


def torch_bytes(content, **options) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream, **options)
    return stream.getvalue()


def npz_bytes(arrays: dict, writer: Callable = np.savez) -> bytes:
    stream = io.BytesIO()
    writer(stream, **arrays)
    return stream.getvalue()


def rezip(content: bytes, change: dict[str, bytes | None], compression: int = zipfile.ZIP_STORED) -> bytes:
    """The archive with the members whose names end so replaced, left out (`None`) or, with others, added."""
    stream, rest = io.BytesIO(), dict(change)
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(stream, "w", compression) as new:
        for member in old.infolist():
            end = next((end for end in change if member.filename.endswith(end)), None)
            rest.pop(end, None)
            data = old.read(member) if end is None else change[end]
            if data is not None:
                new.writestr(member.filename, data)
        for name, data in rest.items():
            new.writestr(name, data)
    return stream.getvalue()


def with_header(content: bytes, change: Callable[[dict], object]) -> bytes:
    """A safetensors file with its header changed."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    changed = json.dumps(change(header) or header).encode()
    return len(changed).to_bytes(8, "little") + changed + content[8 + length :]


def entry(name: str, **changes) -> Callable[[dict], None]:
    return lambda header: header[name].update(changes)


def npy(header: str, body: bytes = b"\0" * 64) -> bytes:
    padded = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded + body


def array_of(descr: str, shape: str) -> bytes:
    return npy(f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}")


def without(table: dict, part: str) -> dict:
    return {name: value for name, value in table.items() if part not in name}


def prefixed(before: str) -> State:
    return {before + name: tensor for name, tensor in STATE.items()}


def changed(**dtypes) -> State:
    return {name: tensor.to(**dtypes) for name, tensor in STATE.items()}


def holding_itself() -> dict:
    table = {"model": dict(STATE)}
    table["model"]["model"] = table
    return table


def shared_tables(depth: int = 60) -> dict:
    table = {"x": torch.zeros(1)}
    for _ in range(depth):
        table = {"a": table, "b": table}
    return {"model": STATE, "more": table}


def claims(content: bytes) -> bytes:
    """A file with a tensor of 7919 numbers, which then claims 2**31 - 1."""
    return content.replace(b"M" + (7919).to_bytes(2, "little"), b"J" + (2**31 - 1).to_bytes(4, "little"))


def pickle_of(content: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith("data.pkl")))


LONG = {**STATE, "heads.head.bias": torch.zeros(7919)}
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 346284714\n"
ST, PTH, NPZ = save(STATE, {"format": "pt"}), torch_bytes(STATE), npz_bytes(ARRAYS)
LEGACY = torch_bytes(STATE, _use_new_zipfile_serialization=False)
END = 8 + int.from_bytes(ST[:8], "little")  # of the header
TOP = next(iter(STATE))
EMPTY_TABLES = {"optimizer": {"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": [{"lr": 0.1}]}}

# What a file of this name holds; then nothing if its numbers are STATE, a type if they are in that type, or what names it.
PTH_CASES: dict[str, tuple] = {
    "plain": (STATE, None),
    "legacy": (LEGACY, None),
    **{f"under_{key}": ({key: STATE, "epoch": 3}, None) for key in (
        "model", "model_ema", "state_dict", "state_dict_ema", "module", "net", "teacher", "student", "params", "ema")},
    "nested": ({"state_dict": {"model": STATE}}, None),
    "under_and_prefixed": ({"teacher": prefixed("module.backbone.")}, None),
    **{f"before_{before}": (prefixed(before), None) for before in (
        "module.", "_orig_mod.", "_orig_mod.module.", "module._orig_mod.", "model.", "backbone.", "encoder.", "net.")},
    "bf16": (changed(dtype=torch.bfloat16), torch.bfloat16),
    "fp16": (changed(dtype=torch.float16), torch.float16),
    "fp64": (changed(dtype=torch.float64), torch.float64),
    "namespace": ({"model": STATE, "args": argparse.Namespace(lr=0.1, data=Path("data"))}, None),
    "numpy_scalar": ({"model": STATE, "best": np.float64(0.9), "step": np.int64(7)}, None),
    "pathlib": ({"model": STATE, "file": pathlib.PosixPath("a/b")}, None),
    "windows_path": ({"model": STATE, "file": Windows()}, None),
    "metrics": ({"model": STATE, "metrics": {"loss": torch.tensor(0.5), "note": "best"}, "lr": 0.1}, None),
    "metrics_on_top": ({"model": STATE, "loss": torch.tensor(0.5), "lr": 0.1, "epoch": 3}, None),
    "optimizer_beside": ({"model": STATE, **EMPTY_TABLES}, None),
    "parameters": ({name: nn.Parameter(tensor) for name, tensor in STATE.items()}, None),
    "strided": ({n: t.transpose(0, -1).contiguous().transpose(0, -1) for n, t in STATE.items()}, None),
    "holds_itself": (holding_itself(), None),
    "shared_tables": (shared_tables(), None),
    "epoch_on_top": ({**STATE, "epoch": 3}, None),
    "is_safetensors": (ST, None),
    "is_npz": (NPZ, None),
    "optimizer_only": (EMPTY_TABLES, "'optimizer'"),
    "two": ({"model": STATE, "model_ema": OTHER}, "model.*model_ema"),
    "two_by_prefix": ({**prefixed("student."), **prefixed("teacher.")}, "student.*teacher"),
    "evil": (lambda folder: torch_bytes({"model": STATE, "args": Evil(folder)}), "weights.pth.*system"),
    "evil_legacy": (lambda folder: torch_bytes({"args": Evil(folder)}, _use_new_zipfile_serialization=False),
                    "weights.pth.*system"),
    "evil_pickle": (lambda folder: pickle.dumps({"model": Evil(folder)}), "weights.pth"),
    "evil_pickle_2": (lambda folder: pickle.dumps(Evil(folder), 2), "weights.pth"),
    "evil_pickle_0": (lambda folder: pickle.dumps(Evil(folder), 0), "weights.pth"),
    "evil_in_script": (lambda folder: rezip(script_bytes(), {"data.pkl": pickle.dumps(Evil(folder))}), "weights.pth"),
    "cut": (PTH[: len(PTH) // 2], "weights.pth"),
    "cut_by_one": (PTH[:-1], "weights.pth"),
    "cut_legacy": (LEGACY[: len(LEGACY) // 2], "weights.pth"),
    "zero": (b"", "weights.pth is empty"),
    "lfs": (LFS, "weights.pth is a pointer of Git LFS"),
    "html": (b"<!DOCTYPE html><html>not found</html>", "weights.pth is no"),
    "one_byte": (b"P", "weights.pth is no"),
    "zip_of_text": (rezip(npz_bytes({}), {"a.txt": b"a"}), "weights.pth is a zip"),
    "empty_zip": (npz_bytes({}), "weights.pth"),
    "missing_key": (without(STATE, "encoder.ln.bias"), "missing in the file: encoder.ln.bias"),
    "missing_block": (without(STATE, "encoder_layer_0"), "weights.pth is no plain ViT.*encoder_layer_1"),
    "missing_middle": (without(STATE, "encoder_layer_1.mlp"), "encoder_layer_1.mlp.0.weight"),
    "extra_key": ({**STATE, "encoder.extra": torch.zeros(3)}, "encoder.extra"),
    "extra_block": ({**STATE, "encoder.layers.encoder_layer_2.ln_1.weight": torch.ones(48)}, "encoder_layer_2"),
    "extra_beside_prefix": ({**prefixed("model."), "odd.weight": torch.zeros(3)}, "odd.weight"),
    "wrong_shape": ({**STATE, FUSED: torch.zeros(144, 47)}, FUSED),
    "transposed": ({**STATE, FUSED: torch.zeros(48, 144)}, FUSED),
    "scalar": ({**STATE, "class_token": torch.tensor(1.0)}, "class_token"),
    "int8": (changed(dtype=torch.int8), "class_token is torch.int8"),
    "one_int64": ({**STATE, "encoder.ln.bias": torch.ones(48, dtype=torch.int64)}, "encoder.ln.bias is torch.int64"),
    "complex": ({**STATE, "encoder.ln.bias": torch.ones(48, dtype=torch.complex64)}, "encoder.ln.bias is torch.comp"),
    "float8": (changed(dtype=torch.float8_e4m3fn), "is torch.float8_e4m3fn"),
    "nan": ({**STATE, FUSED: torch.full((144, 48), torch.nan)}, f"{FUSED} holds values that are not finite"),
    "one_infinity": ({**STATE, "class_token": torch.tensor([[[*[0.0] * 47, -torch.inf]]])}, "class_token holds values"),
    "meta": ({**STATE, FUSED: torch.empty(144, 48, device="meta")}, FUSED),
    "sparse": ({**STATE, FUSED: STATE[FUSED].to_sparse()}, FUSED),
    "text": ({**STATE, "note": "hello"}, "note"),
    "text_for_weight": ({**STATE, "class_token": "hello"}, "class_token"),
    "list": ([STATE], "weights.pth holds a list"),
    "tensor": (torch.zeros(3), "weights.pth holds a Tensor"),
    "none": (None, "weights.pth holds a NoneType"),
    "empty_table": ({}, "weights.pth holds no table of weights"),
    "other_model": (nn.Linear(3, 3).state_dict(), "weights.pth is no plain ViT.*weight, bias"),
    "whole_module": (nn.Linear(3, 3), "weights.pth.*torch.nn.modules.linear.Linear"),
    "stride_0": ({**STATE, FUSED: torch.zeros(1).expand(144, 48)}, f"{FUSED} claims 6,912 numbers"),
    "terabytes": ({**STATE, "heads.head.weight": torch.zeros(1).expand(10**11, 48)}, "heads.head.weight claims"),
    "storage_lies": (rezip(torch_bytes(LONG), {"data.pkl": claims(pickle_of(torch_bytes(LONG)))}), "weights.pth"),
    "storage_lies_legacy": (claims(torch_bytes(LONG, _use_new_zipfile_serialization=False)), "weights.pth"),
    "packed": (rezip(PTH, {}, zipfile.ZIP_DEFLATED), "weights.pth.*torch packs no weights"),
    "bomb": (rezip(PTH, {"data/0": bytes(10**8)}, zipfile.ZIP_DEFLATED), "weights.pth claims"),
}  # fmt: skip
HUGE = 2**63
ST_CASES: dict[str, tuple] = {
    "plain": (ST, None),
    "no_metadata": (save(STATE), None),
    "fp16": (save(changed(dtype=torch.float16)), torch.float16),
    "bf16": (save(changed(dtype=torch.bfloat16)), torch.bfloat16),
    "prefix": (save(prefixed("module.")), None),
    "header_len_huge": (HUGE.to_bytes(8, "little") + ST[8:], "weights.safetensors"),
    "header_len_past_end": ((len(ST) + 1).to_bytes(8, "little") + ST[8:], "weights.safetensors"),
    "header_len_0": (bytes(8), "weights.safetensors"),
    "header_not_json": (ST[:8] + b"{" + b"x" * (END - 9) + ST[END:], "weights.safetensors"),
    "header_not_utf8": (ST[:9] + b"\xff" + ST[10:], "weights.safetensors"),
    "header_list": (b"\x02" + bytes(7) + b"[]", "weights.safetensors"),
    "header_deep": (b"\x10\x27" + bytes(6) + b'{"a":' + b"[" * 9995, "weights.safetensors"),
    "overlap": (with_header(ST, lambda h: entry(TOP, data_offsets=h[FUSED]["data_offsets"])(h)), "weights.safetensors"),
    "hole": (with_header(ST, lambda h: {n: e for n, e in h.items() if n != "encoder.ln.bias"}), "weights.safetensors"),
    "past_end": (with_header(ST, entry(FUSED, data_offsets=[0, 10**9])), "weights.safetensors"),
    "offsets_swapped": (with_header(ST, entry(FUSED, data_offsets=[100, 0])), "weights.safetensors"),
    "shape_overflow": (with_header(ST, entry(FUSED, shape=[HUGE, HUGE])), "weights.safetensors"),
    "negative_shape": (with_header(ST, entry(FUSED, shape=[-144, -48])), "weights.safetensors"),
    "shape_text": (with_header(ST, entry(FUSED, shape="144")), "weights.safetensors"),
    "empty_and_long": (
        with_header(save({**STATE, "a": torch.zeros(0)}), entry("a", shape=[0, HUGE])), "a has the impossible shape"),
    "trailing": (ST + b"PK\x03\x04", "weights.safetensors"),
    "unknown_dtype": (with_header(ST, entry(FUSED, dtype="F99")), "weights.safetensors"),
    "int8": (save(changed(dtype=torch.int8)), "class_token is I8"),
    "float8": (save(changed(dtype=torch.float8_e4m3fn)), "class_token is F8_E4M3"),
    "nan": (save({**STATE, FUSED: torch.full((144, 48), torch.nan)}), f"{FUSED} holds values that are not finite"),
    "missing_key": (save(without(STATE, "encoder.ln.bias")), "encoder.ln.bias"),
    "extra_key": (save({**STATE, "encoder.extra": torch.zeros(3)}), "encoder.extra"),
    "wrong_shape": (save({**STATE, FUSED: torch.zeros(144, 47)}), FUSED),
    "cut": (ST[: len(ST) // 2], "weights.safetensors"),
    "cut_by_one": (ST[:-1], "weights.safetensors"),
    "cut_in_header": (ST[:100], "weights.safetensors"),
    "zero": (b"", "weights.safetensors is empty"),
    "lfs": (LFS, "weights.safetensors is a pointer"),
    "is_pth": (PTH, "weights.safetensors is no whole safetensors"),
    "is_evil": (lambda folder: pickle.dumps(Evil(folder)), "weights.safetensors is no whole safetensors"),
}  # fmt: skip
OBJECTS = np.array([{"a": 1}], dtype=object)
NPZ_CASES: dict[str, tuple] = {
    "plain": (NPZ, None),
    "packed": (npz_bytes(ARRAYS, np.savez_compressed), None),
    "fortran": (npz_bytes({name: np.asfortranarray(array) for name, array in ARRAYS.items()}), None),
    "fp16": (npz_bytes({name: array.astype(np.float16) for name, array in ARRAYS.items()}), torch.float16),
    "fp64": (npz_bytes({name: array.astype(np.float64) for name, array in ARRAYS.items()}), torch.float64),
    "bf16_void": (npz_bytes({name: torch.from_numpy(array).bfloat16().view(torch.int16).numpy().view("V2")
                             for name, array in ARRAYS.items()}), torch.bfloat16),
    "big_endian": (npz_bytes({name: array.astype(">f4") for name, array in ARRAYS.items()}), "is >f4"),
    "cut": (NPZ[: len(NPZ) // 2], "weights.npz"),
    "cut_by_one": (NPZ[:-1], "weights.npz"),
    "object_array": (npz_bytes({**ARRAYS, "head/bias": OBJECTS}), "head/bias holds Python objects"),
    "object_beside": (npz_bytes({**ARRAYS, "more": OBJECTS}), "more holds Python objects"),
    "missing_key": (npz_bytes(without(ARRAYS, "encoder_norm/bias")), "encoder_norm/bias"),
    "missing_block": (npz_bytes(without(ARRAYS, "encoderblock_0")), "encoderblock_N are numbered 1"),
    "missing_part": (npz_bytes(without(ARRAYS, KERNEL)), KERNEL),
    "extra_key": (npz_bytes({**ARRAYS, "extra": np.zeros(3, np.float32)}), "extra"),
    "extra_block": (npz_bytes({**ARRAYS, "Transformer/encoderblock_2/LayerNorm_0/scale": np.zeros(48, np.float32)}),
                    "encoderblock_2"),
    "wrong_shape": (npz_bytes({**ARRAYS, KERNEL: np.zeros((48, 81), np.float32)}), KERNEL),
    "other_grid": (npz_bytes({**ARRAYS, "Transformer/posembed_input/pos_embedding": np.zeros((1, 18, 48), np.float32)}),
                   "position table of 18 rows"),
    "other_head": (npz_bytes({**ARRAYS, "head/kernel": np.zeros((48, 7), np.float32)}), "head/kernel"),
    "integers": (npz_bytes({**ARRAYS, KERNEL: np.zeros((48, 80), np.int32)}), f"{KERNEL} is int32"),
    "structured": (npz_bytes({**ARRAYS, KERNEL: np.zeros((48, 80), [("a", "f4")])}), KERNEL),
    "nan": (npz_bytes({**ARRAYS, KERNEL: np.full((48, 80), np.nan, np.float32)}), f"{KERNEL} holds values that are not"),
    "bomb": (npz_bytes({**ARRAYS, "more": np.zeros(5 * 10**7, np.float32)}, np.savez_compressed), "more"),
    "header_lies": (rezip(NPZ, {"head/bias.npy": array_of("<f4", "(3000000000,)")}), "head/bias claims 12,000,000,000"),
    "header_overflows": (rezip(NPZ, {"head/bias.npy": array_of("<f4", f"({HUGE}, {HUGE})")}), "head/bias claims"),
    "header_negative": (rezip(NPZ, {"head/bias.npy": array_of("<f4", "(-5,)")}), "head/bias has the impossible shape"),
    "header_two_negatives": (rezip(NPZ, {"head/bias.npy": array_of("<f4", "(-5, -1)")}), "head/bias has the impossible"),
    "header_empty_and_long": (rezip(NPZ, {"head/bias.npy": array_of("<f4", f"(0, {HUGE})")}), "head/bias has the imposs"),
    "header_code": (rezip(NPZ, {"head/bias.npy": npy("__import__('os').system('touch ran')")}), "head/bias is no numpy"),
    "header_deep": (rezip(NPZ, {"head/bias.npy": npy("-" * 9000 + "1")}), "head/bias is no numpy array"),
    "header_brackets": (rezip(NPZ, {"head/bias.npy": npy("[" * 9000)}), "head/bias is no numpy array"),
    "header_version": (rezip(NPZ, {"head/bias.npy": b"\x93NUMPY\x09\x00" + bytes(64)}), "head/bias is no numpy array"),
    "no_array": (rezip(NPZ, {"head/bias.npy": b"hello"}), "head/bias is no numpy array"),
    "zero": (b"", "weights.npz is empty"),
    "lfs": (LFS, "weights.npz is a pointer"),
    "is_pth": (PTH, None),
}  # fmt: skip


def script_bytes(dtype: torch.dtype = torch.float32) -> bytes:
    """An archive of TorchScript of a CLIP, as OpenAI published them."""
    stream = io.BytesIO()
    torch.jit.save(torch.jit.script(module_of({n: t.to(dtype) for n, t in clip_state().items()})), stream)
    return stream.getvalue()


def clip_state() -> State:
    return torch.load(FIXTURES / "openai_clip_state_dict" / "weights.pt", weights_only=True)


def module_of(state: State) -> nn.Module:
    """A tree of modules with this state dict."""
    root = nn.Module()
    for name, tensor in state.items():
        module, (*path, leaf) = root, name.split(".")
        for part in path:
            if part not in module._modules:
                module.add_module(part, nn.Module())
            module = module._modules[part]
        module.register_parameter(leaf, nn.Parameter(tensor))
    for name, value in {"input_resolution": 32, "context_length": 77, "vocab_size": 99}.items():
        root.register_buffer(name, torch.tensor(value))
    return root


# ---------------------------------------------------------------------------------------------------------------------
# Tests of files


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> dict[str, State]:
    """What STATE and ARRAYS are in our names; written back they are the same bits."""
    folder, found = tmp_path_factory.mktemp("plain"), {}
    for family, name, content in (("torchvision", "plain.pth", PTH), ("vit_jax", "plain.npz", NPZ)):
        (folder / name).write_bytes(content)
        import_to_folder(folder / name, folder / family, set=HEADS if family == "torchvision" else {})
        export_checkpoint(folder / family, folder / f"back-{name}", family)
        found[family] = import_checkpoint(
            folder / name, set=HEADS if family == "torchvision" else {}
        ).model.state_dict()
    back = torch.load(folder / "back-plain.pth", weights_only=True)
    assert back.keys() == STATE.keys() and all(torch.equal(back[name], STATE[name]) for name in STATE)
    back = np.load(folder / "back-plain.npz")
    assert set(back.files) == set(ARRAYS) and all(np.array_equal(back[name], ARRAYS[name]) for name in ARRAYS)
    return found


def assert_same(model: nn.Module, expected: State, dtype: torch.dtype = torch.float32) -> None:
    found = model.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == dtype and torch.equal(found[name], tensor.to(dtype)), name


def assert_outcome(source: Path, folder: Path, outcome, expected: dict[str, State], **request) -> None:
    """Read bit for bit, or refused by name; in both cases nothing ran and, if refused, nothing is written."""
    out = folder / "new" / "out"
    if isinstance(outcome, str):
        before = sorted(folder.rglob("*"))
        with pytest.raises(ConversionError, match=f"(?s){outcome}"):
            import_to_folder(source, out, **request)
        assert sorted(folder.rglob("*")) == before
    else:
        model, _, report = import_checkpoint(source, **request)
        assert_same(model, expected[report.family], outcome or torch.float32)
    assert not (folder / MARKER).exists()


def write(folder: Path, name: str, content) -> Path:
    content = content(folder) if callable(content) and not isinstance(content, nn.Module) else content
    (folder / name).write_bytes(content if isinstance(content, bytes) else torch_bytes(content))
    return folder / name


def request_of(name: str, content) -> dict:
    is_npz = (name.endswith("npz") and content is not PTH) or content is NPZ
    return {} if is_npz else {"set": HEADS}


FILES = [
    pytest.param(f"weights.{suffix}", *case, id=f"{suffix}-{name}")
    for suffix, cases in (("pth", PTH_CASES), ("safetensors", ST_CASES), ("npz", NPZ_CASES))
    for name, case in cases.items()
]


@pytest.mark.parametrize("name, content, outcome", FILES)
def test_file(name, content, outcome, tmp_path, expected, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, name, content)
    assert_outcome(path, tmp_path, outcome, expected, **request_of(name, content))


def test_weights_chooses(tmp_path, expected):
    path = write(tmp_path, "weights.pth", {"model": OTHER, "model_ema": STATE})
    assert_same(import_checkpoint(path, set=HEADS, weights="model_ema").model, expected["torchvision"])
    other = import_checkpoint(path, set=HEADS, weights="model").model.state_dict()
    assert not any(torch.equal(other[name], tensor) for name, tensor in expected["torchvision"].items())
    with pytest.raises(ConversionError, match="'teacher'.*'model', 'model_ema'"):
        import_checkpoint(path, set=HEADS, weights="teacher")


@pytest.mark.parametrize("tied", [False, True])
def test_tensors_in_one_storage_get_memory_of_their_own(tied, tmp_path):
    """Views of one buffer, and one tensor under two names."""
    flat = torch.cat([tensor.flatten() for tensor in STATE.values()])
    parts = flat.split([tensor.numel() for tensor in STATE.values()])
    state = {n: part.view(tensor.shape) for (n, tensor), part in zip(STATE.items(), parts, strict=True)}
    if tied:
        state = {n: STATE[n.replace("encoder_layer_1", "encoder_layer_0")] for n in STATE}
    import_to_folder(write(tmp_path, "weights.pth", state), tmp_path / "out", set=HEADS)
    export_checkpoint(tmp_path / "out", tmp_path / "back.pth", "torchvision")
    back = torch.load(tmp_path / "back.pth", weights_only=True)
    assert back.keys() == state.keys() and all(torch.equal(back[name], state[name]) for name in state)
    model = import_checkpoint(tmp_path / "weights.pth", set=HEADS).model
    storages = [parameter.untyped_storage() for parameter in model.parameters()]
    assert len({storage.data_ptr() for storage in storages}) == len(storages)


@pytest.mark.parametrize("make", ["evil", "evil_legacy", "evil_pickle", "evil_pickle_2", "evil_pickle_0"])
def test_the_evil_files_are_evil(make, tmp_path):
    """Or the tests above would show nothing."""
    path = write(tmp_path, "weights.pth", PTH_CASES[make][0])
    assert not (tmp_path / MARKER).exists()
    load = pickle.loads if "pickle" in make else lambda data: torch.load(io.BytesIO(data), weights_only=False)
    load(path.read_bytes())
    assert (tmp_path / MARKER).exists()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_an_archive_of_torchscript_is_its_state_dict_and_its_code_stays_in_it(dtype, tmp_path):
    request = {"family": "openai_clip", "set": {"num_attention_heads": 3}}
    state = {name: tensor.to(dtype) for name, tensor in clip_state().items()}
    plain = import_checkpoint(write(tmp_path, "state.pt", state), **request)
    evil = {".py": b"raise import os(", "constants.pkl": pickle.dumps(Evil(tmp_path))}
    broken = write(tmp_path, "broken.pt", rezip(script_bytes(dtype), evil))
    for path in (write(tmp_path, "script.pt", script_bytes(dtype)), broken):
        model, _, report = import_checkpoint(path, **request)
        assert_same(model, plain.model.state_dict(), dtype)
        assert {"input_resolution", "context_length", "vocab_size"} <= set(report.left_behind)
    with pytest.raises(RuntimeError):
        torch.jit.load(broken)
    assert not (tmp_path / MARKER).exists()


@pytest.mark.parametrize("name", STATE)
def test_a_tensor_of_any_odd_shape_is_named(name, tmp_path):
    for shape in ((), (0,), (1,), (1, 1, 1, 1, 1), (0, 48), (48, 0), (3, 0, 8, 8)):
        if shape != tuple(STATE[name].shape):
            path = write(tmp_path, "weights.safetensors", save({**STATE, name: torch.zeros(shape)}))
            with pytest.raises(ConversionError):
                import_checkpoint(path, set=HEADS)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    file=st.sampled_from([("pth", PTH), ("pth", LEGACY), ("safetensors", ST), ("npz", NPZ)]),
    changes=st.lists(st.tuples(st.floats(0, 1), st.booleans(), st.integers(0, 255)), max_size=6),
    length=st.one_of(st.just(1.0), st.floats(0, 1)),
)
def test_any_damage_is_read_or_refused(file, changes, length, tmp_path_factory):
    """Bytes changed anywhere, half of them near an end where the tables are, and the end cut off."""
    suffix, content = file[0], bytearray(file[1])
    for place, is_near_end, value in changes:
        at = int(place * 4000) if is_near_end and suffix == "safetensors" else int(place * len(content))
        at = len(content) - 1 - at // 50 if is_near_end and suffix in ("pth", "npz") else at
        content[min(max(at, 0), len(content) - 1)] = value
    path = write(tmp_path_factory.mktemp("damage"), f"weights.{suffix}", bytes(content[: int(length * len(content))]))
    try:
        model = import_checkpoint(path, **request_of(path.name, None)).model
    except ConversionError as error:
        assert str(error)
    else:
        assert all(tensor.isfinite().all() for tensor in model.state_dict().values())


# ---------------------------------------------------------------------------------------------------------------------
# Folders

NAMES = list(STATE)
HALVES = [{n: STATE[n] for n in NAMES[:10]}, {n: STATE[n] for n in NAMES[10:]}]
SHARDS = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
MAP = {name: SHARDS[name in HALVES[1]] for name in NAMES}
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER = {"adapter_config.json": b"{}", "adapter_model.safetensors": save({"lora_A": torch.zeros(2, 2)})}
OUTSIDE = "../outside.safetensors"
EVIL_MODULE = f"open('{MARKER}', 'w')".encode()
AUTO_MAP = json.dumps({"model_type": "x", "auto_map": {"AutoModel": "evil.Model", "AutoConfig": "evil.C"}}).encode()


def sharded(table=MAP, first: bytes | None = None, second: bytes | None = None, index: bytes | None = None) -> dict:
    files = {SHARDS[0]: first or save(HALVES[0]), SHARDS[1]: second or save(HALVES[1])}
    return {**files, INDEX: index or json.dumps({"metadata": {}, "weight_map": table}).encode()}


def moved(name: str) -> dict[str, str]:
    """The index with the first shard elsewhere."""
    return {tensor: name if shard == SHARDS[0] else shard for tensor, shard in MAP.items()}


def link(to: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(to)


# The files of a folder, a link as a function; then the outcome as above. Beside the folder lies `outside.safetensors`.
FOLDERS: dict[str, tuple] = {
    "plain": ({WHOLE: ST}, None),
    "bin": ({"pytorch_model.bin": PTH}, None),
    "bin_evil": ({"pytorch_model.bin": lambda path: path.write_bytes(torch_bytes(Evil(path.parent.parent)))}, "_model.bin"),
    "sharded": (sharded(), None),
    "sharded_bin": ({"a.bin": torch_bytes(HALVES[0]), "b.bin": torch_bytes(HALVES[1]), "pytorch_model.bin.index.json":
                     json.dumps({"weight_map": {n: "ab"[n in HALVES[1]] + ".bin" for n in NAMES}}).encode()}, None),
    "shard_missing": ({n: c for n, c in sharded().items() if n != SHARDS[1]}, f"names '{SHARDS[1]}', which is missing"),
    "shard_empty": ({**sharded(), SHARDS[1]: b""}, f"{SHARDS[1]} is empty"),
    "shard_cut": (sharded(first=save(HALVES[0])[:-1]), SHARDS[0]),
    "shard_folder": ({**sharded(), SHARDS[0]: lambda path: path.mkdir()}, f"{SHARDS[0]} is no file"),
    "shard_of_two": ({"a.bin": torch_bytes({"model": STATE, "ema": OTHER}), "pytorch_model.bin.index.json":
                      json.dumps({"weight_map": dict.fromkeys(NAMES, "a.bin")}).encode()}, "a.bin is no shard.*ema"),
    "index_traversal": (sharded(moved(OUTSIDE)), "'../outside.safetensors'.*refused"),
    "index_backslash": (sharded(moved("..\\outside.safetensors")), "outside.safetensors.*refused"),
    "index_absolute": (lambda folder: sharded(moved(str(folder / "outside.safetensors"))), "outside.safetensors.*refused"),
    "index_dots": (sharded(moved("..")), "names '..'.*refused"),
    "index_nul": (sharded(moved("a\0b")), "a.x00b.*missing"),
    "index_surrogate": (sharded(moved("\ud800")), "ud800.*missing"),
    "index_long": (sharded(moved("a" * 5000)), "aaa.*missing"),
    "index_bad_json": (sharded(index=b'{"weight_map": {'), f"{INDEX} is no JSON"),
    "index_deep_json": (sharded(index=b"[" * 200_000), f"{INDEX} is no JSON"),
    "index_list": (sharded(index=b"[]"), f"{INDEX} must hold a table, not a list"),
    "index_without_map": (sharded(index=b"{}"), f"{INDEX} has no weight_map"),
    "index_map_list": (sharded(["a"]), f"{INDEX} has no weight_map"),
    "index_map_numbers": (sharded(dict.fromkeys(NAMES, 1)), f"{INDEX} has no weight_map"),
    "index_bom": (sharded(index=b"\xef\xbb\xbf" + json.dumps({"weight_map": MAP}).encode()), None),
    "index_key_in_wrong_shard": (sharded({**MAP, NAMES[0]: SHARDS[1]}), f"{NAMES[0]} is in {SHARDS[1]}, but it is not"),
    "index_key_unlisted": (sharded(without(MAP, NAMES[-1])), f"does not list {NAMES[-1]}"),
    "index_key_nowhere": (sharded({**MAP, "more": SHARDS[0]}), f"more is in {SHARDS[0]}, but it is not"),
    "index_key_in_both": (sharded(second=save({**HALVES[1], NAMES[0]: OTHER[NAMES[0]]})), f"not list {NAMES[0]} of {SHARDS[1]}"),
    "link_out": ({WHOLE: link(OUTSIDE)}, f"{WHOLE} is a link that leads out of the folder"),
    "link_out_absolute": (lambda folder: {WHOLE: link(folder / "outside.safetensors")}, f"{WHOLE} is a link that leads out"),
    "link_to_link_out": ({WHOLE: link("b"), "b": link(OUTSIDE)}, f"{WHOLE} is a link that leads out"),
    "link_of_bin_out": ({"pytorch_model.bin": link(OUTSIDE)}, "pytorch_model.bin is a link that leads out"),
    "link_of_shard_out": ({**sharded(), SHARDS[0]: link(OUTSIDE)}, f"{SHARDS[0]} is a link that leads out"),
    "link_of_index_out": ({**sharded(), INDEX: link("../outside.json")}, f"{INDEX} is a link that leads out"),
    "link_through_folder": ({"sub": link(".."), WHOLE: link("sub/outside.safetensors")}, f"{WHOLE} is a link that leads out"),
    "link_inside": ({WHOLE: link("other.safetensors"), "other.safetensors": ST}, None),
    "link_dangling": ({WHOLE: link("nothing")}, f"{WHOLE} is a link that leads to no file"),
    "link_loop": ({WHOLE: link(WHOLE)}, f"{WHOLE} is a link that leads to no file"),
    "whole_is_folder": ({WHOLE: lambda path: path.mkdir()}, f"{WHOLE} is no file"),
    "whole_is_pipe": ({WHOLE: os.mkfifo}, f"{WHOLE} is no file"),
    "no_weights": ({"config.json": b"{}"}, "model holds none of"),
    "empty": ({}, "model holds none of"),
    "config_auto_map": ({WHOLE: ST, "config.json": AUTO_MAP, "evil.py": EVIL_MODULE}, None),
    "config_other_model_type": ({WHOLE: ST, "config.json": b'{"model_type": "bert"}'}, None),
    "config_bom": ({WHOLE: ST, "config.json": b'\xef\xbb\xbf{"a": 1}'}, None),
    "config_list": ({WHOLE: ST, "config.json": b"[1]"}, "config.json must hold a table"),
    "config_cut": ({WHOLE: ST, "config.json": b'{"a": '}, "config.json is no JSON file"),
    "lora_only": (ADAPTER, "adapter alone"),
    "lora_beside": ({WHOLE: ST, **ADAPTER}, None),
    "st_is_pickle": ({WHOLE: lambda path: path.write_bytes(pickle.dumps(Evil(path.parent.parent)))}, WHOLE),
    "st_is_pth": ({WHOLE: PTH}, WHOLE),
    "no_metadata": ({WHOLE: save(STATE)}, None),
    "fp16": ({WHOLE: save(changed(dtype=torch.float16))}, torch.float16),
    "module_prefix": ({WHOLE: save(prefixed("module."))}, None),
    "missing_one": ({WHOLE: save(without(STATE, "encoder.ln.bias"))}, "encoder.ln.bias"),
    "missing_one_sharded": (
        sharded(without(MAP, "encoder.ln.bias"), second=save(without(HALVES[1], "encoder.ln.bias"))), "encoder.ln.bias"),
    "extra_one": ({WHOLE: save({**STATE, "encoder.extra": torch.zeros(1)})}, "encoder.extra"),
    "wrong_shape": ({WHOLE: save({**STATE, FUSED: torch.zeros(144, 49)})}, FUSED),
    "two_formats": ({WHOLE: ST, "pytorch_model.bin": torch_bytes(OTHER)}, f"{WHOLE} and pytorch_model.bin, which differ.*--file"),
    "two_formats_sharded": ({**sharded(), "pytorch_model.bin": torch_bytes(OTHER)}, f"{INDEX} and pytorch_model.bin, .*--file"),
    "two_types": ({WHOLE: ST, "pytorch_model.bin": torch_bytes(changed(dtype=torch.float16))}, "which differ.*--file"),
    "two_names": ({WHOLE: ST, "pytorch_model.bin": torch_bytes(prefixed("module."))}, "which differ.*--file"),
    "two_containers": ({WHOLE: ST, "pytorch_model.bin": torch_bytes({"model": STATE})}, "which differ.*--file"),
    "one_number": ({WHOLE: ST, "pytorch_model.bin": torch_bytes({**STATE, FUSED: STATE[FUSED] + 1e-3})}, "differ.*--file"),
    "same_twice": ({WHOLE: ST, "pytorch_model.bin": PTH}, None),
    "same_sharded": ({**sharded(), WHOLE: ST, "pytorch_model.bin": PTH}, None),
    "whole_and_shards": ({**sharded(), WHOLE: save(OTHER)}, f"{WHOLE} and {INDEX}, which differ"),
    "stale_index": ({WHOLE: ST, INDEX: json.dumps({"weight_map": moved("gone.safetensors")}).encode()}, "gone.*missing"),
}  # fmt: skip


def fill(folder: Path, files: dict) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        if callable(content):
            content(folder / name)
        else:
            (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize("case", FOLDERS)
def test_folder(case, tmp_path, expected, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files, outcome = FOLDERS[case]
    (tmp_path / "outside.safetensors").write_bytes(save(HALVES[0]) if "shard" in case or "index" in case else ST)
    (tmp_path / "outside.json").write_text(json.dumps({"weight_map": MAP}))
    folder = fill(tmp_path / "model", files(tmp_path) if callable(files) else files)
    assert_outcome(folder, tmp_path, outcome, expected, set=HEADS)


def test_file_chooses_one_of_a_folder(tmp_path, expected):
    stale = json.dumps({"weight_map": moved("gone.safetensors")}).encode()
    folder = fill(tmp_path / "model", {WHOLE: ST, INDEX: stale, "pytorch_model.bin": torch_bytes(OTHER), "b.pth": PTH})
    for name in (WHOLE, "b.pth"):
        assert_outcome(folder, tmp_path, None, expected, set=HEADS, file=name)
    model = import_checkpoint(folder, set=HEADS, file="pytorch_model.bin").model
    assert torch.equal(model.vit.norm.bias, OTHER["encoder.ln.bias"])
    for name, named in (
        ("no.bin", "no.bin is no file"),
        ("../model/b.pth", "give the name of a file"),
        (INDEX, "gone"),
    ):
        assert_outcome(folder, tmp_path, named, expected, set=HEADS, file=name)
    assert_outcome(folder / "b.pth", tmp_path, "--file b.pth: .* is a file", expected, set=HEADS, file="b.pth")


@pytest.mark.parametrize("is_shared", [False, True])
def test_the_cache_of_the_hub_is_read_and_nothing_beyond_it(is_shared, tmp_path, expected):
    """Links into the blobs of the repository, which may be links into those of all."""
    blobs, shared = tmp_path / "models--a--b" / "blobs", tmp_path / "blobs" / "ab"
    blobs.mkdir(parents=True), shared.mkdir(parents=True)
    for name, content in sharded().items():
        (shared / name if is_shared else blobs / name).write_bytes(content)
        if is_shared:
            (blobs / name).symlink_to(Path("../../blobs/ab") / name)
    files = {name: link(f"../../blobs/{name}") for name in sharded()}
    folder = fill(tmp_path / "models--a--b" / "snapshots" / "0123", files)
    assert_outcome(folder, tmp_path, None, expected, set=HEADS)
    (tmp_path / "link").symlink_to(folder)
    assert_outcome(tmp_path / "link", tmp_path, None, expected, set=HEADS)
    (tmp_path / "outside").write_bytes(save(HALVES[0]))
    (blobs / SHARDS[0]).unlink()
    (blobs / SHARDS[0]).symlink_to(tmp_path / "outside")
    assert_outcome(folder, tmp_path, f"{SHARDS[0]} is a link that leads out", expected, set=HEADS)


def test_a_file_that_is_given_may_be_a_link(tmp_path, expected):
    (tmp_path / "a.pth").symlink_to(write(tmp_path, "weights.pth", PTH))
    assert_outcome(tmp_path / "a.pth", tmp_path, None, expected, set=HEADS)


@pytest.mark.parametrize("name", ["missing.pth", "missing/", "a/b/c", "~/nothing.pth", "missing"])
def test_what_is_not_there_is_named(name, tmp_path, expected, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for source in (name, tmp_path / name):
        assert_outcome(source, tmp_path, "missing|a/b/c|nothing", expected, set=HEADS)


@pytest.mark.parametrize("content, named", [
    (b'\xef\xbb\xbf{"a": 1}', None), (b' {"a": 1}\n', None),
    ('{"a": 1}'.encode("utf-16"), "is no JSON"), ('{"a": 1}'.encode("utf-16-le"), "is no JSON"),
    (b"[1]", "must hold a table, not a list"), (b"1", "must hold a table, not a int"), (b"", "is no JSON"), (b'{"a": ', "is no JSON"),
    (b'{"a": 1}}', "is no JSON"), (b"\xff\xfe\xff", "is no JSON"), (b"[" * 200_000, "is no JSON"),
    (b'{"a": ' + b"9" * 5000 + b"}", "is no JSON"), (b'{"a": 1}' + b" " * 50_000_000, "is no JSON.*at most 50,000,000 bytes"),
    (LFS, "is no JSON"),
])  # fmt: skip
def test_json(content, named, tmp_path):
    path = write(tmp_path, "config.json", content)
    if named is None:
        assert read_json(path) == {"a": 1}
    else:
        with pytest.raises(ConversionError, match=f"{path} {named}"):
            read_json(path)


def test_json_that_is_no_file_is_named(tmp_path):
    for path in (tmp_path, tmp_path / "config.json"):
        with pytest.raises(ConversionError, match=f"{path} is no JSON file"):
            read_json(path)


# ---------------------------------------------------------------------------------------------------------------------
# Writing


@pytest.mark.parametrize("there", ["file", "folder", "link", "parent_is_file"])
def test_nothing_is_overwritten(there, tmp_path):
    path, out = write(tmp_path, "weights.pth", PTH), tmp_path / "out"
    if there == "link":
        out.symlink_to(tmp_path / "nowhere")
    elif there == "folder":
        out.mkdir()
    else:
        out.write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConversionError, match=f"{out}"):
        import_to_folder(path, out / "deeper" if there == "parent_is_file" else out, set=HEADS)
    assert sorted(tmp_path.rglob("*")) == before
    assert out.is_symlink() if there == "link" else out.is_dir() or out.read_text() == "mine"


def test_what_fails_half_way_leaves_nothing(tmp_path):
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(KeyboardInterrupt), whole_or_nothing(tmp_path / "a" / "b" / "out") as written:
        written.mkdir()
        (written / "half").write_text("half")
        raise KeyboardInterrupt
    assert sorted(tmp_path.rglob("*")) == before
    with whole_or_nothing(tmp_path / "a" / "out") as written:
        written.write_text("whole")
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["a", "out"]


# ---------------------------------------------------------------------------------------------------------------------
# Memory and time

WATCHED = """
import json, resource, sys, time
from conversion import ConversionError, import_checkpoint
memory = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
for path in sys.argv[1:]:
    before, began = memory(), time.monotonic()
    request = {} if path.endswith("npz") else {"set": {"num_attention_heads": 4}}
    try:
        outcome = import_checkpoint(path, **request) and "read"
    except ConversionError as error:
        outcome = str(error)
    print(json.dumps([outcome, memory() - before, time.monotonic() - began]))
"""
BOMBS = [
    *(
        f"pth-{name}"
        for name in ("plain", "bomb", "terabytes", "storage_lies", "storage_lies_legacy", "shared_tables")
    ),
    *(f"npz-{name}" for name in ("plain", "bomb", "header_lies", "header_overflows")),
    *(f"safetensors-{name}" for name in ("header_len_huge", "shape_overflow", "past_end")),
]


def test_bombs_cost_neither_memory_nor_time(tmp_path):
    """In a process of its own: megabytes and seconds that each file costs; the plain ones first, to load what all need."""
    paths = []
    for bomb in BOMBS:
        suffix, name = bomb.split("-")
        (tmp_path / name).mkdir(exist_ok=True)
        cases = {"pth": PTH_CASES, "npz": NPZ_CASES, "safetensors": ST_CASES}[suffix]
        paths.append(write(tmp_path / name, f"weights.{suffix}", cases[name][0]))
    command = [sys.executable, "-c", WATCHED, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    for path, line in zip(paths, done.stdout.splitlines(), strict=True):
        outcome, megabytes, seconds = json.loads(line)
        assert path.name in outcome or (path.parent.name in ("plain", "shared_tables") and outcome == "read")
        assert path.parent.name == "plain" or (megabytes < 50 and seconds < 3), (path, megabytes, seconds)
