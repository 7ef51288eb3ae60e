"""Learn all the labels of an image from the few that somebody wrote down.

The names below are imported when they are first used, so that `import pluralis` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pluralis import data as data
    from pluralis import errors as errors
    from pluralis import losses as losses
    from pluralis import methods as methods
    from pluralis import metrics as metrics
    from pluralis import models as models
    from pluralis.config import Recipe as Recipe
    from pluralis.counting import Counts as Counts
    from pluralis.counting import count_labels as count_labels
    from pluralis.data.loader import Loader as Loader
    from pluralis.data.loader import TensorImages as TensorImages
    from pluralis.engine import fit as fit
    from pluralis.errors import PluralisError as PluralisError
    from pluralis.estimator import PartialLabelClassifier as PartialLabelClassifier
    from pluralis.labels import Labels as Labels
    from pluralis.losses import create_loss as create_loss
    from pluralis.losses import estimate_rate as estimate_rate
    from pluralis.losses import selection_posterior as selection_posterior
    from pluralis.method import Batch as Batch
    from pluralis.method import Clock as Clock
    from pluralis.method import LossMethod as LossMethod
    from pluralis.method import Method as Method
    from pluralis.method import Setup as Setup
    from pluralis.methods import create_method as create_method
    from pluralis.methods import start_bias as start_bias
    from pluralis.methods import start_heads as start_heads
    from pluralis.models import create_model as create_model
    from pluralis.run import train as train
    from pluralis.stage import Stage as Stage
    from pluralis.trained_run import load_run as load_run

_HOMES = {
    "Batch": "method",
    "Clock": "method",
    "Counts": "counting",
    "Labels": "labels",
    "Loader": "data.loader",
    "LossMethod": "method",
    "Method": "method",
    "PartialLabelClassifier": "estimator",
    "PluralisError": "errors",
    "Recipe": "config",
    "Setup": "method",
    "Stage": "stage",
    "TensorImages": "data.loader",
    "count_labels": "counting",
    "create_loss": "losses",
    "create_method": "methods",
    "create_model": "models",
    "estimate_rate": "losses",
    "fit": "engine",
    "load_run": "trained_run",
    "selection_posterior": "losses",
    "start_bias": "methods",
    "start_heads": "methods",
    "train": "run",
}
_PARTS = ("data", "errors", "losses", "methods", "metrics", "models")

__all__ = ["__version__", *_HOMES]


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_PARTS})


if not TYPE_CHECKING:  # where types are checked, a name that does not exist is an error

    def __getattr__(name: str) -> Any:
        if name in _HOMES:
            return getattr(import_module(f"pluralis.{_HOMES[name]}"), name)
        if name in _PARTS:
            return import_module(f"pluralis.{name}")
        raise AttributeError(f"module 'pluralis' has no attribute {name!r}")
