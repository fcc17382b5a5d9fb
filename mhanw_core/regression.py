"""Kernel regression and attention: one estimator, written twice.

The Nadaraya-Watson estimator (Nadaraya 1964; Watson 1964) and softmax attention are coded
independently here, so that the identity between them is something to check, not a definition.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.distance import cdist
from scipy.special import softmax

Array = NDArray[np.floating]


def finite_array(name: str, value: ArrayLike) -> Array:
    """Return `value` as a float32 or float64 array, or say why it cannot be used.

    Raises
    ------
    ValueError
        If it is not numeric and real, has no entries, or holds NaN or infinity.
    """
    if _has_mask(value):
        raise ValueError(f"{name} holds masked entries; drop or fill those rows first.")
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError(
            f"{name} has parts of unlike shapes; expected one rectangular array of real numbers."
        ) from None
    if array.dtype.kind not in "fiub":
        raise ValueError(
            f"{name} has dtype {array.dtype}; real numbers are expected. Convert it to float first."
        )
    if array.size == 0:
        raise ValueError(f"{name} is empty (shape {array.shape}); at least one entry is needed.")
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float64)
    bad = int(array.size - np.isfinite(array).sum())
    if bad:
        raise ValueError(
            f"{name} holds {bad} NaN or infinite entries of {array.size}; "
            "drop or repair those rows first."
        )
    return array


def _has_mask(value: object) -> bool:
    """Whether an entry is masked; `np.asarray` would take the number behind the mask."""
    if isinstance(value, (list, tuple)):
        return any(map(_has_mask, value))
    return bool(np.ma.is_masked(value))


def positive_number(name: str, value: float) -> float:
    """Return `value` as a float, or say that it is not positive and finite."""
    array = np.asarray(value)
    if array.ndim != 0 or array.dtype.kind not in "fiu":
        raise ValueError(f"{name} must be one positive number; found {value!r}.")
    number = float(array)
    if not (0.0 < number < np.inf):
        raise ValueError(f"{name} must be positive and finite; found {number:g}.")
    return number


def whole_number(name: str, value: float, least: int) -> int:
    """Return `value` as an int, or say that it is not a whole number of at least `least`."""
    number = isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)
    if not number or value != int(value) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}; found {value!r}.")
    return int(value)


def number_within(name: str, value: float, low: float, high: float = np.inf) -> float:
    """Return `value` as a float, or say that it is not a finite number from low to high."""
    number = isinstance(value, Real) and not isinstance(value, bool) and isfinite(value)
    if not number or not low <= value <= high:
        rule = f"at least {low:g}" if high == np.inf else f"from {low:g} to {high:g}"
        raise ValueError(f"{name} must be a finite number {rule}; found {value!r}.")
    return float(value)


def _matched(queries: ArrayLike, keys: ArrayLike, batched: bool) -> tuple[Array, Array]:
    q, k = finite_array("queries", queries), finite_array("keys", keys)
    for name, array in (("queries", q), ("keys", k)):
        if array.ndim < 2 or (array.ndim > 2 and not batched):
            raise ValueError(
                f"{name} has shape {array.shape}; expected two axes, (points, coordinates). "
                f"For scalars, reshape to (n, 1)."
            )
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"queries have {q.shape[-1]} coordinates and keys {k.shape[-1]}; they must agree."
        )
    return q, k


def _average(weights: Array, values: ArrayLike) -> Array:
    """Average `values` (..., n) or (..., n, p) with `weights` (..., m, n)."""
    v = finite_array("values", values)
    scalar = v.ndim == weights.ndim - 1
    if not scalar and v.ndim != weights.ndim:
        raise ValueError(
            f"values have shape {v.shape}; expected one axis (n,) or two (n, p) behind the batch."
        )
    columns = v[..., None] if scalar else v
    if columns.shape[-2] != weights.shape[-1]:
        raise ValueError(
            f"values have {columns.shape[-2]} rows and there are {weights.shape[-1]} keys; "
            "give one value per key."
        )
    try:
        result = weights @ columns
    except ValueError:
        raise ValueError(
            f"values have batch shape {columns.shape[:-2]} and the weights "
            f"{weights.shape[:-2]}; they must agree or broadcast."
        ) from None
    return result[..., 0] if scalar else result


def _weights_from_logs(log_kernel: Array) -> Array:
    """Normalise exp(log_kernel) over keys; a row of zeros has no weights and becomes NaN."""
    with np.errstate(invalid="ignore"):
        return softmax(log_kernel, axis=-1)


# --- Nadaraya-Watson -------------------------------------------------------------------------


def _squared_distances(queries: Array, keys: Array) -> Array:
    return cdist(queries, keys, "sqeuclidean")


def _log_gaussian(queries: Array, keys: Array, bandwidth: float) -> Array:
    return -_squared_distances(queries, keys) / (2 * bandwidth**2)


def _log_exponential(queries: Array, keys: Array, bandwidth: float) -> Array:
    return np.einsum("md,nd->mn", queries, keys) / bandwidth**2


def _log_epanechnikov(queries: Array, keys: Array, bandwidth: float) -> Array:
    with np.errstate(divide="ignore"):
        return np.log(np.maximum(1 - _squared_distances(queries, keys) / bandwidth**2, 0))


def _log_boxcar(queries: Array, keys: Array, bandwidth: float) -> Array:
    return np.where(_squared_distances(queries, keys) <= bandwidth**2, 0.0, -np.inf)


def _log_von_mises_fisher(queries: Array, keys: Array, bandwidth: float) -> Array:
    return _log_exponential(_directions("queries", queries), _directions("keys", keys), bandwidth)


def _directions(name: str, points: Array) -> Array:
    norms = np.linalg.norm(points, axis=-1, keepdims=True)
    if not norms.all():
        raise ValueError(
            f"{name} holds a zero vector, which has no direction; the von Mises-Fisher kernel "
            "compares directions. Drop that row."
        )
    return points / norms


KERNELS: dict[str, Callable[[Array, Array, float], Array]] = {
    "gaussian": _log_gaussian,
    "exponential": _log_exponential,
    "epanechnikov": _log_epanechnikov,
    "boxcar": _log_boxcar,
    "von-mises-fisher": _log_von_mises_fisher,
}
"""Logarithms of the kernels, up to a constant, of queries (m, d) and keys (n, d)."""
COMPACT = ("epanechnikov", "boxcar")


def _log_kernel(queries: Array, keys: Array, kernel: str, bandwidth: float) -> Array:
    if kernel not in KERNELS:
        raise ValueError(f"kernel {kernel!r} is unknown; choose one of {', '.join(KERNELS)}.")
    h = positive_number("bandwidth", bandwidth)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        logs = KERNELS[kernel](queries.astype(np.float64), keys.astype(np.float64), h)
    largest = logs.max(axis=-1)
    if np.isnan(logs).any() or not (np.isfinite(largest) | (kernel in COMPACT)).all():
        raise ValueError(
            f"the exponents of the {kernel} kernel leave the range of float64 at bandwidth {h:g}; "
            "rescale the points or choose another bandwidth."
        )
    return logs


def kernel_weights(
    queries: ArrayLike, keys: ArrayLike, kernel: str = "gaussian", bandwidth: float = 1.0
) -> Array:
    r"""Weights of the Nadaraya-Watson estimator.

    Parameters
    ----------
    queries, keys : (m, d) and (n, d)
    kernel : str
        ``gaussian`` :math:`e^{-|q-k|^2/2h^2}`, ``exponential`` :math:`e^{q\cdot k/h^2}`,
        ``epanechnikov`` :math:`(1-|q-k|^2/h^2)_+`, ``boxcar`` :math:`1\{|q-k|\le h\}`,
        ``von-mises-fisher`` :math:`e^{\cos(q,k)/h^2}` (concentration :math:`1/h^2`).
    bandwidth : float
        h > 0, in the units of the keys (radians on the sphere).

    Returns
    -------
    (m, n) array
        Rows sum to 1. A query with no key in the window of a compact kernel has no estimate:
        its row is NaN.

    Raises
    ------
    ValueError
        If the kernel is unknown, the bandwidth not positive, or an array empty, not finite or
        of the wrong shape.

    References
    ----------
    Nadaraya (1964); Watson (1964).
    """
    q, k = _matched(queries, keys, batched=False)
    logs = _log_kernel(q, k, kernel, bandwidth)
    return _weights_from_logs(logs).astype(np.result_type(q, k), copy=False)


def nadaraya_watson(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    kernel: str = "gaussian",
    bandwidth: float = 1.0,
) -> Array:
    """Estimate E[value | key = query] by a kernel-weighted average.

    Parameters
    ----------
    queries, keys : (m, d) and (n, d)
    values : (n,) or (n, p)
    kernel, bandwidth
        As in `kernel_weights`.

    Returns
    -------
    (m,) or (m, p) array
        NaN where no key lies in the window of a compact kernel.

    Raises
    ------
    ValueError
        As `kernel_weights`; also if `values` do not match the keys.

    References
    ----------
    Nadaraya (1964); Watson (1964).
    """
    return _average(kernel_weights(queries, keys, kernel, bandwidth), values)


def leave_one_out(
    keys: ArrayLike, values: ArrayLike, kernel: str = "gaussian", bandwidth: float = 1.0
) -> Array:
    """Predict each value from all the others, for choosing a bandwidth by cross-validation.

    Parameters
    ----------
    keys : (n, d), n >= 2
    values : (n,) or (n, p)

    Returns
    -------
    Array like `values`; NaN where no other key lies in the window.

    Raises
    ------
    ValueError
        As `nadaraya_watson`; also for a single key.

    References
    ----------
    Haerdle and Marron (1985).
    """
    _, x = _matched(keys, keys, batched=False)
    if len(x) < 2:
        raise ValueError("leave_one_out needs at least two keys; found one.")
    logs = _log_kernel(x, x, kernel, bandwidth)
    np.fill_diagonal(logs, -np.inf)
    return _average(_weights_from_logs(logs).astype(x.dtype, copy=False), values)


# --- Attention -------------------------------------------------------------------------------


def attention_weights(
    queries: ArrayLike,
    keys: ArrayLike,
    scale: float | None = None,
    mask: ArrayLike | None = None,
) -> Array:
    """Softmax attention weights.

    Parameters
    ----------
    queries, keys : (..., m, d) and (..., n, d)
    scale : float, optional
        Multiplies the inner products; 1/sqrt(d) by default.
    mask : (..., m, n), optional
        Boolean, True where a key may be seen, or numbers added to the logits (-inf hides a key).

    Returns
    -------
    (..., m, n) array
        Rows sum to 1. A query that may see no key has no weights: its row is NaN.

    Raises
    ------
    ValueError
        If an array is empty, not finite or of the wrong shape, or the scale not positive.

    References
    ----------
    Vaswani et al. (2017), equation 1.
    """
    q, k = _matched(queries, keys, batched=True)
    factor = q.shape[-1] ** -0.5 if scale is None else positive_number("scale", scale)
    with np.errstate(over="ignore"):
        logits = (q @ np.swapaxes(k, -1, -2)) * q.dtype.type(factor)
    if not np.isfinite(logits).all():
        raise ValueError(
            f"the inner products of queries and keys overflow {logits.dtype}; "
            "rescale them or pass float64."
        )
    return _weights_from_logs(logits if mask is None else _masked(logits, mask))


def _masked(logits: Array, mask: ArrayLike) -> Array:
    allowed = np.asarray(mask)
    try:
        shape = np.broadcast_shapes(allowed.shape, logits.shape)
    except ValueError:
        shape = None
    if shape != logits.shape:
        raise ValueError(
            f"mask has shape {allowed.shape}; expected one that broadcasts to {logits.shape}, "
            "(queries, keys)."
        )
    if allowed.dtype == bool:
        return np.where(allowed, logits, -np.inf)
    if allowed.dtype.kind != "f" or np.isnan(allowed).any() or (allowed == np.inf).any():
        raise ValueError(
            "mask must be boolean (True = visible) or numbers below infinity to add to the "
            f"logits; found dtype {allowed.dtype}, or NaN or +inf in it."
        )
    return (logits + allowed).astype(logits.dtype, copy=False)


def attention(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    scale: float | None = None,
    mask: ArrayLike | None = None,
) -> Array:
    """Scaled dot-product attention: values averaged with `attention_weights`.

    Parameters
    ----------
    queries, keys : (..., m, d) and (..., n, d)
    values : (..., n) or (..., n, p)
    scale, mask
        As in `attention_weights`.

    Returns
    -------
    (..., m) or (..., m, p) array
        NaN for a query that may see no key.

    Raises
    ------
    ValueError
        As `attention_weights`; also if `values` do not match the keys.

    References
    ----------
    Vaswani et al. (2017), equation 1; arXiv:2605.20271, Theorem 2.1 (as reported).
    """
    return _average(attention_weights(queries, keys, scale, mask), values)


def attention_rounding_bound(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    scale: float | None = None,
    mask: ArrayLike | None = None,
) -> Array:
    """Bound, to first order, how far two correct computations of attention may differ.

    A logit is a sum of d products, so each computation is off by at most (d + 2) u times the
    sum of their absolute values; exponentiation turns that into a relative error of the
    weights, and the two sums over n keys add 2 n u. Both computations may err: hence twice.

    Returns
    -------
    Array shaped like the output of `attention`, in its units.

    References
    ----------
    Higham (2002), Accuracy and Stability of Numerical Algorithms, chapters 3 and 4.
    """
    q, k = _matched(queries, keys, batched=True)
    unit = np.finfo(np.result_type(q, k)).eps / 2
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    wide = (np.abs(q).astype(float), np.abs(k).astype(float))
    size = factor * (wide[0] @ np.swapaxes(wide[1], -1, -2)).max(axis=-1, keepdims=True)
    relative = 2 * (2 * (q.shape[-1] + 2) * size + 2 * k.shape[-1] + 8) * unit
    v = np.asarray(values)
    typical = _average(attention_weights(q, k, scale, mask), np.abs(v))
    return np.expm1(relative if v.ndim == q.ndim else relative[..., 0]) * typical


def effective_sample_size(weights: ArrayLike) -> Array:
    """Number of equally weighted keys that would average away as much noise.

    Parameters
    ----------
    weights : (..., n)
        Rows sum to 1 (a row of NaN stays NaN).

    Returns
    -------
    (...) array
        1 / sum of squared weights, between 1 and n.

    Raises
    ------
    ValueError
        If a row does not sum to 1, or there are no weights.

    References
    ----------
    Kish (1965).
    """
    w = np.asarray(weights, dtype=np.result_type(np.asarray(weights), np.float32))
    if w.ndim == 0 or w.size == 0:
        raise ValueError(f"weights have shape {w.shape}; expected (m, n) with n >= 1.")
    total = w.sum(axis=-1)
    off = np.abs(total - 1) > 8 * w.shape[-1] * np.finfo(w.dtype).eps
    if off.any():
        raise ValueError(
            f"weights must sum to 1 in each row; {int(off.sum())} of {off.size} rows do not "
            f"(one sums to {total[off].flat[0]:.6g}). Normalise them first."
        )
    return 1 / np.square(w).sum(axis=-1)
