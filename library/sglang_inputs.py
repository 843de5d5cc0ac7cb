#!/usr/bin/python
# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Documentation of the action plugin of this name; nothing runs on the node."""

DOCUMENTATION = r"""
---
module: sglang_inputs
short_description: Refuse a host without a profile, with two, or with a misspelt variable or a value of the wrong type
version_added: "0.1.0"
description:
  - Runs on the controller alone, from the host's variables, before anything touches the host.
  - A profile is known when C(group_vars/<profile>.yml) exists in the project, or when the inventory has a group of its name.
  - Every variable whose name begins with a role's name (or with C(sglang_)) must be an input of that role, as its
    C(meta/argument_specs.yml) lists them, or stand in C(playbooks/vars/names.yml).
  - Values are checked against the same specs, for all roles at once, so that the last role's inputs are refused before the first
    role has done anything.
  - A host in the groups of two profiles is refused, since which one wins would depend on the groups' names.
options:
  profile:
    description: Whether the host needs a profile. A server that somebody else runs has none.
    type: bool
    default: true
  replica:
    description:
      - What the playbook does with a replica, which is several nodes that serve one model. V(whole) works on all of its hosts and
        refuses a run that leaves one out, V(head) works on its head alone, V(none) works on none and refuses it, V(any) looks only.
    type: str
    choices: [whole, head, none, any]
    default: whole
author: ["sglang-rtxpro authors (!UNKNOWN)"]
attributes:
  check_mode: {support: full, description: Reads only., details: []}
  diff_mode: {support: none, description: Reads only., details: []}
"""

EXAMPLES = r"""
- name: Check inputs
  sglang_inputs:
"""

RETURN = r"""
profile:
  description: The host's profile.
  type: str
  returned: success
"""
