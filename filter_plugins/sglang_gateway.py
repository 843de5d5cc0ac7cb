"""Workers of a gateway from the inventory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean

# As roles/sglang_server/defaults has it.
FRONT_PORT = 8000


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
    address = str(host.get("ansible_host") or worker)
    address = f"[{address}]" if ":" in address else address
    scheme = "https" if host.get("sglang_server_front_certificate") else "http"
    model = str(host.get("sglang_model_path") or "").rstrip("/").rpartition("/")[2]
    return {
        "name": worker,
        "url": f"{scheme}://{address}:{host.get('sglang_server_front_port') or FRONT_PORT}",
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
