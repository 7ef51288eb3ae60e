"""The page of a bench: all of its tables and figures, hostile text as text, nothing loaded from outside."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pluralis.bench import page
from pluralis.bench.output import write_output
from pluralis.bench.plan import Place, Plan
from pluralis.bench.runner import Queue, work_off
from pluralis.bench.spec import Spec
from pluralis.bench.store import Result, Store
from pluralis.bench.tables import make_tables
from pluralis.errors import RecipeError
from tests.bench.benches import InThisProcess, command, run_bench, write_spec
from tests.bench.figures.runs import result
from tests.test_recipes import write_voc
from tests.test_report import HOSTILE, Page

ROWS = '[[rows]]\nname = "an"\n[[rows]]\nname = "gr"\n'


def runs(row: str, seeds: int = 2, **changes: Any) -> list[Result]:
    recipe = {"method": {"name": row}, "model": {"backbone": "tiny"}, "data": {"size": 24}}
    history = [{"epoch": float(e), "test mAP": 40.0 + e} for e in (1, 2)]
    plain = {"recipe": recipe, "history": history, "test": {"mAP": 42.0}, "per_class_ap": {"cat": 3.0, "dog": 4.0}}
    return [result(row, seed=seed, **{**plain, **changes}) for seed in range(seeds)]


def written(folder: Path, text: str, results: list[Result]) -> tuple[str, Page, list[str]]:
    spec = Spec.load(write_spec(folder, text))
    said: list[str] = []
    path = page.write(folder / "out", spec, make_tables(spec, [], results, []), results, said.append)
    assert path == folder / "out" / "index.html"
    html = path.read_text(encoding="utf-8")
    return html, Page(html), said


def test_tables_figures_and_origin_are_in_the_page(tmp_path: Path) -> None:
    figures = (
        '[[figures]]\nkind = "learning-curves"\ntitle = "How they learn"\n'
        '[[figures]]\nkind = "class-gain"\n[[figures]]\nkind = "gradients"\nlosses = ["an", "gr"]\n'
    )
    text = f'about = "Table 2 again"\nbaseline = "an"\n{ROWS}{figures}'
    html, seen, said = written(tmp_path, text, [*runs("an"), *runs("gr", date="2026-03-04", device="H200")])
    assert said == []
    assert seen.open == []
    texts = ["Test", "Table 2 again", "How they learn", "Class gain", "AP − AP of an, points", "unannotated labels"]
    texts += ["test mAP, %", "Where this comes from", "2026-01-02 to 2026-03-04", "CPU (2), H200 (2)"]
    for words in texts:
        assert words in seen.words, words
    assert html.count("<svg") == 3
    assert any(cells[:1] == ["gr"] for cells in seen.cells)
    files = sorted(file.name for file in (tmp_path / "out" / "figures").iterdir())
    assert files == ["01-learning-curves.svg", "02-class-gain.svg", "03-gradients.svg"]
    for file in files:
        assert ElementTree.parse(tmp_path / "out" / "figures" / file).getroot().tag.endswith("svg")


def test_names_in_the_drawings_are_unique_and_nothing_is_loaded(tmp_path: Path) -> None:
    twice = '[[figures]]\nkind = "learning-curves"\n' * 2
    html, seen, _ = written(tmp_path, ROWS + twice, [*runs("an"), *runs("gr")])
    names = [value for _, name, value in seen.attributes if name == "id"]
    assert len(names) == len(set(names)) > 10
    links = [value or "" for _, name, value in seen.attributes if name in ("src", "href", "xlink:href", "srcset")]
    assert links
    assert all(value.startswith(("#", "data:")) for value in links)
    assert {value.removeprefix("#") for value in links} <= set(names)
    assert not {"script", "link", "iframe", "object"} & seen.tags
    assert not re.search(r"@import|url\((?!#)", html)
    policy = next(value for tag, name, value in seen.attributes if tag == "meta" and name == "content")
    assert policy == "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    row, title = (f"'''{prefix}{HOSTILE}''' ".replace("'x'", '"x"') for prefix in ("r", "t"))
    text = f'about = {title}\n[[rows]]\nname = {row}\n[[figures]]\nkind = "learning-curves"\ntitle = {title}\n'
    name = Spec.load(write_spec(tmp_path, text)).rows[0].name
    html, seen, said = written(tmp_path, text, runs(name, device=HOSTILE))
    assert said == []
    assert "script" not in seen.tags
    assert not [1 for _, attribute, _ in seen.attributes if attribute.startswith("on")]
    assert name[:20] in seen.words
    assert HOSTILE in seen.words
    assert "<script" not in html


def test_a_figure_that_cannot_be_drawn_is_a_reason_and_the_others_are_there(tmp_path: Path) -> None:
    figures = '[[figures]]\nkind = "densities"\n[[figures]]\nkind = "learning-curves"\n'
    html, seen, said = written(tmp_path, ROWS + figures, runs("an"))
    assert html.count("<svg") == 1
    assert "Not drawn: the folder of the run 'an' (seed 0) was not kept" in seen.words
    assert len(said) == 1
    assert said[0].startswith("figure 1 (densities) is not drawn: ")
    assert "keep = true" in said[0]


def test_what_is_left_out_of_a_figure_is_in_its_caption(tmp_path: Path) -> None:
    lone = runs("gr", 1, draw=7)
    text = f'baseline = "an"\n{ROWS}[[rows]]\nname = "em"\n[[figures]]\nkind = "class-gain"\n'
    html, seen, _ = written(tmp_path, text, [*runs("an"), *lone, *runs("em")])
    assert html.count("<svg") == 1
    assert "Left out: gr, as no two runs of a row and of the baseline" in seen.words


def test_drawings_of_an_earlier_spec_go(tmp_path: Path) -> None:
    both = '[[figures]]\nkind = "gradients"\nlosses = ["an"]\n[[figures]]\nkind = "learning-curves"\n'
    written(tmp_path, ROWS + both, runs("an"))
    written(tmp_path, ROWS + '[[figures]]\nkind = "learning-curves"\n', runs("an"))
    assert [file.name for file in (tmp_path / "out" / "figures").iterdir()] == ["01-learning-curves.svg"]


def test_without_results_there_is_a_page_all_the_same(tmp_path: Path) -> None:
    html, seen, said = written(tmp_path, f'baseline = "an"\n{ROWS}', [])
    assert "No run is finished yet." in seen.words
    assert [line.split(" is not")[0] for line in said] == ["figure 1 (learning-curves)", "figure 2 (class-gain)"]
    assert "<svg" not in html


@pytest.mark.parametrize(
    ("figure", "says"),
    [
        ('kind = "learning-curvs"', "did you mean 'learning-curves'"),
        ('kind = "densities"\nbinz = 3', "did you mean 'bins'"),
        ('kind = "class-gain"', "needs the option 'baseline'"),
    ],
)
def test_figures_are_checked_before_anything_is_run(tmp_path: Path, figure: str, says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        Spec.load(write_spec(tmp_path, f"{ROWS}[[figures]]\n{figure}\n"))


def test_a_real_bench_ends_with_its_page(tmp_path: Path) -> None:
    figures = (
        '[[figures]]\nkind = "learning-curves"\n[[figures]]\nkind = "densities"\nbins = 10\n'
        '[[figures]]\nkind = "positive-loss"\n'
    )
    settings = "[settings]\nrun.watch_test = true\nrun.watch_train = 20\n"
    spec = write_spec(tmp_path, f'keep = true\nseeds = 1\n{settings}[[rows]]\nname = "an"\nmethod = "an"\n{figures}')
    run_bench(spec, tmp_path / "out")
    seen = Page((tmp_path / "out" / "index.html").read_text(encoding="utf-8"))
    assert "Not drawn" not in seen.words
    for words in ("test mAP, %", "absent, unannotated, training rows", "mean −log p of annotated positives"):
        assert words in seen.words


def test_figures_look_for_the_data_where_this_command_says(tmp_path: Path) -> None:
    """The runs were made on another machine, or before the images were moved."""
    figures = '[[figures]]\nkind = "label-counts"\n[[figures]]\nkind = "densities"\nbins = 10\n'
    settings = "[settings]\ndata.format = 'voc'\n'data.options' = {split = 'trainval'}\n"
    settings += "'data.test' = {options = {split = 'test'}}\n"
    text = f'keep = true\nseeds = 1\n{settings}[[rows]]\nname = "an"\nmethod = "an"\n{figures}'
    spec, store = Spec.load(write_spec(tmp_path, text)), Store(tmp_path / "out")
    store.prepare()
    write_voc(tmp_path / "there", 12)

    def queue(images: str) -> Queue:
        return Queue([Plan(spec, Place(store.out, {"": str(tmp_path / images)}), [])], store)

    first = queue("there")
    work_off(first, [InThisProcess()], lambda state: None, threading.Event())
    assert (first.made, first.failures) == (1, {})
    (tmp_path / "there").rename(tmp_path / "here")
    write_output(queue("here"))
    html = (store.out / "index.html").read_text(encoding="utf-8")
    assert "Not drawn" not in html
    assert html.count("<svg") == 2


def test_the_page_says_what_was_set_and_by_which_command(tmp_path: Path) -> None:
    row = '[[rows]]\nname = "an"\nmethod = "an"\n'
    spec = write_spec(tmp_path, f'about = "Two epochs of `an`."\n{row}')
    words = ["--set", "train.epochs=1", "--set", "train.lr=0.5", "--out", tmp_path / "out"]
    found = command("bench", spec, *words, "--limit", "0")
    assert found.exit_code == 0, found.output
    seen = Page((tmp_path / "out" / "index.html").read_text(encoding="utf-8"))
    said = "Set over the spec, whatever else is said here: train.epochs=1, train.lr=0.5."
    assert seen.words.count(said) == 2  # over the tables, and beside the first of them
    assert said in (tmp_path / "out" / "table.md").read_text(encoding="utf-8")
    assert f"pluralis bench {spec} {' '.join(map(str, words))}" in seen.words
    assert "<code>an</code>" in (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
