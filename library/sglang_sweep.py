#!/usr/bin/python
# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Documentation of the action plugin of this name, which runs on the controller alone."""

DOCUMENTATION = r"""
---
module: sglang_sweep
short_description: Keep the record of a sweep, which tries variants of what is deployed and ranks them
version_added: "0.1.0"
description:
  - Keeps on the controller which variants are left, what each came to, and which is best. Each step is on the disk before the next.
  - A sweep that was cut off is gone on with, where it is of the same variants, loads and deployment.
options:
  state:
    description:
      - V(begun) opens the record, or finds the one to go on with. V(turn) says whether a variant is to be tried now. V(noted) says
        what it came to. V(ended) ranks them, and shows and writes the page.
    type: str
    choices: [begun, turn, noted, ended]
    required: true
  results:
    description: Folder on the controller for the results of a profile. Needed by V(begun).
    type: path
  variants:
    description:
      - What is tried, each laid over what is deployed, which is measured first. C(name), and C(args) or C(environment). Needed by
        V(begun).
    type: list
    elements: dict
  goal:
    description: Figure of which load to rank by, and limits. Needed by V(begun).
    type: dict
  overlays:
    description: The overlays that are in force, C(args) and C(environment), for what the page says to declare.
    type: dict
  minutes:
    description: Bound in minutes. A variant that does not fit into it any more is not tried. Needed by V(begun).
    type: int
  measured:
    description: How each is measured, C(loads) and C(repeats). Needed by V(begun).
    type: dict
  deployment:
    description: Digest of what is deployed. Needed by V(begun).
    type: str
  resume:
    description: Whether a sweep that was cut off is gone on with.
    type: bool
    default: true
  folder:
    description: The sweep's folder, as V(begun) returned it. Needed by the other states.
    type: path
  name:
    description: The variant. Needed by V(turn) and V(noted).
    type: str
  why:
    description: For V(noted), why it could not be measured.
    type: str
author: ["sglang-rtxpro authors (!UNKNOWN)"]
attributes:
  check_mode: {support: full, description: Says what would be tried., details: []}
  diff_mode: {support: none, description: Results are new files., details: []}
"""

EXAMPLES = r"""
- name: Open the record
  sglang_sweep:
    state: begun
    results: results/glm52
    variants: [{name: graphs, args: {cuda-graph-max-bs: 256}}]
    goal: {}
    minutes: 120
    measured: {loads: "{{ sglang_bench_loads }}", repeats: 1}
    deployment: 1a2b3c4d5e6f
  register: sweep

- name: Say which is best
  sglang_sweep:
    state: ended
    folder: "{{ sweep.folder }}"
"""

RETURN = r"""
folder:
  description: The sweep's folder; empty in check mode.
  type: str
  returned: with O(state=begun)
variants:
  description: What is tried, whole and in order, with C(status), C(run), C(why) and C(seconds) so far.
  type: list
  elements: dict
  returned: with O(state=begun)
go:
  description: Whether the variant is to be tried now.
  type: bool
  returned: with O(state=turn)
winner:
  description: The best variant, C(name), C(args) and C(environment); empty where none is valid.
  type: dict
  returned: with O(state=ended)
ranking:
  description: Every variant, the best first, with its figures.
  type: list
  elements: dict
  returned: with O(state=ended)
text:
  description: The page that was shown.
  type: str
  returned: with O(state=ended)
"""
