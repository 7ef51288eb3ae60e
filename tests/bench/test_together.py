"""Several specs in one folder: what they have in common is made once, and each has what it needs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from pluralis.bench.listing import listing
from pluralis.bench.output import write_output
from pluralis.bench.run_folders import remove
from pluralis.bench.runner import Queue, work_off
from pluralis.bench_cli import _plans
from tests.bench.benches import InThisProcess, child_bench, command, result, run_bench, texts, write_spec
from tests.children import exit_code, start_child

FIRST = (
    'baseline = "an"\nseeds = 1\n'
    '[[rows]]\nname = "an"\nmethod = "an"\nseeds = 2\n[[rows]]\nname = "gr"\nmethod = "gr"\n'
)
SECOND = (
    'metric = "OF1"\nseeds = 1\nkeep = true\nfigures = [{kind = "densities"}]\n'
    '[[rows]]\nname = "assume negative"\nmethod = "an"\n[[rows]]\nname = "wan"\nmethod = "wan"\n'
)
Specs = tuple[Path, Path]


@pytest.fixture(scope="session")
def specs(tmp_path_factory: pytest.TempPathFactory) -> Specs:
    folder = tmp_path_factory.mktemp("specs")
    return write_spec(folder, FIRST, "first.toml"), write_spec(folder, SECOND, "second.toml")


def queue_of(specs: Specs, out: Path, **options: Any) -> Queue:
    """As the command makes it."""
    plans, store = _plans([*specs], out, "", None, None, None)
    store.prepare()
    return Queue(plans, store, **options)


def work(queue: Queue, delay: float = 0.0) -> Queue:
    work_off(queue, [InThisProcess(delay)], lambda state: None, threading.Event())
    return queue


@pytest.fixture(scope="session")
def together(specs: Specs, tmp_path_factory: pytest.TempPathFactory) -> Queue:
    """Both specs, in one queue."""
    queue = work(queue_of(specs, tmp_path_factory.mktemp("together") / "out"))
    write_output(queue)
    return queue


def test_what_is_common_is_made_once_and_kept_for_who_needs_it(together: Queue) -> None:
    out, (first, second) = together.store.out, together.benches
    places = [(run.spec, run.spec_row, run.seed) for run in together.runs()]
    assert places == [
        *[("first", "an", 0), ("first", "gr", 0), ("second", "assume negative", 0), ("second", "wan", 0)],
        ("first", "an", 1),  # after the first seed of every table
    ]
    assert (together.made, together.failures, len(list((out / "results").iterdir()))) == (4, {}, 4)
    kept = {path.name for path in (out / "runs").iterdir()}
    assert kept == {run.key for run in second.runs()} != {run.key for run in first.runs()}
    shared = first.runs()[0].key
    assert shared in kept
    assert [result.row for bench in (first, second) for result in bench.results() if result.key == shared] == [
        "an",
        "assume negative",
    ]


def test_each_has_its_tables_which_are_those_it_has_alone(together: Queue, specs: Specs, tmp_path: Path) -> None:
    out = together.store.out
    for spec in specs:
        run_bench(spec, tmp_path / spec.stem)
        assert texts(out / spec.stem) == texts(tmp_path / spec.stem)
    assert "Not drawn" not in (out / "second" / "index.html").read_text()
    assert not (out / "table.md").exists()


def test_the_command_lists_and_repeats_nothing(together: Queue, specs: Specs, tmp_path: Path) -> None:
    lines = command("bench", *specs, "--out", tmp_path / "new", "--list").output.splitlines()
    assert [line.split()[1] for line in lines[:4]] == ["open"] * 4
    assert lines[0].endswith("first · an · draw 1200 · seed 0 (also second)")
    assert lines[4:] == ["first: 3 runs, 0 done", "second: 2 runs, 0 done", "together: 4 runs, 0 done"]
    out = together.store.out
    before = texts(out / "first")
    found = command("bench", *specs, "--out", out, "--limit", "0")
    assert found.exit_code == 0, found.output
    assert found.output.splitlines() == [
        f"4 runs; results: {out}",
        *(line for line in found.output.splitlines() if line.startswith("4 done")),
        f"written: {out / 'first' / 'index.html'}",
        f"written: {out / 'second' / 'index.html'}",
    ]
    assert texts(out / "first") == before
    assert command("bench", specs[0], "--out", out, "--limit", "0").exit_code == 0  # one of them alone
    assert not (out / "table.md").exists()


def test_a_run_without_the_folder_that_another_spec_needs_is_made_anew(specs: Specs, tmp_path: Path) -> None:
    first = run_bench(specs[0], tmp_path / "out", output=False)
    assert (first.made, list((tmp_path / "out" / "runs").iterdir())) == (3, [])
    queue = queue_of(specs, tmp_path / "out")
    states = [line.split()[1] for line in listing(queue)][:4]
    assert states == ["open", "done", "open", "done"]  # the first is there, but not its model
    assert work(queue).made == 2
    assert all(result.folder for result in queue.benches[1].results())
    again = run_bench(specs[0], tmp_path / "out", output=False)
    assert again.made == 0
    assert all((tmp_path / "out" / "runs" / run.key).exists() for run in queue.benches[1].runs())


def test_a_folder_that_is_found_to_be_needed_late(tmp_path: Path) -> None:
    text = 'selection = "clean"\n%s[[rows]]\nname = "an"\nmethod = "an"\nseeds = 2\n'
    text += 'settings = {train.optimizer = "sgd", train.lr = 1e-3}\n'
    plain = write_spec(tmp_path, (text % "").replace("seeds = 2", "seeds = [1]"), "plain.toml")
    chosen = write_spec(tmp_path, text % "keep = true\n" + 'grid = {"train.lr" = [1e-3, 1e3]}\n', "chosen.toml")
    queue = queue_of((plain, chosen), tmp_path / "out")
    assert [run.keep for run in queue.runs()] == [False, True, True]  # the second seed of the choice is unknown
    work(queue)
    assert queue.failures == {}
    assert (queue.made, len(queue.finished), queue.state(1).left) == (4, 3, 0)
    assert [bool(result.folder) for result in queue.benches[1].results()] == [True, True]
    late = queue.benches[1].runs()[-1]
    assert late.seed == 1
    remove(queue.store.folder(late.key))  # the result is there, and not what the choice asks for
    again = queue_of((plain, chosen), tmp_path / "out")
    assert late.key in again.finished
    assert (again.state(1).done, again.state(1).left) == (2, 1)
    assert again.take() is not None
    state = again.state(1)
    assert (state.done, len(state.running), state.left) == (2, 1, 0)
    again.give_back(state.running[0].run, {"outcome": "failed", "error": "test"})
    assert (again.state(1).done, again.state(1).failed) == (2, 1)


def test_one_run_for_a_scheduler_keeps_what_any_spec_needs(specs: Specs, tmp_path: Path) -> None:
    key = queue_of(specs, tmp_path / "out").runs()[0].key
    found = command("bench-run", *specs, "--out", tmp_path / "out", "--only", key)
    assert found.exit_code == 0, found.output
    assert (tmp_path / "out" / "runs" / key / "model.safetensors").exists()
    found = command("bench-run", *specs, "--out", tmp_path / "out", "--only", "nonsense")
    assert f"there is no run 'nonsense' in {specs[0]}, {specs[1]}" in str(found.exception)


def test_half_of_the_runs_are_whole_seeds_of_all_tables(tmp_path: Path) -> None:
    row, draws = '[[rows]]\nname = "{0}"\nmethod = "{0}"\n', "seeds = 2\ndraws = [1, 2]\n"
    plain = write_spec(tmp_path, draws + row.format("an") + row.format("gr"), "plain.toml")
    grid = row.format("wan") + 'grid = {"train.lr" = [1e-3, 1e-4]}\n'
    chosen = write_spec(tmp_path, f'selection = "clean"\n{draws}{grid}{row.format("an")}', "chosen.toml")
    queue = queue_of((plain, chosen), tmp_path / "out")

    def taken() -> list[tuple[str, str, int, int]]:
        return [(run.spec, run.spec_row, run.seed, run.draw) for run in queue.runs()]

    assert taken()[:5] == [
        *[("plain", "an", 0, 1), ("plain", "gr", 0, 1)],
        *[("chosen", "wan", 0, 1), ("chosen", "wan", 0, 1), ("chosen", "an", 0, 1)],
    ]
    rows = [("plain", "an"), ("plain", "gr"), ("chosen", "an")]
    assert taken()[5:] == [(*row, seed, draw) for seed, draw in ((0, 2), (1, 1), (1, 2)) for row in rows]
    for number, run in enumerate(queue.runs()[2:4]):  # both values of the grid
        queue.finished[run.key] = result("wan", 80.0 + number)
    rows.insert(2, ("chosen", "wan"))
    assert taken()[5:] == [(*row, seed, draw) for seed, draw in ((0, 2), (1, 1), (1, 2)) for row in rows]


def test_two_benches_of_other_specs_share_a_folder_at_the_same_time(specs: Specs, tmp_path: Path) -> None:
    other = write_spec(tmp_path, SECOND.replace("keep = true\n", ""), "other.toml")
    out = tmp_path / "out"
    children = [start_child(child_bench, str(spec), str(out), 0.02) for spec in (specs[0], other)]
    assert [exit_code(child) for child in children] == [0, 0]
    made = [path.read_text().count('"epoch": 1.0') for path in (out / "logs").iterdir()]
    assert made == [1, 1, 1, 1]
    assert queue_of((specs[0], other), out).state(1).done == 4


def test_after_the_limit_no_run_is_begun_and_there_are_tables(specs: Specs, tmp_path: Path) -> None:
    queue = work(queue_of(specs, tmp_path / "out", limit=0.2), delay=0.1)  # a run has eight steps
    state = queue.state(1)
    assert (queue.made, state.done, state.left, queue.stopped) == (1, 1, 3, False)
    write_output(queue)
    assert (tmp_path / "out" / "first" / "table.md").read_text().count("not run yet") == 1
    assert "| wan | not run yet |" in (tmp_path / "out" / "second" / "table.md").read_text()
