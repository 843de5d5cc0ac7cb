"""Kernels that one node built, on the others: the cache on the controller, and the module on two nodes of stand-ins."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flashinfer_kernels as module
import pytest
from ansible.errors import AnsibleError
from ansible.module_utils import flashinfer_builder as builder
from ansible.module_utils import flashinfer_cache, sglang_job, sglang_transfer
from helpers import run_module
from test_flashinfer_kernels import Node

from action_plugins import flashinfer_kernels as action

KEY, OTHER = "a" * 64, "b" * 64


def written(path: Path, text: bytes) -> None:
    path.write_bytes(text)


class Task:
    """The action plugin's task on one node. Files go by copy, as they do by SSH."""

    def __init__(self, node: Node, host: str, cache: Path) -> None:
        self.node, self.host, self.cache = node, host, flashinfer_cache.Cache(cache)
        self.said: list[str] = []
        self.calls: list[str] = []
        self.spoil: Callable[[Path], None] = lambda path: None

    def run(self, *kernels: Any, check: bool = False, environment: dict[str, str] | None = None) -> dict[str, Any]:
        self.said, self.calls = [], []
        args = {
            "python": str(self.node.python),
            "kernels": list(kernels) or ["norm"],
            "environment": {**self.node.environment, **(environment or {})},
            "architectures": ["12.0a"],
            "user": "root" if os.geteuid() == 0 else "",
            "jobs": 2,
            "work": str(self.node.work),
            "cache": str(self.cache.folder),
        }

        def execute(given: dict[str, Any]) -> dict[str, Any]:
            self.calls.append(given.get("stage", ""))
            return run_module(module, self.node.capsys, check=check, **given)

        def send(files: list[tuple[Path, str]], take: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
            sent = self.node.folder / "sent"
            sent.mkdir()
            try:
                for path, name in files:
                    shutil.copy(path, sent / name)
                    self.spoil(sent / name)
                return take(str(sent))
            finally:
                shutil.rmtree(sent)

        def fetch(source: str, target: Path) -> None:
            shutil.copy(source, target)

        shipping = flashinfer_cache.Shipping(self.cache, self.host, args, execute, self.said.append, send, fetch)
        return shipping.run(check)

    def compiles_nothing(self) -> None:
        (self.node.python.parent / "ninja").write_text("#!/bin/sh\necho called >&2; exit 9\n")


@pytest.fixture
def tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> tuple[Task, Task]:
    monkeypatch.setattr(sglang_job, "PACE", 0.05)
    one, other = (Task(Node(tmp_path / name, capsys), name, tmp_path / "cache") for name in ("one", "other"))
    return one, other


def states(done: dict[str, Any]) -> dict[str, str]:
    return {name: kernel["state"] for name, kernel in done["kernels"].items()}


def test_built_on_one_node_and_taken_by_another(tasks: tuple[Task, Task]) -> None:
    one, other = tasks
    first = one.run("norm", "fused_moe_120")
    assert (first["changed"], first["status"], first["refused"]) == (True, "built", {})
    assert first["message"].startswith("0 kernels from the controller's cache, 2 compiled in ")
    entries = sorted(path.name for path in one.cache.folder.iterdir())
    assert [name.split("-")[0] for name in entries] == ["fused_moe_120", "norm"]

    other.compiles_nothing()
    done = other.run("norm", "fused_moe_120")
    assert (done["changed"], done["status"], done.get("msg")) == (True, "received", None)
    assert states(done) == {"norm": "received", "fused_moe_120": "received"}
    assert done["message"] == (
        "2 kernels from the controller's cache, 0 compiled; FlashInfer finds them without compiling."
    )
    assert other.said[-1] == "2 kernels from the controller's cache, 0 compiled"
    assert other.calls == ["look", "take"], "one question and one transfer"
    norm = done["kernels"]["norm"]
    assert norm == {
        **first["kernels"]["norm"],
        "state": "received",
        "path": str(other.node.library()),
        "origin": "one",
        "why": "",
    }
    assert other.node.library().read_bytes() == one.node.library().read_bytes()
    assert not other.node.work.exists()

    again = other.run("norm", "fused_moe_120")
    assert (again["changed"], again["status"], again["asked"], other.calls) == (False, "present", False, ["look"])
    assert again["kernels"]["norm"]["origin"] == "one"


def test_the_record_says_where_and_on_what_it_was_built(tasks: tuple[Task, Task]) -> None:
    one, _other = tasks
    done = one.run()
    (path,) = one.cache.folder.glob("norm-*/record.json")
    record = json.loads(path.read_text())
    norm = done["kernels"]["norm"]
    assert record == {
        "schema": 1, "name": "norm", "host": "one", "at": record["at"], "flashinfer": "0.9.9", "nvcc": "13.0.88",
        "architectures": ["12.0a"], "machine": done["machine"],
        **{key: norm[key] for key in ("made_of", "sha256", "bytes", "objects", "seconds")},
    }  # fmt: skip
    assert set(record["machine"]) == {"glibc", "c++", "python", "torch", "driver", "card"}
    assert record["machine"]["python"].count(".") == 2 and record["machine"]["glibc"]
    assert (path.parent / f"{norm['sha256']}.so").read_bytes() == one.node.library().read_bytes()


def test_what_the_cache_lacks_is_compiled_and_the_rest_is_left(tasks: tuple[Task, Task]) -> None:
    one, other = tasks
    one.run("norm")
    done = other.run("norm", "decode_64")
    assert states(done) == {"norm": "received", "decode_64": "built"}
    assert done["message"].startswith("1 kernel from the controller's cache, 1 compiled in ")
    assert done["kernels"]["norm"]["origin"] == "one" and done["kernels"]["decode_64"]["origin"] == ""
    assert len(list(one.cache.folder.glob("decode_64-*/*.so"))) == 1, "and is there for the next one"
    assert other.run("norm", "decode_64")["asked"] is False


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("nvcc", "nvcc 13.0.88 there and 13.2.1 here"),
        ("header", "other sources, headers or flags"),
        ("source", "other sources, headers or flags"),
    ],
)
def test_what_is_made_of_something_else_is_compiled(tasks: tuple[Task, Task], what: str, words: str) -> None:
    one, other = tasks
    one.run()
    environment = {"TEST_NVCC": "13.2.1"} if what == "nvcc" else {}
    if what != "nvcc":
        path = other.node.site / "flashinfer/data" / {"header": "include/norm.h", "source": "csrc/norm.cu"}[what]
        path.parent.mkdir(exist_ok=True)
        path.write_text("another")
    done = other.run(environment=environment)
    assert (states(done), done["refused"]) == ({"norm": "built"}, {})
    assert any("what the cache has of one does not fit" in line and words in line for line in other.said), other.said
    assert len(list(one.cache.folder.glob("norm-*"))) == 2, "both are kept"


def test_a_library_that_is_damaged_on_the_controller_is_not_sent(tasks: tuple[Task, Task]) -> None:
    one, other = tasks
    one.run()
    (library,) = one.cache.folder.glob("norm-*/*.so")
    whole = library.read_bytes()
    library.write_bytes(whole[:-1] + b"X")
    assert other.run(check=True)["message"].startswith("Would build"), "and a check changes nothing"
    assert library.exists()
    done = other.run()
    assert states(done) == {"norm": "built"}
    assert "The cache's norm is not used" in done["warnings"][0]
    assert "is not what was put there" in done["refused"]["norm"] and other.calls.count("take") == 0
    (library,) = one.cache.folder.glob("norm-*/*.so")
    assert library.read_bytes() == whole, "healed"


def test_a_library_that_arrives_damaged_is_not_used(tasks: tuple[Task, Task]) -> None:
    one, other = tasks
    one.run()
    other.spoil = lambda path: written(path, path.read_bytes() + b"X")
    done = other.run()
    assert states(done) == {"norm": "built"}
    assert done["refused"] == {"norm": "its SHA-256 is not that of its record"}
    assert "What one built is not used: its SHA-256 is not that of its record. It is compiled." in done["warnings"]
    assert not other.node.work.exists()


def test_one_that_arrives_damaged_does_not_hold_up_the_others(
    tasks: tuple[Task, Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = tasks
    one.run("norm", "decode_64", "fused_moe_120")
    monkeypatch.setattr(sglang_transfer.batches, "__defaults__", (1,))
    spoilt: list[Path] = []

    def first(path: Path) -> None:
        spoilt.append(path)
        if len(spoilt) == 1:
            written(path, b"X")

    other.spoil = first
    done = other.run("norm", "decode_64", "fused_moe_120")
    assert sorted(states(done).values()) == ["built", "received", "received"]
    assert list(done["refused"].values()) == ["its SHA-256 is not that of its record"]
    assert done["message"].startswith("2 kernels from the controller's cache, 1 compiled in ")


def test_a_record_that_was_edited_is_not_believed(tasks: tuple[Task, Task]) -> None:
    one, other = tasks
    one.run("norm", "decode_64")
    (norm,), (decode,) = one.cache.folder.glob("norm-*"), one.cache.folder.glob("decode_64-*")
    # Another library under a name and a key that the node asks for, with its right SHA-256.
    record, wrong = (json.loads((path / "record.json").read_text()) for path in (norm, decode))
    (norm / f"{wrong['sha256']}.so").write_bytes((decode / f"{wrong['sha256']}.so").read_bytes())
    (norm / "record.json").write_text(json.dumps({**record, "made_of": wrong["made_of"]}))
    assert states(other.run()) == {"norm": "built"}
    (norm / "record.json").write_text("[]")
    assert one.cache.find("norm", record["made_of"]) == ({}, "")


def test_what_the_node_would_not_make_is_refused_there_too(
    tasks: tuple[Task, Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = tasks
    one.run()
    (path,) = one.cache.folder.glob("norm-*/record.json")
    record = json.loads(path.read_text())
    monkeypatch.setattr(other.cache, "find", lambda name, made_of: ({**record, "made_of": OTHER}, ""))
    monkeypatch.setattr(other.cache, "library", lambda _record: path.with_name(f"{record['sha256']}.so"))
    done = other.run()
    assert done["refused"] == {"norm": "it is not made of what this node would make it of"}
    assert states(done) == {"norm": "built"}


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"TEST_LOADS": "version `GLIBC_2.38' not found", "TEST_DRIVER": "1"}, "GLIBC_2.38"),
        ({"TEST_DIES": "1"}, "ended without a result"),
    ],
)
def test_what_does_not_prove_itself_is_compiled(
    tasks: tuple[Task, Task], environment: dict[str, str], words: str
) -> None:
    one, other = tasks
    one.run()
    # Of the first library that it is given, which is the one that was sent.
    loader = other.node.site / "tvm_ffi.py"
    loader.write_text(
        "import os, pathlib\n\n\ndef load_module(path):\n    tried = pathlib.Path(os.environ['CUDA_HOME'], 'tried')\n"
        "    if not tried.exists():\n        tried.write_text('')\n        if 'TEST_DIES' in os.environ:\n"
        "            os._exit(9)\n        raise OSError(os.environ['TEST_LOADS'])\n    return open(path).read()\n"
    )
    done = other.run(environment={"TEST_DRIVER": "1", **environment})
    assert (states(done), done.get("msg")) == ({"norm": "built"}, None)
    assert words in done["refused"]["norm"] and done["kernels"]["norm"]["loads"]
    (path,) = one.cache.folder.glob("norm-*/record.json")
    assert json.loads(path.read_text())["host"] == "other", "the cache's was replaced"


def test_a_transfer_that_was_cut_off_is_gone_on_with(tasks: tuple[Task, Task], monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = tasks
    one.run("norm", "decode_64")
    monkeypatch.setattr(sglang_transfer.batches, "__defaults__", (1,))
    sent: list[str] = []

    def cut(path: Path) -> None:
        sent.append(path.name)
        if len(sent) == 2:
            raise AnsibleError("the link is gone")

    other.spoil = cut
    with pytest.raises(AnsibleError):
        other.run("norm", "decode_64")
    (kept,) = (other.node.work / "received").iterdir()
    assert kept.name == sent[0] and not other.node.library().exists()
    other.compiles_nothing()
    done = other.run("norm", "decode_64")
    assert states(done) == {"norm": "received", "decode_64": "received"}
    assert sent[2:] == [sent[1]], "the first was not sent again"
    assert not other.node.work.exists()


def test_check_mode_says_what_would_be_taken(tasks: tuple[Task, Task]) -> None:
    one, other = tasks
    one.run()
    before = sorted([*other.node.folder.rglob("*"), *one.cache.folder.rglob("*")])
    would = other.run("norm", "decode_64", check=True)
    assert (would["changed"], would["status"]) == (True, "missing")
    assert would["message"] == "Would take norm from the controller's cache, and build decode_64."
    assert sorted([*other.node.folder.rglob("*"), *one.cache.folder.rglob("*")]) == before


def test_what_a_node_had_before_is_kept_as_well(tasks: tuple[Task, Task]) -> None:
    one, _other = tasks
    one.run()
    shutil.rmtree(one.cache.folder)
    assert one.run()["changed"] is False
    assert len(list(one.cache.folder.glob("norm-*/*.so"))) == 1


def test_a_cache_that_cannot_be_written_costs_a_warning(tasks: tuple[Task, Task], tmp_path: Path) -> None:
    one, _other = tasks
    (tmp_path / "cache").write_text("a file")
    done = one.run()
    assert (done["changed"], states(done)) == (True, {"norm": "built"})
    assert any("cannot be written" in text for text in done["warnings"])
    assert any("so the next node compiles it" in text for text in done["warnings"])


def test_a_build_that_goes_on_is_followed(tasks: tuple[Task, Task]) -> None:
    one, _other = tasks
    slow = {"TEST_SLEEP": "1"}
    assert one.node.run(slice=0.0, environment=slow, cache=str(one.cache.folder))["unfinished"]
    done = one.run(environment=slow)
    assert states(done) == {"norm": "built"} and one.calls[0] == "look" and "take" not in one.calls


def test_a_failure_to_look_is_the_builds_own(tasks: tuple[Task, Task]) -> None:
    one, _other = tasks
    failed = one.run("fused_moe_sm120")
    assert failed["failed"] and failed["cause"] == "unknown" and one.calls == ["look"]


# --- several nodes at once


def record(name: str = "norm", made_of: str = KEY, text: bytes = b"library") -> dict[str, Any]:
    return {
        "name": name, "made_of": made_of, "sha256": builder.hashlib.sha256(text).hexdigest(), "bytes": len(text), "host": "one",
        "at": "2026-11-30T00:00:00+00:00",
    }  # fmt: skip


def waiting(cache: flashinfer_cache.Cache) -> tuple[flashinfer_cache.Shipping, list[str]]:
    said: list[str] = []
    nothing: Any = None
    return flashinfer_cache.Shipping(cache, "other", {}, nothing, said.append, nothing, nothing), said


def test_one_builds_and_the_others_wait_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang_job, "PACE", 0.02)
    cache = flashinfer_cache.Cache(tmp_path)
    first = contextlib.ExitStack()
    assert cache.claim({"norm": KEY}, "one", first) == {}
    shipping, said = waiting(cache)

    def built() -> None:
        cache.put(record(), lambda path: written(path, b"library"))
        first.close()

    timer = threading.Timer(0.3, built)
    timer.start()
    with contextlib.ExitStack() as held:
        assert list(shipping.offers({"norm": KEY}, held)) == ["norm"]
    timer.join()
    assert said == ["waits for one, which builds norm"]


def test_after_a_build_that_failed_nobody_waits_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang_job, "PACE", 0.02)
    cache = flashinfer_cache.Cache(tmp_path)
    first, second = contextlib.ExitStack(), contextlib.ExitStack()
    assert cache.claim({"norm": KEY}, "one", first) == {}
    shipping, _said = waiting(cache)

    def failed() -> None:
        first.close()
        while cache.claim({"norm": KEY}, "third", second):
            pass

    timer = threading.Timer(0.3, failed)
    timer.start()
    with contextlib.ExitStack() as held:
        assert shipping.offers({"norm": KEY}, held) == {}, "it builds beside the third"
    timer.join()
    second.close()


def test_rights_to_build_are_had_all_or_none(tmp_path: Path) -> None:
    cache = flashinfer_cache.Cache(tmp_path)
    with contextlib.ExitStack() as one, contextlib.ExitStack() as other, contextlib.ExitStack() as third:
        assert cache.claim({"norm": KEY}, "one", one) == {}
        assert list(cache.claim({"decode": KEY, "norm": KEY}, "other", other)) == ["norm"]
        assert cache.claim({"decode": KEY}, "third", third) == {}, "not held by the one that waits"
        assert cache.claim({"norm": OTHER}, "other", other) == {}, "another key is another kernel"


def test_the_right_to_build_ends_with_the_process(tmp_path: Path) -> None:
    code = (
        "import contextlib, pathlib, sys\nimport action_plugins.flashinfer_kernels\n"
        "from ansible.module_utils.flashinfer_cache import Cache\n"
        f"held = contextlib.ExitStack()\nCache(pathlib.Path({str(tmp_path)!r})).claim({{'norm': {KEY!r}}}, 'one', held)\n"
        "print('held', flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=Path(action.__file__).resolve().parents[1],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout and process.stdout.readline() == "held\n"
        with contextlib.ExitStack() as held:
            (words,) = flashinfer_cache.Cache(tmp_path).claim({"norm": KEY}, "other", held).values()
            assert words.startswith("one ")
            process.kill()
            process.wait()
            assert flashinfer_cache.Cache(tmp_path).claim({"norm": KEY}, "other", held) == {}


# --- by Ansible itself


PLAY = """
- hosts: all
  gather_facts: false
  serial: AT_ONCE
  tasks:
    - name: Build kernels
      flashinfer_kernels:
        python: "{{ folder }}/venv/bin/python"
        kernels: [norm, decode_64]
        environment: "{{ node_environment }}"
        architectures: [12.0a]
        user: root
        jobs: 2
        work: "{{ folder }}/work"
        cache: "{{ cache }}"
      register: done
    - name: Keep what came of it
      ansible.builtin.copy:
        content: "{{ done | to_json }}"
        dest: "{{ folder }}/done.json"
        mode: "0644"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="root compiles as itself here")
@pytest.mark.parametrize("at_once", [1, 3])
def test_one_of_three_hosts_builds(tmp_path: Path, capsys: pytest.CaptureFixture[str], at_once: int) -> None:
    nodes = {name: Node(tmp_path / name, capsys) for name in ("one", "two", "three")}
    hosts = {
        name: {"folder": str(node.folder), "node_environment": {**node.environment, "TEST_SLEEP": "2"}}
        for name, node in nodes.items()
    }
    shared = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    inventory = {"all": {"hosts": hosts, "vars": {**shared, "cache": str(tmp_path / "cache")}}}
    (tmp_path / "hosts.yml").write_text(json.dumps(inventory))
    (tmp_path / "play.yml").write_text(PLAY.replace("AT_ONCE", str(at_once)))
    root = Path(action.__file__).resolve().parents[1]

    def played() -> tuple[str, list[str]]:
        done = subprocess.run(
            [
                str(Path(sys.executable).parent / "ansible-playbook"),
                "-i",
                tmp_path / "hosts.yml",
                tmp_path / "play.yml",
            ],
            env={**os.environ, "ANSIBLE_CONFIG": str(root / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout, [json.loads((node.folder / "done.json").read_text())["status"] for node in nodes.values()]

    said, statuses = played()
    assert sorted(statuses) == ["built", "received", "received"], said
    assert said.count(": 0 kernels from the controller's cache, 2 compiled in ") == 1
    assert said.count(": 2 kernels from the controller's cache, 0 compiled\n") == 2
    if at_once > 1:
        assert said.count(", which builds ") == 2, said
    assert len({node.library().read_bytes() for node in nodes.values()}) == 1
    if at_once == 1:
        assert played()[1] == ["present"] * 3


# --- the folder


def test_a_fetch_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    cache = flashinfer_cache.Cache(tmp_path)
    cache.put(record(), lambda path: written(path, b"library"))
    with pytest.raises(OSError, match="arrived damaged"):
        cache.put(record(text=b"another"), lambda path: written(path, b"cut"))
    assert cache.find("norm", KEY) == ({"schema": 1, **record()}, "")
    cache.put(record(text=b"another"), lambda path: written(path, b"another"))
    assert cache.find("norm", KEY)[0]["bytes"] == 7
    assert sorted(path.suffix for path in cache.entry("norm", KEY).iterdir()) == [".json", ".so"], "one library is kept"


@pytest.mark.parametrize(
    ("name", "made_of"), [("../x", KEY), ("a/b", KEY), (".", KEY), ("norm", "../" + KEY), ("norm", "A" * 64)]
)
def test_a_node_does_not_name_places(tmp_path: Path, name: str, made_of: str) -> None:
    with pytest.raises(OSError, match="The node names a kernel"):
        flashinfer_cache.Cache(tmp_path).entry(name, made_of)


def test_without_a_cache_nothing_is_asked_twice(tasks: tuple[Task, Task], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    made = action.ActionModule.__new__(action.ActionModule)
    monkeypatch.setattr(action.ActionBase, "run", lambda self, tmp=None, task_vars=None: {})
    made._task = type("Task", (), {"args": {"cache": ""}, "no_log": False, "action": "flashinfer_kernels"})()

    def execute(module_name: str, module_args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        calls.append(module_args)
        return {"changed": False}

    made._execute_module = execute
    assert made.run(task_vars={"inventory_hostname": "one"}) == {"changed": False}
    assert len(calls) == 1 and calls[0].get("stage") is None
