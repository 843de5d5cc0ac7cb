#!/usr/bin/python
# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""What a node is, as far as a deployment depends on it."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gpu_info
short_description: Facts of a node that serves models
version_added: "0.1.0"
description:
  - Reads the node's GPUs, memory, disks, service manager and the owner of a port in one round trip. Changes nothing.
  - A node without a GPU is described like any other; C(gpus_note) says why none was seen.
options:
  port:
    description: TCP port to look up. Who listens on it is returned as RV(port_owner).
    type: int
  paths:
    description: Paths whose file systems are measured. A path that does not exist yet stands for its nearest parent; one that is
      not absolute is left out.
    type: list
    elements: path
    default: []
author: [the sglang-rtxpro authors]
attributes:
  check_mode: {support: full, description: Reads only., details: []}
  diff_mode: {support: none, description: Reads only., details: []}
"""

EXAMPLES = r"""
- name: Look at the node
  gpu_info:
    port: 30000
    paths: [/opt/sglang, /var/lib/sglang]
  register: node
"""

RETURN = r"""
gpus:
  description: One entry a GPU, in nvidia-smi's order. C(index), C(name), C(memory_mib), C(driver), C(compute_capability).
  type: list
  elements: dict
  returned: always
gpus_note:
  description: Why RV(gpus) is empty. Empty when there are GPUs.
  type: str
  returned: always
uid:
  description: Effective user id that modules run with on the node; 0 is root.
  type: int
  returned: always
machine:
  description: Architecture, as C(uname -m) says.
  type: str
  returned: always
systemd:
  description: Version of systemd; 0 where it is not the service manager.
  type: int
  returned: always
memory_mib:
  description: Main memory in MiB, C(total) and C(available).
  type: dict
  returned: always
shm_mib:
  description: Size of /dev/shm in MiB.
  type: int
  returned: always
disk_free_mib:
  description: Free space in MiB for each of O(paths).
  type: dict
  returned: always
port_owner:
  description: Who listens on O(port). C(pid), C(command), C(unit) (systemd unit, may be empty). Empty when nobody does.
  type: dict
  returned: always
"""

import os
import re

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_ports import listeners, read

QUERY = ["index", "name", "memory.total", "driver_version", "compute_cap"]


def parse_gpus(text: str) -> list[dict]:
    """Rows of `nvidia-smi --query-gpu=… --format=csv,noheader,nounits`; a field that is no number becomes None."""
    rows = []
    for line in text.strip().splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != len(QUERY):
            continue
        index, name, memory, driver, capability = fields
        rows.append(
            {
                "index": int(index) if index.isdigit() else None,
                "name": name,
                "memory_mib": int(memory) if memory.isdigit() else None,
                "driver": driver,
                "compute_capability": capability if re.fullmatch(r"\d+\.\d+", capability) else None,
            }
        )
    return rows


def unit_of(cgroup: str) -> str:
    """The systemd service in the text of /proc/PID/cgroup, if any."""
    found = re.findall(r"/([^/\n]+\.service)", cgroup)
    return found[-1] if found else ""


def meminfo(text: str) -> dict[str, int]:
    found = dict(re.findall(r"^(MemTotal|MemAvailable):\s+(\d+) kB$", text, re.M))
    return {"total": int(found.get("MemTotal", 0)) // 1024, "available": int(found.get("MemAvailable", 0)) // 1024}


def systemd_version(text: str) -> int:
    found = re.match(r"systemd (\d+)", text)
    return int(found.group(1)) if found else 0


def port_owner(port: int) -> dict:
    for process in listeners(port):
        command = read(f"/proc/{process.pid}/cmdline").replace("\0", " ").strip() or process.name
        return {"pid": process.pid, "command": command[:200], "unit": unit_of(process.cgroups)}
    return {}


def free_mib(path: str) -> int:
    while not os.path.exists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    stats = os.statvfs(path)
    return stats.f_bavail * stats.f_frsize >> 20


def main() -> None:
    module = AnsibleModule(
        argument_spec={"port": {"type": "int"}, "paths": {"type": "list", "elements": "path", "default": []}},
        supports_check_mode=True,
    )
    gpus, note = [], "nvidia-smi is not installed"
    smi = module.get_bin_path("nvidia-smi")
    if smi:
        code, out, err = module.run_command([smi, "--query-gpu=" + ",".join(QUERY), "--format=csv,noheader,nounits"])
        gpus = [] if code else parse_gpus(out)
        note = "" if gpus else f"nvidia-smi sees no GPU: {(err or out).strip()[:300]}"
    systemctl = module.get_bin_path("systemctl")
    # systemctl alone may be there without systemd as the service manager, as in a container.
    booted = bool(systemctl) and os.path.isdir("/run/systemd/system")
    module.exit_json(
        changed=False,
        gpus=gpus,
        gpus_note=note,
        uid=os.geteuid(),
        machine=os.uname().machine,
        systemd=systemd_version(module.run_command([systemctl, "--version"])[1]) if booted else 0,
        memory_mib=meminfo(read("/proc/meminfo")),
        shm_mib=(lambda s: s.f_blocks * s.f_frsize >> 20)(os.statvfs("/dev/shm")) if os.path.isdir("/dev/shm") else 0,
        disk_free_mib={path: free_mib(path) for path in module.params["paths"] if os.path.isabs(path)},
        port_owner=port_owner(module.params["port"]) if module.params["port"] else {},
    )


if __name__ == "__main__":
    main()
