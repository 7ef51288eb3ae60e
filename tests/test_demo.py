"""The demo at toy size: it trains, reports, and does not repeat what is finished."""

from __future__ import annotations

from pathlib import Path

from pluralis.checkpoint import read_snapshot
from pluralis.demo import METHODS, UPPER, DemoSize, run_demo

TOY = DemoSize(digits=64, digit_epochs=1, train=60, test=30, epochs=1, gallery=3)


def test_demo_writes_a_report_of_its_own_runs(tmp_path: Path) -> None:
    report = run_demo(tmp_path, seeds=2, size=TOY)
    page = report.read_text()
    for name in (*METHODS, UPPER):
        for seed in range(2):
            meta = read_snapshot(tmp_path / f"{name.replace(' ', '-')}-{seed}" / "model").meta
            assert meta["recipe"]["run"]["seed"] == seed
            assert "observed" in meta["rule"]
    values = [read_snapshot(tmp_path / f"gr-{seed}" / "model").meta["test"]["mAP"] for seed in range(2)]
    assert f"{sum(values) / 2:.1f}" in page
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/model.json")}
    assert len(before) == 2 * (len(METHODS) + 1)
    run_demo(tmp_path, seeds=2, size=TOY)
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/model.json")}
