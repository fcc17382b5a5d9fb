"""The Monte-Carlo engine: independent of jobs, reproducible, with honest standard errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mhanw_core import designs

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
]


@pytest.mark.parametrize(("call", "sentence"), REFUSED, ids=[s for _, s in REFUSED])
def test_bad_input_is_refused_in_a_sentence(call: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        call()
