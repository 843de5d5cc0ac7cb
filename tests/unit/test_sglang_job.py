"""Long programs on the node, with real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils import sglang_job

PROGRAM = """
import json, sys, time
print(json.dumps({"progress": "asked " + sys.stdin.read()}), flush=True)
print("no JSON, from a library", flush=True)
time.sleep(float(sys.argv[1]))
print(json.dumps({"result": {"ok": True}}))
sys.exit(int(sys.argv[2]))
"""


def begin(folder: Path, *words: str, argv: list[str] | None = None, wanted: str = "this") -> str:
    argv = argv or [sys.executable, "-c", PROGRAM, *words]
    sglang_job.begin(str(folder), wanted, argv, "a question", dict(os.environ), "/", {})
    return str(folder)


def test_its_words_its_result_and_its_status(tmp_path: Path) -> None:
    folder = begin(tmp_path / "job", "0", "3")
    job = sglang_job.wait(folder, 20)
    assert (job["running"], job["rc"], job["wanted"]) == (False, 3, "this")
    assert (job["progress"], job["result"], job["errors"]) == ("asked a question", {"ok": True}, "")


def test_a_program_that_cannot_be_run(tmp_path: Path) -> None:
    job = sglang_job.wait(begin(tmp_path / "job", argv=["/no/such/program"]), 20)
    assert job["rc"] == 127
    assert job["errors"] == "/no/such/program cannot be run: No such file or directory"


def test_what_runs_is_found_and_stopped_with_all_it_started(tmp_path: Path) -> None:
    folder = begin(tmp_path / "job", argv=["sh", "-c", "sleep 300 & sleep 300"])
    job = sglang_job.wait(folder, 0)
    assert job["running"] and job["rc"] is None
    session = int(Path(folder, "job.json").read_text().split('"pid": ')[1].split(",")[0])
    until = time.monotonic() + 10
    while len(sglang_job.members(session)) < 4 and time.monotonic() < until:
        time.sleep(0.05)
    assert len(sglang_job.members(session)) == 4, "the keeper, the shell and two that sleep"
    assert sglang_job.stop(folder)
    assert not sglang_job.members(session)
    assert not sglang_job.look(folder)["running"]
    assert not sglang_job.stop(folder), "there is none any more"


def test_it_outlives_the_run_that_began_it(tmp_path: Path) -> None:
    root = Path(sglang_job.__file__).parent
    code = (
        f"import sys; sys.path.insert(0, {str(root)!r}); import sglang_job; "
        f"sglang_job.begin({str(tmp_path / 'job')!r}, 'this', ['sh', '-c', 'sleep 4; echo done >&2'], '', {{}}, '/', {{}})"
    )
    began = time.monotonic()
    # Output by pipes, as over SSH: the run ends for its caller only when nobody holds them any more.
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=os.environ)
    assert sglang_job.look(str(tmp_path / "job"))["running"], f"{time.monotonic() - began} s"
    assert sglang_job.wait(str(tmp_path / "job"), 20)["errors"] == "done\n"


@pytest.mark.parametrize("text", ["", "{", '{"pid": 1}'])
def test_no_job_or_a_file_that_was_cut(tmp_path: Path, text: str) -> None:
    if text:
        (tmp_path / "job.json").write_text(text)
    assert sglang_job.look(str(tmp_path)) == {}
    assert not sglang_job.stop(str(tmp_path))


def test_a_number_that_went_to_another_process_is_not_the_job(tmp_path: Path) -> None:
    folder = begin(tmp_path / "job", "0", "0")
    sglang_job.wait(folder, 20)
    (tmp_path / "job/rc").unlink()
    (tmp_path / "job/job.json").write_text(f'{{"wanted": "this", "pid": {os.getpid()}, "ticks": 1, "began": 0}}')
    job = sglang_job.look(folder)
    assert (job["running"], job["rc"]) == (False, None)
    assert not sglang_job.stop(folder)


def test_the_controller_says_what_changes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang_job, "PACE", 0.0)
    steps: list[dict[str, Any]] = [
        {"unfinished": True, "progress": "one"},
        {"unfinished": True, "progress": "one"},
        {"unfinished": True, "progress": "two"},
        {"changed": True, "progress": "two"},
    ]
    asked: list[dict[str, Any]] = []
    said: list[str] = []

    def execute(args: dict[str, Any]) -> dict[str, Any]:
        asked.append(args)
        return steps.pop(0)

    assert sglang_job.follow(execute, said.append, {"name": "x"}) == {"changed": True}
    assert said == ["one", "two"]
    assert [args["attached"] for args in asked] == [False, True, True, True]
    assert asked[0]["name"] == "x" and asked[0]["slice"] == sglang_job.SLICE
