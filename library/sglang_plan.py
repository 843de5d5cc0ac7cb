#!/usr/bin/python
# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Documentation of the action plugin of this name; nothing runs on the node."""

DOCUMENTATION = r"""
---
module: sglang_plan
short_description: Judge what would run on a host, and show it as a page
version_added: "0.1.0"
description:
  - Reads the host's profile (variables of the roles) and what the project knows of it, on the controller. The stack's lock, its
    release's options and its resolution on the profile's card, the model's sizes, the rules.
  - Options that the release does not take, rules that fire, weights that do not fit and what is wrong with the node become
    findings. A message names the variable, its file and line.
  - The fit and warnings are said as they are found, unless O(said) has them. Whether errors end the play is for the next task.
options:
  node:
    description: Result of M(gpu_info). Without it, or when the node was not reached, what depends on the node is not judged.
    type: dict
  answer:
    description: Result of M(sglang_args), the release's own word. It takes the place of the stack's files.
    type: dict
  release:
    description: Result of M(sglang_release) in state V(inspected), for the page.
    type: dict
  change:
    description: Result of M(sglang_deployment) in state V(switched) and check mode, for the page.
    type: dict
  said:
    description: Causes that were shown already.
    type: list
    elements: str
  quiet:
    description: Show nothing; the caller does.
    type: bool
    default: false
  page:
    description: Show the whole page instead of warnings.
    type: bool
    default: false
author: ["sglang-rtxpro authors (!UNKNOWN)"]
attributes:
  check_mode: {support: full, description: Changes nothing., details: []}
  diff_mode: {support: none, description: Changes nothing., details: []}
"""

EXAMPLES = r"""
- name: Judge before anything is built
  sglang_plan:
    node: "{{ node }}"
  register: plan

- name: Refuse what cannot work
  ansible.builtin.fail:
    msg: "{{ plan.errors | join(' ') }}"
  when: plan.errors | length > 0
"""

RETURN = r"""
errors:
  description: What cannot work, with its remedy, one sentence or a few each.
  type: list
  elements: str
  returned: always
warnings_found:
  description: What costs or is risky.
  type: list
  elements: str
  returned: always
said:
  description: Causes of all findings, for O(said) of the next run.
  type: list
  elements: str
  returned: always
fit:
  description: C(weights_gib), C(kv_gib) a GPU, C(kv_tokens), C(context_length), C(full_requests), C(fits). Empty where the size of
    the weights is not on record.
  type: dict
  returned: always
autotune:
  description: C(runs) and C(why), as the release's own gate answers.
  type: dict
  returned: always
page:
  description: The page's lines, at most 80 columns.
  type: list
  elements: str
  returned: always
"""
