"""Which labels of a million images are missing: from logits to the ranked file, seconds and peak memory.

    python -m benchmarks.ranking [--all]

80 classes, three labels an image present and one of them written: the rows that were trained on and those that were
held out come together, the chance of each of the 79,000,000 unknown labels given what was written is found, then those
above one half (two millions) are written as CSV, the most likely first. What the logits (twice while the rows come
together) and the labels take themselves counts into the memory. Own: the probabilities of `selection` or `relabel` as
they are. Calibrated: those of any other method, for which two numbers move the logits first. Wide: an image a line. All
(with --all, some minutes and 3 GB of disk): every unknown label; it has no bar of time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

SECONDS = 60.0
CHILD = """
import json, sys, time
from pathlib import Path
import numpy as np
import torch
from benchmarks.memory import peak_megabytes as peak
from pluralis.labels import Labels
from pluralis.losses import selection_posterior
from pluralis.missing_file import write_missing
from pluralis.missing_labels import Part, together

how, least, layout, path, rows, classes = sys.argv[1], float(sys.argv[2]), *sys.argv[3:], 1_000_000, 80
random = torch.Generator().manual_seed(0)
logits = torch.randn(rows, classes, generator=random).sub_(5)
logits[torch.rand(rows, classes, generator=random) < 3 / classes] += 8  # 3 ± 1 where a label is present
names = [f"class {number:02}" for number in range(classes)]
ids = [f"{row:07}.jpg" for row in range(rows)]
written = logits.argmax(1).to(torch.int32).numpy()
labels = Labels(np.arange(rows + 1), written, np.ones(rows, np.int8), names, ids)
held = rows // 5
train, held = np.arange(held, rows), np.arange(held)
parts = [Part(labels.select(some), logits[torch.from_numpy(some)]) for some in (train, held)]
del labels, logits
start = time.perf_counter()
both = together(parts)
labels, logits = both.labels, both.logits
del both, parts
joined = time.perf_counter()
if how == "calibrated":
    logits = 1.1 * logits + 0.1
found = selection_posterior(logits, torch.from_numpy(labels.dense()))
ranked = time.perf_counter()
count = write_missing(Path(path), labels, found, least, layout)
print(json.dumps([joined - start, ranked - joined, time.perf_counter() - ranked, count, peak()]))
"""


def main(every: bool = False) -> dict[str, list[float]]:
    found = {}
    cases = {"own": ("own", 0.5, "long"), "calibrated": ("calibrated", 0.5, "long"), "wide": ("own", 0.5, "wide")}
    if every:
        cases |= {"all": ("own", 0.0, "long"), "all, wide": ("own", 0.0, "wide")}
    with tempfile.TemporaryDirectory() as scratch:
        for name, (how, least, layout) in cases.items():
            out = Path(scratch) / "missing.csv"
            words = [sys.executable, "-c", CHILD, how, str(least), layout, str(out)]
            found[name] = json.loads(subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout)
            join, chance, rank, count, peak = found[name]
            good = least == 0 or join + chance + rank < SECONDS
            print(
                f"{name}: rows joined in {join:.1f} s, chances in {chance:.1f} s, {count:,} ranked and written in"
                f" {rank:.1f} s, peak {peak:,.0f} MB"
                + ("" if least == 0 else f" (bar {SECONDS:g} s): {'ok' if good else 'TOO MUCH'}"),
                flush=True,
            )
            out.unlink()
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="also write every unknown label")
    main(parser.parse_args().all)
