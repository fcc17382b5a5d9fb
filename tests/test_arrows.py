"""Imports point down only, and importing the mathematics is light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ALLOWED = {
    "regression": {"numpy", "scipy"},
    "subspaces": {"numpy", "mhanw_core.regression"},
    "scaling": {"numpy", "scipy", "mhanw_core.regression"},
    "claims": {"yaml", "numpy", "sympy"},
    "ensemble": {"numpy", "scipy", "mhanw_core.regression"},
    "diversity": {"numpy", "mhanw_core.regression", "mhanw_core.subspaces"},
    "designs": {
        "numpy",
        "joblib",
        "threadpoolctl",
        "mhanw_core.ensemble",
        "mhanw_core.regression",
    },
    "fields": {"numpy", "scipy", "sklearn", "mhanw_core.designs", "mhanw_core.regression"},
    "figures": {"matplotlib", "cycler"},
    "__init__": set(),
}


def imports(path: Path) -> set[str]:
    """What a module imports that is not in the standard library."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            inside = {f"{module}.{alias.name}" for alias in node.names}
            found |= inside if module == "mhanw_core" else {module}
    names = {n if n.startswith("mhanw") else n.partition(".")[0] for n in found}
    return names - set(sys.stdlib_module_names)


@pytest.mark.parametrize("module", sorted(p.stem for p in (ROOT / "mhanw_core").glob("*.py")))
def test_core_imports_only_what_lies_below(module: str) -> None:
    assert imports(ROOT / "mhanw_core" / f"{module}.py") <= ALLOWED[module]


def test_mathematics_is_light() -> None:
    code = (
        "import sys\n"
        "from mhanw_core import claims, designs, diversity, ensemble\n"
        "from mhanw_core import regression, scaling, subspaces\n"
        "heavy = {'torch', 'matplotlib', 'sympy', 'nbformat', 'pandas', 'mhanw'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
