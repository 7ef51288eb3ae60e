"""Whole benches on digit scenes at toy size: finished, broken off, damaged, shared, failing."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from pluralis.bench.perform import Job, perform, shared_recipe
from pluralis.bench.runner import State, work_off
from pluralis.bench.worker import Answer, carry_out
from pluralis.bench.workers import LocalWorker
from pluralis.config import DataPart, ModelPart, Recipe
from pluralis.data.scenes import make_scenes
from pluralis.errors import Interrupted, WeightsError
from pluralis.run import Hooks
from pluralis.trained_run import load_run
from tests.bench.benches import (
    TOY,
    TWO,
    InThisProcess,
    child_bench,
    command,
    copy,
    make_plan,
    make_queue,
    run_bench,
    texts,
    write_spec,
)
from tests.children import exit_code, start_child


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
    page = (out / "table.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "<title>Test</title>" in page
    assert page.count("<table>") == 2


def test_results_do_not_say_where_files_lay(done: tuple[Path, Path]) -> None:
    _, out = done
    assert not [file.name for file in (out / "results").iterdir() if str(out.parent) in file.read_text()]
    data = DataPart(
        images="/a/i", labels="/a/l", test={"images": "/a/t", "labels": "/a/u", "options": {"split": "val"}}
    )
    model = ModelPart(weights="/a/w.pth", head="semantic-graph", head_params={"word_vectors": "/a/g.txt", "steps": 2})
    recipe = Recipe(data=data, model=model, run=replace(Recipe().run, features="/a/f", decoded="/a/d"))
    shared = shared_recipe(recipe)
    assert "/a" not in str(shared)
    assert shared["data"]["test"] == {"options": {"split": "val"}}
    assert shared["model"]["weights"] == "w.pth"
    assert shared["model"]["head_params"] == {"word_vectors": "g.txt", "steps": 2}


def test_what_is_finished_is_not_repeated(done: tuple[Path, Path], tmp_path: Path) -> None:
    spec, out = copy(done, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (out / "results").iterdir()}
    queue = run_bench(spec, out)
    assert queue.made == 0
    job = Job(out, queue.runs()[0]).to_dict()  # which somebody else finished meanwhile
    assert carry_out(job, lambda: False, lambda answer: None) == {"outcome": "done"}
    assert {path: path.stat().st_mtime_ns for path in (out / "results").iterdir()} == before
    assert run_bench(spec, out, "train.epochs=1").made == 3  # changed ones are made anew
    assert len(list((out / "results").iterdir())) == 6


def test_folders_that_nobody_wants_do_not_stay(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, TWO.replace("keep = true\n", "").replace("seeds = 2", "seeds = 1"))
    queue = run_bench(spec, tmp_path / "out", output=False)
    assert queue.made == 2
    assert list((tmp_path / "out" / "runs").iterdir()) == []
    assert all(result.folder is None for result in queue.finished.values())


def test_one_failure_does_not_stop_the_others(tmp_path: Path) -> None:
    rows = TWO + '[[rows]]\nname = "bad"\nmethod = "an"\nsettings = {select.fraction = 0.001}\nseeds = 1\n'
    spec = write_spec(tmp_path, rows)
    found = command("bench", spec, "--out", tmp_path / "out")
    assert found.exit_code == 1, found.output
    logs = tmp_path / "out" / "logs"
    line = next(line for line in found.output.splitlines() if line.startswith("failed: bad"))
    assert "too few to hold out" in line
    log = Path(line.rsplit("log: ", 1)[1])
    assert log.parent == logs
    assert "Traceback" in log.read_text()
    table = (tmp_path / "out" / "table.md").read_text()
    assert "| bad | failed |" in table
    assert "- bad: 1 of the runs failed; the same command tries again." in table
    assert "<td>failed</td>" in (tmp_path / "out" / "index.html").read_text()
    assert len(list((tmp_path / "out" / "results").iterdir())) == 3
    said = [path.read_text() for path in logs.iterdir()]
    assert sorted(text.count('"epoch": ') for text in said) == [0, 2, 2, 2]
    processes = {text.split("process ")[1].split()[0] for text in said}
    assert len(processes) == 1  # which makes one run after the other
    assert str(os.getpid()) not in processes


GRID = (
    'selection = "clean"\nseeds = 2\nviews = ["standard"]\n[[rows]]\nname = "an"\nmethod = "an"\n'
    'grid = {"train.lr" = %s}\nsettings = {train.optimizer = "sgd", train.schedule = "constant"}\n'
)


def test_trials_of_a_choice_and_a_rate_that_diverges(tmp_path: Path) -> None:
    spec, out = write_spec(tmp_path, GRID % "[1e-3, 1e3]"), tmp_path / "out"
    key = command("bench", spec, "--out", out, "--list").output.split()[0]
    assert command("bench-run", spec, "--out", out, "--only", key).exit_code == 0
    listed = command("bench", spec, "--out", out, "--list").output  # one of two trials is done
    assert "more will follow when settings are chosen: an\n" in listed
    queue = run_bench(spec, out)
    assert queue.failures == queue.diverged() == {}
    assert [found.grid["train.lr"] for found in queue.finished.values() if found.failure] == [1e3]
    chosen = [run for run in queue.runs() if not run.trial]
    assert [(run.grid["train.lr"], run.seed) for run in chosen] == [(1e-3, 0), (1e-3, 1)]
    assert all({"mAP", "standard mAP", "standard OF1"} <= queue.finished[run.key].test.keys() for run in chosen)
    table = (out / "table.md").read_text()
    assert "an: chosen by the score of held-out rows: train.lr = 0.001" in table
    found = command("bench", spec, "--out", out, "--limit", "0")  # another process knows it too
    assert found.exit_code == 0, found.output
    assert run_bench(spec, out, output=False).made == 0
    assert (out / "table.md").read_text() == table
    listed = command("bench", spec, "--out", out, "--list").output
    assert [line.split()[1] for line in listed.splitlines()] == ["done", "diverged", "done"]


def test_runs_of_the_table_that_diverge_are_said_and_not_made_again(tmp_path: Path) -> None:
    text = GRID.replace("seeds = 2", "seeds = 1").replace('views = ["standard"]\n', "")
    text = text % "[1e3, 900.0]" + text[text.index("[[rows]]") :].replace('"an"', '"bad"', 1)
    spec = write_spec(tmp_path, text.replace('grid = {"train.lr" = %s}\nsettings = {', "settings = {train.lr = 1e3, "))
    made = [run_bench(spec, tmp_path / "out").made for _ in range(2)]
    assert made == [2, 0]  # one of the trials is that of the row too
    found = command("bench", spec, "--out", tmp_path / "out", "--limit", "0")
    assert found.exit_code == 1
    assert "diverged: bad · draw 1200 · seed 0: " in found.output
    assert "nothing to choose from: an: every value of its grid diverged" in found.output
    assert "| bad | diverged |" in (tmp_path / "out" / "table.md").read_text()


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
    job = Job(tmp_path / "out", run).to_dict()
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


def test_where_one_stands_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = write_spec(tmp_path, 'settings = {model.weights = "digits"}\n[[rows]]\nname = "an"\nmethod = "an"\n')
    monkeypatch.chdir(tmp_path)
    here, there = (make_plan(spec, out).runs(lambda run: None)[0] for out in (Path("out"), tmp_path / "out"))
    assert here == there


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


def test_when_its_time_is_over_it_saves_what_runs(done: tuple[Path, Path], tmp_path: Path) -> None:
    queue = make_queue(done[0], tmp_path / "out", "train.epochs=200", stop_after=0.6)
    work_off(queue, [InThisProcess(0.02)], lambda state: None, threading.Event())
    assert (queue.stopped, queue.is_over(), queue.made, queue.failures) == (True, True, 0, {})
    assert len(list((tmp_path / "out" / "runs").glob("*/checkpoints/*.json"))) == 1
    late = make_queue(done[0], tmp_path / "out", stop_after=10.0, begun=time.monotonic() - 11)  # a long planning
    assert late.take() is None


def test_with_stop_the_command_ends_with_tables_and_is_not_a_failure(done: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(done[1] / "results", out / "results")
    next((out / "results").iterdir()).unlink()
    plain = write_spec(tmp_path, TWO.replace("keep = true\n", ""))
    found = command("bench", plain, "--out", out, "--stop", "0")
    assert found.exit_code == 0, found.output
    assert "not complete: 2 done, 0 running, 0 failed, 1 left" in found.output
    assert "the same command with --limit 0 makes them" in found.output
    assert (out / "table.md").exists()
    assert not (out / "index.html").exists()  # figures take their time
    assert command("bench", plain, "--out", out, "--limit", "0").exit_code == 0
    assert (out / "index.html").exists()


def test_who_interrupts_has_tables_of_what_is_done(
    done: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(done[1] / "results", tmp_path / "out" / "results")
    next((tmp_path / "out" / "results").iterdir()).unlink()
    monkeypatch.setattr("pluralis.bench.workers.local_workers", lambda jobs, threads: [Interrupting(0.01)])
    spec = write_spec(tmp_path, TWO.replace("keep = true\n", ""))
    found = command("bench", spec, "--out", tmp_path / "out")
    assert isinstance(found.exception, Interrupted)
    assert str(found.exception).startswith("stopped: 2 done, 0 running, 0 failed, 1 left")
    assert (tmp_path / "out" / "table.md").exists()


class Interrupting(InThisProcess):
    """Somebody presses Ctrl-C as soon as it is at work."""

    def perform(self, job: dict[str, Any], heard: Callable[[Answer], None]) -> Answer:
        os.kill(os.getpid(), signal.SIGINT)
        return super().perform(job, heard)


def test_weights_that_cannot_be_had_are_said_before_anything_runs(done: tuple[Path, Path], tmp_path: Path) -> None:
    words = ["bench", done[0], "--out", tmp_path / "out", "--set", "model.weights=imagenet"]
    found = command(*words)
    assert isinstance(found.exception, WeightsError)
    assert "an · draw 1200 · seed 0: there are no ImageNet weights for backbone 'tiny'" in str(found.exception)
    assert not list((tmp_path / "out" / "logs").iterdir())
    assert command(*words, "--list").exit_code == command(*words, "--limit", "0").exit_code == 0  # who only looks


def spec_of_pictures(folder: Path) -> Path:
    """Two rows on 40 pictures in files, 10 of them to test on."""
    scenes, lines = make_scenes("train", 40), ["image,label,value"]
    for row, (pixels, truth) in enumerate(zip(scenes.images, scenes.truth, strict=True)):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(folder / f"{row:02d}.png")
        lines += [f"{row:02d}.png,{scenes.classes[c]},{value}" for c, value in enumerate(truth.tolist())]
    (folder / "train.csv").write_text("\n".join([lines[0], *(line for line in lines[1:] if line < "30")]) + "\n")
    (folder / "test.csv").write_text("\n".join([lines[0], *(line for line in lines[1:] if line >= "30")]) + "\n")
    return write_spec(
        folder / "specs",
        f"[settings]\ndata.format = 'csv'\n'data.options' = {{}}\ndata.images = '{folder}'\n"
        f"data.labels = '{folder}/train.csv'\n'data.test' = {{labels = '{folder}/test.csv', options = {{}}}}\n"
        "[[rows]]\nname = 'last'\nmethod = 'an'\n"
        "[[rows]]\nname = 'clean'\nmethod = 'an'\nsettings = {select.rule = 'clean'}\n",
    )


def test_pictures_are_decoded_once_and_those_that_nobody_looks_at_never(tmp_path: Path) -> None:
    spec = spec_of_pictures(tmp_path)
    runs, decoded = make_queue(spec, tmp_path / "out").runs(), dict[str, set[int]]()
    for run in runs[:3]:
        totals = decoded.setdefault(f"{run.row} {run.seed}", set())
        perform(Job(tmp_path / "out", run), Hooks(decoding=lambda done, total, totals=totals: totals.add(total)))  # type: ignore[misc]
    assert decoded == {"last 0": {22, 10}, "clean 0": {8}, "last 1": set()}


def test_a_worker_decodes_with_processes_of_its_own(tmp_path: Path) -> None:
    """They are forked from one that listens for jobs at the same time."""
    run = make_queue(spec_of_pictures(tmp_path), tmp_path / "out", "run.workers=2").runs()[0]
    worker, answers = LocalWorker(threads=1), list[Answer]()
    job = Job(tmp_path / "out", run).to_dict()
    asking = threading.Thread(target=lambda: answers.append(worker.perform(job, lambda answer: None)), daemon=True)
    asking.start()
    asking.join(120)
    if not answers and worker._process is not None:
        subprocess.run(["pkill", "-KILL", "-P", str(worker._process.pid)], check=False)
    worker.close()
    worker.wait()
    assert answers == [{"outcome": "done"}]


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
