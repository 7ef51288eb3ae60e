"""The tables of each spec have a place of their own, which those of no other overwrite."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pluralis.bench.spec import Spec
from pluralis.bench.spec_folders import table_folders, take_folders
from pluralis.bench.store import Store
from pluralis.errors import RecipeError
from tests.bench.benches import command, write_spec

ONE = 'seeds = 1\n[[rows]]\nname = "{}"\nmethod = "an"\n'
SCALES = ONE + "[scale.full]\n[scale.small]\nsettings = {{train.epochs = 1}}\n"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    Store(tmp_path / "out").prepare()
    return tmp_path / "out"


def spec_file(folder: Path, name: str, row: str = "an") -> Path:
    return write_spec(folder, ONE.format(row), f"{name}.toml")


def take(out: Path, *files: Path, scale: str = "") -> tuple[list[str], list[str]]:
    """As the command does before any run: the folders, and what it says."""
    specs = [Spec.load(file, scale) for file in files]
    names = table_folders(specs, out)
    return names, take_folders(specs, names, Store(out))


def test_who_shares_has_a_folder_from_the_start_and_who_comes_later_too(out: Path, tmp_path: Path) -> None:
    a, b, c = (spec_file(tmp_path, name) for name in "abc")
    assert take(out, a, b) == (["a", "b"], [])  # and is stopped here, before it has tables
    assert take(out, a) == (["a"], [])
    assert take(out, c) == (["c"], [])
    assert take(out, c, a) == (["c", "a"], [])


def test_who_is_alone_has_all_until_another_comes(out: Path, tmp_path: Path) -> None:
    a, b, c = (spec_file(tmp_path, name, row=name) for name in "abc")
    assert take(out, a) == take(out, a) == ([""], [])
    (out / "table.md").write_text("a")
    told = [f"{out / 'table.*'} stay as they are: new tables go to {out / 'b'}"]
    assert take(out, b) == (["b"], told)
    assert take(out, b) == (["b"], [])  # said once
    told = [f"{out / 'table.*'} stay as they are: new tables go to {out / 'c'}, {out / 'a'}"]
    assert take(out, c, a) == (["c", "a"], told)
    assert (out / "table.md").read_text() == "a"


def test_another_spec_of_the_same_name_is_refused(out: Path, tmp_path: Path) -> None:
    a, b = spec_file(tmp_path / "x", "a"), spec_file(tmp_path / "x", "b")
    other = spec_file(tmp_path / "y", "a", row="other")
    take(out, a, b)
    said = (out / "a" / ".spec").read_bytes()
    for specs in ((other,), (b, other)):
        with pytest.raises(RecipeError, match=r"holds the tables of another spec, .*x/a.toml: rename .*y/a.toml, or"):
            take(out, *specs)
    assert (out / "a" / ".spec").read_bytes() == said
    spec_file(tmp_path / "x", "a", row="edited")
    assert take(out, a) == (["a"], [])
    moved = spec_file(tmp_path / "z", "a", row="edited")
    a.unlink()
    assert take(out, moved) == (["a"], [])
    assert "z/a.toml" in (out / "a" / ".spec").read_text()


@pytest.mark.parametrize("number", [1, 2])
def test_another_scale_is_refused(out: Path, tmp_path: Path, number: int) -> None:
    specs = [write_spec(tmp_path, SCALES.format(name), f"{name}.toml") for name in "ab"][:number]
    take(out, *specs)
    with pytest.raises(RecipeError, match="of this spec at the scale full, not small: name another folder with --out"):
        take(out, *specs, scale="small")
    assert take(out, *specs)[1] == []


def test_names_that_would_collide_are_refused(tmp_path: Path) -> None:
    a, same, out = spec_file(tmp_path, "a"), spec_file(tmp_path / "y", "a"), tmp_path / "out"
    found = command("bench", a, same, "--out", out)
    assert "two specs are called 'a'" in str(found.exception)
    for name in ("runs", "figures", "table.md", "index.html", "decoded", "digits.safetensors", ".spec"):
        found = command("bench", a, spec_file(tmp_path, name), "--out", out)
        assert isinstance(found.exception, RecipeError)
        assert f"a spec is called {name!r}, a name that the bench needs" in str(found.exception)
    assert not out.exists()
    Store(out).prepare()
    (out / "notes").write_text("mine")
    found = command("bench", a, spec_file(tmp_path, "notes"), "--out", out)
    assert "a spec is called 'notes'" in str(found.exception)


def test_a_damaged_mark_is_said(out: Path, tmp_path: Path) -> None:
    a, b = spec_file(tmp_path, "a"), spec_file(tmp_path, "b")
    take(out, a, b)
    for damaged in (b"", b"[]", b'{"file": "a"}', b"\xff"):
        (out / "b" / ".spec").write_bytes(damaged)
        with pytest.raises(RecipeError, match=r"b/.spec, which says whose tables lie there, cannot be read.*remove it"):
            take(out, a, b)


def test_the_command_makes_the_folders_before_it_makes_runs(tmp_path: Path) -> None:
    a, b, out = spec_file(tmp_path, "a"), spec_file(tmp_path, "b", row="b"), tmp_path / "out"
    assert command("bench", a, "--out", out, "--list").exit_code == 0
    assert not out.exists()
    assert command("bench", a, "--out", out, "--limit", "0").exit_code == 0
    before = (out / "table.md").read_bytes()
    found = command("bench", b, "--out", out, "--limit", "0")
    assert (found.exit_code, found.output.splitlines()[0].endswith(f"new tables go to {out / 'b'}")) == (0, True)
    assert (out / "table.md").read_bytes() == before != (out / "b" / "table.md").read_bytes()
    found = command("bench", spec_file(tmp_path / "y", "b", row="y"), a, "--out", out)
    assert "holds the tables of another spec" in str(found.exception)
    assert not list((out / "logs").iterdir())


@pytest.mark.parametrize("number", [1, 2])
def test_other_settings_are_refused(out: Path, tmp_path: Path, number: int) -> None:
    specs = [spec_file(tmp_path, name) for name in "ab"][:number]

    def with_settings(*settings: str) -> None:
        loaded = [Spec.load(file) for file in specs]
        take_folders(loaded, table_folders(loaded, out), Store(out), settings)

    with_settings()
    with pytest.raises(RecipeError, match="with nothing set over it, not --set train.lr=1: name another folder"):
        with_settings("train.lr=1")
    with_settings("run.device=cpu", "run.workers = 3", "run.cache=none", "data.images=voc")  # the figures are the same
    for mark in out.glob("**/.spec"):  # one that an earlier version left
        mark.write_text(re.sub(r',\s*"set": \[\]', "", mark.read_text()))
        assert '"set"' not in mark.read_text()
    with_settings("train.lr=1", "train.epochs=2")
    with_settings("train.epochs=5", "train.epochs=2", "train.lr = 1")
    with pytest.raises(RecipeError, match="with --set train.epochs=2 train.lr=1, not as it stands"):
        with_settings()
    with pytest.raises(RecipeError, match="not --set run.cache=features train.epochs=2 train.lr=1"):
        with_settings("train.lr=1", "train.epochs=2", "run.cache=features")


def test_the_command_refuses_other_settings_before_it_makes_runs(tmp_path: Path) -> None:
    a, out = spec_file(tmp_path, "a"), tmp_path / "out"
    assert command("bench", a, "--out", out, "--limit", "0", "--set", "train.epochs=1").exit_code == 0
    before = (out / "table.md").read_bytes()
    found = command("bench", a, "--out", out, "--limit", "0", "--set", "train.epochs=2")
    assert "holds the tables of this spec with --set train.epochs=1, not --set train.epochs=2" in str(found.exception)
    assert (out / "table.md").read_bytes() == before
