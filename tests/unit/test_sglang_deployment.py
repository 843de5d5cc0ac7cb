"""What a switch decides, and the record it keeps."""

from __future__ import annotations

import json
from pathlib import Path

import sglang_deployment as module

RUNNING = {"active": "active", "pid": 7, "digest": "d1", "invocation_id": "i", "restarts": 0, "since": ""}
UNIT = '[Service]\nEnvironment="SGLANG_DEPLOYMENT=@DEPLOYMENT@"\n'


def test_stamp_is_of_the_text_and_in_it() -> None:
    digest, text = module.stamp(UNIT)
    assert f"SGLANG_DEPLOYMENT={digest}" in text and "@" not in text
    assert module.stamp(UNIT + "#") != (digest, text)


def test_nothing_to_do() -> None:
    assert module.plan("u", "d1", "u", RUNNING) == []


def test_reasons() -> None:
    assert module.plan("u", "d1", "", {**RUNNING, "active": "inactive"}) == [
        "there is no unit yet",
        "the server is inactive",
    ]
    assert module.plan("u", "d1", "hand-made", RUNNING) == ["the unit differs"]


def test_somebody_elses_unit_is_not_taken_over() -> None:
    """Nothing would bring it back, and it may be what serves."""
    assert module.foreign("[Unit]\nDescription=my sglang\n", {})
    assert not module.foreign("", {})
    assert not module.foreign("# Written by sglang-rtxpro for the deployment x.\n[Unit]\n", {})
    # Edited by hand beyond recognition, and the last one is on record.
    assert not module.foreign("[Unit]\n", {"unit": "u"})


def test_a_run_killed_between_writing_and_restarting_is_seen() -> None:
    """The unit on disk is the wanted one already; the process still is the old one."""
    assert module.plan("u", "d2", "u", RUNNING) == ["what runs is d1, wanted is d2"]


def test_environment_of_a_process() -> None:
    assert module.environment(b"A=1\0SGLANG_DEPLOYMENT=abc\0B=x=y\0junk\0") == {
        "A": "1",
        "SGLANG_DEPLOYMENT": "abc",
        "B": "x=y",
    }


def test_secrets_do_not_reach_a_diff() -> None:
    text = 'Environment="A=1"\nEnvironment="MY_API_KEY=s3cret"\nEnvironment=HF_TOKEN=s3cret\nExecStart=x\n'
    masked = module.mask_environment(text)
    assert "s3cret" not in masked and 'Environment="A=1"\n' in masked and "ExecStart=x\n" in masked


def test_record_keeps_the_last_and_drops_the_oldest(tmp_path: Path) -> None:
    record = module.Record(str(tmp_path), "sglang")
    assert record.state() == {"phase": "absent"} and record.last() == {}
    for number in range(4):
        record.add(f"d{number}", f"unit {number}", {"n": number}, keep=3)
    assert record.ids() == ["000002", "000003", "000004"]
    assert record.last()["unit"] == "unit 3"


def test_a_cut_record_is_passed_over(tmp_path: Path) -> None:
    record = module.Record(str(tmp_path), "sglang")
    record.add("d0", "unit 0", {}, keep=3)
    cut = record.add("d1", "unit 1", {}, keep=3)
    path = Path(record.deployments) / f"{cut['id']}.json"
    path.write_text(path.read_text()[:20])
    assert record.last()["digest"] == "d0"
    Path(record.state_file).write_text("{")
    assert record.state() == {"phase": "absent"}


def test_state_is_written_whole(tmp_path: Path) -> None:
    record = module.Record(str(tmp_path), "sglang")
    record.write_state(phase="switched", digest="d")
    assert json.loads(Path(record.state_file).read_text())["phase"] == "switched"
    assert [path.name for path in Path(record.folder).iterdir()] == ["state.json"]
