#!/usr/bin/python
# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""What serves on a node, whether it answers, and everything that is no longer as it was committed."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: sglang_status
short_description: Say what serves on a node, and what is no longer as it was committed
version_added: "0.1.0"
description:
  - Compares a server's record with the node, in one round trip. The record is the last committed deployment
    (C(<root>/<name>/deployments/<id>.json)); compared are the unit, the process, the release, the model's folder and the machine.
    Changes nothing.
  - Works where nothing is deployed, where a record was cut, without systemd, and for a unit that this project did not deploy.
  - Arguments and environment may hold what is nobody's business, so neither is returned; of a unit that was changed, only the names
    of what differs.
  - The action plugin of this name renders one page of all hosts of a play from earlier looks (O(page)), and touches no node for it.
options:
  name:
    description: Name of the server, which is the unit's name without C(.service).
    type: str
    default: sglang
  root:
    description: Folder of the records of all servers.
    type: path
    default: /var/lib/sglang
  page:
    description:
      - For the action plugin. Show one page of all hosts of the play, from looks registered as C(__sglang_status_look).
    type: bool
    default: false
author: ["sglang-rtxpro authors (!UNKNOWN)"]
attributes:
  check_mode: {support: full, description: Reads only., details: []}
  diff_mode: {support: none, description: Reads only., details: []}
"""

EXAMPLES = r"""
- name: Look
  sglang_status:
    name: sglang
  register: __sglang_status_look
  ignore_unreachable: true

- name: Show all hosts on one page
  sglang_status:
    page: true
  run_once: true
"""

RETURN = r"""
name:
  description: The server's name.
  type: str
  returned: always
state:
  description:
    - V(serves), V(starting), V(restarting) (systemd waits before the next try), V(silent) (its process runs and its address
      does not answer), V(stopping), V(stopped), V(failed), V(by hand) (the unit does not run, and something else listens on
      its port) or V(nothing) (nothing is recorded, no unit, nobody listens).
  type: str
  returned: always
deployment:
  description:
    - The last committed deployment. C(id), C(digest), C(at) (UTC), C(age_s), C(by) (C(user), C(host), C(commit)), C(profile),
      C(model), C(model_path), C(release), C(sglang), C(url), C(replica) (C(name), C(hosts) by rank, C(rank) and C(together), what
      tells a deployment of the whole from others; empty for a server of its own). Empty when nothing was ever committed, or no
      record can be read.
  type: dict
  returned: always
proof:
  description:
    - What proved it. C(smoke) (C(passed), C(summary)), C(tuning) (C(verdict), C(summary)), C(times) (seconds). What a record lacks
      is left out.
  type: dict
  returned: always
record:
  description:
    - C(phase) (V(absent), V(switched), V(committed), V(restored)), C(at), C(reason) (why it was put back), C(under_way) (a run
      has switched and has time left), C(interrupted) (its time is over), C(damaged) (files that cannot be read).
  type: dict
  returned: always
lock:
  description:
    - Who holds the operator's lock. C(by) (C(user), C(host), C(pid), C(started), C(commit)), C(at), C(silent_s) (since its last
      sign of life; null after a reboot), C(forsaken) (why it no longer counts; empty while it may). Empty when nobody does.
  type: dict
  returned: always
unit:
  description:
    - C(there), C(ours) (this project wrote the file), C(active), C(sub), C(result), C(file) (systemd's words, empty without
      systemd), C(pid), C(digest) (of the deployment that its process carries; empty without one, null when it cannot be read),
      C(invocation_id), C(restarts) (by systemd), C(since) (UTC), C(uptime_s) (null unless active), C(model) (of a unit that is
      not ours).
  type: dict
  returned: always
answers:
  description: C(url), C(ok) (C(/health) says 200), C(said) (otherwise), C(models) (names that it lists).
  type: dict
  returned: always
front:
  description: C(there), C(active), C(gate_closed). The unit is C(<name>-front.service).
  type: dict
  returned: always
supervisor:
  description:
    - C(there), C(active) (of C(<name>-supervise.timer)), C(deeds), the last lines that C(<name>-supervise.service) said within a
      day, each with C(at) (UTC) and C(text).
  type: dict
  returned: always
node:
  description:
    - What is compared with C(facts['node']) of the record, which is C({"driver" = str, "gpus" = [str], "kernel" = str}); a key
      that the record lacks is not compared. C(driver) (version, empty when unknown), C(gpus) (names in nvidia-smi's order),
      C(kernel) (release), C(booted) (UTC).
  type: dict
  returned: always
gpus:
  description: C(count), C(utilization) (percent, mean), C(power_w) and C(limit_w) (sums), C(note) (why nvidia-smi told nothing).
  type: dict
  returned: always
engine:
  description: C(running), C(queued) (requests), C(token_usage) (0 to 1), from its metrics. Empty where it exports none.
  type: dict
  returned: always
drift:
  description:
    - What is no longer as it was committed. C(kind) (V(unit), V(process), V(front), V(release), V(model), V(node)), C(text),
      C(remedy), C(hint) (true where it may be meant or harmless, such as a file of the model that is newer than the commit).
  type: list
  elements: dict
  returned: always
seconds:
  description: How long the look took.
  type: float
  returned: always
error:
  description: Why the node could not be looked at, from the action plugin; the task does not fail, so that the page tells it.
  type: str
  returned: when the module could not run
page:
  description: Lines of the page.
  type: list
  elements: str
  returned: with O(page)
drifted:
  description: Hosts with drift, hints left out.
  type: list
  elements: str
  returned: with O(page)
"""

import base64
import calendar
import collections
import concurrent.futures
import contextlib
import csv
import glob
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import time
import urllib.parse
from collections.abc import Callable, Iterable

from ansible.module_utils import sglang_http, sglang_metrics, sglang_node
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_ports import listeners, read

PROPERTIES = (
    "Id",
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "MainPID",
    "InvocationID",
    "NRestarts",
    "ActiveEnterTimestampMonotonic",
    "UnitFileState",
    "NeedDaemonReload",
    "DropInPaths",
)
RUNS = ("active", "reloading")
SMI_TIMEOUT = 20  # seconds; nvidia-smi hangs when the driver does
COMMAND_TIMEOUT = 10
HEALTH_TIMEOUT = 5
METRICS_TIMEOUT = 2
DEEDS = 3
NAMED = 5  # files or packages that a sentence names
OWN_PORT = 30000  # SGLang's own default, for a server without record and options
# Packages whose sources are compared with their own RECORD: those that people edit.
SOURCES = ("sglang", "flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache", "sgl-kernel", "sglang-kernel")
MARK = "incomplete"

DEPLOY = "deploy.yml puts it right."
AGAIN = "If not, stop the server, delete the release and run deploy.yml, which builds and starts it anew."
SOURCE_REMEDY = f"If it is wanted, make it a patch (patches/README.md). {AGAIN}"
PACKAGE_REMEDY = f"If it is wanted, it belongs into the stack (stacks/README.md). {AGAIN}"


def drifted(kind: str, text: str, remedy: str, hint: bool = False) -> dict:
    return {"kind": kind, "text": text, "remedy": remedy, "hint": hint}


def mapping(value: object) -> dict:
    """A part of a record; empty where an older or a broken one has none."""
    return value if isinstance(value, dict) else {}


def some(names: list[str]) -> str:
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def read_through(kind: str, compare: Callable[..., list[dict]], *known: object) -> list[dict]:
    """A comparison of folders that somebody may be working on at this moment."""
    try:
        return compare(*known)
    except OSError as error:
        what = f"Not everything could be read: {error.filename}: {error.strerror}."
        return [drifted(kind, what, "Look again when nobody works on it.", hint=True)]


def seconds_of(at: object) -> float | None:
    """A record's time (UTC) as seconds of the wall clock."""
    try:
        return float(calendar.timegm(time.strptime(str(at), "%Y-%m-%dT%H:%M:%SZ")))
    except ValueError:
        return None


def utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def ask(argv: list[str], timeout: float) -> tuple[int, str]:
    """Exit status and output of a command, its errors last; -1 and why where it cannot run, or does not end in time."""
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env={**os.environ, "LC_ALL": "C"}
        )
    except OSError as error:
        return -1, f"{argv[0]}: {error.strerror}"
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        # Not waited for: a process that hangs inside a driver cannot be killed.
        process.kill()
        return -1, f"{argv[0]} did not answer within {timeout:.0f} s"
    return process.returncode, (out + err).decode(errors="replace")


# --- the unit and its process ---------------------------------------------------------------------------------------------


def shown(text: str, names: list[str]) -> dict[str, dict[str, str]]:
    """`systemctl show` of several units: one block a unit, in their order."""
    blocks = [dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in text.split("\n\n")]
    blocks = [block for block in blocks if block]
    return dict(zip(names, blocks)) if len(blocks) == len(names) else {block.get("Id", ""): block for block in blocks}


def directives(unit: str) -> dict[str, list[str]]:
    """A unit's settings by name. A variable and an option of the command are names of their own."""
    found: dict[str, list[str]] = {}
    for line in re.sub(r"\\\n\s*", " ", unit).splitlines():
        name, equals, value = line.strip().partition("=")
        if not equals or name.startswith(("#", ";")):
            continue
        if name == "Environment":
            variable, _equals, value = value.strip("\"'").partition("=")
            found.setdefault(f"Environment {variable}", []).append(value)
        elif name == "ExecStart":
            try:
                words = shlex.split(value)
            except ValueError:
                words = value.split()
            key = name
            for word in words:
                option, _equals, rest = word.partition("=")
                key = f"ExecStart {option}" if option.startswith("--") else key
                found.setdefault(key, []).append(rest if option.startswith("--") else word)
        else:
            found.setdefault(name, []).append(value.strip())
    return found


def unit_changes(before: str, after: str) -> list[str]:
    """Names of what differs between two units, without values, which may be secret."""
    old, new = directives(before), directives(after)
    return [key for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)]


def unit_drift(
    path: str, text: str, masked: bool, state: dict[str, str], entry: dict, entries: list[dict]
) -> list[dict]:
    """How the unit differs from the committed one."""
    found = []
    same = next((other.get("id") for other in entries if other["unit"] == text), "")
    if masked or state.get("LoadState") == "masked":
        found.append(drifted("unit", f"The unit is masked ({path}), so systemd will not start it.", DEPLOY))
    elif not text:
        found.append(drifted("unit", f"The unit's file {path} is gone.", DEPLOY))
    elif text != entry["unit"]:
        if same:
            what = f"The unit's file is that of deployment {same}."
        elif sglang_node.authentic(text):
            what = "The unit's file is that of a deployment which is not on record."
        elif sglang_node.HEADER not in text.split("\n", 1)[0]:
            what = f"The unit's file {path} was replaced by one that this project did not write."
        else:
            names = unit_changes(str(entry["unit"]), text)
            what = f"The unit's file was changed by hand: {some(names) or 'only comments or the order of lines'}."
        found.append(drifted("unit", what, DEPLOY))
    if not state:
        return found
    if text and state.get("UnitFileState") not in ("enabled", "enabled-runtime", "masked", "masked-runtime"):
        words = state.get("UnitFileState") or "not enabled"
        found.append(drifted("unit", f"The unit does not start at boot: it is {words}.", DEPLOY))
    # Those for all services are the administrator's business.
    drop_ins = [name for name in state.get("DropInPaths", "").split() if f"/{os.path.basename(path)}.d/" in name]
    if drop_ins:
        found.append(drifted("unit", f"A drop-in changes the unit: {some(drop_ins)}.", "deploy.yml moves it aside."))
    if not found and state.get("NeedDaemonReload") == "yes":
        what = "systemd has not read the unit's files as they are now."
        found.append(drifted("unit", what, "`systemctl daemon-reload`, then deploy.yml."))
    return found


def process_drift(digest: str | None, entry: dict, entries: list[dict], others: list[str], port: int) -> list[dict]:
    """Whether what runs is another deployment. `digest` is None when nothing runs or it cannot be read."""
    found = []
    if digest is not None and entry.get("digest") and digest != entry["digest"]:
        known = next((other for other in entries if other.get("digest") == digest), {})
        if known:
            ran = f"deployment {known.get('id', '?')}"
        else:
            ran = f"{digest}, which is not on record" if digest else "no deployment of this project"
        what = f"What the unit runs is {ran}; committed is {entry.get('id', '?')}."
        found.append(drifted("process", what, "deploy.yml restarts it as committed."))
    if others:
        what = f"Port {port} is held by {some(others)}, which the unit did not start."
        found.append(drifted("process", what, "End it; then deploy.yml."))
    return found


def options_of(words: list[str]) -> dict[str, str]:
    """Model, host and port of a server's command line. Nothing else is taken from it."""
    names = {
        **{"--model-path": "model", "--model": "model", "--served-model-name": "served"},
        **{"--host": "host", "--port": "port"},
    }
    found: dict[str, str] = {}
    for word, after in zip(words, [*words[1:], ""]):
        option, equals, value = word.partition("=")
        if option in names:
            found[names[option]] = value if equals else after
    if not found.get("port", "0").isdigit():
        del found["port"]
    if "model" in found:
        found["model"] = found.pop("served", "") or os.path.basename(found["model"].rstrip("/"))
    return found


def address_of(options: dict[str, str]) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(options.get("host", ""), options.get("host", ""))
    return f"http://{f'[{host}]' if ':' in host else host}:{options.get('port') or OWN_PORT}"


def port_of(url: str) -> int:
    try:
        return urllib.parse.urlsplit(url).port or OWN_PORT
    except ValueError:
        return OWN_PORT


def command_line(pid: int) -> list[str]:
    return read(f"/proc/{pid}/cmdline").split("\0") if pid else []


def strangers(port: int, units: set[str]) -> list[str]:
    """Processes that listen on a port and are of none of these units."""
    found = []
    for process in listeners(port):
        if not units.intersection(process.units):
            of = f" of {process.units[-1]}" if process.units else ""
            found.append(f"process {process.pid} ({process.name}){of}")
    return found


def state_of(
    active: str, sub: str, answers: bool, uptime: float | None, limit: float, known: bool, others: bool
) -> str:
    """One word for what a server does; `active` is empty without systemd."""
    if active in RUNS:
        if answers:
            return "serves"
        return "starting" if uptime is not None and uptime <= limit else "silent"
    if active == "activating":
        return "restarting" if sub == "auto-restart" else "starting"
    if active == "deactivating":
        return "stopping"
    if others:
        return "by hand"
    if active == "failed":
        return "failed"
    if answers:
        return "serves"
    return "stopped" if known else "nothing"


# --- the release ----------------------------------------------------------------------------------------------------------


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(requirements: str) -> dict[str, str]:
    """Names and versions that a release's requirements.txt pins, a wheel that is named by its address too."""
    found = re.findall(r"^([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?==([^\s;\\]+)", requirements, re.M)
    wheels = re.findall(r"^([A-Za-z0-9][\w.-]*) @ (\S+\.whl)", requirements, re.M)
    for name, address in wheels:
        parts = urllib.parse.unquote(address.rsplit("/", 1)[-1]).split("-")
        found += [(name, parts[1])] if len(parts) > 1 else []
    return {normalised(name): version for name, version in found}


def installed(site: str) -> dict[str, list[str]]:
    """Folders of what is installed (NAME-VERSION.dist-info), by normalised name. More than one is a broken environment."""
    found: dict[str, list[str]] = {}
    for entry in sorted(os.listdir(site)):
        if entry.endswith(".dist-info") and "-" in entry[:-10]:
            found.setdefault(normalised(entry.split("-", 1)[0]), []).append(entry)
    return found


def version_of(folder: str) -> str:
    return folder[: -len(".dist-info")].split("-", 1)[1]


def package_drift(site: str, pins: dict[str, str], have: dict[str, list[str]], sealed: float) -> list[str]:
    """Packages that are not as the lock says, in words; `sealed` is when the release was."""
    found = []
    for name, version in sorted(pins.items()):
        versions = [version_of(folder) for folder in have.get(name, [])]
        if versions != [version]:
            found.append(f"{name} is {' and '.join(versions) or 'gone'} (locked: {version})")
    found += [f"{name} {version_of(have[name][0])} is in no lock" for name in sorted(set(have) - set(pins))]
    for name in sorted(set(have) & set(pins)):
        # Nothing writes into this folder after an install. Two seconds, since the record is written right behind.
        if any(os.path.getmtime(os.path.join(site, folder)) > sealed + 2 for folder in have[name]):
            found.append(f"{name} was installed again")
    return found


def digest_of(path: str) -> bytes:
    """A file's sha256; empty when it cannot be read."""
    try:
        with open(path, "rb") as stream:
            return hashlib.sha256(stream.read()).digest()
    except OSError:
        return b""


def edited(site: str, folder: str, watched: Iterable[str]) -> list[str]:
    """Sources of a package that differ from its RECORD, relative to site-packages; not those that are watched anyhow."""
    found, site = [], os.path.realpath(site)
    left_out = {os.path.realpath(path) for path in watched}
    try:
        with open(os.path.join(site, folder, "RECORD"), newline="", encoding="utf-8") as stream:
            for row in csv.reader(stream):
                name, _equals, wanted = row[1].partition("=") if len(row) > 1 else ("", "", "")
                path = os.path.join(site, row[0]) if row else ""
                if name != "sha256" or not path.endswith(".py") or path in left_out:
                    continue
                if base64.urlsafe_b64encode(digest_of(path)).rstrip(b"=").decode() != wanted:
                    found.append(row[0] + ("" if os.path.exists(path) else " (gone)"))
    except OSError:
        return [f"{folder}/RECORD"]
    return found


def site_of(release: str, own: bool) -> str:
    found = sorted(glob.glob(os.path.join(glob.escape(release), "venv" if own else "", "lib/python3*/site-packages")))
    return found[0] if found else ""


def release_drift(facts: dict) -> list[dict]:
    """How a release differs from what was sealed. An environment of somebody's own has no record, only sources and patches."""
    release, python = str(facts.get("release") or ""), str(facts.get("python") or "")
    if not release:
        return []
    if not os.path.isdir(release):
        return [gone("The release", release)]
    own = not python or python == os.path.join(release, "venv/bin/python")
    site, found = site_of(release, own), []
    if (python and not os.path.exists(python)) or not site:
        return [gone("The release's environment", python or release)]
    record = sglang_node.read_json(os.path.join(release, "release.json"))
    sealed = 0.0
    if own and not record:
        found.append(drifted("release", f"{release}/release.json is gone or cannot be read.", DEPLOY))
    elif own and os.path.exists(os.path.join(release, MARK)):
        found.append(drifted("release", f"The release {release} is not sealed: it has the mark `{MARK}`.", DEPLOY))
    if own and record:
        sealed = os.path.getmtime(os.path.join(release, "release.json"))
    watched = mapping(record.get("watched"))
    patches = [mapping(patch) for patch in facts.get("patches") or []]
    wanted = {**{str(p["path"]): p.get("sha256") for p in patches if p.get("path") and p.get("sha256")}, **watched}
    changed = [path for path, digest in sorted(wanted.items()) if digest_of(path).hex() != digest]
    if changed:
        names = some([os.path.relpath(path, site) for path in changed])
        remedy = "deploy.yml builds the release anew beside it." if own else "deploy.yml applies its patches again."
        found.append(drifted("release", f"Patched files changed since they were sealed: {names}.", remedy))
    have = installed(site)
    pins = pinned(read(os.path.join(release, "requirements.txt"))) if own else {}
    if own and not pins:
        found.append(drifted("release", f"{release}/requirements.txt is gone or pins nothing.", PACKAGE_REMEDY))
    elif own:
        packages = package_drift(site, pins, have, sealed or float("inf"))
        if packages:
            found.append(drifted("release", f"Packages are not as locked: {some(packages)}.", PACKAGE_REMEDY))
    elif facts.get("sglang") and [version_of(folder) for folder in have.get("sglang", [])] != [facts["sglang"]]:
        versions = " and ".join(version_of(folder) for folder in have.get("sglang", [])) or "gone"
        what = f"sglang is {versions}, committed with {facts['sglang']}."
        found.append(drifted("release", what, "Install that version, or deploy.yml takes what is there."))
    files = [name for source in SOURCES for folder in have.get(source, []) for name in edited(site, folder, wanted)]
    if files:
        found.append(drifted("release", f"Sources were edited by hand: {some(files)}.", SOURCE_REMEDY))
    return found


def gone(what: str, path: str) -> dict:
    return drifted("release", f"{what} {path} is gone.", "deploy.yml builds it anew; then restart the server.")


# --- the model and the node -----------------------------------------------------------------------------------------------


def model_drift(path: str, at: float | None) -> list[dict]:
    """Whether the model's folder is there, and what in it is newer than the commit."""
    if not os.path.isabs(path):
        return []  # a name of a hub
    if not os.path.isdir(path):
        return [drifted("model", f"The model's folder {path} is gone.", "Bring it back; deploy.yml verifies it.")]
    found = []
    if not os.path.exists(os.path.join(path, "config.json")):
        found.append(drifted("model", f"{path} has no config.json.", "Bring it back; deploy.yml verifies it."))
    newer = []
    if at is not None:
        with os.scandir(path) as files:
            newer = sorted(file.name for file in files if file.is_file() and file.stat().st_mtime > at)
    if newer:
        what = f"Files of the model changed since the commit: {some(newer)}."
        found.append(drifted("model", what, "deploy.yml verifies them.", hint=True))
    return found


def counted(names: list[str]) -> str:
    """Names of GPUs, equal ones counted."""
    return ", ".join(f"{count} x {name}" for name, count in collections.Counter(names).items()) or "none"


def node_drift(was: dict, now: dict, note: str, booted: float, at: float | None) -> list[dict]:
    """Compare the node with the record's `node`; a key that it lacks is not compared."""
    found = []
    again = "deploy.yml looks at the node, proves the server and commits what is there now."
    names = [str(name) for name in was.get("gpus") or []]
    if names and sorted(names) != sorted(now["gpus"]):
        why = f" ({note})" if note and not now["gpus"] else ""
        what = f"The GPUs are not those of the commit: {counted(names)}; now {counted(now['gpus'])}{why}."
        found.append(
            drifted("node", what, "doctor.yml says what is known of a lost card; deploy.yml refuses what is missing.")
        )
    for key, words in (("driver", "NVIDIA's driver"), ("kernel", "The kernel")):
        # A driver that tells no version is the GPUs' matter.
        if was.get(key) and now[key] and was[key] != now[key]:
            found.append(drifted("node", f"{words} is {now[key]}, committed with {was[key]}.", again))
    if at is not None and booted > at:
        found.append(drifted("node", "The node has booted since the commit.", "", hint=True))
    return found


def number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def cards(text: str) -> list[dict]:
    """GPUs from nvidia-smi's CSV: name, driver, utilization (percent), power and its limit (W). Other lines are left out."""
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 5 and fields[0]:
            names = ("utilization", "power_w", "limit_w")
            found.append({"name": fields[0], "driver": fields[1], **dict(zip(names, map(number, fields[2:])))})
    return found


def load_of(found: list[dict], note: str) -> dict:
    """What the cards do together. Power and limit are of those that tell both."""
    busy = [card["utilization"] for card in found if card["utilization"] is not None]
    told = [card for card in found if card["power_w"] is not None and card["limit_w"] is not None]
    return {
        "count": len(found),
        "utilization": round(sum(busy) / len(busy), 1) if busy else None,
        **{key: round(sum(card[key] for card in told), 1) if told else None for key in ("power_w", "limit_w")},
        "note": note,
    }


def look_at_gpus() -> tuple[list[dict], str]:
    """The cards, and why there are none, or fewer."""
    if not shutil.which("nvidia-smi"):
        return [], "nvidia-smi is not installed"
    query = "--query-gpu=name,driver_version,utilization.gpu,power.draw,power.limit"
    code, said = ask(["nvidia-smi", query, "--format=csv,noheader,nounits"], SMI_TIMEOUT)
    trouble = [line for line in said.splitlines() if not cards(line)]
    return cards(said), "" if code == 0 else " ".join(" ".join(trouble).split())[:200]


def driver_version(found: list[dict]) -> str:
    loaded = read("/proc/driver/nvidia/version") + read("/sys/module/nvidia/version")
    known = re.search(r"\b\d{3,}(?:\.\d+)+", loaded)
    return found[0]["driver"] if found else known.group() if known else ""


# --- what it answers ------------------------------------------------------------------------------------------------------


def look_at_answers(url: str) -> dict:
    if not url:
        return {"url": "", "ok": False, "said": "", "models": []}
    code, text = sglang_http.ask(f"{url}/health", HEALTH_TIMEOUT)
    said = "" if code == 200 else f"/health says {code}" if code else text
    models: list[str] = []
    if code == 200:
        _code, listed = sglang_http.ask(f"{url}/v1/models", METRICS_TIMEOUT)
        # It may serve something else, or be too busy to say.
        with contextlib.suppress(ValueError, KeyError, TypeError):
            models = [str(model["id"]) for model in json.loads(listed)["data"]]
    return {"url": url, "ok": code == 200, "said": said, "models": models}


def look_at_engine(url: str) -> dict:
    code, text = sglang_http.ask(f"{url}/metrics", METRICS_TIMEOUT) if url else (0, "")
    state = sglang_metrics.engine_state(text) if code == 200 else {}
    return {name: state[name] for name in ("running", "queued", "token_usage") if name in state}


# --- record, lock, front, supervisor --------------------------------------------------------------------------------------


def deployment(entry: dict) -> dict:
    """What of a manifest is told: nothing of arguments and environment."""
    if not entry:
        return {}
    facts, by, at = mapping(entry.get("facts")), mapping(entry.get("by")), seconds_of(entry.get("at"))
    replica = mapping(facts.get("replica"))
    return {
        "id": str(entry.get("id", "")),
        "digest": str(entry.get("digest", "")),
        "at": str(entry.get("at", "")),
        "age_s": None if at is None else max(0, round(time.time() - at)),
        "by": {key: str(by[key]) for key in ("user", "host", "commit") if by.get(key)},
        **{key: str(facts.get(key) or "") for key in ("profile", "model", "model_path", "release", "sglang", "url")},
        "replica": {key: replica.get(key) for key in ("name", "hosts", "rank", "together")} if replica else {},
    }


def proof_of(entry: dict) -> dict:
    proof = mapping(entry.get("proof"))
    smoke, tuning, times = (mapping(proof.get(key)) for key in ("smoke", "tuning", "times"))
    found = {
        "smoke": {
            key: smoke[key] for key, kind in (("passed", bool), ("summary", str)) if isinstance(smoke.get(key), kind)
        },
        "tuning": {key: str(tuning[key]) for key in ("verdict", "summary") if key in tuning},
        "times": times,
    }
    return {key: value for key, value in found.items() if value}


def damaged(record: sglang_node.Record) -> list[str]:
    """Files of a record that are there and cannot be read."""
    files = [path for path in (record.state_file, record.lock_file) if os.path.exists(path)]
    found = [path for path in files if not sglang_node.read_json(path)]
    return found + [
        os.path.join(record.deployments, number + ".json") for number in record.ids() if not record.entry(number)
    ]


def record_of(record: sglang_node.Record, state: dict) -> dict:
    switched = state.get("phase") == "switched"
    late = switched and sglang_node.overdue(state, sglang_node.boot(), sglang_node.uptime())
    return {
        **{key: str(state.get(key) or "") for key in ("phase", "at", "reason")},
        "under_way": switched and not late,
        "interrupted": late,
        "damaged": damaged(record),
    }


def lock_of(record: sglang_node.Record) -> dict:
    held = record.lock()
    if not held:
        return {}
    boot, now = sglang_node.boot(), sglang_node.uptime()
    return {
        "by": mapping(held.get("by")),
        "at": str(held.get("at", "")),
        "silent_s": round(now - float(held.get("seen") or 0)) if held.get("boot") == boot else None,
        "forsaken": sglang_node.forsaken(held, boot, now, float("inf")),
    }


def front_of(record: sglang_node.Record, state: dict[str, str]) -> dict:
    return {
        "there": state.get("LoadState") not in (None, "not-found"),
        "active": state.get("ActiveState") in RUNS,
        "gate_closed": sglang_node.gate_closed(record),
    }


def front_drift(record: sglang_node.Record, there: bool, url: str) -> list[dict]:
    text = read(os.path.join(record.folder, sglang_node.UPSTREAM)) if there and url else ""
    wanted = f"server {url.split('://', 1)[-1]};"
    if not text or text.strip() == wanted:
        return []
    return [drifted("front", f"The front passes requests to `{text.strip()}`, expected `{wanted}`.", DEPLOY)]


def deeds(text: str) -> list[dict]:
    """Lines of journald's JSON, as time and text."""
    found = []
    for line in text.splitlines():
        try:
            entry = json.loads(line)
            found.append({"at": utc(int(entry["__REALTIME_TIMESTAMP"]) / 1e6), "text": str(entry["MESSAGE"])})
        except (ValueError, KeyError, TypeError):
            continue  # no entry, or one that is no text
    return found


def supervisor_of(name: str, state: dict[str, str]) -> dict:
    there = state.get("LoadState") not in (None, "not-found")
    said = ""
    if there and shutil.which("journalctl"):
        # Its own lines only: systemd says each time that it started it.
        words = ["--quiet", "--no-pager", "--output=json", "--since=-24h", f"--lines={DEEDS}"]
        _code, said = ask(["journalctl", *words, f"_SYSTEMD_UNIT={name}-supervise.service"], COMMAND_TIMEOUT)
    return {"there": there, "active": state.get("ActiveState") == "active", "deeds": deeds(said)}


def units_of(name: str) -> dict[str, dict[str, str]]:
    """What systemd says of the server, its front and its supervisor; empty without systemd."""
    names = [f"{name}.service", sglang_node.front(name), f"{name}-supervise.timer"]
    if not os.path.isdir("/run/systemd/system"):
        return {}
    _code, said = ask(["systemctl", "show", "-p", ",".join(PROPERTIES), "--", *names], COMMAND_TIMEOUT)
    return shown(said, names)


def unit_of(state: dict[str, str], text: str, command: list[str]) -> dict:
    pid = int(state.get("MainPID") or 0)
    began = int(state.get("ActiveEnterTimestampMonotonic") or 0) / 1e6
    uptime = time.clock_gettime(time.CLOCK_MONOTONIC) - began if state.get("ActiveState") in RUNS else None
    ours = sglang_node.HEADER in text.split("\n", 1)[0]
    return {
        "there": bool(text) or state.get("LoadState", "not-found") != "not-found",
        "ours": ours,
        "active": state.get("ActiveState", ""),
        "sub": state.get("SubState", ""),
        "result": state.get("Result", ""),
        "file": state.get("UnitFileState", ""),
        "pid": pid,
        "digest": sglang_node.running_digest(pid) if pid else None,
        "invocation_id": state.get("InvocationID", ""),
        "restarts": int(state.get("NRestarts") or 0),
        "since": "" if uptime is None else utc(time.time() - uptime),
        "uptime_s": None if uptime is None else round(uptime),
        "model": "" if ours else options_of(command).get("model", ""),
    }


def look(name: str, root: str) -> dict:
    """Everything, in one go: what waits for others (commands, addresses) waits at the same time."""
    record = sglang_node.Record(root, name)
    state, entries, entry = record.state(), record.entries(), record.last()
    facts, at = mapping(entry.get("facts")), seconds_of(entry.get("at"))
    path = sglang_node.unit_path(name)
    masked, text = sglang_node.masked(path), read(path)
    units = units_of(name)
    shown_unit = units.get(f"{name}.service", {})
    command = command_line(int(shown_unit.get("MainPID") or 0))
    unit = unit_of(shown_unit, text, command)
    url = str(facts.get("url") or "") or address_of(options_of(command))
    port = port_of(url)
    # A server that was never deployed has no port of its own: what others have on record is theirs.
    neighbours = [] if entry else glob.glob(os.path.join(glob.escape(root), "*", "deployments"))
    ours = {f"{os.path.basename(os.path.dirname(folder))}.service" for folder in neighbours}
    others = strangers(port, ours | {f"{name}.service"})
    told = record_of(record, state)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        asked_gpus = pool.submit(look_at_gpus)
        asked_answers = pool.submit(look_at_answers, url if entry or unit["active"] in RUNS or others else "")
        asked_engine = pool.submit(look_at_engine, url if unit["active"] in RUNS or others else "")
        asked_supervisor = pool.submit(supervisor_of, name, units.get(f"{name}-supervise.timer", {}))
        release = read_through("release", release_drift, facts) if entry else []
        (gpus, note), answers = asked_gpus.result(), asked_answers.result()
        engine, supervisor = asked_engine.result(), asked_supervisor.result()
    front = front_of(record, units.get(sglang_node.front(name), {}))
    booted = time.time() - sglang_node.uptime()
    node = {
        "driver": driver_version(gpus),
        "gpus": [gpu["name"] for gpu in gpus],
        "kernel": os.uname().release,
        "booted": utc(booted),
    }
    drift = []
    # Of a run that is under way, or was interrupted, unit and process are what it made of them.
    if entry and told["phase"] != "switched":
        drift += unit_drift(path, text, masked, shown_unit, entry, entries)
        drift += process_drift(unit["digest"], entry, entries, others, port)
        # Of a replica only the head tells what it serves.
        drift += model_answers(answers["models"], str(facts.get("model") or ""))
        drift += front_drift(record, front["there"], url)
    if entry:
        drift += release + read_through("model", model_drift, str(facts.get("model_path") or ""), at)
        drift += node_drift(mapping(facts.get("node")), node, note, booted, at)
    return {
        "name": name,
        "state": state_of(
            unit["active"],
            unit["sub"],
            answers["ok"],
            unit["uptime_s"],
            float(facts.get("start_timeout") or 1800),
            bool(entry) or unit["there"],
            bool(others),
        ),
        "deployment": deployment(entry),
        "proof": proof_of(entry),
        "record": told,
        "lock": lock_of(record),
        "unit": unit,
        "answers": answers,
        "front": front,
        "supervisor": supervisor,
        "node": node,
        "gpus": load_of(gpus, note),
        "engine": engine,
        "drift": drift,
    }


def model_answers(models: list[str], wanted: str) -> list[dict]:
    if not models or not wanted or wanted in models:
        return []
    return [drifted("process", f"It answers as {some(models)}, expected {wanted}.", DEPLOY)]


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "default": "sglang"},
            "root": {"type": "path", "default": sglang_node.ROOT},
            "page": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    began = time.monotonic()
    found = look(module.params["name"], module.params["root"])
    module.exit_json(changed=False, seconds=round(time.monotonic() - began, 2), **found)


if __name__ == "__main__":
    main()
