#!/usr/bin/python
# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Documentation of the action plugin of this name; nothing runs on the node."""

DOCUMENTATION = r"""
---
module: sglang_results
short_description: Keep the results of a measurement on the controller
version_added: "0.1.0"
description:
  - Writes C(run.json) (strict JSON, no NaN or infinity) and C(report.md) into a folder on the controller, in a play on the node.
  - A measurement changes nothing that was declared, so it is never C(changed).
options:
  folder:
    description: Folder on the controller. Made when it is not there.
    type: path
    required: true
  run:
    description: The whole result.
    type: dict
    required: true
  report:
    description: Text for people.
    type: str
    required: true
author: [the sglang-rtxpro authors]
attributes:
  check_mode: {support: full, description: Writes nothing., details: []}
  diff_mode: {support: none, description: Results are new files., details: []}
"""

EXAMPLES = r"""
- name: Keep the results
  sglang_results:
    folder: results/glm52/20261129T185920Z-gpu-node
    run: {schema: 1, rungs: []}
    report: "# Nothing was measured"
"""

RETURN = r"""
files:
  description: Paths that were written.
  type: list
  elements: str
  returned: success
"""
