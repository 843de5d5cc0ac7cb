"""The doctor's module on a node's texts, and its action: reports, and what a bundle holds."""

from __future__ import annotations

import gzip
import http.server
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import sglang_doctor as module
from ansible.errors import AnsibleActionFail
from ansible.module_utils import sglang_rules
from helpers import run_module, serving

from action_plugins import sglang_doctor as action

ROOT = Path(__file__).resolve().parents[2]
JOURNAL = Path(__file__).parent / "data/sglang_log/journal-two-failures-0.5.23.log"
SIGNATURE = {"id": "nms", "find": ["torchvision::nms does not exist"]}


def test_a_log_on_the_node_is_read_with_the_record_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "sglang/deployments"
    folder.mkdir(parents=True)
    facts = {"profile": "glm52", "release": "/opt/sglang/releases/x", "sglang": "0.5.23", "url": ""}
    (folder / "000001.json").write_text("torn")
    (folder / "000002.json").write_text(
        json.dumps({"at": "2026-11-29T00:00:00Z", "facts": facts, "unit": "[Service]\n"})
    )
    told = run_module(
        module,
        capsys,
        log=str(JOURNAL),
        signatures=[SIGNATURE],
        record=str(tmp_path / "sglang"),
        text_mib=1,
    )
    assert told["changed"] is False
    assert told["record"] == {"at": "2026-11-29T00:00:00Z", **facts}
    assert told["log"]["hits"][0]["id"] == "nms" and told["log"]["starts"] > 1
    assert told["text"].endswith(JOURNAL.read_text()[-200:])
    assert set(told["live"]) == {"gpus", "metrics"}


def test_a_log_that_is_not_there_names_its_variable(capsys: pytest.CaptureFixture[str]) -> None:
    told = run_module(module, capsys, log="/nowhere/x.log")
    assert told["failed"] and "/nowhere/x.log" in told["msg"] and "sglang_doctor_node_log" in told["msg"]


class Engine(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.wfile.write(
            b"HTTP/1.0 200 OK\r\n\r\nsglang:num_running_reqs 3.0\n" if self.path == "/metrics" else b"no HTTP\n"
        )

    def log_message(self, *_args: Any) -> None:
        pass


def test_an_engine_is_asked_past_any_proxy_and_may_answer_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with serving(Engine) as url:
        assert module.asked(url) == {"running": 3.0}
        assert module.asked(f"{url}/other") == {}
    assert module.asked(url) == {}


def test_when_the_server_last_ended() -> None:
    entry = {"__REALTIME_TIMESTAMP": "1796000000250000", "MESSAGE": "sglang.service: Main process exited"}
    assert module.last_end(json.dumps(entry) + "\n") == 1796000000.25
    assert module.last_end("") is None and module.last_end("torn {") is None


def test_rows_of_nvidia_smi_that_are_no_numbers() -> None:
    assert module.rows("100, 131.20, 600.00\n[N/A], [N/A], 600.00\nNo devices were found\n") == [
        (100, 131.2, 600.0),
        (0, 0.0, 600.0),
    ]


def test_one_start_is_read_by_systemds_id() -> None:
    assert module.journal("x.service", "")[-1] == "--unit=x.service"
    assert module.journal("x.service", "abc")[-3:] == ["_SYSTEMD_INVOCATION_ID=abc", "+", "INVOCATION_ID=abc"]


HEAD = "2026-11-29T17:52:14+0000 gpu-node-7 python3[174]: "
SAID = "".join(
    f"{HEAD}{line}\n"
    for line in (
        "server_args=ServerArgs(model_path='/home/alice/m', api_key='sk-very-secret-1', tokenizer='x', max_total_tokens=5)",
        "Receive: obj=GenerateReqInput(text='my medical history', sampling_params={})",
        '{"prompt": "another \\"private\\" thing", "max_tokens": 5}',
        "Authorization: Bearer abcdef0123456789 from 10.20.30.40 and fe80:0:0:1:2:3:4:5",
        "GPU-12345678-1234-1234-1234-123456789abc at aa:bb:cc:dd:ee:ff, hf_ABCDEFGHIJKLMNOP",
        "listening on 127.0.0.1:30000, torch 2.11.0.1, token usage: 0.50, #new-token: 128",
    )
)


def test_a_bundle_has_no_secrets_prompts_names_and_addresses_and_keeps_the_rest() -> None:
    text, removed = action.scrubbed(SAID, ["gpu-node-7", "10.20.30.40"])
    for private in (
        "sk-very-secret-1",
        "medical",
        "private",
        "abcdef0123456789",
        "10.20.30.40",
        "fe80",
        "gpu-node-7",
        "alice",
    ):
        assert private not in text, private
    for private in ("12345678-1234", "aa:bb:cc", "hf_ABC"):
        assert private not in text, private
    assert "127.0.0.1:30000" in text and "max_total_tokens=5" in text
    assert "token usage: 0.50" in text and "#new-token: 128" in text
    assert all(removed[kind] > 0 for kind in ("secrets", "prompts", "host names", "addresses", "hardware ids", "users"))
    assert "(host) python3[174]" in text


def test_a_bundle_is_read_again_as_a_log(tmp_path: Path) -> None:
    packed = tmp_path / "b.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(JOURNAL, "sglang-doctor/server.log")
    stream, name = action.opened(str(packed))
    assert stream.read() == JOURNAL.read_bytes() and name == "b.tar.gz:server.log"
    stream, name = action.opened(str(JOURNAL))
    with stream:
        assert name == JOURNAL.name
    squeezed = tmp_path / "x.log.gz"
    squeezed.write_bytes(gzip.compress(b"line\n"))
    stream, _ = action.opened(str(squeezed))
    with stream:
        assert stream.read() == b"line\n"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(JOURNAL, "other.txt")
    with pytest.raises(AnsibleActionFail, match=r"without a server.log"):
        action.opened(str(packed))
    with pytest.raises(AnsibleActionFail, match=r"/nowhere.log cannot be read: No such file.*sglang_doctor_log"):
        action.opened("/nowhere.log")


def doctor(*words: str) -> subprocess.CompletedProcess[str]:
    program = [str(Path(sys.executable).parent / "ansible-playbook"), "doctor.yml", "-i", "/dev/null"]
    return subprocess.run([*program, *words], cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_playbook_needs_no_inventory_and_writes_a_bundle(tmp_path: Path) -> None:
    bundle = tmp_path / "report.tar.gz"
    done = doctor("-e", f"sglang_doctor_log={JOURNAL}", "-e", f"sglang_doctor_bundle={bundle}")
    assert done.returncode == 0, done.stdout + done.stderr
    page = done.stdout[done.stdout.index("DOCTOR for") :]
    assert "lines," in page and "start(s)" in page
    with tarfile.open(bundle) as archive:
        names = {Path(name).name for name in archive.getnames()}
        assert names == {"report.txt", "findings.json", "server.log", "REMOVED.txt"}


def test_a_log_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = doctor("-e", "sglang_doctor_log=/nowhere/x.log")
    assert done.returncode != 0 and "/nowhere/x.log cannot be read" in done.stdout + done.stderr


def finding(**more: Any) -> dict[str, Any]:
    return {
        **{"id": "x", "kind": "cause", "severity": "error", "cause": "It broke.", "remedy": "Mend it.", "line": "boom"},
        **{"number": 7, "count": 3, "rank": "TP3", "stage": "loading weights", "source": "log", "earlier": 0},
        **{"foreseen": True, "confidence": "code", "sources": ["somewhere, 2026-11-29"], "match": {}},
        **more,
    }


def test_a_finding_reads_well() -> None:
    lines = action.finding_lines(1, finding(), "sglang.service")
    text = "\n".join(lines)
    assert "1. CAUSE (error): It broke." in text
    assert "sglang.service, line 7, 3 times, rank TP3, while loading weights:" in text
    assert "Remedy: Mend it." in text and "plan.yml" in text and "[x] code; somewhere, 2026-11-29" in text
    assert max(map(len, lines)) <= 80


def test_the_summary_is_of_the_last_start_and_of_no_slowness() -> None:
    told = {"findings": [finding(earlier=1, id="old"), finding(kind="slow", id="slow"), finding(id="now")]}
    assert "[now]" in action.summary(told)
    assert action.summary({"findings": [finding(kind="benign")]}) == ""


@pytest.mark.parametrize(
    ("watts", "metrics", "ids"),
    [
        ([131.0] * 8, {}, ["live-gpus-spin"]),
        ([330.0] * 8, {}, ["live-gpus-starved"]),
        ([520.0] * 8, {}, []),
        ([520.0] * 8, {"queued": 40.0, "running": 64.0}, ["live-queue-bound"]),
        ([520.0] * 8, {"queued": 0.0, "running": 64.0}, []),
        ([520.0] * 8, {"token_usage": 0.99}, ["live-kv-bound"]),
        ([], {}, []),
    ],
)
def test_a_server_at_work_is_judged_by_what_it_does(
    watts: list[float], metrics: dict[str, float], ids: list[str]
) -> None:
    live = {
        "gpus": [{"utilization": 100.0, "power_w": power, "limit_w": 600.0} for power in watts],
        "metrics": metrics,
    }
    told = {"live": live, "log": {"arguments": {"max_running_requests": 64}}}
    found = action.live_findings(told, sglang_rules.load(str(ROOT / "rules")))
    assert [one["id"] for one in found] == ids
    assert all(one["kind"] == "slow" for one in found)
