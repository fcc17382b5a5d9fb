"""Names of tensors as attention layers: which rows of which matrix are the keys of which head.

A family is recognised by the names of its tensors, never by guessing from shapes alone. All
layouts but the latent one come down to a `Part` of a matrix of shape (outputs, inputs), whose
outputs are groups of equal heads.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mhanw.checkpoints.formats import Archive, Array, CheckpointError, Tensor, open_archive


@dataclass(frozen=True)
class Layer:
    """One attention layer; its numbers are read when `W_K` or `W_Q` is called.

    `d_model` is the width of the states that the keys are made from, `n_heads` the number of
    query heads; biases, norms, rotation and the scale of scores are not in the maps.
    """

    name: str
    n_heads: int
    n_kv_heads: int
    d_model: int
    head_dim: int
    key_tensor: str
    query_tensor: str
    _keys: Callable[[], Array]
    _queries: Callable[[], Array]

    def W_K(self) -> Array:
        """Key maps (n_kv_heads, d_model, head_dim): keys of head h are x @ W_K()[h], plus bias."""
        return self._keys()

    def W_Q(self) -> Array:
        """Query maps (n_heads, ...): query head h belongs to key head h // (n_heads/n_kv_heads).

        In cross attention queries read the decoder's states, whose width may differ.
        """
        return self._queries()


@dataclass(frozen=True)
class Checkpoint:
    """The attention layers of a model, and in sentences what is not folded into their maps."""

    path: str
    format: str
    architecture: str
    dtype: str
    layers: tuple[Layer, ...]
    notes: tuple[str, ...]


@contextmanager
def open_checkpoint(
    path: str | os.PathLike[str],
    key_pattern: str | None = None,
    n_heads: int | None = None,
    query_pattern: str | None = None,
) -> Iterator[Checkpoint]:
    """Open a transformer checkpoint and find its attention layers.

    Parameters
    ----------
    path : path
        A model file, the index of a sharded one, or a model folder.
    key_pattern, query_pattern : str, optional
        For layouts not known: regular expressions, found in the names of the key (query)
        matrices of shape (outputs, inputs), with a group for the layer number.
    n_heads : int, optional
        Number of query heads (with a key pattern alone: of key heads), if no file tells it.

    Yields
    ------
    Checkpoint

    Raises
    ------
    CheckpointError
        If the files cannot be read, the layout is not known, or the number of heads is
        missing or does not fit.
    """
    archive = open_archive(path)
    if n_heads is not None:
        _whole(n_heads, "n_heads", archive)
    found = _by_pattern(archive, key_pattern, query_pattern) if key_pattern else _by_rules(archive)
    if not found:
        raise CheckpointError(_unknown(archive, key_pattern))
    layers = tuple(_layer(archive, at, n_heads) for at in _named(found))
    _check_one_width(archive, layers, n_heads)
    yield Checkpoint(
        path=os.fspath(path),
        format=archive.format,
        architecture=_architecture(archive),
        dtype=", ".join(sorted({archive.tensors[layer.key_tensor].dtype for layer in layers})),
        layers=layers,
        notes=tuple(_notes(archive, layers, found)),
    )


# --- Layouts -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rule:
    """How a family names and lays out its keys and queries.

    `where` matches the name up to `key`, which `query` replaces to name the queries' matrix.
    """

    where: str
    key: str
    query: str
    layout: str = "separate"
    cross: bool = False
    conv1d: bool = False  # stored as (inputs, outputs)
    grouped_query: bool = True  # fused: key heads may be fewer than query heads

    def match(self, name: str) -> re.Match[str] | None:
        """Match the whole name of a key matrix."""
        return re.fullmatch(f"(?P<prefix>.*?)(?<![^./]){self.where}{re.escape(self.key)}", name)


_BLOCK = r"(?:layers?|h|blocks?|resblocks)\."
_SELF = r"(?:self_attn|attn|attention|attention\.self|attention\.attention|attn\.attention)\."
_CROSS = r"(?:encoder_attn|cross_attn|crossattention\.self)\."
_PAIRS = (
    ("key.weight", "query.weight"),  # BERT, RoBERTa, ELECTRA, ViT, DINOv2
    ("key_proj.weight", "query_proj.weight"),  # DeBERTa-v2
    ("k_lin.weight", "q_lin.weight"),  # DistilBERT
    ("k_proj.weight", "q_proj.weight"),  # OPT, GPT-J, LLaMA and kin, BART, Whisper, CLIP
)
_N = r"(?P<n>\d{1,6})\."

RULES = (
    *(Rule(f"{_BLOCK}{_N}{_SELF}", k, q) for k, q in _PAIRS),
    *(Rule(f"{_BLOCK}{_N}{_CROSS}", k, q, cross=True) for k, q in _PAIRS),
    # ALBERT: a group of layers is shared by many
    Rule(
        rf"albert_layer_groups\.{_N}albert_layers\.(?P<inner>\d{{1,6}})\.attention\.",
        *("key.weight", "query.weight"),
    ),
    # T5
    Rule(rf"block\.{_N}layer\.\d+\.SelfAttention\.", "k.weight", "q.weight"),
    Rule(rf"block\.{_N}layer\.\d+\.EncDecAttention\.", "k.weight", "q.weight", cross=True),
    # GPT-2: a Conv1D, [q; k; v]
    Rule(
        rf"h\.{_N}attn\.",
        *("c_attn.weight", "c_attn.weight", "stacked"),
        conv1d=True,
        grouped_query=False,
    ),
    # Phi-3, timm, ModernBERT, torch.nn.MultiheadAttention: [q; k; v]
    Rule(rf"layers\.{_N}self_attn\.", "qkv_proj.weight", "qkv_proj.weight", "stacked"),
    Rule(rf"blocks\.{_N}attn\.", "qkv.weight", "qkv.weight", "stacked", grouped_query=False),
    Rule(rf"layers\.{_N}attn\.", "Wqkv.weight", "Wqkv.weight", "stacked", grouped_query=False),
    Rule(
        rf"{_BLOCK}{_N}multihead_attn\.",
        *("in_proj_weight", "in_proj_weight", "stacked"),
        cross=True,
        grouped_query=False,
    ),
    Rule(rf"{_BLOCK}{_N}multihead_attn\.", "k_proj_weight", "q_proj_weight", cross=True),
    Rule(
        rf"(?:{_BLOCK}{_N})?(?:(?:self_attn|attn|attention)\.)?",
        *("in_proj_weight", "in_proj_weight", "stacked"),
        grouped_query=False,
    ),
    Rule(
        rf"(?:{_BLOCK}{_N})?(?:(?:self_attn|attn|attention)\.)?", "k_proj_weight", "q_proj_weight"
    ),
    # GPT-NeoX, BLOOM, Falcon: for each key head [its queries; k; v]
    Rule(
        rf"(?:layers\.{_N}attention|h\.(?P<n2>\d{{1,6}})\.self_attention)\.",
        *("query_key_value.weight", "query_key_value.weight", "grouped"),
    ),
    # DeepSeek: keys from a latent vector
    Rule(rf"layers\.{_N}self_attn\.", "kv_b_proj.weight", "q_proj.weight", "latent"),
    # GGUF
    Rule(rf"blk\.{_N}", "attn_k.weight", "attn_q.weight"),
    Rule(rf"blk\.{_N}", "cross_attn_k.weight", "cross_attn_q.weight", cross=True),
    Rule(rf"blk\.{_N}", "attn_qkv.weight", "attn_qkv.weight", "stacked"),
    # CTranslate2
    Rule(
        r"layer_(?P<n>\d{1,6})/self_attention/",
        *("linear_0/weight", "linear_0/weight", "stacked"),
    ),
    Rule(
        r"layer_(?P<n>\d{1,6})/attention/",
        *("linear_1/weight", "linear_0/weight", "key-value"),
        cross=True,
    ),
)


@dataclass(frozen=True)
class Found:
    """The key and query matrices of one layer, before the number of heads is known."""

    key: Tensor
    query: Tensor | None
    layout: str
    prefix: str
    stack: str
    number: str
    cross: bool = False
    grouped_query: bool = True
    name: str = ""

    @property
    def siblings(self) -> str:
        """What precedes the key matrix's own name: where its bias and norms lie."""
        return re.sub(r"[\w-]+[./]?weight$", "", self.key.name)


def _by_rules(archive: Archive) -> list[Found]:
    tried = (((rule, rule.match(name)) for rule in RULES) for name in archive.tensors)
    first = (next(((rule, m) for rule, m in pairs if m), None) for pairs in tried)
    found = [_found(archive, *pair) for pair in first if pair]
    ranks = {stack: rank for rank, (stack, _) in enumerate(STACKS)}
    return sorted(
        found,
        key=lambda f: (ranks.get(f.stack, -1), f.prefix, _natural(f.number), f.cross),
    )


def _natural(number: str) -> tuple[tuple[int, str], ...]:
    parts = number.split(".")
    return tuple((int(n), "") if n.isdecimal() and len(n) < 9 else (0, n) for n in parts)


def _found(archive: Archive, rule: Rule, match: re.Match[str]) -> Found:
    name, groups = match.string, match.groupdict()
    query = name.removesuffix(rule.key) + rule.query
    if rule.layout == "latent" and query not in archive.tensors:
        query = name.removesuffix(rule.key) + "q_b_proj.weight"
    for part in (name, query):
        _check_matrix(archive, part)
    key_map, query_map = archive.tensors[name], archive.tensors[query]
    if rule.conv1d and key_map.shape[1] != 3 * key_map.shape[0]:
        raise CheckpointError(
            f"{archive.path}: {name} has shape {key_map.shape}; GPT-2 keeps (inputs, 3 * inputs) "
            "under this name, and other layouts under it are not known."
        )
    number = groups.get("n") or groups.get("n2") or "0"
    if groups.get("inner", "0") != "0":
        number += f".{groups['inner']}"
    return Found(
        key=key_map.T if rule.conv1d else key_map,
        query=query_map.T if rule.conv1d else query_map,
        layout=rule.layout,
        prefix=groups["prefix"],
        stack=_stack(groups["prefix"]),
        number=number,
        cross=rule.cross,
        grouped_query=rule.grouped_query,
    )


def _check_matrix(archive: Archive, name: str) -> None:
    if name not in archive.tensors:
        raise CheckpointError(
            f"{archive.path} has key matrices but not {name}, where their queries should lie; it "
            "is incomplete, or --key-pattern and --heads must tell its layout."
        )
    tensor = archive.tensors[name]
    if len(tensor.shape) != 2 or 0 in tensor.shape:
        raise CheckpointError(
            f"{archive.path}: {name} has shape {tensor.shape}; expected a matrix that is not "
            "empty (is the model quantised?)."
        )
    if not tensor.readable:
        tensor.read()


STACKS = (
    ("vision", {"vision", "visual", "v", "image"}),
    ("text", {"text", "language"}),
    ("audio", {"audio", "speech", "a"}),
    ("encoder", {"encoder", "enc"}),
    ("decoder", {"decoder", "dec"}),
)


def _stack(prefix: str) -> str:
    words = set(re.split(r"[._/]", prefix))
    return next((stack for stack, hints in STACKS if words & hints), "layer")


def _named(found: list[Found]) -> list[Found]:
    """Give each layer a short name, or a long one where short ones collide."""
    short = [f"{f.stack} {f.number}{' cross' if f.cross else ''}" for f in found]
    long = [f"{f.prefix.rstrip('./')} {name}".strip() for f, name in zip(found, short, strict=True)]
    names = short if len(set(short)) == len(short) else long
    if len(set(names)) < len(names):
        names = [f.key.name for f in found]
    return [replace(f, name=name) for f, name in zip(found, names, strict=True)]


# --- Layouts not known -------------------------------------------------------------------------


def _by_pattern(archive: Archive, key_pattern: str, query_pattern: str | None) -> list[Found]:
    keys = _numbered(archive, key_pattern, "--key-pattern")
    queries = _numbered(archive, query_pattern, "the query pattern") if query_pattern else {}
    if queries and set(queries) != set(keys):
        odd = sorted(set(queries) ^ set(keys))[0]
        raise CheckpointError(
            f"{archive.path}: layer {odd} matches only one of the key and the query pattern."
        )
    return [
        Found(keys[n], queries.get(n), "separate", "", "layer", n)
        for n in sorted(keys, key=_natural)
    ]


def _numbered(archive: Archive, pattern: str, what: str) -> dict[str, Tensor]:
    """Matrices whose names the pattern finds, by the layer number in its first group."""
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise CheckpointError(f"{what} {pattern!r} is no regular expression: {error}.") from None
    if not expression.groups:
        raise CheckpointError(
            rf"{what} {pattern!r} has no group for the layer number, such as (\d+)."
        )
    found: dict[str, Tensor] = {}
    for name, tensor in archive.tensors.items():
        match = expression.search(name)
        if match and len(tensor.shape) == 2:
            number = match[1] or "0"
            if number in found:
                raise CheckpointError(
                    f"{archive.path}: {what} finds two matrices for layer {number}, "
                    f"{found[number].name} and {name}; make it stricter."
                )
            _check_matrix(archive, name)
            found[number] = tensor
    return found


HINTS = ("attn", "attention", "key", "qkv", "k_proj", "query", ".k.", "kv", "wk")


def _unknown(archive: Archive, key_pattern: str | None) -> str:
    def likeness(name: str) -> int:
        matrix = len(archive.tensors[name].shape) == 2
        return sum(hint in name.lower() for hint in HINTS) + 2 * matrix

    closest = sorted(archive.tensors, key=lambda name: (-likeness(name), name))[:5]
    names = ", ".join(f"{n[:120]} {archive.tensors[n].shape}" for n in closest)
    if key_pattern:
        return (
            f"{archive.path}: --key-pattern {key_pattern!r} finds no matrix; those that look "
            f"closest are {names}."
        )
    return (
        f"{archive.path}: its layout is not known; the tensors that look closest are {names}; "
        "--key-pattern (a regular expression with a group for the layer number) and --heads can "
        "tell it."
    )


# --- Heads -------------------------------------------------------------------------------------

HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "attention_heads")
WIDTHS = ("hidden_size", "d_model", "n_embd", "dim")
SECTIONS = {
    "vision": ("vision_config",),
    "text": ("text_config", "llm_config"),
    "audio": ("audio_config", "encoder_config"),
    "encoder": ("encoder", "text_config"),
    "decoder": ("decoder", "text_config"),
    "layer": ("text_config",),
}


def _whole(value: Any, what: str, archive: Archive) -> int:
    if type(value) is not int or value < 1:
        raise CheckpointError(
            f"{archive.path}: {what} is {str(value)[:80]}; expected one whole number of at least "
            "1. If it differs by layer, read the layers one file at a time with --heads."
        )
    return value


def _section(archive: Archive, at: Found) -> Mapping[str, Any]:
    """The part of config.json that speaks of this stack of layers, by its name and width."""
    words = (f"{word}_config" for word in re.split(r"[._/]", at.prefix))
    inner = (archive.config.get(name) for name in (*words, *SECTIONS[at.stack]))
    fitting = (part for part in inner if isinstance(part, dict) and _fits(part, at))
    return next(fitting, archive.config)


def _fits(section: Mapping[str, Any], at: Found) -> bool:
    """Whether a section's width, if it has one, is that of the states the layer reads."""
    width = next((section[name] for name in WIDTHS if name in section), None)
    return width in (None, (at.query or at.key).shape[1])


def _told(archive: Archive, at: Found, names: Iterable[str]) -> int | None:
    """The first of these settings that config.json has."""
    section = _section(archive, at)
    for name in names:
        if section.get(name) is not None:
            return _whole(section[name], f"{name} in config.json", archive)
    return None


def _told_by_gguf(archive: Archive, at: Found, name: str) -> int | None:
    family = "clip.vision" if at.stack == "vision" else archive.metadata.get("general.architecture")
    value = archive.metadata.get(f"{family}.attention.{name}")
    if isinstance(value, list) and at.number.isdecimal() and int(at.number) < len(value):
        value = value[int(at.number)]
    return None if value is None else _whole(value, f"{family}.attention.{name}", archive)


def _told_heads(archive: Archive, at: Found) -> int | None:
    """Number of query heads that the model's own files give for a layer."""
    if archive.format == "GGUF":
        return _told_by_gguf(archive, at, "head_count")
    if archive.format == "CTranslate2":
        value = archive.metadata.get(f"{at.prefix.rstrip('/')}/num_heads")
        return None if value is None else _whole(value, f"{at.prefix}num_heads", archive)
    own = [f"{at.stack}_attention_heads", f"num_{at.stack}_heads"]
    return _told(archive, at, [*own, *HEADS])


def _told_kv_heads(archive: Archive, at: Found) -> int | None:
    if archive.format == "GGUF":
        return None if at.cross else _told_by_gguf(archive, at, "head_count_kv")
    if archive.format == "CTranslate2":
        value = archive.metadata.get(f"{at.siblings}num_heads_kv")
        return _told_heads(archive, at) if value is None else _whole(value, "kv heads", archive)
    return _told(archive, at, ["num_key_value_heads"])


def _told_head_dim(archive: Archive, at: Found) -> int | None:
    if archive.format == "GGUF":
        return _told_by_gguf(archive, at, "key_length")
    if archive.format == "CTranslate2":
        value = archive.metadata.get(f"{at.siblings}head_dim")
        return None if value is None else _whole(value, "head_dim", archive)
    return _told(archive, at, ["d_kv"] if "d_kv" in archive.config else ["head_dim"])


def _heads(archive: Archive, at: Found, n_heads: int | None) -> int:
    told = _told_heads(archive, at)
    if told and n_heads and told != n_heads:
        raise CheckpointError(
            f"{archive.path}: its files say {told} heads for {at.name} and --heads says "
            f"{n_heads}; leave out --heads."
        )
    if not (told or n_heads):
        raise CheckpointError(
            f"{archive.path}: no config.json or metadata tells the number of heads; give it "
            "with --heads."
        )
    return told or n_heads or 0


# --- Layers ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """Some heads of a matrix: `count` from `first` on in each of `groups` groups of `size`."""

    tensor: Tensor
    groups: int
    size: int
    first: int
    count: int

    def read(self) -> Array:
        """Return (groups * count, inputs, head_dim)."""
        matrix = self.tensor.read()
        inputs = matrix.shape[1]
        split = matrix.reshape(self.groups, self.size, -1, inputs)
        chosen = split[:, self.first : self.first + self.count]
        return np.ascontiguousarray(chosen.reshape(self.groups * self.count, -1, inputs).mT)


def _layer(archive: Archive, at: Found, n_heads: int | None) -> Layer:
    heads = _heads(archive, at, n_heads)
    if at.layout == "latent":
        return _latent_layer(archive, at, heads)
    if at.layout in ("stacked", "grouped"):
        kv_heads, head_dim = _fused_sizes(archive, at, heads)
    else:
        kv_heads, head_dim = _separate_sizes(archive, at, heads)
    _check_sizes(archive, at, heads, kv_heads, head_dim)
    keys, queries = _parts(at, heads, kv_heads)
    return Layer(
        name=at.name,
        n_heads=heads,
        n_kv_heads=kv_heads,
        d_model=at.key.shape[1],
        head_dim=head_dim,
        key_tensor=at.key.name,
        query_tensor=at.query.name if at.query else "",
        _keys=keys.read,
        _queries=queries.read if queries else lambda: _no_queries(archive),
    )


def _no_queries(archive: Archive) -> Array:
    raise CheckpointError(f"{archive.path}: its queries are not known; give a query pattern, too.")


def _divide(archive: Archive, tensor: Tensor, rows: int, heads: int, what: str) -> int:
    if rows < heads or rows % heads:
        raise CheckpointError(
            f"{archive.path}: {tensor.name} has {rows} outputs, which are no whole number of "
            f"{what} for {heads} heads; check the number of heads."
        )
    return rows // heads


def _separate_sizes(archive: Archive, at: Found, heads: int) -> tuple[int, int]:
    key_rows = at.key.shape[0]
    if at.layout == "key-value":
        key_rows = _divide(archive, at.key, key_rows, 2, "keys and values")
    if at.query is None:
        return heads, _divide(archive, at.key, key_rows, heads, "dimensions")
    head_dim = _divide(archive, at.query, at.query.shape[0], heads, "dimensions")
    return _divide(archive, at.key, key_rows, head_dim, "key heads"), head_dim


def _fused_sizes(archive: Archive, at: Found, heads: int) -> tuple[int, int]:
    """Key heads and head width of a matrix with `heads` + 2 * key heads blocks of outputs."""
    rows, d_model = at.key.shape
    told = _told_kv_heads(archive, at) if at.grouped_query else heads
    if told:
        return told, _divide(archive, at.key, rows, heads + 2 * told, "dimensions")
    head_dim = _told_head_dim(archive, at) or _divide(archive, at.key, d_model, heads, "dimensions")
    blocks = _divide(archive, at.key, rows, head_dim, "heads") - heads
    return max(blocks, 0) // 2 if blocks % 2 == 0 else 0, head_dim


def _check_sizes(archive: Archive, at: Found, heads: int, kv_heads: int, head_dim: int) -> None:
    told = (_told_kv_heads(archive, at), _told_head_dim(archive, at))
    if kv_heads < 1 or heads % kv_heads:
        raise CheckpointError(
            f"{archive.path}: {at.key.name} of shape {at.key.shape} would hold {kv_heads} key "
            f"heads for {heads} query heads, which must be a multiple; check the number of heads."
        )
    sizes = ((kv_heads, "key heads"), (head_dim, "head_dim"))
    for value, (found, what) in zip(told, sizes, strict=True):
        if value and value != found and not at.cross:
            raise CheckpointError(
                f"{archive.path}: {at.key.name} gives {found} for {what} with {heads} heads, and "
                f"the model's files say {value}; they do not belong together, or the layout is "
                "not known."
            )


def _parts(at: Found, heads: int, kv_heads: int) -> tuple[Part, Part | None]:
    """Where keys and queries lie in their matrices."""
    if at.layout == "stacked":
        size = heads + 2 * kv_heads
        return Part(at.key, 1, size, heads, kv_heads), Part(at.key, 1, size, 0, heads)
    if at.layout == "grouped":
        share = heads // kv_heads
        return Part(at.key, kv_heads, share + 2, share, 1), Part(
            at.key, kv_heads, share + 2, 0, share
        )
    size = 2 * kv_heads if at.layout == "key-value" else kv_heads
    queries = Part(at.query, 1, heads, 0, heads) if at.query else None
    return Part(at.key, 1, size, 0, kv_heads), queries


def _check_one_width(archive: Archive, layers: tuple[Layer, ...], n_heads: int | None) -> None:
    """One number of heads for layers of several widths would be a guess."""
    widths = {layer.d_model for layer in layers if not layer.name.endswith("cross")}
    if n_heads and len(widths) > 1 and not archive.config:
        raise CheckpointError(
            f"{archive.path}: its layers have several widths ({sorted(widths)}), so one --heads "
            "cannot serve them all; put the model's config.json beside it."
        )


# --- Latent attention --------------------------------------------------------------------------


def _latent_layer(archive: Archive, at: Found, heads: int) -> Layer:
    """Keys made from a latent vector: the part that rotary embedding leaves alone.

    With c = x A, key head h is (c * gain / rms(c)) B_h. The map folds in A, the gain and B_h;
    1 / rms(c) remains, a factor of each token. Queries are made so, too, or without a latent.
    """
    down = _needed(archive, f"{at.siblings}kv_a_proj_with_mqa.weight", 2)
    query = _needed(archive, at.query.name if at.query else "", 2)
    rotary = down.shape[0] - at.key.shape[1]
    head_dim = _divide(archive, query, query.shape[0], heads, "dimensions") - rotary
    per_head = _divide(archive, at.key, at.key.shape[0], heads, "dimensions")
    _check_latent(archive, at, rotary, head_dim, per_head)
    key_gain = _needed(archive, f"{at.siblings}kv_a_layernorm.weight", 1)
    keys, queries = (Part(t, 1, heads, 0, heads) for t in (at.key, query))
    before = _query_latent(archive, at, query)
    return Layer(
        name=at.name,
        n_heads=heads,
        n_kv_heads=heads,
        d_model=down.shape[1],
        head_dim=head_dim,
        key_tensor=at.key.name,
        query_tensor=query.name,
        _keys=lambda: _through(down, key_gain, keys, head_dim),
        _queries=lambda: _through(*before, queries, head_dim),
    )


def _query_latent(
    archive: Archive, at: Found, query: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """The map to the queries' latent vector and its gain; nothing where there is no such."""
    if query.name.endswith("q_proj.weight"):
        return None, None
    down = _needed(archive, f"{at.siblings}q_a_proj.weight", 2)
    return down, _needed(archive, f"{at.siblings}q_a_layernorm.weight", 1)


def _needed(archive: Archive, name: str, axes: int) -> Tensor:
    tensor = archive.tensors.get(name)
    if tensor is None or len(tensor.shape) != axes or 0 in tensor.shape:
        raise CheckpointError(
            f"{archive.path}: latent attention needs {name} with {axes} axes; it "
            f"{'is missing' if tensor is None else f'has shape {tensor.shape}'}."
        )
    return tensor


def _check_latent(archive: Archive, at: Found, rotary: int, head_dim: int, per_head: int) -> None:
    section = _section(archive, at)
    sizes = {"qk_rope_head_dim": rotary, "qk_nope_head_dim": head_dim}
    wrong = [n for n, found in sizes.items() if section.get(n, found) != found]
    if wrong or rotary < 0 or not 1 <= head_dim < per_head:
        raise CheckpointError(
            f"{archive.path}: {at.key.name} gives {head_dim} dimensions a head without and "
            f"{rotary} with rotation, which contradicts its files; check the number of heads."
        )


def _through(down: Tensor | None, gain: Tensor | None, part: Part, head_dim: int) -> Array:
    """The maps of a part, after the map to its latent vector if there is one."""
    up = part.read()[..., :head_dim]
    if down is None or gain is None:
        return np.ascontiguousarray(up)
    latent = down.read()[: up.shape[1]].T.astype(np.float64) * gain.read()
    return (latent @ up).astype(up.dtype)


# --- What is not folded in ---------------------------------------------------------------------


def _architecture(archive: Archive) -> str:
    listed = archive.config.get("architectures")
    first = listed[0] if isinstance(listed, list) and listed else None
    names = (
        archive.config.get("model_type"),
        archive.config.get("architecture"),
        archive.metadata.get("general.architecture"),
        archive.metadata.get("spec"),
        first,
    )
    return next((name for name in names if isinstance(name, str)), "not named by its files")


def _notes(archive: Archive, layers: tuple[Layer, ...], found: list[Found]) -> Iterator[str]:
    yield (
        "Keys of head h are x @ W_K()[h], x being what the projection receives: after the norm "
        "where a norm comes first. The gains of such norms are not folded in."
    )
    yield _bias_note(archive, found)
    if _rotates(archive):
        yield "Rotary position embedding turns queries and keys after this map: not folded in."
    if any(re.search(r"(?:^|[./])(?:attn_)?k_(?:norm|layernorm)\b", n) for n in archive.tensors):
        yield "Keys are normalised after this map; neither that norm nor its gain is folded in."
    if any(layer.n_kv_heads < layer.n_heads for layer in layers):
        yield "Query heads share key heads (grouped-query attention); heads are the key heads."
    if any("albert_layer_groups" in f.key.name for f in found):
        yield "Layers share their weights (ALBERT); each set of weights is listed once."
    if any(f.layout == "latent" for f in found):
        yield (
            "Keys come from a latent vector: its map and the gain of its norm are folded in, its "
            "rms is not (a factor of each token), and the rotary part of keys, which all heads "
            "share, is left out. head_dim counts the rest."
        )
    if archive.format == "GGUF":
        yield "GGUF may permute rows within a head for rotary embedding; subspaces are the same."
    yield from _layer_count_note(archive, found)


def _bias_note(archive: Archive, found: list[Found]) -> str:
    names = {f.key.name.removesuffix("weight") + "bias" for f in found}
    if names & set(archive.tensors):
        return "The key projection has a bias, which shifts a head's keys alike: not folded in."
    return "The key projection has no bias in these files."


def _rotates(archive: Archive) -> bool:
    sections = [archive.config, *(v for v in archive.config.values() if isinstance(v, dict))]
    names = [n for section in sections for n in section if section[n] is not None]
    names += [n.rpartition("/")[2] for n in archive.metadata]
    gguf = any(re.match(r"[\w-]+\.rope\.", n) for n in archive.metadata)
    return gguf or any(str(n).startswith(("rope_", "rotary_")) for n in names)


def _layer_count_note(archive: Archive, found: list[Found]) -> Iterator[str]:
    total = archive.config.get("num_hidden_layers")
    count = len({f.number for f in found})
    shared = any("albert_layer_groups" in f.key.name for f in found)
    if type(total) is int and len({f.prefix for f in found}) == 1 and count != total and not shared:
        yield f"config.json says {total} layers; {count} have attention of a known layout."
