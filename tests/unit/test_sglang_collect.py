"""What a node tells node exporter of its servers and GPUs: pages from recorded outputs, and an nvidia-smi that hangs."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from ansible.module_utils import sglang_bencher, sglang_node

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "roles/sglang_monitoring/files/collect.py"
SMI = ROOT / "tests/unit/data/nvidia-smi"
LOGS = ROOT / "tests/unit/data/evidence"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sglang_collect", PROGRAM)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


collect = load()


def samples(text: str) -> dict[str, float]:
    """By name and labels, as they stand on a page."""
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    assert len({line[0] for line in lines}) == len(lines), "a series stands there twice"
    return {name: float(value) for name, _, value in lines}


def only(found: dict[str, float], name: str) -> dict[str, float]:
    return {series: value for series, value in found.items() if re.split(r"[{]", series)[0] == name}


# --- GPUs -------------------------------------------------------------------------------------------------------------


def test_all_that_eight_fields_of_two_recorded_cards_say() -> None:
    found = samples(collect.gpu_page((SMI / "2x-h200/q.txt").read_text()).text())
    own = '{gpu="0",uuid="GPU-00000000-0000-0000-0000-000000000000"}'
    assert found["sglang_gpu_count"] == 2
    assert found[f"sglang_gpu_power_watts{own}"] == 123.1
    assert found[f"sglang_gpu_power_limit_watts{own}"] == 700
    assert found[f"sglang_gpu_temperature_celsius{own}"] == 40
    assert found[f"sglang_gpu_memory_temperature_celsius{own}"] == 41
    assert found[f"sglang_gpu_utilization_ratio{own}"] == 0
    assert found[f"sglang_gpu_memory_used_bytes{own}"] == 1643 << 20
    assert found[f"sglang_gpu_memory_total_bytes{own}"] == 143771 << 20
    assert found[f"sglang_gpu_sm_clock_hertz{own}"] == 1980e6
    assert found[f"sglang_gpu_memory_clock_max_hertz{own}"] == 3201e6
    assert found[f"sglang_gpu_fault{own}"] == 0
    assert found[f"sglang_gpu_pcie_generation{own}"] == 5
    assert found[f"sglang_gpu_row_remap_pending{own}"] == 0
    reasons = only(found, "sglang_gpu_throttled")
    assert len(reasons) == 2 * len(collect.REASONS) and not any(reasons.values())
    errors = only(found, "sglang_gpu_ecc_errors_total")
    assert sorted(re.findall(r'type="(\w+)"', " ".join(errors))) == ["corrected"] * 2 + ["uncorrected"] * 2


def test_a_record_that_was_cut_says_what_it_holds() -> None:
    """The eight cards' publisher cut his output after the first card's link: what it lacks is left out, not zero."""
    found = samples(collect.gpu_page((SMI / "8x-server-edition/q.txt").read_text()).text())
    assert found["sglang_gpu_count"] == 1
    assert len(only(found, "sglang_gpu_pcie_lanes")) == 1
    assert not only(found, "sglang_gpu_power_watts") and not only(found, "sglang_gpu_temperature_celsius")


@pytest.mark.parametrize(
    ("line", "other", "series", "value"),
    [
        ("SW Thermal Slowdown +: Not Active", "SW Thermal Slowdown : Active", "sw_thermal_slowdown", 1),
        ("HW Thermal Slowdown +: Not Active", "HW Thermal Slowdown : Active", "hw_thermal_slowdown", 1),
        ("Clocks Event Reasons\n", "Clocks Throttle Reasons\n", "sw_power_cap", 0),
        ("DRAM Uncorrectable +: 0", "DRAM Uncorrectable : 3", 'type="uncorrected"', 3),
        ("GPU Current Temp +: 40 C", "GPU Current Temp : ERR!", "sglang_gpu_fault", 1),
        ("GPU Recovery Action +: None", "GPU Recovery Action : Reset", "sglang_gpu_fault", 1),
    ],
)
def test_one_field_of_the_recorded_card_that_is_otherwise(line: str, other: str, series: str, value: float) -> None:
    text, count = re.subn(line, other, (SMI / "2x-h200/q.txt").read_text(), count=1)
    assert count == 1
    found = samples(collect.gpu_page(text).text())
    assert [v for name, v in found.items() if series in name and 'gpu="0"' in name] == [value]


def test_reasons_have_the_names_that_measurements_give_them() -> None:
    assert {reason.lower().replace(" ", "_") for reason in collect.REASONS} == set(sglang_bencher.REASONS.values())


def test_errors_of_the_driver_are_counted_on() -> None:
    lines = [
        (10.0, "NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
        (11.0, "NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus."),
        (12.0, "NVRM: GPU at PCI:0000:41:00: GPU-0"),
        (13.0, "NVRM: Xid (PCI:0000:C1:00): 31, pid=571, name=python3, Ch 00000008"),
    ]
    assert collect.xids(lines, {"0000:41:00 79": [3, 1.0]}) == {"0000:41:00 79": [5, 11.0], "0000:c1:00 31": [1, 13.0]}


# --- commands that do not answer --------------------------------------------------------------------------------------


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of stand-ins before PATH; a journal without entries."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    for name, text in (("journalctl", "exit 0"), ("systemctl", "exit 0")):
        program(folder, name, text)
    return folder


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_an_nvidia_smi_that_hangs_is_neither_waited_for_nor_started_twice(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = tmp_path / "starts"
    program(programs, "nvidia-smi", f"echo $$ >> {starts}; exec sleep 60")
    # What hangs inside the driver outlives its kill: here the kill is kept from it.
    monkeypatch.setattr(collect.subprocess.Popen, "kill", lambda self: None)
    clock = time.monotonic()
    page, memory = collect.look_at_gpus({}, 0.3)
    assert time.monotonic() - clock < 20
    found = samples(page.text())
    assert (found["sglang_gpu_hung"], found["sglang_gpu_read_success"]) == (1, 0)
    assert "sglang_gpu_count" not in found
    pid = int(starts.read_text())
    try:
        page, memory = collect.look_at_gpus(json.loads(json.dumps(memory)), 0.3)
        assert samples(page.text())["sglang_gpu_hung"] == 1
        assert starts.read_text().split() == [str(pid)], "a second one was started beside it"
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    program(programs, "nvidia-smi", f"cat {SMI}/2x-h200/q.txt")
    found = samples(collect.look_at_gpus(memory, 10)[0].text())
    assert (found["sglang_gpu_hung"], found["sglang_gpu_read_success"], found["sglang_gpu_count"]) == (0, 1, 2)


@pytest.mark.parametrize(
    "text", ["echo 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.'; exit 9", ""]
)
def test_an_nvidia_smi_that_says_nothing_of_gpus(programs: Path, text: str) -> None:
    program(programs, "nvidia-smi", text)
    found = samples(collect.look_at_gpus({}, 10)[0].text())
    assert (found["sglang_gpu_hung"], found["sglang_gpu_read_success"]) == (0, 0)
    assert "sglang_gpu_count" not in found, "none would say that there are none"


def test_the_kernels_log_is_read_on_from_where_it_was_left(programs: Path) -> None:
    def entry(number: int, text: Any) -> str:
        return json.dumps({"__CURSOR": f"c{number}", "__REALTIME_TIMESTAMP": f"{number}000000", "MESSAGE": text})

    xid = "NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus."
    first = [entry(1, xid), entry(2, list(b"\xff bytes")), "{ cut"]
    (programs / "first").write_text("\n".join(first) + "\n")
    (programs / "then").write_text(entry(3, xid) + "\n")
    program(programs, "nvidia-smi", "exit 1")
    cases = f"*after-cursor=c2*) cat {programs}/then;; *after*) exit 1;; *) cat {programs}/first;;"
    program(programs, "journalctl", f'case "$*" in {cases} esac')
    page, memory = collect.look_at_gpus({}, 10)
    series = '{pci_bus_id="0000:41:00",xid="79"}'
    assert samples(page.text())[f"sglang_gpu_xid_errors_total{series}"] == 1
    page, memory = collect.look_at_gpus(memory, 10)
    assert samples(page.text())[f"sglang_gpu_xid_errors_total{series}"] == 2
    assert samples(page.text())[f"sglang_gpu_xid_last_timestamp_seconds{series}"] == 3
    # Behind c3 nothing can be read: that is said, and the next look begins at the beginning.
    page, memory = collect.look_at_gpus(memory, 10)
    assert samples(page.text())["sglang_kernel_log_read_success"] == 0
    page, _ = collect.look_at_gpus(memory, 10)
    assert samples(page.text())[f"sglang_gpu_xid_errors_total{series}"] == 1


# --- servers ----------------------------------------------------------------------------------------------------------


def record(root: Path, **facts: Any) -> sglang_node.Record:
    made = sglang_node.Record(str(root), "sglang")
    given = {
        "profile": "glm52",
        "model": 'a "model"',
        "sglang": "0.5.23",
        "release": "/opt/sglang/releases/sglang-0.5.23-cu130-1234",
        "model_path": str(root),
        "node": {"gpus": ["a card"] * 8},
        "tuning": {"mode": "cache", "accept": []},
        **facts,
    }
    proof = {"tuning": {"verdict": "tuned", "proved": True}}
    entry = made.add("digest", "[Unit]\n", given, 10, proof=proof, by={"commit": "83f9ff8"})
    made.write_state(phase="committed", digest="digest", deployment=entry["id"])
    return made


def test_a_server_on_record(tmp_path: Path) -> None:
    page = collect.Page()
    unit = {"ActiveState": "active", "NRestarts": "2", "ExecMainStartTimestampMonotonic": "1000000"}
    units = {"sglang.service": unit, "sglang-supervise.timer": {"ActiveState": "active"}}
    collect.server_page(page, record(tmp_path), units, {"verdict": "fallback", "fallbacks": 3, "at": 5.0})
    found = samples(page.text())
    info = only(found, "sglang_server_info")
    assert list(info.values()) == [1]
    for part in (
        *('profile="glm52"', 'model="a \\"model\\""', 'release="sglang-0.5.23-cu130-1234"'),
        *('deployment="000001"', 'commit="83f9ff8"', 'sglang="0.5.23"'),
    ):
        assert part in next(iter(info))
    own = 'server="sglang"'
    assert found[f"sglang_server_restarts_total{{{own}}}"] == 2
    assert found[f"sglang_server_gpus{{{own}}}"] == 8
    assert found[f"sglang_tuning_wanted{{{own}}}"] == 1
    assert found[f'sglang_tuning_proof_info{{{own},verdict="tuned"}}'] == 1
    assert found[f'sglang_tuning_verdict_info{{{own},verdict="fallback"}}'] == 1
    assert found[f"sglang_tuning_fallback_operations{{{own}}}"] == 3
    assert sum(only(found, "sglang_server_phase").values()) == 1
    assert found[f'sglang_server_unit_state{{{own},state="active"}}'] == 1
    assert found[f"sglang_supervisor_active{{{own}}}"] == 1
    room, size = (found[f'sglang_disk_{what}_bytes{{{own},what="weights"}}'] for what in ("available", "size"))
    assert 0 < room < size


@pytest.mark.parametrize(("healthy", "fails"), [(True, True), (False, False)])
def test_a_start_is_no_failure(healthy: bool, fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang_node, "RUN", str(tmp_path / "run"))
    memory = {"looked": 1.0, "failing_since": 1.0, "healthy": healthy}
    sglang_node.write(str(tmp_path / "run/sglang/supervise.json"), json.dumps(memory))
    page = collect.Page()
    collect.server_page(page, record(tmp_path), {}, {})
    (seconds,) = only(samples(page.text()), "sglang_supervisor_failing_seconds").values()
    assert (seconds > 0) == fails


def test_a_server_that_was_never_committed_and_a_record_that_was_cut(tmp_path: Path) -> None:
    bare = sglang_node.Record(str(tmp_path), "sglang")
    bare.write_state(phase="switched")
    page = collect.Page()
    collect.server_page(page, bare, {}, {})
    found = samples(page.text())
    assert found['sglang_server_phase{server="sglang",phase="switched"}'] == 1
    assert not only(found, "sglang_server_restarts_total") and not only(found, "sglang_tuning_proof_info")
    Path(bare.state_file).write_text("{")
    collect.server_page(collect.Page(), bare, {}, {})


@pytest.mark.parametrize(
    ("log", "verdict", "falls"),
    [("flashinfer-0.6.12-used-info.log", "tuned", False), ("flashinfer-0.6.12-beyond-info.log", "partial", True)],
)
def test_a_start_is_judged_as_a_deployment_is(log: str, verdict: str, falls: bool) -> None:
    found = collect.judged((LOGS / log).read_bytes(), {"flashinfer": "0.6.12", "tuning": {"mode": "file"}})
    assert found["verdict"] == verdict and (found["fallbacks"] > 0) == falls


def test_when_a_start_is_judged() -> None:
    told = {"invocation": "a", "deployment": "000001", "up": 70.0}
    assert not collect.due({}, "a", "000001", 30), "kernels are not tuned yet"
    assert collect.due({}, "a", "000001", 61)
    assert not collect.due(told, "a", "000001", 100)
    assert collect.due(told, "a", "000001", 140), "fallbacks come with traffic"
    assert collect.due(told, "b", "000001", 61), "another start"
    assert collect.due(told, "a", "000002", 100), "what is accepted may be other things"
    assert not collect.due(told, "", "000001", 1000)


# --- one look ---------------------------------------------------------------------------------------------------------


def test_one_look_as_the_unit_has_it(tmp_path: Path, programs: Path) -> None:
    """By itself, with what it shares beside it and no Ansible; whole files, and none of GPUs where there are none."""
    own = tmp_path / "own"
    own.mkdir()
    variables = yaml.safe_load((ROOT / "roles/sglang_monitoring/vars/main.yml").read_text())
    files = [os.path.basename(one["path"]) for one in variables["__sglang_monitoring_collector_files"]]
    for name in files:
        source = PROGRAM if name == "collect.py" else ROOT / "module_utils" / name
        (own / name).write_text(source.read_text())
    record(tmp_path / "records")
    folder = tmp_path / "text"
    folder.mkdir()
    program(programs, "nvidia-smi", f"cat {SMI}/2x-h200/q.txt")
    argv = [
        sys.executable,
        "-I",
        "-S",
        str(own / "collect.py"),
        "--folder",
        str(folder),
        "--run",
        str(tmp_path / "run"),
    ]
    argv += ["--root", str(tmp_path / "records")]
    subprocess.run([*argv, "--gpu"], check=True, cwd="/")
    assert sorted(os.listdir(folder)) == ["sglang_gpu.prom", "sglang_server.prom"]
    assert samples((folder / "sglang_gpu.prom").read_text())["sglang_gpu_count"] == 2
    assert only(samples((folder / "sglang_server.prom").read_text()), "sglang_server_info")
    assert (folder / "sglang_gpu.prom").stat().st_mode & 0o777 == 0o644
    subprocess.run(argv, check=True, cwd="/")
    assert sorted(os.listdir(folder)) == ["sglang_server.prom"]
    assert not list(own.glob("__pycache__"))
    done = subprocess.run([*argv[:4], "--folder", "/nowhere", *argv[6:]], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "/nowhere" in done.stdout
