"""What a person sees in the terminal: progress, epochs, tables, errors; and Ctrl-C as a request."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from pluralis.errors import Interrupted, visible

if TYPE_CHECKING:
    from pluralis.counting import Counts
    from pluralis.data.source import Split
    from pluralis.method import Clock
    from pluralis.run import Hooks


class VisibleConsole(Console):
    """Shows what would steer the terminal, such as an escape code in somebody's class name, instead of obeying it."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


# Under torchrun one process speaks for all.
console = VisibleConsole(quiet=os.environ.get("RANK", "0") != "0")
errors = VisibleConsole(stderr=True)
VAL_NLL = (
    "val nll: how surprised the network is by the labels written for held-out images (mean −log likelihood; lower is"
    " better); the epoch where it is lowest is kept"
)


@contextmanager
def training_hooks(title: str, *, epochs_as_lines: bool = True) -> Iterator[Hooks]:
    """Bars for decoding and for the steps of an epoch, a line for each epoch, and a stop on SIGINT or SIGTERM."""
    from pluralis.run import Hooks

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bars, stop_request() as stop:
        steps_bar, decode_bar = bars.add_task(title, total=None), bars.add_task("decoding", visible=False)

        stages, explained = 1, False

        def begin(split: Split, count: int) -> None:
            nonlocal stages
            stages = count
            if epochs_as_lines:
                say(split.counts())

        def report(clock: Clock, steps: int, figures: dict[str, float]) -> None:
            nonlocal explained
            done = (clock.epoch * steps + clock.step) if not figures else clock.epoch * steps
            name = f"{title} {stage_text(clock.stage, stages)}epoch {min(clock.epoch + 1, clock.epochs)}/{clock.epochs}"
            bars.update(steps_bar, completed=done, total=clock.epochs * steps, description=name)
            if figures and epochs_as_lines:
                if "val nll" in figures and not explained:
                    say(VAL_NLL)
                    explained = True
                say(epoch_line(figures, clock.epochs, stages))

        def decoding(done: int, total: int) -> None:
            bars.update(decode_bar, completed=done, total=total, visible=done < total)
            if stop.is_set():
                raise Interrupted("stopped while decoding images")

        yield Hooks(report, decoding, say, stop.is_set, begin)


@contextmanager
def prediction_bar(title: str = "predicting") -> Iterator[Callable[[int, int], None]]:
    """A bar for work of a known length."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True) as bars:
        bar = bars.add_task(title, total=None)
        try:
            yield lambda done, total: bars.update(bar, completed=done, total=total)
        except KeyboardInterrupt:  # which would end the command without a word
            raise Interrupted(f"{title}: stopped") from None


def say(line: str) -> None:
    """A line as it is: paths may hold brackets, and are neither marked up nor folded."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def stage_text(stage: float, stages: int) -> str:
    """Which stage it is, where there are several: each has epochs of its own."""
    return f"stage {int(stage) + 1} of {stages}, " if stages > 1 else ""


def epoch_line(figures: dict[str, float], epochs: int, stages: int = 1) -> str:
    skip = ("stage", "epoch", "score", "calibration a", "calibration b")
    parts = [f"{k} {v:.4g}" for k, v in figures.items() if k not in skip and "left out" not in k]
    return f"{stage_text(figures['stage'], stages)}epoch {int(figures['epoch'])}/{epochs}  " + "  ".join(parts)


@contextmanager
def stop_request() -> Iterator[threading.Event]:
    """SIGINT and SIGTERM set the event instead of breaking off; a second one breaks off as usual."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def ask(number: int, frame: Any) -> None:
        event.set()
        errors.print("stopping after this step; a second time breaks off at once")
        for which, handler in before.items():
            signal.signal(which, handler)

    before = {which: signal.signal(which, ask) for which in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)


_WHOLE = ("classes left out",)  # figures that are counts


def figures_table(title: str, rows: dict[str, dict[str, float]]) -> Table:
    """One line a name, one column a figure."""
    table = Table(title=Text(title))
    table.add_column("")
    names = list(dict.fromkeys(key for figures in rows.values() for key in figures))
    for name in names:
        table.add_column(name, justify="right")
    for label, figures in rows.items():
        cells = (f"{figures[n]:.{0 if n in _WHOLE else 2}f}" if n in figures else "" for n in names)
        table.add_row(Text(visible(label)), *cells)
    return table


def rates_table(classes: Sequence[str], rates: Sequence[tuple[float, float]], most: int = 20) -> Table:
    """At which rate the labels of each class are written, with its error: those that are missing most come first."""
    order = sorted(range(len(classes)), key=lambda column: rates[column][0])
    left_out = "" if len(order) <= most else f"; the {most} lowest of {len(order):,}, all are in model.json"
    table = Table(title=Text(f"rate of writing, by held-out rows{left_out}"))
    table.add_column("label")
    table.add_column("rate", justify="right")
    for column in order[:most]:
        table.add_row(Text(visible(classes[column])), "{:.2f} ± {:.2g}".format(*rates[column]))
    return table


def counts_table(counts: Counts) -> Table:
    """One line a class and one for all: written, expected, missing, and the interval of what is missing."""
    mean, low, high = counts.per_image
    title = f"{counts.rows:,} images, {mean:.2f} labels an image expected ({low:.2f} to {high:.2f})"
    table = Table(title=Text(title))
    for name in ("label", "written", "expected", "missing", "95 % interval"):
        table.add_column(name, justify="left" if name == "label" else "right")
    for count in (*counts.classes, counts.total):
        ends = f"{count.low - count.written:,.1f} to {count.high - count.written:,.1f}"
        cells = f"{count.written:,}", f"{count.expected:,.1f}", f"{count.missing:,.1f}", ends
        table.add_row(Text(visible(count.name)), *cells, end_section=count is counts.classes[-1])
    return table
