"""CTranslate2: its own converter's files give the maps of the model that was converted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from readings import agree, built, maps

from mhanw.checkpoints.formats import Array
from mhanw_core import subspaces

converters: Any = pytest.importorskip(
    "ctranslate2.converters.transformers",
    reason="ctranslate2 is not installed; it is no dependency, its files are read without it",
)
LOADERS = {
    "BART": "BartLoader",
    "Whisper": "WhisperLoader",
    "GPT-2": "GPT2Loader",
    "BERT": "BertLoader",
    "BLOOM": "BloomLoader",
    "OPT": "OPTLoader",
    "T5": "T5Loader",
    "LLaMA": "LlamaLoader",
}
MISSING = {
    "normalize_before": False,
    "normalize_embedding": True,
    "position_embedding_type": "absolute",
}


def write_ctranslate2(path: Path, family: str, quantisation: str | None) -> None:
    """Convert with CTranslate2's own code, which changes the model it converts."""
    model = built(family)
    model.config.decoder_attention_heads = 4
    for name, value in MISSING.items():  # settings that newer configurations leave out
        setattr(model.config, name, getattr(model.config, name, value))
    spec = getattr(converters, LOADERS[family])().get_model_spec(model)
    base = next(c for c in type(spec).__mro__ if c.__name__ == "LayerSpec")
    base.validate(spec)  # without the vocabulary, which nothing here needs
    spec.optimize(quantization=quantisation)
    spec._serialize(str(path))


@pytest.mark.parametrize("quantisation", [None, "float16", "int8", "int16"])
@pytest.mark.parametrize("family", LOADERS)
def test_ctranslate2_gives_the_same_maps(
    family: str, quantisation: str | None, tmp_path: Path
) -> None:
    model = built(family)
    model.save_pretrained(tmp_path)
    if family == "BART":  # the converter knows one number of heads
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**config, "decoder_attention_heads": 4}))
    expected = maps(tmp_path)
    write_ctranslate2(tmp_path / "model.bin", family, quantisation)
    found = maps(tmp_path / "model.bin")
    rtol = {None: 0.0, "float16": 1e-3, "int8": 1e-2, "int16": 1e-3}[quantisation]
    if len(expected) == 2:  # CTranslate2 says encoder or decoder where others say layer
        assert [name.split()[1] for name in found] == ["0", "1"]
        expected = dict(zip(found, expected.values(), strict=True))
    if family == "LLaMA":
        expected, found = ({n: spans(*pair) for n, pair in m.items()} for m in (expected, found))
        rtol *= 10  # projections amplify the rounding
        rtol += 1e-5
    agree(found, expected, rtol)


def spans(*pair: Array) -> tuple[Array, Array]:
    """Projections onto the heads' subspaces: blind to the order of rows within a head."""
    bases = (subspaces.orthonormal_bases(W.astype(np.float64)) for W in pair)
    k, q = (q @ q.mT for q in bases)
    return k, q
