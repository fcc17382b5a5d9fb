"""`mhanw verify`: what is green, what is red, and what is not there yet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from books import call_in, card, cell, make_book, page, prints, row, show
from typer.testing import Result

from mhanw import CallError, book

ACCEPTED = [
    {
        "kind": "measurement",
        "label": "bias",
        "about": "statement",
        "figure": "0.3 se",
        "passed": True,
        "controls": [{"label": "sign reversed", "figure": "0.2 se", "rejected": False}],
    }
]


@pytest.fixture(scope="module")
def verified(
    register: Any, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Result, dict[str, Any]]:
    """A book with one claim of every kind, verified once."""
    one = page(
        "Kernels",
        cell("import time\ntime.sleep(0.3)"),
        show("kernel-is-good"),
        show("verdict-differs", verdict="conditional"),
        show("control-accepted", evidence=ACCEPTED),
        show("evidence-lacks", ok=False, problems=["no measurement."]),
    )
    two = page("Raises", cell("def f():\n    raise ValueError('first\\nthe last line')\nf()"))
    root = make_book(tmp_path_factory.mktemp("book"), c1_kernels=one, c2_raises=two)
    before = prints(root)
    result = call_in(root, "verify", "--json", "found.json")
    data = json.loads((root / "found.json").read_text())
    (root / "found.json").unlink()
    assert prints(root) == before, "verify must not write into the book"
    return root, result, data


def claim(data: dict[str, Any], claim_id: str) -> dict[str, Any]:
    return next(c for c in data["claims"] if c["id"] == claim_id)


@pytest.mark.parametrize(
    ("claim_id", "status", "problem"),
    [
        ("kernel-is-good", "good", None),
        ("verdict-differs", "red", "the evidence says 'conditional', the register 'holds'."),
        ("control-accepted", "red", "a negative control was accepted."),
        ("evidence-lacks", "red", "no measurement."),
        ("no-card", "red", "chapters/1_kernels.md shows no card for it."),
        ("chapter-raises", "red", "chapters/2_raises.md shows no card for it."),
        ("not-written", "none", None),
    ],
)
def test_status_of_each_claim(
    verified: tuple[Path, Result, dict[str, Any]], claim_id: str, status: str, problem: str | None
) -> None:
    _, result, data = verified
    found = claim(data, claim_id)
    assert found["status"] == status
    assert found["problems"] == ([problem] if problem else [])
    assert claim_id in result.stdout
    if problem:
        assert f"{claim_id}: {problem}" in result.stdout


def test_red_evidence_exits_1_and_is_counted(
    verified: tuple[Path, Result, dict[str, Any]],
) -> None:
    _, result, data = verified
    assert result.exit_code == 1
    assert data["red"] is True
    assert "7 claims: 1 as registered, 5 red, 1 without evidence yet." in result.stdout


def test_raising_chapter_is_named_with_cell_and_last_line(
    verified: tuple[Path, Result, dict[str, Any]],
) -> None:
    _, result, data = verified
    sentence = "chapters/2_raises.md, code cell 2: raised ValueError: the last line."
    assert sentence in result.stdout.splitlines()
    assert sentence in data["problems"]


def test_table_and_json_carry_figure_control_and_seconds(
    verified: tuple[Path, Result, dict[str, Any]],
) -> None:
    _, result, data = verified
    good = claim(data, "kernel-is-good")
    assert (good["decisive"], good["control"], good["place"]) == ("7", "9.1 se", "Theorem 1")
    assert 0.3 <= good["seconds"] < 10, "the cells since the chapter's beginning"
    assert claim(data, "verdict-differs")["seconds"] < 0.3, "the cells since the previous card"
    line = next(x for x in result.stdout.splitlines() if "kernel-is-good" in x)
    assert line.split()[:4] == ["✓", "kernel-is-good", "Theorem", "1"]
    assert "9.1 se" in line


def test_ids_select_claims_and_chapters_and_seed_reaches_them(
    verified: tuple[Path, Result, dict[str, Any]],
) -> None:
    root, *_ = verified
    result = call_in(root, "verify", "kernel-is-good", "--seed", "11", "--json", "-")
    data = json.loads(result.stdout)
    assert [c["id"] for c in data["claims"]] == ["kernel-is-good"]
    assert (result.exit_code, data["problems"], data["seed"]) == (0, [], 11)
    assert data["claims"][0]["decisive"] == "11"
    assert "1 claims: 1 as registered" in result.stderr


def test_claims_of_unwritten_chapters_are_not_red(
    verified: tuple[Path, Result, dict[str, Any]],
) -> None:
    root, *_ = verified
    result = call_in(root, "verify", "not-written")
    assert result.exit_code == 0
    assert "no evidence yet" in result.stdout


def test_unknown_id_names_the_closest(register: Any, tmp_path: Path) -> None:
    result = call_in(make_book(tmp_path / "b"), "verify", "kernel-is-god")
    assert result.exit_code == 2
    assert "'kernel-is-god' is not a claim of the register." in result.stderr
    assert "kernel-is-good" in result.stderr


@pytest.mark.parametrize("file", ["nowhere/found.json", "."])
def test_unwritable_json_is_refused_before_anything_runs(
    register: Any, tmp_path: Path, file: str
) -> None:
    root = make_book(tmp_path / "b", c1_x=page("X", cell("open('../ran', 'w')")))
    result = call_in(root, "verify", "--json", file)
    assert result.exit_code == 2
    assert f"{file} cannot be written" in result.stderr
    assert not (root / "ran").exists()


def test_seed_is_refused_where_a_chapter_has_none(register: Any, tmp_path: Path) -> None:
    root = make_book(tmp_path / "b", c1_x="# X\n")
    result = call_in(root, "verify", "--seed", "3")
    assert result.exit_code == 2
    assert "chapters/1_x.md has no parameter 'seed'" in result.stderr


def test_chapter_that_does_not_end_is_stopped(register: Any, tmp_path: Path) -> None:
    endless = page("Endless", cell("import time\ntime.sleep(100)"))
    root = make_book(tmp_path / "b", c1_endless=endless)
    result = call_in(root, "verify", "no-card", "--time-limit", "3")
    assert result.exit_code == 1
    sentence = "chapters/1_endless.md, code cell 2: did not end within 3 seconds."
    assert sentence in result.stdout


def test_kernel_that_dies_is_a_sentence(register: Any, tmp_path: Path) -> None:
    dies = page("Dies", cell("import os\nos._exit(3)"))
    root = make_book(tmp_path / "b", c1_dies=dies)
    result = call_in(root, "verify", "no-card")
    assert result.exit_code == 1
    assert "chapters/1_dies.md, code cell 2: the process that executed it" in result.stdout
    assert "Kernel died" in result.stdout


# --- Judging, without executing --------------------------------------------------------------


def outcome(tmp_path: Path, *cards: dict[str, Any], name: str = "1_kernels") -> book.Outcome:
    """What an executed chapter with these cards comes to."""
    outputs = [
        {
            "output_type": "display_data",
            "metadata": {},
            "data": {"application/vnd.mhanw.claim+json": c},
        }
        for c in cards
    ]
    code = {"cell_type": "code", "metadata": {}, "source": "", "execution_count": 1, "id": "a"}
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}}
    path = tmp_path / "executed.ipynb"
    path.write_text(json.dumps({**notebook, "cells": [{**code, "outputs": outputs}]}))
    return book.Outcome.read(book.Chapter(tmp_path / f"{name}.md"), path)


def test_card_in_order_is_good(tmp_path: Path) -> None:
    assert book.judge(row("a", 1), outcome(tmp_path, card("a"))).status == "good"


def test_card_that_calls_itself_not_ok_is_red_even_without_a_reason(tmp_path: Path) -> None:
    found = book.judge(row("a", 1), outcome(tmp_path, card("a", ok=False)))
    assert found.problems == ("its card is not in order.",)


def test_card_whose_register_is_out_of_date_is_red(tmp_path: Path) -> None:
    stale = card("a", verdict="fails", register="fails")
    assert book.judge(row("a", 1), outcome(tmp_path, stale)).status == "red"


def test_two_cards_of_one_claim_are_refused(tmp_path: Path) -> None:
    assert "two cards" in outcome(tmp_path, card("a"), card("a")).failure


@pytest.mark.parametrize("key", book.CARD)
def test_incomplete_card_is_refused(tmp_path: Path, key: str) -> None:
    broken = {k: v for k, v in card("a").items() if k != key}
    assert "a card" in (failure := outcome(tmp_path, broken).failure) or f"lacks {key}" in failure


def test_card_of_another_chapter_or_of_no_claim_is_a_problem(register: Any, tmp_path: Path) -> None:
    strays = outcome(tmp_path, card("chapter-raises"), card("nobody"), card("kernel-is-good"))
    assert [p.split()[5].rstrip(",") for p in strays.problems()] == ["chapter-raises", "nobody"]


# --- Sources that cannot be read -------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        b"\xff\xfe\x00garbage",
        b"---\nkernelspec: [unclosed\n---\n# X\n",
        b"---\n- a\n- b\n---\n# X\n",
        b"---\nkernelspec: 3\njupytext: 4\n---\n# X\n",
        b"```{code-cell}\n---\ntags: [unclosed\n---\n1\n```\n",
        b"```{code-cell}\n:tags: parameters\nseed = 1\n```\n",
    ],
)
def test_corrupted_source_is_a_sentence(register: Any, tmp_path: Path, text: bytes) -> None:
    root = make_book(tmp_path / "b")
    (root / "chapters" / "1_broken.md").write_bytes(text)
    result = call_in(root, "verify")
    assert result.exit_code == 2
    assert result.stderr.startswith("chapters/1_broken.md cannot be read as a MyST notebook: ")


def test_two_chapters_of_one_number_are_refused(tmp_path: Path) -> None:
    root = make_book(tmp_path / "b", c1_a="# A\n", c1_b="# B\n")
    with pytest.raises(CallError, match="both have number 1"):
        book.chapters(root)
