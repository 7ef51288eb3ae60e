"""The file of missing labels: the right ones in the right order, whole or not at all, in little memory."""

from __future__ import annotations

import csv
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from pluralis import missing_file
from pluralis.data.formats import csv as csv_format
from pluralis.errors import DataError
from pluralis.labels import Labels
from pluralis.missing_file import write_missing


@pytest.fixture
def case() -> tuple[Labels, torch.Tensor]:
    """300 rows with ties, both ends, and names that a spreadsheet would run; some labels are known."""
    random = np.random.default_rng(2)
    known = random.choice([-1, 0, 0, 0, 1], (300, 7))
    known[9, 0] = 0
    names = ["=a", "b,c", "d", "e", "f", "g", "h"]
    labels = Labels.from_dense(known, names, [f"{'-' if row % 50 == 0 else ''}{row}.jpg" for row in range(300)])
    chances = torch.from_numpy(random.random((300, 7)).astype(np.float32))
    chances[::3] = (chances[::3] * 8).round() / 8
    chances[7], chances[8], chances[9, 0] = 1.0, 0.0, -0.0
    return labels, chances


def rows_of(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def spelt(name: str) -> str:
    return f"'{name}" if name[0] in "=-" else name


@pytest.mark.parametrize("cells", [1, 20, 1 << 18])
@pytest.mark.parametrize("least", [0.0, 0.25, 1.0])
def test_long_is_a_stable_sort(tmp_path, monkeypatch, case, cells, least) -> None:
    monkeypatch.setattr(missing_file, "_CELLS", cells)
    labels, chances = case
    dense = labels.dense()
    expected = [
        (-float(chances[row, column]), row, column)
        for row in range(300)
        for column in range(7)
        if dense[row, column] == 0 and chances[row, column] >= least
    ]
    assert write_missing(tmp_path / "out.csv", labels, chances, least) == len(expected) > 5
    header, *found = rows_of(tmp_path / "out.csv")
    assert header == ["image", "label", "probability"]
    assert found == [
        [spelt(labels.id(row)), spelt(labels.classes[column]), f"{abs(chance):.6f}"]
        for chance, row, column in sorted(expected, key=lambda line: (line[0], line[1:]))
    ]


@pytest.mark.parametrize("cells", [1, 20, 1 << 18])
def test_wide_shows_what_is_known_and_what_is_likely(tmp_path, monkeypatch, case, cells) -> None:
    monkeypatch.setattr(missing_file, "_CELLS", cells)
    labels, chances = case
    count = write_missing(tmp_path / "out.csv", labels, chances, 0.75, "wide")
    header, *found = rows_of(tmp_path / "out.csv")
    assert header == ["image", *map(spelt, labels.classes)]
    assert [line[0] for line in found] == [spelt(name) for name in labels.ids]
    likely = 0
    for row, (line, signs) in enumerate(zip(found, labels.dense(), strict=True)):
        for column, (cell, sign) in enumerate(zip(line[1:], signs, strict=True)):
            chance = float(chances[row, column])
            shown = sign == 0 and chance >= 0.75
            likely += shown
            kept = f"{min(chance, 0.999999):.6f}"  # 1 is a label
            assert cell == (kept if shown else {1: "1", -1: "-1", 0: ""}[int(sign)])
    assert likely == count > 50


@pytest.mark.parametrize("names", [["=a", "b,c", "d", "e", "f", "g", "h"], ["label"], ["label", "value"], ["image"]])
def test_wide_is_read_back_once_somebody_has_decided(tmp_path, case, names) -> None:
    labels, chances = case
    known, chances = labels.dense()[:, : len(names)], chances[:, : len(names)].contiguous()
    labels, out = Labels.from_dense(known, names, labels.ids), tmp_path / "out.csv"
    (tmp_path / "images").mkdir()
    for name in labels.ids:
        (tmp_path / "images" / name).touch()
    count = write_missing(out, labels, chances, 0.0, "wide")
    with pytest.raises(DataError, match=r"out\.csv, line \d+: .*'0\.\d{6}' is no label"):
        csv_format.read(out, tmp_path / "images")

    # What a spreadsheet makes of the numbers; then every chance becomes present, absent or unknown by turns.
    header, *lines = rows_of(out)
    at, decided = header.index("image"), known.copy()
    columns = [column for column in range(len(header)) if column != at]
    turns = 0
    for row, line in enumerate(lines):
        for number, column in enumerate(columns):
            cell = line[column] = f"{float(line[column]):g}" if line[column] else ""
            assert cell != "0"
            if cell not in ("1", "-1", ""):
                decided[row, number] = turns % 3 - 1
                line[column] = ("-1", "", "1")[turns % 3]
                turns += 1
    assert turns == count == np.count_nonzero(known == 0)
    with out.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *lines])
    assert csv_format.read(out, tmp_path / "images", classes=names).labels == Labels.from_dense(
        decided, names, labels.ids
    ).select(np.argsort(labels.ids))


@pytest.mark.parametrize("layout", ["long", "wide"])
def test_no_rows_and_nothing_likely(tmp_path, layout) -> None:
    for height in (0, 3):
        labels = Labels.from_dense(np.zeros((height, 2)), ["a", "b"])
        assert write_missing(tmp_path / "out.csv", labels, torch.zeros(height, 2), 0.5, layout) == 0
        assert len(rows_of(tmp_path / "out.csv")) == 1 + (height if layout == "wide" else 0)


@pytest.mark.parametrize("layout", ["long", "wide"])
def test_a_failure_in_the_middle_leaves_the_old_file(tmp_path, monkeypatch, layout) -> None:
    monkeypatch.setattr(missing_file, "_CELLS", 1)
    out = tmp_path / "out.csv"
    out.write_text("old")
    labels = Labels.from_dense(np.zeros((2, 1)), ["a"], ["good.jpg", "bad\ud800.jpg"])
    with pytest.raises(DataError, match=r"out\.csv: cannot be written"):
        write_missing(out, labels, torch.tensor([[0.9], [0.8]]), 0.5, layout)
    assert out.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]


@pytest.mark.parametrize("layout", ["long", "wide"])
def test_memory_is_near_that_of_the_chances(tmp_path, monkeypatch, layout) -> None:
    """Twice that for the order of the long file, the names, and some thousand cells as objects."""
    monkeypatch.setattr(missing_file, "_CELLS", 1 << 12)
    height, width = 5_000, 40
    labels = Labels.from_dense(np.zeros((height, width), np.int8), ids=[f"{row}.jpg" for row in range(height)])
    chances = torch.rand(height, width, generator=torch.Generator().manual_seed(0))
    tracemalloc.start()
    assert write_missing(tmp_path / "out.csv", labels, chances, 0.0, layout) == height * width
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < (2.2 if layout == "long" else 0) * 4 * height * width + 100 * height + 300 * missing_file._CELLS
