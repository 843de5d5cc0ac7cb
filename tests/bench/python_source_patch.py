"""CPU time of the module python_source_patch on a 3,000-line file: what a node spends, Python starts included.

Run: .venv/bin/python tests/bench/python_source_patch.py [RUNS]

Ansible packs the module as it does for a node; that file is then run by itself, so that the controller's time is left out.
Prints the median of user and system time, children included, in seconds; and the ratio to a bare start of the same file's
imports (a module that does nothing). Ends with 1 if a median is over the budget.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUDGET = 0.7  # seconds of CPU for one run
LINES = 3000
GATE = (ROOT / "tests/unit/data/python_source_patch/gate.py").read_text()
PATCH = {
    "name": "autotune",
    "package": "sglang",
    "file": "sglang/runner.py",
    "why": "to measure",
    "tried": ["1.0"],
    "edits": [
        {
            "enable_list_item": {
                "in": "ModelRunner._should_run_flashinfer_autotune",
                "list_has": ["flashinfer_trtllm"],
                "item": "flashinfer_cutlass",
            }
        }
    ],
    "show": [{"file": "sglang/runner.py", "in": "ModelRunner._flashinfer_autotune"}],
}


METHOD = """\
def f{0}(self, forward_batch, num_tokens=None):
    # A comment here and there, as real code has it, so that
    # a line holds about as much as one of model_runner.py.
    if num_tokens is None and forward_batch:
        return [
            self.f{0}(x, y)
            for x, y in zip(forward_batch, self.rows)
        ]

    return {{
        "tokens": num_tokens,
        "text": f"{{num_tokens!r}}",
    }}


"""


def source() -> str:
    """3,000 lines: the gate behind methods of usual density."""
    count = (LINES - GATE.count("\n")) // METHOD.count("\n")
    return "".join(METHOD.format(number) for number in range(count)) + GATE


def make_site(home: Path) -> Path:
    site = home / "lib/python3/site-packages"
    (site / "sglang").mkdir(parents=True)
    (site / "sglang-1.0.dist-info").mkdir()
    (site / "sglang-1.0.dist-info/METADATA").write_text("Name: sglang\nVersion: 1.0\n")
    (site / "sglang-1.0.dist-info/RECORD").write_text("sglang/runner.py,,\n")
    (site / "sglang/runner.py").write_text(source())
    return site


def packed(home: Path, module: str, arguments: dict) -> Path:
    """The file that Ansible would run on a node, arguments included."""
    temporary = home / f"remote-{module}-{len(list(home.iterdir()))}"
    play = [{"hosts": "localhost", "gather_facts": False, "tasks": [{module: arguments}]}]
    (home / "play.yml").write_text(json.dumps(play))
    environment = {
        **os.environ,
        "ANSIBLE_LIBRARY": str(ROOT / "library"),
        "ANSIBLE_KEEP_REMOTE_FILES": "1",
        "ANSIBLE_REMOTE_TMP": str(temporary),
        "ANSIBLE_PIPELINING": "0",
    }
    argv = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", "localhost,", "-c", "local"]
    argv += ["-e", f"ansible_python_interpreter={sys.executable}", str(home / "play.yml")]
    done = subprocess.run(argv, env=environment, cwd=home, capture_output=True, text=True, check=False)
    found = list(temporary.rglob("AnsiballZ_*.py"))
    if done.returncode or len(found) != 1:
        sys.exit(f"Ansible did not leave one packed module:\n{done.stdout}{done.stderr}")
    return found[0]


def cpu(command: list[str]) -> float:
    """User and system seconds of a command and its children."""
    before = os.times()
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    after = os.times()
    if re.search(rb'"failed": true', done.stdout):
        sys.exit(done.stdout.decode())
    return after.children_user + after.children_system - before.children_user - before.children_system


def main() -> int:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    home = Path(tempfile.mkdtemp(prefix="python_source_patch-"))
    try:
        site = make_site(home)
        pristine = (site / "sglang/runner.py").read_text()
        arguments = {
            "site_packages": str(site),
            "patch": PATCH,
            "python": sys.executable,
            "backup_dir": str(home / "kept"),
        }
        module = packed(home, "python_source_patch", arguments)
        bare = packed(home, "ansible.builtin.ping", {})
        times: dict[str, list[float]] = {"bare module": [], "not_applied, written": [], "applied, unchanged": []}
        for _ in range(runs):
            times["bare module"].append(cpu([sys.executable, str(bare)]))
            (site / "sglang/runner.py").write_text(pristine)
            times["not_applied, written"].append(cpu([sys.executable, str(module)]))
            times["applied, unchanged"].append(cpu([sys.executable, str(module)]))
    finally:
        shutil.rmtree(home)
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, median in medians.items():
        spread = f"{min(times[name]):.2f} to {max(times[name]):.2f}"
        print(f"{name:22} {median:.2f} s CPU ({spread}), {median / medians['bare module']:.1f} x a bare module")
    print(f"budget {BUDGET} s, {LINES} lines, {runs} runs each")
    return int(max(medians.values()) > BUDGET)


if __name__ == "__main__":
    sys.exit(main())
