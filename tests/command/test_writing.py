"""Where the command may write: a plain file, new or replaced as a whole, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from books import call_in

CALLS = {
    "json": ["design", "--budget", "512", "--n", "1e6", "--json"],
    "plot": ["design", "--budget", "512", "--n", "1e6", "--plot"],
}


@pytest.mark.parametrize("option", CALLS)
@pytest.mark.parametrize("kind", ["pipe", "link to a pipe", "closed file", "folder"])
def test_what_is_no_plain_file_stays_as_it_is(tmp_path: Path, option: str, kind: str) -> None:
    place, target = tmp_path / "out.png", tmp_path / "pipe"
    if "pipe" in kind:
        os.mkfifo(place if kind == "pipe" else target)
        if kind != "pipe":
            place.symlink_to(target)
    elif kind == "folder":
        place.mkdir()
    else:
        place.write_text("kept")
        place.chmod(0o444)
    before = {p.name: p.lstat().st_mode for p in tmp_path.iterdir()}
    result = call_in(tmp_path, *CALLS[option], "out.png")
    assert result.exit_code == 2
    assert "out.png" in result.stderr
    assert "cannot be written" in result.stderr or "no plain file" in result.stderr
    assert {p.name: p.lstat().st_mode for p in tmp_path.iterdir()} == before
    if kind == "closed file":
        assert place.read_text() == "kept"


@pytest.mark.parametrize("device", ["/dev/null", "/dev/full"])
def test_devices_are_refused_and_survive(tmp_path: Path, device: str) -> None:
    before = os.stat(device).st_mode
    result = call_in(tmp_path, *CALLS["json"], device)
    assert result.exit_code == 2
    assert os.stat(device).st_mode == before


@pytest.mark.parametrize("option", CALLS)
def test_an_open_file_is_replaced_and_nothing_is_left_beside_it(
    tmp_path: Path, option: str
) -> None:
    place = tmp_path / "out.png"
    place.write_text("old")
    assert call_in(tmp_path, *CALLS[option], "out.png").exit_code == 0
    assert place.read_bytes() != b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["out.png"]


@pytest.mark.parametrize("option", CALLS)
def test_a_link_to_a_file_stays_a_link(tmp_path: Path, option: str) -> None:
    (tmp_path / "kept").write_text("old")
    (tmp_path / "link.png").symlink_to("kept")
    assert call_in(tmp_path, *CALLS[option], "link.png").exit_code == 0
    assert (tmp_path / "link.png").is_symlink()
    start = b"\x89PNG" if option == "plot" else b"{"
    assert (tmp_path / "kept").read_bytes().startswith(start)
