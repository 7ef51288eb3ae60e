"""What somebody put into a name is shown in the terminal, and does not steer it."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from pluralis.cli import main
from pluralis.console import VisibleConsole, figures_table, prediction_bar
from pluralis.errors import Interrupted, visible
from tests.test_data_commands import pluralis

NAME = "dog\x1b[31mRED\x1b]0;pwn\x07x\x9b2J\x7f"
STEERING = {chr(code) for code in (*range(32), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def test_every_way_of_printing() -> None:
    file = io.StringIO()
    console = VisibleConsole(file=file, width=100)
    table = Table("class", title=NAME, caption=Text(NAME))
    table.add_row(Text(NAME))
    table.add_row(NAME)
    for thing in (NAME, Text(NAME), table, [NAME], f"half \ud800 and {NAME}"):
        console.print(thing)
    console.print(NAME, markup=False, highlight=False, soft_wrap=True)
    assert not STEERING & set(file.getvalue())
    assert "dog␛[31mRED" in file.getvalue()
    assert "half \ufffd" in file.getvalue()


def test_its_own_colours_and_bars_still_work() -> None:
    file = io.StringIO()
    console = VisibleConsole(file=file, force_terminal=True, color_system="standard", width=60)
    console.print(Text("mine", style="red"))
    assert "\x1b[31mmine\x1b[0m" in file.getvalue()
    with Progress(console=console, transient=True) as bars:
        bars.update(bars.add_task("work", total=2), completed=1)
    assert "\x1b[?25l" in file.getvalue()  # the cursor is hidden, not drawn
    assert "␛" not in file.getvalue()


def test_visible_leaves_text_alone() -> None:
    text = "ünïcode 日本 🐈 [red]\ta\nb"
    assert visible(text) == text
    assert not STEERING & set(visible("".join(map(chr, range(0x3000)))))


def test_names_in_tables_lines_and_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jpg").touch()
    (tmp_path / "x.jsonl").write_text(json.dumps({"image": "a.jpg", "positives": [NAME, "cat"]}))
    words = ["--format", "jsonl", "--images", str(tmp_path), "--labels", str(tmp_path / "x.jsonl")]
    said = pluralis("inspect", *words)
    assert not STEERING & set(said)
    assert said.count(visible(NAME)) == 2  # whole, in both tables
    wrong = ["--images", str(tmp_path), "--labels", f"no\x1b[31m{tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["pluralis", "data", "inspect", *wrong])
    with pytest.raises(SystemExit):
        main()
    shown = capsys.readouterr().err
    assert shown.startswith("error: no␛[31m/")
    assert not STEERING & set(shown)


def test_a_prediction_that_is_broken_off_says_so() -> None:
    def broken_off() -> None:
        with prediction_bar() as progress:
            progress(1, 2)
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="predicting: stopped"):
        broken_off()


def test_figures_have_two_places_and_counts_none() -> None:
    text = io.StringIO()
    VisibleConsole(file=text, width=100).print(figures_table("test", {"run": {"mAP": 81.237, "classes left out": 2.0}}))
    (line,) = (line for line in text.getvalue().splitlines() if "run" in line)
    assert [cell.strip() for cell in line.strip("│").split("│")] == ["run", "81.24", "2"]
