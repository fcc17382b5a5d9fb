"""Angles, overlaps and circuits: against SciPy, by their invariances, and on bad input."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ortho_group

from mhanw_core import designs, subspaces
from mhanw_core.regression import Array

ALMOST_RIGHT = np.pi / 2 - 1e-8
EXACT = {"rtol": 0.0, "atol": 1e-12}
seeds = st.integers(0, 2**32 - 1)
stacks = st.tuples(st.integers(2, 5), st.integers(2, 12), st.integers(1, 12)).filter(
    lambda shape: shape[2] <= shape[1]
)
property_test = settings(max_examples=60, deadline=None, derandomize=True)


def gauge(rng: np.random.Generator, size: int) -> Array:
    """A mixing of columns with condition number 10."""
    u, _, vt = np.linalg.svd(rng.standard_normal((size, size)))
    return np.asarray(u * np.geomspace(1, 10, size) @ vt)


def heads(rng: np.random.Generator, shape: tuple[int, int, int]) -> Array:
    """Heads in general position, each with condition number at most 10."""
    q = np.linalg.qr(rng.standard_normal(shape)).Q
    return np.stack([x @ gauge(rng, shape[2]) for x in q])


def rotation(rng: np.random.Generator, size: int) -> Array:
    """A uniformly random orthogonal matrix."""
    return np.asarray(ortho_group.rvs(size, random_state=rng)).reshape(size, size)


def at_angles(rng: np.random.Generator, angles: Array, d_model: int) -> tuple[Array, Array]:
    """Two matrices whose column spaces have exactly these principal angles."""
    k = len(angles)
    frame = rotation(rng, d_model)
    a = frame[:, :k]
    b = a * np.cos(angles) + frame[:, k : 2 * k] * np.sin(angles)
    return a @ gauge(rng, k), b @ gauge(rng, k)


def agree_with_scipy(found: Array, a: Array, b: Array) -> None:
    """Compare with SciPy: to 1e-12, but to rounding of its formula where that is coarser.

    SciPy 1.17 chooses between sine and cosine by a mask in the opposite order of its angles, so
    if some angles are above 45 degrees and some below, it is off by up to about sqrt(eps) near
    0 and pi/2. `test_known_angles...` is the judge there.
    """
    expected = scipy.linalg.subspace_angles(a, b)[::-1]
    mixed = expected[0] < np.pi / 4 < expected[-1]
    sharp = np.minimum(found, np.pi / 2 - found) > 0.01
    allowed = np.where(sharp | (not mixed), 1e-12, 1e-7)
    assert (np.abs(found - expected) <= allowed).all()


@pytest.mark.parametrize("condition", [1.0, 30.0, 1e3, 9e3, 1e6, 1e10])
def test_ill_conditioned_heads_have_accurate_bases(condition: float) -> None:
    """The fast factorisation and the one that takes over where it would lose digits."""
    rng = np.random.default_rng(9)
    frame = np.linalg.qr(rng.standard_normal((3, 40, 5))).Q
    mixing = rotation(rng, 5) * np.geomspace(1, 1 / condition, 5) @ rotation(rng, 5)
    found = subspaces.factor_heads(frame @ mixing)
    gram = np.swapaxes(found.bases, 1, 2) @ found.bases
    np.testing.assert_allclose(gram, [np.eye(5)] * 3, atol=1e-14)
    away = found.bases - frame @ (np.swapaxes(frame, 1, 2) @ found.bases)
    assert np.linalg.norm(away, 2, (1, 2)).max() < 20 * np.finfo(float).eps * condition
    np.testing.assert_allclose(found.conditions, condition, rtol=1e-15 * condition + 1e-12)


# --- Angles ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "angles",
    [
        [0.0],
        [1e-8],
        [ALMOST_RIGHT],
        [np.pi / 2],
        [1e-14, 1e-8, 1e-4],
        [1e-8, 0.3, np.pi / 4, 1.2, ALMOST_RIGHT],
        [0.0, 0.0, np.pi / 2, np.pi / 2],
        [np.pi / 4] * 4,
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_known_angles_are_found_near_zero_and_near_right(angles: list[float], seed: int) -> None:
    a, b = at_angles(np.random.default_rng(seed), np.array(angles), 12)
    found = subspaces.principal_angles(a, b)
    np.testing.assert_allclose(found, angles, **EXACT)
    agree_with_scipy(found, a, b)


def test_the_cosine_alone_would_lose_the_small_angle() -> None:
    a, b = at_angles(np.random.default_rng(0), np.array([1e-9]), 6)
    q = [np.linalg.qr(x).Q for x in (a, b)]
    by_cosine = np.arccos(np.minimum(np.linalg.svd(q[0].T @ q[1], compute_uv=False), 1))
    assert abs(by_cosine[0] - 1e-9) > 1e-10
    np.testing.assert_allclose(subspaces.principal_angles(a, b), 1e-9, rtol=1e-5)


@property_test
@given(seeds, st.integers(1, 20), st.data())
def test_angles_agree_with_scipy_for_all_shapes(seed: int, d_model: int, data: Any) -> None:
    p, q = (data.draw(st.integers(1, d_model)) for _ in range(2))
    rng = np.random.default_rng(seed)
    a, b = heads(rng, (1, d_model, p))[0], heads(rng, (1, d_model, q))[0]
    found = subspaces.principal_angles(a, b)
    assert found.shape == (min(p, q),)
    assert (np.diff(found) >= 0).all()
    assert found.min() >= 0
    assert found.max() <= np.pi / 2
    agree_with_scipy(found, a, b)
    np.testing.assert_allclose(found, subspaces.principal_angles(b, a), **EXACT)


def test_two_planes_in_three_dimensions_share_a_line() -> None:
    angles = subspaces.principal_angles(np.eye(3)[:, :2], np.eye(3)[:, 1:])
    np.testing.assert_array_equal(angles, [0, np.pi / 2])


# --- Overlaps --------------------------------------------------------------------------------


@property_test
@given(seeds, stacks)
def test_overlaps_are_mean_squared_cosines_between_zero_and_one(
    seed: int, shape: tuple[int, int, int]
) -> None:
    w = heads(np.random.default_rng(seed), shape)
    overlaps = subspaces.pairwise_overlaps(w)
    direct = [[np.mean(np.cos(scipy.linalg.subspace_angles(a, b)) ** 2) for b in w] for a in w]
    np.testing.assert_allclose(overlaps, direct, **EXACT)
    np.testing.assert_array_equal(np.diag(overlaps), 1)
    np.testing.assert_array_equal(overlaps, overlaps.T)
    assert overlaps.min() >= 0
    assert overlaps.max() <= 1


@property_test
@given(seeds, stacks)
def test_overlaps_see_neither_gauge_nor_rotation_and_follow_the_heads(
    seed: int, shape: tuple[int, int, int]
) -> None:
    rng = np.random.default_rng(seed)
    w = heads(rng, shape)
    overlaps = subspaces.pairwise_overlaps(w)
    mixed = np.stack([x @ gauge(rng, shape[2]) for x in w])
    np.testing.assert_allclose(subspaces.pairwise_overlaps(mixed), overlaps, **EXACT)
    rotated = rotation(rng, shape[1]) @ w
    np.testing.assert_allclose(subspaces.pairwise_overlaps(rotated), overlaps, **EXACT)
    order = rng.permutation(shape[0])
    permuted = subspaces.pairwise_overlaps(w[order])
    np.testing.assert_allclose(permuted, overlaps[np.ix_(order, order)], **EXACT)


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1e30, 1e300])
def test_overlaps_do_not_depend_on_scale(scale: float) -> None:
    w = heads(np.random.default_rng(1), (3, 8, 2))
    expected = subspaces.pairwise_overlaps(w)
    np.testing.assert_allclose(subspaces.pairwise_overlaps(w * scale), expected, **EXACT)


@property_test
@given(seeds, stacks)
def test_bases_are_orthonormal_and_span_the_heads(seed: int, shape: tuple[int, int, int]) -> None:
    w = heads(np.random.default_rng(seed), shape)
    q = subspaces.orthonormal_bases(w)
    transposed = np.swapaxes(q, 1, 2)
    identity = np.broadcast_to(np.eye(shape[2]), (shape[0], shape[2], shape[2]))
    np.testing.assert_allclose(transposed @ q, identity, **EXACT)
    np.testing.assert_allclose(q @ (transposed @ w), w, rtol=0, atol=1e-11)


# --- Circuits --------------------------------------------------------------------------------


@property_test
@given(seeds, stacks)
def test_circuits_agree_with_the_matrices_they_never_form(
    seed: int, shape: tuple[int, int, int]
) -> None:
    rng = np.random.default_rng(seed)
    w_q, w_k = heads(rng, shape), heads(rng, shape)
    m = w_k @ np.swapaxes(w_q, 1, 2) / np.sqrt(shape[2])
    inner = np.einsum("hab,gab->hg", m, m)
    norms = np.sqrt(np.diag(inner))
    found = subspaces.circuit_inner_products(w_q, w_k)
    np.testing.assert_allclose(found, inner, rtol=0, atol=1e-12 * inner.max())
    cosines = subspaces.circuit_overlaps(w_q, w_k)
    np.testing.assert_allclose(cosines, inner / np.outer(norms, norms), **EXACT)
    np.testing.assert_array_equal(np.diag(cosines), 1)
    assert np.abs(cosines).max() <= 1


@property_test
@given(seeds, stacks)
def test_circuits_do_not_see_the_gauge_but_raw_gram_matrices_do(
    seed: int, shape: tuple[int, int, int]
) -> None:
    rng = np.random.default_rng(seed)
    w_q, w_k = heads(rng, shape), heads(rng, shape)
    a = np.stack([gauge(rng, shape[2]) * 3 for _ in w_k])
    turned = w_q @ np.swapaxes(np.linalg.inv(a), 1, 2), w_k @ a
    inner = subspaces.circuit_inner_products(w_q, w_k)
    found = subspaces.circuit_inner_products(*turned)
    np.testing.assert_allclose(found, inner, rtol=0, atol=1e-11 * inner.max())
    cosines = subspaces.circuit_overlaps(w_q, w_k)
    np.testing.assert_allclose(subspaces.circuit_overlaps(*turned), cosines, rtol=0, atol=1e-11)
    raw, raw_turned = (np.linalg.norm(x[0].T @ x[0]) for x in (w_k, turned[1]))
    assert raw_turned > 2 * raw


def test_opposite_circuits_have_overlap_minus_one() -> None:
    w_q, w_k = np.random.default_rng(2).standard_normal((2, 1, 6, 2))
    pair = np.concatenate([w_q, -w_q]), np.concatenate([w_k, w_k])
    np.testing.assert_allclose(subspaces.circuit_overlaps(*pair), [[1, -1], [-1, 1]], **EXACT)


def test_a_zero_circuit_is_told_from_a_small_one() -> None:
    """W_K^T W_Q of orthogonal ranges is not zero: only a map that is zero has no direction."""
    w_q, w_k = np.random.default_rng(5).standard_normal((2, 2, 6, 2))
    small = np.stack([w_q[0], 1e-3 * w_q[1]])
    np.testing.assert_allclose(
        subspaces.circuit_overlaps(small, w_k), subspaces.circuit_overlaps(w_q, w_k), **EXACT
    )
    with pytest.raises(ValueError, match="of head 1 is zero"):
        subspaces.circuit_overlaps(np.stack([w_q[0], 0 * w_q[1]]), w_k)
    first, second = np.eye(6)[:, :2], np.eye(6)[:, 2:4]
    dead = np.stack([w_q[0], first * [1, 0]]), np.stack([w_k[0], second * [0, 1]])
    with pytest.raises(ValueError, match="of head 1 is zero"):  # e1 e1^T times 0 + 0 times e4 e4^T
        subspaces.circuit_overlaps(*dead)


@pytest.mark.parametrize("seed", range(5))
def test_cosines_of_circuits_never_leave_their_range(seed: int) -> None:
    w_q, w_k = np.random.default_rng(seed).standard_normal((2, 1, 40, 7)).astype(np.float32)
    clones = np.repeat(w_q, 6, axis=0), np.repeat(w_k, 6, axis=0)
    signs = np.array([1, -1, 1, -1, 1, -1], np.float32)[:, None, None]
    found = subspaces.circuit_overlaps(signs * clones[0], clones[1])
    assert found.max() == 1
    assert found.min() == -1


def test_circuits_of_grouped_queries_share_their_keys() -> None:
    rng = np.random.default_rng(3)
    w_q, w_k = rng.standard_normal((6, 8, 2)), rng.standard_normal((2, 8, 2))
    expected = subspaces.circuit_overlaps(w_q, w_k[[0, 0, 0, 1, 1, 1]])
    np.testing.assert_array_equal(subspaces.circuit_overlaps(w_q, w_k), expected)


def test_circuit_cosines_survive_extreme_scales() -> None:
    w_q, w_k = np.random.default_rng(4).standard_normal((2, 3, 6, 2))
    expected = subspaces.circuit_overlaps(w_q, w_k)
    found = subspaces.circuit_overlaps(w_q * 1e200, w_k * 1e-200)
    np.testing.assert_allclose(found, expected, **EXACT)
    with pytest.raises(ValueError, match="overflow float64"):
        subspaces.circuit_inner_products(w_q * 1e200, w_k * 1e200)


# --- What chance and room allow --------------------------------------------------------------

RANDOM = [  # d_model, d_k, pairs of subspaces, seed
    (2, 1, 40_000, 0),
    (3, 1, 40_000, 1),
    (3, 2, 40_000, 2),
    (6, 3, 20_000, 3),
    (16, 4, 20_000, 4),
    (48, 12, 4_000, 5),
]


def random_overlaps(d_model: int, d_k: int, n: int, seed: int) -> Array:
    """(n, 3) overlaps of the pairs 01, 02, 12 of three random subspaces, without the library."""
    w = np.random.default_rng(seed).standard_normal((n, 3, d_model, d_k))
    q = np.linalg.qr(w).Q
    pairs = ((0, 1), (0, 2), (1, 2))
    inner = [np.swapaxes(q[:, i], 1, 2) @ q[:, j] for i, j in pairs]
    return np.stack([np.square(x).sum(axis=(1, 2)) / d_k for x in inner], axis=1)


@pytest.mark.parametrize(("d_model", "d_k", "n", "seed"), RANDOM)
def test_random_overlap_has_this_mean_and_variance(
    d_model: int, d_k: int, n: int, seed: int
) -> None:
    overlaps = random_overlaps(d_model, d_k, n, seed)[:, 0]
    expected = subspaces.random_overlap(d_model, d_k)
    mean, mean_se = designs.mean_and_se(overlaps)
    variance, variance_se = designs.variance_and_se(overlaps)
    assert abs(mean - expected.mean) < 4 * mean_se
    assert abs(variance - expected.variance) < 4 * variance_se
    wishful = expected.variance * d_model / (d_model - d_k)  # the square of N - d_k forgotten
    assert abs(variance - wishful) > 4 * variance_se


@pytest.mark.parametrize(("d_model", "d_k", "n", "seed"), RANDOM)
def test_overlaps_of_two_pairs_of_random_subspaces_are_uncorrelated(
    d_model: int, d_k: int, n: int, seed: int
) -> None:
    centred = random_overlaps(d_model, d_k, n, seed) - d_k / d_model
    for f in (lambda x: x, np.square):  # independent, so squares are uncorrelated too
        first, second = (f(centred[:, i]) - f(centred[:, i]).mean() for i in (0, 1))
        mean, se = designs.mean_and_se(first * second)
        assert abs(mean) < 4 * se


def test_three_pairs_of_random_subspaces_are_not_jointly_independent() -> None:
    centred = random_overlaps(2, 1, 20_000, 6) - 0.5
    mean, se = designs.mean_and_se(centred.prod(axis=1))
    assert mean > 10 * se


@pytest.mark.parametrize(("d_model", "d_k"), [(1, 1), (5, 5)])
def test_whole_space_always_overlaps_itself(d_model: int, d_k: int) -> None:
    assert subspaces.random_overlap(d_model, d_k) == (1.0, 0.0)
    assert subspaces.max_hdi(3, d_model, d_k) == 0


def mean_overlap(w: Array) -> float:
    """Mean overlap of unequal heads."""
    return float(subspaces.pairwise_overlaps(w)[np.triu_indices(len(w), 1)].mean())


def bases_dealt(seed: int, n_bases: int, d_model: int, d_k: int) -> Array:
    """A tight fusion frame: several orthonormal bases, each cut into heads."""
    rng = np.random.default_rng(seed)
    frame = np.concatenate([rotation(rng, d_model) for _ in range(n_bases)], axis=1)
    return np.moveaxis(frame.reshape(d_model, -1, d_k), 1, 0)


def test_packing_bound_is_attained_by_tight_frames() -> None:
    turns = 2 * np.pi * np.arange(3) / 3
    mercedes_benz = np.stack([np.cos(turns), np.sin(turns)], axis=1)[:, :, None]
    overlaps = subspaces.pairwise_overlaps(mercedes_benz)
    np.testing.assert_allclose(overlaps, np.where(np.eye(3), 1, 0.25), **EXACT)
    assert subspaces.max_hdi(3, 2, 1) == pytest.approx(0.75, abs=1e-12)
    for seed, n_bases, d_model, d_k in [(0, 1, 6, 2), (1, 2, 4, 2), (2, 3, 8, 4), (3, 5, 6, 1)]:
        w = bases_dealt(seed, n_bases, d_model, d_k)
        bound = subspaces.max_hdi(len(w), d_model, d_k)
        assert 1 - mean_overlap(w) == pytest.approx(bound, abs=1e-12)


@property_test
@given(seeds, stacks)
def test_packing_bound_is_never_exceeded(seed: int, shape: tuple[int, int, int]) -> None:
    w = heads(np.random.default_rng(seed), shape)
    assert 1 - mean_overlap(w) <= subspaces.max_hdi(*shape) + 1e-12


@pytest.mark.parametrize("seed", range(20))
def test_packing_bound_is_out_of_reach_for_two_planes_in_three_dimensions(seed: int) -> None:
    w = heads(np.random.default_rng(seed), (2, 3, 2))
    assert 1 - mean_overlap(w) <= 0.5 + 1e-12
    assert subspaces.max_hdi(2, 3, 2) == pytest.approx(2 / 3)


# --- Bad input -------------------------------------------------------------------------------


def spoiled(kind: str) -> Any:
    """Three heads of which one is spoiled in the named way."""
    w = heads(np.random.default_rng(5), (3, 6, 2))
    if kind == "zero column":
        w[1, :, 1] = 0
    elif kind == "zero head":
        w[1] = 0
    elif kind == "dependent":
        w[1, :, 1] = 3 * w[1, :, 0]
    elif kind == "dependent to rounding":
        w[1, :, 1] = w[1, :, 0] * (1 + 1e-16) + 1e-17
    elif kind == "nan":
        w[1, 0, 0] = np.nan
    elif kind == "complex":
        return w + 1j
    elif kind == "wide":
        return np.swapaxes(w, 1, 2)
    elif kind == "two axes":
        return w[0]
    elif kind == "ragged":
        return [w[0], w[1, :, :1]]
    elif kind == "empty":
        return w[:0]
    return w


BAD = [
    ("zero column", "head 1 of W has 2 columns of numerical rank 1"),
    ("zero head", "head 1 of W has 2 columns of numerical rank 0"),
    ("dependent", "head 1 of W has 2 columns of numerical rank 1"),
    ("dependent to rounding", "head 1 of W has 2 columns of numerical rank 1"),
    ("nan", "W holds 1 NaN or infinite entries"),
    ("complex", "W has dtype complex128"),
    ("wide", "W has 6 columns in dimension 2"),
    ("two axes", r"W has shape \(6, 2\); expected \(n_heads, d_model, d_k\)"),
    ("ragged", "W has parts of unlike shapes"),
    ("empty", "W is empty"),
]


@pytest.mark.parametrize(("kind", "message"), BAD)
def test_bad_heads_are_refused_in_a_sentence(kind: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        subspaces.pairwise_overlaps(spoiled(kind))


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (np.ones((4, 2)), np.eye(4), "A has 2 columns of numerical rank 1"),
        (np.eye(4), np.zeros((4, 1)), "B has 1 columns of numerical rank 0"),
        (np.eye(4), np.eye(3), "A has 4 rows and B 3"),
        (np.ones(4), np.eye(4), r"A has shape \(4,\)"),
        (np.eye(4), np.ones((2, 4)), "B has 4 columns in dimension 2"),
        (np.eye(4), np.full((4, 1), np.inf), "B holds 4 NaN or infinite"),
    ],
)
def test_bad_matrices_have_no_angles(a: Array, b: Array, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        subspaces.principal_angles(a, b)


def test_float32_counts_as_rounded_unless_passed_as_float64() -> None:
    w = heads(np.random.default_rng(6), (2, 6, 2)).astype(np.float32)
    w[1, :, 1] = np.float32(0.3) * w[1, :, 0]
    with pytest.raises(subspaces.DependentColumnsError, match="head 1 of W"):
        subspaces.pairwise_overlaps(w)
    assert subspaces.pairwise_overlaps(w.astype(np.float64)).dtype == np.float64
    good = heads(np.random.default_rng(7), (3, 6, 2)).astype(np.float32)
    exact = subspaces.pairwise_overlaps(good.astype(np.float64))
    np.testing.assert_array_equal(subspaces.pairwise_overlaps(good), exact)


def test_circuits_of_unlike_shapes_or_without_direction_are_refused() -> None:
    w = heads(np.random.default_rng(8), (3, 6, 2))
    for w_q in (w[:2], w[:, :4], w[:, :, :1]):
        with pytest.raises(ValueError, match="they must agree"):
            subspaces.circuit_inner_products(w_q, w)
    zero = w * np.array([1, 0, 1])[:, None, None]
    plus, minus = w.copy(), w.copy()
    plus[1], minus[1] = w[1] @ [[1, 1], [0, 0]], w[1] @ [[1, -1], [0, 0]]
    for pair in ((zero, w), (w, zero), (plus, minus)):
        with pytest.raises(ValueError, match="of head 1 is zero"):
            subspaces.circuit_overlaps(*pair)


@pytest.mark.parametrize(
    ("d_model", "d_k", "message"),
    [
        (2, 3, "d_k is 3, more than d_model 2"),
        (0, 0, "d_model must be a whole number of at least 1; found 0"),
        (4, 1.5, "d_k must be a whole number of at least 1; found 1.5"),
        (4, -1, "d_k must be a whole number of at least 1; found -1"),
        (np.nan, 1, "d_model must be a whole number"),
        (4, None, "d_k must be a whole number"),
        (4, True, "d_k must be a whole number"),
    ],
)
def test_impossible_sizes_are_refused(d_model: Any, d_k: Any, message: str) -> None:
    for call in (subspaces.random_overlap, lambda n, d: subspaces.max_hdi(2, n, d)):
        with pytest.raises(ValueError, match=message):
            call(d_model, d_k)


@pytest.mark.parametrize("kind", [np.int8, np.int32, np.int64])
def test_sizes_of_numpy_do_not_overflow(kind: Any) -> None:
    n, d = (100, 60) if kind is np.int8 else (60_000, 10)
    assert subspaces.random_overlap(kind(n), kind(d)) == subspaces.random_overlap(n, d)
    assert subspaces.max_hdi(kind(n), kind(n), kind(d)) == subspaces.max_hdi(n, n, d)


@pytest.mark.parametrize("n_heads", [1, 0, 2.5])
def test_one_head_has_no_packing_bound(n_heads: Any) -> None:
    with pytest.raises(ValueError, match="n_heads must be a whole number of at least 2"):
        subspaces.max_hdi(n_heads, 8, 2)


def test_two_heads_with_room_can_be_orthogonal() -> None:
    assert subspaces.max_hdi(2, 8, 2) == 1
    assert subspaces.max_hdi(4, 8, 2) == 1
    assert subspaces.max_hdi(8, 8, 2) == pytest.approx(1 - 1 / 7)  # (8*2/8 - 1) / (8 - 1)


@property_test
@given(st.lists(st.floats(1e-8, ALMOST_RIGHT), min_size=1, max_size=5))
def test_a_pair_at_given_angles_has_them(angles: list[float]) -> None:
    first, second = subspaces.pair_at_angles(angles)
    np.testing.assert_allclose(subspaces.principal_angles(first, second), sorted(angles), **EXACT)


def test_a_pair_needs_a_list_of_angles() -> None:
    with pytest.raises(ValueError, match="an angle an entry"):
        subspaces.pair_at_angles(0.3)


@property_test
@given(seeds, stacks)
def test_circuit_covariances_are_the_determinants_of_the_circuits(
    seed: int, shape: tuple[int, int, int]
) -> None:
    rng = np.random.default_rng(seed)
    W_Q, W_K = heads(rng, shape), heads(rng, shape)
    W_K *= 0.3 / (np.linalg.norm(W_Q, 2, (1, 2)) * np.linalg.norm(W_K, 2, (1, 2))).max()
    M = W_K @ np.swapaxes(W_Q, 1, 2) / np.sqrt(shape[2])
    A = np.swapaxes(M, 1, 2)[:, None] @ M
    direct = np.linalg.det(np.eye(shape[1]) - A - np.swapaxes(A, 2, 3)) ** -0.5
    np.testing.assert_allclose(subspaces.circuit_covariances(W_Q, W_K), direct, rtol=1e-12)


def test_the_mean_covariance_of_a_strong_head_is_infinite() -> None:
    W = np.eye(2)[None, :, :1]
    assert subspaces.circuit_covariances(0.7 * W, W)[0, 0] == pytest.approx(0.02**-0.5)
    assert subspaces.circuit_covariances(W, W)[0, 0] == np.inf
    with pytest.raises(ValueError, match="overflow"):
        subspaces.circuit_covariances(1e200 * W, 1e200 * W)


def test_the_edges_of_the_mean_covariance() -> None:
    """Two heads u.x with u = s q and u' = t q in one dimension: det = 1 - 2 s t, if s t < 1/2."""
    W = np.ones((1, 1, 1))

    def covariance(s: float, t: float) -> float:
        pair = np.array([s, t])[:, None, None], np.ones((2, 1, 1))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return float(subspaces.circuit_covariances(*pair)[0, 1])

    assert covariance(2, -3) == pytest.approx(13**-0.5)  # opposite heads, however strong
    assert covariance(0.7, 0.7) == pytest.approx(0.02**-0.5)
    assert covariance(1, 0.5) == np.inf
    assert covariance(3, 3) == np.inf
    assert subspaces.circuit_covariances(W / 2, W)[0, 0] == pytest.approx(0.5**-0.5)


def test_angles_ascend_without_a_warning() -> None:
    """At 45 degrees sine and cosine take turns; at 90 rounding puts sines above 1."""
    rng = np.random.default_rng(6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for angle in [np.pi / 4] * 100 + [np.pi / 2] * 20 + [0.0] * 20:
            frame = rotation(rng, 8)
            turned = angle + rng.uniform(-2e-16, 2e-16, 4)
            b = frame[:, :4] * np.cos(turned) + frame[:, 4:] * np.sin(turned)
            angles = subspaces.principal_angles(frame[:, :4], b)
            assert (np.diff(angles) >= 0).all()
            np.testing.assert_allclose(angles, angle, atol=1e-14)


def test_rank_is_judged_at_rounding_and_by_head() -> None:
    """A head's smallest singular value is held against its own largest, not another head's."""
    good = np.random.default_rng(8).standard_normal((2, 10, 3))
    unlike = good * np.array([1e-30, 1e30])[:, None, None]
    expected = subspaces.pairwise_overlaps(good)
    np.testing.assert_allclose(subspaces.pairwise_overlaps(unlike), expected, **EXACT)
    limit = 10 * np.finfo(float).eps
    frame = np.linalg.qr(good[0]).Q
    assert subspaces.orthonormal_bases((frame * [1, 1, 2 * limit])[None]).shape == (1, 10, 3)
    with pytest.raises(ValueError, match="3 columns of numerical rank 2"):
        subspaces.orthonormal_bases((frame * [1, 1, limit / 2])[None])
