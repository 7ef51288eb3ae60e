"""The specs that come along: every recipe of every cell at every scale, the published numbers, and the figures."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from benchmarks import voc2012
from pluralis.bench import plan as planning
from pluralis.bench.figures import stored
from pluralis.bench.figures.pseudo_labels import guess_tables
from pluralis.bench.output import write_output
from pluralis.bench.plan import Place, Plan
from pluralis.bench.runner import Queue, work_off
from pluralis.bench.runs import Run
from pluralis.bench.spec import Spec
from pluralis.bench.store import Store
from pluralis.bench.tables import make_tables
from pluralis.bench_cli import _by_column
from pluralis.config import Recipe
from pluralis.data.scenes import CLASSES
from pluralis.errors import RecipeError
from pluralis.labels import Labels
from pluralis.method import Setup
from pluralis.methods import create_method, start_heads
from pluralis.models import create_model
from tests.bench.benches import InThisProcess, result

PAPERS = [path for path in sorted(Path("recipes/papers").glob("*.toml")) if "title" in path.read_text(encoding="utf-8")]
SCALES = [(path, scale) for path in PAPERS for scale in ("full", "small", "embedded")]
PAGE = Path("docs/papers.md").read_text(encoding="utf-8")
NETWORKS = {"em": ("resnet50", 448), "gr": ("resnet50", 448), "lac": ("resnet50", 448), "cls": ("resnet50", 224)}
NETWORKS |= {"pu": ("resnet101", 448), "small": ("efficientnet_lite0", 160), "embedded": ("tiny", 48)}
NETWORKS |= {"published": ("efficientnet_lite0", 256)}
OTHER_BACKBONES = {  # where the table is about them, or the usual one cannot do it
    ("em-table2", "full"): {"resnet34", "resnet50", "resnet101"},
    ("pu-mlc-table9", "small"): {"resnet18"},
    ("pu-mlc-table12", "full"): {"timm:tresnet_m"},
}
OTHER_SIZES = {("published-or-fair", "full"): {256, 224}, ("published-or-fair", "small"): {160, 140}}  # windows of CLS
# Sums of all published numbers of a column, added up from the tables of the papers: a wrong digit shows.
PUBLISHED = {
    "gr-table2": {"VOC": 1236.37, "COCO": 984.73, "NUS": 606.37, "CUB": 249.67},
    "gr-table3": {"VOC": 793.15, "COCO": 633.01},
    "em-table1": {"VOC": 1280.66, "COCO": 991.65, "NUS": 654.67, "CUB": 280.29},
    "em-table2": {"ResNet-34": 256.62, "ResNet-50": 262.75, "ResNet-101": 263.76},
    "em-table3": {"CUB": 126.45},
    "em-table4": {"VOC": 99.57, "COCO": 99.67, "NUS": 99.89, "CUB": 91.58},
    "em-table7": {"VOC": 15.66, "COCO": 15.29, "NUS": 9.18, "CUB": 19.34},
    "lac-table3": {"VOC": 439.9, "COCO": 361.9},
    "pu-mlc-table4": {"10 %": 275.2, "50 %": 321.3, "100 %": 331.6},
    "pu-mlc-table6": {"10 %": 199.8, "50 %": 241.1, "90 %": 247.6},
    "pu-mlc-table7": {"COCO": 162.9, "VOC": 186.5},
    "pu-mlc-table8": {"as they are": 163.6, "10 % flipped": 162.5, "50 % flipped": 156.0, "90 % flipped": 97.1},
    "pu-mlc-table9": {"10 %": 150.9, "50 %": 163.7, "90 %": 166.2},
    "pu-mlc-table10": {"10 %": 151.2, "50 %": 163.7, "90 %": 166.5},
    "pu-mlc-table11": {"10 %": 150.3, "50 %": 163.9, "100 %": 168.6},
}
# Of wide tables the sum of all that is printed there for a metric.
PUBLISHED_WIDE = {
    "lac-table2": {"mAP": 3708.2},
    "cls-table2": {"mAP": 7483.5, "CF1": 5838.9, "OF1": 6186.4},
    "pu-mlc-table1": {"mAP": 17985.6},
    "pu-mlc-table3": {"mAP": 489.6, "OF1": 466.5, "CF1": 452.1},
    "pu-mlc-table5": {"mAP": 2037.9},
}
KEPT = ("densities", "wasserstein", "false-negatives", "pseudo-labels", "landscape", "attention")
WATCHED = ("positive-loss", "kl-discrepancy", "wasserstein-by-epoch")
TOY = ["model.weights=", "data.options.count=48", "data.test.options.count=30", "run.workers=0"]


@cache
def planned(path: Path, scale: str) -> tuple[Spec, list[Run]]:
    """All runs, as if the data were there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "data_hash", lambda part: "d")
        spec = Spec.load(path, scale)
        names = {column.name: "images" for column in spec.columns}
        return spec, Plan(spec, Place(Path("out"), names, names), []).runs(lambda run: None)


@pytest.mark.parametrize(("path", "scale"), SCALES, ids=lambda part: getattr(part, "stem", part))
def test_every_cell_has_a_recipe(path: Path, scale: str) -> None:
    spec, found = planned(path, scale)
    cells = {(run.spec_row, run.column) for run in found}
    assert cells == {(r.name, c.name) for r in spec.rows for c in spec.shown_columns() if spec.seeds_in(r, c.name)}
    backbone, size = NETWORKS[path.stem.split("-")[0] if scale == "full" else scale]
    assert {run.recipe.data.size for run in found} <= OTHER_SIZES.get((path.stem, scale), {size})
    assert {run.recipe.model.backbone for run in found} <= OTHER_BACKBONES.get((path.stem, scale), {backbone})
    assert f"bench papers/{path.name}" in path.read_text(encoding="utf-8")
    assert f"papers/{path.name}" in PAGE


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_every_method_can_be_made(path: Path) -> None:
    """With the parameters, head and bias of each run, over a tiny backbone."""
    labels = Labels.from_dense(np.where(np.eye(4, 3) > 0, 1, -1))
    made = set()
    for scale in ("full", "small", "embedded"):
        for recipe in (run.recipe for run in planned(path, scale)[1]):
            name, params, head = recipe.method.name, recipe.method.params, recipe.model.head
            bias = recipe.method.start_bias
            if (key := repr((name, params, head, bias))) in made:
                continue
            made.add(key)
            size = {"dim": 16} if head == "label-decoder" else {}
            setup = Setup(lambda head=head, size=size: create_model("tiny", 3, head, head_params=size), 3, labels)
            method = create_method(name, setup, params)
            start_heads(method, labels, bias)
            assert method.stages(recipe.train)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_published_numbers(name: str) -> None:
    table = Spec.load(Path(f"papers/{name}.toml")).published[0]
    assert {column for row in table.values.values() for column in row} == PUBLISHED[name].keys()
    for column, total in PUBLISHED[name].items():
        values = [table.value(row, column) for row in table.values]
        assert sum(value[0] for value in values if value) == pytest.approx(total, abs=1e-6)


@pytest.mark.parametrize("name", sorted(PUBLISHED_WIDE))
def test_published_numbers_of_wide_tables(name: str) -> None:
    spec = Spec.load(Path(f"papers/{name}.toml"))
    for metric, total in PUBLISHED_WIDE[name].items():
        tables = [table for table in spec.published if (table.metric or spec.metric) == metric]
        found = [table.value(row, c.name) for table in tables for row in table.values for c in spec.columns]
        assert sum(value[0] for value in found if value) == pytest.approx(total, abs=1e-6)


@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_published_columns_are_those_of_the_full_scale(path: Path) -> None:
    spec = Spec.load(path)
    columns, rows = {column.name for column in spec.columns}, {row.name for row in spec.rows}
    for table in spec.published:
        assert table.values.keys() <= rows
        for row in table.values.values():
            assert set(row if isinstance(row, dict) else [""]) <= columns


def test_published_numbers_stand_in_the_table_of_their_metric() -> None:
    tables = make_tables(Spec.load(Path("papers/pu-mlc-table3.toml")), [], [], [])
    shown = {table.title: table for table in tables if "difference" not in table.title}
    for metric, value in (("mAP", "84.20"), ("OF1", "79.10"), ("CF1", "78.20")):
        table = shown[f"PU-MLC, Table 3: {metric}"]
        assert [cell.text for cell in next(line for line in table.lines if line.name == "pu-mlc").cells] == ["", value]
        assert sum(note.startswith("[") and "Table 3" in note for note in table.notes) == 1


def test_images_of_columns_that_begin_with_the_same_words(tmp_path: Path) -> None:
    columns = [column.name for column in Spec.load(Path("papers/pu-mlc-table1.toml")).columns]
    found = _by_column(["COCO=coco", "VOC 10 %=other"], columns)
    assert found == {f"COCO {share} %": "coco" for share in range(10, 100, 10)} | {"VOC 10 %": "other"}
    path = f"{tmp_path}/a=b"  # may have an equals sign
    Path(path).mkdir()
    assert _by_column([path], columns) == {"": path}
    with pytest.raises(RecipeError, match="CUB=cub: no column begins with 'CUB'"):
        _by_column(["CUB=cub"], columns)
    every = [*columns, "NUS"]  # those of all specs of a command
    assert _by_column(["NUS=nus", path], columns, every) == {"": path}
    assert _by_column(["NUS=nus", path], ["NUS"], every) == {"NUS": "nus", "": path}


@pytest.mark.parametrize(("path", "scale"), SCALES, ids=lambda part: getattr(part, "stem", part))
def test_figures_have_what_they_need(path: Path, scale: str) -> None:
    spec, found = planned(path, scale)
    for figure in spec.figures:
        kind, rows = figure["kind"], figure.get("rows", [row.name for row in spec.rows])
        columns = figure.get("columns", [column.name for column in spec.shown_columns()])
        assert set(rows) <= {row.name for row in spec.rows}
        used = [run for run in found if run.spec_row in rows and run.column in columns]
        assert used or kind == "gradients"
        assert spec.keep or kind not in KEPT
        for recipe in (run.recipe for run in used):
            what = str(figure.get("what", "test" if kind == "learning-curves" else ""))
            assert recipe.run.watch_test or "test" not in what
            assert recipe.run.watch_train or not (kind in WATCHED or "train" in what)
            assert recipe.data.protocol != "complete" or kind not in ("label-counts", "false-negatives")
            assert recipe.model.head == "label-decoder" or kind != "attention"
        if "of" in figure and scale != "full":
            assert figure["of"] in {"small": ("person", "chair"), "embedded": CLASSES}[scale]
        for key in filter(None, (figure.get("key"), figure.get("lines"))):
            swept = [run for run in used if run.row != figure.get("baseline")]
            values = [stored.setting(result(recipe=run.recipe.to_dict()), key) for run in swept]
            assert len(set(values)) > 1 or key == "method.name"


def test_published_settings_reach_the_recipes() -> None:
    def recipes(name: str) -> dict[tuple[str, str], Recipe]:
        return {(run.row, run.column): run.recipe for run in planned(Path(f"recipes/papers/{name}.toml"), "full")[1]}

    found = recipes("em-table1")
    assert found["em-apl", "CUB"].method == Recipe.load(Path("recipes/em-apl/cub.toml")).method
    assert found["em", "NUS"].method.params == {"alpha": 0.1}
    assert found["an", "COCO"].method.params == {}
    assert found["l2r", "CUB"].method.params == {"weight": 1e-8}
    assert found["entmin", "COCO"].method.params == {"alpha": 0.9}
    assert found["an", "CUB"].train.lr == 1e-4
    found = recipes("gr-table2")
    assert found["gr", "COCO"].method == Recipe.load(Path("recipes/gr/coco.toml")).method
    assert found["em-apl", "COCO"].method.params["beta"] == 0.9
    assert found["role, linear start", "NUS"].method.params == {"k": 1.9, "linear_epochs": 25}
    assert found["role, linear start", "VOC"].train.epochs == 10
    assert found["an", "VOC"].select.rule == "clean"
    found = recipes("lac-table2")
    assert found["lac", "NUS decoder"].method == Recipe.load(Path("recipes/lac/nus.toml")).method
    assert found["em-apl", "CUB decoder"].method.params == {"alpha": 0.01, "beta": 0.4, "warmup": 3}
    assert ("lac", "VOC linear") not in found
    found = recipes("cls-table2")
    assert found["cls", "NUS 50 %"].method.params == {"tau_h": 0.012, "tau_l": 0.06, "ramp": 10}
    assert found["cls", "VOC one label"].method == Recipe.load(Path("recipes/cls/voc07.toml")).method
    assert found["asl", "COCO 25 %"].data.protocol_share == 0.25
    found = recipes("pu-mlc-table1")
    assert [found["pu-mlc", f"COCO {share} %"].method.params["gamma"] for share in (10, 50, 90)] == [0.55, 0.25, 0.05]
    assert found["pu-mlc", "VOC 70 %"].method.params["gamma"] == "published"
    assert found["pu-mlc", "VOC 70 %"].data.protocol_share == 0.7
    found = recipes("pu-mlc-table4")
    assert found["with the factor", "100 %"].method.params["gamma"] == 0.03
    assert found["neither", "50 %"].method.params["gamma"] == 0.0


PRINTED = {"em-apl": (1e-5, 1), "gr": (1e-5, 10), "cls": (4e-5, 1), "lac": (1e-4, 1), "pu-mlc": (4e-5, 1)}
CHOSEN = {"em-apl": (3e-5, 10), "gr": (3e-5, 10), "cls": (1.2e-4, 10), "lac": (3e-5, 10), "pu-mlc": (4e-4, 10)}


DRAWS_AND_SEEDS = {(1200, 0), (1200, 1), (1201, 1), (1201, 2), (1202, 2), (1202, 0)}


def test_published_settings_are_those_that_were_measured() -> None:
    """At full scale the recipes of `python -m benchmarks.voc2012`, with what its file of results says was chosen.

    What is printed differs from it in the rate and the head factor alone.
    """
    rows = json.loads(Path("docs/results/voc2012.json").read_text(encoding="utf-8"))["rows"]
    seeds = {row["name"]: row["seeds"] for row in rows if row["group"] == "published"}
    found = planned(Path("recipes/papers/published-or-fair.toml"), "full")[1]
    for name, (file, _, scaled) in voc2012.PUBLISHED.items():
        rate, factor = CHOSEN[name]
        several = [row for row, count in seeds.items() if row.startswith(f"{name}, ") and count > 1]
        assert several == [f"{name}, lr {rate:g}, head ×{factor}"]  # the others have one
        assert seeds[several[0]] == 3
        for kind, (own_rate, own_factor) in {"as printed": PRINTED[name], "chosen": CHOSEN[name]}.items():
            rate_and_factor = (f"train.lr={own_rate}", f"train.head_lr={own_factor}")
            measured = Recipe.load(Path(file), [*voc2012.SAME, *scaled, *rate_and_factor])
            mine = [run.recipe for run in found if run.row == f"{name}, {kind}"]
            assert {(r.data.protocol_seed, r.run.seed) for r in mine} == DRAWS_AND_SEEDS
            for recipe in mine:
                data = replace(recipe.data, protocol_seed=1200, images="", labels="")
                model = replace(measured.model, dropout=measured.model.dropout or 0.0)  # which benches say out loud
                assert (data, recipe.model, recipe.method) == (measured.data, model, measured.method)
                assert (recipe.train, recipe.select) == (measured.train, measured.select)
        fair = [run.recipe for run in found if run.row == f"{name}, fair"]
        assert {(r.train.lr, r.train.schedule, r.data.size) for r in fair} == {(1e-4, "cosine", 256)}


def test_what_is_printed_is_in_the_recipes_of_the_papers() -> None:
    for name, (rate, factor) in PRINTED.items():
        train = Recipe.load(Path(voc2012.PUBLISHED[name][0])).train
        assert (train.lr, train.head_lr) == (rate, factor)


def test_the_baseline_has_every_setting() -> None:
    found = {run.row: run.recipe for run in planned(Path("recipes/papers/published-or-fair.toml"), "small")[1]}
    shown = {row: (r.train.lr, r.train.head_lr, r.train.schedule) for row, r in found.items() if row.startswith("an,")}
    assert shown == {
        "an, as printed": (1e-5, 1, "constant"),
        "an, chosen": (3e-5, 10, "constant"),
        "an, fair, head ×1": (1e-4, 1, "cosine"),
        "an, fair": (1e-4, 10, "cosine"),
    }


def test_the_rules_are_side_by_side() -> None:
    spec, found = planned(Path("recipes/papers/published-or-fair.toml"), "small")
    assert {run.column for run in found} == {"clean", "observed", "last"}
    assert {run.recipe.train.schedule for run in found} == {"constant", "cosine", "one-cycle"}
    assert {run.recipe.run.watch_rules for run in found} == {True}
    drawn = {(run.recipe.data.protocol_seed, run.recipe.run.seed) for run in found}
    assert drawn == {(1200, 0), (1201, 1), (1202, 2)}
    assert len({run.key for run in found}) == len(spec.rows) * len(drawn)  # each is trained once
    assert spec.thresholds


@pytest.mark.parametrize(
    "name", ["cls-table1", "cls-table2", "cls-figure4", "cls-figure5", "cls-figure6", "cls-figure7"]
)
@pytest.mark.parametrize("scale", ["full", "small", "embedded"])
def test_all_that_forget_do_so_over_the_same_share_of_a_run(name: str, scale: str) -> None:
    found = [run.recipe for run in planned(Path(f"recipes/papers/{name}.toml"), scale)[1]]
    forget = [recipe for recipe in found if recipe.method.name in ("cls", "co-teaching", "co-teaching+", "jocor")]
    assert {recipe.method.params.get("ramp", 10) for recipe in forget} == {10 if scale == "full" else 1}
    assert {recipe.train.epochs for recipe in forget} == {{"full": 100, "small": 10, "embedded": 5}[scale]}


def test_thresholds_of_figure_2a_of_gr() -> None:
    """τ = −b / w is the same four numbers for each b."""
    found = [
        run
        for run in planned(Path("recipes/papers/gr-figure2.toml"), "full")[1]
        if run.spec_row.startswith("pseudo-labels, b")
    ]
    params = [run.recipe.method.params for run in found]
    assert {round(-p["bT"] / p["wT"], 3) for p in params} == {1.0, 0.8, 0.6, 0.4}


def test_two_specs_share_what_is_the_same() -> None:
    names = ("em-table1", "gr-table2")
    keys = [{run.key for run in planned(Path(f"recipes/papers/{name}.toml"), "small")[1]} for name in names]
    assert len(keys[0] & keys[1]) >= 3 * 5  # an, an-ls, focal, em, em-apl


def test_the_page_counts_runs_as_they_are() -> None:
    """Of the tables that its command names, with one more, and of all specs: shared ones each time, and once."""
    command = next(block for block in PAGE.split("```") if block.count("papers/") > 10)
    chosen = [Path("recipes") / name for name in re.findall(r"papers/[\w-]+\.toml", command)]
    groups = (chosen, [*chosen, Path("recipes/papers/published-or-fair.toml")], PAPERS)
    each = [[{run.key for run in planned(path, "small")[1]} for path in paths] for paths in groups]
    counts = [number for keys in each for number in (sum(map(len, keys)), len(set[str]().union(*keys)))]
    text = " ".join(PAGE.split())
    numbers = r"(\S+) runs .* of which (\S+) are different; .* have (\S+) and (\S+); .* have (\S+) and (\S+):"
    found = re.search(rf"These twelve tables have {numbers}", text)
    assert found
    assert [int(number.replace(",", "")) for number in found.groups()] == counts
    assert (len(chosen), len(PAPERS)) == (12, 41)


def bench(name: str, out: Path, *settings: str) -> Queue:
    """The runs of a spec at the embedded scale, one seed, at toy size, and its page."""
    spec = Spec.load(Path(f"papers/{name}.toml"), "embedded")
    spec = replace(spec, seeds=1 if spec.seeds else 0)
    store = Store(out)
    store.prepare()
    queue = Queue([Plan(spec, Place(out), [*TOY, *settings])], store)
    work_off(queue, [InThisProcess()], lambda state: None, threading.Event())
    write_output(queue)
    return queue


@pytest.mark.parametrize("name", ["gr-figure1", "em-table7"])
def test_a_paper_at_toy_size(name: str, tmp_path: Path) -> None:
    queue = bench(name, tmp_path)
    assert not queue.failures
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "Not drawn" not in page
    assert page.count("<svg") == len(queue.benches[0].plan.spec.figures)
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "not run yet" not in text
    if name == "em-table7":
        line = next(line for line in text.splitlines() if line.startswith("| positive pseudo-labels"))
        ours, *published = (float(cell.strip(" *")) for cell in line.split("|")[2:7])
        run = queue.store.read(queue.runs()[0])
        assert run is not None
        table = guess_tables(run)["present"]
        right, known = (sum(line[what] or 0 for line in table) for what in ("right", "known"))
        assert 0 < right < known
        assert ours == pytest.approx(100 * right / known, abs=0.005)
        assert published == [15.66, 15.29, 9.18, 19.34]


@pytest.mark.slow
@pytest.mark.parametrize("path", PAPERS, ids=lambda path: path.stem)
def test_every_paper_at_toy_size(path: Path, tmp_path: Path) -> None:
    queue = bench(path.stem, tmp_path)
    assert not queue.failures
    assert queue.finished.keys() == {run.key for run in queue.runs()}
    assert "Not drawn" not in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_the_page_has_every_command() -> None:
    named = set(re.findall(r"papers/([\w-]+)\.toml", PAGE)) - {"digits"}
    assert named == {path.stem for path in PAPERS}
