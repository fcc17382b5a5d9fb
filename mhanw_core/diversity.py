"""The Head Diversity Index, as printed and by subspaces, and what to compare it with."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import nan, sqrt

import numpy as np
from numpy.typing import ArrayLike

from mhanw_core import subspaces
from mhanw_core.regression import Array, whole_number


def _two_heads(W: ArrayLike) -> Array:
    w = subspaces.stacked_heads("W", W)
    if len(w) < 2:
        raise ValueError("W holds one head; diversity compares pairs, so at least two are needed.")
    return w


def _pair_mean(matrix: Array) -> float:
    return float(matrix[np.triu_indices(len(matrix), 1)].mean(dtype=np.float64))


def hdi(W: ArrayLike, form: str = "subspace") -> float:
    """Head Diversity Index: one minus the mean similarity of pairs of heads.

    Parameters
    ----------
    W : (n_heads, d_model, d_k), n_heads >= 2
    form : str
        ``subspace``: similarity is the mean squared cosine of the principal angles; in [0, 1],
        0 iff all subspaces are equal, 1 iff all are orthogonal.
        ``paper``: similarity is |W_h^T W_h' / d_k|_F^2 as printed; it depends on the scale of
        W and has no lower bound.

    Returns
    -------
    float

    Raises
    ------
    ValueError
        If W is not such an array, not finite, holds one head, or the form is unknown; for
        ``subspace`` also if a head has dependent columns.

    References
    ----------
    arXiv:2605.20271, Step 4 (as reported).
    """
    w = _two_heads(W)
    if form == "subspace":
        return 1 - _pair_mean(subspaces.pairwise_overlaps(w))
    if form == "paper":
        return 1 - _pair_mean(subspaces.circuit_inner_products(w, w)) / int(w.shape[2])
    raise ValueError(f"form {form!r} is unknown; choose subspace or paper.")


def shuffled_hdi(W: ArrayLike, n_deals: int = 200, seed: int = 0) -> Array:
    """Subspace HDI after dealing the columns of all heads to heads at random.

    A deal keeps the spectrum of the whole W_K and forgets which column belongs to which head.
    Columns are dealt as given: unlike the index, the deals depend on the gauge of each head.
    All deals share the Gram matrix K of the columns: with A_hg = K_hh^{-1} K_hg, the overlap
    of heads h and g is tr(A_hg A_gh) / d_k.

    Parameters
    ----------
    W : (n_heads, d_model, d_k), n_heads >= 2
    n_deals, seed : int

    Returns
    -------
    (n_deals,) array
        All NaN if a deal gives a head dependent columns (condition number above 1e5), as where
        heads share columns: to drop that deal would bias the rest.

    Raises
    ------
    ValueError
        If W is not such an array, not finite or one head, or n_deals is below 1.
    """
    w = _two_heads(W).astype(np.float64)
    n_deals, seed = whole_number("n_deals", n_deals, 1), whole_number("seed", seed, 0)
    n_heads, d_model, d_k = w.shape
    columns = np.moveaxis(w / (np.abs(w).max() or 1.0), 1, 0).reshape(d_model, -1)
    gram, values = columns.T @ columns, np.empty(n_deals)
    rng = np.random.default_rng(seed)
    for i in range(n_deals):
        deal = rng.permutation(len(gram))
        dealt = gram.take(deal, 0).take(deal, 1).reshape(n_heads, d_k, n_heads, d_k)
        solved = _solved(dealt)
        if solved is None:
            return np.full(n_deals, nan)
        traces = (
            np.vdot(solved[h, :, h + 1 :], solved[h + 1 :, :, h].transpose(2, 0, 1))
            for h in range(n_heads - 1)
        )
        values[i] = 1 - sum(traces) / d_k / (n_heads * (n_heads - 1) / 2)
    return values


def _solved(gram: Array) -> Array | None:
    """K_hh^{-1} K_hg for all heads h and g; None where a K_hh is singular to rounding."""
    n_heads, d_k = gram.shape[:2]
    own = gram[np.arange(n_heads), :, np.arange(n_heads)]
    try:
        inverse = np.linalg.inv(own)
    except np.linalg.LinAlgError:
        return None
    sizes = np.linalg.norm(own, axis=(1, 2)) * np.linalg.norm(inverse, axis=(1, 2))
    if not (sizes < 1e10).all():
        return None
    return np.asarray(inverse @ gram.reshape(n_heads, d_k, -1)).reshape(gram.shape)


@dataclass(frozen=True)
class DiversityReport:
    """How diverse the heads of one layer are, beside what chance and room allow.

    Attributes
    ----------
    hdi, paper_hdi, max_hdi
        Subspace form, printed form, and the packing bound on the first.
    null_mean, null_sd
        Of the HDI of independent uniformly random subspaces.
    z
        (hdi - null_mean) / null_sd; NaN if head_dim = d_model, where the HDI is always 0.
    shuffled_mean, shuffled_low, shuffled_high
        Mean and central 95 % of `shuffled_hdi`; NaN where that is NaN.
    adjusted_hdi
        (hdi - null_mean) / (max_hdi - null_mean): 0 chance, 1 the bound; NaN as ``z``.
    circuit_index
        One minus the mean cosine between circuits, from 0 to H/(H - 1); None without W_Q.
    closest_pair, closest_overlap
        The two heads of largest overlap, and that overlap.
    worst_condition
        Largest condition number of a head; rounding errors of ``hdi`` grow with it.
    overlaps
        (n_heads, n_heads), of every two heads.
    """

    n_heads: int
    d_model: int
    head_dim: int
    hdi: float
    paper_hdi: float
    max_hdi: float
    null_mean: float
    null_sd: float
    z: float
    shuffled_mean: float
    shuffled_low: float
    shuffled_high: float
    adjusted_hdi: float
    circuit_index: float | None
    closest_pair: tuple[int, int]
    closest_overlap: float
    worst_condition: float
    overlaps: Array = field(compare=False, repr=False)


def report(
    W: ArrayLike, W_Q: ArrayLike | None = None, seed: int = 0, n_deals: int = 200
) -> DiversityReport:
    """Measure the diversity of one layer's heads against both nulls and the packing bound.

    Parameters
    ----------
    W : (n_heads, d_model, d_k), n_heads >= 2
    W_Q : (n_query_heads, d_model, d_k), optional
        For the circuit index; a multiple of n_heads under grouped-query attention.
    seed, n_deals : int, of `shuffled_hdi`

    Returns
    -------
    DiversityReport

    Raises
    ------
    ValueError
        As `hdi` and `subspaces.circuit_overlaps`.

    References
    ----------
    Hubert and Arabie (1985) for the adjustment for chance.
    """
    w = _two_heads(W)
    n_heads, d_model, d_k = map(int, w.shape)
    bases, conditions = subspaces.factor_heads(w)
    overlaps = subspaces.basis_overlaps(bases)
    index, most = 1 - _pair_mean(overlaps), subspaces.max_hdi(n_heads, d_model, d_k)
    chance = subspaces.random_overlap(d_model, d_k)
    null_mean, n_pairs = 1 - chance.mean, n_heads * (n_heads - 1) / 2
    null_sd = sqrt(chance.variance / n_pairs)  # pairs are uncorrelated
    dealt = shuffled_hdi(w, n_deals, seed)
    low, high = np.quantile(dealt, [0.025, 0.975])
    above = np.where(np.tri(n_heads, dtype=bool), -1.0, overlaps)
    first, second = divmod(int(np.argmax(above)), n_heads)
    circuits = None if W_Q is None else subspaces.circuit_overlaps(W_Q, w)
    full = d_k == d_model
    return DiversityReport(
        n_heads=n_heads,
        d_model=d_model,
        head_dim=d_k,
        hdi=index,
        paper_hdi=hdi(w, "paper"),
        max_hdi=most,
        null_mean=null_mean,
        null_sd=null_sd,
        z=nan if full else (index - null_mean) / null_sd,
        shuffled_mean=float(dealt.mean()),
        shuffled_low=float(low),
        shuffled_high=float(high),
        adjusted_hdi=nan if full else (index - null_mean) / (most - null_mean),
        circuit_index=None if circuits is None else 1 - _pair_mean(circuits),
        closest_pair=(first, second),
        closest_overlap=float(overlaps[first, second]),
        worst_condition=float(conditions.max()),
        overlaps=overlaps,
    )
