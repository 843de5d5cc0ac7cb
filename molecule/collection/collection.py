#!/usr/bin/env python3
"""Deploy a host as a stranger would: the built collection in an empty folder, the newest Ansible in an environment of its own.

Nothing of this tree is used but the tarball. Every warning of Ansible's fails it, deprecations among them.

    collection.py INVENTORY
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "shared"))

from hosts import BIN, ROOT, Host, check

FULL = "rtxpro.sglang"
NAMED = re.compile(r"python3\.\d+$")
INSTALLED = "collections/ansible_collections/rtxpro/sglang"
# What such a user has: a node in the group of a profile.
PROFILE = "cpu_demo"
ROLE_ALONE = """\
- name: Measure a server that is there, and read what is on record
  hosts: gpu_nodes
  become: true
  gather_facts: false
  roles:
    - role: rtxpro.sglang.sglang_bench
  post_tasks:
    - name: Read the record
      rtxpro.sglang.sglang_deployment:
        name: sglang
        state: inspected
      register: found
    - name: It is what was deployed, by the collection
      ansible.builtin.assert:
        that:
          - found.phase == 'committed'
          - found.committed.by.commit is match('rtxpro.sglang ')
"""
# What README.md tells to install.
CONTROLLER = ("ansible-core", "matplotlib")
LOAD = {"concurrency": 1, "prompts": 2, "input_len": 32, "output_len": 8, "dataset": "token-ids"}


def newest_python() -> str:
    """The newest Python of this machine, which takes the newest Ansible; SGLANG_TEST_PYTHON names another."""
    if os.environ.get("SGLANG_TEST_PYTHON"):
        return os.environ["SGLANG_TEST_PYTHON"]
    folders = [Path(folder) for folder in os.environ["PATH"].split(":")]
    folders += Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser().glob("versions/*/bin")
    found = {}
    for path in {
        path.resolve() for folder in folders for path in folder.glob("python3.[0-9]*") if NAMED.match(path.name)
    }:
        argv = [str(path), "-c", "import sys; print(*sys.version_info[:2])"]
        told = subprocess.run(argv, capture_output=True, text=True, check=False)
        if told.returncode == 0:  # those of a version manager stand for versions that may not be there
            found[tuple(int(part) for part in told.stdout.split())] = str(path)
    return found[max(found)]


class Stranger:
    """A folder with an inventory, and an environment with Ansible; no configuration, nothing of this tree."""

    def __init__(self, folder: Path, host: Host) -> None:
        self.folder, self.venv = folder, folder / ".venv"
        cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser()
        variables = {
            "ansible_host": host.address,
            "ansible_user": "root",
            "ansible_python_interpreter": "/usr/bin/python3",
            "ansible_ssh_private_key_file": f"{os.environ['MOLECULE_EPHEMERAL_DIRECTORY']}/id_ed25519",
            "ansible_ssh_common_args": "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR",
            "sglang_env_wheelhouse": str(cache / "sglang-rtxpro/wheelhouse/sglang-cpu-0.5.23-3.11"),
        }
        (folder / "hosts.yml").write_text(
            yaml.safe_dump({"gpu_nodes": {"children": {PROFILE: {"hosts": {"gpu-node": variables}}}}})
        )
        self.environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("ANSIBLE_", "MOLECULE_", "PYTHON"))
            },
            "HOME": str(folder),
            "UV_CACHE_DIR": os.environ.get("UV_CACHE_DIR", os.path.expanduser("~/.cache/uv")),
            "ANSIBLE_DEPRECATION_WARNINGS": "1",
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_COLLECTIONS_PATH": str(folder / "collections"),
        }

    def run(self, *argv: str, code: int = 0, timeout: float = 300) -> str:
        """A command's output. Ansible says what it warns of among it."""
        began = time.monotonic()
        done = subprocess.run(
            argv, cwd=self.folder, env=self.environment, text=True, timeout=timeout, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        print(
            f"{time.monotonic() - began:6.1f} s  {' '.join(Path(word).name or word for word in argv)[:150]}", flush=True
        )
        check(done.returncode == code, f"it ended with {done.returncode}, expected {code}:\n{done.stdout[-6000:]}")
        warned = re.findall(r"^\[(?:DEPRECATION )?WARNING\].*(?:\n.+)*", done.stdout, re.MULTILINE)
        check(not warned, "Ansible warns:\n" + "\n".join(warned))
        return done.stdout

    def play(
        self, playbook: str, *words: str, inventories: tuple[str, ...] = (f"{INSTALLED}/inventory",), code: int = 0
    ) -> str:
        sources = [word for source in (*inventories, "hosts.yml") for word in ("-i", source)]
        return self.run(str(self.venv / "bin/ansible-playbook"), *sources, playbook, *words, code=code)


def changed(told: str) -> int:
    found = re.search(r"^gpu-node .* changed=(\d+) ", told, re.MULTILINE)
    check(found, f"no recap:\n{told[-2000:]}")
    return int(found[1]) if found else 0


def main() -> int:
    host = Host(Path(sys.argv[1]), "gpu-node")
    with tempfile.TemporaryDirectory(prefix="sglang-collection-") as name:
        stranger = Stranger(Path(name), host)
        python = newest_python()
        stranger.run(str(BIN / "uv"), "venv", "--quiet", "--python", python, str(stranger.venv))
        stranger.run(str(BIN / "uv"), "pip", "install", "--quiet", "--python", str(stranger.venv), *CONTROLLER)
        print("         " + stranger.run(str(stranger.venv / "bin/ansible"), "--version").splitlines()[0], python)

        stranger.run(sys.executable, str(ROOT / "tools/collection"), "--out", f"{name}/built")
        tarball = str(next(Path(name, "built").glob("*.tar.gz")))
        stranger.run(str(stranger.venv / "bin/ansible-galaxy"), "collection", "install", "-p", "collections", tarball)

        told = stranger.play(f"{FULL}.deploy", inventories=(), code=2)
        check(f"-i {name}/{INSTALLED}/inventory" in " ".join(told.split()), f"the remedy is not said:\n{told[-2000:]}")
        stranger.play(f"{FULL}.plan")
        check(changed(stranger.play(f"{FULL}.deploy")) > 0, "the deployment changed nothing on a bare host")
        check(host.do("systemctl is-active sglang") == "active", "no server runs")
        again = changed(stranger.play(f"{FULL}.deploy"))
        check(again == 0, f"a second deployment changed {again}")
        check("committed" in stranger.play(f"{FULL}.status"), "the page does not say what is committed")

        (stranger.folder / "alone.yml").write_text(ROLE_ALONE)
        stranger.play("alone.yml", "-e", json.dumps({"sglang_bench_loads": [LOAD]}))
        check(list(stranger.folder.glob(f"results/{PROFILE}/*/run.json")), "the result is not in the folder's results/")

        stranger.play(f"{FULL}.undeploy", "-e", "sglang_undeploy_weights=true")
        left = host.do(
            "ls -d /etc/systemd/system/sglang* /opt/sglang/releases/* /var/lib/sglang/sglang 2>/dev/null", ok=False
        )
        check(not left, f"undeploy left {left}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
