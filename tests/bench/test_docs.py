"""The page about benches: its spec and its commands, at toy size."""

from __future__ import annotations

import doctest
import re
import shlex
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from pluralis import bench_cli
from pluralis.bench import names, progress, ray_cluster, render, statistics, toml_tables
from pluralis.bench.spec import Spec
from pluralis.cli import app

PAGE = Path("docs/bench.md").read_text(encoding="utf-8")
TOY = ["model.weights=", "data.options.count=40", "data.test.options.count=30", "train.epochs=1", "run.workers=0"]


def test_the_first_bench_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = re.search(r"^```toml\n(title.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    commands = re.search(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert spec is not None
    assert commands is not None
    monkeypatch.chdir(tmp_path)
    Path("losses.toml").write_text(spec[1], encoding="utf-8")
    said = []
    for command in commands[1].splitlines():
        name, *words = shlex.split(command)
        assert name == "pluralis"
        more = [word for setting in TOY for word in ("--set", setting)]
        more += [] if "--list" in words else ["--jobs", "1"]  # a second process would only import everything again
        done = CliRunner().invoke(app, [*words, *more], env={"COLUMNS": "160"})
        assert done.exit_code == 0, (command, done.output, done.exception)
        said.append(done.output)
    assert said[0].count("open") == 6
    for line in re.findall(r"^\| `(runs/losses/[^|]*)", PAGE, re.MULTILINE):
        first = re.findall(r"[\w./-]+", line)[0].replace("KEY", "*").replace("runs/losses/runs/", "runs/losses/")
        assert list(tmp_path.glob(first.rstrip("/"))), first
    table = Path("runs/losses/table.md").read_text(encoding="utf-8")
    assert "| all labels |" in table
    assert "difference to an in mAP" in table


@pytest.mark.parametrize(
    "module",
    [bench_cli, names, progress, ray_cluster, render, statistics, toml_tables],
    ids=lambda module: module.__name__,
)
def test_examples_in_the_code(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed


def test_every_key_is_on_the_page() -> None:
    for key in Spec.__dataclass_fields__:
        assert key == "file" or re.search(rf"[`\[]{key}[\]`.]", PAGE), key
    for block in re.findall(r"^```toml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
        tomllib.loads(block)


def test_every_spec_is_on_a_page() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in Path("docs").glob("*.md"))
    for path in Path("recipes/papers").glob("*.toml"):
        assert path.name == "digits.toml" or f"papers/{path.name}" in pages
