#!/usr/bin/python
# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Let a release judge its server's arguments before they are started with."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: sglang_args
short_description: Let a release's own parser judge and resolve server arguments
version_added: "0.1.0"
description:
  - Runs the release's own code, with the release's Python, on the arguments that a server is to be started with. Nothing is
    started, no GPU is touched, no weights are read.
  - Its parser refuses unknown options, choices and types; the message names the nearest option of this release. Its resolution
    says what the arguments become on the card, C(auto) included; its own gate says whether FlashInfer's autotuning would run.
  - Only the card's properties are stood in (O(card)), so the answer is the same on any machine. Without O(card) the machine is
    taken as it is, which is right for CPU releases.
  - A release takes 10 to 25 seconds to answer. The last few answers are kept in O(cache) by everything that they depend on, and
    used again while none of that has changed.
options:
  python:
    description: The release's interpreter.
    type: path
    required: true
  args:
    description:
      - Arguments for C(sglang.launch_server), in the release's own option names without the dashes. V(true) is the bare option,
        V(false) leaves it out, a list repeats values, a mapping becomes JSON.
    type: dict
    required: true
  model_path:
    description: The model's folder. Where it has a C(config.json) that O(user) can read, that one is used.
    type: path
    required: true
  config:
    description: The model's C(config.json) as far as it is known, for when the folder is not there yet. Entries for remote code are
      taken out.
    type: dict
  environment:
    description: Environment variables of the server.
    type: dict
    default: {}
  card:
    description: The card that the answer is for. C(name), C(capability) (as V(12.0)), C(memory_mib), C(multiprocessors), C(cuda)
      (version of CUDA that torch is built for) and C(gpus) (how many).
    type: dict
  user:
    description:
      - User to run the release's code as, since a checkpoint may bring code too. V(nobody) when there is no such user yet.
    type: str
    default: sglang
  content:
    description: Hashes of files of the release that were edited. Another content asks anew.
    type: list
    elements: str
    default: []
  cache:
    description: File on the node that keeps the last few answers. Nothing is kept when it is empty.
    type: path
  fail:
    description: Fail when the release refuses. Otherwise the refusal is returned (RV(refusal)), for one who has more to say.
    type: bool
    default: true
author: ["sglang-rtxpro authors (!UNKNOWN)"]
attributes:
  check_mode: {support: full, description: Asks; keeps no answer. A release that is not there yet is not asked., details: []}
  diff_mode: {support: none, description: Changes nothing., details: []}
"""

EXAMPLES = r"""
- name: Ask the release before it is started
  sglang_args:
    python: /opt/sglang/releases/sglang-0.5.23-cu130-1a2b3c4d5e6f/venv/bin/python
    model_path: /var/lib/sglang/models/GLM-5.2-NVFP4
    args: {tensor-parallel-size: 8, quantization: modelopt_fp4, kv-cache-dtype: fp8_e4m3}
    card:
      name: NVIDIA RTX PRO 6000 Blackwell Server Edition
      capability: "12.0"
      memory_mib: 97887
      multiprocessors: 188
      cuda: "13.0"
      gpus: 8
  register: answer

- name: Say what becomes of attention
  ansible.builtin.debug:
    msg: "{{ answer.resolved.attention_backend }}, autotuning {{ answer.autotune }}"
"""

RETURN = r"""
asked:
  description: Whether there was a release to ask. False in check mode before it is built.
  type: bool
  returned: always
refusal:
  description: What the release refuses and why, with the nearest right name.
  type: str
  returned: when it refuses and O(fail) is false
stage:
  description: What refuses. V(import) and V(program) are its code that cannot be run at all.
  type: str
  returned: when it refuses
  choices: [import, parser, resolution, program]
traceback:
  description: The end of the release's own traceback; empty where it has none.
  type: list
  elements: str
  returned: when it refuses
cached:
  description: Whether the answer is the kept one.
  type: bool
  returned: always
words:
  description: The words of the command line behind C(python -m sglang.launch_server).
  type: list
  elements: str
  returned: always
given:
  description: What the words set, by the release's own field names.
  type: dict
  returned: when asked
resolved:
  description: Arguments after the release's resolution that differ from its parser's defaults, by field name. Secrets read
    V((set)); long lists are told in words.
  type: dict
  returned: when asked
autotune:
  description: C(runs) (whether the release's gate lets FlashInfer autotune; null when it could not be asked) and C(why).
  type: dict
  returned: when asked
config_class:
  description: Class of the model's configuration, as the release reads it.
  type: str
  returned: when asked, and the model's folder is there
dtype:
  description: The model's dtype as resolved, such as V(bfloat16).
  type: str
  returned: when asked, and the model's folder is there
log:
  description: What the release logged while it resolved.
  type: list
  elements: str
  returned: when asked
config:
  description: The model's own config.json.
  type: dict
  returned: when the model's folder has one that can be read
sglang:
  description: The release's version.
  type: str
  returned: when asked
versions:
  description: Package to version, of everything in the release's environment.
  type: dict
  returned: when asked
seconds:
  description: Seconds that the release took to answer.
  type: float
  returned: when asked
"""

import glob
import hashlib
import inspect
import json
import os
import pwd
import subprocess
import tempfile
import time

from ansible.module_utils import sglang_parser
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_options import OptionsError, by_name, nearest, option, words
from ansible.module_utils.sglang_release_python import account, identity, keep, placed, recalled

TIMEOUT = 300


def key(question: str, python: str, content: list[str], user: str) -> str:
    """Everything that an answer depends on: what is asked, who asks, the packages of the environment, edited files."""
    site = glob.glob(os.path.join(os.path.dirname(os.path.dirname(python)), "lib/python3*/site-packages/*.dist-info"))
    parts = [question, python, user, *content, *sorted(os.path.basename(path) for path in site)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def config_of(folder: str) -> str:
    """The text of the model's config.json; empty where there is none."""
    try:
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as stream:
            return stream.read()
    except OSError:
        return ""


def parsed(text: str) -> dict:
    """A config.json; empty where it is none, which the engine itself has better words for."""
    try:
        return json.loads(text)
    except ValueError:
        return {}


def readable(folder: str, user: pwd.struct_passwd | None) -> bool:
    """Whether this user can read the model's config.json: tried, since folders above it count too."""
    test = ["test", "-r", os.path.join(folder, "config.json")]
    return subprocess.run(test, check=False, **identity(user)).returncode == 0


def refusal(error: dict, args: dict, options: list[dict]) -> str:
    """The release's refusal, with the nearest right name where an option is unknown."""
    text = f"The release's {error['stage']} refuses the arguments: {error['error'].rstrip('.')}."
    known = by_name(options)
    for name in args:
        near = "" if option(name) in known else nearest(option(name), known)
        if near:
            text += f" '{name}' is not an option of this release; did you mean {near}?"
    return text


def ask(python: str, question: str, environment: dict, user: pwd.struct_passwd | None, tmpdir: str) -> dict:
    """The answer of the program that module_utils/sglang_parser.py is, run by the release's Python."""
    who = identity(user)
    program, home = placed(sglang_parser, tmpdir, who), tmpdir
    if who:
        home = os.path.join(tmpdir, "home")
        os.mkdir(home)
        os.chown(home, who["user"], who["group"])
    own = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": home, "TMPDIR": home, "HF_HUB_OFFLINE": "1"}
    given = {name: str(value) for name, value in environment.items()}
    if "SGLANG_CACHE_DIR" in given:  # the server's, and not there yet; a release writes into it when it is imported
        given["SGLANG_CACHE_DIR"] = home
    done = subprocess.run(
        [python, program],
        input=question,
        env={**own, **given},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
        **who,
    )
    try:
        return json.loads(done.stdout)
    except ValueError:
        told = "\n".join(done.stderr.strip().splitlines()[-8:])
        return {
            "cases": [
                {
                    "stage": "import",
                    "error": f"its code could not be run ({python}, exit status {done.returncode}): {told}",
                }
            ],
            "options": [],
        }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "python": {"type": "path", "required": True},
            "args": {"type": "dict", "required": True},
            "model_path": {"type": "path", "required": True},
            "config": {"type": "dict"},
            "environment": {"type": "dict", "default": {}},
            "card": {"type": "dict"},
            "user": {"type": "str", "default": "sglang"},
            "content": {"type": "list", "elements": "str", "default": []},
            "cache": {"type": "path"},
            "fail": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    python, folder = module.params["python"], module.params["model_path"]
    try:
        argv = words({"model-path": folder, **module.params["args"]})
    except OptionsError as error:
        module.fail_json(msg=str(error))
    if not os.path.exists(python):
        if module.check_mode:
            module.exit_json(changed=False, asked=False, cached=False, words=argv)
        module.fail_json(msg=f"There is no {python}; the release is built before its parser can be asked.")
    user = account(module.params["user"], "nobody")
    if user is None and os.geteuid() == 0:
        module.fail_json(
            msg=f"The node has neither {module.params['user']} nor nobody; a release's code is not run as root."
        )
    text = config_of(folder)
    there = bool(text) and readable(folder, user)
    case = {
        "argv": argv,
        "environment": {name: str(value) for name, value in module.params["environment"].items()},
        "config": None if there else parsed(text) or module.params["config"],
    }
    question = json.dumps({"card": module.params["card"], "options": True, "cases": [case]}, sort_keys=True)
    wanted = key(
        question + (text if there else "") + inspect.getsource(sglang_parser),
        python,
        module.params["content"],
        user.pw_name if user else "",
    )
    answer, cached = recalled(module.params["cache"], wanted), True
    if not answer:
        cached, started = False, time.monotonic()
        try:
            # Not below the module's own folder, which the server's user cannot enter.
            with tempfile.TemporaryDirectory(prefix="sglang-args-") as scratch:
                told = ask(python, question, module.params["environment"], user, scratch)
        except subprocess.TimeoutExpired:
            module.fail_json(msg=f"The release did not judge its arguments within {TIMEOUT} s ({python}).")
        except OSError as error:
            module.fail_json(
                msg=f"{user.pw_name if user else 'the present user'} cannot run {python}: {error.strerror}. The server runs as "
                "that user (sglang_server_user), so the interpreter and the folders above it must be open to it."
            )
        found = told["cases"][0]
        if found.get("error"):
            text = refusal(found, module.params["args"], told["options"])
            more = {"words": argv, "stage": found["stage"], "traceback": found.get("traceback", [])}
            if module.params["fail"]:
                module.fail_json(msg=text, **more)
            module.exit_json(changed=False, asked=True, cached=False, refusal=text, **more)
        answer = {
            **{name: found[name] for name in ("given", "resolved", "autotune", "log")},
            **{name: found[name] for name in ("config_class", "dtype") if name in found},
            **{name: told[name] for name in ("sglang", "versions")},
            "seconds": round(time.monotonic() - started, 1),
        }
        if module.params["cache"] and not module.check_mode:
            keep(module.params["cache"], wanted, answer)
    config = {"config": parsed(text)} if there and parsed(text) else {}
    module.exit_json(changed=False, asked=True, cached=cached, words=argv, **config, **answer)


if __name__ == "__main__":
    main()
