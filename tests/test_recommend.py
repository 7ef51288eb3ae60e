"""Which method suits somebody's labels: the evidence, the choice, the budget, restarts, the page and the command."""

from __future__ import annotations

import doctest
import json
import os
import re
import shlex
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from pluralis import recommend_evidence, recommend_page
from pluralis.cli import app
from pluralis.config import Recipe
from pluralis.data.scenes import make_scenes
from pluralis.errors import DataError, RecipeError
from pluralis.labels import Labels
from pluralis.metrics import mean_average_precision
from pluralis.recommend import Recommendation, recommend
from pluralis.recommend_evidence import Evidence, Gain, Interval, Measured, gain, interval
from pluralis.recommend_words import Compared, Facts, decide, limits, reasons
from pluralis.run import Hooks
from pluralis.trained_run import load_run
from pluralis.trials import Candidate
from tests.children import exit_code, pluralis, start_child

NAMES = ["default", "an", "gr", "em-apl", "pu-mlc"]


def toy(features: Path, **values: object) -> Recipe:
    given = {
        "data.format": "scenes", "data.options": {"count": 60}, "data.protocol": "single-positive", "data.size": 24,
        "data.test": {"options": {"split": "test", "count": 20}}, "model.backbone": "tiny", "model.weights": "",
        "train.epochs": 2, "train.batch_size": 16, "train.lr": 1e-2, "train.freeze": -1, "train.augment": "none",
        "run.device": "cpu", "run.workers": 0, "run.features": str(features), "run.cache": "features",
    }  # fmt: skip
    return Recipe().with_settings([], {**given, **values})


def compare(features: str, folder: str, delay: float) -> None:
    """In a child, with time to kill it."""
    torch.set_num_threads(1)

    def wait() -> bool:
        time.sleep(delay)
        return False

    recommend(toy(Path(features)), Path(folder), 60, Hooks(should_stop=wait))


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("features")


@pytest.fixture(scope="module")
def whole(features: Path, tmp_path_factory: pytest.TempPathFactory) -> Recommendation:
    found = recommend(toy(features), tmp_path_factory.mktemp("whole") / "out")
    recommend_page.write(found)
    return found


def facts_in(folder: Path) -> dict[str, Any]:
    text = (folder / "recommend.json").read_text().replace(str(folder), "")
    found: dict[str, Any] = json.loads(text)
    for one in found["tried"]:
        del one["seconds"]
    return found


def test_all_are_trained_on_the_same_rows_and_no_clean_label_is_used(whole: Recommendation) -> None:
    folder = whole.file.parent
    tried = facts_in(folder)["tried"]
    assert [one["name"] for one in tried[:5]] == NAMES
    assert [one["name"] for one in tried[5:7]] == ["default-lr-0.003", "default-lr-0.03"]
    assert len(tried) == 15
    best_other = max(tried[1:5], key=lambda one: one["score"])["name"]
    assert tried[7]["name"] == f"{best_other}-lr-0.003"
    for name in NAMES:
        run = load_run(folder / name)
        assert (run.recipe.select.rule, run.recipe.data.test, run.test) == ("observed", {}, {})
        assert run.recipe.run.cache == "features"
    for one in whole.facts.compared:  # of each method the settings with the best score
        scores = {t["name"]: t["score"] for t in tried if t["name"].startswith(one.name)}
        assert one.candidate.name == max(scores, key=lambda name: scores[name])
        assert one.measured is not None
        assert one.measured.likelihood == pytest.approx(scores[one.candidate.name], rel=1e-9)
    rates = {one.name: one.candidate.final.train.lr for one in whole.facts.compared}
    assert whole.facts.ends == [name for name, rate in rates.items() if rate != 0.01]
    first = whole.facts.compared[0].measured
    assert first is not None
    for one in whole.facts.others:  # 95 % for the four of them together
        assert one.measured is not None
        assert one.over_default == gain(one.measured, first, 0.9875)


def test_few_rows_give_the_default_and_say_so(whole: Recommendation) -> None:
    assert whole.facts.rows == 12
    assert whole.chosen.name == "default"
    assert whole.recipe == Recipe.load(whole.file)
    assert (whole.recipe.method.name, whole.recipe.train.lr) == ("selection", whole.chosen.candidate.final.train.lr)
    assert whole.recipe.data.test  # the final run has it again
    page = (whole.file.parent / "index.html").read_text()
    assert "Only 12 held-out rows have a label" in page
    assert "The test set that the recipe names was not looked at" in page
    assert whole.command in page
    assert page.count("<svg") == 1
    for one in whole.facts.others:
        assert one.over_default is not None
        assert f"{one.title}: cannot be told from the default" in page


def test_the_same_call_again_trains_nothing(whole: Recommendation, features: Path) -> None:
    before = facts_in(whole.file.parent)
    steps: list[int] = []
    hooks = Hooks(report=lambda clock, of, figures: steps.append(of))
    recommend_page.write(recommend(toy(features), whole.file.parent, 30, hooks))
    assert not steps
    assert facts_in(whole.file.parent) == before


def test_killed_at_any_moment_it_ends_the_same(whole: Recommendation, features: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    for until in ("an", "em-apl"):
        child = start_child(compare, str(features), str(folder), 0.05)
        end = time.monotonic() + 60
        while not (folder / until / "recipe.toml").exists() and time.monotonic() < end:
            time.sleep(0.02)
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        assert exit_code(child) == -signal.SIGKILL
        assert not (folder / "recommended.toml").exists()
    recommend_page.write(recommend(toy(features), folder))
    assert facts_in(folder) == facts_in(whole.file.parent)


def test_without_time_nothing_is_compared_and_more_time_goes_on(features: Path, tmp_path: Path) -> None:
    said: list[str] = []
    found = recommend(toy(features), tmp_path / "out", 0, Hooks(say=said.append))
    assert [line for line in said if line.startswith("comparing: ")] == ["comparing: default"]
    assert found.chosen.name == "default"
    assert "Nothing was compared" in reasons(found.facts, found.chosen)[0]
    assert any("gr was not compared: left out: no time for comparing is left" in line for line in limits(found.facts))
    assert any("default-lr-0.003" in line for line in limits(found.facts))
    assert "Nothing was compared" in recommend_page.write(found)[0].read_text()
    said.clear()
    found = recommend(toy(features, **{"run.workers": 0}), tmp_path / "out", 30, Hooks(say=said.append))
    assert "comparing: default" not in said
    assert len(found.facts.others) == 4
    with pytest.raises(RecipeError, match="another recipe"):
        recommend(toy(features, **{"run.seed": 1}), tmp_path / "out", 30)


def test_settings_and_weights_that_say_little_are_told_of(features: Path, tmp_path: Path) -> None:
    said: list[str] = []
    found = recommend(toy(features, **{"train.freeze": 0}), tmp_path / "out", 0, Hooks(say=said.append))
    assert found.recipe.train.lr != 1e-2
    assert any(line.startswith("the recipe's [train] is for a whole network and left out") for line in said)
    assert any("these features are random" in line for line in said)
    said.clear()
    found = recommend(toy(features), tmp_path / "own", 0, Hooks(say=said.append))
    assert found.recipe.train.lr == 1e-2
    assert not any("is for a whole network" in line for line in said)


def test_verified_labels_bring_masked_cross_entropy(features: Path, tmp_path: Path) -> None:
    given = {"data.protocol": "known-ratio", "data.protocol_share": 0.5, "data.unlabelled": "keep"}
    found = recommend(toy(features, **given), tmp_path / "out", 0)
    assert [one.name for one in found.facts.compared] == [*NAMES, "bce"]
    assert found.facts.verified
    assert "known labels" in recommend_page.write(found)[0].read_text()


def test_with_a_gpu_backbones_train_and_the_default_is_relabel(
    features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pluralis.recommend.choose_device", lambda name: SimpleNamespace(type="cuda"))
    given = {"train.freeze": 0, "run.cache": "ram", "method.name": "ll-r", "method.params": {"delta_rel": 0.1}}
    found = recommend(toy(features, **given), tmp_path / "out", 0)
    assert found.recipe.method.name == "relabel"
    assert found.chosen.title == "relabel (judged by selection, the default)"
    assert found.recipe.model.head == "lse"
    own = next(one for one in found.facts.compared if one.name == "ll-r")  # the user's own is compared as it is
    assert own.candidate.final.method.params == {"delta_rel": 0.1}


@pytest.mark.parametrize("stated", [None, True, False])
def test_held_out_images_teach_what_is_recommended_but_nothing_that_is_compared(
    stated: bool | None, features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pluralis.recommend.choose_device", lambda name: SimpleNamespace(type="cuda"))
    monkeypatch.setattr("pluralis.recommend.METHODS", ("an",))
    monkeypatch.setattr("pluralis.recommend.RATES", ())
    given = {"train.freeze": 0, "run.cache": "ram", "train.freeze_bn": True, "method.name": "relabel"}
    given |= {"train.epochs": 1, "method.params": {"views": "fast"}}
    given |= {} if stated is None else {"select.images": stated}
    found = recommend(toy(features, **given), tmp_path / "out", 60)
    own = {one.name: one.candidate for one in found.facts.compared}
    assert own.keys() == {"default", "relabel", "an"}
    for name, candidate in own.items():
        assert bool(candidate.final.select.images) == (stated is not False and name != "an")
        assert not load_run(tmp_path / "out" / name).recipe.select.images


def test_images_that_are_asked_for_teach_what_is_recommended_where_norms_learn(
    features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pluralis.recommend.choose_device", lambda name: SimpleNamespace(type="cuda"))
    given = {"train.freeze": 0, "run.cache": "ram", "train.freeze_bn": False, "select.images": True}
    found = recommend(toy(features, **given), tmp_path / "out", 0)
    wanted = {one.name: one.candidate.final.select.images for one in found.facts.compared}
    assert wanted == {name: True if name == "default" else None for name in NAMES}


def test_images_that_are_asked_for_cannot_teach_heads_alone(features: Path, tmp_path: Path) -> None:
    """Nothing is refused for it: no method is named that could not learn from them."""
    found = recommend(toy(features, **{"select.images": True}), tmp_path / "out", 0)
    assert {one.name: one.candidate.final.select.images for one in found.facts.compared} == dict.fromkeys(NAMES)


def test_labels_that_say_nothing_are_refused(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    lines = ["image,a,b"]
    for number in range(20):
        Image.new("RGB", (24, 24)).save(tmp_path / "photos" / f"{number}.png")
        lines.append(f"{number}.png,-1,")
    (tmp_path / "labels.csv").write_text("\n".join(lines) + "\n")
    done = pluralis("recommend", tmp_path / "photos", "--labels", tmp_path / "labels.csv", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert "none of the 16 training rows has a label that is present" in done.stderr
    assert done.stderr.count("\n") == 1
    (tmp_path / "labels.csv").write_text("image,a,b\n")
    given = {"data.images": str(tmp_path / "photos"), "data.labels": str(tmp_path / "labels.csv")}
    with pytest.raises(DataError, match="lists no image"):
        recommend(Recipe().with_settings([], given), tmp_path / "out")


def test_mistakes_are_told_before_any_work(features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecipeError, match="minutes"):
        recommend(toy(features), tmp_path / "out", -1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    with pytest.raises(RecipeError, match="not empty"):
        recommend(toy(features), tmp_path / "mine")
    with pytest.raises(RecipeError, match="is a file"):
        recommend(toy(features), tmp_path / "mine" / "thesis.tex")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RecipeError, match="torchrun"):
        recommend(toy(features), tmp_path / "out")


def test_the_page_of_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, features: Path) -> None:
    """Its command on real files, and the one that it ends with."""
    section = Path("docs/bench.md").read_text().split("## Which method suits my data\n")[1].split("\n## ")[0]
    command = re.search(r"^```sh\n(.*?)\n```$", section, re.DOTALL | re.MULTILINE)
    assert command is not None
    monkeypatch.chdir(tmp_path)
    scenes = make_scenes("train", 40)
    lines = ["image,label"]
    Path("photos").mkdir()
    for row, (pixels, truth) in enumerate(zip(scenes.images, scenes.truth, strict=True)):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(f"photos/{row}.png")
        lines += [f"{row}.png,{scenes.classes[c]}" for c in np.flatnonzero(truth > 0)[:1]]
    Path("labels.csv").write_text("\n".join(lines) + "\n")
    toys = ["model.backbone=tiny", "model.weights=", "data.size=24", "data.unlabelled=drop", "train.freeze=-1"]
    toys += ["train.epochs=1", "train.augment=none", "run.device=cpu", "run.workers=0", f"run.features={features}"]
    words = [*shlex.split(command[1])[1:], *(word for setting in toys for word in ("--set", setting))]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert done.exit_code == 0, (done.output, done.exception)
    for path in re.findall(r"^\| `(runs/which/[^`]*)`", section, re.MULTILINE):
        assert Path(path).exists(), path
    assert re.search(r"^\*  selection \(the default\)  −\d", done.output, re.MULTILINE)
    assert "What this cannot tell:\n" in done.output
    last = done.output.splitlines()[-1]
    assert last.startswith("next: pluralis train ")
    assert CliRunner().invoke(app, shlex.split(last)[2:]).exit_code == 0
    assert Path("runs/which/final/model.safetensors").exists()


# --- the evidence and the choice, on matrices ---


def table(rows: int = 400, seed: int = 0) -> tuple[torch.Tensor, np.ndarray, np.ndarray]:
    """Logits that know the labels, complete labels, and one written for each row."""
    rng = np.random.default_rng(seed)
    z = rng.normal(-1, 2, size=(rows, 6))
    truth = np.where(rng.random(z.shape) < 1 / (1 + np.exp(-z)), 1, -1)
    truth[np.arange(rows), z.argmax(1)] = 1
    shown = np.zeros_like(truth)
    for row, labels in enumerate(truth):
        shown[row, rng.choice(np.flatnonzero(labels > 0))] = 1
    return torch.from_numpy(z), truth, shown


def test_intervals_are_those_of_the_mean_over_images() -> None:
    z, _, shown = table()
    evidence = Evidence(Labels.from_dense(shown))
    good, bad = evidence.measure(z), evidence.measure(z + torch.randn(z.shape, generator=torch.manual_seed(0)) * 2)
    found = gain(good, bad, 0.95)
    assert found.likelihood.low > 0
    assert found.precision.low > 0
    assert good.precision == pytest.approx(100 * mean_average_precision(z, torch.from_numpy(shown > 0)).value)
    alone = interval(good.likelihood, good.likelihood_draws, 0.95)
    assert alone.high - alone.low > 1.3 * (found.likelihood.high - found.likelihood.low) / np.sqrt(
        2
    )  # pairs share luck
    rng = np.random.default_rng(1)
    values = rng.normal(size=500)
    drawn = np.array([rng.choice(values, 500).mean() for _ in range(2000)])
    ends = interval(float(values.mean()), drawn, 0.95)
    assert (ends.high - ends.low) / 2 == pytest.approx(1.96 * values.std(ddof=1) / np.sqrt(500), rel=0.05)


def test_rows_without_a_label_change_nothing_and_verified_labels_count() -> None:
    z, truth, shown = table(200)
    more = np.concatenate([shown, np.zeros_like(shown[:50])])
    one = Evidence(Labels.from_dense(shown)).measure(z)
    two = Evidence(Labels.from_dense(more)).measure(torch.cat([z, z[:50]]))
    assert (one.likelihood, one.precision) == (two.likelihood, two.precision)
    np.testing.assert_array_equal(one.likelihood_draws, two.likelihood_draws)
    half = np.where(np.random.default_rng(0).random(truth.shape) < 0.5, truth, 0)
    evidence = Evidence(Labels.from_dense(half))
    assert evidence.verified
    assert not Evidence(Labels.from_dense(shown)).verified
    rows = (half != 0).any(1)
    expected = 100 * mean_average_precision(z[rows], torch.from_numpy(half[rows])).value
    assert evidence.measure(z).precision == pytest.approx(expected)


@pytest.mark.parametrize(
    ("likelihood", "precision", "verified", "rows", "chosen", "word"),
    [
        ((0.1, 0.05, 0.15), (1.0, -1.0, 3.0), False, 500, "gr", "better"),
        ((0.1, -0.05, 0.25), (5.0, 3.0, 7.0), False, 500, "default", "cannot be told"),
        ((0.1, 0.05, 0.15), (-2.0, -3.0, -1.0), False, 500, "default", "mixed"),
        ((-0.1, -0.15, -0.05), (0.0, -1.0, 1.0), False, 500, "default", "worse"),
        ((0.1, 0.05, 0.15), (1.0, -1.0, 3.0), True, 500, "default", "cannot be told"),
        ((-0.1, -0.15, -0.05), (2.0, 1.0, 3.0), True, 500, "gr", "better"),
        ((0.1, 0.05, 0.15), (1.0, 0.5, 3.0), False, 99, "default", "cannot be told"),
    ],
)
def test_the_choice(
    likelihood: tuple[float, float, float],
    precision: tuple[float, float, float],
    verified: bool,
    rows: int,
    chosen: str,
    word: str,
) -> None:
    def candidate(method: str) -> Candidate:
        recipe = Recipe().with_settings([], {"method.name": method})
        return Candidate(method, recipe, recipe, 0.0)

    measured = Measured(-1.0, np.zeros(2), 50.0, np.zeros(2))
    over, lower = Gain(Interval(*likelihood), Interval(*precision)), Interval(-9.0, -9.5, -8.5)
    compared = [
        Compared("default", candidate("selection"), measured),
        Compared("an", candidate("an"), measured, Gain(lower, lower)),
        Compared("gr", candidate("gr"), measured, over),
    ]
    facts = Facts(compared, verified, rows, False, False, [], ["gr"])
    assert decide(facts).name == chosen
    assert reasons(facts, decide(facts))[-1].startswith(f"gr: {word}")
    assert any("few" in line for line in limits(facts))
    assert any("the last that was tried: gr;" in line for line in limits(facts))


def test_examples() -> None:
    assert not doctest.testmod(recommend_evidence, optionflags=doctest.ELLIPSIS).failed
