"""Several nodes that serve one model go through a deployment in step.

The role's own tasks run, with the modules that work on nodes stood in; what the real ones do is the scenario replica's. One run
has a replica for each thing that can go wrong, and none of them minds the others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).parent / "data/replica"
PLAYBOOK = Path(sys.executable).parent / "ansible-playbook"

PLAY = """\
- hosts: gpu_nodes
  gather_facts: false
  tasks:
    - ansible.builtin.include_role:
        name: sglang_server
        tasks_from: transaction
        rolespec_validate: false
      vars:
        __sglang_server_unit: "the unit of {{ inventory_hostname }}"
        __sglang_server_own_facts:
          {url: "http://127.0.0.1:1", model: m, start_timeout: 5, profile: p, release: /r, python: /p, questions: []}
"""
# A replica each, by what its head (0) or its other host (1) does.
REPLICAS = {
    "fine": "fine1 restarts",
    "beside0": "beside00 fails companion",
    "beside1": "beside11 fails companion",
    "switch0": "switch00 fails switched",
    "switch1": "switch11 fails switched",
    "stop0": "stop00 fails withdrawn",
    "proof0": "proof00 fails smoke",
    "commit0": "commit00 fails committed",
    "commit1": "commit11 fails committed",
    "dies1": "dies11 fails ready,dies10 waits",
}


def hosts_of(name: str) -> tuple[str, str]:
    return f"{name}0", f"{name}1"


class Run:
    """One run of the transaction on all of them: its words, and what was asked of whom in which order."""

    def __init__(self, folder: Path) -> None:
        (folder / "play.yml").write_text(PLAY)
        inventory = {
            "all": {
                "vars": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable},
                "children": {
                    "gpu_nodes": {
                        "vars": {
                            "sglang_server_name": "{{ inventory_hostname }}",
                            "sglang_server_user": "{{ inventory_hostname }}",
                            "sglang_server_replica": "{{ groups | sglang_replica(inventory_hostname, hostvars) }}",
                            "sglang_server_front": True,
                        },
                        "hosts": {"alone": {}},
                        "children": {
                            f"replica_{name}": {"hosts": dict.fromkeys(hosts_of(name), {})} for name in REPLICAS
                        },
                    }
                },
            }
        }
        (folder / "hosts.json").write_text(json.dumps(inventory))
        log = folder / "log.jsonl"
        env = {
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_LIBRARY": f"{DATA / 'stand_in'}:{ROOT / 'library'}",
            "ANSIBLE_ROLES_PATH": str(ROOT / "roles"),
            "ANSIBLE_NOCOLOR": "1",
            "STAND_IN_LOG": str(log),
            "STAND_IN_WISH": ",".join(REPLICAS.values()),
        }
        # All at once: two that wait for each other must both be at work.
        argv = [str(PLAYBOOK), "--forks", "25", "-i", str(folder / "hosts.json"), str(folder / "play.yml")]
        done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=600)
        self.code, self.text = done.returncode, " ".join((done.stdout + done.stderr).split())
        self.steps: list[dict[str, Any]] = [json.loads(line) for line in log.read_text().splitlines()]

    def of(self, host: str) -> list[str]:
        return [step["what"] for step in self.steps if step["host"] == host and step["what"] != "companion"]

    def first(self, host: str, what: str) -> dict[str, Any]:
        return next(step for step in self.steps if step["host"] == host and step["what"] == what)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("plays"))


def test_all_go_through_it_in_step(run: Run) -> None:
    assert run.code == 2
    assert run.of("fine0") == ["look switched", "withdrawn", "switched", "ready", "smoke", "evidence", "committed"]
    # Only the head answers, so only the head is asked.
    assert run.of("fine1") == ["look switched", "switched", "ready", "committed"]
    assert "model" in run.first("fine0", "ready") and "model" not in run.first("fine1", "ready")
    # The head ends what it has in hand before any of them is touched, and is restarted because the other one is.
    assert run.first("fine0", "withdrawn")["at"] < run.first("fine1", "switched")["at"]
    assert run.first("fine0", "switched")["because"] == ["fine1 of replica_fine is restarted (asked for)"]
    assert [run.first(host, "switched")["kill"] for host in hosts_of("fine")] == [False, True]
    assert "fine1 serves m through fine0 (rank 1 of replica_fine)" in run.text


def test_a_server_of_its_own_takes_no_step_more(run: Run) -> None:
    assert run.of("alone") == ["switched", "ready", "smoke", "evidence", "committed"]
    assert run.first("alone", "switched")["because"] == []


@pytest.mark.parametrize("name", [name for name in REPLICAS if name != "fine"])
def test_what_fails_on_one_is_put_back_on_all(run: Run, name: str) -> None:
    steps = {host: run.of(host) for host in hosts_of(name)}
    for host, done in steps.items():
        assert done.count("restored") == 1, (host, done)
        assert "ready back" in done
    took = [step for done in steps.values() for step in done]
    if name in ("beside0", "beside1"):
        assert not {"withdrawn", "switched", "committed"} & set(took)
    if name == "stop0":
        assert not {"switched", "committed"} & set(took)
    if not name.startswith("commit"):
        assert "committed" not in took


@pytest.mark.parametrize("failed", [0, 1])
def test_what_was_committed_is_taken_back_where_another_could_not(run: Run, failed: int) -> None:
    hosts = hosts_of(f"commit{failed}")
    assert run.first(hosts[1 - failed], "restored")["deployment"] == "000004"
    # Where it was not, there is nothing to take back.
    assert "deployment" not in run.first(hosts[failed], "restored")


def test_a_host_says_whom_it_waited_for(run: Run) -> None:
    assert (
        "replica_proof0 serves one model, and proof00 did not come as far as 'proved': what it says is the cause."
        in run.text
    )


def test_nobody_waits_for_one_that_died(run: Run) -> None:
    """The head would wait for its rank as long as a start may take."""
    assert "dies10 is not waited for any longer, since dies11 failed: dies11 was told to fail at ready" in run.text
    assert "Of replica_dies1 (dies10, dies11; head dies10) dies11 (rank 1) ended first" in run.text
    done = run.of("dies10")
    assert done[: done.index("restored")].count("wait on") < 5, done


def test_the_project_s_own_playbook_refuses_a_part_of_a_replica(tmp_path: Path) -> None:
    """Before any node is asked: none of these can be."""
    hosts = {name: {"ansible_host": "192.0.2.1"} for name in ("n1", "n2")}
    inventory = {"gpu_nodes": {"children": {"cpu_demo": {"children": {"replica_big": {"hosts": hosts}}}}}}
    (tmp_path / "hosts.json").write_text(json.dumps(inventory))
    (tmp_path / "group_vars").symlink_to(ROOT / "group_vars")
    argv = [str(PLAYBOOK), "-i", str(tmp_path / "hosts.json"), "deploy.yml", "-l", "n1"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    text = " ".join(done.stdout.split())
    assert done.returncode == 2 and "this run leaves out n2" in text and "-l replica_big" in text, text
