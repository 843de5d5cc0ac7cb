"""The wait: what it decides from unit, journal and port, and what the action plugin shows of it."""

from __future__ import annotations

import http.server
import importlib.util
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sglang_ready as ready
import yaml
from ansible.errors import AnsibleActionFail
from ansible.module_utils import sglang_ports
from ansible.module_utils.sglang_log import Line
from ansible.module_utils.testing import patch_module_args
from helpers import serving

ROOT = Path(__file__).resolve().parents[2]
FIRST, SECOND = "a" * 32, "b" * 32
RUNNING = ready.Unit(
    load="loaded", active="active", sub="running", main_pid=7, invocation=FIRST, started_us=1_000_000, result="success"
)


def plugin() -> Any:
    """The action plugin, which has the module's name."""
    spec = importlib.util.spec_from_file_location("sglang_ready_action", ROOT / "action_plugins" / "sglang_ready.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("text", [ready.DOCUMENTATION, ready.EXAMPLES, ready.RETURN])
def test_documentation_is_yaml_and_matches_the_arguments(text: str) -> None:
    loaded = yaml.safe_load(text)
    if text is ready.DOCUMENTATION:
        assert set(loaded["options"]) == set(ready.SPEC)
        for name, option in loaded["options"].items():
            assert option["type"] == ready.SPEC[name]["type"]
            assert option.get("default") == ready.SPEC[name].get("default")


# --- the unit


def test_properties_of_systemctl_show() -> None:
    text = (
        "Result=exit-code\nExecMainStartTimestampMonotonic=123456\nExecMainExitTimestampMonotonic=0\nExecMainStatus=1\nMainPID=0\n"
        "NRestarts=4\nControlGroup=/system.slice/sglang.service\nLoadState=loaded\nActiveState=activating\n"
        f"SubState=auto-restart\nInvocationID={FIRST}\n"
    )
    unit = ready.parse_unit(text)
    assert unit == ready.Unit(
        "loaded", "activating", "auto-restart", 0, FIRST, 4, 123456, 0, "exit-code", 1, "/system.slice/sglang.service"
    )
    assert ready.parse_unit("NRestarts=[not set]\nActiveState=inactive\n") == ready.Unit(active="inactive")


def watch(**changes: Any) -> ready.Watch:
    values = {"began": 1.0, "deadline": 100.0, "invocation": FIRST, "started_us": 1_000_000, "pid": 7}
    return ready.Watch(**{**values, **changes})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"active": "activating", "sub": "start-pre", "main_pid": 0}, None),
        ({"active": "reloading"}, None),
        ({"active": "failed", "sub": "failed", "main_pid": 0}, "died"),
        ({"active": "activating", "sub": "auto-restart", "main_pid": 0}, "died"),
        ({"active": "activating", "sub": "auto-restart-queued", "main_pid": 0}, "died"),
        ({"invocation": SECOND}, "died"),
        ({"restarts": 1}, "died"),
        ({"active": "inactive", "sub": "dead", "main_pid": 0}, "died"),
        ({"active": "deactivating", "sub": "stop-sigterm"}, "stopped"),
        ({"active": "deactivating", "sub": "stop-sigterm", "main_pid": 0}, "died"),
    ],
)
def test_when_the_awaited_start_is_over(changes: dict[str, Any], reason: str | None) -> None:
    assert ready.ended(RUNNING._replace(**changes), watch()) == reason


def test_a_unit_that_never_ran_is_not_called_dead() -> None:
    unit = ready.Unit(load="loaded", active="inactive", sub="dead")
    assert ready.ended(unit, ready.Watch(began=1, deadline=2)) == "not_running"


def test_restarts_before_the_wait_do_not_count() -> None:
    unit = RUNNING._replace(restarts=3)
    waiting = ready.Watch(began=1, deadline=2)
    waiting.follow(unit)
    assert ready.ended(unit, waiting) is None
    assert ready.ended(unit._replace(restarts=4), waiting) == "died"


def test_the_start_stamp_of_the_last_start_is_not_taken_for_this_ones() -> None:
    waiting = ready.Watch(began=1, deadline=2)
    waiting.follow(RUNNING._replace(active="activating", sub="start-pre", main_pid=0, started_us=5))
    assert waiting.started_us == 0
    waiting.follow(RUNNING)
    assert (waiting.started_us, waiting.pid) == (1_000_000, 7)
    waiting.follow(RUNNING._replace(invocation=SECOND, main_pid=9, started_us=9))
    assert (waiting.started_us, waiting.pid) == (1_000_000, 7)


def test_a_start_that_is_over_before_the_first_look_keeps_its_stamp() -> None:
    waiting = ready.Watch(began=9, deadline=10)
    waiting.follow(RUNNING._replace(active="activating", sub="auto-restart", main_pid=0))
    assert waiting.since_start(3_500_000) == 2.5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x.service: Main process exited, code=exited, status=1/FAILURE", "exit status 1"),
        ("x.service: Main process exited, code=exited, status=203/EXEC", "exit status 203/EXEC"),
        ("x.service: Main process exited, code=killed, status=9/KILL", "killed by signal 9 (SIGKILL)"),
        ("x.service: Main process exited, code=dumped, status=11/SEGV", "killed by signal 11 (SIGSEGV), core dumped"),
    ],
)
def test_how_the_process_ended(text: str, said: str) -> None:
    assert (
        ready.exit_text(
            [Line("Main process exited, code=exited, status=5", "python3[1]"), Line(text, "systemd[1]")], RUNNING
        )
        == said
    )


def test_how_the_process_ended_without_a_journal() -> None:
    assert ready.exit_text([], RUNNING._replace(result="oom-kill")) == "result oom-kill"
    assert ready.exit_text([], RUNNING) == "exit status 0"


# --- the journal


def entry(us: int, text: str, source: str = "python3[7]") -> ready.Entry:
    return ready.Entry(f"c{us}", us, ready.parse_line(text, source))


def journal_line(message: Any, us: int = 5) -> str:
    return json.dumps(
        {
            "__CURSOR": "c",
            "__MONOTONIC_TIMESTAMP": str(us),
            "MESSAGE": message,
            "SYSLOG_IDENTIFIER": "python3",
            "_PID": "7",
        }
    )


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("[2026-01-01 00:00:00] Load weight begin.", "Load weight begin."),
        (list(b"  0%\r100% \xe2\x96\x88"), "100% █"),
        ([255, 65], "\ufffdA"),
        (["two", "values"], "two values"),
        (None, ""),
    ],
)
def test_journal_messages_of_every_kind(message: Any, text: str) -> None:
    found = ready.parse_entry(journal_line(message))
    assert found is not None and (found.line.text, found.line.source, found.us) == (text, "python3[7]", 5)


@pytest.mark.parametrize("text", ["", "{", '{"MESSAGE": "x"}', "[]", "-- No entries --"])
def test_what_is_no_journal_entry(text: str) -> None:
    assert ready.parse_entry(text) is None


def test_stages_are_timed_from_the_units_start_by_the_monotonic_clock() -> None:
    waiting = watch()
    new = waiting.take(
        [
            entry(1_000_100, "Started x.service", "systemd[1]"),
            entry(9_000_000, "warnings.warn("),
            entry(12_345_000, "[2031-01-01 00:00:00 TP3] Load weight begin. avail mem=94 GB"),
            entry(12_400_000, "[1999-01-01 00:00:00 TP0] Load weight begin. avail mem=94 GB"),
        ]
    )
    assert [(stage["name"], stage["seconds"]) for stage in new] == [
        ("process started", 0.0),
        ("weights loading", 11.35),
    ]
    assert waiting.doing == "loading weights" and waiting.cursor == "c12400000"


def test_reading_stops_at_ready_and_goes_on_over_slices() -> None:
    waiting = watch()
    waiting.take([entry(2_000_000, "Load weight begin.")])
    resumed = ready.Watch(**json.loads(json.dumps(ready.asdict(waiting))))
    rest = iter([entry(3_000_000, "The server is fired up and ready to roll!"), entry(4_000_000, "Prefill batch")])
    assert [stage["name"] for stage in resumed.take(rest)] == ["ready"]
    assert next(rest).us == 4_000_000


def test_the_journal_of_one_start_holds_systemds_words_too() -> None:
    command = ready.journal_command(FIRST, cursor="c", last=9)
    assert command[-3:] == [f"_SYSTEMD_INVOCATION_ID={FIRST}", "+", f"INVOCATION_ID={FIRST}"]
    assert {"--after-cursor=c", "--lines=9", "--all"} < set(command)


def test_reading_is_bounded_and_survives_a_missing_journalctl(tmp_path: Path) -> None:
    assert list(ready.read_journal(["/nonexistent/journalctl"])) == []
    source = tmp_path / "journal"
    source.write_text("\n".join([journal_line("x", us) for us in range(50)]) + "\n{cut")
    assert len(list(ready.read_journal(["cat", str(source)], limit=20))) == 20
    assert len(list(ready.read_journal(["cat", str(source)]))) == 50


# --- the port

TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 111 1 0 100 0 0 10 0
   1: 0100007F:7530 0100007F:E2A0 01 00000000:00000000 00:00000000 00000000     0        0 222 1 0 20 4 30 10 -1
   2: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 333 1 0 100 0 0 10 0
"""


def test_only_listeners_on_the_port_count() -> None:
    assert sglang_ports.listening_inodes(TABLE, 30000) == {"111"}
    assert sglang_ports.listening_inodes(TABLE, 80) == set()
    assert sglang_ports.listening_inodes("", 80) == set()


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("0::/system.slice/sglang.service\n", True),
        ("0::/system.slice/sglang.service/child\n", True),
        ("12:memory:/x\n1:name=systemd:/machine/system.slice/sglang.service\n", True),
        ("0::/system.slice/sglang.service2\n", False),
        ("0::/system.slice/other.service\n", False),
        ("", False),
    ],
)
def test_membership_of_a_cgroup(text: str, inside: bool) -> None:
    assert ready.in_cgroup(text, "/system.slice/sglang.service") is inside
    assert ready.in_cgroup(text, "") is False


def test_a_stranger_is_one_of_whom_no_one_is_the_units() -> None:
    unit = RUNNING._replace(cgroup="/system.slice/sglang.service")
    own = ready.Process(8, "python3", "0::/system.slice/sglang.service", ())
    child = ready.Process(9, "python3", "", (8, 7))
    other = ready.Process(10, "nginx", "0::/system.slice/nginx.service", (2,))
    assert ready.stranger([other], unit) == other
    assert ready.stranger([other, own], unit) is None
    assert ready.stranger([child], unit) is None
    assert ready.stranger([], unit) is None


def test_this_process_is_found_as_a_listener() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = sglang_ports.listeners(server.getsockname()[1])
    assert os.getpid() in [process.pid for process in found]


# --- the module


@pytest.fixture
def server() -> Iterator[SimpleNamespace]:
    """A small HTTP server; `health` is the status that /health answers with, `generate` that of /generate; `asked` notes paths."""
    state = SimpleNamespace(health=200, generate=200, models=b'{"data": [{"id": "tiny"}]}', key=None, url="", asked=[])

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            state.asked.append((self.path, told["sampling_params"]["max_new_tokens"]))
            self.send_response(state.generate)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            state.asked.append(self.path)
            body = state.models if self.path == "/v1/models" else b""
            allowed = self.path == "/health" or not state.key or self.headers["Authorization"] == f"Bearer {state.key}"
            self.send_response((state.health if self.path == "/health" else 200) if allowed else 401)
            self.send_header("Content-Length", str(len(body) if allowed else 0))
            self.end_headers()
            self.wfile.write(body if allowed else b"")

        def log_message(self, *args: Any) -> None:
            pass

    with serving(Handler) as state.url:
        yield state


@pytest.fixture
def module(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    def run(**args: Any) -> dict[str, Any]:
        with patch_module_args(args), pytest.raises(SystemExit):
            ready.main()
        return json.loads(capsys.readouterr().out)

    return run


def test_a_healthy_server_is_ready_at_once(server: SimpleNamespace, module: Callable[..., dict[str, Any]]) -> None:
    result = module(url=server.url + "/", model="tiny", timeout=5)
    assert result["ready"] is True and result["models"] == ["tiny"] and result["stages"] == []
    assert result["changed"] is False and result["seconds"] < 5


def test_another_model_fails_at_once(server: SimpleNamespace, module: Callable[..., dict[str, Any]]) -> None:
    result = module(url=server.url, model="glm", timeout=60)
    assert result["failed"] and result["reason"] == "other_model" and "serves tiny; expected glm" in result["msg"]


def test_the_models_of_a_server_with_a_key(server: SimpleNamespace, module: Callable[..., dict[str, Any]]) -> None:
    server.key = "k"
    assert module(url=server.url, timeout=5)["models"] is None
    assert "give api_key" in module(url=server.url, timeout=5, model="tiny")["msg"]
    assert module(url=server.url, timeout=5, model="tiny", api_key="k")["ready"] is True


def test_a_server_that_stays_unhealthy(server: SimpleNamespace, module: Callable[..., dict[str, Any]]) -> None:
    server.health = 503
    result = module(url=server.url, timeout=1, poll_interval=0.1)
    assert result["reason"] == "timeout" and "not ready after 1 s: HTTP 503" in result["msg"]


def test_no_server(module: Callable[..., dict[str, Any]]) -> None:
    result = module(url="http://127.0.0.1:9", timeout=1, poll_interval=0.1)
    assert result["reason"] == "timeout" and "refused" in result["msg"]


def test_a_slice_ends_and_the_next_goes_on(server: SimpleNamespace, module: Callable[..., dict[str, Any]]) -> None:
    server.health = 503
    step = module(url=server.url, timeout=30, slice=0.2, poll_interval=0.1)
    assert step["unfinished"] is True and step["ready"] is False
    server.health = 200
    end = module(url=server.url, timeout=30, slice=5, poll_interval=0.1, resume=step["resume"])
    assert end["ready"] is True and end["seconds"] >= 0.2 and "resume" not in end


def test_check_mode_does_not_wait(module: Callable[..., dict[str, Any]]) -> None:
    result = module(url="http://127.0.0.1:9", _ansible_check_mode=True)
    assert result["skipped"] is True and result["changed"] is False


def test_a_slow_poll_is_refused(module: Callable[..., dict[str, Any]]) -> None:
    assert "at most 1 second" in module(url="http://127.0.0.1:9", poll_interval=5)["msg"]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A node with a unit and a journal made of values: `units` are shown one after the other, the last one for ever."""
    state = SimpleNamespace(units=[RUNNING], entries=[], listeners=[])

    def read_journal(command: list[str], limit: int = 0) -> Iterator[ready.Entry]:
        cursor = next((part.split("=", 1)[1] for part in command if part.startswith("--after-cursor=")), "")
        us = int(cursor[1:] or 0)
        return iter([found for found in state.entries if found.us > us])

    def show(self: ready.Waiter) -> ready.Unit:
        return state.units.pop(0) if len(state.units) > 1 else state.units[0]

    monkeypatch.setattr(ready, "read_journal", read_journal)
    monkeypatch.setattr(ready.Waiter, "show", show)
    monkeypatch.setattr(ready, "listeners", lambda port: state.listeners)
    return state


def test_a_death_says_when_where_and_why(node: SimpleNamespace, module: Callable[..., dict[str, Any]]) -> None:
    node.entries = [
        entry(1_500_000, "server_args=x"),
        entry(2_000_000, "[2026-01-01 00:00:00] Load weight begin."),
        entry(4_000_000, "[2026-01-01 00:00:00] Scheduler hit an exception: Traceback (most recent call last):"),
        entry(4_000_001, '  File "loader.py", line 1'),
        entry(4_000_002, "FileNotFoundError: No such file or directory: /srv/model.safetensors"),
        entry(4_100_000, "[2026-01-01 00:00:00] Received sigquit from a child process.", "python3[6]"),
        entry(4_200_000, "sglang.service: Main process exited, code=killed, status=9/KILL", "systemd[1]"),
    ]
    node.units = [RUNNING, RUNNING._replace(invocation=SECOND, main_pid=9, restarts=1, started_us=6_000_000)]
    result = module(unit="sglang", url="http://127.0.0.1:9", timeout=30, poll_interval=0.1)
    assert result["msg"] == (
        "sglang.service died after 3.2 s in stage 'loading weights' (killed by signal 9 (SIGKILL)): "
        "FileNotFoundError: No such file or directory: /srv/model.safetensors. systemd has started it again. "
        f"See: journalctl -u sglang.service _SYSTEMD_INVOCATION_ID={FIRST}"
    )
    assert result["reason"] == "died" and result["stage"] == "loading weights" and result["seconds"] == 3.2
    assert result["error_lines"][-1].startswith("FileNotFoundError") and len(result["tail"]) == 7
    assert result["invocation_id"] == FIRST and result["pid"] == 7


def test_a_timeout_says_where_it_hangs(node: SimpleNamespace, module: Callable[..., dict[str, Any]]) -> None:
    node.entries = [
        entry(1_100_000, "server_args=x"),
        entry(2_000_000, "[2026-01-01 00:00:00] Init torch distributed begin."),
    ]
    result = module(unit="sglang", url="http://127.0.0.1:9", timeout=1, poll_interval=0.1)
    assert result["reason"] == "timeout" and "in stage 'joining the ranks' since" in result["msg"]
    assert "Init torch distributed begin." in result["msg"] and "sglang_server_start_timeout" in result["msg"]


def test_a_vacuumed_journal_does_not_hinder(
    node: SimpleNamespace, server: SimpleNamespace, module: Callable[..., dict[str, Any]]
) -> None:
    result = module(unit="sglang", url=server.url, timeout=5, poll_interval=0.1)
    assert result["ready"] is True and result["stages"] == [] and result["seconds"] is None


def test_a_server_that_was_ready_before_keeps_its_own_time(
    node: SimpleNamespace, server: SimpleNamespace, module: Callable[..., dict[str, Any]]
) -> None:
    node.entries = [entry(43_000_000, "[2026-01-01 00:00:00] The server is fired up and ready to roll!")]
    assert module(unit="sglang", url=server.url, timeout=5, poll_interval=0.1)["seconds"] == 42.0


def test_a_server_that_was_ready_is_asked_for_a_token_and_for_its_health_where_none_comes(
    node: SimpleNamespace, server: SimpleNamespace, module: Callable[..., dict[str, Any]]
) -> None:
    ask = {"unit": "sglang", "url": server.url, "timeout": 1, "poll_interval": 0.1}
    assert module(**ask)["ready"] is True and server.asked[0] == "/health"
    node.entries = [entry(43_000_000, "[2026-01-01 00:00:00] The server is fired up and ready to roll!")]
    server.asked.clear()
    assert module(**ask)["ready"] is True and ("/generate", 1) in server.asked and "/health" not in server.asked
    server.asked.clear()
    server.generate = 404
    assert module(**ask)["ready"] is True and server.asked[:2] == [("/generate", 1), "/health"]
    server.health = 503
    assert module(**ask)["reason"] == "timeout"


def test_another_process_on_the_port_is_named(
    node: SimpleNamespace, server: SimpleNamespace, module: Callable[..., dict[str, Any]]
) -> None:
    node.listeners = [ready.Process(4711, "python3", "0::/system.slice/rogue.service\n", (1,))]
    result = module(unit="sglang", url=server.url, timeout=5, poll_interval=0.1)
    assert result["reason"] == "other_listener" and "python3 (pid 4711, rogue.service) listens there" in result["msg"]


# --- the action plugin


def action(
    monkeypatch: pytest.MonkeyPatch, steps: list[dict[str, Any]], **args: Any
) -> tuple[Any, list[str], list[dict[str, Any]], Any]:
    """The plugin with a module that returns `steps`, and a clock that only sleeping moves, by 10 s a module run."""
    code = plugin()
    shown: list[str] = []
    calls: list[dict[str, Any]] = []
    clock = SimpleNamespace(now=0.0, slept=[])

    def sleep(seconds: float) -> None:
        clock.slept.append(seconds)
        clock.now += seconds

    def execute(module_name: str, module_args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        assert module_name == "sglang_ready" and task_vars["inventory_hostname"] == "gpu-node"
        calls.append(module_args)
        step = dict(steps[len(calls) - 1])
        clock.now += step.pop("took", 0.5)
        return step

    monkeypatch.setattr(code, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))
    monkeypatch.setattr(code.ActionBase, "run", lambda self, tmp, task_vars: {})
    made = code.ActionModule.__new__(code.ActionModule)
    made._task = SimpleNamespace(
        args={"unit": "sglang.service", "url": "http://x", **args}, no_log=args.pop("hidden", False)
    )
    made._display = SimpleNamespace(display=shown.append)
    made._execute_module = execute
    return made, shown, calls, clock


def stage(name: str, seconds: float) -> dict[str, Any]:
    return {"name": name, "seconds": seconds, "line": name}


def going(
    *stages: dict[str, Any], seconds: float = 0.0, took: float = 0.5, doing: str = "loading weights"
) -> dict[str, Any]:
    return {
        "unfinished": True,
        "resume": {"n": len(stages)},
        "stages": list(stages),
        "seconds": seconds,
        "took": took,
        "doing": doing,
    }


def test_each_stage_is_shown_once_and_round_trips_are_paced(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, three = stage("process started", 0), stage("weights loaded", 12.34), stage("ready", 20)
    end = {"ready": True, "changed": False, "stages": [one, two, three], "seconds": 20.1}
    made, shown, calls, clock = action(monkeypatch, [going(one), going(one, two), end])
    assert made.run(task_vars={"inventory_hostname": "gpu-node"}) == end
    assert shown == [
        "gpu-node: sglang: process started (0.0 s)",
        "gpu-node: sglang: weights loaded (12.3 s)",
        "gpu-node: sglang: ready (20.0 s)",
    ]
    assert [call["resume"] for call in calls] == [None, {"n": 1}, {"n": 2}]
    assert all(call["slice"] == 10 and call["url"] == "http://x" for call in calls)
    assert clock.slept == [1.5, 1.5]


def test_a_long_stage_is_mentioned_every_half_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = stage("weights loading", 5)
    steps = [going(begun, seconds=5 + 10 * n, took=10) for n in range(8)]
    end = {"ready": True, "stages": [begun]}
    made, shown, _, _ = action(monkeypatch, [*steps, end])
    made.run(task_vars={"inventory_hostname": "gpu-node"})
    assert shown == [
        "gpu-node: sglang: weights loading (5.0 s)",
        "gpu-node: sglang: … still loading weights (30 s)",
        "gpu-node: sglang: … still loading weights (60 s)",
    ]


def test_a_server_that_was_ready_before_is_no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    end = {"ready": True, "stages": [stage("ready", 20)]}
    made, shown, calls, _ = action(monkeypatch, [end])
    assert made.run(task_vars={"inventory_hostname": "gpu-node"}) == end and shown == [] and len(calls) == 1


def test_a_failure_is_returned_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    end = {"failed": True, "msg": "died", "stages": [stage("weights loading", 1)]}
    made, shown, _, _ = action(monkeypatch, [going(), end])
    assert made.run(task_vars={"inventory_hostname": "gpu-node"})["msg"] == "died"
    assert shown == ["gpu-node: sglang: weights loading (1.0 s)"]


def test_internal_arguments_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _, _, _ = action(monkeypatch, [], slice=3)
    with pytest.raises(AnsibleActionFail, match="slice"):
        made.run(task_vars={"inventory_hostname": "gpu-node"})
