"""JSON files that strangers made: read with limits, taken apart with checks that name the place, written in pieces."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, TextIO

from pluralis.data.whole_file import whole_text
from pluralis.errors import DataError

MAX_BYTES = 4 << 30  # four times the largest published file of labels
MAX_MEMORY = 16 << 30  # as `needed` counts it: some 9 for LVIS v1, which is that file
# Bytes that Python takes for what these marks stand for, at most: an object, a list, its entries, texts, numbers.
_COSTS = {b"{": 80, b"[": 100, b":": 120, b'"': 40, b",": 48}


class Document:
    """The content of one JSON file; every error names the file and the place in it.

    Refused: files over `max_bytes`, or that could take more than MAX_MEMORY, nesting deeper than Python's own limit
    (about a thousand levels), a key given twice in one object, NaN and Infinity, whole numbers of thousands of digits,
    and what is not JSON.
    With `keys`, everything under other keys is let go while the file is parsed: often it is most of the memory.
    """

    def __init__(self, file: str | Path, keys: Collection[str] | None = None, max_bytes: int = MAX_BYTES) -> None:
        self.file = Path(file)
        self.keys = keys
        self.content = self._parse(max_bytes)

    def error(self, message: str) -> DataError:
        return DataError(f"{self.file}: {message}")

    def objects(self, value: Any, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """The objects of a list, each with its place in the file."""
        for place, entry in enumerate(self.listed(value, where)):
            if not isinstance(entry, dict):
                raise self.error(f"{where}[{place}] is not an object; give one in braces")
            yield f"{where}[{place}]", entry

    def listed(self, value: Any, where: str) -> list[Any]:
        if not isinstance(value, list):
            raise self.error(f"{where} is {'lacking' if value is None else 'not a list'}; give a list of objects")
        return value

    def mapping(self, value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.error(f"{where} is {'lacking' if value is None else 'not an object'}; give one in braces")
        return value

    def whole(self, value: Any, where: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(f"{where} is {short(value)}; give a whole number")
        return value

    def text(self, value: Any, where: str) -> str:
        if not isinstance(value, str) or not value:
            raise self.error(f"{where} is {short(value)}; give a text that is not empty")
        if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
            raise self.error(f"{where} is {short(value)}, which holds half a character; save the file as UTF-8")
        return value

    def share(self, value: Any, where: str) -> float:
        """A number from 0 to 1."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise self.error(f"{where} is {short(value)}; give a number from 0 to 1")
        return float(value)

    def _parse(self, max_bytes: int) -> Any:
        try:
            if not self.file.is_file():  # also keeps away from pipes and devices, on which reading may hang
                raise self.error("is not there, or not a plain file; check the path")
            if self.file.stat().st_size > max_bytes:
                raise self.error(f"over the limit of {max_bytes:,} bytes; split it, or take out what is no label")
            content = self.file.read_bytes()
            if needed(content) > MAX_MEMORY:
                words = f"its values could take over {MAX_MEMORY:,} bytes of memory"
                raise self.error(f"{words}; split it, or take out what is no label")
            text = content.decode(json.detect_encoding(content), "surrogatepass")
            del content  # twice the file is enough
            return json.loads(text, object_pairs_hook=self._object, parse_constant=self._constant)
        except OSError as error:
            raise self.error(f"cannot be read: {error.strerror or error}; check the path") from None
        except RecursionError:
            raise self.error("is not JSON of any known format: nested too deeply; get the file again") from None
        except ValueError as error:  # not JSON, not text, a NUL in the path, a number of a million digits …
            words = " ".join(str(error).split())[:200]
            raise self.error(f"is not JSON: {words}; get the file again") from None

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        try:
            return unique_keys(pairs if self.keys is None else [pair for pair in pairs if pair[0] in self.keys])
        except ValueError as error:
            raise self.error(f"{error}; keep one of them") from None

    def _constant(self, name: str) -> NoReturn:
        raise self.error(f"holds {name}, which is no number in JSON; write null, or leave it out")


def needed(content: bytes) -> int:
    """An upper bound for the bytes of memory that JSON takes as Python objects, beside its text; nothing is parsed.

    >>> needed(b'[{"id": 1}, {"id": 2}]')
    708
    """
    return sum(cost * content.count(mark) for mark, cost in _COSTS.items())


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, for `object_pairs_hook`; ValueError where a key is given twice."""
    entry = dict(pairs)
    if len(entry) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {short(twice)} is given twice in one object")
    return entry


def no_constant(name: str) -> NoReturn:
    """For `parse_constant`: NaN and Infinity are ValueErrors."""
    raise ValueError(f"{name} is no number in JSON")


def short(value: Any) -> str:
    """A value fit for one line of an error."""
    shown = "lacking" if value is None else repr(value)
    return shown if len(shown) <= 80 else f"{shown[:80]}…"


def write_lists(path: str | Path, lists: Mapping[str, Iterable[Any]] | Iterable[Any]) -> None:
    """Write an object of lists, or one list, an entry a line; entries may come from generators.

    `path` holds the old file or the whole new one, never a part.
    """
    with whole_text(path) as file:
        if not isinstance(lists, Mapping):
            _write_list(file, lists)
        else:
            file.write("{")
            for number, (key, entries) in enumerate(lists.items()):
                file.write(f"{',' if number else ''}\n{json.dumps(key)}: ")
                _write_list(file, entries)
            file.write("}")
        file.write("\n")


def _write_list(file: TextIO, entries: Iterable[Any]) -> None:
    file.write("[")
    for number, entry in enumerate(entries):
        file.write(f"{',' if number else ''}\n{json.dumps(entry, ensure_ascii=False, allow_nan=False)}")
    file.write("]")
