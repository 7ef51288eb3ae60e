"""Which labels of a million images are missing: from logits to the ranked file, seconds and peak memory.

    python -m benchmarks.ranking

80 classes, three labels an image present and one of them written: the chance of each of the 79,000,000 unknown labels
given what was written, then those above one half (two millions), the most likely first, as CSV. What the logits and the
labels take themselves counts into the memory. Own: the probabilities of `selection` or `relabel` as they are.
Calibrated: those of any other method, for which two numbers move the logits first.
"""

from __future__ import annotations

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
from pluralis.missing_labels import write_missing

how, path, rows, classes = sys.argv[1], Path(sys.argv[2]), 1_000_000, 80
random = torch.Generator().manual_seed(0)
logits = torch.randn(rows, classes, generator=random).sub_(5)
logits[torch.rand(rows, classes, generator=random) < 3 / classes] += 8  # 3 ± 1 where a label is present
names = [f"class {number:02}" for number in range(classes)]
ids = [f"{row:07}.jpg" for row in range(rows)]
written = logits.argmax(1).to(torch.int32).numpy()
labels = Labels(np.arange(rows + 1), written, np.ones(rows, np.int8), names, ids)
start = time.perf_counter()
if how == "calibrated":
    logits = 1.1 * logits + 0.1
found = selection_posterior(logits, torch.from_numpy(labels.dense()))
ranked = time.perf_counter()
count = write_missing(path, labels, found)
print(json.dumps([ranked - start, time.perf_counter() - ranked, count, peak()]))
"""


def main() -> dict[str, list[float]]:
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        for how in ("own", "calibrated"):
            words = [sys.executable, "-c", CHILD, how, str(Path(scratch) / f"{how}.csv")]
            found[how] = json.loads(subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout)
            chance, rank, count, peak = found[how]
            print(
                f"{how}: chances in {chance:.1f} s, {count:,} ranked and written in {rank:.1f} s, peak {peak:,.0f} MB"
                f" (bar {SECONDS:g} s): {'ok' if chance + rank < SECONDS else 'TOO MUCH'}",
                flush=True,
            )
    return found


if __name__ == "__main__":
    main()
