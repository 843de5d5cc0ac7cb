"""What scenarios share that are programs: a test host over SSH, and playbooks that are run against it, watched and killed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


class Wrong(AssertionError):
    """What a case found otherwise than it has to be."""


def check(true: Any, text: str) -> None:
    if not true:
        raise Wrong(text)


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_FORCE_COLOR": "0",
    }


class Host:
    """A host of a scenario's inventory, over SSH as root."""

    def __init__(self, inventory: Path, name: str) -> None:
        self.inventory, self.name = inventory, name
        told = subprocess.run(
            [str(BIN / "ansible-inventory"), "-i", str(inventory), "--host", name],
            env=environment(), cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        self.facts = json.loads(told.stdout)
        self.address = self.facts["ansible_host"]
        self.ssh = [
            "ssh", "-i", str(Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]) / "id_ed25519"), "-o", "BatchMode=yes",
            "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR",
            "-o", "ConnectTimeout=5",
            f"root@{self.address}",
        ]  # fmt: skip

    def do(self, command: str, ok: bool = True, timeout: float = 120) -> str:
        """Run a shell command on the host."""
        done = subprocess.run(
            [*self.ssh, "bash", "-s"],
            input=command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
        check(
            done.returncode == 0 or not ok,
            f"`{command[:200]}` failed on the host: {(done.stderr or done.stdout).strip()}",
        )
        return done.stdout.strip()

    def write(self, path: str, text: str) -> None:
        self.do(f"mkdir -p {os.path.dirname(path)}; cat > {path} <<'END_OF_TEXT'\n{text}\nEND_OF_TEXT")

    def wait(self, true: Callable[[], Any], what: str, timeout: float = 120) -> float:
        """Seconds until something is true."""
        began = time.monotonic()
        while time.monotonic() - began < timeout:
            with contextlib.suppress(subprocess.TimeoutExpired, Wrong, ValueError):
                if true():
                    return time.monotonic() - began
            time.sleep(0.3)
        raise Wrong(f"after {timeout:.0f} s it is not so that {what}")

    def testhosts(self, *words: str) -> None:
        subprocess.run([sys.executable, str(ROOT / "tools/testhosts"), *words], check=True, capture_output=True)

    def command(self, playbook: str, *words: str, **variables: Any) -> list[str]:
        argv = [
            str(BIN / "ansible-playbook"),
            "-i",
            str(self.inventory),
            str(ROOT / f"{playbook}.yml"),
            "-l",
            self.name,
            *words,
        ]
        return [*argv, "-e", json.dumps(variables)] if variables else argv

    def start(self, playbook: str, *words: str, **variables: Any) -> Play:
        return Play(self.command(playbook, *words, **variables))

    def play(self, playbook: str, *words: str, timeout: float = 400, **variables: Any) -> Play:
        """A whole run."""
        run = self.start(playbook, *words, **variables)
        run.end(timeout)
        return run


class Play:
    """One ansible-playbook in a process group of its own, its output read as it comes."""

    def __init__(self, argv: list[str]) -> None:
        self.process = subprocess.Popen(
            argv, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, start_new_session=True,
        )  # fmt: skip
        self.lines: list[str] = []
        self.began = time.monotonic()
        self.seconds = 0.0
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.lines.append(line)

    @property
    def text(self) -> str:
        return "".join(self.lines)

    @property
    def told(self) -> str:
        """What was said, on one line."""
        return re.sub(r"\s+", " ", re.sub(r"\x1b\[[0-9;]*m", "", self.text))

    @property
    def code(self) -> int:
        return int(self.process.returncode if self.process.returncode is not None else -1)

    def until(self, text: str, timeout: float = 300) -> None:
        """Wait for a line that holds the text."""
        end = time.monotonic() + timeout
        while text not in self.text:
            check(self.process.poll() is None, f"the run ended before it came to '{text}':\n{self.text[-3000:]}")
            check(time.monotonic() < end, f"the run did not come to '{text}' within {timeout:.0f} s")
            time.sleep(0.05)

    def kill(self) -> None:
        """As `kill -9` on the controller, its workers with it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.reader.join(5)

    def end(self, timeout: float = 400) -> None:
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Wrong(f"the run did not end within {timeout:.0f} s:\n{self.text[-3000:]}") from None
        self.reader.join(5)
        self.seconds = time.monotonic() - self.began

    def failed(self, *says: str) -> None:
        """The run has to have failed, with these words."""
        check(self.code == 2, f"the run ended with {self.code}, expected a failed host:\n{self.text[-3000:]}")
        for words in says:
            check(words in self.told, f"the run does not say '{words}':\n{self.text[-4000:]}")
