"""Pictures that the command draws: without a screen, in the book's style, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def picture(
    file: Path, rows: int = 1, columns: int = 1, **options: Any
) -> Iterator[tuple[Any, Any]]:
    """Open a figure with its axes, as `plt.subplots` does; write it when the block is left well."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    from mhanw_core import figures

    figures.use_style()
    figure, axes = plt.subplots(rows, columns, **options)
    target = file.resolve()  # a link stays a link
    part = target.with_name(f".{os.getpid()}.{target.name}")
    try:
        yield figure, axes
        figure.savefig(part, format=file.suffix[1:].lower())
        os.replace(part, target)
    finally:
        plt.close(figure)
        part.unlink(missing_ok=True)
