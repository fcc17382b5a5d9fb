"""The Monte-Carlo engine: independent of jobs, reproducible, with honest standard errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mhanw_core import designs, diversity, ensemble, subspaces

N_SE = 4


def draw(rng: np.random.Generator, size: int) -> Any:
    """Two arrays of replicates, through some linear algebra."""
    x = rng.standard_normal((size, 3, 40, 40))
    return (x @ x)[:, 0, 0], x.sum(axis=(1, 2, 3))


def test_jobs_do_not_change_a_digit() -> None:
    results = [
        designs.replicate(draw, 50, np.random.default_rng(1), batch_size=16, n_jobs=jobs)
        for jobs in (1, 2)
    ]
    for one, two in zip(*results, strict=True):
        assert len(one) == 50
        assert np.array_equal(one, two)


def test_seeds_decide() -> None:
    first, again, other = (
        designs.replicate(draw, 10, np.random.default_rng(seed))[1] for seed in (1, 1, 2)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("estimator", ["mean", "variance", "ratio"])
def test_standard_errors_cover(estimator: str) -> None:
    """Of 2,000 studies, about 95.4% lie within two standard errors of the truth."""
    rng = np.random.default_rng(3)
    x = rng.exponential(size=(400, 2000))
    y = x + rng.exponential(size=x.shape)
    estimate, se = {
        "mean": lambda: designs.mean_and_se(x),
        "variance": lambda: designs.variance_and_se(x),
        "ratio": lambda: designs.ratio_and_se(y, x),
    }[estimator]()
    truth = {"mean": 1.0, "variance": 1.0, "ratio": 2.0}[estimator]
    share = np.mean(np.abs(estimate - truth) < 2 * se)
    skew = 0.03 if estimator == "variance" else 0.0  # exponentials have heavy fourth moments
    assert abs(share - 0.954) < skew + N_SE * np.sqrt(0.954 * 0.046 / 2000)


@pytest.mark.parametrize("kind", ["covariance", "correlation"])
def test_token_standard_errors_cover(kind: str) -> None:
    """Two softmax heads with logits u.x and v.x on normal tokens: e^(u.v), e^(-|u-v|^2/2)."""
    rng, n = np.random.default_rng(5), 20_000
    u, v = np.array([0.6, 0.0]), np.array([0.3, 0.5])
    logits = rng.standard_normal((200, n, 2)) @ np.stack([u, v], axis=1)
    w = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    estimate, se = getattr(designs, f"weight_{kind}_and_se")(w[..., 0], w[..., 1])
    truth = np.exp(u @ v) if kind == "covariance" else np.exp(-(u - v) @ (u - v) / 2)
    z = (estimate - truth) / se
    assert abs(z.mean()) < N_SE / np.sqrt(200)
    assert abs(z.std() - 1) < N_SE / np.sqrt(400)


def test_weights_of_one_head_agree_with_themselves() -> None:
    w = np.array([0.2, 0.3, 0.5])
    assert designs.weight_correlation_and_se(w, w) == (pytest.approx(1), pytest.approx(0, abs=1e-9))
    assert designs.weight_covariance_and_se(w, w)[0] == pytest.approx(3 * w @ w)
    with pytest.raises(ValueError, match="weights have shapes \\(3,\\) and \\(2,\\)"):
        designs.weight_covariance_and_se(w, w[:2])


def test_errors_by_hand() -> None:
    """The divisor of a standard error is R - 1 for the spread and R for the mean."""
    assert designs.mean_and_se(np.array([1.0, 3.0])) == (2.0, 1.0)
    assert designs.variance_and_se(np.array([1.0, 3.0])) == (2.0, 0.0)
    variance, se = designs.variance_and_se(np.array([0.0, 0.0, 3.0]))
    assert (variance, se) == (3.0, pytest.approx(1.0))  # squares 1, 1, 4 around their mean 2
    ratio, se = designs.ratio_and_se(np.array([2.0, 6.0]), np.array([1.0, 3.0]))
    assert (ratio, se) == (2.0, 0.0)
    ratio, se = designs.ratio_and_se(np.array([1.0, 3.0]), np.array([1.0, 1.0]))
    assert (ratio, se) == (2.0, 1.0)


def test_token_errors_by_hand() -> None:
    first, second = np.array([0.5, 0.5]), np.array([0.25, 0.75])
    estimate, se = designs.weight_covariance_and_se(first, second)
    # n w w' is 0.5 and 1.5 with mean 1; minus the mean times (w + w') n, 1.5 and 2.5, both are -1
    assert (estimate, se) == (1.0, 0.0)
    estimate, se = designs.weight_covariance_and_se(second, second)
    # n w is 0.5 and 1.5, so the mean square is 1.25 and the influence 0.25 - 1.25, 2.25 - 3.75
    assert (estimate, se) == (1.25, pytest.approx(0.25))
    estimate, se = designs.weight_correlation_and_se(first, second)
    assert estimate == pytest.approx(2 / np.sqrt(5))
    a, b = np.ones(2), np.array([0.5, 1.5]) / np.sqrt(1.25)
    influence = a * b - estimate * (a**2 + b**2) / 2
    assert se == pytest.approx(np.abs(np.diff(influence)).item() / 2)


def test_pairs_have_the_covariance_of_their_circuits() -> None:
    rng = np.random.default_rng(7)
    Q = subspaces.pair_at_angles(np.radians([20, 70]))
    opposite = np.stack([Q[0], -Q[0]])
    pairs = [(0.4 * Q, Q), (0.4 * opposite, np.stack([Q[0], Q[0]]))]
    found = designs.pair_covariances(rng, 600, pairs, 1500)
    again = np.random.default_rng(7)
    x, q = again.standard_normal((600, 1500, 4)), again.standard_normal((600, 1, 4))
    w = [ensemble.head_attention_weights(q, x, *pair)[:, :, 0] for pair in pairs]
    np.testing.assert_allclose(found.T, [1500 * (v[:, 0] * v[:, 1]).sum(axis=1) for v in w])
    mean, se = designs.mean_and_se(found)
    expected = np.array([subspaces.circuit_covariances(*pair)[0, 1] for pair in pairs])
    assert (np.abs(mean - expected) < N_SE * se).all()
    assert (np.abs(mean - expected[::-1]) > N_SE * se).all()


def test_mixed_heads_run_from_independent_to_equal() -> None:
    rng, mean = np.random.default_rng(1), {}
    for share in (0.0, 0.5, 0.8, 1.0):
        layers = [designs.mixed_heads(rng, share, 4, 8, 2) for _ in range(100)]
        for Q in layers:
            assert Q.shape == (4, 8, 2)
            np.testing.assert_allclose(np.swapaxes(Q, 1, 2) @ Q, [np.eye(2)] * 4, atol=1e-14)
        mean[share] = designs.mean_and_se(np.array([1 - diversity.hdi(Q) for Q in layers]))
    assert abs(mean[0.0][0] - 2 / 8) < N_SE * mean[0.0][1]  # independent planes in 8 dimensions
    assert mean[0.0][0] + N_SE * mean[0.0][1] < mean[0.5][0] < mean[0.8][0] < mean[1.0][0]
    assert mean[1.0][0] == pytest.approx(1)


def test_points_on_the_sphere() -> None:
    points = designs.on_sphere(np.random.default_rng(0), (20_000, 3))
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1)
    mean, se = designs.mean_and_se(points**2)
    assert np.all(np.abs(mean - 1 / 3) < N_SE * se)


def test_predictions_are_stacked_by_replicate_head_and_query() -> None:
    design = designs.Regression(lambda z: z[..., 0], n_tokens=10, d_model=4, noise=0.1)
    W = np.random.default_rng(0).standard_normal((3, 4, 2))
    found = design.predictions(np.zeros((5, 4)), W, W, 7, np.random.default_rng(1))
    assert found.shape == (7, 3, 5)


REFUSED = [
    (lambda: designs.replicate(draw, 0, np.random.default_rng(0)), "n_replicates must be"),
    (lambda: designs.replicate(draw, 4, np.random.default_rng(0), 0), "batch_size must be"),
    (lambda: designs.replicate(lambda g, k: 1.0, 4, np.random.default_rng(0)), "stacked first"),
    (lambda: designs.mean_and_se([1.0]), "two replicates"),
    (lambda: designs.ratio_and_se([1.0, 2.0], [1.0]), "pair them"),
    (lambda: designs.ratio_and_se([1.0, 2.0], [1.0, -1.0]), "mean zero"),
    (lambda: designs.mean_and_se([1.0, np.nan]), "NaN or infinite"),
    (lambda: designs.mean_and_se([[1.0, 2.0], [3.0]]), "samples"),
    (lambda: designs.mean_and_se(np.ma.masked_array([1.0, 2.0], [0, 1])), "masked"),
    (lambda: designs.mean_and_se([np.ma.masked_array([1.0, 2.0], [0, 1])] * 2), "masked"),
    (lambda: designs.weight_covariance_and_se([-0.5, 1.5], [0.5, 0.5]), "not negative"),
    (lambda: designs.weight_correlation_and_se([0.5, 0.5], [0.5, 0.6]), "sum to 1"),
]


@pytest.mark.parametrize(("call", "sentence"), REFUSED, ids=[s for _, s in REFUSED])
def test_bad_input_is_refused_in_a_sentence(call: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        call()
