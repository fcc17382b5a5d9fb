"""Kernel regression and attention: identities, peers, edges, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mhanw_core import regression as r

torch = pytest.importorskip("torch", reason="PyTorch is not installed; `make test` installs it.")
sdpa = torch.nn.functional.scaled_dot_product_attention


def case(seed: int, m: int = 5, n: int = 9, d: int = 4, p: int = 3) -> tuple[Any, Any, Any]:
    """Queries, keys and values."""
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal(shape) for shape in ((m, d), (n, d), (n, p)))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 30), st.integers(1, 20))
def test_attention_is_nadaraya_watson(seed: int, m: int, n: int, d: int) -> None:
    q, k, v = case(seed, m, n, d)
    nw = r.nadaraya_watson(q, k, v, kernel="exponential", bandwidth=d**0.25)
    assert np.all(np.abs(nw - r.attention(q, k, v)) <= r.attention_rounding_bound(q, k, v))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e4])
def test_attention_agrees_with_torch(dtype: Any, size: float) -> None:
    q, k, v = (a.astype(dtype) for a in case(1))
    ours, theirs = r.attention(size * q, k, v), sdpa(*map(torch.tensor, (dtype(size) * q, k, v)))
    assert ours.dtype == dtype
    bound = r.attention_rounding_bound(size * q, k, v)
    assert np.all(np.abs(ours - theirs.numpy()) <= bound)
    wrong = r.attention(-size * q, k, v)
    assert not np.all(np.abs(wrong - theirs.numpy()) <= bound)


@pytest.mark.parametrize("additive", [False, True])
def test_masks_and_batches_agree_with_torch(additive: bool) -> None:
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal(s) for s in ((2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 2)))
    mask: Any = rng.random((5, 7)) < 0.5
    mask[:, 0] = True
    mask = np.where(mask, 0.3, -np.inf) if additive else mask
    ours = r.attention(q, k, v, mask=mask)
    theirs = sdpa(*map(torch.tensor, (q, k, v)), attn_mask=torch.tensor(mask)).numpy()
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)


def test_a_query_that_sees_nothing_has_no_estimate() -> None:
    q, k, v = case(3)
    mask = np.ones((5, 9), bool)
    mask[2] = False
    assert np.isnan(r.attention(q, k, v, mask=mask)).any(axis=1).tolist() == [0, 0, 1, 0, 0]


def test_extreme_logits_choose_the_largest() -> None:
    q, k, v = case(4)
    chosen = v[(q @ k.T).argmax(axis=1)]
    np.testing.assert_allclose(r.attention(q, k, v, scale=1e4), chosen)
    np.testing.assert_allclose(r.attention(q, k, v, scale=1e-12), v.mean(0) + 0 * chosen, rtol=1e-9)


FORMULAS = {
    "gaussian": lambda q, k, h: np.exp(-np.sum((q - k) ** 2) / (2 * h**2)),
    "exponential": lambda q, k, h: np.exp(q @ k / h**2),
    "epanechnikov": lambda q, k, h: max(0.0, 1 - np.sum((q - k) ** 2) / h**2),
    "boxcar": lambda q, k, h: float(np.linalg.norm(q - k) <= h),
    "von-mises-fisher": lambda q, k, h: np.exp(
        q @ k / (np.linalg.norm(q) * np.linalg.norm(k)) / h**2
    ),
}


@pytest.mark.parametrize("kernel", r.KERNELS)
def test_kernels_are_their_formulas(kernel: str) -> None:
    q, k, _ = case(5)
    heights = np.array([[FORMULAS[kernel](a, b, 2.0) for b in k] for a in q])
    expected = heights / heights.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(r.kernel_weights(q, k, kernel, 2.0), expected, rtol=1e-12)


@pytest.mark.parametrize("kernel", ["epanechnikov", "boxcar"])
def test_an_empty_window_has_no_estimate(kernel: str) -> None:
    fit = r.nadaraya_watson([[0.0], [9.0]], [[0.1], [0.2]], [1.0, 3.0], kernel, 1.0)
    assert 1 < fit[0] < 3
    assert np.isnan(fit[1])


@pytest.mark.parametrize("kernel", r.KERNELS)
def test_leave_one_out_is_what_it_says(kernel: str) -> None:
    _, k, v = case(6)
    brute = [
        r.nadaraya_watson(k[[i]], np.delete(k, i, 0), np.delete(v, i, 0), kernel, 4.0)[0]
        for i in range(len(k))
    ]
    np.testing.assert_allclose(r.leave_one_out(k, v, kernel, 4.0), brute, rtol=1e-12)


def test_order_of_keys_does_not_matter() -> None:
    q, k, v = case(7)
    order = np.random.default_rng(0).permutation(len(k))
    np.testing.assert_allclose(
        r.attention(q, k[order], v[order]), r.attention(q, k, v), rtol=1e-12, atol=1e-14
    )


def test_effective_sample_size() -> None:
    assert r.effective_sample_size([[0.25] * 4, [1, 0, 0, 0]]).tolist() == [4, 1]
    weights = r.attention_weights(*case(8)[:2])
    assert np.all((r.effective_sample_size(weights) >= 1) & (r.effective_sample_size(weights) <= 9))


NAN = [[np.nan, 0.0]]
ONE = [[1.0, 0.0]]
REFUSED = [
    (lambda: r.attention(ONE, NAN, [1.0]), "keys holds 1 NaN"),
    (lambda: r.attention([[np.inf, 0]], ONE, [1.0]), "queries holds 1 NaN or infinite"),
    (lambda: r.attention(ONE, ONE, [np.nan]), "values holds 1 NaN"),
    (lambda: r.attention(ONE, [[1.0]], [1.0]), "queries have 2 coordinates and keys 1"),
    (lambda: r.attention(ONE, ONE, [1.0, 2.0]), "2 rows and there are 1 keys"),
    (lambda: r.attention(ONE, np.empty((0, 2)), []), "keys is empty"),
    (lambda: r.attention([1.0], ONE, [1.0]), "queries has shape"),
    (lambda: r.attention([["a", "b"]], ONE, [1.0]), "queries has dtype"),
    (lambda: r.attention([[1j, 0]], ONE, [1.0]), "queries has dtype complex"),
    (lambda: r.attention(ONE, ONE, [1.0], scale=0), "scale must be positive"),
    (lambda: r.attention(ONE, ONE, [1.0], mask=[[True, False]]), "mask has shape"),
    (lambda: r.attention(ONE, ONE, [1.0], mask=[[np.nan]]), "mask must be boolean"),
    (lambda: r.attention([[1e300, 0]], [[1e300, 0]], [1.0]), "overflow"),
    (lambda: r.nadaraya_watson(ONE, ONE, [1.0], bandwidth=0), "bandwidth must be positive"),
    (lambda: r.nadaraya_watson(ONE, ONE, [1.0], bandwidth=-1), "bandwidth must be positive"),
    (lambda: r.nadaraya_watson(ONE, ONE, [1.0], bandwidth=np.nan), "bandwidth must be positive"),
    (lambda: r.nadaraya_watson(ONE, ONE, [1.0], kernel="cosine"), "'cosine' is unknown"),
    (lambda: r.kernel_weights([[0.0]], [[1.0]], "von-mises-fisher"), "zero vector"),
    (lambda: r.attention(np.ma.masked_array(ONE, [[0, 1]]), ONE, [1.0]), "masked entries"),
    (lambda: r.nadaraya_watson([[1e160]], [[0.0]], [1.0], bandwidth=1e-9), "leave the range"),
    (lambda: r.nadaraya_watson([[0.0]], [[0.0]], [1.0], bandwidth=1e-300), "leave the range"),
    (lambda: r.nadaraya_watson([[0.0]], [[0.0]], [1.0], "epanechnikov", 1e-300), "leave the"),
    (lambda: r.leave_one_out(ONE, [1.0]), "at least two keys"),
    (lambda: r.effective_sample_size([[0.5, 0.6]]), "must sum to 1"),
    (lambda: r.effective_sample_size([]), "expected"),
]


@pytest.mark.parametrize(("call", "sentence"), REFUSED, ids=[s for _, s in REFUSED])
def test_bad_input_is_refused_in_a_sentence(call: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        call()
