"""Cells that a spreadsheet would run: text on the way out, what they were on the way back."""

from __future__ import annotations

from pathlib import Path

import pytest

from pluralis.data import read, write
from pluralis.data.formats.csv import neutralise, restore
from pluralis.labels import Labels
from tests.data.generated import touch

STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # the last four are wide


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("quotes", ["", "'", "''"])
def test_a_quote_makes_them_text(start: str, quotes: str) -> None:
    name = f"{quotes}{start}1+1"
    assert neutralise(name) == f"'{name}"
    assert restore(neutralise(name)) == name


@pytest.mark.parametrize("name", ["cat", "'cat", "a=1", " =1", "\u4e00", ""])
def test_all_others_stay_as_they_are(name: str) -> None:
    assert neutralise(name) == name == restore(name)


@pytest.mark.parametrize("layout", ["long", "wide"])
def test_there_and_back(tmp_path: Path, layout: str) -> None:
    names = sorted(f"{start}x" for start in STARTS)
    labels = Labels.from_dense([[1] * len(names)], names, ["a.jpg"])
    touch(tmp_path, "a.jpg")
    write("csv", tmp_path / "x.csv", labels, layout=layout)
    assert read("csv", tmp_path / "x.csv", images=tmp_path, classes=names).labels == labels
