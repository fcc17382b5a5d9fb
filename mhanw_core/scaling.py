"""How many heads of which dimension: the printed law, the minimum of its own terms, and rivals.

The printed terms, under a budget D = H d_k, are MSE(d_k) = a d_k^{-2} + V(d_k) / H with
V(d_k) = b d_k^{d_k/2} / n. Everything is computed in logarithms, so n may be 1e300.
"""

from __future__ import annotations

import csv
from functools import cache
from importlib import resources
from math import exp, log
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import lambertw

from mhanw_core.regression import (
    Array,
    finite_array,
    number_within,
    positive_number,
    whole_number,
)

MOST_HEAD_DIM = 4096  # beyond the minimum of the printed terms for any floating-point n
MOST_BUDGET = 10_000_000
LARGEST_LOG = log(np.finfo(float).max)


def _sample_size(n: float) -> float:
    positive_number("n", n)
    if n < 2:
        raise ValueError(f"n must be at least 2 samples; found {n!r}.")
    return log(n)


def _budget(budget: float) -> float:
    positive_number("budget", budget)
    if budget < 1:
        raise ValueError(f"budget must be at least 1 dimension; found {budget!r}.")
    return log(budget)


def paper_head_dim(n: float, smoothness: float) -> float:
    """Head dimension by the printed law, (ln n)^{2/(4 + d)}, with its constant taken as 1.

    Parameters
    ----------
    n : float
        Sample size, at least 2.
    smoothness : float
        The printed d, positive.

    Raises
    ------
    ValueError
        If n is below 2 or smoothness is not positive and finite.

    References
    ----------
    arXiv:2605.20271, Theorem 6.1 (as reported).
    """
    log_n = _sample_size(n)
    return log_n ** (2 / (4 + positive_number("smoothness", smoothness)))


def fixed_dimension_head_dim(
    n: float, dimension: float, budget: float | None = None, a: float = 1.0, b: float = 1.0
) -> float:
    """Minimiser of a d_k^{-2} + b d_k^{d/2} / n: the printed terms with a fixed dimension d.

    It is (4 a n / (b d))^{2/(4 + d)}, the printed exponent with n in place of ln n. With a
    budget the variance is divided by H = D / d_k as well.

    Parameters
    ----------
    n, a, b : float
    dimension : float
        Of the regression problem, positive.
    budget : float, optional

    Raises
    ------
    ValueError
        If an argument is not positive and finite, or n is below 2.
    """
    d = positive_number("dimension", dimension)
    scale = _sample_size(n) + log(2 * positive_number("a", a)) - log(positive_number("b", b))
    power = d / 2 if budget is None else d / 2 + 1
    scale += 0.0 if budget is None else _budget(budget)
    exponent = (scale - log(power)) / (power + 2)
    if exponent > LARGEST_LOG:
        raise ValueError("the minimiser of these terms exceeds every float; check n, a and b.")
    return exp(exponent)


def _growth(x: float, log_budget: float, correlation: float) -> float:
    """Log of d^3 times the derivative of V(d) (rho + (1 - rho) d / D) n / b, at d = e^x."""
    d, half = exp(x), (x + 1) / 2
    shared = correlation * half
    own = (1 - correlation) * exp(x - log_budget) * (half + 1 / d)
    return (d / 2 + 3) * x + log(shared + own)


def optimal_head_dim(
    n: float, budget: float, a: float = 1.0, b: float = 1.0, correlation: float = 0.0
) -> float:
    """Head dimension that minimises the printed terms, the unique one in [1, budget].

    Without correlation it solves d^{d/2+4} ((ln d + 1)/2 + 1/d) = 2 a n D / b, whose left side
    increases; a root outside [1, budget] is moved to the nearer end, where the minimum lies.

    Parameters
    ----------
    n : float
        Sample size, at least 2.
    budget : float
        D = H d_k, at least 1.
    a, b : float
        Constants of squared bias and variance, positive.
    correlation : float
        Of two heads, from 0 to 1.

    Raises
    ------
    ValueError
        If an argument is out of its range.
    """
    log_budget, rho = _budget(budget), number_within("correlation", correlation, 0, 1)
    target = log(2 * positive_number("a", a)) - log(positive_number("b", b)) + _sample_size(n)
    top = min(log_budget, log(MOST_HEAD_DIM))
    if _growth(0.0, log_budget, rho) >= target:
        return 1.0
    if _growth(top, log_budget, rho) <= target:
        return float(min(budget, MOST_HEAD_DIM))
    return exp(brentq(lambda x: _growth(x, log_budget, rho) - target, 0.0, top, xtol=1e-15))


def mse_model(
    head_dim: ArrayLike,
    n: float,
    budget: float,
    a: float = 1.0,
    b: float = 1.0,
    correlation: float = 0.0,
    cap: float | None = None,
) -> Array:
    """Printed mean squared error a d^{-2} + V (rho + (1 - rho) d / D), V = b d^{d/2} / n.

    Parameters
    ----------
    head_dim : array
        At least 1 and at most the budget.
    n, budget, a, b, correlation
        As in `optimal_head_dim`.
    cap : float, optional
        Largest value of V: the noise variance, which no average exceeds.

    Returns
    -------
    Array, infinite where the printed variance exceeds the largest float.

    Raises
    ------
    ValueError
        If an argument is out of its range.
    """
    d, log_budget = finite_array("head_dim", head_dim).astype(np.float64), _budget(budget)
    if (d < 1).any() or (d > budget).any():
        raise ValueError(
            f"head_dim runs from {d.min():g} to {d.max():g}; it must be from 1 to the budget "
            f"{budget!r}."
        )
    log_n, rho = _sample_size(n), number_within("correlation", correlation, 0, 1)
    log_v = log(positive_number("b", b)) - log_n + d / 2 * np.log(d)
    if cap is not None:
        log_v = np.minimum(log_v, log(positive_number("cap", cap)))
    share = rho + (1 - rho) * np.exp(np.log(d) - log_budget)
    with np.errstate(over="ignore"):
        squared_bias = positive_number("a", a) * np.exp(-2 * np.log(d))
        return np.asarray(squared_bias + np.exp(log_v + np.log(share)))


def allocation_log_errors(
    n: float,
    budget: int,
    a: float = 1.0,
    b: float = 1.0,
    correlation: float = 0.0,
    dimension: float | None = None,
) -> Array:
    """Logarithm of the printed error at head dimensions 1, 2, ..., budget, with whole heads.

    Parameters
    ----------
    n, budget, a, b, correlation
        As in `optimal_head_dim`; the budget is whole, and H = floor(budget / head_dim).
    dimension : float, optional
        Of the regression problem: V = b d_k^{dimension/2} / n; by default it is d_k itself.

    Returns
    -------
    (budget,) array

    Raises
    ------
    ValueError
        If an argument is out of its range.
    """
    if whole_number("budget", budget, 1) > MOST_BUDGET:
        raise ValueError(f"budget is {budget}; at most {MOST_BUDGET:,} dimensions are compared.")
    d = np.arange(1, int(budget) + 1)
    rho, log_d = number_within("correlation", correlation, 0, 1), np.log(d)
    power = d / 2 if dimension is None else positive_number("dimension", dimension) / 2
    log_v = log(positive_number("b", b)) - _sample_size(n) + power * log_d
    share = np.log(rho + (1 - rho) / (int(budget) // d))
    return np.asarray(np.logaddexp(log(positive_number("a", a)) - 2 * log_d, log_v + share))


class Allocation(NamedTuple):
    """Whole numbers of heads and of dimensions per head, n_heads * head_dim <= budget."""

    n_heads: int
    head_dim: int


def optimal_allocation(
    n: float, budget: int, a: float = 1.0, b: float = 1.0, correlation: float = 0.0
) -> Allocation:
    """Best whole-number allocation for the printed terms, with H = floor(budget / head_dim).

    Parameters and errors as in `allocation_log_errors`.
    """
    best = 1 + int(np.argmin(allocation_log_errors(n, budget, a, b, correlation)))
    return Allocation(int(budget) // best, best)


def asymptotic_head_dim(n: float, budget: float, order: int = 2) -> float:
    """Head dimension for large n D by Lambert's W, with a = b = 1.

    d ln d = 2 ln(2nD) gives d_0 = 2 L / W(2 L), L = ln(2nD). The second order corrects it for
    d^4 and for the logarithm beside it:
    d_0 - 8 + (8 - 2 ln((ln d_0 + 1)/2)) / (ln d_0 + 1).

    Parameters
    ----------
    n, budget : float
    order : int
        1 or 2.

    Raises
    ------
    ValueError
        If an argument is out of its range.

    References
    ----------
    Corless et al. (1996), Lambert's W.
    """
    if order not in (1, 2):
        raise ValueError(f"order must be 1 or 2; found {order!r}.")
    twice = 2 * (log(2) + _sample_size(n) + _budget(budget))
    first = twice / float(lambertw(twice).real)
    half = (log(first) + 1) / 2
    found = first if order == 1 else first - 8 + (4 - log(half)) / half
    if found < 1:
        raise ValueError(f"n * budget is {n * budget:g}, too small for the asymptotic form.")
    return found


def head_dim_elasticity(n: float, budget: float, a: float = 1.0, b: float = 1.0) -> float:
    """Elasticity of `optimal_head_dim` in n and in the budget: they are equal.

    The number of heads D / d_k* has one minus it in D. Zero where the minimum is at an end of
    [1, budget]. Parameters and errors as in `optimal_head_dim`.
    """
    d = optimal_head_dim(n, budget, a, b)
    if d in (1.0, budget, MOST_HEAD_DIM):
        return 0.0
    half = (log(d) + 1) / 2
    return 1 / (d * half + 4 + (1 / 2 - 1 / d) / (half + 1 / d))


def sample_size_for(head_dim: float, budget: float, a: float = 1.0, b: float = 1.0) -> float:
    """Natural logarithm of the sample size at which the printed terms want this head dimension.

    Parameters as in `optimal_head_dim`; a ValueError if head_dim is not from 1 to 4096 or any is
    not positive and finite.
    """
    number_within("head_dim", head_dim, 1, MOST_HEAD_DIM)
    constant = log(positive_number("b", b)) - log(2 * positive_number("a", a))
    return _growth(log(head_dim), _budget(budget), 0.0) + constant


class Architecture(NamedTuple):
    """One published model; `tokens` is NaN where the number was not published."""

    model: str
    year: int
    d_model: int
    n_heads: int
    head_dim: int
    tokens: float
    source: str


@cache
def architectures() -> tuple[Architecture, ...]:
    """Published models with their attention shapes and training tokens, by year and size."""
    text = resources.files("mhanw_core").joinpath("architectures.csv").read_text("utf-8")
    return tuple(
        Architecture(
            model=row["model"],
            year=int(row["year"]),
            d_model=int(row["d_model"]),
            n_heads=int(row["n_heads"]),
            head_dim=int(row["head_dim"]),
            tokens=float(row["tokens"] or "nan"),
            source=row["source"],
        )
        for row in csv.DictReader(text.splitlines())
    )
