"""Several tags in one cell, as people with spreadsheets write them: "person, horse"."""

from __future__ import annotations

from collections.abc import Sequence

from pluralis.data.formats.csv_records import Records
from pluralis.errors import shown

_SIGNS = (",", ";", "|", "/")


def part_tags(lines: Records, sign: str) -> Records:
    """Lines of an image, a cell of tags and perhaps a value, as lines of one tag each; a cell without any stays empty.

    >>> [cells for _, cells, _ in part_tags(iter([(2, ["a.jpg", "sea, ,boat "], "")]), ",")]
    [['a.jpg', 'sea'], ['a.jpg', 'boat']]
    """
    if not any(map(str.isalnum, sign)):
        sign = sign.strip() or sign  # the blanks around tags go in any case; those of " and " part it from "band"
    for line, cells, rest in lines:
        if len(cells) < 2:
            yield line, cells, rest
            continue
        image, text, *value = cells
        tags = [tag for tag in map(str.strip, text.split(sign)) if tag]
        for tag in tags or [""]:
            yield line, [image, tag, *value], rest


def tags_note(classes: Sequence[str]) -> str:
    """What to say where names are made of other names, with the same sign between them; nothing where none is.

    >>> tags_note(["boat", "sea", "sea, boat", "salt, pepper"])
    "1 class looks like several tags in one cell: 'sea, boat'; --set 'data.options.several=,' makes each tag a label"
    """
    known = set(map(str.casefold, classes))
    found: dict[str, list[str]] = {sign: [] for sign in _SIGNS}
    for name in classes:
        for sign in _SIGNS:
            tags = [tag for tag in map(str.strip, name.casefold().split(sign)) if tag]
            if len(tags) > 1 and known.issuperset(tags):
                found[sign].append(name)
    sign, names = max(found.items(), key=lambda item: len(item[1]))
    if not names:
        return ""
    look = "1 class looks" if len(names) == 1 else f"{len(names):,} classes look"
    such = ": " if len(names) == 1 else ", such as "
    setting = f"--set 'data.options.several={sign}'"
    return f"{look} like several tags in one cell{such}{shown(names[0])}; {setting} makes each tag a label"
