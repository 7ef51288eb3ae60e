"""Training lowers the loss of a method, and of each of its terms, when what is the method's own acts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pluralis.data.loader import Loader
from pluralis.engine import fit
from pluralis.method import Clock, Method, PredictTrain
from pluralis.seeding import derive
from pluralis.stage import Stage

# Settings under which the value must fall, and what is a method's own is not hidden by the rest of it.
DESCENDS: dict[str, dict[str, Any]] = {
    "em-apl": {"alpha": 0.0, "beta": 1.0, "soft": False},  # a soft label is learned already when it is given
    "lac": {"delta_main": 0.5},  # all unknown labels have a pseudo-label, at the end as at the start
    "ll-cp": {"delta": 0.3},  # enough corrected labels to outweigh the others
    "ll-ct": {"delta": 0.3},
    "pu-mlc": {"gamma": 0.0},  # p_c^γ is held constant in the gradient but changes with the weights
}
# Two fresh networks disagree; after an epoch both take all labels for absent, and there is nothing to choose by.
AT_FIRST = ("co-teaching+", "decoupling")
# Those whose loss changes when their own part begins.
BEGINS = ("cls", "co-teaching", "em-apl", "gr", "jocor", "lac", "ll-cp", "ll-ct", "ll-r", "relabel")
# By their formulas: in Eq. 7 of LAC the denominator leaves out what the numerator has, so its logarithm has both signs.
BELOW_ZERO = {"em": "loss", "lac": "lac", "upu": "loss", "pu-mlc": "variational", "vpu": "variational"}
STEP = 1e-2  # length of a step by the gradient of one term


def check_descent(name: str, method: Method, data: Loader) -> None:
    """In the last epoch of the last stage. Terms that cannot be below zero must not be: their sign is wrong."""
    epochs = 1 if name in AT_FIRST else 2
    plan = Stage(epochs=epochs, batch_size=9, lr=2e-3, head_lr=3, warmup=0, schedule="constant", augment="none")
    clock = Clock(len(method.stages(plan)) - 1, epochs - 1, epochs=epochs)
    memory: dict[str, Tensor] = {}
    start: dict[str, float] = {}
    start_epoch = method.start_epoch

    def watched(now: Clock, predict_train: PredictTrain) -> None:
        start_epoch(now, predict_train)
        if now == clock:
            memory.update((k, v.clone()) for k, v in method.named_buffers() if k.startswith(method.memory))
            start.update(_terms(method, data, clock))
            before = _terms(method, data, Clock(epochs=epochs))
            assert name not in BEGINS or start != before, f"{name}: what is its own does not act"
            for term in start:
                _a_step_by_one_term(name, method, data, clock, term)

    method.start_epoch = watched  # type: ignore[method-assign]
    fit(method, data, plan)
    method.load_state_dict(memory, strict=False)  # a longer queue or more guesses would be another loss
    end = _terms(method, data, clock)
    assert sum(end.values()) < sum(start.values()), f"{name}: an epoch of training did not lower the loss"
    for term in start.keys() - {BELOW_ZERO.get(name)}:
        assert min(start[term], end[term]) >= 0, f"{name}: the term {term} is below zero"


def _terms(method: Method, data: Loader, clock: Clock) -> dict[str, float]:
    saved = {k: v.clone() for k, v in method.state_dict().items()}
    with torch.no_grad():
        terms = {term: float(value) for term, value in _forward(method, data, clock).items()}
    method.load_state_dict(saved)
    return terms


def _a_step_by_one_term(name: str, method: Method, data: Loader, clock: Clock, term: str) -> None:
    """A short step against the gradient of a term alone, by the networks alone, lowers it."""
    saved = {k: v.clone() for k, v in method.state_dict().items()}
    before = _forward(method, data, clock)[term]
    weights = [p for _, net in method.networks() for p in net.parameters() if p.requires_grad]
    slopes = torch.autograd.grad(before, weights, materialize_grads=True)
    size = torch.stack([slope.norm() for slope in slopes]).norm()
    assert size > 0, f"{name}: the term {term} does not reach the network"
    method.load_state_dict(saved)
    with torch.no_grad():
        for weight, slope in zip(weights, slopes, strict=True):
            weight -= STEP / size * slope
        after = _forward(method, data, clock)[term]
    assert after < before, f"{name}: a step against the gradient of the term {term} did not lower it"
    method.load_state_dict(saved)


def _forward(method: Method, data: Loader, clock: Clock) -> dict[str, Tensor]:
    """Of the whole set in one batch, the same at every clock, with the weights as they are."""
    method.eval()
    torch.manual_seed(derive(0, "check"))
    (batch,) = data.batches(len(data), ["none"] * len(method.views), 0, Clock())
    labels = batch.labels.clone()
    terms = method(batch, clock)
    assert torch.equal(batch.labels, labels), "the batch's labels were changed"
    return terms
