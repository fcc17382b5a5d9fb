"""GGUF: types, quantised types, heads up to the order of their rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from readings import agree, built, maps, reference, rounded

from mhanw import checkpoints
from mhanw.checkpoints.formats import Array
from mhanw_core import subspaces

gguf: Any = pytest.importorskip("gguf", reason="gguf is not installed; see the extra `checkpoints`")
QUANTISED = {"Q8_0": 0.01, "Q5_0": 0.07, "Q5_1": 0.07, "Q4_0": 0.15, "Q4_1": 0.15}
K_QUANTS = ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")


def permuted(weight: Array, n_heads: int) -> Array:
    """Rows in llama.cpp's order: pairs of a rotation side by side instead of half a head apart."""
    split = weight.reshape(n_heads, 2, -1, weight.shape[1])
    return np.ascontiguousarray(split.swapaxes(1, 2).reshape(weight.shape))


def write_gguf(
    path: Path, tensors: dict[str, Array], kind: str = "F32", architecture: str = "llama"
) -> None:
    """Write tensors in one type, with 4 query heads and 2 key heads (BERT: 4)."""
    writer = gguf.GGUFWriter(str(path), architecture)
    writer.add_head_count(4)
    if architecture == "llama":
        writer.add_head_count_kv(2)
        writer.add_rope_freq_base(10000.0)
    writer.add_token_list([f"token {i}" for i in range(50)])
    dtype = gguf.GGMLQuantizationType[kind]
    for name, values in tensors.items():
        writer.add_tensor(name, gguf.quants.quantize(values, dtype), raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama_gguf(model: Any) -> dict[str, Array]:
    """The attention of a LLaMA under GGUF's names."""
    found = {}
    for i, layer in enumerate(model.model.layers):
        for letter, n_heads in (("q", 4), ("k", 2)):
            weight = getattr(layer.self_attn, f"{letter}_proj").weight.numpy()
            found[f"blk.{i}.attn_{letter}.weight"] = permuted(weight, n_heads)
    return found


def test_gguf_heads_span_the_same_subspaces(tmp_path: Path) -> None:
    model = built("LLaMA")
    expected = reference(model, tmp_path / "reference")
    write_gguf(tmp_path / "model.gguf", llama_gguf(model))
    with checkpoints.open_checkpoint(tmp_path / "model.gguf") as checkpoint:
        assert checkpoint.architecture == "llama"
        assert any("permute" in note for note in checkpoint.notes)
        assert any("Rotary" in note for note in checkpoint.notes)
        for layer in checkpoint.layers:
            assert (layer.n_heads, layer.n_kv_heads) == (4, 2)
            for found, known in zip((layer.W_K(), layer.W_Q()), expected[layer.name], strict=True):
                assert np.abs(found - known).max() > 0.1
                for a, b in zip(found, known, strict=True):
                    angles = subspaces.principal_angles(a.astype(float), b.astype(float))
                    assert angles.max() < 1e-12


def bert_gguf(model: Any) -> dict[str, Array]:
    """The attention of a BERT under GGUF's names."""
    heads = [layer.attention.self for layer in model.encoder.layer]
    return {
        f"blk.{i}.attn_{letter}.weight": getattr(head, word).weight.numpy()
        for i, head in enumerate(heads)
        for letter, word in (("q", "query"), ("k", "key"))
    }


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", *QUANTISED])
def test_gguf_types_are_read(kind: str, tmp_path: Path) -> None:
    model = built("BERT")
    expected = reference(model, tmp_path / "reference")
    expected = {name.replace("encoder", "layer"): pair for name, pair in expected.items()}
    write_gguf(tmp_path / "model.gguf", bert_gguf(model), kind, "bert")
    dtypes = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
    known = rounded(expected, dtypes.get(kind, torch.float32))
    agree(maps(tmp_path / "model.gguf"), known, rtol=QUANTISED.get(kind, 0.0))


@pytest.mark.parametrize("kind", K_QUANTS)
def test_gguf_k_quants_are_read_as_the_package_reads_them(kind: str, tmp_path: Path) -> None:
    dtype = gguf.GGMLQuantizationType[kind]
    _, width = gguf.GGML_QUANT_SIZES[dtype]
    raw = np.random.default_rng(0).integers(0, 0x3C, (16, width)).astype(np.uint8)  # no NaN
    writer = gguf.GGUFWriter(str(tmp_path / "model.gguf"), "bert")
    writer.add_head_count(4)
    for name in ("blk.0.attn_q.weight", "blk.0.attn_k.weight"):
        writer.add_tensor(name, raw, raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    W_K, _ = maps(tmp_path / "model.gguf")["layer 0"]
    assert W_K.shape == (4, 256, 4)
    expected = gguf.quants.dequantize(raw, dtype)
    np.testing.assert_array_equal(W_K, expected.reshape(4, 4, 256).transpose(0, 2, 1))
