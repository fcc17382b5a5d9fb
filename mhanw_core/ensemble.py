"""Heads as an ensemble: their average, its error, and the weights that make it smallest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import qr, solve_triangular

from mhanw_core.regression import (
    Array,
    attention_weights,
    finite_array,
    number_within,
    whole_number,
)


def _projections(W_Q: ArrayLike, W_K: ArrayLike, d_model: int) -> tuple[Array, Array]:
    wq, wk = finite_array("W_Q", W_Q), finite_array("W_K", W_K)
    for name, w in (("W_Q", wq), ("W_K", wk)):
        if w.ndim != 3 or w.shape[1] != d_model:
            raise ValueError(
                f"{name} has shape {w.shape}; expected (n_heads, {d_model}, head_dim), "
                "one projection per head stacked first."
            )
    if wq.shape != wk.shape:
        raise ValueError(
            f"W_Q has shape {wq.shape} and W_K {wk.shape}; queries and keys of a head must "
            "have the same dimension."
        )
    return wq, wk


def _tokens(name: str, tokens: ArrayLike) -> Array:
    x = finite_array(name, tokens)
    if x.ndim < 2:
        raise ValueError(
            f"{name} has shape {x.shape}; expected (tokens, d_model), with batches in front."
        )
    return x


def _head_weights(weights: ArrayLike | None, n_heads: int) -> Array:
    if weights is None:
        return np.full(n_heads, 1 / n_heads)
    alpha = finite_array("weights", weights)
    if alpha.shape != (n_heads,):
        raise ValueError(f"weights have shape {alpha.shape}; expected ({n_heads},), one per head.")
    return alpha


def head_attention_weights(
    x_query: ArrayLike, x: ArrayLike, W_Q: ArrayLike, W_K: ArrayLike
) -> Array:
    """Attention weights of every head.

    Parameters
    ----------
    x_query, x : (..., m, d_model) and (..., n, d_model)
    W_Q, W_K : (n_heads, d_model, head_dim)

    Returns
    -------
    (..., n_heads, m, n) array

    Raises
    ------
    ValueError
        If shapes do not match, or an array is empty or not finite.
    """
    xq, xk = _tokens("x_query", x_query), _tokens("x", x)
    if xq.shape[-1] != xk.shape[-1]:
        raise ValueError(
            f"x_query has d_model {xq.shape[-1]} and x {xk.shape[-1]}; they must agree."
        )
    wq, wk = _projections(W_Q, W_K, xk.shape[-1])
    try:
        np.broadcast_shapes(xq.shape[:-2], xk.shape[:-2])
    except ValueError:
        raise ValueError(
            f"x_query has batches {xq.shape[:-2]} and x {xk.shape[:-2]}; they must agree."
        ) from None
    return attention_weights(xq[..., None, :, :] @ wq, xk[..., None, :, :] @ wk)


def head_outputs(
    x_query: ArrayLike, x: ArrayLike, values: ArrayLike, W_Q: ArrayLike, W_K: ArrayLike
) -> Array:
    """Estimate of every head, all reading the same scalar values.

    Parameters
    ----------
    x_query, x : (..., m, d_model) and (..., n, d_model)
    values : (..., n)
    W_Q, W_K : (n_heads, d_model, head_dim)

    Returns
    -------
    (..., n_heads, m) array

    Raises
    ------
    ValueError
        If shapes do not match, or an array is empty or not finite.
    """
    weights = head_attention_weights(x_query, x, W_Q, W_K)
    v = finite_array("values", values)
    if v.shape != weights.shape[:-3] + weights.shape[-1:]:
        raise ValueError(
            f"values have shape {v.shape}; expected {weights.shape[:-3] + weights.shape[-1:]}, "
            "one number per token."
        )
    return (weights @ v[..., None, :, None])[..., 0]


def multi_head(
    x_query: ArrayLike,
    x: ArrayLike,
    values: ArrayLike,
    W_Q: ArrayLike,
    W_K: ArrayLike,
    weights: ArrayLike | None = None,
) -> Array:
    """Weighted average of the heads' Nadaraya-Watson estimates.

    Parameters
    ----------
    x_query, x : (..., m, d_model) and (..., n, d_model)
    values : (..., n)
    W_Q, W_K : (n_heads, d_model, head_dim)
    weights : (n_heads,), optional
        Uniform by default; used as given, not normalised.

    Returns
    -------
    (..., m) array

    Raises
    ------
    ValueError
        If shapes do not match, or an array is empty or not finite.

    References
    ----------
    arXiv:2605.20271, the ensemble form of Step 2 (as reported).
    """
    outputs = head_outputs(x_query, x, values, W_Q, W_K)
    alpha = _head_weights(weights, outputs.shape[-2])
    return np.einsum("h,...hm->...m", alpha, outputs)


@dataclass(frozen=True)
class MSEParts:
    """Mean squared error of a weighted ensemble at m queries, in three parts that add up.

    Attributes
    ----------
    bias2, variance, covariance, mse : (m,)
        In squared units of the target; ``covariance`` sums over ordered pairs of unequal heads.
    head_bias : (n_heads, m)
    head_covariance : (m, n_heads, n_heads)
    """

    bias2: Array
    variance: Array
    covariance: Array
    mse: Array
    head_bias: Array
    head_covariance: Array


def decompose_mse(
    predictions: ArrayLike, target: ArrayLike, weights: ArrayLike | None = None
) -> MSEParts:
    """Split the mean squared error of an ensemble into bias, variance and covariance.

    The bias is that of the combined estimate. It equals the sum of weighted head biases
    exactly if the weights sum to 1. Moments are over the replicates with divisor R, so the
    parts add up to the mean squared error over those replicates. The noise of a fresh
    observation is not in it.

    Parameters
    ----------
    predictions : (R, n_heads, m), R >= 2
        Replicates of every head at every query.
    target : (m,)
        The regression function at the queries.
    weights : (n_heads,), optional
        Uniform by default.

    Returns
    -------
    MSEParts

    Raises
    ------
    ValueError
        If shapes do not match, an array is empty or not finite, or there is one replicate.

    References
    ----------
    Ueda and Nakano (1996); arXiv:2605.20271, Theorem 3.1 (as reported).
    """
    p, m = finite_array("predictions", predictions), finite_array("target", target)
    if p.ndim != 3 or len(p) < 2:
        raise ValueError(
            f"predictions have shape {p.shape}; expected (R, n_heads, m) with at least two "
            "replicates."
        )
    if m.shape != p.shape[2:]:
        raise ValueError(f"target has shape {m.shape}; expected {p.shape[2:]}, one per query.")
    alpha = _head_weights(weights, p.shape[1])
    mean = p.mean(axis=0)
    centred = p - mean
    with np.errstate(over="ignore", invalid="ignore"):
        return _parts(mean, centred, m, alpha)


def _parts(mean: Array, centred: Array, m: Array, alpha: Array) -> MSEParts:
    head_covariance = np.einsum("rhm,rgm->mhg", centred, centred) / len(centred)
    weighted = alpha[:, None] * alpha * head_covariance
    bias2 = np.square(alpha @ mean - m)
    variance = np.trace(weighted, axis1=1, axis2=2)
    covariance = weighted.sum(axis=(1, 2)) - variance
    mse = bias2 + variance + covariance
    if not np.isfinite(mse).all():
        raise ValueError("the squares of predictions and target overflow; rescale them.")
    return MSEParts(bias2, variance, covariance, mse, mean - m, head_covariance)


def equicorrelated_variance(variance: float, correlation: float | ArrayLike, n_heads: int) -> Array:
    """Variance of the mean of equally correlated estimators of equal variance.

    Parameters
    ----------
    variance : float
        Of one estimator, >= 0.
    correlation : float or array
        Common pairwise correlation, from -1/(n_heads - 1) to 1.
    n_heads : int

    Returns
    -------
    Array shaped like `correlation`, in the units of `variance`.

    Raises
    ------
    ValueError
        If the variance is negative, there is no head, or no such covariance matrix exists.

    References
    ----------
    Hastie, Tibshirani and Friedman (2009), equation 15.1.
    """
    rho = finite_array("correlation", correlation)
    n_heads = whole_number("n_heads", n_heads, 1)
    number_within("variance", variance, 0)
    lowest = -1.0 if n_heads == 1 else -1 / (n_heads - 1)
    if (rho > 1).any() or (rho < lowest - 1e-12).any():
        raise ValueError(
            f"correlation runs from {rho.min():g} to {rho.max():g}; {n_heads} equally correlated "
            f"estimators allow only {lowest:g} to 1."
        )
    return np.asarray(variance * (rho + (1 - rho) / n_heads))


def optimal_weights(
    covariance: ArrayLike, bias: ArrayLike | None = None, ridge: float = 0.0
) -> Array:
    """Weights summing to 1 that minimise the ensemble's mean squared error.

    Parameters
    ----------
    covariance : (n_heads, n_heads)
        Symmetric and positive definite (after `ridge` is added).
    bias : (n_heads,), optional
        Zero by default.
    ridge : float
        Added to the diagonal, in the units of the covariance.

    Returns
    -------
    (n_heads,) array

    Raises
    ------
    ValueError
        If the covariance is not symmetric, or too close to singular for its inverse to be
        trusted (condition number above 1e12): clones leave the weights undetermined.

    References
    ----------
    Bates and Granger (1969); arXiv:2605.20271, Theorem 7.1 (as reported) states otherwise.
    """
    s = finite_array("covariance", covariance).astype(np.float64)
    if s.ndim != 2 or s.shape[0] != s.shape[1]:
        raise ValueError(f"covariance has shape {s.shape}; expected a square matrix.")
    if not np.allclose(s, s.T, rtol=1e-10, atol=1e-12 * np.abs(s).max()):
        raise ValueError(
            "covariance is not symmetric; symmetrise it, (C + C.T) / 2, if that is meant."
        )
    b = np.zeros(len(s)) if bias is None else finite_array("bias", bias).astype(np.float64)
    if b.shape != (len(s),):
        raise ValueError(f"bias has shape {b.shape}; expected ({len(s)},), one per head.")
    if len(s) == 1:
        return np.ones(1)
    size = max(float(np.abs(s).max()), number_within("ridge", ridge, 0)) or 1.0
    s = s / size + ridge / size * np.eye(len(s))
    spectrum = np.linalg.eigvalsh(s)
    if spectrum[0] <= 1e-12 * spectrum[-1]:
        raise ValueError(
            f"covariance has smallest eigenvalue {spectrum[0] * size:.3g} and largest "
            f"{spectrum[-1] * size:.3g}: it is singular or not positive, so the weights are not "
            "determined. Drop cloned heads or pass ridge > 0."
        )
    return _least_mse(s, b / np.sqrt(size))


def _least_mse(s: Array, b: Array) -> Array:
    """Minimise alpha^T (S + b b^T) alpha with weights that sum to 1, as least squares.

    The last weight is 1 minus the others, so that a bias common to all heads drops out before
    it is squared. Rows in falling order and pivoted columns keep a large bias from drowning S.
    """
    factor = np.linalg.cholesky(s).T
    rows = np.vstack([factor[:, :-1] - factor[:, -1:], b[:-1] - b[-1]])
    right = -np.append(factor[:, -1], b[-1])
    order = np.argsort(-np.abs(rows).max(axis=1, initial=0.0))
    q, r, pivot = qr(rows[order], mode="economic", pivoting=True)
    others = np.empty(len(s) - 1)
    others[pivot] = solve_triangular(r, q.T @ right[order])
    return np.append(others, 1 - others.sum())
