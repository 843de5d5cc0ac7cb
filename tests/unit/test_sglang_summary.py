"""The summary at a deployment's end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils import sglang_runs, sglang_summary

RUN = Path(__file__).parent / "data/runs/cpu-0.5.23.json"
FACTS = {"model": "glm-5.2", "profile": "glm52", "release": "/opt/sglang/releases/sglang-0.5.23-cu130-0123456789ab"}
UNIT = "Description=SGLang\nExecStart=python \\\n  --port 30000 \\\n  --tensor-parallel-size {}\n"
DIFF = {"before": UNIT.format(4), "after": UNIT.format(8)}
PROOF = {
    "smoke": {"summary": "8 checks passed in 9.0 s"},
    "tuning": {"summary": "flashinfer_autotune is tuned: 12 configs. " * 4},
    "times": {"ready_s": 93.4},
}


def lines(switch: dict[str, Any], committed: dict[str, Any] | None = None, **more: Any) -> list[str]:
    done = {"id": "000002", "digest": "d"} if committed is None else committed
    given = {"proof": {}, "front": {}, "measured": "", **more}
    return sglang_summary.lines(
        "node-1", "at http://192.0.2.10:8000", {"facts": FACTS, "reasons": [], **switch}, done, **given
    )


def test_a_restart_says_why_what_differs_and_what_was_proved() -> None:
    told = lines({"restarted": True, "reasons": ["the unit differs"], "diff": DIFF}, proof=PROOF, measured="5 tok/s")
    assert told[0] == "node-1 serves glm-5.2 at http://192.0.2.10:8000"
    assert told[1] == "  profile glm52, deployment 000002, release sglang-0.5.23-cu130-0123456789ab"
    assert told[2] == "  changed: restarted, since the unit differs; ready 93 s after its start"
    assert told[3:6] == [
        "    - --tensor-parallel-size 4",
        "    + --tensor-parallel-size 8",
        "  answers: 8 checks passed in 9.0 s",
    ]
    assert (
        told[6].startswith("  tuning: flashinfer_autotune")
        and told[7].startswith("    ")
        and told[-1] == "  measured: 5 tok/s"
    )
    assert max(map(len, told)) <= 80


def test_nothing_to_change_is_three_lines() -> None:
    assert lines({"restarted": False})[2:] == ["  changed: nothing of the server, it kept running"]


def test_a_front_that_changed_says_why() -> None:
    told = lines({"restarted": False}, front={"changed": True, "reasons": ["a is new", "b is new", "c is new"]})
    assert told[3:] == ["  front: changed, since a is new; b is new; and 1 more"]
    assert len(lines({"restarted": False}, front={"changed": False, "reasons": []})) == 3


@pytest.mark.parametrize(
    ("switch", "words"),
    [
        (
            {"restarted": True, "reasons": ["the unit differs"], "diff": DIFF},
            "it would be restarted, since the unit differs",
        ),
        (
            {"restarted": True, "reasons": ["there is no unit yet"], "diff": {"before": "", "after": "x"}},
            "it would be started",
        ),
        ({"restarted": False}, "nothing of the server, it would keep running"),
    ],
)
def test_check_mode_says_what_would_be(switch: dict[str, Any], words: str) -> None:
    told = lines(switch, {})
    assert told[0].startswith("node-1 would serve glm-5.2 at") and "deployment" not in told[1] and words in told[2]


def deployed(digest: str, at: str = "2026-12-01T01:52:55Z") -> dict[str, Any]:
    return {"digest": digest, "id": "000002", "at": at}


def run(digest: str, **changes: Any) -> dict[str, Any]:
    return {**json.loads(RUN.read_text(encoding="utf-8")), "deployment": deployed(digest), **changes}


def test_the_newest_valid_run_of_the_same_deployment_is_named_with_its_load() -> None:
    kept = run("a")
    best = max(sglang_runs.dig(rung, "metrics", "output_throughput_tokens_per_s") or 0 for rung in kept["rungs"])
    others = [run("a", valid=False, id="invalid"), run("a", finished=None, id="unfinished"), run("b", id="other")]
    told = sglang_summary.measured([*others, kept, run("a", id="older")], deployed("a"))
    assert told.startswith(f"{best:,.1f} output tok/s, 8 at once, 128 in, 64 out") and told.endswith(
        f"(run {kept['id']})"
    )


def test_what_nobody_measured_has_no_figure() -> None:
    assert sglang_summary.measured([], deployed("a")) == sglang_summary.measured([run("b")], deployed("a")) == ""
    assert sglang_summary.measured([run("a", rungs=[])], deployed("a")) == ""


def test_another_machine_of_the_same_name_was_not_measured() -> None:
    assert sglang_summary.measured([run("a")], deployed("a", "2026-12-01T03:00:00Z")) == ""
