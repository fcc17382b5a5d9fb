"""The repository keeps what its README says."""

from __future__ import annotations

import re
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


def pins(name: str) -> dict[str, str]:
    """Pinned versions by normalised name."""
    lines = re.findall(r"^([\w.-]+)==(\S+)", (ROOT / name).read_text(), re.M)
    return {re.sub(r"[_.]", "-", package).lower(): version for package, version in lines}


def tracked() -> list[Path]:
    """Files under version control."""
    command = ["git", "ls-files", "-z"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip("this copy of the book is no git checkout, so there is no list of its files")
    return [ROOT / name for name in found.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_readme_is_short_and_names_both_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) < 90
    for command in ("make book", "make test"):
        assert command in text


def test_lock_holds_every_direct_pin() -> None:
    lock = pins("requirements.lock")
    assert {k: lock.get(k) for k in pins("requirements.txt")} == pins("requirements.txt")
    assert "torch" not in lock


def test_jupyter_book_is_the_first() -> None:
    assert metadata.version("jupyter-book").startswith("1.")


def test_contents_lead_to_pages() -> None:
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text())
    files = [entry["file"] for part in toc["parts"] for entry in part["chapters"]]
    missing = [f for f in files if not any((ROOT / f"{f}{e}").exists() for e in (".ipynb", ".md"))]
    assert missing == []
    written = {f"chapters/{path.stem}" for path in (ROOT / "chapters").glob("*.md")}
    assert written <= set(files)


def test_vendored_scripts_are_no_static_files() -> None:
    config = yaml.safe_load((ROOT / "_config.yml").read_text())["sphinx"]["config"]
    assert "vendor" not in str(config.get("html_static_path", ""))
    assert list((ROOT / "_static").glob("**/*.js")) == []


def test_nothing_large_is_committed() -> None:
    assert [p.name for p in tracked() if p.stat().st_size > 3_000_000] == []
