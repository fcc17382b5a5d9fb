"""`mhanw run`: a chapter with other parameters, away from the committed twins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from books import call_in, cell, make_book, page, prints, show

from mhanw import CallError, book


@pytest.fixture
def root(register: Any, tmp_path: Path) -> Path:
    """A book of two chapters, not executed."""
    echo = cell("print([seed, scale, folder, loud])")
    last = [show(name, decisive="fixed") for name in list(register)[1:5]]
    one = page("Kernels", echo, show("kernel-is-good"), *last)
    return make_book(tmp_path / "book", c1_kernels=one, ledgers=page("X"), ledger="# Ledger\n")


def printed(notebook: Path) -> str:
    cells = nbformat.read(notebook, as_version=4).cells
    return "".join(o.get("text", "") for c in cells for o in c.get("outputs", []))


def test_typed_parameters_reach_the_copy_and_chapters_stay(root: Path) -> None:
    call_in(root, "refresh", "1")
    before = prints(root / "chapters")
    pairs = ["-p", "seed", "11", "-p", "scale", "2", "-p", "folder", "7", "-p", "loud", "True"]
    result = call_in(root, "run", "1", *pairs)
    (copy,) = (root / "runs").iterdir()
    assert copy.name == "1_kernels-seed=11-scale=2.0-folder=7-loud=True.ipynb"
    assert printed(copy) == "[11, 2.0, '7', True]\n"
    assert prints(root / "chapters") == before
    assert result.exit_code == 0
    line = next(x for x in result.stdout.splitlines() if "kernel-is-good" in x)
    assert line.split() == ["kernel-is-good", "holds:", "7", "holds:", "11"]
    assert "no-card" not in result.stdout, "only what changed is shown"


def test_without_a_twin_and_with_red_evidence(root: Path) -> None:
    source = root / "chapters" / "1_kernels.md"
    source.write_text(page("Kernels", show("kernel-is-good", verdict="open")))
    result = call_in(root, "run", "1_k", "--output", str(root / "copy.ipynb"))
    assert (root / "copy.ipynb").exists()
    assert "no committed twin" in result.stdout
    assert "kernel-is-good: the evidence says 'open'" in result.stderr
    assert result.exit_code == 1


def test_raising_chapter_leaves_no_copy(root: Path) -> None:
    (root / "chapters" / "1_kernels.md").write_text(page("K", cell("1 / 0")))
    result = call_in(root, "run", "1")
    assert result.exit_code == 1
    sentence = "chapters/1_kernels.md, code cell 2: raised ZeroDivisionError: division by zero.\n"
    assert result.stderr == sentence
    assert not (root / "runs").exists()


def test_injected_parameters_do_not_shift_the_cell_number(root: Path) -> None:
    (root / "chapters" / "1_kernels.md").write_text(page("K", cell("1 / 0")))
    result = call_in(root, "run", "1", "-p", "seed", "8")
    assert "code cell 2: raised" in result.stderr


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["9"], "'9' is no chapter: 1_kernels, ledgers, ledger."),
        (
            ["1_kernel", "-p", "sed", "3"],
            "has no parameter 'sed'; it has: seed, scale, folder, loud. D",
        ),
        (
            ["1", "-p", "seed", "x"],
            "seed is 7 by default, so a value of type int was expected; found 'x'",
        ),
        (["1", "-p", "seed", "1.5"], "type int was expected; found '1.5'"),
        (["1", "-p", "seed", "-1"], "seed is a seed or a count, not negative; found '-1'"),
        (["1", "-p", "loud", "1"], "type bool was expected; found '1'"),
        (["1", "-p", "scale", "((((((("], "type float was expected"),
        (["1", "-p", "seed"], "type int was expected; found ''"),
        (["1", "-p"], "-p takes a NAME and a VALUE."),
        (
            ["ledger", "-p", "seed", "3"],
            "chapters/ledger.md has no parameter 'seed'; it has: none.",
        ),
        (["1", "--output", "chapters/1_kernels.ipynb"], "holds the committed twins only"),
        (["1", "--output", "nowhere/x.ipynb"], "nowhere/x.ipynb cannot be written"),
    ],
)
def test_wrong_calls_are_sentences(root: Path, args: list[str], sentence: str) -> None:
    result = call_in(root, "run", *args)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert not (root / "runs").exists()


def test_ambiguous_beginning_names_the_candidates(root: Path) -> None:
    with pytest.raises(CallError, match="'led' fits several chapters: ledgers, ledger"):
        book.pick(root, "led")
    assert book.pick(root, "ledger").name == "ledger"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "3",
        '"x"',
        "{}",
        '{"cells": 3}',
        '{"nbformat": 4, "nbformat_minor": 5, "cells": {}}',
        "\xff",
    ],
)
def test_corrupted_twin_is_a_sentence(root: Path, text: str) -> None:
    (root / "chapters" / "1_kernels.ipynb").write_bytes(text.encode("latin-1"))
    result = call_in(root, "run", "1")
    assert result.exit_code == 2
    assert "chapters/1_kernels.ipynb" in result.stderr
    assert "`mhanw refresh 1_kernels` writes it anew." in result.stderr


def test_json_of_copies_is_valid(root: Path) -> None:
    call_in(root, "run", "1")
    copy = root / "runs" / "1_kernels.ipynb"
    nbformat.validate(json.loads(copy.read_text()))
