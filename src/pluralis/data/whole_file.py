"""Writing a file so that its name holds the old content or all of the new, never a part."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from pluralis.errors import DataError


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """The place to write to, `<path>.part`: it becomes `path` at the end of the block, and goes if that fails."""
    part = Path(f"{path}.part")
    try:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error}; check the folder and the space left") from None
    except UnicodeEncodeError as error:
        raise DataError(f"{path}: cannot be written: {error}; rename what is not valid text") from None
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


@contextmanager
def whole_text(path: str | Path, newline: str = "\n") -> Iterator[TextIO]:
    """The same as a UTF-8 file that is open for writing."""
    with whole_file(path) as part, part.open("w", encoding="utf-8", newline=newline) as file:
        yield file
