"""A node's record, the lock and the gate: what the deployment's module and the supervisor share."""

from __future__ import annotations

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ansible.module_utils import sglang_node as node

BY = {"user": "anna", "host": "desk", "pid": 7, "started": "Mon", "commit": "abc"}


@pytest.fixture(autouse=True)
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "RUN", str(tmp_path / "run"))


@pytest.fixture
def record(tmp_path: Path) -> node.Record:
    return node.Record(str(tmp_path), "sglang")


# --- writing


def test_what_is_written_is_whole_and_has_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "new/folder/file"
    node.write(str(path), "text", 0o600)
    assert path.read_text() == "text"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [found.name for found in path.parent.iterdir()] == ["file"]


def test_a_write_that_fails_leaves_the_old_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        node.write(str(path), "new")
    assert path.read_text() == "old"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


def test_a_boot_is_told_by_a_mark_that_goes_with_it() -> None:
    assert node.boot() == ""
    first = node.boot(mark=True)
    assert first and node.boot() == first == node.boot(mark=True)
    assert 0 < node.uptime() < 1e9


# --- the record


def test_record_keeps_the_last_and_drops_the_oldest(record: node.Record) -> None:
    assert record.state() == {"phase": "absent"} and record.last() == {}
    for number in range(4):
        record.add(f"d{number}", f"unit {number}", {"n": number}, keep=3, by=BY)
    assert record.ids() == ["000002", "000003", "000004"]
    assert record.last()["unit"] == "unit 3" and record.last()["by"] == BY


def test_a_cut_record_is_passed_over(record: node.Record) -> None:
    record.add("d0", "unit 0", {}, keep=3)
    cut = record.add("d1", "unit 1", {}, keep=3)
    path = Path(record.deployments) / f"{cut['id']}.json"
    path.write_text(path.read_text()[:20])
    assert record.last()["digest"] == "d0"
    Path(record.state_file).write_text("{")
    assert record.state() == {"phase": "absent"}


def test_what_is_committed_is_what_the_state_names(record: node.Record) -> None:
    """After an older one was put back, the newest on record is not what runs."""
    for number in range(3):
        record.add(f"d{number}", f"unit {number}", {}, keep=9)
    record.write_state(phase="restored", deployment="000002")
    assert record.last()["digest"] == "d1"
    record.write_state(phase="switched", before="000001")
    assert record.last()["digest"] == "d0"
    record.write_state(phase="committed", deployment="000099")
    assert record.last()["digest"] == "d2"


def test_ids_follow_the_record_and_not_the_clock(record: node.Record, monkeypatch: pytest.MonkeyPatch) -> None:
    record.add("d0", "unit", {}, keep=3)
    monkeypatch.setattr(node, "now", lambda: "1999-01-01T00:00:00Z")
    assert record.add("d1", "unit", {}, keep=3)["id"] == "000002"
    assert record.last()["digest"] == "d1"


# --- the lock


def test_of_many_who_come_at_once_one_gets_the_lock(record: node.Record) -> None:
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda pid: record.take({**BY, "pid": pid}), range(1, 9)))
    assert taken.count(True) == 1
    assert record.lock()["run"].startswith("anna@desk pid ")
    record.free()
    record.free()
    assert record.lock() == {}


def test_a_sign_of_life_is_noted(record: node.Record, monkeypatch: pytest.MonkeyPatch) -> None:
    record.seen()
    assert record.lock() == {}
    record.take(BY)
    monkeypatch.setattr(node, "uptime", lambda: 1e9)
    record.seen()
    assert record.lock()["seen"] == 1e9 and record.lock()["by"] == BY


@pytest.mark.parametrize(
    ("lock", "says"),
    [
        ({"run": "r", "boot": "b", "seen": 950.0}, ""),
        ({"run": "r", "boot": "b", "seen": 100.0}, "no sign of life for 900 s"),
        ({"run": "r", "boot": "another", "seen": 999.0}, "booted since"),
        ({"at": "unknown"}, "cannot be read"),
    ],
)
def test_when_a_lock_no_longer_counts(lock: dict, says: str) -> None:
    found = node.forsaken(lock, "b", 1000.0, 600.0)
    assert says in found if says else found == ""


@pytest.mark.parametrize(
    ("state", "due"),
    [
        ({"phase": "committed"}, False),
        ({"phase": "switched", "boot": "b", "deadline": 1001.0}, False),
        ({"phase": "switched", "boot": "b", "deadline": 999.0}, True),
        # A run does not outlive a boot of its node.
        ({"phase": "switched", "boot": "before", "deadline": 9e9}, True),
        ({"phase": "switched"}, True),
    ],
)
def test_when_a_run_is_taken_for_dead(state: dict, due: bool) -> None:
    assert node.overdue(state, "b", 1000.0) is due


def test_a_deployment_is_whole_while_its_interpreter_is_there(tmp_path: Path) -> None:
    python = tmp_path / "python"
    assert not node.whole({}) and not node.whole({"facts": {"python": str(python)}})
    python.touch()
    assert node.whole({"facts": {"python": str(python)}})


# --- the unit and the gate


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Calls of systemctl, in place of a systemd."""
    calls: list[tuple[str, ...]] = []

    def systemctl(*argv: str) -> tuple[int, str]:
        calls.append(argv)
        return (3, "") if argv[0] == "is-active" else (0, "MainPID=0")

    monkeypatch.setattr(node, "systemctl", systemctl)
    monkeypatch.setattr(node, "UNITS", str(tmp_path / "units"))
    monkeypatch.setattr(node, "RUN", str(tmp_path / "run"))
    return calls


def test_a_unit_is_put_with_where_the_front_finds_it(record: node.Record, systemd: list[tuple[str, ...]]) -> None:
    node.put("sglang", "text", record, "http://127.0.0.1:30000")
    assert Path(node.unit_path("sglang")).read_text() == "text"
    upstream = Path(record.folder, node.UPSTREAM)
    assert upstream.read_text() == "server 127.0.0.1:30000;\n"
    assert [call[0] for call in systemd] == ["daemon-reload", "enable", "reset-failed", "restart", "is-active"]
    upstream.chmod(0o400)
    before = upstream.stat().st_ino
    node.put("sglang", "text", record, "http://127.0.0.1:30000")
    assert upstream.stat().st_ino == before, "written again, though nothing changed and the disk may be full"


def test_the_gate_closes_and_opens(record: node.Record, systemd: list[tuple[str, ...]]) -> None:
    assert not node.gate_closed(record)
    assert node.drain(record, 5)[1] == 0
    assert node.gate_closed(record)
    assert Path(record.folder, node.GATE).exists()
    node.open_gate(record)
    node.open_gate(record)
    assert not node.gate_closed(record)


def test_a_drain_ends_with_its_time(
    record: node.Record, systemd: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "workers", lambda _name: {1, 2})
    seconds, left = node.drain(record, 0.3)
    assert seconds >= 0.3 and left == 2


def test_a_mask_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "unit"
    path.write_text("")
    assert not node.masked(str(path))
    path.unlink()
    path.symlink_to(os.devnull)
    assert node.masked(str(path))


def test_a_manifest_is_strict_json(record: node.Record) -> None:
    record.add("d", "unit", {"x": 1}, keep=3, proof={"smoke": {"passed": True}})
    text = Path(record.deployments, "000001.json").read_text()
    assert json.loads(text)["proof"]["smoke"]["passed"] is True
