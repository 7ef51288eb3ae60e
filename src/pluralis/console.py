"""What a person sees in the terminal: progress, epochs, tables, errors; and Ctrl-C as a request."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from pluralis.method import Clock
    from pluralis.run import Hooks

console = Console()
errors = Console(stderr=True)


@contextmanager
def training_hooks(title: str, *, epochs_as_lines: bool = True) -> Iterator[Hooks]:
    """Bars for decoding and for the steps of an epoch, a line for each epoch, and a stop on SIGINT or SIGTERM."""
    from pluralis.run import Hooks

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bars, stop_request() as stop:
        steps_bar, decode_bar = bars.add_task(title, total=None), bars.add_task("decoding", visible=False)

        def report(clock: Clock, steps: int, figures: dict[str, float]) -> None:
            done = (clock.epoch * steps + clock.step) if not figures else clock.epoch * steps
            name = f"{title} epoch {min(clock.epoch + 1, clock.epochs)}/{clock.epochs}"
            bars.update(steps_bar, completed=done, total=clock.epochs * steps, description=name)
            if figures and epochs_as_lines:
                console.print(epoch_line(figures, clock.epochs), highlight=False)

        def decoding(done: int, total: int) -> None:
            bars.update(decode_bar, completed=done, total=total, visible=done < total)

        yield Hooks(report, decoding, lambda line: console.print(line, highlight=False), stop.is_set)


def epoch_line(figures: dict[str, float], epochs: int) -> str:
    skip = ("stage", "epoch", "score")
    parts = [f"{k} {v:.4g}" for k, v in figures.items() if k not in skip and "without" not in k]
    return f"epoch {int(figures['epoch'])}/{epochs}  " + "  ".join(parts)


@contextmanager
def stop_request() -> Iterator[threading.Event]:
    """SIGINT and SIGTERM set the event instead of breaking off; a second one breaks off as usual."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def ask(number: int, frame: Any) -> None:
        event.set()
        errors.print("stopping after this step; everything is being saved")
        for which, handler in before.items():
            signal.signal(which, handler)

    before = {which: signal.signal(which, ask) for which in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for which, handler in before.items():
            signal.signal(which, handler)


def figures_table(title: str, rows: dict[str, dict[str, float]]) -> Table:
    """One line a name, one column a figure."""
    table = Table(title=title)
    table.add_column("")
    names = list(dict.fromkeys(key for figures in rows.values() for key in figures))
    for name in names:
        table.add_column(name, justify="right")
    for label, figures in rows.items():
        table.add_row(label, *(f"{figures[n]:.2f}" if n in figures else "" for n in names))
    return table


def fail(error: Exception) -> int:
    """One line that says what, where and what to do."""
    text = " ".join(str(error).split())
    print(f"error: {text}", file=sys.stderr)
    return 2
