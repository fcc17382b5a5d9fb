"""The stored measurements: of the weights they name, and measured again where those are present."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pandas as pd
import pytest

from mhanw import hdi, models

ROOT = Path(__file__).parents[1]
NUMBERS = ["hdi", "paper_hdi", "null_mean", "null_sd", "shuffled_mean", "adjusted_hdi"]


@pytest.mark.parametrize("name", ["models_hdi.csv", "minilm_pairs.csv", "minilm_pruning.csv"])
def test_stored_numbers_name_the_pinned_weights(name: str) -> None:
    lines = (ROOT / "data" / name).read_text(encoding="utf-8").splitlines()
    named = {line.split()[1].rstrip(":"): line for line in lines if line.startswith("#")}
    pinned = {weights.name: weights for weights in models.KNOWN}
    assert named
    for model, line in named.items():
        assert line.rpartition(" ")[2] in pinned[model].files.values()
        assert f"{pinned[model].package} {pinned[model].version}," in line


def test_a_pair_is_stored_once_and_the_index_is_its_mean() -> None:
    pairs = pd.read_csv(ROOT / "data" / "minilm_pairs.csv", comment="#")
    assert len(pairs) == 6 * 66 == len(pairs[["layer", "head_i", "head_j"]].drop_duplicates())
    layers = pd.read_csv(ROOT / "data" / "models_hdi.csv", comment="#")
    index = layers[layers.model == "minilm"].hdi.to_numpy()
    assert 1 - pairs.groupby("layer").overlap.mean().to_numpy() == pytest.approx(index, abs=2e-6)


@pytest.mark.parametrize("weights", models.KNOWN, ids=lambda weights: weights.name)
def test_present_weights_give_the_stored_numbers(weights: models.Weights) -> None:
    if models.state(weights, ROOT / "models") != "verified":
        pytest.skip(f"{weights.name} is absent; `mhanw models fetch {weights.name}` brings it.")
    stored = pd.read_csv(ROOT / "data" / "models_hdi.csv", comment="#")
    stored = stored[stored.model == weights.name]
    last = f"0,{len(stored) - 1}" if len(stored) > 1 else "0"
    found = hdi.measure(str(ROOT / "models" / weights.name), wanted=last)
    rows = [stored.iloc[0], stored.iloc[-1]][: len(found.layers)]
    for layer, row in zip(found.layers, rows, strict=True):
        assert layer.name == row.layer
        for number in NUMBERS:
            assert getattr(layer.report, number) == pytest.approx(row[number], rel=2e-4, abs=2e-6)


def test_pruning_is_stored_for_every_way_and_level() -> None:
    table = pd.read_csv(ROOT / "data" / "minilm_pruning.csv", comment="#")
    ways = {w for w in table.chosen_by if not w.startswith("random")} - {"none"}
    assert ways == {"overlap", "circuit", "weights", "outputs"}
    for _, rows in groupby(table[table.removed > 0].itertuples(), key=lambda r: r.chosen_by):
        assert [row.removed for row in rows] == [12, 24, 36, 48]
    each = table.each.str.split().map(lambda words: sum(map(float, words)) / len(words))
    assert each.to_numpy() == pytest.approx(table.mrr.to_numpy(), abs=1e-4)
