"""The figures' common look: opaque, legible on a phone, safe for colour-blind readers.

The palette is Okabe and Ito's, with hues dark enough that a curve can be labelled by a word in its
own colour.
"""

from __future__ import annotations

from typing import Any

BLUE = "#005f9e"  # the accent: whatever the figure is about
ORANGE = "#c85000"
GREEN = "#008562"
PURPLE = "#6e1a57"
SKY = "#56b4e9"  # for areas, too light for words
GREY = "#5d6570"  # references and guides
INK = "#20262e"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, SKY, GREY)


def use_style() -> None:
    """Set the book's defaults for all figures drawn after this call."""
    import matplotlib as mpl
    from cycler import cycler

    mpl.rcParams.update(mpl.rcParamsDefault, backend=mpl.rcParams["backend"])
    mpl.rcParams.update(
        {
            "axes.edgecolor": GREY,
            "axes.labelcolor": INK,
            "axes.prop_cycle": cycler(color=PALETTE),
            "axes.spines.right": False,
            "axes.spines.top": False,
            "axes.titlelocation": "left",
            "axes.titlesize": 11,
            "figure.constrained_layout.use": True,
            "figure.dpi": 150,
            "figure.facecolor": "white",  # opaque: the page behind it may be dark
            "figure.figsize": (6.5, 3.8),
            "font.size": 11,
            "image.cmap": "cividis",
            "legend.frameon": False,
            "lines.linewidth": 2,
            "text.color": INK,
            "xtick.color": INK,
            "ytick.color": INK,
        }
    )


def new(width: float = 6.5, height: float = 3.8, columns: int = 1) -> tuple[Any, Any]:
    """Open a figure of the given size in inches; return it with its axes, one per column."""
    import matplotlib.pyplot as plt

    return plt.subplots(1, columns, figsize=(width, height))
