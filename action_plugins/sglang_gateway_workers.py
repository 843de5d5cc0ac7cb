"""Refuse a gateway whose workers cannot be one, from the inventory alone."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import ansible.module_utils
from ansible.module_utils.common.yaml import yaml_load
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils import sglang_keys

Worker = dict[str, Any]


def release_of(stack: str, root: Path) -> str:
    """The version of SGLang that a stack brings; empty where it is not one of this project's."""
    file = root / "stacks" / stack / "stack.yml"
    return str(yaml_load(file.read_text(encoding="utf-8")).get("sglang") or "") if stack and file.is_file() else ""


def address_problem(worker: Worker) -> str:
    """What is wrong with an address that somebody wrote; empty for a good one."""
    name, parts = worker["name"], urlsplit(worker["url"])
    try:
        port = parts.port
    except ValueError:
        port = None
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or not port
        or parts.path
        or parts.query
        or parts.username
    ):
        return f"The worker {name} is no address of a front. Expected http:// or https://, a host and a port and no path: http://192.0.2.10:8000."
    return ""


def shared(workers: list[Worker], key: Callable[[Worker], str]) -> dict[str, list[str]]:
    """Names of workers by what they have in common; what has nothing is left out."""
    found: dict[str, list[str]] = {}
    for worker in workers:
        if key(worker):
            found.setdefault(key(worker), []).append(worker["name"])
    return found


def spoken(found: dict[str, list[str]]) -> str:
    return "; ".join(f"{what}: {', '.join(names)}" for what, names in sorted(found.items()))


def near(url: str) -> bool:
    """Whether an address is the host's own, so that no network is between."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def judged(workers: list[Worker], key: str, mixed: bool, root: Path = ROOT) -> tuple[list[str], list[str]]:
    """Everything that is wrong, and warnings."""
    if not workers:
        return [
            "The gateway has no worker: sglang_gateway_workers is empty, as is the group gpu_nodes of this inventory. Add nodes "
            "to the group, or name their fronts in sglang_gateway_workers."
        ], []
    wrong = [
        f"The worker {worker['name']} is no host of this inventory. Correct sglang_gateway_workers, or give its address: http://HOST:PORT."
        for worker in workers
        if not worker["known"] and not worker["url"]
    ]
    there = [worker for worker in workers if worker["url"]]
    wrong += [text for text in map(address_problem, there) if text]
    wrong += [
        f"The worker {worker['name']} has no front, so that nobody reaches its engine. Set sglang_server_front: true with "
        "sglang_server_front_keys for it and deploy it."
        for worker in there
        if not worker["front"]
    ]
    wrong += [
        f"The workers {' and '.join(names)} have one address: {url}. Each needs its own: correct "
        "ansible_host or sglang_server_front_port."
        for url, names in shared(there, lambda worker: worker["url"]).items()
        if len(names) > 1
    ]
    models = shared(there, lambda worker: worker["model"])
    if len(models) > 1:
        wrong.append(
            f"The workers serve different models ({spoken(models)}). A gateway has one model, since requests go to any of "
            "them. Name those of one model in sglang_gateway_workers."
        )
    versions = shared(there, lambda worker: release_of(worker["stack"], root))
    if len(versions) > 1 and not mixed:
        wrong.append(
            f"The workers have different versions of SGLang in the inventory ({spoken(versions)}). Give them one "
            "sglang_env_stack, or accept it for a while with -e sglang_gateway_mixed=true."
        )
    wrong += key_problems(there, key)
    warnings = [
        f"The key of the workers goes in clear text over the network to {worker['name']} ({worker['url']}). Give its "
        "front a certificate (sglang_server_front_certificate), or see that nobody else is on that network."
        for worker in there
        if key and worker["url"].startswith("http:") and not near(worker["url"])
    ]
    return wrong, warnings


def key_problems(workers: list[Worker], key: str) -> list[str]:
    if not key:
        far = [worker["name"] for worker in workers if not near(worker["url"])]
        if not far:
            return []
        return [
            f"There is no key for the workers ({', '.join(far)}), and a front that others reach wants one. Set "
            "sglang_gateway_worker_key to one of their sglang_server_front_keys."
        ]
    wrong = sglang_keys.fault(key)
    if wrong:
        return [f"sglang_gateway_worker_key {wrong}."]
    strange = [worker["name"] for worker in workers if worker["keys"] and key not in worker["keys"]]
    if strange:
        return [
            f"The key of the gateway is none of the sglang_server_front_keys of {', '.join(strange)}. The router has one key "
            "for all workers: add it to theirs, or set sglang_gateway_worker_key to one that all of them have."
        ]
    return []


def own_problems(host: str, keyed: bool, ports: dict[str, Any]) -> list[str]:
    """What is wrong with the gateway itself."""
    wrong = []
    if not keyed and not near(f"http://{f'[{host}]' if ':' in host else host}"):
        wrong.append(
            f"The gateway listens on {host} and has no key, so that everybody who reaches it would be served. Set "
            "sglang_gateway_keys (from a vault) or sglang_gateway_key_file (on its host), or sglang_gateway_host to 127.0.0.1."
        )
    used = shared([{"name": name, "port": str(port)} for name, port in ports.items()], lambda entry: entry["port"])
    return wrong + [
        f"{' and '.join(names)} are both {port}; each needs its own." for port, names in used.items() if len(names) > 1
    ]


class ActionModule(ActionBase):
    """Fails with everything that is wrong at once."""

    _requires_connection = False
    _VALID_ARGS = frozenset({"workers", "key", "mixed", "host", "keyed", "ports"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        args = self._task.args
        host = (task_vars or {}).get("inventory_hostname", "")
        wrong, warnings = judged(args["workers"] or [], str(args.get("key") or ""), boolean(args.get("mixed", False)))
        keyed = boolean(args.get("keyed", True))
        wrong = own_problems(str(args.get("host", "127.0.0.1")), keyed, args.get("ports") or {}) + wrong
        result["warnings"] = warnings
        if wrong:
            result.update(failed=True, msg=f"{host}: {' '.join(wrong)}")
        else:
            result.update(changed=False, urls=[worker["url"] for worker in args["workers"]])
        return result
