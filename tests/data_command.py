"""`pluralis data …` in this process."""

from __future__ import annotations

from typer.testing import CliRunner

from pluralis.cli import app


def pluralis(*words: object, code: int = 0) -> str:
    """What the command prints; anything but the exit status `code` is a failure."""
    done = CliRunner().invoke(app, ["data", *map(str, words)], env={"COLUMNS": "200"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done.output
