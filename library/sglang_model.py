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
author: [the sglang-rtxpro authors]
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
import struct

from ansible.module_utils.basic import AnsibleModule

# A header is JSON of a few MB at the most; a longer one is a file that is no safetensors file.
LONGEST_HEADER = 100 << 20
# In a folder that O(generator) made; only such a one is made again.
MARK = ".made-by-sglang-rtxpro"


def safetensors_length(path: str) -> int:
    """Bytes that a safetensors file must have: 8, its header, and the end of the last tensor. ValueError when it is none.

    Format: https://github.com/huggingface/safetensors (8 bytes little-endian length, JSON header, data).
    """
    with open(path, "rb") as stream:
        prefix = stream.read(8)
        if len(prefix) < 8:
            raise ValueError("no header")
        (length,) = struct.unpack("<Q", prefix)
        if length > LONGEST_HEADER:
            raise ValueError("no safetensors header")
        try:
            header = json.loads(stream.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError("its header is cut or broken") from error
    return 8 + length + max(ends, default=0)


def config(path: str) -> dict | None:
    try:
        with open(f"{path}/config.json", encoding="utf-8") as stream:
            found = json.load(stream)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def partial(path: str) -> list[str]:
    """Files that a hub's client had not finished; it keeps them in hidden folders."""
    return [
        os.path.join(folder, name)
        for folder, _, names in os.walk(path)
        for name in names
        if name.endswith(".incomplete")
    ]


def problems(path: str) -> list[str]:
    """What is missing or cut in a model's folder; empty when it is complete."""
    if not os.path.isdir(path):
        return [f"{path} does not exist"]
    found = [
        f"{name} is missing"
        for name in ("config.json", "tokenizer_config.json")
        if not os.path.isfile(f"{path}/{name}")
    ]
    if not found and config(path) is None:
        found.append("config.json cannot be read")
    found += [f"{os.path.relpath(part, path)} is a partial download" for part in partial(path)]
    names = {os.path.basename(name) for name in glob.glob(f"{path}/*.safetensors")}
    index = f"{path}/model.safetensors.index.json"
    if os.path.isfile(index):
        try:
            with open(index, encoding="utf-8") as stream:
                wanted = set(json.load(stream)["weight_map"].values())
        except (ValueError, KeyError, AttributeError):
            return [*found, "model.safetensors.index.json cannot be read"]
        found += [f"{name} is missing" for name in sorted(wanted - names)]
    elif not names:
        found.append("there is no safetensors file")
    for name in sorted(names):
        size = os.path.getsize(f"{path}/{name}")
        try:
            wanted_size = safetensors_length(f"{path}/{name}")
        except ValueError as error:
            found.append(f"{name}: {error}")
            continue
        if size != wanted_size:
            found.append(f"{name} has {size} bytes, its header says {wanted_size}")
    return found


def may_read(mode: int, owner: int, group: int, uid: int, gids: set[int]) -> bool:
    """Whether a user may read a file (or enter and list a folder) by its mode bits."""
    shift = 6 if owner == uid else 3 if group in gids else 0
    need = 5 if stat.S_ISDIR(mode) else 4
    return uid == 0 or (mode >> shift) & need == need


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
        },
        required_by={"generator": ["python"]},
        supports_check_mode=True,
    )
    os.umask(0o022)  # the server's user must be able to read what is made here
    path, user = module.params["path"], module.params["user"]
    before = problems(path)
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
    module.exit_json(changed=changed, problems=before, user_exists=exists(user), **describe(path))


if __name__ == "__main__":
    main()
