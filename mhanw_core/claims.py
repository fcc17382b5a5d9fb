"""The register of claims, and the protocol by which a chapter turns evidence into a verdict.

A claim is judged on three kinds of evidence: something exact (a proof or a counterexample), a
measurement with its standard error, and a negative control that the same check rejects. The
verdict follows from which of them passed; it is never typed in.
"""

from __future__ import annotations

import difflib
import html
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar

import yaml

MIME = "application/vnd.mhanw.claim+json"
VERDICTS = ("holds", "conditional", "fails", "open")
NO_EVIDENCE = "no evidence yet"
MOST_SE = 5.0  # a wider margin would excuse what it should judge


# --- The register ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One claim of the register, as `claims.yml` states it."""

    id: str
    step: int
    place: str
    statement: str
    verdict: str
    kind: str
    chapter: int
    condition: str = ""
    correction: str = ""

    @property
    def note(self) -> str:
        """What qualifies the verdict, in a sentence; empty where nothing does."""
        if self.condition:
            return f"Condition: {self.condition}"
        return f"Instead: {self.correction}" if self.correction else ""


@cache
def load() -> dict[str, Row]:
    """Read the register: every claim by its id, in the paper's order.

    Raises
    ------
    ValueError
        If a row lacks a field, has an unknown verdict, or repeats an id.
    """
    text = resources.files("mhanw_core").joinpath("claims.yml").read_text(encoding="utf-8")
    rows: dict[str, Row] = {}
    for entry in yaml.safe_load(text):
        try:
            row = Row(**entry)
        except TypeError as error:
            raise ValueError(f"claims.yml, row {entry.get('id', entry)!r}: {error}.") from None
        if row.verdict not in VERDICTS:
            raise ValueError(
                f"claims.yml, {row.id}: verdict {row.verdict!r}; expected one of {VERDICTS}."
            )
        if row.id in rows:
            raise ValueError(f"claims.yml states {row.id} twice; ids must be unique.")
        rows[row.id] = row
    return rows


def find(claim_id: str) -> Row:
    """Return the register's row of a claim.

    Raises
    ------
    KeyError
        If there is no such claim; the message names the closest ids.
    """
    rows = load()
    if claim_id not in rows:
        close = difflib.get_close_matches(claim_id, rows, n=3, cutoff=0.4)
        hint = f" Closest: {', '.join(close)}." if close else ""
        raise KeyError(f"claim {claim_id!r} is not in the register.{hint}")
    return rows[claim_id]


# --- Checks ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Control:
    """A wrong variant given to a check, and whether the check rejected it."""

    label: str
    figure: str
    rejected: bool


@dataclass
class Check:
    """One piece of evidence. Subclasses say how it is judged."""

    label: str
    about: str = "statement"
    controls: list[Control] = field(default_factory=list)
    kind: ClassVar[str] = "check"
    figure: str = ""
    passed: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Everything a machine needs to know about this piece of evidence."""
        return {
            "kind": self.kind,
            "label": self.label,
            "about": self.about,
            "figure": self.figure,
            "passed": self.passed,
            "controls": [vars(control) for control in self.controls],
        }

    def _add_control(self, label: str, figure: str, passed: bool) -> None:
        self.controls.append(Control(label, figure, not passed))


class Proof(Check):
    """Symbolic residuals that must all vanish, or inequalities that must all be true."""

    kind = "proof"

    def judge(self, residual: Any) -> Proof:
        self.passed = all(_vanishes(item) for item in _items(residual))
        self.figure = "residual 0" if self.passed else f"residual {_shorten(residual)}"
        return self

    def rejects(self, label: str, residual: Any) -> None:
        """Give the proof a wrong variant; it counts as rejected if provably not zero."""
        wrong = any(_is_nonzero(item) for item in _items(residual))
        left = _shorten(residual)
        left = "false" if left == "False" else f"residual {left}"
        figure = left if wrong else "not told apart from 0"
        self._add_control(label, figure, not wrong)


class Counterexample(Check):
    """An exact case in which the statement's residual is not zero."""

    kind = "counterexample"

    def judge(self, residual: Any) -> Counterexample:
        self.passed = any(_is_nonzero(item) for item in _items(residual))
        off = _shorten(residual)
        self.figure = "false" if off == "False" else f"off by {off}"
        self.figure = self.figure if self.passed else "no difference"
        return self

    def rejects(self, label: str, residual: Any) -> None:
        """Give a case in which the statement does hold; it must not count as a counterexample."""
        same = all(_vanishes(item) for item in _items(residual))
        self._add_control(label, "residual 0" if same else f"{_shorten(residual)}", not same)


class Measurement(Check):
    """Estimates with standard errors, judged at a stated number of them."""

    kind = "measurement"
    n_se: float
    estimate: Any
    se: Any
    target: tuple[str, Any]

    def judge(self, estimate: Any, se: Any, target: tuple[str, Any], n_se: float) -> Measurement:
        self.estimate, self.se, self.target, self.n_se = estimate, se, target, n_se
        self.passed, self.figure = _judge(estimate, se, target, n_se)
        return self

    def rejects(
        self,
        label: str,
        *,
        estimate: Any = None,
        se: Any = None,
        equals: Any = None,
        above: Any = None,
        below: Any = None,
    ) -> None:
        """Judge a wrong variant by the same rule: another estimate or another target."""
        given = [(k, v) for k, v in _targets(equals, above, below)]
        if estimate is None and not given:
            raise ValueError(f"control {label!r} changes nothing; give an estimate or a target.")
        passed, figure = _judge(
            self.estimate if estimate is None else estimate,
            self.se if se is None else se,
            given[0] if given else self.target,
            self.n_se,
        )
        self._add_control(label, figure, passed)


class Agreement(Check):
    """An identity in floating point: random cases, each within its own rounding bound."""

    kind = "agreement"

    def judge(self, scaled_errors: Any) -> Agreement:
        self.passed, self.figure = _within_bound(scaled_errors)
        return self

    def rejects(self, label: str, scaled_errors: Any) -> None:
        """Give the errors of a wrong variant; at least one case must leave its bound."""
        passed, figure = _within_bound(scaled_errors)
        self._add_control(label, figure, passed)


class Citation(Check):
    """A checked reference: it supports the statement, or qualifies it."""

    kind = "citation"
    supports: bool = True

    def judge(self, key: str, says: str, supports: bool) -> Citation:
        self.supports, self.passed = supports, bool(key and says)
        self.figure = f"{says} ({'supports' if supports else 'qualifies'})"
        return self


def _targets(equals: Any, above: Any, below: Any) -> Iterator[tuple[str, Any]]:
    for name, value in (("equals", equals), ("above", above), ("below", below)):
        if value is not None:
            yield name, value


def _judge(estimate: Any, se: Any, target: tuple[str, Any], n_se: float) -> tuple[bool, str]:
    import numpy as np

    rule, value = target
    e, s, t = np.broadcast_arrays(*(np.asarray(a, dtype=float) for a in (estimate, se, value)))
    if e.size == 0 or not (np.isfinite(e) & np.isfinite(s) & np.isfinite(t) & (s > 0)).all():
        raise ValueError(
            "a measurement needs finite estimates and standard errors above 0; found "
            f"estimate {estimate!r}, standard error {se!r}, {rule} {value!r}."
        )
    z = (e - t) / s
    fits = {"equals": np.abs(z) <= n_se, "above": z > n_se, "below": z < -n_se}[rule]
    worst = int(np.argmax(np.abs(z)) if rule == "equals" else np.argmin(np.abs(z)))
    if not fits.all():
        worst = int(np.flatnonzero(~fits.ravel())[0])
    word = {"equals": "expected", "above": "above", "below": "below"}[rule]
    where = f" (worst of {e.size})" if e.size > 1 else ""
    figure = (
        f"{_with_error(e.flat[worst], s.flat[worst])}, {word} {t.flat[worst]:.4g}, "
        f"z = {z.flat[worst]:{'+.1f' if abs(z.flat[worst]) < 1e4 else '+.0e'}}{where}"
    )
    return bool(fits.all()), figure


def _with_error(estimate: float, se: float) -> str:
    """Write an estimate with its standard error to two significant digits."""
    from math import floor, log10

    digits = max(0, 1 - floor(log10(se)))
    if digits > 8 or abs(estimate) >= 1e6:
        return f"{estimate:.4g} ± {se:.2g}"
    return f"{estimate:.{digits}f} ± {se:.{digits}f}"


def _within_bound(scaled_errors: Any) -> tuple[bool, str]:
    import numpy as np

    errors = np.asarray(scaled_errors, dtype=float).ravel()
    if errors.size == 0:
        raise ValueError("an agreement needs at least one case; found none.")
    beyond = int((~(errors <= 1)).sum())
    # With none of n beyond its bound, the 95% upper limit of the true share is 3/n.
    figure = f"{beyond} of {errors.size:,} beyond the rounding bound"
    limit = f" (at 95%: fewer than {3 / errors.size:.1%})" if errors.size >= 100 else ""
    return beyond == 0, figure + (limit if not beyond else "")


# --- Exact arithmetic ------------------------------------------------------------------------


def _items(residual: Any) -> list[Any]:
    """Flatten expressions, matrices and lists; refuse what is not symbolic."""
    import sympy

    if isinstance(residual, sympy.MatrixBase):
        return list(residual)
    if isinstance(residual, (sympy.Basic, sympy.NDimArray)):
        return list(residual) if isinstance(residual, sympy.NDimArray) else [residual]
    if isinstance(residual, Iterable) and not isinstance(residual, str):
        flat = [item for part in residual for item in _items(part)]
        if flat:
            return flat
    raise TypeError(
        f"evidence must be exact SymPy; found {type(residual).__name__} {residual!r}. "
        "Numbers belong in measure(), plain booleans nowhere."
    )


def _vanishes(item: Any) -> bool:
    import sympy

    if isinstance(item, (sympy.logic.boolalg.Boolean, sympy.core.relational.Relational)):
        return bool(sympy.simplify(item) == sympy.true)
    if item.has(sympy.Float):
        raise TypeError(f"evidence must be exact; {_shorten(item)} holds a floating-point number.")
    steps = (
        lambda e: e,
        sympy.expand,
        sympy.simplify,
        lambda e: sympy.simplify(e.rewrite(sympy.exp)),
    )
    return any(step(item) == 0 for step in steps)


def _is_nonzero(item: Any) -> bool:
    """Show that an exact expression is not identically zero, by its value at one exact point."""
    import sympy

    if isinstance(item, (sympy.logic.boolalg.Boolean, sympy.core.relational.Relational)):
        return bool(sympy.simplify(item) == sympy.false)
    symbols = sorted(item.free_symbols, key=str)
    # Distinct positive rationals: inside the domain of every formula of the book.
    point = {s: sympy.Rational(2 * i + 3, 7 + i) for i, s in enumerate(symbols)}
    point |= {s: sympy.Integer(i + 2) for i, s in enumerate(symbols) if s.is_integer}
    value = sympy.N(item.subs(point).doit(), 40)
    return bool(value.is_number and abs(value) > sympy.Float("1e-20"))


def _shorten(residual: Any, width: int = 60) -> str:
    items = [str(item) for item in _items(residual) if str(item) != "0"]
    text = "; ".join(items) or "0"
    return text if len(text) <= width else text[: width - 1] + "…"


# --- A claim in a chapter --------------------------------------------------------------------


class Claim:
    """Collects the evidence on one claim; `card` shows the verdict it amounts to."""

    def __init__(self, row: Row) -> None:
        self.row = row
        self.evidence: list[Check] = []

    def _add(self, check: Check) -> None:
        self.evidence.append(check)

    @staticmethod
    def _about(given: str | None, corrects: bool) -> str:
        if given and corrects:
            raise ValueError("evidence is given a condition or corrects the statement, not both.")
        return "correction" if corrects else "condition" if given else "statement"

    def proof(
        self, label: str, residual: Any, given: str | None = None, corrects: bool = False
    ) -> Proof:
        """Add a symbolic proof: SymPy residuals that vanish, or inequalities that are true.

        Parameters
        ----------
        label : str
        residual : SymPy expression, relation, matrix, or an iterable of them
        given : str, optional
            The condition under which the statement is proved.
        corrects : bool
            True if this proves the corrected statement.
        """
        label = f"{label}, given {given}" if given else label
        check = Proof(label, self._about(given, corrects)).judge(residual)
        self._add(check)
        return check

    def counterexample(self, label: str, residual: Any) -> Counterexample:
        """Add an exact case in which the statement misses by `residual`, not zero."""
        check = Counterexample(label).judge(residual)
        self._add(check)
        return check

    def measure(
        self,
        label: str,
        estimate: Any,
        se: Any,
        *,
        equals: Any = None,
        above: Any = None,
        below: Any = None,
        n_se: float = 4.0,
        given: str | None = None,
        corrects: bool = False,
    ) -> Measurement:
        """Add a measurement, judged at `n_se` standard errors against one target.

        Parameters
        ----------
        estimate, se : float or arrays
            With arrays every entry must fit; the worst is shown.
        equals, above, below : float or array
            Exactly one of them.
        """
        targets = list(_targets(equals, above, below))
        if len(targets) != 1:
            raise ValueError(f"measurement {label!r} needs exactly one of equals, above, below.")
        if not 0 < n_se <= MOST_SE:
            raise ValueError(f"measurement {label!r}: n_se must be above 0 and at most {MOST_SE}.")
        label = f"{label}, given {given}" if given else label
        check = Measurement(label, self._about(given, corrects))
        self._add(check.judge(estimate, se, targets[0], n_se))
        return check

    def agree(
        self, label: str, scaled_errors: Any, given: str | None = None, corrects: bool = False
    ) -> Agreement:
        """Add a numerical identity: errors divided by their rounding bounds, all at most 1."""
        label = f"{label}, given {given}" if given else label
        check = Agreement(label, self._about(given, corrects)).judge(scaled_errors)
        self._add(check)
        return check

    def cite(self, key: str, says: str, supports: bool = True) -> Citation:
        """Add a checked reference, by its key in the bibliography."""
        check = Citation(key).judge(key, says, supports)
        self._add(check)
        return check

    def card(self) -> Card:
        """Judge the evidence and return the verdict card, to be shown by the cell."""
        return Card(self.row, _verdict(self.row, self.evidence), tuple(self.evidence))


def claim(claim_id: str) -> Claim:
    """Start collecting evidence on a claim of the register.

    Raises
    ------
    KeyError
        If the register has no such claim.
    """
    return Claim(find(claim_id))


def _passed(evidence: Iterable[Check], kinds: Iterable[str], about: str) -> list[Check]:
    return [c for c in evidence if c.kind in set(kinds) and c.about == about and c.passed]


def _verdict(row: Row, evidence: list[Check]) -> str:
    """Say what the evidence amounts to; the register has no part in it."""
    if row.kind == "literature":
        sides = {c.supports for c in evidence if isinstance(c, Citation)}
        return {frozenset({True}): "holds", frozenset({True, False}): "conditional"}.get(
            frozenset(sides), "fails" if sides else NO_EVIDENCE
        )
    numbers = ("measurement", "agreement")
    refuted = bool(_passed(evidence, ["counterexample"], "statement"))
    if refuted and _passed(evidence, ["proof"], "correction"):
        return "fails"
    if refuted and _passed(evidence, ["proof"], "condition"):
        return "conditional"
    if not refuted and _passed(evidence, ["proof"], "statement"):
        return "holds"
    if not refuted and _passed(evidence, numbers, "statement"):
        return "open"
    return "unsettled" if evidence else NO_EVIDENCE


def _problems(row: Row, verdict: str, evidence: Iterable[Check]) -> list[str]:
    """List, in sentences, what keeps the evidence from carrying the register's verdict."""
    checks = list(evidence)
    found = [f"{c.kind} '{c.label}' did not pass: {c.figure}." for c in checks if not c.passed]
    found += [
        f"control '{k.label}' was accepted: {k.figure}."
        for c in checks
        for k in c.controls
        if not k.rejected
    ]
    if verdict != row.verdict:
        found.append(f"the evidence says '{verdict}', the register '{row.verdict}'.")
    return found + [f"no {kind}." for kind in _missing(row, verdict, checks)]


def _missing(row: Row, verdict: str, checks: list[Check]) -> list[str]:
    if row.kind == "literature":
        return [] if any(c.kind == "citation" for c in checks) else ["checked reference"]
    numbers = ("measurement", "agreement")
    missing = []
    exact = any(c.kind in ("proof", "counterexample") for c in checks)
    if row.kind == "mathematics" and row.verdict != "open" and not exact:
        missing.append("symbolic proof or counterexample")
    if not any(c.kind in numbers for c in checks):
        missing.append("measurement")
    elif not any(c.controls for c in checks if c.kind in numbers):
        missing.append("negative control on a measurement")
    if verdict == "fails" and not _passed(checks, numbers, "correction"):
        missing.append("measurement of the corrected statement")
    return missing


# --- Cards -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Card:
    """A computed verdict with its evidence: HTML in the book, a line in a terminal, JSON."""

    row: Row
    verdict: str
    evidence: tuple[Check, ...]

    @property
    def problems(self) -> list[str]:
        """Sentences saying why the claim is red; empty if it is not."""
        return _problems(self.row, self.verdict, self.evidence)

    @property
    def ok(self) -> bool:
        """True if complete evidence carries the register's verdict and every control failed."""
        return not self.problems

    @property
    def decisive(self) -> Check | None:
        """The check whose figure speaks for the claim: a controlled number if there is one."""

        def rank(check: Check) -> tuple[bool, bool, bool]:
            number = check.kind in ("measurement", "agreement")
            about = "correction" if self.verdict == "fails" else "statement"
            return (not check.passed, number and bool(check.controls), check.about == about)

        return max(self.evidence, key=rank, default=None)

    def as_dict(self) -> dict[str, Any]:
        """The card as JSON for machines; `mhanw verify` reads this from a notebook."""
        best = self.decisive
        control = best.controls[0] if best and best.controls else None
        return {
            "schema": 1,
            "id": self.row.id,
            "verdict": self.verdict,
            "register": self.row.verdict,
            "ok": self.ok,
            "problems": self.problems,
            "evidence": [check.as_dict() for check in self.evidence],
            "decisive": best.figure if best else "",
            "control": f"{control.label}: {control.figure}" if control else "",
            "place": self.row.place,
            "chapter": self.row.chapter,
        }

    def __repr__(self) -> str:
        data = self.as_dict()
        controls = [k for c in self.evidence for k in c.controls]
        parts = [f"{self.row.id}: {self.verdict}", f"{len(self.evidence)} pieces of evidence"]
        parts += [f"{sum(k.rejected for k in controls)} of {len(controls)} controls rejected"]
        parts += [data["decisive"]] if data["decisive"] else []
        return "; ".join(parts) + "".join(f" RED: {p}" for p in data["problems"])

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        return {"text/plain": repr(self), "text/html": self._html(), MIME: self.as_dict()}

    def _html(self) -> str:
        row, tone = self.row, self.verdict if self.ok else "red"
        note = f'<p class="mhanw-note">{_math(row.note)}</p>' if row.note else ""
        red = "".join(f'<p class="mhanw-problem">Red: {_math(p)}</p>' for p in self.problems)
        lines = "".join(_evidence_rows(check) for check in self.evidence)
        return (
            f'<div class="mhanw-card mhanw-{tone}" id="claim-{row.id}"><div class="mhanw-head">'
            f'<span class="mhanw-verdict">{self.verdict}</span>'
            f'<code class="mhanw-id">{row.id}</code>'
            f'<span class="mhanw-place">{_math(row.place)}</span></div>'
            f'<p class="mhanw-statement">{_math(row.statement)}</p>{note}{red}'
            f'<table class="mhanw-evidence"><tbody>{lines}</tbody></table></div>'
        )


def _evidence_rows(check: Check) -> str:
    about = {"statement": "", "condition": "", "correction": " of the correction"}[check.about]
    rows = [_row("pass" if check.passed else "fail", check.kind + about, check.label, check.figure)]
    for k in check.controls:
        rows.append(_row("control" if k.rejected else "fail", "control", k.label, k.figure))
    return "".join(rows)


def _row(tone: str, kind: str, label: str, figure: str) -> str:
    mark = {"pass": "✓", "fail": "✗", "control": "⊘"}[tone]
    word = {"pass": "passes", "fail": "does not pass", "control": "rejected, as it must be"}[tone]
    return (
        f'<tr class="mhanw-{tone}"><td class="mhanw-mark" title="{word}">{mark}</td>'
        f'<td class="mhanw-kind">{kind}</td><td class="mhanw-label">{_math(label)}</td>'
        f'<td class="mhanw-figure">{_math(figure)}</td></tr>'
    )


def _math(text: str) -> str:
    """Escape a text for HTML and hand its $…$ to the page's typesetter."""
    return re.sub(
        r"\$([^$]+)\$",
        r'<span class="math notranslate nohighlight">\\(\1\\)</span>',
        html.escape(text, quote=False),
    )


def ledger_html(cards: dict[str, dict[str, Any] | None]) -> str:
    """All claims of `ledger` as one table for the page: claim, verdict, what qualifies it."""
    head = "".join(f"<th>{name}</th>" for name in ("claim", "verdict", "decisive figure"))
    lines = "".join(_ledger_row(load()[claim_id], card) for claim_id, card in cards.items())
    return (
        f'<table class="mhanw-ledger"><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table>'
    )


def _ledger_row(row: Row, card: dict[str, Any] | None) -> str:
    verdict = card["verdict"] if card else NO_EVIDENCE
    tone = ("red" if not card["ok"] else verdict) if card else "none"
    note = f'<p class="mhanw-note">{_math(row.note)}</p>' if card and row.note else ""
    name = f'<code class="mhanw-id">{row.id}</code>'
    step = f"Step {row.step}"
    place = row.place if row.place.startswith(step) else f"{step}, {row.place}"
    if card:
        name = f'<a href="{card["page"]}.html#claim-{row.id}">{name}</a>'
    return (
        f"<tr><td>{name} "
        f'<span class="mhanw-place">{_math(place)}</span>'
        f'<p class="mhanw-statement">{_math(row.statement)}</p>{note}</td>'
        f'<td><span class="mhanw-verdict mhanw-{tone}">{verdict}</span></td>'
        f'<td class="mhanw-figure">{_math(card["decisive"]) if card else ""}</td></tr>'
    )


# --- Reading evidence back -------------------------------------------------------------------


def read_evidence(notebook: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Collect the cards of an executed notebook, by claim id.

    Raises
    ------
    ValueError
        If a claim has more than one card.
    """
    cards: dict[str, dict[str, Any]] = {}
    for cell in notebook.get("cells", []):
        for output in cell.get("outputs", []):
            card = output.get("data", {}).get(MIME)
            if card is None:
                continue
            if card["id"] in cards:
                raise ValueError(f"claim {card['id']} has two cards; one claim, one card.")
            cards[card["id"]] = card
    return cards


def ledger(folder: str | Path) -> dict[str, dict[str, Any] | None]:
    """Cards of all executed notebooks in a folder, in the register's order.

    A card's `page` names its notebook. Claims without evidence yet map to None.

    Raises
    ------
    ValueError
        If a notebook cannot be read or a claim has two cards.
    """
    cards: dict[str, dict[str, Any]] = {}
    for path in sorted(Path(folder).glob("*.ipynb")):
        try:
            found = read_evidence(json.loads(path.read_text(encoding="utf-8")))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path.name} is not a notebook: {error}. Refresh it.") from None
        twice = cards.keys() & found.keys()
        if twice:
            raise ValueError(f"{path.name}: {', '.join(twice)} already has a card elsewhere.")
        cards |= {claim_id: {**card, "page": path.stem} for claim_id, card in found.items()}
    return {claim_id: cards.get(claim_id) for claim_id in load()}
