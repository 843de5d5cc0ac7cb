#!/usr/bin/python
# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""The node's own record of what is deployed, and the switch from one deployment to the next."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: sglang_deployment
short_description: Switch a server to another deployment, commit it, or put the last one back
version_added: "0.1.0"
description:
  - One server is one systemd unit. The unit's text holds the command line and the environment, so it is the whole of what runs;
    its digest names the deployment and is put into the process's environment as E(SGLANG_DEPLOYMENT).
  - What runs is read from the main process itself. A run that was killed between writing the unit and restarting is therefore
    seen and finished by the next one.
  - C(/var/lib/sglang/<name>/state.json) says how far a deployment came (V(switched), V(committed), V(restored));
    C(deployments/<id>.json) keeps each committed one with its unit, so that it can come back.
options:
  name:
    description: Name of the server, which is the unit's name without C(.service).
    type: str
    required: true
  state:
    description:
      - V(inspected) tells what is recorded and what runs.
      - V(switched) writes the unit and restarts the server, unless both are already as wanted. Returns when the new process is
        executed; M(sglang_ready) waits until it serves.
      - V(committed) records that the deployment which runs was proved.
      - V(restored) puts the last committed deployment back and restarts it; where there is none, stops and removes the unit.
    type: str
    choices: [inspected, switched, committed, restored]
    required: true
  unit:
    description:
      - Text of the unit. C(@DEPLOYMENT@) in it becomes the digest of the text. Needed by V(switched) and V(committed).
    type: str
  facts:
    description: What to keep in the record beside the unit, such as profile, release, url and model. No secrets.
    type: dict
    default: {}
  reason:
    description: Why the deployment is put back. Kept in the record.
    type: str
    default: ""
  keep:
    description: How many committed deployments are kept on record.
    type: int
    default: 10
  root:
    description: Folder of the records of all servers.
    type: path
    default: /var/lib/sglang
author: [the sglang-rtxpro authors]
attributes:
  check_mode: {support: full, description: Tells what would be written and restarted., details: []}
  diff_mode: {support: full, description: Shows the unit before and after., details: []}
"""

EXAMPLES = r"""
- name: Switch
  sglang_deployment:
    name: sglang
    state: switched
    unit: "{{ lookup('ansible.builtin.template', 'sglang.service.j2') }}"

- name: What runs there?
  sglang_deployment:
    name: sglang
    state: inspected
  register: found
"""

RETURN = r"""
phase:
  description: V(absent) (nothing recorded), V(switched) (not yet proved, or a run was interrupted), V(committed) or V(restored).
  type: str
  returned: always
digest:
  description: Digest of the wanted unit; of the last committed one when none is given.
  type: str
  returned: always
running:
  description:
    - The main process before this run. C(active), C(pid), C(digest) (from its environment), C(invocation_id), C(restarts)
      and C(since).
  type: dict
  returned: always
reasons:
  description: Why something was, or would be, done.
  type: list
  elements: str
  returned: always
restarted:
  description: Whether the server was, or would be, restarted.
  type: bool
  returned: always
committed:
  description: The last committed deployment. C(id), C(digest), C(at) (UTC) and the given O(facts). Empty when there is none.
  type: dict
  returned: always
"""

import datetime
import glob
import hashlib
import json
import os

from ansible.module_utils.basic import AnsibleModule

PLACEHOLDER = "@DEPLOYMENT@"
# In the first line of every unit of this project (roles/sglang_server/templates/sglang.service.j2).
HEADER = "Written by sglang-rtxpro"
# Folders beside those of the servers.
RESERVED = ("models", "pristine")
PROPERTIES = (
    "ActiveState",
    "MainPID",
    "InvocationID",
    "NRestarts",
    "ActiveEnterTimestamp",
    "UnitFileState",
    "NeedDaemonReload",
)


def stamp(unit: str) -> tuple[str, str]:
    """The unit's digest, and its text with the digest in place."""
    digest = hashlib.sha256(unit.encode()).hexdigest()[:12]
    return digest, unit.replace(PLACEHOLDER, digest)


def plan(wanted: str, digest: str, on_disk: str, running: dict) -> list[str]:
    """Why the server has to be switched; empty when it runs as wanted. Decided from facts alone."""
    reasons = []
    if not on_disk:
        reasons.append("there is no unit yet")
    elif on_disk != wanted:
        # Even if what runs carries the right digest: it may have been started from what is on disk now.
        reasons.append("the unit differs")
    if running["active"] not in ("active", "activating", "reloading"):
        reasons.append(f"the server is {running['active']}")
    elif running["digest"] != digest:
        ran = running["digest"] or "something this project did not start"
        reasons.append(f"what runs is {ran}, wanted is {digest}")
    return reasons


def foreign(on_disk: str, last: dict) -> bool:
    """Whether the unit on disk was made by somebody else, and is kept nowhere."""
    return bool(on_disk) and not last and HEADER not in on_disk.split("\n", 1)[0]


def properties(text: str) -> dict[str, str]:
    """`systemctl show` as a mapping."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def environment(raw: bytes) -> dict[str, str]:
    """/proc/PID/environ as a mapping."""
    pairs = (item.split("=", 1) for item in raw.decode(errors="replace").split("\0") if "=" in item)
    return dict(pairs)


def mask_environment(unit: str) -> str:
    """For diffs: a unit of this project never carries secrets, but what somebody wrote into it by hand may."""
    lines = []
    for line in unit.splitlines(keepends=True):
        name = line.split("=", 2)[1].strip('"') if line.startswith("Environment=") and line.count("=") > 1 else ""
        secret = any(word in name.upper() for word in ("KEY", "TOKEN", "SECRET", "PASSWORD"))
        lines.append(f'Environment="{name}=********"\n' if secret else line)
    return "".join(lines)


class Record:
    """The files under /var/lib/sglang/<name>. Every write is whole: temporary file, then rename."""

    def __init__(self, root: str, name: str) -> None:
        self.folder = os.path.join(root, name)
        self.deployments = os.path.join(self.folder, "deployments")
        self.state_file = os.path.join(self.folder, "state.json")

    def state(self) -> dict:
        return _read_json(self.state_file) or {"phase": "absent"}

    def ids(self) -> list[str]:
        names = (os.path.basename(path)[:-5] for path in glob.glob(os.path.join(self.deployments, "*.json")))
        return sorted((name for name in names if name.isdigit()), key=int)

    def last(self) -> dict:
        """The newest deployment whose record can be read."""
        for number in reversed(self.ids()):
            found = _read_json(os.path.join(self.deployments, number + ".json"))
            if found.get("unit"):
                return found
        return {}

    def write_state(self, **values: object) -> None:
        write(self.state_file, json.dumps({**values, "at": now()}, indent=1, sort_keys=True) + "\n", 0o644)

    def add(self, digest: str, unit: str, facts: dict, keep: int) -> dict:
        number = f"{int(self.ids()[-1]) + 1 if self.ids() else 1:06d}"
        entry = {"id": number, "digest": digest, "at": now(), "facts": facts, "unit": unit}
        write(
            os.path.join(self.deployments, number + ".json"), json.dumps(entry, indent=1, sort_keys=True) + "\n", 0o644
        )
        for old in self.ids()[:-keep]:
            os.unlink(os.path.join(self.deployments, old + ".json"))
        return entry


def _read_json(path: str) -> dict:
    """A record; empty when it is missing or was cut, which the next write heals."""
    try:
        with open(path, encoding="utf-8") as stream:
            found = json.load(stream)
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


def now() -> str:
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except FileNotFoundError:
        return ""


def write(path: str, text: str, mode: int) -> None:
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    temporary = f"{path}.{os.getpid()}.new"
    with open(temporary, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.chmod(temporary, mode)
    os.replace(temporary, path)


class Server:
    """One unit and its record."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.name: str = module.params["name"]
        self.unit_name = self.name + ".service"
        self.unit_path = os.path.join("/etc/systemd/system", self.unit_name)
        self.record = Record(module.params["root"], self.name)
        self.shown = properties(self.systemctl("show", "-p", ",".join(PROPERTIES), self.unit_name))
        self.on_disk = read_text(self.unit_path)

    def systemctl(self, *argv: str) -> str:
        code, out, err = self.module.run_command(["systemctl", *argv])
        if code:
            self.module.fail_json(msg=f"systemctl {' '.join(argv)} failed: {(err or out).strip()}")
        return out

    def running(self) -> dict:
        pid = int(self.shown.get("MainPID") or 0)
        digest = ""
        if pid:
            try:
                with open(f"/proc/{pid}/environ", "rb") as stream:
                    digest = environment(stream.read()).get("SGLANG_DEPLOYMENT", "")
            except OSError:
                pass  # it ended meanwhile: then nothing runs, and the digest is not the wanted one
        return {
            "active": self.shown.get("ActiveState", "unknown"),
            "pid": pid,
            "digest": digest,
            "invocation_id": self.shown.get("InvocationID", ""),
            "restarts": int(self.shown.get("NRestarts") or 0),
            "since": self.shown.get("ActiveEnterTimestamp", ""),
        }

    def verify(self, text: str) -> None:
        """Let systemd judge the unit before anything is touched."""
        verified = f"/run/{self.name}-{os.getpid()}.service"
        write(verified, text, 0o644)
        code, out, err = self.module.run_command(["systemd-analyze", "verify", "--man=no", verified])
        os.unlink(verified)
        if code:
            self.module.fail_json(msg=f"systemd refuses the unit of {self.name}: {(err or out).strip()}")

    def put(self, text: str) -> None:
        """Write the unit and start it. With Type=exec systemd answers at exec; sglang_ready watches the rest."""
        write(self.unit_path, text, 0o644)
        self.systemctl("daemon-reload")
        self.systemctl("enable", "--quiet", self.unit_name)
        # A unit that ran into its start limit must be let go first.
        self.module.run_command(["systemctl", "reset-failed", self.unit_name])
        # Waits for the old process to end, so that nobody takes it for the new one. A start that fails is told by
        # sglang_ready, which has the server's own words.
        self.module.run_command(["systemctl", "restart", self.unit_name])

    def remove(self) -> None:
        if self.on_disk:
            self.systemctl("disable", "--quiet", "--now", self.unit_name)
            os.unlink(self.unit_path)
            self.systemctl("daemon-reload")
            self.module.run_command(["systemctl", "reset-failed", self.unit_name])


def diff(before: str, after: str, path: str) -> dict:
    return {
        "before_header": path,
        "after_header": path,
        "before": mask_environment(before),
        "after": mask_environment(after),
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["inspected", "switched", "committed", "restored"], "required": True},
            "unit": {"type": "str"},
            "facts": {"type": "dict", "default": {}},
            "reason": {"type": "str", "default": ""},
            "keep": {"type": "int", "default": 10},
            "root": {"type": "path", "default": "/var/lib/sglang"},
        },
        required_if=[("state", "switched", ["unit"]), ("state", "committed", ["unit"])],
        supports_check_mode=True,
    )
    os.umask(0o022)
    if module.params["name"] in RESERVED:
        module.fail_json(
            msg=f"A server cannot be named {module.params['name']}: {module.params['root']} has a folder of that name."
        )
    server = Server(module)
    running, last, phase = server.running(), server.record.last(), server.record.state()["phase"]
    state, facts = module.params["state"], module.params["facts"]
    digest, wanted = (
        stamp(module.params["unit"]) if module.params["unit"] else (last.get("digest", ""), last.get("unit", ""))
    )
    reasons: list[str] = []
    result: dict = {"changed": False, "restarted": False}

    if state == "switched":
        if foreign(server.on_disk, last):
            module.fail_json(
                msg=f"{server.unit_path} was not written by this project, and nothing would bring it back. Move it away, or choose "
                "another sglang_server_name."
            )
        reasons = plan(wanted, digest, server.on_disk, running)
        disabled = server.shown.get("UnitFileState") not in ("enabled", "enabled-runtime")
        if not reasons and disabled:
            reasons = ["the unit does not start at boot"]
            result["changed"] = True
            if not module.check_mode:
                server.systemctl("enable", "--quiet", server.unit_name)
        elif reasons:
            result.update(changed=True, restarted=True)
            if not module.check_mode:
                server.verify(wanted)
                # First the record: a run that is killed from here on is known to have been under way.
                server.record.write_state(phase="switched", digest=digest, before=last.get("id", ""))
                server.put(wanted)
                phase = "switched"
        if server.on_disk != wanted:
            result["diff"] = diff(server.on_disk, wanted, server.unit_path)
    elif state == "committed":
        same = last.get("digest") == digest and last.get("facts") == facts
        if not same or phase != "committed":
            result["changed"] = True
            reasons = ["the record is of an interrupted run" if same else "this deployment is new"]
            if not module.check_mode:
                if not same:
                    last = server.record.add(digest, wanted, facts, module.params["keep"])
                server.record.write_state(phase="committed", digest=digest, deployment=last["id"])
                phase = "committed"
    elif state == "restored":
        # A switch that was refused before it touched anything leaves a healthy server, or somebody else's unit, as it was.
        if last:
            untouched = not plan(wanted, digest, server.on_disk, running)
        else:
            untouched = not server.on_disk or foreign(server.on_disk, last)
        result.update(changed=not untouched, restarted=bool(last) and not untouched)
        reasons = [module.params["reason"] or "asked for"]
        if not untouched and not module.check_mode:
            if last:
                server.put(wanted)
            else:
                server.remove()
            phase = "restored"
            server.record.write_state(phase=phase, digest=digest, deployment=last.get("id", ""), reason=reasons[0])
        result["diff"] = diff(server.on_disk, wanted, server.unit_path)

    module.exit_json(
        phase=phase,
        digest=digest,
        running=running,
        reasons=reasons,
        committed={"id": last["id"], "digest": last["digest"], "at": last["at"], **last["facts"]} if last else {},
        **result,
    )


if __name__ == "__main__":
    main()
