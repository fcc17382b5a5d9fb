"""The chapters keep the rules, and each rule catches a chapter that does not."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rules

from mhanw import book
from mhanw_core import claims

ROOT = Path(__file__).parents[2]
CHAPTERS = book.chapters(ROOT)
NUMBERED = [chapter for chapter in CHAPTERS if chapter.number is not None]
KEYS = rules.bib_keys(ROOT / "references.bib")

every_chapter = pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda c: c.name)
every_numbered = pytest.mark.parametrize("chapter", NUMBERED, ids=lambda c: c.name)


def twin(chapter: book.Chapter) -> dict[str, Any]:
    """The executed notebook, with its texts joined."""
    return book.read_twin(chapter.twin)


RULES = [
    rules.not_executed,
    rules.loud,
    rules.wrong_kernel,
    rules.bad_parameters,
    rules.untagged,
    rules.semicolons,
    rules.own_seeds,
    rules.wrong_headings,
    rules.undescribed,
    rules.strange_outputs,
]


@every_chapter
@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.__name__)
def test_chapter_keeps_the_rule(
    chapter: book.Chapter, rule: Callable[[dict[str, Any]], list[str]]
) -> None:
    assert rule(twin(chapter)) == []


@every_chapter
def test_twin_is_its_source_executed(chapter: book.Chapter) -> None:
    assert rules.differs_from_source(twin(chapter), book.read_source(chapter)) == []


@every_chapter
def test_labels_and_citations_lead_somewhere(chapter: book.Chapter) -> None:
    text = rules.prose(twin(chapter))
    assert rules.loose_labels(text) == []
    assert rules.unsolved(text) == []
    cited = rules.citations(text) | rules.citation_arguments(twin(chapter))
    assert cited <= set(KEYS)


@every_numbered
def test_numbered_chapter_has_what_a_teacher_needs(chapter: book.Chapter) -> None:
    text = rules.prose(twin(chapter))
    assert len(rules.exercises(text)) >= 5
    assert len(rules.images(twin(chapter))) >= 4
    assert "seed" in book.parameters(chapter)
    for heading in ("## What you will be able to do", "## What stands", "## Exercises"):
        assert heading in text


@every_numbered
def test_every_claim_of_a_chapter_has_its_card(chapter: book.Chapter) -> None:
    rows = [row for row in claims.load().values() if row.chapter == chapter.number]
    cards = book.committed_cards(chapter) or {}
    assert list(cards) == [row.id for row in rows]
    for row in rows:
        assert cards[row.id]["ok"], cards[row.id]["problems"]
        assert cards[row.id]["verdict"] == row.verdict


def test_references_are_unique_and_all_cited() -> None:
    pages = [rules.prose(twin(chapter)) for chapter in CHAPTERS]
    cited = set().union(*map(rules.citations, pages))
    assert len(KEYS) == len(set(KEYS))
    assert sorted(set(KEYS) - cited) == []


# --- Each rule catches a breach ----------------------------------------------------------------


def good() -> dict[str, Any]:
    """A small notebook that keeps every rule."""
    tags: dict[str, Any] = {"tags": []}
    picture = {
        "tags": [],
        "mystnb": {"image": {"alt": "A line that rises from the left to the right."}},
    }
    shown = {"output_type": "display_data", "data": {"image/png": "iVBOR"}, "metadata": {}}
    cells = [
        {"cell_type": "markdown", "metadata": tags, "source": "# A title\n\n## A part"},
        {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": "seed = 0"},
        {"cell_type": "code", "metadata": picture, "source": "plt.show()"},
    ]
    for count, cell in enumerate(cells[1:], start=1):
        cell |= {"execution_count": count, "outputs": [shown] if count == 2 else []}
    return copy.deepcopy({"cells": cells, "metadata": {"kernelspec": {"name": "python3"}}})


def broken(place: str, value: Any) -> dict[str, Any]:
    """The good notebook with one thing changed, at a path such as `cells.1.source`."""
    notebook = good()
    *path, last = [int(word) if word.isdigit() else word for word in place.split(".")]
    target: Any = notebook
    for word in path:
        target = target[word]
    target[last] = value
    return notebook


STREAM = {"output_type": "stream", "name": "stderr", "text": "a warning"}
ADDRESS = {"output_type": "stream", "name": "stdout", "text": "<object at 0x7f3a5c0d1e20>"}
BREACHES = [
    (rules.not_executed, "cells.2.execution_count", None),
    (rules.loud, "cells.1.outputs", [STREAM]),
    (rules.wrong_kernel, "metadata.kernelspec", {"name": "venv"}),
    (rules.bad_parameters, "cells.1.metadata", {"tags": []}),
    (rules.bad_parameters, "cells.1.source", "seed = int(1)"),
    (rules.untagged, "cells.0.metadata", {}),
    (rules.semicolons, "cells.1.source", "seed = 0;"),
    (rules.own_seeds, "cells.2.source", "rng = np.random.default_rng(3)"),
    (rules.wrong_headings, "cells.0.source", "# A title\n\n### A part"),
    (rules.wrong_headings, "cells.0.source", "# A title\n\n# Another"),
    (rules.undescribed, "cells.2.metadata", {"tags": []}),
    (rules.strange_outputs, "cells.1.outputs", [ADDRESS]),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.__name__)
def test_rule_accepts_a_good_chapter(rule: Callable[[dict[str, Any]], list[str]]) -> None:
    assert rule(good()) == []


@pytest.mark.parametrize(("rule", "place", "value"), BREACHES)
def test_rule_catches_a_breach(
    rule: Callable[[dict[str, Any]], list[str]], place: str, value: Any
) -> None:
    assert rule(broken(place, value)) != []


def test_a_changed_source_is_seen() -> None:
    assert rules.differs_from_source(good(), broken("cells.1.source", "seed = 1")) != []
    assert rules.differs_from_source(good(), good()) == []


def test_loose_labels_and_missing_solutions_are_seen() -> None:
    exercise = "```{exercise-start} By hand\n:label: ex-9\n```\n"
    assert rules.loose_labels("$$\na\n$$ (eq-a)") == ["eq-a is never referred to"]
    assert rules.loose_labels("see {eq}`eq-b`") == ["eq-b is not defined"]
    assert rules.loose_labels("$$\na\n$$ (eq-a)\n\nsee {eq}`eq-a`") == []
    assert rules.unsolved(exercise) == ["ex-9 has no folded solution"]


def test_register_is_shown_whole_in_the_ledger() -> None:
    text = json.dumps(twin(next(c for c in CHAPTERS if c.name == book.LEDGER)))
    assert [row for row in claims.load() if f">{row}<" not in text] == []
