"""What a node's look tells, from recorded texts and made-up releases; the page, for none to forty hosts in all sorts of states."""

from __future__ import annotations

import base64
import copy
import hashlib
import http.server
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import sglang_status as module
from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.module_utils import sglang_http, sglang_node
from helpers import run_module, serving

from action_plugins import sglang_status as action

ROOT = Path(__file__).resolve().parents[2]
AT = "2026-11-29T22:10:00Z"

TEMPLATE = """\
# Written by sglang-rtxpro for the deployment @DEPLOYMENT@. Changes made here are undone by the next deploy.
[Service]
Type=exec
Environment="SGLANG_DEPLOYMENT=@DEPLOYMENT@"
Environment="OMP_NUM_THREADS=8"
ExecStart=/opt/r/venv/bin/python -m sglang.launch_server \\
  --model-path /m/Kimi \\
  --mem-fraction-static 0.9
Restart=always
"""
DIGEST = hashlib.sha256(TEMPLATE.encode()).hexdigest()[:12]
UNIT = TEMPLATE.replace("@DEPLOYMENT@", DIGEST)
ENABLED = {"LoadState": "loaded", "UnitFileState": "enabled", "NeedDaemonReload": "no", "DropInPaths": ""}
PATH = "/etc/systemd/system/sglang.service"


def now() -> str:
    """A moment since this machine has booted: a commit from before is told as one."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def entry(number: str = "000004", unit: str = UNIT, digest: str = DIGEST, **more: Any) -> dict[str, Any]:
    return {"id": number, "unit": unit, "digest": digest, "at": AT, "facts": {}, **more}


def texts(drift: list[dict[str, Any]]) -> str:
    return "\n".join(found["text"] for found in drift)


# --- unit and process


def unit_drift(text: str = UNIT, **state: str) -> list[dict[str, Any]]:
    older = entry("000003", UNIT.replace("0.9", "0.8"), "abc")
    return module.unit_drift(PATH, text, False, {**ENABLED, **state}, entry(), [entry(), older])


def test_a_unit_as_committed_has_no_drift() -> None:
    assert unit_drift() == []
    assert unit_drift(DropInPaths="/usr/lib/systemd/system/service.d/10-all.conf") == []
    assert module.unit_drift(PATH, UNIT, False, {}, entry(), []) == []  # without systemd


OTHER = TEMPLATE.replace("0.9", "0.5")
OTHER = OTHER.replace("@DEPLOYMENT@", hashlib.sha256(OTHER.encode()).hexdigest()[:12])


@pytest.mark.parametrize(
    ("text", "state", "words"),
    [
        (UNIT.replace("0.9", "0.7").replace("=8", "=SECRET"), {}, "by hand: Environment OMP_NUM_THREADS, ExecStart --mem"),
        (UNIT.replace("Restart=always", "Restart=always\nMemoryMax=9G"), {}, "changed by hand: MemoryMax."),
        (UNIT + "# mine\n", {}, "only comments or the order of lines"),
        (UNIT.replace("0.9", "0.8"), {}, "is that of deployment 000003."),
        (OTHER, {}, "is that of a deployment which is not on record"),
        ("[Service]\nExecStart=/bin/sh -c 'x\n", {}, "replaced by one that this project did not write"),
        ("", {}, f"{PATH} is gone"),
        (UNIT, {"UnitFileState": "disabled"}, "does not start at boot: it is disabled"),
        (UNIT, {"DropInPaths": "/etc/x/sglang.service.d/5.conf /x/service.d/a.conf"}, ": /etc/x/sglang.service.d/5.conf."),
        (UNIT, {"NeedDaemonReload": "yes"}, "has not read the unit's files"),
        ("", {"LoadState": "masked", "UnitFileState": "masked"}, "is masked"),
    ],
)  # fmt: skip
def test_a_unit_that_was_touched_is_told_in_one_sentence(text: str, state: dict[str, str], words: str) -> None:
    found = unit_drift(text, **state)
    assert len(found) == 1, texts(found)
    assert words in found[0]["text"] and "SECRET" not in json.dumps(found)
    assert found[0]["remedy"] and not found[0]["hint"]


def test_what_a_changed_unit_is_told_by_are_names_alone() -> None:
    after = UNIT.replace("--model-path /m/Kimi", "--model-path /m/Kimi --api-key=HUSH").replace(
        "-m sglang", "-X sglang"
    )
    assert module.unit_changes(UNIT, after) == ["ExecStart", "ExecStart --api-key"]
    assert module.unit_changes(UNIT, 'ExecStart=/bin/x "y\nEnvironment=A=HUSH')[-1] == "Environment A"


@pytest.mark.parametrize(
    ("digest", "words"),
    [
        (DIGEST, ""),
        (None, ""),
        ("abc", "deployment 000003; committed is 000004"),
        ("fff", "fff, which is not on record"),
        ("", "no deployment of this project"),
    ],
)
def test_a_process_that_is_another_deployment(digest: str | None, words: str) -> None:
    found = module.process_drift(digest, entry(), [entry(), entry("000003", digest="abc")], [], 30000)
    assert words in texts(found) and bool(found) == bool(words)


def test_a_port_that_somebody_else_holds() -> None:
    found = module.process_drift(DIGEST, entry(), [], ["process 7 (python3) of docker.service"], 30000)
    assert texts(found) == "Port 30000 is held by process 7 (python3) of docker.service, which the unit did not start."


def test_strangers_are_processes_of_no_unit_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from ansible.module_utils.sglang_ports import Process

    held = [
        Process(1, "python3", "0::/system.slice/sglang.service\n", ()),
        Process(2, "python3", "0::/user.slice/user-0.slice/session-1.scope\n", ()),
        Process(3, "nginx", "0::/system.slice/nginx.service\n", ()),
    ]
    monkeypatch.setattr(module, "listeners", lambda port: held)
    login = "process 2 (python3) of session-1.scope"
    assert module.strangers(1, {"sglang.service"}) == [login, "process 3 (nginx) of nginx.service"]
    assert module.strangers(1, {"sglang.service", "nginx.service"}) == [login]


def test_systemctl_show_of_three_units() -> None:
    text = "Id=a.service\nActiveState=active\nExecStart=x=y\n\nId=b.service\nActiveState=inactive\n\nId=c.timer\n"
    found = module.shown(text, ["a.service", "b.service", "c.timer"])
    assert found["a.service"]["ExecStart"] == "x=y" and found["b.service"]["ActiveState"] == "inactive"
    assert module.shown("Id=b.service\n", ["a.service", "b.service"]) == {"b.service": {"Id": "b.service"}}
    assert module.shown("Failed to connect to bus", ["a.service"]) == {}


@pytest.mark.parametrize(
    ("words", "found", "address"),
    [
        ("python -m sglang.launch_server --model-path /m/Kimi/ --port 31000 --api-key HUSH",
         {"model": "Kimi", "port": "31000"}, "http://127.0.0.1:31000"),
        ("python x --model=org/M --served-model-name=m --host :: --port=x", {"model": "m", "host": "::"}, "http://[::1]:30000"),
        ("sleep inf", {}, "http://127.0.0.1:30000"),
        ("x --host 10.0.0.1", {"host": "10.0.0.1"}, "http://10.0.0.1:30000"),
    ],
)  # fmt: skip
def test_the_command_of_a_server_that_is_not_ours(words: str, found: dict[str, str], address: str) -> None:
    assert module.options_of(words.split()) == found
    assert module.address_of(found) == address


def test_a_record_with_a_strange_address_is_no_error() -> None:
    assert module.port_of("http://127.0.0.1:31000") == 31000
    assert module.port_of("http://[::1") == module.port_of("http://x:99999") == module.port_of("") == 30000


@pytest.mark.parametrize(
    ("state", "arguments"),
    [
        ("serves", ("active", "running", True, 9.0, 180, True, False)),
        ("serves", ("reloading", "reload", True, 9.0, 180, True, True)),
        ("starting", ("active", "running", False, 9.0, 180, True, False)),
        ("silent", ("active", "running", False, 181.0, 180, True, False)),
        ("restarting", ("activating", "auto-restart", False, None, 180, True, False)),
        ("starting", ("activating", "start", False, None, 180, True, False)),
        ("stopping", ("deactivating", "stop-sigterm", False, None, 180, True, False)),
        ("failed", ("failed", "failed", False, None, 180, True, False)),
        ("by hand", ("failed", "failed", True, None, 180, True, True)),
        ("by hand", ("", "", False, None, 180, False, True)),
        ("stopped", ("inactive", "dead", False, None, 180, True, False)),
        ("nothing", ("inactive", "dead", False, None, 180, False, False)),
        ("nothing", ("", "", False, None, 180, False, False)),
        ("serves", ("", "", True, None, 180, True, False)),
    ],
)
def test_the_state_is_one_word(state: str, arguments: tuple[Any, ...]) -> None:
    assert module.state_of(*arguments) == state


# --- the release

LOCK = """\
sglang==0.5.9 \\
    --hash=sha256:1
flashinfer-python[x]==0.6.3 \\
    --hash=sha256:2
torch @ file:///w/torch-2.9.1%2Bcpu-cp311-cp311-linux_x86_64.whl --hash=sha256:3
"""


def package(site: Path, name: str, version: str, files: dict[str, str]) -> None:
    rows = []
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f'"{path}",sha256={digest},{len(text)}')
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir()
    (folder / "RECORD").write_text("\n".join([*rows, f"{folder.name}/RECORD,,", ""]))


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A sealed release with one watched file."""
    path = tmp_path / "sglang-0.5.9-1a2b"
    site = path / "venv/lib/python3.11/site-packages"
    site.mkdir(parents=True)
    (path / "venv/bin").mkdir()
    (path / "venv/bin/python").write_text("")
    (path / "requirements.txt").write_text(LOCK)
    package(site, "sglang", "0.5.9", {"sglang/a.py": "a", "sglang/runner.py": "upstream", "sglang/b.json": "{}"})
    package(site, "flashinfer_python", "0.6.3", {"flashinfer/x, y.py": "x"})
    package(site, "torch", "2.9.1+cpu", {"torch/a.py": "t"})
    runner = site / "sglang/runner.py"
    runner.write_text("patched")
    watched = {str(runner): hashlib.sha256(b"patched").hexdigest()}
    (path / "release.json").write_text(json.dumps({"watched": watched}))
    return path


def facts_of(release: Path, **more: Any) -> dict[str, Any]:
    return {"release": str(release), "python": str(release / "venv/bin/python"), "sglang": "0.5.9", **more}


def test_a_sealed_release_has_no_drift(release: Path) -> None:
    assert module.release_drift(facts_of(release)) == []
    assert module.release_drift({}) == []


def test_what_was_done_to_a_release_is_told(release: Path) -> None:
    site = release / "venv/lib/python3.11/site-packages"
    (site / "sglang/a.py").write_text("b")  # as long as before
    (site / "sglang/b.json").write_text("{ }")  # no source
    (site / "flashinfer/x, y.py").unlink()
    (site / "torch/a.py").write_text("another")  # a package that nobody edits
    (site / "torch-2.9.1+cpu.dist-info").rename(site / "torch-2.9.1.dist-info")
    (site / "foo_bar-1.0.dist-info").mkdir()
    (site / "sglang/runner.py").write_text("patched again")
    later = os.path.getmtime(release / "release.json") + 60
    os.utime(site / "flashinfer_python-0.6.3.dist-info", (later, later))
    assert texts(module.release_drift(facts_of(release))).splitlines() == [
        "Patched files changed since they were sealed: sglang/runner.py.",
        "Packages are not as locked: torch is 2.9.1 (locked: 2.9.1+cpu), foo-bar 1.0 is in no lock, flashinfer-python was "
        "installed again.",
        "Sources were edited by hand: sglang/a.py, flashinfer/x, y.py (gone).",
    ]


def test_a_release_that_is_not_whole(release: Path) -> None:
    (release / "incomplete").touch()
    assert "is not sealed: it has the mark `incomplete`" in texts(module.release_drift(facts_of(release)))
    (release / "release.json").write_text('{"watched": {')
    (release / "requirements.txt").unlink()
    site = release / "venv/lib/python3.11/site-packages"
    (site / "sglang-0.5.9.dist-info/RECORD").unlink()
    told = texts(module.release_drift(facts_of(release)))
    assert "release.json is gone or cannot be read" in told and "requirements.txt is gone or pins nothing" in told
    assert "Sources were edited by hand: sglang-0.5.9.dist-info/RECORD, sglang/runner.py" not in told
    assert "sglang-0.5.9.dist-info/RECORD" in told
    (release / "venv/bin/python").unlink()
    assert "The release's environment" in texts(module.release_drift(facts_of(release)))
    assert "is gone" in texts(module.release_drift({"release": str(release / "not"), "python": "/x"}))


def test_patches_are_compared_where_a_release_has_no_record(release: Path) -> None:
    """sglang_env_python: an environment of somebody's own."""
    own = release / "venv"
    runner = own / "lib/python3.11/site-packages/sglang/runner.py"
    patch = {"name": "gate", "path": str(runner), "sha256": hashlib.sha256(b"patched").hexdigest()}
    facts = {"release": str(own), "python": str(own / "bin/python"), "sglang": "0.5.9", "patches": [patch]}
    assert module.release_drift(facts) == []
    runner.write_text("upstream")
    assert "Patched files changed" in texts(module.release_drift(facts))
    assert "sglang is 0.5.9, committed with 0.5.8" in texts(module.release_drift({**facts, "sglang": "0.5.8"}))


def test_pins_of_a_lock() -> None:
    assert module.pinned(LOCK) == {"sglang": "0.5.9", "flashinfer-python": "0.6.3", "torch": "2.9.1+cpu"}


def test_a_release_that_is_being_rebuilt_is_no_error() -> None:
    def vanishes(_facts: object) -> list[dict[str, Any]]:
        raise FileNotFoundError(2, "No such file or directory", "/opt/x")

    found = module.read_through("release", vanishes, {})
    assert texts(found) == "Not everything could be read: /opt/x: No such file or directory." and found[0]["hint"]


# --- model and node


def test_a_model_that_changed_is_a_hint_and_one_that_is_gone_is_not(tmp_path: Path) -> None:
    at = 1_000_000_000.0
    for name in ("config.json", "model.safetensors.index.json", "model-1.safetensors"):
        (tmp_path / name).write_text("{}")
        os.utime(tmp_path / name, (at - 9, at - 9))
    (tmp_path / "folder").mkdir()
    assert module.model_drift(str(tmp_path), at) == []
    assert module.model_drift("org/model", at) == module.model_drift("", at) == []
    os.utime(tmp_path / "config.json", (at + 9, at + 9))
    found = module.model_drift(str(tmp_path), at)
    assert texts(found) == "Files of the model changed since the commit: config.json." and found[0]["hint"]
    assert module.model_drift(str(tmp_path), None) == []
    (tmp_path / "config.json").unlink()
    assert "has no config.json" in texts(module.model_drift(str(tmp_path), at))
    assert not module.model_drift(str(tmp_path / "not"), at)[0]["hint"]


SERVER_EDITION = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
NODE = {"driver": "580.95.05", "gpus": [SERVER_EDITION] * 8, "kernel": "6.1.0-39-amd64"}


def test_a_node_is_compared_by_what_the_record_has() -> None:
    assert module.node_drift(NODE, NODE, "", 5.0, 9.0) == []
    assert module.node_drift({}, {"driver": "", "gpus": [], "kernel": "x"}, "note", 5.0, None) == []
    now = {"driver": "590.1", "gpus": [SERVER_EDITION] * 7, "kernel": "6.2"}
    found = module.node_drift(NODE, now, "GPU is lost", 10.0, 9.0)
    assert [one["hint"] for one in found] == [False, False, False, True]
    assert f"8 x {SERVER_EDITION}; now 7 x {SERVER_EDITION}." in found[0]["text"]
    assert "NVIDIA's driver is 590.1, committed with 580.95.05." in texts(found)
    gone = module.node_drift(
        NODE, {**NODE, "driver": "", "gpus": []}, "nvidia-smi did not answer within 20 s", 5.0, 9.0
    )
    assert texts(gone).endswith("now none (nvidia-smi did not answer within 20 s).")


CSV = f"""\
Unable to determine the device handle for GPU1: 0000:81:00.0: GPU is lost.  Reboot the system to recover this GPU
{SERVER_EDITION}, 580.95.05, 37, 210.50, 600.00
{SERVER_EDITION}, 580.95.05, [N/A], [N/A], 600.00
"""


def test_the_load_of_cards_that_do_not_tell_everything() -> None:
    found = module.cards(CSV)
    assert [card["name"] for card in found] == [SERVER_EDITION] * 2
    told = module.load_of(found, "x")
    assert told == {"count": 2, "utilization": 37.0, "power_w": 210.5, "limit_w": 600.0, "note": "x"}
    assert module.load_of([], "")["utilization"] is None
    assert module.driver_version(found) == "580.95.05"


def test_what_nvidia_smi_says_beside_its_cards_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "which", lambda name: name)
    monkeypatch.setattr(module, "ask", lambda argv, timeout: (15, CSV))
    found, note = module.look_at_gpus()
    assert len(found) == 2 and note.startswith("Unable to determine") and "580" not in note
    monkeypatch.setattr(module, "ask", lambda argv, timeout: (-1, "nvidia-smi did not answer within 20 s"))
    assert module.look_at_gpus() == ([], "nvidia-smi did not answer within 20 s")


def test_a_command_that_hangs_is_given_up() -> None:
    assert module.ask(["sleep", "60"], 0.1) == (-1, "sleep did not answer within 0 s")
    assert module.ask(["/nowhere/x"], 1)[0] == -1


# --- what it answers


class Engine(http.server.BaseHTTPRequestHandler):
    ANSWERS = {"/health": "", "/v1/models": '{"data": [{"id": "Kimi"}]}', "/metrics": "sglang:num_running_reqs 3.0\n"}

    def do_GET(self) -> None:
        self.send_response(200 if self.path in self.ANSWERS else 404)
        self.end_headers()
        self.wfile.write(self.ANSWERS.get(self.path, "").encode())

    def log_message(self, *_args: Any) -> None:
        pass


class Sick(Engine):
    ANSWERS = {"/v1/models": "torn"}


def test_a_server_is_asked_past_any_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with serving(Engine) as url:
        assert module.look_at_answers(url) == {"url": url, "ok": True, "said": "", "models": ["Kimi"]}
        assert module.look_at_engine(url) == {"running": 3.0}
    with serving(Sick) as url:
        assert module.look_at_answers(url)["said"] == "/health says 404"
        assert module.look_at_engine(url) == {}
    assert module.look_at_answers(url)["said"] in ("Connection refused", "Connection reset by peer")
    assert module.look_at_answers("")["ok"] is False and sglang_http.ask("nonsense", 1).status == 0


def test_a_model_that_answers_under_another_name() -> None:
    assert module.model_answers(["Kimi"], "Kimi") == module.model_answers([], "Kimi") == []
    assert texts(module.model_answers(["Other"], "Kimi")) == "It answers as Other, expected Kimi."


def test_deeds_are_lines_of_text_in_the_journal() -> None:
    lines = [
        {"__REALTIME_TIMESTAMP": "1796000000000000", "MESSAGE": "put the unit back"},
        {"__REALTIME_TIMESTAMP": "1796000001000000", "MESSAGE": [1, 2]},
        {"MESSAGE": "no time"},
    ]
    text = "\n".join(map(json.dumps, lines)) + "\nno JSON\n"
    assert module.deeds(text)[0] == {"at": "2026-11-30T00:53:20Z", "text": "put the unit back"}
    assert len(module.deeds(text)) == 2


# --- the whole look


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node without systemd, cards and listeners, whose folders lie below tmp_path."""
    monkeypatch.setattr(sglang_node, "UNITS", str(tmp_path / "units"))
    monkeypatch.setattr(sglang_node, "RUN", str(tmp_path / "run"))
    monkeypatch.setattr(module, "units_of", lambda name: {})
    monkeypatch.setattr(module, "listeners", lambda port: [])
    monkeypatch.setattr(module, "look_at_gpus", lambda: ([], "nvidia-smi is not installed"))
    (tmp_path / "units").mkdir()
    return tmp_path


def put(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))


def test_a_node_where_nothing_was_deployed(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = run_module(module, capsys, check=True, root=str(node / "state"))
    assert told["state"] == "nothing" and told["changed"] is False and told["drift"] == []
    assert told["deployment"] == told["lock"] == told["proof"] == {}
    assert told["record"] == {
        **{"phase": "absent", "at": "", "reason": "", "under_way": False, "interrupted": False, "damaged": []}
    }
    assert not (node / "state").exists()


def test_a_committed_deployment_without_its_secrets(
    node: Path, release: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(Engine) as url:
        facts = facts_of(release, url=url, model="Kimi", profile="kimi", argv=["HUSH"], environment={"A": "HUSH"})
        proof = {
            "smoke": {"passed": True, "summary": "8 of 8"},
            "tuning": {"verdict": "tuned"},
            "times": {"ready_s": 9},
        }
        by = {"user": "ann", "host": "ctl", "pid": 7, "commit": "5474862"}
        put(
            node / "state/sglang/deployments/000004.json",
            entry(facts=facts, proof={**proof, "stages": []}, by=by, at=now()),
        )
        put(node / "state/sglang/state.json", {"phase": "committed", "deployment": "000004", "at": now()})
        put(node / "units/sglang.service", UNIT)
        told = run_module(module, capsys, root=str(node / "state"))
    assert told["drift"] == [] and told["state"] == "serves" and told["engine"] == {}
    assert told["proof"] == proof and told["deployment"]["by"] == {"user": "ann", "host": "ctl", "commit": "5474862"}
    assert told["deployment"]["age_s"] >= 0 and told["answers"]["ok"] and told["unit"]["ours"]
    assert "HUSH" not in json.dumps(told)


def test_a_record_that_was_cut_in_many_places(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(node / "state/sglang/deployments/000003.json", {"unit": UNIT, "facts": "torn", "by": [], "proof": 1})
    put(node / "state/sglang/deployments/000004.json", '{"unit": "')
    put(node / "state/sglang/state.json", "")
    put(node / "state/sglang/lock.json", "{")
    told = run_module(module, capsys, root=str(node / "state"))
    folder = node / "state/sglang"
    assert told["record"]["damaged"] == [
        str(folder / name) for name in ("state.json", "lock.json", "deployments/000004.json")
    ]
    assert told["state"] == "stopped" and told["deployment"]["age_s"] is None and told["proof"] == {}
    assert "sglang.service is gone" in texts(told["drift"])


def test_a_run_that_was_interrupted_is_not_called_an_edit(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(node / "state/sglang/deployments/000004.json", entry(at=now()))
    state = {"phase": "switched", "before": "000004", "at": AT, "boot": sglang_node.boot(mark=True), "deadline": 0}
    put(node / "state/sglang/state.json", state)
    put(node / "units/sglang.service", OTHER)
    told = run_module(module, capsys, root=str(node / "state"))
    assert told["record"]["interrupted"] and not told["record"]["under_way"] and told["drift"] == []
    put(node / "state/sglang/state.json", {**state, "deadline": sglang_node.uptime() + 900})
    told = run_module(module, capsys, root=str(node / "state"))
    assert told["record"]["under_way"] and not told["record"]["interrupted"]


def test_a_lock_says_who_and_since_when_it_is_silent(node: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = {
        "run": "x",
        "by": {"user": "bob", "host": "laptop"},
        "at": AT,
        "boot": sglang_node.boot(mark=True),
        "seen": 0,
    }
    put(node / "state/sglang/lock.json", held)
    lock = run_module(module, capsys, root=str(node / "state"))["lock"]
    assert lock["by"]["user"] == "bob" and lock["silent_s"] > 0 and lock["forsaken"] == ""
    put(node / "state/sglang/lock.json", {**held, "boot": "another"})
    lock = run_module(module, capsys, root=str(node / "state"))["lock"]
    assert lock["silent_s"] is None and lock["forsaken"] == "the node has booted since"


def test_a_masked_unit_and_a_front_that_points_elsewhere(
    node: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put(node / "state/sglang/deployments/000004.json", entry(facts={"url": "http://127.0.0.1:1"}))
    put(node / "state/sglang/upstream.conf", "server 127.0.0.1:2;\n")
    put(node / "state/sglang/closed", "")
    (node / "units/sglang.service").symlink_to(os.devnull)
    loaded = {
        "LoadState": "loaded",
        "ActiveState": "active",
        "NRestarts": "2",
        "ActiveEnterTimestampMonotonic": "1000000",
    }
    names = ("sglang.service", "sglang-front.service", "sglang-supervise.timer")
    monkeypatch.setattr(module, "units_of", lambda name: dict.fromkeys(names, loaded))
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    told = run_module(module, capsys, root=str(node / "state"))
    assert "is masked" in texts(told["drift"])
    assert "passes requests to `server 127.0.0.1:2;`, expected `server 127.0.0.1:1;`" in texts(told["drift"])
    assert told["front"] == {"there": True, "active": True, "gate_closed": True}
    assert told["supervisor"] == {"there": True, "active": True, "deeds": []}
    assert told["unit"]["restarts"] == 2 and told["unit"]["uptime_s"] > 0 and told["unit"]["since"].endswith("Z")


def test_a_neighbours_port_is_not_taken_for_a_server_by_hand(
    node: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ansible.module_utils.sglang_ports import Process

    put(node / "state/sglang/deployments/000004.json", entry())
    held = [Process(1, "python3", "0::/system.slice/sglang.service\n", ())]
    monkeypatch.setattr(module, "listeners", lambda port: held)
    assert run_module(module, capsys, name="second", root=str(node / "state"))["state"] == "nothing"
    held[0] = Process(1, "python3", "0::/user.slice\n", ())
    assert run_module(module, capsys, name="second", root=str(node / "state"))["state"] == "by hand"


# --- the page

DEPLOYED = {
    **{
        "id": "000004",
        "digest": DIGEST,
        "at": AT,
        "age_s": 90000,
        "by": {"user": "ann", "host": "ctl", "commit": "547"},
    },
    **{
        "profile": "kimi_k2_thinking",
        "model": "Kimi-K2-Thinking",
        "model_path": "/m",
        "sglang": "0.5.9",
        "url": "http://x",
    },
    "release": "/opt/sglang/releases/sglang-0.5.9-cu128-1a2b3c4d5e6f",
}
LOOK: dict[str, Any] = {
    "name": "sglang",
    "state": "serves",
    "deployment": DEPLOYED,
    "proof": {"smoke": {"passed": True, "summary": "8 of 8"}, "tuning": {"verdict": "tuned"}},
    "record": {"phase": "committed", "at": AT, "reason": "", "under_way": False, "interrupted": False, "damaged": []},
    "lock": {},
    "unit": {
        **{"there": True, "ours": True, "active": "active", "sub": "running", "result": "success", "file": "enabled"},
        **{
            "pid": 7,
            "digest": DIGEST,
            "invocation_id": "x",
            "restarts": 0,
            "since": AT,
            "uptime_s": 300000,
            "model": "",
        },
    },
    "answers": {"url": "http://127.0.0.1:30000", "ok": True, "said": "", "models": ["Kimi-K2-Thinking"]},
    "front": {"there": False, "active": False, "gate_closed": False},
    "supervisor": {"there": True, "active": True, "deeds": []},
    "node": {**NODE, "booted": AT},
    "gpus": {"count": 8, "utilization": 97.3, "power_w": 4123.4, "limit_w": 4800.0, "note": ""},
    "engine": {"running": 256.0, "queued": 1792.0, "token_usage": 0.873},
    "drift": [],
}
EDITED = module.drifted("unit", "The unit's file was changed by hand: MemoryMax.", module.DEPLOY)
BOOTED = module.drifted("node", "The node has booted since the commit.", "", hint=True)


def look(**more: Any) -> dict[str, Any]:
    """A serving host's look with some of it changed; dictionaries are laid over."""
    found = copy.deepcopy(LOOK)
    for key, value in more.items():
        found[key] = {**found[key], **value} if isinstance(value, dict) and value else value
    return found


def rendered(looks: dict[str, Any]) -> str:
    lines = action.page(looks, "2026-11-30T00:10Z")
    assert max(map(len, lines)) <= 80, max(lines, key=len)
    assert not any(line.endswith(" ") or "\n" in line for line in lines)
    return "\n".join(lines)


def said(**more: Any) -> str:
    """What the page says of one host below its table, on one line."""
    page = rendered({"gpu-01": look(**more)})
    return " ".join(page[page.index("\ngpu-01\n") :].split()) if "\ngpu-01\n" in page else ""


def test_a_page_without_hosts() -> None:
    assert rendered({}) == "STATUS, 2026-11-30T00:10Z: there are no hosts."


def test_a_page_of_one_host_with_nothing_to_say() -> None:
    assert (
        rendered({"gpu-01": look()})
        == """\
STATUS of 1 host, 2026-11-30T00:10Z: 1 serves.

HOST    STATE   MODEL             ID  SINCE  UP  RST  PROOF   DRIFT
gpu-01  serves  Kimi-K2-Thinking   4    25h  3d    0  passed      -

DEPLOYED
  kimi_k2_thinking, SGLang 0.5.9, sglang-0.5.9-cu128-1a2b3c4d5e6f, from 547, by
    ann@ctl, tuning: tuned: gpu-01 2026-11-29T22:10:00Z

LOAD
HOST    GPUS  BUSY         WATTS  RUNNING  QUEUED    KV
gpu-01     8  97 %  4123 of 4800      256    1792  87 %

Everything is as it was committed."""
    )


def test_a_page_of_three_hosts_in_trouble() -> None:
    unreachable = {
        "unreachable": True,
        "msg": "Task failed: Failed to connect to the host via ssh: ssh: No route to host",
    }
    page = rendered(
        {"gpu-01": look(drift=[EDITED, BOOTED]), "gpu-02": unreachable, "gpu-03": {"error": "sudo: " + "x " * 90}}
    )
    assert page.startswith(
        "STATUS of 3 hosts, 2026-11-30T00:10Z: 1 serves, 1 unreachable, 1 not looked at,\n  1 with drift."
    )
    assert "\ngpu-02  unreachable: No route to host\n" in page
    assert "\ngpu-02\n  UNREACHABLE: Failed to connect to the host via ssh: ssh: No route to host.\n" in page
    assert "\ngpu-03  not looked at: sudo: x x" in page
    assert (
        "\ngpu-01\n  DRIFT: The unit's file was changed by hand: MemoryMax.\n    Remedy: deploy.yml puts it right.\n"
        in page
    )
    assert page.count("DRIFT:") == 1 and "  HINT: The node has booted since the commit." in page
    assert "Everything is as it was committed" not in page


FOREIGN = look(deployment=None, proof={}, unit={"ours": False, "model": "llama"}, drift=[])
FOREIGN["deployment"] = FOREIGN["proof"] = {}


def test_a_server_of_somebody_else_and_a_bare_node() -> None:
    bare = copy.deepcopy(FOREIGN)
    bare.update(state="nothing", engine={}, gpus={**LOOK["gpus"], "count": 0, "note": action.NO_SMI})
    bare["unit"]["there"] = False
    page = rendered({"a": FOREIGN, "b": bare})
    assert "a     serves  llama   -      -  3d    0  -          -" in page
    assert "b     nothing deployed" in page and "1 with nothing deployed" in page
    assert "NOTE: sglang.service was not deployed by this project." in page
    assert "DEPLOYED" not in page and "\nb\n" not in page
    byhand = {**bare, "state": "by hand"}
    assert "NOTE: A server that no unit of this name started" in rendered({"c": byhand})
    lost = copy.deepcopy(FOREIGN)
    lost["unit"]["ours"] = True
    assert "is of this project, and no record says what it is" in rendered({"d": lost})


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, ""),
        ({"state": "failed", "unit": {"result": "oom-kill"}}, "SERVER: It has failed (oom-kill)."),
        ({"state": "failed", "unit": {"result": "signal", "restarts": 5}}, "(signal); systemd restarted it 5 times before."),
        ({"unit": {"restarts": 1}}, "SERVER: systemd restarted it once. Remedy: doctor.yml says why."),
        ({"state": "stopped"}, "SERVER: It does not run. Remedy: deploy.yml starts it."),
        ({"state": "silent", "answers": {"said": "timed out"}},
         "run for 3d and does not answer at http://127.0.0.1:30000: timed out."),
        ({"state": "restarting", "unit": {"restarts": 4}}, "systemd starts it again: 4 times so far."),
        ({"state": "by hand", "unit": {"active": "failed"}}, "SERVER: The unit itself is failed."),
        ({"lock": {"by": {"user": "bob", "host": "lap", "pid": 7}, "at": AT, "silent_s": 75, "forsaken": ""}},
         f"LOCK: bob@lap (pid 7) holds the lock since {AT}; its last sign of life was 1m ago."),
        ({"lock": {"by": {}, "at": "", "silent_s": None, "forsaken": "the node has booted since"}},
         "LOCK: somebody holds the lock since an unknown time, and no longer counts: the node has booted since. Remedy:"),
        ({"record": {"damaged": ["/x/state.json", "/x/lock.json"]}}, "RECORD: Cannot be read: /x/state.json, /x/lock.json."),
        ({"record": {"interrupted": True}}, f"RUN: A run switched at {AT} and never came to its end. Remedy: deploy.yml finishes"),
        ({"record": {"under_way": True}}, "is not through yet."),
        ({"record": {"phase": "restored", "reason": "It died\nwhile loading weights."}},
         f"RUN: Put back at {AT}: It died while loading weights. Remedy: Mend the cause, then deploy.yml."),
        ({"record": {"phase": "restored", "reason": "word " * 200}}, "word.. Remedy"),
        ({"record": {"phase": "restored"}}, "no reason was kept."),
        ({"proof": {"smoke": {"passed": False, "summary": "2 of 8"}}}, "PROOF: Its answers failed: 2 of 8."),
        ({"front": {"there": True}}, "FRONT: sglang-front.service does not run: nobody gets through. Remedy: deploy.yml"),
        ({"front": {"there": True, "active": True, "gate_closed": True}}, "closed and no run is at work"),
        ({"front": {"there": True, "active": True}}, ""),
        ({"supervisor": {"active": False}}, "SUPERVISOR: sglang-supervise.timer does not run."),
        ({"supervisor": {"there": False, "active": False}}, ""),
        ({"supervisor": {"deeds": [{"at": AT, "text": "restarted it: it hung"}]}}, f"SUPERVISOR: {AT} restarted it: it hung."),
        ({"gpus": {"note": "GPU is lost"}}, "GPU: nvidia-smi: GPU is lost. Remedy: doctor.yml"),
        ({"gpus": {"count": 0, "note": action.NO_SMI}}, ""),
        ({"gpus": {"note": "hangs"}, "drift": [module.drifted("node", "now none (hangs).", "x")]}, "DRIFT: now none (hangs)."),
    ],
)  # fmt: skip
def test_what_is_said_of_a_host(more: dict[str, Any], words: str) -> None:
    told = said(**more)
    assert words in told and bool(told) == bool(words), told


def test_a_gate_that_is_closed_by_a_run_is_no_alarm() -> None:
    lock = {"by": {"user": "bob"}, "at": AT, "silent_s": 3, "forsaken": ""}
    front = {"there": True, "active": True, "gate_closed": True}
    assert "closed while a run is at work" in said(lock=lock, front=front)
    assert "no run is at work" in said(lock={**lock, "forsaken": "the node has booted since"}, front=front)


def test_a_remedy_that_several_share_is_said_once() -> None:
    other = module.drifted("unit", "The unit does not start at boot: it is disabled.", module.DEPLOY)
    assert said(drift=[EDITED, other]).count("Remedy:") == 1


def fleet() -> dict[str, Any]:
    looks: dict[str, Any] = {}
    for number in range(40):
        host = f"gpu-node-{number:02d}.rack-{number % 4}.dc-frankfurt.example.com"
        looks[host] = look(drift=[BOOTED] if number % 2 else [])
    names = list(looks)
    looks[names[3]] = {
        "unreachable": True,
        "msg": "Task failed: ssh: connect to host 10.0.0.3 port 22: Connection timed out",
    }
    looks[names[8]] = look(
        state="failed", drift=[EDITED], unit={"result": "start-limit-hit", "uptime_s": None, "restarts": 512}
    )
    looks[names[9]] = look(
        drift=[EDITED] * 12, deployment={"id": "001234", "model": "A-Model-With-A-Very-Long-Name-NVFP4-v2"}
    )
    looks[names[17]] = look(name="second")
    return looks


def test_forty_hosts_keep_a_line_each_and_share_what_is_said_of_them() -> None:
    page = rendered(fleet())
    table = page[: page.index("\nDEPLOYED")].splitlines()
    rows = table[table.index(next(line for line in table if line.startswith("HOST"))) + 1 :]
    assert len({row.split()[0] for row in rows if row}) == 40 and "\ngpu-node-07.rack-3 " in page
    assert " ".join(page.split()).startswith(
        "STATUS of 40 hosts, 2026-11-30T00:10Z: 38 serve, 1 unreachable, 1 failed, 2 with drift. Names are without "
        ".dc-frankfurt.example.com. HOST"
    )
    # Those that only booted share one block, and those that are alike one line of who deployed them.
    assert page.count("HINT: The node has booted since the commit.") == 1
    assert page.count("ann@ctl") == 1 and ": all, 2026-11-29T22:10:00Z to 2026-11-29T22:" in " ".join(page.split())
    assert len(page.splitlines()) < 130


@pytest.mark.parametrize("width", [6, 14, 30, 64])
def test_hosts_of_any_length_fit(width: int) -> None:
    looks = {f"{number:02d}{'h' * (width - 2)}": look(unit={"restarts": 10**number}) for number in range(4)}
    page = rendered(looks)
    assert all(name[:2] in page for name in looks)


def test_names_are_cut_where_they_are_alike() -> None:
    assert action.distinct(["gpu-node-07.rack"], 10) == ["gpu-..rack"]
    assert action.distinct(["1-gpu-node-of-us", "2-gpu-node-of-us"], 8) == ["1-g..-us", "2-g..-us"]
    assert action.distinct(["gpu1-node-of-us", "gpu2-node-of-us"], 8) == ["gpu1-n..", "gpu2-n.."]
    assert action.distinct(["node-of-1-us", "node-of-2-us"], 6) == ["..1-us", "..2-us"]
    assert action.distinct(["node-of-1-nodes", "node-of-2-nodes"], 6) == ["no..es", "no..es"]


def test_a_domain_is_left_out_where_all_long_names_share_it() -> None:
    assert (
        action.domain(["a.x.org", "b.x.org"])
        == action.domain(["a" * 30])
        == action.domain(["10.0.0.1", "10.1.0.1"])
        == ""
    )
    assert action.domain(["a.somewhere.example.com", "gpu-node.b.example.com.", "c"]) == ""
    assert action.domain(["a.somewhere.example.com", "gpu-node-07.b.example.com"]) == ".example.com"
    assert action.domain(["example.com", "gpu-node-07-somewhere.example.com"]) == ".com"


def test_spans_take_four_characters_at_most() -> None:
    spans = {None: "-", 0: "0s", 59: "59s", 60: "1m", 3599: "59m", 7200: "2h", 172800: "2d", 86400 * 999: "999d"}
    assert {seconds: action.age(seconds) for seconds in spans} == spans


# --- the action


def acted(
    monkeypatch: pytest.MonkeyPatch, args: dict[str, Any], answer: Any, task_vars: dict[str, Any]
) -> tuple[Any, list[str]]:
    shown: list[str] = []
    plugin = action.ActionModule.__new__(action.ActionModule)
    plugin._task = type("Task", (), {"args": args})()
    plugin._display = type("Display", (), {"display": staticmethod(shown.append)})()
    monkeypatch.setattr(action.ActionBase, "run", lambda self, tmp=None, task_vars=None: {})

    def execute(**_words: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    monkeypatch.setattr(plugin, "_execute_module", execute)
    return plugin.run(task_vars=task_vars), shown


def test_a_look_never_fails_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    result, _ = acted(
        monkeypatch, {"name": "second"}, {"failed": True, "msg": "no python", "module_stderr": "not found\n"}, {}
    )
    assert result == {"error": "no python not found", "name": "second", "changed": False}
    result, _ = acted(monkeypatch, {}, AnsibleError("Missing sudo password"), {})
    assert result["error"] == "Missing sudo password" and "failed" not in result
    result, _ = acted(monkeypatch, {}, LOOK, {})
    assert result == {**LOOK, "changed": False}
    with pytest.raises(AnsibleConnectionFailure):
        acted(monkeypatch, {}, AnsibleConnectionFailure("gone"), {})


def test_the_page_is_of_all_hosts_of_the_play(monkeypatch: pytest.MonkeyPatch) -> None:
    task_vars = {
        "ansible_play_hosts_all": ["a", "b"],
        "hostvars": {"a": {action.LOOK: look(drift=[EDITED])}, "b": {}, "c": {action.LOOK: LOOK}},
    }
    result, shown = acted(monkeypatch, {"page": "true"}, {}, task_vars)
    assert result["drifted"] == ["a"] and result["changed"] is False and shown == ["\n".join(result["page"])]
    assert "\nb     not looked at: no look was registered\n" in shown[0] and "\nc " not in shown[0]


def test_the_playbook_shows_hosts_that_do_not_answer(tmp_path: Path) -> None:
    """One host is this machine, as it is; the other's address is of those kept for documentation."""
    inventory = {
        "gpu_nodes": {
            "hosts": {
                "here": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable},
                "gone": {"ansible_host": "192.0.2.1", "ansible_ssh_common_args": "-o ConnectTimeout=1"},
            },
            "vars": {"ansible_become": False, "sglang_server_name": "sglang-of-no-node"},
        }
    }
    (tmp_path / "hosts.json").write_text(json.dumps(inventory))
    program = [str(Path(sys.executable).parent / "ansible-playbook"), "status.yml", "-i", str(tmp_path / "hosts.json")]
    done = subprocess.run([*program, "--check"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    page = done.stdout[done.stdout.index("STATUS of 2 hosts") :]
    assert "1 unreachable" in page and "UNREACHABLE: " in page
    assert "here/sglang-of-no-node" in page and "nothing deployed" in page


def test_nodes_of_a_replica_that_were_not_deployed_together() -> None:
    def rank(number: int, together: str) -> dict[str, Any]:
        replica = {"name": "replica_big", "hosts": ["n1", "n2"], "rank": number, "together": together}
        return look(deployment={"replica": replica})

    page = rendered({"n1": rank(0, "d1"), "n2": rank(1, "d1"), "n3": look()})
    assert "REPLICA" not in page and "rank 1 of replica_big" in " ".join(page.split())
    page = " ".join(rendered({"n1": rank(0, "d1"), "n2": rank(1, "d0")}).split())
    assert "REPLICA: n1 and n2 are of different deployments of it." in page
    assert "`deploy.yml -l replica_big` makes them one again." in page
