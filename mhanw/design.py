"""What `mhanw design` answers: heads and dimensions by each law, and what each costs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from scipy.special import lambertw

from mhanw import CallError
from mhanw.pictures import picture
from mhanw_core import figures, scaling

MOST_SMOOTHNESS = 1000


@dataclass(frozen=True)
class Recommendation:
    """One law's allocation, and its error over the smallest under each reading of the terms.

    The costs are decimal logarithms of the ratio, for some exceed every float.
    """

    law: str
    head_dim: int
    n_heads: int
    log10_cost_printed: float
    log10_cost_fixed: float


@dataclass(frozen=True)
class Design:
    """Recommendations for one budget and sample size, with what limits them."""

    budget: int
    n: float
    smoothness: float
    recommendations: tuple[Recommendation, ...]
    largest_meaningful_head_dim: float
    models: tuple[scaling.Architecture, ...]

    def as_dict(self) -> dict[str, Any]:
        """All of it for another program."""
        models = [
            {**m._asdict(), "tokens": m.tokens if m.tokens == m.tokens else None}
            for m in self.models
        ]
        return {"schema": 1, **asdict(self), "models": models, "cautions": self.cautions()}

    def cautions(self) -> list[str]:
        """How far the numbers can be trusted, in sentences."""
        limit = f"{self.largest_meaningful_head_dim:.1f}"
        lines = [
            "The printed law leaves its constant open; it is taken as 1 here, as are a and b.",
            f"Beyond head_dim {limit} the printed variance exceeds the noise variance, which no "
            "average of the values can: costs there are the terms', not attention's.",
        ]
        if self.models:
            dims = sorted({m.head_dim for m in self.models})
            span = f"{dims[0]}" if len(dims) == 1 else f"{dims[0]} to {dims[-1]}"
            names = f"{len(self.models)} published model{'s' * (len(self.models) > 1)}"
            lines.append(
                f"{names} within a factor of 2 of this budget use head_dim {span}: more than "
                "the printed terms want, and hardly depending on n. See chapter 5."
            )
        return lines


def recommend(budget: int, n: float, smoothness: float = 2.0) -> Design:
    """Compare the laws for one budget.

    Raises
    ------
    CallError
        If a number is out of its range.
    """
    if not smoothness <= MOST_SMOOTHNESS:
        raise CallError(f"smoothness must be at most {MOST_SMOOTHNESS}; found {smoothness:g}.")
    try:
        law = scaling.paper_head_dim(n, smoothness)
        printed = scaling.allocation_log_errors(n, budget)
        fixed = scaling.allocation_log_errors(n, budget, dimension=smoothness)
    except ValueError as error:
        raise CallError(f"{error}") from None
    wanted = {
        f"printed law, (ln n)^(2/(4+{smoothness:g}))": law,
        "minimum of the printed terms": 1 + int(printed.argmin()),
        f"minimum with dimension {smoothness:g} fixed": 1 + int(fixed.argmin()),
    }
    models = similar_models(budget)
    if models:
        wanted["published models, median"] = median(m.head_dim for m in models)
    dims = {name: max(1, min(round(d), budget)) for name, d in wanted.items()}
    costs = [(logs - logs.min()) / np.log(10) for logs in (printed, fixed)]
    rows = tuple(
        Recommendation(name, d, budget // d, *(float(cost[d - 1]) for cost in costs))
        for name, d in dims.items()
    )
    return Design(budget, n, smoothness, rows, _meaningful(n), models)


def _meaningful(n: float) -> float:
    """Head dimension at which d^{d/2} = n: there the printed variance reaches the noise's."""
    return float(np.exp(lambertw(2 * np.log(n)).real))


def similar_models(budget: int) -> tuple[scaling.Architecture, ...]:
    """Published models whose H d_k is within a factor of 2 of the budget."""
    return tuple(
        m for m in scaling.architectures() if budget / 2 <= m.n_heads * m.head_dim <= 2 * budget
    )


def cost_text(log10_cost: float) -> str:
    """A ratio as a reader wants it: 1.04, 37, or 10^52."""
    if round(log10_cost, 4) < 4:
        ratio = 10**log10_cost
        return f"{ratio:.2f}" if ratio < 9.995 else f"{ratio:.0f}"
    return f"10^{log10_cost:.0f}"


def plot(design: Design, file: Path) -> None:
    """Draw the error of both readings against the head dimension, with all recommendations."""
    readings = (
        ("printed terms", figures.ORANGE, None),
        ("fixed dimension", figures.BLUE, design.smoothness),
    )
    widest = max(256, *(row.head_dim for row in design.recommendations))
    dims = np.arange(1, min(design.budget, widest) + 1)
    paper = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    with picture(file, figsize=(7, 4.2)) as (_, ax):
        for name, colour, dimension in readings:
            logs = scaling.allocation_log_errors(design.n, design.budget, dimension=dimension)
            height = logs[: len(dims)] / np.log(10)
            ax.plot(dims[height < 2], height[height < 2], color=colour, label=name)
        for k, row in enumerate(design.recommendations):
            ax.axvline(row.head_dim, color=figures.GREY, linestyle=":", linewidth=1.5)
            side = "right" if row.head_dim**2 > dims[-1] else "left"
            ax.text(
                *(row.head_dim, 2 - 0.35 * k, f" {row.law} "),
                fontsize=8,
                va="top",
                ha=side,
                bbox=paper,
            )
        ax.set(xscale="log", xlabel="head_dim", ylabel="log10 of the error", ylim=(None, 2.1))
        ax.set_title(f"budget {design.budget}, n = {design.n:g}")
        ax.legend(loc="lower left")
