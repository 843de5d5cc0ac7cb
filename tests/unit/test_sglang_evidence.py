"""What was tuned, by the log: recorded ones, those of the real FlashInfer without a GPU, and lines from the sources' formats."""

from __future__ import annotations

import io
import json
import os
import subprocess
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import sglang_evidence as module
from ansible.module_utils import sglang_evidence_log as log
from helpers import run_module

DATA = Path(__file__).parent / "data/evidence"
FI = ("0.6.3", "0.6.12", "0.7.2")
FROM_FILE = {"FLASHINFER_AUTOTUNER_LOAD_FROM_FILE": "1"}


def judged(text: str | bytes, **known: Any) -> dict[str, Any]:
    data = text if isinstance(text, bytes) else text.encode()
    return log.judge(log.scan(io.BytesIO(data)), log.Known(**known))


def recorded(name: str, **known: Any) -> dict[str, Any]:
    return judged((DATA / f"{name}.log").read_bytes(), **known)


def autotune(told: dict[str, Any]) -> dict[str, Any]:
    return told["layers"]["flashinfer_autotune"]


# --- lines from the sources' format strings ---------------------------------------------------------------------------


def record(text: str, rank: str = "TP0", second: int = 0) -> str:
    return f"[2026-11-30 10:00:{second:02d}{' ' + rank if rank else ''}] {text}\n"


def flashinfer(text: str, level: str = "INFO", second: int = 0, line: int = 1) -> str:
    return f"2026-11-30 10:00:{second:02d},000 - {level} - autotuner.py:{line} - flashinfer.jit: {text}\n"


def started(middle: str, release: str = "0.5.9", served: bool = True, **arguments: Any) -> str:
    """A start from the source of SGLang 0.5.9 (ServerArgs' repr), 0.5.23 (a dict), with what stands between load and capture."""
    values = {"device": "cuda", "tp_size": 1, "moe_runner_backend": "flashinfer_cutlass", **arguments}
    if release == "0.5.9":
        shown = "ServerArgs(" + ", ".join(f"{name}={value!r}" for name, value in values.items()) + ")"
    else:
        shown = repr(values)
    text = record(f"server_args={shown}", "") + record("Load weight begin. avail mem=94.00 GB") + middle
    text += record(
        "max_total_num_tokens=180191, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=2048"
    )
    text += record("The server is fired up and ready to roll!", "")
    return text + (record("Prefill batch, #new-seq: 1, #new-token: 24") if served else "")


def tuned(ranks: int = 1, ended: int | None = None, cache: str = "") -> str:
    text = ""
    for rank in range(ranks):
        begin = f"Running FlashInfer autotune with cache: {cache}" if cache else "Running FlashInfer autotune..."
        text += record(begin, f"TP{rank}", 1)
    for rank in range(ranks if ended is None else ended):
        text += record("FlashInfer autotune completed.", f"TP{rank}", 20 + rank)
    return text


# --- what was recorded ------------------------------------------------------------------------------------------------


def test_saved_is_not_used() -> None:
    told = recorded("recorded-flashinfer-0.6.12")
    assert told["verdict"] == "partial" and not told["proved"]
    counts = autotune(told)["counts"]
    assert (counts["configs_new"], counts["profiles"], counts["fallbacks"], counts["fallbacks_before"]) == (9, 9, 3, 1)
    [one] = told["fallbacks"]
    assert one["op"] == "fp8_gemm" and one["tokens"] == [64, 300, 5000]
    # 64 was tuned; what differs is the workspace.
    assert one["differs"] == "input 6 is (33554688,) and was tuned as (33554432,)"
    assert told["versions"]["flashinfer"] == "0.6.12"
    assert any("No tuned config covers fp8_gemm" in line for line in autotune(told)["proof"])


def test_old_flashinfer_says_it_at_debug_only() -> None:
    data = (DATA / "recorded-flashinfer-0.6.3.log").read_bytes()
    told = judged(data)
    assert told["verdict"] == "partial" and told["fallbacks"][0]["tokens"] == [5000]
    quiet = b"".join(line for line in data.splitlines(True) if b" - DEBUG - " not in line)
    told = judged(quiet)
    assert told["verdict"] == "silent" and told["fallbacks_shown"] == "none"
    assert "FLASHINFER_LOGGING_LEVEL=debug" in told["summary"] and "0.6.3" in told["summary"]
    assert told["set"] == {"FLASHINFER_LOGGING_LEVEL": "debug"}


def test_eight_cards_without_autotuning() -> None:
    told = recorded("recorded-sm120-k2-thinking")
    assert told["verdict"] == "off" and "moe-runner-backend, which is auto" in told["summary"]
    chosen = {name: one["chosen"] for name, one in told["backends"].items()}
    assert (chosen["attention"], chosen["moe"], chosen["allreduce"]) == ("triton", "auto", "nccl")
    assert chosen["kv_cache_dtype"] == "torch.float8_e4m3fn"
    assert told["kv_cache"] == {"tokens": 180191, "sizes": "KV size: 5.90 GB", "max_running_requests": 2048}
    assert not told["cuda_graphs"]["captured"] and "disable-cuda-graph" in told["cuda_graphs"]["why"]
    custom = next(one for one in told["disabled"] if one["what"] == "Custom allreduce")
    assert custom["count"] == 8 and custom["why"] == "it's not supported on more than two PCIe-only GPUs"
    assert told["missing"] == [] and told["traffic"] > 0


def test_default_moe_configs_on_every_rank() -> None:
    layer = recorded("recorded-sm120-glm-4.7-fp8")["layers"]["triton_moe"]
    assert layer["verdict"] == "fallback" and layer["counts"]["default"] == 1
    assert set(layer["ranks"]) == {f"TP{rank}" for rank in range(8)}
    assert "E=161,N=192,device_name=NVIDIA_RTX_PRO_6000" in layer["why"]


def test_a_gpu_server() -> None:
    told = recorded("recorded-h200-sglang-0.5.15.post1")
    assert told["verdict"] == "off" and "which is triton" in told["summary"]
    moe = told["layers"]["triton_moe"]
    assert moe["verdict"] == "partial" and "Triton 3.2.0" in moe["why"] and moe["counts"]["down_missing"] == 1
    jit = told["layers"]["flashinfer_jit"]
    assert jit["verdict"] == "compiled" and jit["counts"]["by_module"] == {"norm": 58.0}
    kinds = told["cuda_graphs"]["kinds"]
    assert kinds["target prefill"]["seconds"] == 152.13 and kinds["target decode"]["backend"] == "full"
    assert told["cuda_graphs"]["captured"]


def test_a_cpu_server_logs_its_arguments_as_a_dict() -> None:
    told = recorded("recorded-cpu-sglang-0.5.23")
    assert told["verdict"] == "off" and "runs on cpu" in told["summary"]
    assert told["backends"]["attention"]["chosen"] == "torch_native"


# --- the real FlashInfer, without a GPU --------------------------------------------------------------------------------

VERDICTS = {
    "used-debug": "tuned",
    "beyond-debug": "partial",
    "untuned-debug": "fallback",
    "again-info": "loaded",
    "stale-info": "tuned",
    "module-info": "loaded",
    "module-misses-info": "partial",
}


@pytest.mark.parametrize(("scenario", "verdict"), VERDICTS.items())
@pytest.mark.parametrize("version", FI)
def test_verdicts_of_the_real_autotuner(version: str, scenario: str, verdict: str) -> None:
    if version == "0.6.3" and scenario in ("again-info", "stale-info"):
        pytest.skip("0.6.3 keeps no file")
    environment = FROM_FILE if "module" in scenario else {}
    assert (
        recorded(f"flashinfer-{version}-{scenario}", flashinfer=version, environment=environment)["verdict"] == verdict
    )


@pytest.mark.parametrize(
    ("version", "used", "beyond"),
    [("0.6.3", "silent", "silent"), ("0.6.12", "tuned", "partial"), ("0.7.2", "tuned", "partial")],
)
def test_the_default_level_shows_what_this_version_can(version: str, used: str, beyond: str) -> None:
    assert recorded(f"flashinfer-{version}-used-info", flashinfer=version)["verdict"] == used
    told = recorded(f"flashinfer-{version}-beyond-info", flashinfer=version)
    assert told["verdict"] == beyond
    if beyond == "partial":
        assert told["fallbacks"][0]["counted_by"] == "profile" and told["fallbacks"][0]["tokens"] == [300, 5000, 8192]


@pytest.mark.parametrize("version", FI)
def test_debug_counts_each_call_once(version: str) -> None:
    [one] = recorded(f"flashinfer-{version}-beyond-debug")["fallbacks"]
    assert (one["calls"], one["shapes"], one["counted_by"]) == (4, 3, "call")


@pytest.mark.parametrize("version", FI)
def test_tactics_that_failed(version: str) -> None:
    assert autotune(recorded(f"flashinfer-{version}-failing-info"))["counts"]["tactics_failed"] == 14


def test_a_stale_file_is_named() -> None:
    why = autotune(recorded("flashinfer-0.7.2-stale-info"))["why"]
    assert "was ignored (gpu: saved=NVIDIA B200 vs current=" in why


def test_a_variable_makes_the_result_unread() -> None:
    told = recorded("flashinfer-0.6.3-unread-info", flashinfer="0.6.3", environment=FROM_FILE)
    assert told["verdict"] == "fallback" and "does not look at the result" in told["summary"]
    # From 0.6.7 on memory comes first.
    told = recorded("flashinfer-0.6.12-used-info", flashinfer="0.6.12", environment=FROM_FILE)
    assert told["verdict"] == "tuned"


def test_the_file_says_its_rank() -> None:
    assert recorded("flashinfer-0.6.12-again-info")["versions"]["flashinfer"] == "0.6.12"
    reader = log.scan(io.BytesIO((DATA / "flashinfer-0.6.12-again-info.log").read_bytes()))
    assert dict(reader.start.seen["fi_loaded"].ranks) == {"TP0": 1}


# --- from the sources -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sglang", "why"),
    [
        ({"disable_flashinfer_autotune": True}, "0.5.23", "by flag: disable-flashinfer-autotune"),
        ({"moe_runner_backend": "triton"}, "0.5.23", "by backend"),
        ({}, "0.5.9", "flashinfer-cutlass-autotune"),
        ({"enable_deterministic_inference": True}, "0.5.23", "deterministic"),
        ({"device": "cpu"}, "0.5.23", "runs on cpu"),
    ],
)
def test_off_says_by_what(arguments: dict[str, Any], sglang: str, why: str) -> None:
    told = judged(started("", "0.5.23" if sglang == "0.5.23" else "0.5.9", **arguments), sglang=sglang)
    assert told["verdict"] == "off" and why in told["summary"]


def test_off_by_the_gates_own_word() -> None:
    told = judged(started(""), gate={"runs": False, "why": "capability 8.9 is below 9"})
    assert told["verdict"] == "off" and "capability 8.9 is below 9" in told["summary"]


def test_a_start_that_is_not_over_is_silent() -> None:
    text = started("").split("[2026-11-30 10:00:00 TP0] max_total")[0]
    told = judged(text)
    assert told["verdict"] == "silent" and "log-level info" in told["summary"]
    assert "The log ends before the scheduler is ready." in told["missing"]


def test_tuning_that_goes_on_is_silent() -> None:
    told = judged(record("server_args=ServerArgs(device='cuda')", "") + tuned(ended=0))
    assert told["verdict"] == "silent" and "being tuned" in told["summary"]


def test_ranks_and_their_seconds() -> None:
    told = judged(started(tuned(2) + flashinfer("[AutoTuner]: noise", "DEBUG"), tp_size=2), flashinfer="0.6.3")
    assert told["verdict"] == "tuned"
    assert autotune(told)["ranks"] == {
        "TP0": {"begun": 1, "completed": 1, "seconds": 19.0},
        "TP1": {"begun": 1, "completed": 1, "seconds": 20.0},
    }
    assert autotune(told)["counts"]["seconds"] == 20.0


@pytest.mark.parametrize(
    ("ranks", "ended", "size", "why"), [(2, 1, 2, "TP1 began tuning and did not end"), (2, 2, 8, "6 of 8 ranks")]
)
def test_ranks_that_do_not_take_part(ranks: int, ended: int, size: int, why: str) -> None:
    told = judged(started(tuned(ranks, ended), tp_size=size), flashinfer="0.6.12")
    assert told["verdict"] == "partial" and why in told["summary"] and not told["explained"]


def test_a_cache_with_nothing_in_it_is_no_tuning() -> None:
    text = tuned(cache="/x/flashinfer/autotune/0.7.2/sm120/ab/rank_tp0_pp0_dp0.json")
    inner = flashinfer("[Autotuner]: Autotuning process starts ...") + flashinfer(
        "[Autotuner]: Autotuning process ends"
    )
    told = judged(started(text + inner, "0.5.23"))
    assert told["verdict"] == "fallback" and "tuned nothing" in told["summary"]
    saved = flashinfer("[Autotuner]: Saved 7 configs to /x/rank_tp0_pp0_dp0.json (7 new, 0 from previous config)")
    assert judged(started(text + inner + saved, "0.5.23"))["verdict"] == "tuned"


def test_out_of_memory_while_tuning_is_partial() -> None:
    text = tuned() + flashinfer("[Autotuner]: OOM detected, falling back to default tactic", "WARNING")
    told = judged(started(text), flashinfer="0.6.12", accept=[{"op": "*", "min_tokens": 0, "why": "all"}])
    assert told["verdict"] == "partial" and not told["proved"]


def test_defaults_in_use_while_autotuning_is_off_is_a_fallback() -> None:
    call = flashinfer(
        "[AutoTunner]: Using fallback tactic for fp4_gemm with input shapes (torch.Size([8, 64]),)", "DEBUG"
    )
    told = judged(started("", disable_flashinfer_autotune=True) + call)
    assert told["verdict"] == "fallback" and "autotuning is off by flag" in told["summary"]


@pytest.mark.parametrize(
    ("accept", "explained", "left"),
    [
        ([], False, [300, 5000, 8192]),
        ([{"op": "trtllm::fused_moe::*", "min_tokens": 65, "why": "prefill"}], True, []),
        ([{"op": "trtllm::fused_moe::gemm1", "min_tokens": 4096, "why": "prefill"}], False, [300]),
        ([{"op": "fp4_gemm", "min_tokens": 0, "why": "other"}], False, [300, 5000, 8192]),
    ],
)
def test_what_is_accepted(accept: list[dict[str, Any]], explained: bool, left: list[int]) -> None:
    told = recorded("flashinfer-0.6.12-beyond-debug", accept=accept)
    assert told["verdict"] == "partial" and told["explained"] == told["proved"] == explained
    assert told["fallbacks"][0]["unexplained"] == left


def test_a_layer_is_accepted_by_name() -> None:
    told = recorded("recorded-sm120-glm-4.7-fp8", accept=[{"op": "triton_moe", "min_tokens": 0, "why": "no file yet"}])
    assert told["layers"]["triton_moe"]["accepted"] == "no file yet"


def test_a_tuned_moe_config_is_read_from_its_folder() -> None:
    path = "/opt/tuned/configs/triton_3_6_0/E=128,N=768,device_name=NVIDIA_H200.json"
    text = started(record(f"Using MoE kernel config from {path}."), moe_runner_backend="triton")
    layer = judged(text, environment={"SGLANG_MOE_CONFIG_DIR": "/opt/tuned"})["layers"]["triton_moe"]
    assert layer["verdict"] == "loaded" and layer["counts"]["from_config_dir"] == 1 and path in layer["why"]


def test_layers_from_the_sources() -> None:
    text = record("Using configuration from /c/N=1.json for W8A8 Block FP8 kernel.")
    text += record(
        "Using default W8A8 Block FP8 kernel config. Performance might be sub-optimal! Config file not found at /c/N=2.json"
    )
    text += record("Entering DeepGEMM JIT Pre-Compile session. It may take a long time")
    text += record("Try DeepGEMM JIT Compiling for <GEMM_NT_F8F8BF16> N=1, K=2, num_groups=1 with all Ms.")
    text += flashinfer("Building JIT module fused_moe_120; this can take several minutes on first use.", line=594)
    text += record("Capture cuda graph begin. This can take up to several minutes. avail mem=9.00 GB")
    text += record("Capture cuda graph end. Time elapsed: 12.50 s. mem usage=1.25 GB. avail mem=7.75 GB.")
    told = judged(started(text), flashinfer="0.7.2")
    layers = told["layers"]
    assert layers["triton_fp8_gemm"]["verdict"] == "partial"
    assert layers["deep_gemm"]["verdict"] == "compiled" and layers["deep_gemm"]["counts"]["kernels"] == 1
    assert layers["flashinfer_jit"]["counts"]["by_module"] == {"fused_moe_120": 0.0}
    assert told["cuda_graphs"]["kinds"] == {"decode": {"captured": True, "backend": "", "seconds": 12.5, "gb": 1.25}}
    assert judged(started(""), flashinfer="0.7.2")["layers"]["flashinfer_jit"]["verdict"] == "loaded"
    assert judged(started(""), flashinfer="0.6.3")["layers"]["flashinfer_jit"]["verdict"] == "silent"
    assert (
        judged(started(""), environment={"SGLANG_ENABLE_JIT_DEEPGEMM": "0"})["layers"]["deep_gemm"]["verdict"] == "off"
    )


def test_every_event_is_found_by_an_anchor() -> None:
    for literal in log.LITERALS:
        assert any(literal in under for under in log.UNDER.values()) or literal in log.ANCHORS, literal


# --- what else a log can be -------------------------------------------------------------------------------------------


def test_the_last_start_counts() -> None:
    first = started(tuned(), served=False)
    told = judged(first + started("", disable_flashinfer_autotune=True), flashinfer="0.6.12")
    assert told["verdict"] == "off" and told["log"]["starts"] == 2


@pytest.mark.parametrize(
    "prefix",
    [
        "2026-11-30T10:00:00.123456+0000 gpu-node python3[369]: ",
        "Nov 30 10:00:00 gpu-node python3[369]: ",
        "nov. 30 10:00:00 gpu-node python3[369]: ",
        "30. Nov 10:00:00 gpu-node python3[369]: ",
        "11月 30 10:00:00 gpu-node python3[369]: ",
        "2026-11-30T10:00:00.123456789Z ",
        "sglang-1  | ",
    ],
)
def test_any_locale_and_carrier(prefix: str) -> None:
    text = "".join(prefix + line for line in started(tuned(), disable_cuda_graph=True).splitlines(True))
    told = judged(text, flashinfer="0.6.12")
    assert told["verdict"] == "tuned" and told["missing"] == []
    assert autotune(told)["ranks"]["TP0"]["seconds"] == 19.0


def test_json_of_the_journal() -> None:
    lines = started(tuned()).splitlines()
    text = "".join(
        json.dumps({"_PID": "369", "SYSLOG_IDENTIFIER": "python3", "MESSAGE": line}) + "\n" for line in lines
    )
    assert judged(text, flashinfer="0.6.12")["verdict"] == "tuned"


def test_a_process_is_its_rank() -> None:
    text = started(tuned()) + flashinfer("[Autotuner]: Loaded 7 configs from /x/some.json")
    text = "".join("2026-11-30T10:00:00+0000 gpu-node python3[369]: " + line for line in text.splitlines(True))
    reader = log.scan(io.BytesIO(text.encode()))
    assert dict(reader.start.seen["fi_loaded"].ranks) == {"TP0": 1}


def test_what_is_missing_is_said() -> None:
    whole = started(tuned())
    assert "rotated away" in judged(whole.split("\n", 2)[2], flashinfer="0.6.12")["missing"][0]
    said = judged(
        whole.encode()
        + b"\xff\x00binary\n"
        + b"journald[1]: Suppressed 12 messages from sglang.service\n[97B blob data]\ncut he"
    )["missing"]
    assert any("1 lines hold bytes" in one for one in said)
    assert any("dropped 12 messages" in one for one in said)
    assert any("--all" in one for one in said)
    assert any("no end" in one for one in said)
    assert judged("")["missing"] == ["The log is empty."]
    assert "No request was served" in judged(started(tuned(), served=False))["missing"][0]


@pytest.mark.parametrize("cut", [1, 7, 40, 333, 5000, 60_000, 88_000])
def test_a_log_cut_anywhere_is_read(cut: int) -> None:
    data = (DATA / "recorded-flashinfer-0.6.12.log").read_bytes()
    for part in (data[:cut], data[cut:]):
        assert judged(part)["verdict"] in ("partial", "fallback", "silent", "tuned")


def test_random_bytes_are_read() -> None:
    noise = (
        bytes(range(256)) * 4000
        + b" - DEBUG - flashinfer.jit: [AutoTuner]: Using fallback tactic for \xff\n[Autotuner]: Loaded x configs"
    )
    assert judged(noise)["verdict"] == "silent"


# --- size -------------------------------------------------------------------------------------------------------------


class Repeated(io.RawIOBase):
    """A block again and again, without holding it."""

    def __init__(self, block: bytes, size: int) -> None:
        self.block, self.left, self.at = block, size, 0

    def read(self, size: int = -1) -> bytes:
        data = self.block[self.at : self.at + min(size, self.left)]
        self.at = (self.at + len(data)) % len(self.block)
        self.left -= len(data)
        return data


def flood(lines: int) -> bytes:
    """Two lines a call, as a serving FlashInfer at DEBUG writes them."""
    made = []
    for number in range(lines):
        shape = f"(torch.Size([{number % 700 + 1}, 7168]), torch.Size([256, 512, 448]))"
        made.append(flashinfer(f"[AutoTuner]: Using fallback tactic for fp4_gemm with input shapes {shape}", "DEBUG"))
        made.append(
            flashinfer(
                f"[AutoTuner]: Generated key('fp4_gemm', 'R', 57403549, (({number}, 7168), (256, 512)))", "DEBUG"
            )
        )
    return "".join(made).encode()


def test_time_grows_with_the_log_and_memory_does_not() -> None:
    block = flood(4000)

    def cost(size: int) -> tuple[float, int]:
        tracemalloc.start()
        log.judge(log.scan(Repeated(block, size)))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        began = time.process_time()
        told = log.judge(log.scan(Repeated(block, size)))
        assert told["fallbacks"][0]["shapes"] == 700
        return time.process_time() - began, peak

    small, large = cost(4 << 20), cost(16 << 20)
    assert large[0] < 10 * small[0]
    assert large[1] < 1.5 * small[1] + (1 << 20) and large[1] < 60 << 20


def test_a_flood_of_anchors_hides_nothing() -> None:
    noise = record("Some backend says something") * 3000
    told = judged(started(noise + tuned() + noise), flashinfer="0.6.12")
    assert told["verdict"] == "tuned"
    noise = record("Use flashinfer_cutlass as MoE runner backend on SM120") * 3000
    told = judged(started(noise + tuned()), flashinfer="0.6.12")
    assert told["verdict"] == "tuned" and any("counted and not read" in one for one in told["missing"])


def test_more_shapes_than_are_kept_are_counted() -> None:
    line = "[AutoTuner]: Using fallback tactic for fp4_gemm with input shapes (torch.Size([{}, 64]),)"
    text = "".join(flashinfer(line.format(number), "DEBUG") for number in range(1, 1501))
    [one] = judged(text)["fallbacks"]
    assert one["calls"] == 1500 and one["shapes"] == log.SHAPES and not one["explained"]


# --- the module -------------------------------------------------------------------------------------------------------


def test_a_file_on_the_node(capsys: pytest.CaptureFixture[str]) -> None:
    told = run_module(module, capsys, log=str(DATA / "recorded-flashinfer-0.6.12.log"), check=True)
    assert told["verdict"] == "partial" and told["changed"] is False and told["seconds"] >= 0
    assert told["log"]["source"].endswith("recorded-flashinfer-0.6.12.log")


def test_no_such_file(capsys: pytest.CaptureFixture[str]) -> None:
    told = run_module(module, capsys, log="/nowhere/server.log")
    assert (
        told["failed"]
        and told["msg"] == "The log /nowhere/server.log cannot be read: No such file or directory. Correct log."
    )


@pytest.mark.parametrize(
    ("shown", "message"),
    [
        ("InvocationID=\nLoadState=not-found\n", "has no unit sglang.service"),
        ("InvocationID=\nLoadState=loaded\n", "has not been started"),
    ],
)
def test_units_without_a_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shown: str, message: str
) -> None:
    monkeypatch.setattr(module.subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, 0, shown, ""))
    assert message in run_module(module, capsys)["msg"]


def test_the_journal_of_the_present_start(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    dropped = {"MESSAGE": "Suppressed 7 messages from sglang.service", "N_DROPPED": "7", "__MONOTONIC_TIMESTAMP": "900"}
    older = {**dropped, "__MONOTONIC_TIMESTAMP": "100"}

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        if command[0] == "systemctl":
            text = "InvocationID=abc\nLoadState=loaded\nExecMainStartTimestampMonotonic=500\n"
        else:
            text = "\n".join(json.dumps(entry) for entry in (older, dropped)) + "\nnot json\n"
        return subprocess.CompletedProcess(command, 0, text, "")

    asked: list[str] = []

    def scan(invocation: str) -> log.Reader:
        asked.append(invocation)
        return log.scan(io.BytesIO(started(tuned()).encode()))

    monkeypatch.setattr(module.subprocess, "run", run)
    monkeypatch.setattr(module, "from_journal", scan)
    told = run_module(module, capsys, flashinfer="0.6.12")
    assert asked == ["abc"] and told["verdict"] == "tuned" and told["log"]["source"] == "sglang.service abc"
    assert [one for one in told["missing"] if "dropped 7 messages" in one]
    monkeypatch.setattr(module, "from_journal", lambda invocation: log.scan(io.BytesIO(b"")))
    told = run_module(module, capsys, invocation_id="old")
    assert told["verdict"] == "silent" and "nothing of this start" in told["missing"][0]


def test_accept_wants_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    told = run_module(module, capsys, log="/dev/null", accept=[{"op": "x"}])
    assert told["failed"] and "why" in told["msg"]


def test_the_journal_is_asked_for_whole_lines() -> None:
    command = module.journal("_SYSTEMD_INVOCATION_ID", "abc")
    assert "--all" in command and command[-1] == "_SYSTEMD_INVOCATION_ID=abc"


def test_two_streams_are_one() -> None:
    both = module.Both(io.BytesIO(b"systemd's\n"), io.BytesIO(b"the server's\nlast"))
    assert b"".join(iter(lambda: both.read(8), b"")) == b"systemd's\nthe server's\nlast"


def test_a_journal_is_read_with_what_systemd_said_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A stand-in for journalctl: it prints what it is asked for."""
    program = tmp_path / "journalctl"
    program.write_text(
        "#!/bin/sh\nfor word; do :; done\ncase $word in\n"
        "INVOCATION_ID=*) echo '2026-11-30T10:00:00+0000 n systemd[1]: Starting sglang.service';;\n"
        "*) echo '2026-11-30T10:00:01+0000 n python[7]: [2026-11-30 10:00:01] The server is fired up and ready to roll!';;\nesac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    told = log.judge(module.from_journal("abc"), log.Known())
    assert (told["log"]["lines"], told["log"]["starts"], told["log"]["ready"]) == (2, 1, True)


def test_autotuning_accepted_by_its_name_whatever_it_is() -> None:
    known = log.Known(
        arguments={"device": "cpu"}, accept=[{"op": "flashinfer_autotune", "min_tokens": 0, "why": "a CPU"}]
    )
    told = log.judge(log.scan(io.BytesIO(b"[2026-11-30 00:00:00] The server is fired up and ready to roll!\n")), known)
    assert (told["verdict"], told["proved"], told["explained"]) == ("off", True, True)
    assert told["summary"].endswith("(accepted: a CPU).")
    pattern = log.Known(arguments={"device": "cpu"}, accept=[{"op": "*", "min_tokens": 0, "why": "a CPU"}])
    assert not log.judge(log.scan(io.BytesIO()), pattern)["proved"]


# --- one H200, 2026-11-30 (docs/verified.md): a Triton MoE file that was installed, and bmm_fp8 tuned offline


def test_a_triton_file_that_was_installed_is_read() -> None:
    before = recorded("recorded-h200-gpu-demo-default")
    assert before["layers"]["triton_moe"]["verdict"] == "fallback" and before["log"]["ready"]
    after = recorded(
        "recorded-h200-gpu-demo-tuned", environment={"SGLANG_MOE_CONFIG_DIR": "/var/tmp/sglang-tuning/moe"}
    )
    layer = after["layers"]["triton_moe"]
    assert (layer["verdict"], layer["counts"]["from_config_dir"]) == ("loaded", 1)
    assert "/var/tmp/sglang-tuning/moe/configs/triton_3_6_0/E=8,N=128,device_name=NVIDIA_H200.json" in layer["why"]
    assert after["verdict"] == "off" and "triton" in after["summary"] and after["traffic"] > 0


@pytest.mark.parametrize(("name", "verdict"), [("untuned", "fallback"), ("cache", "loaded"), ("module", "loaded")])
def test_a_file_that_was_tuned_offline_is_read_by_a_fresh_process(name: str, verdict: str) -> None:
    told = recorded(
        f"recorded-h200-bmm_fp8-{name}-debug", flashinfer="0.6.12", environment=FROM_FILE if name == "module" else {}
    )
    assert (told["verdict"], told["proved"]) == (verdict, verdict == "loaded"), told["summary"]
