"""Learn from what was written down, work out what is missing, and learn again from all of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pluralis import distributed
from pluralis.calibration import calibrate
from pluralis.errors import RecipeError
from pluralis.labels import Labels
from pluralis.losses import LOSSES, Loss, Selection, create_loss, selection_posterior
from pluralis.losses.base import Late
from pluralis.method import Batch, Clock, Method, PredictTrain, Setup, loss_group
from pluralis.methods.start import log_odds, start_values
from pluralis.params import choice, flag, number, whole
from pluralis.stage import Stage
from pluralis.state import Kept, LabelState
from pluralis.views import VIEWS, Views
from pluralis.written_rates import chances_by_rates

_NAME = "method relabel"
_STARTS = ("head", "soft")
_ROWS_AT_ONCE = 2**16  # of soft labels that are added up: what float64 takes is more than they do
_STUDENTS = ("plain", "strong", "strong-crop")  # the plan's own view, or one of the augmentations


class Relabel(Method):
    """Relabelling: a network learns the written labels and says how likely every other is; a fresh one learns that.

    The first stage trains with `loss` and its parameters `loss_params`. At the start of each of `rounds` further ones
    the training images are looked at with many `views` (see `pluralis.views`; `crop_weight` is the share of the crops),
    and every unknown label gets its chance r of being present given what was written (`selection_posterior`). Then the
    network starts anew, from its first weights (but see below for the head's bias), on

        L = −(1/NC) Σ [ t log p + (1−t) log(1−p) ],   t = 1 on written labels, 0 on verified absent ones, r on the rest.

    Rows of which there is only the image (`Setup.further_images`) teach students alone, by r = p.
    Many views see more than the one that was trained on, which is what the second network learns from the first. Each
    stage trains as long as the plan says.

    How labels came to be written is a matter of the loss. After `selection`, r is by its mechanism, rate, a and
    unlabelled, such as loss_params = {mechanism = "rate"}; a rate that it learned is the one at the end of its stage,
    never an average of weights, and no student moves it. Any other loss says nothing of that: its logits are calibrated
    first, by two numbers under which the written labels are most likely, and r is by one picked label, or by the rates
    of present and of absent labels where some are verified to be absent (`calibration.calibrate`). A row without any
    label then keeps its calibrated p, as if nobody had looked; where somebody did, `selection` with unlabelled =
    "absent" is right.

    A teacher's head starts from the bias that suits the loss, and a student's, which learns by cross-entropy, from
    log-odds whatever the loss is, unless a bias is stated or the head puts another in their place (`lse` and `csra`).

    Options, off by default (`train` chooses some where norms keep their statistics, `defaults.settle`); they combine:

    folds    k ≥ 2 teachers in place of one, each in a stage of its own: teacher j leaves the labels of one in k rows
             out of its loss (they weigh 0; drawn by the seed, `fold`) and then labels these rows and no others, so
             that no network is asked about labels that it learned. k stages in place of the first. What the loss
             itself learns starts anew with each teacher too; students go by the last one's rate.
    student  "strong": students see the strong view (RandAugment and Cutout, `data/randaugment.py`) in place of the one
             that the plan names, teachers do not. "strong-crop": that of a random crop.
    students k in place of one in each round, each in a stage of its own: by the same soft labels (which `refresh`
             moves for the last one) and from the same start, but by other batches and crops. What predicts is one
             network with the mean of their weights, which is about as good as the mean of their logits where batch
             norms keep their statistics.
    refresh  m: in the second half of the last stage's epochs the soft labels follow the student. After each step
             r ← (1−m)·r + m·r′ for the rows of the batch, r′ being the posterior by the student's own logits.
    student_start  "soft": students start from the log-odds of what they are to learn, the mean of t, whatever the head
             and a stated bias are. `train` chooses it where norms keep their statistics (`defaults.settle`).
    pair     two students f and g, which start from different heads. f learns from (t + r′_g)/2, where r′_g is the
             posterior by g's logits without gradient, and g from (t + r′_f)/2. They predict by the mean of their
             logits, and `refresh` takes the mean of r′_f and r′_g.

    >>> from pluralis.labels import Labels
    >>> from pluralis.models import create_model
    >>> setup = Setup(lambda: create_model("tiny", 3), 3, Labels.from_lists([[0], [1]], 3))
    >>> method = Relabel(setup, views="fast")
    >>> method.start_stage(Clock(stage=1), lambda views: torch.zeros(2, 3))
    >>> method.soft(torch.tensor([0]))[0]                   # two more may be present: r = 5/14 for each
    tensor([[0.0000, 0.3572, 0.3572]])
    """

    paper = "ours: the likelihood of a pick, and one round of labels from many views"
    learns_images = True
    start_bias = Selection.start_bias  # of the default loss: another brings its own
    memory = ("soft.", "first.", "first_peer.", "first_loss.", "fold", "rates", "loss.tally.")

    fold: Tensor
    rates: Tensor
    taught: Tensor

    def __init__(
        self,
        setup: Setup,
        loss: str = "selection",
        loss_params: dict[str, Any] | None = None,
        views: str = "thorough",
        crop_weight: float = 0.25,
        rounds: int = 1,
        folds: int = 0,
        student: str = "plain",
        refresh: float = 0.0,
        pair: bool = False,
        student_start: str = "head",
        students: int = 1,
    ) -> None:
        super().__init__()
        teaching = _loss(choice(_NAME, "loss", loss, LOSSES), {} if loss_params is None else loss_params)
        self.start_bias, self.deep_start_bias = teaching.start_bias, teaching.deep_start_bias
        self.start_rate = teaching.start_rate
        self.looks = looks(views, crop_weight)
        self.rounds = whole(_NAME, "rounds", rounds, low=1, high=100)
        self.students = whole(_NAME, "students", students, low=1, high=100)
        if self.rounds * self.students > 100:
            raise RecipeError(f"{_NAME}: {rounds} rounds of {students} students each; give at most 100 in all")
        self.folds = _folds(folds, setup)
        self.teachers = max(self.folds, 1)
        self.student = choice(_NAME, "student", student, _STUDENTS)
        self.student_start = choice(_NAME, "student_start", student_start, _STARTS)
        self.refresh = number(_NAME, "refresh", refresh, low=0.0, high=1.0)
        self.labels = setup.labels
        self.written, self.further_images = setup.rows, setup.further_images
        self.net = setup.make_net()
        self.peer = setup.make_another(self.net) if flag(_NAME, "pair", pair) else None
        self.loss = teaching
        if setup.labels is not None:
            self.loss.start(setup.labels)
        self.batch_coupled = self.loss.batch_coupled  # some know all rows once they have started
        self.soft = LabelState(setup.rows + setup.further_images, setup.classes)
        if not isinstance(self.loss, Selection):  # of present and of absent labels, -1 where one was picked
            self.register_buffer("rates", torch.full((2,), -1.0, dtype=torch.float64))
        self.first = Kept(self.net)
        if self.folds:
            self.register_buffer("fold", torch.zeros(len(self.soft.value), dtype=torch.uint8))
            self.first_loss = Kept(self.loss)
        if self.peer is not None:
            self.first_peer = Kept(self.peer)
            self.register_buffer("taught", torch.tensor(False))  # whether the networks are students already
        self._moved: tuple[Tensor, Tensor] | None = None  # what `forward` leaves for `after_step`

    def stages(self, plan: Stage) -> list[Stage]:
        student = plan if self.student == "plain" else replace(plan, augment=self.student)
        return [plan] * self.teachers + [student] * (self.rounds * self.students)

    def learned_rows(self, stage: int) -> Tensor | None:
        if stage < self.teachers and self.further_images:
            return torch.arange(self.written)
        return None

    def joins(self, stage: int) -> bool:
        return stage > self.teachers and (stage - self.teachers) % self.students > 0

    def start_stage(self, clock: Clock, predict_train: PredictTrain) -> None:
        if clock.stage == 0:
            self.first.keep(self.net)
            if self.peer is not None:
                self.first_peer.keep(self.peer)
            if self.folds:  # the loop has set the generator by its seed
                parts = [torch.randperm(count) % self.folds for count in (self.written, self.further_images)]
                self.fold.copy_(torch.cat(parts))
            self._check_views(predict_train)
            return
        if not self.joins(clock.stage):
            self._relabel(clock.stage, predict_train)
        self.first.put_back(self.net)
        if clock.stage < self.teachers:
            self.first_loss.put_back(self.loss)
            return
        if self.peer is not None:
            self.first_peer.put_back(self.peer)
            self.taught.fill_(True)
        assert self.labels is not None
        start = self._student_bias(self.labels)
        for _, student in self.networks():
            student.head.set_bias(start)

    def _student_bias(self, labels: Labels) -> Tensor:
        if self.student_start == "head":
            return start_values(labels, self.restart_bias)
        parts = self.soft.value.split(_ROWS_AT_ONCE)  # 0 where nothing was guessed
        guessed = torch.stack([part.sum(0, dtype=torch.float64) for part in parts]).sum(0)
        return log_odds(labels, guessed.cpu(), further_rows=self.further_images)

    def _check_views(self, predict_train: PredictTrain) -> None:
        """Every view of a few rows: what cannot be looked at so should show before a stage is trained."""
        if self.looks.passes == 1:
            return
        few = min(2 * distributed.world_size(), len(self.soft.value))  # some for every process
        try:
            predict_train(views=self.looks, rows=torch.arange(few))
        except RecipeError as error:
            raise RecipeError(
                f"{_NAME} needs many views of the training images: {error} (method.params.views)"
            ) from error

    def _relabel(self, stage: int, predict_train: PredictTrain) -> None:
        """By the network of the stage before: all rows, or those of the fold that it did not learn."""
        assert self.labels is not None
        if self.folds and stage <= self.folds:
            rows = (self.fold == stage - 1).nonzero().flatten().cpu()
            logits = predict_train(views=self.looks, rows=rows)
        else:
            rows, logits = torch.arange(len(self.soft.value)), predict_train(views=self.looks)
        given = torch.zeros(logits.shape, dtype=torch.int8)
        written = rows < self.written
        given[written] = torch.from_numpy(self.labels.dense(rows[written].numpy()))
        if not isinstance(self.loss, Selection):
            scale, _ = calibrate(logits, given)
            logits = scale.log_odds(logits)
            self.rates.copy_(torch.tensor(scale.rates or (-1.0, -1.0)))
        self.soft.fill(self._chances(logits, given, rows), given == 0, stage, rows)

    def _chances(self, logits: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        """r of these rows; of a row that is only an image, at which nobody looked, p."""
        chances = self._posterior(logits, labels)
        if not self.further_images:
            return chances
        only_image = (rows >= self.written)[:, None]
        return torch.where(only_image, logits.to(chances).sigmoid(), chances)

    def _posterior(self, logits: Tensor, labels: Tensor) -> Tensor:
        if isinstance(self.loss, Selection):
            return selection_posterior(logits, labels, **self.loss.how_written())
        present, absent = self.rates.tolist()
        if present < 0:
            return selection_posterior(logits, labels)
        return chances_by_rates(logits, labels, (present, absent))

    def forward(self, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        if clock.stage < self.teachers:
            return {"loss": self._teacher_loss(batch, clock)}
        soft, guessed = self.soft(batch.index)
        target = torch.where(guessed, soft, (batch.labels > 0).to(soft))
        students = [self.net] if self.peer is None else [self.net, self.peer]
        logits = [net(batch.views[0]).float() for net in students]
        last = clock.stage + 1 == self.teachers + self.rounds * self.students
        moves = self.refresh > 0 and last and 2 * clock.epoch >= clock.epochs
        seen = [self._chances(z.detach(), batch.labels, batch.index) for z in logits if moves or len(logits) > 1]
        if moves:
            mine = len(soft) if batch.weight else 0  # at weight 0 the row is another process's
            self._moved = batch.index[:mine], soft.lerp(torch.stack(seen).mean(0), self.refresh)[:mine]
        if len(logits) == 1:
            return {"loss": F.binary_cross_entropy_with_logits(logits[0], target)}
        targets = [(target + by_other) / 2 for by_other in reversed(seen)]
        f, g = map(F.binary_cross_entropy_with_logits, logits, targets)
        return {"f": f, "g": g}

    def _teacher_loss(self, batch: Batch, clock: Clock) -> Tensor:
        logits, labels = self.net(batch.views[0]), batch.labels
        if not self.folds:
            return self.loss(logits, labels, epoch=clock.epoch, epochs=clock.epochs)
        # Of the rows that are left in the batch, with the weight that each has in the whole of it.
        rows = (self.fold[batch.index] != clock.stage).nonzero().flatten()
        share = len(rows) / len(labels)
        if share == 0:  # a row that tells of no rate: other processes may wait for what the loss adds up over all
            rows, labels = torch.zeros_like(batch.index[:1]), -torch.ones_like(labels)
        return share * self.loss(logits[rows], labels[rows], epoch=clock.epoch, epochs=clock.epochs)

    def after_step(self, clock: Clock) -> None:
        if self._moved is None:
            return
        rows, values = map(distributed.gather_rows, self._moved)
        self._moved = None
        self.soft.fill(values, self.soft(rows)[1], clock.stage, rows)

    def soft_labels(self) -> LabelState:
        return self.soft

    def figures(self) -> dict[str, float]:
        """What the loss learned; in the later stages, what is used of it."""
        return self.loss.figures()

    def late(self) -> list[Late]:
        """What the loss begins late; soft labels move in the second half of the epochs, which one epoch has not."""
        moves = [Late(f"{_NAME}: soft labels will not follow the student (refresh)", 1)] if self.refresh else []
        return [*self.loss.late(), *moves]

    def param_groups(self, stage: Stage) -> list[dict[str, Any]]:
        return loss_group(super().param_groups(stage), self.loss, stage)

    def predict(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x)
        return logits if self.peer is None or not self.taught else (logits + self.peer(x)) / 2


def looks(views: str, crop_weight: float) -> Views:
    """How the training images are looked at for these parameters."""
    named = VIEWS[choice(_NAME, "views", views, VIEWS)]
    weight = number(_NAME, "crop_weight", crop_weight, low=0.0, high=1.0)
    return replace(named, crop_weight=weight) if named.crop_weight else named


def _loss(name: str, params: dict[str, Any]) -> Loss:
    if not isinstance(params, dict) or not all(isinstance(key, str) for key in params):
        raise RecipeError(f"{_NAME}: loss_params is {params!r}; give a table of parameters of the loss {name}")
    try:
        return create_loss(name, **params)
    except RecipeError as error:
        raise RecipeError(f"{_NAME}: loss_params: {error}") from error


def _folds(folds: int, setup: Setup) -> int:
    if whole(_NAME, "folds", folds, high=100) == 1:
        raise RecipeError(f"{_NAME}: folds is 1, which leaves a teacher no row to learn; give 0, or 2 and more")
    if setup.labels is not None and setup.rows < folds:
        raise RecipeError(f"{_NAME}: folds is {folds}, but only {setup.rows} rows train; give at most {setup.rows}")
    return folds
