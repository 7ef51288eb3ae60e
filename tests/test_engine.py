"""The training loop: learns, resumes exactly, chooses by its rule, stops at the first NaN."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from pluralis.checkpoint import Snapshot, Store, state_hash
from pluralis.data.loader import Loader, TensorImages
from pluralis.engine import Fit, fit
from pluralis.errors import CheckpointError, DataError, Interrupted, NonFiniteLoss
from pluralis.evaluate import Last, predict
from pluralis.labels import Labels
from pluralis.losses import create_loss
from pluralis.method import Batch, Clock, LossMethod, Method, PredictTrain, Setup
from pluralis.methods import create_method
from pluralis.models import create_model
from pluralis.stage import Stage
from tests.toys import TwoStages, loss_method, plan, scenes, stopped_at


def test_the_loss_falls_and_the_last_epoch_is_kept() -> None:
    method, data = loss_method("an"), scenes(64)
    result = fit(method, data, plan(epochs=4, augment="none"))
    losses = [epoch["loss"] for epoch in result.history]
    assert losses[-1] < 0.9 * losses[0]
    assert (result.rule, result.chosen) == ("last epoch", 3)


def test_a_plan_that_leaves_the_epochs_open_goes_by_the_rows() -> None:
    data = Loader(TensorImages(torch.eye(48)), Labels.from_lists([[0], [1]] * 24, 2), size=1)
    method = LossMethod(nn.Linear(48, 2), create_loss("an"))
    result = fit(method, data, plan(epochs=0, batch_size=1, augment="none"))
    assert len(result.history) == 13  # 624 steps


@pytest.mark.parametrize("name", ["an", "cls", "relabel"])
@pytest.mark.parametrize(
    ("weights", "stated", "kept"), [(True, None, True), (False, None, False), (True, False, False), (False, True, True)]
)
def test_norms_of_a_backbone_that_was_trained_before_keep_their_statistics(
    tmp_path: Path, name: str, weights: bool, stated: bool | None, kept: bool
) -> None:
    """In every network and stage of a method; scales and shifts learn all the same."""
    save_file(create_model("tiny", 10).backbone.state_dict(), tmp_path / "w.safetensors")
    file, data = str(tmp_path / "w.safetensors") if weights else None, scenes(40)
    method = create_method(name, Setup(lambda: create_model("tiny", 10, weights=file), 10, data.labels))

    def backbones() -> dict[str, Tensor]:
        nets = dict(method.networks())
        return {f"{i}.{key}": value.clone() for i in nets for key, value in nets[i].backbone.state_dict().items()}

    before = backbones()
    fit(method, data, plan(epochs=1, augment="none", freeze_bn=stated))
    same = {key for key, value in backbones().items() if torch.equal(value, before[key])}
    statistics = {key for key in before if key.endswith(("running_mean", "running_var"))}
    assert statistics
    assert same >= statistics if kept else not same & statistics
    assert not same & {key for key in before if key.endswith("bn1.weight")}


def test_norms_of_a_backbone_of_ones_own_stay_if_it_says_that_it_was_trained() -> None:
    for pretrained in (False, True):
        net = create_model("tiny", 10)
        net.backbone.pretrained = pretrained
        before = net.backbone.get_submodule("bn1").running_mean.clone()  # type: ignore[union-attr, operator]
        fit(LossMethod(net, create_loss("an")), scenes(40), plan(epochs=1, augment="none"))
        assert torch.equal(before, net.backbone.get_submodule("bn1").running_mean) == pretrained  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", [0, 1, 4, 5, 6, 9, 13, 17])
def test_a_stopped_run_goes_on_exactly(tmp_path: Path, steps: int) -> None:
    """In mid-epoch, at the end of an epoch and of a stage, with label state, EMA, dropout and a counter."""
    data = scenes(40)
    whole = TwoStages(40)
    expected = fit(whole, data, plan(ema=0.9, clip=1.0), seed=3)
    with pytest.raises(Interrupted):
        fit(TwoStages(40), data, plan(ema=0.9, clip=1.0), seed=3, store=Store(tmp_path), should_stop=stopped_at(steps))
    again = TwoStages(40, seed=9)  # other starting weights: everything must come from the checkpoint
    found = fit(again, data, plan(ema=0.9, clip=1.0), seed=3, store=Store(tmp_path))
    assert state_hash(again.state_dict()) == state_hash(whole.state_dict())
    assert (found.history, found.chosen) == (expected.history, expected.chosen)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_run_killed_between_two_stages_goes_on_exactly(tmp_path: Path, optimizer: str) -> None:
    """The checkpoint there still holds the optimizer and the average of the stage before."""
    data = scenes(40)
    whole = TwoStages(40)
    expected = fit(whole, data, plan(ema=0.9, optimizer=optimizer), seed=3)

    class Killed(Exception):
        pass

    def die(clock: Clock, steps: int, figures: dict[str, float]) -> None:
        if figures and (clock.stage, clock.epoch) == (0, 2):
            raise Killed

    with pytest.raises(Killed):
        fit(TwoStages(40), data, plan(ema=0.9, optimizer=optimizer), seed=3, store=Store(tmp_path), report=die)
    again = TwoStages(40, seed=9)
    found = fit(again, data, plan(ema=0.9, optimizer=optimizer), seed=3, store=Store(tmp_path))
    assert state_hash(again.state_dict()) == state_hash(whole.state_dict())
    assert found.history == expected.history


class Noted(Store):
    """Says where it was saved: (stage, epoch, step)."""

    def __init__(self, folder: Path, every_seconds: float) -> None:
        super().__init__(folder, every_seconds=every_seconds)
        self.places: list[tuple[int, ...]] = []

    def save(self, position: str, snapshot: Snapshot) -> None:
        super().save(position, snapshot)
        self.places.append(tuple(map(int, position.split("-"))))


def test_an_epoch_is_saved_when_it_is_time_and_a_stage_always(tmp_path: Path) -> None:
    data, saved = scenes(40), list[list[tuple[int, ...]]]()
    for seconds in (1e9, 0.0):
        store = Noted(tmp_path / str(seconds), seconds)
        fit(TwoStages(40), data, plan(), store=store)
        saved.append(store.places)
    assert saved[0] == [(1, 0, 0), (2, 0, 0)]
    steps = [(stage, epoch, step) for stage, count in ((0, 5), (1, 4)) for epoch in (0, 1) for step in range(count + 1)]
    assert saved[1] == [*steps[1:], (2, 0, 0)]


@pytest.mark.parametrize(("seconds", "last"), [(0.0, (0, 1, 3)), (1e9, (1, 1, 2))])
def test_a_killed_run_goes_on_exactly(tmp_path: Path, seconds: float, last: tuple[int, ...]) -> None:
    """Also where the epochs before were not saved, but only the end of the stage before."""
    data, whole = scenes(40), TwoStages(40)
    expected = fit(whole, data, plan(ema=0.9), seed=3)

    class Killed(Exception):
        pass

    def die(clock: Clock, steps: int, figures: dict[str, float]) -> None:
        if (clock.stage, clock.epoch, clock.step) == last:
            raise Killed

    store = Noted(tmp_path, seconds)
    with pytest.raises(Killed):
        fit(TwoStages(40), data, plan(ema=0.9), seed=3, store=store, report=die)
    assert store.places[-1] == ((0, 1, 2) if seconds == 0.0 else (1, 0, 0))
    again = TwoStages(40, seed=9)
    found = fit(again, data, plan(ema=0.9), seed=3, store=Store(tmp_path))
    assert state_hash(again.state_dict()) == state_hash(whole.state_dict())
    assert found.history == expected.history


def test_a_score_that_is_not_a_number_is_an_error() -> None:
    with pytest.raises(DataError, match="scripted"):
        fit(loss_method(), scenes(16), plan(), rule=Scripted([float("nan"), 1.0]))


def test_watched_data_is_evaluated_and_has_no_influence() -> None:
    plain, watched = loss_method(), loss_method()
    fit(plain, scenes(16), plan())
    result = fit(watched, scenes(16), plan(), watch={"test": scenes(20, "test", complete=True)})
    assert all(0 < epoch["test mAP"] <= 100 for epoch in result.history)
    assert state_hash(watched.state_dict()) == state_hash(plain.state_dict())


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    data = scenes(16)
    first, second = loss_method(), loss_method(seed=5)
    fit(first, data, plan(), store=Store(tmp_path))

    def no_step(clock: Clock, steps: int, figures: dict[str, float]) -> None:
        raise AssertionError("trained again")

    fit(second, data, plan(), store=Store(tmp_path), report=no_step)
    assert state_hash(second.state_dict()) == state_hash(first.state_dict())


class Scripted:
    """A rule that likes a given epoch best."""

    name = "scripted"

    def __init__(self, scores: list[float]) -> None:
        self.scores = scores
        self.seen: list[str] = []
        self.weights: list[dict[str, Tensor]] = []

    def score(self, method: Method) -> dict[str, float]:
        self.seen.append(state_hash(method.state_dict()))
        self.weights.append(method.weights())
        return {"score": self.scores[len(self.seen) - 1]}

    def describe(self) -> str:
        return "scripted"


@pytest.mark.parametrize("ema", [0.0, 0.9])
def test_the_weights_of_the_best_epoch_are_left_in_the_method(ema: float) -> None:
    rule, method = Scripted([0.1, 0.7, 0.3]), loss_method()
    result = fit(method, scenes(16), plan(epochs=3, ema=ema), rule=rule)
    assert result.chosen == 1
    assert state_hash(method.state_dict()) == rule.seen[1]
    assert len(set(rule.seen)) == 3


def test_the_best_epoch_survives_a_restart(tmp_path: Path) -> None:
    rule, data = Scripted([0.9, 0.2, 0.1]), scenes(16)
    with pytest.raises(Interrupted):
        fit(loss_method(), data, plan(epochs=3), rule=rule, store=Store(tmp_path), should_stop=stopped_at(3))
    method, later = loss_method(seed=4), Scripted([0.2, 0.1])
    result = fit(method, data, plan(epochs=3), rule=later, store=Store(tmp_path))
    assert result.chosen == 0
    assert state_hash(method.state_dict()) == rule.seen[0]


def test_epochs_of_an_earlier_stage_do_not_compete() -> None:
    """They would win wherever the rule likes what the first stage learns more than what it was learned for."""
    rule, method = Scripted([0.9, 0.8, 0.2, 0.1]), TwoStages(16)
    result = fit(method, scenes(16), plan(epochs=2), rule=rule)
    assert (result.chosen, result.history[result.chosen]["stage"]) == (2, 1.0)
    assert state_hash(method.weights()) == state_hash(rule.weights[2])


@pytest.mark.parametrize("steps", [1, 2, 3, 5])
def test_nor_after_a_restart(tmp_path: Path, steps: int) -> None:
    """In the first stage, which has two steps, at its end and after it."""
    data, settings, scores = scenes(16), plan(epochs=2, batch_size=16), [0.9, 0.8, 0.2, 0.1]
    first = Scripted(scores)
    with pytest.raises(Interrupted):
        fit(TwoStages(16), data, settings, rule=first, store=Store(tmp_path), should_stop=stopped_at(steps))
    later = Scripted(scores[len(first.seen) :])
    result = fit(TwoStages(16, seed=4), data, settings, rule=later, store=Store(tmp_path))
    assert (len(result.history), result.chosen) == (4, 2)


def test_training_images_are_predicted_by_the_averaged_weights() -> None:
    seen = []

    class Looks(TwoStages):
        def start_stage(self, clock: Clock, predict_train: PredictTrain) -> None:
            if clock.stage == 1:
                seen.append((predict_train(), predict(self, scenes(16))))
                self.load_state_dict(rule.weights[-1], strict=False)
                seen.append((predict(self, scenes(16)),))

    rule = Scripted([0.1, 0.2, 0.3, 0.4])
    fit(Looks(16), scenes(16), plan(epochs=2, ema=0.9), rule=rule)
    (asked, raw), (evaluated,) = seen
    assert torch.equal(asked, evaluated)
    assert not torch.allclose(asked, raw)


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    hashes = []
    for seed in (0, 0, 1):
        method = loss_method(dropout=0.3)
        fit(method, scenes(24), plan(augment="crop"), seed=seed)
        hashes.append(state_hash(method.state_dict()))
    assert hashes[0] == hashes[1] != hashes[2]


def test_frozen_parts_do_not_move() -> None:
    method = loss_method()
    before = {k: v.clone() for k, v in method.state_dict().items()}
    fit(method, scenes(16), plan(freeze=-1))
    moved = {k for k, v in method.state_dict().items() if not torch.equal(v, before[k])}
    assert moved
    assert all(k.startswith("net.head") for k in moved)


def test_the_head_learns_at_its_own_rate() -> None:
    """With plain SGD the head's step is head_lr times as large for the same gradient."""
    moves = []
    for factor in (1.0, 7.0):
        method = loss_method()
        before = method.net.head.fc.bias.detach().clone()  # type: ignore[union-attr]
        fit(method, scenes(8), plan(epochs=1, head_lr=factor, optimizer="sgd", schedule="constant", augment="none"))
        moves.append(method.net.head.fc.bias.detach() - before)  # type: ignore[union-attr]
    torch.testing.assert_close(moves[1], 7 * moves[0])


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_optimizers_equal_a_hand_written_loop(optimizer: str) -> None:
    data, method, hand = scenes(16), loss_method(), loss_method()
    fit(method, data, plan(epochs=1, optimizer=optimizer, weight_decay=0.01, schedule="constant", augment="none"))
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    more = {"momentum": 0.9} if optimizer == "sgd" else {}
    tool = kinds[optimizer](hand.parameters(), lr=1e-3, weight_decay=0.01, fused=True, **more)  # type: ignore[arg-type]
    hand.train()
    for batch in data.batches(8, ["none"], 0, Clock()):
        tool.zero_grad()
        hand(batch, Clock())["loss"].backward()
        tool.step()
    for name, value in method.state_dict().items():
        torch.testing.assert_close(value, hand.state_dict()[name], rtol=1e-4, atol=1e-6, msg=name)


def test_clipping_bounds_each_group_on_its_own() -> None:
    """SGD without momentum, rate 1: the move of a group is its clipped gradient, so it is at most `clip` long."""
    method = loss_method()
    before = {k: v.detach().clone() for k, v in method.named_parameters()}
    settings = {"optimizer": "sgd", "momentum": 0.0, "lr": 1.0, "schedule": "constant", "clip": 1e-3, "augment": "none"}
    fit(method, scenes(8), plan(epochs=1, **settings))
    for part in ("net.backbone", "net.head"):
        move = [v.detach() - before[k] for k, v in method.named_parameters() if k.startswith(part)]
        assert torch.cat([m.flatten() for m in move]).norm().item() == pytest.approx(1e-3, rel=1e-3)


class Poisoned(nn.Module):
    """A loss that turns bad at one step."""

    batch_coupled = False

    def __init__(self, epoch: int, value: float) -> None:
        super().__init__()
        self.epoch, self.value = epoch, value

    def forward(self, logits: Tensor, labels: Tensor, epoch: int = 0, epochs: int = 1) -> Tensor:
        return logits.square().mean() * (self.value if epoch == self.epoch else 1.0)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_training_stops_at_the_first_bad_loss_and_saves_nothing_of_it(tmp_path: Path, value: float) -> None:
    method = loss_method()
    method.loss = Poisoned(1, value)
    with pytest.raises(NonFiniteLoss, match=r"loss = (nan|inf) at stage 1, epoch 2, step 1") as caught:
        fit(method, scenes(16), plan(), store=Store(tmp_path, every_seconds=0))
    assert "row " in str(caught.value)
    saved = Store(tmp_path).load()
    assert saved is not None
    assert saved.meta["clock"] == [0, 1, 0]
    assert all(torch.isfinite(v).all() for v in saved.tensors.values() if v.is_floating_point())


def test_the_rows_with_bad_logits_are_named() -> None:
    features = torch.randn(12, 5)
    features[7, 2] = float("nan")
    data = Loader(TensorImages(features), Labels.from_lists([[0]] * 12, 3), size=8)
    net = nn.Linear(5, 3)
    with pytest.raises(NonFiniteLoss, match="non-finite logits are row 7;"):
        fit(LossMethod(net, loss_method("an").loss), data, plan(batch_size=6))


class BadGradient(Method):
    """A finite loss whose gradient is not."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3))

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        return {"loss": self.w.abs().sqrt().sum()}

    def predict(self, x: Tensor) -> Tensor:
        return self.w.expand(len(x), 3)


def test_weights_that_are_not_numbers_are_never_saved(tmp_path: Path) -> None:
    features = Loader(TensorImages(torch.randn(4, 5)), Labels.from_lists([[0]] * 4, 3), size=8)
    with pytest.raises((CheckpointError, NonFiniteLoss)):
        fit(BadGradient(), features, plan(batch_size=4, optimizer="sgd"), store=Store(tmp_path))
    assert Store(tmp_path).load() is None


def test_predict_leaves_the_mode_and_the_weights_alone() -> None:
    method, data = loss_method(dropout=0.5), scenes(10)
    method.train()
    before = state_hash(method.state_dict())
    first, second = predict(method, data), predict(method, data, batch_size=3)
    assert method.training
    assert state_hash(method.state_dict()) == before
    torch.testing.assert_close(first, second)


@pytest.mark.slow
def test_compiled_networks_give_the_same_numbers() -> None:
    from pluralis.runtime import Runtime

    results: list[Fit] = []
    for compile in (False, True):
        results.append(fit(loss_method(), scenes(16), plan(epochs=1, augment="none"), runtime=Runtime(compile=compile)))
    assert results[1].history[0]["loss"] == pytest.approx(results[0].history[0]["loss"], rel=1e-3)


class Seen(nn.Module):
    """A loss that remembers the type of the logits."""

    batch_coupled = False

    def __init__(self) -> None:
        super().__init__()
        self.types: set[torch.dtype] = set()

    def forward(self, logits: Tensor, labels: Tensor, epoch: int = 0, epochs: int = 1) -> Tensor:
        self.types.add(logits.dtype)
        return logits.float().square().mean()


def test_bf16_computes_in_bf16_and_keeps_float32_weights() -> None:
    from pluralis.runtime import Runtime

    method = loss_method()
    method.loss = loss = Seen()
    maps: set[torch.dtype] = set()
    method.net.backbone.register_forward_hook(lambda module, inputs, output: maps.add(output.dtype))
    result = fit(method, scenes(32), plan(epochs=3, augment="none"), runtime=Runtime(precision="bf16"))
    assert maps == {torch.bfloat16}
    assert loss.types == {torch.float32}
    assert result.history[-1]["loss"] < result.history[0]["loss"]
    assert {p.dtype for p in method.parameters()} == {torch.float32}


class Repeated(LossMethod):
    """Three stages from the same start, which join as they are told."""

    def __init__(self, joined: tuple[bool, ...]) -> None:
        plain = loss_method("an", dropout=0.2)
        super().__init__(plain.net, plain.loss)
        self.first = {key: value.clone() for key, value in self.net.state_dict().items()}
        self.joined = joined
        self.asked: list[Tensor] = []

    def stages(self, plan: Stage) -> list[Stage]:
        return [plan] * len(self.joined)

    def joins(self, stage: int) -> bool:
        return self.joined[stage]

    def start_stage(self, clock: Clock, predict_train: PredictTrain) -> None:
        self.asked.append(predict_train())
        self.net.load_state_dict(self.first)


class Recorded(Last):
    """Remembers the weights that are evaluated."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Tensor]] = []

    def score(self, method: Method) -> dict[str, float]:
        self.seen.append(method.weights())
        return {}


@pytest.mark.parametrize("ema", [0.0, 0.8])
def test_stages_that_join_are_evaluated_and_asked_by_their_mean(ema: float) -> None:
    data, stage = scenes(24), plan(ema=ema, freeze_bn=False)

    def trained(*joined: bool) -> tuple[Repeated, list[dict[str, Tensor]]]:
        method, rule = Repeated(joined), Recorded()
        fit(method, data, stage, rule=rule, seed=3)
        return method, rule.seen[1::2]  # after the second epoch of each stage

    _, alone = trained(False, False, False, False)
    method, seen = trained(False, True, True, False)
    for number, parts in enumerate((alone[:1], alone[:2], alone[:3], alone[3:])):
        for key, value in seen[number].items():
            expected = torch.stack([part[key].double() for part in parts]).mean(0)
            if value.is_floating_point():
                torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=1e-6)
            else:
                assert torch.equal(value, parts[-1][key])
    for number in (1, 2, 3):  # before a stage begins, by what the one before it ended with
        asked = Repeated((False,))
        asked.load_state_dict(seen[number - 1])
        torch.testing.assert_close(method.asked[number], predict(asked, data))
    last, joined = trained(False, True, True)
    assert all(torch.equal(value, joined[-1][key]) for key, value in last.weights().items())  # what is left behind


def test_a_stage_may_learn_from_some_rows_alone() -> None:
    data, seen = scenes(20), []

    class Some(LossMethod):
        def learned_rows(self, stage: int) -> Tensor | None:
            return torch.tensor([3, 1, 8, 15, 17])

        def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
            seen.append(batch)
            return super().forward(batch, clock)

    plain = loss_method("an")
    fit(Some(plain.net, plain.loss), data, plan(epochs=2, batch_size=2))
    assert [len(batch.index) for batch in seen] == [2, 3] * 2  # a single row joins the batch before
    for epoch in (seen[:2], seen[2:]):
        assert sorted(torch.cat([batch.index for batch in epoch]).tolist()) == [1, 3, 8, 15, 17]
    for batch in seen:
        assert torch.equal(batch.labels, torch.from_numpy(data.labels.dense(batch.index.numpy())))
