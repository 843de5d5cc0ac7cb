#!/usr/bin/python
# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Documentation of the action plugin of this name; nothing runs on the node."""

DOCUMENTATION = r"""
---
module: sglang_compare
short_description: Lay measurements side by side
version_added: "0.1.0"
description:
  - Reads runs that C(bench.yml) kept and published figures (C(baselines/)), says which of their figures can be compared and why
    others cannot, and what differs between the deployments.
  - The first run is the reference; ratios are the others' figures over its own. With repeats there is a verdict only where their
    spreads do not overlap; with one run on a side there is none.
  - Shows the comparison, and keeps it as C(compare.html), C(compare.md) and C(compare.json) on the controller. Touches no node and
    is never C(changed).
  - One run alone gets its report again (C(report.html), C(report.md), C(rungs.csv), C(charts/)) in its own folder, in place of one
    that could not be written. Published figures alone are refused.
options:
  runs:
    description:
      - Two or more, or one for its report. A path (of a C(run.json) or its folder), C(latest), C(PROFILE/latest) or either with
        C(~1) for the one before, the name of a run's folder, C(baseline:NAME).
    type: list
    elements: str
    required: true
  results:
    description: Folder of the results. C(results/) of the project by default.
    type: path
  folder:
    description:
      - Where the files are kept. C(compare/) and the time in UTC, below O(results), by default; of one run, its own folder.
    type: path
author: ["sglang-rtxpro authors (!UNKNOWN)"]
attributes:
  check_mode: {support: full, description: Shows the comparison and writes nothing., details: []}
  diff_mode: {support: none, description: Its files are new ones., details: []}
"""

EXAMPLES = r"""
- name: What did the upgrade bring?
  sglang_compare:
    runs: [glm52/latest~1, glm52/latest]

- name: How far is it from what others saw?
  sglang_compare:
    runs: ["baseline:k2-thinking-nvfp4", kimi_k2_thinking/latest]

- name: The disk was full when the report was written
  sglang_compare:
    runs: [glm52/latest]
"""

RETURN = r"""
comparable:
  description: Whether there is a load at which another run can be compared with the first.
  type: bool
  returned: with two runs or more
reasons:
  description: Why not; where it is, what else is compared than a setting (other models, engines, GPUs).
  type: list
  elements: str
  returned: with two runs or more
summary:
  description: What to take away, in a few sentences.
  type: list
  elements: str
  returned: success
files:
  description: Paths that were written.
  type: list
  elements: str
  returned: success
"""
