"""Workers of a gateway from the inventory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.module_utils.parsing.convert_bool import boolean

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils import sglang_inventory


def sglang_gateway_workers(workers: list[str], hostvars: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the inventory says of each worker, a host's name or the URL of a front: name, url, known, front, keys, model, stack.

    Of several nodes that serve one model together only the first, which has the front, is a worker.
    """
    return [described(worker, hostvars) for worker in map(str, workers) if not behind(worker, hostvars)]


def behind(worker: str, hostvars: Mapping[str, Any]) -> bool:
    """Whether a host serves through another one, the head of its replica."""
    replica = hostvars[worker].get("sglang_server_replica") if worker in hostvars else None
    return bool(isinstance(replica, Mapping) and replica.get("rank"))


def described(worker: str, hostvars: Mapping[str, Any]) -> dict[str, Any]:
    own: dict[str, Any] = {"name": worker, "known": False, "front": True, "keys": [], "model": "", "stack": ""}
    if "://" in worker:
        return {**own, "url": worker.rstrip("/")}
    if worker not in hostvars:
        return {**own, "url": ""}
    host = hostvars[worker]
    model = str(host.get("sglang_model_path") or "").rstrip("/").rpartition("/")[2]
    return {
        "name": worker,
        "url": "://".join(sglang_inventory.front(worker, host)),
        "known": True,
        "front": boolean(host.get("sglang_server_front") or False, strict=False),
        "keys": list(host.get("sglang_server_front_keys") or []),
        "model": str(host.get("sglang_server_model_name") or model),
        "stack": str(host.get("sglang_env_stack") or ""),
    }


class FilterModule:
    """Filters by name."""

    def filters(self) -> dict[str, Any]:
        return {"sglang_gateway_workers": sglang_gateway_workers}
