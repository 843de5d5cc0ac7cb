#!/usr/bin/env python3
# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Heals one SGLang server on its node when nobody is there: one look, one decision, and nothing is said when all is well."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import glob
import json
import os
import re
import subprocess
import sys
import time
import traceback
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Optional

sys.dont_write_bytecode = True  # its folder is /etc

import sglang_node

HELP = """\
A timer runs this every half minute. One look does at most this:

  put back   A deploy switched to a new server and never came back to prove it (its controller died, its time is over): the
             last committed deployment whose release is still there is put back, the front's gate is opened, the record says
             "restored" and why. With nothing committed the new server stays as it is and only the gate is opened. An unproved
             server is not kept even if it is healthy: health is not the proof.
  open       The front's gate is closed although no deploy is between switch and commit, and nobody holds the operator's lock (or
             its holder has been silent for an hour): it is opened.
  start      The unit is `failed`: systemd has given up starting it. It is started again after a pause (--pause) that doubles
             from try to try up to thirty times as long, and falls back once the server has been healthy for ten minutes.
  end        The server lives and makes no token: /health has failed for --hang seconds, and it had been healthy since its start
             or its start timeout is over. What the GPUs do is said, and all its processes get SIGKILL; systemd starts it again.
             As long as kernels are being compiled, batches run or the GPUs draw half of their limit, it has as much time as a
             start has, instead of --hang. A dead rank whose parent lives on shows as this too.

One of several nodes that serve one model, and not the head (--rank N): it is not asked for a token, which only the head makes, and
is never ended here. When the head is ended, its ranks lose their connection and end too; systemd starts all of them again.

While a deploy is under way (between its switch and its commit, within its time) nothing is done.

What a person does is left alone: a server that was stopped stays stopped, one that is disabled or masked stays down. A
server that has failed by itself is kept down by `systemctl disable` (or `reset-failed`). Whoever pauses generation
(/pause_generation) for longer than --hang, or looks at a server that hangs, first stops the timer:

  systemctl stop NAME-supervise.timer

Everything said is in the journal: journalctl -u NAME-supervise
"""

# What /health is worth. Read in the sources of SGLang 0.5.9, 0.5.15.post1 and 0.5.23 (srt/entrypoints/http_server.py,
# srt/managers/scheduler.py and tokenizer_manager.py), and tried with 0.5.9 and 0.5.23 on a CPU.
#
# - It sends a request for one token, and is 200 as soon as the main process gets any message of a scheduler, looking once a
#   second; 503 when none came within 20 s (SGLANG_HEALTH_CHECK_TIMEOUT). So 200 takes one to two seconds, 503 twenty.
# - Load is no failure: a busy scheduler does not run that request but acknowledges it after its next batch. With 100 requests
#   on 32 places: 200 after 1.0 s. A request that finds the queue full is refused by a message, which counts as well. A long
#   prefill answers after each chunk: 200 after 1 to 2 s.
# - A batch that takes longer than 20 s (kernels compiled at their first use, tuning) is a failure, and may go on for minutes:
#   at_work().
# - A scheduler that is stopped (SIGSTOP): 503 after 20 s, idle or loaded, and 200 again 1 s after it goes on.
# - A scheduler that dies: in 0.5.9 nobody looks, the parent lives on with a zombie, and /health is 503 for ever. From 0.5.15 on
#   the parent sees within a second that a child has died, dumps stacks and kills itself (5.7 s here); systemd starts it again.
# - A rank that hangs: the engine's own watchdog sees it only while a batch runs, and after --watchdog-timeout, which profiles
#   set to 1800 s for the sake of compilers.
# - Starting, and draining after SIGTERM: 503 at once. A stop by systemd is `deactivating` and not judged.
# - Paused (/pause_generation): 503 after 20 s, as a hang.
# - A detokenizer that hangs is seen only while the schedulers are idle: under load the acknowledgement goes past it, and
#   /health is 200 while no client gets a token. Nothing here heals that.
# - SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=false lets /health say 200 without a token: then only a main process that hangs
#   shows.
#
# It is ended by SIGKILL, as a hang never drains, and `systemctl restart` would wait for that. SIGQUIT makes no harmless dump of
# stacks: SGLang takes it for "a child has failed" and kills itself.

HEALTH_TIMEOUT = 25.0  # the engine answers within 20 s, or its main process hangs as well
COMMAND_TIMEOUT = 10.0
CALM = 600.0  # healthy for so long: the next pause is the first one again
LONGEST_PAUSE = 30  # times the first one: half an hour
PROOF_MARGIN = 120.0  # seconds beside the proof itself
FORSAKEN = 3600.0  # a lock whose holder gave no sign for so long no longer keeps a gate closed
GAP = 180.0  # looks further apart than this do not add up: what was between them is not known
RECENT = 60.0  # batches that the log tells of within this many seconds run now
JOURNAL_LINES = 1000

COMPILERS = frozenset(("ninja", "nvcc", "cicc", "ptxas", "nvlink", "fatbinary", "cudafe++"))
COMPILERS |= frozenset(("cc1", "cc1plus", "gcc", "g++", "c++", "clang", "clang++", "ld"))
BATCH = re.compile(r"\b(?:Prefill|Decode) batch\b")
# Lines that a hang itself makes, and other people's requests.
NOISE = re.compile(r"GET /health|Health check (?:failed|request)|INFO: +\S+ - \"")
# Parts of the power limit: cards at full utilization below the first wait for each other (rules/live.yml, live-gpus-spin), those
# above the second compute.
SPINS, WORKS = 0.3, 0.5


# --- facts ----------------------------------------------------------------------------------------------------------------


class Unit(NamedTuple):
    """What systemd says of the server."""

    active: str = "inactive"
    result: str = ""
    enabled: bool = True
    masked: bool = False
    invocation: str = ""
    pid: int = 0
    up: float = 0.0  # seconds since its main process began
    idle: float = 0.0  # seconds since the unit ended
    stopped: bool = False  # the last thing that was asked of it was to stop


class Health(NamedTuple):
    """An answer of /health. Status 0: there was none."""

    status: int
    asked: float  # boot clock
    seconds: float
    said: str = ""

    @property
    def ok(self) -> bool:
        return self.status == 200

    def __str__(self) -> str:
        return f"{self.status or self.said or 'no answer'} after {self.seconds:.0f} s"


class Card(NamedTuple):
    utilization: float
    power: float
    limit: float


class Process(NamedTuple):
    pid: int
    parent: int
    state: str
    name: str


@dataclasses.dataclass(frozen=True)
class Facts:
    """Everything that a decision is made from. Seconds are the boot clock."""

    now: float
    boot: str = ""
    hang: float = 300.0
    pause: float = 60.0
    rank: int = 0  # of several nodes that serve one model; 0 is the head, which answers, and a server of its own
    state: dict = dataclasses.field(default_factory=dict)
    lock: dict = dataclasses.field(default_factory=dict)
    closed: bool = False  # the front's gate
    unit: Unit = Unit()
    running: str = ""  # digest of what runs
    back: str = ""  # deployment that can be put back
    back_runs: bool = False  # and nothing has to be done for it: it runs, and unit and front are as they were
    known: bool = True  # what runs is a deployment as the record knows it, so its URL and times are the right ones
    start_timeout: float = 1800.0
    health: Optional[Health] = None  # None: not asked
    # Looked at only when the server has been failing for long enough.
    cards: tuple[Card, ...] = ()
    processes: tuple[Process, ...] = ()
    batches: bool = False  # the log tells of batches just now
    words: str = ""  # the last thing that the log says


@dataclasses.dataclass(frozen=True)
class Memory:
    """What one look leaves to the next. Seconds are the boot clock; 0 is never."""

    looked: float = 0.0
    invocation: str = ""
    healthy: bool = False  # it was, in this invocation
    healthy_since: float = 0.0
    failing_since: float = 0.0
    waiting: bool = False  # it was said that a server which fails is given more time
    ended: int = 0  # how often it was tried to end this invocation
    tries: int = 0  # starts of a failed unit since it was last healthy for long
    told: str = ""  # digest of a switch that cannot be taken back, which was said
    ready_since: float = 0.0  # of a server that was switched to and is not proved yet

    @classmethod
    def read(cls, values: dict) -> Memory:
        """From JSON; what is missing or of another kind is as if it had never been."""
        found: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            value = values.get(field.name)
            kind = type(field.default)
            if kind is float and type(value) is int:
                value = float(value)
            if type(value) is kind:
                found[field.name] = value
        return cls(**found)

    def at(self, facts: Facts) -> Memory:
        """Forget what was of another start, and what was too long ago to be followed by this look."""
        kept = self
        if self.invocation != facts.unit.invocation:
            kept = Memory(invocation=facts.unit.invocation, tries=self.tries, told=self.told)
        elif not 0 <= facts.now - self.looked <= GAP:
            kept = dataclasses.replace(self, healthy_since=0.0, failing_since=0.0, waiting=False, ready_since=0.0)
        return dataclasses.replace(kept, looked=facts.now)


# --- the decision ---------------------------------------------------------------------------------------------------------


class Deed(NamedTuple):
    """What is to be done (restore, open, start, end; say is words alone), and what is said of it."""

    kind: str
    text: str


def decide(facts: Facts, memory: Memory) -> tuple[list[Deed], Memory]:
    """What to do, and what to remember. From facts alone."""
    deeds: list[Deed] = []
    memory = memory.at(facts)
    if facts.state.get("phase") == "switched":
        if not (sglang_node.overdue(facts.state, facts.boot, facts.now) or unproved(facts.state, memory, facts.now)):
            # A deploy is under way, which watches, waits and puts back itself. What else is remembered is of another server.
            ready = facts.health is not None and facts.health.ok
            since = (memory.ready_since or facts.now) if ready else 0.0
            return [], Memory(looked=facts.now, invocation=facts.unit.invocation, ready_since=since)
        if facts.back and not facts.unit.masked:
            return [_restore(facts)], Memory()
        if memory.told != _switch(facts.state):
            deeds.append(_cannot_restore(facts))
            memory = dataclasses.replace(memory, told=_switch(facts.state))
    elif facts.closed and not _held(facts.lock, facts):
        why = sglang_node.forsaken(facts.lock, facts.boot, facts.now, FORSAKEN) if facts.lock else ""
        holder = f"who holds the lock is taken for dead ({why})" if why else "nobody holds the lock"
        deeds.append(Deed("open", f"The gate is closed, no deploy is between switch and commit, and {holder}: opened."))

    if facts.unit.active == "failed":
        more, memory = _failed(facts, memory)
    elif facts.unit.active == "active" and facts.health and not facts.unit.masked and not facts.rank:
        more, memory = _active(facts, facts.health, memory)
    else:
        more = []
    return deeds + more, memory


def unproved(state: dict, memory: Memory, now: float) -> bool:
    """Whether a server that was switched to has been ready for longer than a proof takes: then its run is dead."""
    patience = float(state.get("proof_timeout") or 600) + PROOF_MARGIN
    return bool(memory.ready_since) and now - memory.ready_since > patience


def _switch(state: dict) -> str:
    return f"{state.get('digest', '')} {state.get('at', '')}"


def _held(lock: dict, facts: Facts) -> bool:
    return bool(lock) and not sglang_node.forsaken(lock, facts.boot, facts.now, FORSAKEN)


def reason(state: dict) -> str:
    """What the record says of a switch that was taken back."""
    return (
        f"The run that switched to {state.get('digest') or 'another server'} at {state.get('at') or 'some time'} did not prove it "
        "within its time, and the supervisor took it for dead."
    )


def _restore(facts: Facts) -> Deed:
    how = "it runs already and goes on" if facts.back_runs else "it is put back and started"
    return Deed("restore", f"{reason(facts.state)} Last committed is deployment {facts.back}: {how}.")


def _cannot_restore(facts: Facts) -> Deed:
    why = "the unit is masked" if facts.unit.masked else "there is no committed deployment whose release is still there"
    text = f"{reason(facts.state)} Nothing is put back, since {why}: the server stays as it is."
    return Deed("open", f"{text} The gate is opened.") if facts.closed else Deed("say", text)


def _failed(facts: Facts, memory: Memory) -> tuple[list[Deed], Memory]:
    """systemd has given up: with Restart=always only its start limit ends in `failed`, or somebody's stop that ended badly."""
    unit = facts.unit
    if not unit.enabled or unit.stopped:
        return [], memory
    pause = _pause(facts.pause, memory.tries)
    if unit.idle < pause:
        return [], memory
    memory = dataclasses.replace(memory, tries=memory.tries + 1)
    text = (
        f"systemd has given up (start limit; Result={unit.result}) {unit.idle:.0f} s ago: start {memory.tries}, after a pause of "
        f"{pause:.0f} s; the next pause is {_pause(facts.pause, memory.tries):.0f} s."
    )
    return [Deed("start", text)], memory


def _pause(first: float, tries: int) -> float:
    return min(first * 2 ** min(tries, 20), first * LONGEST_PAUSE)


def _active(facts: Facts, health: Health, memory: Memory) -> tuple[list[Deed], Memory]:
    if health.ok:
        since = memory.healthy_since or health.asked
        tries = 0 if facts.now - since >= CALM else memory.tries
        fresh = Memory(looked=facts.now, invocation=facts.unit.invocation, healthy=True, told=memory.told)
        return [], dataclasses.replace(fresh, healthy_since=since, tries=tries)

    since = memory.failing_since or health.asked
    memory = dataclasses.replace(memory, healthy_since=0.0, failing_since=since)
    silent = facts.now - since
    late = facts.known and facts.unit.up >= facts.start_timeout
    if not (memory.healthy or late) or silent < facts.hang:
        return [], memory

    if memory.healthy:
        said = f"no token for {silent:.0f} s (/health: {health})"
    else:
        said = f"not healthy {facts.unit.up:.0f} s after its start, which has {facts.start_timeout:.0f} s (/health: {health})"
    work, patience = at_work(facts, health), max(facts.hang, facts.start_timeout)
    if work and silent < patience:
        text = f"It may hang: {said}. But {work}: it has {patience:.0f} s, as a start has."
        return [] if memory.waiting else [Deed("say", text)], dataclasses.replace(memory, waiting=True)

    ended = memory.ended + 1
    again = f" It was to be ended before: this is time {ended}." if ended > 1 else ""
    observed = "; ".join(part for part in (said, card_words(facts.cards), process_words(facts.processes)) if part)
    words = f" Its last words: {facts.words}" if facts.words else ""
    text = f"It hangs: {observed}. All its processes get SIGKILL, and systemd starts it again.{again}{words}"
    # Counted anew from here: a process that cannot be killed is not killed at every look.
    return [Deed("end", text)], dataclasses.replace(memory, failing_since=0.0, waiting=False, ended=ended)


def at_work(facts: Facts, health: Health) -> str:
    """Why a server that makes no token is believed to be at work; empty when nothing tells so."""
    compilers = sorted({process.name for process in facts.processes} & COMPILERS)
    if compilers:
        return f"kernels are being compiled ({', '.join(compilers)})"
    # Only when nobody answered at all. When the main process says itself that no scheduler spoke, the batches in the log are the
    # ones that /health asks for, and their tokens get lost behind the scheduler.
    if facts.batches and not health.status:
        return "batches run and only the answer to /health does not come"
    drawn = max((card.power / card.limit for card in facts.cards if card.limit), default=0.0)
    if drawn >= WORKS:
        return f"its GPUs draw up to {100 * drawn:.0f} % of their limit"
    return ""


def card_words(cards: Iterable[Card]) -> str:
    """What the GPUs do, and what it means where that is known."""
    cards = list(cards)
    if not cards:
        return ""
    busy, power = [card.utilization for card in cards], [card.power for card in cards]
    limit = max(card.limit for card in cards)
    text = f"{len(cards)} GPU{'s' * (len(cards) > 1)} at {_range(busy)} % and {_range(power)} W"
    text += f" of {limit:.0f} W" if limit else ""
    if min(busy) >= 95 and max(power) < SPINS * limit:
        return f"{text}: a hang in a collective or kernel"
    if max(busy) < 5:
        return f"{text}: they have nothing to do, the hang is on the host's side"
    return text


def _range(values: list[float]) -> str:
    low, high = f"{min(values):.0f}", f"{max(values):.0f}"
    return low if low == high else f"{low} to {high}"


def process_words(processes: Iterable[Process]) -> str:
    """Processes of the server that are no more, or that a kill may not reach."""
    parts = []
    for state, meaning in (("Z", "dead while its parent lives on"), ("D", "in the kernel, where a kill has to wait")):
        found = [f"{process.pid} ({process.name})" for process in processes if process.state == state]
        if found:
            parts.append(f"process {', '.join(found[:8])}{' and more' * (len(found) > 8)}: {meaning}")
    return "; ".join(parts)


# --- reading the node -----------------------------------------------------------------------------------------------------

PROPERTIES = (
    "ActiveState",
    "Result",
    "UnitFileState",
    "InvocationID",
    "MainPID",
    "ExecMainStartTimestampMonotonic",
    "InactiveEnterTimestampMonotonic",
)


def asked(argv: list[str], timeout: float = COMMAND_TIMEOUT) -> str:
    """What a command says; empty when it fails. One that does not come back is left: nvidia-smi cannot be killed while the driver
    hangs, and waiting for its end would be the next hang."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
        )
        return process.communicate(timeout=timeout)[0]
    except OSError:
        return ""
    except subprocess.TimeoutExpired:
        process.kill()
        return ""


def as_unit(shown: dict[str, str], uptime: float, stopped: bool) -> Unit:
    """From `systemctl show`; `uptime` is the monotonic clock, as systemd's stamps are."""

    def since(name: str) -> float:
        stamp = shown.get(name, "")
        return max(0.0, uptime - int(stamp) / 1e6) if stamp.isdigit() and int(stamp) else 0.0

    pid = shown.get("MainPID", "")
    return Unit(
        active=shown.get("ActiveState", "inactive"),
        result=shown.get("Result", ""),
        enabled=shown.get("UnitFileState", "").startswith("enabled"),  # or enabled-runtime; not masked, disabled
        masked=shown.get("UnitFileState", "").startswith("masked"),
        invocation=shown.get("InvocationID", ""),
        pid=int(pid) if pid.isdigit() else 0,
        up=since("ExecMainStartTimestampMonotonic"),
        idle=since("InactiveEnterTimestampMonotonic"),
        stopped=stopped,
    )


def entries(text: str) -> Iterator[dict]:
    """What `journalctl -o json` printed; lines that are cut are left out."""
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict):
                yield found


def was_stopped(text: str) -> bool:
    """Whether the last job of a unit, from its newest entry in the journal, was to stop it.

    A stop may end in `failed` as well: 0.5.9 ends with SIGKILL to itself after it has drained (Result=signal), and one that takes
    too long is Result=timeout. A journal that cannot be read tells of no stop.
    """
    return next((entry["JOB_TYPE"] == "stop" for entry in entries(text) if "JOB_TYPE" in entry), False)


def look_up_stop(unit: str) -> bool:
    match = [f"UNIT={unit}", "_PID=1", "JOB_TYPE=start", "JOB_TYPE=stop", "JOB_TYPE=restart"]
    return was_stopped(
        asked(["journalctl", "--quiet", "--no-pager", "--output=json", "--reverse", "--lines=1", "--all", *match])
    )


def journal_of(invocation: str) -> str:
    command = ["journalctl", "--quiet", "--no-pager", "--output=json", "--output-fields=MESSAGE", "--reverse"]
    return asked([*command, f"--lines={JOURNAL_LINES}", f"_SYSTEMD_INVOCATION_ID={invocation}"])


def tail(text: str, uptime: float) -> tuple[bool, str]:
    """Whether a server's log, newest entry first, tells of batches just now, and the last thing it says that is worth repeating."""
    batches, words = False, ""
    for entry in entries(text):
        message = entry.get("MESSAGE")
        if not isinstance(message, str):
            continue  # bytes that are no text
        stamp = str(entry.get("__MONOTONIC_TIMESTAMP", ""))
        if BATCH.search(message) and stamp.isdigit() and uptime - int(stamp) / 1e6 <= RECENT:
            batches = True
        if not words and message.strip() and not NOISE.search(message):
            words = message.strip()[:200]
    return batches, words


def as_process(stat: str) -> Optional[Process]:
    """From /proc/PID/stat; a name may hold spaces and parentheses."""
    head, _, rest = stat.rpartition(")")
    pid, _, name = head.partition(" (")
    fields = rest.split()
    if len(fields) < 2 or not pid.isdigit() or not fields[1].isdigit():
        return None
    return Process(int(pid), int(fields[1]), fields[0], name)


def family(processes: Iterable[Process], main: int) -> tuple[Process, ...]:
    """A process and all below it."""
    below: dict[int, list[Process]] = {}
    found = []
    for process in processes:
        below.setdefault(process.parent, []).append(process)
        if process.pid == main:
            found.append(process)
    for process in found:  # grows while it is walked
        found += below.get(process.pid, [])
    return tuple(found)


def all_processes() -> Iterator[Process]:
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            process = as_process(sglang_node.read_text(path))
        except OSError:
            continue  # ended meanwhile
        if process:
            yield process


def as_cards(text: str) -> dict[str, Card]:
    """By UUID, from nvidia-smi's CSV; what is no number is 0."""
    found = {}
    for line in text.splitlines():
        uuid, *fields = [field.strip() for field in line.split(",")]
        if len(fields) == 3:
            numbers = [float(field) if re.fullmatch(r"\d+(\.\d+)?", field) else 0.0 for field in fields]
            found[uuid] = Card(*numbers)
    return found


def own_cards(cards: dict[str, Card], apps: str, pids: set[int]) -> tuple[Card, ...]:
    """Those that the server's processes use, as nvidia-smi tells who uses which; all when it does not tell."""
    own = set()
    for line in apps.splitlines():
        uuid, _, pid = (part.strip() for part in line.partition(","))
        if pid.isdigit() and int(pid) in pids:
            own.add(uuid)
    return tuple(card for uuid, card in cards.items() if uuid in own) or tuple(cards.values())


def look_at_cards(pids: set[int]) -> tuple[Card, ...]:
    smi = ["nvidia-smi", "--format=csv,noheader,nounits"]
    cards = as_cards(asked([*smi, "--query-gpu=uuid,utilization.gpu,power.draw,power.limit"]))
    return own_cards(cards, asked([*smi, "--query-compute-apps=gpu_uuid,pid"]), pids) if cards else ()


# A proxy from the environment has no business between a node and its own server.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask_health(url: str) -> Health:
    began, clock = sglang_node.uptime(), time.monotonic()
    status, said = 0, ""
    try:
        with OPENER.open(url.rstrip("/") + "/health", timeout=HEALTH_TIMEOUT) as answer:
            status = answer.status
    except urllib.error.HTTPError as error:
        status = error.code
    except Exception as error:  # http.client raises its own kinds for what is no HTTP at all
        said = str(getattr(error, "reason", None) or error or type(error).__name__)
    return Health(status, began, time.monotonic() - clock, said)


def candidate(record: sglang_node.Record, state: dict) -> dict:
    """What to put back: what was before the switch, else the newest that can still run."""
    before = record.entry(str(state.get("before") or ""))
    for entry in (before, *record.entries()):
        if entry and sglang_node.whole(entry):
            return entry
    return {}


def gather(name: str, record: sglang_node.Record, memory: Memory, hang: float, pause: float, rank: int) -> Facts:
    unit_name = name + ".service"
    state, boot = record.state(), sglang_node.boot()
    shown = sglang_node.show(unit_name, PROPERTIES)
    failed = shown.get("ActiveState") == "failed"
    unit = as_unit(shown, time.monotonic(), stopped=failed and look_up_stop(unit_name))
    known: dict[str, Any] = {"boot": boot, "hang": hang, "pause": pause, "rank": rank}
    known.update(state=state, unit=unit)
    running = (sglang_node.running_digest(unit.pid) if unit.pid else "") or ""
    known.update(lock=record.lock(), closed=sglang_node.gate_closed(record), running=running)
    on_disk = sglang_node.read_text(sglang_node.unit_path(name))
    if state.get("phase") == "switched":
        now = sglang_node.uptime()
        if not (sglang_node.overdue(state, boot, now) or unproved(state, memory.at(Facts(now=now, **known)), now)):
            ready = unit.active == "active" and running == state.get("digest") and bool(state.get("url"))
            return Facts(now=now, health=ask_health(str(state["url"])) if ready else None, **known)
        back = candidate(record, state)
        if back:
            front = sglang_node.read_text(os.path.join(record.folder, sglang_node.UPSTREAM))
            address = str(back["facts"].get("url") or "").split("://")[-1]
            runs = unit.active == "active" and running == back.get("digest")
            runs = runs and on_disk == back["unit"] and (not front or f" {address};" in front)
            return Facts(now=now, back=str(back["id"]), back_runs=runs, **known)

    # Of a rank that is not the head /health says nothing: it is 200 from the day that its weights are loaded.
    if unit.active != "active" or not unit.pid or rank:
        return Facts(now=sglang_node.uptime(), **known)

    # Whose URL and times count: of the deployment that runs. Somebody may have changed the unit by hand.
    last = record.last()
    entry = last if last.get("digest") == running else {}
    entry = entry or next((entry for entry in record.entries() if entry.get("digest") == running), {})
    switched_to = not entry and bool(running) and state.get("digest") == running and bool(state.get("url"))
    told = state if switched_to else (entry or last).get("facts", {})
    known["known"] = switched_to or (bool(entry) and entry.get("unit") == on_disk)
    with contextlib.suppress(TypeError, ValueError):
        known["start_timeout"] = float(told.get("start_timeout") or 1800)
    health = ask_health(str(told["url"])) if told.get("url") else None

    now = sglang_node.uptime()
    if health and not health.ok and memory.failing_since and now - memory.failing_since >= hang:
        processes = family(all_processes(), unit.pid)
        batches, words = tail(journal_of(unit.invocation), time.monotonic())
        cards = look_at_cards({process.pid for process in processes})
        known.update(processes=processes, batches=batches, words=words, cards=cards)
    return Facts(now=now, health=health, **known)


# --- deeds ----------------------------------------------------------------------------------------------------------------


def say(text: str, level: int = 5) -> None:
    """To the journal with its level, to a person without."""
    print(f"<{level}>{text}" if "JOURNAL_STREAM" in os.environ else text, flush=True)


def changed(deed: Deed, facts: Facts, record: sglang_node.Record) -> str:
    """What has changed since the look, which may have taken half a minute; empty when the deed is still right."""
    if record.state() != facts.state:
        return "a deploy has begun"
    if deed.kind == "open" and facts.state.get("phase") != "switched" and _held(record.lock(), facts):
        return "somebody has taken the lock"
    if deed.kind in ("start", "end"):
        shown = sglang_node.show(record.name + ".service", PROPERTIES)
        if (shown.get("ActiveState"), shown.get("InvocationID")) != (facts.unit.active, facts.unit.invocation):
            return f"the unit is {shown.get('ActiveState')} by now"
    return ""


def put_back(facts: Facts, record: sglang_node.Record) -> None:
    name, entry = record.name, record.entry(facts.back)
    unit = name + ".service"
    if not facts.back_runs:
        # Never proved: nobody waits for what it has in hand, and one that hangs would take its whole time to stop.
        kill = facts.running != entry["digest"]
        try:
            sglang_node.put(name, entry["unit"], record, str(entry["facts"].get("url") or ""), kill=kill)
        except OSError:
            # Service before bookkeeping; and what is killed must not be killed again at the next look. Where the unit itself could
            # not be written, nothing was ended.
            if sglang_node.read_text(sglang_node.unit_path(name)) == entry["unit"]:
                for words in (("daemon-reload",), ("reset-failed", unit), ("restart", unit)):
                    sglang_node.systemctl(*words)
            raise
    if record.state() != facts.state:
        say("A deploy has begun meanwhile: record and gate are left to it.", 4)
        return
    sglang_node.open_gate(record)
    record.write_state(phase="restored", digest=entry["digest"], deployment=entry["id"], reason=reason(facts.state))


def do(deed: Deed, facts: Facts, record: sglang_node.Record) -> None:
    unit = record.name + ".service"
    other = changed(deed, facts, record) if deed.kind != "say" else ""
    if other:
        say(f"{deed.text} Not done: {other}.")
        return
    say(deed.text, 4)
    if deed.kind == "restore":
        put_back(facts, record)
    elif deed.kind == "open":
        sglang_node.open_gate(record)
    elif deed.kind == "start":
        for words in (("reset-failed", unit), ("start", "--no-block", unit)):
            code, said = sglang_node.systemctl(*words)
            if code:
                say(f"systemctl {' '.join(words)} failed: {said}", 3)
    elif deed.kind == "end":
        code, said = sglang_node.systemctl("kill", "--signal=SIGKILL", unit)
        if code:
            say(f"systemctl kill failed: {said}", 3)


@contextlib.contextmanager
def alone(folder: str) -> Iterator[bool]:
    """Whether nobody else looks at this moment: a person may call this beside the timer."""
    os.makedirs(folder, mode=0o755, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            first = True
        except BlockingIOError:
            first = False
        yield first
    finally:
        os.close(handle)


def look(name: str, root: str, hang: float, pause: float, rank: int, dry_run: bool) -> None:
    record = sglang_node.Record(root, name)
    memory_file = os.path.join(sglang_node.RUN, name, "supervise.json")
    before = Memory.read(sglang_node.read_json(memory_file))
    facts = gather(name, record, before, hang, pause, rank)
    deeds, after = decide(facts, before)
    if dry_run:
        for deed in deeds:
            say(f"Would {deed.kind}: {deed.text}")
        return
    # First what is remembered: a deed that fails must not be tried at each look as if it were the first time.
    try:
        sglang_node.write(memory_file, sglang_node.as_json(dataclasses.asdict(after)))
    except OSError as error:
        say(f"{memory_file} cannot be written ({error.strerror}), so a server that hangs is not seen.", 4)
    for deed in deeds:
        do(deed, facts, record)


def main(argv: Optional[list[str]] = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="the server: its unit is NAME.service, its record /var/lib/sglang/NAME")
    parser.add_argument("--hang", type=float, default=300, metavar="S", help="seconds without a token (300)")
    parser.add_argument("--pause", type=float, default=60, metavar="S", help="seconds before the first start (60)")
    parser.add_argument(
        "--rank", type=int, default=0, metavar="N", help="of several nodes with one model (0, the head)"
    )
    parser.add_argument("--root", default=sglang_node.ROOT, metavar="DIR", help=f"the records ({sglang_node.ROOT})")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, do and remember nothing")
    args = parser.parse_args(argv)
    os.umask(0o022)
    try:
        beside = contextlib.nullcontext(True) if args.dry_run else alone(os.path.join(sglang_node.RUN, args.name))
        with beside as first:
            if first:
                look(args.name, args.root, args.hang, args.pause, args.rank, args.dry_run)
    except Exception as error:  # whatever it is, the server is left as it is, and the next look comes
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(f"{type(error).__name__}: {error}".split())
        where = f"{os.path.basename(place.filename)}, line {place.lineno}"
        say(f"The supervisor of {args.name} failed and left everything else as it is: {text} ({where})", 3)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
