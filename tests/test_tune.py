"""Settings chosen by the held-out score: the choice, the order, the budget, restarts, and what goes wrong."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from pluralis import trials
from pluralis.checkpoint import read_snapshot, state_hash
from pluralis.config import Recipe
from pluralis.data.source import load_split
from pluralis.errors import DataError, Interrupted, NonFiniteLoss, PluralisError, RecipeError
from pluralis.method import Clock
from pluralis.run import Hooks, train
from pluralis.trained_run import TrainedRun, load_run
from pluralis.trials import Watch
from pluralis.tune import HEAD_ALONE, Tuned, head_alone, tune
from tests.children import pluralis

PLAIN = "lr-0.003-epochs-4"
DIVERGING = {"train.optimizer": "sgd", "train.lr": 1000.0, "train.weight_decay": 1000.0, "train.epochs": 20}


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("features")


@pytest.fixture
def recipe(features: Path) -> Recipe:
    return toy(features)


def toy(features: Path, **values: object) -> Recipe:
    given = {
        "data.format": "scenes", "data.options": {"count": 40}, "data.protocol": "single-positive", "data.size": 24,
        "data.protocol_seed": 1200, "data.test": {"options": {"split": "test", "count": 20}}, "model.backbone": "tiny",
        "model.weights": "", "train.epochs": 4, "train.batch_size": 8, "train.lr": 3e-3, "run.device": "cpu",
        "run.workers": 0, "run.features": str(features), "method.params": {"views": "fast"},
    }  # fmt: skip
    return Recipe().with_settings([], {**given, **values})


def test_the_head_alone_is_trained_for_longer_on_few_rows() -> None:
    assert [head_alone(rows).epochs for rows in (10, 640, 5000)] == [100, 30, 15]


@dataclass
class Seen:
    """What a caller is told, and a stop after some steps."""

    stop_after: int = -1
    lines: list[str] = field(default_factory=list)
    steps: int = 0

    def hooks(self) -> Hooks:
        def report(clock: Clock, steps: int, figures: dict[str, float]) -> None:
            self.steps += not figures

        return Hooks(report, say=self.lines.append, should_stop=lambda: self.steps == self.stop_after)

    def started(self) -> list[str]:
        return [line.removeprefix("tuning: ") for line in self.lines if line.startswith("tuning: ")]


@dataclass(frozen=True)
class Whole:
    folder: Path
    seen: Seen
    tuned: Tuned
    run: TrainedRun


@pytest.fixture(scope="module")
def whole(features: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """A tuning of everything that is left open, and the run that follows."""
    folder, seen = tmp_path_factory.mktemp("whole") / "run", Seen()
    tuned = tune(toy(features), folder, 60, seen.hooks())
    return Whole(folder, seen, tuned, train(tuned.recipe, folder, seen.hooks()))


def table(folder: Path) -> list[dict[str, str]]:
    with (folder / "tune" / "table.csv").open(encoding="utf-8") as file:
        return [{k: v for k, v in row.items() if k != "seconds"} for row in csv.DictReader(file)]


def weights(folder: Path) -> str:
    return state_hash(read_snapshot(folder / "model").tensors)


def test_the_best_of_the_candidates_own_histories_is_chosen(whole: Whole) -> None:
    names = [candidate.name for candidate in whole.tuned.candidates]
    assert names[:2] == ["frozen", PLAIN]
    heads, names = [names[0], *names[2:6]], [names[1], *names[6:]]
    assert heads[:3] == ["frozen", "frozen-lr-0.0003-epochs-100", "frozen-lr-0.003-epochs-100"]
    assert names[:3] == [PLAIN, "lr-0.0009-epochs-4", "lr-0.009-epochs-4"]
    best, last_is_not_best = {}, False
    for name in [candidate.name for candidate in whole.tuned.candidates]:
        meta = read_snapshot(whole.folder / "tune" / name / "model").meta
        history = [epoch["val nll"] for epoch in meta["history"]]
        best[name] = min(history) if name in heads else history[-1]  # by which `relabel` will label
        assert "test" not in meta["test"]
        assert meta["recipe"]["method"]["name"] == "selection"
        assert meta["recipe"]["model"]["head"] == ("linear" if name in heads else "lse")
        assert not meta["recipe"]["data"]["test"]
        last_is_not_best |= name in names and min(history) < history[-1]
    assert last_is_not_best
    assert len(set(best.values())) > 3  # else there was nothing to choose
    assert whole.tuned.chosen == min(best, key=lambda name: best[name])
    for some, epochs in ((heads, 100), (names, 4)):
        rate = min(some[:3], key=lambda name: best[name]).removesuffix(f"-epochs-{epochs}")
        rate = "frozen-lr-0.001" if rate == "frozen" else rate
        assert some[3:] == [f"{rate}-epochs-{epochs // 2}", f"{rate}-epochs-{2 * epochs}"]
    rows = table(whole.folder)
    assert [row["candidate"] for row in rows] == list(best)
    assert [row["held-out −log likelihood"] for row in rows] == [f"{best[name]:.4f}" for name in best]
    assert [row["candidate"] for row in rows if row["chosen"] == "1"] == [whole.tuned.chosen]
    assert any(line.startswith(f"* {whole.tuned.chosen} ") for line in whole.seen.lines)
    plan = whole.tuned.recipe.train
    words = f"relabel with the head lse, the whole network: adam, lr {plan.lr:g}, head_lr 10, epochs {plan.epochs}"
    assert any(line.startswith(f"chosen: {whole.tuned.chosen}, which is {words}; table: ") for line in whole.seen.lines)


def test_the_run_itself_is_the_default_method_with_what_was_chosen(whole: Whole, recipe: Recipe) -> None:
    chosen = Recipe.load(whole.folder / "recipe.toml")
    assert chosen == whole.tuned.recipe
    assert (chosen.method.name, chosen.model.head) == ("relabel", "lse")
    row = next(row for row in table(whole.folder) if row["chosen"] == "1")
    assert (f"{chosen.train.lr:g}", str(chosen.train.epochs)) == (row["lr"], row["epochs"])
    same = replace(chosen, train=recipe.train, method=recipe.method, model=recipe.model)
    assert same == recipe
    assert whole.run.test["mAP"] > 0
    assert {entry["stage"] for entry in whole.run.history} == {0.0, 1.0}


def test_the_same_command_again_trains_nothing(whole: Whole, recipe: Recipe) -> None:
    seen, before = Seen(), weights(whole.folder)
    tuned = tune(recipe, whole.folder, 60, seen.hooks())
    assert train(tuned.recipe, whole.folder, seen.hooks()).resumed
    assert (seen.started(), seen.steps) == ([], 0)
    assert "finished" in seen.lines[-1]
    assert tuned.recipe == whole.tuned.recipe
    assert weights(whole.folder) == before


def test_an_interrupted_tuning_ends_like_one_that_was_not(whole: Whole, recipe: Recipe, tmp_path: Path) -> None:
    first, second = Seen(), Seen()
    names = whole.seen.started()
    lengths = {name: int(name.rpartition("-")[2]) if "-" in name else 100 for name in names}
    steps = {name: n if name.startswith("frozen") else 4 * n for name, n in lengths.items()}  # 32 rows, by 32 and by 8
    first.stop_after = sum(steps[name] for name in names[:6]) + 3  # in the middle of another rate
    with pytest.raises(Interrupted):
        tune(recipe, tmp_path / "run", 60, first.hooks())
    assert names[6].startswith("lr-")
    assert first.started() == names[:7]
    tuned = tune(recipe, tmp_path / "run", 60, second.hooks())
    assert second.started() == names[6:]
    assert second.steps == sum(steps[name] for name in names[6:]) - 3
    assert table(tmp_path / "run") == table(whole.folder)
    train(tuned.recipe, tmp_path / "run")
    assert weights(tmp_path / "run") == weights(whole.folder)


def test_without_time_the_first_candidate_runs_and_the_rest_is_named(recipe: Recipe, tmp_path: Path) -> None:
    seen, again = Seen(), Seen()
    tuned = tune(recipe, tmp_path, 1e-6, seen.hooks())
    assert seen.started() == ["frozen"] == [tuned.chosen]
    left = [candidate for candidate in tuned.candidates if candidate.score is None]
    assert len(left) == 9
    assert all(f"{candidate.name} left out: no time for tuning is left" in seen.lines for candidate in left)
    chosen = tuned.recipe
    assert (chosen.method.name, chosen.train.freeze, chosen.run.cache) == ("selection", -1, "features")
    steps = seen.steps
    run = train(tuned.recipe, tmp_path, seen.hooks())
    assert seen.steps == steps  # it is the candidate's own run, and goes on from there
    assert weights(tmp_path) == weights(tmp_path / "tune" / "frozen")
    assert run.test["mAP"] > 0
    assert tune(recipe, tmp_path, 60, again.hooks()).chosen == "frozen"  # more time comes too late
    assert again.started() == []
    assert sum("the final run has begun" in line for line in again.lines if line.startswith(("lr-", "frozen-"))) == 9


def test_a_named_method_is_tuned_as_it_is(features: Path, tmp_path: Path) -> None:
    said = {"method.name": "an", "method.params": {}, "model.head": "lse", "select.rule": "clean"}
    named = toy(features, **said, **{"train.freeze_bn": False})
    seen = Seen()
    tuned = tune(named, tmp_path / "run", 0, seen.hooks())
    assert seen.started() == ["frozen", PLAIN]  # this head needs maps, so the first result is that of the recipe
    assert any(line.startswith("frozen failed: ") and "model.head" in line for line in seen.lines)
    assert (tuned.chosen, tuned.recipe) == (PLAIN, named)
    candidate = load_run(tmp_path / "run" / "tune" / PLAIN)
    found = max(entry["val mAP"] for entry in candidate.history)
    assert table(tmp_path / "run")[1]["held-out mAP"] == f"{found:.2f}"
    handed, alone = train(tuned.recipe, tmp_path / "run"), train(named, tmp_path / "alone")
    assert weights(tmp_path / "run") == weights(tmp_path / "alone")
    assert handed.history == alone.history
    assert handed.test == alone.test


@pytest.mark.parametrize("stated", [{}, {"select.images": True}], ids=["by itself", "asked for"])
@pytest.mark.parametrize("method", ["", "relabel"])
def test_held_out_images_teach_the_run_itself_and_nothing_that_they_judge(
    method: str, stated: dict[str, bool], features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pluralis.tune.RATES", ())
    monkeypatch.setattr("pluralis.tune.LENGTHS", ())
    monkeypatch.setattr("pluralis.tune.HEAD_ALONE", replace(HEAD_ALONE, lr=100.0, epochs=1))  # it does not win
    given = {"train.freeze_bn": True, "train.epochs": 1, **stated, **({"method.name": method} if method else {})}
    tuned = tune(toy(features, **given), tmp_path / "run", 60, Seen().hooks())
    assert all(candidate.score is not None for candidate in tuned.candidates)
    for candidate in tuned.candidates:
        assert not load_run(tmp_path / "run" / "tune" / candidate.name).recipe.select.images
    whole = next(candidate for candidate in tuned.candidates if candidate.name != "frozen")
    assert (whole.final.method.name, whole.final.select.images) == ("relabel", True)
    if method:  # the end of its candidate, by which this one is chosen, is not the end of the run
        assert tuned.chosen == whole.name
        found, alone = train(tuned.recipe, tmp_path / "run"), train(tuned.recipe, tmp_path / "alone")
        assert found.history == alone.history


def test_what_diverges_is_passed_over_and_not_tried_again(features: Path, tmp_path: Path) -> None:
    seen, again = Seen(), Seen()
    tuned = tune(toy(features, **DIVERGING), tmp_path, 60, seen.hooks())
    whole = [name for name in seen.started() if not name.startswith("frozen")]
    assert whole == ["lr-1000-epochs-20", "lr-300-epochs-20"]  # 3000 is more than a recipe takes
    assert tuned.chosen.startswith("frozen")
    notes = [row["note"] for row in table(tmp_path)]
    failed = [row["note"] for row in table(tmp_path) if row["candidate"] in whole]
    assert sum(note == "" for note in notes) == 5
    assert all(note.startswith("failed: ") and "train.lr" in note for note in failed)
    assert tune(toy(features, **DIVERGING), tmp_path, 60, again.hooks()).chosen == tuned.chosen
    assert again.started() == []
    assert [row["note"] for row in table(tmp_path)] == notes


def test_where_everything_fails_the_error_of_the_recipe_is_raised(features: Path, tmp_path: Path) -> None:
    started = []
    for decay in (1000.0, 1000.0, 999.0):  # with other settings it is worth another attempt
        seen, given = Seen(), {**DIVERGING, "model.head": "lse", "train.weight_decay": decay}
        with pytest.raises(NonFiniteLoss, match="train.lr"):
            tune(toy(features, **given), tmp_path, 60, seen.hooks())
        assert any(line.startswith("frozen failed: ") for line in seen.lines)
        started.append(len(seen.started()))
    assert started == [3, 1, 3]


WHOLE = "lr-0.001-epochs-10"
HEADS = ["frozen-lr-0.0003-epochs-100", "frozen-lr-0.003-epochs-100",
         "frozen-lr-0.001-epochs-50", "frozen-lr-0.001-epochs-200"]  # fmt: skip


@pytest.mark.parametrize(
    ("minutes", "expected"),
    [
        (0, ["frozen"]),
        (5, ["frozen", WHOLE]),  # which is stopped: how long it takes was not known
        (10.8, ["frozen", WHOLE, HEADS[2]]),  # no other rate fits, half the length does
        (203, ["frozen", WHOLE, *HEADS, "lr-0.0003-epochs-10", "lr-0.003-epochs-10",
               "lr-0.003-epochs-5", "lr-0.003-epochs-20"]),
        (43, ["frozen", WHOLE, *HEADS, "lr-0.0003-epochs-10", "lr-0.003-epochs-10", "lr-0.003-epochs-5"]),
        (25, ["frozen", WHOLE, *HEADS, "lr-0.0003-epochs-10"]),
        (20, ["frozen", WHOLE, *HEADS, "lr-0.001-epochs-5"]),
    ],
)  # fmt: skip
def test_the_budget(
    minutes: float, expected: list[str], recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute an epoch, of the head alone a third of a second; the highest rate is the best, the head the worst."""
    now, started = [0.0], []

    def pretend(judged: Recipe, folder: Path, hooks: Hooks) -> SimpleNamespace:
        started.append(folder.name)
        for _ in range(judged.train.epochs):
            now[0] += 0.3 if folder.name.startswith("frozen") else 60
            if hooks.should_stop():
                raise Interrupted("stopped")
        score = -9.0 if folder.name.startswith("frozen") else judged.train.lr
        seconds = 0.3 * judged.train.epochs if folder.name.startswith("frozen") else 1.0
        return SimpleNamespace(history=[{"score": score}], chosen=0, seconds=seconds)

    monkeypatch.setattr(trials, "train", pretend)
    monkeypatch.setattr(trials, "time", SimpleNamespace(monotonic=lambda: now[0]))
    tuned = tune(replace(recipe, train=replace(recipe.train, lr=1e-3, epochs=10)), tmp_path, minutes)
    assert started == expected
    assert now[0] <= 60 * minutes + 60
    assert all(c.note.startswith("left out: ") == (c.name not in started) for c in tuned.candidates)
    assert [c.name for c in tuned.candidates if c.note.startswith("stopped: ")] == expected[1:] * (minutes == 5)
    assert len(tuned.candidates) == 10


@pytest.mark.parametrize(("left", "stopped"), [(30.0, 25), (70.0, 71), (100.0, 0), (float("inf"), 0)])
def test_a_run_is_stopped_when_its_pace_says_that_it_will_not_end(
    left: float, stopped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 steps of a second; a little over time it is left to go on as long as there is time."""
    now = [0.0]
    monkeypatch.setattr(trials, "time", SimpleNamespace(monotonic=lambda: now[0]))
    hooks = Watch(Hooks(), left).hooks()
    for step in range(1, 101):
        now[0] += 1.0
        hooks.report(Clock(0, (step - 1) // 50, (step - 1) % 50 + 1, 2), 50, {})
        if hooks.should_stop():
            break
    else:
        step = 0
    assert step == stopped


def test_a_mistake_is_told_before_any_work_and_spoils_nothing(features: Path, tmp_path: Path) -> None:
    def refused(error: type[PluralisError], part: str, folder: Path = tmp_path / "run", **values: object) -> None:
        seen = Seen()
        with pytest.raises(error, match=part):
            tune(toy(features, **values), folder, 60, seen.hooks())
        assert seen.steps == 0

    refused(RecipeError, 'select.rule = "observed".*without --tune', **{"select.rule": "last", "select.fraction": 0.0})
    refused(DataError, "no data", **{"data.format": "csv"})
    refused(RecipeError, "'gr'", **{"method.name": "grr"})
    refused(RecipeError, "views", **{"method.params": {"veiws": "fast"}})
    refused(RecipeError, "99", **{"train.freeze": 99})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    refused(RecipeError, "not empty", tmp_path / "mine")
    (tmp_path / "other" / "tune").mkdir(parents=True)
    (tmp_path / "other" / "tune" / "piano.txt").write_text("precious")
    refused(RecipeError, "not empty", tmp_path / "other")
    with pytest.raises(RecipeError, match="minutes"):
        tune(toy(features), tmp_path / "run", -1)
    assert tune(toy(features), tmp_path / "run", 0).chosen == "frozen"
    refused(RecipeError, "train.lr: 0.003 -> 0.5.*--out", **{"train.lr": 0.5})


def test_other_labels_are_noticed(whole: Whole, recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    other = load_split(replace(recipe.data, protocol_seed=1), recipe.select)
    monkeypatch.setattr("pluralis.tune.load_split", lambda data, select: other)
    with pytest.raises(RecipeError, match="labels or images changed"):
        tune(recipe, whole.folder, 60)


def test_a_run_that_was_not_tuned_is_left_alone(recipe: Recipe, tmp_path: Path) -> None:
    train(recipe, tmp_path)
    with pytest.raises(RecipeError, match="not tuned"):
        tune(recipe, tmp_path, 0)
    assert not (tmp_path / "tune").exists()


def test_several_processes_are_refused(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RecipeError, match="torchrun"):
        tune(recipe, tmp_path, 0)


def test_on_the_command_line(recipe: Recipe, tmp_path: Path) -> None:
    (tmp_path / "toy.toml").write_text(recipe.to_toml())
    words = ["train", "--recipe", tmp_path / "toy.toml", "--out", tmp_path / "run", "--tune-minutes", "0"]
    done = pluralis(*words)
    assert done.returncode == 2
    assert "add --tune" in done.stderr
    done = pluralis(*words, "--tune")
    assert done.returncode == 0, done.stderr
    assert "* frozen" in done.stdout
    assert f"{PLAIN} left out" in done.stdout
    assert "model.safetensors" in done.stdout
    done = pluralis(*words, "--tune")
    assert done.returncode == 0
    assert "finished" in done.stdout
