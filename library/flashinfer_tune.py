#!/usr/bin/python
# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Tuned kernels made offline: FlashInfer's own autotuner over a profile's shapes, measured without and with what it found."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: flashinfer_tune
short_description: Tune a profile's kernels with FlashInfer's autotuner and make an artefact of what gains
version_added: "0.1.0"
description:
  - Runs a program in the release's own Python that calls FlashInfer's operations with a profile's shapes under FlashInfer's own
    autotuner, and writes the file that M(flashinfer_tuning) installs. For releases of the engine that keep nothing of what they
    tune, and for shapes that the engine's dummy run does not reach, which ends at C(max-running-requests) and so leaves prefill
    chunks untuned.
  - The same shapes are then measured without the file and with it, in processes of their own that tuned nothing, in turns. An
    artefact is made where every shape is found in the file by the version's own reader, and the gain is at least O(min_gain) and
    more than the rounds differ. The figure before is that of untuned kernels, not that of an engine that tunes at its start.
  - Token counts are the version's own buckets up to C(max_tokens) of an operation, and the counts between two of them.
  - The program runs apart from the task, as O(user). It goes on when the task is cut off, and the next run that wants the same
    follows it. An action plugin shows what it is at.
options:
  python:
    description: The release's interpreter, for example C(/opt/sglang/releases/glm5-0123abcd/venv/bin/python).
    type: path
    required: true
  operations:
    description:
      - What to tune, with the sizes on one GPU, as C(module_utils/flashinfer_shapes.py) makes it from a model's config.json and the
        release's resolved arguments. Each has C(op) and C(max_tokens), the most tokens of a call, and by C(op)
      - C(cutlass_fused_moe) - C(experts), C(hidden), C(intermediate), C(top_k), and may have C(input) (V(bf16), or V(nvfp4) where
        tokens are gathered packed), C(tp_size) and C(ep_size).
      - C(mm_fp4) - C(n) outputs, C(k) inputs, and may have C(backend) (V(cutlass) if left out).
      - C(bmm_fp8) - C(batch), C(n), C(k), and may have C(backend) (V(cublas)) and C(scale_dims), dimensions of its scales (V(1)).
    type: list
    elements: dict
    required: true
  kind:
    description:
      - Which file to make. V(auto) takes V(autotune_cache) where FlashInfer has one and SGLang hands it to the autotuner, which
        begins with SGLang 0.5.12, and V(python_configs) otherwise.
    type: str
    choices: [auto, python_configs, autotune_cache]
    default: auto
  out:
    description:
      - Folder on the node for the artefact's files, beside an C(artefact.yml). Folders above it must be open to O(user).
      - It keeps the last result too. A run with the same options returns that and does nothing.
    type: path
    required: true
  name:
    description: The artefact's name.
    type: str
    required: true
  profile:
    description: The profile whose shapes these are.
    type: str
    required: true
  by:
    description: Who measures, for the artefact's C(made).
    type: str
    required: true
  ranks:
    description: For V(autotune_cache), the ranks that the file is for. Left out, tensor parallel ranks as O(operations) name them.
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
  environment:
    description:
      - The unit's environment, so that the kernels are those that it has built. C(CUDA_VISIBLE_DEVICES) chooses the card; the first
        that is visible is used.
    type: dict
    default: {}
  user:
    description: The user who serves. The program runs as this user, with its home.
    type: str
    default: sglang
  rounds:
    description: How often each side is measured. One round has no spread.
    type: int
    default: 3
  min_gain:
    description: Gain in percent from which on an artefact is made.
    type: float
    default: 1.0
  timeout:
    description: Seconds that all of it may take, kernels that are built on the way included.
    type: int
    default: 7200
  again:
    description: Tune and measure even where the result of the same options is there, after a new driver for example.
    type: bool
    default: false
  slice:
    description: Internal. Seconds to wait in one run of the module.
    type: float
  attached:
    description: Internal. Whether an earlier run of this task began it.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: Says what would be tuned. The release is not asked.
  diff_mode:
    support: none
    description: Files are made, not changed.
notes:
  - The card must be free. A server that runs on it is named, and not touched.
  - The gain is the geometric mean over all shapes, since the load that a server will have is not known. A sum would be the largest
    prefill chunk alone.
  - Tokens choose their experts evenly, and weights are random numbers.
  - A call's inputs are the same each time, so small weights stay in the L2 cache, as in FlashInfer's own way of measuring.
  - Kernels that are not built yet are built first. FlashInfer's CUTLASS MoE takes ten minutes with 16 cores, and memory for them.
author: ["sglang-rtxpro authors (!UNKNOWN)"]
"""

EXAMPLES = r"""
- name: Tune the experts of Kimi K2 for a release whose engine keeps nothing
  flashinfer_tune:
    python: /opt/sglang/releases/kimi-0123abcd/venv/bin/python
    operations:
      - op: cutlass_fused_moe
        experts: 384
        hidden: 7168
        intermediate: 256
        top_k: 8
        tp_size: 8
        max_tokens: 8192
    out: /var/lib/sglang/sglang/tune/kimi_k2_thinking-moe
    name: kimi_k2_thinking-moe
    profile: kimi_k2_thinking
    by: the operations team
    environment: "{{ sglang_server_environment }}"
  register: tune

- name: Keep it in the repository
  ansible.builtin.copy:
    content: "{{ item.value }}"
    dest: "tuning/{{ tune.artefact.device | replace(' ', '_') }}/{{ sglang_env_stack }}/{{ tune.artefact.name }}/{{ item.key }}"
    mode: "0644"
  loop: "{{ tune.files | dict2items }}"
  delegate_to: localhost
  when: tune.made

- name: See whether it is worth it, with one round
  flashinfer_tune:
    python: /opt/sglang/releases/glm-0123abcd/venv/bin/python
    operations: [{op: bmm_fp8, batch: 8, k: 192, n: 512, max_tokens: 2048}]
    out: /var/lib/sglang/sglang/tune/glm5-mla
    name: glm5-mla
    profile: glm5
    by: the operations team
    rounds: 1
    min_gain: 3
"""

RETURN = r"""
changed:
  description: Whether it was tuned and measured by this task, or would be in check mode.
  type: bool
  returned: always
made:
  description: Whether an artefact was made. False in check mode.
  type: bool
  returned: always
why:
  description:
    - Why none was made - no gain, a gain within the spread, a shape that fell back or failed, nothing tuned. Empty otherwise.
  type: str
  returned: always
message:
  description: One sentence about what was found and done.
  type: str
  returned: always
artefact:
  description: The content of its C(artefact.yml), as M(flashinfer_tuning) takes it. Empty when none was made.
  type: dict
  returned: always
files:
  description: File name to text. Empty when none was made.
  type: dict
  returned: always
gain:
  description: C(what) was measured, C(before) and C(after) in microseconds, C(percent) of before. Null without figures.
  type: dict
  returned: always
spread_percent:
  description: By how much the rounds of a side differ, in percent of their median; of both sides the larger. Null without figures.
  type: float
  returned: always
shapes:
  description: Every shape that was measured.
  type: list
  elements: dict
  returned: always
  contains:
    op:
      description: The operation with its sizes.
      type: str
    tokens:
      description: Tokens of the call.
      type: int
    bucket:
      description: Whether it was tuned at this count, or lies between.
      type: bool
    before_us:
      description: Microseconds a call without the file, the median of the rounds' medians. Null where the call fails.
      type: float
    after_us:
      description: The same with it.
      type: float
    ratio:
      description: Before by after; above 1 it gains.
      type: float
    hit:
      description: Whether the version's own reader found all that this call looks up in the file.
      type: bool
    error:
      description: Why the call fails. Empty otherwise.
      type: str
verdict:
  description: What FlashInfer's own log says of the first process with the file, as M(sglang_evidence) reads it - C(loaded),
    C(partial), C(fallback) and others. Empty in check mode.
  type: str
  returned: always
fallbacks:
  description: Operations that fell back in that process, as M(sglang_evidence) returns them.
  type: list
  elements: dict
  returned: always
failed_tactics:
  description: Tactics that the autotuner tried and that failed. Some always do.
  type: int
  returned: when it was tuned
seconds:
  description: Seconds that all of it took.
  type: float
  returned: when it was tuned
"""

import datetime
import hashlib
import inspect
import json
import os
import pwd
import re
import shutil
import stat
from typing import Any

from ansible.module_utils import flashinfer_probe, flashinfer_tuner, sglang_evidence_log, sglang_job
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_release_python import account, identity

NEEDED = {
    "cutlass_fused_moe": ("experts", "hidden", "intermediate", "top_k"),
    "mm_fp4": ("n", "k"),
    "bmm_fp8": ("batch", "n", "k"),
}
NUMBERS = {"max_tokens", "tp_size", "ep_size", "scale_dims", *(word for words in NEEDED.values() for word in words)}
WORDS = {"op", "dtype", "input", "backend"}
# What decides about the result. Who asks, and for how long, does not.
DECISIVE = ("python", "operations", "kind", "name", "profile", "ranks", "environment", "rounds", "min_gain")
NOTHING: dict[str, Any] = {
    "changed": False, "made": False, "why": "", "artefact": {}, "files": {}, "gain": None, "spread_percent": None, "shapes": [],
    "verdict": "", "fallbacks": [],
}  # fmt: skip
LARGEST = 1 << 24  # bytes of a file that is taken from the program

SPEC = {
    "python": {"type": "path", "required": True},
    "operations": {"type": "list", "elements": "dict", "required": True},
    "kind": {"type": "str", "default": "auto", "choices": ["auto", "python_configs", "autotune_cache"]},
    "out": {"type": "path", "required": True},
    "name": {"type": "str", "required": True},
    "profile": {"type": "str", "required": True},
    "by": {"type": "str", "required": True},
    "ranks": {
        "type": "dict",
        "options": {
            "tp": {"type": "int", "required": True},
            "pp": {"type": "int", "default": 1},
            "dp": {"type": "int", "default": 1},
            "dp_attention": {"type": "bool", "default": False},
        },
    },
    "environment": {"type": "dict", "default": {}},
    "user": {"type": "str", "default": "sglang"},
    "rounds": {"type": "int", "default": 3},
    "min_gain": {"type": "float", "default": 1.0},
    "timeout": {"type": "int", "default": 7200},
    "again": {"type": "bool", "default": False},
    "slice": {"type": "float"},
    "attached": {"type": "bool", "default": False},
}


class Ended(Exception):
    """It could not be done; the text says why and what to do."""


# --- words -----------------------------------------------------------------------------------------------------------------


def cleaned(operations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Operations with numbers as numbers. Ended says what is wrong with them."""
    if not operations:
        raise Ended("operations is empty: this profile runs nothing that FlashInfer tunes, so there is nothing to do.")
    return [one_of(number, words) for number, words in enumerate(operations, 1)]


def one_of(number: int, words: dict[str, Any]) -> dict[str, Any]:
    op = words.get("op")
    if op not in NEEDED:
        raise Ended(f"Operation {number} has op {op!r}; expected is one of {', '.join(sorted(NEEDED))}.")
    missing = sorted({*NEEDED[op], "max_tokens"} - set(words))
    strange = sorted(set(words) - NUMBERS - WORDS)
    if missing or strange:
        what = [f"lacks {', '.join(missing)}"] * bool(missing) + [
            f"has {', '.join(strange)}, which is not known"
        ] * bool(strange)
        raise Ended(f"Operation {number} ({op}) {' and '.join(what)}.")
    made = {}
    for name, value in words.items():
        least = 0 if name == "scale_dims" else 1
        if name in NUMBERS and not (re.fullmatch(r"\d+", str(value)) and int(value) >= least):
            raise Ended(f"Operation {number} ({op}) has {name} {value!r}; expected is a number from {least} on.")
        made[name] = int(value) if name in NUMBERS else value
    if op == "cutlass_fused_moe" and (made["hidden"] % 16 or made["intermediate"] % 16):
        raise Ended(
            f"Operation {number} ({op}) has sizes that are no multiples of 16, and NVFP4 has a scale for 16 values."
        )
    return made


def refused(params: dict[str, Any]) -> str:
    """What is wrong with the options themselves; empty when nothing is."""
    for name, least in (("rounds", 1), ("timeout", 1)):
        if params[name] < least:
            return f"{name} is {params[name]}; expected is at least {least}."
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", params["name"]):
        return f"name is {params['name']!r}; expected are letters, digits, '.', '_' and '-', since it is a folder of tuning/."
    return ""


def digest(params: dict[str, Any], programs: dict[str, str]) -> str:
    """What this result is the result of."""
    decisive = {name: params[name] for name in DECISIVE}
    return hashlib.sha256(json.dumps([decisive, programs], sort_keys=True).encode()).hexdigest()


def intent(operations: list[dict[str, Any]], params: dict[str, Any]) -> str:
    """One sentence for check mode."""
    named = "; ".join(f"{flashinfer_tuner.name_of(words)} up to {words['max_tokens']} tokens" for words in operations)
    return f"Would tune {named}, and measure each side {params['rounds']} times with {params['python']}."


def ranks_of(params: dict[str, Any]) -> dict[str, Any]:
    """The ranks that hold these shapes."""
    sizes = [words.get("tp_size", 1) * words.get("ep_size", 1) for words in params["operations"]]
    return params["ranks"] or {"tp": max(sizes), "pp": 1, "dp": 1, "dp_attention": False}


def artefact_of(params: dict[str, Any], told: dict[str, Any], text: str, today: str) -> dict[str, Any]:
    """The content of artefact.yml."""
    node = told["node"]
    device = node["devices"][0]
    named = ", ".join(dict.fromkeys(words["op"] for words in params["operations"]))
    most = max(words["max_tokens"] for words in params["operations"])
    made = {
        "name": params["name"],
        "kind": told["kind"],
        "device": device["name"],
        "compute_capability": device["capability"],
        "driver": node.get("driver") or "unknown",
        "versions": {name: version for name, version in node["versions"].items() if version},
        "profile": params["profile"],
        "made": {
            "by": params["by"],
            "at": today,
            "how": f"flashinfer_tune: FlashInfer's own autotuner on {named}, up to {most} tokens, {params['rounds']} rounds a side",
        },
        "gain": told["gain"],
        "files": {told["file"]: hashlib.sha256(text.encode()).hexdigest()},
    }
    return {**made, "ranks": ranks_of(params)} if told["kind"] == "autotune_cache" else made


def sentence(told: dict[str, Any], params: dict[str, Any]) -> str:
    gain = told["gain"]
    if not told["made"]:
        return f"No artefact of {params['name']}: {told['why']}."
    return (
        f"{params['name']} gains {gain['percent']:g} % ({gain['before']:g} to {gain['after']:g} µs a call, rounds differ by "
        f"{told['spread_percent']:g} %)."
    )


# --- files -----------------------------------------------------------------------------------------------------------------


def write(path: str, text: str) -> None:
    """By rename, readable to all."""
    temporary = f"{path}.{os.getpid()}"
    try:
        with open(temporary, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise Ended(f"{path} cannot be written: {error.strerror}. Make room, or choose another folder.") from None


def taken(path: str, user: pwd.struct_passwd | None) -> bytes:
    """A file that the program wrote: its own, and no link to somebody else's."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as stream:
            about = os.fstat(stream.fileno())
            if not stat.S_ISREG(about.st_mode) or about.st_size > LARGEST or (user and about.st_uid != user.pw_uid):
                raise Ended(f"{path} is not the file that the program writes.")
            return stream.read()
    except OSError as error:
        raise Ended(f"The program left no {path}: {error.strerror}.") from None


class Work:
    """The folders of one artefact: `out` is root's, `.job` as well, `.work` belongs to the user who runs the program."""

    def __init__(self, out: str, user: pwd.struct_passwd | None) -> None:
        self.out, self.user = out, user
        self.job, self.work = os.path.join(out, ".job"), os.path.join(out, ".work")
        self.record = os.path.join(out, "result.json")

    def recorded(self, wanted: str) -> dict[str, Any]:
        """The result of the same options; empty where there is none, or its artefact is gone."""
        try:
            with open(self.record, encoding="utf-8") as stream:
                found = json.load(stream)
            if found["wanted"] != wanted:
                return {}
            for name, text in found["result"]["files"].items():
                with open(os.path.join(self.out, name), encoding="utf-8") as stream:
                    if stream.read() != text:
                        return {}
            return found["result"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def prepare(self, programs: dict[str, str]) -> None:
        try:
            os.makedirs(self.out, mode=0o755, exist_ok=True)
            shutil.rmtree(self.work, ignore_errors=True)
            os.mkdir(self.work, 0o700)
            for name, text in programs.items():
                path = os.path.join(self.work, name)
                with open(path, "w", encoding="utf-8") as stream:
                    stream.write(text)
                self.give(path)
            self.give(self.work)
        except OSError as error:
            raise Ended(f"{error.filename or self.out} cannot be written: {error.strerror}.") from None

    def give(self, path: str) -> None:
        if self.user and os.geteuid() == 0:
            os.chown(path, self.user.pw_uid, self.user.pw_gid)


# --- the program -------------------------------------------------------------------------------------------------------------


def begin(work: Work, wanted: str, params: dict[str, Any], programs: dict[str, str]) -> None:
    work.prepare(programs)
    question = {name: params[name] for name in ("operations", "kind", "rounds", "min_gain")}
    home = work.user.pw_dir if work.user else os.environ.get("HOME", work.work)
    environment = {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "HOME": home,
        **{name: str(value) for name, value in params["environment"].items()},
        "TMPDIR": work.work,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    argv = [params["python"], "-B", os.path.join(work.work, "flashinfer_tuner.py")]
    try:
        sglang_job.begin(
            work.job,
            wanted,
            argv,
            json.dumps({**question, "mode": "run", "folder": work.work}),
            environment,
            work.work,
            identity(work.user),
        )
    except OSError as error:
        raise Ended(f"{work.job} cannot be written: {error.strerror}.") from None


def ended(job: dict[str, Any], work: Work) -> dict[str, Any]:
    """The result that the program wrote. Ended says why there is none."""
    said = job["result"] or {}
    if "failed" in said:
        raise Ended(f"{said['failed']['text']} {said['failed']['remedy']}")
    if "written" not in said:
        last = " / ".join(job["errors"].strip().splitlines()[-3:])
        if job["rc"] == 127 or "Permission denied" in last:
            name = work.user.pw_name if work.user else "the present user"
            last += f" The interpreter, {work.out} and the folders above them must be open to {name}."
        how = (
            f"exit status {job['rc']}"
            if job["rc"] is not None
            else "it was ended from outside, or the node was started anew"
        )
        raise Ended(
            f"The tuning program ended without a result ({how}), while {job['progress'] or 'it began'}: {last or 'no words'}"
        )
    told = json.loads(taken(os.path.join(work.work, "result.json"), work.user))
    log = os.path.join(work.work, told["log"])
    return {**told, **evidence(log, told)}


def evidence(log: str, told: dict[str, Any]) -> dict[str, Any]:
    """What FlashInfer's own log says, by the rules that a server's log is judged by."""
    # In a process that was to read the module, as the program sets it.
    by_module = told.get("kind") == "python_configs" and bool(told["entries"])
    known = sglang_evidence_log.Known(
        flashinfer=told["node"]["versions"].get("flashinfer") or "",
        environment={
            "FLASHINFER_LOGGING_LEVEL": "debug",
            **({flashinfer_tuner.LOAD_FROM_FILE: "1"} if by_module else {}),
        },
    )
    try:
        with open(os.open(log, os.O_RDONLY | os.O_NOFOLLOW), "rb") as stream:
            found = sglang_evidence_log.judge(sglang_evidence_log.scan(stream), known)
    except OSError:
        return {"verdict": "", "fallbacks": []}
    return {"verdict": found["verdict"], "fallbacks": found["fallbacks"]}


def kept(told: dict[str, Any], work: Work, wanted: str, params: dict[str, Any]) -> dict[str, Any]:
    """The result as it is returned, with the artefact written where there is one."""
    result = {**NOTHING, **{name: told[name] for name in NOTHING if name in told}, "changed": True}
    result.update(message=sentence(told, params), seconds=told["seconds"], failed_tactics=told["failed_tactics"])
    if told["made"]:
        text = taken(os.path.join(work.work, os.path.basename(told["file"])), work.user).decode("utf-8")
        result["artefact"] = artefact_of(params, told, text, datetime.date.today().isoformat())
        result["files"] = {told["file"]: text}
        write(os.path.join(work.out, told["file"]), text)
        # JSON is YAML, and the node has no writer of the other.
        write(os.path.join(work.out, "artefact.yml"), json.dumps(result["artefact"], indent=1) + "\n")
    write(work.record, json.dumps({"wanted": wanted, "result": result}))
    return result


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    params = module.params

    def fail(text: str) -> None:
        module.fail_json(msg=text, message=text, **NOTHING)

    wrong = refused(params)
    if wrong:
        fail(wrong)
    try:
        params["operations"] = cleaned(params["operations"])
        module.exit_json(**run(module))
    except Ended as error:
        fail(str(error))


def run(module: AnsibleModule) -> dict[str, Any]:
    params = module.params
    programs = {
        f"{program.__name__.rpartition('.')[2]}.py": inspect.getsource(program)
        for program in (flashinfer_probe, flashinfer_tuner)
    }
    user = account(params["user"])
    work, wanted = Work(params["out"], user), digest(params, programs)
    job = sglang_job.look(work.job)
    mine = job.get("wanted") == wanted
    found = {} if params["again"] or params["attached"] or mine else work.recorded(wanted)
    if found:
        return {**found, "changed": False, "message": f"Measured before: {found['message']}"}
    if module.check_mode:
        return {**NOTHING, "changed": True, "message": intent(params["operations"], params)}
    if not os.path.exists(params["python"]):
        raise Ended(f"There is no {params['python']}; the release comes first.")
    if user is None and os.geteuid() == 0:
        raise Ended(f"The node has no user {params['user']}, and a release's Python is not run as root.")
    if params["attached"] and not mine:
        raise Ended(
            f"The tuning that this task began is gone ({work.job}): another run with other options took its place."
        )
    if not mine:
        sglang_job.stop(work.job)
        begin(work, wanted, params, programs)
    left = max(0.0, params["timeout"] - (job["seconds"] if mine else 0.0))
    job = sglang_job.wait(work.job, left if params["slice"] is None else min(left, params["slice"]))
    if not job:
        raise Ended(f"The tuning program could not be begun: {work.job} holds nothing of it.")
    if job["running"] and job["seconds"] < params["timeout"]:
        return {**NOTHING, "unfinished": True, "progress": job["progress"]}
    try:
        if job["running"]:
            sglang_job.stop(work.job)
            raise Ended(
                f"Tuning was not done within {params['timeout']} s, and was ended while {job['progress'] or 'it began'}. Give a "
                "longer timeout, fewer operations, or a smaller max_tokens; kernels that were built by then stay built."
            )
        result = kept(ended(job, work), work, wanted, params)
    finally:
        # What failed is not found by the next run as its own; its logs stay until then.
        shutil.rmtree(work.job, ignore_errors=True)
    shutil.rmtree(work.work, ignore_errors=True)
    return result


if __name__ == "__main__":
    main()
