"""Child processes that need not import everything anew: a server has imported it once and forks.

A command is the same in them as in a process of its own: its own arguments, environment, output and exit code.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

Done = CompletedProcess[str]


def pluralis(*words: object) -> Done:
    """`pluralis WORDS`."""
    return call(command, *map(str, words))


def command(*words: str) -> None:
    """The command line, in the process that calls this."""
    from pluralis.cli import main

    sys.argv = ["pluralis", *words]
    main()


def call(target: Callable[..., None], *args: Any) -> Done:
    """target(*args) in a child."""
    return _together([{}], target, args)[0]


def call_in_two(target: Callable[..., None], *args: Any) -> list[Done]:
    """target(*args) in two children that are told of each other as torchrun tells them."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return _together([{**shared, "RANK": rank, "LOCAL_RANK": rank} for rank in "01"], target, args)


def start_child(target: Callable[..., None], *args: Any) -> ForkServerProcess:
    context = multiprocessing.get_context("forkserver")
    # Not the console: it takes its width and its rank from the environment when it is imported.
    context.set_forkserver_preload(["pluralis.run", "pluralis.data.scenes", "rich.progress", "tests.faults.attempts"])
    child = context.Process(target=_as_usual, args=(multiprocessing.get_start_method(), target, *args))
    child.start()
    return child


def exit_code(child: ForkServerProcess, timeout: float = 300) -> int:
    child.join(timeout)
    if child.exitcode is None:
        child.kill()
        raise AssertionError("the child hangs")
    return child.exitcode


def _as_usual(how: str, target: Callable[..., None], *args: Any) -> None:
    """A child would start workers of its own from a further server, which imports everything again."""
    multiprocessing.set_start_method(how, force=True)
    target(*args)


def _together(environments: list[dict[str, str]], target: Callable[..., None], args: tuple[Any, ...]) -> list[Done]:
    """One child for each environment, all at the same time."""
    with tempfile.TemporaryDirectory() as folder:
        places = [str(Path(folder, str(number))) for number in range(len(environments))]
        children = [
            start_child(_call, place, more, target, args) for place, more in zip(places, environments, strict=True)
        ]
        codes = [exit_code(child) for child in children]
        said = [[Path(f"{place}.{stream}").read_text() for stream in (1, 2)] for place in places]
    return [CompletedProcess(list(args), code, *texts) for code, texts in zip(codes, said, strict=True)]


def _call(place: str, more: dict[str, str], target: Callable[..., None], args: tuple[Any, ...]) -> None:
    os.environ.update({"OMP_NUM_THREADS": "1", "COLUMNS": "200", **more})
    for stream in (1, 2):
        os.dup2(os.open(f"{place}.{stream}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    target(*args)
