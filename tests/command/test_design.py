"""`mhanw design`: an answer for three real budgets, sentences for nonsense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from books import call_in

from mhanw import CallError, design


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


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--budget", "-5", "--n", "10"], "Invalid value for '--budget'"),
        (["--budget", "512", "--n", "0"], "n must be positive and finite; found 0"),
        (["--budget", "512", "--n", "nan"], "n must be positive and finite"),
        (["--budget", "512", "--n", "many"], "Invalid value for '--n'"),
        (["--budget", "half", "--n", "10"], "Invalid value for '--budget'"),
        (["--budget", "512", "--n", "10", "--smoothness", "-1"], "smoothness must be positive"),
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
