"""What `import pluralis` offers: to people who type, to those who look with `dir`, and to a type checker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import pluralis

PARTS = ("data", "errors", "losses", "methods", "metrics", "models")


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], text=True, check=True, capture_output=True).stdout


def test_dir_lists_every_name_and_importing_costs_nothing() -> None:
    listed, modules = run("import pluralis, sys; print(dir(pluralis)); print('torch' in sys.modules)").splitlines()
    assert set(pluralis.__all__) | set(PARTS) <= set(eval(listed))
    assert modules == "False"


def test_every_name_is_there() -> None:
    assert {"Loader", "Setup", "TensorImages", "start_bias", "start_heads"} <= set(pluralis.__all__)
    for name in pluralis.__all__:
        assert getattr(pluralis, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothere'"):
        pluralis.nothere  # type: ignore[attr-defined]  # noqa: B018


def test_parts_need_no_import_of_their_own() -> None:
    code = "import pluralis\n" + "".join(f"print(pluralis.{name}.__name__)\n" for name in PARTS)
    assert run(code).split() == [f"pluralis.{name}" for name in PARTS]


def test_a_type_checker_knows_the_names_and_no_others(tmp_path: Path) -> None:
    asked = tmp_path / "asked.py"
    names = [*pluralis.__all__, *PARTS]
    asked.write_text("import pluralis\n" + "".join(f"pluralis.{name}\n" for name in [*names, "nothere"]))
    # What lies behind the names need not be read, which takes long.
    command = [sys.executable, "-m", "mypy", "--config-file=", "--follow-imports=skip", "--ignore-missing-imports"]
    package = Path(pluralis.__file__)
    done = subprocess.run(
        [*command, f"--cache-dir={tmp_path / 'cache'}", "src/pluralis/__init__.py", str(asked)],
        text=True, capture_output=True, cwd=package.parents[2], env={"MYPYPATH": "src", "PATH": ""},
    )  # fmt: skip
    errors = [line for line in done.stdout.splitlines() if "error:" in line]
    assert len(errors) == 1, done.stdout + done.stderr
    assert "nothere" in errors[0]
