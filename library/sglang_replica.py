#!/usr/bin/python
# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""What one node of a replica sees of the others: its way to the head, the head's port, its clock."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: sglang_replica
short_description: Look at a node that serves one model together with others, and judge them together
version_added: "0.1.0"
description:
  - Looks whether the address of the rendezvous (C(--dist-init-addr)) belongs to the head and can be reached from the other nodes,
    which interface leads there, and who listens on its port. Changes nothing.
  - The action plugin of this name measures each node's clock against the controller's, and with O(judge) or O(first) says what is
    wrong with them together; then no node is asked.
options:
  replica:
    description: The replica, as the filter C(sglang_replica) gives it. C(name), C(hosts), C(rank), C(head), C(address), C(port).
    type: dict
    required: true
  unit:
    description: The server's own unit, which may hold the port.
    type: str
    default: sglang.service
  timeout:
    description: Seconds that a connection to the head may take.
    type: float
    default: 5
  judge:
    description: For the action plugin. Fail with everything that stands against the replica, from the looks of all of its hosts.
    type: bool
    default: false
  first:
    description:
      - For the action plugin. Say which host's server ended first, from the results of M(sglang_doctor) on all of its hosts.
    type: bool
    default: false
author: ["sglang-rtxpro authors (!UNKNOWN)"]
attributes:
  check_mode: {support: full, description: Looks only., details: []}
  diff_mode: {support: none, description: Looks only., details: []}
"""

EXAMPLES = r"""
- name: Look at the way to the head
  sglang_replica:
    replica: "{{ sglang_server_replica }}"
  register: __sglang_server_replica_look

- name: Refuse what cannot work together
  sglang_replica:
    replica: "{{ sglang_server_replica }}"
    judge: true
"""

RETURN = r"""
interface:
  description: Interface that leads to the head; on the head the one that has the address. Empty when there is none.
  type: str
  returned: always
local:
  description: This node's own address on it.
  type: str
  returned: always
owner:
  description: Who else listens on the head's port. C(pid), C(name), C(unit). Empty on the other nodes, and where it is free or the
    server's own.
  type: dict
  returned: always
fault:
  description: What stands between this node and the head, with the remedy; empty when nothing does.
  type: str
  returned: always
now:
  description: Seconds of this node's clock since 1970, when it was looked at.
  type: float
  returned: always
clock_offset_s:
  description: Seconds that this node's clock is ahead of the controller's.
  type: float
  returned: by the action plugin
clock_within_s:
  description: How far RV(clock_offset_s) may be wrong, as half of the time that the look took.
  type: float
  returned: by the action plugin
"""

import errno
import json
import socket
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_ports import listeners


def interface_of(addresses: str, local: str) -> str:
    """The interface that has an address, from `ip -json address show`."""
    try:
        found = json.loads(addresses or "[]")
    except ValueError:
        return ""
    for link in found:
        if any(one.get("local") == local for one in link.get("addr_info") or []):
            return str(link.get("ifname") or "")
    return ""


def refused(error: OSError) -> bool:
    """Whether an address answered that nobody listens there: then the way is open, and the server starts later."""
    return error.errno == errno.ECONNREFUSED


def loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


class Look:
    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.replica: dict = module.params["replica"]
        self.address, self.port = str(self.replica["address"]), int(self.replica["port"])
        self.head = int(self.replica["rank"]) == 0

    def run(self) -> dict:
        found: dict = {"interface": "", "local": "", "owner": {}, "fault": ""}
        mend = "Set sglang_server_dist_address on the head to an address of it that all of its nodes reach."
        try:
            answers = socket.getaddrinfo(self.address, self.port, type=socket.SOCK_DGRAM)
        except OSError as error:
            return {**found, "fault": f"the head's address {self.address} is not known here ({error.strerror}). {mend}"}
        where = str(answers[0][4][0])
        if loopback(where):
            return {**found, "fault": f"the head's address {self.address} is {where} here, its own loopback. {mend}"}
        found["local"] = where if self.head else self.way(answers[0][0], where)
        found["interface"] = interface_of(
            self.module.run_command(["ip", "-json", "address", "show"])[1], found["local"]
        )
        if not found["interface"]:
            what = "no interface has the address" if self.head else "there is no way to the head's address"
            return {**found, "fault": f"{what} {self.address}. {mend}"}
        if self.head:
            found["owner"] = self.owner()
        else:
            found["fault"] = self.reach(where)
        return found

    def way(self, family: int, where: str) -> str:
        """The own address that leads there; nothing is sent."""
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((where, self.port))
            except OSError:
                return ""
            return str(probe.getsockname()[0])

    def owner(self) -> dict:
        """Who else holds the port: not the server itself, which does while it serves."""
        for process in listeners(self.port):
            if self.module.params["unit"] not in process.units:
                return {"pid": process.pid, "name": process.name, "unit": "".join(process.units[-1:])}
        return {}

    def reach(self, where: str) -> str:
        try:
            socket.create_connection((where, self.port), timeout=self.module.params["timeout"]).close()
        except OSError as error:
            if not refused(error):
                why = error.strerror or str(error)
                return (
                    f"the head's {self.address}:{self.port} cannot be reached ({why}). Let the nodes of a replica reach each "
                    "other on all TCP ports: the engine takes others beside this one."
                )
        return ""


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "replica": {"type": "dict", "required": True},
            "unit": {"type": "str", "default": "sglang.service"},
            "timeout": {"type": "float", "default": 5},
            "judge": {"type": "bool", "default": False},
            "first": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    now = time.time()
    module.exit_json(changed=False, now=now, **Look(module).run())


if __name__ == "__main__":
    main()
