"""`mhanw build`: a site if the evidence holds and nothing warns, else an exit code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from books import call_in, make_book, page, show

from mhanw import book

CONFIG = """title: Small
execute:
  execute_notebooks: "off"
exclude_patterns: [_build, "chapters/*.md"]
"""


@pytest.fixture
def root(register: Any, tmp_path: Path) -> Path:
    """A book that Jupyter Book can build."""
    root = make_book(tmp_path / "book")
    (root / "_config.yml").write_text(CONFIG)
    (root / "index.md").write_text("# Small\n\nA page.\n")
    return root


def test_good_book_gives_a_site_and_a_warning_an_error(root: Path) -> None:
    good = call_in(root, "build")
    assert good.exit_code == 0
    site = root / "_build" / "html" / "index.html"
    assert good.stdout.endswith(f"The site is {site}.\n")
    assert site.exists()
    (root / "index.md").write_text("# Small\n\n{ref}`nowhere`\n")
    warned = call_in(root, "build", "--no-verify")
    assert warned.exit_code == 1
    assert "The site was not built without warnings" in warned.stderr


def test_red_evidence_builds_nothing(root: Path) -> None:
    red = page("Kernels", show("kernel-is-good", verdict="fails"))
    (root / "chapters" / "1_kernels.md").write_text(red)
    result = call_in(root, "build")
    assert result.exit_code == 1
    assert "The site was not built: the evidence does not carry the register." in result.stderr
    assert not (root / "_build").exists()


@pytest.mark.parametrize("problem", ["absent", "2.0.1"])
def test_other_jupyter_book_is_a_sentence(
    root: Path, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    if problem == "absent":
        monkeypatch.setattr(sys, "executable", str(root / "bin" / "python"))
    else:
        monkeypatch.setattr(book.metadata, "version", lambda _: problem)
    result = call_in(root, "build", "--no-verify")
    assert result.exit_code == 2
    found = "none" if problem == "absent" else problem
    assert f"found version: {found}. Install the book's requirements.txt." in result.stderr
