"""Failures of the real engine on a CPU, and recorded logs of real nodes: what the doctor says first."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.module_utils import sglang_rules
from helpers import scan_text

ROOT = Path(__file__).resolve().parents[2]
LOGS = Path(__file__).parent / "data/doctor/logs"
RECORDED = Path(__file__).parent / "data/sglang_log"
RULES = sglang_rules.load(str(ROOT / "rules"))
FIRST = {
    "port-in-use": "port-in-use",
    "no-model": "model-path-wrong",
    "missing-weights": "weights-absent",
    "unknown-model-type": "model-type-unknown",
    "wrong-tokenizer": "model-path-wrong",
    "wrong-flag": "argument-refused",
    "killed-child": "child-killed",
    "shm-full": "shm-full-bus-error",
}


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.stem)
def test_a_reproduced_failure_is_named_first(path: Path) -> None:
    found = scan_text(path.read_text(), RULES)
    assert found[0]["id"] == FIRST[path.stem.rsplit("-", 1)[0]]
    assert found[0]["line"] in path.read_text() and found[0]["number"] > 0


def test_every_kind_of_failure_was_reproduced() -> None:
    assert {path.stem.rsplit("-", 1)[0] for path in LOGS.glob("*.log")} == set(FIRST)


def test_two_failures_of_one_journal_are_told_each_in_its_start() -> None:
    text = (RECORDED / "journal-two-failures-0.5.23.log").read_text()
    found = scan_text(text, RULES)
    ids = [one["id"] for one in found if one["kind"] == "cause"]
    assert "weights-unreadable" in ids and any("torchvision" in one["line"] for one in found)


def test_the_triton_failure_of_the_real_node_is_named() -> None:
    found = scan_text((RECORDED / "sm120-out-of-resources.log").read_text(), RULES)
    assert found[0]["kind"] == "cause" and "shared memory" in found[0]["line"]


def test_what_makes_a_real_server_slow_is_no_failure() -> None:
    """A line of the GLM-4.7-FP8 run on eight cards, which the recorded excerpt leaves out, at the end of it."""
    line = (
        "[2026-01-28 21:18:41 TP5] Using default MoE kernel config. Performance might be sub-optimal! Config file not found at "
        "/opt/sglang/configs/triton_3_5_1/E=161,N=192,device_name=NVIDIA_RTX_PRO_6000_Blackwell_Server_Edition,"
        "dtype=fp8_w8a8.json, you can create them with https://github.com/sgl-project/sglang\n"
    )
    found = scan_text((RECORDED / "sm120-glm-4.7-fp8.log").read_text() + line, RULES)
    assert (
        found[0]["id"] == "moe-triton-untuned" and "NVIDIA_RTX_PRO_6000_Blackwell_Server_Edition" in found[0]["cause"]
    )
    assert {one["kind"] for one in found} <= {"slow", "benign"}


def test_what_a_healthy_driver_logs_at_its_start_is_no_finding() -> None:
    """As recorded on an H200, driver 580.159.04, 2026-11-29."""
    kernel = (
        "[    0.460744] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n"
        "[    0.959842] NVRM: gpuClearFbhubPoisonIntrForBug2924523_GA100: FBHUB Interrupt detected. Clearing it.\n"
        "[    3.711199] NVRM: Persistence mode is deprecated and will be removed in a future release.\n"
    )
    assert scan_text("", RULES, kernel=kernel) == []
