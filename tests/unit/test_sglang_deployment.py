"""What a switch decides, what it looks at, and who may make it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sglang_deployment as module
from ansible.module_utils import sglang_node as node
from helpers import run_module

from action_plugins import sglang_deployment as action

RUNNING = {"active": "active", "pid": 7, "digest": "d1", "invocation_id": "i", "restarts": 0, "since": ""}
UNIT = '# Written by sglang-rtxpro for @DEPLOYMENT@.\n[Service]\nEnvironment="SGLANG_DEPLOYMENT=@DEPLOYMENT@"\n'
BY = {"user": "anna", "host": "desk", "pid": 7, "started": "Mon", "commit": "abc"}


def test_stamp_is_of_the_text_and_in_it() -> None:
    digest, text = module.stamp(UNIT)
    assert f"SGLANG_DEPLOYMENT={digest}" in text and "@" not in text
    assert module.stamp(UNIT + "#") != (digest, text)


def test_a_unit_knows_whether_somebody_edited_it() -> None:
    text = module.stamp(UNIT)[1]
    assert module.authentic(text)
    assert not module.authentic(text + "Nice=5\n")
    assert not module.authentic("[Service]\n")


def test_nothing_to_do() -> None:
    assert module.plan("u", "d1", "u", RUNNING) == []


def test_reasons() -> None:
    assert module.plan("u", "d1", "", {**RUNNING, "active": "inactive"}) == [
        "there is no unit yet",
        "the server is inactive",
    ]
    assert module.plan("u", "d1", "hand-made", RUNNING) == ["the unit differs"]
    # A mask is why there is no unit.
    masked = ["the unit was masked by hand"]
    assert module.plan("u", "d1", "", RUNNING, masked) == masked
    assert module.plan("u", "d1", "u", RUNNING, ["the drop-in x changes the unit"]) == [
        "the drop-in x changes the unit"
    ]


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


def test_only_drop_ins_of_this_unit_are_its_own() -> None:
    shown = "/etc/systemd/system/service.d/all.conf /etc/systemd/system/sglang.service.d/nice.conf"
    assert module.own_drop_ins(shown, "sglang.service") == ["/etc/systemd/system/sglang.service.d/nice.conf"]
    assert module.own_drop_ins("", "sglang.service") == []


def test_what_somebody_wrote_by_hand_does_not_reach_a_diff() -> None:
    after = module.stamp(UNIT)[1]
    assert module.diff(after, after, "p")["before"] == after
    shown = module.diff(after + 'Environment="A=1" HF_TOKEN=s3cret\n', after, "p")
    assert "s3cret" not in str(shown) and "edited by hand" in shown["before"]


def entry(number: int, digest: str) -> dict[str, Any]:
    return {"id": f"{number:06d}", "digest": digest, "unit": "u", "facts": {}}


def test_back_is_to_the_newest_that_differs() -> None:
    entries = [entry(4, "b"), entry(3, "b"), entry(2, "a"), entry(1, "c")]
    assert module.previous(entries, entries[0])["id"] == "000002"
    # A failed newer one that is on record no more, or was put back from, is no way back.
    assert module.previous(entries, entries[2])["id"] == "000001"
    assert module.previous(entries[3:], entries[3]) == {}


def test_releases_that_are_named_anywhere_stay() -> None:
    texts = [
        '{"release": "/opt/sglang/releases/a-1"}',
        "ExecStart=/opt/sglang/releases/b-2/venv/bin/python -m sglang\n",
        "/opt/sglang/releases/c-3.2/venv/bin/python\0-m",
        "/opt/sglang/releases-of-others/x/y",
    ]
    assert module.needed("/opt/sglang/releases/", texts) == {"a-1", "b-2", "c-3.2"}


# --- the module, with systemd stood in --------------------------------------------------------------------------------


class Host:
    """A node's folders and a systemctl that remembers what it was told."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys
        self.root = tmp_path / "root"
        self.releases = tmp_path / "releases"
        self.calls: list[tuple[str, ...]] = []
        self.active = "inactive"
        self.pid = 0
        for name in ("UNITS", "RUN"):
            monkeypatch.setattr(node, name, str(tmp_path / name.lower()))
        monkeypatch.setattr(module, "SETTINGS", str(tmp_path / "etc"))
        monkeypatch.setattr(node, "systemctl", self.systemctl)
        monkeypatch.setattr(module.Server, "verify", lambda *_args: None)
        self.monkeypatch = monkeypatch

    def systemctl(self, *argv: str) -> tuple[int, str]:
        self.calls.append(argv)
        if argv[0] == "restart":
            self.active = "active"
        if argv[0] == "is-active":
            return 3, ""
        return 0, f"ActiveState={self.active}\nMainPID={self.pid}\nUnitFileState=enabled\nDropInPaths=\n"

    def runs(self, digest: str) -> None:
        """From now on the main process is of this deployment."""
        self.active = "active"
        running = {**RUNNING, "digest": digest}
        self.monkeypatch.setattr(module.Server, "_running", lambda _self: running)

    def run(self, state: str, check: bool = False, **params: Any) -> dict[str, Any]:
        return run_module(module, self.capsys, check, name="sglang", state=state, root=str(self.root), **params)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Host:
    return Host(tmp_path, monkeypatch, capsys)


FACTS = {"url": "http://127.0.0.1:30000", "model": "m", "start_timeout": 60, "python": sys.executable}


def deploy(host: Host, text: str, **facts: Any) -> dict[str, Any]:
    switched = host.run("switched", unit=text, facts={**FACTS, **facts}, by=BY)
    assert not switched.get("failed"), switched
    host.runs(switched["digest"])
    committed = host.run("committed", unit=text, facts={**FACTS, **facts}, by=BY, proof={"smoke": {"passed": True}})
    assert not committed.get("failed"), committed
    return committed


def test_a_deployment_is_switched_committed_and_left_alone(host: Host) -> None:
    switched = host.run("switched", unit=UNIT, facts=FACTS)
    assert switched["changed"] and switched["restarted"] and switched["phase"] == "switched"
    assert {"drain_s", "stop_s"} == set(switched["times"])
    state = node.Record(str(host.root), "sglang").state()
    assert state["deadline"] > node.uptime() and state["url"] == FACTS["url"]
    host.runs(switched["digest"])
    committed = host.run("committed", unit=UNIT, facts=FACTS, by=BY, proof={"smoke": {"passed": True}})
    assert committed["changed"] and committed["committed"]["id"] == "000001" and committed["committed"]["by"] == BY
    again = host.run("switched", unit=UNIT, facts=FACTS)
    assert not again["changed"] and again["phase"] == "committed"
    assert not host.run("committed", unit=UNIT, facts=FACTS)["changed"]


def test_check_mode_writes_nothing(host: Host) -> None:
    found = host.run("switched", check=True, unit=UNIT, facts=FACTS)
    assert found["changed"] and "SGLANG_DEPLOYMENT" in found["diff"]["after"]
    assert not host.run("begun", check=True, by=BY).get("failed")
    assert not host.root.exists() and ("restart", "sglang.service") not in host.calls


def test_what_runs_otherwise_is_not_committed(host: Host) -> None:
    host.run("switched", unit=UNIT, facts=FACTS)
    host.runs("another")
    refused = host.run("committed", unit=UNIT, facts=FACTS)
    assert refused["failed"] and "is not what was proved" in refused["msg"]


def test_an_interrupted_commit_is_finished_without_a_second_manifest(host: Host) -> None:
    deploy(host, UNIT)
    record = node.Record(str(host.root), "sglang")
    # Killed after the manifest was written, before the state said so.
    record.write_state(phase="switched", before="")
    found = host.run("committed", unit=UNIT, facts=FACTS)
    assert found["changed"] and found["committed"]["id"] == "000001" and record.ids() == ["000001"]


def test_the_last_deployment_comes_back_and_a_hanging_one_is_killed(host: Host) -> None:
    first = deploy(host, UNIT)
    host.run("switched", unit=UNIT + "# another\n", facts=FACTS)
    host.runs("another")
    host.calls.clear()
    back = host.run("restored", reason="it died")
    assert back["changed"] and back["phase"] == "restored" and back["committed"]["id"] == first["committed"]["id"]
    assert [call[0] for call in host.calls if call[0] in ("kill", "restart")] == ["kill", "restart"]
    assert node.Record(str(host.root), "sglang").state()["reason"] == "it died"


def test_a_refusal_before_the_switch_leaves_what_runs(host: Host) -> None:
    deploy(host, UNIT)
    host.calls.clear()
    back = host.run("restored", reason="refused")
    assert not back["changed"] and not [call for call in host.calls if call[0] in ("kill", "restart")]


def test_one_whose_release_is_gone_is_passed_over(host: Host, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.touch()
    deploy(host, UNIT)
    deploy(host, UNIT + "# another\n", python=str(python))
    python.unlink()
    host.runs("a third")
    back = host.run("restored", reason="it died")
    assert back["committed"]["id"] == "000001"
    told = host.run("inspected", deployment="2")
    assert told["failed"] and "cannot come back" in told["msg"]


def test_where_none_can_come_back_what_runs_is_left(host: Host, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.touch()
    deploy(host, UNIT, python=str(python))
    python.unlink()
    host.runs("another")
    host.calls.clear()
    back = host.run("restored")
    assert back["failed"] and "their releases are gone" in back["msg"]
    assert ("restart", "sglang.service") not in host.calls


def test_a_deployment_that_is_not_on_record_is_named_with_those_that_are(host: Host) -> None:
    deploy(host, UNIT, profile="cpu_demo")
    told = host.run("inspected", deployment="7")
    assert told["failed"] and "no deployment 7" in told["msg"] and "000001 (cpu_demo" in told["msg"]
    assert "no deployment before" in host.run("inspected", deployment="previous")["msg"]
    assert "no deployment x" in host.run("inspected", deployment="x")["msg"]


def test_what_was_edited_by_hand_is_kept(host: Host) -> None:
    deploy(host, UNIT)
    path = Path(node.unit_path("sglang"))
    path.write_text(path.read_text() + "Nice=5\n")
    found = host.run("switched", unit=UNIT, facts=FACTS)
    assert found["reasons"] == ["the unit differs"]
    assert Path(found["aside"][0]).read_text().endswith("Nice=5\n")
    assert "Nice" not in path.read_text()


def test_a_mask_is_healed(host: Host) -> None:
    deploy(host, UNIT)
    path = Path(node.unit_path("sglang"))
    path.unlink()
    path.symlink_to(os.devnull)
    found = host.run("switched", unit=UNIT, facts=FACTS)
    assert found["reasons"] == ["the unit was masked by hand"] and "[Service]" in path.read_text()


def test_a_full_disk_is_named(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: str, *_args: object) -> None:
        raise OSError(28, "No space left on device", path)

    node.boot(mark=True)
    monkeypatch.setattr(node, "write", full)
    found = host.run("switched", unit=UNIT, facts=FACTS)
    assert found["failed"] and "state.json: No space left on device" in found["msg"]
    assert ("restart", "sglang.service") not in host.calls


def test_releases_that_nothing_needs_are_collected(host: Host) -> None:
    for name in ("a-1", "b-2", "c-3"):
        (host.releases / name / "venv").mkdir(parents=True)
    deploy(host, UNIT, release=str(host.releases / "a-1"))
    found = host.run(
        "committed", unit=UNIT, facts={**FACTS, "release": str(host.releases / "b-2")}, releases=str(host.releases)
    )
    assert found["collected"] == [str(host.releases / "c-3")]
    assert sorted(path.name for path in host.releases.iterdir() if path.is_dir()) == ["a-1", "b-2"]


def test_nothing_is_collected_while_another_server_is_deployed(host: Host) -> None:
    (host.releases / "c-3").mkdir(parents=True)
    other = node.Record(str(host.root), "other")
    other.add("d", "u", {}, keep=3)
    other.take(BY)
    deploy(host, UNIT)
    assert host.run("committed", unit=UNIT, facts=FACTS, releases=str(host.releases))["collected"] == []
    other.free()
    assert host.run("committed", unit=UNIT, facts=FACTS, releases=str(host.releases))["collected"]


def test_nothing_of_a_server_is_left(host: Host) -> None:
    deploy(host, UNIT, release=str(host.releases / "a-1"))
    (host.releases / "a-1").mkdir(parents=True)
    gone = host.run("absent", releases=str(host.releases))
    assert gone["changed"] and gone["others"] == {}
    assert not list((host.root / "sglang").iterdir()) and not (host.releases / "a-1").exists()
    assert not Path(node.unit_path("sglang")).exists()
    assert not host.run("absent", releases=str(host.releases))["changed"]


# --- the lock ---------------------------------------------------------------------------------------------------------


def test_a_second_operator_is_kept_out(host: Host) -> None:
    assert not host.run("begun", by=BY).get("failed")
    assert not host.run("begun", by=BY).get("failed"), "one's own lock is no obstacle"
    second = host.run("begun", by={**BY, "user": "ben", "pid": 8})
    assert second["failed"] and "anna on desk (pid 7, commit abc) since" in second["msg"]
    assert "sglang_server_break_lock=any" in second["msg"] and second["held"]["run"]
    # Nor may he give it back.
    host.run("ended", by={**BY, "pid": 8})
    assert node.Record(str(host.root), "sglang").lock()
    host.run("ended", by=BY)
    assert not host.run("begun", by={**BY, "pid": 8}).get("failed")


def test_a_commit_that_ends_the_run_gives_the_lock_back(host: Host) -> None:
    held = Path(node.Record(str(host.root), "sglang").lock_file)
    host.run("begun", by=BY)
    switched = host.run("switched", unit=UNIT, facts=FACTS, by=BY, locked=True)
    host.runs("of another process")
    assert host.run("committed", unit=UNIT, facts=FACTS, by=BY, locked=True, ends=True)["failed"] and held.exists()
    host.runs(switched["digest"])
    assert host.run("committed", check=True, unit=UNIT, facts=FACTS, by=BY, ends=True)["ended"] and held.exists()
    assert "ended" not in host.run("committed", unit=UNIT, facts=FACTS, by=BY, locked=True) and held.exists()
    assert host.run("committed", unit=UNIT, facts=FACTS, by=BY, locked=True, ends=True)["ended"] and not held.exists()
    assert node.Record(str(host.root), "sglang").ids() == ["000001"]


def test_a_lock_is_broken_on_demand_and_its_run_stops(host: Host) -> None:
    host.run("begun", by=BY)
    taken = host.run("begun", by={**BY, "user": "ben", "pid": 8}, break_lock="any")
    assert "anna on desk" in taken["took_over"]
    first = host.run("switched", unit=UNIT, facts=FACTS, by=BY)
    assert first["failed"] and "was taken over by ben" in first["msg"]
    assert ("restart", "sglang.service") not in host.calls


@pytest.mark.parametrize("text", ["", "{", '{"run": "r", "boot": "another"}'])
def test_a_lock_that_is_cut_or_of_another_boot_is_taken_over(host: Host, text: str) -> None:
    path = host.root / "sglang/lock.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    found = host.run("begun", by=BY)
    assert not found.get("failed") and found["took_over"]


def test_a_dead_run_of_this_controller_is_known_by_its_process() -> None:
    mine = action.operator(True)
    assert mine["pid"] == os.getppid() and mine["started"].isdigit() and mine["host"] and mine["machine"]
    assert not action.dead({"by": mine})
    assert action.dead({"by": {**mine, "started": "1"}})
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert action.dead({"by": {**mine, "pid": child.pid}})
    for other in ({"machine": "another"}, {"user": "ben"}):
        assert not action.dead({"by": {**mine, **other, "pid": child.pid}}), "others' processes are not seen"
    assert not action.dead({})


def test_the_commit_is_marked_when_files_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    def said(*argv: str) -> str:
        return "abc" if "rev-parse" in argv else " M file"

    monkeypatch.setattr(action, "said", said)
    assert action.commit() == "abc+changes"
    monkeypatch.setattr(action, "said", lambda *_argv: "")
    assert action.commit() == ""


def test_an_operator_is_told_what_happened_beside() -> None:
    assert action.told({"changed": True, "cut_off": 0}, 300) == []
    lines = action.told({"cut_off": 2, "aside": ["/a"], "collected": ["/r"], "took_over": "the lock"}, 300)
    assert lines[0] == "the lock" and "300 s" in lines[1] and "/a" in lines[2] and "/r" in lines[3]


def test_a_plan_is_made_while_somebody_deploys(host: Host) -> None:
    host.run("begun", by={**BY, "pid": 8})
    assert not host.run("switched", check=True, unit=UNIT, facts=FACTS, by=BY).get("failed")


def test_somebody_elses_unit_is_refused_before_anything_is_built(host: Host) -> None:
    path = Path(node.unit_path("sglang"))
    path.parent.mkdir(parents=True)
    path.write_text("[Service]\nExecStart=/bin/sleep 9\n")
    for state in ("begun", "switched"):
        refused = host.run(state, unit=UNIT, facts=FACTS, by=BY)
        assert refused["failed"] and "was not written by this project" in refused["msg"]
    assert not node.Record(str(host.root), "sglang").lock()


def test_a_front_or_what_is_left_of_one_is_seen(host: Host, tmp_path: Path) -> None:
    assert host.run("begun", by=BY)["front"] is False
    keys = tmp_path / "etc/sglang/keys.conf"
    keys.parent.mkdir(parents=True)
    keys.touch()
    assert host.run("begun", by=BY)["front"] is True
    keys.unlink()
    assert host.run("begun", by=BY)["front"] is False
    (tmp_path / "units").mkdir(exist_ok=True)
    (tmp_path / "units/sglang-front.service").symlink_to("/dev/null")
    assert host.run("begun", by=BY)["front"] is True


# --- weights in the page cache ----------------------------------------------------------------------------------------


def test_weights_are_read_where_memory_has_room_for_them() -> None:
    gib = 1 << 30
    assert module.why_not(0, 0, 9 * gib) == "the model's folder has no safetensors files"
    assert module.why_not(400 * gib, 0, 9 * gib) == "they are in memory"
    assert module.why_not(400 * gib, gib, 500 * gib) == ""
    assert "450.0 GiB are available" in module.why_not(400 * gib, gib, 450 * gib)


def resident(path: Path) -> str:
    argv = ["fincore", "--bytes", "--noheadings", "--output", "RES", str(path)]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def test_the_page_cache_is_looked_at_and_filled(tmp_path: Path) -> None:
    """The program that a node runs, and util-linux's fincore, on a file whose pages were dropped."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(os.urandom(40 << 20))
    size = path.stat().st_size
    assert module.lacking(resident(path), [size]) == 0
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if module.lacking(resident(path), [size]) == 0:
        pytest.skip("pages of this file system cannot be dropped: it is memory itself")
    subprocess.run([sys.executable, "-I", "-c", f"exec({module.READER!r})", str(path)], check=True)
    assert module.lacking(resident(path), [size]) == 0


def test_where_nobody_tells_all_is_lacking() -> None:
    assert module.lacking("", [5, 7]) == 12
    assert module.lacking("4096\n", [5, 7]) == 12
    assert module.lacking("4096\n0\n", [5, 7]) == 7


def test_weights_are_read_beside_the_switch(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    path = tmp_path / "model/a.safetensors"
    path.write_bytes(os.urandom(1 << 20))
    said: list[list[str]] = []
    answer = (0, "", "")

    def command(_self: Any, argv: list[str], **_rest: Any) -> tuple[int, str, str]:
        said.append(argv)
        return answer if argv[0] == "systemd-run" else (127, "", "no fincore")

    monkeypatch.setattr(module.AnsibleModule, "run_command", command)
    facts = {**FACTS, "model_path": str(tmp_path / "model")}
    told = host.run("switched", unit=UNIT, facts=facts, read_ahead=True)["read_ahead"]
    assert told["started"] and not told["why"] and told["available"] > 0
    assert said[1][0] == "systemd-run" and "--unit=sglang-read-ahead" in said[1] and said[1][-1] == str(path)
    assert not any("\n" in word for word in said[1])
    answer = (1, "", "no bus\n")
    told = host.run("switched", unit=UNIT + "# other\n", facts=facts, read_ahead=True)["read_ahead"]
    assert not told["started"] and told["why"] == "systemd-run failed: no bus"
    assert "read_ahead" not in host.run("switched", unit=UNIT + "# third\n", facts=facts)
    path.unlink()
    path.symlink_to(tmp_path / "gone")
    dangling = host.run("switched", unit=UNIT + "# fourth\n", facts=facts, read_ahead=True)
    assert dangling["restarted"] and f"{path} cannot be read" in dangling["read_ahead"]["why"]
    nothing = host.run("switched", unit=UNIT + "# last\n", facts=FACTS, read_ahead=True)
    assert nothing["restarted"] and nothing["read_ahead"]["why"] == "the model's folder has no safetensors files"


def test_releases_that_are_shared_read_only_are_left_to_who_builds_them(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    (host.releases / "old-1").mkdir(parents=True)

    def read_only(path: Any, *rest: Any, **more: Any) -> Any:
        if str(path) == str(host.releases / ".lock"):
            raise OSError(errno.EROFS, "Read-only file system", path)
        return open(path, *rest, **more)

    monkeypatch.setattr(module, "open", read_only, raising=False)
    switched = host.run("switched", unit=UNIT, facts=FACTS)
    host.runs(switched["digest"])
    assert host.run("committed", unit=UNIT, facts=FACTS, releases=str(host.releases))["collected"] == []
    assert (host.releases / "old-1").is_dir()


# --- several nodes with one model -----------------------------------------------------------------------------------------


def test_a_server_that_runs_as_wanted_is_restarted_for_another_of_its_replica(host: Host) -> None:
    deploy(host, UNIT)
    told = host.run("switched", unit=UNIT, facts=FACTS, because=["n2 is restarted"])
    assert told["restarted"] and told["reasons"] == ["n2 is restarted"]
    assert not host.run("switched", unit=UNIT, facts=FACTS)["reasons"][1:]


def test_the_head_is_stopped_first_and_started_by_the_switch(host: Host) -> None:
    deploy(host, UNIT)
    host.calls.clear()
    told = host.run("withdrawn", unit=UNIT + "Nice=5\n", facts=FACTS)
    assert told["changed"] and ("stop", "sglang.service") in host.calls
    # A run that is killed here is known to have been under way, and nothing was written but that.
    assert node.Record(str(host.root), "sglang").state()["phase"] == "switched"
    assert "Nice" not in node.read_text(node.unit_path("sglang"))
    host.active = "inactive"
    assert host.run("switched", unit=UNIT + "Nice=5\n", facts=FACTS)["restarted"]


def test_a_head_that_runs_as_wanted_or_not_at_all_is_not_stopped(host: Host) -> None:
    assert host.run("withdrawn", unit=UNIT, facts=FACTS)["reasons"] == []
    deploy(host, UNIT)
    host.calls.clear()
    assert not host.run("withdrawn", unit=UNIT, facts=FACTS)["changed"]
    assert ("stop", "sglang.service") not in host.calls


@pytest.mark.parametrize("kill", [True, False])
def test_a_rank_has_nothing_in_flight_once_the_head_has_stopped(host: Host, kill: bool) -> None:
    deploy(host, UNIT)
    host.calls.clear()
    host.run("switched", unit=UNIT + "Nice=5\n", facts=FACTS, kill=kill)
    assert any(call[0] == "kill" for call in host.calls) is kill


def test_what_was_committed_is_taken_back(host: Host) -> None:
    first = deploy(host, UNIT)["committed"]["id"]
    second = deploy(host, UNIT + "Nice=5\n")["committed"]["id"]
    assert int(second) == int(first) + 1
    told = host.run("restored", deployment=first, reason="n2 could not be committed")
    assert told["changed"] and told["committed"]["id"] == first and told["phase"] == "restored"
    assert node.Record(str(host.root), "sglang").ids() == [first]
    assert "Nice" not in node.read_text(node.unit_path("sglang"))


def test_what_was_committed_first_is_taken_back_to_nothing(host: Host) -> None:
    deploy(host, UNIT)
    told = host.run("restored", deployment="none")
    assert told["changed"] and told["committed"] == {}
    assert not os.path.exists(node.unit_path("sglang")) and node.Record(str(host.root), "sglang").ids() == []


def test_a_commit_that_was_none_has_nothing_to_take_back(host: Host) -> None:
    first = deploy(host, UNIT)["committed"]["id"]
    told = host.run("restored", deployment=first)
    assert not told["changed"] and told["committed"]["id"] == first
