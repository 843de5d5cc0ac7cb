"""One model over several nodes: what of a host's replica stands in units and messages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.errors import AnsibleFilterError

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils import sglang_replica as replicas


def of_hosts(hostvars: Mapping[str, Any]) -> replicas.Read:
    """Reads a variable of a host; None where it has none."""
    return lambda host, name: hostvars[host].get(name) if host in hostvars else None


def sglang_replica(groups: Mapping[str, Any], host: str, hostvars: Mapping[str, Any]) -> dict[str, Any]:
    """The replica that a host is part of; empty for a server of its own."""
    try:
        return replicas.describe(host, groups, of_hosts(hostvars))
    except replicas.ReplicaError as error:
        raise AnsibleFilterError(str(error)) from error


def sglang_replica_behind(replica: Mapping[str, Any], hostvars: Mapping[str, Any], stage: str) -> list[str]:
    """Hosts of a replica that did not come as far as this one."""
    return [host for host in replica["hosts"] if hostvars[host].get("__sglang_server_reached") != stage]


def sglang_replica_because(replica: Mapping[str, Any], host: str, hostvars: Mapping[str, Any]) -> list[str]:
    """Why a host's server has to be restarted though it runs as wanted: another of its replica is."""
    found = []
    for other in replica["hosts"]:
        look = hostvars[other].get("__sglang_server_member") or {}
        if other != host and look.get("restarted"):
            found.append(f"{other} of {replica['name']} is restarted ({'; '.join(look['reasons'])})")
    return found


def sglang_replica_first(replica: Mapping[str, Any], hostvars: Mapping[str, Any]) -> dict[str, str]:
    """The `host` of a replica whose server ended first, and a `text` that says so; both empty when none did."""
    ends = {}
    for host in replica["hosts"]:
        ready = hostvars[host].get("__sglang_server_ready") or {}
        look = hostvars[host].get("__sglang_server_replica_look") or {}
        ends[host] = {"ended_at": ready.get("ended_at"), "clock_offset_s": look.get("clock_offset_s")}
    host, text = replicas.first(replica, ends)
    return {"host": host, "text": text}


class FilterModule:
    """Filters by name."""

    def filters(self) -> dict[str, Any]:
        return {
            "sglang_replica": sglang_replica,
            "sglang_replica_because": sglang_replica_because,
            "sglang_replica_behind": sglang_replica_behind,
            "sglang_replica_first": sglang_replica_first,
        }
