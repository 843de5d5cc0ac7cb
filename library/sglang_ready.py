#!/usr/bin/python
# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Wait until an SGLang server answers, by the stages of its start; end at once when it dies."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: sglang_ready
short_description: Wait until an SGLang server answers, stage by stage
version_added: "0.1.0"
description:
  - Watches a server's C(/health), its systemd unit and the unit's own journal, and returns when the model answers.
  - Ends at once, with the server's own error, when the unit dies or restarts while it is being waited for.
  - Refuses a server on the same port that does not belong to the unit.
  - Runs on the node. An action plugin of the same name runs it in slices and shows each stage as it comes.
  - Never changes anything.
options:
  url:
    description: Where the server answers, without a path, for example V(http://127.0.0.1:30000).
    type: str
    required: true
  unit:
    description:
      - The systemd unit to watch.
      - Without it only HTTP is watched, and a server that dies is waited for until the timeout.
    type: str
  timeout:
    description: Seconds to wait from now.
    type: int
    default: 1800
  model:
    description: A served model name that C(/v1/models) must list.
    type: str
  api_key:
    description: The server's API key, needed to read C(/v1/models) of a server that has one.
    type: str
  together:
    description:
      - For the action plugin. Names what is waited for on several hosts at once, which serve one model together. Where one fails,
        the waits for the others end as well.
    type: str
  poll_interval:
    description: Seconds between two looks at the unit, at most 1.
    type: float
    default: 0.5
  slice:
    description:
      - For the action plugin. Return after this many seconds, or at a new stage, with RV(unfinished) and RV(resume).
      - 0 waits to the end.
    type: float
    default: 0
  resume:
    description: For the action plugin. What the slice before returned as RV(resume).
    type: dict
notes:
  - Reading another user's journal and sockets needs root. Without it, stages may be missing and the port's owner is not checked.
author: ["sglang-rtxpro authors (!UNKNOWN)"]
attributes:
  check_mode: {support: full, description: Waits for nothing., details: []}
  diff_mode: {support: none, description: Changes nothing., details: []}
"""

EXAMPLES = r"""
- name: Wait until the model answers
  sglang_ready:
    unit: sglang.service
    url: http://127.0.0.1:30000
    model: GLM-5-NVFP4
    timeout: 1800

- name: Wait for a server that no unit runs
  sglang_ready:
    url: http://127.0.0.1:30000
    timeout: 60
"""

RETURN = r"""
ready:
  description:
    - Whether the server answers C(/health) with 200, or has said that it is ready and generates a token, and serves O(model).
  returned: always
  type: bool
seconds:
  description:
    - Seconds from the unit's start to the first healthy answer; without O(unit), from the begin of the wait.
    - For a server that was ready before the wait began, to its log line "fired up"; null when the journal no longer has it.
    - On failure, to the server's end or to the timeout.
  returned: always
  type: float
stages:
  description:
    - The stages of this start that the journal shows, each once, when its first rank reached it.
    - Empty when the journal has none.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: The stage, for example "weights loaded".
      type: str
    seconds:
      description: Seconds since the unit's start, by the journal's monotonic clock.
      type: float
    line:
      description: The log line that shows it.
      type: str
invocation_id:
  description: systemd's id of this start.
  returned: with O(unit)
  type: str
pid:
  description: The main process.
  returned: with O(unit)
  type: int
restarts:
  description: How often systemd restarted the unit by itself.
  returned: with O(unit)
  type: int
models:
  description: Model names that C(/v1/models) lists, null when it could not be read.
  returned: success
  type: list
  elements: str
ended_at:
  description: Seconds of the node's clock since 1970 when the unit's main process ended.
  returned: when it died or was stopped
  type: float
reason:
  description: Why it failed.
  returned: failure
  type: str
  choices: [died, stopped, not_running, timeout, other_listener, other_model, other_host]
stage:
  description: What the server was busy with, for example "loading weights".
  returned: failure
  type: str
error_lines:
  description: The server's error and up to 14 lines that lead to it.
  returned: failure
  type: list
  elements: str
first:
  description: The host whose failure ended this wait.
  returned: with O(together), when another host failed
  type: str
unfinished:
  description: Whether the wait goes on in another slice.
  returned: with O(slice), when it has not ended
  type: bool
doing:
  description: What the server is busy with.
  returned: with O(slice), when it has not ended
  type: str
resume:
  description: What the next slice begins with, as its O(resume).
  returned: with O(slice), when it has not ended
  type: dict
tail:
  description: The last 20 lines of this start's log.
  returned: failure
  type: list
  elements: str
"""

import json
import re
import subprocess
import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, NoReturn, Optional

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_http import Answer, ask, port_of
from ansible.module_utils.sglang_log import READY, STARTED, Line, StageReader, last_error, parse_line, shorten
from ansible.module_utils.sglang_ports import Process, listeners

SPEC: Dict[str, Any] = {
    "url": {"type": "str", "required": True},
    "unit": {"type": "str"},
    "timeout": {"type": "int", "default": 1800},
    "model": {"type": "str"},
    "together": {"type": "str"},
    "api_key": {"type": "str", "no_log": True},
    "poll_interval": {"type": "float", "default": 0.5},
    "slice": {"type": "float", "default": 0},
    "resume": {"type": "dict"},
}

# /health generates a token and answers after 1 s at best; the engine gives up after SGLANG_HEALTH_CHECK_TIMEOUT, 20 s.
HEALTH_TIMEOUT = 30
# What /health asks of the engine. A server at work may answer /health sooner than this, since that takes any sign of life.
ONE_TOKEN = {"input_ids": [0], "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
TOKEN_TIMEOUT = 1
TAIL_LINES = 20
# A start writes some thousand lines; a server that has served for weeks, millions. Read at most this much at a time.
READ_LINES = 20_000
ERROR_LINES = 5_000


# --- the unit ---------------------------------------------------------------------------------------------------------


class Unit(NamedTuple):
    """What `systemctl show` says. Times are microseconds of the monotonic clock, 0 when it has not happened."""

    load: str = ""
    active: str = ""
    sub: str = ""
    main_pid: int = 0
    invocation: str = ""
    restarts: int = 0
    started_us: int = 0
    exited_us: int = 0
    result: str = ""
    status: int = 0
    cgroup: str = ""


PROPERTIES = {
    "load": "LoadState",
    "active": "ActiveState",
    "sub": "SubState",
    "main_pid": "MainPID",
    "invocation": "InvocationID",
    "restarts": "NRestarts",
    "started_us": "ExecMainStartTimestampMonotonic",
    "exited_us": "ExecMainExitTimestampMonotonic",
    "result": "Result",
    "status": "ExecMainStatus",
    "cgroup": "ControlGroup",
}


def parse_unit(text: str) -> Unit:
    """Read the NAME=value lines of `systemctl show`; what is missing or unset is empty or 0."""
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    fields: Dict[str, Any] = {}
    for name, prop in PROPERTIES.items():
        value = values.get(prop, "")
        if isinstance(Unit._field_defaults[name], int):
            fields[name] = int(value) if value.isdigit() else 0
        else:
            fields[name] = value
    return Unit(**fields)


@dataclass
class Watch:
    """One wait, carried from slice to slice as JSON. Seconds and microseconds are the node's monotonic clock."""

    began: float
    deadline: float
    invocation: str = ""
    restarts: int = 0
    started_us: int = 0
    pid: int = 0
    cursor: str = ""
    stages: List[Dict[str, Any]] = field(default_factory=list)
    last_line: str = ""
    last_us: int = 0
    probed: bool = False  # an answer other than "ready" was seen: the wait saw the server before it was ready

    @property
    def doing(self) -> str:
        return self.stages[-1]["doing"] if self.stages else "starting"

    def since_start(self, us: float) -> float:
        origin = self.started_us or self.began * 1e6
        return round(max(0.0, us - origin) / 1e6, 2)

    def follow(self, unit: Unit) -> None:
        """Adopt the start that is under way when the wait begins, and its process once it is there."""
        if not self.invocation:
            self.invocation, self.restarts = unit.invocation, unit.restarts
        # Before the main process is there (ExecStartPre), the stamp is still the last start's.
        preparing = unit.active == "activating" and not unit.main_pid and not unit.sub.startswith("auto-restart")
        if unit.invocation == self.invocation and unit.started_us and not preparing:
            self.pid, self.started_us = unit.main_pid or self.pid, unit.started_us

    def take(self, entries: Iterable[Entry]) -> List[Dict[str, Any]]:
        """Note the stages in new journal entries; stops reading once the server said that it is ready."""
        reader = StageReader(stage["name"] for stage in self.stages)
        new = []
        for entry in entries:
            self.cursor, self.last_us = entry.cursor, entry.us
            if entry.line.text.strip() and not entry.line.from_systemd:
                self.last_line = shorten(entry.line.text.strip())
            for found in reader.feed(entry.line):
                # The first line comes seconds after the process began: importing the engine is silent.
                seconds = 0.0 if found.name == STARTED else self.since_start(entry.us)
                new.append({"name": found.name, "doing": found.doing, "seconds": seconds, "line": found.line})
            if READY in reader.known:
                break
        self.stages += new
        return new


def ended(unit: Unit, watch: Watch) -> Optional[str]:
    """Why the awaited start is over (died, stopped, not_running), or None while it goes on."""
    if watch.invocation and (unit.invocation != watch.invocation or unit.restarts > watch.restarts):
        return "died"
    if unit.sub.startswith("auto-restart") or unit.active == "failed":
        return "died"
    if unit.active == "deactivating":
        return "stopped" if unit.main_pid else "died"
    if unit.active == "inactive":
        return "died" if watch.pid else "not_running"
    return None


EXITED = re.compile(r"Main process exited, code=(?P<code>\w+), status=(?P<status>\d+)(?:/(?P<name>\S+))?")


def exit_text(lines: Iterable[Line], unit: Unit) -> str:
    """How the main process ended, from systemd's line about it, else from the unit's properties."""
    for line in lines:
        match = EXITED.search(line.text) if line.from_systemd else None
        if match:
            if match["code"] == "exited":
                name = "" if match["name"] in (None, "FAILURE") else f"/{match['name']}"
                return f"exit status {match['status']}{name}"
            core = ", core dumped" if match["code"] == "dumped" else ""
            return f"killed by signal {match['status']} (SIG{match['name']}){core}"
    if unit.result not in ("", "success"):
        return f"result {unit.result}"
    return f"exit status {unit.status}"


# --- the journal ------------------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """One journal entry. us: microseconds since boot, monotonic."""

    cursor: str
    us: int
    line: Line


def message_text(message: Any) -> str:
    """MESSAGE as `journalctl -o json` gives it: text, a list of bytes when it is not plain text, or null."""
    if isinstance(message, str):
        return message
    if isinstance(message, list) and all(isinstance(byte, int) for byte in message):
        return bytes(byte & 0xFF for byte in message).decode("utf-8", "replace")
    if isinstance(message, list):
        return " ".join(str(part) for part in message)
    return ""


def parse_entry(text: str) -> Optional[Entry]:
    """Read one line of `journalctl -o json`; None for a line that is cut or not an entry."""
    try:
        data = json.loads(text)
        us = int(data["__MONOTONIC_TIMESTAMP"])
        cursor = str(data["__CURSOR"])
    except (ValueError, KeyError, TypeError):
        return None
    source = f"{data.get('SYSLOG_IDENTIFIER') or data.get('_COMM') or ''}[{data.get('_PID') or ''}]"
    return Entry(cursor, us, parse_line(message_text(data.get("MESSAGE")), source))


def journal_command(invocation: str, cursor: str = "", last: int = 0) -> List[str]:
    """The journal of one start: what its processes said, and what systemd said about it."""
    command = ["journalctl", "--output=json", "--all", "--no-pager", "--quiet"]
    command.append("--output-fields=MESSAGE,_PID,_COMM,SYSLOG_IDENTIFIER")
    if cursor:
        command.append(f"--after-cursor={cursor}")
    if last:
        command.append(f"--lines={last}")
    return [*command, f"_SYSTEMD_INVOCATION_ID={invocation}", "+", f"INVOCATION_ID={invocation}"]


def read_journal(command: List[str], limit: int = READ_LINES) -> Iterator[Entry]:
    """Entries of the journal, at most `limit`. An unreadable journal has none: a server needs no journal to be ready."""
    try:
        reader = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace"
        )
    except OSError:
        return
    try:
        assert reader.stdout is not None
        for number, text in enumerate(reader.stdout, 1):
            entry = parse_entry(text)
            if entry:
                yield entry
            if number >= limit:
                return
    finally:
        reader.kill()
        reader.communicate()


# --- HTTP and the port ------------------------------------------------------------------------------------------------


class Probe:
    """Ask /health beside the loop: its answer may take 20 s, and a unit that dies must be seen within one.

    `started`: the server has said that it is ready. It is then asked for a token, as /health does, which takes a second for it.
    Where none comes, as from a server of another kind, /health has the word.
    """

    def __init__(self, url: str, api_key: Optional[str] = None) -> None:
        self.url = url
        self.api_key = api_key
        self.started = False
        self.answer: Optional[Answer] = None
        self.thread: Optional[threading.Thread] = None

    @property
    def busy(self) -> bool:
        return self.thread is not None and self.thread.is_alive()

    def ask(self, again: bool = True) -> Optional[Answer]:
        """The answer to the last question if it has come, None while it is out; then asks the next, if told to and not yet well."""
        if self.busy:
            return None
        answer, self.answer = self.answer, None
        if again and not (answer and answer.status == 200):
            self.thread = threading.Thread(target=self._get, daemon=True)
            self.thread.start()
        return answer

    def _get(self) -> None:
        token = ask(f"{self.url}/generate", TOKEN_TIMEOUT, self.api_key, ONE_TOKEN) if self.started else None
        self.answer = token if token and token.status == 200 else ask(f"{self.url}/health", HEALTH_TIMEOUT)

    def pause(self, seconds: float) -> None:
        """Wait, but no longer than a healthy answer needs."""
        until = time.monotonic() + seconds
        if self.thread:
            self.thread.join(seconds)
        if not (self.answer and self.answer.status == 200):
            time.sleep(max(0.0, until - time.monotonic()))


def model_names(answer: Answer) -> Optional[List[str]]:
    """The ids that /v1/models lists, or None when it could not be read."""
    try:
        return [str(model["id"]) for model in json.loads(answer.text)["data"]] if answer.status == 200 else None
    except (ValueError, KeyError, TypeError):
        return None


def in_cgroup(process_cgroups: str, control_group: str) -> bool:
    """Whether /proc/PID/cgroup's text lies in a unit's ControlGroup (a container may see a longer path)."""
    paths = [line.split(":", 2)[-1] for line in process_cgroups.splitlines()]
    return bool(control_group) and any(f"{path}/".find(f"{control_group}/") >= 0 for path in paths)


def belongs(process: Process, unit: Unit) -> bool:
    """Whether a process is the unit's: in its cgroup, or a descendant of its main process."""
    if in_cgroup(process.cgroups, unit.cgroup):
        return True
    return bool(unit.main_pid) and unit.main_pid in (process.pid, *process.ancestors)


def stranger(processes: List[Process], unit: Unit) -> Optional[Process]:
    """A process that listens in the unit's place; None when the unit listens too, or nothing is known."""
    if any(belongs(process, unit) for process in processes):
        return None
    return processes[0] if processes else None


# --- the wait ---------------------------------------------------------------------------------------------------------


class Waiter:
    """The loop, with what it needs to look at the node. `finish_*` end the module."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.url: str = module.params["url"].rstrip("/")
        self.name: Optional[str] = module.params["unit"]
        if self.name and "." not in self.name:
            self.name += ".service"
        now = time.monotonic()
        resume = module.params["resume"]
        self.watch = Watch(**resume) if resume else Watch(began=now, deadline=now + module.params["timeout"])
        self.until = now + (module.params["slice"] or float("inf"))
        self.interval: float = module.params["poll_interval"]
        self.probe = Probe(self.url, module.params["api_key"])
        self.said = Answer(0, "not asked yet")
        self.unit = Unit()

    def show(self) -> Unit:
        assert self.name
        command = ["systemctl", "show", self.name, "--property=" + ",".join(PROPERTIES.values())]
        code, out, err = self.module.run_command(command)
        if code != 0:
            self.module.fail_json(msg=f"{' '.join(command[:3])} failed: {(err or out).strip()}", ready=False)
        unit = parse_unit(out)
        if unit.load == "not-found":
            message = f"{self.name} does not exist on this host. Expected a unit that runs SGLang at {self.url}."
            self.fail("not_running", message)
        return unit

    def run(self) -> NoReturn:
        while True:
            new = False
            if self.name:
                self.unit = self.show()
                self.watch.follow(self.unit)
                reason = ended(self.unit, self.watch)
                if reason:
                    self.finish_ended(reason)
                new = bool(self.read_stages()) and self.module.params["slice"] > 0
                self.probe.started = any(stage["name"] == READY for stage in self.watch.stages)
            answer = self.probe.ask(again=time.monotonic() < self.until)
            if answer:
                self.said = answer
                self.judge(answer)
            now = time.monotonic()
            if now >= self.watch.deadline:
                self.finish_timeout(now)
            if new:
                self.until = min(self.until, now + 1)
            # A question that is out is waited for: a server under load may need longer than a slice to answer it.
            if now >= self.until and not self.slow_answer(now):
                self.finish_slice()
            self.probe.pause(self.interval)

    def slow_answer(self, now: float) -> bool:
        return self.probe.busy and now < self.until + HEALTH_TIMEOUT

    def read_stages(self) -> List[Dict[str, Any]]:
        if not self.watch.invocation or any(stage["name"] == READY for stage in self.watch.stages):
            return []
        return self.watch.take(read_journal(journal_command(self.watch.invocation, self.watch.cursor)))

    def judge(self, answer: Answer) -> None:
        """Go on waiting, or end: ready, another model, another server on the port."""
        if answer.status and self.name:
            other = stranger(listeners(port_of(self.url)), self.unit)
            if other:
                self.finish_stranger(other)
        if answer.status != 200:
            self.watch.probed = True
            return
        models = model_names(ask(f"{self.url}/v1/models", HEALTH_TIMEOUT, self.module.params["api_key"]))
        wanted = self.module.params["model"]
        if wanted and wanted not in (models or []):
            served = f"serves {', '.join(models)}" if models else "does not say at /v1/models what it serves"
            self.fail(
                "other_model",
                f"{self.url} is healthy but {served}; expected {wanted}. Look at --served-model-name of the server"
                + ("." if models else ", and give api_key if it has one."),
            )
        self.finish_ready(models)

    # --- ends

    def facts(self) -> Dict[str, Any]:
        stages = [{key: stage[key] for key in ("name", "seconds", "line")} for stage in self.watch.stages]
        facts: Dict[str, Any] = {"changed": False, "stages": stages}
        if self.name:
            facts.update(invocation_id=self.watch.invocation, pid=self.watch.pid, restarts=self.unit.restarts)
        return facts

    def finish_ready(self, models: Optional[List[str]]) -> None:
        if self.name:
            self.read_stages()
        seconds: Optional[float] = self.watch.since_start(time.monotonic() * 1e6)
        if self.name and not self.watch.probed:
            # It was ready before the wait began: when, only its log knows.
            seconds = next((stage["seconds"] for stage in self.watch.stages if stage["name"] == READY), None)
        self.module.exit_json(ready=True, seconds=seconds, models=models, **self.facts())

    def finish_slice(self) -> None:
        waited = self.watch.since_start(time.monotonic() * 1e6)
        self.module.exit_json(
            ready=False,
            unfinished=True,
            seconds=waited,
            resume=asdict(self.watch),
            doing=self.watch.doing,
            **self.facts(),
        )

    def finish_ended(self, reason: str) -> None:
        entries = self.last_entries(sync=True)
        known = len(entries)
        lines = [entry.line for entry in entries]
        self.read_stages()
        if reason == "not_running" and not known:
            self.fail(reason, f"{self.name} is not running ({self.unit.active}). Start it: systemctl start {self.name}")
        same = self.unit.invocation == self.watch.invocation and self.unit.exited_us >= self.watch.started_us
        end_us = self.unit.exited_us if same and self.unit.exited_us else self.watch.last_us
        seconds = self.watch.since_start(end_us) if end_us else None
        failure = last_error(lines)
        error = failure.error if failure else ""
        if not error or EXITED.search(error):
            error = f"its log names no error; last line: {self.watch.last_line or 'none'}"
        after = f" after {seconds:.1f} s" if seconds is not None else ""
        where = f" in stage '{self.watch.doing}'" if self.watch.doing != "serving" else " while serving"
        verb = {"died": "died", "stopped": "is being stopped", "not_running": "has stopped"}[reason]
        again = " systemd has started it again." if reason == "died" and self.unit.main_pid else ""
        self.fail(
            reason,
            f"{self.name} {verb}{after}{where} ({exit_text(lines, self.unit)}): {error.rstrip('.')}.{again} See: {self.look()}",
            seconds=seconds,
            ended_at=round(time.time() - time.monotonic() + end_us / 1e6, 3) if end_us else None,
            error_lines=failure.lines if failure else [],
            tail=self.tail(entries),
        )

    def finish_timeout(self, now: float) -> None:
        waited = round(now - self.watch.began)
        seconds = self.watch.since_start(now * 1e6)
        if not self.name:
            said = f"HTTP {self.said.status}" if self.said.status else self.said.text
            self.fail(
                "timeout", f"{self.url} is not ready after {waited} s: {said}. Is the server running?", seconds=seconds
            )
        entries = self.last_entries()
        failure = last_error(entry.line for entry in entries)
        since = self.watch.stages[-1]["seconds"] if self.watch.stages else 0.0
        quiet = round((now * 1e6 - entries[-1].us) / 1e6) if entries else 0
        last = f"; last line, {quiet} s ago: {shorten(entries[-1].line.text.strip(), 200)}" if entries else ""
        self.fail(
            "timeout",
            f"{self.name} is not ready after {waited} s: in stage '{self.watch.doing}' since {seconds - since:.0f} s{last}; "
            f"raise sglang_server_start_timeout if it still makes progress. See: {self.look()}",
            seconds=seconds,
            error_lines=failure.lines if failure else [],
            tail=self.tail(entries),
        )

    def finish_stranger(self, other: Process) -> None:
        place = ", ".join([f"pid {other.pid}", *other.units[-1:]])
        self.fail(
            "other_listener",
            f"port {port_of(self.url)} is not {self.name}'s: {other.name} ({place}) listens there and answers "
            f"{self.url}. Stop that process, or give the server another port (sglang_server_port).",
        )

    def last_entries(self, sync: bool = False) -> List[Entry]:
        if not self.watch.invocation:
            return []
        if sync:
            # systemd knows of a death before the journal holds the dying process's last words.
            self.module.run_command(["timeout", "5", "journalctl", "--sync"])
        return list(read_journal(journal_command(self.watch.invocation, last=ERROR_LINES)))

    def tail(self, entries: List[Entry]) -> List[str]:
        return [shorten(entry.line.text) for entry in entries if entry.line.text.strip()][-TAIL_LINES:]

    def look(self) -> str:
        return f"journalctl -u {self.name} _SYSTEMD_INVOCATION_ID={self.watch.invocation}"

    def fail(self, reason: str, message: str, **facts: Any) -> None:
        extra: Dict[str, Any] = {"seconds": None, "error_lines": [], "tail": [], **facts}
        self.module.fail_json(msg=message, ready=False, reason=reason, stage=self.watch.doing, **extra, **self.facts())


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    if not 0 < module.params["poll_interval"] <= 1:
        module.fail_json(
            msg=f"poll_interval is {module.params['poll_interval']}; expected more than 0 and at most 1 second."
        )
    if module.check_mode:
        module.exit_json(
            changed=False, skipped=True, ready=False, stages=[], msg="Check mode: not waiting for a server."
        )
    Waiter(module).run()


if __name__ == "__main__":
    main()
