"""Formats that list what is present."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from pluralis.data.formats.listing import from_lists
from pluralis.errors import DataError


def test_a_small_file_does_not_become_gigabytes_of_absent_labels() -> None:
    images, classes = [f"{i}.jpg" for i in range(60_000)], [f"c{i}" for i in range(50_000)]
    with pytest.raises(DataError, match=r"makes 3,000,000,000 labels, too many; say unlisted='unknown'"):
        from_lists([[0]] * len(images), "absent", classes, images)
    assert from_lists([[0]] * len(images), "unknown", classes, images).shape == (60_000, 50_000)


@pytest.mark.parametrize("unlisted", ["absent", "unknown"])
def test_labels_are_made_once(unlisted: str) -> None:
    classes, ids = [f"c{i}" for i in range(80)], [f"{i}.jpg" for i in range(20_000)]
    present = [list(range(80))] * len(ids)
    from_lists(present[:1], unlisted, classes, ids[:1])
    tracemalloc.start()
    labels = from_lists(present, unlisted, classes, ids)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(labels.dense(), 1)
    made = sum(array.nbytes for array in (labels.indptr, labels.indices, labels.values))
    assert peak < 1.7 * made
