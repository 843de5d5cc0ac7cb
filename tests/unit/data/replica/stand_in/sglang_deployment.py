#!/usr/bin/python
"""A stand-in for the modules that work on a node: says what it was asked, and fails where a test wants that."""

from __future__ import annotations

import json
import os
import sys
import time

from ansible.module_utils.basic import AnsibleModule

SPEC = {
    name: {"type": "raw"}
    for name in (
        "state", "unit", "facts", "proof", "deployment", "reason", "drain_timeout", "proof_timeout", "read_ahead", "keep",
        "ends", "releases", "locked", "by", "because", "kill", "url", "model", "timeout", "together", "slice", "resume", "python",
        "questions", "user", "sglang", "flashinfer", "arguments", "gate", "environment", "accept", "units", "start", "files",
        "secrets", "lock_timeout", "check", "group", "key_target", "key_file", "listens", "reads", "signatures", "record", "invocation_id", "text_mib",
    )
}  # fmt: skip


BACK = 6  # seconds that the deployment before may take to start, so that its start is known by them


def main() -> None:
    module = AnsibleModule({"name": {"type": "str"}, **SPEC}, supports_check_mode=True)
    asked = {key: value for key, value in module.params.items() if value is not None}
    kind = module._name.removeprefix("sglang_")
    server = str(asked.get("name") or asked.get("unit") or asked.get("user")).removesuffix(".service")
    host, what = server.removesuffix("-supervise").removesuffix("-front"), str(asked.get("state") or kind)
    if kind == "companion":
        what = "companion"
    if module.check_mode:
        what = f"look {what}"
    if kind == "ready" and not asked.get("resume"):
        what += " back" if int(asked["timeout"]) == BACK else ""
    elif kind == "ready":
        what = "wait on"
    told = {"host": host, "what": what, "at": time.monotonic()}
    told.update({key: asked[key] for key in ("because", "kill", "deployment", "model") if key in asked})
    with open(os.environ["STAND_IN_LOG"], "a", encoding="utf-8") as log:
        log.write(json.dumps(told) + "\n")
    wish = os.environ.get("STAND_IN_WISH", "").split(",")
    if f"{host} fails {what}" in wish:
        module.fail_json(msg=f"{host} was told to fail at {what}", ended_at=time.time(), invocation_id=f"start of {host}")
    waits = kind == "ready" and int(asked["timeout"]) != BACK and f"{host} waits" in wish
    if waits and time.monotonic() - float((asked.get("resume") or told)["at"]) < 20:
        module.exit_json(ready=False, unfinished=True, resume={"at": float((asked.get("resume") or told)["at"])}, stages=[])
    restarted = what == "look switched" and f"{host} restarts" in wish or what in ("switched", "restored")
    common = {"phase": "switched", "digest": f"digest-{host}", "committed": {"id": "000004"}, "restarted": restarted}
    beside = {"url": "http://127.0.0.1:1", "model": "m", "start_timeout": BACK, "profile": "p", "at": "before"}
    common["committed"].update(beside, replica={"name": "replica_big", "rank": 0 if host == "n1" else 1})
    log = {"lines": 1, "starts": 1, "ready": False, "stage": "", "error": {}, "arguments": {}, "hits": [], "last_lines": []}
    module.exit_json(
        changed=restarted, reasons=["asked for"], running={}, seconds=1.0, stages=[], ready=True, passed=True, summary="fine",
        checks=[], log=log, text="", live={}, record={}, kernel=log, now=time.time(), **common,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
