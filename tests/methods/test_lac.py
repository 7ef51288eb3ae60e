"""LAC: its three terms against float64 loops, its queue, its stages, its edges and its restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pluralis.checkpoint import Store, state_hash
from pluralis.engine import fit
from pluralis.errors import Interrupted, RecipeError
from pluralis.losses import functional
from pluralis.method import Batch, Clock, Setup
from pluralis.methods import create_method
from pluralis.methods.lac import LAC, pseudo_label_loss
from pluralis.models import create_model
from pluralis.runtime import Runtime
from tests.toys import plan, scenes

CLASSES = 5
MAIN = Clock(stage=1)


def lac(seed: int = 0, classes: int = CLASSES, **params: Any) -> LAC:
    torch.manual_seed(seed)
    head = {"dim": 16, "attention_dropout": 0.0}
    setup = Setup(lambda: create_model("tiny", classes, "label-decoder", head_params=head), classes)
    method = create_method("lac", setup, {"queue": 32, "dim": 8, **params})
    assert isinstance(method, LAC)
    return method


def batch(rows: int = 6, seed: int = 0, labels: Tensor | None = None) -> Batch:
    torch.manual_seed(seed)
    views = tuple(torch.randint(0, 256, (rows, 3, 24, 24)).float() for _ in range(2))
    if labels is None:
        labels = torch.zeros(rows, CLASSES, dtype=torch.int8)
        labels[torch.arange(rows), torch.randint(2, (rows,))] = 1
        labels[:, -1] = -1
    return Batch(views, labels, torch.arange(rows))


def test_without_pseudo_labels_the_first_stage_is_an_on_the_weak_view() -> None:
    """In the loss, in every gradient and, to the last bit, in the batch-norm statistics."""
    one, other, given = lac(lambda_plc=0.0), lac(lambda_plc=0.0), batch()
    terms = one(given, Clock())
    expected = functional.an(other.net(given.views[0]), given.labels)
    assert list(terms) == ["an"]
    assert torch.equal(terms["an"], expected)
    terms["an"].backward()
    expected.backward()
    for (name, p), q in zip(one.named_parameters(), other.parameters(), strict=True):
        assert (p.grad is None) == name.startswith("projector."), name
        if p.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-6, atol=1e-9, msg=name)
    assert state_hash(one.state_dict()) == state_hash(other.state_dict())


def embeddings(method: LAC, view: Tensor) -> tuple[Tensor, np.ndarray]:
    """Projected embeddings [B, C, d] and probabilities [B, C] of a view, in evaluation mode."""
    embedded = method.net.head.embed(method.net.features(view))  # type: ignore[operator]
    z = method.projector(embedded).double()
    with torch.no_grad():
        p = torch.sigmoid(method.net(view).double()).numpy()
    return z / z.norm(dim=-1, keepdim=True), p


Embedding = tuple[Tensor, int]
TAU = 0.3


def loops(
    method: LAC, given: Batch, delta: float, past: list[Embedding], released: bool = False
) -> tuple[dict[str, float], Tensor, list[Embedding]]:
    """Eqs. 2, 4 and 7 on the scale 1/C, or the released forms, one entry after the other.

    The last of them again, to be differentiated, and what is to be queued.
    """
    (zw, pw), (zs, ps) = (embeddings(method, view) for view in given.views)
    labels = given.labels.numpy()
    n, c = labels.shape
    an = plc = 0.0
    pseudo = 0
    weak: list[Embedding] = []
    strong: list[Embedding] = []
    for i in range(n):
        for j in range(c):
            an -= np.log(pw[i, j] if labels[i, j] == 1 else 1 - pw[i, j])
            up = labels[i, j] == 0 and pw[i, j] >= delta
            if up or (released and labels[i, j] == 1):
                plc, pseudo = plc - np.log(ps[i, j]), pseudo + 1
            if labels[i, j] == 0 and pw[i, j] <= 1 - delta:
                plc, pseudo = plc - np.log(1 - ps[i, j]), pseudo + 1
            if up or labels[i, j] == 1:
                weak.append((zw[i, j], j))
                strong.append((zs[i, j], j))
    anchors = weak + strong if released else weak
    every, contrast = anchors + past, torch.zeros((), dtype=torch.float64)
    for k, (z, kind) in enumerate(anchors):
        below: Any = 0.0
        for t, (other, its) in enumerate(every):
            if t != k if released else its != kind:
                below = below + torch.exp(z @ other / TAU)
        same = [k2 for k2, (_, its) in enumerate(every) if its == kind and not (released and k2 == k)]
        for k2 in same if below else []:
            other = strong[k][0] if k2 == k else every[k2][0]
            term = -torch.log(torch.exp(z @ other / TAU) / below)
            contrast = contrast + (term / len(same) / len(anchors) if released else term / (n * c) / c)
    divided = plc / pseudo if released else plc / (n * c)
    queued = [(z.detach(), kind) for z, kind in anchors]
    return {"an": an / (n * c), "plc": divided, "lac": contrast.item()}, contrast, queued


def undecided(**params: Any) -> LAC:
    """In evaluation mode, with classes below, about and above a threshold of 0.55."""
    method = lac(**params).eval()
    with torch.no_grad():
        bias: Any = method.net.head.bias
        bias += torch.tensor([0.35, -1.0, 0.0, 0.15, 1.0]) - method.predict(batch().views[0]).mean(0)
    return method


def flat_gradient(term: Tensor, method: LAC) -> Tensor:
    slopes = torch.autograd.grad(term, list(method.parameters()), allow_unused=True, materialize_grads=True)
    return torch.cat([slope.flatten() for slope in slopes])


@pytest.mark.parametrize("size", [32, 0])
@pytest.mark.parametrize("rows", [6, 1])
@pytest.mark.parametrize("variant", ["paper", "released"])
def test_all_terms_are_those_of_the_formulas(variant: str, rows: int, size: int) -> None:
    """Also without a queue, and in batches of one image; and so is the gradient of the contrast."""
    released = variant == "released"
    method = undecided(delta=0.7, delta_main=0.55, temperature=TAU, variant=variant, queue=size)
    queue: list[Embedding] = []
    single = torch.tensor([[1, 0, 1, 0, -1]], dtype=torch.int8)
    for step in range(3):
        given = batch(rows, seed=step, labels=single if rows == 1 else None)
        terms = method(given, MAIN)
        expected, contrast, active = loops(method, given, 0.55, queue, released)
        for name, value in expected.items():
            assert value != 0, name
            assert terms[name].item() == pytest.approx(value, rel=2e-5), (step, name)
        found, wanted = (flat_gradient(term, method) for term in (terms["lac"], contrast))
        assert (found - wanted).norm() < 1e-4 * wanted.norm()
        method.after_step(MAIN)
        assert rows < len(active) / (2 if released else 1) <= 4 * rows
        queue = (queue + active)[-len(method.queue) :] if size else []
        assert int((method.queue.classes >= 0).sum()) == len(queue)
        assert sorted(method.queue.classes[method.queue.classes >= 0].tolist()) == sorted(j for _, j in queue)


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_each_stage_has_its_own_threshold(variant: str) -> None:
    released = variant == "released"
    for params, clock, delta in (
        ({}, Clock(stage=0), 0.52),
        ({}, MAIN, 0.6),
        ({"end_to_end": True}, Clock(stage=0), 0.6),
        ({"lambda_lac": 0.0}, Clock(stage=0), 0.52),
    ):
        method = undecided(delta=0.52, delta_main=0.6, temperature=TAU, variant=variant, **params)
        terms = method(batch(), clock)
        expected, *_ = loops(method, batch(), delta, [], released)
        other, *_ = loops(method, batch(), 1.12 - delta, [], released)
        for name, term in terms.items():
            assert term.item() == pytest.approx(expected[name], rel=2e-5), name
            assert name == "an" or abs(other[name] / expected[name] - 1) > 1e-3


def test_weights_scale_their_terms_and_the_first_stage_has_no_contrast() -> None:
    plain, scaled, given = lac().eval(), lac(lambda_plc=3.0, lambda_lac=0.5).eval(), batch()
    one, other = plain(given, MAIN), scaled(given, MAIN)
    assert other["plc"].item() == pytest.approx(3 * one["plc"].item())
    assert other["lac"].item() == pytest.approx(0.5 * one["lac"].item())
    assert list(plain(given, Clock())) == ["an", "plc"]
    assert list(lac(end_to_end=True)(given, Clock())) == ["an", "plc", "lac"]
    assert list(lac(lambda_lac=0.0)(given, Clock())) == ["an", "plc"]


def test_stages() -> None:
    user = plan(epochs=7, lr=0.5)
    assert lac().stages(user) == [user, user]
    assert [s.epochs for s in lac(warmup=2).stages(user)] == [2, 7]
    rising = lac(warmup=2).stages(plan(epochs=40, warmup=8.0))
    assert [s.warmup for s in rising] == [0.4, 8.0], "a stage of 2 epochs would never reach its rate"
    drawn = lac(warmup=2).stages(plan(epochs=5, schedule_epochs=80, warmup=16.0))
    assert [(s.warmup, s.schedule_epochs) for s in drawn] == [(0.4, 0), (16.0, 80)]
    assert lac(end_to_end=True).stages(user) == lac(lambda_lac=0.0).stages(user) == [user]


class TestPseudoLabels:
    weak = torch.tensor([[2.0, 0.1, -2.0, 2.0, -2.0, 2.0]])
    strong = torch.tensor([[0.7, 0.7, 0.7, 0.7, 0.7, 0.7]])
    labels = torch.tensor([[0, 0, 0, -1, -1, 1]])
    up, down = -np.log(1 / (1 + np.exp(-0.7))), -np.log(1 - 1 / (1 + np.exp(-0.7)))

    def test_only_sure_and_unknown_entries_count(self) -> None:
        found = pseudo_label_loss(self.weak, self.strong, self.labels, 0.8)
        assert found.item() == pytest.approx((self.up + self.down) / 6, rel=1e-6)

    def test_the_released_form_takes_positives_and_divides_by_the_pseudo_labels(self) -> None:
        found = pseudo_label_loss(self.weak, self.strong, self.labels, 0.8, "released")
        assert found.item() == pytest.approx((2 * self.up + self.down) / 3, rel=1e-6)

    def test_both_bounds_belong_to_the_pseudo_labels(self) -> None:
        weak = torch.zeros(1, 6)
        both = pseudo_label_loss(weak, self.strong, torch.zeros(1, 6), 0.5)
        assert both.item() == pytest.approx(self.up + self.down, rel=1e-6)
        released = pseudo_label_loss(weak, self.strong, torch.zeros(1, 6), 0.5, "released")
        assert released.item() == pytest.approx(self.up, rel=1e-6)

    @pytest.mark.parametrize("variant", ["paper", "released"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_large_logits_and_nothing_sure_stay_finite(self, variant: str, dtype: torch.dtype) -> None:
        strong = torch.tensor([[1e4, -1e4, 1e4, -1e4]], dtype=dtype, requires_grad=True)
        for weak in (torch.tensor([[1e4, 1e4, -1e4, -1e4]]), torch.zeros(1, 4)):
            loss = pseudo_label_loss(weak, strong, torch.zeros(1, 4), 0.7, variant)
            loss.backward()
            assert torch.isfinite(loss)
            assert torch.isfinite(strong.grad).all()  # type: ignore[arg-type]
        assert strong.grad[0, 1] < 0 < strong.grad[0, 2]  # type: ignore[index]


EDGES = {
    "one row": batch(1),
    "all unknown": batch(4, labels=torch.zeros(4, CLASSES, dtype=torch.int8)),
    "all absent": batch(4, labels=-torch.ones(4, CLASSES, dtype=torch.int8)),
    "all present": batch(4, labels=torch.ones(4, CLASSES, dtype=torch.int8)),
    "one class": batch(4, labels=torch.tensor([[1] + [-1] * 4] * 4, dtype=torch.int8)),
}


@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("edge", EDGES)
def test_edges_stay_finite_in_value_and_gradient(edge: str, variant: str) -> None:
    method, given = lac(variant=variant), EDGES[edge]
    before = given.labels.clone()
    for precision in ("fp32", "bf16"):
        with Runtime(precision=precision).autocast():
            terms = method(given, MAIN)
        torch.stack(list(terms.values())).sum().backward()
        method.after_step(MAIN)
        assert all(torch.isfinite(t) and t.dtype == torch.float32 for t in terms.values())
        assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in method.parameters())
    assert torch.equal(given.labels, before)
    assert method._selected is None


def test_verified_absent_labels_are_never_guessed() -> None:
    method = lac().eval()
    with torch.no_grad():
        method.net.head.bias.fill_(5.0)  # type: ignore[operator, union-attr]
    terms = method(EDGES["all absent"], MAIN)
    assert terms["plc"].item() == 0
    assert terms["lac"].item() == 0
    method.after_step(MAIN)
    assert int((method.queue.classes >= 0).sum()) == 0


def test_rows_may_come_in_any_order() -> None:
    method, given = lac(delta_main=0.5).eval(), batch()
    p = torch.randperm(6)
    other = Batch(tuple(view[p] for view in given.views), given.labels[p], given.index[p])
    for name, value in method(given, MAIN).items():
        assert method(other, MAIN)[name].item() == pytest.approx(value.item(), rel=1e-4), name


@pytest.mark.parametrize("size", [0, 3])
def test_a_queue_smaller_than_what_is_active_keeps_the_newest(size: int) -> None:
    method, given = lac(queue=size).eval(), batch()
    before = method(given, MAIN)["lac"].item()
    method.after_step(MAIN)
    assert method.queue.classes.tolist() == given.labels[6 - size :].long().argmax(1).tolist()
    after = method(given, MAIN)["lac"].item()
    assert (after == before) == (size == 0)


def test_a_batch_that_stands_in_for_none_is_not_queued() -> None:
    method, given = lac().eval(), batch()
    method(Batch(given.views, given.labels, given.index, weight=0.0), MAIN)
    method.after_step(MAIN)
    assert int((method.queue.classes >= 0).sum()) == 0


def test_the_released_variant_queues_both_views() -> None:
    method = lac(variant="released", queue=10).eval()
    assert method.views == (None, "strong-released")
    assert LAC.views == (None, "strong")
    method(batch(), MAIN)
    method.after_step(MAIN)
    assert len(method.queue) == 20
    assert int((method.queue.classes >= 0).sum()) == 12


def test_the_projector_moves_in_the_second_stage_alone() -> None:
    data, moved = scenes(16), []
    for single in (True, False):
        method = lac(classes=10, lambda_lac=0.0 if single else 1.0)
        before = [p.detach().clone() for p in method.projector.parameters()]
        fit(method, data, plan(epochs=1, optimizer="adamw", weight_decay=0.1))
        moved.append([not torch.equal(p, q) for p, q in zip(method.projector.parameters(), before, strict=True)])
    assert moved == [[False] * 4, [True] * 4]


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_a_run_stopped_in_the_second_stage_goes_on_exactly(tmp_path: Path, variant: str) -> None:
    settings = {"classes": 10, "variant": variant, "delta_main": 0.5, "queue": 20}
    data, training = scenes(16), plan(epochs=1, ema=0.9)
    whole = lac(**settings)
    expected = fit(whole, data, training, seed=3)
    left = iter([False, False, True])
    with pytest.raises(Interrupted):
        fit(lac(**settings), data, training, seed=3, store=Store(tmp_path), should_stop=lambda: next(left))
    again = lac(seed=9, **settings)
    found = fit(again, data, training, seed=3, store=Store(tmp_path))
    assert ["lac" in epoch for epoch in found.history] == [False, True]
    assert found.history == expected.history
    assert state_hash(again.state_dict()) == state_hash(whole.state_dict())
    assert int((again.queue.classes >= 0).sum()) > 0


def test_a_head_without_embeddings_is_refused() -> None:
    with pytest.raises(RecipeError, match=r'LinearHead.*model\.head = "label-decoder"'):
        create_method("lac", Setup(lambda: create_model("tiny", 3), 3))


@pytest.mark.parametrize(
    "params",
    [
        {"delta": 0.4},
        {"delta_main": 1.0},
        {"temperature": 0.0},
        {"queue": -1},
        {"queue": 1.5},
        {"lambda_plc": -1.0},
        {"dim": 0},
        {"warmup": 0},
        {"end_to_end": 1},
        {"variant": "other"},
    ],
)
def test_impossible_parameters_are_named(params: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=f"method lac: {next(iter(params))} is"):
        lac(**params)
