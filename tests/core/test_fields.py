"""Forests, ants and heads on one line: controls, directions, departures, and what is refused."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import make_friedman1
from sklearn.ensemble import RandomForestRegressor

from mhanw_core import designs, ensemble, fields
from mhanw_core.regression import Array

SEEDS = [0, 1, 2]
property_test = settings(max_examples=40, deadline=None, derandomize=True)


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def check(replicates: Array, n_known: int | None = None) -> fields.LineCheck:
    return fields.line_check(*fields.halves(replicates), n_known)


def equicorrelated(
    seed: int, rho: float, shape: tuple[int, int, int] = (400, 10, 3), shift: float = 0.0
) -> Array:
    """Normal agents of variance 4 that are equally correlated, rho >= 0."""
    draw = rng(seed).standard_normal
    common = np.sqrt(rho) * draw((shape[0], 1, shape[2]))
    return np.asarray(2 * (common + np.sqrt(1 - rho) * draw(shape)) + shift)


def assert_control(found: fields.LineCheck) -> None:
    """The agents are uncorrelated and their mean has the variance V / H."""
    assert abs(found.correlation) < 4 * found.correlation_se
    assert abs(found.z) < 4
    assert abs(found.independent_z) < 4


def assert_apart(low: fields.LineCheck, high: fields.LineCheck) -> None:
    """The second correlation exceeds the first by more than four standard errors."""
    gap = high.correlation - low.correlation
    assert gap > 4 * np.hypot(high.correlation_se, low.correlation_se)


# --- The line --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("n_known", [None, 3])
def test_equicorrelated_normals_are_on_the_line_and_not_independent(
    seed: int, n_known: int | None
) -> None:
    found = check(equicorrelated(seed, 0.3), n_known)
    assert abs(found.z) < 4
    assert found.independent_z > 4
    assert abs(found.variance - 4) < 4 * found.variance_se
    assert abs(found.correlation - 0.3) < 4 * found.correlation_se
    truth = float(ensemble.equicorrelated_variance(4, 0.3, 10))
    assert abs(found.predicted - truth) < 4 * found.predicted_se
    assert abs(found.measured - truth) < 4 * found.measured_se


def test_standard_errors_are_those_of_many_repetitions() -> None:
    runs = [check(equicorrelated(seed, 0.3, (100, 5, 1))) for seed in range(400)]
    for name in ("variance", "correlation", "predicted", "independent", "measured"):
        spread = np.std([getattr(run, name) for run in runs])
        claimed = np.mean([getattr(run, name + "_se") for run in runs])
        assert claimed == pytest.approx(spread, rel=0.15)
    assert np.std([run.z for run in runs]) == pytest.approx(1, abs=0.15)


@property_test
@given(st.integers(0, 2**32 - 1), st.integers(3, 9), st.integers(2, 5), st.integers(1, 3))
def test_within_one_half_the_line_is_an_identity(seed: int, r: int, h: int, m: int) -> None:
    x = rng(seed).standard_normal((r, h, m)) * rng(seed).exponential(size=(h, 1)) + 3
    found = fields.line_check(x, x)
    assert found.z == pytest.approx(0, abs=1e-6)
    direct = [np.cov(x[:, :, j].T, ddof=1) for j in range(m)]
    variance = np.mean([np.diag(c) for c in direct])
    pairs = np.mean([c[~np.eye(h, dtype=bool)] for c in direct])
    assert found.variance == pytest.approx(variance, rel=1e-9)
    assert found.correlation == pytest.approx(pairs / variance, rel=1e-9, abs=1e-9)
    assert found.measured == pytest.approx(x.mean(axis=1).var(axis=0, ddof=1).mean(), rel=1e-9)


def test_jackknife_leaves_each_replicate_out() -> None:
    x = equicorrelated(5, 0.2, (6, 4, 2))
    rest = [fields.line_check(np.delete(x, i, axis=0), x).correlation for i in range(6)]
    by_hand = np.sqrt(5 / 6 * np.square(np.array(rest) - np.mean(rest)).sum())
    assert fields.line_check(x, x).correlation_se == pytest.approx(by_hand, rel=1e-9)


def test_agents_unlike_the_known_ones_are_off_the_line() -> None:
    x = equicorrelated(6, 0.0)
    x[:, 3:] = equicorrelated(6, 0.6)[:, 3:]
    assert abs(check(x).z) < 4
    assert check(x, 3).z > 4


def test_a_large_mean_costs_no_accuracy() -> None:
    plain, shifted = check(equicorrelated(7, 0.3)), check(equicorrelated(7, 0.3, shift=1e6))
    assert shifted.correlation == pytest.approx(plain.correlation, rel=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_shuffled_agents_keep_their_values_and_lose_their_company(seed: int) -> None:
    x = equicorrelated(seed, 0.5)
    dealt = fields.shuffle_agents(x, rng(seed))
    np.testing.assert_array_equal(np.sort(dealt, axis=0), np.sort(x, axis=0))
    assert_control(check(dealt))


def test_shuffling_keeps_the_quantities_of_an_agent_together() -> None:
    x = np.repeat(rng(0).standard_normal((50, 4, 1)), 2, axis=2)
    dealt = fields.shuffle_agents(x, rng(1))
    np.testing.assert_array_equal(dealt[:, :, 0], dealt[:, :, 1])
    assert not np.array_equal(dealt, x)


@pytest.mark.parametrize("seed", SEEDS)
def test_attention_heads_are_on_the_line(seed: int) -> None:
    draw = rng(seed)
    W_Q, W_K = draw.standard_normal((2, 8, 6, 2))
    design = designs.Regression(lambda x: np.sin(x[..., 0]), n_tokens=40, d_model=6, noise=0.5)
    x = design.predictions(draw.standard_normal((5, 6)), W_Q, W_K, 400, draw)
    found = check(x)
    assert abs(found.z) < 4
    assert found.independent_z > 4
    assert_control(check(fields.shuffle_agents(x, draw)))


# --- Forest ----------------------------------------------------------------------------------


def small_forest(seed: int, max_features: int, **settings: Any) -> Array:
    size: dict[str, Any] = {"n_trees": 12, "n_train": 60, "n_replicates": 120} | settings
    return fields.forest_replicates(rng(seed), max_features, **size)


def test_regression_function_is_scikit_learns() -> None:
    x, y = make_friedman1(50, n_features=10, noise=0.0, random_state=0)
    np.testing.assert_allclose(fields.friedman1(x), y, rtol=1e-12)


@pytest.mark.parametrize(("max_features", "leaf"), [(1, 1), (3, 2), (10, 5)])
def test_seeded_trees_are_those_of_the_librarys_forest(max_features: int, leaf: int) -> None:
    x, x_query = (rng(s).random((n, 10), dtype=np.float32) for s, n in ((0, 80), (1, 9)))
    y = fields.friedman1(x.astype(np.float64)) + rng(2).standard_normal(80)
    forest = RandomForestRegressor(
        6, max_features=max_features, min_samples_leaf=leaf, random_state=3
    ).fit(x, y)
    ours = [
        fields.tree_predictions(x, y, x_query, tree.random_state, max_features, leaf)
        for tree in forest.estimators_
    ]
    np.testing.assert_array_equal(ours, [t.predict(x_query) for t in forest.estimators_])
    np.testing.assert_allclose(np.mean(ours, axis=0), forest.predict(x_query), rtol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_forests_are_on_the_line_and_features_bind_their_trees(seed: int) -> None:
    few, all_of_them = (check(small_forest(seed, k)) for k in (1, 10))
    assert_apart(few, all_of_them)
    for found in (few, all_of_them):
        assert abs(found.z) < 4
        assert found.independent_z > 4


@pytest.mark.parametrize("seed", SEEDS)
def test_a_few_trees_foretell_the_forest(seed: int) -> None:
    found = check(small_forest(seed, 10), n_known=4)
    assert abs(found.z) < 4
    assert found.independent_z > 4


@pytest.mark.parametrize("seed", SEEDS)
def test_trees_with_training_sets_of_their_own_are_independent(seed: int) -> None:
    assert_control(check(small_forest(seed, 10, shared_training_set=False)))
    assert_control(check(fields.shuffle_agents(small_forest(seed, 10), rng(seed))))


def test_forests_do_not_depend_on_the_number_of_jobs() -> None:
    one, two = (small_forest(4, 3, n_replicates=23, n_jobs=n) for n in (1, 2))
    np.testing.assert_array_equal(one, two)
    assert one.shape == (23, 12, 20)
    assert len(np.unique(one[:, :, 0])) > 23 * 6  # trees and forests differ


# --- Ants that choose a nest -----------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_recruitment_binds_scouts_as_the_law_of_copying_says(seed: int) -> None:
    runs = [check(fields.nest_choice(rng(seed), r).estimates) for r in (0.0, 0.3, 0.6, 0.9)]
    for r, found in zip((0.0, 0.3, 0.6, 0.9), runs, strict=True):
        assert abs(found.correlation - fields.copying_correlation(r, 30)) < (
            4 * found.correlation_se
        )
        assert abs(found.variance - 2) < 4 * found.variance_se
        assert abs(found.z) < 4
    for low, high in pairwise(runs):
        assert_apart(low, high)
        assert high.independent_z > 4
    assert_control(runs[0])


def test_law_of_copying_at_its_ends_and_by_hand() -> None:
    assert fields.copying_correlation(0, 7) == 0
    assert fields.copying_correlation(1, 7) == pytest.approx(1, rel=1e-12)
    assert fields.copying_correlation(0.3, 2) == pytest.approx(0.3)  # the second is led or not
    harmonic = sum(1 / n for n in range(1, 31))
    assert fields.copying_correlation(0.5, 30) == pytest.approx((harmonic - 1) / 29, rel=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
def test_shuffled_scouts_are_independent(seed: int) -> None:
    x = fields.nest_choice(rng(seed), 0.7, preference=2.0).estimates
    assert_control(check(fields.shuffle_agents(x, rng(seed))))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_first_scouts_do_not_foretell_the_colony(seed: int) -> None:
    assert check(fields.nest_choice(rng(seed), 0.5).estimates, n_known=5).z < -4


@pytest.mark.parametrize("seed", SEEDS)
def test_a_colony_that_averages_errs_as_the_line_says(seed: int) -> None:
    scouts = fields.nest_choice(rng(seed), 0.0).estimates
    wrong, se = designs.mean_and_se(scouts.mean(axis=1)[:, 0] < 0)
    assert abs(wrong - fields.averaging_error(0.5, check(scouts).predicted)) < 5 * se


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("recruitment", [0.0, 0.3, 0.6])
def test_a_colony_that_votes_errs_more_than_the_line_says(seed: int, recruitment: float) -> None:
    colony = fields.nest_choice(rng(seed), recruitment)
    wrong, se = designs.mean_and_se(colony.choice != colony.best)
    assert wrong - fields.averaging_error(0.5, check(colony.estimates).predicted) > 4 * se


@pytest.mark.parametrize("seed", SEEDS)
def test_recruitment_raises_the_error_of_a_quorum(seed: int) -> None:
    free, led = (fields.nest_choice(rng(seed), r) for r in (0.0, 0.6))
    rise, se = designs.mean_and_se((led.choice != led.best) * 1.0 - (free.choice != free.best))
    assert rise > 4 * se


@pytest.mark.parametrize("seed", SEEDS)
def test_preference_binds_scouts_and_yet_lowers_the_error_of_a_quorum(seed: int) -> None:
    blind, keen = (fields.nest_choice(rng(seed), 0.6, p, n_replicates=20_000) for p in (0, 3))
    assert_apart(check(blind.estimates), check(keen.estimates))
    fall, se = designs.mean_and_se((blind.choice != blind.best) * 1.0 - (keen.choice != keen.best))
    assert fall > 4 * se


def test_quorum_goes_to_the_first_site_that_completes_it() -> None:
    colony = fields.nest_choice(rng(3), 0.4, n_replicates=200, quality=(0.0, 0.3, 0.2), quorum=7)
    assert colony.best == 1
    for votes, choice in zip(colony.votes, colony.choice, strict=True):
        counts = np.zeros(3, dtype=int)
        for site in votes:
            counts[site] += 1
            if counts[site] == 7:
                break
        assert site == choice


def test_single_scout_decides_where_all_are_led_or_one_vote_is_a_quorum() -> None:
    led = fields.nest_choice(rng(4), 1.0, n_replicates=50)
    assert (led.estimates == led.estimates[:, :1]).all()
    np.testing.assert_array_equal(led.choice, led.votes[:, 0])
    first = fields.nest_choice(rng(4), 0.0, n_replicates=50, quorum=1)
    np.testing.assert_array_equal(first.choice, first.votes[:, 0])


def test_estimates_are_of_the_best_site_less_the_runner_up() -> None:
    colony = fields.nest_choice(rng(5), 0.3, quality=(0.2, 2.0, 1.25), noise=0.01)
    np.testing.assert_allclose(colony.estimates, 0.75, atol=0.1)
    assert (colony.votes == 1).all()


# --- Ants that share a task ------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_feedback_sets_ants_against_each_other(seed: int, spread: float) -> None:
    gains = (0.0, 0.1, 1.0)
    runs = [check(fields.task_replicates(rng(seed), g, threshold_spread=spread)) for g in gains]
    assert_control(runs[0])
    for high, low in pairwise(runs):
        assert_apart(low, high)
        assert abs(low.z) < 4
        assert low.independent_z < -4
    assert -1 / 29 < runs[-1].correlation < -0.9 / 29
    assert runs[-1].measured < runs[-1].independent / 10


@pytest.mark.parametrize("seed", SEEDS)
def test_noise_in_the_common_stimulus_binds_ants(seed: int) -> None:
    noisy = fields.task_replicates(rng(seed), 0.0, stimulus_noise=0.3)
    found = check(noisy)
    assert found.correlation > 4 * found.correlation_se
    assert abs(found.z) < 4
    assert found.independent_z > 4
    assert_control(check(fields.shuffle_agents(noisy, rng(seed))))


@pytest.mark.parametrize("seed", SEEDS)
def test_shuffled_ants_are_independent(seed: int) -> None:
    x = fields.task_replicates(rng(seed), 1.0, threshold_spread=1.0)
    assert_control(check(fields.shuffle_agents(x, rng(seed))))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_few_identical_ants_foretell_the_colony(seed: int) -> None:
    assert abs(check(fields.task_replicates(rng(seed), 0.1), n_known=8).z) < 4


def test_feedback_meets_the_demand_where_noise_alone_does_not() -> None:
    for gain, met in ((0.0, False), (1.0, True)):
        work = fields.task_replicates(rng(6), gain, stimulus_noise=0.3).mean(axis=(1, 2))
        mean, se = designs.mean_and_se(work)
        assert bool(abs(mean - 0.5) < 4 * se) == met


def test_feedback_that_overshoots_helps_less() -> None:
    steady, wild = (check(fields.task_replicates(rng(0), g)) for g in (1.0, 6.0))
    assert_apart(steady, wild)


def test_independent_ants_work_as_their_thresholds_say() -> None:
    x = fields.task_replicates(rng(1), 0.0, n_ants=2, n_steps=20, threshold_spread=1.0)
    mean, se = designs.mean_and_se(x[:, :, 0])
    theta = np.exp([-0.6744897501960817, 0.6744897501960817])  # quartiles of the lognormal
    p = 1 / (1 + theta**2)
    assert (abs(mean - p) < 4 * se).all()
    variance, variance_se = designs.variance_and_se(x[:, :, 0])
    assert (abs(variance - p * (1 - p) / 20) < 4 * variance_se).all()


def test_response_is_a_half_at_the_threshold() -> None:
    np.testing.assert_allclose(fields.response([0.0, 1.0, 2.0, 4.0], 2.0), [0, 0.2, 0.5, 0.8])


# --- Bad input -------------------------------------------------------------------------------

GOOD = equicorrelated(0, 0.2, (6, 4, 2))
REFUSED = [
    (lambda: fields.line_check(GOOD[0], GOOD), r"half_a has shape \(4, 2\)"),
    (lambda: fields.line_check(GOOD, GOOD[:2]), r"half_b has shape \(2, 4, 2\)"),
    (lambda: fields.line_check(GOOD, GOOD[:, :1]), "at least two agents"),
    (lambda: fields.line_check(GOOD, GOOD[:, :3]), "agents and quantities must agree"),
    (lambda: fields.line_check(GOOD * np.nan, GOOD), "half_a holds 48 NaN"),
    (lambda: fields.line_check(GOOD * 0, GOOD), "never vary"),
    (lambda: fields.line_check(GOOD, GOOD, 1), "n_known must be a whole number of at least 2"),
    (lambda: fields.line_check(GOOD, GOOD, 5), "n_known is 5, but there are 4 agents"),
    (lambda: fields.halves(GOOD[:2]), "replicates has shape"),
    (lambda: fields.shuffle_agents(GOOD[0], rng(0)), "replicates has shape"),
    (lambda: fields.forest_replicates(rng(0), 0), "max_features must be"),
    (lambda: fields.forest_replicates(rng(0), 11), "max_features is 11"),
    (lambda: fields.forest_replicates(rng(0), 3, n_trees=0), "n_trees must be"),
    (lambda: fields.forest_replicates(rng(0), 3, n_train=5), "n_train must be .* at least 6"),
    (lambda: fields.forest_replicates(rng(0), 3, n_replicates=0), "n_replicates must be"),
    (lambda: fields.forest_replicates(rng(0), 3, min_samples_leaf=0), "min_samples_leaf must be"),
    (lambda: fields.nest_choice(rng(0), 1.1), "recruitment must be .* from 0 to 1; found 1.1"),
    (lambda: fields.nest_choice(rng(0), float("nan")), "recruitment must be"),
    (lambda: fields.nest_choice(rng(0), 0.5, -1), "preference must be .* at least 0"),
    (lambda: fields.nest_choice(rng(0), 0.5, n_scouts=1), "n_scouts must be"),
    (lambda: fields.nest_choice(rng(0), 0.5, n_replicates=0), "n_replicates must be"),
    (lambda: fields.nest_choice(rng(0), 0.5, quality=(1, 1)), "one of them better"),
    (lambda: fields.nest_choice(rng(0), 0.5, quality=(1,)), "two sites or more"),
    (lambda: fields.nest_choice(rng(0), 0.5, noise=0), "noise must be positive"),
    (lambda: fields.nest_choice(rng(0), 0.5, quorum=16), "give one of them 15, not more"),
    (lambda: fields.nest_choice(rng(0), 0.5, quorum=0), "quorum must be"),
    (lambda: fields.copying_correlation(-0.1, 5), "recruitment must be"),
    (lambda: fields.copying_correlation(0.1, 1), "n_scouts must be"),
    (lambda: fields.averaging_error(0.5, 0), "variance must be positive"),
    (lambda: fields.averaging_error(-0.5, 1), "difference must be positive"),
    (lambda: fields.task_replicates(rng(0), -1), "feedback must be .* at least 0; found -1"),
    (lambda: fields.task_replicates(rng(0), float("inf")), "feedback must be"),
    (lambda: fields.task_replicates(rng(0), 1, stimulus_noise=-1), "stimulus_noise must be"),
    (lambda: fields.task_replicates(rng(0), 1, threshold_spread=-1), "threshold_spread must be"),
    (lambda: fields.task_replicates(rng(0), 1, n_ants=1), "n_ants must be"),
    (lambda: fields.task_replicates(rng(0), 1, n_steps=1.5), "n_steps must be"),  # type: ignore[arg-type]
    (lambda: fields.task_replicates(rng(0), 1, n_replicates=True), "n_replicates must be"),
    (lambda: fields.task_replicates(rng(0), 1, n_ants=float("nan")), "n_ants must be"),  # type: ignore[arg-type]
    (lambda: fields.task_replicates(rng(0), "1"), "feedback must be"),  # type: ignore[arg-type]
    (lambda: fields.task_replicates(rng(0), 1, n_ants="30"), "n_ants must be"),  # type: ignore[arg-type]
    (lambda: fields.task_replicates(rng(0), 1, threshold_spread=1e6), "threshold holds"),
    (lambda: fields.response(1.0, 0.0), "thresholds positive"),
    (lambda: fields.response(-1.0, 1.0), "stimuli must be at least 0"),
]


@pytest.mark.parametrize(("call", "sentence"), REFUSED, ids=[s for _, s in REFUSED])
def test_bad_input_is_refused_in_a_sentence(call: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        call()
