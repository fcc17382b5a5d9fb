"""The printed law, the minimum of its terms, and the architectures they are held against."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mhanw_core import scaling

property_test = settings(max_examples=80, deadline=None, derandomize=True)
sizes = st.floats(np.log(2), 690).map(np.exp)
budgets = st.integers(1, 50_000)
constants = st.floats(-20, 20).map(np.exp)


@property_test
@given(sizes, budgets, constants, constants)
def test_no_head_dim_beats_the_minimiser(n: float, budget: int, a: float, b: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        best = scaling.optimal_head_dim(n, budget, a, b)
        near = np.clip(best * np.array([0.5, 0.9, 0.999, 1.001, 1.1, 2]), 1, budget)
        errors = scaling.mse_model(near, n, budget, a, b)
        least = scaling.mse_model(best, n, budget, a, b)
    assert 1 <= best <= budget
    assert (errors >= least * (1 - 1e-12)).all()


@property_test
@given(sizes, budgets, constants, constants, st.floats(0, 1))
def test_whole_allocation_is_the_best_of_all(
    n: float, budget: int, a: float, b: float, correlation: float
) -> None:
    heads, d = scaling.optimal_allocation(n, budget, a, b, correlation)
    assert heads == budget // d
    every = np.arange(1, min(budget, 4096) + 1)
    log_v = np.log(b) - np.log(n) + every / 2 * np.log(every)
    share = correlation + (1 - correlation) / (budget // every)
    logs = np.logaddexp(np.log(a) - 2 * np.log(every), log_v + np.log(share))
    assert logs[d - 1] <= logs.min() + 1e-12


def test_the_root_solves_the_equation_of_the_printed_terms() -> None:
    for n, budget in ((1e4, 512), (1e8, 512), (1e12, 12288), (1e300, 1e6)):
        d = scaling.optimal_head_dim(n, budget)
        left = (d / 2 + 4) * np.log(d) + np.log((np.log(d) + 1) / 2 + 1 / d)
        assert left == pytest.approx(np.log(2) + np.log(n) + np.log(budget), rel=1e-13)
        assert scaling.sample_size_for(d, budget) == pytest.approx(np.log(n), rel=1e-12)


def test_the_printed_law_is_a_power_of_the_logarithm() -> None:
    assert scaling.paper_head_dim(np.exp(8), 2) == pytest.approx(2, rel=1e-14)
    assert scaling.paper_head_dim(np.exp(16), 4) == pytest.approx(2, rel=1e-14)
    assert scaling.paper_head_dim(np.exp(81), 4) == pytest.approx(3, rel=1e-14)


def test_growth_at_512_as_the_register_states_it() -> None:
    assert scaling.optimal_head_dim(1e4, 512) == pytest.approx(7.5, abs=0.05)
    assert scaling.optimal_head_dim(1e8, 512) == pytest.approx(12.0, abs=0.05)


@property_test
@given(st.floats(10, 690).map(np.exp), st.integers(512, 10_000))
def test_elasticity_is_the_slope(n: float, budget: int) -> None:
    step = 1e-4
    up, down = (np.log(scaling.optimal_head_dim(n * np.exp(s), budget)) for s in (step, -step))
    slope = scaling.head_dim_elasticity(n, budget)
    assert (up - down) / (2 * step) == pytest.approx(slope, rel=1e-4)
    assert 0 < slope < 0.2


def test_second_order_is_nearer_than_first() -> None:
    for n in (1e6, 1e12, 1e50, 1e300):
        exact = scaling.optimal_head_dim(n, 1e4)
        first, second = (abs(scaling.asymptotic_head_dim(n, 1e4, k) - exact) for k in (1, 2))
        assert second < first / 4


def test_asymptotic_orders_are_what_they_say() -> None:
    first = scaling.asymptotic_head_dim(1e12, 1e4, 1)
    assert first * np.log(first) == pytest.approx(2 * np.log(2e16), rel=1e-13)
    for n, within in ((1e50, 0.15), (1e300, 0.03)):
        exact = scaling.optimal_head_dim(n, 1e4)
        assert scaling.asymptotic_head_dim(n, 1e4) == pytest.approx(exact, abs=within)


def test_no_elasticity_at_the_ends_and_constants_enter_it() -> None:
    assert scaling.head_dim_elasticity(2, 1000, b=1e6) == 0.0  # the minimum is at 1
    assert scaling.head_dim_elasticity(1e100, 4) == 0.0  # at the budget
    a, b, step = 30.0, 0.01, 1e-5
    up, down = (np.log(scaling.optimal_head_dim(1e5 * np.exp(s), 512, a, b)) for s in (step, -step))
    slope = scaling.head_dim_elasticity(1e5, 512, a, b)
    assert (up - down) / (2 * step) == pytest.approx(slope, rel=1e-5)
    assert slope != pytest.approx(scaling.head_dim_elasticity(1e5, 512), rel=0.01)


@pytest.mark.parametrize(
    ("n", "budget", "expected"),
    [(1e4, 9, (1, 5)), (100, 10, (3, 3)), (1e8, 30, (3, 10)), (1e308, 10, (1, 10)), (2, 1, (1, 1))],
)
def test_whole_allocations_of_small_budgets(
    n: float, budget: int, expected: tuple[int, int]
) -> None:
    """Worked out by hand: all head dimensions from 1 to the budget, whole heads."""
    assert scaling.optimal_allocation(n, budget) == expected

    def error(d: int) -> float:
        return float(d**-2.0 + d ** (d / 2) / n / (budget // d))

    assert min(range(1, budget + 1), key=error) == expected[1]


@pytest.mark.parametrize("rho", [0.0, 0.3, 1.0])
def test_correlation_enters_as_rho_plus_the_rest_over_heads(rho: float) -> None:
    n, budget, d = 1e6, 512, 16.0
    found = scaling.mse_model(d, n, budget, a=2, b=3, correlation=rho)
    expected = 2 / d**2 + 3 * d ** (d / 2) / n * (rho + (1 - rho) * d / budget)
    assert found == pytest.approx(expected, rel=1e-13)
    best = scaling.optimal_head_dim(n, budget, 2, 3, rho)
    near = scaling.mse_model([best * 0.999, best, best * 1.001], n, budget, 2, 3, rho)
    assert near.argmin() == 1


def test_extreme_constants_do_not_overflow() -> None:
    most = scaling.optimal_head_dim(1e308, 1e308, a=1e308, b=1e-308)
    assert most == scaling.MOST_HEAD_DIM == 4096


@property_test
@given(st.floats(3, 1e12), st.floats(0.5, 8), constants, constants)
def test_fixed_dimension_minimises_its_terms(n: float, d: float, a: float, b: float) -> None:
    for budget in (None, 512.0):
        best = scaling.fixed_dimension_head_dim(n, d, budget, a, b)
        power = d / 2 if budget is None else d / 2 + 1
        volume = n if budget is None else n * budget

        def error(x: float, power: float = power, volume: float = volume) -> float:
            return a / x**2 + b * x**power / volume

        assert error(best) <= min(error(best * 0.99), error(best * 1.01))


def test_correlated_heads_want_smaller_heads() -> None:
    dims = [scaling.optimal_head_dim(1e8, 512, correlation=rho) for rho in (0, 0.3, 1)]
    assert dims[0] > dims[1] > dims[2] > 1


def test_capped_variance_stays_at_its_cap() -> None:
    capped = scaling.mse_model([32, 64, 512], 1e9, 512, cap=1.0)
    np.testing.assert_allclose(capped, [1 / 1024 + 1 / 16, 1 / 4096 + 1 / 8, 2**-18 + 1])
    assert scaling.mse_model(512, 1e9, 512) == np.inf or scaling.mse_model(512, 1e9, 512) > 1e300


BAD: list[tuple[Any, str]] = [
    (lambda: scaling.optimal_head_dim(1, 512), "n must be at least 2"),
    (lambda: scaling.optimal_head_dim(np.nan, 512), "n must be positive and finite"),
    (lambda: scaling.optimal_head_dim(np.inf, 512), "n must be positive and finite"),
    (lambda: scaling.optimal_head_dim(1e6, -512), "budget must be positive"),
    (lambda: scaling.optimal_head_dim(1e6, 0.5), "budget must be at least 1"),
    (lambda: scaling.optimal_head_dim(1e6, 512, a=0), "a must be positive"),
    (
        lambda: scaling.optimal_head_dim(1e6, 512, correlation=1.1),
        "correlation must be a finite number from 0 to 1; found 1.1",
    ),
    (lambda: scaling.optimal_allocation(1e6, 51.2), "budget must be a whole number"),
    (lambda: scaling.mse_model(0.5, 1e6, 512), "runs from 0.5 to 0.5; it must be from 1 to the"),
    (lambda: scaling.mse_model([], 1e6, 512), "head_dim is empty"),
    (lambda: scaling.mse_model(600, 1e6, 512), "it must be from 1 to the budget 512"),
    (lambda: scaling.mse_model(np.ma.masked_array([8.0, 9.0], [0, 1]), 1e6, 512), "masked"),
    (lambda: scaling.mse_model("8", 1e6, 512), "head_dim has dtype"),
    (lambda: scaling.optimal_allocation(1e6, 10**8), "at most 10,000,000 dimensions"),
    (lambda: scaling.asymptotic_head_dim(2, 1), "too small for the asymptotic form"),
    (lambda: scaling.fixed_dimension_head_dim(1e308, 1e-10, a=1e308, b=1e-308), "every float"),
    (lambda: scaling.sample_size_for(1e308, 512), "from 1 to 4096"),
    (lambda: scaling.paper_head_dim(1e6, 0), "smoothness must be positive"),
    (lambda: scaling.fixed_dimension_head_dim(1e6, -2), "dimension must be positive"),
    (lambda: scaling.asymptotic_head_dim(1e6, 512, 3), "order must be 1 or 2"),
    (
        lambda: scaling.sample_size_for(0.5, 512),
        "head_dim must be a finite number from 1 to 4096; found 0.5",
    ),
]


@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_numbers_are_refused_in_a_sentence(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_architectures_are_at_least_twenty_and_consistent() -> None:
    models = scaling.architectures()
    assert len(models) >= 20
    assert len({m.model for m in models}) == len(models)
    for m in models:
        assert m.source
        assert 0.5 <= m.n_heads * m.head_dim / m.d_model <= 16
        assert not m.tokens < 1e9
