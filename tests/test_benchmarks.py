"""Formulas that only a benchmark has, and whether stored results are still those of its recipes."""

import csv
import json
import statistics
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import few_photos, label_loss
from benchmarks.counting import count_runs, fit_scenes, measure, write_counts
from benchmarks.label_loss import joined
from benchmarks.papers_page import RESULTS
from benchmarks.pick_model import likelihood
from benchmarks.selection_rules import METHODS, RULES, changes, compare_stored
from benchmarks.voc2012 import Bench, Row, leads, markdown
from pluralis.config import Recipe
from pluralis.demo import DemoSize, pretrain
from pluralis.labels import Labels
from pluralis.losses.selection import selection
from pluralis.run import train
from tests.test_recipes import CLASSES, truth, write_voc


@pytest.mark.parametrize("exponent", [0.0, 0.5, 2.0])
def test_pick_by_area_is_the_sum_over_all_label_sets(exponent: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    area = torch.rand(6, 5, generator=generator, dtype=torch.float64).clamp(min=0.05)
    picked = torch.tensor([0, 1, 2, 3, 4, 0])
    chances = []
    for z, size, given in zip(logits, area**exponent, picked.tolist(), strict=True):
        p, total = z.sigmoid(), 0.0
        for members in product((0.0, 1.0), repeat=5):
            inside = torch.tensor(members, dtype=torch.float64)
            if inside[given]:
                chance = (inside * p + (1 - inside) * (1 - p)).prod()
                total += float(chance * size[given] / (size * inside).sum())
        chances.append(total)
    found = likelihood(logits, area, picked, exponent).neg().exp()
    assert found.tolist() == pytest.approx(chances, rel=1e-4)


def test_pick_by_area_to_the_power_of_zero_is_selection() -> None:
    logits = torch.randn(8, 20, generator=torch.Generator().manual_seed(1))
    picked = torch.arange(8)
    rows = likelihood(logits, torch.rand(8, 20), picked, 0.0)
    labels = torch.nn.functional.one_hot(picked, 20)
    assert rows.sum().item() == pytest.approx(selection(logits, labels, reduction="sum").item(), rel=1e-5)


def test_stored_results_of_voc2012_belong_to_the_recipes_that_make_them_today() -> None:
    """A default that changes would make them figures of something else, and the queue would run them all again."""
    bench = Bench(Path("unused"), ["fair", "default", "large", "draw", "mean", "kept-default"], [], [], RESULTS, 3)
    missing = [row.key for row in bench.rows() if len(bench.runs(row)) < row.seeds]
    assert not missing


def test_the_queue_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Seed by seed; what the file holds of this very recipe is not run again, what runs or failed is passed over."""
    groups, only = ["fair:2"], ["an", "gr"]
    an, gr = Bench(tmp_path, groups, only, [], None, 3).rows()

    def left(runs: list[tuple[Row, int, str]], busy: list[tuple[str, int]]) -> list[tuple[str, int]]:
        file, found = tmp_path / "results.json", [*busy]
        lines = {row: [{"seed": seed, "recipe": key} for other, seed, key in runs if other is row] for row in (an, gr)}
        rows = [{"group": row.group, "name": row.name, "runs": run} for row, run in lines.items()]
        file.write_text(json.dumps({"rows": rows}))
        bench = Bench(tmp_path, groups, only, [], file, 3)
        while (job := bench.next(found)) is not None:
            found.append((job[0].key, job[1]))
        return found[len(busy) :]

    assert left([], []) == [(an.key, 0), (gr.key, 0), (an.key, 1), (gr.key, 1)]
    assert left([(an, 0, an.recipe_hash([])), (gr, 1, gr.recipe_hash([]))], []) == [(gr.key, 0), (an.key, 1)]
    assert left([(an, 0, "of another recipe")], [(gr.key, 0)]) == [(an.key, 0), (an.key, 1), (gr.key, 1)]


def test_a_table_is_rounded_once(tmp_path: Path) -> None:
    figures = {"mAP": 80.0, "CF1": 69.246, "OF1": 70.0, "seconds": 1.0}
    rows = [{"group": "fair", "name": "an", "seeds": 1, "runs": [{"seed": 0, **figures}]}]
    (tmp_path / "results.json").write_text(json.dumps({"rows": rows}))
    assert "| fair: an | 1 | 80.00 |  | 69.2 | 70.0 | 1 |" in markdown(tmp_path / "results.json")


def test_a_group_without_runs_is_named(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text('{"rows": []}')
    with pytest.raises(SystemExit, match="no run of `relabel`.*run --groups kept-mean first"):
        leads(tmp_path / "results.json", "kept-mean")


def test_kept_norms_are_other_runs() -> None:
    rows = Bench(Path("unused"), ["fair", "kept-fair"], [], [], None, 3).rows()
    plain, kept = ({row.name: row for row in rows if row.group == group} for group in ("fair", "kept-fair"))
    assert plain.keys() == kept.keys() == {"an", "all labels", "em-apl", "gr", "cls", "lac", "pu-mlc"}
    assert not {row.recipe_hash([]) for row in plain.values()} & {row.recipe_hash([]) for row in kept.values()}
    learning = {row.recipe_hash(["train.freeze_bn=false"]) for row in plain.values()}
    assert learning == {row.recipe_hash([]) for row in plain.values()}


def stored(folder: Path, row: str, epochs: list[tuple[float, float, float]], draw: int = 0) -> None:
    """A result of a bench; epochs are what `observed` says, what `clean` says, and the test mAP."""
    keys = ("rules observed score", "rules clean score", "rules mAP")
    history = [dict(zip(keys, epoch, strict=True)) for epoch in epochs]
    body = {"row": row, "draw": draw, "history": history, "recipe": {"method": {"name": row.split(",")[0]}}}
    (folder / f"{row}-{draw}.json").write_text(json.dumps({"body": body}))


def test_rules_are_compared_over_the_epochs_of_stored_runs(tmp_path: Path) -> None:
    stored(tmp_path, "an, fair", [(1, 10, 50), (2, 20, 60), (4, 30, 55)])  # the best epoch is not the last
    stored(tmp_path, "gr, fair", [(3, 40, 70), (7, 50, 80), (6, 60, 90)])  # `observed` swaps the last two
    (tmp_path / "other.json").write_text(json.dumps({"body": {"history": [{"loss": 1.0}]}}))
    every, last = (compare_stored(tmp_path)[name] for name in ("all epochs", "the last epochs"))
    assert len(every["runs"]) == 6
    assert len(last["runs"]) == 2
    observed, clean = every["rules"]["observed"], every["rules"]["clean mAP"]
    assert observed["regret"] == [10.0]  # 80 is chosen, 90 is there
    assert observed["regret within methods"] == [7.5]  # 60 − 55 and 90 − 80
    assert clean["regret"] == [0.0]
    assert clean["regret within methods"] == [2.5]
    assert observed["within methods"] == [0.5]  # one swap among three in both
    assert last["rules"]["observed"]["across methods"] == observed["across methods"] == [1.0]  # 4 < 6 and 55 < 90


def test_draws_are_compared_by_themselves(tmp_path: Path) -> None:
    for draw, sign in ((0, 1), (1, -1)):
        stored(tmp_path, "an, fair", [(sign * score, score, score) for score in (1, 2, 3)], draw)
        stored(tmp_path, "gr, fair", [(sign * score, score, score) for score in (4, 5, 6)], draw)
    found = compare_stored(tmp_path)["all epochs"]["rules"]
    assert found["observed"]["all"] == [1.0, -1.0]
    assert found["observed"]["regret"] == [0.0, 5.0]


def test_the_table_of_rules_is_that_of_the_stored_runs() -> None:
    found = compare_stored(RESULTS.parent / "papers" / "results")
    last, every = found["the last epochs"]["rules"], found["all epochs"]["rules"]
    page = (RESULTS.parent / "README.md").read_text()
    for name, rule in (("`observed`", "observed"), ("`clean`", "clean mAP")):
        parts = [last[rule]["all"], *(every[rule][key] for key in ("all", "within methods", "across methods"))]
        parts += [every[rule]["regret"], every[rule]["regret within methods"]]
        cells = " | ".join(f"{statistics.mean(part):.2f}" for part in parts)
        assert f"| {name} | {cells} |" in page.replace("**", "")


def test_the_table_of_rules_on_frozen_features_is_the_stored_one() -> None:
    stored = json.loads((RESULTS.parent / "selection_rules.json").read_text())
    (voc,) = (task for task in stored["tasks"] if task["task"] == "VOC 2012")
    assert (voc["rules"].keys(), stored["methods"]) == (RULES.keys(), list(METHODS))
    page = (RESULTS.parent / "README.md").read_text().replace("−", "-")
    assert f"{len(METHODS)} methods × {len(list(changes()))} settings on frozen features" in page
    for rule in voc["rules"].values():
        cells = " | ".join(f"{statistics.mean(part):.2f}" for part in rule.values())
        assert f"| {cells} |\n" in page


@pytest.mark.parametrize("name", ["an", "relabel"])
def test_scenes_are_counted_by_the_recipe_of_the_demo(name: str, tmp_path: Path) -> None:
    size = DemoSize(digits=64, digit_epochs=1, train=120, test=30, epochs=1, gallery=3)
    rows = fit_scenes(pretrain(tmp_path, size), size, name, 6)
    found = measure(rows, 6)
    for part, count in (("trained", 100), ("unseen", 30)):
        logits, given, truth = rows[part]
        assert logits.shape == given.shape == truth.shape == (count, 10)
        assert ((given > 0) <= (truth > 0)).all()
        assert [line[3] for line in found[part]["by class"]] == (truth > 0).sum(0).tolist()


def test_counts_are_stored_as_they_are(tmp_path: Path) -> None:
    entries = [{"set": name, "runs": [{"seed": 0, "by class": [[1.5, 1, 2, 2]]}, {"seed": 1}]} for name in ("a", "b")]
    for facts in ({}, {"seeds": 2, "settings": {"a": {"epochs": 3}}}):
        write_counts(tmp_path / "counts.json", facts, entries)
        assert json.loads((tmp_path / "counts.json").read_text()) == {**facts, "entries": entries}


def test_runs_of_other_recipes_are_counted_apart(tmp_path: Path) -> None:
    """Those that differ by seed and draw are one entry; what a file has of others stays, and the same is replaced."""
    given = {
        "data.format": "scenes", "data.options": {"count": 40}, "data.protocol": "single-positive", "data.size": 24,
        "data.test": {"options": {"split": "test", "count": 20}}, "model.backbone": "tiny", "model.weights": "",
        "train.epochs": 1, "train.augment": "none", "run.device": "cpu", "method.name": "gr", "select.rule": "last",
    }  # fmt: skip
    for name, words in {
        "a": ["run.seed=0", "data.protocol_seed=1"],
        "b": ["run.seed=1", "data.protocol_seed=2"],
        "c": ["train.lr=0.01"],
    }.items():
        train(Recipe().with_settings(words, given), tmp_path / name)
    file = tmp_path / "counts.json"

    def counted(*runs: str) -> list[list[int]]:
        count_runs([tmp_path / run for run in runs], file)
        entries = json.loads(file.read_text())["entries"]
        return [[run["seed"] for run in entry["runs"]] for entry in entries if entry["rows"] == "unseen"]

    assert counted("a", "b", "c") == [[0, 1], [0]]
    assert counted("c") == [[0, 1], [0]]
    assert counted("a") == [[0], [0]]
    stored = json.loads(file.read_text())
    for entry in stored["entries"]:
        del entry["recipe"]  # as entries were before they had one
    file.write_text(json.dumps({"entries": stored["entries"][:2]}))  # of one recipe, trained and unseen rows
    assert counted("c") == [[0]]


def test_losses_of_labels_are_set_against_random_picks_that_are_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where --only leaves them out, the scores of the file serve."""
    rows = np.arange(4)
    labels = Labels.from_lists([[0], [1], [0], [1]], 2)
    data = label_loss.Data(np.zeros((4, 1)), rows, labels, np.zeros((4, 2)), np.zeros((4, 1)), torch.zeros(4, 2))
    monkeypatch.setattr(label_loss, "read_data", lambda images, cache: data)
    ways = [
        label_loss.Loss("single-positive", lambda labels, areas, draw: labels, [("an", {})]),
        label_loss.Loss("pick-area", lambda labels, areas, draw: labels.select([0, 1, 2, 3]), [("an", {})]),
    ]
    monkeypatch.setattr(label_loss, "losses", lambda: ways)
    found = iter([90.0, 80.0, 90.0, 71.0])  # all labels once a call, then `an`
    monkeypatch.setattr(label_loss, "measure", lambda data, given, entry, run: next(found))
    file = tmp_path / "loss.json"
    for only in ("single-positive", "pick-area"):
        label_loss.main("", None, 1, [only], [], file)
    stored = {(row["labels"], row["method"]): row for row in json.loads(file.read_text())["rows"]}
    assert stored["pick-area", "an"]["against single-positive"]["mean"] == -9.0
    assert "against single-positive" not in stored["single-positive", "an"]


def test_ways_of_losing_labels_that_are_measured_again_take_their_place() -> None:
    kept = [{"labels": "left-75", "method": name, "runs": [1.0]} for name in ("an", "bce", "own")]
    again = [{"labels": "left-75", "method": "gr", "runs": [2.0]}, {"labels": "left-75", "method": "an", "runs": [3.0]}]
    found = joined(kept, again)
    runs = {row["method"]: row["runs"] for row in found}
    assert list(runs.items()) == [("an", [3.0]), ("gr", [2.0]), ("bce", [1.0]), ("own", [1.0])]


def test_missing_labels_of_a_few_photos_are_those_that_nobody_wrote(tmp_path: Path) -> None:
    """Of all photos, held out or not. What is stored is not run again."""
    write_voc(tmp_path / "voc", 40)
    plain = {"model.backbone": "tiny", "model.weights": '""', "train.epochs": 1, "run.device": "cpu", "run.workers": 0}
    given = {
        "images": str(tmp_path / "voc"), "photos": [20], "draws": [1], "method": "an", "size": 16, "test": 10,
        "settings": [f"{key}={value}" for key, value in plain.items()], "file": tmp_path / "few.json",
    }  # fmt: skip
    few_photos.main(**given, out=tmp_path / "runs")
    (row,) = json.loads((tmp_path / "few.json").read_text())["rows"]
    assert (row["photos"], row["draw"], row["test photos"]) == (20, 1, 10)
    listed, _ = sorted((tmp_path / "runs").glob("20-*.csv"))  # and .test.csv
    names, written = zip(*csv.reader(listed.read_text().splitlines()[1:]), strict=True)
    there = truth(40)[[int(name[1:6]) for name in names]] > 0
    assert len(set(names)) == 20
    assert all(there[range(20), [CLASSES.index(name) for name in written]])
    missing = row["missing labels"]
    assert missing["true"] == there.sum() - 20
    assert row["labels of these photos"]["true"] == there.sum() / 20
    assert 0 <= missing["rightly"] <= missing["named"] <= 40
    few_photos.main(**given, out=tmp_path / "others")
    assert not (tmp_path / "others").exists()
