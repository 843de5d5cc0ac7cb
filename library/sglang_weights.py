#!/usr/bin/python
# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Bring a model's weights to a node: from a hub, from a folder, or from another node."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: sglang_weights
short_description: Bring a model's weights to a node, or give them to another one
version_added: "0.1.0"
description:
  - With O(state=fetched) a model comes from a hub (C(huggingface_hub) of O(python)), from a folder on the node, or from another
    node (C(rsync)). It is made in C(PATH.incomplete) and takes its name when every file has the SHA-256 that its source says and
    the model is complete. What is there already is hashed and used. What is cut off goes on where it was.
  - Hashes are kept beside the weights (C(.sglang-weights.json)) with size, time and inode of each file, so that they are made once.
  - The transfer runs apart from the task, with low priority. It goes on when the task is cut off, and the next run follows it. An
    action plugin shows how far it is.
  - With O(state=served) a node gives a model to one other node for the time of a transfer, by a read-only rsync daemon in a
    transient unit C(sglang-weights-PORT) with a user of its own. O(state=stopped) ends it. It ends by itself when nobody takes
    anything for O(patience) and a minute.
options:
  path:
    description: The model's folder.
    type: path
    required: true
  state:
    description:
      - V(fetched) brings the model.
      - V(hashed) hashes files that were not hashed yet, or that were touched since, and says which have another hash than they had.
      - V(served) hashes what is needed, then starts the daemon. V(stopped) stops it.
    type: str
    choices: [fetched, hashed, served, stopped]
    default: fetched
  kind:
    description: Where V(fetched) brings it from.
    type: str
    choices: [peer, hub, mirror]
    default: peer
  python:
    description: Interpreter with C(huggingface_hub), usually the release's. For a hub.
    type: path
  repository:
    description: The model's name on the hub, such as V(nvidia/GLM-5.2-NVFP4).
    type: str
    default: ""
  revision:
    description: Commit, 40 hexadecimal digits. A branch is refused, with the commit that it is at.
    type: str
    default: ""
  endpoint:
    description: The hub, or a mirror that speaks as it does.
    type: str
    default: https://huggingface.co
  token_file:
    description: File on the node with the hub's token, of mode 0600. It is read on the node alone.
    type: path
  ignore:
    description: Patterns of files that are not part of the model.
    type: list
    elements: str
    default: []
  mirror:
    description: Folder on the node that holds the model.
    type: path
  sender:
    description: Name of the node that gives the model, for messages; of the one that takes it, with O(state=served) and V(stopped).
    type: str
    default: ""
  address:
    description: The sender's address.
    type: str
    default: ""
  port:
    description: TCP port of the sender's daemon.
    type: int
    default: 8730
  allow:
    description: Addresses that the daemon answers.
    type: list
    elements: str
    default: []
  secret:
    description: What the daemon is asked with. It lies in files of root (0600) for as long as the transfer.
    type: str
    default: ""
  files:
    description: The sender's files, as O(state=served) returned them.
    type: dict
    default: {}
  origin:
    description: Where the sender's files came from.
    type: str
    default: ""
  bandwidth:
    description: MB/s that the node takes at the most, all files together. 0 is without a bound.
    type: float
    default: 0
  streams:
    description: Files that come, or are hashed, at once.
    type: int
    default: 4
  patience:
    description: Seconds without a byte after which a transfer gives up. What is there stays.
    type: int
    default: 300
  again:
    description: With O(state=hashed), hash all files.
    type: bool
    default: false
  doubt:
    description: With O(state=stopped), files that came with a wrong hash. They are hashed again by the next run on this node.
    type: list
    elements: str
    default: []
  attach:
    description: Follow the transfer that an earlier run began. Begin none.
    type: bool
    default: false
  slice:
    description: Internal. Seconds to wait in one run of the module.
    type: float
  attached:
    description: Internal. Whether an earlier run of this task began it.
    type: bool
    default: false
author: ["sglang-rtxpro authors (!UNKNOWN)"]
attributes:
  check_mode: {support: full, description: Says that the model would be brought., details: []}
  diff_mode: {support: none, description: Weights are no text., details: []}
"""

EXAMPLES = r"""
- name: Bring a model from the hub
  sglang_weights:
    path: /var/lib/sglang/models/GLM-5.2-NVFP4
    kind: hub
    python: "{{ sglang_env_release_python }}"
    repository: nvidia/GLM-5.2-NVFP4
    revision: 0123456789abcdef0123456789abcdef01234567

- name: Give it to node-2
  sglang_weights:
    path: /var/lib/sglang/models/GLM-5.2-NVFP4
    state: served
    sender: node-2
    allow: [10.0.0.2]
    secret: "{{ secret }}"
  delegate_to: node-1
"""

RETURN = r"""
complete:
  description: Whether the whole model is there. A sender whose file is wrong, or that is gone, leaves it open.
  type: bool
  returned: with V(fetched) and V(hashed)
bad:
  description: Files that came with a wrong hash, and why; they were thrown away.
  type: dict
  returned: with V(fetched)
error:
  description: Why the sender gives no more; empty where nothing is wrong.
  type: str
  returned: with V(fetched)
bytes:
  description: Bytes that came.
  type: int
  returned: with V(fetched)
corrupt:
  description: Files that have another hash than they had, or are gone, and why.
  type: dict
  returned: with V(hashed)
digest:
  description: Of the hashes of all files.
  type: str
  returned: with V(fetched), V(hashed) and V(served)
files:
  description: C(bytes) and C(sha256) of each file.
  type: dict
  returned: with V(served)
origin:
  description: Where the model came from.
  type: str
  returned: with V(served)
"""

import contextlib
import inspect
import json
import os
import shutil
import subprocess
import sys
import time
from typing import Any, Dict, List

from ansible.module_utils import sglang_job, sglang_node, sglang_weights
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_ports import listeners
from ansible.module_utils.sglang_weights import Fault

SPEC: Dict[str, Any] = {
    "path": {"type": "path", "required": True},
    "state": {"type": "str", "choices": ["fetched", "hashed", "served", "stopped"], "default": "fetched"},
    "kind": {"type": "str", "choices": ["peer", "hub", "mirror"], "default": "peer"},
    "python": {"type": "path"},
    "repository": {"type": "str", "default": ""},
    "revision": {"type": "str", "default": ""},
    "endpoint": {"type": "str", "default": "https://huggingface.co"},
    "token_file": {"type": "path", "no_log": False},
    "ignore": {"type": "list", "elements": "str", "default": []},
    "mirror": {"type": "path"},
    "sender": {"type": "str", "default": ""},
    "address": {"type": "str", "default": ""},
    "port": {"type": "int", "default": 8730},
    "allow": {"type": "list", "elements": "str", "default": []},
    "secret": {"type": "str", "default": "", "no_log": True},
    "files": {"type": "dict", "default": {}},
    "origin": {"type": "str", "default": ""},
    "bandwidth": {"type": "float", "default": 0},
    "streams": {"type": "int", "default": 4},
    "patience": {"type": "int", "default": 300},
    "again": {"type": "bool", "default": False},
    "doubt": {"type": "list", "elements": "str", "default": []},
    "attach": {"type": "bool", "default": False},
    "slice": {"type": "float"},
    "attached": {"type": "bool", "default": False},
}
# Seconds: that a daemon has to listen; that one whose transfer was forgotten lives at the most.
PATIENCE = 15.0
LONGEST = 7 * 86400
# What a client of the hub would take from whoever runs it: tokens, caches, and that it must not ask.
FOREIGN = (
    "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN", "HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_ENABLE_HF_TRANSFER",
)  # fmt: skip


def hub_environment(endpoint: str, home: str) -> Dict[str, str]:
    """The client's environment. Xet's own protocol is off: it goes on from no byte, and mirrors do not speak it."""
    kept = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    return {
        **kept,
        "HF_ENDPOINT": endpoint,
        "HF_HOME": home,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DOWNLOAD_TIMEOUT": "30",
        "HF_HUB_ETAG_TIMEOUT": "30",
    }


def question_of(params: Dict[str, Any]) -> Dict[str, Any]:
    """What the program is told."""
    common = {"path": params["path"], "streams": params["streams"], "patience": params["patience"]}
    ignore = params["ignore"] or sglang_weights.IGNORED
    if params["state"] != "fetched":
        # Said by the node that takes it.
        where = f" on {os.uname().nodename}" if params["state"] == "served" else ""
        again = params["again"] and params["state"] == "hashed"
        return {**common, "mode": "hash", "again": again, "where": where, "ignore": ignore}
    names = {
        "hub": ("repository", "revision", "endpoint"),
        "mirror": ("mirror",),
        "peer": ("sender", "address", "port", "secret", "files", "origin", "bandwidth"),
    }[params["kind"]]
    more = {"token_file": params["token_file"] or ""} if params["kind"] == "hub" else {}
    return {**common, "mode": params["kind"], "ignore": ignore, **more, **{name: params[name] for name in names}}


def wanted_of(question: Dict[str, Any]) -> str:
    """What a job is for, so that another run knows it again."""
    told = {"kind": question["mode"]}
    if question["mode"] == "peer":
        told["sender"] = question["sender"]
    if question["mode"] == "hub":
        told["sender"] = f"{question['repository']}@{question['revision']}"
    return json.dumps(told, sort_keys=True)


def unit_of(port: int) -> str:
    return f"sglang-weights-{port}"


def daemon_command(params: Dict[str, Any], folder: str, python: str) -> List[str]:
    """The transient unit: a user that exists for this alone, and can read what everybody may."""
    unit = unit_of(params["port"])
    properties = [
        f"Description=sglang weights: {params['path']} for {params['sender']}",
        "DynamicUser=yes",
        f"RuntimeDirectory={unit}",
        f"LoadCredential=secret:{folder}/secret",
        f"BindReadOnlyPaths={params['path']}",
        "CapabilityBoundingSet=",
        "NoNewPrivileges=yes",
        "PrivateDevices=yes",
        "ProtectKernelTunables=yes",
        "ProtectKernelModules=yes",
        "ProtectControlGroups=yes",
        "ProtectHome=tmpfs",
        "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX",
        "RestrictNamespaces=yes",
        "SystemCallFilter=@system-service",
        "SystemCallArchitectures=native",
        *(f"IPAddressAllow={address}" for address in params["allow"]),
        "IPAddressDeny=any",
        f"RuntimeMaxSec={LONGEST}",
        "TimeoutStopSec=10",
        "Nice=10",
        "IOSchedulingClass=best-effort",
        "IOSchedulingPriority=7",
        f"ExecStopPost=+/bin/rm -rf {folder}",
    ]
    argv = ["systemd-run", "--quiet", "--collect", f"--unit={unit}", "--service-type=exec"]
    argv += [f"--property={text}" for text in properties]
    seconds = str(params["patience"] + 60)
    return [*argv, python, "-B", f"{folder}/sglang_weights.py", "serve", f"{folder}/rsyncd.conf", seconds]


class Weights:
    def __init__(self, module: AnsibleModule) -> None:
        self.module, self.params = module, module.params
        self.path = self.params["path"].rstrip("/") or "/"
        self.params["path"] = self.path
        self.work = sglang_weights.work(self.path)
        self.result: Dict[str, Any] = {"changed": False}

    def run(self) -> None:
        getattr(self, self.params["state"])()

    # A job.

    def job(self, question: Dict[str, Any], python: str) -> Dict[str, Any]:
        """The program's result, or nothing when it is still at work."""
        wanted, attached = wanted_of(question), self.params["attached"] or self.params["attach"]
        job = sglang_job.look(self.work)
        if not job and attached:
            raise Fault(
                f"The transfer that was followed is gone ({self.work}). Another run followed it, too; run again."
            )
        if job.get("running") and job["wanted"] != wanted and not attached:
            other = json.loads(job["wanted"])
            text = f"{other['kind']} {other.get('sender', '')}".strip()
            raise Fault(f"Another job is at {self.path} ({text}). Let it end, or end it: its folder is {self.work}.")
        if not attached and not job.get("running"):
            self.begin(question, wanted, python)
        job = sglang_job.wait(self.work, self.params["slice"])
        if job.get("running"):
            self.result.update(unfinished=True, progress=job["progress"])
            return {}
        shutil.rmtree(self.work, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(self.work + ".py")
        told = job.get("result")
        if not told:
            words = " / ".join(str(job.get("errors", "")).strip().splitlines()[-3:]) or "no words"
            raise Fault(
                f"The program that works at {self.path} ended without a result: {words}. Run again; what is there stays."
            )
        if "failed" in told:
            raise Fault(told["failed"])
        return told

    def begin(self, question: Dict[str, Any], wanted: str, python: str) -> None:
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        program = self.work + ".py"
        write(program, inspect.getsource(sglang_weights), 0o600)
        env = {**os.environ}
        if question["mode"] == "hub":
            env = hub_environment(self.params["endpoint"], os.path.join(self.work, "home"))
        argv = ["nice", "-n", "10", python, "-B", program]
        sglang_job.begin(self.work, wanted, argv, json.dumps({**question, "work": self.work}), env, "/", {})

    # States.

    def fetched(self) -> None:
        params = self.params
        if self.module.check_mode:
            self.result.update(changed=True, complete=True, bad={}, error="", bytes=0, digest="")
            return
        if (
            params["attach"]
            and not params["attached"]
            and not sglang_job.look(self.work)
            and not sglang_weights.problems(self.path)
        ):
            self.result.update(changed=True, complete=True, bad={}, error="", bytes=0, digest="")
            return
        question = question_of(params)
        python = params["python"] if params["kind"] == "hub" else sys.executable
        if not python or not os.path.exists(python):
            raise Fault(
                f"There is no {python or 'Python'} with huggingface_hub. Name a release's Python (sglang_model_python)."
            )
        told = self.job(question, python)
        if told:
            self.result.update({"changed": True, "bad": {}, "error": "", **told})
            for name, why in self.result["bad"].items():
                self.module.warn(
                    f"{params['sender']} has a wrong {name}: {why}. It was thrown away here; the next run hashes it there anew."
                )

    def hashed(self) -> None:
        if self.module.check_mode:
            self.result.update(complete=True, corrupt={}, digest="")
            return
        told = self.job(question_of(self.params), sys.executable)
        if told:
            self.result.update(changed=told["hashed"] > 0, complete=not told["corrupt"], **told)
            for name, why in told["corrupt"].items():
                self.module.warn(f"{self.path}/{name} is corrupt: {why}.")

    def served(self) -> None:
        """Whole, hashed, to be read by everybody; then the daemon."""
        params = self.params
        if self.module.check_mode:
            self.result.update(files={}, origin="", digest="")
            return
        wrong = sglang_weights.problems(self.path)
        if wrong:
            raise Fault(f"Its copy in {self.path} is not complete: {'; '.join(wrong[:3])}.")
        kept = sglang_weights.read_manifest(self.path).get("files", {})
        if params["attached"] or not kept or sglang_weights.doubtful(self.path, kept):
            told = self.job(question_of(params), sys.executable)
            if not told:
                return
            if told["corrupt"]:
                raise Fault(
                    "Its copy is corrupt: "
                    + "; ".join(f"{name}: {why}" for name, why in sorted(told["corrupt"].items()))
                    + "."
                )
        manifest = sglang_weights.read_manifest(self.path)
        files = manifest["files"]
        shut = [name for name in files if not os.stat(os.path.join(self.path, name)).st_mode & 0o004]
        if shut:
            raise Fault(
                f"{self.path}/{shut[0]} cannot be read by everybody, so not by the daemon either. chmod -R a+rX {self.path}"
            )
        self.start()
        bare = {name: {key: entry[key] for key in ("bytes", "sha256")} for name, entry in files.items()}
        self.result.update(files=bare, origin=manifest["origin"], digest=sglang_weights.digest(files))

    def start(self) -> None:
        params, unit = self.params, unit_of(self.params["port"])
        if not shutil.which("rsync"):
            raise Fault("It has no rsync. Install the distribution's package.")
        if any(word in self.path for word in (" ", ":", "%", "\n")):
            raise Fault(f"{self.path} cannot be given away: its name has a space, a colon or a percent sign.")
        whose = self.whose(unit)
        if whose and not self.ours(whose):
            raise Fault(
                f"Its port {params['port']} serves another transfer ({whose}). Let that end, or set sglang_model_peer_port."
            )
        if whose:
            self.stop(unit)
        there = listeners(params["port"])
        if there:
            raise Fault(
                f"Its port {params['port']} is held by {there[0].name} ({there[0].pid}). Set sglang_model_peer_port."
            )
        folder = os.path.join(sglang_node.RUN, f"weights-{params['port']}")
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        conf = sglang_weights.DAEMON.format(
            port=params["port"],
            connections=params["streams"] + 2,
            state=f"/run/{unit}",
            path=self.path,
            secret=f"/run/credentials/{unit}.service/secret",
            allow=" ".join(params["allow"]),
        )
        write(f"{folder}/rsyncd.conf", conf, 0o644)
        write(f"{folder}/sglang_weights.py", inspect.getsource(sglang_weights), 0o644)
        write(f"{folder}/secret", f"weights:{params['secret']}\n", 0o600)
        python = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
        done = run(daemon_command(params, folder, python))
        until = time.monotonic() + PATIENCE
        while done.returncode == 0 and not listeners(params["port"]) and time.monotonic() < until and self.whose(unit):
            time.sleep(0.2)
        # systemd has its own copy by now, which only the unit's user reads.
        with contextlib.suppress(OSError):
            os.unlink(f"{folder}/secret")
        if done.returncode or not listeners(params["port"]):
            words = done.stderr or run(["journalctl", "-q", "-n", "20", "-o", "cat", "-u", unit]).stdout
            self.stop(unit)
            last = " / ".join(words.strip().splitlines()[-3:])
            raise Fault(f"Its rsync daemon does not listen on port {params['port']}: {last or 'it said nothing'}.")

    def whose(self, unit: str) -> str:
        """Description of a unit that is there; empty where it is not."""
        told = sglang_node.show(f"{unit}.service", ("ActiveState", "Description"))
        return told.get("Description", "") if told.get("ActiveState") in ("active", "activating") else ""

    def ours(self, whose: str) -> bool:
        return whose.endswith(f"for {self.params['sender']}")

    def stop(self, unit: str) -> None:
        run(["systemctl", "stop", f"{unit}.service"])
        run(["systemctl", "reset-failed", f"{unit}.service"])
        shutil.rmtree(os.path.join(sglang_node.RUN, f"weights-{self.params['port']}"), ignore_errors=True)

    def stopped(self) -> None:
        unit = unit_of(self.params["port"])
        if self.module.check_mode:
            return
        if self.ours(self.whose(unit)):
            self.stop(unit)
        manifest = sglang_weights.read_manifest(self.path)
        doubt = set(self.params["doubt"]) & set(manifest.get("files", {}))
        if doubt:
            files = manifest["files"]
            for name in doubt:
                files[name] = {**files[name], "stamp": []}
            sglang_weights.write_manifest(self.path, files, manifest["origin"])


def write(path: str, text: str, mode: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as stream:
        stream.write(text)


def run(argv: List[str]) -> subprocess.CompletedProcess:
    return subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False, timeout=60)


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    os.umask(0o022)
    weights = Weights(module)
    try:
        try:
            weights.run()
        except OSError as error:
            raise Fault(f"{error.filename or weights.path}: {error.strerror or error}.") from error
    except Fault as fault:
        module.fail_json(msg=str(fault))
    module.exit_json(**weights.result)


if __name__ == "__main__":
    main()
