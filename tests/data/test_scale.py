"""Label files with very many classes or images: no dense matrix is ever made, and the bars of time and memory hold."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import defusedxml.ElementTree  # noqa: F401  # imported before memory is counted, as is the next
import numpy as np
import pyarrow.parquet  # noqa: F401
import pytest

from benchmarks.huge_labels import CASES
from pluralis import compressed_rows
from pluralis import labels as labels_module
from pluralis.data import read, write
from pluralis.data.dataset import Dataset
from pluralis.data.formats import FORMATS, csv, parquet
from pluralis.labels import Labels

ROWS, CLASSES = 1_000, 20_000
SPARSE = sorted(name for name, entry in FORMATS.items() if entry.write and name != "npy")  # a dense file by its nature


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Two present labels a row out of so many classes that a matrix of bytes would take 20 MB."""
    folder = tmp_path_factory.mktemp("images").resolve()
    ids = [f"{row:04}.jpg" for row in range(ROWS)]
    for name in ids:
        (folder / name).touch()
    columns = np.sort(np.random.default_rng(0).integers(0, CLASSES // 2, (ROWS, 2)) + np.array([0, CLASSES // 2]), 1)
    labels = Labels.from_lists(columns.tolist(), [f"c{number:05}" for number in range(CLASSES)], ids=ids)
    return Dataset([folder / name for name in ids], labels)


@pytest.mark.parametrize("format", SPARSE)
def test_many_classes_take_no_matrix(tmp_path: Path, many: Dataset, format: str) -> None:
    path, folder = tmp_path / "labels", many.images[0].parent
    options = {"unlisted": "unknown", "images": folder, "suffix": "", "ids": "file", "names": tmp_path / "names"}
    options["classes"] = list(many.labels.classes)  # for formats that would take those that occur
    entry = FORMATS[format]
    assert entry.write is not None
    asked = [inspect.signature(call).parameters for call in (entry.write, entry.read)]
    writing, reading = ({key: value for key, value in options.items() if key in names} for names in asked)
    if format == "openimages":
        del writing["images"]  # the ids are the whole names
    tracemalloc.start()
    write(format, path, many, **writing)
    written = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    found = read(format, path, **reading)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.labels == many.labels
    assert max(written, peak) < 0.9 * ROWS * CLASSES


@pytest.mark.parametrize(
    ("format", "writing", "reading"),
    [
        ("csv", {"layout": "wide"}, {}),
        ("parquet", {"layout": "wide"}, {}),
        ("csv", {}, {"unlisted": "absent"}),
        ("npy", {}, {}),
    ],
)
def test_complete_labels_take_little_more_than_their_own_memory(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    format: str,
    writing: dict[str, str],
    reading: dict[str, str],
) -> None:
    """5 bytes a label, 2 or 3 more while they are gathered and sorted, the names, and what is read at once."""
    for module, name in ((compressed_rows, "BLOCK"), (labels_module, "BLOCK"), (csv, "_PACKED")):
        monkeypatch.setattr(module, name, 1 << 14)
    monkeypatch.setattr(parquet, "_CELLS", 1 << 16)
    rows, classes = 2_000, 400
    ids = [f"{row * 7 % rows:04}.jpg" for row in range(rows)]  # not in order
    for name in ids:
        (tmp_path / name).touch()
    signed = np.full((rows, classes), -1, np.int8)
    signed[np.arange(rows), np.arange(rows) % classes] = 1
    given = np.where(signed > 0, 1, 0) if reading else signed
    names = [f"c{number:03}" for number in range(classes)]
    write(format, tmp_path / "labels", Labels.from_dense(given, names, ids), **writing)
    tracemalloc.start()
    found = read(format, tmp_path / "labels", images=tmp_path, **reading).labels
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    order = np.arange(rows) if format == "npy" else np.argsort(ids)
    np.testing.assert_array_equal(found.dense(), signed[order])
    assert peak < 8 * signed.size + 1000 * rows + 100 * (1 << 14)


@pytest.mark.slow
def test_a_million_rows() -> None:
    """1,000,000 × 80, three labels a row or all, in less than 1 GB; 20 million of 20,000 classes in less than 4 GB.

    Seconds are the benchmark's to judge: here they have twice its bars, and are those of the processor.
    """
    bars = [case.seconds for case in CASES if case.seconds]
    cases = "[*(case for case in h.CASES if case.seconds), next(c for c in h.CASES if c.format == 'openimages')]"
    program = f"import json; from benchmarks import huge_labels as h; h.CASES = {cases}; print(json.dumps(h.main()))"
    found = json.loads(subprocess.check_output([sys.executable, "-c", program], text=True).splitlines()[-1])
    *small, large = found.values()
    assert [title.split()[0] for title in found] == [
        "npy",
        "parquet",
        "csv",
        "npy",
        "csv",
        "csv",
        "parquet",
        "openimages",
    ]
    for figures, seconds in zip(small, bars, strict=True):
        assert figures["read CPU"] < 2 * seconds
        assert figures["read peak MB"] < 1000
    assert max(large["read peak MB"], large["write peak MB"]) < 4000  # a matrix would be 20,000
