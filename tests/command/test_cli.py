"""What every command shares: finding the book, saying what is wrong, exit codes."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest
from books import call_in, make_book, start

from mhanw import CallError, book


def test_version(tmp_path: Path) -> None:
    result = call_in(tmp_path, "--version")
    assert result.stdout == f"mhanw {metadata.version('mhanw')}\n"


def test_module_runs_as_a_command(tmp_path: Path) -> None:
    process = start(tmp_path, "--help")
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    for name in ("verify", "run", "refresh", "build", "models"):
        assert re.search(rf"\b{name}\b", out)


def test_book_is_found_from_below(tmp_path: Path) -> None:
    root = make_book(tmp_path / "book")
    assert book.find_root(root / "chapters") == root.resolve()


@pytest.mark.parametrize("missing", ["_toc.yml", "chapters"])
def test_without_a_book_there_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    root = make_book(tmp_path / "book")
    (root / missing).rename(tmp_path / "moved")
    monkeypatch.setattr(book, "__file__", str(tmp_path / "site-packages" / "mhanw" / "book.py"))
    with pytest.raises(CallError, match=r"expected a folder with _toc.yml and chapters/"):
        book.find_root(root)
    for args in (["verify"], ["run", "1"], ["refresh"], ["build"], ["models", "list"]):
        result = call_in(root, *args)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith("No book was found in ")


@pytest.mark.parametrize(
    "args", [["verifi"], ["verify", "--jobs", "0"], ["run"], ["run", "1", "-x"]]
)
def test_usage_errors_exit_2(tmp_path: Path, args: list[str]) -> None:
    assert call_in(make_book(tmp_path / "book"), *args).exit_code == 2
