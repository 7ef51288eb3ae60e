"""What is in a tar archive, from its headers alone: nothing is unpacked, and only plain files are let in.

Refused with the place in the archive: links, devices, pipes, sparse and split members, names that lead elsewhere, the
same name twice, members that reach beyond the end, and archives that were cut short or compressed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from pluralis.data.safe_io import bad_name, shown
from pluralis.errors import DataError

_BLOCK = 512
_LONGEST_NOTE = 1 << 16  # bytes of a member that only describes the next one
_KINDS = {
    b"1": "a hard link",
    b"2": "a link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a pipe",
    b"S": "a sparse file",
    b"M": "part of a file that begins in another archive",
}
_PACKED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"\x28\xb5": "zstd"}


class Member(NamedTuple):
    """A plain file: its bytes are `size` ones from `offset` on."""

    name: str
    offset: int
    size: int


def members(path: Path) -> list[Member]:
    """The plain files of the archive `path`, in its order; folders and files whose name begins with a dot are not."""
    if not path.is_file():  # also keeps away from pipes and devices, on which opening may hang
        raise DataError(f"{path}: is not there, or not a plain file; check the path")
    try:
        with path.open("rb", buffering=0) as file:
            found = list(_Archive(file, path).members())  # unbuffered, as what follows a header is not wanted
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}; check the disk and the path") from None
    seen: dict[str, int] = {}
    for member in found:
        if member.name in seen:
            places = f"at the bytes {seen[member.name]} and {member.offset}"
            raise DataError(f"{path}: {shown(member.name)} is in it twice, {places}; make it again with each once")
        seen[member.name] = member.offset
    return [member for member in found if not member.name.rpartition("/")[2].startswith(".")]


class _Archive:
    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file, self.path = file, path
        self.length = os.fstat(file.fileno()).st_size
        self.at = 0

    def members(self) -> Iterator[Member]:
        notes: dict[str, str] = {}  # what members before this one said about it
        while True:
            start, header = self.at, self._read(_BLOCK)
            if not any(header):
                return self._check_rest()
            kind, size = header[156:157], self._check_header(start, header)
            if kind in (b"x", b"L", b"g", b"K"):
                notes |= self._note(start, kind, size)
                continue
            name = notes.get("path") or self._name(start, header)
            size = self._size(start, notes["size"]) if "size" in notes else size
            if any(key.startswith("GNU.sparse") for key in notes):
                kind = b"S"
            notes = {}
            folder = kind == b"5" or (kind == b"\0" and name.endswith("/"))
            if not folder and kind not in (b"0", b"\0", b"7"):
                raise self._error(start, f"{shown(name)} is {_KINDS.get(kind, 'no plain file')}; pack plain files only")
            reason = bad_name(name) if not folder or name.strip("./") else None  # "./" is the folder itself
            if reason:
                raise self._error(start, f"{shown(name)} is refused: {reason}; pack it under a plain name")
            if folder and size:
                raise self._error(start, f"the folder {shown(name)} has {size} bytes; make the archive again")
            if not folder:
                yield Member(os.path.normpath(name), self.at, size)
            self._skip(start, name, size)

    def _check_header(self, start: int, header: bytes) -> int:
        """The size that a header declares; DataError where it is no header."""
        if _number(header[148:156]) != sum(header[:148]) + sum(header[156:]) + 8 * ord(" "):
            if start == 0:
                packed = next((name for magic, name in _PACKED.items() if header.startswith(magic)), None)
                hint = f"it is packed with {packed}: unpack that, as images inside are found by place"
                raise DataError(f"{self.path}: is no plain tar archive; {hint if packed else 'check the file'}")
            raise self._error(start, "the header is damaged; copy or make the archive again")
        size = _number(header[124:136])
        if size is None:
            raise self._error(start, f"the size {header[124:136]!r} is no number; make the archive again")
        return size

    def _name(self, start: int, header: bytes) -> str:
        name = header[:100].partition(b"\0")[0]
        prefix = header[345:500].partition(b"\0")[0]
        return self._text(start, prefix + b"/" + name if prefix and header[257:263] == b"ustar\0" else name)

    def _note(self, start: int, kind: bytes, size: int) -> dict[str, str]:
        """A long name, or the extended header of the member that follows or of all."""
        if size > _LONGEST_NOTE:
            raise self._error(start, f"a name or extended header of {size:,} bytes; make the archive again")
        content = self._read(size)
        self._skip(start, "a long name", size, read=size)
        if kind == b"L":
            return {"path": self._text(start, content.partition(b"\0")[0])}
        if kind == b"K":
            return {}  # the target of a link, which is refused in any case
        found = {}
        while content:
            digits, space, _ = content.partition(b" ")
            length = int(digits) if digits.isdigit() and len(digits) < 6 else 0
            key, equals, value = content[len(digits) + 1 : length - 1].partition(b"=")
            if not space or not equals or length > len(content) or content[length - 1 : length] != b"\n":
                raise self._error(start, "the extended header is damaged; make the archive again")
            if key in (b"path", b"size") or key.startswith(b"GNU.sparse"):
                found[key.decode()] = self._text(start, value)
            content = content[length:]
        if kind == b"g" and found:
            raise self._error(start, f"an extended header gives one {min(found)} to all members; make it again")
        return found

    def _size(self, start: int, text: str) -> int:
        if not text.isascii() or not text.isdigit() or len(text) > 18:
            raise self._error(start, f"the size {shown(text)} is no whole number; make the archive again")
        return int(text)

    def _text(self, start: int, name: bytes) -> str:
        try:
            return name.decode()
        except UnicodeDecodeError:
            raise self._error(start, f"the name {name[:80]!r} is not UTF-8; pack it under another name") from None

    def _read(self, count: int) -> bytes:
        content = self.file.read(count)
        if len(content) < count:
            raise self._error(self.at, "the archive ends too early; copy or make it again")
        self.at += count
        return content

    def _skip(self, start: int, name: str, size: int, read: int = 0) -> None:
        """Go on to the header behind a member's bytes, of which `read` are read already."""
        end = self.at - read + size
        if end > self.length:
            what = f"{shown(name)} should have {size:,} bytes, beyond the end of the file"
            raise self._error(start, f"{what}; copy or make the archive again")
        self.at = -(-end // _BLOCK) * _BLOCK
        self.file.seek(self.at)

    def _check_rest(self) -> None:
        """Behind the empty block at the end there is nothing: else members would be lost without a word."""
        while rest := self.file.read(1 << 20):
            if any(rest):
                raise self._error(self.at, "an archive follows behind the end of the first; keep them in two files")

    def _error(self, at: int, message: str) -> DataError:
        return DataError(f"{self.path}, byte {at}: {message}")


def _number(field: bytes) -> int | None:
    """A number in a header, in octal digits or, where it is too large for them, in binary."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.partition(b"\0")[0].strip(b" ")
    return None if digits.strip(b"01234567") else int(digits or b"0", 8)
