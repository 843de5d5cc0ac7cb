#!/usr/bin/python
# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Documentation of the action plugin of this name; nothing runs on the node."""

DOCUMENTATION = r"""
---
module: sglang_gateway_workers
short_description: Refuse a gateway whose workers cannot be one, from the inventory alone
version_added: "0.1.0"
description:
  - Runs on the controller alone, before anything touches the gateway's host. Everything that is wrong is said at once.
  - Refused are a gateway that everybody could use, one port for two things, no worker, a worker that no inventory has, one without
    a front, two on one address, a key that a worker does not know or that is missing, and workers that the inventory gives
    different models or versions of SGLang. A key that goes over a network in clear text is a warning.
options:
  workers:
    description: What the filter C(sglang_gateway_workers) makes of hosts and URLs.
    type: list
    elements: dict
    required: true
  key:
    description: The key that the router sends.
    type: str
    default: ""
  mixed:
    description: Accept different versions.
    type: bool
    default: false
  host:
    description: Address that clients reach.
    type: str
    default: 127.0.0.1
  keyed:
    description: Whether clients need a key.
    type: bool
    default: true
  ports:
    description: The gateway's ports by the names of their variables.
    type: dict
    default: {}
author: ["sglang-rtxpro authors (!UNKNOWN)"]
attributes:
  check_mode: {support: full, description: Reads only., details: []}
  diff_mode: {support: none, description: Reads only., details: []}
"""

EXAMPLES = r"""
- name: Judge what the inventory says of the workers
  sglang_gateway_workers:
    workers: "{{ groups['gpu_nodes'] | sglang_gateway_workers(hostvars) }}"
    key: "{{ vault_key }}"
"""

RETURN = r"""
urls:
  description: Addresses of the workers.
  type: list
  elements: str
  returned: success
"""
