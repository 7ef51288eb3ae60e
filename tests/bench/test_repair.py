"""What was damaged, half removed or made by other code is made anew, and nothing else is."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pluralis.bench.output import write_output
from pluralis.bench.perform import Job
from pluralis.bench.run_folders import tidy
from pluralis.bench.store import Store
from pluralis.bench.worker import Answer, carry_out
from pluralis.demo import DemoSize
from tests.bench.benches import TWO, command, copy, make_queue, run_bench, texts, write_spec


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


def test_listing_touches_nothing_that_is_damaged(done: tuple[Path, Path], tmp_path: Path) -> None:
    spec, out = done[0], tmp_path / "out"
    shutil.copytree(done[1] / "results", out / "results")  # carried here alone
    file = sorted((out / "results").iterdir())[0]
    file.write_text("{}")
    listed = command("bench", write_spec(tmp_path, TWO.replace("keep = true\n", "")), "--out", out, "--list")
    assert listed.exit_code == 0, listed.output
    assert f"{file} is damaged" in listed.output
    assert sorted(line.split()[1] for line in listed.output.splitlines()[1:]) == ["done", "done", "open"]
    assert [path.name for path in out.iterdir()] == ["results"]
    assert file.read_text() == "{}"
    assert make_queue(spec, out, say=lambda line: None).state(1).left == 3  # a bench that is no list
    assert not file.exists()


def test_a_kept_folder_that_is_gone_is_made_anew(done: tuple[Path, Path], tmp_path: Path) -> None:
    spec, out = copy(done, tmp_path / "out")
    shutil.rmtree(next((out / "runs").iterdir()))
    assert run_bench(spec, out).made == 1
    assert texts(out) == texts(done[1])


@pytest.mark.parametrize("part", ["model.safetensors", "model.json", "recipe.toml", "data.json", ".code"])
@pytest.mark.parametrize("result", [True, False])
def test_a_damaged_folder_is_made_anew(done: tuple[Path, Path], tmp_path: Path, part: str, result: bool) -> None:
    spec, out = copy(done, tmp_path / "out")
    key = make_queue(spec, out).runs()[0].key
    file = out / "runs" / key / part
    file.write_bytes(bytes(len(file.read_bytes())))
    if not result:
        (out / "results" / f"{key}.json").unlink()
    queue = run_bench(spec, out)
    assert queue.failures == {}
    assert queue.made == (not result or "model" in part)
    assert texts(out) == texts(done[1])


def test_what_is_left_of_a_folder_is_no_run(done: tuple[Path, Path], tmp_path: Path) -> None:
    spec, out = copy(done, tmp_path / "out")
    for number, run in enumerate(make_queue(spec, out).runs()):
        (out / "runs" / run.key / ("recipe.toml" if number else "model.json")).unlink()
    assert run_bench(spec, out).failures == {}
    assert texts(out) == texts(done[1])


def test_what_a_killed_process_had_no_time_to_remove_goes(
    done: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = write_spec(tmp_path, TWO.replace("keep = true\n", ""))
    out = copy(done, tmp_path / "out")[1]
    first, second, third = (out / "runs" / run.key for run in make_queue(spec, out).runs())
    for folder in (first, second):
        (folder / "checkpoints").mkdir()
        (folder / ".keep").unlink()
    (out / "runs" / f".gone-{'0' * 16}").mkdir()
    with Store(out).lock(first.name):  # somebody is at work there
        assert command("bench", spec, "--out", out, "--limit", "0").exit_code == 0
    assert sorted((out / "runs").iterdir()) == sorted([first, third])  # the third is kept, by another spec
    assert command("bench", spec, "--out", out, "--limit", "0").exit_code == 0
    assert list((out / "runs").iterdir()) == [third]


KEPT = 'seeds = 1\nkeep = true\n[settings]\ntrain.epochs = 6\n[[rows]]\nname = "an"\nmethod = "an"\n'


def specs_of(folder: Path) -> tuple[Path, Path]:
    """One that keeps the folder of its run, and one that has the same run and does not."""
    plain = write_spec(folder, KEPT.replace("keep = true\n", ""), "plain.toml")
    return write_spec(folder, KEPT, "kept.toml"), plain


def begin_again(spec: Path, out: Path, epochs: int = 7) -> int:
    """As the command begins, and one run up to some epoch; returns the first epoch that it made."""
    queue, told = make_queue(spec, out), list[Answer]()
    tidy(queue.store, queue.finished, {run.key for run in queue.runs() if run.keep})
    carry_out(Job(out, queue.runs()[0]).to_dict(), lambda: len(told) >= epochs, told.append)
    return int(told[0]["epoch"])


def test_a_run_that_is_made_again_for_its_folder_goes_on(tmp_path: Path) -> None:
    (kept, plain), out = specs_of(tmp_path), tmp_path / "out"
    run_bench(plain, out, output=False)
    assert begin_again(kept, out, epochs=2) == 1
    assert begin_again(kept, out, epochs=2) == 3
    assert command("bench", plain, "--out", out, "--limit", "0").exit_code == 0  # has its result, and needs no folder
    assert begin_again(kept, out) == 5
    assert make_queue(kept, out).state(1).done == 1


def test_a_folder_that_another_spec_keeps_stays_when_the_result_is_made_anew(tmp_path: Path) -> None:
    (kept, plain), out = specs_of(tmp_path), tmp_path / "out"
    key = run_bench(kept, out, output=False).runs()[0].key
    for mark in (True, False):  # not there if the folder was found to be needed when it was made
        (out / "results" / f"{key}.json").write_text("x")
        if not mark:
            (out / "runs" / key / ".keep").unlink()
        assert run_bench(plain, out, output=False, say=lambda line: None).made == 1
        assert make_queue(kept, out).state(1).done == 1


def test_a_run_that_was_begun_for_its_folder_is_kept_by_who_ends_it(tmp_path: Path) -> None:
    (kept, plain), out = specs_of(tmp_path), tmp_path / "out"
    begin_again(kept, out, epochs=2)
    assert begin_again(plain, out) == 3
    assert make_queue(kept, out).state(1).done == 1


@pytest.mark.parametrize(("made_by", "found_by", "left"), [(0, 0, 1), (0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_a_process_that_was_killed_after_its_result(tmp_path: Path, made_by: int, found_by: int, left: int) -> None:
    specs, out = specs_of(tmp_path), tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pluralis.bench.perform.finish", lambda folder, keep: None)
        run_bench(specs[made_by], out, output=False)
    assert len(list(out.glob("runs/*/checkpoints"))) == 1
    assert command("bench", specs[found_by], "--out", out, "--limit", "0").exit_code == 0
    assert len(list(out.glob("runs/*/model.json"))) == left
    assert not list(out.glob("runs/*/checkpoints"))


def test_damaged_weights_of_digits_are_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pluralis.demo.DemoSize", lambda: DemoSize(digits=40, digit_epochs=1))
    text = 'seeds = 1\nsettings = {model.weights = "digits", train.epochs = 1}\n[[rows]]\nname = "an"\nmethod = "an"\n'
    spec, out = write_spec(tmp_path, text), tmp_path / "out"
    first = run_bench(spec, out, output=False)
    weights = (out / "digits.safetensors").read_bytes()
    (out / "digits.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    next((out / "results").iterdir()).unlink()
    again = run_bench(spec, out, output=False)
    assert (again.failures, again.made) == ({}, 1)
    assert (out / "digits.safetensors").read_bytes() == weights
    assert [r.test for r in again.finished.values()] == [r.test for r in first.finished.values()]


def test_who_waits_for_the_weights_of_digits_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By `bench` before its workers begin, by `bench-run` when it trains them, and not once they are there."""
    monkeypatch.setattr("pluralis.demo.DemoSize", lambda: DemoSize(digits=40, digit_epochs=1))
    text = 'seeds = 2\nsettings = {model.weights = "digits", train.epochs = 1}\n[[rows]]\nname = "an"\nmethod = "an"\n'
    spec, out = write_spec(tmp_path, text), tmp_path / "out"
    said = "training digit weights, once for this folder"
    assert said not in command("bench", spec, "--out", out, "--limit", "0").output  # nothing is made
    assert command("bench", spec, "--out", out, "--stop", "0").output.count(said) == 1
    first, second = (run.key for run in make_queue(spec, out).runs())
    assert command("bench-run", spec, "--out", out, "--only", first).output.count(said) == 1
    assert said not in command("bench", spec, "--out", out, "--stop", "0").output
    (out / "digits.safetensors").write_bytes(b"")
    assert command("bench", spec, "--out", out, "--stop", "0").output.count(said) == 1
    assert said in command("bench-run", spec, "--out", out, "--only", second).output
    (out / "digits.safetensors").unlink()
    assert said not in command("bench", spec, "--out", out, "--stop", "0").output  # no run is left that needs them


def test_a_result_that_another_bench_forgets_is_in_the_table_still(done: tuple[Path, Path], tmp_path: Path) -> None:
    spec, out = copy(done, tmp_path / "out")
    queue = make_queue(spec, out)
    queue.store.forget(queue.runs()[0].key)
    write_output(queue)
    assert texts(out) == texts(done[1])


def test_a_damaged_result_that_somebody_makes_anew_is_left_alone(done: tuple[Path, Path], tmp_path: Path) -> None:
    spec, out = copy(done, tmp_path / "out")
    key = make_queue(spec, out).runs()[0].key
    file = out / "results" / f"{key}.json"
    file.write_bytes(b"")
    with Store(out).lock(key):
        assert key not in make_queue(spec, out).finished
        assert file.exists()
    make_queue(spec, out)
    assert not file.exists()


def test_results_of_other_code_are_said_and_made_anew_when_asked(
    done: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, out = copy(done, tmp_path / "out")
    models = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/model.safetensors")}
    monkeypatch.setattr("pluralis.bench.identity.code_hash", lambda: "other")
    found = command("bench", spec, "--out", out, "--limit", "0")
    assert "3 of the results were made by other code of the same version; --redo makes them anew" in found.output
    queue = make_queue(spec, out)
    with queue.store.lock(queue.runs()[0].key):  # another bench is about to make it
        found = command("bench", spec, "--out", out, "--limit", "0", "--redo")
    assert "0 done, 0 running, 0 failed, 3 left" in found.output
    assert len(list((out / "results").iterdir())) == len(list((out / "runs").iterdir())) == 1
    assert "1 of the results was made by" in command("bench", spec, "--out", out, "--limit", "0").output
    run_bench(spec, out)
    assert {found.code_hash for found in make_queue(spec, out).finished.values()} > {"other"}
    remade = {path for path, when in models.items() if path.stat().st_mtime_ns != when}
    assert len(remade) == 2
    before, after = ({name: text.decode() for name, text in texts(at).items()} for at in (done[1], out))
    assert after["table.csv"] == before["table.csv"]
    said = "Made by different code of the same version: other (2), "
    for text in (after["table.md"], after["table.tex"], after["table.html"], (out / "index.html").read_text("utf-8")):
        assert text.count(said) == 1
    kept = [line for line in after["table.md"].splitlines() if said not in line]
    assert kept == before["table.md"].splitlines()


def test_a_run_that_other_code_began_starts_again(
    done: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make_queue(done[0], tmp_path / "out", "train.epochs=200")
    job, told = Job(tmp_path / "out", queue.runs()[0]).to_dict(), list[Answer]()
    for code, first in (("a", 1), ("a", 2), ("b", 1)):
        monkeypatch.setattr("pluralis.bench.identity.code_hash", lambda code=code: code)
        told.clear()
        assert carry_out(job, lambda: bool(told), told.append) == {"outcome": "stopped"}
        assert told[0]["epoch"] == first


@pytest.mark.parametrize(("other", "first"), [("", 2), ("NVIDIA H200, bf16", 1), ("cpu, bf16", 1)])
def test_a_run_that_was_begun_on_another_device_starts_again(
    done: tuple[Path, Path], tmp_path: Path, other: str, first: int
) -> None:
    queue = make_queue(done[0], tmp_path / "out", "train.epochs=200", "run.device=auto")
    run, told = queue.runs()[0], list[Answer]()
    for expected in (1, first):
        told.clear()
        answer = carry_out(Job(tmp_path / "out", run).to_dict(), lambda: bool(told), told.append)
        assert (answer, told[0]["epoch"]) == ({"outcome": "stopped"}, expected)
        if other:
            (queue.store.folder(run.key) / ".device").write_text(other)


def test_a_run_that_was_begun_with_other_settings_starts_again(done: tuple[Path, Path], tmp_path: Path) -> None:
    queue = make_queue(done[0], tmp_path / "out", "train.epochs=200")
    run, told = queue.runs()[0], list[Answer]()
    answer = carry_out(Job(tmp_path / "out", run).to_dict(), lambda: bool(told), told.append)
    assert answer == {"outcome": "stopped"}
    assert list(queue.store.folder(run.key).glob("checkpoints/*.json"))
    other = make_queue(done[0], tmp_path / "out", "train.epochs=200", "run.record=false").runs()[0]
    assert other.key == run.key
    told.clear()
    answer = carry_out(Job(tmp_path / "out", other).to_dict(), lambda: bool(told), told.append)
    assert answer == {"outcome": "stopped"}  # not refused as a run of another recipe
    assert told[0]["epoch"] == 1
