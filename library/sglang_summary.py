#!/usr/bin/python
# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Documentation of the action plugin of this name; nothing runs on the node."""

DOCUMENTATION = r"""
---
module: sglang_summary
short_description: Say what a deployment comes to
version_added: "0.1.0"
description:
  - Shows, at 80 columns, what serves where, what changed and why, what was proved, and the highest output throughput (tok/s) that
    the newest valid run of C(bench.yml) measured of this very deployment.
options:
  where:
    description: Where the model is served, such as V(at http://192.0.2.10:8000).
    type: str
    required: true
  switch:
    description: Result of M(sglang_deployment) in state V(switched).
    type: dict
    required: true
  committed:
    description: What M(sglang_deployment) committed. Without it the summary says what would be done, as in check mode.
    type: dict
    default: {}
  proof:
    description: What was given to M(sglang_deployment) as the proof. Empty where nothing had to be proved.
    type: dict
    default: {}
  front:
    description: Result of M(sglang_companion) for the front. Empty where there is none.
    type: dict
    default: {}
  results:
    description: Folder of measurements on the controller, with a folder a profile.
    type: path
    required: true
author: ["sglang-rtxpro authors (!UNKNOWN)"]
attributes:
  check_mode: {support: full, description: Changes nothing., details: []}
  diff_mode: {support: none, description: Changes nothing., details: []}
"""

EXAMPLES = r"""
- name: Say what serves where
  sglang_summary:
    where: at http://192.0.2.10:8000
    switch: "{{ switched }}"
    committed: "{{ done.committed }}"
    results: results
"""

RETURN = r"""
summary:
  description: The lines that were shown.
  type: list
  elements: str
  returned: always
"""
