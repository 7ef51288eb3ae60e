"""`pluralis bench`: specs become runs, and the runs become tables."""

from __future__ import annotations

import math
import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pluralis.errors import CheckpointError, Interrupted, RecipeError, nearest

if TYPE_CHECKING:
    from pluralis.bench.plan import Plan
    from pluralis.bench.runner import Queue
    from pluralis.bench.store import Store

SpecFiles = Annotated[
    list[Path],
    typer.Argument(metavar="SPEC...", help="TOML files, or such as come along: papers/gr-table2.toml."),
]
Out = Annotated[
    Path,
    typer.Option(
        help="Folder of the bench; several specs share its runs, and have a folder each in it for their tables."
    ),
]
ScaleName = Annotated[str, typer.Option(help="full (default), small or embedded, where the spec has them.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="section.key=value over the recipe of every run; may be given again.")
]
Images = Annotated[
    list[str] | None,
    typer.Option(help="Folder of the images, or COLUMN=FOLDER (or its first words); may be given again."),
]
LabelFiles = Annotated[list[str] | None, typer.Option(help="Label file, or COLUMN=FILE; may be given again.")]


def bench(
    spec: SpecFiles,
    out: Out,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time; several may share a GPU.")] = 1,
    scale: ScaleName = "",
    ray: Annotated[str, typer.Option(help="Address of a Ray cluster that makes the runs, such as auto.")] = "",
    images: Images = None,
    labels: LabelFiles = None,
    limit: Annotated[
        float | None, typer.Option(min=0, help="Seconds, after which no run is begun; 0 makes the tables alone.")
    ] = None,
    stop: Annotated[
        float | None, typer.Option(min=0, help="Seconds, after which what runs is saved, and tables are made.")
    ] = None,
    redo: Annotated[bool, typer.Option("--redo", help="Make runs anew that other code of this version made.")] = False,
    only_list: Annotated[bool, typer.Option("--list", help="Print the runs, and which are done; run nothing.")] = False,
    set: Settings = None,
) -> None:
    """Make all runs of one or more specs, and their tables; the same command goes on, and repeats nothing."""
    begun = time.monotonic()
    plans, store = _plans(spec, out, scale, images, labels, set)
    from pluralis.bench.buildable import check_weights
    from pluralis.bench.listing import listing
    from pluralis.bench.output import write_pages, write_tables
    from pluralis.bench.plan import digits_file
    from pluralis.bench.progress import progress, summary
    from pluralis.bench.ray_cluster import ray_workers
    from pluralis.bench.run_folders import tidy
    from pluralis.bench.runner import Queue, work_off
    from pluralis.bench.spec_folders import take_folders
    from pluralis.bench.store import cores
    from pluralis.bench.workers import local_workers
    from pluralis.console import say, stop_request

    if only_list:
        for line in listing(Queue(plans, store, say=say, only_look=True)):
            say(line)
        return
    store.prepare()
    for line in take_folders([plan.spec for plan in plans], [plan.name for plan in plans], store, set or []):
        say(line)
    ends = [math.inf if seconds is None else seconds for seconds in (limit, stop)]
    queue = Queue(plans, store, ends[0], say, stop_after=ends[1], begun=begun)
    _other_code(queue, redo)
    runs = queue.runs()
    tidy(store, queue.finished, {run.key for run in runs if run.keep})
    number = len({run.key for run in runs})
    say(f"{number} run{'s' if number != 1 else ''}; results: {out}")
    if not ray and ends[0] > 0:
        check_weights((run for run in runs if not queue.is_known(run)), made=digits_file(store.out))
    if ends[0] > 0:
        _digits_first(queue)
    if ray:
        workers = ray_workers(ray, jobs, out.resolve(), say=say)
    else:
        threads = store.threads(jobs) if ends[0] > 0 else 1
        if threads > max(1, cores() // jobs):
            say(f"each process has {threads} threads, as in the first command of this folder: slow for --jobs {jobs}")
        workers = local_workers(jobs, threads)
    with stop_request() as asked, progress(queue) as tick:
        work_off(queue, workers, tick, asked)
    state = queue.state(jobs)
    for path in write_tables(queue):
        if len(plans) == 1:
            say(f"written: {path}")
    if queue.stopped or queue.is_over():  # no time is left for figures, which take seconds for each spec
        say("pages and figures are not made: the same command with --limit 0 makes them from what there is")
    else:
        for path in write_pages(queue, _command(spec, out, scale, images, labels, set)):
            say(f"written: {path}")
    if queue.stopped and not queue.is_over():
        raise Interrupted(f"stopped: {summary(state)}")
    if _failed(queue, complete=not state.left and not state.elsewhere):
        raise typer.Exit(1)
    if state.left or state.elsewhere:
        say(f"not complete: {summary(state)}; the same command goes on")


def bench_run(
    spec: SpecFiles,
    out: Out,
    only: Annotated[str, typer.Option(help="Key of the run, as `pluralis bench SPEC --list` prints them.")],
    scale: ScaleName = "",
    images: Images = None,
    labels: LabelFiles = None,
    set: Settings = None,
) -> None:
    """Make one run of the specs in this process, for a scheduler of your own; `pluralis bench` makes the tables."""
    plans, store = _plans(spec, out, scale, images, labels, set)
    from pluralis.bench.perform import Job, is_done, perform
    from pluralis.bench.runner import Queue
    from pluralis.console import say, training_hooks

    store.prepare()
    found = {run.key: run for run in Queue(plans, store, say=say).runs()}
    if only not in found:
        raise RecipeError(
            f"there is no run {only!r} in {', '.join(map(str, spec))} (see --list); {nearest(only, found)}"
        )
    job = Job(store.out, found[only])
    if is_done(store, job):
        say(f"{job.run.label} is done: {store.file(only)}")
        return
    if "OMP_NUM_THREADS" not in os.environ:
        import torch

        torch.set_num_threads(store.threads(jobs=1))
    with training_hooks(job.run.label) as hooks:
        outcome = perform(job, hooks)
    if outcome == "elsewhere":
        raise CheckpointError(f"another process makes the run {only}: wait for it, or end it")
    say(f"{job.run.label}: {store.file(only)}")


def _command(
    specs: list[Path],
    out: Path,
    scale: str,
    images: list[str] | None,
    labels: list[str] | None,
    settings: list[str] | None,
) -> str:
    """What makes these tables again, with all that decides them.

    >>> _command([Path("a b.toml")], Path("runs/a"), "small", ["voc"], None, ["train.lr=1"])
    "pluralis bench 'a b.toml' --scale small --images voc --set train.lr=1 --out runs/a"
    """
    words = ["pluralis", "bench", *map(str, specs)]
    given = (("--scale", [scale] if scale else []), ("--images", images), ("--labels", labels), ("--set", settings))
    for option, values in given:
        words += [word for value in values or [] for word in (option, value)]
    return shlex.join([*words, "--out", str(out)])


def _failed(queue: Queue, complete: bool) -> bool:
    """Say what has no figures, and what to do."""
    from pluralis.console import say

    for key, failure in queue.failures.items():
        say(f"failed: {failure.run.label}: {failure.error}; log: {queue.store.log(key)}")
    if queue.failures:
        say("the same command makes what failed again")
    diverged = queue.diverged()
    for failure in diverged.values():
        say(f"diverged: {failure.run.label}: {failure.error}")
    known = queue.benches if complete and not queue.failures else []
    unchosen = [place for bench in known for place in bench.unchosen()]
    for row in unchosen:
        say(f"nothing to choose from: {row}: every value of its grid diverged")
    if diverged or unchosen:
        say("what diverged would do so again: change its settings")
    return bool(queue.failures or diverged or unchosen)


def _plans(
    specs: list[Path],
    out: Path,
    scale: str,
    images: list[str] | None,
    labels: list[str] | None,
    settings: list[str] | None,
) -> tuple[list[Plan], Store]:
    from pluralis.bench.spec import Spec

    loaded = [Spec.load(file, scale) for file in specs]
    every = [column.name for spec in loaded for column in spec.columns]
    from pluralis.bench.plan import Place, Plan
    from pluralis.bench.spec_folders import table_folders
    from pluralis.bench.store import Store

    out = out.resolve()  # weights that the bench makes there are part of a run's recipe
    names, plans, hashes = table_folders(loaded, out), list[Plan](), dict[str, str]()
    for spec, name in zip(loaded, names, strict=True):
        columns = [column.name for column in spec.columns]
        place = Place(out, _by_column(images or [], columns, every), _by_column(labels or [], columns, every))
        plans.append(Plan(spec, place, settings or [], name, hashes))
    return plans, Store(out)


def _by_column(given: list[str], columns: list[str], every: Sequence[str] = ()) -> dict[str, str]:
    """COLUMN=PATH, or a path for all; a path may hold an equals sign too. First words name all columns that have them.

    A column that only other specs have, which are among `every`, is theirs.

    >>> _by_column(["VOC=voc", "COCO=coco"], ["VOC 10 %", "VOC 50 %", "COCO"])
    {'VOC 10 %': 'voc', 'VOC 50 %': 'voc', 'COCO': 'coco'}
    >>> _by_column(["VOC=voc", "COCO=coco"], ["VOC"], ["VOC", "COCO"])
    {'VOC': 'voc'}
    """
    found: dict[str, str] = {}
    for text in given:
        name, equals, path = text.partition("=")
        named = [column for column in (*columns, *every) if equals and f"{column} ".startswith(f"{name} ")]
        if equals and not named and not Path(text).exists():
            known = ", ".join(dict.fromkeys((*columns, *every))) or "none has a name"
            raise RecipeError(f"{text}: no column begins with {name!r} (columns: {known}), and there is no such path")
        found |= {column: path for column in named if column in columns} if named else {"": text}
    return found


def _digits_first(queue: Queue) -> None:
    """A worker trains the weights of the embedded scale, and what it says is in a log: nobody would know of it."""
    from pluralis.bench.perform import Job, has_digits, needs_digits

    waiting = [run for run in queue.runs() if not queue.is_known(run) and needs_digits(Job(queue.store.out, run))]
    if waiting and not has_digits(queue.store):
        from pluralis.console import say
        from pluralis.demo import DIGITS_FIRST

        say(DIGITS_FIRST)


def _other_code(queue: Queue, redo: bool) -> None:
    """In a check-out the code may change without its version: that is said, and left to the user."""
    from pluralis.bench.identity import code_hash
    from pluralis.console import say

    others = [key for key, result in queue.finished.items() if result.code_hash != code_hash()]
    if others and not redo:
        number, them = (f"{len(others)} of the results were", "them") if others[1:] else ("1 of the results was", "it")
        say(f"{number} made by other code of the same version; --redo makes {them} anew")
    for run in queue.runs() if redo else ():
        if run.key in others and run.key in queue.finished:
            queue.redo(run, code_hash())
