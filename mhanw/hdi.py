"""What `mhanw hdi` measures: the diversity of the heads of every layer of a checkpoint."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binom
from threadpoolctl import threadpool_limits

from mhanw import CallError, checkpoints
from mhanw.pictures import picture
from mhanw_core import diversity, subspaces
from mhanw_core.regression import Array

LIGHT = 50_000  # n_heads * head_dim^2; above it a deal takes long, and deals scatter less
FEW_DEALS = 20
RARE = 0.001  # more layers below their deals than this chance allows are called real


@dataclass(frozen=True)
class Measured:
    """One layer: its report, and the circuit overlaps of every two query heads.

    `n_query_heads` exceeds the report's `n_heads` under grouped queries; `circuits` is None
    without queries, `report` where the layer has one key head; the null has `n_deals`.
    """

    name: str
    n_query_heads: int
    report: diversity.DiversityReport | None
    circuits: Array | None
    remark: str = ""
    n_deals: int = 0

    @property
    def below_by_chance(self) -> float:
        """Chance that one more deal lies below the 95 % band of the others."""
        return (1 + 0.025 * (self.n_deals - 1)) / (self.n_deals + 1)

    def as_dict(self) -> dict[str, Any]:
        """For another program; what is not defined is None."""
        numbers = asdict(self.report) if self.report else {}
        numbers.pop("overlaps", None)
        clean = {k: None if isinstance(v, float) and isnan(v) else v for k, v in numbers.items()}
        return {"layer": self.name, "n_query_heads": self.n_query_heads, **clean} | (
            {"remark": self.remark} if self.remark else {}
        )


@dataclass(frozen=True)
class Findings:
    """All measured layers of one checkpoint, with what is not folded into the numbers."""

    path: str
    architecture: str
    format: str
    dtype: str
    layers: tuple[Measured, ...]
    notes: tuple[str, ...]

    @property
    def reports(self) -> list[diversity.DiversityReport]:
        return [layer.report for layer in self.layers if layer.report is not None]

    def as_dict(self) -> dict[str, Any]:
        """For another program."""
        head = {k: getattr(self, k) for k in ("path", "architecture", "format", "dtype")}
        layers = [layer.as_dict() for layer in self.layers]
        return {**head, "layers": layers, "notes": list(self.notes), "summary": summary(self)}


def measure(
    path: str,
    wanted: str = "",
    key_pattern: str | None = None,
    n_heads: int | None = None,
    n_deals: int | None = None,
    seed: int = 0,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Findings:
    """Measure the layers of a checkpoint.

    Parameters
    ----------
    path : str
        A file, a folder, or a model's name on a hub.
    wanted : str
        Layers, as in ``0,2,5-7``; all if empty.
    key_pattern, n_heads
        As in `checkpoints.open_checkpoint`.
    n_deals : int, optional
        Of the shuffled null; 200 by default, 20 for layers of many or large heads.
    seed : int
    report : callable
        Called with the layers done and in all.

    Raises
    ------
    CallError
        If the file cannot be read, or a layer's numbers cannot be trusted.
    """
    with checkpoints.open_checkpoint(local(path), key_pattern, n_heads) as found:
        layers = choose(found.layers, wanted, path)
        done = []
        for i, layer in enumerate(layers):
            report(i, len(layers))
            done.append(_measured(layer, path, n_deals, seed))
        report(len(layers), len(layers))
        kind = (found.architecture, found.format, found.dtype)
        return Findings(path, *kind, tuple(done), tuple(found.notes))


def _measured(layer: checkpoints.Layer, path: str, n_deals: int | None, seed: int) -> Measured:
    try:
        keys, queries = layer.W_K(), layer.W_Q() if layer.query_tensor else None
        circuits = None
        if queries is not None and queries.shape[1:] == keys.shape[1:]:
            circuits = subspaces.circuit_overlaps(queries, keys)
        if len(keys) < 2:
            remark = "one key head: no pairs to compare"
            return Measured(layer.name, layer.n_heads, None, circuits, remark)
        small = keys.shape[0] * keys.shape[2] ** 2 <= LIGHT
        deals = n_deals or (200 if small else FEW_DEALS)
        with threadpool_limits(limits=1 if small else None):  # threads only wait on small blocks
            found = diversity.report(keys, None, seed, deals)
    except ValueError as error:
        raise CallError(f"{path}, layer {layer.name}: {error}") from None
    if circuits is not None:
        apart = 1 - circuits[np.triu_indices(len(circuits), 1)].mean(dtype=np.float64)
        found = replace(found, circuit_index=float(apart))
    return Measured(layer.name, layer.n_heads, found, circuits, n_deals=deals)


def local(path: str) -> str:
    """The path itself if it exists; else what `huggingface_hub` fetches under that name."""
    if os.path.lexists(path) or not re.fullmatch(r"[\w.-]+/[\w.-]+", path):
        return path
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        return path
    patterns = ["*.safetensors", "*.json"]
    try:
        return str(snapshot_download(path, allow_patterns=patterns))
    except Exception as error:  # whatever a library of the network raises
        raise CallError(
            f"{path} is no file or folder here, and the hub did not give it: "
            f"{type(error).__name__}. Check the name and the network, or pass a path."
        ) from None


def choose(layers: Sequence[checkpoints.Layer], wanted: str, path: str) -> list[checkpoints.Layer]:
    """Pick layers by their places in the table, ``0,2,5-7``."""
    if not wanted:
        return list(layers)
    places: set[int] = set()
    for part in wanted.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match is None:
            raise CallError(f"--layers {wanted!r}: {part!r} is not a number or a range like 5-7.")
        places |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    beyond = sorted(place for place in places if place >= len(layers))
    if beyond or not places:
        raise CallError(
            f"--layers {wanted!r}: {path} has layers 0 to {len(layers) - 1}; {beyond or wanted} "
            "are not among them."
        )
    return [layers[place] for place in sorted(places)]


def pair_name(place: int, pair: tuple[int, int]) -> str:
    """A pair of heads as engineers write it: L4H3–H7."""
    return f"L{place}H{pair[0]}–H{pair[1]}"


def summary(found: Findings) -> str:
    """What the numbers say, in words that do not promise more."""
    reports = found.reports
    if not reports:
        return f"{found.path}: no layer has two key heads, so there is nothing to compare."
    low, high = min(r.hdi for r in reports), max(r.hdi for r in reports)
    chance = sorted({round(r.null_mean, 3) for r in reports})
    place, worst = max(
        ((i, m.report) for i, m in enumerate(found.layers) if m.report),
        key=lambda item: item[1].closest_overlap - (1 - item[1].null_mean),
    )
    range_ = f"{low:.3f}" if low == high else f"{low:.3f} to {high:.3f}"
    by_chance = " or ".join(f"{c:.3f}" for c in chance[:3])
    return (
        f"{found.path}: {len(reports)} layer{'s' * (len(reports) > 1)}, index {range_} "
        f"(by chance {by_chance}). {_against_deals(found)} "
        f"The closest pair is {pair_name(place, worst.closest_pair)}, overlap "
        f"{worst.closest_overlap:.2f}. This is about key subspaces; it does not say that a head "
        "can be removed."
    )


def _against_deals(found: Findings) -> str:
    """How many layers lie below their deals, and whether chance alone would do that."""
    dealt = [m for m in found.layers if m.report and not isnan(m.report.shuffled_low)]
    if not dealt:
        return "No layer could be dealt: heads share columns."
    below = sum(m.report.hdi < m.report.shuffled_low for m in dealt if m.report)
    expected = sum(m.below_by_chance for m in dealt)
    beyond = binom.sf(below - 1, len(dealt), expected / len(dealt)) < RARE
    meaning = ": there, heads share key directions beyond those of the layer" if beyond else ""
    return (
        f"{below} of {len(dealt)} lie below their own columns dealt at random (by chance, about "
        f"{expected:.1g} would){meaning}."
    )


def tidy(findings: Sequence[Findings]) -> str:
    """All pairs as CSV: path, layer, head_i, head_j, overlap, excess over chance, circuit.

    Under grouped queries `circuit` is the mean over the query heads of the two key heads.
    """
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(["path", "layer", "head_i", "head_j", "overlap", "excess", "circuit"])
    for found in findings:
        for layer in found.layers:
            table.writerows([found.path, layer.name, *row] for row in _pairs(layer))
    return out.getvalue()


def _pairs(layer: Measured) -> Iterator[tuple[Any, ...]]:
    if layer.report is None:
        return
    r, circuits = layer.report, layer.circuits
    heads, chance = r.n_heads, 1 - r.null_mean
    if circuits is not None:
        group = len(circuits) // heads
        circuits = circuits.reshape(heads, group, heads, group).mean(axis=(1, 3))
    for i in range(heads):
        for j in range(i + 1, heads):
            overlap = float(r.overlaps[i, j])
            circuit = "" if circuits is None else f"{circuits[i, j]:.6f}"
            yield i, j, f"{overlap:.6f}", f"{overlap - chance:.6f}", circuit


def plot(findings: Findings, file: Path) -> None:
    """Draw every layer's overlaps of pairs of heads as a heat map, on one scale."""
    layers = [(m.name, m.report.overlaps) for m in findings.layers if m.report is not None]
    if not layers:
        raise CallError(f"{findings.path}: no layer has two key heads, so there is no picture.")
    columns = min(6, len(layers))
    rows = -(-len(layers) // columns)
    size = (1.6 * columns + 1.2, 1.8 * rows + 0.6)
    off = [np.where(np.eye(len(o), dtype=bool), np.nan, o) for _, o in layers]
    top = max(float(np.nanmax(o)) for o in off)
    with picture(file, rows, columns, figsize=size, squeeze=False) as (figure, axes):
        for ax in axes.flat:
            ax.set_axis_off()
        for ax, (name, _), values in zip(axes.flat, layers, off, strict=False):
            image = ax.imshow(values, vmin=0, vmax=top)
            ax.set_title(name, fontsize=9)
        figure.colorbar(image, ax=axes, label="overlap of two heads", shrink=0.8)
