"""Relabelling by how labels came to be written: a rate, learned or given, rows without a label, other losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from pluralis import PartialLabelClassifier, Recipe, load_run, train
from pluralis.calibration import calibrate
from pluralis.checkpoint import Store, state_hash
from pluralis.engine import fit
from pluralis.errors import Interrupted, RecipeError
from pluralis.evaluate import predict
from pluralis.labels import Labels
from pluralis.losses import Selection
from pluralis.method import Batch, Clock, LossMethod, Setup
from pluralis.methods import create_method, start_heads, start_values
from pluralis.methods.relabel import Relabel
from pluralis.missing_labels import how_written
from pluralis.models import create_model
from pluralis.tune import selection_in
from tests.toys import plan, scenes, stopped_at

LABELS = Labels.from_lists([[0], [1], [2, 3], [], [1], []], 4, negatives=[[3], [], [], [1], [], []])
GIVEN = LABELS.dense()
EMPTY = [3, 5]  # rows without a written label
LEARNED = {"mechanism": "rate"}
BY_CLASS = {"mechanism": "rate", "rate": "class"}


def relabel(labels: Labels = LABELS, seed: int = 0, **params: Any) -> Relabel:
    torch.manual_seed(seed)
    classes = len(labels.classes)
    setup = Setup(lambda: create_model("tiny", classes, dropout=0.1), classes, labels)
    method = create_method("relabel", setup, {"views": "fast", **params})
    assert isinstance(method, Relabel)
    return method


def loss_of(method: Relabel) -> Selection:
    assert isinstance(method.loss, Selection)
    return method.loss


def set_rate(method: Relabel, rate: Any) -> None:
    """As if it had been learned."""
    rate_log_odds = loss_of(method).rate_log_odds
    assert rate_log_odds is not None
    with torch.no_grad():
        rate_log_odds.copy_(torch.as_tensor(rate, dtype=torch.float64).logit())


def at_rate(logits: torch.Tensor, given: np.ndarray, rate: Any, unlabelled: str = "skip") -> np.ndarray:
    """Elkan and Noto's p (1−ρ)/(1 − ρp), in float64."""
    p = 1 / (1 + np.exp(-logits.detach().double().numpy()))
    found = p * (1 - np.asarray(rate)) / (1 - np.asarray(rate) * p)
    if unlabelled == "skip":
        nobody = ~(given > 0).any(1)
        found[nobody] = p[nobody]
    return np.where(given == 0, found, given > 0)


def picked(logits: torch.Tensor, given: np.ndarray, a: float, unlabelled: str = "skip") -> np.ndarray:
    """By numerical integration over the chance t of staying unwritten, of Beta(a, k) where k labels are written."""
    p = 1 / (1 + np.exp(-logits.detach().double().numpy()))
    found = np.zeros_like(p)
    for row, chance in enumerate(p):
        unknown = np.flatnonzero(given[row] == 0)
        if not (given[row] > 0).any():
            found[row, unknown] = chance[unknown] if unlabelled == "skip" else 0.0
            continue

        def product(
            t: float, left_out: int = -1, row: int = row, unknown: Any = unknown, chance: Any = chance
        ) -> float:
            factors = [1 - chance[k] * (1 - t) for k in unknown if k != left_out]
            return float(np.prod(factors)) * t ** (a - 1) * (1 - t) ** ((given[row] > 0).sum() - 1)

        whole = quad(product, 0, 1, epsabs=1e-13)[0]
        for j in unknown:
            with_j = quad(lambda t, j=j, product=product: t * product(t, j), 0, 1, epsabs=1e-13)[0]
            found[row, j] = chance[j] * with_j / whole
    return np.where(given == 0, found, given > 0)


def soft_labels(method: Relabel, logits: torch.Tensor) -> np.ndarray:
    """What is learned from after these predictions of the training images, 1 and 0 where a label is known."""
    method.start_stage(Clock(), lambda **asked: torch.zeros(0))
    method.start_stage(Clock(stage=1), lambda views: logits)
    assert method.labels is not None
    given = method.labels.dense()
    return np.where(given == 0, method.soft.value.double().numpy(), given > 0)


def batch_of(rows: list[int]) -> Batch:
    x = torch.rand(len(rows), 3, 24, 24, generator=torch.Generator().manual_seed(1)) * 255
    return Batch((x,), torch.from_numpy(LABELS.dense(rows)), torch.tensor(rows))


@pytest.mark.parametrize("unlabelled", ["skip", "absent"])
@pytest.mark.parametrize("how", ["given", "learned", "by class"])
def test_labels_are_the_posterior_at_the_rate(how: str, unlabelled: str) -> None:
    params = {"given": {"mechanism": "rate", "rate": 0.3}, "learned": LEARNED, "by class": BY_CLASS}[how]
    method = relabel(loss_params={**params, "unlabelled": unlabelled})
    rate = [0.3] if how != "by class" else [0.3, 0.9, 0.05, 0.6]
    if how != "given":
        set_rate(method, rate)
    logits = 2 * torch.randn(6, 4)
    expected = at_rate(logits, GIVEN, rate, unlabelled)
    np.testing.assert_allclose(soft_labels(method, logits), expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("unlabelled", ["skip", "absent"])
@pytest.mark.parametrize("a", [1.0, 3.0])
def test_labels_are_the_posterior_of_a_pick(a: float, unlabelled: str) -> None:
    method, logits = relabel(loss_params={"a": a, "unlabelled": unlabelled}), 2 * torch.randn(6, 4)
    found = soft_labels(method, logits)
    np.testing.assert_allclose(found, picked(logits, GIVEN, a, unlabelled), rtol=1e-3, atol=1e-6)
    assert (found[EMPTY].sum() == 0) == (unlabelled == "absent")


def test_a_loss_that_knows_all_rows_does_not_couple_batches() -> None:
    assert not relabel(loss="upu").batch_coupled
    assert relabel(loss="nnpu").batch_coupled


def test_after_another_loss_rows_without_a_label_keep_their_calibrated_chance() -> None:
    given = Labels.from_dense(np.where(GIVEN > 0, 1, 0))
    method, logits = relabel(given, loss="an"), torch.randn(6, 4) + 1
    scale, _ = calibrate(logits, torch.from_numpy(given.dense()))
    found, scaled = soft_labels(method, logits), scale.a * logits + scale.b
    np.testing.assert_allclose(found, picked(scaled, given.dense(), 1.0), rtol=1e-3, atol=1e-6)
    assert found[EMPTY].any(1).all()


def test_after_another_loss_verified_absent_labels_tell_the_rates() -> None:
    """r = (1−ρ₊) p / ((1−ρ₊) p + (1−ρ₋) (1−p)), also for the students' own logits, and after a restart."""
    given = np.tile(GIVEN, (25, 1))  # 50 verified absent labels
    labels, logits = Labels.from_dense(given, convention="signed"), torch.randn(150, 4) + 1
    method = relabel(labels, loss="bce")
    scale, _ = calibrate(logits, torch.from_numpy(given))
    assert scale.rates is not None

    def by_rates(z: torch.Tensor) -> np.ndarray:
        p, (written, verified) = 1 / (1 + np.exp(-z.double().numpy())), scale.rates or (0, 0)
        hidden, other = (1 - written) * p, (1 - verified) * (1 - p)
        r = np.where((given != 0).any(1, keepdims=True), hidden / (hidden + other), p)
        return np.where(given == 0, r, given > 0)

    np.testing.assert_allclose(soft_labels(method, logits), by_rates(scale.a * logits + scale.b), rtol=1e-3, atol=1e-6)
    again = relabel(labels, loss="bce", seed=1)
    again.load_state_dict(method.state_dict())
    for one in (method, again):
        np.testing.assert_allclose(one._posterior(logits, torch.from_numpy(given)), by_rates(logits), rtol=1e-5)


def test_students_use_the_rate_too() -> None:
    method = relabel(loss_params=BY_CLASS, pair=True, refresh=0.5).eval()
    assert method.peer is not None
    rate = [0.2, 0.7, 0.4, 0.9]
    set_rate(method, rate)
    soft = soft_labels(method, torch.randn(6, 4))
    rows = [2, 3, 0]
    batch, clock = batch_of(rows), Clock(1, epoch=1, epochs=2)
    f, g = method.net(batch.views[0]), method.peer(batch.views[0])
    by_f, by_g = (at_rate(z, GIVEN[rows], rate) for z in (f, g))
    terms = method(batch, clock)
    for name, logits, by_other in (("f", f, by_g), ("g", g, by_f)):
        p, target = 1 / (1 + np.exp(-logits.detach().double().numpy())), (soft[rows] + by_other) / 2
        expected = -(target * np.log(p) + (1 - target) * np.log(1 - p)).mean()
        assert terms[name].item() == pytest.approx(expected, rel=1e-5)
    method.after_step(clock)
    expected = np.where(GIVEN[rows] == 0, 0.5 * soft[rows] + 0.25 * (by_f + by_g), 0)
    np.testing.assert_allclose(method.soft.value[rows].double().numpy(), expected, rtol=1e-3, atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_rate_on_a_gpu_labels_what_was_predicted_and_what_is_learned() -> None:
    method = relabel(loss_params=LEARNED, refresh=0.5).cuda().eval()
    set_rate(method, [0.3])
    logits = torch.randn(6, 4)  # predictions of the training images are on the CPU
    method.start_stage(Clock(), lambda **asked: torch.zeros(0))
    method.start_stage(Clock(stage=1), lambda views: logits)
    found = np.where(GIVEN == 0, method.soft.value.double().cpu().numpy(), GIVEN > 0)
    np.testing.assert_allclose(found, at_rate(logits, GIVEN, 0.3), rtol=1e-3, atol=1e-6)
    batch, clock = batch_of([0, 1]), Clock(1, epoch=1, epochs=2)
    method(Batch((batch.views[0].cuda(),), batch.labels.cuda(), batch.index.cuda()), clock)
    method.after_step(clock)
    assert not np.allclose(method.soft.value.double().cpu().numpy(), np.where(GIVEN == 0, found, 0), rtol=1e-3)


@pytest.mark.parametrize(
    ("loss", "loss_params"),
    [("selection", LEARNED), ("selection", {"unlabelled": "absent"}), ("gr", {"trainable": "both"})],
)
def test_the_first_stage_is_the_loss_with_its_parameters_and_later_ones_leave_it_alone(
    loss: str, loss_params: dict[str, Any]
) -> None:
    """What a loss learns has a learning rate of its own and no weight decay, as where the loss is the method."""
    data, stage = scenes(16), plan(optimizer="adamw", weight_decay=0.5, lr=5e-3)
    torch.manual_seed(0)
    plain = create_method(loss, Setup(lambda: create_model("tiny", 10, dropout=0.1), 10, data.labels), loss_params)
    assert isinstance(plain, LossMethod)
    expected = fit(plain, data, stage, seed=3).history
    both = relabel(data.labels, loss=loss, loss_params=loss_params, refresh=0.3)
    seen: list[torch.Tensor] = []
    start = both.start_stage

    def start_stage(clock: Clock, predict_train: Any) -> None:
        if clock.stage == 1:
            seen.append(predict(both, data))
        start(clock, predict_train)

    both.start_stage = start_stage  # type: ignore[method-assign]
    history = fit(both, data, stage, seed=3).history
    assert torch.equal(seen[0], predict(plain, data))
    assert history[:2] == expected
    for key, value in plain.loss.state_dict().items():
        assert torch.equal(both.loss.state_dict()[key], value), key
    if loss_params is LEARNED:
        assert expected[1]["rate"] not in (0.5, expected[0]["rate"])
        assert [epoch["rate"] for epoch in history[2:]] == [expected[1]["rate"]] * 2


def test_each_teacher_learns_a_rate_of_its_own() -> None:
    """A rate that another teacher found would tell of labels that this one is to know nothing of."""
    method = relabel(folds=2, loss_params=LEARNED)
    method.start_stage(Clock(), lambda **asked: torch.zeros(0))
    first = {key: value.clone() for key, value in method.loss.state_dict().items()}
    logits, rates = [torch.randn(6, 4) for _ in range(2)], (0.2, 0.7)
    for stage, rate in ((1, rates[0]), (2, rates[1])):
        method(batch_of([0, 1, 2, 3, 4, 5]), Clock(stage=stage - 1))  # counts what says how sure a rate is
        assert not torch.equal(method.loss.state_dict()["tally.epoch"], first["tally.epoch"])
        set_rate(method, rate)
        method.start_stage(Clock(stage=stage), lambda views, rows, stage=stage: logits[stage - 1][rows])
        mine = (method.fold == stage - 1).numpy()
        expected = np.where(GIVEN == 0, at_rate(logits[stage - 1], GIVEN, rate), 0)
        found = method.soft.value.double().numpy()
        np.testing.assert_allclose(found[mine], expected[mine], rtol=1e-3, atol=1e-6)
        if stage == 1:
            assert all(torch.equal(value, first[key]) for key, value in method.loss.state_dict().items())
    assert loss_of(method).rates().item() == pytest.approx(rates[1])  # students go by the last one's


@pytest.mark.parametrize("unlabelled", ["skip", "absent"])
def test_a_batch_of_nothing_but_the_fold_teaches_a_rate_nothing(unlabelled: str) -> None:
    method = relabel(folds=2, loss_params={**LEARNED, "unlabelled": unlabelled})
    method.start_stage(Clock(), lambda **asked: torch.zeros(0))
    rows = (method.fold == 0).nonzero().flatten().tolist()
    value = method(batch_of(rows), Clock())["loss"]
    value.backward()
    tally = loss_of(method).tally
    assert value.item() == 0.0
    assert all(p.grad is None or not p.grad.any() for p in method.parameters())
    assert tally is not None
    assert not tally.sums.any()


@pytest.mark.parametrize(
    ("params", "points"),
    [
        ({"refresh": 0.3, "loss_params": LEARNED}, range(8)),
        ({"pair": True, "folds": 2, "loss_params": BY_CLASS}, (3, 4, 6, 9)),
    ],
    ids=["one", "folds"],
)
def test_a_learned_rate_survives_a_stop_at_any_step(params: dict[str, Any], points: Any, tmp_path: Path) -> None:
    data, stage = scenes(12), plan(batch_size=6, lr=5e-3, ema=0.8, weight_decay=0.1)
    whole = relabel(data.labels, **params)
    expected = fit(whole, data, stage, seed=3)
    assert len(set(map(float, loss_of(whole).rates()))) == (1 if params["loss_params"] is LEARNED else 10)
    assert loss_of(whole).rates().sub(0.5).abs().min() > 1e-3
    for stop in points:
        store = Store(tmp_path / str(stop))
        with pytest.raises(Interrupted):
            fit(relabel(data.labels, **params), data, stage, seed=3, store=store, should_stop=stopped_at(stop))
        again = relabel(data.labels, seed=9, **params)
        assert fit(again, data, stage, seed=3, store=store).history == expected.history
        assert state_hash(again.state_dict()) == state_hash(whole.state_dict()), f"stopped at step {stop}"
    # A finished run is read back without the training labels, and still knows its rate.
    bare = create_method("relabel", Setup(lambda: create_model("tiny", 10), 10), params)
    missing, unexpected = bare.load_state_dict(whole.weights(), strict=False)
    assert not unexpected
    assert all(key.startswith(Relabel.memory) for key in missing)
    assert not any("tally" in key for key in whole.weights())
    assert torch.equal(how_written(bare)["rate"], loss_of(whole).rates())
    assert torch.equal(predict(bare, data), predict(whole, data))


def biases(method: Relabel) -> list[torch.Tensor]:
    return [net.head.get_parameter("fc.bias").detach().clone() for _, net in method.networks()]


@pytest.mark.parametrize(("loss", "bias"), [("selection", "log-odds"), ("em", "zero"), ("gr", "equal")])
def test_teachers_start_from_what_suits_the_loss_and_students_from_log_odds(loss: str, bias: str) -> None:
    method = relabel(loss=loss, folds=2, pair=True)
    start_heads(method, LABELS)
    method.start_stage(Clock(), lambda **asked: torch.zeros(0))
    first = {key: value.clone() for key, value in method.net.state_dict().items()}
    for stage, expected in enumerate((bias, bias, "log-odds")):
        if stage:
            method.start_stage(Clock(stage=stage), lambda views, rows: torch.zeros(len(rows), 4))
        for found in biases(method)[: 1 if stage < 2 else 2]:
            assert torch.equal(found, start_values(LABELS, expected))
        other = {key for key, value in method.net.state_dict().items() if not torch.equal(value, first[key])}
        assert other == ({"head.fc.bias"} if expected != bias else set())
        for net in (method.net, method.peer):
            assert net is not None
            torch.nn.init.normal_(net.head.get_parameter("fc.bias"))


@pytest.mark.parametrize("loss", ["selection", "em"])
@pytest.mark.parametrize("bias", ["zero", "log-odds"])
def test_a_bias_that_is_stated_holds_for_students_too(bias: str, loss: str) -> None:
    method = relabel(loss=loss)
    start_heads(method, LABELS, bias)
    for stage in range(2):
        method.start_stage(Clock(stage=stage), lambda views: torch.zeros(6, 4))
        assert torch.equal(biases(method)[0], start_values(LABELS, bias))


@pytest.mark.parametrize(("loss", "bias"), [("selection", "log-odds"), ("em", "zero")])
def test_a_recipe_starts_from_it_and_hands_parameters_to_the_loss(loss: str, bias: str, tmp_path: Path) -> None:
    settings = [
        "data.format=scenes", "data.options.count=24", "data.protocol=single-positive", "data.size=24",
        "model.backbone=tiny", "model.weights=", "model.head=linear", "train.epochs=1", "train.lr=0", "run.device=cpu",
        "run.workers=0", "method.name=relabel", "method.params.views=fast", f"method.params.loss={loss}",
    ]  # fmt: skip
    of_loss = {"selection": ["mechanism=rate", "rate=0.25", "unlabelled=absent"], "em": ["alpha=0.3"]}[loss]
    recipe = Recipe.load(None, [*settings, *(f"method.params.loss_params.{text}" for text in of_loss)])
    (tmp_path / "recipe.toml").write_text(recipe.to_toml())
    assert Recipe.load(tmp_path / "recipe.toml") == recipe
    train(recipe, tmp_path / "run")  # nothing is learned: lr is 0
    trained = load_run(tmp_path / "run")
    assert trained.recipe.method == recipe.method
    end = Store(tmp_path / "run" / "checkpoints").load()
    assert end is not None
    assert bool(end.tensors["method/first.head/fc/bias"].any()) == (bias != "zero")
    assert isinstance(trained.method, Relabel)
    assert biases(trained.method)[0].any()
    how = {"mechanism": "rate", "rate": 0.25, "a": 1.0, "unlabelled": "absent"}
    assert how_written(trained.method) == (how if loss == "selection" else {})


def test_the_estimator_hands_parameters_to_the_loss() -> None:
    X = np.random.default_rng(0).normal(size=(60, 5))
    Y = np.where(X[:, :3] > 0, 1, 0)
    Y[::4] = 0
    given = {"loss_params": {"mechanism": "rate", "unlabelled": "absent"}}
    model = PartialLabelClassifier("relabel", method_params=given, epochs=2, min_steps=0, random_state=0).fit(X, Y)
    how = how_written(model.method_)
    assert (how["mechanism"], how["unlabelled"]) == ("rate", "absent")
    assert how["rate"].item() == pytest.approx(model.history_[-1]["rate"])
    biased = PartialLabelClassifier("relabel", method_params={"loss": "em"}, lr=0, epochs=1, random_state=0).fit(X, Y)
    assert not biased.method_.first.get_buffer("head/fc/bias").any()
    with pytest.raises(ValueError, match="loss_params"):
        PartialLabelClassifier("relabel", method_params={"loss_params": {"mechanism": "some"}}).fit(X, Y)


def test_tuning_tries_the_loss_with_its_parameters() -> None:
    recipe = Recipe.load(None, ["method.name=relabel", "method.params.loss_params.mechanism=rate"])
    assert selection_in(recipe).method.params == {"mechanism": "rate"}
    other = recipe.with_settings(["method.params.loss=em", "method.params.loss_params={alpha=0.1}"])
    assert selection_in(other).method.params == {}
    wrong = recipe.with_settings(["method.params.loss_params=rate"])
    assert selection_in(wrong).method.params == {}


@pytest.mark.parametrize(
    ("params", "part"),
    [
        ({"loss_params": {"mechanism": "some"}}, "loss_params: loss selection: mechanism is 'some'"),
        ({"loss_params": {"mechanizm": "rate"}}, "loss_params: loss selection: unknown parameter 'mechanizm'; did you"),
        ({"loss_params": {"rate": 0.5}}, "loss_params: loss selection: rate is 0.5, but"),
        ({"loss_params": {"mechanism": "rate", "rate": 2}}, "loss_params: loss selection: rate is 2"),
        ({"loss": "an", "loss_params": {"mechanism": "rate"}}, "loss_params: loss an: unknown parameter 'mechanism'"),
        ({"loss_params": ""}, "loss_params is ''; give a table"),
        ({"loss_params": "rate"}, "loss_params is 'rate'; give a table"),
        ({"loss_params": {1: 2}}, "loss_params is {1: 2}; give a table"),
    ],
)
def test_bad_parameters(params: dict[str, Any], part: str) -> None:
    with pytest.raises(RecipeError, match=f"^method relabel: {part}"):
        relabel(**params)
