"""ONNX: both of PyTorch's exporters, numbers inside and beside the model."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from readings import BY_FAMILY, agree, built, maps, reference
from zoo import Case

onnx: Any = pytest.importorskip("onnx", reason="onnx is not installed; see the extra `checkpoints`")


class First(torch.nn.Module):
    """A model whose first output is its only one."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> Any:
        return self.model(input_ids=input_ids)[0]


def write_onnx(path: Path, model: Any, case: Case, dynamo: bool) -> None:
    if dynamo:
        pytest.importorskip("onnxscript", reason="PyTorch's newer exporter needs onnxscript")
    model.config.use_cache = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, about itself
        inputs = (case.feed()["input_ids"],)
        torch.onnx.export(First(model), inputs, str(path), dynamo=dynamo, verbose=False)


@pytest.mark.parametrize(
    ("family", "dynamo"), [("BERT", False), ("BERT", True), ("GPT-2", True), ("LLaMA", True)]
)
def test_onnx_gives_the_same_maps(family: str, dynamo: bool, tmp_path: Path) -> None:
    model = built(family)
    expected = reference(model, tmp_path)
    write_onnx(tmp_path / "model.onnx", model, BY_FAMILY[family], dynamo)
    agree(maps(tmp_path / "model.onnx"), expected)


def test_onnx_numbers_may_lie_beside_the_model(tmp_path: Path) -> None:
    model = built("BERT")
    expected = reference(model, tmp_path)
    write_onnx(tmp_path / "inside.onnx", model, BY_FAMILY["BERT"], dynamo=False)
    whole = onnx.load(tmp_path / "inside.onnx")
    options = {"save_as_external_data": True, "location": "numbers.data", "size_threshold": 0}
    onnx.save_model(whole, tmp_path / "outside.onnx", **options)
    assert (tmp_path / "numbers.data").stat().st_size > 10_000
    agree(maps(tmp_path / "outside.onnx"), expected)
