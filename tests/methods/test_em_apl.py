"""EM+APL: which labels are assigned and when, the loss that they enter, and that without them it is a run of `em`."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pluralis.checkpoint import Store, state_hash
from pluralis.engine import fit
from pluralis.errors import Interrupted, LabelError, RecipeError
from pluralis.guesses import assignment_table
from pluralis.labels import Labels
from pluralis.method import Batch, Clock, Setup
from pluralis.methods import create_method
from pluralis.methods.em_apl import EmApl
from pluralis.models import create_model
from pluralis.state import LabelState
from tests.toys import plan, scenes, stopped_at

ROWS, CLASSES = 60, 5


def written(seed: int = 0) -> Labels:
    """Labels of all three kinds, and a class (the last) of which nothing is known."""
    dense = np.random.default_rng(seed).choice([-1, 0, 1], size=(ROWS, CLASSES), p=[0.1, 0.7, 0.2]).astype(np.int8)
    dense[:, -1] = 0
    return Labels.from_dense(dense)


def bare(labels: Labels, **params: object) -> EmApl:
    """A method whose network gives back its input as logits."""
    return EmApl(Setup(nn.Identity, len(labels.classes), labels), **params)  # type: ignore[arg-type]


def over_scenes(name: str, labels: Labels, **params: object):
    torch.manual_seed(0)
    return create_method(name, Setup(lambda: create_model("tiny", 10, dropout=0.1), 10, labels), params)


def predictions(seed: int) -> Tensor:
    """Logits with many ties."""
    return torch.randint(-6, 7, (ROWS, CLASSES), generator=torch.Generator().manual_seed(seed)).float() / 2


def reference(labels: Labels, epochs: int, warmup: int, theta: float) -> tuple[np.ndarray, np.ndarray]:
    """Soft labels and epochs (counted from 1) by sorting every column, ties by row."""
    free = labels.dense() == 0
    exact = Fraction(str(theta)) / (epochs - warmup)
    wanted = [int(exact * int(count)) for count in free.sum(0)]
    value, since = np.zeros((ROWS, CLASSES)), np.zeros((ROWS, CLASSES), int)
    for epoch in range(warmup, epochs):
        z = predictions(epoch).double().numpy()
        for c in range(CLASSES):
            order = [r for r in np.argsort(z[:, c], kind="stable") if free[r, c]][: wanted[c]]
            value[order, c], since[order, c], free[order, c] = 1 / (1 + np.exp(-z[order, c])), epoch + 1, False
    return value, since


@pytest.mark.parametrize(("epochs", "warmup", "theta"), [(6, 2, 0.9), (5, 0, 1.0), (4, 3, 0.5), (3, 3, 0.9)])
def test_the_lowest_unknown_labels_of_each_class_are_assigned_and_never_revised(epochs, warmup, theta) -> None:
    labels = written()
    method = bare(labels, warmup=warmup, theta=theta)
    for epoch in range(epochs):
        before = method.guesses.since.clone(), method.guesses.value.clone()
        method.start_epoch(Clock(epoch=epoch, epochs=epochs), lambda e=epoch: predictions(e))
        old = before[0] != 0
        assert torch.equal(method.guesses.since[old], before[0][old])
        assert torch.equal(method.guesses.value[old], before[1][old])
    if warmup == epochs:
        assert method.figures() == {"pseudo-labels": 0}
        return
    value, since = reference(labels, epochs, warmup, theta)
    np.testing.assert_array_equal(method.guesses.since.numpy(), since)
    np.testing.assert_allclose(method.guesses.value.double().numpy(), value, rtol=1e-3)
    assert method.figures() == {"pseudo-labels": np.count_nonzero(since)}
    assert not (method.guesses.since.numpy()[labels.dense() != 0]).any()


def test_rounding_takes_no_label_away() -> None:
    """0.7·90 is 62.99999999999999 to a machine, and still 63."""
    method = bare(Labels.from_lists([[]] * 90, 1), theta=0.7, warmup=0)
    method.start_epoch(Clock(epochs=1), lambda: torch.randn(90, 1))
    assert method.figures() == {"pseudo-labels": 63}


def test_the_state_takes_three_bytes_an_entry_and_is_not_part_of_the_weights() -> None:
    method = bare(written())
    assert sum(v.nbytes for v in method.state_dict().values()) <= 3 * ROWS * CLASSES
    assert not method.weights()


def test_ablations() -> None:
    labels = written()
    unknown = labels.summary().unknown
    clock = Clock(epoch=2, epochs=4)
    hard = bare(labels, warmup=2, soft=False)
    hard.start_epoch(clock, lambda: predictions(2))
    assert hard.guesses.since.any()
    assert not hard.guesses.value.any()

    once = bare(labels, warmup=2, self_paced=False)
    once.start_epoch(clock, lambda: predictions(2))
    assert (once.guesses.since != 0).sum(0).tolist() == np.floor(0.9 * unknown).astype(int).tolist()
    once.start_epoch(Clock(epoch=3, epochs=4), lambda: pytest.fail("asked again"))

    both = bare(labels, warmup=2, theta=0.8, positive_theta=0.1)
    for epoch in (2, 3):
        both.start_epoch(Clock(epoch=epoch, epochs=4), lambda e=epoch: predictions(e))
    counts = (both.positives.since != 0).sum(0).tolist()
    assert counts == (2 * np.floor(0.05 * unknown)).astype(int).tolist()
    assert not ((both.positives.since != 0) & (both.guesses.since != 0)).any()
    first = both.positives.since == 3
    assert predictions(2)[first].min() >= predictions(2)[(both.positives.since == 0) & (both.guesses.since == 4)].max()
    torch.testing.assert_close(both.positives.value[first].float(), predictions(2)[first].sigmoid(), rtol=1e-3, atol=0)
    assert both.figures()["positive pseudo-labels"] == sum(counts)


def batch_of(labels: Labels, rows: list[int], logits: Tensor) -> Batch:
    return Batch((logits,), torch.from_numpy(labels.dense(rows)), torch.tensor(rows))


def test_the_loss_is_equation_8() -> None:
    """In float64 from the values in the state; a verified absent label takes the cross-entropy."""
    labels = written()
    method = bare(labels, alpha=0.3, beta=0.4, warmup=0, positive_theta=0.2, theta=0.6)
    method.start_epoch(Clock(epochs=1), lambda: predictions(0))
    rows = [7, 3, 59, 21, 22, 23]
    z = predictions(9)[rows].double().numpy()
    y, s, t = labels.dense(rows), method.guesses.since.numpy()[rows], method.positives.since.numpy()[rows]
    soft = method.guesses.value.double().numpy()[rows] + method.positives.value.double().numpy()[rows]
    f = 1 / (1 + np.exp(-z))
    entropy = -(f * np.log(f) + (1 - f) * np.log(1 - f))
    star = soft * np.log(f) + (1 - soft) * np.log(1 - f)
    guessed = (s > 0) | (t > 0)
    assert guessed.any()
    assert (guessed & (y == 0) == guessed).all()
    terms = np.select([y > 0, y < 0, guessed], [np.log(f), np.log(1 - f), 0.4 * star], 0.3 * entropy)
    batch = batch_of(labels, rows, torch.from_numpy(z).float())
    found = method(batch, Clock(epochs=1))["loss"]
    assert found.item() == pytest.approx(-terms.mean(), rel=1e-5)
    half = method(batch_of(labels, rows, torch.from_numpy(z).bfloat16()), Clock(epochs=1))["loss"]
    assert half.dtype == torch.float32
    assert half.item() == pytest.approx(-terms.mean(), rel=1e-2)


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_extreme_logits_are_finite(variant: str) -> None:
    labels = written()
    method = bare(labels, warmup=0, variant=variant)
    method.start_epoch(Clock(epochs=1), lambda: predictions(0))
    for size in (1e4, -1e4):
        for dtype in (torch.float32, torch.bfloat16):
            logits = torch.full((1, CLASSES), size, dtype=dtype, requires_grad=True)
            method(batch_of(labels, [4], logits), Clock(epochs=1))["loss"].backward()
            assert torch.isfinite(logits.grad).all()


def test_released_logarithms_hold_in_the_warm_up_too() -> None:
    labels = Labels.from_lists([[0]], 1)
    losses = [
        bare(labels, variant=variant)(batch_of(labels, [0], torch.tensor([[-20.0]])), Clock(epochs=9))["loss"].item()
        for variant in ("paper", "released")
    ]
    assert losses == pytest.approx([20.0, -np.log(1e-5 + np.exp(-20))], rel=1e-4)


@pytest.mark.parametrize("params", [{"theta": 0.0, "warmup": 1}, {"warmup": 9}])
def test_without_pseudo_labels_a_run_is_a_run_of_em(params: dict[str, float]) -> None:
    data = scenes(24)
    em, apl = over_scenes("em", data.labels), over_scenes("em-apl", data.labels, **params)
    fit(em, data, plan(epochs=3), seed=1)
    fit(apl, data, plan(epochs=3), seed=1)
    assert state_hash(apl.weights()) == state_hash(em.weights())


def test_pseudo_labels_change_the_run_and_are_counted() -> None:
    data = scenes(24)
    before = data.labels.dense().copy()
    em, apl = over_scenes("em", data.labels), over_scenes("em-apl", data.labels, warmup=1, beta=1.0)
    fit(em, data, plan(epochs=3), seed=1)
    result = fit(apl, data, plan(epochs=3), seed=1)
    assert state_hash(apl.weights()) != state_hash(em.weights())
    share = np.floor(0.45 * data.labels.summary().unknown).sum()
    assert [epoch["pseudo-labels"] for epoch in result.history] == [0, share, 2 * share]
    assert (data.labels.dense() == before).all()


def test_a_loader_with_one_batch_assigns_too() -> None:
    data = scenes(12)
    method = over_scenes("em-apl", data.labels, warmup=1)
    result = fit(method, data, plan(epochs=2, batch_size=12))
    assert result.history[1]["pseudo-labels"] == np.floor(0.9 * data.labels.summary().unknown).sum() > 0


@pytest.mark.parametrize("steps", [2, 3, 7])
def test_a_stopped_run_goes_on_exactly(tmp_path: Path, steps: int) -> None:
    data = scenes(24)
    stage = plan(epochs=3, ema=0.8)
    params = {"warmup": 1, "positive_theta": 0.1, "beta": 0.5}
    whole = over_scenes("em-apl", data.labels, **params)
    expected = fit(whole, data, stage, seed=3)
    cut = over_scenes("em-apl", data.labels, **params)
    with pytest.raises(Interrupted):
        fit(cut, data, stage, seed=3, store=Store(tmp_path), should_stop=stopped_at(steps))
    again = over_scenes("em-apl", data.labels, **params)
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.normal_()  # everything must come from the checkpoint
    found = fit(again, data, stage, seed=3, store=Store(tmp_path))
    assert state_hash(again.state_dict()) == state_hash(whole.state_dict())
    assert found.history == expected.history


def test_assignment_table() -> None:
    state = LabelState(3, 4)
    state.assign(torch.tensor([0, 1, 2]), torch.tensor([0, 1, 2]), torch.zeros(3), epoch=5)
    state.assign(torch.tensor([0, 1, 2, 2]), torch.tensor([1, 2, 3, 0]), torch.zeros(4), epoch=6)
    truth = torch.tensor([[-1, 1, 1, 1], [1, -1, -1, 1], [0, 1, 1, -1]])
    rows = assignment_table(state, truth)
    assert [tuple(row.values()) for row in rows] == [(6, 3, 3, 2, 2 / 3), (7, 4, 3, 2, 4 / 6)]
    positive = assignment_table(state, Labels.from_dense(truth.numpy().astype(np.int8)), present=True)
    assert [row["right"] for row in positive] == [1, 1]
    assert positive[-1]["accuracy"] == pytest.approx(2 / 6)
    assert assignment_table(LabelState(3, 4), truth) == []
    with pytest.raises(LabelError, match=r"\(3, 4\).*\(3, 3\)"):
        assignment_table(state, truth[:, :3])


def test_more_epochs_than_a_byte_holds() -> None:
    state = LabelState(1, 1)
    state.assign(torch.tensor([0]), 0, torch.tensor([0.5]), epoch=400)
    assert state.since.item() == 255


def test_wrong_parameters_are_named() -> None:
    setup = Setup(nn.Identity, CLASSES)  # type: ignore[arg-type]
    for wrong in ({"beta": 0.0}, {"theta": 1.5}, {"warmup": 2.5}, {"soft": 1}, {"variant": "official"}):
        with pytest.raises(RecipeError, match=f"em-apl: {next(iter(wrong))}"):
            EmApl(setup, **wrong)  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="did you mean 'theta'"):
        create_method("em-apl", setup, {"thetta": 1})
