"""The options of relabelling: teachers by folds, strong students, soft labels that move, two students."""

from __future__ import annotations

import math
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pluralis.checkpoint import Store, state_hash
from pluralis.data.loader import Loader
from pluralis.engine import Report, fit
from pluralis.errors import Interrupted, RecipeError
from pluralis.evaluate import predict
from pluralis.features import frozen_network
from pluralis.labels import Labels
from pluralis.method import Batch, Clock, Setup
from pluralis.methods import create_method, start_heads
from pluralis.methods.relabel import Relabel
from pluralis.methods.start import start_values
from pluralis.models import create_model
from pluralis.stage import Stage
from tests.methods.one_and_two import check_one_and_two
from tests.toys import plan, scenes, stopped_at

LABELS = Labels.from_lists([[0], [1], [2], [3], [0, 2], []], 4, negatives=[[3], [], [], [1], [], [2]])
GIVEN = LABELS.dense()
ALL = {
    "folds": 2, "student": "strong", "refresh": 0.3, "pair": True, "rounds": 2, "student_start": "soft", "students": 2,
}  # fmt: skip


def relabel(labels: Labels = LABELS, seed: int = 0, **params: Any) -> Relabel:
    torch.manual_seed(seed)
    classes = len(labels.classes)
    setup = Setup(lambda: create_model("tiny", classes, dropout=0.1), classes, labels)
    method = create_method("relabel", setup, {"views": "fast", **params})
    assert isinstance(method, Relabel)
    return method


def posterior(logits: torch.Tensor, labels: np.ndarray) -> np.ndarray:
    """By the sum over all sets of present labels: as many were picked as are written, any of them equally likely."""
    p = 1 / (1 + np.exp(-logits.detach().double().numpy()))
    found = np.zeros_like(p)
    for row, (chance, given) in enumerate(zip(p, labels, strict=True)):
        total = 0.0
        for bits in product((0, 1), repeat=len(chance)):
            there = np.array(bits)
            if (there[given > 0] == 0).any() or (there[given < 0] == 1).any():
                continue
            written = int((given > 0).sum())
            picked = 1 / math.comb(int(there.sum()), written)
            weight = picked * np.prod(np.where(there, chance, 1 - chance))
            found[row] += weight * there
            total += weight
        found[row] /= total
    return found


def cross_entropy(logits: torch.Tensor, target: np.ndarray) -> float:
    p = 1 / (1 + np.exp(-logits.detach().double().numpy()))
    return float(-(target * np.log(p) + (1 - target) * np.log(1 - p)).mean())


def batch_of(rows: list[int], weight: float = 1.0) -> Batch:
    x = torch.rand(len(rows), 3, 24, 24, generator=torch.Generator().manual_seed(1)) * 255
    return Batch((x,), torch.from_numpy(LABELS.dense(rows)), torch.tensor(rows), weight)


def labelled(seed: int = 0, **params: Any) -> tuple[Relabel, np.ndarray]:
    """A method whose students start, and its soft labels, 0 where a label is known."""
    method = relabel(seed=seed, **params).eval()
    method.start_stage(Clock(), lambda **asked: torch.zeros(0))
    method.start_stage(Clock(stage=1), lambda views: torch.randn(6, 4))
    return method, method.soft.value.double().numpy()


def test_each_teacher_leaves_its_fold_out_of_the_loss() -> None:
    method = relabel(folds=3, loss="an").eval()
    torch.manual_seed(4)
    method.start_stage(Clock(), lambda **asked: torch.zeros(0))
    assert sorted(method.fold.tolist()) == [0, 0, 1, 1, 2, 2]
    rows = [5, 0, 2, 3]
    batch = batch_of(rows)
    logits = method.net(batch.views[0])
    for stage in range(3):
        kept = [place for place, row in enumerate(rows) if int(method.fold[row]) != stage]
        share = len(kept) / len(rows)
        expected = share * cross_entropy(logits[kept], (LABELS.dense(rows)[kept] > 0).astype(float))
        assert method(batch, Clock(stage=stage))["loss"].item() == pytest.approx(expected, rel=1e-5)


def test_a_batch_of_nothing_but_the_fold_has_no_loss() -> None:
    for loss in ("selection", "bce", "epr", "nnpu"):
        method = relabel(folds=2, loss=loss)
        rows = (method.fold == 0).nonzero().flatten().tolist()
        value = method(batch_of(rows), Clock(stage=0))["loss"]
        value.backward()
        assert value.item() == 0.0
        assert all(p.grad is not None and not p.grad.any() for p in method.net.parameters())


def test_a_teacher_knows_nothing_of_the_labels_that_it_is_asked_about() -> None:
    data = scenes(16)

    def first_teacher(labels: Labels, seed: int = 3) -> tuple[Relabel, torch.Tensor]:
        method, seen = relabel(labels, folds=2), []
        start = method.start_stage

        def start_stage(clock: Clock, predict_train: Any) -> None:
            if clock.stage == 1:
                seen.append(predict(method, loader))
            start(clock, predict_train)

        method.start_stage = start_stage  # type: ignore[method-assign]
        loader = Loader(data.images, labels, size=data.size)
        fit(method, loader, plan(epochs=1), seed=seed)
        return method, seen[0]

    method, expected = first_teacher(data.labels)
    fold = method.fold.numpy()
    other, _ = first_teacher(data.labels, seed=4)
    assert not np.array_equal(other.fold.numpy(), fold)
    for changed in (0, 1):
        given = data.labels.dense()
        given[fold == changed] = np.roll(given[fold == changed], 1, axis=1)
        again, found = first_teacher(Labels.from_dense(given))
        assert np.array_equal(again.fold.numpy(), fold)
        assert torch.equal(found, expected) == (changed == 0)


def test_each_teacher_labels_its_fold_and_a_student_labels_all() -> None:
    method = relabel(folds=2, rounds=2)
    start_heads(method, LABELS)
    method.start_stage(Clock(), lambda **asked: torch.zeros(0))
    first, fold = state_hash(method.net.state_dict()), method.fold.clone()
    given = [torch.randn(6, 4) for _ in range(3)]
    expected = np.zeros((6, 4))
    for stage in (1, 2, 3):
        torch.nn.init.normal_(method.net.head.get_parameter("fc.weight"))
        asked: list[torch.Tensor | None] = []

        def predict_train(views: Any, rows: torch.Tensor | None = None, stage: int = stage, asked: Any = asked) -> Any:
            asked.append(rows)
            return given[stage - 1] if rows is None else given[stage - 1][rows]

        method.start_stage(Clock(stage=stage), predict_train)
        mine = fold == stage - 1 if stage < 3 else torch.ones(6, dtype=torch.bool)
        if stage < 3:
            assert asked[0] is not None
            assert asked[0].tolist() == mine.nonzero().flatten().tolist()
        else:
            assert asked == [None]
        expected[mine] = posterior(given[stage - 1], GIVEN)[mine]
        found = method.soft.value.double().numpy()
        np.testing.assert_allclose(found, np.where(GIVEN == 0, expected, 0), rtol=1e-3, atol=1e-6)
        assert torch.equal(method.soft.since[mine], torch.from_numpy(GIVEN == 0)[mine] * (stage + 1))
        assert state_hash(method.net.state_dict()) == first
    assert len(method.stages(plan())) == 4


@pytest.mark.parametrize("view", ["strong", "strong-crop"])
def test_students_alone_see_the_strong_view(view: str) -> None:
    data, seen = scenes(16), {}
    method = relabel(data.labels, student=view)
    forward = method.forward

    def watched(batch: Batch, clock: Clock) -> Any:
        seen.setdefault(clock.stage, batch.views)
        return forward(batch, clock)

    method.forward = watched  # type: ignore[method-assign]
    fit(method, data, plan(epochs=1, augment="flip"), seed=3)
    for stage, name in enumerate(("flip", view)):
        (expected, *_) = data.batches(8, [name], 3, Clock(stage=stage))
        assert len(seen[stage]) == 1
        assert torch.equal(seen[stage][0], expected.views[0])
    with pytest.raises(RecipeError, match="train.augment"):
        frozen_network(method, Stage(freeze=-1, augment="none"))
    assert frozen_network(relabel(), Stage(freeze=-1, augment="none"))


@pytest.mark.parametrize(
    ("head", "params", "stated", "expected"),
    [
        ("lse", {}, "method", "equal"), ("linear", {}, "method", "log-odds"), ("lse", {}, "log-odds", "log-odds"),
        ("lse", {"student_start": "soft"}, "method", "soft"), ("linear", {"student_start": "soft"}, "zero", "soft"),
    ],
)  # fmt: skip
def test_students_start_from_what_is_asked_for(
    head: str, params: dict[str, Any], stated: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pluralis.methods.relabel._ROWS_AT_ONCE", 4)
    setup = Setup(lambda: create_model("tiny", 4, head), 4, LABELS)
    method = create_method("relabel", setup, {"views": "fast", **params})
    start_heads(method, LABELS, stated)
    (_, net), *_ = method.networks()
    own = "equal" if head == "lse" else "log-odds"
    teacher = start_values(LABELS, own if stated == "method" else stated)  # in any case
    assert torch.equal(net.head.get_parameter("fc.bias"), teacher)
    logits = torch.randn(len(LABELS), 4)
    method.start_stage(Clock(0), lambda views, rows=None: logits)
    method.start_stage(Clock(1), lambda views, rows=None: logits)
    found = net.head.get_parameter("fc.bias")
    if expected != "soft":
        assert torch.equal(found, start_values(LABELS, expected))
        return
    learned = np.where(GIVEN == 0, posterior(logits, GIVEN), GIVEN > 0).sum(0)
    expected_bias = np.log((learned + 0.5) / (len(GIVEN) - learned + 0.5))
    np.testing.assert_allclose(found.detach().numpy(), expected_bias, atol=2e-3)  # soft labels are float16


def test_soft_labels_move_with_the_student_in_the_second_half_of_the_last_stage() -> None:
    method, before = labelled(refresh=0.2, rounds=2)
    method.soft.value[:] = torch.from_numpy(before)
    rows = [4, 1, 5, 0]
    batch = batch_of(rows)
    target = np.where(GIVEN == 0, before, GIVEN > 0)[rows]
    logits = method.predict(batch.views[0])
    for clock in (Clock(1, epoch=2, epochs=3), Clock(2, epoch=1, epochs=3), Clock(0, epoch=2, epochs=3)):
        method(batch, clock)
        method.after_step(clock)
        assert np.array_equal(method.soft.value.double().numpy(), before)
    clock = Clock(2, epoch=2, epochs=4)
    loss = method(batch, clock)["loss"]
    assert np.array_equal(method.soft.value.double().numpy(), before)
    assert loss.item() == pytest.approx(cross_entropy(logits, target), rel=1e-5)
    method.after_step(clock)
    expected = before.copy()
    expected[rows] = np.where(GIVEN[rows] == 0, 0.8 * before[rows] + 0.2 * posterior(logits, GIVEN[rows]), 0)
    np.testing.assert_allclose(method.soft.value.double().numpy(), expected, rtol=1e-3, atol=1e-6)
    assert torch.equal(method.soft.since != 0, torch.from_numpy(GIVEN == 0))
    moved = method.soft.value.mul_(0.5).clone()
    method.after_step(clock)  # what one step left is used once
    method(batch_of([2], weight=0.0), clock)  # a stand-in for no row
    method.after_step(clock)
    assert torch.equal(method.soft.value, moved)


def test_students_learn_from_each_other_and_predict_together() -> None:
    method, soft = labelled(pair=True, refresh=0.5)
    assert method.peer is not None
    rows = [3, 4, 0]
    batch, clock = batch_of(rows), Clock(1, epoch=1, epochs=2)
    f, g = method.net(batch.views[0]), method.peer(batch.views[0])
    assert not torch.equal(f, g)
    torch.testing.assert_close(method.predict(batch.views[0]), (f + g) / 2)
    written = GIVEN[rows]
    target = np.where(written == 0, soft[rows], written > 0)
    by_f, by_g = posterior(f, written), posterior(g, written)
    terms = method(batch, clock)
    assert terms["f"].item() == pytest.approx(cross_entropy(f, (target + by_g) / 2), rel=1e-5)
    assert terms["g"].item() == pytest.approx(cross_entropy(g, (target + by_f) / 2), rel=1e-5)
    terms["f"].backward()
    assert all(p.grad is not None for p in method.net.parameters())
    assert all(p.grad is None for p in method.peer.parameters())
    method.after_step(clock)
    expected = np.where(written == 0, 0.5 * soft[rows] + 0.25 * (by_f + by_g), 0)
    np.testing.assert_allclose(method.soft.value[rows].double().numpy(), expected, rtol=1e-3, atol=1e-6)


def test_further_students_start_alike_and_learn_the_same_labels() -> None:
    method = relabel(students=3, rounds=2, student_start="soft")
    assert len(method.stages(plan())) == 7
    assert [method.joins(stage) for stage in range(7)] == [False, False, True, True, False, True, True]
    method.start_stage(Clock(), lambda **asked: torch.zeros(0))
    starts, labels = [], []
    for stage in range(1, 7):
        asked: list[Any] = []

        def predict_train(views: Any, asked: Any = asked, stage: int = stage) -> torch.Tensor:
            asked.append(views)
            return torch.full((6, 4), float(stage))

        torch.nn.init.normal_(method.net.head.get_parameter("fc.weight"))
        method.start_stage(Clock(stage=stage), predict_train)
        assert len(asked) == (stage in (1, 4))
        starts.append(state_hash(method.net.state_dict()))
        labels.append(state_hash(method.soft.state_dict()))
    for found in (starts, labels):
        assert [found.index(value) for value in found] == [0, 0, 0, 3, 3, 3]


def test_the_second_of_a_pair_has_no_say_before_it_is_a_student_and_starts_anew_too() -> None:
    method = relabel(pair=True, rounds=2).eval()
    assert method.peer is not None
    start_heads(method, LABELS)
    method.start_stage(Clock(), lambda **asked: torch.zeros(0))
    x, first = batch_of([0, 1]).views[0], state_hash(method.peer.state_dict())
    assert torch.equal(method.predict(x), method.net(x))
    for stage in (1, 2):
        torch.nn.init.normal_(method.peer.head.get_parameter("fc.weight"))
        method.start_stage(Clock(stage=stage), lambda views: torch.zeros(6, 4))
        assert state_hash(method.peer.state_dict()) == first
        assert not torch.equal(method.predict(x), method.net(x))


class Killed(Exception):
    """The process ends between two stages: the one is saved, the other has not begun."""


def killed_after(stage: int) -> Report:
    def report(clock: Clock, steps: int, figures: dict[str, float]) -> None:
        if figures and (clock.stage, clock.epoch) == (stage, clock.epochs):
            raise Killed

    return report


@pytest.mark.parametrize("params", [{"refresh": 0.3}, ALL], ids=["one", "all"])
def test_a_stopped_run_ends_with_the_same_bits(params: dict[str, Any], tmp_path: Path) -> None:
    data, stage = scenes(12), plan(batch_size=6, clip=1.0, ema=0.8)
    whole = relabel(data.labels, **params)
    expected = fit(whole, data, stage, seed=3)
    total = 4 * len(whole.stages(stage))  # two epochs of two steps
    assert len(expected.history) == total // 2
    for stop in (4, *range(3, total, 4)):  # after the first step of the second stage; after the last step of each
        store = Store(tmp_path / str(stop))
        with pytest.raises(Interrupted):
            fit(relabel(data.labels, **params), data, stage, seed=3, store=store, should_stop=stopped_at(stop))
        again = relabel(data.labels, seed=9, **params)
        assert fit(again, data, stage, seed=3, store=store).history == expected.history
        assert state_hash(again.state_dict()) == state_hash(whole.state_dict()), f"stopped at step {stop}"
    for stage_number in {0, whole.teachers - 1, len(whole.stages(stage)) - 2}:  # what follows: a teacher, or a student
        store = Store(tmp_path / f"between {stage_number}")
        with pytest.raises(Killed):
            fit(relabel(data.labels, **params), data, stage, seed=3, store=store, report=killed_after(stage_number))
        again = relabel(data.labels, seed=9, **params)
        assert fit(again, data, stage, seed=3, store=store).history == expected.history
        assert state_hash(again.state_dict()) == state_hash(whole.state_dict()), f"killed after stage {stage_number}"
    # A finished run is read back without the training labels.
    setup = Setup(lambda: create_model("tiny", 10), 10)
    bare = create_method("relabel", setup, params)
    missing, unexpected = bare.load_state_dict(whole.weights(), strict=False)
    assert not unexpected
    assert all(key.startswith(Relabel.memory) for key in missing)
    assert torch.equal(predict(bare, data), predict(whole, data))


def made(params: dict[str, Any]) -> tuple[Relabel, Loader]:
    data = scenes(18)  # the last batch of 8 holds 2 rows, one for each process: it may be of a fold
    return relabel(data.labels, **params), data


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [{**ALL, "rounds": 1}, {"folds": 2, "refresh": 0.3, "loss_params": {"mechanism": "rate"}}],
    ids=["all", "a learned rate"],
)
def test_two_processes_are_one(tmp_path: Path, params: dict[str, Any]) -> None:
    check_one_and_two(tmp_path, partial(made, params))


@pytest.mark.parametrize(
    ("params", "part"),
    [
        ({"folds": 1}, "folds is 1"),
        ({"folds": -2}, "folds is -2"),
        ({"folds": 7}, "only 6 rows"),
        ({"folds": 2.0}, "folds is 2.0"),
        ({"student": "weak"}, "student is 'weak'"),
        ({"refresh": 1.5}, "refresh is 1.5"),
        ({"refresh": True}, "refresh is True"),
        ({"pair": 2}, "pair is 2"),
        ({"student_start": "zero"}, "student_start is 'zero'"),
        ({"students": 0}, "students is 0"),
        ({"students": 11, "rounds": 10}, "10 rounds of 11 students"),
    ],
)
def test_bad_parameters(params: dict[str, Any], part: str) -> None:
    with pytest.raises(RecipeError, match=part):
        relabel(**params)
