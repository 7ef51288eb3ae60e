"""CLS: what is selected, against a sort written out, and what two networks learn from it."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from pluralis.checkpoint import Store, state_hash
from pluralis.engine import fit
from pluralis.errors import Interrupted, RecipeError
from pluralis.evaluate import predict
from pluralis.losses import create_loss
from pluralis.losses.functional import an
from pluralis.method import Clock, LossMethod, Setup
from pluralis.methods import create_method
from pluralis.methods.cls import CLS, select
from pluralis.methods.pair import lowest, mean_logit, reserved, share
from pluralis.models import create_model
from tests.losses.passes import Passes
from tests.methods.pairs import batch_of, cross_entropy, draw, setup_of
from tests.toys import plan, scenes


def reference(
    own: np.ndarray, peer: np.ndarray, labels: np.ndarray, rate_h: Fraction, rate_l: Fraction
) -> tuple[set[tuple[int, ...]], set[tuple[int, ...]]]:
    """The negatives kept and the suspects, by sorting lists of (loss, position)."""
    unknown = [(cross_entropy(peer[p], False), p) for p in np.ndindex(labels.shape) if labels[p] == 0]
    trusted = [p for _, p in sorted(unknown)[: math.floor(rate_h * len(unknown))]]
    suspects = {p for _, p in unknown} - set(trusted)
    negatives = trusted + [p for p in np.ndindex(labels.shape) if labels[p] < 0]
    ranked = sorted((-cross_entropy(own[p], False), p) for p in negatives)
    return {p for _, p in ranked[: math.floor(rate_l * len(ranked))]}, suspects


def places(mask: Tensor) -> set[tuple[int, ...]]:
    return {tuple(p) for p in mask.nonzero().tolist()}


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("shape", [(1, 1), (1, 20), (9, 7), (32, 20)])
def test_the_selection_is_that_of_a_sort(shape: tuple[int, int], ties: bool) -> None:
    rng = np.random.default_rng(0)
    for tau_h, tau_l, epoch in [(5, 20, 10), (43, 60, 10), (100, 250, 3), (300, 500, 7), (900, 0, 99), (0, 999, 1)]:
        f, g, labels = draw(rng, *shape, ties)
        passed = min(Fraction(epoch, 10), Fraction(1))
        kept, suspects = select(f, g, labels, reserved(tau_h / 1000, 10, epoch), reserved(tau_l / 1000, 10, epoch))
        exact = (1 - Fraction(tau, 1000) * passed for tau in (tau_h, tau_l))
        assert (places(kept), places(suspects)) == reference(f.numpy(), g.numpy(), labels.numpy(), *exact)


@pytest.mark.parametrize("ties", [False, True])
def test_both_networks_at_once_are_each_by_itself(ties: bool) -> None:
    f, g, labels = draw(np.random.default_rng(5), 9, 7, ties)
    both = torch.stack([f, g])
    with Passes() as found:
        kept, suspects = select(both, both.flip(0), labels, 0.8, 0.7)
    assert len(found.launched) <= 23, found.launched
    for row, (own, peer) in enumerate([(f, g), (g, f)]):
        alone = select(own, peer, labels, 0.8, 0.7)
        assert torch.equal(kept[row], alone.kept)
        assert torch.equal(suspects[row], alone.suspects)


def test_shares_are_rounded_down_from_their_exact_value() -> None:
    """Also where a product of floats falls just below a whole number, such as 0.57·100."""
    counts = torch.arange(1, 301)
    for tau in range(0, 1000, 7):
        exact = [math.floor((1 - Fraction(tau, 1000)) * n) for n in counts.tolist()]
        assert share(counts, reserved(tau / 1000, 10, 10)).tolist() == exact


def test_nothing_is_taken_that_is_not_marked() -> None:
    values, marked = torch.arange(4.0), torch.tensor([False, False, True, False])
    assert torch.equal(lowest(values, marked, torch.tensor(1)), marked)
    assert torch.equal(lowest(values, marked, torch.tensor(3)), marked)
    assert not lowest(values, torch.zeros(4, dtype=torch.bool), torch.tensor(1)).any()


@pytest.mark.parametrize("correct", [False, True])
def test_the_loss_is_that_of_the_formula(correct: bool) -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        f, g, labels = draw(rng, 6, 8, ties=True)
        method = CLS(setup_of(f, g), tau_h=0.1, tau_l=0.3, ramp=4, correct=correct)
        terms = method(batch_of(labels), Clock(epoch=2))
        for name, own, peer in (("f", f, g), ("g", g, f)):
            z, y = own.numpy(), labels.numpy()
            kept, suspects = reference(z, peer.numpy(), y, 1 - Fraction(1, 20), 1 - Fraction(3, 20))
            total = sum(cross_entropy(z[p], False) for p in kept) + cross_entropy(z, True)[y > 0].sum()
            total += sum(cross_entropy(z[p], True) for p in suspects) if correct else 0.0
            assert terms[name].item() == pytest.approx(total / labels.numel(), rel=1e-12)


def test_numbers_of_the_papers_coco_setting() -> None:
    """120 images, 80 classes, one label each: 9,480 negatives, of which ⌊0.988·⌋ and then ⌊0.94·⌋ stay."""
    torch.manual_seed(0)
    labels = torch.zeros(120, 80, dtype=torch.int8)
    labels[torch.arange(120), torch.randint(80, (120,))] = 1
    kept, suspects = select(torch.randn(120, 80), torch.randn(120, 80), labels, reserved(0.012, 10, 50), 1 - 0.06)
    assert (int(suspects.sum()), int(kept.sum())) == (9480 - 9366, 8804)


def test_losses_too_small_for_their_type_are_still_ranked() -> None:
    """log(1 + exp(z)) rounds to 0 in float32 below z = −104."""
    z = torch.tensor([[-200.0, -150.0, -300.0, -250.0]])
    kept, suspects = select(z, z, torch.zeros(1, 4), 0.75, 2 / 3)
    assert (places(kept), places(suspects)) == ({(0, 0), (0, 3)}, {(0, 1)})


def test_the_first_epoch_assumes_negative_and_the_ramp_ends() -> None:
    f, g, labels = draw(np.random.default_rng(2), 8, 20, ties=False)
    method = CLS(setup_of(f, g), tau_h=0.1, tau_l=0.1, ramp=4)
    terms = method(batch_of(labels), Clock(epoch=0))
    torch.testing.assert_close(terms["f"], an(f, labels), rtol=1e-12, atol=0)
    assert terms["g"].item() == an(g, labels).item()
    later = [method(batch_of(labels), Clock(epoch=e))["f"].item() for e in (1, 2, 4, 5, 100)]
    assert terms["f"].item() > later[0] > later[1] > later[2] == later[3] == later[4]


def test_each_loss_moves_its_own_network_and_only_where_it_selects() -> None:
    f, g, labels = draw(np.random.default_rng(3), 8, 20, ties=False)
    method = CLS(setup_of(f, g), tau_h=0.1, tau_l=0.2, ramp=1)
    method(batch_of(labels), Clock(epoch=1))["f"].backward()
    assert method.g.logits.grad is None
    kept, suspects = select(f, g, labels, 0.9, 0.8)
    assert torch.equal(method.f.logits.grad != 0, kept | (labels > 0))  # type: ignore[union-attr, operator]
    assert suspects.any()

    flip = CLS(setup_of(f, g), tau_h=0.1, tau_l=0.2, ramp=1, correct=True)
    flip(batch_of(labels), Clock(epoch=1))["f"].backward()
    assert torch.equal(flip.f.logits.grad < 0, suspects | (labels > 0))  # type: ignore[union-attr, operator]


def test_only_one_kind_is_removed() -> None:
    """`high-loss` removes high losses (the paper's CLS-L), `low-loss` low ones (its CLS-H)."""
    f, g, labels = draw(np.random.default_rng(4), 8, 20, ties=False)
    found = {}
    for remove in ("both", "high-loss", "low-loss"):
        method = CLS(setup_of(f, g), tau_h=0.1, tau_l=0.2, ramp=1, remove=remove)
        kept, suspects = select(f, g, labels, *method.rates(1))
        found[remove] = kept, suspects
    negatives = labels <= 0
    high, low = found["high-loss"], found["low-loss"]
    assert torch.equal(high[0], negatives & ~high[1])
    assert g[high[1]].min() > g[high[0] & (labels == 0)].max()
    assert not low[1].any()
    assert f[negatives & ~low[0]].max() < f[low[0]].min()
    assert torch.equal(found["both"][1], high[1])


def test_verified_absent_labels_are_never_suspects() -> None:
    f = torch.linspace(9, 0, 10).view(1, 10)  # the verified ones are those that the peer believes least
    labels = torch.tensor([[-1] * 5 + [0] * 5])
    kept, suspects = select(f, f, labels, 0.6, 1.0)
    assert places(suspects) == {(0, 5), (0, 6)}
    assert torch.equal(kept, ~suspects)
    assert not select(f, f, torch.full((1, 10), -1), 0.1, 1.0).suspects.any()


@pytest.mark.parametrize("value", [1, 0, -1])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_finite_at_the_edges(value: int, rows: int, dtype: torch.dtype) -> None:
    """Nothing but positives, nothing known, nothing but verified absences; a constant column; logits of ±1e4."""
    f = torch.tensor([[1e4, -1e4, 0.0]] * rows, dtype=dtype)
    labels = torch.full((rows, 3), value)
    for correct in (False, True):
        method = CLS(setup_of(f, -f), tau_h=0.3, tau_l=0.3, ramp=1, correct=correct)
        batch = batch_of(labels)
        terms = method(batch, Clock(epoch=3))
        sum(terms.values()).backward()  # type: ignore[union-attr]
        assert all(torch.isfinite(term) for term in terms.values())
        assert torch.isfinite(method.f.logits.grad).all()  # type: ignore[arg-type]
        assert torch.isfinite(method.g.logits.grad).all()  # type: ignore[arg-type]
        assert torch.equal(batch.labels, labels.to(torch.int8))


def test_the_mean_of_two_probabilities() -> None:
    a, b = torch.randn(2, 200, dtype=torch.float64) * 6
    p = (1 / (1 + np.exp(-a.numpy())) + 1 / (1 + np.exp(-b.numpy()))) / 2
    np.testing.assert_allclose(mean_logit(a, b).numpy(), np.log(p / (1 - p)), rtol=1e-9)
    far = torch.tensor([1e4, -1e4, 1e4, 90.0])
    found = mean_logit(far.bfloat16(), torch.tensor([1e4, -1e4, -1e4, 3.0]).bfloat16())
    expected = [9984, -9984, 0, math.log((2 - 1 / (1 + math.exp(3))) * (1 + math.exp(3)))]
    assert found.tolist() == pytest.approx(expected, rel=1e-5)


def networks(dropout: float = 0.0, seed: int = 0, **params: float) -> CLS:
    torch.manual_seed(seed)
    method = create_method("cls", Setup(lambda: create_model("tiny", 10, dropout=dropout), 10), params)
    assert isinstance(method, CLS)
    return method


def test_without_removal_it_is_two_networks_that_assume_negative() -> None:
    """The same weights after training as each of the two alone."""
    data, both = scenes(16), networks(tau_h=0.0, tau_l=0.0)
    alone = [LossMethod(net, create_loss("an")) for net in (networks().f, networks().g)]
    assert not torch.equal(both.f.head.get_parameter("fc.weight"), both.g.head.get_parameter("fc.weight"))
    result = fit(both, data, plan(clip=0.5), seed=5)
    for name, single in zip("fg", alone, strict=True):
        found = fit(single, data, plan(clip=0.5), seed=5)
        assert state_hash(both.get_submodule(name).state_dict()) == state_hash(single.net.state_dict())
        assert found.history[-1]["loss"] == result.history[-1][name]


def test_it_learns_and_a_stopped_run_goes_on_exactly(tmp_path: Path) -> None:
    data, settings = scenes(32), plan(epochs=3, ema=0.9, augment="none")
    params = {"tau_h": 0.05, "tau_l": 0.05, "ramp": 2}
    whole = networks(dropout=0.1, **params)
    expected = fit(whole, data, settings, seed=3)
    assert expected.history[-1]["f"] < 0.9 * expected.history[0]["f"]
    left = [6]

    def stop() -> bool:
        left[0] -= 1
        return left[0] < 0

    with pytest.raises(Interrupted):
        fit(networks(dropout=0.1, **params), data, settings, seed=3, store=Store(tmp_path), should_stop=stop)
    again = networks(dropout=0.1, seed=9, **params)
    found = fit(again, data, settings, seed=3, store=Store(tmp_path))
    assert state_hash(again.state_dict()) == state_hash(whole.state_dict())
    assert found.history == expected.history


def test_predictions_repeat_and_survive_a_round_trip() -> None:
    data, method, other = scenes(10), networks(dropout=0.5), networks(dropout=0.5, seed=1)
    first = predict(method, data)
    assert torch.equal(first, predict(method, data))
    assert not torch.equal(first, predict(other, data))
    other.load_state_dict(method.weights())
    assert torch.equal(first, predict(other, data))
    members = {name: predict(method, data, member=member) for name, member in method.members().items()}
    assert list(members) == ["f", "g"]
    torch.testing.assert_close(first.sigmoid(), (members["f"].sigmoid() + members["g"].sigmoid()) / 2)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"tau_h": 1.0}, "tau_h is 1.0"),
        ({"tau_l": -0.1}, "tau_l is -0.1"),
        ({"ramp": 0}, "ramp is 0"),
        ({"remove": "high"}, "both, high-loss, low-loss"),
        ({"remove": "low-loss", "correct": True}, "correct = true"),
        ({"correct": 1}, "true or false"),
    ],
)
def test_wrong_parameters_are_refused(params: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        create_method("cls", Setup(lambda: create_model("tiny", 3), 3), params)
