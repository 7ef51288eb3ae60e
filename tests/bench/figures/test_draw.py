"""Every kind by its name: a drawing with real text, and errors that help."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from pluralis.bench import figures
from pluralis.bench.figures import KINDS, check, draw
from pluralis.bench.figures.canvas import looks, to_svg, with_prefix
from pluralis.bench.store import Result
from pluralis.errors import DataError, RecipeError
from tests.bench.figures.runs import result

SHOWN: dict[str, tuple[dict[str, Any], list[str]]] = {
    "learning-curves": ({}, ["epoch", "test mAP, %", "an", "em + apl", "decoder"]),
    "known-ratio": ({"rows": ["share"]}, ["known labels, %", "test mAP, %", "share"]),
    "sweep": ({"key": "train.lr", "rows": ["an"]}, ["train.lr", "test mAP, %", "an"]),
    "densities": ({"of": "4"}, ["predicted probability", "density, 4", "present, unannotated, training rows"]),
    "wasserstein": ({"baseline": "an"}, ["Wasserstein distance, an", "Wasserstein distance, other rows", "equal"]),
    "wasserstein-by-epoch": ({}, ["epoch", "Wasserstein distance", "decoder"]),
    "class-gain": ({"baseline": "an"}, ["AP − AP of an, points", "em + apl: 0% of the classes gain"]),
    "gradients": ({}, ["selection", "probability of the label", "gradient by the logit", "unannotated labels"]),
    "kl-discrepancy": ({}, ["epoch", "KL discrepancy of present and absent labels", "an"]),
    "false-negatives": ({"bins": 10}, ["predicted probability", "k̂(p), fitted", "(1−a)p/(1−ap)"]),
    "pseudo-labels": ({}, ["epoch", "guessed labels that are right, %", "em + apl: guessed absent"]),
    "label-counts": ({}, ["labels", "present, not written", "images"]),
    "landscape": ({"rows": ["an"], "steps": 3, "images": 8}, ["strength λ of the change of weights", "training loss"]),
    "attention": ({"count": 2, "labels": 2}, [", written", "p = 0."]),
    "positive-loss": ({}, ["epoch", "mean −log p of annotated positives", "an"]),
}


def cut_off(figure: Figure) -> list[str]:
    """Titles, labels and legends that are not wholly inside of the figure, in one pass of its layout."""
    figure.draw_without_rendering()
    box = figure.get_window_extent()
    ticks = {id(tick) for axes in figure.axes for tick in (*axes.get_xticklabels(), *axes.get_yticklabels())}
    found = []
    for text in figure.findobj(Text):
        if id(text) not in ticks and text.get_text() and text.get_visible():
            e = text.get_window_extent()
            if min(e.x0 - box.x0, box.x1 - e.x1, e.y0 - box.y0, box.y1 - e.y1) < -1:
                found.append(text.get_text())
    return found


def test_every_kind_is_shown_here() -> None:
    assert set(SHOWN) == set(KINDS)


def test_every_kind_and_option_is_in_the_docs() -> None:
    lines = {line.split("`")[1]: line for line in Path("docs/figures.md").read_text().splitlines() if line[:3] == "| `"}
    assert set(lines) == set(KINDS)
    for kind, function in KINDS.items():
        for option in list(inspect.signature(function).parameters)[1:]:
            assert f"`{option}`" in lines[kind], (kind, option)


@pytest.mark.parametrize("kind", SHOWN)
def test_the_drawing_is_xml_with_the_texts_of_axes_and_legend(kind: str, kept: list[Result]) -> None:
    options, texts = SHOWN[kind]
    recipe = {"data": {"protocol": "known-ratio", "protocol_share": 0.1}}
    share = [result("share", recipe=recipe, test={"mAP": 5.0})] if kind == "known-ratio" else []
    figure = draw(kind, [*kept, *share], options)
    assert not cut_off(figure)
    svg = to_svg(figure)
    said = [
        "".join(element.itertext()) for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text")
    ]
    missing = [text for text in texts if not any(text in one for one in said)]
    assert not missing, said
    assert "date" not in svg.lower()


@pytest.mark.parametrize("name", [*(f.stem for f in Path(figures.__path__[0]).glob("*.py")), "pluralis.watch"])
def test_the_examples_of_docstrings_hold(name: str) -> None:
    package = "pluralis.bench.figures"
    module = name if "." in name else package if name == "__init__" else f"{package}.{name}"
    assert doctest.testmod(importlib.import_module(module)).failed == 0


def test_a_drawing_is_the_same_every_time() -> None:
    first, second = (to_svg(draw("gradients", [], {"losses": ["an"]})) for _ in range(2))
    assert first == second


def test_dollars_tags_and_foreign_letters_in_names_are_text() -> None:
    name = "<script>$\\frac{$ & 漢字"
    svg = to_svg(draw("learning-curves", [result(name, history=[{"loss": 1.0}])]))
    assert "<script" not in svg
    assert name in ["".join(e.itertext()) for e in ElementTree.fromstring(svg).iter() if e.tag.endswith("text")]


def test_prefixed_names_still_fit_together() -> None:
    svg = with_prefix(to_svg(draw("gradients", [], {"losses": ["an", "em"]})), "f7-")
    names = re.findall(r'\sid="([^"]*)"', svg)
    used = re.findall(r'(?:href="#|url\(#)([^")]*)', svg)
    assert names
    assert used
    assert all(name.startswith("f7-") for name in names)
    assert set(used) <= set(names)


def test_rows_and_columns_choose_the_runs() -> None:
    runs = [result(r, column=c, history=[{"loss": 1.0}]) for r in ("an", "gr") for c in ("VOC", "COCO")]
    (axes,) = draw("learning-curves", runs, {"rows": ["gr"], "columns": ["COCO"]}).axes
    assert [line.get_label() for line in axes.get_lines()] == ["gr"]
    gain = [result(r, per_class_ap={"cat": 1.0}) for r in ("an", "gr", "em")]
    (axes,) = draw("class-gain", gain, {"rows": ["gr"], "baseline": "an"}).axes  # which need not be named twice
    assert axes.get_title().startswith("gr")
    with pytest.raises(DataError, match="none of its runs is finished"):
        draw("learning-curves", runs, {"rows": ["em"]})


@pytest.mark.parametrize(
    ("kind", "options", "says"),
    [
        ("learning-curve", {}, "did you mean 'learning-curves'"),
        ("densities", {"bin": 3}, "did you mean 'bins'"),
        ("class-gain", {}, "needs the option 'baseline'"),
        ("densities", {"rows": "an"}, "give a list of names"),
    ],
)
def test_unknown_kinds_and_options_are_refused_before_anything_is_drawn(
    kind: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(RecipeError, match=says):
        check(kind, options)
    with pytest.raises(RecipeError, match=says):
        draw(kind, [], options)


@pytest.mark.parametrize(
    ("kind", "options"), [("densities", {"bins": 1}), ("landscape", {"dimensions": 3}), ("attention", {"count": 0})]
)
def test_values_out_of_range_are_refused(kind: str, options: dict[str, Any], kept: list[Result]) -> None:
    with pytest.raises(RecipeError, match=next(iter(options))):
        draw(kind, kept, options)


def test_twenty_eight_lines_look_different() -> None:
    every = looks(map(str, range(28)))
    assert len({(look["color"], look["ls"]) for look in every.values()}) == 28
