#!/usr/bin/python
# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Tuned kernels for the FlashInfer and Triton of a release, put where those versions read them, or refused."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: flashinfer_tuning
short_description: Install, inspect and remove tuning artefacts where a release reads them
version_added: "0.1.0"
description:
  - An artefact is a set of tuned kernel choices with its provenance, as C(tuning/README.md) describes. This module puts its files
    where the release's FlashInfer, SGLang or Triton reads them, and returns the environment that makes them read.
  - Names and forms are taken from the installed sources and asked of the installed FlashInfer, never from a table of versions. What
    the release would not read is refused, with what the artefact says and what the node has.
  - An artefact is never executed. Keys, shapes, runners and tactics are checked on the text.
  - All files are written beside their places, then renamed. What fails leaves everything as it was. A hard link (uv's cache,
    another environment) is never written through.
options:
  state:
    description:
      - V(present) installs the artefact, V(absent) removes it.
      - V(inspected) changes nothing and never fails for what it finds. It returns the same facts.
      - V(collected) reads what the engine's autotuner wrote for each rank, after a start, and returns it as an artefact's files.
        For V(autotune_cache). O(artefact.files) and O(artefact.gain) are not known yet and are left empty.
    type: str
    choices: [present, absent, inspected, collected]
    default: present
  python:
    description: The release's interpreter, for example C(/opt/sglang/releases/glm5-0123abcd/venv/bin/python).
    type: path
    required: true
  artefact:
    description: The content of C(artefact.yml).
    type: dict
    required: true
    suboptions:
      name:
        description: Name of the artefact, used in messages.
        type: str
        required: true
      kind:
        description:
          - V(python_configs), the module in C(flashinfer/tuning_configs) that is named after the card. Read by every version, when
            C(FLASHINFER_AUTOTUNER_LOAD_FROM_FILE=1) is set. Up to FlashInfer 0.6.6 nothing else is read then.
          - V(autotune_cache), the JSON files by rank that SGLang hands to FlashInfer's autotuner. SGLang from 0.5.12, which comes
            with FlashInfer 0.6.11.
          - V(tactics_blocklist), tactics that the autotuner leaves out. FlashInfer from 0.6.15.
          - V(triton_moe), launch parameters of Triton's fused MoE kernel, read through C(SGLANG_MOE_CONFIG_DIR).
        type: str
        choices: [python_configs, autotune_cache, tactics_blocklist, triton_moe]
        required: true
      device:
        description: The card's exact name, as torch gives it. Editions of one card have different names.
        type: str
        required: true
      compute_capability:
        description: The card's compute capability, such as V("12.0").
        type: str
        required: true
      driver:
        description: Version of the driver. Kept, and warned about where the node has another.
        type: str
        required: true
      versions:
        description:
          - Packages that the artefact was made with, C(flashinfer), C(sglang), C(torch) and C(triton) among them.
          - FlashInfer's version must be the node's, for V(triton_moe) Triton's. Others are warned about.
        type: dict
        required: true
      profile:
        description: The profile whose shapes were tuned.
        type: str
        required: true
      made:
        description: Who measured, when and how.
        type: dict
        required: true
        suboptions:
          by:
            description: Who measured.
            type: str
            required: true
          at:
            description: When, as C(2026-11-30).
            type: str
            required: true
          how:
            description: With which program and load.
            type: str
            required: true
      gain:
        description: What it brings. Needed by every kind but V(tactics_blocklist). One that brings nothing is refused.
        type: dict
        suboptions:
          what:
            description: What was measured, with its unit.
            type: str
            required: true
          before:
            description: The figure without the artefact.
            type: float
            required: true
          after:
            description: The figure with it.
            type: float
            required: true
          percent:
            description: The gain in percent of O(artefact.gain.before).
            type: float
            required: true
      ranks:
        description: For V(autotune_cache), how many ranks the files are for.
        type: dict
        suboptions:
          tp:
            description: Tensor parallel size.
            type: int
            required: true
          pp:
            description: Pipeline parallel size.
            type: int
            default: 1
          dp:
            description: Data parallel size.
            type: int
            default: 1
          dp_attention:
            description: Whether the data parallel ranks share the tensor parallel ones (C(--enable-dp-attention)).
            type: bool
            default: false
      files:
        description:
          - File name to SHA-256 in hex. A file that was cut or edited is seen by it. Empty where it is not known.
          - C(rank.json) is for all ranks. C(triton_moe) files have the names that SGLang gives them.
        type: dict
        required: true
  files:
    description: File name to text, as O(artefact.files) names them. Needed by V(present), and by V(inspected) to compare.
    type: dict
    default: {}
  engine:
    description: For V(autotune_cache), what SGLang makes the cache's key of, as the release resolves it (module M(sglang_args)).
    type: dict
    suboptions:
      key:
        description: The key itself, 16 hex digits, as the log shows it. Instead of the others.
        type: str
      model_path:
        description: The model's path as the server is started with it. Another path to the same weights is another key.
        type: str
      dtype:
        description: The model's dtype as resolved, such as V(bfloat16). Never V(auto).
        type: str
        default: bfloat16
      quantization:
        description: Quantization as resolved. Leave out where there is none.
        type: str
      moe_runner_backend:
        description: MoE runner backend as resolved.
        type: str
      ep:
        description: Expert parallel size.
        type: int
        default: 1
      config_class:
        description: Class of the model's configuration, such as V(DeepseekV3Config).
        type: str
      skip_ops:
        description: Value of C(--flashinfer-autotune-skip-ops).
        type: list
        elements: str
        default: []
      draft:
        description: Whether the cache is a draft model's. Its O(engine.quantization) stays the server's.
        type: bool
        default: false
      draft_quantization:
        description: The draft model's own quantization. Leave out where there is none.
        type: str
  autotune:
    description:
      - Whether this server runs FlashInfer's autotuner at its start, as the release resolves it. Leave out where it is not known.
      - V(python_configs) with FlashInfer up to 0.6.6 is refused beside it, since what it finds is then not read.
        V(autotune_cache) is refused without it, since nothing else reads the cache.
    type: bool
  environment:
    description: The unit's environment. FlashInfer is asked with it, and what contradicts the artefact is refused.
    type: dict
    default: {}
  user:
    description: The user who serves. Files must be readable to it, and the autotuner's cache is its own.
    type: str
    default: sglang
  folder:
    description:
      - An own folder for V(triton_moe) and V(tactics_blocklist), outside of every package. It holds C(moe) and
        C(tactics_blocklist.json).
    type: path
  cache_dir:
    description:
      - SGLang's cache for V(autotune_cache). Returned as C(SGLANG_CACHE_DIR).
      - Where it is left out it is what O(environment) gives, or C(.cache/sglang) in its C(HOME) or in the user's home.
    type: path
  answers:
    description: File that keeps the release's answer with everything it depends on, so that a second run need not ask again.
    type: path
attributes:
  check_mode:
    support: full
    description: Everything is judged. A release that is not built yet, or a user that is not made yet, is no error.
  diff_mode:
    support: full
    description: Whole files up to 64 KiB, larger ones by their hash.
notes:
  - The engine adds to the autotuner's cache at every start. A cache that holds all of the artefact and more is installed.
  - SGLang 0.5.22 and later drop the caches of all ranks when one differs. Ranks that disagree are therefore refused, and a
    cache whose ranks came to disagree on such a release is put back.
  - C(SGLANG_MOE_CONFIG_DIR) hides the files that SGLang ships. Those for this card that are then not read are returned as
    RV(hidden).
  - The wheel's RECORD is left alone. A file that the wheel itself ships is never replaced or removed.
author: ["sglang-rtxpro authors (!UNKNOWN)"]
"""

EXAMPLES = r"""
- name: Install an artefact of the repository
  flashinfer_tuning:
    python: /opt/sglang/releases/kimi-0123abcd/venv/bin/python
    artefact: "{{ tuned }}"
    files: "{{ dict(tuned.files | zip(query('ansible.builtin.file', *paths, rstrip=false))) }}"
    engine:
      model_path: /var/lib/sglang/models/kimi-k2.5
      quantization: modelopt_fp4
      moe_runner_backend: flashinfer_cutlass
      config_class: KimiK25Config
    cache_dir: /var/lib/sglang/sglang/home/.cache/sglang
    autotune: true
    user: sglang
  vars:
    from: tuning/NVIDIA_RTX_PRO_6000_Blackwell_Server_Edition/sglang-0.5.23-cu130/kimi_k25-moe
    tuned: "{{ lookup('ansible.builtin.file', from ~ '/artefact.yml') | from_yaml }}"
    paths: "{{ tuned.files | map('regex_replace', '^', from ~ '/') }}"
  register: tuning

- name: A tuned Triton MoE kernel, in an own folder
  flashinfer_tuning:
    python: /opt/sglang/releases/glm-0123abcd/venv/bin/python
    artefact: "{{ tuned }}"
    files: "{{ dict(tuned.files | zip(query('ansible.builtin.file', *paths, rstrip=false))) }}"
    folder: /var/lib/sglang/sglang/tuning

- name: See what this release would read, and what is there
  flashinfer_tuning:
    python: /opt/sglang/releases/kimi-0123abcd/venv/bin/python
    artefact: "{{ tuned }}"
    state: inspected
    folder: /var/lib/sglang/sglang/tuning
"""

RETURN = r"""
status:
  description:
    - What was found, before this run changed anything.
    - V(installed), all of it is there and is read. V(outdated), something else is there. V(broken), it is there and cannot be read
      (cut, of another environment, closed to the user, ranks that disagree). V(not_installed), nothing is there. V(refused), the
      artefact does not fit this node or this release. V(no_release), the release is not built yet (check mode).
  type: str
  returned: always
  choices: [installed, outdated, broken, not_installed, refused, no_release]
changed:
  description: Whether files were written or removed, or would be in check mode.
  type: bool
  returned: always
message:
  description: One sentence about what was found and done.
  type: str
  returned: always
environment:
  description: What the unit's environment needs so that the files are read. Empty for O(state=absent).
  type: dict
  returned: always
  sample: {FLASHINFER_AUTOTUNER_LOAD_FROM_FILE: "1"}
problems:
  description: Why the artefact is refused, each with both sides.
  type: list
  elements: str
  returned: always
notes:
  description: What is to be known and stops nothing. Given as warnings too, with O(state=present).
  type: list
  elements: str
  returned: always
runtime_read:
  description: Whether what the autotuner finds at run time is read as well, with RV(environment) set.
  type: bool
  returned: when the release was asked
places:
  description: The files, each with what was found.
  type: list
  elements: dict
  returned: when the release was asked
  contains:
    path:
      description: Absolute path.
      type: str
    state:
      description: What was found.
      type: str
      choices: [same, more, other, unreadable, missing]
    why:
      description: What is wrong with it. Empty otherwise.
      type: str
    sha256:
      description: SHA-256 in hex of what was found. Null if nothing was.
      type: str
entries:
  description: Number of tuned choices in the artefact, those of all files that differ together.
  type: int
  returned: when O(files) is given
key:
  description: SGLang's key of the cache.
  type: str
  returned: for V(autotune_cache), when it is known
hidden:
  description: Files for this card that SGLang ships and that are not read with RV(environment) set.
  type: list
  elements: str
  returned: for V(triton_moe)
artefact:
  description: The artefact with its C(files) by SHA-256.
  type: dict
  returned: for O(state=collected)
files:
  description: File name to text. One C(rank.json) for all ranks.
  type: dict
  returned: for O(state=collected)
node:
  description: What the release said, C(devices) (name and capability each), C(versions) and FlashInfer's own C(metadata).
  type: dict
  returned: when the release was asked
asked:
  description: Whether the release was asked by this run, or its answer was kept.
  type: bool
  returned: when the release was asked
"""

import ast
import contextlib
import errno
import glob
import hashlib
import inspect
import json
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ansible.module_utils import flashinfer_probe
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_release_python import account, cards, identity, keep, placed, recalled

TIMEOUT = 300
SHOWN = 65536
PREFIX = ".flashinfer_tuning-"
LOAD_FROM_FILE = "FLASHINFER_AUTOTUNER_LOAD_FROM_FILE"
ALL_RANKS = "rank.json"
RANK = re.compile(r"rank_tp(\d+)_pp(\d+)_dp(\d+)\.json")
LAYOUT = "Path(envs.SGLANG_CACHE_DIR.get()) / 'flashinfer' / 'autotune' / flashinfer_version / arch / cache_key"
HASH = "hashlib.sha256(model_key.encode()).hexdigest()[:16]"
RANK_FORM = re.compile(r"f'rank_tp\{[\w.()]*tp_rank\}_pp\{[\w.()]*pp_rank\}_dp\{[\w.()]*dp_rank or 0\}(\.json)?'")
MOE_NAME = re.compile(
    r"E=(?P<experts>\d+),N=(?P<width>\d+),device_name=(?P<device>[^,]+?)"
    r"(,dtype=(?P<dtype>fp8_w8a8|int8_w8a8|int4_w4a16|int8_w8a16|float32))?"
    r"(,block_shape=\[\d+, \d+\])?(,per_channel_quant=True)?(?P<down>_down)?\.json"
)
MOE_NEEDED = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M")
# The parts of SGLang's key, as its releases write them: what they end with, and the value's name here.
KEY_PARTS = {
    "model_path": "model_path",
    "dtype": "dtype",
    "quantization": "quantization",
    "moe_runner_backend": "moe_runner_backend",
    "tp_size": "tp",
    "pp_size": "pp",
    "dp_size": "attention_dp",
    "attn_dp_size": "attention_dp",
    "moe_ep_size": "ep",
    "__class__.__name__": "config_class",
}
# What must be the node's for a kind's tactics to mean the same kernels.
DECISIVE = {
    "python_configs": "flashinfer",
    "autotune_cache": "flashinfer",
    "tactics_blocklist": "flashinfer",
    "triton_moe": "triton",
}


class Refused(Exception):
    """What stands against it, all of it."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__(" ".join(problems))
        self.problems = problems


@dataclass
class Place:
    """One file that is wanted."""

    path: str
    text: str = ""
    kind: str = "text"  # text: byte for byte; cache: the engine adds to it; note: provenance, read by people
    owned: bool = False  # by the user who serves
    state: str = "missing"
    why: str = ""
    before: str | None = None
    sha256: str | None = None
    raw: tuple[bytes, os.stat_result] | None = None


@dataclass
class Plan:
    """What an artefact is on this node."""

    places: list[Place] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)
    agree: bool = False
    nowhere: bool = False


# --- texts, without a host -------------------------------------------------------------------------------------------------


def at_line(error: SyntaxError) -> str:
    return f"line {error.lineno}: {error.msg}" if error.lineno else str(error.msg)


def number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def tactic_fault(tactic: Any, compound: bool) -> str:
    """What is wrong with a tactic. A number from -1 on; later versions also have tuples, whose parts may be flags and names."""
    if number(tactic):
        return "" if tactic >= -1 else f"the tactic {tactic} is below -1"
    if not compound:
        return f"the tactic {tactic!r} is no number"
    if isinstance(tactic, (list, tuple)) and tactic:
        parts = list(tactic)
        while parts:
            part = parts.pop()
            if isinstance(part, (list, tuple)):
                parts += part
            elif not isinstance(part, (int, float, str, bool, type(None))):
                return f"the tactic {tactic!r} holds {type(part).__name__}"
        return ""
    return f"the tactic {tactic!r} is neither a number nor a tuple of them"


def shapes_fault(profile: Any) -> str:
    if not isinstance(profile, tuple):
        return f"its shapes {profile!r} are no tuple"
    for shape in profile:
        if not isinstance(shape, tuple) or not all(number(size) and size >= -1 for size in shape):
            return f"its shape {shape!r} is no tuple of sizes"
    return ""


def key_fault(key: Any, parts: int) -> tuple[str, str]:
    """(runner's class, what is wrong). A key is looked up by its exact text, so other blanks are another key."""
    if not isinstance(key, str):
        return "", f"the key {key!r} is no text"
    try:
        found = ast.literal_eval(key)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return "", f"the key {key!r} does not parse"
    if not isinstance(found, tuple) or len(found) not in (3, 4):
        return "", f"the key {key!r} is not (operation, runner, shapes)"
    if len(found) != parts:
        return "", (
            f"the key {key!r} has {len(found)} parts and the installed FlashInfer looks up {parts}: it is of another version"
        )
    if not isinstance(found[0], str) or not isinstance(found[1], str) or not found[1].isidentifier():
        return "", f"the key {key!r} does not name an operation and a runner's class"
    wrong = shapes_fault(found[2])
    if not wrong and parts == 4 and not isinstance(found[3], tuple):
        wrong = f"its last part {found[3]!r} is no tuple"
    if not wrong and str(found) != key:
        wrong = f"it is looked up as {str(found)!r}"
    return found[1], f"the key {key!r} is never found: {wrong}" if wrong else ""


def few(faults: list[str]) -> list[str]:
    """The first faults of a file, and how many more."""
    return faults[:3] + ([f"and {len(faults) - 3} more entries like these"] if len(faults) > 3 else [])


def read_python(text: str) -> dict:
    """`best_configs` of a configuration module, by its text alone. ValueError says what it is instead."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        what = at_line(error) if isinstance(error, SyntaxError) else str(error)
        raise ValueError(f"is no Python: {what}") from None
    found: Any = None
    for node in tree.body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        if not isinstance(node, ast.Assign) or not all(isinstance(target, ast.Name) for target in node.targets):
            raise ValueError(f"runs code in line {node.lineno}; expected literals only, since importing it runs it")
        try:
            value = ast.literal_eval(node.value)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            raise ValueError(f"has no literal in line {node.lineno}, since importing it runs it") from None
        if any(isinstance(target, ast.Name) and target.id == "best_configs" for target in node.targets):
            found = value
            keys = [ast.dump(key) for key in node.value.keys if key] if isinstance(node.value, ast.Dict) else []
            if len(keys) != len(set(keys)):
                raise ValueError("has a key twice, of which the last would win")
    if not isinstance(found, dict) or not found:
        raise ValueError("has no best_configs = {...} with entries")
    return found


def unique(pairs: list[tuple[str, Any]]) -> dict:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("has a key twice, of which the last would win")
    return found


def read_json_text(text: str) -> dict:
    try:
        found = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}: {error.msg}"
        ended = " It was cut." if error.pos >= len(text.rstrip()) - 1 else ""
        raise ValueError(f"is no JSON, {where}.{ended}".rstrip(".")) from None
    except RecursionError:
        raise ValueError("is no JSON: too deep") from None
    if not isinstance(found, dict):
        raise ValueError("is no JSON object")
    return found


def python_faults(configs: dict, forms: dict) -> list[str]:
    """What is wrong with best_configs: key to (runner's number, tactic)."""
    faults = []
    for key, value in configs.items():
        _, wrong = key_fault(key, forms["key_parts"])
        if not wrong and (not isinstance(value, (tuple, list)) or len(value) != 2):
            wrong = f"the value {value!r} of {key} is not (runner, tactic)"
        if not wrong and not (number(value[0]) and value[0] >= 0):
            wrong = f"the runner {value[0]!r} of {key} is no number from 0 on"
        if not wrong:
            wrong = tactic_fault(value[1], forms["compound"])
            wrong = f"{wrong} ({key})" if wrong else ""
        faults += [wrong] if wrong else []
    return faults


def cache_faults(found: dict, forms: dict) -> tuple[list[str], int]:
    """(what is wrong, entries) of an autotuner's cache: key to [runner's class, tactic, ...]."""
    faults, entries = [], 0
    for key, value in found.items():
        if key in forms["reserved"]:
            continue
        if key.startswith("_"):
            faults.append(f"the entry {key} is of another version: the installed FlashInfer would take it for a tactic")
            continue
        entries += 1
        runner, wrong = key_fault(key, forms["key_parts"])
        if not wrong and (not isinstance(value, list) or not 2 <= len(value) <= forms["fields"]):
            allowed = "[runner, tactic]" + (f" with up to {forms['fields'] - 2} more" if forms["fields"] > 2 else "")
            wrong = f"the value {value!r} of {key} is not {allowed}"
        if not wrong and value[0] != runner:
            wrong = f"the runner {value[0]!r} is not the one of its key {key}"
        if not wrong:
            wrong = tactic_fault(value[1], forms["compound"])
            wrong = f"{wrong} ({key})" if wrong else ""
        skipped = forms["skips_cudnn_numbers"] and runner.startswith("Cudnn")
        if not wrong and skipped and number(value[1]) and value[1] >= 0:
            wrong = f"the installed FlashInfer skips cuDNN tactics that are numbers ({key})"
        faults += [wrong] if wrong else []
    if not entries and not found.get("_records"):
        faults.append("it holds no tuned choice")
    return faults, entries


def metadata_faults(found: dict, current: dict | None) -> list[str]:
    """FlashInfer's own rule: each field that it looks at must be the same, or "*". Otherwise it ignores the file."""
    saved = found.get("_metadata")
    if not isinstance(saved, dict):
        return ["it has no _metadata, so nothing tells what it was made on"]
    if current is None:
        return []
    return [
        f"its {name} is {saved.get(name, 'missing')}, the node's is {value}"
        for name, value in current.items()
        if saved.get(name) not in (value, "*")
    ]


def blocklist_faults(found: dict) -> tuple[list[str], int]:
    """(what is wrong, entries) of a blocklist: operation::Runner to tactics."""
    faults, entries = [], 0
    invalid = found.get("invalid_tactics")
    if not isinstance(invalid, dict) or not invalid:
        return ["it has no invalid_tactics"], 0
    for key, tactics in invalid.items():
        operation, _, runner = key.rpartition("::")
        if not operation or not runner.isidentifier():
            faults.append(f"the key {key!r} is not operation::Runner")
            continue
        if not isinstance(tactics, list):
            faults.append(f"the tactics of {key} are no list")
            continue
        entries += len(tactics)
        faults += [f"{wrong} ({key})" for wrong in (tactic_fault(tactic, True) for tactic in tactics) if wrong]
    return faults, entries


def triton_faults(found: dict) -> list[str]:
    """Batch size to launch parameters."""
    faults = [] if found else ["it holds no batch size"]
    for size, values in found.items():
        if not re.fullmatch(r"[1-9]\d*", size):
            faults.append(f"the batch size {size!r} is no number from 1 on")
        elif not isinstance(values, dict):
            faults.append(f"the values of batch size {size} are no object")
        else:
            missing = [name for name in MOE_NEEDED if name not in values]
            wrong = [
                f"{name}={value!r}"
                for name, value in values.items()
                if not (isinstance(value, bool) if name == "USE_TMA" else number(value) and value > 0)
            ]
            if missing:
                faults.append(f"batch size {size} lacks {', '.join(missing)}")
            if wrong:
                faults.append(f"batch size {size} has {', '.join(wrong)}, expected numbers from 1 on")
    return faults


def down_faults(up: dict, down: dict) -> list[str]:
    """Both kernels share one sorting, so the rows of a block must agree at every batch size; SGLang 0.5.9 asserts it."""

    def rows(configs: dict, size: int) -> Any:
        nearest = min((int(key) for key in configs), key=lambda key: abs(key - size))
        return configs[str(nearest)]["BLOCK_SIZE_M"]

    sizes = sorted({int(key) for key in (*up, *down)})
    return [
        f"at batch size {size} BLOCK_SIZE_M is {rows(up, size)} and in the _down file {rows(down, size)}"
        for size in sizes
        if rows(up, size) != rows(down, size)
    ]


def rank_names(ranks: dict) -> list[str]:
    """The files of all ranks. With DP attention a data parallel rank is some of the tensor parallel ones."""
    tp, pp, dp = ranks["tp"], ranks["pp"], ranks["dp"]
    names = []
    for stage in range(pp):
        for rank in range(tp):
            replicas = [rank // max(tp // dp, 1)] if ranks["dp_attention"] else range(dp)
            names += [f"rank_tp{rank}_pp{stage}_dp{replica}.json" for replica in replicas]
    return names


def disagreements(texts: dict[str, dict]) -> list[str]:
    """Ranks of one pipeline stage run the same shapes together, so they must choose the same."""
    told = []
    first: dict[str, str] = {}
    for name in sorted(texts, key=lambda name: [int(part) for part in re.findall(r"\d+", name)]):
        stage = re.sub(r".*_pp(\d+)_.*", r"\1", name)
        other = first.setdefault(stage, name)
        one, two = (
            {key: value for key, value in texts[n].items() if key not in ("_metadata", "_generation")}
            for n in (other, name)
        )
        differ = sorted(key for key in {*one, *two} if one.get(key) != two.get(key))
        if differ:
            key = differ[0]
            told.append(
                f"{other} and {name} disagree in {len(differ)} of {len({*one, *two})} entries, first in {key}: "
                f"{one.get(key, 'missing')} and {two.get(key, 'missing')}"
            )
    return told


def key_of(cache: dict, engine: dict, ranks: dict) -> str:
    """SGLang's key, of the expressions that its source makes it of. ValueError where the source has an unknown one."""
    if engine.get("key"):
        if not re.fullmatch(r"[0-9a-f]{16}", engine["key"]):
            raise ValueError(f"engine.key is {engine['key']!r}, expected 16 hex digits as the log shows them")
        return engine["key"]
    missing = [name for name in ("model_path", "moe_runner_backend", "config_class") if not engine.get(name)]
    if missing:
        raise ValueError(
            f"engine lacks {', '.join(missing)}, which SGLang makes the cache's key of; or give engine.key"
        )
    if engine["dtype"] == "auto":
        raise ValueError("engine.dtype is auto, expected the resolved one, such as bfloat16")
    values = {
        **{name: engine.get(name) for name in ("model_path", "quantization", "moe_runner_backend", "config_class")},
        "dtype": "torch." + engine["dtype"].replace("torch.", ""),
        "tp": ranks["tp"],
        "pp": ranks["pp"],
        "attention_dp": ranks["dp"] if ranks["dp_attention"] else 1,
        "ep": engine["ep"],
    }
    parts = []
    for source in cache["parts"] + (cache["draft_parts"] if engine["draft"] else []):
        wrapped = re.fullmatch(r"str\((.*)\)", source)
        name = next((n for n in KEY_PARTS if wrapped and re.search(rf"\.{re.escape(n)}$", wrapped[1])), None)
        if name:
            parts.append(str(values[KEY_PARTS[name]]))
        elif re.fullmatch(r"'[\w=.-]*'", source):
            parts.append(source[1:-1])
        elif source == "'skip_ops=' + ','.join(sorted(skip_ops))":
            parts.append("skip_ops=" + ",".join(sorted(set(engine["skip_ops"]))))
        elif re.fullmatch(r"f'draft_quant=\{[\w.]*\.quantization\}'", source):
            parts.append(f"draft_quant={engine.get('draft_quantization')}")
        else:
            raise ValueError(
                f"this SGLang makes the cache's key of {source}, which this module does not know; give engine.key"
            )
    if len(parts) < 9:
        raise ValueError(f"this SGLang makes the cache's key in another way ({cache['source']}); give engine.key")
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]


def underscored(device: str) -> str:
    return device.replace(" ", "_")


# --- an artefact on a node -------------------------------------------------------------------------------------------------


class Judge:
    """Decides what an artefact is here. It reads no file and asks nothing."""

    def __init__(self, params: dict, node: dict, cache_dir: str = "") -> None:
        self.artefact: dict = params["artefact"]
        self.params = params
        self.node = node
        self.cache_dir = cache_dir
        self.files: dict[str, str] = params["files"]
        self.kind: str = self.artefact["kind"]
        self.forms: dict = node.get("flashinfer") or {}
        self.plan = Plan()
        self.entries = 0

    def refuse(self, text: str) -> None:
        self.plan.problems.append(text)

    def nowhere(self, text: str) -> None:
        """No file of this kind is read here, so none can be there either."""
        self.refuse(text)
        self.plan.nowhere = True

    def judged(self) -> Plan:
        self.provenance()
        self.hashes()
        getattr(self, self.kind)()
        self.runners()
        self.surroundings()
        if self.files:
            self.plan.more["entries"] = self.entries
        return self.plan

    # --- what all kinds share

    def provenance(self) -> None:
        artefact, devices, versions = self.artefact, self.node["devices"], self.node["versions"]
        names = [device["name"] for device in devices]
        if not names:
            self.refuse(
                "The release's torch sees no GPU on this node, and a file's name and content depend on the card."
            )
        elif len(set(names)) > 1:
            counted = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
            self.refuse(
                f"The node's cards are mixed ({counted}), and the artefact is for {artefact['device']} alone. Let the server "
                "see one kind with CUDA_VISIBLE_DEVICES."
            )
        elif names[0] != artefact["device"]:
            self.refuse(f"The artefact is for {artefact['device']}, and the node has {names[0]}.")
        for capability in sorted({device["capability"] for device in devices} - {artefact["compute_capability"]}):
            self.refuse(
                f"The artefact is for compute capability {artefact['compute_capability']}, and the node has {capability}."
            )
        decisive = DECISIVE[self.kind]
        wanted, there = artefact["versions"].get(decisive), versions.get(decisive)
        if not wanted:
            self.refuse(f"The artefact's versions do not say which {decisive} it was made with.")
        elif there is None:
            self.refuse(f"The release has no {decisive}, and the artefact is for {decisive} {wanted}.")
        elif str(wanted) != there:
            self.refuse(
                f"The artefact was made with {decisive} {wanted}, and the release has {there}: its choices may mean other kernels. "
                "Tune again on this release."
            )
        for name, version in artefact["versions"].items():
            if name != decisive and versions.get(name) not in (None, str(version)):
                self.plan.notes.append(
                    f"The artefact was made with {name} {version}, and the release has {versions[name]}."
                )
        driver = self.node.get("driver")
        if driver and driver != artefact["driver"]:
            self.plan.notes.append(
                f"The artefact was made with driver {artefact['driver']}, and the node has {driver}."
            )
        if self.params["state"] == "collected":
            return  # it is measured with what is collected here
        gain = artefact.get("gain")
        if gain is None and self.kind != "tactics_blocklist":
            self.refuse("The artefact does not say what it gains (gain), so nothing speaks for installing it.")
        if gain is not None and gain["percent"] <= 0:
            self.refuse(
                f"The artefact gains nothing: {gain['what']}, {gain['before']:g} before and {gain['after']:g} with it "
                f"({gain['percent']:g} %)."
            )

    def hashes(self) -> None:
        if not self.files:
            return
        named = self.artefact["files"]
        for name in sorted({*named} ^ {*self.files}):
            side = "artefact.yml does not name it" if name in self.files else "its text is missing"
            self.refuse(f"{name}: {side}.")
        for name, text in self.files.items():
            wanted, found = named.get(name), sha256(text)
            if wanted and wanted != found:
                self.refuse(
                    f"{name} is not the file that artefact.yml describes: its SHA-256 is {found}, expected {wanted}. It was cut or "
                    "edited."
                )

    def single(self, end: str) -> str | None:
        """The only file's name."""
        names = list(self.artefact["files"])
        if len(names) != 1 or not names[0].endswith(end):
            self.refuse(
                f"An artefact of kind {self.kind} has one {end} file, and this one has {', '.join(names) or 'none'}."
            )
            return None
        return names[0]

    def loaded(self, name: str, reader: Any) -> dict | None:
        try:
            return reader(self.files[name])
        except ValueError as error:
            self.refuse(f"{name} {error}.")
            return None

    def refuse_all(self, name: str, faults: list[str]) -> None:
        for fault in few(faults):
            self.refuse(f"{name}: {fault}.")

    def runners(self) -> None:
        for name in self.node["missing_classes"]:
            self.refuse(
                f"The artefact has tactics of {name}, and no source of the installed FlashInfer "
                f"{self.node['versions']['flashinfer']} defines that runner: it is of another version."
            )

    def surroundings(self) -> None:
        for name, value in self.plan.environment.items():
            given = self.params["environment"].get(name)
            if given is not None and str(given) != value:
                self.refuse(f"The unit's environment has {name}={given}, and the artefact needs {name}={value}.")

    def note(self, path: str) -> None:
        """The artefact's provenance, beside its files."""
        kept = {key: value for key, value in self.artefact.items() if value is not None}
        self.plan.places.append(Place(path, json.dumps(kept, indent=1, sort_keys=True) + "\n", "note"))

    # --- kinds

    def python_configs(self) -> None:
        name = self.single(".py")
        if not self.forms.get("python_configs"):
            self.nowhere("The installed FlashInfer reads no tuning_configs.")
            return
        if self.forms["file_first"]:
            self.plan.notes.append(
                f"With {LOAD_FROM_FILE}=1 this FlashInfer reads the file alone: what it tunes at run time is not read, and "
                "what the file lacks runs with defaults."
            )
            if self.params["autotune"]:
                self.refuse(
                    f"The server runs FlashInfer's autotuner at its start, and with {LOAD_FROM_FILE}=1 FlashInfer "
                    f"{self.node['versions']['flashinfer']} never reads what that finds. Choose one: "
                    "disable-flashinfer-autotune with this artefact, or the autotuner without it."
                )
        self.plan.more["runtime_read"] = not self.forms["file_first"]
        self.plan.environment[LOAD_FROM_FILE] = "1"
        if name and name in self.files:
            configs = self.loaded(name, read_python)
            if configs is not None:
                self.entries = len(configs)
                self.refuse_all(name, python_faults(configs, self.forms))
        module = self.forms.get("config_module")
        if not module:
            return
        short = module.rpartition(".")[2]
        if not re.fullmatch(r"flashinfer\.tuning_configs\.[\w()+-]+", module):
            self.refuse(f"The installed FlashInfer looks for the module {module}, which is no file of tuning_configs.")
            return
        if name and name != short + ".py":
            self.refuse(f"The artefact's file is {name}, and the installed FlashInfer looks for {short}.py.")
        folder = os.path.join(self.forms["folder"], "tuning_configs")
        self.plan.places.append(Place(os.path.join(folder, short + ".py"), self.files.get(name or "", "")))
        self.note(os.path.join(folder, short + ".artefact.json"))

    def autotune_cache(self) -> None:
        cache, ranks, engine = self.node["cache"], self.artefact.get("ranks"), self.params["engine"]
        texts = self.cache_texts(ranks)
        if not self.forms.get("json"):
            self.nowhere(
                f"FlashInfer {self.node['versions']['flashinfer']} keeps no cache: it begins with 0.6.7. Use python_configs here."
            )
            return
        if cache is None:
            self.nowhere(
                f"SGLang {self.node['versions']['sglang']} hands no cache to FlashInfer's autotuner: that begins with 0.5.12. Use "
                "python_configs here."
            )
            return
        self.plan.agree = cache["agree"]
        self.plan.more["runtime_read"] = True
        if self.params["autotune"] is False:
            self.refuse(
                "The server does not run FlashInfer's autotuner, and nothing else reads its cache. Take "
                "disable-flashinfer-autotune out, and choose a MoE runner backend that is tuned."
            )
        if str(self.params["environment"].get("SGLANG_FLASHINFER_AUTOTUNE_CACHE", "1")).lower() in (
            "0",
            "false",
            "no",
            "n",
            "off",
        ):
            self.refuse("SGLANG_FLASHINFER_AUTOTUNE_CACHE is off in the unit's environment, so the cache is not read.")
        for given, known in ((cache["layout"] == LAYOUT, "folder"), (cache["key"] == HASH, "key")):
            if not given:
                self.refuse(
                    f"This SGLang computes the cache's {known} in a way that this module does not know ({cache['source']})."
                )
        if not RANK_FORM.fullmatch(cache["rank"]):
            self.refuse(f"This SGLang names a rank's file {cache['rank']}, which this module does not know.")
        if ranks is None:
            return
        if engine is None:
            if self.params["state"] != "inspected":
                self.refuse("The cache's place is not known: engine is missing.")
            return
        if engine.get("moe_runner_backend") == "flashinfer_megamoe" and not engine["draft"]:
            self.refuse("flashinfer_megamoe names the files by each card's UUID, so they fit one node only.")
        try:
            key = self.plan.more["key"] = key_of(cache, engine, ranks)
        except ValueError as error:
            self.refuse(f"{error}.")
            return
        if self.params["cache_dir"]:
            self.plan.environment["SGLANG_CACHE_DIR"] = self.params["cache_dir"]
        devices = self.node["devices"]
        version = self.forms.get("version") or self.node["versions"]["flashinfer"]
        if not devices or not self.cache_dir:
            return
        arch = "sm" + devices[0]["capability"].replace(".", "")
        folder = os.path.join(self.cache_dir, "flashinfer/autotune", version, arch, key)
        for name in rank_names(ranks):
            text = texts.get(name, texts.get(ALL_RANKS, ""))
            self.plan.places.append(Place(os.path.join(folder, name), text, "cache", owned=True))
        self.note(os.path.join(folder, "artefact.json"))
        self.plan.places[-1].owned = True

    def cache_texts(self, ranks: dict | None) -> dict[str, str]:
        """The ranks' texts, judged."""
        names = list(self.artefact["files"])
        if ranks is None:
            self.refuse("An artefact of kind autotune_cache says for how many ranks it is (ranks).")
        elif min(ranks["tp"], ranks["pp"], ranks["dp"]) < 1 or (ranks["dp_attention"] and ranks["tp"] % ranks["dp"]):
            self.refuse(f"ranks are {ranks}, expected numbers from 1 on, and with dp_attention a dp that divides tp.")
        elif names != [ALL_RANKS] and self.params["state"] != "collected":
            wanted = set(rank_names(ranks))
            if {*names} != wanted:
                lacking, strange = sorted(wanted - {*names}), sorted({*names} - wanted)
                self.refuse(
                    f"The artefact's files are not those of its ranks: missing {', '.join(lacking) or 'none'}; not expected "
                    f"{', '.join(strange) or 'none'}. One {ALL_RANKS} stands for all."
                )
        loaded = {}
        for name in names if self.files else ():
            if name in self.files:
                found = self.loaded(name, read_json_text)
                if found is not None:
                    loaded[name] = found
        seen: dict[str, str] = {}
        for name, found in loaded.items():
            # Most ranks hold the same, and are judged once.
            same = seen.setdefault(self.files[name], name)
            if same == name and self.forms:
                faults, entries = cache_faults(found, self.forms)
                self.entries += entries
                self.refuse_all(name, faults + metadata_faults(found, self.forms.get("metadata")))
                self.same_card(name, found)
        told = disagreements({name: found for name, found in loaded.items() if RANK.fullmatch(name)})
        for text in told[:3]:
            self.refuse(f"The ranks disagree: {text}. Take the file of one rank for all, as {ALL_RANKS}.")
        return self.files

    def same_card(self, name: str, found: dict) -> None:
        """The provenance must be the file's own."""
        saved = found.get("_metadata")
        if isinstance(saved, dict) and saved.get("gpu") not in ("*", self.artefact["device"]):
            self.refuse(f"{name} was made on {saved.get('gpu')}, and artefact.yml says {self.artefact['device']}.")

    def tactics_blocklist(self) -> None:
        name = self.single(".json")
        if not self.forms.get("blocklist"):
            self.refuse(
                f"FlashInfer {self.node['versions']['flashinfer']} reads no blocklist of tactics: it begins with 0.6.15."
            )
            return
        self.plan.more["runtime_read"] = True
        if name and name in self.files:
            found = self.loaded(name, read_json_text)
            if found is not None:
                faults, self.entries = blocklist_faults(found)
                self.refuse_all(name, faults + metadata_faults(found, self.forms.get("metadata")))
                self.same_card(name, found)
        folder = self.own_folder()
        if folder:
            path = os.path.join(folder, "tactics_blocklist.json")
            self.plan.environment["FLASHINFER_TACTICS_BLOCKLIST"] = path
            self.plan.places.append(Place(path, self.files.get(name or "", "")))
            self.note(os.path.join(folder, "tactics_blocklist.artefact.json"))

    def triton_moe(self) -> None:
        self.plan.more["runtime_read"] = True
        devices, version = self.node["devices"], self.node["versions"].get("triton")
        loaded: dict[str, dict] = {}
        names = list(self.artefact["files"])
        if not names:
            self.refuse("The artefact has no files.")
        if not self.node.get("moe_folder"):
            self.refuse(f"SGLang {self.node['versions']['sglang']} reads no tuned MoE configurations in a known place.")
        for name in names:
            parts = MOE_NAME.fullmatch(name)
            if not parts:
                self.refuse(
                    f"{name} is no name that SGLang looks for, expected E=…,N=…,device_name=…[,dtype=…][,block_shape=[…, …]]"
                    "[,per_channel_quant=True][_down].json."
                )
            elif parts["device"] != underscored(self.artefact["device"]):
                self.refuse(
                    f"{name} is for {parts['device']}, and artefact.yml says {underscored(self.artefact['device'])}."
                )
            elif devices and parts["device"] != underscored(devices[0]["name"]):
                self.refuse(f"{name} is for {parts['device']}, and the node has {underscored(devices[0]['name'])}.")
            if name in self.files:
                found = self.loaded(name, read_json_text)
                if found is not None:
                    faults = triton_faults(found)
                    self.entries += len(found)
                    self.refuse_all(name, faults)
                    if not faults:
                        loaded[name] = found
        for name, found in loaded.items():
            down = loaded.get(name[: -len(".json")] + "_down.json")
            if down:
                self.refuse_all(name, down_faults(found, down))
        folder = self.own_folder()
        if not folder or not version:
            return
        root = os.path.join(folder, "moe")
        self.plan.environment["SGLANG_MOE_CONFIG_DIR"] = root
        for name in names:
            path = os.path.join(root, "configs", f"triton_{version.replace('.', '_')}", name)
            self.plan.places.append(Place(path, self.files.get(name, "")))
        self.note(os.path.join(root, f"{re.sub(r'[^A-Za-z0-9._-]', '_', self.artefact['name'])}.artefact.json"))

    def own_folder(self) -> str | None:
        folder = self.params["folder"]
        if not folder:
            if self.params["state"] != "inspected":
                self.refuse(f"folder is missing: {self.kind} needs a folder of its own.")
            return None
        real = os.path.realpath(folder)
        if re.search(r"/(site|dist)-packages(/|$)", real) or not os.path.isabs(folder):
            self.refuse(f"folder is {folder}, expected an absolute path outside of every package.")
            return None
        return folder


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# --- the node --------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def acting_as(user: pwd.struct_passwd | None) -> Iterator[None]:
    """With the rights of the user who serves, so that what it may not do is seen here, and its folders lead root nowhere."""
    if user is None or os.geteuid() != 0 or user.pw_uid == 0:
        yield
        return
    groups = os.getgroups()
    os.initgroups(user.pw_name, user.pw_gid)
    os.setegid(user.pw_gid)
    os.seteuid(user.pw_uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def runners_of(params: dict) -> list[str]:
    """Classes that the files name, read leniently: what is wrong with a file is said later."""
    found: set[str] = set()
    kind = params["artefact"]["kind"]
    for text in set(params["files"].values()):
        with contextlib.suppress(ValueError):
            if kind == "python_configs":
                keys: Iterable = read_python(text)
            elif kind == "autotune_cache":
                keys = read_json_text(text)
            elif kind == "tactics_blocklist":
                names = (key.rpartition("::")[2] for key in read_json_text(text).get("invalid_tactics") or {})
                found |= {name for name in names if name.isidentifier()}
                continue
            else:
                continue
            for key in keys:
                with contextlib.suppress(ValueError, SyntaxError, TypeError, IndexError, RecursionError, MemoryError):
                    runner = ast.literal_eval(key)[1]
                    found |= {runner} if isinstance(runner, str) and runner.isidentifier() else set()
    return sorted(found)


def missing_classes(names: list[str], folders: list[str | None]) -> list[str]:
    """Those runners that no source of these packages defines."""
    wanted = set(names)
    for folder in folders:
        for path in glob.iglob(os.path.join(glob.escape(folder), "**/*.py"), recursive=True) if folder else ():
            if not wanted:
                return []
            with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as stream:
                text = stream.read()
                wanted -= {name for name in wanted if re.search(rf"^\s*class {re.escape(name)}\b", text, re.M)}
    return sorted(wanted)


def driver() -> str | None:
    for path in ("/sys/module/nvidia/version", "/proc/driver/nvidia/version"):
        with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as stream:
            found = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", stream.read())
            if found:
                return found[0]
    return None


class Release:
    """Asks the release's own Python."""

    def __init__(self, module: AnsibleModule, user: pwd.struct_passwd | None) -> None:
        self.params = module.params
        self.check = module.check_mode
        self.python = self.params["python"]
        self.user = user
        self.asked = False

    def answer(self) -> dict:
        question = json.dumps({"flashinfer": self.params["artefact"]["kind"] != "triton_moe"})
        wanted = self.depends(question)
        told = recalled(self.params["answers"], wanted)
        if not told:
            told = self.ask(question)
            self.asked = True
            # Without a card the answer says nothing, and the card may come.
            if self.params["answers"] and not self.check and told["devices"]:
                keep(self.params["answers"], wanted, told)
        folders = [(told.get("flashinfer") or {}).get("folder"), told.get("sglang_folder")]
        return {**told, "driver": driver(), "missing_classes": missing_classes(runners_of(self.params), folders)}

    def depends(self, question: str) -> str:
        folder = os.path.join(glob.escape(os.path.dirname(os.path.dirname(self.python))), "lib/python3*/site-packages")
        site = glob.glob(os.path.join(folder, "*.dist-info"))
        # A patch leaves the package's metadata as it was.
        for name in (
            "flashinfer/autotuner.py",
            "flashinfer/autotuner/*.py",
            *(f"sglang/srt/{s}" for s in flashinfer_probe.CACHE_SOURCES),
        ):
            site += glob.glob(os.path.join(folder, name))
        packages = sorted(f"{path} {os.stat(path).st_mtime_ns}" for path in site)
        parts = [question, self.python, str(driver()), *cards(), *packages, inspect.getsource(flashinfer_probe)]
        parts += [f"{name}={value}" for name, value in sorted(self.params["environment"].items())]
        parts += [self.user.pw_name if self.user else ""]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def ask(self, question: str) -> dict:
        # Not below the module's own folder, which the server's user cannot enter.
        with tempfile.TemporaryDirectory(prefix="flashinfer-tuning-") as scratch:
            become = identity(self.user)
            program, home = placed(flashinfer_probe, scratch, become), os.path.join(scratch, "home")
            os.mkdir(home)
            if become:
                os.chown(home, become["user"], become["group"])
            own = {
                "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
                **{name: str(value) for name, value in self.params["environment"].items()},
                # FlashInfer makes folders for its kernels when it is imported.
                "HOME": home,
                "TMPDIR": home,
                "FLASHINFER_WORKSPACE_BASE": home,
                "PYTHONDONTWRITEBYTECODE": "1",
            }
            # A blocklist that is cut must not end the question about it.
            own.pop("FLASHINFER_TACTICS_BLOCKLIST", None)
            try:
                done = subprocess.run(
                    [self.python, program],
                    input=question,
                    env=own,
                    cwd=home,
                    capture_output=True,
                    text=True,
                    timeout=TIMEOUT,
                    check=False,
                    **become,
                )
            except subprocess.TimeoutExpired:
                raise Refused([f"The release did not answer within {TIMEOUT} s ({self.python})."]) from None
            except OSError as error:
                name = self.user.pw_name if self.user else "The present user"
                raise Refused([f"{name} cannot run {self.python}: {error.strerror}."]) from None
        try:
            return json.loads(done.stdout)
        except ValueError:
            told = " / ".join(done.stderr.strip().splitlines()[-3:])
            raise Refused(
                [f"The release's code could not be asked ({self.python}, exit status {done.returncode}): {told}"]
            ) from None


def cache_dir_of(params: dict, user: pwd.struct_passwd | None) -> str:
    """SGLang's cache as the unit's process would find it."""
    if params["cache_dir"]:
        return params["cache_dir"]
    given = params["environment"]
    home = str(given.get("HOME") or (user.pw_dir if user else ""))
    if given.get("SGLANG_CACHE_DIR"):
        return str(given["SGLANG_CACHE_DIR"])
    return os.path.join(home, ".cache/sglang") if home else ""


def look(place: Place, user: pwd.struct_passwd | None, metadata: dict | None) -> None:
    """What is at a place now. In the user's own cache it is read with its rights: a link there is no way to other files."""
    try:
        with acting_as(user if place.owned else None), open(place.path, "rb") as stream:
            data = stream.read()
            place.raw = (data, os.fstat(stream.fileno()))
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        place.state, place.why = "unreadable", closed_to(place.path, user) or f"{place.path}: {error.strerror}"
        return
    place.before = data.decode("utf-8", "replace")
    place.sha256 = hashlib.sha256(data).hexdigest()
    closed = closed_to(place.path, user)
    if closed:
        place.state, place.why = "unreadable", closed
    elif place.before == place.text:
        place.state = "same"
    elif place.kind == "cache":
        place.state, place.why = look_at_cache(place, metadata)
    else:
        place.state, place.why = "other", "it holds something else"


def look_at_cache(place: Place, metadata: dict | None) -> tuple[str, str]:
    """The engine adds to a cache, so one that holds the artefact's choices and more is as good."""
    try:
        there = read_json_text(place.before or "")
    except ValueError as error:
        return "unreadable", f"it {error}"
    stale = metadata_faults(there, metadata)
    if stale:
        return "unreadable", stale[0]
    try:
        wanted = read_json_text(place.text)
    except ValueError:
        return "other", "there is no artefact's text to compare with"
    differ = [
        key for key, value in wanted.items() if not key.startswith("_") and (there.get(key) or [None])[:2] != value[:2]
    ]
    if differ:
        return "other", f"{len(differ)} of the artefact's entries are missing or other, first {differ[0]}"
    return "more", ""


def closed_to(path: str, user: pwd.struct_passwd | None) -> str:
    """Why the user who serves cannot read a file; empty when it can. The first folder above that is closed is named."""
    with acting_as(user):
        try:
            with open(path, "rb"):
                return ""
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM):
                return f"{path}: {error.strerror}"
        step = ""
        for part in os.path.abspath(path).split("/")[1:-1]:
            step = f"{step}/{part}"
            if not os.path.lexists(step):
                return ""
            if not os.access(step, os.X_OK, effective_ids=True):
                return f"{user.pw_name if user else 'the user'} cannot enter {step}"
        return f"{user.pw_name if user else 'the user'} cannot read {path}" if os.path.lexists(path) else ""


class Write:
    """All files beside their places first, then all renames; or everything as it was."""

    def __init__(self, user: pwd.struct_passwd | None) -> None:
        self.user = user
        self.staged: list[tuple[str, Place]] = []
        self.made: list[tuple[str, bool]] = []

    def run(self, places: list[Place]) -> None:
        done: list[Place] = []
        try:
            for place in places:
                try:
                    self.stage(place)
                except OSError as error:
                    error.filename = error.filename or place.path
                    raise
            for temporary, place in self.staged:
                with self.rights(place.owned):
                    os.replace(temporary, place.path)
                    done.append(place)
                    sync(os.path.dirname(place.path))
                forget_compiled(place.path)
            for place in places:
                closed = closed_to(place.path, self.user)
                if closed:
                    raise PermissionError(errno.EACCES, f"{closed}, so the server would not read it", place.path)
        except BaseException:
            self.undo(done)
            raise

    def rights(self, owned: bool) -> Any:
        return acting_as(self.user if owned else None)

    def stage(self, place: Place) -> None:
        folder = os.path.dirname(place.path)
        with self.rights(place.owned):
            self.folders(folder, place.owned)
            for left in glob.glob(os.path.join(glob.escape(folder), PREFIX + "*")):
                process = os.path.basename(left)[len(PREFIX) :].partition("-")[0]
                if not os.path.exists(f"/proc/{process}"):
                    os.unlink(left)  # of a run that was killed
            handle, temporary = tempfile.mkstemp(prefix=f"{PREFIX}{os.getpid()}-", dir=folder)
            self.staged.append((temporary, place))
            with os.fdopen(handle, "w", encoding="utf-8", newline="") as stream:
                stream.write(place.text)
                stream.flush()
                os.fsync(stream.fileno())
            os.chmod(temporary, 0o644)

    def folders(self, path: str, owned: bool) -> None:
        missing = []
        while not os.path.lexists(path):
            missing.append(path)
            path = os.path.dirname(path)
        for folder in reversed(missing):
            os.mkdir(folder, 0o755)
            self.made.append((folder, owned))

    def undo(self, done: list[Place]) -> None:
        for temporary, place in self.staged:
            with self.rights(place.owned), contextlib.suppress(OSError):
                os.unlink(temporary)
        for place in done:
            with contextlib.suppress(OSError):
                self.put_back(place)
        for folder, owned in reversed(self.made):
            with self.rights(owned), contextlib.suppress(OSError):
                os.rmdir(folder)

    def put_back(self, place: Place) -> None:
        with self.rights(place.owned):
            if place.raw is None:
                os.unlink(place.path)
                return
            data, about = place.raw
            handle, temporary = tempfile.mkstemp(prefix=f"{PREFIX}{os.getpid()}-", dir=os.path.dirname(place.path))
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
            os.chmod(temporary, about.st_mode & 0o7777)
            if not place.owned and os.geteuid() == 0:
                os.chown(temporary, about.st_uid, about.st_gid)
            os.replace(temporary, place.path)


def sync(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def forget_compiled(path: str) -> None:
    """A change of the same size in the same second would run the old compiled file."""
    if path.endswith(".py"):
        folder, name = os.path.split(path)
        for old in glob.glob(os.path.join(glob.escape(folder), "__pycache__", glob.escape(name[:-3]) + ".*.pyc")):
            with contextlib.suppress(OSError):
                os.unlink(old)


def remove(places: list[Place], user: pwd.struct_passwd | None) -> None:
    """The files, then the folders that are empty without them and were made for them."""
    for place in places:
        with acting_as(user if place.owned else None), contextlib.suppress(FileNotFoundError):
            os.unlink(place.path)
        forget_compiled(place.path)
    for place in places:
        folder = os.path.dirname(place.path)
        # configs stays: from SGLang 0.5.15 on a server ends when its folder has none.
        if re.search(r"/flashinfer/autotune/[^/]+/sm\d+/[0-9a-f]{16}$|/configs/triton_[^/]+$", folder):
            with acting_as(user if place.owned else None), contextlib.suppress(OSError):
                os.rmdir(folder)


def shipped(path: str, folder: str) -> bool:
    """Whether FlashInfer's wheel holds this file itself."""
    site = os.path.dirname(folder)
    name = os.path.relpath(path, site)
    for record in glob.glob(os.path.join(glob.escape(site), "flashinfer_python-*.dist-info", "RECORD")):
        with contextlib.suppress(OSError), open(record, encoding="utf-8", errors="replace") as stream:
            if any(line.startswith(name + ",") for line in stream):
                return True
    return False


def hidden(plan: Plan, node: dict) -> list[str]:
    """Files for this card that SGLang ships, and that an own folder hides."""
    root, own = node.get("moe_folder"), plan.environment.get("SGLANG_MOE_CONFIG_DIR")
    if not root or not own or not node["devices"]:
        return []
    device = underscored(node["devices"][0]["name"])
    mine = {os.path.basename(place.path) for place in plan.places}
    mine |= {os.path.basename(path) for path in glob.glob(os.path.join(glob.escape(own), "configs/triton_*/*.json"))}
    there = glob.glob(os.path.join(glob.escape(root), "configs/triton_*/*.json"))
    named = [path for path in there if re.search(rf"device_name={re.escape(device)}[,._]", os.path.basename(path))]
    return sorted(path for path in named if os.path.basename(path) not in mine)


def shown(text: str | None) -> str:
    if text is None:
        return ""
    return text if len(text) <= SHOWN else f"({len(text)} characters, SHA-256 {sha256(text)})\n"


def difference(place: Place, after: str) -> dict[str, str]:
    return {
        "before_header": place.path,
        "after_header": place.path,
        "before": shown(place.before),
        "after": shown(after),
    }


def status_of(plan: Plan) -> str:
    """Of what is found together. The notes of provenance are no file that a server reads."""
    files = [place for place in plan.places if place.kind != "note"]
    states = {place.state for place in files}
    if not files or states == {"missing"}:
        return "not_installed"
    if "unreadable" in states:
        return "broken"
    if states <= {"same", "more"}:
        return "broken" if differing_ranks(plan) else "installed"
    return "outdated"


def differing_ranks(plan: Plan) -> list[str]:
    """Where the release drops all caches when one differs: those that came to differ."""
    if not plan.agree:
        return []
    texts = {}
    for place in plan.places:
        if place.kind == "cache" and place.state in ("same", "more"):
            texts[os.path.basename(place.path)] = read_json_text(place.before or "")
    return disagreements(texts)


class Tuning:
    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.params = module.params
        self.user = account(self.params["user"])
        self.release_said: dict = {}
        self.result: dict[str, Any] = {
            "changed": False,
            "status": "refused",
            "environment": {},
            "problems": [],
            "notes": [],
        }

    def run(self) -> None:
        params, state = self.params, self.params["state"]
        if not os.path.exists(params["python"]):
            if not self.module.check_mode and state != "inspected":
                raise Refused([f"There is no {params['python']}; the release is built before it can be asked."])
            self.result.update(status="no_release", changed=state == "present")
            self.result["message"] = "The release is not built yet, so what it reads is not known."
            return
        if self.user is None and os.geteuid() == 0 and not self.module.check_mode and state == "present":
            raise Refused(
                [f"The node has no user {params['user']}, who must be able to read the files; make it first."]
            )
        release = Release(self.module, self.user or account("nobody"))
        node = release.answer()
        self.release_said = node
        metadata = (node.get("flashinfer") or {}).get("metadata")
        plan = Judge(params, node, cache_dir_of(params, self.user)).judged()
        for place in plan.places:
            look(place, self.user, metadata)
        self.against_shipped(plan, node)
        found = status_of(plan)
        self.result.update(
            status=found,
            problems=plan.problems,
            notes=plan.notes,
            environment=plan.environment if state != "absent" else {},
            node={**{name: node[name] for name in ("devices", "versions", "driver")}, "metadata": metadata},
            asked=release.asked,
            **plan.more,
        )
        if params["artefact"]["kind"] == "triton_moe":
            self.result["hidden"] = hidden(plan, node) if state != "absent" else []
            if self.result["hidden"]:
                names = ", ".join(os.path.relpath(path, node["moe_folder"]) for path in self.result["hidden"])
                plan.notes.append(
                    f"With SGLANG_MOE_CONFIG_DIR set, SGLang no longer reads what it ships for this card: {names}."
                )
        self.result["places"] = [
            {"path": place.path, "state": place.state, "why": place.why, "sha256": place.sha256}
            for place in plan.places
        ]
        getattr(self, state)(plan)

    def against_shipped(self, plan: Plan, node: dict) -> None:
        if self.params["artefact"]["kind"] != "python_configs":
            return
        for place in plan.places:
            if place.kind == "text" and place.state != "missing" and shipped(place.path, node["flashinfer"]["folder"]):
                if place.state != "same":
                    plan.problems.append(f"FlashInfer ships {place.path} itself, so it is not replaced.")
                if self.params["state"] == "absent":
                    place.state, place.before = "missing", None

    def inspected(self, plan: Plan) -> None:
        differ = differing_ranks(plan)
        wrong = [f"{place.path}: {place.why}" for place in plan.places if place.why] + differ
        told = {
            "installed": "is installed",
            "outdated": "is not what is installed",
            "broken": "is installed and is not read as it is",
            "not_installed": "is not installed",
        }[self.result["status"]]
        self.result["message"] = f"The artefact {told}." + (f" {wrong[0]}." if wrong else "")
        if plan.problems:
            self.result["status"] = "refused" if self.result["status"] != "broken" else "broken"
            self.result["message"] += f" It does not fit: {plan.problems[0]}"

    def present(self, plan: Plan) -> None:
        if not self.params["files"]:
            plan.problems.append("files is empty: there is nothing to install.")
        if plan.problems:
            raise Refused(plan.problems)
        self.reachable(plan)
        rewrite = bool(differing_ranks(plan))
        due = [
            place for place in plan.places if place.state not in ("same", "more") or (rewrite and place.kind == "cache")
        ]
        self.result.update(
            changed=bool(due),
            diff=[difference(place, place.text) for place in due],
            message=(
                f"{len([place for place in due if place.kind != 'note'])} of "
                f"{len([place for place in plan.places if place.kind != 'note'])} files "
                f"{'would be' if self.module.check_mode else 'were'} written."
                if due
                else "The artefact is installed."
            ),
        )
        for note in plan.notes:
            self.module.warn(note)
        if due and not self.module.check_mode:
            # The files, then what tells of them.
            Write(self.user).run(sorted(due, key=lambda place: place.kind == "note"))

    def collected(self, plan: Plan) -> None:
        """What the ranks wrote, judged like an artefact that is to be installed."""
        if self.params["artefact"]["kind"] != "autotune_cache":
            raise Refused([f"The engine writes no {self.params['artefact']['kind']}; autotune_cache is collected."])
        texts: dict[str, str] = {}
        for place in plan.places:
            if place.kind != "cache":
                continue
            if place.before is None:
                plan.problems.append(
                    f"There is no {place.path}: no rank tuned that far, or the server was started with other arguments."
                )
            else:
                texts[os.path.basename(place.path)] = place.before
        first = next(iter(texts), "")
        if not plan.problems:
            # Judged as what would be installed, by the same rules.
            files = {ALL_RANKS: texts[first]}
            found = {**self.params["artefact"], "files": {name: sha256(text) for name, text in files.items()}}
            judge = Judge({**self.params, "artefact": found, "files": files}, self.release_said, "")
            plan.problems += judge.judged().problems
            self.result.update(artefact=found, files=files, entries=judge.entries)
        if plan.problems:
            raise Refused(plan.problems)
        differ = disagreements({name: read_json_text(text) for name, text in texts.items()})
        if differ:
            plan.notes.append(f"The ranks tuned alone and differ; the file of {first} is for all. First: {differ[0]}.")
        self.result["message"] = f"{self.result['entries']} tuned choices of {len(texts)} ranks."

    def reachable(self, plan: Plan) -> None:
        """Whether the user could read what is written, before it is."""
        for place in plan.places:
            if place.kind == "note" or place.state == "unreadable":
                continue
            closed = closed_to(place.path, self.user)
            if closed:
                raise Refused(
                    [f"{closed}, so the server would not read {os.path.basename(place.path)}. Open it to that user."]
                )

    def absent(self, plan: Plan) -> None:
        due = [place for place in plan.places if place.state != "missing"]
        self.result.update(
            changed=bool(due),
            problems=[],
            diff=[difference(place, "") for place in due],
            message=f"{len(due)} files {'would be' if self.module.check_mode else 'were'} removed."
            if due
            else "Nothing is there.",
        )
        if not plan.places and not plan.nowhere:
            # A card that left, or another release: nothing says where the files would be.
            raise Refused(["Where the artefact's files would be cannot be said: " + " ".join(plan.problems)])
        if due and not self.module.check_mode:
            remove(due, self.user)


RANKS = {
    "tp": {"type": "int", "required": True},
    "pp": {"type": "int", "default": 1},
    "dp": {"type": "int", "default": 1},
    "dp_attention": {"type": "bool", "default": False},
}
ARTEFACT: dict[str, Any] = {
    "name": {"type": "str", "required": True},
    "kind": {"type": "str", "choices": list(DECISIVE), "required": True},
    "device": {"type": "str", "required": True},
    "compute_capability": {"type": "str", "required": True},
    "driver": {"type": "str", "required": True},
    "versions": {"type": "dict", "required": True},
    "profile": {"type": "str", "required": True},
    "made": {
        "type": "dict",
        "required": True,
        "options": {name: {"type": "str", "required": True} for name in ("by", "at", "how")},
    },
    "gain": {
        "type": "dict",
        "options": {
            "what": {"type": "str", "required": True},
            **{name: {"type": "float", "required": True} for name in ("before", "after", "percent")},
        },
    },
    "ranks": {"type": "dict", "options": RANKS},
    "files": {"type": "dict", "required": True},
}
ENGINE = {
    "key": {"type": "str", "no_log": False},
    "model_path": {"type": "str"},
    "dtype": {"type": "str", "default": "bfloat16"},
    "quantization": {"type": "str"},
    "moe_runner_backend": {"type": "str"},
    "ep": {"type": "int", "default": 1},
    "config_class": {"type": "str"},
    "skip_ops": {"type": "list", "elements": "str", "default": []},
    "draft": {"type": "bool", "default": False},
    "draft_quantization": {"type": "str"},
}
SPEC = {
    "state": {"type": "str", "choices": ["present", "absent", "inspected", "collected"], "default": "present"},
    "python": {"type": "path", "required": True},
    "artefact": {"type": "dict", "required": True, "options": ARTEFACT},
    "files": {"type": "dict", "default": {}},
    "engine": {"type": "dict", "options": ENGINE},
    "autotune": {"type": "bool"},
    "environment": {"type": "dict", "default": {}},
    "user": {"type": "str", "default": "sglang"},
    "folder": {"type": "path"},
    "cache_dir": {"type": "path"},
    "answers": {"type": "path"},
}


def words_of(error: OSError, module: AnsibleModule) -> str:
    where = str(error.filename or "")
    if PREFIX in where:
        where = os.path.dirname(where)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        folder = where or "/"
        while not os.path.isdir(folder):
            folder = os.path.dirname(folder)
        free = shutil.disk_usage(folder).free
        size = sum(len(text.encode()) for text in module.params["files"].values())
        return (
            f"No space is left below {folder} ({free} bytes free, the artefact has {size}). Nothing was changed; make room and "
            "run again."
        )
    return f"{error.strerror or error}{f' ({where})' if where else ''}. Nothing was changed."


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    os.umask(0o022)
    tuning = Tuning(module)
    name = module.params["artefact"]["name"]
    try:
        for file, text in module.params["files"].items():
            if not isinstance(text, str):
                # Ansible makes an object of a JSON text that a template gives; its text is lost.
                raise Refused(
                    [f"{file} came as {type(text).__name__}, expected its text; give the lookup's text as it is."]
                )
        tuning.run()
    except Refused as error:
        problems = error.problems
        if module.params["state"] == "inspected":
            tuning.result.update(problems=problems, message=problems[0])
        else:
            tuning.result.update(changed=False, status="refused", problems=problems)
            module.fail_json(msg=f"{name} is refused. {' '.join(problems)}", **tuning.result)
    except OSError as error:
        module.fail_json(msg=f"{name}: {words_of(error, module)}", **{**tuning.result, "changed": False})
    module.exit_json(**tuning.result)


if __name__ == "__main__":
    main()
