"""The errors that Pluralis raises. Each message says what is wrong, where, and what to do.

All take one string, so that they survive a trip through a worker process unchanged.
"""

from collections.abc import Iterable
from difflib import get_close_matches

# Control characters other than line feed and tab; those of Unicode's second block and lone surrogates have no picture.
_SIGNS = {code: 0x2400 + code for code in range(32) if code not in (9, 10)}
_SIGNS |= {127: 0x2421} | dict.fromkeys((*range(0x80, 0xA0), *range(0xD800, 0xE000)), 0xFFFD)
_LONGEST, _MOST = 60, 20_000  # characters of a name that are compared and told, and names that are compared


class PluralisError(Exception):
    """Anything that the user can put right; the command line prints it as one line and exits with 2."""


class LabelError(PluralisError):
    """Labels that contradict each other, name an unknown class, or have the wrong shape."""


class DataError(PluralisError):
    """A data set that cannot be read: a missing file, a bad line, an image that does not decode."""


class RecipeError(PluralisError):
    """A recipe with an unknown key, a value out of range, or parts that do not fit together."""


class WeightsError(PluralisError):
    """Pre-trained weights that are missing, altered, or meant for another network."""


class CheckpointError(PluralisError):
    """A checkpoint that cannot be written, read, or trusted."""


class NonFiniteLoss(PluralisError):
    """A loss term became NaN or infinite; the message names the term, the position and the rows."""


class Interrupted(Exception):
    """Training was asked to stop; everything up to this step is saved."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the one that was probably meant, and those that there are."""
    names = [other if len(other) <= _LONGEST else f"{other[:_LONGEST]}…" for other in known]
    if not names:
        return "there are none"
    wanted, compared = name[:_LONGEST], names[:_MOST]
    spelt = dict.fromkeys((wanted, wanted.lower()))
    close = next(filter(None, (get_close_matches(one, compared, n=1) for one in spelt)), [])
    meant = f"did you mean {close[0]!r}? " if close else ""
    return f"{meant}choose from {', '.join(map(repr, names[:20]))}{', …' if len(names) > 20 else ''}"


def visible(text: str) -> str:
    """A text fit for a terminal: what would steer it, and halves of characters, become signs that can be seen.

    >>> visible("a\\x1b[31mb\\n")
    'a␛[31mb\\n'
    """
    return text.translate(_SIGNS)


def shown(name: object) -> str:
    """A name fit for one line of an error: quoted, control characters escaped, the middle of a long one cut.

    >>> shown("a\\nb"), len(shown("x" * 1000))
    ("'a\\\\nb'", 181)
    """
    text = repr(name)
    return text if len(text) <= 200 else f"{text[:120]}…{text[-60:]}"
