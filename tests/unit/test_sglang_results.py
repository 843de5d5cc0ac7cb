"""Runs on the controller: whole files, ladders, and which broken one is gone on with."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils import sglang_options, sglang_results

LOADS = [
    {"concurrency": 1, "prompts": 4, "input_len": 64, "output_len": 16},
    {"concurrency": 4, "prompts": 16, "input_len": 64, "output_len": 16},
]


def run(**changes: Any) -> dict[str, Any]:
    return {
        "schema": 2,
        "host": "gpu-node",
        "profile": "cpu_demo",
        "label": "",
        "repeats": 1,
        "seed": 10,
        "finished": None,
        "server": {"environment": {}},
        "target": {
            "url": "http://127.0.0.1:30000",
            "python": "p",
            "model_path": "m",
            "served_model": "",
            "loads": [sglang_results.complete(load) for load in LOADS],
        },
        "deployment": {"digest": "abc"},
        "answers": {},
        "rungs": [],
        **changes,
    }


def measured(index: int, **changes: Any) -> dict[str, Any]:
    return {"index": index, "repeat": 0, "status": "measured", "valid": True, **changes}


def test_numbers_that_json_does_not_have_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        sglang_results.save(tmp_path / "a", run(rungs=[{"x": float("nan")}]))
    assert not (tmp_path / "a").exists()


def test_written_whole(tmp_path: Path) -> None:
    path = sglang_results.save(tmp_path / "a/b", run())
    assert json.loads(path.read_text()) == run()
    assert [one.name for one in (tmp_path / "a/b").iterdir()] == ["run.json"]


def test_each_load_has_a_seed_of_its_own_and_repeats_climb_again() -> None:
    whole = sglang_results.ladder(LOADS, 3, 100)
    assert [(rung["repeat"], rung["index"]) for rung in whole] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert len({rung["load"]["seed"] for rung in whole}) == 6
    assert whole[0]["load"]["dataset"] == "random-ids" and whole[0]["load"]["range_ratio"] == 1.0


def test_what_failed_or_is_invalid_is_measured_again() -> None:
    whole = sglang_results.ladder(LOADS, 1, 1)
    assert sglang_results.to_do(run(), whole) == whole
    assert sglang_results.to_do(run(rungs=[measured(0)]), whole) == whole[1:]
    assert sglang_results.to_do(run(rungs=[measured(0, valid=False), measured(1)]), whole) == whole[:1]


def test_a_broken_ladder_is_found_only_where_it_is_the_same(tmp_path: Path) -> None:
    wanted = sglang_results.fingerprint(run(), LOADS)
    sglang_results.save(tmp_path / "1", run())
    (tmp_path / "2").mkdir()
    (tmp_path / "2/run.json").write_text("[]")
    sglang_results.save(tmp_path / "3", run(finished="2026-11-30T10:00:00Z"))
    now = (tmp_path / "1/run.json").stat().st_mtime
    assert sglang_results.broken(tmp_path, wanted, now) == tmp_path / "1"
    assert sglang_results.broken(tmp_path, wanted, now + 25 * 3600) is None
    for other in (
        run(label="b"),
        run(host="other"),
        run(repeats=2),
        run(deployment={"digest": "abd"}),
        run(server={"environment": {"X": "1"}}),
    ):
        assert sglang_results.broken(tmp_path, sglang_results.fingerprint(other, LOADS), now) is None
    assert sglang_results.broken(tmp_path, sglang_results.fingerprint(run(), LOADS[:1]), now) is None


def test_a_failed_load_keeps_its_reason_and_no_figures() -> None:
    asked = sglang_results.ladder(LOADS, 1, 1)[0]
    one = sglang_results.rung(
        asked, {"failed": True, "msg": "the server is gone", "metrics": {"completed": 1}}, 0.0, 1.0
    )
    assert (one["status"], one["valid"], one["problems"], one["metrics"]) == (
        "failed",
        False,
        ["the server is gone"],
        None,
    )
    assert sglang_results.not_run(asked, "nobody tried", 0.0)["status"] == "not_run"


def test_a_second_try_takes_the_place_of_the_first() -> None:
    one = run()
    for rung in (measured(1), measured(0, valid=False), measured(0)):
        sglang_results.keep(one, rung)
    assert one["rungs"] == [measured(0), measured(1)]


def test_what_was_measured_stays_where_nobody_tried_again() -> None:
    one = run(rungs=[measured(0, valid=False)])
    sglang_results.keep(one, measured(0, status="not_run", valid=False))
    assert one["rungs"] == [measured(0, valid=False)]


def test_a_second_try_has_another_seed() -> None:
    asked = sglang_results.ladder(LOADS, 1, 10)
    one = run(rungs=[{**measured(0, valid=False), "load": asked[0]["load"]}, {**measured(1), "load": asked[1]["load"]}])
    assert sglang_results.tried(run(), asked[0]) == asked[0]
    assert sglang_results.tried(one, asked[0])["load"]["seed"] == 12


def test_a_run_is_measured_by_one(tmp_path: Path) -> None:
    other = pytest.raises(RuntimeError, match="is being measured")
    with sglang_results.held(tmp_path), other, sglang_results.held(tmp_path, 0.1):
        pass
    with sglang_results.held(tmp_path, 0.1):
        pass


def test_secrets_are_blanked_at_every_depth() -> None:
    given = {
        "environment": {"HF_TOKEN": "x", "OMP_NUM_THREADS": "1"},
        "rungs": [{"api-key": "x", "output_tokens": 5}],
        "token": "",
    }
    told = {
        "environment": {"HF_TOKEN": "***", "OMP_NUM_THREADS": "1"},
        "rungs": [{"api-key": "***", "output_tokens": 5}],
        "token": "",
    }
    assert sglang_options.blanked(given) == told


def test_files_of_a_load_lie_below_the_run(tmp_path: Path) -> None:
    sent = {name: base64.b64encode(gzip.compress(name.encode())).decode() for name in ("raw", "telemetry", "../evil")}
    names = sglang_results.files(tmp_path, measured(0), sent)
    assert names == {"raw": "raw/1-01.jsonl.gz", "telemetry": "telemetry/1-01.csv.gz"}
    assert gzip.decompress((tmp_path / names["raw"]).read_bytes()) == b"raw"


@pytest.mark.parametrize(
    ("changes", "valid"),
    [
        ({"rungs": [measured(0)]}, True),
        ({"rungs": [measured(0), measured(1, valid=False)]}, False),
        ({"rungs": []}, False),
        ({"rungs": [measured(0)], "answers": {"after": {"passed": False, "summary": "garble"}}}, False),
        ({"rungs": [measured(0)], "answers": {"after": {"passed": True, "summary": "right"}}}, True),
    ],
)
def test_a_run_is_valid_when_all_of_it_is(changes: dict[str, Any], valid: bool) -> None:
    judged = sglang_results.judged(run(**changes))
    assert judged["valid"] is valid and bool(judged["problems"]) is (not valid and bool(changes["rungs"]))
