"""What a chapter must be, as functions that return the breaches found: an empty list is good."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

Notebook = dict[str, Any]
FENCE = re.compile(r"^(`{3,}|:{3,}).*?^\1[ \t]*$", re.M | re.S)


def code_cells(notebook: Notebook) -> Iterator[tuple[int, dict[str, Any]]]:
    """The code cells with their places."""
    return ((i, c) for i, c in enumerate(notebook["cells"]) if c["cell_type"] == "code")


def prose(notebook: Notebook) -> str:
    """All Markdown of a chapter."""
    return "\n\n".join(c["source"] for c in notebook["cells"] if c["cell_type"] == "markdown")


def differs_from_source(twin: Notebook, source: Notebook) -> list[str]:
    """A twin has the cells of its source: type, text and metadata."""
    if len(twin["cells"]) != len(source["cells"]):
        return [f"{len(twin['cells'])} cells; the source has {len(source['cells'])}"]
    return [
        f"cell {i} differs from the source"
        for i, (a, b) in enumerate(zip(twin["cells"], source["cells"], strict=True))
        if any(a[k] != b[k] for k in ("cell_type", "source"))
        or a["metadata"].get("tags", []) != b["metadata"].get("tags", [])
        or a["metadata"].get("mystnb") != b["metadata"].get("mystnb")
    ]


def not_executed(notebook: Notebook) -> list[str]:
    """Code cells are executed in order, 1 to n."""
    counts = [cell["execution_count"] for _, cell in code_cells(notebook)]
    good = counts == list(range(1, len(counts) + 1))
    return [] if good and counts else [f"execution counts are {counts}"]


def loud(notebook: Notebook) -> list[str]:
    """No cell writes to stderr or ends in an error."""
    return [
        f"cell {i}: {output.get('name', output['output_type'])}"
        for i, cell in code_cells(notebook)
        for output in cell["outputs"]
        if output["output_type"] == "error" or output.get("name") == "stderr"
    ]


def wrong_kernel(notebook: Notebook) -> list[str]:
    """The kernel is named python3, whatever machine executed the chapter."""
    name = notebook["metadata"].get("kernelspec", {}).get("name")
    return [] if name == "python3" else [f"kernelspec is {name!r}"]


def bad_parameters(notebook: Notebook) -> list[str]:
    """Exactly one parameters cell, of literals."""
    cells = [c for _, c in code_cells(notebook) if "parameters" in c["metadata"].get("tags", [])]
    if len(cells) != 1:
        return [f"{len(cells)} parameters cells"]
    body = ast.parse(cells[0]["source"]).body
    return [
        f"parameter line {node.lineno} is not NAME = literal"
        for node in body
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant))
    ]


def untagged(notebook: Notebook) -> list[str]:
    """Every cell has a list of tags: papermill and nbval look there."""
    cells = enumerate(notebook["cells"])
    return [f"cell {i} has no tags" for i, c in cells if "tags" not in c["metadata"]]


def semicolons(notebook: Notebook) -> list[str]:
    """No line of code ends in a semicolon: it does not suppress output under nbval."""
    return [
        f"cell {i}: {line.strip()}"
        for i, cell in code_cells(notebook)
        for line in cell["source"].splitlines()
        if line.rstrip().endswith(";")
    ]


def own_seeds(notebook: Notebook) -> list[str]:
    """Seeds come from the parameters cell."""
    pattern = re.compile(r"default_rng\(\s*(\d|\))|np\.random\.(seed|rand)|manual_seed\(\d")
    return [f"cell {i}" for i, c in code_cells(notebook) if pattern.search(c["source"])]


def wrong_headings(notebook: Notebook) -> list[str]:
    """One title, and no level skipped below it."""
    text = FENCE.sub("", prose(notebook))
    levels = [len(m) for m in re.findall(r"^(#+) ", text, re.M)]
    jumps = [f"level {a} to {b}" for a, b in pairwise(levels) if b > a + 1]
    good = levels[:1] == [1] and levels.count(1) == 1
    return jumps if good else [f"{levels.count(1)} titles", *jumps]


def images(notebook: Notebook) -> list[tuple[int, str]]:
    """Cells that show a picture, with its description."""
    return [
        (i, cell["metadata"].get("mystnb", {}).get("image", {}).get("alt", ""))
        for i, cell in code_cells(notebook)
        if any("image/png" in output.get("data", {}) for output in cell["outputs"])
    ]


def undescribed(notebook: Notebook) -> list[str]:
    """Every picture has a description for those who cannot see it."""
    return [f"cell {i}" for i, alt in images(notebook) if len(alt) < 40]


def labels(text: str) -> set[str]:
    """Labels that a chapter defines, those of exercises apart."""
    return set(re.findall(r"^\(([\w-]+)\)=\s*$", text, re.M)) | set(
        re.findall(r"^\$\$ *\(([\w-]+)\)", text, re.M)
    )


def exercises(text: str) -> set[str]:
    """Labels of exercises."""
    return set(re.findall(r"\{exercise-start\}[^\n]*\n:label: ([\w-]+)", text))


def loose_labels(text: str) -> list[str]:
    """Every label is used, every reference leads somewhere."""
    used = set(re.findall(r"\{(?:eq|ref|numref|prf:ref)\}`(?:[^`<]*<)?([\w-]+)>?`", text))
    defined = labels(text)
    unused = [f"{name} is never referred to" for name in sorted(defined - used)]
    return unused + [f"{name} is not defined" for name in sorted(used - defined - exercises(text))]


def unsolved(text: str) -> list[str]:
    """Every exercise has one folded solution."""
    solved = re.findall(r"\{solution-start\} ([\w-]+)\n:class: dropdown", text)
    missing = exercises(text) - set(solved)
    return [f"{name} has no folded solution" for name in sorted(missing)]


def citations(text: str) -> set[str]:
    """Keys that a text cites."""
    found = re.findall(r"\{cite:[pt]\}`([^`]+)`", text)
    return {key.strip() for keys in found for key in keys.split(",")}


def citation_arguments(notebook: Notebook) -> set[str]:
    """Keys that a chapter gives as the evidence of a claim."""
    sources = (cell["source"] for _, cell in code_cells(notebook))
    return {key for source in sources for key in re.findall(r"\.cite\(\"(\w+)\"", source)}


def strange_outputs(notebook: Notebook) -> list[str]:
    """No object's address and no machine's path in what a reader sees."""
    pattern = re.compile(r"0x[0-9a-f]{6,}|/(?:home|tmp|root|Users|work)/|site-packages")
    return [
        f"cell {i}: {found[0]}"
        for i, cell in code_cells(notebook)
        for output in cell["outputs"]
        for kind, text in {"text": output.get("text", ""), **output.get("data", {})}.items()
        if kind != "image/png" and (found := pattern.search(str(text)))
    ]


def bib_keys(path: Path) -> list[str]:
    """Keys of a bibliography."""
    return re.findall(r"^@\w+\{([\w:-]+),", path.read_text(encoding="utf-8"), re.M)
