"""A recipe: everything that decides the result of a run, as dataclasses and as TOML."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, get_type_hints

from pluralis.errors import RecipeError
from pluralis.stage import Stage

AUTO = "auto"
"""Left open: `defaults.settle` decides."""
_SHARING = ("known-ratio", "drop-positives", "flip-positives")  # protocols that leave a share of the labels
_COUNTING = ("fixed-per-class",)  # those that leave a number of each class
_PICKING = ("single-positive", "pick-area", "pick-largest", "pick-rarest")  # those that leave one of those present
_WITH_ABSENT = ("one-positive-all-negatives",)  # those that leave one of those present, and all that are absent
DRAWN = ("single-positive", "pick-area", *_WITH_ABSENT, *_SHARING, *_COUNTING)
"""Protocols that draw, so that the seed decides what they leave."""
_PROTOCOLS = ("as-given", "complete", *_PICKING, *_WITH_ABSENT, *_SHARING, *_COUNTING)


@dataclass(frozen=True)
class DataPart:
    """Which pictures and labels, and what of the labels is shown to training."""

    format: str = "csv"  # csv | voc | coco | npy | scenes
    images: str = ""  # folder of the images, or of the data set
    labels: str = ""  # label file, where the format has one
    options: dict[str, Any] = field(default_factory=dict)  # what else the format's reader takes
    protocol: str = "as-given"  # as-given | complete | single-positive | pick-… | known-ratio | drop-positives | …
    protocol_seed: int | None = None  # of the draw; None = the protocol's own, `draw_seed`
    protocol_share: float = 0.0  # what stays: of all labels (known-ratio), of the present ones (drop-, flip-positives)
    protocol_count: int = 0  # what stays of each class, present and absent (fixed-per-class)
    unlabelled: str = "error"  # error | keep | drop: what to do with an image that has no label
    size: int = 0  # side of the squares that the network sees; 0 = 320 where the images have them, 256 otherwise
    store_size: int = 0  # side of the squares that are decoded and cached; 0 = size
    test: dict[str, Any] = field(default_factory=dict)  # images, labels, options of a fully labelled test set

    @property
    def draw_seed(self) -> int:
        """What the protocol draws with: the stated seed, else the protocol's own, as in `data.protocols`."""
        if self.protocol_seed is not None:
            return self.protocol_seed
        return 0 if self.protocol in (*_SHARING, *_COUNTING) else 1200


@dataclass(frozen=True)
class ModelPart:
    """Backbone, head and the weights they start from."""

    backbone: str = "efficientnet_lite0"
    head: str = AUTO  # what goes with the method
    head_params: dict[str, Any] = field(default_factory=dict)
    weights: str = "imagenet"  # imagenet | a file | "" for random weights
    sha256: str = ""
    dropout: float | None = None  # of features, before the head; None = what `settle` says, or none
    drop_path: float = 0.0


@dataclass(frozen=True)
class MethodPart:
    """The method and its parameters."""

    name: str = AUTO  # relabel, or selection where the backbone does not train
    params: dict[str, Any] = field(default_factory=dict)
    start_bias: str = "method"  # method = what suits it and the head | zero | log-odds | equal


@dataclass(frozen=True)
class SelectPart:
    """The rule that chooses the epoch, and the rows that are held out for it."""

    rule: str = "observed"  # clean | observed | last
    fraction: float = 0.2  # of the training rows; may be 0 with the rule `last`
    seed: int = 1200
    images: bool | None = None  # held-out images teach the students of relabel, without their labels; None = `settle`


@dataclass(frozen=True)
class RunPart:
    """Seed, device and precision; decoded, workers, save_seconds, watch_… and caches of pictures never matter."""

    seed: int = 0
    device: str = "auto"  # auto | cpu | cuda | cuda:N
    precision: str = "auto"  # auto | fp32 | bf16
    compile: bool = False
    autotune: bool = False  # try every convolution kernel at the start of a run on a GPU (some 15 s)
    deterministic: bool = False
    record: bool = True  # replay training passes on a GPU as CUDA graphs
    cache: str = "ram"  # none | ram | disk | device | features (of a frozen backbone, for training its head alone)
    features: str = ""  # folder where features are kept; "" = the user's own cache
    decoded: str = ""  # folder where decoded pictures are kept for the next run; "" = nowhere, of "disk" the user's own
    workers: int = 2
    save_seconds: float = 60.0
    watch_test: bool = False  # evaluate the test set after each epoch, for curves
    watch_train: int = 0  # training rows whose labels are looked at after each epoch, for curves (`watch.py`)
    watch_rules: bool = False  # score every selection rule after each epoch, and fit thresholds (`watch_rules.py`)


@dataclass(frozen=True)
class Recipe:
    data: DataPart = field(default_factory=DataPart)
    model: ModelPart = field(default_factory=ModelPart)
    method: MethodPart = field(default_factory=MethodPart)
    train: Stage = field(default_factory=Stage)
    select: SelectPart = field(default_factory=SelectPart)
    run: RunPart = field(default_factory=RunPart)

    def __post_init__(self) -> None:
        _one_of("data.protocol", self.data.protocol, _PROTOCOLS)
        self._check_share(self.data.protocol, self.data.protocol_share)
        self._check_count(self.data.protocol, self.data.protocol_count)
        _one_of("data.unlabelled", self.data.unlabelled, ("error", "keep", "drop"))
        _one_of("select.rule", self.select.rule, ("clean", "observed", "last"))
        _one_of("run.cache", self.run.cache, ("none", "ram", "disk", "device", "features"))
        if not 0 <= self.select.fraction < 1:
            raise RecipeError(f"select.fraction is {self.select.fraction}; it must be from 0 to below 1")
        if self.select.rule != "last" and self.select.fraction == 0:
            raise RecipeError(
                f'select.rule = "{self.select.rule}" needs held-out rows: set select.fraction above 0,'
                ' or select.rule = "last"'
            )
        if self.select.images and self.select.fraction == 0:
            raise RecipeError("select.images learns from the images of held-out rows: set select.fraction above 0")
        for name, value, low, high in (
            ("data.size", self.data.size or 256, 16, 4096),
            ("data.store_size", self.data.store_size or 256, 16, 4096),
            ("data.protocol_seed", self.data.draw_seed, 0, 2**32 - 1),
            ("select.seed", self.select.seed, 0, 2**32 - 1),
            ("model.dropout", self.model.dropout or 0, 0, 0.99),
            ("model.drop_path", self.model.drop_path, 0, 0.99),
            ("run.workers", self.run.workers, 0, 256),
            ("run.watch_train", self.run.watch_train, 0, 2**31),
        ):
            if not low <= value <= high:
                raise RecipeError(f"{name} is {value}; it must be from {low} to {high}")
        unknown = set(self.data.test) - {"format", "images", "labels", "options"}
        if unknown:
            raise RecipeError(
                f"there is no key 'data.test.{min(unknown)}'; it may hold format, images, labels and options"
            )

    @staticmethod
    def _check_share(protocol: str, share: float) -> None:
        if protocol in _SHARING and not 0 < share <= 1:
            raise RecipeError(
                f'data.protocol = "{protocol}" needs data.protocol_share, the share of labels that stays:'
                f" a number above 0 and up to 1, not {share}"
            )
        if protocol not in _SHARING and share != 0:  # it would be quietly without effect
            raise RecipeError(
                f'data.protocol_share is {share}, but data.protocol = "{protocol}" has no use for it:'
                f" leave it out, or set data.protocol to {' or '.join(_SHARING)}"
            )

    @staticmethod
    def _check_count(protocol: str, count: int) -> None:
        if protocol in _COUNTING and count < 1:
            raise RecipeError(
                f'data.protocol = "{protocol}" needs data.protocol_count, how many labels of each class stay:'
                f" a whole number of at least 1, not {count}"
            )
        if protocol not in _COUNTING and count != 0:
            raise RecipeError(
                f'data.protocol_count is {count}, but data.protocol = "{protocol}" has no use for it:'
                f" leave it out, or set data.protocol to {' or '.join(_COUNTING)}"
            )

    @classmethod
    def load(
        cls, path: Path | None, settings: Iterable[str] = (), values_by_key: Mapping[str, Any] | None = None
    ) -> Recipe:
        """A recipe from a TOML file (or the defaults), with values by `section.key` and `key=value` texts on top."""
        values: dict[str, Any] = {}
        if path is not None:
            try:
                values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
                raise RecipeError(f"cannot read the recipe {path}: {error}") from error
        return cls._from(values, settings, values_by_key or {})

    def with_settings(self, settings: Iterable[str], values_by_key: Mapping[str, Any] | None = None) -> Recipe:
        """This recipe with values by `section.key` and `section.key=value` texts on top."""
        return self._from(self.to_dict(), settings, values_by_key or {})

    @classmethod
    def _from(cls, values: dict[str, Any], settings: Iterable[str], values_by_key: Mapping[str, Any]) -> Recipe:
        for key, value in values_by_key.items():
            _put(values, key.split("."), value, key)
        for setting in settings:
            key, equals, text = setting.partition("=")
            if not equals:
                raise RecipeError(f"--set {setting!r}: write it as section.key=value, such as train.lr=1e-4")
            path = key.strip().split(".")
            parse = parse_option if "options" in path[:-1] else parse_value
            _put(values, path, parse(text.strip()), setting)
        return cls.from_dict(values)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Recipe:
        result: Recipe = _build(cls, values, "")
        return result

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def to_toml(self) -> str:
        lines = []
        for name, part in self.to_dict().items():
            given = {key: value for key, value in part.items() if value is not None}
            lines += [f"[{name}]", *(f"{key} = {toml_text(value)}" for key, value in given.items()), ""]
        return "\n".join(lines)


_FREE = {f"run.{key}" for key in ("cache", "decoded", "features", "workers", "save_seconds")}
_FREE |= {"data.images", "data.labels", "run.watch_test", "run.watch_train"}


def changed_keys(old: Recipe, new: Recipe) -> list[str]:
    """What differs, apart from what cannot change a result (where files lie, workers, caches)."""
    changes = []
    for section, values in old.to_dict().items():
        for key, value in values.items():
            other = getattr(getattr(new, section), key)
            free = f"{section}.{key}" in _FREE and not (key == "cache" and "features" in (value, other))
            if section == "data" and key == "protocol_seed":
                value, other = old.data.draw_seed, new.data.draw_seed
            if section == "data" and key == "test":  # its files may move as well
                value, other = ({k: v for k, v in t.items() if k not in ("images", "labels")} for t in (value, other))
            if section == "select" and key == "images":
                value, other = bool(value), bool(other)
            if section == "model" and key == "dropout":
                value, other = value or 0.0, other or 0.0
            if not free:
                changes += _differences(f"{section}.{key}", value, other)
    return changes


def _differences(name: str, old: Any, new: Any) -> list[str]:
    """Of tables only the keys that differ."""
    if old == new:
        return []
    if not (isinstance(old, dict) and isinstance(new, dict) and old and new):
        return [f"{name}: {toml_text(old)} -> {toml_text(new)}"]
    absent = object()
    found = []
    for key in {**old, **new}:
        value, other = old.get(key, absent), new.get(key, absent)
        if absent in (value, other):
            words = ("not set" if part is absent else toml_text(part) for part in (value, other))
            found.append(f"{name}.{key}: {' -> '.join(words)}")
        else:
            found += _differences(f"{name}.{key}", value, other)
    return found


def _build(cls: type, values: Any, where: str) -> Any:
    if not isinstance(values, Mapping):
        raise RecipeError(f"{where or 'the recipe'} must be a table of keys, not {values!r}")
    hints = _hints(cls)
    made = {}
    for key, value in values.items():
        name = f"{where}.{key}" if where else key
        if key not in hints:
            raise RecipeError(f"there is no key {name!r} in a recipe; {_nearest(name, key, where, hints)}")
        made[key] = _cast(value, hints[key], name)
    return cls(**made)


@cache
def _hints(cls: type) -> dict[str, Any]:
    """Types of the keys: read from their texts once, as a bench makes thousands of recipes."""
    return get_type_hints(cls)


def _nearest(name: str, key: str, where: str, hints: Mapping[str, Any]) -> str:
    near = get_close_matches(key, hints, 1, 0.5)
    if near:
        return f"did you mean {f'{where}.{near[0]}' if where else near[0]!r}?"
    every = [f"{f.name}.{g}" for f in dataclasses.fields(Recipe) for g in get_type_hints(_type(f.name))]
    near = get_close_matches(name, every, 1, 0.5) or [e for e in every if e.endswith(f".{key}")]
    return f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(hints)}"


def _type(section: str) -> Any:
    return get_type_hints(Recipe)[section]


def _cast(value: Any, kind: Any, name: str) -> Any:
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _build(kind, value, name)
    if isinstance(kind, UnionType):  # something, or nothing
        if value is None:
            return None
        kind = kind.__args__[0]
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    plain = dict if getattr(kind, "__origin__", None) is dict else kind
    if not isinstance(value, plain) or (plain is int and isinstance(value, bool)):
        raise RecipeError(f"{name} must be of type {plain.__name__}, not {value!r}")
    return value


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise RecipeError(f"{name} is {value!r}; it must be one of {', '.join(allowed)}")


def _put(values: dict[str, Any], path: list[str], value: Any, setting: str) -> None:
    for part in path[:-1]:
        values = values.setdefault(part, {})
        if not isinstance(values, dict):
            raise RecipeError(f"--set {setting!r}: {part!r} is a value, not a section")
    values[path[-1]] = value


def parse_value(text: str) -> Any:
    """TOML where it is TOML, a plain word otherwise: `train.optimizer=sgd` needs no quotes."""
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def parse_option(text: str) -> Any:
    """As `parse_value`, but whatever would be written in another way stays as typed: it may be a name, such as 1_0."""
    value = parse_value(text)
    return value if isinstance(value, str | list | dict) or toml_text(value) == text else text


def toml_text(value: Any) -> str:
    """A value as TOML has it, on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(str(k))} = {toml_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_text, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # which TOML refuses as it is
    return repr(value)
