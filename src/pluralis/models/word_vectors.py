"""Word vectors of class names, from a text file in the format of GloVe."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

import torch
from torch import Tensor

from pluralis.errors import DataError

LONGEST_LINE = 1 << 20  # bytes: far above any vector, far below any memory
_NAMED = 10


def read_word_vectors(path: str, classes: Sequence[str], dimension: int) -> Tensor:
    """The vector of each class name, [C, dimension].

    A line of the file is a word and its numbers, parted by blanks; the first line of a word counts. A class takes the
    vector of its name in lower case, or else the mean of those of its words, which are parted by blanks, `_` or `-`.
    The file is read line by line and only the words that are needed are kept, so its size does not matter.
    """
    if not os.path.isfile(path):  # a pipe or a device could hang
        raise DataError(f"word vectors: {path!r} is not there, or not a plain file; check word_vectors")
    names = [name.lower() for name in classes]
    parts = [re.split(r"[\s_-]+", name) for name in names]
    wanted = {word.encode() for word in (*names, *(word for words in parts for word in words)) if word}
    found: dict[str, Tensor] = {}
    with open(path, "rb") as file:
        number = 0
        while line := file.readline(LONGEST_LINE):
            number += 1
            if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
                raise DataError(f"word vectors: {path}, line {number} is longer than {LONGEST_LINE:,} bytes; {_FORMAT}")
            word = line.split(None, 1)[0] if line.strip() else b""
            if word in wanted and word.decode() not in found:
                found[word.decode()] = _vector(line.split()[1:], dimension, f"{path}, line {number}")
    vectors = [_lookup(found, name, words) for name, words in zip(names, parts, strict=True)]
    missing = [repr(name) for name, vector in zip(classes, vectors, strict=True) if vector is None]
    if missing:
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        raise DataError(
            f"word vectors: {path} has none for {', '.join(missing[:_NAMED])}{more}; add a line for each, "
            "rename the class, or leave word_vectors out to learn them"
        )
    return torch.stack([vector for vector in vectors if vector is not None])


_FORMAT = "a line is a word and its numbers, parted by blanks"


def _lookup(found: dict[str, Tensor], name: str, words: list[str]) -> Tensor | None:
    if name in found:
        return found[name]
    known = [found[word] for word in words if word in found]
    return torch.stack(known).mean(0) if known and len(known) == len(words) else None


def _vector(numbers: list[bytes], dimension: int, where: str) -> Tensor:
    if len(numbers) != dimension:
        raise DataError(
            f"word vectors: {where} has {len(numbers)} numbers, not {dimension}; set the head's word_dim "
            f"to what the file has ({_FORMAT})"
        )
    try:
        vector = torch.tensor([float(number) for number in numbers])
    except ValueError as error:
        raise DataError(f"word vectors: {where}: {error}; {_FORMAT}") from None
    if not bool(vector.isfinite().all()):
        raise DataError(f"word vectors: {where} holds a number that is not finite; {_FORMAT}")
    return vector
