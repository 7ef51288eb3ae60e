"""The losses as modules: parameters, schedules, state and errors."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest
import torch

from pluralis.engine import fit
from pluralis.errors import LabelError, RecipeError
from pluralis.labels import Labels
from pluralis.losses import LOSSES, create_loss, functional, pointwise
from pluralis.losses.priors import estimate_priors
from pluralis.method import Setup
from pluralis.methods import create_method
from pluralis.models import create_model
from tests.losses.check_loss import example, gradient
from tests.toys import plan, scenes

LABELS = Labels.from_lists([[0], [0], [1], [0]], 3)


def test_modules_are_the_functions_with_schedules():
    logits, labels = example()
    gr = create_loss("gr", wT=10.0, bT=-8.0)
    expected = functional.gr(logits, labels, w=5.0, b=-5.0, mu=0.65, sigma=1.25)
    assert gr(logits, labels, epoch=4, epochs=8) == expected
    assert gr(logits, labels) == functional.gr(logits, labels, w=0.0, b=-2.0, mu=0.5, sigma=2.0)
    assert create_loss("an-ls")(logits, labels) == functional.an_ls(logits, labels, 0.1)
    assert create_loss("an-ls", variant="released")(logits, labels) == functional.an_ls(logits, labels, 0.2)
    plain = functional.hill(logits, labels, margin=0.0, gamma=0.0)
    assert create_loss("hill", variant="released")(logits, labels) == plain
    late = create_loss("splc")(logits, labels, epoch=1)
    assert late == create_loss("splc", variant="released")(logits, labels, epoch=1) == functional.splc(logits, labels)
    assert create_loss("splc", variant="hill")(logits, labels, epoch=1) == functional.splc(
        logits, labels, variant="hill"
    )
    common = torch.tensor([False, True, False, True, False, False, False])
    csl = create_loss("csl", likely=1, prior=[0.01, 0.06, 0.05, 0.2, 0.0, 0.01, 0.01])
    assert csl(logits, labels) == functional.csl(logits, labels, likely=1, common=common)
    csl = create_loss("csl", prior=[0.1, 0.2, 0.3, 0.1, 0.1, 0.1, 0.1])  # of a mean above 0.05: what has twice that
    assert csl.common.tolist() == [False, False, True, False, False, False, False]
    many, kinds = example(6, 80)
    csl = create_loss("csl", prior=[0.06 if c % 9 == 0 else 0.04 for c in range(80)])
    assert csl(many, kinds) == functional.csl(many, kinds, likely=5, common=torch.arange(80) % 9 == 0)


@pytest.mark.parametrize(
    ("classes", "likely"), [(1, 0), (3, 0), (4, 1), (20, 1), (31, 1), (32, 2), (79, 4), (80, 5), (100, 5), (2000, 5)]
)
def test_csl_ignores_fewer_likely_labels_where_classes_are_few(classes, likely):
    """Five of the twenty of VOC would be all that a network gets wrong, and the rest would pull nothing down."""
    logits, labels = example(6, classes)
    loss = create_loss("csl", prior=0.0)
    assert loss(logits, labels) == functional.csl(logits, labels, likely=likely)
    _, slope = gradient(loss, logits, torch.zeros_like(labels))
    assert int((slope == 0).sum()) == 6 * likely


def test_csl_takes_a_stated_number_of_likely_labels_as_it_is() -> None:
    logits, labels = example(6, 20)
    assert create_loss("csl", prior=0.0, likely=5)(logits, labels) == functional.csl(logits, labels, likely=5)
    assert create_loss("csl", prior=0.0, likely=0)(logits, labels) == functional.csl(logits, labels, likely=0)


@pytest.mark.parametrize("name", [n for n in LOSSES if n not in ("upu", "nnpu")])
def test_defaults_of_module_and_function_are_the_same(name):
    logits, labels = example()
    function = getattr(functional, name.replace("-", "_"))
    few = {"splc": {"correct": False}, "csl": {"likely": 1}}  # of seven classes
    assert create_loss(name)(logits, labels) == function(logits, labels, **few.get(name, {}))


@pytest.mark.parametrize("classes", [2, 3, 5, 6, 10, 20])
def test_csl_of_few_classes_learns_from_unknown_labels(classes):
    """Published for many: five of an image's labels and every class above 5 % would be all there is."""
    rows = 8 * classes
    labels = Labels.from_lists([[row % classes] for row in range(rows)] + [[0]] * 2 * rows, classes)
    loss = create_loss("csl")
    loss.start(labels)
    dense = torch.from_numpy(labels.dense())
    _, slope = gradient(loss, torch.randn(dense.shape, generator=torch.Generator().manual_seed(0)), dense)
    counted = ((slope != 0) & (dense == 0)).sum(0) / (dense == 0).sum(0)
    assert (counted[1:] >= 0.6).all()
    assert counted[0] == 0 or classes == 2  # it alone is common, except where a class of two can hardly be


def test_modules_describe_themselves():
    assert list(inspect.signature(LOSSES["an"]).parameters) == []
    assert inspect.signature(LOSSES["em"]).parameters["alpha"].default == 0.2
    assert repr(create_loss("em")) == "EM(alpha=0.2)"
    assert repr(create_loss("nnpu", k=2.0)) == "NNPU(prior=None, k=2.0)"
    assert "q3=1.0" in repr(create_loss("gr"))
    for name, loss in LOSSES.items():
        assert loss.paper
        assert loss.start_bias in ("zero", "log-odds")
        assert repr(create_loss(name)).startswith(loss.__name__ + "(")
    coupled = {name for name, loss in LOSSES.items() if loss.batch_coupled}
    assert coupled == {"bce", "epr", "ll-r", "ll-ct", "csl", "nnpu"}


def test_released_gr():
    """−log p for the present, and μ, σ one epoch ahead of w, b."""
    logits, labels = example()
    loss = create_loss("gr", variant="released")
    assert loss.at(epoch=0, epochs=8) == {"w": 0.0, "b": -2.0, "mu": 0.5 + 0.3 / 8, "sigma": 2 - 1.5 / 8}
    last = loss.at(epoch=7, epochs=8)
    assert (last["w"], last["mu"], last["sigma"]) == (1.75, 0.8, 0.5)
    assert loss(logits, labels, epoch=7, epochs=8) == functional.gr(logits, labels, **last, q1=0.0)


@pytest.mark.parametrize("params", [{}, {"q1": 0.5}, {"variant": "released"}, {"trainable": "both"}], ids=str)
def test_gr_is_as_sure_of_what_is_absent_as_of_what_is_present(params):
    """Also where the prediction is most wrong, where L3 would hardly pull."""
    loss, wrong = create_loss("gr", **params).double(), torch.tensor([[-9.0, 0.5, 2.0, 5.0, 8.0]], dtype=torch.float64)
    absent, down = gradient(loss, wrong, torch.full((1, 5), -1))
    present, up = gradient(loss, -wrong, torch.ones(1, 5))
    torch.testing.assert_close(absent, present, rtol=1e-12, atol=0)
    torch.testing.assert_close(down, -up, rtol=1e-12, atol=0)
    assert "q1" in params or bool((5 * down[0, 2:] > 0.85).all())


def test_ablations_of_gr():
    """The rows of its Table 3."""
    logits, labels = example()
    now = {"w": 1.0, "b": -2.0, "mu": 0.65, "sigma": 1.25}
    for switch, changes in (
        ("pseudo", {"w": 0.0, "b": -1e4}),
        ("weights", {"sigma": 1e9}),
        ("robust", {"q1": 0.0, "q2": 0.0, "q3": 0.0}),
    ):
        got = create_loss("gr", **{switch: False})(logits, labels, epoch=1, epochs=2)
        torch.testing.assert_close(got, functional.gr(logits, labels, **{**now, **changes}), rtol=1e-12, atol=0)
        assert got != functional.gr(logits, labels, **now)


@pytest.mark.parametrize("trainable", ["beta", "alpha", "both"])
def test_trainable_gr(trainable):
    """At the start the loss is the scheduled one; its parameters get the gradient that differences see."""
    logits, labels = example()
    loss = create_loss("gr", trainable=trainable, w0=1.0, sigma0=0.7).double()
    names = {"beta": ["beta"], "alpha": ["alpha"], "both": ["beta", "alpha"]}[trainable]
    assert [name for name, _ in loss.named_parameters()] == names
    assert set(loss.state_dict()) == set(names)
    start = functional.gr(logits, labels, w=1.0, sigma=0.7)
    value, slope = gradient(loss, logits, labels)
    torch.testing.assert_close(value, start, rtol=1e-7, atol=0)  # parameters start in float32
    _, expected = gradient(lambda z, y: functional.gr(z, y, w=1.0, sigma=0.7), logits, labels)
    torch.testing.assert_close(slope, expected, rtol=1e-5, atol=1e-9)
    for parameter in loss.parameters():
        assert parameter.grad is not None
        for i in range(2):
            moved = []
            for step in (1e-6, -1e-6):
                with torch.no_grad():
                    parameter[i] += step
                    moved.append(loss(logits, labels).item())
                    parameter[i] -= step
            assert parameter.grad[i].item() == pytest.approx((moved[0] - moved[1]) / 2e-6, rel=1e-5, abs=1e-9)


def test_gradients_of_trainable_weights_are_those_of_the_formula():
    """∂L/∂μ and ∂L/∂log σ in closed form; the second is never negative, so that training only ever makes σ smaller."""
    logits, labels = example()
    loss = create_loss("gr", trainable="alpha", sigma0=0.7).double()
    loss(logits, labels).backward()
    mu, sigma = loss.alpha.detach()[0].item(), math.exp(loss.alpha.detach()[1].item())
    p, unknown = 1 / (1 + np.exp(-logits.detach().numpy())), labels.numpy() == 0
    k = 1 / (1 + math.exp(2.0))
    each = np.exp(-((p - mu) ** 2) / (2 * sigma**2)) * (k * (1 - p**0.01) / 0.01 + (1 - k) * p) * unknown
    expected = [(each * (p - mu)).mean() / sigma**2, (each * (p - mu) ** 2).mean() / sigma**2]
    np.testing.assert_allclose(loss.alpha.grad.numpy(), expected, rtol=1e-12)
    assert loss.alpha.grad[1] > 0


def test_unknown_labels_keep_their_weight_at_the_default_rate():
    """As many steps as on the digit scenes, at the mean of their learning rate and on logits like theirs."""
    torch.manual_seed(0)
    logits, labels = torch.randn(320, 10) - 1.5, torch.zeros(320, 10)
    weight = []
    for params in ({}, {"lr_factor": 100.0}):
        loss = create_loss("gr", trainable="both", **params)
        optimizer = torch.optim.Adam(loss.parameters(), lr=1.5e-4 * loss.lr_factor)
        for _ in range(250):
            optimizer.zero_grad()
            loss(logits, labels).backward()
            optimizer.step()
        mu, log_sigma = loss.alpha.tolist()
        weight.append(torch.exp(-((logits.sigmoid() - mu) ** 2) / (2 * math.exp(2 * log_sigma))).mean().item())
    assert weight[0] > 0.4
    assert weight[1] < 0.01


def test_trained_parameters_replace_the_schedule():
    logits, labels = example()
    assert create_loss("gr", trainable="both")(logits, labels, epoch=3, epochs=4) == create_loss(
        "gr", trainable="both"
    )(logits, labels, epoch=0, epochs=4)
    half = create_loss("gr", trainable="beta")
    assert half(logits, labels, epoch=3, epochs=4) != half(logits, labels, epoch=0, epochs=4)
    assert not list(create_loss("gr", trainable="beta", pseudo=False).parameters())  # nothing to train


def test_trainable_parameters_are_trained_by_the_method():
    method = create_method("gr", Setup(lambda: create_model("tiny", 3), 3), {"trainable": "both"})
    names = {name for name, p in method.named_parameters() if p.requires_grad}
    assert {"loss.beta", "loss.alpha"} <= names


def test_priors_from_labels():
    """Observed frequencies 3/4, 1/4 and 0, scaled to k labels an image and kept below 1."""
    assert estimate_priors(LABELS, 1.2).tolist() == pytest.approx([0.9, 0.3, 0.0])
    assert estimate_priors(LABELS, 3.0).tolist() == pytest.approx([0.99, 0.75, 0.0])
    assert estimate_priors(LABELS, 0.5).tolist() == pytest.approx([0.75, 0.25, 0.0])  # never below what was seen
    assert estimate_priors(Labels.from_lists([[]], 2), 1.5).tolist() == [0, 0]
    two = Labels.from_lists([[0, 1], [0, 1]], 3)
    assert estimate_priors(two, 2.0).tolist() == pytest.approx([0.99, 0.99, 0.0])  # two were written: 2 is not 4


@pytest.mark.parametrize("name", ["upu", "nnpu", "csl"])
def test_priors_are_kept_in_the_state(name):
    """A finished run is read back without its labels, so that only the state knows the priors."""
    setup = Setup(lambda: create_model("tiny", 3), 3, LABELS)
    trained = create_method(name, setup, {"k": 1.2})
    fresh = create_method(name, Setup(setup.make_net, 3), {"k": 1.2})
    assert not fresh.load_state_dict(trained.state_dict()).missing_keys
    assert fresh.loss.class_prior.tolist() == pytest.approx([0.9, 0.3, 0.0])
    if name != "csl":
        assert fresh.loss.written.tolist() == [0.75, 0.25, 0.25]  # a class that was never written: as if once
    logits, labels = torch.randn(4, 3), torch.from_numpy(LABELS.dense())
    assert trained.loss(logits, labels) == fresh.loss(logits, labels)


@pytest.mark.parametrize("given", ["tensor", "array", "bool", "labels"])
@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_starts_from_what_a_loop_has(name, given):
    dense = LABELS.dense()
    kinds = {"tensor": torch.from_numpy(dense), "array": dense, "bool": torch.from_numpy(dense > 0), "labels": LABELS}
    one, other = create_loss(name), create_loss(name)
    one.start(kinds[given])
    other.start(LABELS)
    assert one.state_dict().keys() == other.state_dict().keys()
    assert all(torch.equal(value, other.state_dict()[key]) for key, value in one.state_dict().items())
    for wrong in (3, object(), torch.tensor([[2, 0]]), torch.tensor([[255]], dtype=torch.uint8), [["a"]]):
        with pytest.raises(LabelError):
            one.start(wrong)


def test_upu_is_coupled_as_long_as_it_takes_the_shares_of_a_batch():
    dense = torch.tensor([[1, 0, 0], [0, 0, 1], [1, 1, 0], [1, 0, 0]])
    z = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    loss = create_loss("upu", prior=0.1)
    for start in (False, True):
        if start:
            loss.start(dense)
        halves = [loss(z[rows], dense[rows]) for rows in ([0, 1], [2, 3])]
        differs = not torch.isclose(torch.stack(halves).mean(), loss(z, dense), rtol=1e-9)
        assert loss.batch_coupled is differs is not start
    fresh = create_loss("upu", prior=0.1)
    fresh.load_state_dict(create_loss("upu", prior=0.1).state_dict())
    assert fresh.batch_coupled
    fresh.load_state_dict(loss.state_dict())
    assert not fresh.batch_coupled
    risk = create_loss("nnpu")
    risk.start(dense)
    assert risk.batch_coupled


def test_numbers_of_numpy_and_tensors_become_plain_ones():
    loss = create_loss("gr", w0=np.float32(1), b0=torch.tensor(-2.0), pseudo=np.bool_(True))
    assert (type(loss.w0), type(loss.b0), loss.pseudo) == (float, float, True)
    assert type(create_loss("csl", likely=np.int64(1)).likely) is int
    assert type(create_loss("csl", likely=torch.tensor(1)).likely) is int
    for prior in (np.array([0.1, 0.2]), torch.tensor([0.1, 0.2]), (0.1, np.float32(0.2))):
        loss = create_loss("upu", prior=prior)
        assert loss.prior == pytest.approx([0.1, 0.2])
        assert [type(p) for p in loss.prior] == [float, float]
    assert repr(create_loss("upu", prior=np.float64(0.25))) == "UPU(prior=0.25, k=1.5)"


def test_cross_entropy_counts_no_label_that_is_not_a_number(monkeypatch):
    """A GPU is not asked for the values of its labels; there NaN must be unknown in the sum and in the count."""
    monkeypatch.setattr(pointwise, "check_labels", lambda *_: None)
    z, y = torch.randn(1, 3), torch.tensor([[1.0, math.nan, -1.0]])
    assert functional.bce(z, y) == functional.bce(z, y.nan_to_num(0.0))


@pytest.mark.parametrize(("name", "size"), [("upu", 1), ("upu", 8), ("upu", 40), ("nnpu", 8), ("nnpu", 40)])
def test_positives_weigh_their_prior_in_batches_of_any_size(name, size):
    """The mean over the batches of an epoch is the risk of the whole set, also for a class in a twentieth of it."""
    dense = torch.zeros(200, 2, dtype=torch.int8)
    dense[::20, 0] = 1
    dense[1::2, 1] = 1
    dense[2, 0] = -1
    loss = create_loss(name, prior=[0.075, 0.5])
    loss.start(Labels.from_dense(dense.numpy()))
    g = torch.Generator().manual_seed(0)
    z = (3 * torch.rand(200, 2, generator=g, dtype=torch.float64)).masked_fill_(dense > 0, -4.0)  # no maximum is met
    whole, slope = gradient(loss, z, dense)
    p = z.sigmoid().numpy()
    expected = 0.0
    for c, prior in enumerate((0.075, 0.5)):
        present = dense[:, c].numpy() > 0
        expected += prior * (-np.log(p[present, c]) + np.log(1 - p[present, c])).mean() - np.log(1 - p[:, c]).mean()
    assert whole.item() == pytest.approx(expected / 2, rel=1e-6)
    parts, slopes, order = [], torch.zeros_like(z), torch.randperm(200, generator=g)
    for rows in order.split(size):
        value, slopes[rows] = gradient(loss, z[rows], dense[rows])
        parts.append(value)
    assert torch.stack(parts).mean().item() == pytest.approx(whole.item(), rel=1e-6)
    torch.testing.assert_close(slopes * size / 200, slope, rtol=1e-6, atol=1e-12)
    unstarted = create_loss(name, prior=[0.075, 0.5])
    batches = [unstarted(z[rows], dense[rows]) for rows in order.split(size)]
    assert torch.stack(batches).mean() < 0.99 * whole, "the share of the batch forgets the batches without positives"


def test_priors_that_are_given():
    logits, labels = example()
    assert create_loss("upu", prior=0.25)(logits, labels) == functional.upu(logits, labels, 0.25)
    many = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    got = create_loss("nnpu", prior=many)(logits.float(), labels)
    assert got == functional.nnpu(logits.float(), labels, torch.tensor(many))
    given = create_loss("nnpu", prior=[0.1, 0.2, 0.3])
    given.start(LABELS)
    assert given.class_prior.tolist() == pytest.approx([0.1, 0.2, 0.3])
    with pytest.raises(RecipeError, match="no class priors.*prior="):
        create_loss("nnpu")(logits, labels)
    with pytest.raises(RecipeError, match="2 priors for 7 classes"):
        create_loss("nnpu", prior=[0.1, 0.2])(logits, labels)
    with pytest.raises(RecipeError, match="2 priors for 3 classes"):
        create_loss("upu", prior=[0.1, 0.2]).start(LABELS)


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("bcee", {}, "did you mean 'bce'"),
        (3, {}, "unknown name 3; choose from 'bce'"),
        (["bce"], {}, "unknown name"),
        ("em", {"alpha": torch.tensor([0.1])}, "finite number"),
        ("em", {"alpha": np.True_}, "finite number"),
        ("csl", {"likely": np.float64(2)}, "whole number"),
        ("nothing like it", {}, "choose from 'bce', 'an', 'em', 'gr'"),
        ("em", {"alfa": 1.0}, "did you mean 'alpha'"),
        ("an", {"alpha": 1.0}, "there are none"),
        ("em", {"alpha": -0.1}, "at least 0"),
        ("em", {"alpha": math.nan}, "finite"),
        ("em", {"alpha": "0.2"}, "finite number"),
        ("gr", {"sigmaT": 0.0}, "above 0"),
        ("gr", {"q2": -1.0}, "at least 0"),
        ("gr", {"w0": math.inf}, "finite"),
        ("gr", {"variant": "code"}, "loss gr: variant.*paper, released"),
        ("gr", {"trainable": "gamma"}, "none, beta, alpha, both"),
        ("gr", {"pseudo": 1}, "true or false"),
        ("gr", {"lr_factor": -1.0}, "loss gr: lr_factor"),
        ("wan", {"weight": 0.1}, "there are none"),
        ("dw", {"weight": -1}, "loss dw: weight"),
        ("an-ls", {"epsilon": 1.0}, "loss an-ls: epsilon.*below 1"),
        ("an-ls", {"variant": "x"}, "loss an-ls: variant"),
        ("n-ls", {"epsilon": -0.1}, "loss n-ls: epsilon"),
        ("epr", {"k": 0.0}, "loss epr: k.*above 0"),
        ("entmin", {"alpha": -1.0}, "loss entmin: alpha"),
        ("focal", {"gamma": -1.0}, "loss focal: gamma"),
        ("focal", {"alpha": 1.1}, "at most 1"),
        ("asl", {"margin": 1.0}, "loss asl: margin.*below 1"),
        ("asl", {"gamma_pos": -1.0}, "loss asl: gamma_pos"),
        ("asl", {"gamma_neg": True}, "loss asl: gamma_neg"),
        ("asl", {"variant": "x"}, "loss asl: variant"),
        ("hill", {"lam": 0.9}, "loss hill: lam"),
        ("hill", {"margin": -1.0}, "loss hill: margin"),
        ("hill", {"variant": "x"}, "loss hill: variant"),
        ("splc", {"tau": 1.0}, "loss splc: tau"),
        ("splc", {"tau": 0.0}, "loss splc: tau"),
        ("splc", {"start_epoch": 1.5}, "whole number"),
        ("splc", {"variant": "paper"}, "loss splc: variant is 'paper'; it must be one of released, hill"),
        ("ll-r", {"delta": -0.1}, "loss ll-r: delta"),
        ("ll-ct", {"delta": 2.0}, "loss ll-ct: delta"),
        ("partial-bce", {"beta": -1.0}, "loss partial-bce: beta"),
        ("partial-bce", {"alpha": -6.0}, "alpha \\+ beta is -0.55"),
        ("partial-bce", {"gamma": -1.0}, "loss partial-bce: gamma"),
        ("csl", {"likely": -1}, "loss csl: likely"),
        ("csl", {"max_prior": 2.0}, "loss csl: max_prior"),
        ("csl", {"gamma_unann": -2.0}, "loss csl: gamma_unann"),
        ("upu", {"prior": 1.0}, "loss upu: prior is 1.0.*below 1"),
        ("upu", {"prior": []}, "empty list"),
        ("nnpu", {"prior": [0.1, -0.2]}, "loss nnpu: prior\\[1\\]"),
        ("nnpu", {"prior": "0.1"}, "finite number"),
        ("nnpu", {"k": 0}, "loss nnpu: k.*above 0"),
    ],
)
def test_bad_parameters_are_named(name, params, message):
    with pytest.raises(RecipeError, match=message):
        create_loss(name, **params)


def test_bad_inputs_are_named():
    with pytest.raises(LabelError, match=r"\(2, 3\).*\(2, 4\)"):
        functional.an(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(LabelError, match="int64"):
        functional.an(torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3))
    with pytest.raises(LabelError, match="scalars"):
        functional.an(torch.tensor(0.0), torch.tensor(1))
    with pytest.raises(LabelError, match="scalars"):
        functional.wan(torch.tensor(0.0), torch.tensor(1))
    with pytest.raises(RecipeError, match="loss splc: variant is 'paper'"):
        functional.splc(torch.zeros(2, 3), torch.zeros(2, 3), variant="paper")
    with pytest.raises(RecipeError, match="average"):
        functional.bce(torch.zeros(2, 3), torch.zeros(2, 3), reduction="average")
    for name in ("epr", "partial_bce", "ll_r", "ll_ct", "csl"):
        with pytest.raises(LabelError, match="a row for each image"):
            getattr(functional, name)(torch.zeros(3), torch.zeros(3))
    for wrong in ({"alpha": -6.0}, {"beta": -1.0}, {"gamma": -1}):  # weights that would turn labels around
        with pytest.raises(RecipeError, match=f"loss partial-bce: {next(iter(wrong))}"):
            functional.partial_bce(torch.zeros(2, 3), torch.ones(2, 3), **wrong)
    for loss in (functional.upu, functional.nnpu):
        with pytest.raises(LabelError, match=r"\(2, 3\).*\(2, 4\)"):
            loss(torch.zeros(2, 3), torch.zeros(2, 4), 0.1)


def test_trainable_parameters_have_a_rate_of_their_own():
    data, moved = scenes(16), []
    for factor in (1.0, 100.0):
        torch.manual_seed(0)
        setup = Setup(lambda: create_model("tiny", 10), 10, data.labels)
        method = create_method("gr", setup, {"trainable": "both", "lr_factor": factor})
        start = method.loss.beta.detach().clone()
        fit(method, data, plan(epochs=2, lr=1e-5, schedule="constant", weight_decay=0.5))
        moved.append(float((method.loss.beta.detach() - start).norm()))
    assert moved[1] > 50 * moved[0] > 0
