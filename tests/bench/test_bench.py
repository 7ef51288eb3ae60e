"""Whole benches on digit scenes at toy size: finished, broken off, damaged, shared, failing."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pluralis.bench.perform import Job
from pluralis.bench.runner import State, work_off
from pluralis.bench.worker import Answer, carry_out
from pluralis.bench.workers import LocalWorker
from pluralis.cli import app
from pluralis.run import load_run
from tests.bench.benches import TOY, InThisProcess, child_bench, make_queue, run_bench, write_spec
from tests.children import exit_code, start_child

TWO = (
    'baseline = "an"\nseeds = 2\nkeep = true\nfigures = [{kind = "learning-curves"}]\n'
    '[[rows]]\nname = "an"\nmethod = "an"\n[[rows]]\nname = "gr"\nmethod = "gr"\nseeds = 1\n'
)


def texts(out: Path) -> dict[str, bytes]:
    return {name: (out / name).read_bytes() for name in ("table.md", "table.tex", "table.csv", "table.html")}


def command(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A spec, and a folder in which all its runs are done."""
    folder = tmp_path_factory.mktemp("bench")
    spec = write_spec(folder, TWO)
    queue = run_bench(spec, folder / "out")
    assert (len(queue.finished), queue.made, queue.failures) == (3, 3, {})
    return spec, folder / "out"


def copy(done: tuple[Path, Path], to: Path) -> tuple[Path, Path]:
    shutil.copytree(done[1], to)
    return done[0], to


def test_results_hold_what_tables_and_figures_need(done: tuple[Path, Path]) -> None:
    spec, out = done
    queue = make_queue(spec, out)
    for result in queue.finished.values():
        assert len(result.history) == 2
        assert set(result.test) >= {"mAP", "CF1", "OF1"}
        measured = [value for value in result.per_class_ap.values() if value is not None]
        assert result.test["mAP"] == pytest.approx(sum(measured) / len(measured))
        assert result.recipe["model"]["head"] == "linear"  # nothing is left open
        assert result.folder is not None
        assert load_run(result.folder).test == {**result.test}
        assert not (result.folder / "checkpoints").exists()
    assert (out / "index.html").exists()


def test_what_is_finished_is_not_repeated(done: tuple[Path, Path], tmp_path: Path) -> None:
    spec, out = copy(done, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (out / "results").iterdir()}
    queue = run_bench(spec, out)
    assert queue.made == 0
    job = Job(out, queue.runs()[0], keep=True).to_dict()  # which somebody else finished meanwhile
    assert carry_out(job, lambda: False, lambda answer: None) == {"outcome": "done"}
    assert {path: path.stat().st_mtime_ns for path in (out / "results").iterdir()} == before
    assert run_bench(spec, out, "train.epochs=1").made == 3  # changed ones are made anew
    assert len(list((out / "results").iterdir())) == 6


def test_a_damaged_result_is_made_anew_and_is_the_same(done: tuple[Path, Path], tmp_path: Path) -> None:
    spec, out = copy(done, tmp_path / "out")
    file = sorted((out / "results").iterdir())[0]
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b'"mAP": ', b'"mAP": 9', 1))
    said: list[str] = []
    queue = run_bench(spec, out, say=said.append)
    assert queue.made == 1
    assert any(f"{file} is damaged" in line for line in said)
    assert json.loads(file.read_bytes())["body"]["test"] == json.loads(whole)["body"]["test"]
    assert texts(out) == texts(done[1])


def test_a_kept_folder_that_is_gone_is_made_anew(done: tuple[Path, Path], tmp_path: Path) -> None:
    spec, out = copy(done, tmp_path / "out")
    shutil.rmtree(next((out / "runs").iterdir()))
    assert run_bench(spec, out).made == 1
    assert texts(out) == texts(done[1])


def test_folders_that_nobody_wants_do_not_stay(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, TWO.replace("keep = true\n", "").replace("seeds = 2", "seeds = 1"))
    queue = run_bench(spec, tmp_path / "out", output=False)
    assert queue.made == 2
    assert list((tmp_path / "out" / "runs").iterdir()) == []
    assert all(result.folder is None for result in queue.finished.values())


def test_one_failure_does_not_stop_the_others(tmp_path: Path) -> None:
    rows = TWO + '[[rows]]\nname = "bad"\nmethod = "an"\nsettings = {method.params.nonsense = 1}\nseeds = 1\n'
    spec = write_spec(tmp_path, rows)
    found = command("bench", spec, "--out", tmp_path / "out")
    assert found.exit_code == 1, found.output
    logs = tmp_path / "out" / "logs"
    line = next(line for line in found.output.splitlines() if line.startswith("failed: bad"))
    assert "nonsense" in line
    log = Path(line.rsplit("log: ", 1)[1])
    assert log.parent == logs
    assert "Traceback" in log.read_text()
    table = (tmp_path / "out" / "table.md").read_text()
    assert "| bad | not run yet |" in table
    assert len(list((tmp_path / "out" / "results").iterdir())) == 3
    said = [path.read_text() for path in logs.iterdir()]
    assert sorted(text.count('"epoch": ') for text in said) == [0, 2, 2, 2]
    processes = {text.split("process ")[1].split()[0] for text in said}
    assert len(processes) == 1  # which makes one run after the other
    assert str(os.getpid()) not in processes


def test_trials_of_a_choice_and_a_rate_that_diverges(tmp_path: Path) -> None:
    text = (
        'selection = "clean"\nseeds = 2\nviews = ["standard"]\n[[rows]]\nname = "an"\nmethod = "an"\n'
        'grid = {"train.lr" = [1e-3, 1e3]}\nsettings = {train.optimizer = "sgd", train.schedule = "constant"}\n'
    )
    queue = run_bench(write_spec(tmp_path, text), tmp_path / "out")
    kinds = {failure.run.grid["train.lr"]: failure.kind for failure in queue.failures.values()}
    assert kinds == {1e3: "NonFiniteLoss"}
    chosen = [run for run in queue.runs() if not run.trial]
    assert [(run.grid["train.lr"], run.seed) for run in chosen] == [(1e-3, 0), (1e-3, 1)]
    assert all({"mAP", "standard mAP", "standard OF1"} <= queue.finished[run.key].test.keys() for run in chosen)
    table = (tmp_path / "out" / "table.md").read_text()
    assert "an: chosen by the score of held-out rows: train.lr = 0.001" in table


def test_two_benches_share_a_folder(done: tuple[Path, Path], tmp_path: Path) -> None:
    spec, out = done[0], tmp_path / "out"
    children = [start_child(child_bench, str(spec), str(out), 0.02) for _ in range(2)]
    assert [exit_code(child) for child in children] == [0, 0]
    assert run_bench(spec, out).made == 0
    assert texts(out) == texts(done[1])
    logs = [path.read_text() for path in (out / "logs").iterdir()]
    made = [text.count('"epoch": 1.0') for text in logs]
    assert made == [1, 1, 1]  # no run was made twice
    assert len({text.split("process ")[1].split()[0] for text in logs}) == 2


def test_a_bench_leaves_alone_what_another_one_makes(done: tuple[Path, Path], tmp_path: Path) -> None:
    queue = make_queue(done[0], tmp_path / "out", limit=3.0)
    busy = queue.runs()[0]
    with queue.store.lock(busy.key):
        run = queue.take()
        assert run is not None
        assert run.key != busy.key
        queue.give_back(run, {"outcome": "elsewhere"})
        state = queue.state(1)
        assert (state.elsewhere, state.left, state.failed) == (1, 2, 0)
    again = queue.take()
    assert again is not None
    assert again.key == busy.key  # the other process is gone


def kill_and_continue(spec: Path, out: Path, kills: int, chance: random.Random) -> int:
    """Kill a bench at random moments; how often it was still at work."""
    hit = 0
    for _ in range(kills):
        child = start_child(child_bench, str(spec), str(out), 0.05)
        child.join(chance.uniform(0.2, 1.6))
        assert child.pid is not None
        if child.is_alive():
            os.kill(child.pid, signal.SIGKILL)
            hit += 1
        exit_code(child)
    return hit


def test_killed_at_any_moment_it_goes_on_to_the_same_table(done: tuple[Path, Path], tmp_path: Path) -> None:
    hit = kill_and_continue(done[0], tmp_path / "out", 4, random.Random(1))
    assert hit >= 2
    queue = run_bench(done[0], tmp_path / "out")
    assert queue.failures == {}
    assert texts(tmp_path / "out") == texts(done[1])


@pytest.mark.slow  # two processes that import everything
def test_a_worker_that_is_killed_fails_its_run_alone_and_one_that_is_closed_saves_it(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, TWO)
    queue = make_queue(spec, tmp_path / "out", "train.epochs=500")
    run = queue.runs()[0]
    job = Job(tmp_path / "out", run, keep=True).to_dict()
    worker = LocalWorker(threads=1)

    def kill(answer: Answer) -> None:
        assert worker._process is not None
        os.kill(worker._process.pid, signal.SIGKILL)

    answer = worker.perform(job, kill)
    assert answer["outcome"] == "failed"
    assert "killed by signal 9" in answer["error"]
    assert not queue.store.is_running(run.key)
    answer = worker.perform(job, lambda answer: worker.close())
    assert answer == {"outcome": "stopped"}
    worker.wait()
    assert list((queue.store.folder(run.key) / "checkpoints").glob("*.json"))
    assert not queue.store.is_running(run.key)


def test_listing_one_run_and_a_limit(done: tuple[Path, Path], tmp_path: Path) -> None:
    spec, out = done[0], tmp_path / "out"
    listed = command("bench", spec, "--out", out, "--list").output.splitlines()
    assert [line.split()[1] for line in listed] == ["open"] * 3
    assert not out.exists()
    found = command("bench-run", spec, "--out", out, "--only", listed[0].split()[0])
    assert found.exit_code == 0, found.output
    assert "an · draw 1200 · seed 0" in found.output
    assert "is done" in command("bench-run", spec, "--out", out, "--only", listed[0].split()[0]).output
    listed = command("bench", spec, "--out", out, "--list").output.splitlines()
    assert [line.split()[1] for line in listed] == ["done", "open", "open"]
    found = command("bench", spec, "--out", out, "--limit", "0")
    assert found.exit_code == 0, found.output
    assert "not complete: 1 done, 0 running, 0 failed, 2 left" in found.output
    assert "(1 of 2)" in (out / "table.md").read_text()
    found = command("bench-run", spec, "--out", out, "--only", "abc")
    assert "there is no run 'abc'" in str(found.exception)


def test_results_of_other_code_are_said_and_made_anew_when_asked(
    done: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, out = copy(done, tmp_path / "out")
    monkeypatch.setattr("pluralis.bench.identity.code_hash", lambda: "other")
    found = command("bench", spec, "--out", out, "--limit", "0")
    assert "3 of the results were made by other code of the same version; --redo makes them anew" in found.output
    found = command("bench", spec, "--out", out, "--limit", "0", "--redo")
    assert "0 done, 0 running, 0 failed, 3 left" in found.output


def test_a_stop_saves_and_the_same_command_goes_on(done: tuple[Path, Path], tmp_path: Path) -> None:
    spec, stop = done[0], threading.Event()
    queue = make_queue(spec, tmp_path / "out", "train.epochs=200")

    def tick(state: State) -> None:
        if any(one.epoch for one in state.running):
            stop.set()

    work_off(queue, [InThisProcess()], tick, stop)
    assert queue.stopped
    assert queue.made == 0
    assert len(list((tmp_path / "out" / "runs").glob("*/checkpoints/*.json"))) in (1, 2)


def test_a_run_that_was_begun_for_another_device_starts_again(done: tuple[Path, Path], tmp_path: Path) -> None:
    queue = make_queue(done[0], tmp_path / "out", "train.epochs=200")
    run, told = queue.runs()[0], list[Answer]()
    answer = carry_out(Job(tmp_path / "out", run, False).to_dict(), lambda: bool(told), told.append)
    assert answer == {"outcome": "stopped"}
    assert list(queue.store.folder(run.key).glob("checkpoints/*.json"))
    other = make_queue(done[0], tmp_path / "out", "train.epochs=200", "run.record=false").runs()[0]
    assert other.key == run.key
    told.clear()
    answer = carry_out(Job(tmp_path / "out", other, False).to_dict(), lambda: bool(told), told.append)
    assert answer == {"outcome": "stopped"}  # not refused as a run of another recipe
    assert told[0]["epoch"] == 1


@pytest.mark.slow
def test_an_interrupt_ends_it_at_once_and_the_same_command_goes_on(tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "pluralis",
        "bench",
        str(TOY.resolve()),
        "--out",
        str(tmp_path / "out"),
        "--jobs",
        "2",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    bench = subprocess.Popen(
        [*words, "--set", "train.epochs=10000"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    logs = tmp_path / "out" / "logs"
    while not logs.exists() or sum('"epoch": ' in path.read_text() for path in logs.iterdir()) < 2:
        time.sleep(0.1)
    os.killpg(bench.pid, signal.SIGINT)  # as a terminal does: the workers get it too
    _, errors = bench.communicate(timeout=60)
    assert bench.returncode == 130
    assert "stopped: 0 done" in errors
    assert "run the same command to go on" in errors
    assert len(list((tmp_path / "out" / "runs").glob("*/checkpoints"))) == 2
    assert not list((tmp_path / "out" / "results").iterdir())


@pytest.mark.slow
def test_the_real_command_killed_many_times_its_workers_too(tmp_path: Path) -> None:
    """Orphans end by themselves, locks of the dead are free, and the table is the same to the last byte."""
    whole, out = tmp_path / "whole", tmp_path / "out"
    words = [sys.executable, "-m", "pluralis", "bench", str(TOY.resolve()), "--jobs", "2", "--set", "train.epochs=6"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*words, "--out", str(whole)], check=True, env=environment, capture_output=True)
    chance = random.Random(3)
    for turn in range(8):
        bench = subprocess.Popen([*words, "--out", str(out)], env=environment, stdout=subprocess.PIPE)
        time.sleep(chance.uniform(2, 9))
        if turn % 3 == 2:  # a worker: its run fails, the rest goes on
            children = Path(f"/proc/{bench.pid}/task/{bench.pid}/children").read_text().split()
            for child in children[:1]:
                os.kill(int(child), signal.SIGKILL)
            time.sleep(1)
        bench.kill()
        bench.communicate()
    found = subprocess.run([*words, "--out", str(out)], env=environment, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr
    assert texts(out) == texts(whole)
    made = [path.read_text().count('"epoch": 1.0') for path in (out / "logs").iterdir()]
    assert sum(made) < 3 * len(made)  # what was saved was not made again from its start every time
