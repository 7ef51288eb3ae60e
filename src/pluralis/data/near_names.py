"""Classes that are probably another one misspelt: `preson` with 1 label beside `person` with 90."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from pluralis.data.inspection import Ints, together
from pluralis.errors import shown
from pluralis.labels import Labels

_FEW, _TIMES = 10, 20  # labels of a name that may be misspelt, and how many times as many the right one has
_SHORTEST, _LONGEST = 4, 60  # letters of a word, and characters of a name, that are compared
_MOST = 10  # names that are compared of those that are the same but for one character in the same place
_WORD, _NUMBER = re.compile(r"[^\W\d_]+"), re.compile(r"\d+")


class Near(NamedTuple):
    """Class `rare` has `few` labels, and may be class `common`, which has `many`."""

    rare: int
    common: int
    few: int
    many: int


def near_note(labels: Labels) -> str:
    """One line about all such classes, or nothing.

    >>> near_note(Labels.from_lists([[0]] * 90 + [[1]], ["person", "preson"]))
    "1 class may be misspelt: 'preson' (1 label) beside 'person' (90); where both are one thing, write them alike"
    """
    found = near_names(labels)
    if not found:
        return ""
    such = []
    for rare, common, few, many in found[:3]:
        names = labels.classes[rare], labels.classes[common]
        same = len({unicodedata.normalize("NFC", name) for name in names}) == 1  # they look alike: show the signs
        one, two = (ascii(name) if same else shown(name) for name in names)
        such.append(f"{one} ({few:,} label{'s' if few > 1 else ''}) beside {two} ({many:,})")
    more = ", …" if len(found) > len(such) else ""
    what = "1 class" if len(found) == 1 else f"{len(found):,} classes"
    return f"{what} may be misspelt: {', '.join(such)}{more}; where both are one thing, write them alike"


def near_names(labels: Labels) -> list[Near]:
    """Classes that may be misspelt, each with the more frequent one that was probably meant.

    Their names are the same but for upper and lower case, blanks or how accents are written; or they are one slip
    apart, one has few labels and the other many times as many, and no image has both.
    """
    known = labels.summary()
    present = known.positives
    written = np.where(present > 0, present, known.negatives)  # a name may be mistyped where it is absent, too
    first: dict[str, int] = {}  # by spelling, the class with the most labels; of these the most frequent first
    spelt = []
    for number in np.argsort(-present, kind="stable").tolist():
        if written[number]:
            name = _usual(labels.classes[number])
            meant = first.setdefault(name, number)
            if meant != number and len(name) > 1:  # a and A may be two letters of handwriting
                spelt.append((number, meant))
    slips = _never_together(labels, list(_slips(first, written, present)))
    return [Near(rare, common, int(written[rare]), int(written[common])) for rare, common in spelt + slips]


def _slips(numbers: dict[str, int], written: Ints, present: Ints) -> Iterator[tuple[int, int]]:
    """Of `numbers` by name, the most frequent first: the rare ones, each with the most frequent that is one slip apart.

    Names meet where the same is left of them without one character, so that not every pair is looked at.
    """
    index: dict[str, list[str]] = defaultdict(list)
    for name, number in numbers.items():
        if present[number] >= _TIMES:
            for short in _shorter(name):
                if len(index[short]) < _MOST:
                    index[short].append(name)
    for name, number in numbers.items():
        if written[number] <= _FEW:
            near = {other for short in _shorter(name) for other in index.get(short, ()) if _one_slip(name, other)}
            enough = [numbers[other] for other in near if written[number] * _TIMES <= present[numbers[other]]]
            if enough:
                yield number, min(enough, key=lambda other: (-present[other], other))


def _usual(name: str) -> str:
    """One spelling for all that differ in case, blanks or how accents are written."""
    return " ".join(unicodedata.normalize("NFC", name.casefold()).split())


def _shorter(name: str) -> set[str]:
    """The name, and what is left of it without one character: two names that are one slip apart share one of these."""
    fit = _SHORTEST <= len(name) <= _LONGEST
    return {name, *(name[:at] + name[at + 1 :] for at in range(len(name)))} if fit else set()


def _one_slip(a: str, b: str) -> bool:
    """Whether one character too many, too few or another, or two neighbours swapped, make a of b, in a word of letters.

    Not where the words are short, or begin otherwise (goat and boat), or where numbers differ: these are mostly other
    words. In words of four letters another letter makes another word as well (boot and boat).
    """
    at = next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    swapped = a[at : at + 2] == b[at : at + 2][::-1] and a[at + 2 :] == b[at + 2 :]
    other = len(a) == len(b) and a[at + 1 :] == b[at + 1 :]
    added = a[at + 1 :] == b[at:] or a[at:] == b[at + 1 :]
    if not (swapped or other or added) or _NUMBER.findall(a) != _NUMBER.findall(b):
        return False
    one, two = _WORD.findall(a), _WORD.findall(b)
    if "".join(one) == "".join(two):  # a blank, a hyphen
        return len("".join(one)) >= _SHORTEST
    unlike = [(x, y) for x, y in zip(one, two, strict=False) if x != y]
    if len(unlike) != 1:
        return False
    x, y = unlike[0]
    return min(len(x), len(y)) >= _SHORTEST + other and (swapped or x[0] == y[0])


def _never_together(labels: Labels, pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The pairs of which no row has both: of one thing people write one name."""
    if not pairs:
        return []
    classes = sorted({number for pair in pairs for number in pair})
    both = together(labels, classes)
    rare, common = np.searchsorted(classes, pairs).T
    counts = np.asarray(both[rare, common]).reshape(-1)
    return [pair for pair, count in zip(pairs, counts, strict=True) if not count]
