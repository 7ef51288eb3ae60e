"""The selection rules side by side from one set of runs, and F1 at thresholds that need no clean label."""

from __future__ import annotations

import csv
import doctest
from pathlib import Path

import pytest

from pluralis.bench import identity, names
from pluralis.bench.runner import Queue
from pluralis.bench.runs import Run
from pluralis.bench.selections import under
from pluralis.bench.spec import Spec
from pluralis.bench.store import Result
from pluralis.config import AUTO, Recipe
from pluralis.data.source import load_split
from pluralis.errors import RecipeError
from tests.bench.benches import BASE, make_plan, result, run_bench, write_spec

RULES = ("clean", "observed", "last")
ROWS = """
[settings]
train.epochs = 4
train.lr = 0.03
data.options.count = 48
[[rows]]
name = "an"
method = "an"
[[rows]]
name = "cls"
method = "cls"
seeds = 1
"""


def results(queue: Queue) -> dict[tuple[str, str, int], Result]:
    """By row, column and seed, as the tables have them."""
    found = {}
    for run in queue.runs():
        one = queue.store.read(run)
        assert one is not None
        found[run.row, run.column, run.seed] = under(one, run.selection)
    return found


@pytest.fixture(scope="module")
def side_by_side(tmp_path_factory: pytest.TempPathFactory) -> Queue:
    folder = tmp_path_factory.mktemp("selections")
    text = 'seeds = 2\nselections = ["clean", "observed", "last"]\nthresholds = true\n' + ROWS
    return run_bench(write_spec(folder, text), folder / "out")


def test_each_rule_gives_what_a_bench_of_it_alone_gives(side_by_side: Queue, tmp_path: Path) -> None:
    together = results(side_by_side)
    assert side_by_side.made == 3  # not nine
    assert len(together) == 9
    for rule in RULES:
        alone = run_bench(
            write_spec(tmp_path, f'seeds = 2\nselection = "{rule}"\n' + ROWS), tmp_path / rule, output=False
        )
        for (row, _, seed), one in results(alone).items():
            mine = together[row, rule, seed]
            assert mine.chosen == one.chosen
            assert mine.score == one.score
            assert one.test.items() <= mine.test.items()  # the members of cls among them
            assert mine.per_class_ap in (one.per_class_ap, {})
            assert [epoch["loss"] for epoch in mine.history] == [epoch["loss"] for epoch in one.history]
    chosen = {rule: [together["an", rule, seed].chosen for seed in range(2)] for rule in RULES}
    assert chosen["last"] == [3, 3]
    assert len({tuple(epochs) for epochs in chosen.values()}) == 3  # else there was nothing to tell apart


def test_the_tables(side_by_side: Queue) -> None:
    together = results(side_by_side)
    with (side_by_side.store.out / "table.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    numbers = {(x["table"], x["row"], x["column"], x["figure"]): float(x["value"]) for x in lines}
    for rule in RULES:
        each = [together["an", rule, seed].test for seed in range(2)]
        assert numbers["Test: mAP", "an", rule, "mean"] == pytest.approx(sum(t["mAP"] or 0 for t in each) / 2)
        table = f"Test, {rule}: F1 without clean labels"
        for title, key in (
            ("CF1 at 0.5", "raw CF1"),
            ("CF1 at 0.5, calibrated", "calibrated CF1"),
            ("CF1, thresholds from observed labels", "observed CF1"),
            ("CF1, thresholds from clean labels", "clean CF1"),
            ("labels a row, expected", "labels expected"),
        ):
            assert numbers[table, "an", title, "mean"] == pytest.approx(sum(t[key] or 0 for t in each) / 2)
        error = [(t["expected CF1"] or 0) - (t["observed CF1"] or 0) for t in each]
        assert numbers[table, "an", "error of it", "mean"] == pytest.approx(sum(error) / 2)
    gains = [
        (together["an", "last", seed].test["mAP"] or 0) - (together["an", "clean", seed].test["mAP"] or 0)
        for seed in range(2)
    ]
    place = ("Test: difference to the rule clean in mAP", "an", "last")
    assert numbers[*place, "difference"] == pytest.approx(sum(gains) / 2)
    assert numbers[*place, "low"] < numbers[*place, "difference"]
    text = (side_by_side.store.out / "table.md").read_text()
    assert "last epoch; " in text or "; last epoch" in text
    held = load_split(
        Recipe.load(Path(BASE), ["data.options.count=48"]).data, side_by_side.runs()[0].recipe.select
    ).held
    assert held is not None
    true = numbers["Test, clean: F1 without clean labels", "an", "true", "mean"]
    assert true == pytest.approx(held.labels.summary().positives.sum() / len(held.labels))


def test_every_rule_chooses_settings_by_its_own_score(tmp_path: Path) -> None:
    text = (
        'seeds = 2\nselections = ["clean", "observed", "last"]\n[[rows]]\nname = "an"\nmethod = "an"\n'
        'grid = { "train.lr" = [0.1, 0.2, 0.4] }\n'
    )
    plan = make_plan(write_spec(tmp_path, text), tmp_path)

    def score(run: Run) -> float | None:
        rate = run.recipe.train.lr
        return rate if run.selection == "clean" else -rate

    def final(runs: list[Run]) -> dict[str, set[float]]:
        rates: dict[str, set[float]] = {}
        for run in runs:
            if not run.trial:
                rates.setdefault(run.column, set()).add(run.recipe.train.lr)
        return rates

    assert final(plan.runs(lambda run: None)) == {"last": {0.2}}  # who chooses nothing has the middle one
    runs = plan.runs(score)
    assert final(runs) == {"clean": {0.4}, "observed": {0.1}, "last": {0.2}}
    assert len({run.key for run in runs}) == 6  # three trials, and the second seeds of three of them
    assert {run.recipe.select.rule for run in runs} == {"clean"}
    assert runs[0].label == "an, lr 0.2 · draw 1200 · seed 0" or "clean" not in runs[0].label


def test_a_run_that_does_not_look_keeps_its_key() -> None:
    plain, looking = (Recipe.load(Path(BASE), [f"run.watch_rules={word}"]) for word in ("false", "true"))
    assert "watch_rules" not in identity.decides(plain)["run"]
    assert identity.run_key(plain, [], "d") != identity.run_key(looking, [], "d")


def test_held_out_images_teach_only_where_a_spec_says_so(tmp_path: Path) -> None:
    """Whatever the rule: those of one table see the same rows."""
    old, on, off = (Recipe.load(Path(BASE), words) for words in ([], ["select.images=true"], ["select.images=false"]))
    assert "images" not in identity.decides(old)["select"]
    assert identity.run_key(old, [], "d") == identity.run_key(off, [], "d") != identity.run_key(on, [], "d")
    rows = '[settings]\ntrain.freeze_bn = true\nmodel.head = "linear"\n[[rows]]\nname = "ours"\nmethod = "relabel"\n'
    rows += f'[[rows]]\nname = "as it is chosen"\nmethod = "{AUTO}"\n'
    for rules, stated in (
        ('["observed"]', ""),
        ('["clean", "observed"]', ""),
        ('["observed"]', "select.images = true\n"),
    ):
        text = f"selections = {rules}\n" + rows.replace("[[rows]]", f"{stated}[[rows]]", 1)
        plan = make_plan(write_spec(tmp_path, text), tmp_path / "out")
        assert {run.recipe.select.images for run in plan.runs(lambda run: None)} == {bool(stated)}
        assert {run.recipe.model.dropout for run in plan.runs(lambda run: None)} == {0.0}  # nor does that differ


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('selection = "last"\nselections = ["clean"]\n', "leave one of them out"),
        ('selections = ["clean", "clean"]\n', "once"),
        ('selections = ["best"]\n', "last, clean, observed"),
        ('selections = ["clean"]\nviews = ["standard"]\n', "standard"),
        ('thresholds = true\nviews = ["standard"]\n', "standard"),
    ],
)
def test_what_does_not_fit_is_said(text: str, part: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=part):
        Spec.load(write_spec(tmp_path, text + ROWS))


def test_a_score_that_is_lacking_is_said() -> None:
    history = [{"stage": 0.0, "epoch": 1.0, "score": 0.5, "rules observed score": -1.0, "rules mAP": 50.0}]
    with pytest.raises(RecipeError, match="'clean'"):
        under(result(history=history), "clean")
    assert under(result(history=history), "observed").test["mAP"] == 50.0
    assert under(result(), "") == result()


def test_epochs_of_an_earlier_stage_do_not_compete() -> None:
    history = [
        {"stage": float(stage), "epoch": float(epoch), "rules clean score": score, "rules mAP": 100 * score}
        for stage, epoch, score in ((0, 1, 0.9), (0, 2, 0.8), (1, 1, 0.3), (1, 2, 0.5), (1, 3, 0.4))
    ]
    found = under(result(history=history), "clean")
    assert (found.chosen, found.test["mAP"]) == (3, 50.0)


def test_held_out_rows_are_needed(tmp_path: Path) -> None:
    queue = run_bench(
        write_spec(tmp_path, 'seeds = 1\nselections = ["last"]\n' + ROWS),
        tmp_path / "out",
        "select.fraction=0.0",
        output=False,
    )
    assert all("select.fraction" in failure.error for failure in queue.failures.values())
    assert len(queue.failures) == 2


def test_examples() -> None:
    assert not doctest.testmod(names).failed
