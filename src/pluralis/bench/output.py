"""What a bench leaves for people: its tables in four formats, and a page with tables and figures."""

from __future__ import annotations

from pathlib import Path

from pluralis.bench import render
from pluralis.bench.bench import Bench
from pluralis.bench.runner import Queue
from pluralis.bench.table_model import Table
from pluralis.bench.tables import make_tables
from pluralis.data.whole_file import whole_text
from pluralis.html_page import document


def write_output(queue: Queue, command: str = "") -> list[Path]:
    """Write the tables and the page of every spec, where there are several in a folder each; returns where they are."""
    return [*write_tables(queue), *write_pages(queue, command)]


def write_tables(queue: Queue) -> list[Path]:
    """table.md, .tex, .csv and .html of every spec."""
    with queue.store.lock("tables", wait=True):  # another bench may write them too
        return [path for bench in queue.benches for path in _write_tables(queue, bench)]


def write_pages(queue: Queue, command: str = "") -> list[Path]:
    """index.html of every spec, with the tables, the figures, which take a while, and the command that made them."""
    with queue.store.lock("tables", wait=True):
        return [_write_page(queue, bench, command) for bench in queue.benches]


def _tables(queue: Queue, bench: Bench) -> list[Table]:
    plan = bench.plan
    return make_tables(
        plan.spec, bench.runs(), bench.results(), plan.without_data, queue.failures.keys(), plan.settings
    )


def _write_tables(queue: Queue, bench: Bench) -> list[Path]:
    out, spec, tables = queue.store.out / bench.plan.name, bench.plan.spec, _tables(queue, bench)
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
    return [out / name for name in texts]


def _write_page(queue: Queue, bench: Bench, command: str) -> Path:
    from pluralis.bench import page  # matplotlib takes a while

    out, spec = queue.store.out / bench.plan.name, bench.plan.spec
    kept = ("", spec.rule)  # what other rules choose has no weights
    drawn = [result for result in bench.results() if result.selection in kept and not result.failure]
    said = f"{bench.plan.name}: " if bench.plan.name else ""
    origin = page.Origin(bench.plan.settings, command)
    return page.write(out, spec, _tables(queue, bench), drawn, lambda line: queue.say(said + line), origin)
