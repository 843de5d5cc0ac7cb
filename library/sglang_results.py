#!/usr/bin/python
# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Documentation of the action plugin of this name; nothing runs on the node."""

DOCUMENTATION = r"""
---
module: sglang_results
short_description: End a measurement on the controller
version_added: "0.1.0"
description:
  - Ends a run that the module sglang_ladder began. Adds what was seen after its loads, says whether it is valid, and writes
    C(report.html), C(report.md) with its charts and C(rungs.csv) beside C(run.json) (strict JSON, schemas/run.schema.json).
  - Shows the report at 80 columns.
  - A measurement changes nothing that was declared, so it is never C(changed).
options:
  folder:
    description: The run's folder on the controller.
    type: path
    required: true
  after:
    description: Whether answers were right after the loads (C(passed), C(summary)), by sglang_smoke. Empty where nobody asked.
    type: dict
    default: {}
  tuning:
    description: What sglang_evidence said after the loads.
    type: dict
    default: {}
  problems:
    description: What else speaks against the whole of it, a sentence each.
    type: list
    elements: str
    default: []
  against:
    description: Path of an earlier run or a baseline that this one is held against, as sglang_ladder found it.
    type: str
    default: ""
  min_ratio:
    description: Least share of the output tokens a second of O(against), at every load that both have.
    type: float
    default: 0
author: ["sglang-rtxpro authors (!UNKNOWN)"]
attributes:
  check_mode: {support: none, description: There is nothing to end where nothing was measured., details: []}
  diff_mode: {support: none, description: Results are new files., details: []}
"""

EXAMPLES = r"""
- name: End it
  sglang_results:
    folder: results/glm52/20261129T185920Z-gpu-node
    against: results/glm52/20261128T101500Z-gpu-node
    min_ratio: 0.95
"""

RETURN = r"""
files:
  description: Paths that were written.
  type: list
  elements: str
  returned: success
run:
  description: The whole result, as in C(run.json).
  type: dict
  returned: success
gate:
  description: Whether it holds against O(against). C(passed), C(ratios), C(msg).
  type: dict
  returned: when O(against) is set
"""
