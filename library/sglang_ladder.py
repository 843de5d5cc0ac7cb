#!/usr/bin/python
# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Documentation of the action plugin of this name; the module sglang_bench runs on the node, once a load."""

DOCUMENTATION = r"""
---
module: sglang_ladder
short_description: Put one load after the other on a server, and keep each result as it comes
version_added: "0.1.0"
description:
  - Runs the module sglang_bench for each load, says what it does and how long it will take, and keeps every load in a folder of the
    run on the controller before the next one begins.
  - A load that fails or is invalid is kept as such with its reason, and the rest go on. Where the server is gone, the rest is
    marked as not run.
  - A ladder that was broken (a run that was cut off, a controller that was switched off, a disk that was full) is gone on with. The
    load that was under way on the node is waited for, and not started again.
options:
  results:
    description: Folder on the controller for the runs of a profile. Each gets one of its own, C(<time>-<host>).
    type: path
    required: true
  run:
    description: What is known of server, deployment and node, as C(run.json) keeps it (schemas/run.schema.json), without rungs.
    type: dict
    required: true
  loads:
    description: The loads, in order, by the parameters of sglang_bench.
    type: list
    elements: dict
    required: true
  repeats:
    description: How often the ladder is climbed.
    type: int
    default: 1
  seed:
    description: Seed of the first load; each after it has the next number. 0 takes one that was not used before.
    type: int
    default: 0
  resume:
    description: Whether the newest run that was not ended is gone on with, if it is of the same deployment and loads, and of today.
    type: bool
    default: true
  against:
    description: An earlier run or a baseline, as compare.yml names them. It is looked for before anything is measured.
    type: str
    default: ""
notes:
  - A load's C(file) is a path on the controller. It is sent to the node for the time of the ladder.
  - Everything else is handed to sglang_bench as it is (C(python), C(url), C(model), C(environment) …).
author: ["sglang-rtxpro authors (!UNKNOWN)"]
attributes:
  check_mode: {support: full, description: Measures nothing., details: []}
  diff_mode: {support: none, description: Results are new files., details: []}
"""

EXAMPLES = r"""
- name: Climb the ladder
  sglang_ladder:
    results: results/glm52
    run: "{{ known }}"
    loads:
      - {concurrency: 1, prompts: 8, input_len: 1024, output_len: 256}
      - {concurrency: 64, prompts: 256, input_len: 1024, output_len: 256}
    python: /opt/sglang/releases/glm52-1a2b3c/venv/bin/python
    url: http://127.0.0.1:30000
    model: /var/lib/sglang/models/GLM-5.2-NVFP4
"""

RETURN = r"""
folder:
  description: The run's folder on the controller.
  type: str
  returned: success
resumed:
  description: How many loads were measured already.
  type: int
  returned: success
against:
  description: Path of the run that O(against) names.
  type: str
  returned: success
run:
  description: The run as it is in C(run.json).
  type: dict
  returned: success
"""
