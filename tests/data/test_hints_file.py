"""Hints in a file of their own: there and back, how images are named, and files that strangers made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from pluralis.data import read, read_hints, write_hints
from pluralis.data.dataset import Dataset, Hints
from pluralis.errors import DataError
from pluralis.labels import Labels
from pluralis.missing_file import write_missing
from tests.data.generated import EXAMPLES, damaged_text, only_documented_errors, touch
from tests.data.tables import for_all, make_images, tables

HEAD = "image,label,confidence\n"


@pytest.fixture
def data(tmp_path: Path) -> Dataset:
    folder = touch(tmp_path / "images", "a.jpg", "x/b.jpg", "y/b.jpg").resolve()
    made = Labels.from_dense([[1, 0], [0, 0], [0, -1]], ["cat", "dog"], ["1", "2", "3"])
    return Dataset([folder / name for name in ("a.jpg", "x/b.jpg", "y/b.jpg")], made)


def with_hints(data: Dataset, *hints: tuple[int, int, float]) -> Dataset:
    return Dataset(data.images, data.labels, Hints.gather(*zip(*hints, strict=True)))


def test_any_hints_come_back(tmp_path: Path) -> None:
    """All names, all floats: formulas are neutralised, and no confidence is rounded."""
    folder, path = make_images(tmp_path / "images"), tmp_path / "hints.csv"

    @st.composite
    def hinted(draw: st.DrawFn) -> Dataset:
        made = draw(tables(folder))
        height, width = made.labels.shape
        entry = st.tuples(st.integers(0, height - 1), st.integers(0, width - 1), st.floats(0, 1, width=32))
        return with_hints(made, *draw(st.lists(entry, min_size=1, max_size=6)))

    def check(made: Dataset) -> None:
        write_hints(path, made, folder)
        for line in path.read_text(encoding="utf-8").splitlines()[1:]:
            assert not line.startswith(("=", "+", "-", "@", "\t"))
        assert read_hints(path, Dataset(made.images, made.labels)) == made

    for_all(hinted(), check, 60)


def test_images_by_id_or_by_the_end_of_their_path(data: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "hints.csv"
    path.write_text(HEAD + "1,dog,0.5\nx/b.jpg,cat,0.25\nimages/y/b.jpg,cat,1\n")
    found = read_hints(path, data).hints
    assert found == Hints.gather([0, 1, 2], [1, 0, 0], [0.5, 0.25, 1.0])
    path.write_text(HEAD + "b.jpg,cat,0.5\n")  # two of them
    with pytest.raises(DataError, match=r"hints\.csv, line 2: 'b\.jpg' is no image of the data; name it as"):
        read_hints(path, data)


def test_the_surest_of_two_stays(data: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "hints.csv"
    path.write_text(HEAD + "1,cat,0.5\n1,cat,0.75\n2,dog,0.125\n")
    found = read_hints(path, with_hints(data, (1, 1, 0.25), (2, 0, 0.5))).hints
    assert found == Hints.gather([0, 1, 2], [0, 1, 0], [0.75, 0.25, 0.5])


def test_every_reader_takes_them(tmp_path: Path) -> None:
    folder = touch(tmp_path / "images", "a.jpg", "b.jpg")
    (tmp_path / "labels.csv").write_text("image,label\na.jpg,cat\nb.jpg,dog\n")
    (tmp_path / "hints.csv").write_text(HEAD + "b.jpg,cat,0.5\n")
    found = read("csv", tmp_path / "labels.csv", images=folder, hints=tmp_path / "hints.csv")
    assert found.hints == Hints.gather([1], [0], [0.5])
    assert found.labels.dense().tolist() == [[1, 0], [0, 1]]  # a hint is no label
    with pytest.raises(DataError, match=r"none\.csv: cannot be read"):
        read("csv", tmp_path / "labels.csv", images=folder, hints=tmp_path / "none.csv")


def test_missing_labels_with_their_probability_are_hints_too(data: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "missing.csv"
    write_missing(path, data.labels, torch.tensor([[0.1, 0.75], [0.5, 0.2], [0.625, 0.9]]))
    assert path.read_text().startswith("image,label,probability\n")
    assert read_hints(path, data).hints == Hints.gather([0, 1, 2], [1, 0, 0], [0.75, 0.5, 0.625])
    path.write_text("image,label,probability\n1,cat,2\n")
    with pytest.raises(DataError, match=r"missing\.csv, line 2: the probability '2' is not possible"):
        read_hints(path, data)
    path.write_text("image,label,probability\n1,cat\n")
    with pytest.raises(DataError, match=r"missing\.csv, line 2: 2 cells, not image, label, probability"):
        read_hints(path, data)


MISTAKES = {
    "no header": ("1,cat,0.5\n", "line 1: a file of hints begins with the line image,label,confidence"),
    "another header": ("image,label,value\n1,cat,1\n", r"line 1: a file .* \(or image,label,probability\); write it"),
    "nothing": ("", "line 1: a file of hints"),
    "a cell too few": (HEAD + "1,cat\n", "line 2: 2 cells"),
    "another image": (HEAD + "1,cat,1\nz.jpg,cat,1\n", r"line 3: 'z\.jpg' is no image of the data"),
    "another class": (HEAD + "1,cow,1\n", "line 2: there is no class 'cow'; .*or give all to classes"),
    "no number": (HEAD + "1,cat,high\n", "line 2: the confidence 'high'"),
    "no share": (HEAD + "1,cat,1.5\n", "line 2: the confidence '1.5'"),
    "not a number": (HEAD + "1,cat,nan\n", "line 2: the confidence 'nan'"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_named(data: Dataset, tmp_path: Path, mistake: str) -> None:
    text, words = MISTAKES[mistake]
    (tmp_path / "hints.csv").write_text(text)
    with pytest.raises(DataError, match=rf"hints\.csv, {words}"):
        read_hints(tmp_path / "hints.csv", data)


def test_nothing_is_written_without_hints(data: Dataset, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the data has no hints"):
        write_hints(tmp_path / "hints.csv", data)
    assert not (tmp_path / "hints.csv").exists()


@pytest.mark.parametrize("examples", EXAMPLES)
def test_generated_files_raise_only_documented_errors(data: Dataset, tmp_path: Path, examples: int) -> None:
    file = tmp_path / "hints.csv"
    pieces = ["1", "x/b.jpg", "cat", ",", "\n", '"', "0.5", "nan", "\0", "\ud800", "=", "'", "\r", "/"]

    def parse(text: bytes) -> Dataset:
        file.write_bytes(text)
        return read_hints(file, data)

    whole = HEAD + "".join(f"{row},{name},0.5\n" for row in (1, 2, 3) for name in ("cat", "dog"))
    only_documented_errors(examples, damaged_text(whole, pieces), parse, file.name)


def test_rows_are_chosen_as_in_a_dense_matrix() -> None:
    draw = np.random.default_rng(0)
    dense = draw.random((20, 5), np.float32) * (draw.random((20, 5)) < 0.4)
    rows, columns = np.nonzero(dense)
    hints = Hints.gather(rows, columns, dense[rows, columns])
    chosen = draw.permutation(20)[:8]
    expected = np.nonzero(dense[chosen])
    assert hints.select(chosen, 20) == Hints.gather(*expected, dense[chosen][expected])
