"""From a method to predictions, metrics, and the choice of an epoch by a named rule."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from pluralis import distributed
from pluralis.calibration import PICKED, Calibration, calibrate, likelihood_words, rate_given, with_error
from pluralis.data.loader import Loader, Progress
from pluralis.errors import DataError, NonFiniteLoss
from pluralis.method import Method, Predict
from pluralis.metrics import f1_scores, mean_average_precision
from pluralis.views import Views, get_views, view_logits

_PREDICT_BATCH = 256
RATES = ("present written", "absent written")  # in the history, where both rates are fitted


@torch.no_grad()
def predict(
    method: Method,
    data: Loader,
    batch_size: int = _PREDICT_BATCH,
    progress: Progress | None = None,
    member: Predict | None = None,
    views: str | Views = "fast",
    rows: Tensor | None = None,
) -> Tensor:
    """Logits [N, C] of every row, or of `rows` in their order, float32 on the CPU. Several processes share the work.

    `member` stands in for `method.predict`: one of `method.members()`. `views` says how a picture is looked at (see
    `pluralis.views`); with many passes a picture there are fewer rows in a batch, so that no more memory is needed.
    """
    member, views = member or method.predict, get_views(views)
    batch_size = max(1, batch_size // views.passes)
    training = method.training
    method.eval()
    rows = torch.arange(len(data)) if rows is None else rows
    share = torch.arange(len(rows))[distributed.rank() :: distributed.world_size()]
    parts: list[Tensor] = []
    for _, pixels in data.stored(batch_size, rows[share]):  # larger views show more of them
        parts.append(view_logits(member, pixels, data.size, views))
        if progress is not None:
            progress(min(len(parts) * batch_size, len(share)), len(share))
    method.train(training)
    mine = torch.cat(parts) if parts else torch.empty((0, len(data.labels.classes)), device=data.device)
    if distributed.world_size() > 1:
        whole = torch.zeros((len(rows), mine.shape[1]), device=data.device)
        whole[share.to(data.device)] = mine
        dist.all_reduce(whole)
        mine = whole
    broken = (~torch.isfinite(mine).all(1)).nonzero().flatten().tolist()
    if broken:
        names = ", ".join(data.images.name(int(rows[row])) for row in broken[:3])
        raise NonFiniteLoss(
            f"the network gives NaN or infinite logits for {len(broken)} of {len(rows)} images, such as {names}:"
            " training diverged; lower train.lr or set train.clip, then run again in a new folder"
        )
    return mine.cpu()


class Rule(Protocol):
    """How the weights of a run are chosen among its epochs; a higher score is better."""

    name: str

    def score(self, method: Method) -> dict[str, float]:
        """At least "score", and what else is worth a place in the history."""

    def describe(self) -> str: ...


class Last:
    """Nothing is chosen: the weights of the last epoch."""

    name = "last"

    def score(self, method: Method) -> dict[str, float]:
        return {}

    def describe(self) -> str:
        return "last epoch"


class Clean:
    """mAP on a validation set that is fully labelled, as the papers do."""

    name = "clean"

    def __init__(self, data: Loader) -> None:
        truth = torch.from_numpy(data.labels.dense())
        if bool((truth == 0).any()):
            row = int((truth == 0).any(1).nonzero()[0])
            raise DataError(
                f"the rule 'clean' needs every label of its validation rows, but row {data.labels.id(row)} has"
                ' unknown ones: set select.rule = "observed"'
            )
        if not bool((truth > 0).any()):
            raise DataError(
                f"the rule 'clean' needs a present label among its {len(truth)} validation rows, but there is none:"
                " hold out more rows (select.fraction)"
            )
        self._data, self._truth = data, truth

    def score(self, method: Method) -> dict[str, float]:
        value = mean_average_precision(predict(method, self._data), self._truth).value
        return {"score": value, "val mAP": 100 * value}

    def describe(self) -> str:
        return f"clean: best mAP on {len(self._data)} fully labelled rows"


class Observed:
    """Likelihood of the labels that were written for held-out rows, after a two-number calibration (`calibration.py`).

    `method`, where it is known already, says how labels come to be written, for the rule's own description.
    """

    name = "observed"

    def __init__(self, data: Loader, method: Method | None = None) -> None:
        self._data, self._labels = data, torch.from_numpy(data.labels.dense())
        self.by = likelihood_words(self._labels, {} if method is None else rate_given(method))

    def score(self, method: Method) -> dict[str, float]:
        calibration, nll = calibrate(predict(method, self._data), self._labels, rate_given(method))
        found = {"score": -nll, "val nll": nll, "calibration a": calibration.a, "calibration b": calibration.b}
        if calibration.rates is not None:
            found |= dict(zip(RATES, calibration.rates, strict=True))
        return found

    def calibration(self, figures: dict[str, float]) -> Calibration:
        """The calibration of an epoch, from what `score` told of it."""
        rates = [figures[name] for name in RATES if name in figures]
        return Calibration(
            figures["calibration a"], figures["calibration b"], (rates[0], rates[1]) if rates else None, self.by
        )

    def told(self, method: Method, figures: dict[str, float]) -> Calibration:
        """The same with the error of rates that the method learned, by the same rows; its weights are the epoch's."""
        calibration, how = self.calibration(figures), rate_given(method)
        if "learned" not in how:
            return calibration
        return with_error(calibration, predict(method, self._data), self._labels, how)

    def describe(self) -> str:
        how = "" if self.by == PICKED else f", as if {self.by}"
        return f"observed: best likelihood of the written labels of {len(self._data)} held-out rows{how}"


def evaluate(
    method: Method,
    data: Loader,
    calibration: Calibration | None = None,
    threshold: float = 0.5,
    progress: Progress | None = None,
    variant: str = "paper",
    member: Predict | None = None,
    views: str | Views = "fast",
) -> dict[str, float]:
    """mAP, CF1 and OF1 in percent against labels that are known; unknown ones are left out.

    `variant="released"` counts classes that cannot be measured as 0, as published evaluation code does.
    """
    logits = predict(method, data, progress=progress, member=member, views=views)
    return measure(logits, torch.from_numpy(data.labels.dense()), calibration, threshold, variant)


def measure(
    logits: Tensor,
    truth: Tensor,
    calibration: Calibration | None = None,
    threshold: float = 0.5,
    variant: str = "paper",
) -> dict[str, float]:
    """The same from logits [N, C] and the truth [N, C] in {+1, 0, -1}."""
    found = (calibration or Calibration()).probabilities(logits)
    ap = mean_average_precision(logits, truth, variant)
    f1 = f1_scores(found, truth, threshold)
    return {"mAP": 100 * ap.value, "CF1": 100 * f1.cf1, "OF1": 100 * f1.of1, "classes left out": ap.skipped}
