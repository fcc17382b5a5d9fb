"""Tiny randomly initialised models of the real classes, and what their attention really sees."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import transformers
from torch import nn
from transformers.pytorch_utils import Conv1D

from mhanw.checkpoints.formats import Array

TOKENS, MEMORY = 7, 5
SIZES = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 40,
    "vocab_size": 50,
    "pad_token_id": 0,
}
GPT = {"n_embd": 32, "n_head": 4, "n_layer": 2, "vocab_size": 50}
GROUPED = {**SIZES, "num_key_value_heads": 2}
WIDE = {**GROUPED, "head_dim": 16}
SPEECH = {
    "d_model": 32,
    "encoder_attention_heads": 4,
    "encoder_layers": 2,
    "encoder_ffn_dim": 40,
    "decoder_layers": 2,
    "decoder_ffn_dim": 40,
    "vocab_size": 50,
    "pad_token_id": 0,
}
PICTURE = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "image_size": 16,
    "patch_size": 8,
}
LATENT = {
    "kv_lora_rank": 20,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 5,
    "first_k_dense_replace": 2,
    "num_key_value_heads": 4,
}
PLAIN, ENCODER = ("layer 0", "layer 1"), ("encoder 0", "encoder 1")
DECODER = ("decoder 0", "decoder 0 cross", "decoder 1", "decoder 1 cross")


class Sight(NamedTuple):
    """What one attention layer received, and the queries and keys it worked with."""

    x: Array  # (n, d_model)
    memory: Array  # (m, d_model), what the keys were made from
    queries: Array  # (n_heads, n, head_dim)
    keys: Array  # (n_kv_heads, m, head_dim)


@dataclass(frozen=True)
class Case:
    """A family: its class, its sizes, the names its layers should get, in the order of calls."""

    family: str
    model: str
    config: str
    sizes: dict[str, Any]
    names: tuple[str, ...] = PLAIN
    inputs: tuple[str, ...] = ("input_ids",)
    query_scale: float = 1.0
    spy: str = "eager"
    extra: dict[str, Any] = field(default_factory=dict)

    def build(self, dtype: torch.dtype = torch.float64) -> Any:
        """A model whose every parameter is random, biases and gains included."""
        config = getattr(transformers, self.config)(**self.sizes)
        config._attn_implementation = "eager"
        return randomise(getattr(transformers, self.model)(config).to(dtype).eval())

    def feed(self, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
        """Inputs of a forward pass."""
        rng = torch.Generator().manual_seed(1)
        n_inputs = MEMORY if len(self.inputs) > 1 else TOKENS
        known = {
            "input_ids": torch.randint(3, 50, (1, n_inputs), generator=rng),
            "decoder_input_ids": torch.randint(3, 50, (1, TOKENS), generator=rng),
            "pixel_values": torch.randn(1, 3, 16, 16, generator=rng).to(dtype),
            "input_features": torch.randn(1, 8, 20, generator=rng).to(dtype),
        }
        return {name: known[name] for name in self.inputs} | self.extra


CASES = (
    Case("BERT", "BertModel", "BertConfig", SIZES, ENCODER),
    Case("RoBERTa", "RobertaForMaskedLM", "RobertaConfig", SIZES, ENCODER),
    Case(
        *("DistilBERT", "DistilBertModel", "DistilBertConfig"),
        {"dim": 32, "n_heads": 4, "n_layers": 2, "hidden_dim": 40, "vocab_size": 50},
    ),
    Case(
        *("ALBERT", "AlbertModel", "AlbertConfig", {**SIZES, "embedding_size": 16}),
        ("encoder 0",),
    ),
    Case("ELECTRA", "ElectraModel", "ElectraConfig", {**SIZES, "embedding_size": 16}, ENCODER),
    Case("DeBERTa-v2", "DebertaV2Model", "DebertaV2Config", SIZES, ENCODER, spy="scores"),
    Case("GPT-2", "GPT2LMHeadModel", "GPT2Config", GPT),
    Case("GPT-NeoX", "GPTNeoXForCausalLM", "GPTNeoXConfig", SIZES),
    Case(
        *("BLOOM", "BloomForCausalLM", "BloomConfig"),
        {"hidden_size": 32, "n_head": 4, "n_layer": 2, "vocab_size": 50},
        spy="split",
    ),
    Case("GPT-J", "GPTJForCausalLM", "GPTJConfig", {**GPT, "rotary_dim": 4}),
    Case(
        *("OPT", "OPTForCausalLM", "OPTConfig"),
        {**SIZES, "ffn_dim": 40, "word_embed_proj_dim": 32},
        ("decoder 0", "decoder 1"),
        query_scale=8**-0.5,
    ),
    Case("Falcon multi-query", "FalconForCausalLM", "FalconConfig", SIZES, spy="split"),
    Case(
        *("Falcon grouped-query", "FalconForCausalLM", "FalconConfig"),
        {**SIZES, "new_decoder_architecture": True, "num_kv_heads": 2, "bias": True},
        spy="split",
    ),
    Case(
        *("Falcon multi-head", "FalconForCausalLM", "FalconConfig"),
        {**SIZES, "multi_query": False, "bias": True},
        spy="split",
    ),
    Case("LLaMA", "LlamaForCausalLM", "LlamaConfig", {**GROUPED, "attention_bias": True}),
    Case("Mistral", "MistralForCausalLM", "MistralConfig", WIDE),
    Case("Qwen2", "Qwen2ForCausalLM", "Qwen2Config", GROUPED),
    Case("Qwen3", "Qwen3ForCausalLM", "Qwen3Config", WIDE),
    Case("Gemma", "GemmaForCausalLM", "GemmaConfig", WIDE),
    Case("Gemma 2", "Gemma2ForCausalLM", "Gemma2Config", WIDE),
    Case("Gemma 3", "Gemma3ForCausalLM", "Gemma3TextConfig", WIDE),
    Case("Phi-3", "Phi3ForCausalLM", "Phi3Config", GROUPED),
    Case(
        *("T5", "T5ForConditionalGeneration", "T5Config"),
        {"d_model": 32, "d_kv": 6, "num_heads": 4, "num_layers": 2, "d_ff": 40, "vocab_size": 50},
        ENCODER + DECODER,
        ("input_ids", "decoder_input_ids"),
    ),
    Case(
        *("BART", "BartForConditionalGeneration", "BartConfig"),
        {**SPEECH, "decoder_attention_heads": 2},
        ENCODER + DECODER,
        ("input_ids", "decoder_input_ids"),
    ),
    Case(
        *("Whisper", "WhisperForConditionalGeneration", "WhisperConfig"),
        {
            **SPEECH,
            "decoder_attention_heads": 4,
            "num_mel_bins": 8,
            "max_source_positions": 10,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
            "decoder_start_token_id": 1,
        },
        ENCODER + DECODER,
        ("input_features", "decoder_input_ids"),
        query_scale=8**-0.5,
    ),
    Case("ViT", "ViTModel", "ViTConfig", PICTURE, ENCODER, ("pixel_values",)),
    Case("DINOv2", "Dinov2Model", "Dinov2Config", PICTURE, ENCODER, ("pixel_values",)),
    Case(
        *("CLIP", "CLIPModel", "CLIPConfig"),
        {
            "text_config": {**SIZES, "eos_token_id": 2},
            "vision_config": {**PICTURE, "hidden_size": 24, "num_attention_heads": 3},
        },
        ("vision 0", "vision 1", "text 0", "text 1"),
        ("input_ids", "pixel_values"),
    ),
)


def randomise(model: nn.Module) -> nn.Module:
    """Draw every parameter anew, so that no bias and no gain is trivial."""
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=rng, dtype=torch.float64) * 0.3)
    return model


def without_weights(model: nn.Module) -> None:
    """Zero the matrix of every projection, so that queries and keys are their biases."""
    with torch.no_grad():
        for part in model.modules():
            if isinstance(part, nn.Linear | Conv1D):
                part.weight.zero_()
            for name in ("in_proj_weight", "q_proj_weight", "k_proj_weight"):
                if getattr(part, name, None) is not None:
                    getattr(part, name).zero_()


# --- Watching attention ------------------------------------------------------------------------

Note = Callable[[nn.Module, Any, Any], None]


@contextmanager
def watching(model: nn.Module, spy: str, patch: Any) -> Iterator[Callable[[], list[Sight]]]:
    """Note what each attention module receives, and its queries and keys before rotation."""
    received: dict[nn.Module, tuple[Any, Any]] = {}
    seen: dict[nn.Module, tuple[Any, Any]] = {}

    def receive(module: nn.Module, args: Any, kwargs: Any) -> None:
        x = args[0] if args else kwargs.get("hidden_states")
        memory = kwargs.get("key_value_states")
        if memory is None:
            memory = args[1] if isinstance(module, nn.MultiheadAttention) else x
        received.setdefault(module, (x, memory))

    def note(module: nn.Module, queries: Any, keys: Any) -> None:
        seen.setdefault(module, (queries.detach().clone(), keys.detach().clone()))

    hooks = [m.register_forward_pre_hook(receive, with_kwargs=True) for m in model.modules()]
    SPIES[spy](model, note, patch)
    yield lambda: [_sight(*received[m], *seen[m]) for m in seen]
    for hook in hooks:
        hook.remove()


def _sight(*batches: Any) -> Sight:
    return Sight(*(batch[0].detach().double().numpy() for batch in batches))


def _spy_eager(model: nn.Module, note: Note, patch: Any) -> None:
    """Replace the function that receives queries and keys; leave out rotation and norms."""
    module = sys.modules[type(model).__module__]
    original = module.eager_attention_forward

    def attention(part: nn.Module, queries: Any, keys: Any, *args: Any, **kwargs: Any) -> Any:
        note(part, queries, keys)
        return original(part, queries, keys, *args, **kwargs)

    patch.setattr(module, "eager_attention_forward", attention)
    if hasattr(module, "apply_rotary_pos_emb"):
        patch.setattr(module, "apply_rotary_pos_emb", _no_rotation)
    for part in model.modules():
        for name in ("q_norm", "k_norm"):
            if hasattr(part, name):
                setattr(part, name, nn.Identity())


def _no_rotation(first: Any, second: Any, *angles: Any, **kwargs: Any) -> Any:
    """Stand in for a rotation of (queries, keys, cos, sin), or of one of them (x, sin, cos)."""
    return first if len(angles) == 1 else (first, second)


def _spy_split(model: nn.Module, note: Note, patch: Any) -> None:
    """Watch the method that splits a fused projection."""

    def watched(part: nn.Module, split: Callable[[Any], Any], heads_first: bool) -> Any:
        def method(fused: Any) -> Any:
            parts = split(fused)
            queries, keys = (p if heads_first else p.transpose(1, 2) for p in parts[:2])
            note(part, queries, keys)
            return parts

        return method

    for part in model.modules():
        for name, heads_first in (("_reshape", True), ("_split_heads", False)):
            if hasattr(part, name):
                patch.setattr(part, name, watched(part, getattr(part, name), heads_first))


def _spy_scores(model: nn.Module, note: Note, patch: Any) -> None:
    """Watch DeBERTa's split into heads, called for queries and then for keys."""

    def watched(part: nn.Module, split: Callable[[Any, int], Any]) -> Any:
        calls: list[Any] = []

        def method(x: Any, n_heads: int) -> Any:
            calls.append(split(x, n_heads))
            if len(calls) == 2:
                note(part, calls[0][None], calls[1][None])
            return calls[-1]

        return method

    for part in model.modules():
        if hasattr(part, "transpose_for_scores"):
            split = part.transpose_for_scores
            patch.setattr(part, "transpose_for_scores", watched(part, split))


def _spy_sdpa(model: nn.Module, note: Note, patch: Any) -> None:
    """Watch PyTorch's own attention; the module is the last attention that was entered."""
    original = nn.functional.scaled_dot_product_attention
    entered: list[nn.Module] = []
    for part in model.modules():
        if type(part).__name__ in ("Attention", "MultiheadAttention"):
            part.register_forward_pre_hook(lambda module, args: entered.append(module))

    def attention(queries: Any, keys: Any, *args: Any, **kwargs: Any) -> Any:
        note(entered[-1], queries, keys)
        return original(queries, keys, *args, **kwargs)

    patch.setattr(nn.functional, "scaled_dot_product_attention", attention)


SPIES: dict[str, Callable[[nn.Module, Note, Any], None]] = {
    "eager": _spy_eager,
    "split": _spy_split,
    "scores": _spy_scores,
    "sdpa": _spy_sdpa,
}
