#!/usr/bin/python
# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""The node's part of sending wheels: say which are missing, then check and take those that were sent."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: sglang_wheels
short_description: Bring a wheelhouse from the controller to the node
version_added: "0.1.0"
description:
  - Sends the wheels that the node lacks, over whatever connection the host has, and shows how far it is.
  - What was sent is checked by its sha256 before it gets its name, so that a cut file is never taken for a wheel.
options:
  src:
    description: Folder on the controller, as C(tools/wheelhouse) fills it.
    type: path
    required: true
  dest:
    description: Folder on the node.
    type: path
    required: true
  wheels:
    description: Set by the action plugin. C(name), C(size) in bytes and C(sha256) of each wheel.
    type: list
    elements: dict
    default: []
  sent:
    description: Set by the action plugin. Folder on the node that holds what was sent.
    type: path
author: ["sglang-rtxpro authors (!UNKNOWN)"]
attributes:
  check_mode: {support: full, description: Tells how many wheels would be sent., details: []}
  diff_mode: {support: none, description: Wheels are no text., details: []}
"""

EXAMPLES = r"""
- name: Send the stack's wheels
  sglang_wheels:
    src: ~/.cache/sglang-rtxpro/wheelhouse/sglang-0.5.23-cu130-3.12
    dest: /opt/sglang/wheelhouse
"""

RETURN = r"""
missing:
  description: Names of the wheels that the node lacked.
  type: list
  elements: str
  returned: always
bytes:
  description: Size of the missing wheels in bytes.
  type: int
  returned: always
"""

import hashlib
import os
import shutil

from ansible.module_utils.basic import AnsibleModule


def missing(wheels: list[dict], sizes: dict[str, int]) -> list[dict]:
    """Wheels that a folder (name to size in bytes) lacks, or has in another size."""
    return [wheel for wheel in wheels if sizes.get(wheel["name"]) != wheel["size"]]


def sizes(folder: str) -> dict[str, int]:
    if not os.path.isdir(folder):
        return {}
    with os.scandir(folder) as entries:
        return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}


def take(module: AnsibleModule, wheel: dict, source: str, folder: str) -> None:
    path = os.path.join(source, wheel["name"])
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    if digest.hexdigest() != wheel["sha256"]:
        module.fail_json(
            msg=f"{wheel['name']} arrived damaged (sha256 {digest.hexdigest()[:12]}…). Run again to send it anew."
        )
    partial = os.path.join(folder, f"{wheel['name']}.{os.getpid()}.part")
    try:
        shutil.move(path, partial)  # may cross file systems, so it is not the rename that counts
        os.chmod(partial, 0o644)
        os.replace(partial, os.path.join(folder, wheel["name"]))
    except OSError as error:
        if os.path.exists(partial):
            os.unlink(partial)
        module.fail_json(
            msg=f"{wheel['name']} cannot be kept in {folder}: {error}. What arrived before it stays there."
        )


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "src": {"type": "path", "required": True},
            "dest": {"type": "path", "required": True},
            "wheels": {"type": "list", "elements": "dict", "default": []},
            "sent": {"type": "path"},
        },
        supports_check_mode=True,
    )
    folder, sent = module.params["dest"], module.params["sent"]
    lacking = missing(module.params["wheels"], sizes(folder))
    if sent and not module.check_mode:
        os.umask(0o022)
        os.makedirs(folder, exist_ok=True)
        for wheel in lacking:
            # What comes in a later batch is not here yet.
            if os.path.exists(os.path.join(sent, wheel["name"])):
                take(module, wheel, sent, folder)
    module.exit_json(
        changed=bool(lacking),
        missing=[wheel["name"] for wheel in lacking],
        bytes=sum(wheel["size"] for wheel in lacking),
    )


if __name__ == "__main__":
    main()
