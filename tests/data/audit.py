"""What Python itself reports about files, processes and code: one hook for all tests, as no hook can be taken away."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

RUNS = ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn", "pickle.find_class", "exec")
CONNECTS = ("socket.connect", "socket.getaddrinfo", "urllib.Request")
_watching: list[list[tuple[str, str]]] = []
_installed: list[bool] = []


@contextmanager
def watched() -> Iterator[list[tuple[str, str]]]:
    """(event, first argument as text) of all that happens inside the block."""
    if not _installed:
        sys.addaudithook(_note)
        _installed.append(True)
    seen: list[tuple[str, str]] = []
    _watching.append(seen)
    try:
        yield seen
    finally:
        _watching.remove(seen)


def _note(event: str, args: tuple[object, ...]) -> None:
    for seen in _watching:
        if event == "exec" and _is_harmless(args[0]):
            continue
        if event in ("open", *RUNS, *CONNECTS) or event.startswith("os."):
            seen.append((event, str(args[0]) if args else ""))


def _is_harmless(code: object) -> bool:
    """A module that is imported only now, or an annotation in our own source that `typing` looks up."""
    caller = sys._getframe(2).f_globals.get("__name__")
    return os.path.isfile(getattr(code, "co_filename", "")) or caller == "typing"
