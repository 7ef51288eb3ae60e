"""What is known of a label matrix, counted by class and by row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class LabelSummary:
    """What is known: counts [C] by class (positives, negatives, unknown) and [N] by row."""

    classes: tuple[str, ...]
    positives: Ints
    negatives: Ints
    unknown: Ints
    row_positives: Ints
    row_negatives: Ints

    @property
    def empty_rows(self) -> Ints:
        """The numbers of the rows without any label."""
        return np.flatnonzero(self.row_positives + self.row_negatives == 0)

    @property
    def cardinality(self) -> float:
        """Mean number of positives in a row; 0 without rows."""
        return float(self.row_positives.mean()) if len(self.row_positives) else 0.0

    @property
    def known_ratio(self) -> float:
        """Known labels over all labels; 0 for an empty matrix."""
        known = int(self.positives.sum() + self.negatives.sum())
        return known / max(1, known + int(self.unknown.sum()))

    def __str__(self) -> str:
        order = np.argsort(self.positives, kind="stable")
        shown = [f"{self.classes[c]} {self.positives[c]:,}" for c in order]
        middle = shown if len(shown) <= 6 else [*shown[:3], "…", *shown[-3:]]
        empty = self.empty_rows
        which = f" (first: {', '.join(map(str, empty[:3]))})" if len(empty) else ""
        return "\n".join(
            [
                f"{len(self.row_positives):,} rows × {len(self.classes):,} classes, {self.known_ratio:.2%} known",
                f"present {self.positives.sum():,}, absent {self.negatives.sum():,}, "
                f"unknown {self.unknown.sum():,}; {self.cardinality:.2f} present a row",
                f"rows without any label: {len(empty):,}{which}",
                f"present by class: {', '.join(middle)}; {np.count_nonzero(self.positives == 0):,} classes without any",
            ]
        )
