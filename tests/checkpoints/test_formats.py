"""safetensors and PyTorch files in all their forms give the same maps, read when asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from readings import agree, built, maps, reference, rounded

from mhanw import checkpoints
from mhanw.checkpoints import formats
from mhanw.checkpoints.formats import Array

# --- safetensors -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["F16", "BF16"])
def test_half_precision_is_read_exactly(dtype: torch.dtype, tmp_path: Path) -> None:
    expected = rounded(reference(built("BERT"), tmp_path / "single"), dtype)
    built("BERT").to(dtype).save_pretrained(tmp_path / "half")
    found = maps(tmp_path / "half")
    agree(found, expected)
    assert {W.dtype for pair in found.values() for W in pair} == {np.dtype(np.float32)}


def test_shards_are_one_model(tmp_path: Path) -> None:
    model = built("BERT")
    expected = reference(model, tmp_path / "whole")
    model.save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 1
    agree(maps(tmp_path / "parts"), expected)
    agree(maps(tmp_path / "parts" / "model.safetensors.index.json"), expected)


def test_numbers_are_read_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built("BERT").save_pretrained(tmp_path)
    read: list[int] = []
    original = np.fromfile

    def counted(*args: Any, **kwargs: Any) -> Array:
        read.append(kwargs["count"])
        return original(*args, **kwargs)

    monkeypatch.setattr(formats.np, "fromfile", counted)
    with checkpoints.open_checkpoint(tmp_path) as checkpoint:
        assert read == []
        checkpoint.layers[0].W_K()
    assert read == [32 * 32]


def test_importing_the_reader_imports_no_torch() -> None:
    code = "import sys; from mhanw import checkpoints; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- PyTorch -----------------------------------------------------------------------------------


def save_zip(state: dict[str, Any], folder: Path) -> None:
    torch.save(state, folder / "pytorch_model.bin")


def save_legacy(state: dict[str, Any], folder: Path) -> None:
    torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)


def save_wrapped(state: dict[str, Any], folder: Path) -> None:
    torch.save({"epoch": 3, "state_dict": state}, folder / "pytorch_model.bin")


def save_shards(state: dict[str, Any], folder: Path) -> None:
    names = sorted(state)
    files = ("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin")
    for i, file in enumerate(files):
        torch.save({name: state[name] for name in names[i::2]}, folder / file)
    weight_map = {name: files[i % 2] for i, name in enumerate(names)}
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize("save", [save_zip, save_legacy, save_wrapped, save_shards])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["F32", "BF16"])
def test_pytorch_files_give_the_same_maps(
    save: Callable[[dict[str, Any], Path], None], dtype: torch.dtype, tmp_path: Path
) -> None:
    model = built("GPT-2", dtype)
    expected = reference(model, tmp_path / "reference")
    (tmp_path / "torch").mkdir()
    save(model.state_dict(), tmp_path / "torch")
    (tmp_path / "reference" / "config.json").rename(tmp_path / "torch" / "config.json")
    agree(maps(tmp_path / "torch"), expected)


def test_pt_file_without_config_needs_and_takes_heads(tmp_path: Path) -> None:
    model = built("LLaMA")
    expected = reference(model, tmp_path / "reference")
    path = tmp_path / "weights.pt"
    torch.save(model.state_dict(), path)
    with pytest.raises(checkpoints.CheckpointError, match="give it with --heads"):
        maps(path)
    agree(maps(path, n_heads=4), expected)
