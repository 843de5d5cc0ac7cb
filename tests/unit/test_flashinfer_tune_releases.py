"""The tuning program with the real autotuners of FlashInfer 0.6.3, 0.6.12 and 0.7.2: what it makes is what their own readers find.

The operation is a stand-in that waits instead of computing (data/tune/card), driven by the real AutoTuner on a CPU.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import flashinfer_tune as module
import flashinfer_tuning
import pytest
from ansible.module_utils import flashinfer_probe
from ansible.module_utils import flashinfer_tuner as tuner
from helpers import run_module
from test_flashinfer_tuning import CARD, CONFIG
from test_flashinfer_tuning_releases import Node, download

pytestmark = pytest.mark.slow

DATA = Path(__file__).parent / "data/tune/card"
STAND_IN = {"op": "bmm_fp8", "batch": 1, "n": 8, "k": 8, "max_tokens": 12}


class Tuned(Node):
    """A release whose bmm_fp8 is the stand-in."""

    def __init__(self, folder: Path, flashinfer: str, behaviour: str, sglang: str = "0.5.23") -> None:
        super().__init__(folder, flashinfer, sglang)
        self.out = folder / "out"
        self.environment["PYTHONPATH"] = f"{DATA}:{self.site}:{self.environment['PYTHONPATH'].rpartition(':')[2]}"
        self.environment["TEST_STAND_IN"] = behaviour

    def tune(self, capsys: pytest.CaptureFixture[str], **more: Any) -> dict[str, Any]:
        environment = {**self.environment, "HOME": str(self.folder), **more.pop("environment", {})}
        args = {"operations": [STAND_IN], "rounds": 1, "name": "stand-in", "profile": "none", "by": "a test", **more}
        return run_module(
            module, capsys, python=self.python, out=str(self.out), environment=environment,
            user="root" if os.geteuid() == 0 else "", **args,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("flashinfer", "kind", "file"),
    [
        ("0.6.3", "auto", CONFIG + ".py"),
        ("0.6.12", "auto", "rank.json"),
        ("0.6.12", "python_configs", CONFIG + ".py"),
        ("0.7.2", "auto", "rank.json"),
        ("0.7.2", "python_configs", CONFIG + ".py"),
    ],
)
def test_what_is_made_is_found_by_the_versions_own_reader(
    flashinfer: str, kind: str, file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # 0.6.3 is of the time before SGLang handed a cache over.
    node = Tuned(tmp_path, flashinfer, "gain", "0.5.9" if flashinfer == "0.6.3" else "0.5.23")
    done = node.tune(capsys, kind=kind, rounds=2 if flashinfer == "0.6.12" else 1)
    assert done["made"], done.get("msg") or done["why"]
    assert done["gain"]["percent"] > 50, "a quarter of the time, and what a call costs besides"
    points = [(shape["tokens"], shape["bucket"]) for shape in done["shapes"]]
    assert points == [(1, True), (2, True), (3, False), (4, True), (6, False), (8, True), (10, False), (12, False)]
    assert all(shape["hit"] and shape["ratio"] > 1.5 and not shape["error"] for shape in done["shapes"])
    if (flashinfer, kind) == ("0.7.2", "python_configs"):
        # It asks for every runner in turn, and logs of the first that it is not in the module.
        assert (done["verdict"], len(done["fallbacks"])) == ("partial", 1)
    else:
        assert (done["verdict"], done["fallbacks"]) == ("loaded", [])
    assert list(done["files"]) == [file]
    text = done["files"][file]
    # 12 tokens are looked up under 8 here, under 16 elsewhere: both are there.
    buckets = [f"((1, {tokens}, 8), (1, 8, 8), (1, -1, 8))" for tokens in (1, 2, 4, 8, 16)]
    assert all(bucket in text for bucket in buckets)

    forms = flashinfer_probe.flashinfer_forms(str(download(flashinfer) / "flashinfer"))
    if file == "rank.json":
        assert flashinfer_tuning.cache_faults(json.loads(text), forms) == ([], 5)
    else:
        configs = flashinfer_tuning.read_python(text)
        assert len(configs) == 5 and flashinfer_tuning.python_faults(configs, forms) == []
        assert all(("StandInSecond" if flashinfer == "0.7.2" else "StandInFirst") in key for key in configs)
    artefact = done["artefact"]
    assert (artefact["device"], artefact["versions"]["flashinfer"]) == (CARD, flashinfer)

    # Another fresh process finds every bucket, as the module flashinfer_tuning asks.
    runner = "StandInSecond" if "StandInSecond" in text else "StandInFirst"
    lookups = [["stand_in_that_waits", runner, ast.literal_eval(bucket)] for bucket in buckets]
    if file == "rank.json":
        told = node.ask({}, load=[str(node.out / file)], lookups=lookups)
    else:
        (node.site / "flashinfer/tuning_configs" / file).write_text(text)
        told = node.ask({"FLASHINFER_AUTOTUNER_LOAD_FROM_FILE": "1"}, lookups=lookups)
    assert [found[0] for found in told["found"]] == [True] * 5
    assert {found[2] for found in told["found"]} == {1}, "the tactic that takes a quarter of the time"

    again = node.tune(capsys, kind=kind, rounds=2 if flashinfer == "0.6.12" else 1)
    assert again["changed"] is False and again["artefact"] == artefact


@pytest.mark.parametrize(
    ("flashinfer", "behaviour", "why"),
    [
        ("0.6.3", "none", "no gain"),
        ("0.7.2", "none", "no gain"),
        ("0.6.12", "invalid", "nothing was tuned"),
        (
            "0.6.12",
            "narrow",
            "with the file bmm_fp8 (batch=1, n=8, k=8) at 3 tokens: Requested tactic 1 but only 0 algorithms",
        ),
        ("0.6.12", "moving", "fell back: this version's own reader does not find 6 shapes in the file"),
    ],
)
def test_what_brings_nothing_is_not_made(
    flashinfer: str, behaviour: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # With all tactics alike the figures differ by what the machine does besides.
    done = Tuned(tmp_path, flashinfer, behaviour).tune(
        capsys, min_gain=15.0, operations=[{**STAND_IN, "max_tokens": 8}]
    )
    assert not done.get("failed"), done["msg"]
    assert done["made"] is False and done["why"].startswith(why), done["why"]
    assert (done["files"], done["artefact"]) == ({}, {})
    if behaviour == "moving":
        assert [one["op"] for one in done["fallbacks"]] == ["stand_in_that_waits"]
        assert done["verdict"] == "partial", "loaded, and yet it fell back"


@pytest.mark.parametrize(
    ("flashinfer", "behaviour", "words"),
    [
        ("0.6.3", "memory", "memory ran out in bmm_fp8 (batch=1, n=8, k=8) at 8 tokens (stand_in_that_waits)"),
        ("0.7.2", "memory", "memory ran out in bmm_fp8 (batch=1, n=8, k=8) at 8 tokens (stand_in_that_waits)"),
        ("0.6.3", "dead", "A tactic ended the process: bmm_fp8 (batch=1, n=8, k=8) at 1 tokens (stand_in_that_waits), tactic 2"),
        ("0.6.12", "dead", "illegal memory access"),
        ("0.6.12", "signal", "A tactic ended the process: stand_in_that_waits at 1 tokens, tactic 2 (SIGSEGV"),
        ("0.6.12", "build", "the kernels of bmm_fp8 (batch=1, n=8, k=8) at 16 tokens: /src/gemm.cu(12): error: identifier"),
        ("0.6.12", "narrow", "does not run bmm_fp8 (batch=1, n=8, k=8) at 12 tokens on this card: ValueError: Requested"),
        ("0.6.12", "", "has no bmm_fp8"),
    ],
)  # fmt: skip
def test_failures_are_told(
    flashinfer: str, behaviour: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Tuned(tmp_path, flashinfer, behaviour)
    done = node.tune(capsys)
    assert done.get("failed") and words in done["msg"], done.get("msg")
    assert [path.name for path in node.out.iterdir()] == [".work"], (
        "its logs stay, and nothing that looks like an artefact"
    )


def test_a_card_that_is_used_or_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = Tuned(tmp_path, "0.6.12", "gain")
    done = node.tune(capsys, environment={"TEST_USED_GIB": "80"})
    assert "80.0 of the card's 96.0 GiB are in use" in done["msg"] and "CUDA_VISIBLE_DEVICES" in done["msg"]
    done = node.tune(capsys, environment={"TEST_CARDS": "[]"})
    assert "torch sees no GPU" in done["msg"]


def test_a_cache_where_flashinfer_has_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = Tuned(tmp_path, "0.6.3", "gain").tune(capsys, kind="autotune_cache")
    assert "FlashInfer 0.6.3 keeps no cache: it begins with 0.6.7. Make python_configs here." in done["msg"]


MOE = {
    "op": "cutlass_fused_moe",
    "experts": 8,
    "hidden": 6144,
    "intermediate": 256,
    "top_k": 2,
    "tp_size": 8,
    "max_tokens": 64,
}
FP4 = {"op": "mm_fp4", "n": 4608, "k": 6144, "backend": "cutlass", "max_tokens": 64}


def arguments_of(path: Path, function: str) -> set[str]:
    """The parameters of a function of a module, the last of that name, which is the one that is called."""
    found = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.FunctionDef) and n.name == function]
    return {argument.arg for argument in (*found[-1].args.args, *found[-1].args.kwonlyargs)}


@pytest.mark.parametrize("flashinfer", ["0.6.3", "0.6.12", "0.7.2"])
def test_inputs_are_those_of_the_engines_call(flashinfer: str, tmp_path: Path) -> None:
    """GLM-5 with TP 8, its experts fewer here: the shapes that a key of the engine has."""
    node = Tuned(tmp_path, flashinfer, "gain")
    done = subprocess.run(
        [node.python, "-B", str(DATA.parent / "inputs.py"), str(Path(tuner.__file__).parent)],
        input=json.dumps([MOE, {**MOE, "input": "nvfp4"}, FP4]),
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **node.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    moe, packed, fp4 = json.loads(done.stdout)
    assert moe["input"] == [[64, 6144], "bfloat16"] and moe["input_sf"] is None
    assert moe["fc1_expert_weights"] == [[8, 512, 384], "int64"]
    assert moe["fc2_expert_weights"] == [[8, 6144, 16], "int64"]
    assert moe["token_selected_experts"] == [[64, 2], "int32"]
    assert [scale[0] for scale in moe["quant_scales"]] == [[], [8, 512, 96], [8], [], [8, 6144, 4], [8]]
    assert moe["quant_scales"][1][1] == "int32" and moe["tune_max_num_tokens"] == 64
    assert packed["input"] == [[64, 3072], "uint8"] and packed["input_sf"] is not None
    assert fp4["args"][:5] == [
        [[64, 3072], "uint8"],
        [[3072, 4608], "uint8"],
        [[128, 384], "uint8"],
        [[384, 4608], "float8_e4m3fn"],
        [[], "float32"],
    ]
    assert fp4["backend"] == "cutlass"
    sources = download(flashinfer) / "flashinfer"
    assert set(moe) - {"op"} <= arguments_of(sources / "fused_moe/core.py", "cutlass_fused_moe")
    assert {"backend", "alpha"} <= arguments_of(sources / "gemm/gemm_base.py", "mm_fp4")
    assert {"A_scale", "out", "backend"} <= arguments_of(sources / "gemm/gemm_base.py", "bmm_fp8")
