"""Files that are damaged or mean harm: each is refused in a sentence that names it, none is run."""

from __future__ import annotations

import json
import os
import pickle
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mhanw import CallError, checkpoints

D, HEADS = 8, 2
KEY, QUERY = (f"encoder.layer.0.attention.self.{word}.weight" for word in ("key", "query"))
MATRIX = np.linspace(-1, 1, D * D, dtype=np.float32).reshape(D, D)
Header = dict[str, Any]


def refusal(path: Path, n_heads: int | None = HEADS, **options: Any) -> str:
    """The sentence with which a file is refused, when opened or when read."""
    with pytest.raises(checkpoints.CheckpointError) as caught:
        read_all(path, n_heads, **options)
    message = str(caught.value)
    assert path.name in message
    assert "\n" not in message
    assert len(message) < 1200
    return message


def read_all(path: Path, n_heads: int | None = HEADS, **options: Any) -> int:
    """Read everything there is, and count the layers."""
    with checkpoints.open_checkpoint(path, n_heads=n_heads, **options) as checkpoint:
        for layer in checkpoint.layers:
            assert layer.W_K().shape == (layer.n_kv_heads, layer.d_model, layer.head_dim)
            assert np.isfinite(layer.W_Q()).all()
        return len(checkpoint.layers)


def is_read_or_refused(path: Path, n_heads: int | None = HEADS) -> bool:
    """Nothing but a refusal that names the file may come of reading it."""
    try:
        read_all(path, n_heads)
    except checkpoints.CheckpointError as error:
        return path.name in str(error)
    return True


# --- Small valid files, written by hand --------------------------------------------------------


def entry(begin: int, shape: tuple[int, ...] = (D, D), dtype: str = "F32") -> Header:
    size = {"F32": 4, "F16": 2, "U8": 1}[dtype] * int(np.prod(shape))
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, begin + size]}


def safetensors_bytes(header: Header | bytes | None = None, data: bytes | None = None) -> bytes:
    """A safetensors file of a key and a query matrix, or of what is given."""
    if header is None:
        header = {KEY: entry(0), QUERY: entry(4 * D * D)}
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + (MATRIX.tobytes() * 2 if data is None else data)


def gguf_text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def gguf_bytes(heads: bytes = struct.pack("<II", 4, HEADS), axes: int = 2) -> bytes:
    """A GGUF file of BERT's kind with one layer."""
    settings = gguf_text("general.architecture") + struct.pack("<I", 8) + gguf_text("bert")
    settings += gguf_text("bert.attention.head_count") + heads
    settings += gguf_text("words") + struct.pack("<IIQ", 9, 8, 2) + gguf_text("a") + gguf_text("b")
    places = b"".join(
        gguf_text(f"blk.0.attn_{letter}.weight")
        + struct.pack("<IQQIQ", axes, D, D, 0, 4 * D * D * i)
        for i, letter in enumerate("kq")
    )
    head = b"GGUF" + struct.pack("<IQQ", 3, 2, 3) + settings + places
    return head + bytes(-len(head) % 32) + MATRIX.tobytes() * 2


def ct2_text(text: str) -> bytes:
    return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"


def ctranslate2_bytes(version: int = 6, alias: str = "encoder/num_heads") -> bytes:
    """A CTranslate2 file of one encoder layer."""
    fused = np.vstack([MATRIX] * 3)
    variables = ct2_text("encoder/layer_0/self_attention/linear_0/weight")
    variables += struct.pack("<BIIBI", 2, *fused.shape, 0, fused.nbytes) + fused.tobytes()
    variables += ct2_text("encoder/num_heads") + struct.pack("<BBIh", 0, 2, 2, HEADS)
    aliases = struct.pack("<I", 1) + ct2_text("decoder/num_heads") + ct2_text(alias)
    head = struct.pack("<I", version) + ct2_text("TransformerSpec") + struct.pack("<II", 7, 2)
    return head + variables + aliases


VALID: dict[str, Callable[[], bytes]] = {
    "model.safetensors": safetensors_bytes,
    "model.gguf": gguf_bytes,
    "model.bin": ctranslate2_bytes,
}


@pytest.mark.parametrize("name", VALID)
def test_the_small_files_are_valid(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(VALID[name]())
    assert read_all(tmp_path / name) == 1


# --- Damage ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VALID)
def test_a_file_cut_short_anywhere_is_refused(name: str, tmp_path: Path) -> None:
    path, whole = tmp_path / name, VALID[name]()
    for size in [*range(0, len(whole) - 600, 7), *range(max(0, len(whole) - 600), len(whole), 53)]:
        path.write_bytes(whole[:size])
        refusal(path)


@pytest.mark.parametrize("name", VALID)
@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_random_damage_is_read_or_refused(
    name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = bytearray(VALID[name]())
    places = st.integers(0, len(whole) - 1) | st.integers(0, 300)
    for _ in range(data.draw(st.integers(1, 4))):
        whole[min(data.draw(places), len(whole) - 1)] = data.draw(st.integers(0, 255))
    end = data.draw(st.just(len(whole)) | st.integers(0, len(whole)))
    path = tmp_path_factory.mktemp("damaged") / name
    path.write_bytes(whole[:end])
    assert is_read_or_refused(path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 99) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
SETTINGS = (
    *("num_attention_heads", "num_key_value_heads", "head_dim", "d_kv", "text_config", "encoder"),
    *("num_hidden_layers", "architectures", "model_type", "rope_theta"),
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(config=st.dictionaries(st.sampled_from(SETTINGS), json_values) | json_values)
def test_any_config_is_used_or_refused(
    config: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("model")
    (folder / "model.safetensors").write_bytes(safetensors_bytes())
    (folder / "config.json").write_text(json.dumps(config))
    assert is_read_or_refused(folder, None)


# --- safetensors -------------------------------------------------------------------------------

OVERLAP = {KEY: entry(0), QUERY: entry(4 * D)}
WRONG_SIZE = {KEY: {**entry(0), "shape": [D, D + 1]}, QUERY: entry(4 * D * D)}
HUGE_SHAPE = {KEY: {**entry(0), "shape": [1 << 40, 1 << 40]}, QUERY: entry(4 * D * D)}
NEGATIVE = {KEY: {**entry(0), "shape": [-D, -D]}, QUERY: entry(4 * D * D)}
BACKWARDS = {KEY: {**entry(0), "data_offsets": [256, 0]}, QUERY: entry(4 * D * D)}
GAP = {KEY: entry(0), QUERY: entry(4 * D * D + 4)}
TWICE = b'{"a": %s, "a": %s}' % ((json.dumps(entry(0)).encode(),) * 2)
STRANGE = {
    "overlap": (safetensors_bytes(OVERLAP), "overlaps"),
    "shape": (safetensors_bytes(WRONG_SIZE), "its place has 256"),
    "huge shape": (safetensors_bytes(HUGE_SHAPE), "its place has 256"),
    "negative shape": (safetensors_bytes(NEGATIVE), "malformed"),
    "backwards": (safetensors_bytes(BACKWARDS), "its place has -256"),
    "gap": (safetensors_bytes(GAP, MATRIX.tobytes() * 2 + bytes(4)), "its tensors take 512"),
    "trailing": (safetensors_bytes(None, MATRIX.tobytes() * 3), "its tensors take 512"),
    "twice": (safetensors_bytes(TWICE), "not valid JSON"),
    "list": (safetensors_bytes(b"[1, 2]"), "expected an object"),
    "deep": (safetensors_bytes(b'{"a":' * 100_000), "not valid JSON"),
    "long number": (safetensors_bytes(b'{"a":' + b"9" * 10_000 + b"}"), "not valid JSON"),
    "no entry": (safetensors_bytes({KEY: [1]}), "malformed"),
    "unknown dtype": (safetensors_bytes({KEY: {**entry(0), "dtype": "F3"}}), "malformed"),
    "header of 2^60 bytes": (struct.pack("<Q", 1 << 60) + b"{}", "claims 1,152,921,504"),
    "no tensors": (safetensors_bytes({}, b""), "no tensors"),
    "text": (b"Once upon a time there was a model.", "header claims"),
    "empty": (b"", "is empty"),
    "zero-width head": (
        safetensors_bytes({KEY: entry(0, (0, D)), QUERY: entry(0)}, MATRIX.tobytes()),
        "not empty",
    ),
    "quantised": (
        safetensors_bytes({KEY: entry(0, (D, D), "U8"), QUERY: entry(64)}, bytes(320)),
        "stored as U8",
    ),
    "no queries": (safetensors_bytes({KEY: entry(0)}, MATRIX.tobytes()), "query.weight"),
}


@pytest.mark.parametrize("what", STRANGE)
def test_strange_safetensors_are_refused_at_no_cost(what: str, tmp_path: Path) -> None:
    content, expected = STRANGE[what]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        message = refusal(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert expected in message
    assert peak < 20_000_000


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["F32", "F16"])
def test_weights_that_are_not_finite_are_refused(value: float, dtype: str, tmp_path: Path) -> None:
    bad = MATRIX.astype({"F32": "<f4", "F16": "<f2"}[dtype])
    bad[3, 4] = value
    header = {KEY: entry(0, (D, D), dtype), QUERY: entry(bad.nbytes, (D, D), dtype)}
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes(header, bad.tobytes() * 2))
    assert "1 entries of 64 that are NaN or infinite" in refusal(path)


# --- Folders and indices -----------------------------------------------------------------------

SHARD = "model-00001-of-00002.safetensors"


def write_index(folder: Path, weight_map: Any) -> Path:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": weight_map}))
    return path


@pytest.mark.parametrize(
    "name", ["../model.safetensors", "/etc/passwd", "sub/a.safetensors", "..", "", "a\\b", 3, None]
)
def test_an_index_leads_nowhere_else(name: Any, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes())
    folder = tmp_path / "inner"
    folder.mkdir()
    write_index(folder, {KEY: name, QUERY: name})
    with pytest.raises(checkpoints.CheckpointError, match=r"index\.json names the shard"):
        read_all(folder)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    index = write_index(tmp_path, {KEY: SHARD, QUERY: "model-00002-of-00002.safetensors"})
    (tmp_path / SHARD).write_bytes(safetensors_bytes())
    assert "model-00002-of-00002.safetensors, which is missing" in refusal(index)


def test_a_tensor_that_its_shard_lacks_is_named(tmp_path: Path) -> None:
    index = write_index(tmp_path, {KEY: SHARD, QUERY: SHARD, "lm_head.weight": SHARD})
    (tmp_path / SHARD).write_bytes(safetensors_bytes())
    assert "lm_head.weight is not in" in refusal(index)


@pytest.mark.parametrize("content", ["[]", "{}", '{"weight_map": []}', "{", "\0", "[" * 99_999])
def test_an_index_that_is_none_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(content)
    refusal(path)


def test_one_shard_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / SHARD
    path.write_bytes(safetensors_bytes())
    assert "one of 2 shards" in refusal(path)


def test_links_in_a_loop_are_refused(tmp_path: Path) -> None:
    loop = tmp_path / "loop.safetensors"
    loop.symlink_to(loop)
    refusal(loop)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "model.safetensors").symlink_to(folder / "model.safetensors")
    refusal(folder)
    (folder / "model.safetensors").unlink()
    (folder / "inner").symlink_to(folder)
    assert "holds no model file" in refusal(folder)
    assert "holds no model file" in refusal(folder / "inner" / "inner")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    refusal(tmp_path / "absent")
    refusal(tmp_path / ("long" * 100))
    os.mkfifo(tmp_path / "pipe.safetensors")
    refusal(tmp_path / "pipe.safetensors")


def test_several_models_in_a_folder_are_named(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.safetensors"):
        (tmp_path / name).write_bytes(b"x")
    assert "2 model files (a.gguf, b.safetensors)" in refusal(tmp_path)


# --- Pickles -----------------------------------------------------------------------------------


class Payload:
    """Runs a command where a careless reader unpickles it."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("name", ["pytorch_model.bin", "a.pt", "model.safetensors", "a.gguf"])
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_payload_is_not_run(name: str, protocol: int, tmp_path: Path) -> None:
    marker, path = tmp_path / "marker", tmp_path / name
    path.write_bytes(pickle.dumps({KEY: Payload(marker)}, protocol=protocol))
    refusal(path)
    assert not marker.exists()


@pytest.mark.parametrize("zipped", [True, False])
def test_a_payload_among_tensors_is_not_run(zipped: bool, tmp_path: Path) -> None:
    marker, path = tmp_path / "marker", tmp_path / "pytorch_model.bin"
    state = {KEY: torch.zeros(D, D), QUERY: torch.zeros(D, D), "more": Payload(marker)}
    torch.save(state, path, _use_new_zipfile_serialization=zipped)
    assert "code in model files is never run" in refusal(path)
    assert not marker.exists()


def torch_bytes(folder: Path, state: dict[str, Any]) -> bytes:
    torch.save(state, folder / "whole.bin")
    return (folder / "whole.bin").read_bytes()


def test_a_pytorch_file_cut_short_or_damaged_is_read_or_refused(tmp_path: Path) -> None:
    matrix = torch.tensor(MATRIX)
    whole = torch_bytes(tmp_path, {KEY: matrix, QUERY: matrix.clone()})
    path, rng = tmp_path / "model.bin", np.random.default_rng(0)
    for size in range(0, len(whole) - 1, 101):
        path.write_bytes(whole[:size])
        refusal(path)
    for place in rng.integers(0, len(whole), 60):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        assert is_read_or_refused(path)


def test_a_tensor_larger_than_its_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    torch.save({KEY: torch.zeros(1).expand(1 << 20, 1 << 20), QUERY: torch.zeros(D, D)}, path)
    assert "more than the file's" in refusal(path)


def test_a_compressed_archive_is_refused(tmp_path: Path) -> None:
    torch_bytes(tmp_path, {KEY: torch.zeros(D, D), QUERY: torch.zeros(D, D)})
    path = tmp_path / "model.bin"
    with (
        zipfile.ZipFile(tmp_path / "whole.bin") as source,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for item in source.infolist():
            target.writestr(item.filename, source.read(item))
    assert "compressed" in refusal(path)


@pytest.mark.parametrize("value", [3, [1, 2], {"epoch": 3}, {3: torch.zeros(1)}])
def test_a_pytorch_file_without_tensors_is_refused(value: Any, tmp_path: Path) -> None:
    torch.save(value, tmp_path / "a.pt")
    assert "no tensors" in refusal(tmp_path / "a.pt")


# --- GGUF and CTranslate2 ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1), "bytes are claimed"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "expected GGUF 2 or 3"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "expected GGUF 2 or 3"),
        (gguf_bytes(axes=1 << 31), "claims 2147483648 axes"),
        (gguf_bytes(struct.pack("<II", 99, HEADS)), "unknown type 99"),
        (gguf_bytes(struct.pack("<IIQ", 9, 4, 1 << 60)), "bytes are claimed"),
        (gguf_bytes(struct.pack("<IIQ", 9, 9, 1 << 60)), "list of type 9"),
        (gguf_bytes(struct.pack("<II", 4, 0)), "at least 1"),
        (gguf_bytes(struct.pack("<II", 4, 3)), "3 heads"),
        (gguf_bytes(struct.pack("<If", 6, 2.0)), "at least 1"),
    ],
)
def test_strange_gguf_is_refused(content: bytes, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert expected in refusal(path, None)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (ctranslate2_bytes(version=3), "4 to 6 are read"),
        (ctranslate2_bytes(alias="nothing"), "which is not there"),
    ],
)
def test_strange_ctranslate2_is_refused(content: bytes, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(content)
    assert expected in refusal(path)


# --- Layouts and heads -------------------------------------------------------------------------


def write_named(folder: Path, *names: str, config: Any = None) -> Path:
    """A safetensors file of square matrices with these names."""
    header = {name: entry(4 * D * D * i) for i, name in enumerate(names)}
    path = folder / "model.safetensors"
    path.write_bytes(safetensors_bytes(header, MATRIX.tobytes() * len(names)))
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return path


def test_an_unknown_layout_names_the_closest_tensors(tmp_path: Path) -> None:
    names = [f"net.{i}.{word}" for i in range(9) for word in ("wk", "mlp", "wq")]
    message = refusal(write_named(tmp_path, *names))
    assert "net.0.wk (8, 8), net.1.wk (8, 8)" in message
    assert message.count("(8, 8)") == 5
    assert "--key-pattern" in message
    assert "--heads" in message


@pytest.mark.parametrize("name", ["\x1b[2Jgone\n", "a" * 100_000, "\u202eabc", "\ud800"])
def test_names_do_not_speak_to_the_terminal(name: str, tmp_path: Path) -> None:
    header = {name: {**entry(0), "shape": [1]}}
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes(header, MATRIX.tobytes()))
    assert refusal(path).isprintable()


def test_a_pattern_tells_the_layout(tmp_path: Path) -> None:
    names = [f"net.{i}.{word}" for i in range(11) for word in ("wk", "mlp", "wq")]
    path = write_named(tmp_path, *names)
    patterns = {"key_pattern": r"net\.(\d+)\.wk", "query_pattern": r"net\.(\d+)\.wq"}
    with checkpoints.open_checkpoint(path, n_heads=2, **patterns) as checkpoint:
        assert [layer.name for layer in checkpoint.layers] == [f"layer {i}" for i in range(11)]
        W_K = checkpoint.layers[10].W_K()
    np.testing.assert_array_equal(W_K, MATRIX.reshape(2, 4, D).transpose(0, 2, 1))


def test_a_key_pattern_alone_gives_keys_alone(tmp_path: Path) -> None:
    path = write_named(tmp_path, "net.0.wk")
    with checkpoints.open_checkpoint(path, r"net\.(\d+)\.wk", 2) as checkpoint:
        assert checkpoint.layers[0].W_K().shape == (2, D, 4)
        with pytest.raises(checkpoints.CheckpointError, match="give a query pattern"):
            checkpoint.layers[0].W_Q()


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("(", "no regular expression"),
        ("wk", "no group"),
        (r"nothing\.(\d+)", "finds no matrix"),
        (r"net\.(\d+)", "two matrices for layer 0"),
    ],
)
def test_a_poor_pattern_is_refused(pattern: str, expected: str, tmp_path: Path) -> None:
    path = write_named(tmp_path, "net.0.wk", "net.0.wq")
    with pytest.raises(checkpoints.CheckpointError, match=expected):
        read_all(path, key_pattern=pattern)


@pytest.mark.parametrize(
    ("config", "n_heads", "expected"),
    [
        (None, None, "give it with --heads"),
        ({"num_attention_heads": 4}, 2, "--heads says 2"),
        ({"num_attention_heads": 3}, None, "no whole number"),
        ({"num_attention_heads": [2, 4]}, None, "expected one whole number"),
        ({"num_attention_heads": True}, None, "expected one whole number"),
        ({"num_attention_heads": 2, "head_dim": 8}, None, "do not belong together"),
        ({"num_attention_heads": 4, "num_key_value_heads": 2}, None, "do not belong together"),
        (None, 0, "at least 1"),
        (None, 16, "no whole number"),
    ],
)
def test_heads_that_do_not_fit_are_refused(
    config: Any, n_heads: int | None, expected: str, tmp_path: Path
) -> None:
    assert expected in refusal(write_named(tmp_path, KEY, QUERY, config=config), n_heads)


def test_one_number_of_heads_does_not_serve_layers_of_several_widths(tmp_path: Path) -> None:
    names = [f"layers.{i}.self_attn.{letter}_proj.weight" for i in (0, 1) for letter in "kq"]
    sizes = [(8, 8), (8, 8), (16, 16), (16, 16)]
    offsets = np.cumsum([0, 256, 256, 1024])
    header = {n: entry(int(o), s) for n, o, s in zip(names, offsets, sizes, strict=True)}
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes(header, bytes(2560)))
    assert "several widths ([8, 16])" in refusal(path)


def test_refusals_end_the_command_as_wrong_calls_do() -> None:
    assert issubclass(checkpoints.CheckpointError, CallError)


# --- ONNX --------------------------------------------------------------------------------------


def onnx_model(location: str | None = None, length: int = 256) -> Any:
    """An ONNX model of a key and a query matrix, inside or in another file."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed; see the extra `checkpoints`")
    tensors = [onnx.numpy_helper.from_array(MATRIX, name) for name in (KEY, QUERY)]
    for tensor in tensors if location is not None else []:
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", location), ("length", str(length))):
            tensor.external_data.add(key=key, value=value)
    graph = onnx.helper.make_graph([], "model", [], [], tensors)
    return onnx.helper.make_model(graph)


def test_onnx_cut_short_or_damaged_is_read_or_refused(tmp_path: Path) -> None:
    whole = onnx_model().SerializeToString()
    path, rng = tmp_path / "model.onnx", np.random.default_rng(0)
    path.write_bytes(whole)
    assert read_all(path) == 1
    for size in range(0, len(whole), 13):
        path.write_bytes(whole[:size])
        refusal(path)
    for place in rng.integers(0, len(whole), 200):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        assert is_read_or_refused(path)


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "link", "", ".", "a\\b"])
def test_onnx_leads_nowhere_else(location: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(MATRIX.tobytes())
    folder = tmp_path / "inner"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "secret")
    path = folder / "model.onnx"
    path.write_bytes(onnx_model(location).SerializeToString())
    assert "outside its folder" in refusal(path)


@pytest.mark.parametrize(("length", "present"), [(256, False), (99, True), (256, True)])
def test_onnx_numbers_that_do_not_fit_are_refused(
    length: int, present: bool, tmp_path: Path
) -> None:
    if present:
        (tmp_path / "numbers").write_bytes(bytes(99))
    path = tmp_path / "model.onnx"
    path.write_bytes(onnx_model("numbers", length).SerializeToString())
    expected = "do not belong together" if present else "which is missing"
    assert expected in refusal(path)
