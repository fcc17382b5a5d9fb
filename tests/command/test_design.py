"""`mhanw design`: an answer for three real budgets, sentences for nonsense."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest
from books import call_in

from mhanw import CallError, design
from mhanw_core import scaling


@pytest.mark.parametrize(("budget", "n"), [(768, 1e9), (4096, 1e12), (12288, 3e11)])
def test_real_budgets_get_a_table(tmp_path: Path, budget: int, n: float) -> None:
    result = call_in(tmp_path, "design", "--budget", str(budget), "--n", str(n))
    assert result.exit_code == 0
    assert "printed law" in result.stdout
    assert "published models, median" in result.stdout
    assert "Beyond head_dim" in result.stdout


def test_the_answer_as_json_and_as_a_picture(tmp_path: Path) -> None:
    args = ["design", "--budget", "512", "--n", "1e6", "--json", "-", "--plot", "d.png"]
    result = call_in(tmp_path, *args)
    answer = json.loads(result.stdout)
    best = min(answer["recommendations"], key=lambda row: row["log10_cost_printed"])
    assert (best["head_dim"], best["n_heads"], best["log10_cost_printed"]) == (10, 51, 0.0)
    assert (tmp_path / "d.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("budget", [1, 2, 768, 12288])
def test_no_recommendation_beats_the_best(budget: int) -> None:
    for row in design.recommend(budget, 1e8).recommendations:
        assert row.n_heads * row.head_dim <= budget
        assert row.log10_cost_printed >= 0
        assert row.log10_cost_fixed >= 0


@pytest.mark.parametrize(("budget", "n", "smoothness"), [(24, 1e3, 3), (50, 1e5, 1), (9, 50, 2)])
def test_costs_are_those_of_all_allocations(budget: int, n: float, smoothness: float) -> None:
    """Worked out anew, by listing every head dimension."""
    found = design.recommend(budget, n, smoothness)

    def error(d: int, power: float) -> float:
        return d**-2 + d**power / n / (budget // d)

    dims = range(1, budget + 1)
    printed, fixed = (
        {d: error(d, d / 2 if flexible else smoothness / 2) for d in dims}
        for flexible in (True, False)
    )
    for row in found.recommendations:
        for errors, cost in (
            (printed, row.log10_cost_printed),
            (fixed, row.log10_cost_fixed),
        ):
            assert 10**cost == pytest.approx(errors[row.head_dim] / min(errors.values()))
    law, least, least_fixed, *_ = found.recommendations
    assert fixed[least_fixed.head_dim] == min(fixed.values())
    assert law.head_dim == max(1, round(math.log(n) ** (2 / (4 + smoothness))))
    assert printed[least.head_dim] == min(printed.values())


def test_noise_is_reached_where_the_printed_variance_is_one() -> None:
    d = design.recommend(512, 1e6).largest_meaningful_head_dim
    assert d ** (d / 2) == pytest.approx(1e6)


def test_models_are_those_within_a_factor_of_two() -> None:
    found = design.recommend(1024, 1e6)
    assert found.models
    budgets = {m.model: m.n_heads * m.head_dim for m in scaling.architectures()}
    assert {m.model for m in found.models} == {k for k, b in budgets.items() if 512 <= b <= 2048}
    row = found.recommendations[-1]
    assert row.law == "published models, median"
    assert row.head_dim == round(statistics.median(m.head_dim for m in found.models))
    assert not design.recommend(1, 1e6).models


@pytest.mark.parametrize(
    ("log10_cost", "text"),
    [(0, "1.00"), (0.0170333, "1.04"), (1, "10"), (1.568, "37"), (4, "10^4"), (52.3, "10^52")],
)
def test_costs_read_well(log10_cost: float, text: str) -> None:
    assert design.cost_text(log10_cost) == text


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--budget", "-5", "--n", "10"], "Invalid value for '--budget'"),
        (["--budget", "512", "--n", "0"], "n must be positive and finite; found 0"),
        (["--budget", "512", "--n", "nan"], "n must be positive and finite"),
        (["--budget", "512", "--n", "many"], "Invalid value for '--n'"),
        (["--budget", "half", "--n", "10"], "Invalid value for '--budget'"),
        (["--budget", "512", "--n", "10", "--smoothness", "-1"], "smoothness must be positive"),
        (
            ["--budget", "512", "--n", "10", "--smoothness", "1e9"],
            "smoothness must be at most 1000",
        ),
        (["--budget", "512", "--n", "10", "--smoothness", "nan"], "smoothness must be"),
        (["--budget", "99999999", "--n", "10"], "at most 10,000,000 dimensions"),
        (["--budget", "512", "--n", "10", "--plot", "d.txt"], "must end in .png"),
        (["--budget", "512", "--n", "10", "--json", "no/x.json"], "cannot be written"),
    ],
)
def test_nonsense_gets_a_sentence(tmp_path: Path, args: list[str], message: str) -> None:
    result = call_in(tmp_path, "design", *args)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_budget_has_at_most_ten_million_dimensions() -> None:
    with pytest.raises(CallError, match="at most 10,000,000 dimensions"):
        design.recommend(10**8, 1e6)
