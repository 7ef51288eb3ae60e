"""Small real benches that several tests share."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from typer.testing import CliRunner

from pluralis.bench.plan import Place, Plan
from pluralis.bench.runner import Queue, work_off
from pluralis.bench.spec import Spec
from pluralis.bench.store import Result, Store
from pluralis.bench.worker import Answer, carry_out
from pluralis.cli import app

TOY = Path(__file__).with_name("toy.toml")
BASE = str(TOY.with_name("toy-base.toml").resolve())
TWO = (
    'baseline = "an"\nseeds = 2\nkeep = true\nfigures = [{kind = "learning-curves"}]\n'
    '[[rows]]\nname = "an"\nmethod = "an"\n[[rows]]\nname = "gr"\nmethod = "gr"\nseeds = 1\n'
)


class InThisProcess:
    """A worker without a process of its own, which would take seconds to import everything."""

    def __init__(self, delay: float = 0.0) -> None:
        self._stop, self._delay = threading.Event(), delay

    def perform(self, job: dict[str, Any], heard: Callable[[Answer], None]) -> Answer:
        return carry_out(job, self._shall_stop, heard)

    def _shall_stop(self) -> bool:
        """Asked at every step."""
        time.sleep(self._delay)
        return self._stop.is_set()

    def close(self) -> None:
        self._stop.set()

    def wait(self) -> None:
        pass


def write_spec(folder: Path, text: str, name: str = "spec.toml") -> Path:
    """A spec over the toy recipe; one that starts with its title stands as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    head = "" if text.startswith(("title", "#")) else f'title = "Test"\nbase = "{BASE}"\n'
    (folder / name).write_text(head + text)
    return folder / name


def make_plan(spec: Path, out: Path, *settings: str, scale: str = "") -> Plan:
    return Plan(Spec.load(spec, scale), Place(out), list(settings))


def make_queue(spec: Path, out: Path, *settings: str, **options: Any) -> Queue:
    plan, store = make_plan(spec, out, *settings), Store(out)
    store.prepare()
    return Queue([plan], store, **options)


def run_bench(spec: Path, out: Path, *settings: str, output: bool = True, **options: Any) -> Queue:
    """All runs in this process, and the tables."""
    queue = make_queue(spec, out, *settings, **options)
    work_off(queue, [InThisProcess()], lambda state: None, threading.Event())
    if output:
        from pluralis.bench.output import write_output  # matplotlib takes a while

        write_output(queue)
    return queue


def child_bench(spec: str, out: str, delay: float) -> None:
    """The runs, in a child process, with a delay at each step: there is time to kill it."""
    torch.set_num_threads(1)
    queue = make_queue(Path(spec), Path(out))
    work_off(queue, [InThisProcess(delay)], lambda state: None, threading.Event())


def result(row: str = "an", value: float = 80.0, seed: int = 0, draw: int = 1200, **more: Any) -> Result:
    """A finished run as the store gives it."""
    values: dict[str, Any] = {
        "key": f"{row}-{seed}-{draw}",
        "row": row,
        "column": "",
        "seed": seed,
        "draw": draw,
        "spec_row": row,
        "grid": {},
        "recipe": {"model": {"backbone": "tiny"}, "data": {"size": 24}},
        "data_hash": "d",
        "code_version": "0",
        "code_hash": "c",
        "classes": ["a"],
        "history": [{"epoch": 1.0, "score": value}],
        "chosen": 0,
        "rule": "last epoch",
        "test": {"mAP": value},
        "per_class_ap": {"a": value},
        "seconds": 3.0,
        "device": "CPU",
        "versions": {},
        "date": "2026-01-01",
    }
    return Result(**{**values, **more})


def texts(out: Path) -> dict[str, bytes]:
    return {name: (out / name).read_bytes() for name in ("table.md", "table.tex", "table.csv", "table.html")}


def command(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


def copy(done: tuple[Path, Path], to: Path) -> tuple[Path, Path]:
    shutil.copytree(done[1], to)
    return done[0], to
