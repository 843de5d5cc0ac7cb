#!/usr/bin/python
# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Read what a node knows of a failed or slow server: its journal, the kernel's, its record, its GPUs at work."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: sglang_doctor
short_description: Diagnose a failed or slow SGLang server
version_added: "0.1.0"
description:
  - Reads a unit's journal or a log file on the node, kernel messages, the deployment's record and what the GPUs do at the
    moment, in one round trip, and looks for the lines that rules with a C(signature) know (C(rules/README.md)). Changes nothing.
  - The action plugin of this name sends the rules, turns hits into findings with cause and remedy, and shows a report. With
    O(src) it reads a log on the controller instead, and touches no node.
  - A server that this project did not deploy is read alike, from its unit or its log.
options:
  unit:
    description: The systemd unit whose journal is read.
    type: str
    default: sglang.service
  log:
    description: A log file on the node, in place of the journal.
    type: path
  src:
    description:
      - For the action plugin. A log on the controller, or an archive that O(bundle) wrote. Plain, with journald's, Docker's or
        Kubernetes' prefixes, or journald's JSON.
    type: path
  invocation_id:
    description: Only this start of the unit, by systemd's id.
    type: str
  signatures:
    description: For the module. What to look for; the action plugin sends it.
    type: list
    elements: dict
    default: []
  record:
    description: Folder of the server's record.
    type: path
    default: /var/lib/sglang/sglang
  text_mib:
    description: For the module. How much of the log's end to return as text, in MiB.
    type: int
    default: 0
  bundle:
    description:
      - For the action plugin. Archive (.tar.gz) to write on the controller for a bug report. Secrets, host names, addresses
        and prompts are taken out, and what was is counted in it.
    type: path
  also:
    description: For the action plugin. Sentences to show below the findings, such as those of M(sglang_plan).
    type: list
    elements: str
  report:
    description: For the action plugin. Show the report.
    type: bool
    default: true
author: ["sglang-rtxpro authors (!UNKNOWN)"]
attributes:
  check_mode: {support: full, description: Reads only., details: []}
  diff_mode: {support: none, description: Reads only., details: []}
"""

EXAMPLES = r"""
- name: Why did it fail?
  sglang_doctor:
    unit: sglang.service

- name: What does this log say?
  sglang_doctor:
    src: /tmp/pasted.log
"""

RETURN = r"""
findings:
  description:
    - Best first. C(id) (of the rule), C(kind) (V(cause), V(consequence), V(slow), V(benign)), C(severity), C(cause), C(remedy),
      C(line) (quoted), C(number) (of the line, from 1), C(count), C(rank), C(stage), C(earlier) (starts ago), C(foreseen)
      (whether a plan says it before the start), C(sources), C(confidence).
  type: list
  elements: dict
  returned: always
unexplained:
  description: Where no rule knows the failure. C(error), C(lines), C(stage), C(near) (ids of rules that are most like it).
  type: dict
  returned: always
summary:
  description: The first finding in a sentence or a few; empty when there is none.
  type: str
  returned: always
log:
  description: What was read. C(lines), C(bytes), C(starts), C(stage), C(ready), C(error), C(arguments), C(hits).
  type: dict
  returned: always
kernel:
  description: The same of kernel messages, with C(source) (how they were read).
  type: dict
  returned: when a node was read
live:
  description:
    - C(gpus), one entry a GPU with C(utilization) (percent), C(power_w) and C(limit_w), medians of three looks within 2 s.
    - C(metrics), of the engine's own where the record says where it answers. C(running), C(queued), C(token_usage),
      C(cache_hit_rate), C(retracted).
  type: dict
  returned: when a node was read
record:
  description: C(profile), C(release), C(at), C(sglang) of the last committed deployment; empty when this project has none there.
  type: dict
  returned: when a node was read
ended_at:
  description: Seconds of the node's clock since 1970 when a main process of the unit last ended; null when the journal has none.
  type: float
  returned: when a node was read
now:
  description: Seconds of the node's clock since 1970, when it had been read.
  type: float
  returned: when a node was read
clock_offset_s:
  description: Seconds that the node's clock is ahead of the controller's, from RV(now).
  type: float
  returned: when a node was read, by the action plugin
clock_within_s:
  description: How far RV(clock_offset_s) may be wrong.
  type: float
  returned: when a node was read, by the action plugin
text:
  description: The end of the log.
  type: str
  returned: when O(text_mib) is greater than 0
"""

import io
import json
import os
import statistics
import subprocess
import time

from ansible.module_utils import sglang_diagnose, sglang_http, sglang_metrics, sglang_node
from ansible.module_utils.basic import AnsibleModule

# nvidia-smi hangs when the driver does, and a doctor must not.
SMI_TIMEOUT = 20
JOURNAL_TIMEOUT = 30


def journal(unit: str, invocation: str) -> list[str]:
    base = ["journalctl", "--quiet", "--no-pager", "--output=short-iso"]
    # A unit's own lines, and systemd's about it; of one start by its id, which both carry.
    if invocation:
        return [*base, f"_SYSTEMD_INVOCATION_ID={invocation}", "+", f"INVOCATION_ID={invocation}"]
    return [*base, f"--unit={unit}"]


# systemd's own kind of message, SD_MESSAGE_UNIT_PROCESS_EXIT (systemd/sd-messages.h).
PROCESS_EXIT = "98e322203f7a4ed290d09fe03c09fe15"


def last_end(text: str) -> float | None:
    """When the newest entry of journald's JSON was, in seconds since 1970."""
    try:
        return int(json.loads(text.strip() or "{}")["__REALTIME_TIMESTAMP"]) / 1e6
    except (ValueError, KeyError, TypeError):
        return None


def ended_at(unit: str) -> float | None:
    """When a main process of the unit last ended, as systemd noted it."""
    command = [
        "journalctl",
        "--quiet",
        "--no-pager",
        "--output=json",
        "--output-fields=MESSAGE",
        "--reverse",
        "--lines=1",
    ]
    try:
        done = subprocess.run(
            [*command, f"UNIT={unit}", f"MESSAGE_ID={PROCESS_EXIT}"],
            capture_output=True,
            text=True,
            timeout=JOURNAL_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return last_end(done.stdout)


def scan_command(command: list[str], signatures: list[dict], source: str, text_mib: int = 0) -> dict:
    """Scan what a command prints, without holding it."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        stream = sglang_diagnose.Tail(process.stdout, text_mib)
        told = sglang_diagnose.scan(stream, signatures, source)
    return {**told, "text": stream.text()} if text_mib else told


def kernel(signatures: list[dict]) -> dict:
    """Kernel messages of this boot: from the journal, else from the ring buffer."""
    commands = (
        ["journalctl", "--quiet", "--no-pager", "--dmesg", "--boot", "--output=short-iso"],
        ["dmesg", "--time-format=iso"],
    )
    for command in commands:
        try:
            told = scan_command(command, signatures, "kernel")
        except OSError:
            continue
        if told["lines"]:
            return {**told, "source": command[0]}
    return {**sglang_diagnose.scan(io.BytesIO(), signatures, "kernel"), "source": ""}


def rows(text: str) -> list[tuple[int, float, float]]:
    """Utilization (percent), power and its limit (W) of each GPU, from nvidia-smi's CSV; a field that is no number is 0."""
    found = []
    for line in text.splitlines():
        fields = []
        for field in line.split(","):
            try:
                fields.append(float(field))
            except ValueError:
                fields.append(0.0)
        if len(fields) == 3:
            found.append((int(fields[0]), fields[1], fields[2]))
    return found


# Of the engine's gauges, what a diagnosis speaks of.
METRICS = ("running", "queued", "token_usage", "cache_hit_rate", "retracted")


def asked(url: str) -> dict:
    """The engine's gauges; empty where it does not answer or was started without them."""
    status, page = sglang_http.ask(f"{url}/metrics", 5)
    state = sglang_metrics.engine_state(page) if status == 200 else {}
    return {name: state[name] for name in METRICS if name in state}


def live(url: str) -> dict:
    """What the GPUs and the engine do at the moment."""
    engine = asked(url) if url else {}
    looks = []
    query = ["nvidia-smi", "--query-gpu=utilization.gpu,power.draw,power.limit", "--format=csv,noheader,nounits"]
    for number in range(3):
        try:
            done = subprocess.run(query, capture_output=True, text=True, timeout=SMI_TIMEOUT, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return {"gpus": [], "metrics": engine}
        looks.append(rows(done.stdout) if done.returncode == 0 else [])
        if number < 2:
            time.sleep(0.7)
    count = min(len(look) for look in looks)
    names = ("utilization", "power_w", "limit_w")
    return {
        "gpus": [
            {name: statistics.median(look[gpu][place] for look in looks) for place, name in enumerate(names)}
            for gpu in range(count)
        ],
        "metrics": engine,
    }


def recorded(folder: str) -> dict:
    """The last committed deployment, as far as a diagnosis wants it."""
    found = sglang_node.Record(*os.path.split(folder)).last()
    facts = found.get("facts") or {}
    names = ("profile", "release", "sglang", "url")
    return {"at": found.get("at", ""), **{key: facts.get(key, "") for key in names}} if found else {}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "unit": {"type": "str", "default": "sglang.service"},
            "log": {"type": "path"},
            "src": {"type": "path"},
            "invocation_id": {"type": "str"},
            "signatures": {"type": "list", "elements": "dict", "default": []},
            "record": {"type": "path", "default": "/var/lib/sglang/sglang"},
            "text_mib": {"type": "int", "default": 0},
            "bundle": {"type": "path"},
            "also": {"type": "list", "elements": "str"},
            "report": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    signatures, log = module.params["signatures"], module.params["log"]
    if log:
        try:
            with open(log, "rb") as stream:
                tail = sglang_diagnose.Tail(stream, module.params["text_mib"])
                told = sglang_diagnose.scan(tail, signatures)
        except OSError as error:
            module.fail_json(msg=f"The log {log} cannot be read: {error.strerror}. Correct sglang_doctor_node_log.")
        told["text"] = tail.text()
    else:
        try:
            command = journal(module.params["unit"], module.params["invocation_id"] or "")
            told = scan_command(command, signatures, "log", module.params["text_mib"])
        except OSError:
            module.fail_json(
                msg="There is no journalctl on the node. Name the server's log file with sglang_doctor_node_log."
            )
        if not told["lines"] and not module.params["invocation_id"]:
            module.fail_json(
                msg=f"The journal has nothing of {module.params['unit']}. Name the unit with sglang_doctor_unit, or a log file on "
                "the node with sglang_doctor_node_log; reading the journal of others needs root."
            )
    text, record = told.pop("text", ""), recorded(module.params["record"])
    module.exit_json(
        changed=False,
        log=told,
        text=text,
        kernel=kernel(signatures),
        live=live(record.get("url", "")),
        record=record,
        ended_at=None if log else ended_at(module.params["unit"]),
        now=time.time(),
    )


if __name__ == "__main__":
    main()
