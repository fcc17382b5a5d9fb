"""Model files as named arrays: read lazily, checked before they are believed, never executed.

Every format becomes an `Archive` of `Tensor`s. Opening reads names, shapes and places only; a
tensor's numbers are read when asked for. Their formats leave no choice for an ONNX file
without external data and a PyTorch file from before 1.6: these are held in memory.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import struct
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from mhanw import CallError

Array = NDArray[np.floating[Any]]

STORED = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}  # NumPy has no bfloat16
MAX_JSON = 100_000_000


class CheckpointError(CallError):
    """A checkpoint cannot be read; the message is a sentence that names the file."""

    def __init__(self, message: str) -> None:
        # Names out of a file may be endless, or speak to the terminal.
        plain = "".join(c if c.isprintable() else "?" for c in message)
        super().__init__(plain if len(plain) < 1200 else f"{plain[:1000]} [...]")


@dataclass(frozen=True)
class Tensor:
    """A named array that stays in its file until it is read."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    source: Path
    load: Callable[[], Array]
    readable: bool = True

    def read(self) -> Array:
        """Return the numbers, float64 where stored so, else float32.

        Raises
        ------
        CheckpointError
            If they cannot be read, are not of the shape said, or are not finite.
        """
        if not self.readable:
            raise CheckpointError(
                f"{self.source}: {self.name} is stored as {self.dtype}, a quantised or integer "
                "type that is not read; convert the model to F32, F16 or BF16."
            )
        with _refusing(self.source, f"{self.name} cannot be read"):
            values = self.load()
        kind = np.float64 if values.dtype == np.float64 else np.float32
        values = values.astype(kind, copy=False)
        if values.shape != self.shape:
            raise CheckpointError(
                f"{self.source}: {self.name} has shape {values.shape}; its header says "
                f"{self.shape}. Fetch the file anew."
            )
        self._check_finite(values)
        return values

    def _check_finite(self, values: Array) -> None:
        bad = values.size - int(np.isfinite(values).sum())
        if bad:
            raise CheckpointError(
                f"{self.source}: {self.name} has {bad:,} entries of {values.size:,} that are NaN "
                "or infinite; the model is damaged or its training diverged."
            )

    @property
    def T(self) -> Tensor:
        """The transpose of a matrix, as lazy as itself."""
        return replace(self, shape=self.shape[::-1], load=lambda: self.load().T)


@dataclass(frozen=True)
class Archive:
    """The tensors of a model with what else its files say about it."""

    path: Path
    format: str
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)


@contextmanager
def _refusing(path: Path, what: str) -> Iterator[None]:
    """Turn whatever a parser says about a bad file into one sentence that names the file."""
    try:
        yield
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(
            f"{path}: {what} ({error.strerror or type(error).__name__}); check that it is there, "
            "whole and open to you."
        ) from None
    except Exception as error:  # parsers of other projects raise all sorts of things
        raise CheckpointError(
            f"{path}: {what} ({type(error).__name__}); the file is damaged or not what its name "
            "says. Fetch it anew."
        ) from None


# --- Finding the file --------------------------------------------------------------------------

FIRST = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "model.bin",
    "model.onnx",
    "onnx/model.onnx",
)
SUFFIXES = (".safetensors", ".gguf", ".onnx", ".bin", ".pt", ".pth", ".ckpt")


def open_archive(path: str | os.PathLike[str]) -> Archive:
    """Open a model file or folder.

    Parameters
    ----------
    path : path
        A safetensors, PyTorch, GGUF, ONNX or CTranslate2 file, the index of a sharded one, or
        a folder that holds one of them.

    Raises
    ------
    CheckpointError
        If there is no such file, or it is not whole and well-formed.
    """
    place = Path(path)
    with _refusing(place, "it cannot be opened"):
        file = _in_folder(place) if place.is_dir() else place
        _check_file(file, place)
        archive = _open_file(file)
        if not archive.tensors:
            raise CheckpointError(f"{file} holds no tensors; is it the model's weights?")
        return replace(archive, config=_read_config(file, archive.format))


def _check_file(file: Path, place: Path) -> None:
    if not file.is_file():
        raise CheckpointError(
            f"{place} is neither a model file nor a folder that holds one; check the path, and "
            "that a link leads to a file."
        )
    if not file.stat().st_size:
        raise CheckpointError(f"{file} is empty; fetch it anew.")
    shards = re.search(r"-of-(\d+)\.(?!gguf)\w+$", file.name)
    if shards and int(shards[1]) > 1:
        raise CheckpointError(
            f"{file} is one of {int(shards[1])} shards; give their folder, which must hold "
            "their index (*.index.json), too."
        )


def _in_folder(folder: Path) -> Path:
    for name in FIRST:
        if (folder / name).exists() or (folder / name).is_symlink():
            return folder / name
    found = sorted(p for p in folder.iterdir() if p.suffix in SUFFIXES and p.is_file())
    if len(found) == 1:
        return found[0]
    names = ", ".join(p.name for p in found[:5])
    raise CheckpointError(
        f"{folder} holds {len(found)} model files ({names}); name the file to read."
        if found
        else f"{folder} holds no model file (one of *{', *'.join(SUFFIXES)}); check the path."
    )


def _open_file(file: Path) -> Archive:
    """Choose the reader by the name where it says enough, else by the first bytes."""
    with open(file, "rb") as stream:
        head = stream.read(64)
    if file.name.endswith(".index.json"):
        return _open_index(file)
    if file.suffix == ".safetensors" or head[8:9] == b"{":
        return _open_safetensors(file)
    if file.suffix == ".gguf" or head[:4] == b"GGUF":
        return _open_gguf(file)
    if file.suffix == ".onnx":
        return _open_onnx(file)
    if head[:2] == b"PK" or head[:1] == b"\x80":
        return _open_torch(file)
    if b"Spec\0" in head:
        return _open_ctranslate2(file)
    raise CheckpointError(
        f"{file} is not a safetensors, PyTorch, GGUF, ONNX or CTranslate2 file; it begins with "
        f"{head[:8]!r}."
    )


def _read_config(file: Path, format: str) -> Mapping[str, Any]:
    """The model's config.json; GGUF and CTranslate2 files carry their own."""
    if format in ("GGUF", "CTranslate2"):
        return {}
    folders = [file.parent, *([file.parent.parent] if file.parent.name == "onnx" else [])]
    return next((_read_json(f / "config.json") for f in folders if _has(f, "config.json")), {})


def _has(folder: Path, name: str) -> bool:
    return (folder / name).is_file()


def _read_json(path: Path) -> dict[str, Any]:
    with _refusing(path, "it is not valid JSON"):
        if path.stat().st_size > MAX_JSON:
            raise CheckpointError(f"{path} is larger than {MAX_JSON:,} bytes; it is no such file.")
        return _json_object(path.read_bytes(), path)


def _json_object(text: bytes, path: Path) -> dict[str, Any]:
    found = json.loads(text.decode("utf-8"), object_pairs_hook=_without_duplicates)
    if not isinstance(found, dict):
        raise CheckpointError(f"{path}: its JSON is a {type(found).__name__}; expected an object.")
    return found


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice")
    return found


# --- Shards ------------------------------------------------------------------------------------


def _open_index(index: Path) -> Archive:
    """Open all shards that an index names; all lie beside it."""
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no weight_map; expected tensor names with files.")
    shards = {name: _open_shard(index, name) for name in sorted(set(map(str, weight_map.values())))}
    tensors = {}
    for name, shard in weight_map.items():
        if name not in shards[str(shard)].tensors:
            raise CheckpointError(f"{index}: {name} is not in {shard}, though the index says so.")
        tensors[name] = shards[str(shard)].tensors[name]
    formats = {shard.format for shard in shards.values()}
    return Archive(index, f"{' and '.join(sorted(formats))} in {len(shards)} shards", tensors)


def _open_shard(index: Path, name: str) -> Archive:
    if name != Path(name).name or "\\" in name or name in ("", ".", ".."):
        raise CheckpointError(
            f"{index} names the shard {name!r}; shards must lie beside their index, and nothing "
            "else is opened."
        )
    shard = index.parent / name
    if not shard.is_file():
        raise CheckpointError(f"{index} names the shard {name}, which is missing; fetch it.")
    if not shard.stat().st_size:
        raise CheckpointError(f"{shard} is empty; fetch it anew.")
    if name.endswith(".index.json"):
        raise CheckpointError(f"{index} names another index, {name}, as a shard.")
    return _open_file(shard)


# --- Numbers at a place in a file --------------------------------------------------------------


def _decode(path: Path, dtype: str, shape: tuple[int, ...], offset: int) -> Array:
    """Read numbers with an ordinary read: a file cut short meanwhile is an error, not a crash."""
    raw = np.fromfile(path, STORED[dtype], count=math.prod(shape), offset=offset)
    values = (raw.astype("<u4") << 16).view("<f4") if dtype == "BF16" else raw
    return values.reshape(shape)


def _stored_tensor(
    path: Path, name: str, dtype: str, shape: tuple[int, ...], offset: int
) -> Tensor:
    load: Callable[[], Array] = lambda: _decode(path, dtype, shape, offset)  # noqa: E731
    return Tensor(name, shape, dtype, path, load, readable=dtype in STORED)


def _check_places(path: Path, places: Iterable[tuple[int, int, str]], end: int) -> None:
    """Refuse tensors that overlap or reach beyond the file; places are (begin, end, name)."""
    last, before = 0, ""
    for begin, stop, name in sorted(places):
        if begin < last and stop > begin:
            raise CheckpointError(f"{path}: {name} overlaps {before}; the file is damaged.")
        if stop > end:
            raise CheckpointError(
                f"{path}: {name} ends at byte {stop:,} of {end:,}; the file is cut short. "
                "Fetch it anew."
            )
        last, before = max(last, stop), name


# --- safetensors -------------------------------------------------------------------------------

WIDTHS = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E5M2": 1,
    "F8_E4M3": 1,
    "F8_E8M0": 1,
    "F8_E4M3FNUZ": 1,
    "F8_E5M2FNUZ": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "C64": 8,
}


def _open_safetensors(path: Path) -> Archive:
    """Parse the header: eight bytes of length, then JSON with dtype, shape and place of each."""
    size = path.stat().st_size
    with open(path, "rb") as stream:
        cursor = _Cursor(stream, size, path)
        length = cursor.number("<Q")
        if length > min(size - 8, MAX_JSON):
            raise CheckpointError(
                f"{path}: its header claims {length:,} bytes in a file of {size:,}; it is cut "
                "short or no safetensors file. Fetch it anew."
            )
        with _refusing(path, "its header is not valid JSON"):
            header = _json_object(cursor.take(length), path)
    notes = header.pop("__metadata__", {})
    start = 8 + length
    places = {name: _safetensors_place(path, name, entry) for name, entry in header.items()}
    _check_places(path, [(b, e, n) for n, (_, _, b, e) in places.items()], size - start)
    _check_no_gap(path, [(b, e) for _, _, b, e in places.values()], size - start)
    tensors = {
        name: _stored_tensor(path, name, dtype, shape, start + begin)
        for name, (dtype, shape, begin, _) in places.items()
    }
    return Archive(path, "safetensors", tensors, notes if isinstance(notes, dict) else {})


def _safetensors_place(path: Path, name: str, entry: Any) -> tuple[str, tuple[int, ...], int, int]:
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        counts = (*shape, begin, end)
    except (TypeError, KeyError, ValueError):
        counts = (None,)
    if any(type(n) is not int or n < 0 for n in counts) or dtype not in WIDTHS:
        raise CheckpointError(
            f"{path}: the header's entry for {name} is malformed; expected a known dtype, a "
            "shape and two offsets."
        )
    if end - begin != math.prod(shape) * WIDTHS[dtype]:
        raise CheckpointError(
            f"{path}: {name} of shape {shape} and dtype {dtype} takes "
            f"{math.prod(shape) * WIDTHS[dtype]:,} bytes; its place has {end - begin:,}."
        )
    return dtype, shape, begin, end


def _check_no_gap(path: Path, places: list[tuple[int, int]], end: int) -> None:
    """The format leaves no byte unclaimed, so a gap is a sign of damage."""
    used = sum(stop - begin for begin, stop in places)
    if used != end:
        raise CheckpointError(
            f"{path}: its tensors take {used:,} bytes and its data {end:,}; the file is damaged "
            "or cut short. Fetch it anew."
        )


class _Cursor:
    """Reads a file from front to back and never beyond its end."""

    def __init__(self, stream: BinaryIO, size: int, path: Path) -> None:
        self.stream, self.size, self.path = stream, size, path

    @property
    def place(self) -> int:
        return self.stream.tell()

    def require(self, count: int) -> None:
        if count > self.size - self.place:
            raise CheckpointError(
                f"{self.path} is cut short or damaged: {count:,} bytes are claimed at byte "
                f"{self.place:,} of {self.size:,}. Fetch it anew."
            )

    def take(self, count: int) -> bytes:
        self.require(count)
        found = self.stream.read(count)
        if len(found) != count:
            raise CheckpointError(f"{self.path} is cut short at byte {self.place:,}.")
        return found

    def skip(self, count: int) -> None:
        self.require(count)
        self.stream.seek(count, os.SEEK_CUR)

    def numbers(self, code: str) -> tuple[Any, ...]:
        return struct.unpack(code, self.take(struct.calcsize(code)))

    def number(self, code: str) -> Any:
        return self.numbers(code)[0]


# --- PyTorch -----------------------------------------------------------------------------------

WRAPPERS = ("state_dict", "model_state_dict", "model", "module")


def _package(name: str, path: Path) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise CheckpointError(
            f"{path} needs the package {name.partition('.')[0]}; install it with "
            "`pip install 'mhanw[checkpoints]'`."
        ) from None


def _open_torch(path: Path) -> Archive:
    """Load tensors and plain containers only; a pickle that asks for more is refused unrun."""
    torch = _package("torch", path)
    if tuple(int(n) for n in torch.__version__.split(".")[:2]) < (2, 6):  # CVE-2025-32434
        raise CheckpointError(f"{path} needs PyTorch 2.6 or newer, whose loader runs no code.")
    zipped = zipfile.is_zipfile(path)
    if zipped:
        _check_zip(path)
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except Exception as error:  # PyTorch's readers raise all sorts of things
        raise CheckpointError(
            f"{path} is not read by PyTorch ({type(error).__name__}): it is damaged, or holds "
            "more than tensors, and code in model files is never run."
        ) from None
    limit = path.stat().st_size
    state = _state_dict(loaded, torch)
    tensors = {name: _torch_tensor(path, name, value, torch, limit) for name, value in state}
    return Archive(path, "PyTorch", tensors)


def _check_zip(path: Path) -> None:
    """Refuse archives that would grow when read; PyTorch stores and does not compress."""
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    grown = any(e.compress_type != zipfile.ZIP_STORED for e in entries)
    if grown or sum(e.file_size for e in entries) > path.stat().st_size:
        raise CheckpointError(f"{path} is a compressed archive; PyTorch stores its files as is.")


def _state_dict(loaded: Any, torch: Any) -> list[tuple[str, Any]]:
    """The tensors by name, from under one of the usual wrappers if need be."""
    if not isinstance(loaded, dict):
        return []
    inner = next((loaded[w] for w in WRAPPERS if isinstance(loaded.get(w), dict)), loaded)
    return [(k, v) for k, v in inner.items() if isinstance(k, str) and torch.is_tensor(v)]


def _torch_tensor(path: Path, name: str, value: Any, torch: Any, limit: int) -> Tensor:
    dtypes = {
        torch.float64: "F64",
        torch.float32: "F32",
        torch.float16: "F16",
        torch.bfloat16: "BF16",
    }
    if value.numel() * value.element_size() > limit:
        raise CheckpointError(
            f"{path}: {name} claims shape {tuple(value.shape)}, more than the file's {limit:,} "
            "bytes can hold."
        )
    plain = value.layout == torch.strided and value.device.type == "cpu"
    kind = torch.float64 if value.dtype == torch.float64 else torch.float32
    return Tensor(
        name=name,
        shape=tuple(value.shape),
        dtype=dtypes.get(value.dtype, str(value.dtype)),
        source=path,
        load=lambda: value.detach().to(kind).numpy(),
        readable=plain and value.dtype in dtypes,
    )


# --- GGUF --------------------------------------------------------------------------------------

NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
TEXT, LIST = 8, 9
FLOATS = {0: "F32", 1: "F16", 28: "F64", 30: "BF16"}
MAX_LIST = 4096  # longer ones are vocabularies


def _open_gguf(path: Path) -> Archive:
    """Parse metadata and tensor places; the package gguf only undoes quantisation."""
    size = path.stat().st_size
    with open(path, "rb") as stream:
        cursor = _Cursor(stream, size, path)
        magic, version = cursor.numbers("<4sI")
        if magic != b"GGUF" or version not in (2, 3):
            raise CheckpointError(
                f"{path} begins with {magic!r} and version {version}; expected GGUF 2 or 3 in "
                "little-endian order."
            )
        n_tensors, n_settings = cursor.numbers("<QQ")
        cursor.require(n_tensors * 24 + n_settings * 13)
        metadata = dict(_gguf_setting(cursor) for _ in range(n_settings))
        heads = [_gguf_tensor_head(cursor) for _ in range(n_tensors)]
        start = _aligned(cursor.place, metadata.get("general.alignment", 32), path)
    if metadata.get("split.count", 1) not in (0, 1):
        raise CheckpointError(f"{path} is one of several pieces; merge them first (gguf-split).")
    placed = [_gguf_tensor(path, start, *head) for head in heads]
    _check_places(path, [(place, place + n, t.name) for t, place, n in placed], size)
    return Archive(path, "GGUF", _by_name(path, [t for t, _, _ in placed]), metadata)


def _by_name(path: Path, tensors: list[Tensor]) -> dict[str, Tensor]:
    found = {tensor.name: tensor for tensor in tensors}
    if len(found) != len(tensors):
        raise CheckpointError(f"{path} has two tensors of one name; it is damaged.")
    return found


def _aligned(place: int, alignment: Any, path: Path) -> int:
    if type(alignment) is not int or not 1 <= alignment <= 1 << 20:
        raise CheckpointError(f"{path}: general.alignment is {str(alignment)[:40]}.")
    return -(-place // alignment) * alignment


def _gguf_text(cursor: _Cursor) -> str:
    return cursor.take(cursor.number("<Q")).decode("utf-8")


def _gguf_setting(cursor: _Cursor) -> tuple[str, Any]:
    name, kind = _gguf_text(cursor), cursor.number("<I")
    return name, _gguf_value(cursor, kind)


def _gguf_value(cursor: _Cursor, kind: int) -> Any:
    if kind == TEXT:
        return _gguf_text(cursor)
    if kind == LIST:
        return _gguf_list(cursor)
    if kind not in NUMBERS:
        raise CheckpointError(f"{cursor.path}: a setting is of unknown type {kind}.")
    return cursor.number("<" + NUMBERS[kind])


def _gguf_list(cursor: _Cursor) -> Any:
    """A short list of numbers; vocabularies and lists of lists are passed over."""
    kind, count = cursor.numbers("<IQ")
    if kind == TEXT:
        cursor.require(count * 8)
        for _ in range(count):
            cursor.skip(cursor.number("<Q"))
        return None
    if kind == LIST or kind not in NUMBERS:
        raise CheckpointError(f"{cursor.path}: a setting is a list of type {kind}; not read.")
    code = f"<{count}{NUMBERS[kind]}"
    if count > MAX_LIST:
        cursor.skip(count * struct.calcsize("<" + NUMBERS[kind]))
        return None
    return list(cursor.numbers(code))


def _gguf_tensor_head(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name, n_axes = _gguf_text(cursor), cursor.number("<I")
    if n_axes > 8:
        raise CheckpointError(f"{cursor.path}: {name} claims {n_axes} axes; it is damaged.")
    axes = cursor.numbers(f"<{n_axes}Q")
    kind, offset = cursor.numbers("<IQ")
    return name, axes[::-1], kind, offset


def _gguf_tensor(
    path: Path, start: int, name: str, shape: tuple[int, ...], kind: int, offset: int
) -> tuple[Tensor, int, int]:
    """A tensor, its place and its number of bytes."""
    place = start + offset
    if kind in FLOATS:
        tensor = _stored_tensor(path, name, FLOATS[kind], shape, place)
        return tensor, place, math.prod(shape) * WIDTHS[FLOATS[kind]]
    gguf = _package("gguf", path)
    try:
        quantised = gguf.GGMLQuantizationType(kind)
        block, width = gguf.GGML_QUANT_SIZES[quantised]
    except (ValueError, KeyError):
        raise CheckpointError(f"{path}: {name} is of unknown type {kind}.") from None
    if not shape or shape[-1] % block:
        raise CheckpointError(
            f"{path}: {name} of shape {shape} is no whole number of {quantised.name} blocks of "
            f"{block}."
        )
    rows = (math.prod(shape[:-1]), shape[-1] // block * width)
    load: Callable[[], Array] = lambda: _dequantise(path, quantised, rows, shape, place)  # noqa: E731
    readable = quantised.name[0] not in "IF" or quantised.name.startswith("IQ")
    return Tensor(name, shape, quantised.name, path, load, readable), place, math.prod(rows)


def _dequantise(
    path: Path, quantised: Any, rows: tuple[int, int], shape: tuple[int, ...], place: int
) -> Array:
    quants = _package("gguf.quants", path)
    raw = np.fromfile(path, np.uint8, count=math.prod(rows), offset=place).reshape(rows)
    try:
        with np.errstate(all="ignore"):  # what is not finite is refused afterwards
            return np.asarray(quants.dequantize(raw, quantised)).reshape(shape)
    except NotImplementedError:  # how gguf says that it knows a type and cannot undo it
        raise CheckpointError(f"{path}: the type {quantised.name} is not read.") from None


# --- CTranslate2 -------------------------------------------------------------------------------

CT2_DTYPES = ("F32", "I8", "I16", "I32", "F16", "BF16")


def _open_ctranslate2(path: Path) -> Archive:
    """Parse the list of variables: name, shape, type and bytes of each, then their aliases.

    Layout: CTranslate2's `model_spec.py`, binary versions 4 to 6.
    """
    size = path.stat().st_size
    with open(path, "rb") as stream:
        cursor = _Cursor(stream, size, path)
        version = cursor.number("<I")
        if not 4 <= version <= 6:
            raise CheckpointError(
                f"{path} is a CTranslate2 model of binary version {version}; 4 to 6 are read. "
                "Convert the model anew."
            )
        spec, _, count = _ct2_text(cursor), cursor.number("<I"), cursor.number("<I")
        cursor.require(count * 8)
        variables = [_ct2_variable(cursor) for _ in range(count)]
        aliases = [(_ct2_text(cursor), _ct2_text(cursor)) for _ in range(cursor.number("<I"))]
    stored = _by_name(path, variables)
    tensors = {name: _with_scale(tensor, stored) for name, tensor in stored.items()}
    for alias, name in aliases:
        if name not in tensors:
            raise CheckpointError(f"{path}: {alias} stands for {name}, which is not there.")
        tensors[alias] = tensors[name]
    return Archive(path, "CTranslate2", tensors, {"spec": spec, **_ct2_scalars(path, stored)})


def _ct2_text(cursor: _Cursor) -> str:
    return cursor.take(cursor.number("<H")).rstrip(b"\0").decode("utf-8")


def _ct2_variable(cursor: _Cursor) -> Tensor:
    name, n_axes = _ct2_text(cursor), cursor.number("<B")
    shape = cursor.numbers(f"<{n_axes}I")
    kind, n_bytes = cursor.numbers("<BI")
    if kind >= len(CT2_DTYPES) or n_bytes != math.prod(shape) * WIDTHS[CT2_DTYPES[kind]]:
        raise CheckpointError(
            f"{cursor.path}: {name} of shape {shape} and type {kind} has {n_bytes:,} bytes, "
            "which do not fit; it is damaged."
        )
    tensor = _stored_tensor(cursor.path, name, CT2_DTYPES[kind], shape, cursor.place)
    if tensor.dtype in INTEGERS:
        place = cursor.place
        tensor = replace(tensor, load=lambda: _integers(cursor.path, tensor.dtype, shape, place))
    cursor.skip(n_bytes)
    return tensor


INTEGERS = {"I8": "i1", "I16": "<i2", "I32": "<i4"}


def _integers(path: Path, dtype: str, shape: tuple[int, ...], place: int) -> Array:
    """Whole numbers as float64, which holds all of 32 bits."""
    raw = np.fromfile(path, INTEGERS[dtype], count=math.prod(shape), offset=place)
    return raw.reshape(shape).astype(np.float64)


def _with_scale(tensor: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
    """Make 8 and 16 bit weights readable: each row is divided by its scale."""
    scale = tensors.get(f"{tensor.name}_scale")
    if tensor.dtype not in ("I8", "I16") or scale is None or len(tensor.shape) != 2:
        return tensor

    def load() -> Array:
        with np.errstate(all="ignore"):  # a scale of zero gives what is refused as not finite
            return (tensor.load() / scale.read().reshape(-1, 1)).astype(np.float32)

    return replace(tensor, load=load, readable=True)


def _ct2_scalars(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Settings such as the number of heads are variables without axes."""
    whole = (t for t in tensors.values() if not t.shape and t.dtype in INTEGERS)
    return {tensor.name: int(tensor.load().item()) for tensor in whole}


# --- ONNX --------------------------------------------------------------------------------------


def _open_onnx(path: Path) -> Archive:
    """Read the initializers of the graph, and the matrices of named projections by their names."""
    onnx = _package("onnx", path)
    with _refusing(path, "it is not read as ONNX"):
        model = onnx.load_model(str(path), load_external_data=False)
        if not model.ir_version or not model.opset_import:
            raise CheckpointError(f"{path} is cut short or no ONNX model. Fetch it anew.")
        stored = [_onnx_tensor(path, entry, onnx) for entry in model.graph.initializer]
        tensors = _by_name(path, stored)
        named = _onnx_projections(model.graph, tensors)
    return Archive(path, "ONNX", {**tensors, **named})


def _onnx_tensor(path: Path, entry: Any, onnx: Any) -> Tensor:
    types = onnx.TensorProto
    dtypes = {types.DOUBLE: "F64", types.FLOAT: "F32", types.FLOAT16: "F16", types.BFLOAT16: "BF16"}
    dtype = dtypes.get(entry.data_type, f"ONNX type {entry.data_type}")
    shape = tuple(entry.dims)
    if min(shape, default=0) < 0 or not isinstance(entry.name, str):
        raise CheckpointError(f"{path}: {entry.name!r} has shape {shape}; the file is damaged.")
    if entry.data_location == types.EXTERNAL:
        return _onnx_external(path, entry, dtype, shape)
    load: Callable[[], Array] = lambda: _onnx_numbers(entry, onnx)  # noqa: E731
    return Tensor(entry.name, shape, dtype, path, load, readable=dtype in STORED)


def _onnx_numbers(entry: Any, onnx: Any) -> Array:
    values = np.asarray(onnx.numpy_helper.to_array(entry))
    return values if values.dtype == np.float64 else values.astype(np.float32)


def _onnx_external(path: Path, entry: Any, dtype: str, shape: tuple[int, ...]) -> Tensor:
    """A tensor in a file of raw numbers, which must lie in the model's own folder."""
    where = {item.key: item.value for item in entry.external_data}
    place, size = _confined(path, where.get("location", ""))
    offset = int(where.get("offset", "0"))
    n_bytes = math.prod(shape) * WIDTHS.get(dtype, 0)
    wrong = dtype in STORED and int(where.get("length", n_bytes)) != n_bytes
    if wrong or offset < 0 or offset + n_bytes > size:
        raise CheckpointError(
            f"{path}: {entry.name} of shape {shape} takes {n_bytes:,} bytes from byte "
            f"{offset:,} of {place.name}, which has {size:,}; the two do not belong together."
        )
    return replace(_stored_tensor(place, entry.name, dtype, shape, offset), source=place)


def _confined(path: Path, location: str) -> tuple[Path, int]:
    """The external file and its size, if it is a plain file inside the model's folder."""
    place = path.parent / location
    folder = path.parent.resolve()
    inside = bool(location) and "\\" not in location and not Path(location).is_absolute()
    if not inside or ".." in Path(location).parts or folder not in place.resolve().parents:
        raise CheckpointError(
            f"{path} keeps numbers in {location!r}, outside its folder; such files are not "
            "opened. Copy the numbers beside the model."
        )
    if not place.is_file():
        raise CheckpointError(f"{path} keeps numbers in {location}, which is missing; fetch it.")
    return place, place.stat().st_size


def _onnx_projections(graph: Any, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Matrices without a name of their own, under that of the module that multiplies by them.

    An exporter keeps the bias `a.b.bias` but calls its transposed matrix `onnx::MatMul_1`.
    """
    found = {}
    adds = {i: node for node in graph.node if node.op_type == "Add" for i in node.input}
    for node in graph.node:
        if node.op_type != "MatMul" or len(node.input) != 2 or node.input[1] not in tensors:
            continue
        tensor = tensors[node.input[1]]
        after = adds.get(node.output[0]) if node.output else None
        biases = [i for i in after.input if i.endswith(".bias") and i in tensors] if after else []
        name = (biases[0].removesuffix("bias") if biases else _module_of(node.name)) + "weight"
        if not tensor.name.endswith("weight") and name != "weight" and name not in tensors:
            found[name] = replace(tensor.T, name=name)
    return found


def _module_of(node_name: str) -> str:
    """`/encoder/layer.0/attention/self/key/MatMul` belongs to `encoder.layer.0...key.`."""
    return node_name.strip("/").removesuffix("MatMul").replace("/", ".")
