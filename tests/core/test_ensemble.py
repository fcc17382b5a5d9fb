"""Heads as an ensemble: exact parts, known optima, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sympy as sp
from scipy.optimize import minimize

from mhanw_core import ensemble, regression

RNG = np.random.default_rng(0)
W_Q, W_K = RNG.standard_normal((2, 3, 6, 2))
X_QUERY, X, VALUES = (
    RNG.standard_normal((4, 6)),
    RNG.standard_normal((20, 6)),
    RNG.standard_normal(20),
)


def test_multi_head_is_a_weighted_sum_of_attentions() -> None:
    weights = np.array([0.5, 0.2, 0.3])
    heads = [
        regression.attention(X_QUERY @ q, X @ k, VALUES) for q, k in zip(W_Q, W_K, strict=True)
    ]
    ours = ensemble.multi_head(X_QUERY, X, VALUES, W_Q, W_K, weights)
    np.testing.assert_allclose(ours, weights @ heads, rtol=1e-12)
    uniform = ensemble.multi_head(X_QUERY, X, VALUES, W_Q, W_K)
    np.testing.assert_allclose(uniform, np.mean(heads, axis=0), rtol=1e-12)


def test_parts_of_a_hand_computed_case() -> None:
    predictions = np.array([[[1.0], [2.0]], [[3.0], [0.0]]])  # two data sets, two heads, one query
    parts = ensemble.decompose_mse(predictions, [1.0])
    assert parts.head_bias.ravel().tolist() == [1.0, 0.0]
    assert parts.head_covariance[0].tolist() == [[1.0, -1.0], [-1.0, 1.0]]
    found = [parts.bias2, parts.variance, parts.covariance, parts.mse]
    assert [float(part[0]) for part in found] == [0.25, 0.5, -0.5, 0.25]


@pytest.mark.parametrize("weights", [None, [0.6, 0.3, 0.1], [2.0, -1.0, 0.5]])
def test_parts_add_up_to_the_direct_error(weights: Any) -> None:
    predictions, target = RNG.standard_normal((50, 3, 4)), RNG.standard_normal(4)
    alpha = np.full(3, 1 / 3) if weights is None else np.array(weights)
    direct = np.mean((np.einsum("h,rhm->rm", alpha, predictions) - target) ** 2, axis=0)
    parts = ensemble.decompose_mse(predictions, target, weights)
    np.testing.assert_allclose(parts.mse, direct, rtol=1e-13)
    np.testing.assert_allclose(parts.bias2 + parts.variance + parts.covariance, direct, rtol=1e-13)
    assert not np.allclose(parts.bias2 + parts.variance, direct, rtol=1e-3)


@pytest.mark.parametrize("n_heads", [1, 2, 7])
def test_equicorrelated_variance_is_the_quadratic_form(n_heads: int) -> None:
    for rho in (0.0, 0.4, 1.0, -1 / max(n_heads - 1, 1)):
        C = 2.5 * ((1 - rho) * np.eye(n_heads) + rho)
        ours = ensemble.equicorrelated_variance(2.5, rho, n_heads)
        np.testing.assert_allclose(ours, C.mean(), atol=1e-14)


def test_optimal_weights_of_two_heads() -> None:
    np.testing.assert_allclose(ensemble.optimal_weights(np.diag([1.0, 4.0])), [0.8, 0.2])


@pytest.mark.parametrize(
    ("covariance", "bias", "ridge", "expected"),
    [
        ([[1, 1.5], [1.5, 4]], None, 0, [1.25, -0.25]),
        (np.diag([1, 4]), None, 2, [2 / 3, 1 / 3]),  # 1/(1+2) against 1/(4+2)
        (np.diag([1, 2]), [1e8, 1e8], 0, [2 / 3, 1 / 3]),  # a bias common to all drops out
        (
            np.diag([1, 2, 4]),
            [1e8, 1e8 + 7, 3e8],
            0,
            [1.00000004667, 0.499999970833, -0.5000000175],
        ),
    ],
)
def test_optimal_weights_of_worked_cases(
    covariance: Any, bias: Any, ridge: float, expected: list[float]
) -> None:
    found = ensemble.optimal_weights(covariance, bias, ridge)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_optimal_weights_against_exact_arithmetic() -> None:
    """Ten random cases with biases up to a million times the noise, solved in fractions."""
    for n_heads in (2, 3, 4, 5, 6) * 2:
        root = RNG.integers(-5, 6, (n_heads, n_heads))
        S = root @ root.T + np.eye(n_heads, dtype=int)
        b = RNG.integers(-(10**6), 10**6, n_heads)
        M = sp.Matrix(S.tolist()) + sp.Matrix(b.tolist()) * sp.Matrix(b.tolist()).T
        exact = M.LUsolve(sp.ones(n_heads, 1))
        exact = np.array([float(x / sum(exact)) for x in exact])
        found = ensemble.optimal_weights(S, b)
        np.testing.assert_allclose(found, exact, atol=1e-11 * np.abs(exact).max())


def test_optimal_weights_agree_with_a_numerical_minimum() -> None:
    root = RNG.standard_normal((4, 4))
    S, b = root @ root.T + np.eye(4), RNG.standard_normal(4)
    found = minimize(
        lambda a: a @ (S + np.outer(b, b)) @ a,
        np.full(4, 0.25),
        constraints={"type": "eq", "fun": lambda a: a.sum() - 1},
        options={"ftol": 1e-14},
    )
    np.testing.assert_allclose(ensemble.optimal_weights(S, b), found.x, atol=1e-5)
    assert not np.allclose(ensemble.optimal_weights(S), found.x, atol=1e-3)


def test_a_ridge_settles_clones() -> None:
    np.testing.assert_allclose(ensemble.optimal_weights(np.ones((2, 2)), ridge=1e-3), [0.5, 0.5])


P = np.zeros((5, 2, 3))
REFUSED = [
    (lambda: ensemble.multi_head(X_QUERY, X, VALUES, W_Q[0], W_K[0]), "W_Q has shape"),
    (lambda: ensemble.multi_head(X_QUERY, X, VALUES, W_Q, W_K[:, :, :1]), "same dimension"),
    (lambda: ensemble.multi_head(X_QUERY[:, :5], X, VALUES, W_Q, W_K), "must agree"),
    (lambda: ensemble.multi_head(X_QUERY, X, VALUES[:3], W_Q, W_K), "values have shape"),
    (lambda: ensemble.multi_head(X_QUERY, X, VALUES, W_Q, W_K, [1.0]), "one per head"),
    (lambda: ensemble.decompose_mse(P[:1], np.zeros(3)), "at least two"),
    (lambda: ensemble.decompose_mse(P, np.zeros(2)), "target has shape"),
    (lambda: ensemble.decompose_mse(P * np.nan, np.zeros(3)), "predictions holds"),
    (lambda: ensemble.equicorrelated_variance(1, -0.6, 3), "allow only"),
    (lambda: ensemble.equicorrelated_variance(1, 0.5, 0), "n_heads must be"),
    (lambda: ensemble.equicorrelated_variance(-1, 0.5, 2), "variance must be"),
    (lambda: ensemble.optimal_weights(np.ones((2, 2))), "singular"),
    (lambda: ensemble.optimal_weights([[1, 1 - 1e-14], [1 - 1e-14, 1]]), "singular"),
    (lambda: ensemble.optimal_weights(np.diag([1.0, -1.0])), "not positive"),
    (lambda: ensemble.optimal_weights([[1, 0], [0]]), "covariance"),
    (lambda: ensemble.optimal_weights(np.ma.masked_array(np.eye(2), np.eye(2))), "masked"),
    (lambda: ensemble.optimal_weights(np.array([[1, 0.5], [0, 1]])), "not symmetric"),
    (lambda: ensemble.optimal_weights(np.ones((2, 3))), "square"),
    (lambda: ensemble.optimal_weights(np.eye(2), [1.0]), "bias has shape"),
    (lambda: ensemble.optimal_weights(np.eye(2), ridge=-1), "ridge must be"),
]


@pytest.mark.parametrize(("call", "sentence"), REFUSED, ids=[s for _, s in REFUSED])
def test_bad_input_is_refused_in_a_sentence(call: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        call()
