"""Pages whose code runs: the default method's, with its links and picture, that of one's own data and the guide's."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from pluralis import load_run
from pluralis.cli import app

PAGE = Path("docs/default-method.md")
TEXT = PAGE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def gradients() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gradients", "docs/gradients.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_code_of_the_page_gives_what_it_shows() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    assert len(blocks) > 5
    assert all(block.startswith(">>> ") for block in blocks)  # what is shown is compared
    found = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, PAGE.name, str(PAGE), 0)
    said: list[str] = []
    assert doctest.DocTestRunner().run(found, out=said.append).failed == 0, "".join(said)


@pytest.mark.parametrize("page", [PAGE, Path("docs/your-data.md")], ids=str)
def test_links_lead_somewhere(page: Path) -> None:
    def anchors(path: Path) -> set[str]:
        titles = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}

    targets = re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    assert ("images/selection-gradient.png" in targets) == (page is PAGE)
    for target in targets:
        file, _, anchor = target.partition("#")
        path = page.parent / file if file else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target


def test_the_curves_are_the_formulas(gradients: ModuleType) -> None:
    p = torch.linspace(0.01, 0.99, 25, dtype=torch.float64)
    torch.testing.assert_close(gradients.gradient("an", p), p)
    torch.testing.assert_close(gradients.gradient("em", p), 0.2 * torch.logit(p) * p * (1 - p))
    torch.testing.assert_close(gradients.gradient("selection", p), p * (1 - p) / (2 - p))
    # With another unknown label of probability q: I = ∫(1−ps)(1−qs)ds, and r = p ∫(1−s)(1−qs)ds / I
    q = 0.9
    r = p * (1 / 2 - q / 6) / (1 - (p + q) / 2 + p * q / 3)
    torch.testing.assert_close(gradients.gradient("selection", p, [q]), p - r, rtol=1e-6, atol=1e-8)


def test_the_picture_is_drawn(gradients: ModuleType, tmp_path: Path) -> None:
    gradients.main(tmp_path / "new" / "picture.png")
    assert (tmp_path / "new" / "picture.png").read_bytes()[:4] == b"\x89PNG"


YOUR_DATA = Path("docs/your-data.md").read_text(encoding="utf-8")
TOY = ["model.backbone=tiny", "model.weights=", "data.size=24", "train.epochs=1", "run.device=cpu", "run.workers=0"]


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The folder in which all commands of the page were run, at toy size, and what each of them said."""
    blocks = re.findall(r"^```(python|sh)\n(.*?)^```$", YOUR_DATA, re.DOTALL | re.MULTILINE)
    folder, said = tmp_path_factory.mktemp("walk"), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for kind, text in blocks:
            if kind == "python":
                exec(text, {})  # the block is the test
                continue
            for command in text.splitlines():
                name, *words = shlex.split(command)
                assert name == "pluralis", command
                more = [word for setting in TOY for word in ("--set", setting)] if words[0] == "train" else []
                done = CliRunner().invoke(app, [*words, *more], env={"COLUMNS": "160"})
                assert done.exit_code == 0, (command, done.output, done.exception)
                said[" ".join(words[: 1 + (words[0] == "data")])] = done.output
    return folder, said


def test_your_data_from_the_first_look_to_predictions(walk: tuple[Path, dict[str, str]]) -> None:
    folder, said = walk
    assert {"data inspect", "data check", "train", "count", "relabel", "predict"} <= said.keys()
    shown = re.search(r"^```text\n(.*?)^```$", YOUR_DATA, re.DOTALL | re.MULTILINE)
    assert shown is not None
    assert shown[1] in said["data inspect"]
    header, *lines = (folder / "predictions.csv").read_text().splitlines()
    assert header == "image,label,probability"
    assert all(0 <= float(line.rsplit(",", 1)[1]) <= 1 for line in lines)


def test_your_data_leaves_what_it_says(walk: tuple[Path, dict[str, str]]) -> None:
    folder, _ = walk
    named = set(re.findall(r"--(?:out|html) ([^\s`]+)", YOUR_DATA))
    assert {"look.html", "bad.csv", "good.csv", "counts.csv", "missing.csv", "missing.html"} <= named
    for name in named:
        assert (folder / name).exists(), name
    sizes = {path.stem: path.read_text().count("\n") for path in folder.glob("*.csv")}
    assert sizes["good"] == sizes["labels"]
    assert sizes["missing"] > 1
    assert sizes["more"] == sizes["good"] + sizes["missing"] - 1
    assert len(load_run(folder / "runs" / "again").classes) == 10


def test_the_guide_trains_a_network_of_ones_own() -> None:
    guide = Path("docs/guide.md").read_text(encoding="utf-8")
    part = guide[guide.index("### Tensors and a network of your own") :]
    whole, apart = re.findall(r"^```python\n(.*?)^```$", part, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    for code in (whole, apart):
        exec(code, names)  # the block is the test
        logits, present = names["method"].predict(names["images"]).detach(), names["present"]
        unwritten = present & (torch.from_numpy(names["labels"].dense()) == 0)
        assert logits[unwritten].mean() > logits[~present].mean() + 1  # nobody wrote them down
        history = names["result"].history
        assert history[-1]["loss"] < history[0]["loss"]


NAMES = (
    "data.loader",
    "engine",
    "labels",
    "method",
    "methods",
    "methods.start",
    "run",
    "seeding",
    "stage",
    "trained_run",
)


@pytest.mark.parametrize("name", NAMES)
def test_examples_of_what_people_call_run(name: str) -> None:
    found = doctest.testmod(importlib.import_module(f"pluralis.{name}"))
    assert found.attempted > 0
    assert found.failed == 0
