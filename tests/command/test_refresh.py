"""`mhanw refresh`: twins are replaced whole, all or none, and twice the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
import pytest
from books import call_in, cell, gone, make_book, old_twins, page, prints, start, wait_for

from mhanw import book

FIGURE = """import matplotlib.pyplot as plt
figure, axes = plt.subplots(figsize=(1, 1))
_ = axes.plot([1, seed])"""
WHERE = "import os\nprint(os.getcwd(), os.path.realpath('../data'), os.listdir('../data'))"
LEDGER = """import json
from pathlib import Path
for path in sorted(Path().glob("[0-9]*.ipynb")):
    print(path.name, json.loads(path.read_text())["cells"][-1]["outputs"][0]["text"])"""
SLOW = """import os, pathlib, time
pathlib.Path("../data/kernel").write_text(f"{os.getpid()} {os.getcwd()}")
time.sleep(100)"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A book with data, whose ledger prints what the other twins end with."""
    one = page("One", cell(FIGURE), cell(WHERE), cell("{3: 1}\n"), cell("print('one', seed)"))
    two = page("Two", cell("print('two')"))
    ledger = page("Ledger", cell(LEDGER))
    root = make_book(tmp_path / "book", c1_one=one, c2_two=two, ledger=ledger)
    (root / "data").mkdir()
    (root / "data" / "points.csv").write_text("1,2\n")
    return root


def slow_down(root: Path) -> None:
    (root / "chapters" / "2_two.md").write_text(page("Two", cell(SLOW)))


def kernel(root: Path) -> tuple[int, Path]:
    """The slow chapter's kernel and where it runs, once it does."""
    file = root / "data" / "kernel"
    wait_for(lambda: file.exists() and " " in file.read_text())
    pid, folder = file.read_text().split(" ")
    file.unlink()
    return int(pid), Path(folder)


def text_of(path: Path) -> str:
    cells = nbformat.read(path, as_version=4).cells
    return "".join(o.get("text", "") for c in cells for o in c.get("outputs", []))


def test_two_refreshes_are_byte_identical_and_normal(root: Path) -> None:
    first = call_in(root, "refresh")
    twins = prints(root / "chapters")
    assert first.exit_code == 0
    again = call_in(root, "refresh")
    assert prints(root / "chapters") == twins
    assert [line.split(" ", 1)[1] for line in again.stdout.splitlines()] == ["is unchanged."] * 3

    path = root / "chapters" / "1_one.ipynb"
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert [c.id for c in notebook.cells] == [f"cell-{i:02d}" for i in range(1, 7)]
    assert [c.execution_count for c in notebook.cells[1:]] == [1, 2, 3, 4, 5]
    assert all(isinstance(c.metadata.tags, list) for c in notebook.cells)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert notebook.metadata.kernelspec.name == "python3"
    assert "version" not in notebook.metadata.language_info
    text = path.read_text()
    assert "image/png" in text
    for stray in ("papermill", "iopub", str(root), tempfile.gettempdir(), sys.version.split()[0]):
        assert stray not in text
    assert text_of(path) == "chapters data ['points.csv']\none 7\n"


def test_ledger_reads_the_new_twins_even_if_one_chapter_is_refreshed(root: Path) -> None:
    call_in(root, "refresh")
    source = root / "chapters" / "1_one.md"
    source.write_text(page("One", cell("print('changed')")))
    result = call_in(root, "refresh", "1")
    assert result.stdout.splitlines() == [
        "chapters/1_one.ipynb was replaced.",
        "chapters/ledger.ipynb was replaced.",
    ]
    ledger = text_of(root / "chapters" / "ledger.ipynb")
    assert "changed" in ledger
    assert "two" in ledger


@pytest.mark.parametrize("name", ["2_two", "ledger"])
def test_if_one_chapter_raises_none_is_replaced(root: Path, name: str) -> None:
    (root / "chapters" / "1_one.md").write_text(page("One", cell("print('changed')")))
    (root / "chapters" / f"{name}.md").write_text(page("Raises", cell("raise KeyError('gone')")))
    before = old_twins(root)
    result = call_in(root, "refresh")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        f"chapters/{name}.md, code cell 2: raised KeyError: 'gone'.",
        "No notebook was replaced.",
    ]
    assert prints(root / "chapters") == before


def test_chapter_that_writes_among_the_twins_does_not_reach_them(root: Path, register: Any) -> None:
    vandal = "for p in __import__('pathlib').Path().iterdir():\n    p.write_text('')"
    (root / "chapters" / "3_vandal.md").write_text(page("Vandal", cell(vandal)))
    before = prints(root / "chapters")
    call_in(root, "run", "3")
    assert (root / "runs" / "3_vandal.ipynb").exists()
    assert prints(root / "chapters") == before


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_stopped_refresh_leaves_chapters_whole_and_no_process(
    root: Path, how: signal.Signals, code: int
) -> None:
    slow_down(root)
    before = old_twins(root)
    process = start(root, "refresh", "--jobs", "2")
    pid, folder = kernel(root)
    process.send_signal(how)
    out, err = process.communicate(timeout=20)
    assert process.returncode == code
    assert (out, err) == ("", "Stopped.\n" if how == signal.SIGINT else "")
    assert prints(root / "chapters") == before
    wait_for(lambda: gone(pid))
    wait_for(lambda: not folder.exists())


DIES_WRITING = """
import os, pathlib, signal, sys
from mhanw import book
count = 0
def die(*args, real=os.{name}):
    global count
    count += 1
    if count == {n}:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*args)
os.{name} = die
folder = pathlib.Path("chapters")
book.replace({{folder / "1_one.ipynb": "new 1", folder / "2_two.ipynb": "new 2"}})
"""


@pytest.mark.parametrize(
    ("name", "n", "expected"),
    [
        ("fsync", 1, ["old 1", "old 2"]),
        ("fsync", 2, ["old 1", "old 2"]),
        ("replace", 1, ["old 1", "old 2"]),
        ("replace", 2, ["new 1", "old 2"]),
    ],
)
def test_kill_while_replacing_leaves_each_twin_whole(
    root: Path, name: str, n: int, expected: list[str]
) -> None:
    paths = [root / "chapters" / f"{x}.ipynb" for x in ("1_one", "2_two")]
    for i, path in enumerate(paths, start=1):
        path.write_text(f"old {i}")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    script = DIES_WRITING.format(name=name, n=n)
    process = subprocess.run([sys.executable, "-c", script], cwd=root, env=environment, check=False)
    assert process.returncode == -9
    assert [path.read_text() for path in paths] == expected
    left = [path for path in (root / "chapters").iterdir() if path not in paths]
    left = [path for path in left if path.suffix != ".md"]
    assert left, "this kill leaves something behind"
    assert all(path.name.startswith(".") and path.suffix == ".mhanw-part" for path in left)
    book.execute(root, [])  # every run sweeps first
    assert not [path for path in left if path.exists()]


def test_parts_of_a_running_refresh_are_left_alone(root: Path) -> None:
    own = root / "chapters" / f".1_one.ipynb.{os.getpid()}.mhanw-part"
    own.write_text("")
    book.sweep(root / "chapters")
    assert own.exists()


def test_read_only_chapters_are_a_sentence(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied", "chapters/2_two.ipynb")

    (root / "chapters" / "ledger.md").unlink()
    before = old_twins(root)
    monkeypatch.setattr(os, "replace", refuse)
    result = call_in(root, "refresh", "2")
    assert result.exit_code == 2
    assert result.stderr == "chapters/2_two.ipynb: Permission denied.\n"
    monkeypatch.undo()
    assert prints(root / "chapters") == before


def test_what_was_printed_in_pieces_is_joined() -> None:
    def printed(name: str, text: str) -> dict[str, str]:
        return {"output_type": "stream", "name": name, "text": text}

    pieces = [printed("stdout", "a\n"), printed("stdout", "b\n"), printed("stderr", "c\n")]
    cell = nbformat.v4.new_code_cell("pass", outputs=[nbformat.from_dict(p) for p in pieces])
    done = book.normalise(nbformat.v4.new_notebook(cells=[cell]))
    assert [(o.name, o.text) for o in done.cells[0].outputs] == [
        ("stdout", "a\nb\n"),
        ("stderr", "c\n"),
    ]
