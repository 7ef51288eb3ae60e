"""Formats that list what is present."""

from __future__ import annotations

import pytest

from pluralis.data.formats.listing import from_lists
from pluralis.errors import DataError


def test_a_small_file_does_not_become_gigabytes_of_absent_labels() -> None:
    images, classes = [f"{i}.jpg" for i in range(60_000)], [f"c{i}" for i in range(50_000)]
    with pytest.raises(DataError, match=r"makes 3,000,000,000 labels, too many; say unlisted='unknown'"):
        from_lists([[0]] * len(images), "absent", classes, images)
    assert from_lists([[0]] * len(images), "unknown", classes, images).shape == (60_000, 50_000)
