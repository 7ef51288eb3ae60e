"""The page of the default method: its code runs, its links lead somewhere, its picture is that of the losses."""

from __future__ import annotations

import doctest
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import torch

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


def test_links_lead_somewhere() -> None:
    def anchors(path: Path) -> set[str]:
        titles = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}

    targets = re.findall(r"\]\(([^)]+)\)", TEXT)
    assert "images/selection-gradient.png" in targets
    for target in targets:
        file, _, anchor = target.partition("#")
        path = PAGE.parent / file if file else PAGE
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
