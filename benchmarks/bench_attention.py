"""How far our attention is from PyTorch's, in roundings, and how much slower.

    python benchmarks/bench_attention.py --cases 1000 --seed 0

An error in ulp is |ours - theirs| / (eps * sum_i w_i |v_i|): roundings of the size of what is
averaged. An error in bounds is the same over `regression.attention_rounding_bound`, which grows
with the logits; at most 1 is what two correct programs may differ by. Times are medians of ratios
within one run, so that they mean the same on any machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from mhanw_core import regression
from mhanw_core.regression import Array

sdpa = torch.nn.functional.scaled_dot_product_attention


def random_case(rng: np.random.Generator, dtype: Any) -> tuple[Array, ...]:
    """Queries, keys and values of a random shape; logits from tiny to about 10,000."""
    m, n, d, p = rng.integers(1, 65, size=4)
    size = 10 ** rng.uniform(-2, 3.5)
    shapes = ((m, d), (n, d), (n, p))
    q, k, v = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    return (size * q).astype(dtype), k, v


def against_sdpa(rng: np.random.Generator, dtype: Any) -> tuple[float, float]:
    """Largest error of one case, in ulp and in bounds."""
    q, k, v = random_case(rng, dtype)
    error = np.abs(regression.attention(q, k, v) - sdpa(*map(torch.tensor, (q, k, v))).numpy())
    ulp = np.finfo(dtype).eps * (regression.attention_weights(q, k) @ np.abs(v))
    return np.max(error / ulp), np.max(error / regression.attention_rounding_bound(q, k, v))


def against_layer(rng: np.random.Generator, dtype: Any) -> tuple[float, float]:
    """The same for nn.MultiheadAttention with biases and a mask, rebuilt head by head.

    Here the ulp is of sum_j |W_O||head output| + |b_O|; there is no bound, so the second is NaN.
    """
    heads, d, n = (int(i) for i in rng.integers(1, 17, size=3))
    kind = torch.float32 if dtype is np.float32 else torch.float64
    layer = torch.nn.MultiheadAttention(heads * d, heads, batch_first=True, dtype=kind).eval()
    for parameter in layer.parameters():
        values = rng.standard_normal(parameter.shape) / parameter.shape[-1] ** 0.5
        parameter.data = torch.tensor(values.astype(dtype))
    x, hidden = rng.standard_normal((n, heads * d)).astype(dtype), rng.random((n, n)) < 0.3
    hidden[:, 0] = False
    with torch.no_grad():
        batch = torch.tensor(x)[None]
        theirs = layer(batch, batch, batch, attn_mask=torch.tensor(hidden))[0][0].numpy()
        W, b = layer.in_proj_weight.numpy(), layer.in_proj_bias.numpy()
        W_O, b_O = layer.out_proj.weight.numpy(), layer.out_proj.bias.numpy()
    q, k, v = (x @ W.T + b).reshape(n, 3, heads, d).transpose(1, 2, 0, 3)
    weights = regression.attention_weights(q, k, mask=~hidden)
    joined, size = (np.hstack(list(weights @ values)) for values in (v, np.abs(v)))
    ulp = np.finfo(dtype).eps * (size @ np.abs(W_O).T + np.abs(b_O))
    return np.max(np.abs(joined @ W_O.T + b_O - theirs) / ulp), np.nan


def median_ratio(ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int = 31) -> float:
    """Median over rounds of the ratio of two times taken one after the other."""

    def seconds(call: Callable[[], Any]) -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    return float(np.median([seconds(ours) / seconds(theirs) for _ in range(rounds)]))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"{'peer':24s} {'type':8s} {'largest ulp':>12s} {'largest bounds':>15s}")
    for name, peer in (("SDPA", against_sdpa), ("nn.MultiheadAttention", against_layer)):
        for dtype in (np.float32, np.float64):
            rng = np.random.default_rng(options.seed)
            worst = np.max([peer(rng, dtype) for _ in range(options.cases)], axis=0)
            bounds = "" if np.isnan(worst[1]) else f"{worst[1]:.3f}"
            print(f"{name:24s} {dtype.__name__:8s} {worst[0]:12.1f} {bounds:>15s}")
    torch.set_num_threads(1)
    rng = np.random.default_rng(options.seed)
    q, k, v = (rng.standard_normal((512, 64)) for _ in range(3))
    tensors = [torch.tensor(a) for a in (q, k, v)]
    ours = lambda: regression.attention(q, k, v)  # noqa: E731
    print(f"time over SDPA, n=512, d=64: {median_ratio(ours, lambda: sdpa(*tensors)):.2f}")
    print(f"time over its two products alone: {median_ratio(ours, lambda: (q @ k.T) @ v):.2f}")


if __name__ == "__main__":
    main()
