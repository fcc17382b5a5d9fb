"""Seeded designs and the Monte-Carlo engine: the same numbers whatever the number of jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from joblib import Parallel, delayed
from threadpoolctl import threadpool_limits

from mhanw_core.ensemble import head_attention_weights, head_outputs
from mhanw_core.regression import Array, finite_array, whole_number


def replicate(
    draw: Callable[[np.random.Generator, int], Array | tuple[Array, ...]],
    n_replicates: int,
    rng: np.random.Generator,
    batch_size: int = 64,
    n_jobs: int = 1,
) -> Array | tuple[Array, ...]:
    """Run a simulation many times, in batches, each batch with a random stream of its own.

    Streams are spawned from `rng` in order and belong to batches, not to workers, and linear
    algebra runs on one thread in each, so the result does not depend on `n_jobs`. It does
    depend on `batch_size`.

    Parameters
    ----------
    draw : callable
        ``draw(rng, size)`` returns `size` replicates stacked first: an array or a tuple of them.
    n_replicates, batch_size, n_jobs : int

    Returns
    -------
    Array or tuple of arrays with `n_replicates` rows.

    Raises
    ------
    ValueError
        If a count is not positive, or `draw` returns the wrong number of replicates.
    """
    n_replicates = whole_number("n_replicates", n_replicates, 1)
    batch_size = whole_number("batch_size", batch_size, 1)
    sizes = [batch_size] * (n_replicates // batch_size)
    sizes += [n_replicates % batch_size] if n_replicates % batch_size else []
    streams = rng.spawn(len(sizes))
    batches = Parallel(n_jobs=n_jobs)(
        delayed(_one_batch)(draw, stream, size) for stream, size in zip(streams, sizes, strict=True)
    )
    if isinstance(batches[0], tuple):
        return tuple(np.concatenate(parts) for parts in zip(*batches, strict=True))
    return np.concatenate(batches)


def _one_batch(
    draw: Callable[[np.random.Generator, int], Array | tuple[Array, ...]],
    stream: np.random.Generator,
    size: int,
) -> Array | tuple[Array, ...]:
    with threadpool_limits(limits=1):
        result = draw(stream, size)
    for part in result if isinstance(result, tuple) else (result,):
        if np.ndim(part) == 0 or len(part) != size:
            raise ValueError(
                f"draw returned an array of shape {np.shape(part)}; expected {size} replicates "
                "stacked first."
            )
    return result


def mean_and_se(samples: Array) -> tuple[Array, Array]:
    """Mean over the first axis and its standard error.

    Parameters
    ----------
    samples : (R, ...), R >= 2, independent along the first axis

    Raises
    ------
    ValueError
        If there are fewer than two replicates, or an entry is not finite.
    """
    x = finite_array("samples", samples)
    if x.ndim == 0 or len(x) < 2:
        raise ValueError(f"samples have shape {x.shape}; a standard error needs two replicates.")
    return x.mean(axis=0), x.std(axis=0, ddof=1) / np.sqrt(len(x))


def ratio_and_se(numerator: Array, denominator: Array) -> tuple[Array, Array]:
    """Ratio of two means and its standard error by the delta method.

    Parameters
    ----------
    numerator, denominator : (R, ...), paired and independent along the first axis

    Raises
    ------
    ValueError
        If the shapes differ, there are fewer than two replicates, an entry is not finite, or
        the denominator's mean is zero.
    """
    a, b = finite_array("numerator", numerator), finite_array("denominator", denominator)
    if a.shape != b.shape:
        raise ValueError(f"numerator has shape {a.shape} and denominator {b.shape}; pair them.")
    below = b.mean(axis=0)
    if (below == 0).any():
        raise ValueError("denominator has mean zero; the ratio is not defined.")
    ratio = a.mean(axis=0) / below
    _, se = mean_and_se((a - ratio * b) / below)
    return ratio, se


def variance_and_se(samples: Array) -> tuple[Array, Array]:
    """Variance over the first axis and its standard error, for any distribution.

    Parameters
    ----------
    samples : (R, ...), R >= 2, independent along the first axis
    """
    x = finite_array("samples", samples)
    mean, _ = mean_and_se(x)
    _, se = mean_and_se(np.square(x - mean))
    return x.var(axis=0, ddof=1), se


def weight_covariance_and_se(first: Array, second: Array) -> tuple[Array, Array]:
    """Noise covariance of two heads in units of sigma^2 / n, for independent tokens.

    Given the tokens, heads with weights w and w' on values with noise sigma have covariance
    sigma^2 sum_i w_i w'_i. The standard error is that of n sum_i w_i w'_i as a ratio of means
    over tokens (delta method); the bias, of order 1/n, is left.

    Parameters
    ----------
    first, second : (..., n)
        Attention weights on the same tokens; rows sum to 1.

    Returns
    -------
    estimate, standard error : (...) arrays

    Raises
    ------
    ValueError
        If the shapes differ, there are fewer than two tokens, or a row is no set of weights.
    """
    a, b = _paired_weights(first, second)
    estimate = (a * b).mean(axis=-1)
    influence = a * b - estimate[..., None] * (a + b)
    return estimate, influence.std(axis=-1, ddof=1) / np.sqrt(a.shape[-1])


def weight_correlation_and_se(first: Array, second: Array) -> tuple[Array, Array]:
    """Noise correlation of two heads given the tokens: the cosine of their weight vectors.

    Takes, returns and raises as `weight_covariance_and_se`; the range is 0 to 1. The standard
    error is 0 where the weights agree.
    """
    a, b = _paired_weights(first, second)
    size = [np.sqrt(np.square(x).mean(axis=-1, keepdims=True)) for x in (a, b)]
    a, b = a / size[0], b / size[1]
    estimate = (a * b).mean(axis=-1)
    influence = a * b - estimate[..., None] * (a**2 + b**2) / 2
    return estimate, influence.std(axis=-1, ddof=1) / np.sqrt(a.shape[-1])


def _paired_weights(first: Array, second: Array) -> tuple[Array, Array]:
    """Return both sets of weights times n, so that their mean is 1."""
    a, b = finite_array("first", first), finite_array("second", second)
    if a.shape != b.shape or a.ndim == 0 or a.shape[-1] < 2:
        raise ValueError(
            f"weights have shapes {a.shape} and {b.shape}; expected the same, (..., n), with at "
            "least two tokens."
        )
    for name, w in (("first", a), ("second", b)):
        off = float(np.abs(w.sum(axis=-1) - 1).max())
        if w.min() < 0 or off > a.shape[-1] * np.finfo(w.dtype).eps:
            raise ValueError(
                f"{name} has a smallest entry of {w.min():.3g} and a row whose sum is {off:.3g} "
                "away from 1; attention weights are not negative and sum to 1."
            )
    return a * a.shape[-1], b * b.shape[-1]


def on_sphere(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Uniform points on the unit sphere of the last axis, shape `shape`."""
    points = rng.standard_normal(shape)
    return points / np.linalg.norm(points, axis=-1, keepdims=True)


def pair_covariances(
    rng: np.random.Generator, size: int, pairs: Sequence[tuple[Array, Array]], n_tokens: int
) -> Array:
    """Noise covariance n sum_i w_i w'_i of pairs of heads, in units of sigma^2 / n.

    Every replicate has a standard normal query and tokens of its own, which all pairs read.
    The mean estimates `subspaces.circuit_covariances`, with a bias of order 1 / n.

    Parameters
    ----------
    size, n_tokens : int
    pairs : sequence of (W_Q, W_K), each (2, d_model, head_dim), d_model the same in all

    Returns
    -------
    (size, len(pairs)) array
    """
    d_model = np.shape(pairs[0][0])[1]
    x = rng.standard_normal((size, n_tokens, d_model))
    x_query = rng.standard_normal((size, 1, d_model))
    found = np.empty((size, len(pairs)))
    for column, pair in enumerate(pairs):
        w = head_attention_weights(x_query, x, *pair)[:, :, 0]
        found[:, column] = n_tokens * (w[:, 0] * w[:, 1]).sum(axis=1)
    return found


def mixed_heads(
    rng: np.random.Generator, share: float, n_heads: int, d_model: int, head_dim: int
) -> Array:
    """Orthonormal random heads that are as alike as wanted.

    Each is share times a common random map plus 1 - share times one of its own, with its
    columns made orthonormal: independent for share 0, equal for 1. Of shape
    (n_heads, d_model, head_dim).
    """
    common = rng.standard_normal((d_model, head_dim))
    own = rng.standard_normal((n_heads, d_model, head_dim))
    return np.linalg.qr(share * common + (1 - share) * own)[0]


@dataclass(frozen=True)
class Regression:
    """A random design: standard normal tokens, a regression function, independent noise.

    Attributes
    ----------
    function : callable
        (..., d_model) tokens to (...) regression function.
    n_tokens, d_model : int
    noise : float
        Standard deviation of the values around the function.
    """

    function: Callable[[Array], Array]
    n_tokens: int
    d_model: int
    noise: float

    def draw(self, rng: np.random.Generator, size: int) -> tuple[Array, Array]:
        """Tokens (size, n_tokens, d_model) and values (size, n_tokens)."""
        x = rng.standard_normal((size, self.n_tokens, self.d_model))
        return x, self.function(x) + self.noise * rng.standard_normal(x.shape[:-1])

    def predictions(
        self,
        x_query: Array,
        W_Q: Array,
        W_K: Array,
        n_replicates: int,
        rng: np.random.Generator,
        batch_size: int = 64,
        n_jobs: int = 1,
    ) -> Array:
        """Replicates of every head at every query, (R, n_heads, m), for `decompose_mse`."""

        def draw(stream: np.random.Generator, size: int) -> Array:
            x, values = self.draw(stream, size)
            return head_outputs(
                np.broadcast_to(x_query, (size, *x_query.shape)), x, values, W_Q, W_K
            )

        result = replicate(draw, n_replicates, rng, batch_size, n_jobs)
        assert isinstance(result, np.ndarray)
        return result
