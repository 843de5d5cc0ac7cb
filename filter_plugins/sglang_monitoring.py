"""What Prometheus scrapes, from what the inventory says of the hosts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.module_utils.parsing.convert_bool import boolean

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils import sglang_inventory, sglang_keys
from ansible.module_utils.sglang_inventory import place

ENGINE, NODE, GATEWAY, DCGM = "sglang-engine", "sglang-node", "sglang-gateway", "sglang-dcgm"
KEY_REMEDY = (
    "Set sglang_server_front_metrics_keys for the nodes and sglang_monitoring_key for the monitoring hosts to one key of a vault, "
    "made with `openssl rand -hex 32`, and deploy the nodes."
)
LOOPBACK = re.compile(r"127\.|::1$|localhost$")


def sglang_scrape_targets(wanted: dict[str, Any], hostvars: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """`jobs` of scrape_configs (`name`, `key`: whether they need it, `targets`), and `problems`, a sentence each.

    Engines listen on loopback: from outside they are reached through their front alone, and so is the node exporter beside it. A
    target has the labels job and node; what of a job needs another way than the rest is a job of another name, with the same label.
    """
    jobs: dict[tuple[str, bool], list[dict[str, Any]]] = {}
    problems: list[str] = []
    key, here = wanted["key"], wanted["here"]
    nodes: set[str] = set()

    def address(host: str) -> str:
        return sglang_inventory.address(host, hostvars[host])

    def add(job: str, host: str, target: str, keyed: bool = False, **more: str) -> None:
        labels = {"job": job, "node": host, **more}
        jobs.setdefault((job, keyed), []).append({"targets": [target], "labels": labels})

    def add_node(host: str, target: str, keyed: bool = False, **more: str) -> None:
        # Two servers of one node are two hosts of the inventory with one address.
        if address(host) not in nodes:
            nodes.add(address(host))
            add(NODE, host, target, keyed, **more)

    for host in [*wanted["engines"], *wanted["gateways"]]:
        if host not in hostvars:
            problems.append(f"{host} is not in the inventory.")
    for host in [host for host in wanted["engines"] if host in hostvars]:
        values = hostvars[host]
        own = host == here or address(host) == address(here)
        port = values.get("sglang_monitoring_node_port", wanted["node_port"])
        opens = values.get("sglang_server_front_metrics_keys") or []
        if boolean(values.get("sglang_server_front", False)) and (opens or not own):
            if not opens:
                problems.append(f"The front of {host} passes no metrics on. {KEY_REMEDY}")
            elif not key:
                problems.append(f"The front of {host} wants a key, and there is no sglang_monitoring_key. {KEY_REMEDY}")
            elif key not in opens:
                problems.append(
                    f"sglang_monitoring_key is none of the sglang_server_front_metrics_keys of {host}. {KEY_REMEDY}"
                )
            scheme, front = sglang_inventory.front(host, values)
            add(ENGINE, host, front, True, __scheme__=scheme)
            add_node(host, front, True, __scheme__=scheme, __metrics_path__="/node/metrics")
        elif own:
            add(ENGINE, host, place("127.0.0.1", values.get("sglang_server_port", 30000)))
            add_node(host, place("127.0.0.1", port))
        else:
            problems.append(
                f"The engine of {host} listens on its node alone, with no front before it. Set sglang_server_front to true. "
                f"{KEY_REMEDY}"
            )
        if int(values.get("sglang_monitoring_dcgm_port") or 0):
            add(DCGM, host, place(address(host), values["sglang_monitoring_dcgm_port"]))
    for host in [host for host in wanted["gateways"] if host in hostvars]:
        values = hostvars[host]
        # As the role sglang_gateway has them by default.
        listens = str(values.get("sglang_gateway_metrics_host", "127.0.0.1"))
        own = host == here or address(host) == address(here)
        if LOOPBACK.match(listens) and not own:
            problems.append(
                f"The metrics of the gateway {host} listen on {listens}. Set sglang_gateway_metrics_host to an address that the "
                "monitoring hosts reach, such as 0.0.0.0 behind a firewall since they need no key, and run gateway.yml."
            )
        reached = address(host) if listens in ("0.0.0.0", "::") else listens
        there = "127.0.0.1" if own else address(host)
        add(GATEWAY, host, place(reached, values.get("sglang_gateway_metrics_port", 29000)))
        add_node(host, place(there, values.get("sglang_monitoring_node_port", wanted["node_port"])))
    if not jobs and not problems:
        problems.append("There is nothing to watch: the groups gpu_nodes and gateways are empty.")
    wrong = sglang_keys.fault(key) if key else ""
    if wrong:
        problems.append(f"sglang_monitoring_key {wrong}.")
    taken = {job for job, keyed in jobs if keyed}
    return {
        "jobs": [
            {"name": job if keyed or job not in taken else f"{job}-direct", "key": keyed, "targets": targets}
            for (job, keyed), targets in jobs.items()
        ],
        "problems": list(dict.fromkeys(problems)),
    }


class FilterModule:
    """Filters by name."""

    def filters(self) -> dict[str, Any]:
        return {"sglang_scrape_targets": sglang_scrape_targets}
