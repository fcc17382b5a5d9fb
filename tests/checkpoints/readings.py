"""What the tests of formats share: tiny models, the maps that are read, their comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from zoo import CASES

from mhanw import checkpoints
from mhanw.checkpoints.formats import Array

BY_FAMILY = {case.family: case for case in CASES}
Maps = dict[str, tuple[Array, Array]]


def built(family: str, dtype: torch.dtype = torch.float32) -> Any:
    """A tiny random model of a family, for writing only."""
    return BY_FAMILY[family].build(dtype).requires_grad_(False)


def maps(path: Path, n_heads: int | None = None) -> Maps:
    """Key and query maps of all layers."""
    with checkpoints.open_checkpoint(path, n_heads=n_heads) as checkpoint:
        return {layer.name: (layer.W_K(), layer.W_Q()) for layer in checkpoint.layers}


def reference(model: Any, folder: Path) -> Maps:
    """The maps as safetensors has them."""
    model.save_pretrained(folder)
    return maps(folder)


def agree(found: Maps, expected: Maps, rtol: float = 0.0) -> None:
    """The same layers with the same maps; `rtol` in units of a map's largest entry."""
    assert list(found) == list(expected)
    for name in expected:
        for a, b in zip(found[name], expected[name], strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=rtol * float(np.abs(b).max()))


def rounded(expected: Maps, dtype: torch.dtype) -> Maps:
    """The maps as a narrower type would keep them."""

    def narrow(W: Array) -> Array:
        return torch.tensor(W).to(dtype).float().numpy()

    return {name: (narrow(k), narrow(q)) for name, (k, q) in expected.items()}
