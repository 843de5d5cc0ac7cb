#!/usr/bin/python
# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Say from the log of one start which kernels were tuned, from what, and which fell back."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: sglang_evidence
short_description: Say which kernels of a running SGLang were tuned, by its log
version_added: "0.1.0"
description:
  - A tuning file that nothing reads, an autotune that never ran, a result that is saved and not used. All three are silent where
    one looks first. This reads the log of one start and says for each tunable layer what happened, with the lines that prove it.
  - Reads a unit's journal for one start, or a log file. Changes nothing.
  - Read it after the first requests, and not only when the server is ready. Some tuning and every fallback shows with traffic.
  - It knows the lines of SGLang 0.5.8 to 0.5.23 and FlashInfer 0.6.1 to 0.7.4 (C(module_utils/sglang_evidence_log.py) lists them by
    version). Memory is bounded whatever the size of the log.
  - "Verdicts: V(tuned), ran and completed, and nothing fell back that this log can show. V(loaded), everything came from a file.
    V(partial), tuned or loaded, and yet some shapes or operations fell back, or ranks did not take part. V(fallback), defaults
    were used. V(off), by flag, by backend, by the gate or by the device. V(silent), the log cannot tell; its reason says what to
    set so that it can. Up to FlashInfer 0.6.10 a fallback is said at DEBUG only, so a tuning that ran is V(silent) there until a
    start with C(FLASHINFER_LOGGING_LEVEL=debug)."
options:
  unit:
    description: The systemd unit whose journal is read. Its present start, unless O(invocation_id) names another.
    type: str
    default: sglang.service
  invocation_id:
    description: The start, by systemd's id.
    type: str
  log:
    description: A log file on the node, in place of the journal. Of several starts in it the last one counts.
    type: path
  sglang:
    description: Version of SGLang, which no log says.
    type: str
    default: ""
  flashinfer:
    description: Version of flashinfer-python. Without it, the version in a path that the log names is taken.
    type: str
    default: ""
  arguments:
    description:
      - Arguments as the release resolved them, as M(sglang_args) returns C(resolved). What the log itself says of them comes first.
      - Used are C(moe_runner_backend), C(disable_flashinfer_autotune), C(enable_deterministic_inference), C(device), C(tp_size),
        C(pp_size), the backends, C(disable_cuda_graph) and C(disable_custom_all_reduce).
    type: dict
    default: {}
  gate:
    description: What the release's own autotune gate answers, as M(sglang_args) returns C(autotune) (C(runs), C(why)).
    type: dict
    default: {}
  environment:
    description: Environment variables of the server. C(FLASHINFER_LOGGING_LEVEL), C(FLASHINFER_AUTOTUNER_LOAD_FROM_FILE),
      C(SGLANG_MOE_CONFIG_DIR) and DeepGEMM's switches are used.
    type: dict
    default: {}
  accept:
    description: Fallbacks that are known and accepted.
    type: list
    elements: dict
    default: []
    suboptions:
      op:
        description:
          - The operation as FlashInfer names it, with V(*) and V(?), or the name of a layer.
          - V(flashinfer_autotune), by its name, accepts whatever the verdict of autotuning is. On a CPU, say.
        type: str
        required: true
      min_tokens:
        description: From how many tokens on. 0 is all. At INFO only the bucket of a call may be known, which can be smaller.
        type: int
        default: 0
      why:
        description: The reason.
        type: str
        required: true
notes:
  - Reading another user's journal needs root.
author: ["sglang-rtxpro authors (!UNKNOWN)"]
attributes:
  check_mode: {support: full, description: Reads only., details: []}
  diff_mode: {support: none, description: Reads only., details: []}
"""

EXAMPLES = r"""
- name: Which kernels are tuned?
  sglang_evidence:
    unit: sglang.service
    sglang: 0.5.23
    flashinfer: 0.7.2
    arguments: "{{ answer.resolved }}"
    gate: "{{ answer.autotune }}"
    environment: "{{ sglang_server_environment }}"
    accept:
      - op: "trtllm::fused_moe::*"
        min_tokens: 2049
        why: the dummy run of this version stops at the running requests
  register: evidence

- name: Refuse what is not proved
  ansible.builtin.assert:
    that: evidence.proved
    fail_msg: "{{ evidence.summary }}"

- name: What does this log say?
  sglang_evidence:
    log: /var/log/sglang/server.log
"""

RETURN = r"""
verdict:
  description: Of FlashInfer's autotuning as a whole.
  type: str
  returned: always
  choices: [tuned, loaded, partial, fallback, "off", silent]
proved:
  description: Whether the verdict is V(tuned) or V(loaded), or RV(explained).
  type: bool
  returned: always
explained:
  description: Whether O(accept) explains the verdict. V(partial) with all that fell back accepted, or autotuning itself accepted.
  type: bool
  returned: always
summary:
  description: The verdict and its reason in a sentence.
  type: str
  returned: always
layers:
  description:
    - C(flashinfer_autotune), C(flashinfer_jit) (modules that were compiled while the server started), C(triton_moe),
      C(triton_fp8_gemm), C(deep_gemm).
    - Each has C(verdict), as above and also V(compiled) (at the start), C(why), C(counts), C(proof) (lines, quoted), C(ranks) (rank
      to lines or, of autotuning, to C(begun), C(completed), C(seconds); empty where the log does not say ranks), C(accepted).
    - Of autotuning, C(counts) has C(begun) and C(completed) of all ranks, C(seconds) of the slowest, C(profiles) and C(operations)
      of one rank (null where this version does not say), C(tactics_failed) of all, C(configs_new), C(configs_saved),
      C(configs_loaded) of one rank, C(file_hits) and C(file_misses) of a tuning module, C(cache_hits), C(fallbacks),
      C(fallbacks_before) (before tuning, which say nothing of it), C(out_of_memory), C(revalidations_failed), C(ranks_absent).
    - Of modules compiled, C(modules), C(seconds), C(by_module) (0 where only the name is said).
  type: dict
  returned: always
fallbacks:
  description:
    - Each operation that fell back. C(op), C(calls), C(counted_by) (V(call) at DEBUG, V(profile) of warnings, once each),
      C(shapes) (how many), C(tokens) (up to 20), C(min_tokens), C(max_tokens), C(accepted) (why), C(unexplained) (tokens),
      C(explained), C(differs) (in which input it differs from what was tuned for as many tokens), C(examples).
  type: list
  elements: dict
  returned: always
fallbacks_shown:
  description: Which fallbacks this log can show. V(tuned) are those of operations that hold tuning data.
  type: str
  returned: always
  choices: [all, tuned, none, unknown]
set:
  description: Environment variables to start with so that the log shows every fallback. Empty when it does.
  type: dict
  returned: always
backends:
  description: C(attention), C(moe), C(fp4_gemm), C(fp8_gemm), C(allreduce), C(sampling), C(kv_cache_dtype) and others, as far as
    they are known, each to C(chosen), C(from) (V(log) or V(arguments)) and C(line).
  type: dict
  returned: always
cuda_graphs:
  description: C(captured), C(kinds) (each to C(captured), C(backend), C(seconds), C(gb)), C(why) (not), C(failed).
  type: dict
  returned: always
kv_cache:
  description: C(tokens), C(sizes) (as logged), C(max_running_requests).
  type: dict
  returned: always
disabled:
  description: What was switched off. C(what), C(why), C(count), C(line).
  type: list
  elements: dict
  returned: always
traffic:
  description: Batches logged since the server was ready.
  type: int
  returned: always
versions:
  description: C(sglang), C(flashinfer), as given or read; empty where unknown.
  type: dict
  returned: always
missing:
  description: What could not be read, a sentence each. A journal that was rotated away or rate limited, lines that are cut, bytes
    that are no text, no traffic yet.
  type: list
  elements: str
  returned: always
log:
  description: C(lines), C(bytes), C(starts) (in it), C(ready), and C(source) (the file, or the unit and its InvocationID).
  type: dict
  returned: always
seconds:
  description: Seconds that it took to read.
  type: float
  returned: always
"""

import contextlib
import io
import json
import subprocess
import time
from typing import Any

from ansible.module_utils import sglang_evidence_log, sglang_node
from ansible.module_utils.basic import AnsibleModule

SPEC = {
    "unit": {"type": "str", "default": "sglang.service"},
    "invocation_id": {"type": "str"},
    "log": {"type": "path"},
    "sglang": {"type": "str", "default": ""},
    "flashinfer": {"type": "str", "default": ""},
    "arguments": {"type": "dict", "default": {}},
    "gate": {"type": "dict", "default": {}},
    "environment": {"type": "dict", "default": {}},
    "accept": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "op": {"type": "str", "required": True},
            "min_tokens": {"type": "int", "default": 0, "no_log": False},
            "why": {"type": "str", "required": True},
        },
    },
}
# SD_MESSAGE_JOURNAL_DROPPED: journald says that it dropped a unit's messages.
DROPPED = "a596d6fe7bfa4994828e72309e95d61e"


class EvidenceError(Exception):
    """There is nothing to read."""


def journal(field: str, invocation: str) -> list[str]:
    """The journal of one start: what its processes said (_SYSTEMD_INVOCATION_ID), or what systemd said about it (INVOCATION_ID).

    Asked for both at once, journalctl takes twice as long for each line. --all: without it a line with a progress bar's carriage
    returns is told as "[97B blob data]".
    """
    command = ["journalctl", "--quiet", "--no-pager", "--all", "--output=short-iso-precise"]
    return [*command, f"{field}={invocation}"]


class Both:
    """Two streams one after the other."""

    def __init__(self, first: Any, then: Any) -> None:
        self.first, self.then = first, then

    def read(self, size: int) -> bytes:
        data: bytes = self.first.read(size)
        return data or self.then.read(size)


def present(unit: str) -> tuple[str, int]:
    """The InvocationID of a unit's present or last start, and when it began, in microseconds of the monotonic clock."""
    try:
        found = sglang_node.show(unit, ("InvocationID", "LoadState", "ExecMainStartTimestampMonotonic"))
    except OSError:
        raise EvidenceError("There is no systemd on the node. Name the server's log file (log).") from None
    if found.get("LoadState") in (None, "not-found"):
        raise EvidenceError(
            f"The node has no unit {unit}. Name the one that runs the server (unit), or its log file (log)."
        )
    if not found.get("InvocationID"):
        raise EvidenceError(
            f"{unit} has not been started since the node booted, so there is no log of a start. Start it first."
        )
    began = found.get("ExecMainStartTimestampMonotonic", "")
    return found["InvocationID"], int(began) if began.isdigit() else 0


def dropped(lines: str, unit: str, since: int) -> int:
    """Messages of a unit that journald says it dropped, from `journalctl --output=json`."""
    count = 0
    for line in lines.splitlines():
        with contextlib.suppress(ValueError, TypeError, KeyError):
            entry = json.loads(line)
            about = str(entry.get("MESSAGE", ""))
            if unit in about and int(entry["__MONOTONIC_TIMESTAMP"]) >= since:
                count += int(entry.get("N_DROPPED", 1))
    return count


def lost(unit: str, since: int) -> int:
    command = ["journalctl", "--quiet", "--no-pager", "--boot", "--output=json", f"MESSAGE_ID={DROPPED}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30, errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return dropped(done.stdout, unit, since)


def from_journal(invocation: str) -> sglang_evidence_log.Reader:
    about, said = (journal(field, invocation) for field in ("INVOCATION_ID", "_SYSTEMD_INVOCATION_ID"))
    try:
        # systemd's few lines first: there is one start, and they say that its beginning is there.
        first = io.BytesIO(subprocess.run(about, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False).stdout)
        with subprocess.Popen(said, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
            return sglang_evidence_log.scan(Both(first, process.stdout))
    except OSError:
        raise EvidenceError("There is no journalctl on the node. Name the server's log file (log).") from None


def from_file(path: str) -> sglang_evidence_log.Reader:
    try:
        with open(path, "rb") as stream:
            return sglang_evidence_log.scan(stream)
    except OSError as error:
        raise EvidenceError(f"The log {path} cannot be read: {error.strerror}. Correct log.") from None


def evidence(params: dict) -> dict:
    """Everything that is returned but the time it took."""
    known = sglang_evidence_log.Known(
        params["sglang"],
        params["flashinfer"],
        params["arguments"],
        params["gate"],
        {name: str(value) for name, value in params["environment"].items()},
        params["accept"],
    )
    if params["log"]:
        told = sglang_evidence_log.judge(from_file(params["log"]), known)
        told["log"]["source"] = params["log"]
        return told
    unit, invocation = params["unit"], params["invocation_id"]
    since = 0
    if not invocation:
        invocation, since = present(unit)
    told = sglang_evidence_log.judge(from_journal(invocation), known)
    told["log"]["source"] = f"{unit} {invocation}"
    if not told["log"]["lines"]:
        told["missing"] = [
            f"The journal has nothing of this start of {unit} ({invocation}): it was rotated away, or may not be read by this user."
        ]
    count = lost(unit, since)
    if count:
        told["missing"].append(
            f"journald dropped {count} messages of {unit} (rate limit); LogRateLimitIntervalSec=0 in the unit keeps them."
        )
    return told


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    began = time.monotonic()
    try:
        told = evidence(module.params)
    except EvidenceError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, seconds=round(time.monotonic() - began, 2), **told)


if __name__ == "__main__":
    main()
