"""What the supervisor decides from facts and memory, and how it reads the node."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import sys
import types
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load() -> types.ModuleType:
    """As on the node: sglang_node lies beside it."""
    spec = importlib.util.spec_from_file_location("supervise", ROOT / "roles/sglang_server/files/supervise.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    before = sys.dont_write_bytecode
    sys.path.insert(0, str(ROOT / "module_utils"))
    sys.modules["supervise"] = module  # dataclasses look there
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
        sys.dont_write_bytecode = before
    return module


module = load()
Memory, Unit, Card, Process = module.Memory, module.Unit, module.Card, module.Process

SERVES = Unit(active="active", invocation="i1", pid=7, up=5000.0)
FAILED = Unit(active="failed", result="exit-code", invocation="i1", idle=61.0)
SWITCHED = {"phase": "switched", "digest": "d2", "before": "000001", "boot": "b", "deadline": 500.0, "at": "then"}
OVERDUE = 1000.0  # a time at which it is
LIVE_LOCK = {"run": "a", "boot": "b", "seen": 900.0}


def facts(now: float = 1000.0, **values: Any) -> Any:
    return module.Facts(**{"now": now, "boot": "b", "state": {"phase": "committed"}, "unit": SERVES, **values})


def health(status: int, asked: float, seconds: float = 20.0, said: str = "") -> Any:
    return module.Health(status, asked, seconds, said)


def kinds(deeds: list[Any]) -> list[str]:
    return [deed.kind for deed in deeds]


def looks(memory: Any, *steps: Any) -> tuple[list[tuple[float, Any]], Any]:
    """Deeds with their times over a number of looks, and the last memory, which went through its file each time."""
    done = []
    for step in steps:
        deeds, memory = module.decide(step, memory)
        memory = Memory.read(json.loads(json.dumps(dataclasses.asdict(memory))))
        done += [(step.now, deed) for deed in deeds]
    return done, memory


def failing(begin: float, end: float, step: float = 30.0, **values: Any) -> list[Any]:
    """Looks at a server that makes no token; each asks for 20 s."""
    count = int((end - begin) // step) + 1
    return [facts(begin + 20 + n * step, health=health(503, begin + n * step), **values) for n in range(count)]


def serving(begin: float, end: float, step: float = 30.0, **values: Any) -> list[Any]:
    count = int((end - begin) // step) + 1
    return [facts(begin + 1 + n * step, health=health(200, begin + n * step, 1.0), **values) for n in range(count)]


# --- all is well, or somebody is at work ----------------------------------------------------------------------------------


def test_silent_while_all_is_well() -> None:
    done, memory = looks(Memory(), *serving(1000, 1300))
    assert not done
    assert memory.healthy and memory.healthy_since == 1000 and not memory.failing_since


@pytest.mark.parametrize("active", ["inactive", "activating", "deactivating", "reloading", "unknown"])
def test_a_server_that_is_stopped_or_on_its_way_is_left_alone(active: str) -> None:
    unit = Unit(active=active, invocation="i1", up=90_000, idle=90_000)
    assert (
        module.decide(facts(unit=unit, health=None), Memory(invocation="i1", healthy=True, failing_since=1.0))[0] == []
    )


def test_nothing_is_done_while_a_deploy_is_under_way() -> None:
    """Whatever it looks like: closed gate, failed unit, no token for long. And what was remembered is of another server."""
    for unit in (SERVES, FAILED):
        now = facts(400.0, state=SWITCHED, unit=unit, closed=True, health=health(503, 380), back="000001")
        memory = Memory(looked=390, invocation="i1", healthy=True, failing_since=1.0, tries=3)
        assert module.decide(now, memory) == ([], Memory(looked=400.0, invocation="i1"))


def test_a_server_that_is_ready_for_longer_than_a_proof_takes_is_not_kept() -> None:
    """Its run is dead, though the time that a slow start may take is not over."""
    state = {**SWITCHED, "deadline": 9e9, "proof_timeout": 60}
    ready = [
        facts(now, state=state, back="000001", health=health(200, now)) for now in (1000.0, 1100.0, 1170.0, 1181.0)
    ]
    done, memory = looks(Memory(), *ready)
    assert [(now, deed.kind) for now, deed in done] == [(1181.0, "restore")]
    # One that is not ready any more has its time anew.
    failing = facts(1170.0, state=state, back="000001", health=health(503, 1150))
    assert looks(Memory(), ready[0], ready[1], failing, ready[3])[0] == []


# --- a run that switched and never came back ------------------------------------------------------------------------------


def test_the_last_committed_comes_back() -> None:
    deeds, memory = module.decide(facts(OVERDUE, state=SWITCHED, closed=True, back="000001"), Memory(tries=4))
    assert kinds(deeds) == ["restore"] and memory == Memory()
    assert "d2" in deeds[0].text and "deployment 000001" in deeds[0].text and "put back" in deeds[0].text


def test_an_unproved_server_is_not_kept_though_it_is_healthy() -> None:
    now = facts(OVERDUE, state=SWITCHED, running="d2", back="000001", health=health(200, 999))
    assert kinds(module.decide(now, Memory())[0]) == ["restore"]


def test_what_was_put_back_already_is_not_said_to_be_started() -> None:
    deeds, _memory = module.decide(facts(OVERDUE, state=SWITCHED, back="000001", back_runs=True), Memory())
    assert kinds(deeds) == ["restore"] and "goes on" in deeds[0].text


def test_a_run_does_not_outlive_a_boot_of_its_node() -> None:
    state = {**SWITCHED, "boot": "another", "deadline": 9e9}
    assert kinds(module.decide(facts(5.0, state=state, back="000001"), Memory())[0]) == ["restore"]


def test_with_nothing_committed_only_the_gate_is_opened_and_once() -> None:
    first, second = (facts(OVERDUE + n, state=SWITCHED, closed=True) for n in (0, 30))
    done, _memory = looks(Memory(), first, second)
    assert [deed.kind for _now, deed in done] == ["open"]
    assert "no committed deployment" in done[0][1].text and "gate is opened" in done[0][1].text
    # Another run that dies the same way is said again.
    deeds, _memory = module.decide(facts(OVERDUE, state={**SWITCHED, "at": "later"}), _memory)
    assert kinds(deeds) == ["say"]


def test_a_server_that_cannot_be_taken_back_is_supervised_as_any_other() -> None:
    now = facts(OVERDUE, state=SWITCHED, unit=FAILED)
    deeds, memory = module.decide(now, Memory())
    assert kinds(deeds) == ["say", "start"] and memory.tries == 1


def test_a_masked_unit_is_somebodys_wish() -> None:
    unit = SERVES._replace(masked=True, enabled=False)
    deeds, _memory = module.decide(facts(OVERDUE, state=SWITCHED, back="000001", unit=unit), Memory())
    assert kinds(deeds) == ["say"] and "masked" in deeds[0].text
    done, _memory = looks(Memory(), *serving(1000, 1030, unit=unit), *failing(1060, 2000, unit=unit))
    assert not done


# --- a gate left closed ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["committed", "restored", "absent"])
def test_a_gate_that_a_dead_run_left_closed_is_opened(phase: str) -> None:
    deeds, _memory = module.decide(facts(closed=True, state={"phase": phase}), Memory())
    assert kinds(deeds) == ["open"] and "nobody holds the lock" in deeds[0].text


def test_a_gate_is_left_to_who_holds_the_lock() -> None:
    """A deploy closes it to drain, before it says that it switches."""
    assert module.decide(facts(closed=True, lock=LIVE_LOCK), Memory())[0] == []


@pytest.mark.parametrize(
    ("now", "lock", "why"),
    [
        (4501.0, LIVE_LOCK, "no sign of life for 3601 s"),
        (1000.0, {**LIVE_LOCK, "boot": "another"}, "booted since"),
        (1000.0, {"by": {}}, "cannot be read"),
    ],
)
def test_a_forsaken_lock_keeps_no_gate_closed(now: float, lock: dict[str, Any], why: str) -> None:
    deeds, _memory = module.decide(facts(now, closed=True, lock=lock), Memory())
    assert kinds(deeds) == ["open"] and why in deeds[0].text


def test_an_open_gate_is_not_opened() -> None:
    assert module.decide(facts(), Memory())[0] == []


# --- the start limit ------------------------------------------------------------------------------------------------------


def test_a_failed_unit_is_started_after_growing_pauses() -> None:
    memory, pauses = Memory(), []
    for _try in range(8):
        pause = next(
            s for s in range(0, 4000, 10) if module.decide(facts(unit=FAILED._replace(idle=float(s))), memory)[0]
        )
        deeds, memory = module.decide(facts(unit=FAILED._replace(idle=float(pause))), memory)
        pauses.append(pause)
    assert pauses == [60, 120, 240, 480, 960, 1800, 1800, 1800]
    assert kinds(deeds) == ["start"]
    assert all(word in deeds[0].text for word in ("start limit", "Result=exit-code", "start 8", "1800 s"))


def test_the_longest_pause_is_thirty_first_ones() -> None:
    assert [module._pause(10.0, tries) for tries in (0, 1, 4, 5, 99)] == [10.0, 20.0, 160.0, 300.0, 300.0]


@pytest.mark.parametrize(
    "unit", [FAILED._replace(stopped=True), FAILED._replace(enabled=False), FAILED._replace(idle=59.0)]
)
def test_a_failed_unit_that_somebody_stopped_or_disabled_stays_down(unit: Any) -> None:
    assert module.decide(facts(unit=unit), Memory()) == ([], Memory(looked=1000.0, invocation="i1"))


def test_the_pause_begins_anew_only_after_ten_healthy_minutes() -> None:
    tried = Memory(tries=4, looked=990, invocation="i1")
    _done, memory = looks(tried, *serving(1000, 1590))
    assert memory.tries == 4
    _done, memory = looks(memory, *serving(1600, 1630))
    assert memory.tries == 0
    # A single failure begins the ten minutes anew, another start too.
    _done, memory = looks(tried, *serving(1000, 1500), *failing(1530, 1530), *serving(1560, 2100))
    assert memory.tries == 4
    _done, memory = looks(tried, *serving(1000, 1500), *serving(1530, 2070, unit=SERVES._replace(invocation="i2")))
    assert memory.tries == 4


# --- a hang ---------------------------------------------------------------------------------------------------------------

SPINNING = tuple(Card(100.0, 131.0, 600.0) for _ in range(8))


def test_a_server_that_stops_making_tokens_is_ended_once() -> None:
    done, memory = looks(Memory(), *serving(1000, 1060), *failing(1090, 1480, cards=SPINNING, words="Decode"))
    assert [(now, deed.kind) for now, deed in done] == [(1410.0, "end")]
    text = done[0][1].text
    assert "no token for 320 s (/health: 503 after 20 s)" in text
    assert "8 GPUs at 100 % and 131 W of 600 W: a hang in a collective or kernel" in text
    assert text.endswith("Its last words: Decode")
    assert memory.ended == 1


def test_one_answer_begins_the_count_anew() -> None:
    done, memory = looks(
        Memory(), *serving(1000, 1000), *failing(1030, 1270), *serving(1300, 1300), *failing(1330, 1570)
    )
    assert not done and memory.failing_since == 1330


def test_another_start_begins_the_count_anew() -> None:
    again = SERVES._replace(invocation="i2", up=10.0)
    done, memory = looks(Memory(), *serving(1000, 1000), *failing(1030, 1270), *failing(1300, 2000, unit=again))
    assert not done and not memory.healthy


def test_looks_far_apart_do_not_add_up() -> None:
    """The timer was stopped, or the node slept: what was between is not known."""
    done, _memory = looks(Memory(), *serving(1000, 1000), *failing(1030, 1060), *failing(5000, 5270))
    assert not done
    done, _memory = looks(_memory, *failing(5300, 5300))
    assert [deed.kind for _now, deed in done] == ["end"]


def test_a_start_has_its_time() -> None:
    def loading(begin: float, end: float) -> list[Any]:
        return [dataclasses.replace(f, unit=SERVES._replace(up=f.now - 1000)) for f in failing(begin, end)]

    done, memory = looks(Memory(), *loading(1000, 2770))
    assert not done
    done, memory = looks(memory, *loading(2800, 2800))
    assert [deed.kind for _now, deed in done] == ["end"]
    assert "not healthy 1820 s after its start, which has 1800 s" in done[0][1].text


def test_a_unit_changed_by_hand_is_not_judged_before_it_was_healthy() -> None:
    """Its port may be another than the record's."""
    done, _memory = looks(Memory(), *failing(1000, 9000, known=False))
    assert not done
    done, _memory = looks(Memory(), *serving(1000, 1000), *failing(1030, 1330, known=False))
    assert [deed.kind for _now, deed in done] == ["end"]


def test_a_process_that_cannot_be_killed_is_not_killed_at_every_look() -> None:
    stuck = (Process(7, 1, "D", "python"), Process(8, 7, "Z", "sglang::schedul"))
    done, _memory = looks(Memory(), *serving(1000, 1000), *failing(1030, 1700, processes=stuck))
    assert [now for now, _deed in done] == [1350.0, 1680.0]
    assert (
        "time 2" in done[1][1].text
        and "7 (python)" in done[1][1].text
        and "8 (sglang::schedul): dead" in done[1][1].text
    )


@pytest.mark.parametrize(
    ("status", "values", "work"),
    [
        (503, {"processes": (Process(9, 7, "R", "cicc"), Process(8, 7, "S", "ninja"))}, "compiled (cicc, ninja)"),
        (503, {"cards": (Card(100, 120, 600), Card(100, 310, 600))}, "52 %"),
        (0, {"batches": True}, "batches run"),
        # The main process says itself that it heard of no scheduler: those batches are the ones that /health asks for.
        (503, {"batches": True}, ""),
        (503, {"cards": SPINNING}, ""),
        (503, {"cards": (Card(0, 0, 0),)}, ""),
        (0, {}, ""),
    ],
)
def test_signs_of_work(status: int, values: dict[str, Any], work: str) -> None:
    found = module.at_work(facts(**values), health(status, 0))
    assert work in found if work else found == ""


def test_a_server_that_compiles_has_the_time_of_a_start() -> None:
    compiling: dict[str, Any] = {"processes": (Process(9, 7, "R", "cicc"),), "start_timeout": 900.0}
    done, _memory = looks(Memory(), *serving(1000, 1000), *failing(1030, 2000, **compiling))
    assert [(now, deed.kind) for now, deed in done] == [(1350.0, "say"), (1950.0, "end")]


@pytest.mark.parametrize(
    ("cards", "words"),
    [
        ((), ""),
        (SPINNING, "8 GPUs at 100 % and 131 W of 600 W: a hang in a collective or kernel"),
        (
            (Card(0, 14, 600),),
            "1 GPU at 0 % and 14 W of 600 W: they have nothing to do, the hang is on the host's side",
        ),
        ((Card(0, 80, 600), Card(100, 131, 600)), "2 GPUs at 0 to 100 % and 80 to 131 W of 600 W"),
        ((Card(100, 0, 0),), "1 GPU at 100 % and 0 W"),
    ],
)
def test_what_the_gpus_do(cards: tuple[Any, ...], words: str) -> None:
    assert module.card_words(cards) == words


# --- memory ---------------------------------------------------------------------------------------------------------------


def test_memory_survives_its_file() -> None:
    memory = Memory(1.5, "i", True, 2.0, 3.0, True, 4, 5, "d t")
    assert Memory.read(json.loads(json.dumps(dataclasses.asdict(memory)))) == memory


@pytest.mark.parametrize(
    "values", [{}, {"tries": "many", "looked": None, "healthy": 1, "failing_since": True}, {"of": "a later version"}]
)
def test_memory_that_is_missing_or_of_another_kind_is_none(values: dict[str, Any]) -> None:
    assert Memory.read(values) == Memory()


# --- reading the node -----------------------------------------------------------------------------------------------------


def test_unit() -> None:
    shown = {
        "ActiveState": "failed",
        "Result": "exit-code",
        "UnitFileState": "enabled-runtime",
        "InvocationID": "i1",
        "MainPID": "0",
        "ExecMainStartTimestampMonotonic": "900000000",
        "InactiveEnterTimestampMonotonic": "990000000",
    }
    assert module.as_unit(shown, 1000.0, False) == Unit("failed", "exit-code", True, False, "i1", 0, 100.0, 10.0, False)
    assert module.as_unit({}, 1000.0, False) == Unit(enabled=False)
    assert module.as_unit({"UnitFileState": "masked-runtime"}, 1.0, False).masked


def test_who_ended_a_failed_unit() -> None:
    """As journald gives them, the newest first (systemd 252)."""
    stopped = '{"JOB_TYPE":"stop","JOB_RESULT":"done","MESSAGE":"Stopped s.service."}\n'
    limit = '{"JOB_TYPE":"start","JOB_RESULT":"failed","MESSAGE":"Failed to start s.service."}\n'
    result = '{"UNIT_RESULT":"signal","MESSAGE":"s.service: Failed with result \'signal\'."}\n'
    assert module.was_stopped(stopped + result + limit)
    assert not module.was_stopped(result + limit + stopped)
    assert not module.was_stopped('{"JOB_TYPE":"st')
    assert not module.was_stopped("")


def test_last_words() -> None:
    def line(seconds: float, message: object) -> str:
        return json.dumps({"__MONOTONIC_TIMESTAMP": str(int(seconds * 1e6)), "MESSAGE": message}) + "\n"

    log = (
        line(990, '[2026-11-30 01:43:33] INFO:     127.0.0.1:35690 - "GET /health HTTP/1.1" 503 Service Unavailable')
        + line(
            990,
            "[2026-11-30 01:43:33] Health check failed. Server couldn't get a response from detokenizer for last 20 seconds.",
        )
        + line(985, [240, 159])
        + line(970, "  [2026-11-30 01:42:52 TP0] Decode batch, #running-req: 4, #token: 552  ")
        + "cut {"
    )
    assert module.tail(log, 1000.0) == (True, "[2026-11-30 01:42:52 TP0] Decode batch, #running-req: 4, #token: 552")
    assert module.tail(log, 1031.0)[0] is False
    assert module.tail("", 1000.0) == (False, "")


def test_processes() -> None:
    assert module.as_process("42 (sglang::a (b) c) Z 7 42 42 0") == Process(42, 7, "Z", "sglang::a (b) c")
    assert module.as_process("") is None
    table = [
        Process(9, 8, "R", "cicc"),
        Process(8, 7, "S", "ninja"),
        Process(7, 1, "S", "python"),
        Process(6, 1, "S", "x"),
    ]
    assert {process.pid for process in module.family(table, 7)} == {7, 8, 9}
    assert module.family(table, 0) == ()


def test_cards() -> None:
    text = "GPU-a, 100, 131.24, 600.00\nGPU-b, 0, [N/A], 600.00\n\nUnable to determine the device handle\n"
    cards = module.as_cards(text)
    assert cards == {"GPU-a": Card(100, 131.24, 600), "GPU-b": Card(0, 0, 600)}
    assert module.own_cards(cards, "GPU-b, 7\nGPU-a, 99\n", {7}) == (cards["GPU-b"],)
    # In a container nvidia-smi knows no process ids.
    assert module.own_cards(cards, "", {7}) == tuple(cards.values())


def test_a_command_that_does_not_come_back_is_left() -> None:
    assert module.asked(["sleep", "5"], timeout=0.1) == ""
    assert module.asked(["no-such-command-at-all"]) == ""


def test_health_speaks_of_what_it_met(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: Any, **_more: Any) -> None:
        raise urllib.error.URLError(ConnectionRefusedError(111, "Connection refused"))

    monkeypatch.setattr(module.OPENER, "open", refuse)
    found = module.ask_health("http://127.0.0.1:1")
    assert (found.status, found.ok) == (0, False) and "Connection refused after 0 s" in str(found)


def entry(number: str, python: str, **more: Any) -> str:
    facts_of = {"python": python, "url": "http://127.0.0.1:30000"}
    return json.dumps({"id": number, "digest": "d" + number[-1], "unit": "u", "facts": facts_of, **more})


def test_what_can_come_back(tmp_path: Path) -> None:
    record = module.sglang_node.Record(str(tmp_path), "s")
    folder = tmp_path / "s" / "deployments"
    folder.mkdir(parents=True)
    assert module.candidate(record, {}) == {}
    for number, python in (("000001", sys.executable), ("000002", sys.executable), ("000003", "/gone/python")):
        (folder / f"{number}.json").write_text(entry(number, python))
    assert module.candidate(record, {"before": "000001"})["id"] == "000001"
    assert module.candidate(record, {"before": "000003"})["id"] == "000002"
    assert module.candidate(record, {"before": ""})["id"] == "000002"


# --- the program ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A node in a folder: systemctl notes what it is asked, and one deployment is committed."""
    it = types.SimpleNamespace(root=tmp_path / "lib", calls=[], shown={}, said=[])
    monkeypatch.setattr(module.sglang_node, "RUN", str(tmp_path / "run"))
    monkeypatch.setattr(module.sglang_node, "UNITS", str(tmp_path / "units"))
    monkeypatch.setattr(module.sglang_node, "show", lambda _unit, _names: it.shown)
    monkeypatch.setattr(module.sglang_node, "systemctl", lambda *words: (it.calls.append(words), (0, ""))[1])
    monkeypatch.setattr(module.sglang_node, "uptime", lambda: 1000.0)
    monkeypatch.setattr(module.sglang_node, "boot", lambda mark=False: "b")
    monkeypatch.setattr(module, "look_up_stop", lambda _unit: False)
    monkeypatch.setattr(module, "say", lambda text, level=5: it.said.append(text))
    it.record = module.sglang_node.Record(str(it.root), "s")
    it.shown = {"ActiveState": "inactive", "UnitFileState": "enabled", "InvocationID": "i1"}
    Path(it.record.deployments).mkdir(parents=True)
    Path(it.record.deployments, "000001.json").write_text(entry("000001", sys.executable))
    it.gate = tmp_path / "lib" / "s" / "closed"
    it.unit = tmp_path / "units" / "s.service"
    it.memory = tmp_path / "run" / "s" / "supervise.json"
    it.run = lambda *more: module.main(["s", "--root", str(it.root), *more])
    return it


def close(node: Any) -> None:
    node.gate.touch()


def test_an_abandoned_switch_is_taken_back(node: Any) -> None:
    node.record.write_state(**SWITCHED)
    close(node)
    assert node.run("--dry-run") == 0
    assert node.gate.exists() and not node.calls and node.said.pop().startswith("Would restore: ")
    assert node.run() == 0
    assert node.unit.read_text() == "u" and not node.gate.exists()
    state = node.record.state()
    assert (state["phase"], state["deployment"], state["digest"]) == ("restored", "000001", "d1") and "d2" in state[
        "reason"
    ]
    words = [call[0] for call in node.calls]
    assert words.index("daemon-reload") < words.index("kill") < words.index("restart")
    node.said.clear()
    assert node.run() == 0 and not node.said


def test_nothing_is_ended_when_the_disk_is_full(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: Any) -> None:
        raise OSError(28, "No space left on device")

    node.record.write_state(**SWITCHED)
    monkeypatch.setattr(module.sglang_node, "write", full)
    assert node.run() == 1
    assert not node.calls
    assert "cannot be written" in node.said[0] and "No space left on device" in node.said[-1]


def test_a_deploy_that_begins_during_a_look_is_left_alone(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    node.record.write_state(phase="committed", digest="d1", deployment="000001")
    close(node)
    decide = module.decide

    def meanwhile(*args: Any) -> Any:
        result = decide(*args)
        node.record.take({"user": "u"})
        return result

    monkeypatch.setattr(module, "decide", meanwhile)
    assert node.run() == 0
    assert node.gate.exists() and node.said[0].endswith("Not done: somebody has taken the lock.")
    node.record.free()
    monkeypatch.setattr(module, "decide", decide)
    assert node.run() == 0
    assert not node.gate.exists()


def test_a_unit_that_changed_during_a_look_is_left_alone(node: Any) -> None:
    deed = module.Deed("end", "It hangs.")
    node.record.write_state(phase="committed")
    now = facts(state=node.record.state(), unit=SERVES)
    node.shown = {"ActiveState": "deactivating", "InvocationID": "i1"}
    module.do(deed, now, node.record)
    assert node.said == ["It hangs. Not done: the unit is deactivating by now."] and not node.calls
    node.shown = {"ActiveState": "active", "InvocationID": "i1"}
    module.do(deed, now, node.record)
    assert node.calls == [("kill", "--signal=SIGKILL", "s.service")]


def test_a_failed_unit_is_let_go_and_started(node: Any) -> None:
    node.shown = {**node.shown, "ActiveState": "failed", "Result": "exit-code", "InactiveEnterTimestampMonotonic": "1"}
    assert node.run() == 0
    assert node.calls == [("reset-failed", "s.service"), ("start", "--no-block", "s.service")]
    assert json.loads(node.memory.read_text())["tries"] == 1


def test_a_fault_of_its_own_is_one_line(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: Any) -> None:
        raise ValueError("two\nlines")

    monkeypatch.setattr(module, "gather", broken)
    assert node.run() == 1
    assert len(node.said) == 1 and "ValueError: two lines" in node.said[0] and not node.calls


def test_one_looks_at_a_time(node: Any) -> None:
    node.record.write_state(**SWITCHED)
    with module.alone(str(node.memory.parent)) as first:
        assert first and node.run() == 0
    assert not node.said and node.record.state()["phase"] == "switched"


def test_help_explains(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        module.main(["--help"])
    said = capsys.readouterr().out
    assert all(word in said for word in ("put back", "open ", "start ", "end ", "supervise.timer", "--dry-run"))


# --- a rank that is not the head ------------------------------------------------------------------------------------------


def test_a_rank_is_never_taken_for_hung() -> None:
    """Whatever it answers, and however long it waits for a head that does not come: it ends by itself, or with the head."""
    done, _memory = looks(Memory(), *serving(1000, 1030, rank=1), *failing(1060, 9000, rank=1))
    assert not done
    late = [facts(now, unit=SERVES._replace(up=now), health=health(0, now), rank=1) for now in (2000.0, 4000.0, 9000.0)]
    assert not looks(Memory(invocation="i1"), *late)[0]
    # The head of it, and a server of its own, are.
    assert [deed.kind for _now, deed in looks(Memory(), *serving(1000, 1030), *failing(1060, 9000))[0]][:1] == ["end"]


def test_a_rank_that_systemd_gave_up_is_started_again_and_its_gate_and_switch_are_looked_after() -> None:
    assert kinds(module.decide(facts(unit=FAILED, rank=1), Memory(invocation="i1"))[0]) == ["start"]
    assert kinds(module.decide(facts(OVERDUE, state=SWITCHED, back="000001", rank=1), Memory())[0]) == ["restore"]


def test_a_rank_is_not_asked_for_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = module.sglang_node.Record(str(tmp_path), "sglang")
    shown = {"ActiveState": "active", "MainPID": str(os.getpid()), "InvocationID": "i1", "UnitFileState": "enabled"}
    monkeypatch.setattr(module.sglang_node, "show", lambda *_args: shown)
    monkeypatch.setattr(module.sglang_node, "UNITS", str(tmp_path))
    asked: list[str] = []

    def answer(url: str) -> Any:
        asked.append(url)
        return health(200, 1.0)

    monkeypatch.setattr(module, "ask_health", answer)
    record.add("d1", "unit", {"url": "http://127.0.0.1:1"}, 10)
    for rank in (1, 0):
        found = module.gather("sglang", record, Memory(), 300.0, 60.0, rank)
        assert (found.health is None) is bool(rank) and found.unit.active == "active"
    assert asked == ["http://127.0.0.1:1"]
