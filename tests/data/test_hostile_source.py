"""The source itself: nothing in it can run what a file says."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pluralis

ROOT = Path(pluralis.__file__).parent
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "yaml", "jsonpickle", "xmlrpc"}
XML = ("xml.etree", "xml.dom", "xml.sax.expatreader", "lxml", "xml.parsers")  # plain parsers follow entities
CALLS = {"eval", "exec", "__import__"}  # `compile` too, unless it is a method, as of patterns and networks
ATTRIBUTES = {"extractall", "unpack_archive", "from_pretrained"}


def findings(text: str, file: str = "x.py") -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            if name.split(".")[0] in MODULES or name.startswith(XML):
                yield f"imports {name}"
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        options = {option.arg: ast.unparse(option.value) for option in node.keywords}
        if called in CALLS | {"compile"} or called.rpartition(".")[2] in ATTRIBUTES:
            yield f"calls {called}"
        if called in ("os.system", "os.popen") or options.get("shell") == "True":
            yield "starts a shell"
        if called in ("np.load", "numpy.load") and options.get("allow_pickle") != "False":
            yield "reads arrays that may be pickles"
        if called == "torch.load" and (options.get("weights_only") != "True" or file != "models/weights.py"):
            yield "reads pickled tensors"


def test_no_file_of_the_source_runs_what_it_reads() -> None:
    files = sorted(ROOT.rglob("*.py"))
    assert len(files) > 50
    names = [path.relative_to(ROOT).as_posix() for path in files]
    found = {name: list(findings(path.read_text(), name)) for name, path in zip(names, files, strict=True)}
    assert not {name: lines for name, lines in found.items() if lines}


def test_tensors_are_unpickled_in_one_place_after_their_hash_was_checked() -> None:
    text = (ROOT / "models" / "weights.py").read_text()
    assert text.count("torch.load(") - text.count("safetensors.torch.load(") == 1
    assert text.index("actual.startswith(expected)") < text.index("if expected is None:") < text.index(" torch.load(")


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "import yaml",
        "import xml.etree.ElementTree as ET",
        "from xml.etree import ElementTree",
        "eval('1')",
        "exec(text)",
        "compile(text, 'x', 'exec')",
        "os.system('ls')",
        "subprocess.run('ls', shell=True)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "torch.load(path)",
        "torch.load(path, weights_only=True)",
        "tar.extractall()",
    ],
)
def test_the_search_finds_what_it_looks_for(text: str) -> None:
    assert list(findings(text))
