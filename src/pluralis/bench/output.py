"""What a bench leaves for people: its tables in four formats, and a page with tables and figures."""

from __future__ import annotations

from pathlib import Path

from pluralis.bench import render
from pluralis.bench.bench import Bench
from pluralis.bench.runner import Queue
from pluralis.bench.tables import make_tables
from pluralis.data.whole_file import whole_text
from pluralis.html_page import document


def write_output(queue: Queue) -> list[Path]:
    """Write the tables and the page of every spec, where there are several in a folder each; returns where they are."""
    with queue.store.lock("tables", wait=True):  # another bench may write them too
        return [path for bench in queue.benches for path in _write(queue, bench)]


def _write(queue: Queue, bench: Bench) -> list[Path]:
    """table.md, .tex, .csv and .html, and index.html with the figures."""
    from pluralis.bench import page  # matplotlib takes a while

    out, spec, results = queue.store.out / bench.plan.name, bench.plan.spec, bench.results()
    kept = ("", spec.rule)  # what other rules choose has no weights
    drawn = [result for result in results if result.selection in kept and not result.failure]
    tables = make_tables(spec, bench.runs(), results, bench.plan.without_data)
    texts = {
        "table.md": "\n".join(map(render.markdown, tables)),
        "table.tex": "\n".join(map(render.latex, tables)),
        "table.csv": render.as_csv(tables),
        "table.html": document(spec.title, "".join(f"<section>{render.html(table)}</section>" for table in tables)),
    }
    out.mkdir(exist_ok=True)
    for name, text in texts.items():
        with whole_text(out / name) as file:
            file.write(text)
    said = f"{bench.plan.name}: " if bench.plan.name else ""
    return [*(out / name for name in texts), page.write(out, spec, tables, drawn, lambda line: queue.say(said + line))]
