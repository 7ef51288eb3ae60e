"""A table as Markdown, LaTeX, CSV and HTML."""

from __future__ import annotations

import csv
import html as escaping
import io
from collections.abc import Callable
from itertools import groupby

from pluralis.bench.table_model import BEST, SECOND, Cell, Line, Table

_LATEX = {"\\": r"\textbackslash{}", "±": r"$\pm$", "−": "$-$", "×": r"$\times$", "<": "$<$", ">": "$>$"}
_LATEX |= {char: f"\\{char}" for char in "&%$#_{}"} | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX |= {"≤": r"$\leq$", "≥": r"$\geq$", "≈": r"$\approx$", "≠": r"$\neq$", "→": r"$\to$", "·": r"$\cdot$"}
_GREEK = {"α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "ζ": "zeta", "η": "eta", "θ": "theta"}
_GREEK |= {"ι": "iota", "κ": "kappa", "λ": "lambda", "μ": "mu", "ν": "nu", "ξ": "xi", "π": "pi", "ρ": "rho"}
_GREEK |= {"ς": "varsigma", "σ": "sigma", "τ": "tau", "υ": "upsilon", "φ": "phi", "χ": "chi", "ψ": "psi", "ω": "omega"}
_GREEK |= {"Γ": "Gamma", "Δ": "Delta", "Θ": "Theta", "Λ": "Lambda", "Ξ": "Xi", "Π": "Pi", "Σ": "Sigma", "Υ": "Upsilon"}
_GREEK |= {"Φ": "Phi", "Ψ": "Psi", "Ω": "Omega", "µ": "mu"}  # the last one is the sign of a millionth
_LATEX |= {char: rf"$\{name}$" for char, name in _GREEK.items()}
_LATEX |= dict(zip("ΑΒΕΖΗΙΚΜΝΟΡΤΧο", "ABEZHIKMNOPTXo", strict=True))  # LaTeX writes these Greek letters as Latin ones


def markdown(table: Table) -> str:
    """A heading, the table, and its notes; what is second is underlined by the tag that Markdown takes from HTML."""
    marks = {BEST: "**{}**", SECOND: "<u>{}</u>"}
    width = len(table.header) + 1

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    lines = [f"## {_plain(table.title)}", "", line(["", *(_plain(head.title) for head in table.header)])]
    lines.append("|" + "---|" + "--:|" * (width - 1))
    for group, members in _groups(table):
        if group:
            lines.append(line([f"*{_plain(group)}*", *[""] * (width - 1)]))
        for one in members:
            cells = [marks.get(cell.mark, "{}").format(_plain(cell.text)) for cell in one.cells]
            lines.append(line([_plain(one.name), *cells]))
    return "\n".join([*lines, "", *(f"- {_marked(note, _plain, '`{}`')}" for note in table.notes)]) + "\n"


def latex(table: Table) -> str:
    """A table that needs no package."""
    marks = {BEST: r"\textbf{%s}", SECOND: r"\underline{%s}"}
    width = len(table.header) + 1
    lines = [r"\begin{table}", r"\centering", rf"\begin{{tabular}}{{l{'r' * (width - 1)}}}", r"\hline"]
    lines += [" & ".join(["", *(_tex(head.title) for head in table.header)]) + r" \\", r"\hline"]
    for group, members in _groups(table):
        if group:
            lines.append(rf"\multicolumn{{{width}}}{{l}}{{\emph{{{_tex(group)}}}}} \\")
        for one in members:
            cells = [marks.get(cell.mark, "%s") % _tex(cell.text) for cell in one.cells]
            lines.append(" & ".join([_first(one.name), *cells]) + r" \\")
    caption = " ".join([_tex(f"{table.title}."), *(_marked(note, _tex, r"\texttt{{{}}}") for note in table.notes)])
    lines += [r"\hline", r"\end{tabular}", rf"\caption{{{caption}}}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def as_csv(tables: list[Table]) -> str:
    """The numbers of all tables, one a line: nothing is rounded."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["table", "group", "row", "column", "figure", "value", "mark"])
    for table in tables:
        for line in table.lines:
            for head, cell in zip(table.header, line.cells, strict=True):
                for part, value in zip(head.parts, cell.numbers, strict=bool(cell.numbers)):
                    if value is not None:
                        place = [table.title, line.group, line.name, head.title]
                        writer.writerow([*map(_harmless, place), part, repr(value), cell.mark])
    return text.getvalue()


def html(table: Table) -> str:
    """A heading, the `<table>` and a list of its notes; every text is escaped."""
    marks = {BEST: "<b>{}</b>", SECOND: "<u>{}</u>"}
    safe = escaping.escape
    heads = "".join(f"<th>{safe(head.title)}</th>" for head in table.header)
    lines = [f"<h2>{safe(table.title)}</h2>", "<table>", f"<thead><tr><th></th>{heads}</tr></thead>", "<tbody>"]

    def cell(one: Cell) -> str:
        return f"<td>{marks.get(one.mark, '{}').format(safe(one.text))}</td>"

    for group, members in _groups(table):
        if group:
            lines.append(f'<tr><th colspan="{len(table.header) + 1}">{safe(group)}</th></tr>')
        lines += [f"<tr><th>{safe(one.name)}</th>{''.join(map(cell, one.cells))}</tr>" for one in members]
    notes = "".join(f"<li>{html_note(note)}</li>" for note in table.notes)
    return "\n".join([*lines, "</tbody>", "</table>", f"<ul>{notes}</ul>"]) + "\n"


def html_note(text: str) -> str:
    """Escaped, and what is between backticks as code.

    >>> html_note("`an` < `gr`")
    '<code>an</code> &lt; <code>gr</code>'
    """
    return _marked(text, escaping.escape, "<code>{}</code>")


def _groups(table: Table) -> list[tuple[str, list[Line]]]:
    return [(group, list(members)) for group, members in groupby(table.lines, key=lambda line: line.group)]


def _plain(text: str) -> str:
    """Nothing in a cell may end it, or be read as a mark."""
    for char in "\\|*_`<":
        text = text.replace(char, f"\\{char}")
    return text.replace("](", "]\\(").replace("\n", " ")


def _marked(text: str, safe: Callable[[str], str], code: str) -> str:
    """A note in which every second part between backticks is code, if they come in pairs around something."""
    parts = text.split("`")
    if len(parts) % 2 == 0 or not all(part.strip() for part in parts[1::2]):
        return safe(text)
    inside = (lambda part: part.replace("\n", " ")) if code[0] == "`" else safe  # Markdown reads no marks in there
    return "".join(code.format(inside(part)) if at % 2 else safe(part) for at, part in enumerate(parts))


def _tex(text: str) -> str:
    return "".join(_LATEX.get(char, char) for char in text)


def _first(text: str) -> str:
    """After the end of a line LaTeX takes a bracket for a length, and an asterisk for a part of the command."""
    return ("{}" if text[:1] in ("[", "*") else "") + _tex(text)


def _harmless(text: str) -> str:
    """A spreadsheet must not take a name for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
