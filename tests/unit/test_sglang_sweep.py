"""A sweep's record and ranking: what is left, what is best, and when two are not told apart."""

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any

import pytest
import sglang_bench
from ansible.module_utils import sglang_results

from action_plugins import sglang_sweep

EVIDENCE = Path(__file__).parent / "data/sglang_bench"
GOAL = {"figure": "output_throughput_tokens_per_s", "limits": {}}


def recorded() -> dict[str, Any]:
    """A run of one load, with the figures that SGLang 0.5.23 measured on a CPU."""
    line = sglang_bench.parse_result((EVIDENCE / "0.5.23.jsonl").read_text())
    load = {"concurrency": line["max_concurrency"], "prompts": line["completed"], "input_len": 64, "output_len": 16}
    rung = {
        "index": 0,
        "repeat": 0,
        "load": load,
        "status": "measured",
        "valid": True,
        "metrics": sglang_bench.metrics(line, line["completed"]),
        "telemetry": None,
    }
    return {"rungs": [rung]}


def times(factor: float, *spread: float) -> dict[str, Any]:
    """The recorded run at another speed, repeated with a spread."""
    run = recorded()
    (rung,) = run["rungs"]
    run["rungs"] = []
    for repeat, one in enumerate(spread or (1.0,)):
        other = copy.deepcopy({**rung, "repeat": repeat})
        other["metrics"]["output_throughput_tokens_per_s"] *= factor * one
        run["rungs"].append(other)
    return run


def sweep(*names: str) -> dict[str, Any]:
    return {
        "profile": "cpu_demo",
        "host": "gpu-node",
        "goal": GOAL,
        "minutes": 10,
        "began": 0.0,
        "variants": [
            {
                "name": name,
                "args": {"x": 1},
                "environment": {},
                "status": "measured",
                "why": "",
                "seconds": 60.0,
                "run": name,
            }
            for name in names
        ],
    }


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "is empty"),
        ([{"name": "a", "args": {"x": 1}}, {"name": "a", "args": {"x": 2}}], "has a twice"),
        ([{"name": "deployed", "args": {"x": 1}}], "has deployed twice"),
        ([{"name": "a"}], "a changes nothing"),
        ([{"name": "a", "arg": {"x": 1}, "args": {"x": 1}}], "has arg; expected"),
    ],
)
def test_lists_that_make_no_sweep(given: list[dict[str, Any]], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        sglang_sweep.variants(given)


def test_what_is_deployed_comes_first() -> None:
    whole = sglang_sweep.variants([{"name": "a", "args": {"x": 1}}])
    assert [variant["name"] for variant in whole] == ["deployed", "a"] and whole[1]["environment"] == {}


def test_another_load_or_deployment_is_another_sweep() -> None:
    whole = sglang_sweep.variants([{"name": "a", "args": {"x": 1}}])
    first = sglang_sweep.digest(whole, {"loads": [1]}, "d")
    assert first == sglang_sweep.digest(whole, {"loads": [1]}, "d")
    assert (
        len({first, sglang_sweep.digest(whole, {"loads": [2]}, "d"), sglang_sweep.digest(whole, {"loads": [1]}, "e")})
        == 3
    )


def test_the_faster_one_wins_and_doubt_is_said() -> None:
    rows = sglang_sweep.ranked(sweep("a", "b"), {"a": times(1), "b": times(1.2)})
    assert [row["name"] for row in rows] == ["b", "a"]
    assert "no verdict" in sglang_sweep.verdict(rows, "output_throughput_tokens_per_s")


@pytest.mark.parametrize(("factor", "says"), [(1.5, "Against it: faster."), (1.02, "within the noise")])
def test_repeats_tell_a_gain_from_noise(factor: float, says: str) -> None:
    spread = (0.95, 1.0, 1.05)
    rows = sglang_sweep.ranked(sweep("a", "b"), {"a": times(1, *spread), "b": times(factor, *spread)})
    assert rows[0]["name"] == "b" and says in sglang_sweep.verdict(rows, "output_throughput_tokens_per_s")
    assert rows[0]["best"]["n"] == 3


def test_latencies_are_better_when_lower() -> None:
    one = sweep("a", "b")
    one["goal"] = {"figure": "ttft_ms.median", "limits": {}}
    slow = recorded()
    slow["rungs"][0]["metrics"]["ttft_ms"]["median"] *= 2
    assert [row["name"] for row in sglang_sweep.ranked(one, {"a": slow, "b": recorded()})] == ["b", "a"]


def test_a_limit_that_is_passed_takes_the_load_out() -> None:
    one = sweep("a", "b")
    median = recorded()["rungs"][0]["metrics"]["ttft_ms"]["median"]
    one["goal"] = {**GOAL, "limits": {"ttft_ms.median": median * 1.5}}
    late = times(3)
    late["rungs"][0]["metrics"]["ttft_ms"]["median"] *= 2
    rows = sglang_sweep.ranked(one, {"a": recorded(), "b": late})
    assert rows[0]["name"] == "a" and rows[1]["best"] is None and "within the limits" in rows[1]["why"]


def test_only_the_concurrency_that_is_asked_for_counts() -> None:
    run = recorded()
    assert sglang_sweep.best(run, {**GOAL, "concurrency": run["rungs"][0]["load"]["concurrency"]})
    assert sglang_sweep.best(run, {**GOAL, "concurrency": 999}) is None


def test_a_figure_that_is_not_there_ranks_nobody() -> None:
    rows = sglang_sweep.ranked(
        {**sweep("a"), "goal": {"figure": "output_tokens_per_j", "limits": {}}}, {"a": recorded()}
    )
    assert rows[0]["best"] is None and "no winner" in sglang_sweep.verdict(rows, "output_throughput_tokens_per_s")


def test_invalid_loads_do_not_count_and_failures_say_why() -> None:
    one = sweep("a", "b")
    one["variants"][1].update(status="failed", why="the engine died")
    bad = recorded()
    bad["rungs"][0]["valid"] = False
    rows = sglang_sweep.ranked(one, {"a": bad})
    assert [row["best"] for row in rows] == [None, None]
    shown = sglang_sweep.text(one, rows)
    assert "the engine died" in shown and "no winner" in shown


def test_a_variant_whose_answers_are_wrong_does_not_win() -> None:
    one = sweep("a", "b")
    one["variants"][1].update(status="failed", why="after the loads the answers are wrong")
    fast = {**times(3), "answers": {"before": {"passed": True}, "after": {"passed": False}}}
    rows = sglang_sweep.ranked(one, {"a": recorded(), "b": fast})
    assert rows[0]["name"] == "a" and rows[1]["best"] is None and "answers are wrong" in rows[1]["why"]


def test_a_run_that_was_removed_is_told() -> None:
    rows = sglang_sweep.ranked(sweep("a", "b"), {"a": recorded()})
    assert rows[1]["best"] is None and "not there any more" in rows[1]["why"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"figure": "output_throughput"}, "did you mean output_throughput_tokens_per_s"),
        ({"limits": {"ttft_ms": 3}}, "ttft_ms, which is no figure"),
        ({"concurrency": 9}, "9 requests at once; sglang_bench_loads has 1, 4"),
    ],
)
def test_a_goal_that_nothing_can_reach_is_refused_at_the_beginning(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        sglang_sweep.goal(given, [{"concurrency": 1}, {"concurrency": 4}])


def test_goals_by_every_kind_of_figure() -> None:
    for name in ("output_throughput_tokens_per_s", "ttft_ms.p99", "output_tokens_per_j"):
        assert sglang_sweep.goal({"figure": name, "concurrency": 4}, [{"concurrency": 4}])["figure"] == name


def test_a_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="HF_TOKEN"):
        sglang_sweep.variants([{"name": "a", "environment": {"HF_TOKEN": "x"}}])


def test_the_page_fits_a_terminal() -> None:
    names = ("deployed", "a-name-that-is-longer-than-its-column-has-room-for", "b")
    one = sweep(*names)
    one["variants"][2].update(status="not_tried", why="the bound of 10 minutes left no time for it")
    shown = sglang_sweep.text(
        one, sglang_sweep.ranked(one, {names[0]: times(1, 0.9, 1.1), names[1]: times(2, 0.9, 1.1)})
    )
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert "2.000" in shown and "not tried" in shown


def test_no_variant_is_begun_that_would_not_be_through() -> None:
    one = sweep("a", "b")
    assert not sglang_sweep.out_of_time(one, 9 * 60 - 1)
    assert sglang_sweep.out_of_time(one, 9 * 60 + 1)
    assert not sglang_sweep.out_of_time({**one, "minutes": 0}, 1e9)


def test_a_sweep_that_was_cut_off_is_found_and_an_ended_one_is_not(tmp_path: Path) -> None:
    wanted = {"schema": 1, "host": "gpu-node", "digest": "abc", "finished": None}
    sglang_sweep.save(tmp_path / "1-sweep", wanted)
    sglang_sweep.save(tmp_path / "2-sweep", {**wanted, "finished": "2026-11-30T10:00:00Z"})
    (tmp_path / "3-sweep").mkdir()
    (tmp_path / "3-sweep/sweep.json").write_text("{")
    now = (tmp_path / "1-sweep/sweep.json").stat().st_mtime
    assert sglang_sweep.broken(tmp_path, wanted, now) == tmp_path / "1-sweep"
    assert sglang_sweep.broken(tmp_path, {**wanted, "digest": "abd"}, now) is None
    assert sglang_sweep.broken(tmp_path, wanted, now + 25 * 3600) is None


def test_what_a_variant_was_measured_at_is_found_by_its_name(tmp_path: Path) -> None:
    def kept(folder: str, **changes: Any) -> None:
        sglang_results.save(tmp_path / folder, {"label": "a", "host": "gpu-node", **changes})

    began = time.time() - 5
    variant = {"name": "a", "began": began}
    assert sglang_sweep.run_of(variant, "gpu-node", tmp_path) == ""
    kept("1")
    kept("2", label="b")
    kept("3", host="other")
    (tmp_path / "4").mkdir()
    (tmp_path / "4/run.json").write_text("[]")
    assert sglang_sweep.run_of(variant, "gpu-node", tmp_path) == "1"
    assert sglang_sweep.run_of({**variant, "began": began + 60}, "gpu-node", tmp_path) == ""


def test_a_winner_can_be_declared() -> None:
    lines = sglang_sweep.declared(
        {"args": {"cuda-graph-max-bs": 256}, "environment": {}}, {"args": {"tp-size": 8}, "environment": {}}
    )
    assert lines == ["sglang_server_args_overlay:", "  tp-size: 8", "  cuda-graph-max-bs: 256"]
