"""Writing a text file in one step: its path holds the old content or the whole new one, never a part."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from pluralis.data.formats.whole_file import whole_file


@contextmanager
def replacing(path: str | Path, newline: str = "\n") -> Iterator[TextIO]:
    """A UTF-8 file that takes the place of `path` when the block ends well, and disappears when it does not."""
    with whole_file(path) as part, part.open("w", encoding="utf-8", newline=newline) as file:
        yield file
