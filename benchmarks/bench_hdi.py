"""How long `mhanw hdi` takes and what memory, on a sharded bf16 checkpoint of LLaMA's shape.

    python benchmarks/bench_hdi.py --layers 14

The checkpoint (2.3 GB for 14 layers) is made in a temporary folder and removed. Time is a ratio to
the least that any answer needs: one `syrk` of W_Q and of W_K a layer, in float64, and reading both.
Memory is the peak beyond that of a layer of 16 dimensions, over W_Q and W_K in float32.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from scipy.linalg.blas import dsyrk

from mhanw import checkpoints


def make(folder: Path, layers: int, width: int, heads: int, key_heads: int, head_dim: int) -> None:
    """Write random weights: a shard a layer, with a feed-forward map as ballast."""
    generator, where = torch.Generator().manual_seed(0), {}
    rows = {"q_proj": heads * head_dim, "k_proj": key_heads * head_dim}
    for layer in range(layers):
        shard, stem = f"model-{layer + 1:05d}-of-{layers:05d}.safetensors", f"model.layers.{layer}"
        tensors = {
            f"{stem}.self_attn.{name}.weight": torch.randn(n, width, generator=generator)
            for name, n in rows.items()
        }
        tensors[f"{stem}.mlp.up_proj.weight"] = torch.zeros(15_000 * width // 4096, width)
        save_file({n: t.to(torch.bfloat16) for n, t in tensors.items()}, folder / shard)
        where |= dict.fromkeys(tensors, shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    sizes = {"num_attention_heads": heads, "num_key_value_heads": key_heads, "head_dim": head_dim}
    config = {"model_type": "llama", "hidden_size": width, **sizes}
    (folder / "config.json").write_text(json.dumps(config))


def run(folder: Path) -> tuple[float, float]:
    """Seconds and peak megabytes of one call of the command, in a process of its own."""
    call = [sys.executable, "-m", "mhanw", "hdi", str(folder), "--csv", str(folder / "pairs.csv")]
    code = (
        "import resource, subprocess, sys\n"
        "subprocess.run(sys.argv[1:], check=True, capture_output=True)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)"
    )
    start = time.perf_counter()
    peak = subprocess.run(
        [sys.executable, "-c", code, *call], check=True, capture_output=True, text=True
    ).stdout
    return time.perf_counter() - start, float(peak)


def least(folder: Path) -> float:
    """Seconds to read W_Q and W_K of all layers, and for one `syrk` of each."""
    seconds = 0.0
    with checkpoints.open_checkpoint(folder) as found:
        for layer in found.layers:
            start = time.perf_counter()
            maps = [layer.W_K(), layer.W_Q()]
            seconds += time.perf_counter() - start
            for w in maps:
                flat = np.asfortranarray(np.moveaxis(w, 1, 0).reshape(w.shape[1], -1), np.float64)
                start = time.perf_counter()
                dsyrk(1.0, flat, trans=1)
                seconds += time.perf_counter() - start
    return seconds


def main() -> None:
    """Print the two ratios."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--layers", type=int, default=14)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--key-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    given = parser.parse_args()
    shape = (given.width, given.heads, given.key_heads, given.head_dim)
    with tempfile.TemporaryDirectory() as name:
        large, tiny = Path(name) / "large", Path(name) / "tiny"
        for folder, sizes in ((large, (given.layers, *shape)), (tiny, (1, 16, 4, 2, 4))):
            folder.mkdir()
            make(folder, *sizes)
        total = sum(file.stat().st_size for file in large.iterdir()) / 1e9
        _, base = run(tiny)
        seconds, peak = min(run(large) for _ in range(3))
        floor = least(large)
    maps = given.width * given.head_dim * (given.heads + given.key_heads) * 4 / 1e6
    print(f"checkpoint {total:.2f} GB; {seconds:.1f} s are {seconds / floor:.2f} of the least")
    print(f"memory {peak:.0f} MB, {peak - base:.0f} beyond a tiny model's; W_Q, W_K {maps:.0f} MB")


if __name__ == "__main__":
    main()
