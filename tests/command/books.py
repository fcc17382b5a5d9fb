"""Small books in temporary folders, and two ways to call the command: in here and as a process."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from typer.testing import CliRunner, Result

from mhanw.cli import app
from mhanw_core import claims

HEADER = "---\nkernelspec:\n  display_name: Python 3\n  language: python\n  name: python3\n---\n"
PARAMETERS = "seed = 7\nscale = 0.5\nfolder = 'models'\nloud = False"


def cell(source: str, *tags: str) -> str:
    """A code cell in MyST Markdown."""
    return f"```{{code-cell}} ipython3\n:tags: [{', '.join(tags)}]\n\n{source}\n```\n"


def page(title: str, *cells: str) -> str:
    """A chapter with a title and a parameters cell."""
    return "\n".join([HEADER, f"# {title}\n", cell(PARAMETERS, "parameters"), *cells])


def card(claim_id: str, **changes: Any) -> dict[str, Any]:
    """A card as a chapter writes it: in order, unless changed."""
    control = {"label": "sign reversed", "figure": "9.1 se", "rejected": True}
    check = {"kind": "measurement", "label": "bias", "about": "statement", "figure": "0.3 se"}
    evidence = [{**check, "passed": True, "controls": [control]}]
    good = {"schema": 1, "id": claim_id, "verdict": "holds", "register": "holds", "ok": True}
    more = {"problems": [], "evidence": evidence, "decisive": "0.3 se", "control": "9.1 se"}
    return {**good, **more, "place": "Theorem 1", "chapter": 1, **changes}


def show(claim_id: str, **changes: Any) -> str:
    """A code cell that shows a card; its decisive figure is the seed unless changed."""
    data = json.dumps({claims.MIME: card(claim_id, **changes), "text/plain": claim_id})
    seed = "" if "decisive" in changes else f"data[{claims.MIME!r}]['decisive'] = str(seed)\n"
    return cell(
        "import json\nfrom IPython.display import publish_display_data\n"
        f"data = json.loads({data!r})\n{seed}publish_display_data(data)"
    )


def make_book(root: Path, **chapters: str) -> Path:
    """Write a book; chapter names come without their underscore: `c1_kernels` is `1_kernels`."""
    (root / "chapters").mkdir(parents=True)
    (root / "_toc.yml").write_text("format: jb-book\nroot: index\n")
    for name, text in chapters.items():
        (root / "chapters" / f"{name.removeprefix('c')}.md").write_text(text)
    return root


def row(claim_id: str, chapter: int) -> claims.Row:
    """A row of a small register."""
    return claims.Row(claim_id, 1, "Theorem 1", "It holds.", "holds", "mathematics", chapter)


def call_in(root: Path, *args: str) -> Result:
    """Call the command in this process, from inside a book."""
    before = Path.cwd()
    os.chdir(root)
    try:
        result = CliRunner().invoke(app, args)
    finally:
        os.chdir(before)
    assert "Traceback" not in result.output
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def start(root: Path, *args: str) -> subprocess.Popen[str]:
    """Start the command as a process of its own, one that hears Ctrl-C."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "mhanw", *args]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    # Shells let what they start in the background ignore SIGINT, and that is inherited.
    heard = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(
            command, cwd=root, env=environment, stdout=pipe, stderr=pipe, text=True
        )
    finally:
        signal.signal(signal.SIGINT, heard)


def prints(folder: Path) -> dict[str, str]:
    """Checksums of all files in a folder, hidden ones included."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def wait_for(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Wait until something is so; fail if it does not become so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    """True if a process has ended."""
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def old_twins(root: Path) -> dict[str, str]:
    """Put something in place of every twin; return the checksums of all that is in `chapters/`."""
    for source in (root / "chapters").glob("*.md"):
        source.with_suffix(".ipynb").write_text(f"the old twin of {source.name}")
    return prints(root / "chapters")
