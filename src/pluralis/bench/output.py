"""What a bench leaves for people: its tables in four formats, and a page with tables and figures."""

from __future__ import annotations

from pathlib import Path

from pluralis.bench import render
from pluralis.bench.runner import Queue
from pluralis.bench.tables import make_tables
from pluralis.data.whole_file import whole_text
from pluralis.html_page import document


def write_output(queue: Queue) -> list[Path]:
    """Write table.md, .tex, .csv and .html, and index.html with the figures; returns where they are."""
    from pluralis.bench import page  # matplotlib takes a while

    out, spec, results = queue.store.out, queue.plan.spec, queue.results()
    kept = ("", spec.rule)  # what other rules choose has no weights
    drawn = [result for result in results if result.selection in kept and not result.failure]
    tables = make_tables(spec, queue.runs(), results, queue.plan.without_data)
    texts = {
        "table.md": "\n".join(map(render.markdown, tables)),
        "table.tex": "\n".join(map(render.latex, tables)),
        "table.csv": render.as_csv(tables),
        "table.html": document(spec.title, "".join(f"<section>{render.html(table)}</section>" for table in tables)),
    }
    with queue.store.lock("tables", wait=True):  # another bench may write them too
        for name, text in texts.items():
            with whole_text(out / name) as file:
                file.write(text)
        return [*(out / name for name in texts), page.write(out, spec, tables, drawn, queue.say)]
