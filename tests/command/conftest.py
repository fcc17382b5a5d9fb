"""A small register in place of the book's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from books import row

from mhanw_core import claims


@pytest.fixture(scope="module")
def register() -> Iterator[dict[str, claims.Row]]:
    """A small register in place of the book's own."""
    first = ["kernel-is-good", "verdict-differs", "control-accepted", "evidence-lacks", "no-card"]
    rows = [*(row(name, 1) for name in first), row("chapter-raises", 2), row("not-written", 3)]
    with pytest.MonkeyPatch.context() as patch:
        found = {r.id: r for r in rows}
        patch.setattr(claims, "load", lambda: found)
        yield found
