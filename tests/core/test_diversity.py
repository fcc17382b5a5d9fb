"""The Head Diversity Index in both forms, its nulls, and the report."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mhanw_core import designs, diversity, subspaces
from mhanw_core.regression import Array

seeds = st.integers(0, 2**32 - 1)
stacks = st.tuples(st.integers(2, 5), st.integers(2, 12), st.integers(1, 12)).filter(
    lambda shape: shape[2] <= shape[1]
)
property_test = settings(max_examples=60, deadline=None, derandomize=True)


def normal(seed: int, *shape: int) -> Array:
    """Standard normal entries."""
    return np.random.default_rng(seed).standard_normal(shape)


def orthonormal(seed: int, shape: tuple[int, int, int]) -> Array:
    """Heads with orthonormal columns."""
    return np.asarray(np.linalg.qr(normal(seed, *shape)).Q)


# --- The index -------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["subspace", "paper"])
def test_orthogonal_heads_have_index_one(form: str) -> None:
    w = np.moveaxis(np.eye(6).reshape(6, 3, 2), 1, 0) * 2.5
    assert diversity.hdi(w, form) == 1


def test_identical_heads_have_index_zero_by_subspace_and_any_by_the_printed_form() -> None:
    w = np.repeat(orthonormal(0, (1, 8, 2)), 4, axis=0)
    assert diversity.hdi(w) == pytest.approx(0, abs=1e-12)
    assert diversity.hdi(w * np.array([1, 2, 3, 4])[:, None, None]) == pytest.approx(0, abs=1e-12)
    assert diversity.hdi(w, "paper") == pytest.approx(1 - 1 / 2, abs=1e-12)
    assert diversity.hdi(w * 10, "paper") == pytest.approx(1 - 1e4 / 2, rel=1e-12)


def test_equal_ranges_are_enough_for_index_zero() -> None:
    w = orthonormal(1, (1, 6, 2))[0]
    mixed = np.stack([w, w @ [[2, 1], [0, 3]], -w])
    assert diversity.hdi(mixed) == pytest.approx(0, abs=1e-12)


@property_test
@given(seeds, stacks)
def test_printed_form_is_the_printed_double_sum(seed: int, shape: tuple[int, int, int]) -> None:
    w, (h, _, d_k) = normal(seed, *shape), shape
    total = 0.0
    for i in range(h):
        for j in range(i + 1, h):
            total += float(np.linalg.norm(w[i].T @ w[j] / d_k) ** 2)
    expected = 1 - 2 / (h * (h - 1)) * total
    assert diversity.hdi(w, "paper") == pytest.approx(expected, rel=1e-11, abs=1e-11)


@property_test
@given(seeds, stacks)
def test_forms_agree_exactly_where_the_columns_are_orthogonal_of_norm_root_dk(
    seed: int, shape: tuple[int, int, int]
) -> None:
    q = orthonormal(seed, shape)
    scaled = diversity.hdi(q * np.sqrt(shape[2]), "paper")
    assert 1 - scaled == pytest.approx(shape[2] * (1 - diversity.hdi(q)), abs=1e-11)


@property_test
@given(seeds, stacks)
def test_subspace_form_lies_between_zero_and_the_packing_bound(
    seed: int, shape: tuple[int, int, int]
) -> None:
    index = diversity.hdi(orthonormal(seed, shape))
    assert -1e-12 <= index <= subspaces.max_hdi(*shape) + 1e-12


@property_test
@given(seeds, stacks)
def test_index_does_not_depend_on_the_order_of_heads(
    seed: int, shape: tuple[int, int, int]
) -> None:
    w = orthonormal(seed, shape)
    order = np.random.default_rng(seed).permutation(shape[0])
    for form in ("subspace", "paper"):
        expected = diversity.hdi(w, form)
        assert diversity.hdi(w[order], form) == pytest.approx(expected, abs=1e-12)


def test_gauge_moves_the_printed_form_only() -> None:
    w = orthonormal(2, (3, 8, 2))
    mixed = w @ np.array([[100, 7], [0, 100]])
    assert diversity.hdi(mixed) == pytest.approx(diversity.hdi(w), abs=1e-12)
    assert diversity.hdi(mixed, "paper") < -1000


# --- The nulls -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_heads", "d_model", "d_k", "n", "seed"),
    [(2, 3, 1, 4000, 0), (4, 6, 3, 3000, 1), (8, 24, 3, 1500, 2)],
)
def test_random_heads_have_the_null_mean_and_sd(
    n_heads: int, d_model: int, d_k: int, n: int, seed: int
) -> None:
    draws = normal(seed, n, n_heads, d_model, d_k)
    values = np.array([diversity.hdi(w) for w in draws])
    null = diversity.report(draws[0], n_deals=1)
    mean, mean_se = designs.mean_and_se(values)
    variance, variance_se = designs.variance_and_se(values)
    assert abs(mean - null.null_mean) < 4 * mean_se
    assert abs(variance - null.null_sd**2) < 4 * variance_se
    z = (values - null.null_mean) / null.null_sd
    assert null.z == pytest.approx(z[0], rel=1e-12)


@property_test
@given(seeds, stacks)
def test_shuffled_index_is_the_index_of_the_dealt_columns(
    seed: int, shape: tuple[int, int, int]
) -> None:
    w, (n_heads, d_model, d_k) = normal(seed, *shape), shape
    columns = np.moveaxis(w, 1, 0).reshape(d_model, -1)
    rng = np.random.default_rng(seed)
    direct = []
    for _ in range(3):
        dealt = columns[:, rng.permutation(n_heads * d_k)].reshape(d_model, n_heads, d_k)
        direct.append(diversity.hdi(np.moveaxis(dealt, 1, 0)))
    np.testing.assert_allclose(diversity.shuffled_hdi(w, 3, seed), direct, rtol=0, atol=1e-7)


def test_shuffled_null_repeats_with_its_seed_and_ignores_scale() -> None:
    w = normal(3, 4, 12, 3)
    first = diversity.shuffled_hdi(w, 20, 5)
    np.testing.assert_array_equal(first, diversity.shuffled_hdi(w, 20, 5))
    assert not np.array_equal(first, diversity.shuffled_hdi(w, 20, 6))
    np.testing.assert_allclose(first, diversity.shuffled_hdi(w * 1e200, 20, 5), atol=1e-12)


def test_shuffled_null_keeps_a_spectrum_that_the_random_null_ignores() -> None:
    decay = np.geomspace(1, 0.05, 24)
    found = diversity.report(normal(4, 6, 24, 3) * decay[:, None])
    assert found.shuffled_low < found.hdi < found.shuffled_high
    assert found.shuffled_high < found.null_mean - 4 * found.null_sd
    assert found.z < -4


def test_one_degenerate_deal_leaves_no_null() -> None:
    """Two clones: some deals put a column beside its copy. Dropping those would bias the rest."""
    w = np.repeat(normal(7, 1, 12, 2), 2, axis=0)
    assert np.isnan(diversity.shuffled_hdi(w, 50)).all()
    apart = next(s for s in range(100) if not np.isnan(diversity.shuffled_hdi(w, 1, s)).any())
    assert np.isnan(diversity.shuffled_hdi(w, 50, apart)).all()


def test_grouped_columns_stand_out_from_their_own_deals() -> None:
    shared = normal(5, 1, 24, 3)
    found = diversity.report(shared + 0.5 * normal(6, 6, 24, 3))
    assert found.hdi < found.shuffled_low


# --- The report ------------------------------------------------------------------------------


def test_report_says_what_its_parts_say() -> None:
    w, w_q = normal(7, 5, 12, 3), normal(8, 5, 12, 3)
    w[3] = w[1] + 0.1 * w[3]
    found = diversity.report(w, w_q, seed=1, n_deals=50)
    overlaps = subspaces.pairwise_overlaps(w)
    assert (found.n_heads, found.d_model, found.head_dim) == (5, 12, 3)
    assert found.hdi == diversity.hdi(w)
    assert found.paper_hdi == diversity.hdi(w, "paper")
    assert found.max_hdi == subspaces.max_hdi(5, 12, 3)
    assert found.null_mean == 1 - 3 / 12
    assert found.closest_pair == (1, 3)
    assert found.closest_overlap == overlaps[1, 3] == np.triu(overlaps, 1).max()
    assert found.worst_condition == pytest.approx(max(np.linalg.cond(x) for x in w))
    gap = found.max_hdi - found.null_mean
    assert found.adjusted_hdi == pytest.approx((found.hdi - found.null_mean) / gap)
    dealt = diversity.shuffled_hdi(w, 50, 1)
    band = np.quantile(dealt, [0.025, 0.975])
    assert (found.shuffled_low, found.shuffled_high) == tuple(band)
    assert found.shuffled_mean == dealt.mean()
    circuits = subspaces.circuit_overlaps(w_q, w)[np.triu_indices(5, 1)]
    assert found.circuit_index == 1 - circuits.mean()
    np.testing.assert_array_equal(found.overlaps, overlaps)
    plain = {f.name: type(getattr(found, f.name)) for f in fields(found) if f.compare}
    assert set(plain.values()) <= {int, float, tuple}
    with pytest.raises(FrozenInstanceError):
        found.hdi = 0.0  # type: ignore[misc]


def test_report_without_queries_has_no_circuit_index() -> None:
    assert diversity.report(normal(9, 3, 8, 2), n_deals=2).circuit_index is None


def test_report_accepts_grouped_queries() -> None:
    found = diversity.report(normal(10, 2, 8, 2), normal(11, 6, 8, 2), n_deals=2)
    assert found.n_heads == 2
    assert found.circuit_index is not None


def test_adjusted_index_is_one_at_the_bound() -> None:
    found = diversity.report(np.moveaxis(np.eye(6).reshape(6, 3, 2), 1, 0), n_deals=2)
    assert found.adjusted_hdi == pytest.approx(1, abs=1e-12)
    assert found.worst_condition == 1


def test_heads_that_fill_the_space_have_no_z_and_no_adjusted_index() -> None:
    found = diversity.report(normal(12, 3, 4, 4), n_deals=5)
    assert found.hdi == pytest.approx(0, abs=1e-12)
    assert found.max_hdi == found.null_mean == found.null_sd == 0
    assert np.isnan([found.z, found.adjusted_hdi]).all()


def test_tied_heads_have_a_report_but_no_shuffled_null() -> None:
    found = diversity.report(np.repeat(normal(13, 1, 8, 3), 4, axis=0))
    assert found.hdi == pytest.approx(0, abs=1e-12)
    assert found.adjusted_hdi < 0
    assert np.isnan([found.shuffled_mean, found.shuffled_low, found.shuffled_high]).all()


# --- Bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("w", "message"),
    [
        (normal(0, 1, 6, 2), "W holds one head"),
        (normal(0, 6, 2), r"W has shape \(6, 2\)"),
        (normal(0, 3, 2, 6), "W has 6 columns in dimension 2"),
        (np.full((2, 4, 2), np.nan), "W holds 16 NaN"),
        (normal(0, 2, 4, 2) * 1j, "W has dtype complex128"),
        (np.ones((2, 4, 2)), "head 0 of W has 2 columns of numerical rank 1"),
    ],
)
def test_bad_heads_are_refused_in_a_sentence(w: Any, message: str) -> None:
    for call in (diversity.hdi, diversity.report):
        with pytest.raises(ValueError, match=message):
            call(w)


def test_other_bad_arguments_are_refused_in_a_sentence() -> None:
    w = normal(0, 3, 6, 2)
    with pytest.raises(ValueError, match="form 'raw' is unknown; choose subspace or paper"):
        diversity.hdi(w, "raw")
    with pytest.raises(ValueError, match="n_deals must be a whole number of at least 1; found 0"):
        diversity.shuffled_hdi(w, 0)
    with pytest.raises(ValueError, match="they must agree"):
        diversity.report(w, w[:, :4])
    with pytest.raises(ValueError, match="overflow float64"):
        diversity.hdi(w * 1e200, "paper")


def test_printed_form_needs_no_independent_columns() -> None:
    assert diversity.hdi(np.ones((2, 4, 2)), "paper") == 1 - 16
