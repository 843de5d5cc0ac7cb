"""A release asked through the module. The releases are the real ones on a CPU, as tools/parsers builds them."""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import json
import os
import pwd
from pathlib import Path
from typing import Any

import pytest
import sglang_args as module
from ansible.module_utils.sglang_release_python import account, keep, recalled
from helpers import run_module

ROOT = Path(__file__).resolve().parents[2]
CARD = {
    "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "capability": "12.0",
    "memory_mib": 97887,
    "multiprocessors": 188,
    "cuda": "13.0",
    "gpus": 8,
}
GLM = {"tensor-parallel-size": 8, "quantization": "modelopt_fp4", "moe-runner-backend": "flashinfer_cutlass"}


@functools.cache
def python(stack: str) -> str:
    loader = importlib.machinery.SourceFileLoader("parsers", str(ROOT / "tools/parsers"))
    parsers = importlib.util.module_from_spec(importlib.util.spec_from_loader("parsers", loader))  # type: ignore[arg-type]
    loader.exec_module(parsers)
    return str(parsers.environment_of(stack, []))


def config() -> dict[str, Any]:
    return json.loads((ROOT / "models/configs/glm-5.json").read_text())


@pytest.fixture
def as_oneself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environments lie in the cache of the one who tests, which another user cannot enter."""
    monkeypatch.setattr(module, "account", lambda *_names: pwd.getpwuid(os.geteuid()))


@pytest.mark.slow
def test_a_release_resolves_auto_for_the_card_and_the_answer_is_kept(
    as_oneself: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "state/arguments.json"
    asked = {
        "python": python("sglang-cpu-0.5.23"),
        "args": GLM,
        "model_path": "/nowhere/GLM",
        "config": config(),
        "card": CARD,
        "cache": str(cache),
    }
    first = run_module(module, capsys, **asked)
    assert first["asked"] and not first["cached"]
    assert first["resolved"]["attention_backend"] == "dsa"
    assert first["resolved"]["dsa_decode_backend"] == "flashinfer_sparse_mla"
    assert first["resolved"]["kv_cache_dtype"] == "fp8_e4m3"
    assert first["resolved"]["model_path"] == "/nowhere/GLM"
    assert first["autotune"]["runs"] is True
    assert first["sglang"] == first["versions"]["sglang"] == "0.5.23"
    assert first["words"][:2] == ["--model-path", "/nowhere/GLM"]
    assert cache.stat().st_mode & 0o777 == 0o600

    again = run_module(module, capsys, **asked)
    assert again["cached"] and again["resolved"] == first["resolved"]


@pytest.mark.slow
def test_a_refusal_names_the_nearest_option(
    as_oneself: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {
        "python": python("sglang-cpu-0.5.9"),
        "args": {**GLM, "max-runing-requests": 4},
        "model_path": "/nowhere/GLM",
        "config": config(),
        "card": {**CARD, "cuda": "12.8"},
    }
    told = run_module(module, capsys, **asked)
    assert told["failed"] and told["stage"] == "parser"
    assert "unrecognized arguments: --max-runing-requests 4" in told["msg"]
    assert "did you mean max-running-requests?" in told["msg"]
    # The same answer again, without asking for it: a release takes its time.
    answer = {"cases": [{"stage": "parser", "error": "unrecognized arguments: --max-runing-requests 4"}]}
    options = json.loads((ROOT / "stacks/sglang-cpu-0.5.9/options.json").read_text())
    monkeypatch.setattr(module, "ask", lambda *_: {**answer, "options": options})
    told = run_module(module, capsys, **asked, fail=False)
    assert not told.get("failed") and "did you mean" in told["refusal"]


@pytest.mark.slow
def test_what_the_parser_takes_and_the_resolution_refuses(as_oneself: None, capsys: pytest.CaptureFixture[str]) -> None:
    told = run_module(
        module,
        capsys,
        python=python("sglang-cpu-0.5.23"),
        args={**GLM, "json-model-override-args": "{a"},
        model_path="/nowhere/GLM",
        config=config(),
        card=CARD,
    )
    assert told["failed"] and told["stage"] == "resolution"
    assert "Expecting property name" in told["msg"]


def test_a_release_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    told = run_module(module, capsys, python="/nowhere/python", args={}, model_path="/m", check=True)
    assert told["asked"] is False and told["words"] == ["--model-path", "/m"]
    told = run_module(module, capsys, python="/nowhere/python", args={}, model_path="/m")
    assert told["failed"] and "/nowhere/python" in told["msg"]


def test_an_interpreter_without_sglang(as_oneself: None, capsys: pytest.CaptureFixture[str]) -> None:
    told = run_module(module, capsys, python="/usr/bin/python3", args={}, model_path="/m")
    assert told["failed"] and told["stage"] == "import"
    assert "No module named" in told["msg"] and "/usr/bin/python3" in told["msg"]


def test_arguments_that_are_no_mapping(capsys: pytest.CaptureFixture[str]) -> None:
    told = run_module(module, capsys, python="/usr/bin/python3", args="many", model_path="/m")
    assert told["failed"] and "args" in told["msg"]


def test_another_content_asks_anew(tmp_path: Path) -> None:
    site = tmp_path / "lib/python3.11/site-packages"
    site.mkdir(parents=True)
    interpreter = str(tmp_path / "bin/python")
    first = module.key("q", interpreter, [], "sglang")
    assert module.key("q", interpreter, [], "sglang") == first
    assert module.key("q", interpreter, ["patched"], "sglang") != first
    (site / "sglang-0.5.23.dist-info").mkdir()
    assert module.key("q", interpreter, [], "sglang") != first


def test_a_kept_answer_that_is_torn_is_asked_anew(tmp_path: Path) -> None:
    kept = tmp_path / "arguments.json"
    kept.write_text('{"key": "k", "answ')
    assert recalled(str(kept), "k") == {}
    keep(str(kept), "k", {"resolved": {}})
    assert recalled(str(kept), "k") == {"resolved": {}}
    assert recalled(str(kept), "other") == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_config_that_the_servers_user_cannot_read_is_not_taken_for_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    tmp_path.chmod(0o700)
    assert module.readable(str(tmp_path), None)
    assert not module.readable(str(tmp_path), account("nobody"))
