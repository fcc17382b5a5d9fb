"""What the notebook tests need: a steady width, fair comparisons, a word on absent weights."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from nbval.plugin import IPyNbFile

WEIGHTS = Path(__file__).parent / "models" / "minilm" / "model.safetensors"

os.environ["COLUMNS"] = "80"  # printed tables wrap at the terminal's width
os.environ.pop("MPLBACKEND", None)  # "agg" would leave figure cells without outputs


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Let no progress bar and no SVG decide a comparison; the figures' numbers are asserted."""
    if isinstance(collector, IPyNbFile):
        collector.skip_compare = (*collector.skip_compare, "stderr", "image/svg+xml")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the cells that read MiniLM where its weights are absent; in CI they must be there."""
    if WEIGHTS.is_file():
        return
    cells = [
        i for i in items if "weights" in getattr(i, "cell", {}).get("metadata", {}).get("tags", [])
    ]
    if cells and os.environ.get("CI"):
        raise pytest.UsageError(
            "models/minilm is absent and CI must have it: `mhanw models fetch` brings it."
        )
    for item in cells:
        item.add_marker(
            pytest.mark.skip(
                reason="MiniLM's weights are absent; `mhanw models fetch` brings them."
            )
        )
