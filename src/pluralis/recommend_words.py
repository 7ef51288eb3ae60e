"""From figures with intervals to a choice between methods, and to sentences that say what it rests on."""

from __future__ import annotations

from dataclasses import dataclass

from pluralis.recommend_evidence import LEVEL, Gain, Interval, Measured, interval
from pluralis.trials import Candidate

DEFAULT = "default"
FEW, SOME = 100, 1000  # held-out rows below which nothing is told apart, and below which caution is due


@dataclass(frozen=True)
class Compared:
    """A method at the best of its settings that were tried; without figures, the candidate's note says why."""

    name: str
    candidate: Candidate
    measured: Measured | None = None
    over_default: Gain | None = None

    @property
    def title(self) -> str:
        """The method, and what was trained in its place where that is another."""
        final, judged = self.candidate.final.method.name, self.candidate.judged.method.name
        more = [f"judged by {judged}"] * (judged != final) + ["the default"] * (self.name == DEFAULT)
        return final + (f" ({', '.join(more)})" if more else "")


@dataclass(frozen=True)
class Facts:
    """All that a choice rests on; the default is the first of those compared."""

    compared: list[Compared]
    verified: bool  # mAP is that of known labels; otherwise unwritten ones are taken as absent
    rows: int  # held out, with a label
    frozen: bool
    has_test: bool
    missing: list[str]  # settings that were not tried, or failed
    ends: list[str]  # methods of which the lowest or the highest learning rate was the best

    @property
    def others(self) -> list[Compared]:
        return [one for one in self.compared[1:] if one.over_default is not None]

    @property
    def precision(self) -> str:
        return "mAP of known labels" if self.verified else "mAP, unwritten as absent"


def decide(facts: Facts) -> Compared:
    """The best of those that are surely better than the default; the default where there is none.

    Where labels were verified to be absent, mAP on the known labels decides. Otherwise it is the likelihood, unless mAP
    with unwritten labels as absent says the contrary.
    """
    better = [one for one in facts.others if one.over_default and _verdict(facts, one.over_default) == "better"]
    return max(better, key=lambda one: _deciding(facts, one).value) if better else facts.compared[0]


def verdict(facts: Facts, chosen: Compared) -> str:
    """What to use, in a sentence."""
    plan = chosen.candidate.final.train
    how = f"train.lr = {plan.lr:g}, {plan.epochs} epochs" + (", frozen backbone" if plan.freeze < 0 else "")
    return f"Use {chosen.title} with {how}."


def reasons(facts: Facts, chosen: Compared) -> list[str]:
    """Why, method by method."""
    if not facts.others:
        return [
            "Nothing was compared: the time was enough for the default alone. Give more with --minutes; what is"
            " trained is kept."
        ]
    said = []
    if facts.rows < FEW:
        said.append(
            f"Only {facts.rows} held-out rows have a label, which tells no methods apart: so it is the default."
        )
    elif chosen.name == DEFAULT:
        said.append("No other method is better than the default beyond the interval: so it is the default.")
    else:
        said.append(f"{chosen.title} is better than the default beyond the interval.")
    texts = {"better": "better", "worse": "worse", "": "cannot be told from the default", "mixed": "mixed"}
    for one in facts.others:
        assert one.over_default is not None
        figures = f"likelihood {_signed(one.over_default.likelihood, 3)}, mAP {_signed(one.over_default.precision, 1)}"
        said.append(f"{one.title}: {texts[_verdict(facts, one.over_default)]}: {figures}.")
    return said


def limits(facts: Facts) -> list[str]:
    """What these labels cannot tell."""
    said = []
    if facts.verified:
        said.append(
            "mAP is that of labels that somebody verified as present or absent; it is fair as far as the choice of the"
            " labels to verify does not depend on how hard they are."
        )
    else:
        said += [
            "The likelihood is that of the default's own idea of how labels come to be written, so it favours the"
            " default. A method that scores lower may still find more labels; nobody can tell from these labels.",
            "mAP takes what nobody wrote as absent, so it punishes a method for labels that are there and unwritten.",
            "On VOC 2012 this likelihood ordered the settings of one method nearly as complete labels do (rank"
            " correlation 0.96), methods much less (0.55), and on small tables even settings poorly.",
        ]
    if facts.rows < SOME:
        said.append(f"{facts.rows} held-out rows with a label are few: hold out or label more to tell more.")
    if facts.frozen:
        said.append(
            "Heads were trained on features of a frozen backbone. Where the backbone trains, which takes a GPU, the"
            " order of methods can be another one; the default is relabel there."
        )
    said.append("Each was trained once: intervals are over images, not over seeds.")
    if facts.has_test:
        said.append("The test set that the recipe names was not looked at; training measures the final run on it.")
    else:
        said.append("No completely labelled image was used. With a few hundred, `pluralis evaluate` measures the run.")
    if facts.ends:
        said.append(
            f"The best learning rate is the last that was tried: {', '.join(facts.ends)}; one beyond may be better."
        )
    if facts.missing:
        said.append(f"Settings without a result: {', '.join(facts.missing)}. More --minutes may make up for it.")
    for one in facts.compared:
        if one.measured is None:
            said.append(f"{one.title} was not compared: {one.candidate.note}.")
    return said


def with_interval(one: Measured) -> tuple[str, str]:
    """Likelihood and mAP, each with its interval over images."""
    parts = (one.likelihood, one.likelihood_draws, 3), (one.precision, one.precision_draws, 1)
    first, second = (_text(interval(value, draws, LEVEL), digits) for value, draws, digits in parts)
    return first, second


def _deciding(facts: Facts, one: Compared) -> Interval:
    assert one.over_default is not None
    return one.over_default.precision if facts.verified else one.over_default.likelihood


def _verdict(facts: Facts, over: Gain) -> str:
    main = over.precision if facts.verified else over.likelihood
    if facts.rows < FEW or main.low <= 0 <= main.high:
        return ""
    contrary = not facts.verified and (over.precision.high < 0 if main.low > 0 else over.precision.low > 0)
    return "mixed" if contrary else "better" if main.low > 0 else "worse"


def _text(one: Interval, digits: int) -> str:
    return f"{one.value:.{digits}f} ({one.low:.{digits}f} to {one.high:.{digits}f})".replace("-", "−")


def _signed(one: Interval, digits: int) -> str:
    return f"{one.value:+.{digits}f} ({one.low:+.{digits}f} to {one.high:+.{digits}f})".replace("-", "−")
