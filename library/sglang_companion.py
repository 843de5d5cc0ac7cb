#!/usr/bin/python
# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""A unit beside a server, with its timer and files: the front, the supervisor."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: sglang_companion
short_description: A systemd unit beside a server, with its files, in one step
version_added: "0.1.0"
description:
  - Writes the files of a unit (and of its timer), lets them be judged, and starts, restarts or reloads the unit where what is
    loaded is not what is wanted. When one of these fails, the old files come back and so does what ran, and the task fails with the
    first error.
  - What is loaded is noted in C(/run/sglang/<name>.loaded). A run that was killed between writing and loading is therefore seen and
    finished by the next one. After a boot the note is not there, and what runs was started from what is on disk.
  - A unit file that this project did not write is refused.
options:
  name:
    description: Name of the companion, such as V(sglang-front). It names the note in C(/run/sglang).
    type: str
    required: true
  state:
    description:
      - V(absent) stops and disables the units, and removes them, the files and the secrets. Contents are not looked at. A folder
        below C(/etc/sglang) that is empty then goes too.
    type: str
    choices: [present, absent]
    default: present
  units:
    description: Texts of unit files by file name, such as C(sglang-front.service), for C(/etc/systemd/system).
    type: dict
    required: true
  start:
    description: The one of O(units) that is enabled and kept running.
    type: str
    required: true
  files:
    description: Files of the unit. Owner and group are root.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Where the file lies. Its folder is made.
        type: path
        required: true
      content:
        description: The file's text.
        type: str
        default: ""
      keep:
        description: Leave a file that is there as it is. Others write it, and the unit only needs one at first.
        type: bool
        default: false
      loaded:
        description: Whether the unit reads the file. A change of one that it does not read is written, and loads nothing.
        type: bool
        default: true
      mode:
        description: Permissions, octal.
        type: str
        default: "0644"
  secrets:
    description:
      - Texts of secret files by path, written with mode 0640, owner root and group O(group). They show in no result, diff, error
        or log.
    type: dict
    default: {}
  group:
    description: Group that may read the secrets. It must exist. Without it root alone can.
    type: str
  key_file:
    description:
      - File on the node with one key a line and comments that begin with C(#), of root, mode 0600 or 0400. Each becomes a line of
        nginx's map in O(key_target), behind the text that O(secrets) has for it.
      - It is read on the node alone; no key travels, and none is an argument of anything.
    type: path
  key_target:
    description: The secret file that the keys of O(key_file) go to.
    type: path
  reads:
    description:
      - Files that others write and the unit reads, such as certificates. One that changed since it was loaded is a change of files.
    type: list
    elements: path
    default: []
  check:
    description:
      - Command that judges the files once they are written, before anything is loaded. C({folder}) in a word becomes the path of an
        empty folder that is removed afterwards.
    type: list
    elements: str
    default: []
  user:
    description: User that O(check) runs as, with the right to ports below 1024. Without it root.
    type: str
  reload:
    description:
      - A change of files reloads the unit; without this it restarts. A change of the unit's text restarts always, and so does any
        change of a timer.
    type: bool
    default: true
  listens:
    description: TCP ports that the unit must hold, a few seconds after its start at the latest.
    type: list
    elements: int
    default: []
  prove:
    description:
      - Command, run as root, that tells whether the unit does its work once it was started, restarted or reloaded. When it ends
        with another status than 0 the old files come back, as after a failed start; what it wrote last is the error.
    type: list
    elements: str
    default: []
author: ["sglang-rtxpro authors (!UNKNOWN)"]
attributes:
  check_mode: {support: full, description: Tells what would be written and loaded., details: []}
  diff_mode: {support: full, description: "Shows units and files before and after; of secrets and programs, that they change.",
    details: []}
"""

EXAMPLES = r"""
- name: Put a front before the server
  sglang_companion:
    name: sglang-front
    units:
      sglang-front.service: "{{ lookup('ansible.builtin.template', 'front.service.j2') }}"
    start: sglang-front.service
    files:
      - path: /etc/sglang/sglang/front.conf
        content: "{{ lookup('ansible.builtin.template', 'front.conf.j2') }}"
    secrets:
      /etc/sglang/sglang/keys.conf: "{{ sglang_server_front_keys | sglang_front_keys }}"
    group: sglang-front
    check: [/usr/sbin/nginx, -t, -q, -e, stderr, -p, "{folder}/", -c, /etc/sglang/sglang/front.conf]
    user: sglang-front
    listens: [8000]

- name: Run something every half minute
  sglang_companion:
    name: sglang-supervise
    units:
      sglang-supervise.service: "{{ lookup('ansible.builtin.template', 'supervise.service.j2') }}"
      sglang-supervise.timer: "{{ lookup('ansible.builtin.template', 'supervise.timer.j2') }}"
    start: sglang-supervise.timer
"""

RETURN = r"""
reasons:
  description: Why something was, or would be, done.
  type: list
  elements: str
  returned: always
restarted:
  description: Whether the unit was, or would be, started or restarted; stopped, for V(absent).
  type: bool
  returned: always
reloaded:
  description: Whether the unit was, or would be, reloaded.
  type: bool
  returned: always
"""

import contextlib
import glob
import grp
import hashlib
import json
import os
import pwd
import re
import shutil
import stat
import subprocess
import tempfile
import time
from typing import Any, Dict, Iterable, List, NamedTuple, NoReturn, Optional, Tuple

from ansible.module_utils import sglang_keys as keys
from ansible.module_utils import sglang_node as node
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_ports import Process, listeners

SPEC: Dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "units": {"type": "dict", "required": True},
    "start": {"type": "str", "required": True},
    "files": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "path": {"type": "path", "required": True},
            "content": {"type": "str", "default": ""},
            "keep": {"type": "bool", "default": False},
            "loaded": {"type": "bool", "default": True},
            "mode": {"type": "str", "default": "0644"},
        },
    },
    "secrets": {"type": "dict", "default": {}, "no_log": True},
    "group": {"type": "str"},
    "key_file": {"type": "path", "no_log": False},
    "key_target": {"type": "path", "no_log": False},
    "reads": {"type": "list", "elements": "path", "default": []},
    "check": {"type": "list", "elements": "str", "default": []},
    "user": {"type": "str"},
    "reload": {"type": "bool", "default": True},
    "listens": {"type": "list", "elements": "int", "default": []},
    "prove": {"type": "list", "elements": "str", "default": []},
}
ETC = "/etc/sglang"
OWNER = GROUP = 0  # root, of every file and of a key file
# Seconds that a unit has to take its ports: nginx itself tries for 2.5 s, a Python program takes some on a busy host.
PATIENCE = 30.0
# Seconds after which a unit without ports that still runs counts as started.
SETTLE = 1.0
PROPERTIES = ("LoadState", "ActiveState", "SubState", "UnitFileState", "NeedDaemonReload", "FragmentPath", "NRestarts")
RUNS = ("active", "reloading")
ENABLED = ("enabled", "static", "indirect", "alias")  # what has no [Install] section starts as its author wants


class CompanionError(Exception):
    """What went wrong. The text names the thing, what was expected and the remedy."""


# --- what is wanted and what is there, as data ----------------------------------------------------------------------------


class File(NamedTuple):
    """A file as it shall be."""

    path: str
    text: str
    mode: int
    gid: int
    kind: str = "file"  # file, secret, unit, or aside: one that the unit does not read


class Found(NamedTuple):
    """What is at a path: a text, a link that masks a unit, or nothing."""

    text: Optional[str] = None
    mode: int = 0
    uid: int = 0
    gid: int = 0
    masked: bool = False


class Plan(NamedTuple):
    """What has to be done, and why."""

    reasons: List[str]
    write: List[File]
    action: str = ""  # reload or restart
    enable: bool = False
    reread: bool = False  # daemon-reload

    def __bool__(self) -> bool:
        return bool(self.reasons)


def digest(text: Optional[str]) -> str:
    return "" if text is None else hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def plan(
    files: List[File],
    found: Dict[str, Found],
    read: Dict[str, str],
    shown: Dict[str, str],
    loaded: Optional[Dict[str, str]],
    deaf: Iterable[int],
    start: str,
    reload: bool,
) -> Plan:
    """Decide from texts alone.

    `read` are digests of files that others write, `shown` is `systemctl show` of the unit to start, `loaded` the note of what was
    loaded last (None after a boot: then it is what is on disk), `deaf` are ports that the unit does not hold.
    """
    reasons: List[str] = []
    write: List[File] = []
    unit_stale = file_stale = False
    for file in files:
        there = found[file.path]
        if there.masked:
            reason = "was masked by hand"
        elif there.text is None:
            reason = "is new"
        elif there.text != file.text:
            reason = "differs"
        elif (there.mode, there.uid, there.gid) != (file.mode, OWNER, file.gid):
            reason = "has another owner or mode"
        elif file.kind != "aside" and loaded is not None and loaded.get(file.path) != digest(file.text):
            reason = ""
        else:
            continue
        reasons.append(f"{file.path} {reason or 'is written but not loaded, as a run was interrupted'}")
        write += [file] if reason else []
        unit_stale |= file.kind == "unit"
        file_stale |= file.kind not in ("unit", "aside")
    for path, now in read.items():
        if loaded is not None and loaded.get(path, now) != now:
            reasons.append(f"{path} changed since it was loaded")
            file_stale = True

    active = shown.get("ActiveState", "unknown")
    timer = start.endswith(".timer")
    action = ""
    if active not in RUNS:
        action = "restart"
        reasons.append(f"{start} is {active}")
    elif unit_stale or (file_stale and (timer or not reload)):
        action = "restart"
    elif file_stale:
        action = "reload"
    else:
        for port in deaf:
            action = "restart"
            reasons.append(f"{start} does not listen on port {port}")
    enable = shown.get("UnitFileState") not in ENABLED
    if enable and shown.get("LoadState") == "loaded":
        reasons.append(f"{start} does not start at boot")
    reread = any(file.kind == "unit" for file in write) or shown.get("NeedDaemonReload") == "yes"
    if reread and not reasons:
        reasons.append(f"systemd has read another text of {start}")
    return Plan(reasons, write, action, enable, reread)


def foreign(there: Found) -> bool:
    """Whether a unit file was made by somebody else."""
    return not there.masked and bool(there.text) and node.HEADER not in (there.text or "").split("\n", 1)[0]


def telling(text: str, most: int = 3) -> str:
    """The lines of a log that say what went wrong: nginx's worst, a program's last word, what sounds wrong, or the end."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)  # colours
    lines = list(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))
    for pattern in (r"\[(emerg|alert|crit)\]", r"(error|exception): ", r"error|fail|denied|cannot|not found", ""):
        found = [line for line in lines if re.search(pattern, line, re.I)]
        if found:
            return " / ".join(found[-most:]).rstrip(".")
    return ""


def of_unit(process: Process, unit: str) -> bool:
    return any(unit in line.split("/") for line in process.cgroups.splitlines())


def owner(process: Process) -> str:
    """A process in words, with the unit that it belongs to."""
    return f"{process.name} ({', '.join([f'pid {process.pid}', *process.units[-1:]])})"


# --- files ----------------------------------------------------------------------------------------------------------------


def look(path: str) -> Found:
    if node.masked(path):
        return Found(masked=True)
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="") as stream:
            about = os.fstat(stream.fileno())
            return Found(stream.read(), stat.S_IMODE(about.st_mode), about.st_uid, about.st_gid)
    except (FileNotFoundError, NotADirectoryError):
        return Found()


def leftovers(path: str) -> List[str]:
    """Temporary files of runs that were killed while they wrote: a part of a secret may be in them."""
    return glob.glob(f"{glob.escape(path)}.*{node.NEW}")


def put_back(path: str, there: Found) -> None:
    if there.text is not None:
        node.write(path, there.text, there.mode, there.uid, there.gid)
        return
    unlink(path)
    if there.masked:
        os.symlink(os.devnull, path)


def unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


# --- the companion --------------------------------------------------------------------------------------------------------


class Companion:
    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.params = module.params
        self.name: str = self.params["name"]
        self.start: str = self.params["start"]
        self.note = os.path.join(node.RUN, self.name + ".loaded")
        self.unit_paths = {unit: os.path.join(node.UNITS, unit) for unit in self.params["units"]}
        if self.start not in self.unit_paths:
            raise CompanionError(f"start is {self.start}, expected one of units: {', '.join(self.unit_paths)}.")
        self.shown = node.show(self.start, PROPERTIES)
        self.result: Dict[str, Any] = {"changed": False, "reasons": [], "restarted": False, "reloaded": False}

    # --- what is wanted

    def files(self) -> List[File]:
        """The unit files last: until they are there, nothing reads the others."""
        group = self.gid()
        wanted = [f for f in self.params["files"] if not (f["keep"] and os.path.exists(f["path"]))]
        kinds = {True: "file", False: "aside"}
        made = [File(f["path"], f["content"], octal(f["path"], f["mode"]), GROUP, kinds[f["loaded"]]) for f in wanted]
        made += [File(path, text, 0o640, group, "secret") for path, text in self.secrets().items()]
        return made + [
            File(self.unit_paths[unit], text, 0o644, GROUP, "unit") for unit, text in self.params["units"].items()
        ]

    def secrets(self) -> Dict[str, str]:
        """Their texts by path. From here on the module says none of their words: nginx quotes what it cannot read."""
        texts = {path: str(text) for path, text in self.params["secrets"].items()}
        if self.params["key_file"]:
            target = self.params["key_target"]
            texts[target] = texts.get(target, keys.HEAD) + self.keys()
        self.module.no_log_values.update(word for text in texts.values() for word in keys.words(text))
        return texts

    def keys(self) -> str:
        path = self.params["key_file"]
        remedy = f"Expected a file of root with mode 0600 and one key a line; make one with: install -m 0600 /dev/null {path}"
        try:
            with open(path, encoding="utf-8", errors="replace") as stream:
                about = os.fstat(stream.fileno())
                text = stream.read()
        except OSError as error:
            raise CompanionError(f"The key file {path} cannot be read: {error.strerror}. {remedy}") from error
        if about.st_uid != OWNER or stat.S_IMODE(about.st_mode) not in (0o600, 0o400):
            raise CompanionError(
                f"The key file {path} has mode {stat.S_IMODE(about.st_mode):04o} and owner {about.st_uid}. {remedy}"
            )
        found = keys.parse(text)
        if not found:
            raise CompanionError(f"The key file {path} holds no key. {remedy}")
        try:
            return keys.lines(found, path)
        except keys.KeyFault as error:
            raise CompanionError(str(error)) from None

    def gid(self) -> int:
        name = self.params["group"]
        if not name:
            return GROUP
        try:
            return grp.getgrnam(name).gr_gid
        except KeyError:
            if self.module.check_mode:
                return -1  # a real run would have made it before
            raise CompanionError(
                f"The group {name} is not on the node. Expected it there before its secrets: make the user first."
            ) from None

    # --- what is there

    def loaded(self) -> Optional[Dict[str, str]]:
        return node.read_json(self.note).get("loaded")

    def write_note(self, texts: Dict[str, str]) -> None:
        if self.loaded() != texts:
            node.write(self.note, json.dumps({"loaded": texts}, indent=1, sort_keys=True) + "\n", 0o600)

    def read(self) -> Dict[str, str]:
        return {path: digest(look(path).text) for path in self.params["reads"]}

    def deaf(self) -> List[int]:
        return [port for port in self.params["listens"] if not any(of_unit(p, self.start) for p in listeners(port))]

    # --- present

    def present(self) -> None:
        files = self.files()
        found = {file.path: look(file.path) for file in files}
        for file in files:
            if file.kind == "unit" and foreign(found[file.path]):
                raise CompanionError(
                    f'{file.path} was not written by this project: its first line lacks "{node.HEADER}". Move it away, or choose '
                    "another sglang_server_name."
                )
        read = self.read()
        active = self.shown.get("ActiveState") in RUNS
        loaded = self.loaded()
        step = plan(
            files, found, read, self.shown, loaded, self.deaf() if active else (), self.start, self.params["reload"]
        )
        self.result.update(
            changed=bool(step),
            reasons=step.reasons,
            restarted=step.action == "restart",
            reloaded=step.action == "reload",
            diff=diff(step.write, found),
        )
        if self.module.check_mode:
            return
        wanted = {**{file.path: digest(file.text) for file in files}, **read}
        if step:
            if loaded is None and active:
                # A run that is killed from here on leaves a note of what was loaded before.
                self.write_note({**{path: digest(there.text) for path, there in found.items()}, **read})
            Switch(self, step, found).run()
        self.write_note(wanted)

    # --- absent

    def absent(self) -> None:
        units = {unit: path for unit, path in self.unit_paths.items() if os.path.lexists(path)}
        strange = [path for path in units.values() if foreign(look(path))]
        if strange:
            self.module.warn(f"{', '.join(strange)} was not written by this project and stays as it is.")
            return
        paths = [f["path"] for f in self.params["files"]] + list(self.params["secrets"])
        paths += [self.params["key_target"]] if self.params["key_target"] else []
        there = [path for path in dict.fromkeys(paths) if os.path.lexists(path)]
        there += [left for path in dict.fromkeys(paths) for left in leftovers(path)]
        known = {unit: node.show(unit, PROPERTIES) for unit in self.unit_paths}
        # A unit of the same name that a package brings is none of ours; one whose file is gone has no path.
        ours = {u: s for u, s in known.items() if s.get("FragmentPath", "") in ("", os.devnull, self.unit_paths[u])}
        running = [unit for unit, shown in ours.items() if shown.get("ActiveState") not in (None, "inactive", "failed")]
        stale = [unit for unit, shown in ours.items() if unit not in units and shown.get("LoadState") == "loaded"]
        folders = {os.path.dirname(path) for path in paths if path.startswith(ETC + "/")} - {ETC}
        empty = [
            f for f in sorted(folders) if os.path.isdir(f) and {os.path.join(f, n) for n in os.listdir(f)} <= set(there)
        ]
        reasons = [f"{path} is there" for path in [*units.values(), *there]]
        reasons += [f"{unit} is {known[unit]['ActiveState']}" for unit in running]
        reasons += [f"systemd still knows {unit}" for unit in stale if unit not in running]
        reasons += [f"{folder} is empty" for folder in empty if not there]
        self.result.update(
            changed=bool(reasons),
            reasons=reasons,
            restarted=bool(running),
            diff=[header(path, look(path).text or "", "") for path in units.values()],
        )
        if self.module.check_mode:
            return
        # What starts the others first.
        for unit in sorted(running, key=lambda unit: unit != self.start):
            self.systemctl("stop", unit)
        for unit, path in units.items():
            node.systemctl("disable", "--quiet", unit)  # says no to a masked one
            unlink(path)
        if units or stale:
            self.systemctl("daemon-reload")
            for unit in self.unit_paths:
                node.systemctl("reset-failed", unit)
        for path in [*there, self.note]:
            unlink(path)
        for folder in empty:
            with contextlib.suppress(OSError):
                os.rmdir(folder)

    def systemctl(self, *words: str) -> None:
        code, said = node.systemctl(*words)
        if code:
            raise CompanionError(f"systemctl {' '.join(words)} failed: {said}")


class Switch:
    """From one state of the files to another, or back."""

    def __init__(self, companion: Companion, step: Plan, found: Dict[str, Found]) -> None:
        self.companion = companion
        self.module = companion.module
        self.start = companion.start
        self.step = step
        self.before = found
        self.was = companion.shown.get("ActiveState")
        self.reread = False
        self.acted = False
        self.enabled = False
        self.written: List[File] = []

    def run(self) -> None:
        try:
            for file in self.step.write:
                for left in leftovers(file.path):
                    unlink(left)
                node.write(file.path, file.text, file.mode, OWNER, file.gid)
                self.written.append(file)
            self.judge()
            self.load()
            self.prove()
        except (CompanionError, OSError) as error:
            self.undo(str(error))

    def judge(self) -> None:
        """Let the unit's own program and systemd judge what was written, before anything is loaded."""
        units = [file.path for file in self.step.write if file.kind == "unit"]
        if units:
            code, said = run(["systemd-analyze", "verify", "--man=no", *units])
            if code:
                raise CompanionError(
                    f"systemd refuses {', '.join(units)}: {telling(said)}. Correct that and run again."
                )
        argv = self.module.params["check"]
        if not argv:
            return
        os.makedirs(node.RUN, mode=0o755, exist_ok=True)
        folder = tempfile.mkdtemp(prefix="check-", dir=node.RUN)
        try:
            words = [word.replace("{folder}", folder) for word in argv]
            code, said = run([*as_user(self.module.params["user"], folder), *words])
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        if code:
            raise CompanionError(
                f"{os.path.basename(argv[0])} refuses what is written: {telling(said)}. Correct that and run again."
            )

    def load(self) -> None:
        since = time.time()
        if self.step.reread:
            self.reread = True
            self.companion.systemctl("daemon-reload")
        if self.step.enable:
            self.enabled = True
            self.companion.systemctl("enable", "--quiet", self.start)
        if self.step.action:
            self.acted = True
            # A unit that ran into its start limit must be let go first.
            node.systemctl("reset-failed", self.start)
            code, said = node.systemctl(self.step.action, self.start)
            if code:
                raise CompanionError(f"{self.start} cannot be {self.step.action}ed: {self.words(said, since)}.")
            self.wait(since)

    def wait(self, since: float) -> None:
        """Until the unit holds its ports; without ports, until it has run for a moment."""
        ports = self.module.params["listens"]
        timer = self.start.endswith(".timer")
        began = time.monotonic()
        while True:
            shown = node.show(self.start, PROPERTIES)
            again = self.step.action == "restart" and shown.get("NRestarts", "0") not in ("", "0")
            ended = shown.get("ActiveState") not in (*RUNS, "activating") or "auto-restart" in shown.get("SubState", "")
            if again or ended:
                told = f"{self.start} ended right after its start: {self.words('', since)}."
                raise CompanionError(told + self.holders(ports))
            deaf = self.companion.deaf()
            waited = time.monotonic() - began
            if not deaf and (ports or timer or waited > SETTLE):
                return
            if waited > PATIENCE:
                told = f"{self.start} runs, but does not listen on port {deaf[0]} after {PATIENCE:.0f} s: {self.words('', since)}."
                raise CompanionError(told + self.holders(deaf))
            time.sleep(0.1)

    def prove(self) -> None:
        argv = self.module.params["prove"]
        if not argv or not self.acted:
            return
        code, said = run(argv)
        if code:
            last = (said.strip() or f"{os.path.basename(argv[0])} ended with {code}").splitlines()[-1].rstrip(".")
            raise CompanionError(f"{self.start} runs, but does not do its work: {last}.")

    def holders(self, ports: List[int]) -> str:
        """Who else has a port that the unit wants, as the end of a message."""
        others = {port: [p for p in listeners(port) if not of_unit(p, self.start)] for port in ports}
        told = [f"{' and '.join(map(owner, who))} listens on port {port}" for port, who in others.items() if who]
        return f" {'; '.join(told)}: stop that, or choose another port." if told else ""

    def words(self, said: str, since: float) -> str:
        """What the unit logged, which says more than systemctl's advice to look there."""
        code, out = run(
            ["journalctl", "-q", "-u", self.start, "-o", "cat", "--no-pager", "-n", "50", f"--since=@{since:.3f}"]
        )
        return telling(out if not code and out.strip() else said) or "it logged nothing"

    def undo(self, first: str) -> NoReturn:
        """Put the old files back and bring back what ran; then fail with the first error."""
        try:
            state = self.back()
        except (CompanionError, OSError) as error:
            state = f"AND what was before could not be put back, so {self.start} may be down: {error}"
        raise CompanionError(f"{first} {state}")

    def back(self) -> str:
        """Files first: what else fails, they are as they were."""
        ran = self.was in (*RUNS, "activating")
        if self.enabled:
            node.systemctl("disable", "--quiet", self.start)
        if self.acted and not ran:
            node.systemctl("stop", self.start)
        for file in self.written:
            put_back(file.path, self.before[file.path])
        if self.reread:
            self.companion.systemctl("daemon-reload")
        if not self.acted:
            return "The files are as they were, and nothing was loaded."
        node.systemctl("reset-failed", self.start)
        if not ran:
            return f"The files are as they were; {self.start} did not run before and was stopped."
        again = self.step.action
        if again == "reload" and node.show(self.start, PROPERTIES).get("ActiveState") not in RUNS:
            again = "restart"
        since = time.time()
        self.companion.systemctl(again, self.start)
        if self.was == "activating":
            return f"The files are as they were, and {self.start} tries again with them."
        until = time.monotonic() + SETTLE
        while time.monotonic() < until:
            if node.show(self.start, PROPERTIES).get("ActiveState") not in RUNS:
                raise CompanionError(f"it ends with the old files too: {self.words('', since)}")
            time.sleep(0.1)
        return f"The files are as they were, and {self.start} runs with them."


def octal(path: str, mode: str) -> int:
    if not re.fullmatch(r"0?[0-7]{3}", mode):
        raise CompanionError(f'The mode of {path} is {mode}, expected octal digits in quotes, such as "0644".')
    return int(mode, 8)


def run(argv: List[str]) -> Tuple[int, str]:
    """Exit status and what was said."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False)
    except FileNotFoundError:
        raise CompanionError(f"{argv[0]} is not on the node. Expected it there: install its package first.") from None
    return done.returncode, done.stderr + done.stdout


def as_user(name: Optional[str], folder: str) -> List[str]:
    """Words that run a command as a user who owns a folder, with the right to try ports below 1024, as a unit has that needs it."""
    if not name:
        return []
    try:
        account = pwd.getpwnam(name)
    except KeyError:
        raise CompanionError(f"The user {name} is not on the node. Expected it there: make the user first.") from None
    os.chown(folder, account.pw_uid, account.pw_gid)
    right = "+net_bind_service"
    who = [f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--init-groups"]
    return ["setpriv", *who, f"--inh-caps={right}", f"--ambient-caps={right}", "--"]


def shown(path: str, text: Optional[str], secret: bool) -> str:
    """A file's text in a diff. Of a program that it is another: nobody reads hundreds of its lines in a deployment's output."""
    if text is None:
        return ""
    if secret:
        return "(secret)\n"
    if path.endswith(".py"):
        return f"(program of {text.count(chr(10))} lines, sha256 {hashlib.sha256(text.encode()).hexdigest()[:12]})\n"
    return text


def header(path: str, before: str, after: str) -> Dict[str, str]:
    return {"before_header": path, "after_header": path, "before": before, "after": after}


def diff(write: List[File], found: Dict[str, Found]) -> List[Dict[str, str]]:
    entries = []
    for file in write:
        secret = file.kind == "secret"
        after = "(secret, changed)\n" if secret else shown(file.path, file.text, secret)
        entries.append(header(file.path, shown(file.path, found[file.path].text, secret), after))
    return entries


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, required_by={"key_file": ["key_target"]}, supports_check_mode=True)
    os.umask(0o022)
    result: Dict[str, Any] = {}
    try:
        companion = Companion(module)
        result = companion.result
        companion.present() if module.params["state"] == "present" else companion.absent()
    except (CompanionError, OSError) as error:
        module.fail_json(msg=f"{module.params['name']}: {error}", reasons=result.get("reasons", []))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
