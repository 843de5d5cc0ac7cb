#!/usr/bin/python
# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Prove that a running SGLang server answers right, and not only fast."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: sglang_smoke
short_description: Prove that a running SGLang server answers right
version_added: "0.1.0"
description:
  - A server can be healthy, fast and wrong. On new cards kernels fail in silence, with NaN, with zeros for some numbers of rows,
    with one token for ever, and a throughput measured on that is worth nothing. This asks a server some thirty short requests at
    temperature 0 and looks at the answers; it takes seconds on a healthy one.
  - Every check but C(questions) holds for any model, one of random weights included. Questions are for models that know something.
  - All checks are made, whatever the ones before them found, unless the server is gone, stands still, or O(timeout) is over. A
    check that cannot be made on this server is skipped with the reason; a run in which nothing that generates could be checked
    has not passed.
  - C(models) - C(/v1/models) lists O(model).
  - C(repeat) - asked twice, with the prefix cache emptied in between, a prompt has the same tokens; and once more with the cache.
    A difference at a near tie (the other token is among the first run's most probable ones, within 0.25 nats, which is two steps
    of a bfloat16 logit) is a note and no failure, since rounding decides there. Behind the cache and in C(batch), where other
    kernels are at work, the limit is 1 nat, and one of three answers or a quarter of the batch may part.
  - C(logprobs) - logprobs of answers and prompts are finite and not above zero, and the most probable token was taken.
  - C(repetition) - answers depend on the prompt. It fails when all end in the same token repeated, when most are the same or one
    token from the start, when each ends after one token, or when the most probable tokens are equally likely. One answer that
    loops is none of these; a model of random weights does that.
  - C(stop) - an answer ends at a stop token, for that reason, and at C(max_new_tokens).
  - C(stream) - streamed, tokens, text and reason are the same.
  - C(prefill) - a prompt of exactly one prefill chunk and one that needs a second one, as far as context and KV cache have room.
    Logprobs are finite and not all equal, and a text behind the prompt is about as likely as alone. Where chunked prefill is off,
    one prompt of up to 8192 tokens.
  - C(batch) - eight requests at once, or as many as the server runs, have the answers that they have alone.
  - C(questions) - O(questions), all at once, through C(/v1/chat/completions).
options:
  python:
    description: The release's interpreter, which runs the probe. It needs C(requests), which every release has.
    type: path
    required: true
  url:
    description: Where the server answers, without a path, for example V(http://127.0.0.1:30000).
    type: str
    required: true
  model:
    description: The served model name.
    type: str
    required: true
  questions:
    description: Questions with known answers. They are asked at once, so they are also a decode batch with known answers.
    type: list
    elements: dict
    default: []
    suboptions:
      ask:
        description: The question, as a user's message.
        type: str
        required: true
      expect:
        description:
          - A regular expression that is searched for in the answer's content.
          - Where the content is empty, as with a model that still thinks at O(questions[].max_tokens), it is searched for in
            C(reasoning_content); that is enough, with a note, since the model computes right. Reasoning does not count beside a
            content.
        type: str
        required: true
      max_tokens:
        description: Tokens of the answer at most, reasoning included.
        type: int
        default: 512
      chat_template_kwargs:
        description: "Passed to the chat template, for example V({enable_thinking: false})."
        type: dict
      padded:
        description: Put the question behind text a fifth longer than a prefill chunk, or as long as there is room for.
        type: bool
        default: false
  timeout:
    description: Seconds that all checks together may take.
    type: int
    default: 600
  request_timeout:
    description: Seconds that one request may take. The first ones of a fresh server may have kernels to build.
    type: int
    default: 120
  user:
    description: User to run the probe as. V(nobody) when there is no such user. A release's Python is not run as root.
    type: str
    default: sglang
  api_key:
    description: The server's API key. It is passed on standard input.
    type: str
  fail:
    description: Fail when a check fails. Otherwise RV(passed) says so.
    type: bool
    default: true
notes:
  - It is for a server without other load, as a deployment has it before its first request. Emptying the prefix cache costs others
    their cached prompts, and is refused while they are served.
author: ["sglang-rtxpro authors (!UNKNOWN)"]
attributes:
  check_mode: {support: full, description: Asks nothing., details: []}
  diff_mode: {support: none, description: Changes nothing., details: []}
"""

EXAMPLES = r"""
- name: Prove that the server answers right
  sglang_smoke:
    python: /opt/sglang/releases/sglang-0.5.23-cu130-1a2b3c4d5e6f/venv/bin/python
    url: http://127.0.0.1:30000
    model: GLM-5.2-NVFP4
    questions:
      - ask: What is 17 * 23? Give the number only.
        expect: \b391\b
        chat_template_kwargs: {enable_thinking: false}
      - ask: Which city is the capital of France?
        expect: (?i)paris
        max_tokens: 1024
        padded: true

- name: Look without failing
  sglang_smoke:
    python: "{{ sglang_server_python }}"
    url: http://127.0.0.1:30000
    model: tiny-glm4-moe
    fail: false
  register: smoke

- name: Say it
  ansible.builtin.debug:
    msg: "{{ smoke.summary }}"
"""

RETURN = r"""
passed:
  description: Whether no check failed and at least one that generates was made. False in check mode.
  type: bool
  returned: always
summary:
  description: One sentence, as V(8 checks passed in 4.2 s) or V(2 of 9 checks failed - repeat - …).
  type: str
  returned: always
checks:
  description: Every check in its order. Empty in check mode and when the probe could not be run.
  type: list
  elements: dict
  returned: always
  contains:
    name:
      description: One of models, repeat, logprobs, repetition, stop, stream, prefill, batch, questions.
      type: str
    passed:
      description: Whether it passed; null when it was skipped.
      type: bool
    skipped:
      description: Whether it could not be made on this server, or any more.
      type: bool
    detail:
      description: What was found, or why it was skipped, in one sentence.
      type: str
    remedy:
      description: What to do; empty unless it failed.
      type: str
    notes:
      description: What is worth knowing and no failure, such as a near tie.
      type: list
      elements: str
    seconds:
      description: Seconds that it took.
      type: float
seconds:
  description: Seconds that all checks took together.
  type: float
  returned: always
"""

import json
import os
import pwd
import re
import subprocess
import tempfile

from ansible.module_utils import sglang_probe
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_release_python import account, identity, placed

# How much longer than its own limit the probe may take: to ask /health whether the server hangs, and to start.
GRACE = 60

SPEC = {
    "python": {"type": "path", "required": True},
    "url": {"type": "str", "required": True},
    "model": {"type": "str", "required": True},
    "questions": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "ask": {"type": "str", "required": True},
            "expect": {"type": "str", "required": True},
            "max_tokens": {"type": "int", "default": 512, "no_log": False},
            "chat_template_kwargs": {"type": "dict"},
            "padded": {"type": "bool", "default": False},
        },
    },
    "timeout": {"type": "int", "default": 600},
    "request_timeout": {"type": "int", "default": 120},
    "user": {"type": "str", "default": "sglang"},
    "api_key": {"type": "str", "no_log": True},
    "fail": {"type": "bool", "default": True},
}
FIELDS = ("url", "model", "questions", "timeout", "request_timeout", "api_key")


class ProbeError(Exception):
    """The probe could not be run, or did not end."""


def refused(params: dict) -> str:
    """What is wrong with the options themselves; empty when nothing is."""
    if not re.match(r"https?://[^/]+/?$", params["url"]):
        return f"url is '{params['url']}'; expected is an http address without a path, such as http://127.0.0.1:30000."
    for name in ("timeout", "request_timeout"):
        if params[name] < 1:
            return f"{name} is {params[name]}; expected is at least 1 second."
    for number, question in enumerate(params["questions"], 1):
        try:
            re.compile(question["expect"])
        except re.error as error:
            return f"Question {number} expects '{question['expect']}', which is no regular expression: {error}."
        if question["max_tokens"] < 1:
            return f"Question {number} has max_tokens {question['max_tokens']}; expected is at least 1."
    return ""


def last_check(stderr: str) -> str:
    """The check that the probe was in, as it names them on standard error."""
    names = re.findall(r"^check (\w+)$", stderr, re.MULTILINE)
    return names[-1] if names else ""


def as_text(output: str | bytes | None) -> str:
    return output.decode("utf-8", "replace") if isinstance(output, bytes) else output or ""


def probe(python: str, question: str, limit: float, user: pwd.struct_passwd | None, folder: str) -> dict:
    """The answer of the program that module_utils/sglang_probe.py is, run by the release's Python.

    Isolated (-I): what the server's environment or the present folder would add to it is none of its business.
    """
    who = identity(user)
    program = placed(sglang_probe, folder, who)
    try:
        done = subprocess.run(
            [python, "-I", "-B", program],
            input=question,
            env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": folder},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
            **who,
        )
    except subprocess.TimeoutExpired as error:
        where = last_check(as_text(error.stderr))
        raise ProbeError(
            f"The probe did not end within {limit:.0f} s{', in the check ' + where if where else ''}; the server neither answers "
            "nor refuses. Its log says what it does."
        ) from None
    except OSError as error:
        name = user.pw_name if user else "the present user"
        raise ProbeError(
            f"{name} cannot run {python}: {error.strerror}. The interpreter and the folders above it must be open to that user."
        ) from None
    try:
        return json.loads(done.stdout)
    except ValueError:
        told = "\n".join(done.stderr.strip().splitlines()[-6:])
        raise ProbeError(
            f"The probe could not be run ({python}, exit status {done.returncode}): {told}\nIt needs Python 3.10 or later with "
            "requests, as a release's own interpreter has them."
        ) from None


def message(url: str, told: dict) -> str:
    """What failed and what to do, each remedy once."""
    remedies = list(dict.fromkeys(check["remedy"] for check in told["checks"] if check["passed"] is False))
    return " ".join(
        [f"The server at {url} does not answer as it should: {told['summary'].rstrip('.')}.", *filter(None, remedies)]
    )


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    params = module.params
    nothing = {"passed": False, "checks": [], "seconds": 0.0}
    wrong = refused(params)
    if wrong:
        module.fail_json(msg=wrong, summary=wrong, **nothing)
    if module.check_mode:
        text = "Check mode: the server is not asked."
        module.exit_json(changed=False, skipped=True, msg=text, summary=text, **nothing)
    if not os.path.exists(params["python"]):
        text = (
            f"There is no {params['python']}; the probe runs with a release's interpreter, so the release comes first."
        )
        module.fail_json(msg=text, summary=text, **nothing)
    user = account(params["user"], "nobody")
    if user is None and os.geteuid() == 0:
        text = f"The node has neither {params['user']} nor nobody; a release's Python is not run as root."
        module.fail_json(msg=text, summary=text, **nothing)
    question = json.dumps({name: params[name] for name in FIELDS})
    try:
        # Not below the module's own folder, which the server's user cannot enter.
        with tempfile.TemporaryDirectory(prefix="sglang-smoke-") as scratch:
            told = probe(params["python"], question, params["timeout"] + GRACE, user, scratch)
    except ProbeError as error:
        module.fail_json(msg=str(error), summary=str(error), **nothing)
    if params["fail"] and not told["passed"]:
        module.fail_json(msg=message(params["url"], told), **told)
    module.exit_json(changed=False, **told)


if __name__ == "__main__":
    main()
