"""Geometry of heads: principal angles, overlaps, circuits, and what chance and room allow.

`W` is (n_heads, d_model, d_k); the columns of a head span its subspace. Results are float64,
but for the cosines of float32 circuits. Columns must be independent: a singular value below
max(rows, columns) * eps * (the largest) is zero, with the eps of float32 if such are given.
Other types, half precision among them, are taken as exact; so are float32 passed as float64.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from mhanw_core.regression import Array, finite_array, whole_number


class DependentColumnsError(ValueError):
    """The columns of a head or matrix are dependent to rounding: its subspace is in doubt."""


def _tall(name: str, value: ArrayLike, axes: int, shape: str) -> Array:
    w = finite_array(name, value)
    if w.ndim != axes:
        raise ValueError(f"{name} has shape {w.shape}; expected {shape}.")
    if w.shape[-1] > w.shape[-2]:
        raise ValueError(
            f"{name} has {w.shape[-1]} columns in dimension {w.shape[-2]} (shape {w.shape}); "
            "at most that many can be independent. Is it transposed?"
        )
    return w


def stacked_heads(name: str, W: ArrayLike) -> Array:
    """Return `W` as (n_heads, d_model, d_k), or raise a ValueError that says why not."""
    return _tall(name, W, 3, "(n_heads, d_model, d_k); for one head pass W[None]")


def _unit_scale(w: Array, dtype: DTypeLike = np.float64) -> Array:
    """Divide each matrix of a stack by its largest entry, so that no product overflows."""
    peak = np.maximum(w.max(axis=(-2, -1), keepdims=True), -w.min(axis=(-2, -1), keepdims=True))
    return np.asarray(np.divide(w, np.where(peak > 0, peak, 1.0), dtype=dtype))


class Bases(NamedTuple):
    """Orthonormal basis of every head's subspace, and condition number of every head as given."""

    bases: Array
    conditions: Array


def factor_heads(W: ArrayLike, name: str = "W") -> Bases:
    """Orthonormal bases and condition numbers of the heads, to rounding.

    Parameters
    ----------
    W : (n_heads, d_model, d_k)
    name : str, its name in messages

    Returns
    -------
    Bases
        Arrays (n_heads, d_model, d_k) and (n_heads,).

    Raises
    ------
    ValueError
        If W is not such an array or not finite; as `DependentColumnsError`, which names the
        head and its numerical rank, if a head has dependent columns.

    References
    ----------
    Björck and Golub (1973); Yamamoto et al. (2015) for two rounds of Cholesky's factor.
    """
    w = stacked_heads(name, W)
    scaled = _unit_scale(w)
    q, r = _cholesky_qr(scaled) or np.linalg.qr(scaled)
    s = np.linalg.svd(r, compute_uv=False)
    rank = (s > max(w.shape[1:]) * np.finfo(w.dtype).eps * s[:, :1]).sum(axis=1)
    weak = np.flatnonzero(rank < w.shape[2])
    if weak.size:
        which = name if len(w) == 1 else f"head {weak[0]} of {name}"
        raise DependentColumnsError(
            f"{which} has {w.shape[2]} columns of numerical rank {rank[weak[0]]}; angles need "
            "independent columns. Leave it out, or pass a basis of its range (scipy.linalg.orth)."
        )
    return Bases(np.asarray(q), s[:, 0] / s[:, -1])


def _cholesky_qr(q: Array) -> tuple[Array, Array] | None:
    """Q and R, several times faster than by Householder; None where that loses accuracy.

    The first round leaves Q orthonormal to eps times the squared condition number, the second
    to eps.
    """
    r = np.eye(q.shape[2])
    for _ in range(2):
        try:
            factor = np.linalg.cholesky(np.swapaxes(q, 1, 2) @ q)
        except np.linalg.LinAlgError:
            return None
        inverse = np.linalg.inv(factor)
        if (np.linalg.norm(factor, axis=(1, 2)) * np.linalg.norm(inverse, axis=(1, 2))).max() > 1e4:
            return None
        q, r = q @ np.swapaxes(inverse, 1, 2), np.swapaxes(factor, 1, 2) @ r
    return q, r


def orthonormal_bases(W: ArrayLike, name: str = "W") -> Array:
    """Orthonormal bases alone; takes and raises as `factor_heads`."""
    return factor_heads(W, name).bases


def principal_angles(A: ArrayLike, B: ArrayLike) -> Array:
    """Principal angles between two column spaces, accurate to rounding near 0 and near pi/2.

    Angles above 45 degrees come from their cosines, the others from their sines.

    Parameters
    ----------
    A, B : (d_model, p) and (d_model, q)

    Returns
    -------
    (min(p, q),) array
        Radians, ascending.

    Raises
    ------
    ValueError
        If shapes do not match, an entry is not finite, or columns are dependent.

    References
    ----------
    Björck and Golub (1973), the cosines; Knyazev and Argentati (2002), the sines.
    """
    a, b = (_tall(n, x, 2, "(d_model, columns)") for n, x in (("A", A), ("B", B)))
    if len(a) != len(b):
        raise ValueError(f"A has {len(a)} rows and B {len(b)}; they must lie in the same space.")
    q_b, q_a = sorted(
        (orthonormal_bases(a[None], "A")[0], orthonormal_bases(b[None], "B")[0]),
        key=lambda q: q.shape[1],
    )
    inner = q_a.T @ q_b
    cosines = np.minimum(np.linalg.svd(inner, compute_uv=False), 1)
    sines = np.minimum(np.linalg.svd(q_b - q_a @ inner, compute_uv=False)[::-1], 1)
    return np.sort(np.where(cosines**2 > 0.5, np.arcsin(sines), np.arccos(cosines)))


def pair_at_angles(angles: ArrayLike) -> Array:
    """Orthonormal bases of two subspaces at these principal angles, in the smallest space.

    Takes d angles in radians, one or more; returns (2, 2d, d). A ValueError otherwise.
    """
    theta = finite_array("angles", angles)
    if theta.ndim != 1:
        raise ValueError(f"angles has shape {theta.shape}; expected one axis, an angle an entry.")
    flat = np.zeros((len(theta), len(theta)))
    first = np.vstack([flat + np.eye(len(theta)), flat])
    return np.stack([first, np.vstack([np.diag(np.cos(theta)), np.diag(np.sin(theta))])])


def _pair_products(a: Array, b: Array) -> Array:
    """(H, H) array of <a_h^T a_g, b_h^T b_g>_F / d_k, one row of heads at a time.

    Where `b` has fewer heads, each serves a run of heads of `a`.
    """
    (n_heads, d_model, d_k), group = a.shape, len(a) // len(b)
    flat_a, flat_b = (np.moveaxis(x, 1, 0).reshape(d_model, -1) for x in (a, b))
    sums = np.empty((n_heads, n_heads), np.result_type(a, b))
    for h in range(n_heads):
        row_a = (a[h].T @ flat_a[:, h * d_k :]).reshape(d_k, n_heads - h, d_k)
        if a is not b and h % group == 0:
            row_b = (b[h // group].T @ flat_b[:, h // group * d_k :]).reshape(d_k, -1, d_k)
        served = row_a if a is b else np.repeat(row_b, group, axis=1)[:, h % group :]
        sums[h, h:] = sums[h:, h] = np.einsum("igj,igj->g", row_a, served)
    return sums / d_k


def pairwise_overlaps(W: ArrayLike) -> Array:
    """Mean squared cosine of the principal angles between every two heads.

    Takes W of shape (n_heads, d_model, d_k); returns (n_heads, n_heads), from 0 (orthogonal)
    to 1 (equal subspaces), 1 on the diagonal. Raises and source as `factor_heads`.
    """
    return basis_overlaps(orthonormal_bases(W))


def basis_overlaps(Q: Array) -> Array:
    """`pairwise_overlaps` of heads whose bases are orthonormal already."""
    overlaps = np.minimum(_pair_products(Q, Q), 1.0)
    np.fill_diagonal(overlaps, 1.0)
    return overlaps


def _circuits(W_Q: ArrayLike, W_K: ArrayLike) -> tuple[Array, Array]:
    q, k = stacked_heads("W_Q", W_Q), stacked_heads("W_K", W_K)
    if q.shape[1:] != k.shape[1:] or len(q) % len(k):
        raise ValueError(
            f"W_Q has shape {q.shape} and W_K {k.shape}; they must agree, except that a key head "
            "may serve a whole number of consecutive query heads."
        )
    return q, k


def circuit_inner_products(W_Q: ArrayLike, W_K: ArrayLike) -> Array:
    """Inner products <M_h, M_h'>_F of the circuits M_h = W_K^h W_Q^h^T / sqrt(d_k).

    They equal <W_Q^T W_Q', W_K^T W_K'>_F / d_k, so no d_model x d_model matrix is formed.

    Parameters
    ----------
    W_Q : (n_heads, d_model, d_k)
    W_K : (n_heads, d_model, d_k), or fewer heads
        Then each serves a run of consecutive query heads (grouped-query attention).

    Returns
    -------
    (n_heads, n_heads) array

    Raises
    ------
    ValueError
        If shapes do not match, an entry is not finite, or the products overflow.

    References
    ----------
    Elhage et al. (2021), the circuit.
    """
    q, k = (w.astype(np.float64, copy=False) for w in _circuits(W_Q, W_K))
    with np.errstate(over="ignore", invalid="ignore"):
        products = _pair_products(q, q if W_Q is W_K else k)
    if not np.isfinite(products).all():
        raise ValueError("the inner products of W_Q and W_K overflow float64; rescale them.")
    return products


def circuit_overlaps(W_Q: ArrayLike, W_K: ArrayLike) -> Array:
    """Cosines <M_h, M_h'>_F / (|M_h|_F |M_h'|_F) of the heads' circuits; they may be negative.

    Takes, returns and raises as `circuit_inner_products`; also a ValueError if a circuit is
    zero to rounding, for it has no direction. Unchanged by W_K -> W_K A, W_Q -> W_Q A^{-T}.
    Products of float32 maps are taken in float32.
    """
    q, k = (_unit_scale(w, w.dtype) for w in _circuits(W_Q, W_K))
    products = _pair_products(q, k)
    square = np.diag(products)
    sizes = [np.einsum("hij,hij->h", w, w) for w in (q, k)]
    largest = sizes[0] * np.repeat(sizes[1], len(q) // len(k)) / q.shape[2]
    zero = np.flatnonzero(square <= q.shape[1] * np.finfo(products.dtype).eps * largest)
    if zero.size:
        raise ValueError(f"the circuit W_K W_Q^T of head {zero[0]} is zero; leave that head out.")
    return np.clip(products / np.sqrt(np.outer(square, square)), -1.0, 1.0)


def circuit_covariances(W_Q: ArrayLike, W_K: ArrayLike) -> Array:
    """Mean noise covariance of every two softmax heads, in units of sigma^2 / n, as n grows.

    For standard normal tokens and queries it is det(I - A - A^T)^{-1/2} with A = M_h^T M_h',
    and infinite where an eigenvalue of A + A^T reaches 1. By Sylvester's identity only
    2 d_k x 2 d_k determinants are formed.

    Takes, returns and raises as `circuit_inner_products`.

    References
    ----------
    Chapter 3 of this book, `covariance-formula`.
    """
    circuit_inner_products(W_Q, W_K)  # refuses what overflows
    q, k = (w.astype(np.float64) for w in _circuits(W_Q, W_K))
    k = np.repeat(k, len(q) // len(k), axis=0)
    n_heads, _, d_k = q.shape
    result = np.empty((n_heads, n_heads))
    for h in range(n_heads):
        for g in range(h, n_heads):
            both, inner = np.hstack([q[h], q[g]]), k[h].T @ k[g] / d_k
            coupling = np.block([[np.zeros((d_k, d_k)), inner], [inner.T, np.zeros((d_k, d_k))]])
            growth = np.linalg.eigvals(coupling @ (both.T @ both)).real
            finite = growth.max() < 1
            result[h, g] = result[g, h] = np.prod(1 - growth) ** -0.5 if finite else np.inf
    return result


def _sizes(d_model: int, d_k: int) -> tuple[int, int]:
    """As Python integers, whose products do not overflow."""
    n, d = whole_number("d_model", d_model, 1), whole_number("d_k", d_k, 1)
    if d > n:
        raise ValueError(f"d_k is {d}, more than d_model {n}; need 1 <= d_k <= d_model.")
    return n, d


class RandomOverlap(NamedTuple):
    """Mean and variance of the overlap of two independent uniformly random subspaces."""

    mean: float
    variance: float


def random_overlap(d_model: int, d_k: int) -> RandomOverlap:
    """Overlap of two random subspaces: mean d_k/N, variance 2(N-d_k)^2 / (N^2 (N-1)(N+2)).

    The overlaps of two different pairs of heads are independent, those of three need not be.
    A ValueError unless 1 <= d_k <= d_model. Source: fourth moments of the uniform measure on
    the orthogonal group, Collins and Śniady (2006).
    """
    n, d = _sizes(d_model, d_k)
    free = n - d
    return RandomOverlap(d / n, 2 * free**2 / (n**2 * (n - 1) * (n + 2)) if free else 0.0)


def max_hdi(n_heads: int, d_model: int, d_k: int) -> float:
    """Upper bound on the subspace HDI, 1 - max(0, (H d_k/N - 1)/(H - 1)).

    Since |sum P_h|_F^2 >= (H d_k)^2/N, with equality for tight fusion frames. They need not
    exist: two planes in three dimensions share a line (overlap >= 1/2; the bound says 1/3).
    A ValueError for one head, or unless 1 <= d_k <= d_model. Source: Welch (1974).
    """
    (n, d), heads = _sizes(d_model, d_k), whole_number("n_heads", n_heads, 2)
    return 1 - max(0.0, (heads * d / n - 1) / (heads - 1))
