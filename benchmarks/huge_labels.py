"""Label files of a million images: seconds and peak memory of writing and reading, each in a process of its own.

    python -m benchmarks.data --huge             # all of them, about ten minutes and 3 GB of disk
    python -m benchmarks.huge_labels --only csv  # those of one format

A matrix of 1,000,000 × 20,000 labels would take 20 GB: nothing here may come near it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

MEGABYTES = 1000.0  # to read a case that has a bar
QUIET = 0.5  # the load of the machine at the start up to which the clock on the wall is the judge


class Case(NamedTuple):
    """A format, the size of the matrix, how many labels of a row the file gives, and the bar for reading it, if any.

    `how`: "wide" is that layout of the file; with "absent" the file gives what is present, and all else is absent.
    """

    format: str
    rows: int
    classes: int
    known: int
    seconds: float = 0.0
    how: str = ""


CASES = (
    Case("npy", 1_000_000, 80, 3, seconds=5.0),
    Case("parquet", 1_000_000, 80, 3, seconds=5.0),
    Case("csv", 1_000_000, 80, 3, seconds=20.0),
    Case("npy", 1_000_000, 80, 80, seconds=5.0),  # complete labels: eighty millions, as are the next
    Case("csv", 1_000_000, 80, 1, seconds=20.0, how="absent"),
    Case("csv", 1_000_000, 80, 80, seconds=20.0, how="wide"),
    Case("parquet", 1_000_000, 80, 80, seconds=20.0, how="wide"),
    Case("openimages", 1_000_000, 20_000, 20),  # as many classes as Open Images has, and as many labels
    Case("csv", 1_000_000, 20_000, 20),
    Case("jsonl", 1_000_000, 20_000, 20),
    Case("parquet", 1_000_000, 20_000, 20),
    Case("lvis", 100_000, 1_203, 12),  # LVIS itself
)
CHILD = """
import json, sys, time
from pathlib import Path
import numpy as np
from benchmarks.memory import peak_megabytes as peak
from pluralis.data import read, write
from pluralis.labels import Labels

what, name, how, path, folder, rows, classes, known = *sys.argv[1:6], *map(int, sys.argv[6:])

def make():
    rng, first = np.random.default_rng(0), np.arange(known) * (classes // known)  # one from each part
    columns = rng.integers(first, np.append(first[1:], classes), (rows, known), np.int32)
    values = rng.integers(0, 2, rows * known, np.int8) * 2 - 1
    if how == "absent":
        values[:] = 1
    names = [f"class {number:05}" for number in range(classes)]
    ids = [f"{row:07}.jpg" for row in range(rows)]
    return Labels(np.arange(rows + 1) * known, columns.reshape(-1), values, names, ids)

labels = make() if what != "read" else None
before, start, cpu = peak(), time.perf_counter(), time.process_time()
dense = {"file": "labels_obs", "classes": "classes.txt"} if name == "npy" else {}
if what == "write":
    write(name, path, labels, **dense, **({"layout": how} if how == "wide" else {}))
else:
    options = {"openimages": {"suffix": ""}, "lvis": {"ids": "file"}}.get(name, dense)
    options |= {"unlisted": how} if how == "absent" else {}
    data = read(name, path, images=folder, **options)
    assert data.images[rows - 1].name == f"{rows - 1:07}.jpg"
    found = data.labels
figures = time.perf_counter() - start, time.process_time() - cpu, peak(), peak() - before
if what == "read":  # every class occurs, so that the labels are the same without their list
    labels = make()
    if how == "absent":
        signed = labels.dense()
        signed[signed == 0] = -1
        labels = Labels.from_dense(signed, labels.classes, labels.ids)
    assert found == labels, "the labels changed on their way"
print(json.dumps(figures))
"""


def main(only: str = "", scratch: str = "") -> dict[str, Any]:
    """Measure every case, or those of one format, and print a line for each; `scratch` is where the files go."""
    found: dict[str, Any] = {}
    quiet = os.getloadavg()[0] <= QUIET
    with tempfile.TemporaryDirectory(dir=scratch or None) as name:
        folder = Path(name) / "images"
        folder.mkdir()
        there = 0
        for case in CASES:
            if only and case.format != only:
                continue
            for row in range(there, case.rows):  # readers look for the file of every image
                (folder / f"{row:07}.jpg").touch()
            there = max(there, case.rows)
            path = Path(name) / "labels"
            written, read = (_child(what, case, path, folder) for what in ("write", "read"))
            files = list(path.iterdir()) if path.is_dir() else [path]
            size = sum(file.stat().st_size for file in files) / 1e6
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            how = f", {case.how}" if case.how else ""
            title = f"{case.format} {case.rows:,} × {case.classes:,}, {case.known} labels a row{how}"
            found[title] = {
                "MB": size,
                **{f"write {key}": value for key, value in written.items()},
                **{f"read {key}": value for key, value in read.items()},
            }
            print(
                f"{title}: {size:,.0f} MB; read in {read['seconds']:.1f} s ({read['CPU']:.1f} s CPU),"
                f" peak {read['peak MB']:,.0f} MB; written in {written['seconds']:.1f} s ({written['CPU']:.1f} s CPU),"
                f" {written['more MB']:,.0f} MB beside the labels{_verdict(case, read, quiet)}",
                flush=True,
            )
    return found


def _verdict(case: Case, read: dict[str, float], quiet: bool) -> str:
    """By the wall clock, or by CPU time where other programs take the processor away."""
    if not case.seconds:
        return ""
    good = read["seconds" if quiet else "CPU"] < case.seconds and read["peak MB"] < MEGABYTES
    judge = "on the wall" if quiet else "of CPU, as the machine is busy"
    return f": {'ok' if good else 'TOO MUCH'} (bars {case.seconds:g} s {judge}, {MEGABYTES:g} MB)"


def _child(what: str, case: Case, path: Path, folder: Path) -> dict[str, float]:
    words = [what, case.format, case.how, str(path), str(folder), *map(str, (case.rows, case.classes, case.known))]
    out = subprocess.run([sys.executable, "-c", CHILD, *words], stdout=subprocess.PIPE, text=True, check=True).stdout
    return dict(zip(("seconds", "CPU", "peak MB", "more MB"), json.loads(out), strict=True))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a format")
    parser.add_argument("--scratch", default="", help="folder for the files, removed at the end")
    main(**vars(parser.parse_args()))
