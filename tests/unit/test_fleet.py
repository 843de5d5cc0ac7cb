"""playbooks/vars/fleet.yml: whether a node is taken out of the gateways before its deployment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def looked(restarted: bool) -> dict[str, Any]:
    # As a task with changed_when: false registers it.
    return {"changed": False, "restarted": restarted, "reasons": ["another unit"] if restarted else []}


@pytest.mark.parametrize(
    ("looks", "replica", "switches"),
    [
        ({"one": looked(True)}, [], True),
        ({"one": looked(False)}, [], False),
        ({}, [], True),
        ({"one": looked(False), "two": looked(True)}, [], False),
        ({"one": looked(False), "two": looked(True)}, ["one", "two"], True),
        ({"one": looked(False), "two": looked(False)}, ["one", "two"], False),
    ],
    ids=["restarted", "as it is", "not looked at", "another one is", "its replica is", "its replica is as it is"],
)
def test_a_node_is_taken_out_when_it_will_be_restarted(
    tmp_path: Path, looks: dict[str, Any], replica: list[str], switches: bool
) -> None:
    hosts = {name: {"__sglang_server_switch": looks[name]} if name in looks else {} for name in ("one", "two")}
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
    play = {
        "hosts": "one",
        "connection": "local",
        "gather_facts": False,
        "vars_files": [str(ROOT / "playbooks/vars/fleet.yml")],
        "vars": {"sglang_server_replica": {"hosts": replica} if replica else {}},
        "tasks": [{"ansible.builtin.assert": {"that": f"__sglang_fleet_switches is {str(switches).lower()}"}}],
    }
    (tmp_path / "play.json").write_text(json.dumps([play]))
    program = str(Path(sys.executable).parent / "ansible-playbook")
    argv = [program, "-i", str(tmp_path / "hosts.json"), str(tmp_path / "play.json")]
    known = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    done = subprocess.run(argv, env=known, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
