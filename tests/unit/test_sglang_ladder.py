"""What a ladder keeps of each load, and what it says of it."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import sglang_bench
from ansible.module_utils import sglang_results, sglang_rules

from action_plugins import sglang_ladder

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "schemas/run.schema.json").read_text())
LOAD = {"concurrency": 4, "prompts": 16, "input_len": 64, "output_len": 16}
RECORDED = Path(__file__).parent / "data/sglang_bench/0.5.23.jsonl"


def started() -> dict[str, Any]:
    """A run before its first load."""
    return {
        "schema": 2,
        "id": "20261130T101500Z-gpu-node",
        "host": "gpu-node",
        "profile": "cpu_demo",
        "label": "",
        "started": "2026-11-30T10:15:00Z",
        "finished": None,
        "seed": 7,
        "repeats": 1,
        "target": {
            "url": "http://127.0.0.1:30000",
            "python": "p",
            "model_path": "m",
            "served_model": "",
            "deployed": False,
            "loads": [LOAD],
        },
        "server": {"sglang": "", "arguments": {}},
        "deployment": {},
        "node": {},
        "tuning": {},
        "answers": {},
        "rungs": [],
        "valid": False,
        "problems": [],
    }


def step() -> dict[str, Any]:
    """What the module returns of a load that SGLang 0.5.23 was measured with on a CPU."""
    line = sglang_bench.parse_result(RECORDED.read_text())
    raw = base64.b64encode(gzip.compress(RECORDED.read_bytes().splitlines()[-1])).decode()
    return {
        "valid": True,
        "problems": [],
        "notes": [],
        "metrics": sglang_bench.metrics(line, line["completed"]),
        "telemetry": None,
        "client": {"module": "sglang.benchmark.serving", "version": "0.5.23"},
        "command": ["python", "-m", "sglang.benchmark.serving"],
        "load": {},
        "files": {"raw": raw},
    }


def ladder(folder: Path) -> sglang_ladder.Ladder:
    return sglang_ladder.Ladder(folder, started(), sglang_rules.load(str(ROOT / "rules")))


def test_a_load_is_kept_before_the_next_begins(tmp_path: Path) -> None:
    asked = sglang_results.ladder([LOAD], 1, 7)[0]
    one = ladder(tmp_path).take(asked, step(), 0.0)
    kept = json.loads((tmp_path / "run.json").read_text())
    jsonschema.validate(kept, SCHEMA)
    assert kept["rungs"] == [one] and kept["valid"] and kept["finished"] is None
    assert gzip.decompress((tmp_path / one["files"]["raw"]).read_bytes()) == RECORDED.read_bytes().splitlines()[-1]


def test_a_load_that_failed_makes_the_run_invalid(tmp_path: Path) -> None:
    asked = sglang_results.ladder([LOAD], 1, 7)[0]
    ladder(tmp_path).take(asked, {"failed": True, "msg": "the client was killed"}, 0.0)
    kept = json.loads((tmp_path / "run.json").read_text())
    jsonschema.validate(kept, SCHEMA)
    assert not kept["valid"] and kept["rungs"][0]["problems"] == ["the client was killed"]


def test_a_server_says_itself_what_it_is_and_no_secret(tmp_path: Path) -> None:
    info = {
        "version": "0.5.23",
        "tp_size": 8,
        "api_key": "sesame",
        "ssl_keyfile_password": "sesame",
        "internal_states": [{}],
    }
    raw = base64.b64encode(gzip.compress(json.dumps({"completed": 1, "server_info": info}).encode())).decode()
    assert sglang_ladder.said_of_itself(raw) == {"version": "0.5.23", "tp_size": 8}
    whole = ladder(tmp_path)
    whole.take(sglang_results.ladder([LOAD], 1, 7)[0], {**step(), "files": {"raw": raw}}, 0.0)
    kept = (tmp_path / "run.json").read_text()
    assert json.loads(kept)["server"]["sglang"] == "0.5.23" and "sesame" not in kept


@pytest.mark.parametrize(
    "content", [b"", b"no gzip", gzip.compress(b"[]", mtime=0)], ids=["nothing", "no gzip", "a list"]
)
def test_a_client_that_kept_nothing_of_the_server(content: bytes) -> None:
    assert sglang_ladder.said_of_itself(base64.b64encode(content).decode()) == {}
    assert sglang_ladder.said_of_itself("!!") == {}


def test_another_server_at_the_same_address_is_seen(tmp_path: Path) -> None:
    def told(**info: Any) -> dict[str, Any]:
        line = {"completed": 1, "server_info": {"version": "0.5.23", **info}}
        return {**step(), "files": {"raw": base64.b64encode(gzip.compress(json.dumps(line).encode())).decode()}}

    whole, asked = ladder(tmp_path), sglang_results.ladder([LOAD, LOAD, LOAD], 1, 7)
    assert whole.take(asked[0], told(tp_size=8), 0.0)["valid"]
    assert whole.take(asked[1], told(tp_size=8), 0.0)["valid"]
    one = whole.take(asked[2], told(tp_size=4), 0.0)
    assert not one["valid"] and "tp_size changed" in one["problems"][0]


def test_a_file_is_known_by_what_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.jsonl").write_text("{}")
    one = sglang_ladder.with_file({**LOAD, "file": "p.jsonl"})
    assert one["file"] == str(tmp_path / "p.jsonl") and len(one["file_sha256"]) == 64
    assert sglang_ladder.with_file(LOAD) == LOAD
    with pytest.raises(OSError, match="gone"):
        sglang_ladder.with_file({**LOAD, "file": "gone.jsonl"})


def test_how_long_it_will_take() -> None:
    assert sglang_ladder.left_text([], 3) == "" == sglang_ladder.left_text([60.0], 0)
    assert sglang_ladder.left_text([60.0, 120.0], 2) == "; 2 left, about 3 min"


def test_what_is_said_of_a_load() -> None:
    asked = sglang_results.ladder([LOAD], 1, 7)[0]
    one = sglang_results.rung(asked, step(), 0.0, 1.0)
    assert "output tok/s, TTFT" in sglang_ladder.outcome(one)
    assert "INVALID: x" in sglang_ladder.outcome({**one, "valid": False, "problems": ["x"]})
    assert sglang_ladder.outcome(sglang_results.not_run(asked, "gone", 0.0)) == "not run: gone"
