"""XML files that strangers made: plain elements only, with limits on the file, on one tag, on depth and on names."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from pluralis.errors import DataError

MAX_TOKEN = 1 << 20  # bytes of one tag or comment: the outline of a mask may be most of it
MAX_DEPTH = 32  # labelling tools write about eight levels
MAX_NAMES = 1_000  # of elements and attributes, each of which the parser remembers; tools use about a hundred
_BLOCK = 1 << 18


class Target(Protocol):
    """Is told what a file holds, in its order; `close` comes last."""

    def start(self, tag: str, attributes: dict[str, str], /) -> None: ...

    def end(self, tag: str, /) -> None: ...

    def data(self, text: str, /) -> None: ...

    def close(self) -> None: ...


def parse(file: Path, target: Target, max_bytes: int, hint: str) -> None:
    """Tell `target` what is in the file; errors name the file and end with `hint`.

    Refused: files over `max_bytes`, a document type, which could define entities and default values, tags and comments
    over MAX_TOKEN bytes, depth over MAX_DEPTH, more than MAX_NAMES names, and what is not XML.
    """
    from defusedxml import DefusedXmlException
    from defusedxml.ElementTree import ParseError, XMLParser

    try:
        if not file.is_file():  # also keeps away from pipes and devices, on which reading may hang
            raise DataError(f"{file}: is not there, or not a plain file; {hint}")
        if file.stat().st_size > max_bytes:
            raise DataError(f"{file}: over the limit of {max_bytes:,} bytes; {hint}")
        parser = XMLParser(target=_Guard(file, target, hint), forbid_dtd=True)
        fed = 0
        with file.open("rb") as stream:
            while block := stream.read(_BLOCK):
                parser.feed(block)
                fed += len(block)
                # What has begun and not ended is looked through again with every block: in quadratic time.
                if fed - parser.parser.CurrentByteIndex > MAX_TOKEN:
                    where = f"{file}, line {parser.parser.CurrentLineNumber}"
                    raise DataError(f"{where}: a tag or comment over the limit of {MAX_TOKEN:,} bytes; {hint}")
        parser.close()
    except OSError as error:
        raise DataError(f"{file}: cannot be read: {error.strerror or error}; {hint}") from None
    except (ParseError, DefusedXmlException, ValueError, LookupError) as error:
        words = " ".join(str(error).split())[:200]
        raise DataError(f"{file}: is not plain XML: {words}; {hint}") from None


class _Guard:
    """Passes everything on, and counts levels and names on the way."""

    def __init__(self, file: Path, target: Target, hint: str) -> None:
        self._file, self._target, self._hint = file, target, hint
        self._depth, self._names = 0, set[str]()
        self.data, self.close = target.data, target.close

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise DataError(f"{self._file}: nested deeper than {MAX_DEPTH} levels; {self._hint}")
        self._names.add(tag)
        self._names.update(attributes)
        if len(self._names) > MAX_NAMES:
            raise DataError(f"{self._file}: over the limit of {MAX_NAMES:,} names of tags; {self._hint}")
        self._target.start(tag, attributes)

    def end(self, tag: str) -> None:
        self._depth -= 1
        self._target.end(tag)
