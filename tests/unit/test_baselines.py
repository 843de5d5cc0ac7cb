"""Published figures: their form, and that they say what their sources do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ansible.module_utils import sglang_runs

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "schemas/baseline.schema.json").read_text())
FILES = sorted((ROOT / "baselines").glob("*.yml"))


def load(name: str) -> Any:
    return yaml.safe_load((ROOT / f"baselines/{name}.yml").read_text())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_form(path: Path) -> None:
    told = yaml.safe_load(path.read_text())
    jsonschema.Draft202012Validator(SCHEMA).validate(told)
    assert told["name"] == path.stem
    assert f"`{path.stem}`" in (ROOT / "baselines/README.md").read_text().replace(
        "`-", f"`{path.stem.rsplit('-', 1)[0]}-"
    )
    run = sglang_runs.read(path)
    assert run["source"]["kind"] == "baseline" and len(run["rungs"]) == len(told["rungs"])
    # The same load twice would be taken for a repeat.
    loads = [sglang_runs.load_key(rung["load"]) for rung in run["rungs"]]
    assert len(set(loads)) == len(loads)
    assert sglang_runs.compare([run, run])["differences"] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_throughputs_fit_each_other(path: Path) -> None:
    for rung in yaml.safe_load(path.read_text())["rungs"]:
        told = rung["throughput"]
        if {"output", "total"} <= set(told):
            assert told["total"] > told["output"]
        if {"output", "total", "input"} <= set(told):
            assert told["total"] == pytest.approx(told["output"] + told["input"], rel=1e-4)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_arguments_are_options_of_a_release(path: Path) -> None:
    """A misspelt one would never meet the run's. Forks have values of their own, not options."""
    told = yaml.safe_load(path.read_text())
    known: set[str] = set()
    for release in ("0.5.9", "0.5.15.post1", "0.5.23"):
        for entry in sglang_runs.options_of(release).values():
            known |= {name.lstrip("-") for name in entry["names"]} | {entry["dest"].replace("_", "-")}
    given = set(told["arguments"]) | {name.replace("_", "-") for name in told.get("resolved") or {}}
    assert given <= known, given - known


def test_k2_thinking_is_what_its_source_and_log_say() -> None:
    rungs = load("k2-thinking-nvfp4")["rungs"]
    told = {r["load"]["concurrency"]: (r["throughput"]["output"], r["throughput"]["total"]) for r in rungs}
    assert told == {128: (524, 1795), 256: (867, 3039), 512: (1192, 4345), 1024: (1610, 5655), 2048: (1650, 5816)}
    for output, total in told.values():
        # 256 in and 100 out; drawn lengths do not hit it exactly.
        assert total / output == pytest.approx(356 / 100, rel=0.05)
    assert all(rung["load"]["range_ratio"] == 0 for rung in rungs)


def test_k2_thinking_resolved_arguments_are_those_of_its_log() -> None:
    line = (ROOT / "tests/unit/data/server_args/8x-rtx-pro-6000-k2-thinking.txt").read_text()
    for name, value in load("k2-thinking-nvfp4")["resolved"].items():
        assert re.search(rf"[ (]{name}={re.escape(repr(value))}[,)]", line), name


def test_what_the_origin_counted_is_not_known() -> None:
    for figure in (225, 880, 3740):
        (rung,) = load(f"origin-glm5-{figure}")["rungs"]
        assert rung["throughput"] == {"not_stated": figure}
        assert set(rung["load"].values()) == {None}


def test_what_is_no_baseline_is_said(tmp_path: Path) -> None:
    for text, said in (
        ("a: [", "is no YAML"),
        ("rungs: []", "is no baseline: KeyError"),
        ("- 1", "is no baseline: TypeError"),
    ):
        (tmp_path / "x.yml").write_text(text)
        with pytest.raises(sglang_runs.RunError, match=said):
            sglang_runs.read(tmp_path / "x.yml")
