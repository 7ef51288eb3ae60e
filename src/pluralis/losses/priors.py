"""How common each class is: given by the user, or estimated from the labels that were written down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pluralis.errors import RecipeError
from pluralis.labels import Labels
from pluralis.losses.base import Loss
from pluralis.params import number, number_or_list

HIGHEST = 0.99


def estimate_priors(labels: Labels, k: float) -> Tensor:
    """[C] share of the images in which each class is present, if an image has k present labels on average.

    π_c = f_c · max(1, k / Σ f), f_c the share of images in which c was written down, and at most 0.99: the observed
    frequencies scaled so that they add up to k, which is f_c·k where one label was written for each image.

    >>> estimate_priors(Labels.from_lists([[0], [0], [1], [0]], 3), k=1.2)
    tensor([0.9000, 0.3000, 0.0000])
    """
    frequency = torch.as_tensor(labels.summary().positives, dtype=torch.float64) / max(len(labels), 1)
    factor = max(1.0, k / max(float(frequency.sum()), 1e-12))
    return (frequency * factor).clamp_(max=HIGHEST).float()


class PriorLoss(Loss):
    """A loss with a prior for each class: `prior`, one number or one for each class, or estimated at the start.

    The buffer `class_prior` holds them as [C], as [1] where one number stands for all, or as [0] as long as there are
    none: the priors are `start`'s to find, and a finished run brings its own along.
    """

    class_prior: Tensor

    def __init__(self, owner: str, prior: float | Sequence[float] | None, k: float) -> None:
        super().__init__()
        self.owner = owner
        self.prior = None if prior is None else number_or_list(owner, "prior", prior, 0.0, below=1.0)
        values = self.prior if isinstance(self.prior, list) else [] if self.prior is None else [self.prior]
        self.k = number(owner, "k", k, above=0.0)
        self.register_buffer("class_prior", torch.tensor(values))

    def _start(self, labels: Labels) -> None:
        if self.prior is None:
            self.class_prior = estimate_priors(labels, self.k).to(self.class_prior.device)
        self._check(len(labels.classes))

    def priors(self, classes: int) -> Tensor:
        """[C], or [1] for all classes alike."""
        if not len(self.class_prior):
            raise RecipeError(
                f"{self.owner}: there are no class priors; give prior=… or call start(labels) with the training labels"
            )
        self._check(classes)
        return self.class_prior

    def _check(self, classes: int) -> None:
        if len(self.class_prior) not in (1, classes):
            raise RecipeError(
                f"{self.owner}: {len(self.class_prior)} priors for {classes} classes; "
                "give a number, or one for each class"
            )

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        stored = state_dict.get(prefix + "class_prior")
        if self.prior is None and stored is not None:  # one without labels cannot know how many there are
            self.class_prior = torch.empty_like(stored, device=self.class_prior.device)
        super()._load_from_state_dict(state_dict, prefix, *args)
