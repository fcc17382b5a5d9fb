"""The protocol: verdicts follow from evidence, and nothing else can make a claim green."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import sympy as sp

from mhanw_core import claims

X = sp.Symbol("x", positive=True)
ZERO, ONE = (X + 1) ** 2 - X**2 - 2 * X - 1, X - X + 1


def row(verdict: str, kind: str = "mathematics") -> claims.Row:
    """A row of a register."""
    return claims.Row("a-claim", 1, "Theorem 1", "It $x<y$ & holds.", verdict, kind, 1)


def collect(verdict: str, *steps: str, kind: str = "mathematics") -> claims.Card:
    """A card of a claim with the evidence that the words name."""
    claim = claims.Claim(row(verdict, kind))
    add: dict[str, Any] = {
        "proof": lambda: claim.proof("p", ZERO).rejects("wrong", ONE),
        "unproved": lambda: claim.proof("p", ONE),
        "given": lambda: claim.proof("p", ZERO, given="a condition"),
        "corrected": lambda: claim.proof("p", ZERO, corrects=True),
        "counterexample": lambda: claim.counterexample("c", ONE),
        "none": lambda: claim.counterexample("c", ZERO),
        "measured": lambda: claim.measure("m", 1.0, 0.1, equals=1.1).rejects("w", equals=2.0),
        "missed": lambda: claim.measure("m", 1.0, 0.1, equals=2.0).rejects("w", equals=3.0),
        "measured-correction": lambda: claim.measure(
            "m", 1.0, 0.1, above=0.5, corrects=True
        ).rejects("w", above=1.5),
        "uncontrolled": lambda: claim.measure("m", 1.0, 0.1, equals=1.1),
        "accepting": lambda: claim.measure("m", 1.0, 0.1, equals=1.1).rejects("w", equals=1.2),
        "agreed": lambda: claim.agree("a", [0.1, 0.9]).rejects("w", [0.1, 7.0]),
        "cited": lambda: claim.cite("key1999", "says so"),
        "qualified": lambda: claim.cite("key2000", "says otherwise", supports=False),
    }
    for step in steps:
        add[step]()
    return claim.card()


GREEN = [
    ("holds", ["proof", "measured"]),
    ("holds", ["proof", "agreed"]),
    ("conditional", ["given", "counterexample", "measured"]),
    ("fails", ["counterexample", "corrected", "measured-correction"]),
    ("open", ["measured"]),
]


@pytest.mark.parametrize(("verdict", "steps"), GREEN)
def test_complete_evidence_is_green(verdict: str, steps: list[str]) -> None:
    card = collect(verdict, *steps)
    assert card.verdict == verdict
    assert card.ok, card.problems


RED = [
    ("holds", ["proof"], "no measurement"),
    ("holds", ["measured"], "symbolic proof"),
    ("holds", ["proof", "uncontrolled"], "negative control"),
    ("holds", ["proof", "accepting"], "was accepted"),
    ("holds", ["proof", "missed"], "did not pass"),
    ("holds", ["unproved", "measured"], "did not pass"),
    ("holds", ["given", "counterexample", "measured"], "the evidence says 'conditional'"),
    ("fails", ["proof", "measured"], "the evidence says 'holds'"),
    ("fails", ["counterexample", "measured"], "the evidence says 'unsettled'"),
    ("fails", ["counterexample", "corrected", "measured"], "measurement of the correction"),
    ("conditional", ["given", "measured"], "the evidence says"),
    ("conditional", ["given", "none", "measured"], "did not pass"),
    ("holds", [], "no evidence yet"),
]


@pytest.mark.parametrize(("verdict", "steps", "sentence"), RED)
def test_anything_less_is_red(verdict: str, steps: list[str], sentence: str) -> None:
    card = collect(verdict, *steps)
    assert not card.ok
    text = " ".join(card.problems).replace("of the corrected statement", "of the correction")
    assert sentence in text


def test_literature_is_judged_by_references() -> None:
    assert collect("holds", "cited", kind="literature").ok
    assert collect("conditional", "cited", "qualified", kind="literature").ok
    assert not collect("conditional", "cited", kind="literature").ok
    assert not collect("holds", kind="literature").ok


@pytest.mark.parametrize("evidence", [0.0, True, 1, "x", [], X * 0.5])
def test_proofs_must_be_exact(evidence: Any) -> None:
    with pytest.raises(TypeError, match="exact"):
        claims.Claim(row("holds")).proof("p", evidence)


@pytest.mark.parametrize(
    ("estimate", "se", "target"),
    [(1.0, 0.0, {"equals": 1}), (float("nan"), 1.0, {"equals": 1}), (1.0, 1.0, {})],
)
def test_measurements_need_an_error_and_one_target(
    estimate: float, se: float, target: dict[str, float]
) -> None:
    with pytest.raises(ValueError, match="needs"):
        claims.Claim(row("open")).measure("m", estimate, se, **target)


def test_a_margin_cannot_be_widened_until_green() -> None:
    with pytest.raises(ValueError, match="at most"):
        claims.Claim(row("open")).measure("m", 1.0, 0.1, equals=2.0, n_se=20)


def test_relations_count_as_proofs_only_if_true() -> None:
    assert claims.Claim(row("holds")).proof("p", X + 1 > 0).passed
    assert not claims.Claim(row("holds")).proof("p", X - 1 > 0).passed


def test_card_has_three_faces() -> None:
    card = collect("holds", "proof", "measured")
    bundle = card._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", claims.MIME}
    assert "\n" not in bundle["text/plain"]
    assert "&lt;y" in bundle["text/html"]
    assert "<y" not in bundle["text/html"]
    assert json.loads(json.dumps(bundle[claims.MIME]))["ok"] is True


def notebook(*cards: claims.Card) -> dict[str, Any]:
    """A notebook that shows cards."""
    outputs = [{"data": {claims.MIME: card.as_dict()}} for card in cards]
    return {"cells": [{"outputs": outputs}]}


def test_one_claim_has_one_card() -> None:
    card = collect("holds", "proof", "measured")
    assert list(claims.read_evidence(notebook(card))) == ["a-claim"]
    with pytest.raises(ValueError, match="two cards"):
        claims.read_evidence(notebook(card, card))


def test_ledger_lists_every_claim_in_order(tmp_path: Path) -> None:
    first = next(iter(claims.load()))
    card = {**collect("holds", "proof", "measured").as_dict(), "id": first}
    text = json.dumps({"cells": [{"outputs": [{"data": {claims.MIME: card}}]}]})
    (tmp_path / "1_a.ipynb").write_text(text)
    found = claims.ledger(tmp_path)
    assert list(found) == list(claims.load())
    assert [claim for claim, c in found.items() if c] == [first]
    assert claims.ledger_html(found).count("<tr>") == len(found) + 1
    (tmp_path / "2_b.ipynb").write_text("{")
    with pytest.raises(ValueError, match="not a notebook"):
        claims.ledger(tmp_path)


def test_register_is_well_formed() -> None:
    for claim in claims.load().values():
        assert 1 <= claim.step <= 7
        assert 1 <= claim.chapter <= 7
        assert claim.kind in ("mathematics", "measurement", "literature")
        assert claim.statement
        assert claim.place
        assert bool(claim.condition) == (claim.verdict == "conditional")
        assert bool(claim.correction) == (claim.verdict == "fails")


def test_unknown_claims_are_refused_with_the_closest() -> None:
    with pytest.raises(KeyError, match="attention-is-nw"):
        claims.find("atention-is-nw")
