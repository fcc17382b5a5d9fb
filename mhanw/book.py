"""The book as files: its chapters executed, normalised, judged and replaced.

People edit `chapters/NAME.md`; `chapters/NAME.ipynb` is its executed twin. A chapter is executed
in a process of its own, inside a copy of `chapters/`, so nothing it does and nothing that happens
to it can leave the committed twins half-written.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import difflib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import IO, Any

import nbformat
from nbformat import NotebookNode

from mhanw import CallError, ChapterError
from mhanw_core import claims

LEDGER = "ledger"  # reads the other twins, so it is executed after them
TIME_LIMIT = 1800.0
KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
LANGUAGE = {
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "pygments_lexer": "ipython3",
}

PART = ".mhanw-part"
CARD = ("id", "verdict", "ok", "problems", "evidence", "decisive", "control")

Report = Callable[[str, int, int], None]  # chapter, code cells begun, code cells


# --- The book and its chapters ---------------------------------------------------------------


@dataclass(frozen=True)
class Chapter:
    """A chapter, named by its source `chapters/NAME.md`."""

    source: Path

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return self.source.stem

    @property
    def number(self) -> int | None:
        """The number a name begins with; None for the ledger and other pages."""
        found = re.match(r"(\d+)_", self.name)
        return int(found[1]) if found else None

    @property
    def twin(self) -> Path:
        """The executed notebook that stands beside the source."""
        return self.source.with_suffix(".ipynb")

    def __str__(self) -> str:
        return f"chapters/{self.source.name}"


def find_root(start: Path | None = None) -> Path:
    """Find the book: the nearest folder upwards, else the checkout this package lies in."""
    start = (start or Path.cwd()).resolve()
    for folder in (start, *start.parents, Path(__file__).resolve().parents[1]):
        if (folder / "_toc.yml").is_file() and (folder / "chapters").is_dir():
            return folder
    raise CallError(
        f"No book was found in {start} or above it: expected a folder with _toc.yml and chapters/. "
        "Change into a checkout of the book."
    )


def chapters(root: Path) -> list[Chapter]:
    """List the chapters: by number, then the other pages, the ledger last."""
    found = [Chapter(path) for path in (root / "chapters").glob("[!._]*.md")]
    numbers: dict[int, Chapter] = {}
    for chapter in found:
        if chapter.number is not None and numbers.setdefault(chapter.number, chapter) != chapter:
            raise CallError(
                f"{numbers[chapter.number]} and {chapter} both have number {chapter.number}. "
                "Rename one of them."
            )
    return sorted(found, key=lambda c: (c.name == LEDGER, c.number is None, c.number, c.name))


def pick(root: Path, wanted: str) -> Chapter:
    """Find a chapter by its number or the beginning of its name."""
    known = chapters(root)
    exact = [c for c in known if wanted in (c.name, str(c.number))]
    matches = exact or [c for c in known if wanted and c.name.startswith(wanted)]
    if len(matches) == 1:
        return matches[0]
    names = ", ".join(c.name for c in matches or known) or "none yet"
    problem = "fits several chapters" if matches else "is no chapter"
    raise CallError(f"{wanted!r} {problem}: {names}. Give a number or the beginning of a name.")


def read_source(chapter: Chapter) -> NotebookNode:
    """Read a chapter's Markdown as a notebook that has not been executed."""
    import jupytext

    try:
        notebook = jupytext.read(chapter.source, fmt="md:myst")
    except OSError:
        raise
    except Exception as error:  # the YAML and Markdown parsers raise errors of many kinds
        raise CallError(
            f"{chapter} cannot be read as a MyST notebook: {_in_a_line(error)}. "
            "Mend its header and code cells."
        ) from None
    notebook.metadata["kernelspec"] = dict(KERNELSPEC)
    return notebook


def read_twin(path: Path) -> NotebookNode:
    """Read an executed notebook."""
    try:
        return nbformat.read(path, as_version=4)
    except (ValueError, AttributeError, TypeError, KeyError, nbformat.ValidationError) as error:
        raise CallError(
            f"{path.parent.name}/{path.name} is not a readable notebook: {_in_a_line(error)}. "
            f"`mhanw refresh {path.stem}` writes it anew."
        ) from None


def committed_cards(chapter: Chapter) -> dict[str, dict[str, Any]] | None:
    """Read the cards of a chapter's committed twin; None if it has no twin yet."""
    if not chapter.twin.exists():
        return None
    try:
        return read_cards(read_twin(chapter.twin))
    except ValueError as error:
        raise CallError(
            f"chapters/{chapter.twin.name}: {error} `mhanw refresh {chapter.name}` writes it anew."
        ) from None


def _in_a_line(error: BaseException, width: int = 200) -> str:
    words = " ".join(str(error).split()) or type(error).__name__
    return words[:width].rstrip(" .")


# --- Parameters ------------------------------------------------------------------------------


def parameters(chapter: Chapter) -> dict[str, Any]:
    """Names and defaults of a chapter's parameters; None where a default is no literal."""
    cells = [c for c in read_source(chapter).cells if "parameters" in c.metadata.get("tags", [])]
    try:
        statements = ast.parse(cells[0].source).body if cells else []
    except SyntaxError as error:
        raise CallError(f"{chapter}: the parameters cell is not valid Python: {error}.") from None
    found: dict[str, Any] = {}
    for node in statements:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        found |= {t.id: _literal(value) for t in targets if isinstance(t, ast.Name)}
    return found


def _literal(source: str | ast.AST | None, otherwise: Any = None) -> Any:
    """Evaluate a Python literal, and nothing but a literal."""
    try:
        return ast.literal_eval(source or "None")
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return otherwise


def typed(chapter: Chapter, pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Turn `NAME VALUE` pairs into parameters of the types that the chapter gives them."""
    known = parameters(chapter)
    values: dict[str, Any] = {}
    for name, text in pairs:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            names = ", ".join(known) or "none"
            raise CallError(f"{chapter} has no parameter {name!r}; it has: {names}.{hint}")
        values[name] = _like(known[name], name, text, chapter)
    return values


def _like(default: Any, name: str, text: str, chapter: Chapter) -> Any:
    if isinstance(default, str):
        return text
    value = _literal(text, otherwise=text)
    if isinstance(default, float) and type(value) is int:
        value = float(value)
    if default is not None and type(value) is not type(default):
        raise CallError(
            f"{chapter}: parameter {name} is {default!r} by default, so a value of type "
            f"{type(default).__name__} was expected; found {text!r}."
        )
    if type(value) is int and value < 0:
        raise CallError(f"{chapter}: {name} is a seed or a count, not negative; found {text!r}.")
    return value


# --- Executing -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What executing a chapter came to: a notebook, or the sentence that says why there is none."""

    chapter: Chapter
    notebook: NotebookNode | None = None
    failure: str = ""
    cards: Mapping[str, Any] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, chapter: Chapter, path: Path, *folders: Path) -> Outcome:
        """Take the cards and the times from an executed notebook, then normalise it."""
        notebook = read_twin(path)
        seconds = _seconds(notebook)
        normalise(notebook, *folders)
        try:
            return cls(chapter, notebook, "", read_cards(notebook), seconds)
        except ValueError as error:
            return cls(chapter, failure=f"{chapter}: {error}")

    def executed(self) -> NotebookNode:
        """The executed notebook; an error if there is none."""
        if self.notebook is None:
            raise ChapterError(self.failure)
        return self.notebook

    def problems(self) -> list[str]:
        """What is wrong with the chapter as a whole, in sentences."""
        register, number = claims.load(), self.chapter.number
        strays = [i for i in self.cards if i not in register or register[i].chapter != number]
        found = [f"{self.chapter} shows a card for {i}, which is not its claim." for i in strays]
        return [self.failure, *found] if self.failure else found


def read_cards(notebook: NotebookNode) -> dict[str, dict[str, Any]]:
    """Read the cards of an executed notebook, by claim.

    Raises
    ------
    ValueError
        If a card is incomplete or a claim has two.
    """
    try:
        cards = claims.read_evidence(notebook)
    except (KeyError, TypeError) as error:
        raise ValueError(f"a card has no id ({error}).") from None
    for name, card in cards.items():
        missing = [key for key in CARD if key not in card]
        if missing:
            raise ValueError(f"the card of {name} lacks {', '.join(missing)}.")
    return cards


def _seconds(notebook: NotebookNode) -> dict[str, float]:
    """Seconds spent on each claim: those of the cells since the previous card."""
    spent, found = 0.0, {}
    for cell in notebook.cells:
        spent += cell.metadata.get("papermill", {}).get("duration") or 0.0
        for output in cell.get("outputs", []):
            card = output.get("data", {}).get(claims.MIME)
            if isinstance(card, dict) and "id" in card:
                found[card["id"]], spent = spent, 0.0
    return found


def execute(
    root: Path,
    todo: Sequence[Chapter],
    values: Mapping[str, Any] | None = None,
    *,
    jobs: int = 1,
    time_limit: float = TIME_LIMIT,
    report: Report = lambda name, begun, total: None,
    twins: Mapping[str, str] | None = None,
) -> list[Outcome]:
    """Execute chapters from their sources, in a scratch copy of `chapters/`.

    Parameters
    ----------
    root : Path
        The book.
    todo : sequence of Chapter
    values : mapping, optional
        Parameters, by name, for every chapter.
    jobs : int
        Chapters at a time.
    time_limit : float
        Seconds after which a chapter is stopped.
    report : callable
        Called with a chapter's name, the code cells begun and their number.
    twins : mapping, optional
        Notebooks, by file name, that the chapters shall find in place of the committed ones.
    """
    sweep(root / "chapters")
    with tempfile.TemporaryDirectory(prefix="mhanw-", ignore_cleanup_errors=True) as scratch:
        stage = _stage(root, Path(scratch), twins or {})
        folders = [_prepare(chapter, Path(scratch)) for chapter in todo]
        task = Task(stage, dict(values or {}), time_limit, report)
        failures = asyncio.run(_execute_all(todo, folders, task, jobs))
        return [
            Outcome(chapter, failure=failure)
            if failure
            else Outcome.read(chapter, folder / "executed.ipynb", stage.parent, root)
            for chapter, folder, failure in zip(todo, folders, failures, strict=True)
        ]


def _prepare(chapter: Chapter, scratch: Path) -> Path:
    folder = Path(tempfile.mkdtemp(dir=scratch))
    nbformat.write(read_source(chapter), folder / "source.ipynb")
    return folder


def _stage(root: Path, scratch: Path, twins: Mapping[str, str]) -> Path:
    """Copy `chapters/`, and link what stands beside it, so that `../data` means the same."""
    book = scratch.resolve() / "book"
    ignore = shutil.ignore_patterns(".*", "__pycache__")
    stage = Path(shutil.copytree(root / "chapters", book / "chapters", ignore=ignore))
    for entry in root.iterdir():
        if entry.name != "chapters" and not entry.name.startswith("."):
            (book / entry.name).symlink_to(entry)
    for name, text in twins.items():
        (stage / name).write_text(text, encoding="utf-8")
    return stage


@dataclass(frozen=True)
class Task:
    """What the chapters of one call to `execute` share."""

    stage: Path
    values: dict[str, Any]
    time_limit: float
    report: Report


async def _execute_all(
    todo: Sequence[Chapter], folders: Sequence[Path], task: Task, jobs: int
) -> list[str]:
    slots = asyncio.Semaphore(jobs)

    async def one(chapter: Chapter, folder: Path) -> str:
        async with slots:
            with open(folder / "log", "wb") as log:
                return await _watch(chapter, folder, task, log)

    return await asyncio.gather(*map(one, todo, folders))


async def _watch(chapter: Chapter, folder: Path, task: Task, log: IO[bytes]) -> str:
    """Let a worker execute one chapter; return the sentence that says why it failed, if it did."""
    worker = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mhanw.book", str(folder), json.dumps(task.values)),
        cwd=task.stage,
        env=_environment(folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        start_new_session=True,  # a Ctrl-C is for us; we pass it on by closing stdin
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    last: dict[str, Any] = {"begun": 0, "total": 0}
    try:
        async with asyncio.timeout(task.time_limit):
            async for line in worker.stdout:
                last |= json.loads(line)
                task.report(chapter.name, last["begun"], last["total"])
    except TimeoutError:
        last["error"] = f"did not end within {task.time_limit:g} seconds"
    finally:
        worker.stdin.close()
        code = await _wait(worker)
    if "error" not in last and code == 0:
        return ""
    reason = last.get("error") or _crash(code, folder / "log")
    return f"{chapter}, code cell {last['begun']}: {reason}."


async def _wait(worker: asyncio.subprocess.Process, patience: float = 10.0) -> int:
    try:
        return await asyncio.wait_for(worker.wait(), patience)
    except TimeoutError:
        worker.kill()
        return await worker.wait()


def _crash(code: int, log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    end = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return ": ".join([f"the process that executed it {end}", *lines[-1:]]).rstrip(".")


def _environment(folder: Path) -> dict[str, str]:
    """The caller's environment, less what would change a chapter's output."""
    changed = {
        "COLUMNS": "80",
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTER_PREFER_ENV_PATH": "1",
        "PYTHONPATH": os.pathsep.join(
            [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
    }
    dropped = {"MPLBACKEND", "JPY_PARENT_PID"}
    return {k: v for k, v in os.environ.items() if k not in dropped} | changed


def _work(folder: Path, values: dict[str, Any]) -> int:
    """Be the worker: execute one notebook; write a line of JSON for each cell and for an error."""
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever else prints must not mix with our lines
    threading.Thread(target=_end_with_parent, args=(folder.parent,), daemon=True).start()
    import papermill
    from papermill.exceptions import PapermillExecutionError

    def tell(**message: Any) -> None:
        print(json.dumps(message), file=channel)

    def counts(cell: NotebookNode) -> bool:
        injected = "injected-parameters" in cell.metadata.get("tags", [])
        return cell.cell_type == "code" and bool(cell.source.strip()) and not injected

    source = folder / "source.ipynb"
    total = sum(map(counts, nbformat.read(source, as_version=4).cells))
    begun = 0

    def begin(cell: NotebookNode, cell_index: int) -> None:
        nonlocal begun
        begun += counts(cell)
        tell(begun=begun, total=total)

    options = {"kernel_name": "python3", "progress_bar": False, "on_cell_start": begin}
    try:
        papermill.execute_notebook(source, folder / "executed.ipynb", values, **options)
    except PapermillExecutionError as error:
        lines = str(error.evalue).strip().splitlines() or [""]
        tell(error=f"raised {error.ename}: {lines[-1]}"[:2000].rstrip(" .:"))
    return 0


def _end_with_parent(scratch: Path) -> None:
    """Wait until the parent closes our stdin, as it does even when killed; then end all of us."""
    import psutil

    os.read(0, 1)
    children = psutil.Process().children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(children, timeout=3)
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(1)


# --- Normalising and replacing ---------------------------------------------------------------


def normalise(notebook: NotebookNode, *folders: Path) -> NotebookNode:
    """Strip what differs between two runs of one chapter: times, ids, versions, places.

    Parameters
    ----------
    notebook : NotebookNode
        Changed in place, and returned.
    folders : Path
        Folders whose absolute names are cut from the outputs.
    """
    for key in ("papermill", "jupytext", "widgets"):
        notebook.metadata.pop(key, None)
    notebook.metadata.update(kernelspec=dict(KERNELSPEC), language_info=dict(LANGUAGE))
    notebook.nbformat_minor = 5
    for number, cell in enumerate(notebook.cells, start=1):
        cell.id = f"cell-{number:02d}"
        cell.metadata.setdefault("tags", [])
        for key in ("papermill", "execution"):
            cell.metadata.pop(key, None)
        if cell.cell_type == "code":
            text = json.dumps(cell.outputs, ensure_ascii=False)
            for folder in folders:
                text = text.replace(f"{folder}/", "")
            cell.outputs = _joined(nbformat.from_dict(json.loads(text)))
    return notebook


def _joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Outputs with what was printed in pieces put together: where it breaks is a matter of time."""
    joined: list[NotebookNode] = []
    for output in outputs:
        last = joined[-1] if joined else None
        if last is not None and output.get("name", "") and last.get("name") == output.name:
            last.text += output.text
        else:
            joined.append(output)
    return joined


def sweep(folder: Path) -> None:
    """Remove what runs that were killed left beside the files they were about to replace."""
    import psutil

    for part in folder.glob(f".*{PART}"):
        owner = part.name.removesuffix(PART).rpartition(".")[2]
        if not (owner.isdigit() and psutil.pid_exists(int(owner))):
            part.unlink(missing_ok=True)


def replace(texts: Mapping[Path, str]) -> None:
    """Write files so that each is, at any moment, wholly the old or wholly the new one."""
    parts = {path: path.with_name(f".{path.name}.{os.getpid()}{PART}") for path in texts}
    try:
        for path, part in parts.items():
            with open(part, "w", encoding="utf-8", newline="\n") as file:
                file.write(texts[path])
                file.flush()
                os.fsync(file.fileno())
        for path, part in parts.items():
            os.replace(part, path)
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)


def refresh(root: Path, wanted: Sequence[Chapter] = (), **how: Any) -> dict[Chapter, bool]:
    """Execute chapters, and the ledger after them, and replace their twins; say which changed.

    If any of them fails, none is replaced.

    Parameters
    ----------
    root : Path
        The book.
    wanted : sequence of Chapter
        All chapters if empty.
    how
        `jobs`, `time_limit`, `report` of `execute`.
    """
    known = chapters(root)
    todo = [c for c in known if c in (wanted or known) and c.name != LEDGER]
    texts = _texts(execute(root, todo, **how))
    last = [c for c in known if c.name == LEDGER]
    twins = {chapter.twin.name: text for chapter, text in texts.items()}
    texts |= _texts(execute(root, last, twins=twins, **how))
    changed = {chapter: _content(chapter.twin) != text for chapter, text in texts.items()}
    replace({chapter.twin: text for chapter, text in texts.items() if changed[chapter]})
    return changed


def _texts(outcomes: Sequence[Outcome]) -> dict[Chapter, str]:
    failures = [outcome.failure for outcome in outcomes if outcome.failure]
    if failures:
        raise ChapterError("\n".join([*failures, "No notebook was replaced."]))
    return {outcome.chapter: dumps(outcome.executed()) for outcome in outcomes}


def dumps(notebook: NotebookNode) -> str:
    """A notebook as the text of its file."""
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def _content(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, UnicodeDecodeError):
        return None


# --- Judging ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """A row of the register beside what its chapter shows."""

    row: claims.Row
    card: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    seconds: float | None = None

    @property
    def status(self) -> str:
        """`red`, `good`, or `none` where the chapter is not written yet."""
        return "red" if self.problems else "good" if self.card else "none"

    def as_dict(self) -> dict[str, Any]:
        """The finding for machines."""
        return {
            "id": self.row.id,
            "place": self.row.place,
            "chapter": self.row.chapter,
            "status": self.status,
            "verdict": self.card.get("verdict"),
            "register": self.row.verdict,
            "problems": list(self.problems),
            "decisive": self.card.get("decisive", ""),
            "control": self.card.get("control", ""),
            "seconds": self.seconds,
            "evidence": self.card.get("evidence", []),
        }


def select(ids: Iterable[str]) -> list[claims.Row]:
    """Rows of the register by id, in its order; all of them if no id is given."""
    register, wanted = claims.load(), set(ids)
    for unknown in sorted(wanted - register.keys()):
        close = difflib.get_close_matches(unknown, register, n=3, cutoff=0.4)
        hint = f"The closest are {', '.join(close)}." if close else "`mhanw verify` lists them all."
        raise CallError(f"{unknown!r} is not a claim of the register. {hint}")
    return [row for row in register.values() if not wanted or row.id in wanted]


@dataclass(frozen=True)
class Verification:
    """A finding for each claim that was asked for, and what else is wrong, in sentences."""

    findings: tuple[Finding, ...]
    problems: tuple[str, ...]
    seconds: float

    @property
    def sentences(self) -> list[str]:
        """Everything that is red, a sentence for each."""
        red = [f"{finding.row.id}: {p}" for finding in self.findings for p in finding.problems]
        return [*red, *self.problems]

    @property
    def red(self) -> bool:
        """True if the evidence does not carry the register."""
        return bool(self.sentences)

    def as_dict(self) -> dict[str, Any]:
        """The verification for machines."""
        return {
            "schema": 1,
            "red": self.red,
            "problems": list(self.problems),
            "seconds": round(self.seconds, 3),
            "claims": [finding.as_dict() for finding in self.findings],
        }


def verify(
    root: Path, rows: Sequence[claims.Row], pairs: Sequence[tuple[str, str]] = (), **how: Any
) -> Verification:
    """Execute the chapters of some claims and judge what they show.

    Parameters
    ----------
    root : Path
        The book.
    rows : sequence of Row
        The claims to verify.
    pairs : sequence of (name, value)
        Parameters for every chapter.
    how
        `jobs`, `time_limit`, `report` of `execute`.
    """
    start = time.monotonic()
    numbers = {row.chapter for row in rows}
    todo = [chapter for chapter in chapters(root) if chapter.number in numbers]
    values = [typed(chapter, pairs) for chapter in todo]
    outcomes = execute(root, todo, *values[:1], **how)
    return weigh(rows, outcomes, time.monotonic() - start)


def weigh(
    rows: Iterable[claims.Row], outcomes: Sequence[Outcome], seconds: float = 0.0
) -> Verification:
    """Judge claims by the outcomes of executed chapters."""
    by_number = {outcome.chapter.number: outcome for outcome in outcomes}
    findings = tuple(judge(row, by_number.get(row.chapter)) for row in rows)
    problems = tuple(problem for outcome in outcomes for problem in outcome.problems())
    return Verification(findings, problems, seconds)


def judge(row: claims.Row, outcome: Outcome | None) -> Finding:
    """Hold a claim's card against its row of the register."""
    if outcome is None:
        return Finding(row)
    card = outcome.cards.get(row.id)
    if card is None:
        return Finding(row, problems=(f"{outcome.chapter} shows no card for it.",))
    problems = list(card["problems"])
    if card["verdict"] != row.verdict:
        problems.append(f"the evidence says {card['verdict']!r}, the register {row.verdict!r}.")
    if not problems and not all(k["rejected"] for e in card["evidence"] for k in e["controls"]):
        problems.append("a negative control was accepted.")
    if not problems and not card["ok"]:
        problems.append("its card is not in order.")
    return Finding(row, card, tuple(dict.fromkeys(problems)), outcome.seconds.get(row.id))


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Claims whose verdict or decisive figure differs between two sets of cards."""

    def line(card: Mapping[str, Any] | None) -> str:
        return f"{card['verdict']}: {card['decisive']}" if card else "no card"

    lines = [(i, line(before.get(i)), line(after.get(i))) for i in {**before, **after}]
    return [(i, old, new) for i, old, new in lines if old != new]


# --- Building --------------------------------------------------------------------------------


def build(root: Path) -> bool:
    """Build the site, warnings being errors; True if there were none."""
    command = shutil.which("jupyter-book", path=str(Path(sys.executable).parent))
    version = metadata.version("jupyter-book") if command else "none"
    if command is None or not version.startswith("1."):
        raise CallError(
            f"Jupyter Book 1 is needed beside {sys.executable}; found version: {version}. "
            "Install the book's requirements.txt."
        )
    options = ["-W", "-n", "--keep-going"]
    return subprocess.call([command, "build", ".", *options], cwd=root) == 0


if __name__ == "__main__":
    sys.exit(_work(Path(sys.argv[1]), json.loads(sys.argv[2])))
