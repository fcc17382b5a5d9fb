"""Measures the public models and writes what chapter 7 reads: `python data/measure.py [PART]…`.

Parts: `models` (every layer of the four models), `pairs` (every pair of MiniLM's heads: overlap,
circuit overlap, and what the heads do on real text), `pruning` (a retrieval task with heads taken
out). The weights come from `mhanw models fetch --all`; every file names their checksum.
"""

from __future__ import annotations

import csv
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from mhanw import hdi, models
from mhanw_core import subspaces

HERE = Path(__file__).parent
FOLDER = HERE.parent / "models"
N_HEADS, HEAD_DIM, N_LAYERS = 12, 32, 6
LEVELS = (12, 24, 36, 48)
N_RANDOM = 8
N_TEXTS = 200


def write(name: str, weights: Iterable[models.Weights], rows: list[dict[str, Any]]) -> None:
    """Write rows as CSV under a line for every model that names its files' checksums."""
    with open(HERE / name, "w", encoding="utf-8", newline="") as file:
        for w in weights:
            main = max(w.files, key=lambda f: f.endswith((".safetensors", ".bin", ".gguf")))
            file.write(f"# {w.name}: {w.package} {w.version}, {main} sha256 {w.files[main]}\n")
        table = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def measure_models() -> None:
    """Both nulls, circuits and the printed form of every layer."""
    rows = []
    for w in models.KNOWN:
        for layer in hdi.measure(str(FOLDER / w.name)).layers:
            r = layer.report
            assert r is not None
            numbers = {k: f"{v:.6g}" for k, v in vars(r).items() if isinstance(v, float)}
            rows.append({"model": w.name, "layer": layer.name, "n_heads": r.n_heads, **numbers})
    write("models_hdi.csv", models.KNOWN, rows)


# --- MiniLM on text ----------------------------------------------------------------------------


def texts() -> tuple[list[str], list[str]]:
    """First sentences of NumPy's docstrings, and for each a paragraph that belongs to it."""
    found: dict[str, str] = {}
    for name in sorted(dir(np)):
        text = inspect.getdoc(getattr(np, name)) or ""
        parts = [" ".join(p.split()) for p in text.split("\n\n")]
        parts = [p for p in parts if p and not re.match(r"[\w.]+\(", p)]
        if not parts or not 4 <= len(parts[0].split()) <= 30:
            continue
        skip = ("Parameters", "Returns", ">>>", "See Also", "..", "Examples", "Notes", "References")
        rest = [p for p in parts[1:] if len(p.split()) >= 12 and not p.startswith(skip)]
        if rest and rest[0] not in found.values():
            found.setdefault(parts[0], " ".join(rest[0].split()[:40]))
    heads = sorted(found)[:N_TEXTS]
    return heads, [found[h] for h in heads]


class Encoder:
    """MiniLM with heads that can be silenced."""

    def __init__(self) -> None:
        import torch
        from transformers import AutoModel, AutoTokenizer

        self.torch, folder = torch, str(FOLDER / "minilm")
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()

    def batches(self, sentences: list[str]) -> list[tuple[Any, Any]]:
        """Sentences of like length together."""
        order = np.argsort([len(s) for s in sentences], kind="stable")
        groups = [order[k : k + 40] for k in range(0, len(order), 40)]
        options = {"padding": True, "truncation": True, "max_length": 64, "return_tensors": "pt"}
        return [(g, self.tokenizer([sentences[i] for i in g], **options)) for g in groups]

    def embed(self, batches: list[tuple[Any, Any]], n: int, keep: Any) -> Any:
        """Mean-pooled unit vectors, with the heads silenced for which `keep` is 0."""
        torch, hooks, out = self.torch, [], np.empty((n, N_HEADS * HEAD_DIM), np.float32)
        for layer, row in zip(self.model.encoder.layer, keep, strict=True):
            mask = torch.tensor(np.repeat(row, HEAD_DIM).astype(np.float32))
            hooks.append(layer.attention.self.register_forward_hook(_times(mask)))
        with torch.no_grad():
            for places, batch in batches:
                hidden = self.model(**batch).last_hidden_state
                weight = batch.attention_mask[..., None].float()
                mean = (hidden * weight).sum(1) / weight.sum(1)
                out[places] = torch.nn.functional.normalize(mean, dim=1).numpy()
        for hook in hooks:
            hook.remove()
        return out


def _times(mask: Any) -> Callable[..., Any]:
    return lambda _module, _inputs, output: (output[0] * mask, *output[1:])


def reciprocal_ranks(encoder: Encoder, batches: Any, keep: Any) -> Any:
    """For every first sentence, one over the rank of its own paragraph among all."""
    n = N_TEXTS
    vectors = encoder.embed(batches, 2 * n, keep)
    scores = vectors[:n] @ vectors[n:].T
    return 1 / (scores >= np.diag(scores)[:, None]).sum(axis=1)


def maps() -> tuple[Any, Any]:
    """Key and query maps of all layers, (6, 12, 384, 32)."""
    from mhanw import checkpoints

    with checkpoints.open_checkpoint(FOLDER / "minilm") as found:
        keys, queries = zip(*((k.W_K(), k.W_Q()) for k in found.layers), strict=True)
    return np.stack(keys), np.stack(queries)


def seen_on_text(encoder: Encoder, sentences: list[str]) -> tuple[Any, Any]:
    """For every pair of heads: cosine of attention weights, and correlation of outputs (CKA)."""
    torch = encoder.torch
    cosine, grams = np.zeros((2, N_LAYERS, N_HEADS, N_HEADS)), [[] for _ in range(N_LAYERS)]
    seen: dict[int, Any] = {}
    for i, layer in enumerate(encoder.model.encoder.layer):
        layer.attention.self.register_forward_hook(
            lambda _m, _i, out, i=i: seen.__setitem__(i, out[0][0].numpy())
        )
    with torch.no_grad():
        for sentence in sentences:
            batch = encoder.tokenizer(sentence, truncation=True, max_length=64, return_tensors="pt")
            weights = encoder.model(**batch, output_attentions=True).attentions
            for i, w in enumerate(weights):
                unit = w[0].numpy() / np.linalg.norm(w[0].numpy(), axis=-1, keepdims=True)
                cosine[0, i] += np.einsum("hqk,gqk->hg", unit, unit) / unit.shape[1]
                grams[i].append(seen[i])
    outputs = [np.concatenate(g).reshape(-1, N_HEADS, HEAD_DIM).transpose(1, 0, 2) for g in grams]
    for i, heads in enumerate(outputs):
        centred = heads - heads.mean(axis=1, keepdims=True)
        cross = np.square(np.einsum("hnd,gne->hgde", centred, centred)).sum(axis=(2, 3))
        own = np.sqrt(np.diag(cross))
        cosine[1, i] = cross / np.outer(own, own)
    return cosine[0] / len(sentences), cosine[1]


def similarities() -> dict[str, Any]:
    """Four similarities of every two heads of a layer, each (6, 12, 12)."""
    keys, queries = maps()
    first, second = texts()
    weights, outputs = seen_on_text(Encoder(), [*first[::4], *second[::4]])
    return {
        "overlap": np.stack([subspaces.pairwise_overlaps(k) for k in keys]),
        "circuit": np.stack(
            [subspaces.circuit_overlaps(q, k) for q, k in zip(queries, keys, strict=True)]
        ),
        "weights": weights,
        "outputs": outputs,
    }


def measure_pairs() -> None:
    """Every pair of heads by all four similarities."""
    found = similarities()
    rows = [
        {"layer": i, "head_i": h, "head_j": g}
        | {name: f"{value[i, h, g]:.6f}" for name, value in found.items()}
        for i in range(N_LAYERS)
        for h in range(N_HEADS)
        for g in range(h + 1, N_HEADS)
    ]
    write("minilm_pairs.csv", [models.MINILM], rows)


def greedy_order(similarity: Any) -> list[tuple[int, int]]:
    """Heads in the order of their removal: of the closest pair left, the one closer to the rest."""
    left = np.where(np.eye(N_HEADS, dtype=bool), -np.inf, similarity)
    order = []
    for _ in range(max(LEVELS)):
        layer, h, g = np.unravel_index(np.argmax(left), left.shape)
        finite = np.where(np.isfinite(left[layer]), left[layer], np.nan)
        mean = np.nanmean(finite[[h, g]], axis=1)
        gone = int(h if mean[0] >= mean[1] else g)
        order.append((int(layer), gone))
        left[layer, gone, :] = left[layer, :, gone] = -np.inf
    return order


def measure_pruning() -> None:
    """Retrieval with 12, 24, 36 and 48 of 72 heads silenced, chosen in five ways."""
    encoder, rng = Encoder(), np.random.default_rng(0)
    first, second = texts()
    batches = encoder.batches([*first, *second])
    found = pd.read_csv(HERE / "minilm_pairs.csv", comment="#")
    orders = {}
    for name in ("overlap", "circuit", "weights", "outputs"):
        square = np.ones((N_LAYERS, N_HEADS, N_HEADS))
        i, h, g = (found[k].to_numpy() for k in ("layer", "head_i", "head_j"))
        square[i, h, g] = square[i, g, h] = found[name]
        orders[name] = greedy_order(square)
    for k in range(N_RANDOM):
        orders[f"random {k}"] = [divmod(int(p), N_HEADS) for p in rng.permutation(72)[:48]]
    rows = [_pruned(encoder, batches, "none", [])]
    rows += [_pruned(encoder, batches, name, o[:n]) for name, o in orders.items() for n in LEVELS]
    write("minilm_pruning.csv", [models.MINILM], rows)


def _pruned(encoder: Encoder, batches: Any, name: str, gone: Any) -> dict[str, Any]:
    keep = np.ones((N_LAYERS, N_HEADS))
    for layer, head in gone:
        keep[layer, head] = 0
    ranks = reciprocal_ranks(encoder, batches, keep)
    values = " ".join(f"{r:.4g}" for r in ranks)
    return {"chosen_by": name, "removed": len(gone), "mrr": f"{ranks.mean():.6f}", "each": values}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    parts = {"models": measure_models, "pairs": measure_pairs, "pruning": measure_pruning}
    for part in sys.argv[1:] or parts:
        parts[part]()
