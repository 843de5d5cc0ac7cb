"""Look at a node of a replica and measure its clock; judge all of its nodes together, or say which failed first."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils import sglang_replica as replicas

# What is registered on each host.
LOOK = "__sglang_server_replica_look"
NODE = "__gpu_preflight_node"
DOCTOR = "__sglang_doctor_told"


def registered(hostvars: Mapping[str, Any], hosts: list[str], name: str) -> dict[str, Any]:
    return {host: hostvars[host].get(name) or {} for host in hosts}


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        task_vars, args = task_vars or {}, dict(self._task.args)
        replica, hostvars = args["replica"], task_vars["hostvars"]
        if boolean(args.get("judge", False)):
            nodes = registered(hostvars, replica["hosts"], NODE)
            gpus = {host: len(node.get("gpus") or []) for host, node in nodes.items()}
            problems = replicas.judged(replica, registered(hostvars, replica["hosts"], LOOK), gpus)
            result.update(changed=False, failed=bool(problems), problems=problems)
            if problems:
                result["msg"] = f"{task_vars['inventory_hostname']}: {' '.join(problems)}"
            return result
        if boolean(args.get("first", False)):
            told = registered(hostvars, replica["hosts"], DOCTOR)
            host, text = replicas.first(replica, told)
            summary = (told.get(host) or {}).get("summary") or ""
            lines = [line for line in (text, f"Its diagnosis: {summary}" if summary else "") if line]
            apart = replicas.clocks(replica, told) if all("clock_offset_s" in one for one in told.values()) else ""
            for line in [*lines, *([apart] if apart and lines else [])]:
                self._display.display(line)
            result.update(changed=False, host=host, text=text)
            return result
        before = time.time()
        look = self._execute_module(module_name="sglang_replica", module_args=args, task_vars=task_vars)
        after = time.time()
        if "now" in look:
            look["clock_offset_s"] = round(look["now"] - (before + after) / 2, 3)
            look["clock_within_s"] = round((after - before) / 2, 3)
        result.update(look)
        return result
