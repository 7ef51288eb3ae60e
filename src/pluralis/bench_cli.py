"""`pluralis bench`: a spec becomes runs, and the runs become tables."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pluralis.errors import CheckpointError, Interrupted, RecipeError, nearest

if TYPE_CHECKING:
    from pluralis.bench.plan import Plan
    from pluralis.bench.runner import Queue
    from pluralis.bench.store import Store

SpecFile = Annotated[Path, typer.Argument(help="TOML file, or one that comes along, such as papers/gr-table2.toml.")]
Out = Annotated[Path, typer.Option(help="Folder of the bench; the same command goes on where it stopped.")]
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
    spec: SpecFile,
    out: Out,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time; several may share a GPU.")] = 1,
    scale: ScaleName = "",
    ray: Annotated[str, typer.Option(help="Address of a Ray cluster that makes the runs, such as auto.")] = "",
    images: Images = None,
    labels: LabelFiles = None,
    limit: Annotated[float | None, typer.Option(min=0, help="Seconds, after which no run is begun.")] = None,
    redo: Annotated[bool, typer.Option("--redo", help="Make runs anew that other code of this version made.")] = False,
    only_list: Annotated[bool, typer.Option("--list", help="Print the runs, and which are done; run nothing.")] = False,
    set: Settings = None,
) -> None:
    """Make all the runs of a spec and the tables from them; what is finished is not repeated."""
    plan, store = _plan(spec, out, scale, images, labels, set)
    from pluralis.bench.output import write_output
    from pluralis.bench.progress import progress, summary
    from pluralis.bench.run_folders import tidy
    from pluralis.bench.runner import Queue, work_off
    from pluralis.bench.workers import local_workers, ray_workers
    from pluralis.console import say, stop_request

    if only_list:
        _list(plan, store)
        return
    store.prepare()
    queue = Queue(plan, store, plan.spec.keep, math.inf if limit is None else limit, say)
    _other_code(queue, redo)
    tidy(store, queue.finished, plan.spec.keep)
    number = len({run.key for run in queue.runs()})
    say(f"{number} run{'s' if number != 1 else ''}; results: {out}")
    with stop_request() as stop, progress(queue) as tick:
        work_off(queue, ray_workers(ray, jobs) if ray else local_workers(jobs), tick, stop)
    state = queue.state(jobs)
    if queue.stopped:
        raise Interrupted(f"stopped: {summary(state)}")
    for path in write_output(queue):
        say(f"written: {path}")
    if _failed(queue, complete=not state.left and not state.elsewhere):
        raise typer.Exit(1)
    if state.left or state.elsewhere:
        say(f"not complete: {summary(state)}; the same command goes on")


def bench_run(
    spec: SpecFile,
    out: Out,
    only: Annotated[str, typer.Option(help="Key of the run, as `pluralis bench SPEC --list` prints them.")],
    scale: ScaleName = "",
    images: Images = None,
    labels: LabelFiles = None,
    set: Settings = None,
) -> None:
    """Make one run of a spec in this process, for a scheduler of your own; `pluralis bench` makes the tables."""
    plan, store = _plan(spec, out, scale, images, labels, set)
    from pluralis.bench.perform import Job, is_done, perform
    from pluralis.bench.runner import Queue
    from pluralis.console import say, training_hooks

    store.prepare()
    found = {run.key: run for run in Queue(plan, store, plan.spec.keep, say=say).runs()}
    if only not in found:
        raise RecipeError(f"there is no run {only!r} in {spec} (see --list); {nearest(only, found)}")
    job = Job(store.out, found[only], plan.spec.keep)
    if is_done(store, job):
        say(f"{job.run.label} is done: {store.file(only)}")
        return
    with training_hooks(job.run.label) as hooks:
        outcome = perform(job, hooks)
    if outcome == "elsewhere":
        raise CheckpointError(f"another process makes the run {only}: wait for it, or end it")
    say(f"{job.run.label}: {store.file(only)}")


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
    unchosen = queue.unchosen() if complete and not queue.failures else []
    for row in unchosen:
        say(f"nothing to choose from: {row}: every value of its grid diverged")
    if diverged or unchosen:
        say("what diverged would do so again: change its settings")
    return bool(queue.failures or diverged or unchosen)


def _plan(
    spec: Path,
    out: Path,
    scale: str,
    images: list[str] | None,
    labels: list[str] | None,
    settings: list[str] | None,
) -> tuple[Plan, Store]:
    from pluralis.bench.spec import Spec

    plan = Spec.load(spec, scale)
    columns = [column.name for column in plan.columns]
    from pluralis.bench.plan import Place, Plan
    from pluralis.bench.store import Store

    out = out.resolve()  # weights that the bench makes there are part of a run's recipe
    place = Place(out, _by_column(images or [], columns), _by_column(labels or [], columns))
    return Plan(plan, place, settings or []), Store(out)


def _by_column(given: list[str], columns: list[str]) -> dict[str, str]:
    """COLUMN=PATH, or a path for all; a path may hold an equals sign too. First words name all columns that have them.

    >>> _by_column(["VOC=voc", "COCO=coco"], ["VOC 10 %", "VOC 50 %", "COCO"])
    {'VOC 10 %': 'voc', 'VOC 50 %': 'voc', 'COCO': 'coco'}
    """
    found: dict[str, str] = {}
    for text in given:
        name, equals, path = text.partition("=")
        named = [column for column in columns if equals and f"{column} ".startswith(f"{name} ")]
        found |= dict.fromkeys(named, path) if named else {"": text}
    return found


def _list(plan: Plan, store: Store) -> None:
    from pluralis.bench.runner import Queue
    from pluralis.console import say

    queue = Queue(plan, store, plan.spec.keep, say=say)
    for run in {run.key: run for run in queue.runs()}.values():
        found = queue.finished.get(run.key)
        done = found and ("diverged" if found.failure else "done")
        say(f"{run.key}  {done or ('running' if store.is_running(run.key) else 'open'):8}  {run.label}")
    if queue.unchosen():
        say(f"more will follow when settings are chosen: {'; '.join(queue.unchosen())}")
    if plan.without_data:
        say(f"left out, since no images are named: {', '.join(plan.without_data)}")


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
