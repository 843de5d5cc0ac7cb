"""Releases asked about arguments with a card stood in, against what real engines on real cards logged.

The environments are those of tools/parsers: the real releases on a CPU, built from the wheelhouse when they are not there.
"""

from __future__ import annotations

import ast
import importlib.machinery
import importlib.util
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils import sglang_parser

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).parent / "data/server_args"
# Other at each start, or of the machine.
RUNS_OWN = {"random_seed", "port", "host", "served_model_name", "tokenizer_path"}


def parsers() -> Any:
    loader = importlib.machinery.SourceFileLoader("parsers", str(ROOT / "tools/parsers"))
    spec = importlib.util.spec_from_loader("parsers", loader)
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    loader.exec_module(module)
    return module


def recorded(name: str) -> dict[str, Any]:
    """Fields of a logged ServerArgs whose values are plain."""
    text = (DATA / name).read_text()
    # Nested records repeat names of their own (backend, max_bs): they are told apart by their brackets.
    flat = re.sub(r"=\w+\((?:[^()]|\([^()]*\))*\)", "=None", text.strip()[len("ServerArgs(") : -1])
    found = re.findall(r"(\w+)=('(?:[^'\\]|\\.)*'|None|True|False|-?[\d.]+(?:e-?\d+)?)(?=, \w+=|$)", flat)
    return {key: ast.literal_eval(value) for key, value in found}


def ask(stack: str, card: dict[str, Any] | None, *cases: dict[str, Any]) -> dict[str, Any]:
    python = parsers().environment_of(stack, [])
    done = subprocess.run(
        [str(python), sglang_parser.__file__],
        input=json.dumps({"card": card, "options": True, "cases": cases}),
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr[-2000:]
    return json.loads(done.stdout)


def config(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "models/configs" / name).read_text())


def values(told: dict[str, Any], number: int = 0) -> dict[str, Any]:
    return {
        **{entry["dest"]: entry.get("default") for entry in told["options"]},
        **told["cases"][number]["resolved"],
    }


@pytest.mark.slow
def test_the_card_stood_in_resolves_as_eight_real_ones_did() -> None:
    """SGLang main of January 2026 is not 0.5.9: the fields that differ are named, and no other may."""
    card = parsers().card_for("rtx-pro-6000-blackwell", "12.8", 8)
    words = "--model-path nvidia/Kimi-K2-Thinking-NVFP4 --tp 8 --trust-remote-code --disable-cuda-graph --quantization modelopt_fp4"
    case = {"argv": words.split(), "config": config("kimi-k2.json")}
    wrong_choice = {"argv": [*words.split(), "--nsa-decode-backend", "flashinfer_sparse_mla"], "config": case["config"]}
    unknown = {"argv": [*words.split(), "--dsa-decode-backend", "trtllm"], "config": case["config"]}
    told = ask("sglang-cpu-0.5.9", card, case, wrong_choice, unknown)
    real, found = recorded("8x-rtx-pro-6000-k2-thinking.txt"), values(told)
    differ = {key for key in real.keys() - RUNS_OWN if found.get(key, "absent") != real[key]}
    assert len(real) > 300
    assert differ == {
        "fp4_gemm_runner_backend",  # auto until 0.5.9 made flashinfer_cutlass the default
        "mamba_ssm_dtype",
        "nsa_prefill_cp_mode",
        "disaggregation_decode_enable_fake_auto",  # gone in 0.5.9
    }
    assert told["cases"][0]["autotune"]["runs"] is False
    assert told["cases"][0]["given"]["tp_size"] == 8
    assert told["cases"][1]["stage"] == "parser" and "invalid choice" in told["cases"][1]["error"]
    assert told["cases"][2]["stage"] == "parser" and "--dsa-decode-backend" in told["cases"][2]["error"]


@pytest.mark.slow
def test_the_card_stood_in_resolves_as_a_real_h200_did() -> None:
    card = parsers().card_for("h200", "13.0", 1)
    words = (
        "--model-path /srv/models/tiny-moe --attention-backend triton --moe-runner-backend triton --load-format dummy "
        "--mem-fraction-static 0.3 --max-running-requests 256 --enable-metrics --log-level debug"
    )
    qwen = {
        **config("tiny-glm4-moe.json"),
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": 128,
    }
    told = ask("sglang-cpu-0.5.15.post1", card, {"argv": words.split(), "config": qwen})
    real, found = recorded("h200-0.5.15.post1.txt"), values(told)
    assert len(real) > 400
    # A nested record here, told in words there.
    assert {key for key in real.keys() - RUNS_OWN if found.get(key, "absent") != real[key]} <= {"cuda_graph_config"}


@pytest.mark.slow
def test_secrets_and_paths_of_stood_in_configs_are_not_told() -> None:
    words = ["--model-path", "/models/tiny", "--device", "cpu", "--api-key", "very-secret"]
    told = ask("sglang-cpu-0.5.9", None, {"argv": words, "config": config("tiny-glm4-moe.json")})
    answer = told["cases"][0]
    assert "very-secret" not in json.dumps(told)
    assert answer["given"]["api_key"] == "(set)" and answer["resolved"]["api_key"] == "(set)"
    assert answer["resolved"]["model_path"] == "/models/tiny"
    assert "/tmp" not in json.dumps(answer["log"])


def test_values_are_written_down_as_json() -> None:
    assert sglang_parser.plain(list(range(100))) == "100 values, 0 to 99"
    assert sglang_parser.plain({"a": (1, 2), 3: None}) == {"a": [1, 2], "3": None}
    assert sglang_parser.plain(object()).startswith("<object")


def test_entries_for_remote_code_are_left_out_at_any_depth() -> None:
    found = sglang_parser.without_code({"auto_map": {}, "text_config": {"auto_map": {}, "hidden_size": 8}})
    assert found == {"text_config": {"hidden_size": 8}}
