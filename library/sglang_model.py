#!/usr/bin/python
# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Is a model's folder complete, and can the server's user read it?"""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: sglang_model
short_description: Verify a model's folder, and make a small one where asked
version_added: "0.1.0"
description:
  - A folder is complete when its config and tokenizer are there, every shard that the safetensors index names is there, and
    every shard is exactly as long as its own header says. A download that was cut, or left partial files, shows here and not
    after minutes of loading.
  - The files must be readable by the server's user, since the loader reports a permission error as a missing file.
  - With O(generator) a folder that is absent, empty or was made so before is made by that program, under another name, then
    renamed. Anything else that lies there is never replaced.
options:
  path:
    description: The model's folder.
    type: path
    required: true
  user:
    description: User that the server runs as. One that does not exist yet is taken for a stranger to all files.
    type: str
  python:
    description: Interpreter that runs O(generator), usually the release's.
    type: path
  generator:
    description: Text of a program that makes the model into the folder given as its argument.
    type: str
  fetch:
    description:
      - Whether M(sglang_weights) brings what is missing. A model that is not complete then does not fail here, and files are
        looked at that were touched since they were hashed.
    type: bool
    default: false
  revision:
    description: Commit that the model shall be of, as C(repository@commit). Another one that was fetched here is refused.
    type: str
author: ["sglang-rtxpro authors (!UNKNOWN)"]
attributes:
  check_mode: {support: full, description: Tells whether the model would be made., details: []}
  diff_mode: {support: none, description: Weights are no text., details: []}
"""

EXAMPLES = r"""
- name: Verify weights
  sglang_model:
    path: /var/lib/sglang/models/GLM-5.2-NVFP4
    user: sglang
"""

RETURN = r"""
architectures:
  description: Architectures that config.json names.
  type: list
  elements: str
  returned: when the model is there
shards:
  description: Number of safetensors files.
  type: int
  returned: when the model is there
bytes:
  description: Size of all safetensors files in bytes.
  type: int
  returned: when the model is there
user_exists:
  description: Whether the node has O(user).
  type: bool
  returned: when the model is there
complete:
  description: Whether the whole model is there.
  type: bool
  returned: with O(fetch)
digest:
  description: Of the hashes kept beside the model; nodes with the same have the same files. Empty where nothing was hashed.
  type: str
  returned: with O(fetch)
origin:
  description: Where the model came from, a C(repository@commit) for one from a hub.
  type: str
  returned: with O(fetch)
doubtful:
  description: Files that were touched since they were hashed.
  type: list
  elements: str
  returned: with O(fetch)
running:
  description: The transfer that an earlier run began and that still goes on; C(kind) and C(sender). Empty where there is none.
  type: dict
  returned: with O(fetch)
rsync:
  description: Whether the node has rsync.
  type: bool
  returned: with O(fetch)
addresses:
  description: The node's own addresses.
  type: list
  elements: str
  returned: with O(fetch)
problems:
  description: What is wrong with the folder, before anything was made.
  type: list
  elements: str
  returned: always
"""

import glob
import grp
import json
import os
import pwd
import shutil
import stat

from ansible.module_utils import sglang_job, sglang_weights
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_weights import config, problems

# In a folder that O(generator) made; only such a one is made again.
MARK = ".made-by-sglang-rtxpro"


def may_read(mode: int, owner: int, group: int, uid: int, gids: set[int]) -> bool:
    """Whether a user may read a file (or enter and list a folder) by its mode bits."""
    shift = 6 if owner == uid else 3 if group in gids else 0
    need = 5 if stat.S_ISDIR(mode) else 4
    return uid == 0 or (mode >> shift) & need == need


def fetching(path: str, found: list[str]) -> dict:
    """What decides where a model comes from, and whether this node can give it to others."""
    manifest = sglang_weights.read_manifest(path)
    job = sglang_job.look(sglang_weights.work(path))
    return {
        "complete": not found,
        "path": path,
        "digest": sglang_weights.digest(manifest.get("files", {})),
        "origin": manifest.get("origin", ""),
        "rsync": bool(shutil.which("rsync")),
        "doubtful": sglang_weights.doubtful(path, manifest.get("files", {})),
        "running": json.loads(job["wanted"]) if job.get("running") else {},
        "addresses": sglang_weights.addresses(),
    }


def exists(user: str | None) -> bool:
    try:
        return bool(user and pwd.getpwnam(user))
    except KeyError:
        return False


def unreadable(path: str, user: str) -> list[str]:
    """Entries of the folder, and folders above it, that the user cannot read."""
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        uid, gids = -1, set()  # made later in the deployment: a stranger
    else:
        uid, gids = (
            account.pw_uid,
            {account.pw_gid} | {entry.gr_gid for entry in grp.getgrall() if user in entry.gr_mem},
        )
    found = []
    for entry in [path, *sorted(glob.glob(f"{path}/*"))]:
        facts = os.stat(entry)
        if not may_read(facts.st_mode, facts.st_uid, facts.st_gid, uid, gids):
            found.append(f"{entry} (mode {stat.S_IMODE(facts.st_mode):04o}) cannot be read by {user}")
    parent = os.path.dirname(path)
    while parent != "/":
        facts = os.stat(parent)
        # Passing through needs the execute bit alone.
        if not may_read(facts.st_mode | 0o444, facts.st_uid, facts.st_gid, uid, gids):
            found.append(f"{parent} (mode {stat.S_IMODE(facts.st_mode):04o}) cannot be entered by {user}")
        parent = os.path.dirname(parent)
    return found


def describe(path: str) -> dict:
    shards = glob.glob(f"{path}/*.safetensors")
    return {
        "architectures": (config(path) or {}).get("architectures") or [],
        "shards": len(shards),
        "bytes": sum(os.path.getsize(shard) for shard in shards),
    }


def generate(module: AnsibleModule, path: str) -> None:
    temporary = f"{path}.{os.getpid()}.new"
    program = temporary + ".py"
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with open(program, "w", encoding="utf-8") as stream:
            stream.write(module.params["generator"])
        code, out, err = module.run_command([module.params["python"], program, temporary])
        if code:
            module.fail_json(msg=f"The program that makes {path} failed: {(err or out).strip()[-2000:]}")
        left = problems(temporary)
        if left:
            module.fail_json(msg=f"The program that makes {path} left it incomplete: {'; '.join(left)}")
        with open(f"{temporary}/{MARK}", "w", encoding="utf-8"):
            pass
        for entry in [temporary, *glob.glob(f"{temporary}/*")]:
            os.chmod(entry, 0o755 if os.path.isdir(entry) else 0o644)
        shutil.rmtree(path, ignore_errors=True)
        os.rename(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if os.path.exists(program):
            os.unlink(program)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "user": {"type": "str"},
            "python": {"type": "path"},
            "generator": {"type": "str"},
            "fetch": {"type": "bool", "default": False},
            "revision": {"type": "str"},
        },
        required_by={"generator": ["python"]},
        supports_check_mode=True,
    )
    os.umask(0o022)  # the server's user must be able to read what is made here
    path, user = module.params["path"], module.params["user"]
    before = problems(path)
    fetch = fetching(path, before) if module.params["fetch"] else {}
    revision = module.params["revision"] or ""
    if revision and "@" in fetch.get("origin", "") and fetch["origin"] != revision:
        module.fail_json(
            msg=f"{path} holds {fetch['origin']}, and {revision} is wanted. What serves may need it, so it was left alone. Name "
            "another folder with sglang_model_path, or correct sglang_model_revision.",
            problems=before,
        )
    changed = bool(before) and bool(module.params["generator"])
    if changed and os.path.exists(path) and os.listdir(path) and not os.path.exists(f"{path}/{MARK}"):
        module.fail_json(
            msg=f"{path} holds something that was not made here, and no complete model: {'; '.join(before[:5])}. It was "
            "left alone. Name another folder with sglang_model_path.",
            problems=before,
        )
    if changed and module.check_mode:
        module.exit_json(changed=True, problems=before)
    if changed:
        generate(module, path)
    elif before and fetch:
        module.exit_json(changed=False, problems=before, user_exists=exists(user), **fetch)
    elif before:
        module.fail_json(
            msg=f"The model in {path} is not complete: {'; '.join(before[:10])}. Bring the weights there (config, tokenizer, all "
            "shards), or name another folder with sglang_model_path.",
            problems=before,
        )
    shut = unreadable(path, user) if user else []
    if shut:
        module.fail_json(
            msg=f"{'; '.join(shut[:5])}. Give read access (chmod -R a+rX), or the loader calls the files missing."
        )
    module.exit_json(changed=changed, problems=before, user_exists=exists(user), **describe(path), **fetch)


if __name__ == "__main__":
    main()
