"""What holds the house together: links, profiles, the way playbooks are started."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PROFILES = sorted(p for p in (ROOT / "group_vars").glob("*.yml") if p.stem not in ("all", "gpu_nodes"))


def ansible(*argv: str) -> str:
    environment = {**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"}
    done = subprocess.run(
        [str(BIN / argv[0]), *argv[1:]], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def test_root_playbooks_are_one_import() -> None:
    for path in set(ROOT.glob("*.yml")) - {ROOT / "mkdocs.yml"}:
        plays = yaml.safe_load(path.read_text())
        assert [play["ansible.builtin.import_playbook"] for play in plays] == [f"playbooks/{path.name}"]
        assert (ROOT / "playbooks" / path.name).is_file()


def test_profiles_set_the_same_keys() -> None:
    keys = {path.stem: set(yaml.safe_load(path.read_text())) for path in PROFILES}
    first = next(iter(keys.values()))
    assert all(found == first for found in keys.values()), keys
    for path in PROFILES:
        assert yaml.safe_load(path.read_text())["sglang_profile"] == path.stem


@pytest.mark.parametrize("inventory", ["inventory", "inventory/demo", "inventory/example"])
def test_links_to_group_vars_are_committed(inventory: str) -> None:
    link = ROOT / inventory / "group_vars"
    assert link.is_symlink()
    assert link.resolve() == ROOT / "group_vars"


@pytest.mark.parametrize("start", ["root.yml", "playbooks/probe.yml"])
def test_group_vars_reach_both_ways_to_start_a_playbook(start: str, tmp_path: Path) -> None:
    """Plays imported from the root do not see a root group_vars/; the link in the inventory is what they see."""
    for name in ("inventory", "group_vars"):
        (tmp_path / name).mkdir()
    (tmp_path / "group_vars/gpu_nodes.yml").write_text("seen: wired\n")
    (tmp_path / "inventory/group_vars").symlink_to("../group_vars")
    (tmp_path / "inventory/hosts.yml").write_text("gpu_nodes: {hosts: {here: {ansible_connection: local}}}\n")
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "root.yml").write_text("- ansible.builtin.import_playbook: playbooks/probe.yml\n")
    (tmp_path / "playbooks/probe.yml").write_text(
        "- {hosts: gpu_nodes, gather_facts: false, tasks: [{ansible.builtin.debug: {msg: '{{ seen }}'}}]}\n"
    )
    assert "wired" in ansible("ansible-playbook", "-i", str(tmp_path / "inventory"), str(tmp_path / start))


def test_a_profile_wins_over_the_wiring() -> None:
    """The profile groups lie below gpu_nodes; beside it, the later name in the alphabet would win."""
    for inventory in ("inventory", "inventory/demo"):
        host = json.loads(ansible("ansible-inventory", "-i", inventory, "--host", "gpu-node"))
        groups = yaml.safe_load((ROOT / inventory / "hosts.yml").read_text())
        assert host["sglang_profile"] in groups["gpu_nodes"]["children"]


def test_the_example_of_several_nodes_is_planned_without_complaint() -> None:
    """With keys for those of its vault. Its addresses are kept for documentation: nobody answers there."""
    keys = {name: name * 3 for name in ("vault_nodes_key", "vault_metrics_key", "vault_clients_key")}
    told = ansible(
        *("ansible-playbook", "plan.yml", "-i", "inventory/example/hosts.yml", "-e", json.dumps(keys)),
        "--ssh-extra-args=-o ConnectTimeout=1",
    )
    planned = dict(re.findall(r"PLAN for (\S+): (\S+)", told))
    assert planned == {"gpu-1": "glm52", "gpu-2": "glm52", "gpu-3": "kimi_k25", "gpu-4": "glm5", "gpu-5": "glm5"}, told
    assert told.count("0 errors") == 5


@pytest.mark.parametrize("profile", [path.stem for path in PROFILES])
def test_a_plan_needs_no_node(profile: str) -> None:
    """The address is one of those that are kept for documentation: nobody answers there."""
    told = ansible(
        *("ansible-playbook", "plan.yml", "-i", "inventory/hosts.yml", "-e", f"@group_vars/{profile}.yml"),
        *("-e", "ansible_host=192.0.2.1", "--ssh-extra-args=-o ConnectTimeout=1"),
    )
    assert f"PLAN for gpu-node: {profile}" in told, told
    assert "No node was looked at: Failed to connect" in told and "[ERROR]" not in told
    assert "0 errors" in told and "Nothing was" in told
    page = told[told.index("PLAN for") : told.index("\nRESULT")]
    assert max(len(line) for line in page.splitlines() if " " in line.strip()) <= 80


def test_the_output_has_no_skipped_tasks_and_a_tasks_name_before_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "p.yml").write_text(
        "- hosts: localhost\n  gather_facts: false\n  tasks:\n"
        "    - {name: Not wanted, ansible.builtin.debug: {msg: x}, when: false}\n"
        f"    - {{name: Long, ansible.builtin.command: {{argv: [touch, {tmp_path}/ran]}}}}\n"
        "    - {name: Wanted, ansible.builtin.debug: {msg: y}, when: true}\n"
    )
    told = ansible("ansible-playbook", str(tmp_path / "p.yml"))
    assert "Not wanted" not in told and "skipping" not in told
    assert told.count("TASK [Long]") == told.count("TASK [Wanted]") == 1
    assert told.index("TASK [Long]") < told.index("changed: [localhost]") < told.index("TASK [Wanted]")
