"""Each family: the maps that are read give the queries and keys that the real model computes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn
from zoo import CASES, LATENT, SIZES, Case, Sight, randomise, watching, without_weights

from mhanw import checkpoints
from mhanw.checkpoints.formats import Array

ROUNDING = {np.float64: 1e-12, np.float32: 1e-5}
Record = Callable[[str, object], None]


def sights(model: Any, spy: str, forward: Callable[[], Any]) -> list[tuple[Sight, Sight]]:
    """What each attention saw, and the same with all projections zero: their biases."""
    pairs = []
    for step in (lambda m: None, without_weights):
        step(model)
        with pytest.MonkeyPatch.context() as patch, watching(model, spy, patch) as seen:
            forward()
            pairs.append(seen())
    return list(zip(*pairs, strict=True))


def difference(W: Array, x: Array, bias: Array, actual: Array) -> float:
    """Largest |x @ W[h] + bias - actual| over heads, over the largest entry of the actual."""
    if len(actual) != len(W):  # repeated for the query heads it serves
        actual, bias = (a[:: len(a) // len(W)] for a in (actual, bias))
    predicted = x.astype(np.float64) @ W.astype(np.float64) + bias[:, :1]
    assert predicted.shape == actual.shape
    return float(np.abs(predicted - actual).max() / np.abs(actual).max())


def largest_difference(
    layer: checkpoints.Layer, seen: Sight, bias: Sight, query_scale: float = 1.0
) -> float:
    """Of keys and of queries."""
    W_K, W_Q = layer.W_K(), layer.W_Q()
    assert W_K.shape == (layer.n_kv_heads, layer.d_model, layer.head_dim)
    assert W_Q.shape == (layer.n_heads, seen.x.shape[1], layer.head_dim)
    return max(
        difference(W_K, seen.memory, bias.keys, seen.keys),
        difference(W_Q * query_scale, seen.x, bias.queries, seen.queries),
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["F64", "F32"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.family)
def test_keys_and_queries_are_those_of_the_model(
    case: Case, dtype: torch.dtype, tmp_path: Path, record_property: Record
) -> None:
    model = case.build(dtype)
    model.save_pretrained(tmp_path)
    feed = case.feed(dtype)
    pairs = sights(model, case.spy, lambda: model(**feed))
    with checkpoints.open_checkpoint(tmp_path) as checkpoint:
        layers = {layer.name: layer for layer in checkpoint.layers}
        assert set(layers) == set(case.names)
        assert checkpoint.architecture == model.config.model_type
        found = [
            largest_difference(layers[name], *pair, case.query_scale)
            for name, pair in zip(case.names, pairs, strict=True)
        ]
        kind = layers[case.names[0]].W_K().dtype.type
    record_property("largest_difference", max(found))
    assert max(found) < ROUNDING[kind]
    assert kind is (np.float64 if dtype == torch.float64 else np.float32)


# --- Families with a test of their own ---------------------------------------------------------


@pytest.mark.parametrize("q_rank", [12, None])
@pytest.mark.parametrize("version", ["V2", "V3"])
def test_latent_keys_are_those_of_the_model_without_rotation(
    version: str, q_rank: int | None, tmp_path: Path, record_property: Record
) -> None:
    sizes = {**SIZES, **LATENT, "q_lora_rank": q_rank}
    case = Case("", f"Deepseek{version}ForCausalLM", f"Deepseek{version}Config", sizes)
    model = case.build()
    model.save_pretrained(tmp_path)
    with pytest.MonkeyPatch.context() as patch, watching(model, "eager", patch) as seen:
        latents = {name: watch_latent(model, name) for name in ("kv_a_layernorm", "q_a_layernorm")}
        model(**case.feed())
    with checkpoints.open_checkpoint(tmp_path) as checkpoint:
        assert any("latent" in note for note in checkpoint.notes)
        found = [
            latent_difference(layer, sight, *(found[i] for found in latents.values() if found))
            for i, (layer, sight) in enumerate(zip(checkpoint.layers, seen(), strict=True))
        ]
    record_property("largest_difference", max(found))
    assert max(found) < 1e-6  # the norms of latent vectors round to float32


def watch_latent(model: Any, name: str) -> list[Array]:
    """The factors 1 / rms(c) by which a norm scales each token, in the order of layers."""
    factors: list[Array] = []

    def note(module: Any, args: Any, output: Any) -> None:
        ratio = output / (args[0] * module.weight)
        factors.append(ratio.mean(-1)[0].detach().numpy())

    for part_name, part in model.named_modules():
        if part_name.endswith(name):
            part.register_forward_hook(note)
    return factors


def latent_difference(
    layer: checkpoints.Layer, seen: Sight, keys_scale: Array, queries_scale: Array | float = 1.0
) -> float:
    """As `largest_difference`, for the part of keys and queries without rotation."""
    assert layer.head_dim == LATENT["qk_nope_head_dim"]
    nothing = np.zeros((layer.n_heads, 1, layer.head_dim))
    scaled = [(layer.W_K(), keys_scale, seen.keys), (layer.W_Q(), queries_scale, seen.queries)]
    return max(
        difference(W, seen.x * np.reshape(scale, (-1, 1)), nothing, actual[..., : layer.head_dim])
        for W, scale, actual in scaled
    )


class Wrapped(nn.Module):
    """A module of PyTorch's own with a name, as it lies in people's files."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.body = module


def torch_modules() -> dict[str, tuple[nn.Module, tuple[torch.Tensor, ...], tuple[str, ...]]]:
    """PyTorch's own attention: a module, its inputs, the names of its layers in call order."""
    x, memory = torch.randn(1, 7, 32).double(), torch.randn(1, 5, 32).double()
    options = {"d_model": 32, "nhead": 4, "dim_feedforward": 40, "batch_first": True}
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**options), 2)
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**options), 2)
    attention = nn.MultiheadAttention(32, 4, batch_first=True)
    narrow = nn.MultiheadAttention(32, 4, kdim=12, vdim=12, batch_first=True)
    four = ("layer 0", "layer 0 cross", "layer 1", "layer 1 cross")
    return {
        "TransformerEncoder": (encoder, (x,), ("layer 0", "layer 1")),
        "TransformerDecoder": (decoder, (x, memory), four),
        "MultiheadAttention": (attention, (x, memory, memory), ("layer 0",)),
        "MultiheadAttention, kdim": (narrow, (x, memory[..., :12], memory[..., :12]), ("layer 0",)),
    }


@pytest.mark.parametrize("name", torch_modules())
def test_keys_are_those_of_pytorch(name: str, tmp_path: Path, record_property: Record) -> None:
    module, inputs, names = torch_modules()[name]
    model = randomise(Wrapped(module.double()))
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_model(model, str(path))
    options = {"need_weights": False} if len(inputs) == 3 else {}  # with weights it takes bmm
    pairs = sights(model, "sdpa", lambda: module(*inputs, **options))
    with checkpoints.open_checkpoint(path, n_heads=4) as checkpoint:
        layers = {layer.name: layer for layer in checkpoint.layers}
        assert set(layers) == set(names)
        found = [largest_difference(layers[n], *pair) for n, pair in zip(names, pairs, strict=True)]
    record_property("largest_difference", max(found))
    assert max(found) < ROUNDING[np.float64]


def timm_model() -> Any:
    """A tiny ViT of timm; torchvision serves its image pipeline only, and may be absent."""
    names = ["", ".datasets", ".datasets.folder", ".models", ".models.feature_extraction", ".ops"]
    names += [".ops.misc", ".transforms", ".transforms.functional", ".utils"]
    stand_ins = {f"torchvision{name}": mock.MagicMock() for name in names}
    with mock.patch.dict(sys.modules, {n: m for n, m in stand_ins.items() if n not in sys.modules}):
        timm = pytest.importorskip("timm", reason="timm is not installed; it is no dependency")
    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}
    return timm.create_model("vit_tiny_patch16_224", num_classes=3, **sizes)


def test_keys_are_those_of_timm(tmp_path: Path, record_property: Record) -> None:
    model = randomise(timm_model().double().eval())
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(model.state_dict(), str(path))
    picture = torch.randn(1, 3, 16, 16).double()
    pairs = sights(model, "sdpa", lambda: model(picture))
    with checkpoints.open_checkpoint(path, n_heads=4) as checkpoint:
        found = [
            largest_difference(layer, *pair)
            for layer, pair in zip(checkpoint.layers, pairs, strict=True)
        ]
    record_property("largest_difference", max(found))
    assert max(found) < ROUNDING[np.float64]


# --- What is said beside the numbers -----------------------------------------------------------

BIASED, UNBIASED = "projection has a bias", "projection has no bias"
SAID = {
    "BERT": (BIASED,),
    "T5": (UNBIASED,),
    "LLaMA": (BIASED, "Rotary", "grouped-query"),
    "Qwen3": (UNBIASED, "Rotary", "normalised after", "grouped-query"),
    "ALBERT": (BIASED, "share their weights"),
    "GPT-NeoX": (BIASED, "Rotary"),
    "Falcon multi-query": (UNBIASED, "Rotary", "grouped-query"),
}


@pytest.mark.parametrize("family", SAID)
def test_notes_say_what_is_not_folded_in(family: str, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.family == family)
    case.build(torch.float32).save_pretrained(tmp_path)
    words = (*(w for said in SAID.values() for w in said), "latent", "permute", "config.json")
    with checkpoints.open_checkpoint(tmp_path) as checkpoint:
        assert "not folded in" in checkpoint.notes[0]
        assert checkpoint.dtype == "F32"
        found = {word for word in words if any(word in note for note in checkpoint.notes[1:])}
    assert found == set(SAID[family])


def test_each_tower_has_the_heads_of_its_own_section(tmp_path: Path) -> None:
    """A Q-Former beside a wider language model, as in BLIP-2: one name of heads, three numbers."""
    sections = {
        "text_config": {"hidden_size": 48, "num_attention_heads": 6},
        "vision_config": {"hidden_size": 32, "num_attention_heads": 8},
        "qformer_config": {"hidden_size": 24, "num_attention_heads": 2},
    }
    towers = {
        "language_model.model.decoder.layers.0.self_attn.{}_proj.weight": ("k", "q", 48),
        "vision_model.encoder.layers.0.self_attn.{}_proj.weight": ("k", "q", 32),
        "qformer.encoder.layer.0.attention.attention.{}.weight": ("key", "query", 24),
    }
    tensors = {
        name.format(word): torch.randn(width, width)
        for name, (key, query, width) in towers.items()
        for word in (key, query)
    }
    safetensors.torch.save_file(tensors, str(tmp_path / "model.safetensors"))
    (tmp_path / "config.json").write_text(json.dumps(sections))
    with checkpoints.open_checkpoint(tmp_path) as checkpoint:
        assert {layer.name: layer.n_heads for layer in checkpoint.layers} == {
            "text 0": 6,
            "vision 0": 8,
            "encoder 0": 2,
        }
    del sections["qformer_config"]
    (tmp_path / "config.json").write_text(json.dumps(sections))
    with (
        pytest.raises(checkpoints.CheckpointError, match="give it with --heads"),
        checkpoints.open_checkpoint(tmp_path),
    ):
        pass


def test_another_layout_under_the_name_of_gpt_2_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensors = {"transformer.h.0.attn.c_attn.weight": torch.randn(72, 24)}
    safetensors.torch.save_file(tensors, str(path))
    with (
        pytest.raises(checkpoints.CheckpointError, match="other layouts under it are not known"),
        checkpoints.open_checkpoint(path, n_heads=4),
    ):
        pass
