"""The module flashinfer_tuning: what it judges, writes, refuses and heals, with the release's answer given."""

from __future__ import annotations

import errno
import json
import os
import pwd
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flashinfer_tuning as module
import pytest
import yaml
from helpers import run_module

DATA = Path(__file__).parent / "data/tuning"
ROOT = Path(__file__).resolve().parents[2]
CARD = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
WORKSTATION = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"
CONFIG = "v0_1_trtllm_fused_moe_" + CARD.replace(" ", "_")
SHAPES = "((64, 3584), (256, 512, 448), (0,), (256, 7168, 16), (0,))"
ENGINE = {
    "model_path": "/models/k2",
    "dtype": "bfloat16",
    "quantization": "modelopt_fp4",
    "moe_runner_backend": "flashinfer_cutlass",
    "ep": 1,
    "config_class": "DeepseekV3Config",
    "skip_ops": [],
    "draft": False,
}
MOE = {
    "1": {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 1, "num_warps": 4, "num_stages": 3},
    "64": {"BLOCK_SIZE_M": 32, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 8},
}  # fmt: skip
MOE_NAME = f"E=256,N=256,device_name={CARD.replace(' ', '_')},dtype=fp8_w8a8,block_shape=[128, 128].json"
BLOCKLIST = {"invalid_tactics": {"trtllm::fused_moe::gemm1::MoERunner": [3, [1, 2]]}}
METADATA = {"flashinfer_version": "0.6.12", "cuda_version": "13.0", "cublas_version": "13.1.0", "gpu": CARD}
RANKS = [f"rank_tp{rank}_pp0_dp0.json" for rank in range(8)]


def key_text(parts: int = 3, tokens: int = 64) -> str:
    shapes = SHAPES.replace("((64,", f"(({tokens},")
    return f"('trtllm::fused_moe::gemm1', 'MoERunner', {shapes}{', ()' if parts == 4 else ''})"


def python_text(parts: int = 3, tokens: int = 64) -> str:
    return f'"""Tuned."""\n\nbest_configs = {{\n    "{key_text(parts, tokens)}": (0, 5),\n}}\n'


def cache_text(metadata: dict[str, Any] | None = None, parts: int = 3, tactic: Any = 5, **more: Any) -> str:
    entries = {key_text(parts): ["MoERunner", tactic]}
    return json.dumps({"_metadata": metadata or METADATA, **entries, **more}, indent=2)


def artefact_of(kind: str, text: str, name: str = CONFIG + ".py", **versions: Any) -> tuple[dict, dict[str, str]]:
    """(artefact.yml, files) with the hash of its only file."""
    artefact: dict[str, Any] = {
        "name": "k2-moe",
        "kind": kind,
        "device": CARD,
        "compute_capability": "12.0",
        "driver": "580.126.09",
        "versions": versions,
        "profile": "kimi_k25",
        "made": {"by": "a person", "at": "2026-11-30", "how": "by hand"},
        "gain": {"what": "gemm1 at 64 tokens, ms", "before": 2.0, "after": 1.6, "percent": 20},
        "files": {name: module.sha256(text)},
    }
    if kind == "autotune_cache":
        artefact["ranks"] = {"tp": 8, "pp": 1, "dp": 1, "dp_attention": False}
    return artefact, {name: text}


class Node:
    """A release and its cards, whose answer is given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = folder / "venv/lib/python3.12/site-packages"
        self.configs = self.site / "flashinfer/tuning_configs"
        self.configs.mkdir(parents=True)
        self.python = folder / "venv/bin/python"
        self.python.parent.mkdir()
        self.python.touch()
        (self.site / "flashinfer/core.py").write_text("class MoERunner(TunableRunner):\n    pass\n")
        self.moe = self.site / "sglang/srt/layers/moe/moe_runner/triton_utils"
        (self.moe / "configs/triton_3_6_0").mkdir(parents=True)
        parts = [f"str(mr.{name})" for name in ("dtype", "tp_size", "pp_size", "dp_size", "moe_ep_size")]
        self.answer: dict[str, Any] = {
            "versions": {"flashinfer": "0.6.12", "sglang": "0.5.15.post1", "torch": "2.9.1", "triton": "3.6.0"},
            "devices": [{"name": CARD, "capability": "12.0"}] * 8,
            "driver": "580.126.09",
            "flashinfer": {
                "folder": str(self.site / "flashinfer"), "version": "0.6.12", "key_parts": 3, "python_configs": True,
                "file_first": False, "json": True, "fields": 2, "reserved": ["_metadata"], "skips_cudnn_numbers": False,
                "blocklist": False, "compound": True, "config_module": f"flashinfer.tuning_configs.{CONFIG}",
                "metadata": METADATA,
            },
            "cache": {
                "source": "model_executor/runner/flashinfer_autotune.py", "agree": False, "layout": module.LAYOUT,
                "key": module.HASH, "rank": "f'rank_tp{mr.tp_rank}_pp{mr.pp_rank}_dp{mr.dp_rank or 0}.json'",
                "draft_parts": [],
                "parts": ["str(server_args.model_path)", "str(server_args.quantization)", *parts,
                          "str(server_args.moe_runner_backend)", "str(mr.model_config.hf_config.__class__.__name__)"],
            },
            "moe_folder": str(self.moe),
            "sglang_folder": str(self.site / "sglang"),
        }  # fmt: skip
        self.asked = 0

    def as_of(self, version: str, **forms: Any) -> None:
        self.answer["versions"]["flashinfer"] = version
        self.answer["flashinfer"].update(version=version, **forms)

    @property
    def config(self) -> Path:
        return self.configs / f"{CONFIG}.py"


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    there = Node(tmp_path)

    def ask(self: Any, question: str) -> dict:
        there.asked += 1
        return json.loads(json.dumps(there.answer))

    monkeypatch.setattr(module.Release, "ask", ask)
    monkeypatch.setattr(module, "driver", lambda: there.answer["driver"])
    monkeypatch.setattr(module, "account", lambda *_names: pwd.getpwuid(os.geteuid()))
    return there


class Run:
    def __init__(self, node: Node, capsys: pytest.CaptureFixture[str]) -> None:
        self.node = node
        self.capsys = capsys

    def __call__(self, given: tuple[dict, dict], check: bool = False, **more: Any) -> dict[str, Any]:
        artefact, files = given
        more = {"folder": str(self.node.folder / "own"), "cache_dir": str(self.node.folder / "cache"), **more}
        if artefact["kind"] == "autotune_cache":
            more = {"engine": ENGINE, **more}
        return run_module(
            module, self.capsys, check=check, python=str(self.node.python), artefact=artefact, files=files, **more
        )

    def refusal(self, given: tuple[dict, dict], **more: Any) -> str:
        before = tree(self.node.folder)
        done = self(given, **more)
        assert (done.get("failed"), done["changed"]) == (True, False), done
        assert tree(self.node.folder) == before, "a refusal changes nothing"
        return done["msg"]


@pytest.fixture
def run(node: Node, capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(node, capsys)


def tree(folder: Path) -> dict[str, bytes | None]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def configs(text: str = "", name: str = CONFIG + ".py") -> tuple[dict, dict]:
    return artefact_of("python_configs", text or python_text(), name, flashinfer="0.6.12")


def cache(text: str = "") -> tuple[dict, dict]:
    return artefact_of("autotune_cache", text or cache_text(), "rank.json", flashinfer="0.6.12")


def by_rank(*texts: str) -> tuple[dict, dict]:
    artefact, _ = cache()
    files = dict(zip(RANKS, texts, strict=True))
    return {**artefact, "files": {name: module.sha256(text) for name, text in files.items()}}, files


def triton(found: Any = None, name: str = MOE_NAME, version: str = "3.6.0") -> tuple[dict, dict]:
    text = found if isinstance(found, str) else json.dumps(found or MOE)
    return artefact_of("triton_moe", text, name, triton=version)


def blocklist(text: str = "") -> tuple[dict, dict]:
    text = text or json.dumps({"_metadata": {**METADATA, "flashinfer_version": "0.7.2"}, **BLOCKLIST})
    return artefact_of("tactics_blocklist", text, "list.json", flashinfer="0.7.2")


# --- installed, again, looked at, removed


CASES: dict[str, tuple[Callable[[], tuple[dict, dict]], dict[str, str], int]] = {
    "python_configs": (configs, {"FLASHINFER_AUTOTUNER_LOAD_FROM_FILE": "1"}, 1),
    "autotune_cache": (cache, {"SGLANG_CACHE_DIR": "{}/cache"}, 8),
    "triton_moe": (triton, {"SGLANG_MOE_CONFIG_DIR": "{}/own/moe"}, 1),
    "tactics_blocklist": (blocklist, {"FLASHINFER_TACTICS_BLOCKLIST": "{}/own/tactics_blocklist.json"}, 1),
}


@pytest.mark.parametrize("kind", CASES)
def test_there_and_back(kind: str, node: Node, run: Run) -> None:
    given, environment, count = CASES[kind]
    if kind == "tactics_blocklist":
        node.as_of("0.7.2", key_parts=4, blocklist=True, metadata={**METADATA, "flashinfer_version": "0.7.2"})
    before = tree(node.folder)
    would = run(given(), check=True, _ansible_diff=True)
    assert (would["changed"], would["status"], tree(node.folder)) == (True, "not_installed", before)
    done = run(given(), _ansible_diff=True)
    assert done["changed"] and done["diff"] == would["diff"], done.get("msg")
    assert done["environment"] == {name: value.format(node.folder) for name, value in environment.items()}
    files = [place["path"] for place in done["places"]]
    (text,) = given()[1].values()
    assert [Path(path).read_text() for path in files[:-1]] == [text] * count
    assert json.loads(Path(files[-1]).read_text())["made"]["by"] == "a person"
    assert all(os.stat(path).st_mode & 0o777 == 0o644 for path in files)
    assert not [path for path in tree(node.folder) if module.PREFIX in path]
    again = run(given(), _ansible_diff=True)
    assert (again["changed"], again["status"], again["diff"]) == (False, "installed", [])
    seen = run(given(), state="inspected")
    assert (seen["changed"], seen["status"], seen["problems"]) == (False, "installed", [])
    would = run(given(), check=True, state="absent")
    assert would["changed"] and Path(files[0]).exists()
    gone = run((given()[0], {}), state="absent")
    assert (gone["changed"], gone["environment"]) == (True, {})
    assert not any(Path(path).exists() for path in files)
    assert run((given()[0], {}), state="absent")["changed"] is False


def test_a_hard_link_is_not_written_through(node: Node, run: Run) -> None:
    elsewhere = node.folder / "uv"
    elsewhere.write_text("best_configs = {}\n")
    os.link(elsewhere, node.config)
    node.configs.joinpath("__pycache__").mkdir()
    stale = node.configs / f"__pycache__/{CONFIG}.cpython-312.pyc"
    stale.touch()
    done = run(configs())
    assert (done["status"], done["changed"], elsewhere.read_text()) == ("outdated", True, "best_configs = {}\n")
    assert node.config.read_text() == python_text() and not stale.exists()


def test_the_answer_is_kept_with_what_it_depends_on(node: Node, run: Run) -> None:
    kept: dict[str, Any] = {"answers": str(node.folder / "answers.json")}
    assert [run(configs(), **kept)["asked"] for _ in range(3)] == [True, False, False]
    assert run(configs(), environment={"CUDA_VISIBLE_DEVICES": "0"}, **kept)["asked"] is True
    (node.site / "torch-2.10.0.dist-info").mkdir()
    assert run(configs(), **kept)["asked"] is True
    (node.folder / "answers.json").write_text('{"cut')
    assert run(configs(), **kept)["asked"] is True
    assert node.asked == 4


def test_before_the_release_is_built(node: Node, run: Run) -> None:
    node.python.unlink()
    assert (run(configs(), check=True)["status"], node.asked) == ("no_release", 0)
    assert "built before it can be asked" in run.refusal(configs())
    assert run(configs(), state="inspected")["status"] == "no_release"


# --- what does not fit, with both sides


def test_another_card(node: Node, run: Run) -> None:
    node.answer["devices"] = [{"name": WORKSTATION, "capability": "12.0"}]
    node.answer["flashinfer"]["config_module"] = (
        f"flashinfer.tuning_configs.v0_1_trtllm_fused_moe_{WORKSTATION.replace(' ', '_')}"
    )
    told = run.refusal(configs())
    assert f"for {CARD}, and the node has {WORKSTATION}" in told and "looks for v0_1_trtllm_fused_moe" in told
    assert f"has {WORKSTATION.replace(' ', '_')}" in run.refusal(triton())


def test_mixed_cards(node: Node, run: Run) -> None:
    node.answer["devices"] = [{"name": CARD, "capability": "12.0"}] * 3 + [{"name": "NVIDIA H200", "capability": "9.0"}]
    told = run.refusal(configs())
    assert f"mixed (3 x {CARD}, 1 x NVIDIA H200)" in told and "compute capability 12.0, and the node has 9.0" in told


def test_no_card(node: Node, run: Run) -> None:
    node.answer["devices"] = []
    node.answer["flashinfer"].pop("config_module")
    assert "sees no GPU" in run.refusal(configs())
    assert "cannot be said" in run.refusal((configs()[0], {}), state="absent")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (artefact_of("python_configs", python_text(), flashinfer="0.6.3"), "with flashinfer 0.6.3, and the release has 0.6.12"),
        (triton(version="3.5.1"), "made with triton 3.5.1, and the release has 3.6.0"),
        (artefact_of("python_configs", python_text(), triton="3.6.0"), "do not say which flashinfer"),
        (({**configs()[0], "gain": None}, configs()[1]), "does not say what it gains"),
        (({**configs()[0], "gain": {"what": "ms", "before": 1, "after": 1.1, "percent": -10}}, configs()[1]), "1 before and 1.1"),
        ((configs()[0], {CONFIG + ".py": python_text()[:-20]}), "SHA-256"),
        ((configs()[0], {}), "nothing to install"),
        (({**configs()[0], "files": {}}, configs()[1]), "artefact.yml does not name it"),
        (configs(name="v0_1_trtllm_fused_moe_NVIDIA_B200.py"), "looks for v0_1_trtllm_fused_moe_NVIDIA_RTX"),
        (blocklist(), "begins with 0.6.15"),
    ],
)  # fmt: skip
def test_other_versions_and_provenance(given: tuple[dict, dict], told: str, run: Run) -> None:
    assert told in run.refusal(given)


def test_what_differs_and_decides_nothing_is_said(node: Node, run: Run) -> None:
    artefact, files = artefact_of("python_configs", python_text(), flashinfer="0.6.12", torch="2.8.0")
    done = run(({**artefact, "driver": "570.1.2"}, files))
    assert done["changed"]
    assert done["notes"] == [
        "The artefact was made with torch 2.8.0, and the release has 2.9.1.",
        "The artefact was made with driver 570.1.2, and the node has 580.126.09.",
    ]


def test_runners_that_this_version_lacks(node: Node, run: Run) -> None:
    (node.site / "flashinfer/core.py").write_text("class OtherRunner:\n    pass\n")
    assert "tactics of MoERunner, and no source of the installed FlashInfer 0.6.12" in run.refusal(configs())
    (node.site / "sglang/runner.py").write_text("    class MoERunner(TunableRunner):\n        pass\n")
    assert run(configs())["changed"], "SGLang has runners too"


def test_two_ways_at_once(node: Node, run: Run) -> None:
    assert run(configs(), autotune=True)["runtime_read"] is True
    node.as_of("0.6.4", file_first=True, compound=False, json=False)
    given = artefact_of("python_configs", python_text(), flashinfer="0.6.4")
    assert "never reads what that finds" in run.refusal(given, autotune=True)
    done = run(given, autotune=False)
    assert done["runtime_read"] is False and "reads the file alone" in done["notes"][0]
    assert "keeps no cache" in run.refusal(artefact_of("autotune_cache", cache_text(), "rank.json", flashinfer="0.6.4"))


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"autotune": False}, "nothing else reads its cache"),
        ({"environment": {"SGLANG_FLASHINFER_AUTOTUNE_CACHE": "0"}}, "is off in the unit's environment"),
        ({"environment": {"SGLANG_CACHE_DIR": "/elsewhere"}}, "has SGLANG_CACHE_DIR=/elsewhere"),
        ({"engine": {**ENGINE, "dtype": "auto"}}, "expected the resolved one"),
        ({"engine": {"quantization": "fp8"}}, "engine lacks model_path, moe_runner_backend, config_class"),
        ({"engine": {"key": "tp0"}}, "expected 16 hex digits"),
        ({"engine": {**ENGINE, "moe_runner_backend": "flashinfer_megamoe"}}, "by each card's UUID"),
    ],
)  # fmt: skip
def test_a_cache_that_nothing_would_read(more: dict, told: str, run: Run) -> None:
    assert told in run.refusal(cache(), **more)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"parts": ["str(mr.colour)"] * 9}, "makes the cache's key of str(mr.colour)"),
        ({"parts": []}, "in another way"),
        ({"layout": "Path('/tmp')"}, "computes the cache's folder in a way"),
        ({"key": "'k'"}, "computes the cache's key in a way"),
        ({"rank": "f'rank_{mr.gpu}'"}, "names a rank's file f'rank_{mr.gpu}'"),
    ],
)  # fmt: skip
def test_an_sglang_that_computes_the_path_otherwise(change: dict, told: str, node: Node, run: Run) -> None:
    node.answer["cache"].update(change)
    assert told in run.refusal(cache())


def test_an_sglang_without_a_cache(node: Node, run: Run) -> None:
    node.answer["cache"] = None
    node.answer["versions"]["sglang"] = "0.5.11"
    assert "SGLang 0.5.11 hands no cache" in run.refusal(cache())
    gone = run((cache()[0], {}), state="absent")
    assert (gone["changed"], gone["message"]) == (False, "Nothing is there.")


# --- contents


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("best_configs = {", "is no Python: line 1"),
        ("import os\nbest_configs = {}\n", "runs code in line 1"),
        ("best_configs = dict(a=1)\n", "no literal in line 1"),
        ("best_configs = {}\n", "no best_configs"),
        ("x = 1\n", "no best_configs"),
        ("\0", "is no Python"),
        (python_text().replace("(0, 5)", "(0, 'fast')"), "'fast' is neither a number nor a tuple"),
        (python_text().replace("(0, 5)", "(0, True)"), "True is neither"),
        (python_text().replace("(0, 5)", "(0, -2)"), "is below -1"),
        (python_text().replace("(0, 5)", "(-1, 5)"), "no number from 0 on"),
        (python_text().replace("(0, 5)", "5"), "is not (runner, tactic)"),
        (python_text().replace("(64, 3584)", "(64,3584)"), "is never found: it is looked up as"),
        (python_text().replace("(64, 3584)", "('m', 3584)"), "no tuple of sizes"),
        (python_text().replace("(64, 3584)", "(64, 3584"), "does not parse"),
        (python_text(4), "has 4 parts and the installed FlashInfer looks up 3"),
        (python_text().replace("'MoERunner', ", ""), "is not (operation, runner, shapes)"),
        (python_text() + "best_configs = 3\n", "no best_configs"),
        (python_text().replace("(0, 5),\n", f'(0, 5),\n    "{key_text()}": (0, 6),\n'), "has a key twice"),
    ],
)  # fmt: skip
def test_python_that_is_refused(text: str, told: str, run: Run) -> None:
    assert told in run.refusal(configs(text))


def test_a_tactic_that_is_a_tuple_where_the_version_has_numbers(node: Node, run: Run) -> None:
    text = python_text().replace("(0, 5)", "(0, (128, 1, 2))")
    assert run(configs(text))["entries"] == 1
    node.as_of("0.6.12", compound=False)
    assert "(128, 1, 2) is no number" in run.refusal(configs(text))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (cache_text()[:-12], "It was cut"),
        ("[]", "is no JSON object"),
        ("{}", "no _metadata"),
        (json.dumps({"_metadata": METADATA}), "holds no tuned choice"),
        (cache_text({**METADATA, "gpu": "NVIDIA H200"}), f"its gpu is NVIDIA H200, the node's is {CARD}"),
        (cache_text({**METADATA, "gpu": "NVIDIA H200"}), f"was made on NVIDIA H200, and artefact.yml says {CARD}"),
        (cache_text({**METADATA, "flashinfer_version": "0.6.11"}), "its flashinfer_version is 0.6.11, the node's is 0.6.12"),
        (cache_text({"gpu": CARD}), "its cublas_version is missing, the node's is 13.1.0"),
        (cache_text(tactic="5"), "the tactic '5' is neither a number"),
        (cache_text(tactic=None), "the tactic None"),
        (cache_text(parts=4), "has 4 parts and the installed FlashInfer looks up 3"),
        (cache_text(_generation="0" * 64), "_generation is of another version"),
        (cache_text().replace('"MoERunner",', '"GemmRunner",'), "'GemmRunner' is not the one of its key"),
        (cache_text().replace("5\n", "5, [1]\n"), "is not [runner, tactic]"),
        ('{"a": 1, "a": 2}', "has a key twice"),
    ],
)  # fmt: skip
def test_caches_that_are_refused(text: str, told: str, run: Run) -> None:
    assert told in run.refusal(cache(text))


def test_a_wildcard_is_the_loaders_own(run: Run) -> None:
    assert run(cache(cache_text(dict.fromkeys(METADATA, "*"))))["changed"]


def test_later_versions_have_more_in_an_entry(node: Node, run: Run) -> None:
    node.as_of(
        "0.6.12", fields=3, key_parts=4, skips_cudnn_numbers=True, reserved=["_metadata", "_records", "_generation"]
    )
    text = cache_text(parts=4, _generation="ab", _records={}).replace("5\n", '5, ["cold"]\n')
    assert run(cache(text))["entries"] == 1
    assert "skips cuDNN tactics" in run.refusal(cache(text.replace("MoERunner", "CudnnFp4GemmRunner")))


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({"a": MOE["1"]}, "'a' is no number"),
        ({"1": {**MOE["1"], "BLOCK_SIZE_M": "16"}}, "BLOCK_SIZE_M='16', expected numbers"),
        ({"1": {"BLOCK_SIZE_M": 16}}, "lacks BLOCK_SIZE_N, BLOCK_SIZE_K, GROUP_SIZE_M"),
        ({"1": 3}, "are no object"),
        ("{", "is no JSON"),
    ],
)  # fmt: skip
def test_triton_configurations_that_are_refused(found: Any, told: str, run: Run) -> None:
    assert told in run.refusal(triton(found))


@pytest.mark.parametrize("name", ["moe.json", MOE_NAME.replace("fp8_w8a8", "fp8"), MOE_NAME.replace(", 128", ",128")])
def test_names_that_sglang_never_looks_for(name: str, run: Run) -> None:
    assert "is no name that SGLang looks for" in run.refusal(triton(name=name))


def test_the_files_name_is_judged_too(run: Run) -> None:
    name = MOE_NAME.replace("Server", "Workstation")
    assert "Workstation_Edition, and artefact.yml says NVIDIA_RTX_PRO_6000_Blackwell_Server" in run.refusal(
        triton(name=name)
    )


def test_blocks_of_up_and_down_must_agree(run: Run) -> None:
    artefact, files = triton()
    name = MOE_NAME.replace(".json", "_down.json")
    down = json.dumps({"16": {**MOE["1"], "BLOCK_SIZE_M": 64}})
    told = run.refusal(({**artefact, "files": {**artefact["files"], name: ""}}, {**files, name: down}))
    assert "at batch size 1 BLOCK_SIZE_M is 16 and in the _down file 64" in told


def test_a_real_configuration_of_this_card(run: Run) -> None:
    """By Lukasz Magiera (glm-kimi-sm120-rtx6000bw, MIT licence); the wheel ships the same form."""
    (path,) = DATA.glob("E=*.json")
    assert run(triton(path.read_text(), path.name))["entries"] == 18


def test_a_real_cache(node: Node, run: Run) -> None:
    """As FlashInfer 0.6.12 wrote it on an H200."""
    text = (DATA / "h200-flashinfer-0.6.12.json").read_text()
    artefact, files = cache(text)
    told = run.refusal((artefact, files))
    assert f"its gpu is NVIDIA H200, the node's is {CARD}" in told and "tactics of CublasFp8GemmRunner" in told
    node.answer["devices"] = [{"name": "NVIDIA H200", "capability": "9.0"}]
    node.answer["flashinfer"]["metadata"] = json.loads(text)["_metadata"]
    (node.site / "flashinfer/core.py").write_text("class CublasFp8GemmRunner(R):\n\nclass CudnnFp8GemmRunner(R):\n")
    artefact = {**artefact, "device": "NVIDIA H200", "compute_capability": "9.0"}
    done = run((artefact, files))
    assert (done["changed"], done["entries"]) == (True, 9)
    assert "/sm90/" in done["places"][0]["path"]


def test_never_in_a_package(node: Node, run: Run) -> None:
    assert "outside of every package" in run.refusal(triton(), folder=str(node.site / "sglang/own"))
    (node.folder / "link").symlink_to(node.site)
    assert "outside of every package" in run.refusal(triton(), folder=str(node.folder / "link/own"))


def test_shipped_files_that_an_own_folder_hides(node: Node, run: Run) -> None:
    other = MOE_NAME.replace("E=256", "E=257")
    for name in (MOE_NAME, other, MOE_NAME.replace("Server", "Workstation")):
        (node.moe / "configs/triton_3_6_0" / name).touch()
    done = run(triton())
    assert [Path(path).name for path in done["hidden"]] == [other]
    assert "no longer reads what it ships" in done["notes"][0]


def test_a_file_of_the_wheel_is_left_alone(node: Node, run: Run) -> None:
    node.config.write_text("best_configs = {}\n")
    record = node.site / "flashinfer_python-0.6.12.dist-info/RECORD"
    record.parent.mkdir()
    record.write_text(f"flashinfer/tuning_configs/{CONFIG}.py,sha256=x,1\n")
    assert "ships" in run.refusal(configs())
    run((configs()[0], {}), state="absent")
    assert node.config.exists()


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({"MoERunner": [1]}, "is not operation::Runner"),
        ({"op::MoERunner": 1}, "are no list"),
        ({"op::MoERunner": ["x"]}, "neither a number"),
        ({}, "no invalid_tactics"),
    ],
)  # fmt: skip
def test_blocklists_that_are_refused(found: dict, told: str, node: Node, run: Run) -> None:
    metadata = {**METADATA, "flashinfer_version": "0.7.2"}
    node.as_of("0.7.2", blocklist=True, metadata=metadata)
    assert told in run.refusal(blocklist(json.dumps({"_metadata": metadata, "invalid_tactics": found})))
    stale = json.dumps({"_metadata": {**metadata, "cuda_version": "12.8"}, **BLOCKLIST})
    assert "its cuda_version is 12.8, the node's is 13.0" in run.refusal(blocklist(stale))


# --- ranks


def test_ranks_that_agree_may_be_given_one_by_one(run: Run) -> None:
    assert run(by_rank(*[cache_text()] * 8))["changed"]
    assert run(cache())["changed"] is True, "the provenance is another"
    assert run(cache())["changed"] is False


def test_ranks_that_disagree(run: Run) -> None:
    told = run.refusal(by_rank(*[cache_text()] * 5, cache_text(tactic=6), *[cache_text()] * 2))
    assert "rank_tp0_pp0_dp0.json and rank_tp5_pp0_dp0.json disagree in 1 of 1 entries" in told
    assert "['MoERunner', 5] and ['MoERunner', 6]" in told and "as rank.json" in told


def test_a_rank_that_is_missing(run: Run) -> None:
    artefact, files = by_rank(*[cache_text()] * 8)
    for given in (artefact["files"], files):
        given.pop(RANKS[7])
    assert f"missing {RANKS[7]}" in run.refusal((artefact, files))


def test_stages_may_differ_and_dp_attention_has_its_own_names() -> None:
    two = {f"rank_tp{t}_pp{p}_dp0.json": {"k": p} for t in range(2) for p in range(2)}
    assert module.disagreements(two) == []
    ranks = {"tp": 4, "pp": 1, "dp": 2, "dp_attention": True}
    assert module.rank_names(ranks) == [f"rank_tp{t}_pp0_dp{t // 2}.json" for t in range(4)]
    assert len(module.rank_names({**ranks, "dp_attention": False})) == 8


# --- the engine's own additions, and what heals


def cache_files(node: Node) -> list[Path]:
    return sorted(node.folder.glob("cache/flashinfer/autotune/0.6.12/sm120/*/rank_*.json"))


def test_what_the_engine_added_stays(node: Node, run: Run) -> None:
    run(cache())
    for number, path in enumerate(cache_files(node)):
        more = json.loads(path.read_text())
        path.write_text(json.dumps({**more, key_text(tokens=128): ["MoERunner", number]}))
    before = tree(node.folder)
    done = run(cache())
    assert (done["changed"], done["status"], tree(node.folder)) == (False, "installed", before)
    assert {place["state"] for place in done["places"]} == {"more", "same"}
    # A release that drops all caches when one differs would lose the artefact.
    node.answer["cache"]["agree"] = True
    seen = run(cache(), state="inspected")
    assert seen["status"] == "broken" and "disagree" in seen["message"]
    done = run(cache())
    assert (done["status"], done["changed"]) == ("broken", True)
    assert {path.read_text() for path in cache_files(node)} == {cache_text()}


@pytest.mark.parametrize(
    "text",
    [
        cache_text()[:-20],
        "",
        cache_text({**METADATA, "gpu": "NVIDIA H200"}),
        json.dumps({"_metadata": METADATA}),
        "[1]",
    ],
)
def test_an_installed_cache_that_broke_is_healed(text: str, node: Node, run: Run) -> None:
    run(cache())
    cache_files(node)[2].write_text(text)
    assert run(cache(), state="inspected")["status"] in ("broken", "outdated")
    done = run(cache())
    assert (done["changed"], done["message"]) == (True, "1 of 8 files were written.")
    assert {path.read_text() for path in cache_files(node)} == {cache_text()}


def test_bytes_that_are_no_text_are_healed(node: Node, run: Run) -> None:
    node.config.write_bytes(b"\xff\xfe\x00")
    assert run(configs())["changed"] and node.config.read_text() == python_text()


# --- disks and rights


def full(*args: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk(node: Node, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run(cache())
    cache_files(node)[0].write_text("cut")
    before = tree(node.folder)
    monkeypatch.setattr(module.os, "fsync", full)
    done = run(cache())
    assert done["failed"] and f"No space is left below {cache_files(node)[0].parent} (" in done["msg"]
    assert "Nothing was changed" in done["msg"]
    assert tree(node.folder) == before
    before = tree(node.folder)
    assert run(triton())["failed"] and tree(node.folder) == before, "no empty folders are left either"


def test_a_rename_that_fails_half_way(node: Node, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run(cache())
    for path in cache_files(node):
        path.write_bytes(b"\xff{}")
        path.chmod(0o640)
    before, real = tree(node.folder), os.replace
    renamed: list[str] = []

    def replace(source: str, target: str) -> None:
        if len(renamed) == 3:
            renamed.append("")
            full()
        renamed.append(target)
        real(source, target)

    monkeypatch.setattr(module.os, "replace", replace)
    assert run(cache())["failed"]
    assert tree(node.folder) == before, "never half installed"
    assert {path.stat().st_mode & 0o777 for path in cache_files(node)} == {0o640}


def test_what_a_killed_run_left_is_removed(node: Node, run: Run) -> None:
    (node.configs / f"{module.PREFIX}4194999-abc").touch()
    run(configs())
    assert sorted(os.listdir(node.configs)) == [f"{CONFIG}.artefact.json", f"{CONFIG}.py"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
class TestAsAnotherUser:
    @pytest.fixture(autouse=True)
    def nobody(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> Any:
        who = pwd.getpwnam("nobody")
        monkeypatch.setattr(module, "account", lambda *_names: who)
        folder = node.folder
        while folder != Path("/"):  # pytest's own folders are closed to others
            if not folder.stat().st_mode & 0o001:
                folder.chmod(folder.stat().st_mode | 0o011)
            folder = folder.parent
        return who

    def test_the_cache_is_the_users_own(self, node: Node, run: Run, nobody: Any) -> None:
        cache_dir = node.folder / "cache"
        cache_dir.mkdir()
        before = tree(node.folder)
        done = run(cache())
        assert "Permission denied" in done["msg"] and tree(node.folder) == before
        os.chown(cache_dir, nobody.pw_uid, nobody.pw_gid)
        assert run(cache())["changed"]
        made = [*cache_dir.rglob("*")]
        assert {path.stat().st_uid for path in made} == {nobody.pw_uid}
        assert os.geteuid() == 0
        closed = cache_files(node)[4]
        os.chown(closed, 0, 0)
        closed.chmod(0o600)
        seen = run(cache(), state="inspected")
        assert (seen["status"], seen["places"][4]["why"]) == ("broken", f"nobody cannot read {closed}")
        assert run(cache())["changed"] and closed.stat().st_uid == nobody.pw_uid
        assert run((cache()[0], {}), state="absent")["changed"] and not closed.parent.exists()

    def test_a_file_that_only_root_reads_is_healed(self, node: Node, run: Run) -> None:
        run(configs())
        node.config.chmod(0o600)
        seen = run(configs(), state="inspected")
        assert seen["status"] == "broken" and f"nobody cannot read {node.config}" in seen["message"]
        assert run(configs())["changed"] and node.config.stat().st_mode & 0o777 == 0o644

    def test_a_folder_that_is_closed_is_named(self, node: Node, run: Run) -> None:
        own = node.folder / "own"
        own.mkdir(mode=0o700)
        told = run.refusal(triton())
        assert f"nobody cannot enter {own}" in told and "Open it to that user" in told

    def test_a_link_leads_root_nowhere(self, node: Node, run: Run, nobody: Any) -> None:
        """What the server's user makes of its own cache cannot turn a deployment against other files."""
        target = node.folder / "etc"
        target.mkdir()
        cache_dir = node.folder / "cache"
        cache_dir.mkdir()
        os.chown(cache_dir, nobody.pw_uid, nobody.pw_gid)
        (cache_dir / "flashinfer").symlink_to(target)
        assert "Permission denied" in run(cache())["msg"]
        assert list(target.iterdir()) == []


def test_a_text_that_became_an_object_is_said(run: Run) -> None:
    artefact, _ = triton()
    assert "came as dict, expected its text" in run.refusal((artefact, {MOE_NAME: MOE}))


def test_large_files_are_shown_by_their_hash() -> None:
    place = module.Place("/x", before="a" * 70000)
    shown = module.difference(place, "b\n")
    assert shown["before"].startswith("(70000 characters, SHA-256 ") and shown["after"] == "b\n"


# --- the repository of artefacts


def test_the_example_of_the_readme(run: Run) -> None:
    (text,) = re.findall(r"```yaml\n(name: .*?)```", (ROOT / "tuning/README.md").read_text(), re.DOTALL)
    artefact = yaml.safe_load(text)
    text = cache_text()
    artefact["files"] = {"rank.json": module.sha256(text)}
    node_versions = {"flashinfer": "0.7.2", "sglang": "0.5.23"}
    assert {name: artefact["versions"][name] for name in node_versions} == node_versions
    artefact["versions"] = {"flashinfer": "0.6.12"}
    assert run((artefact, {"rank.json": text}))["changed"]


def test_every_artefact_lies_where_it_belongs() -> None:
    """tuning/DEVICE/STACK/NAME/artefact.yml, and every file with the hash that is noted."""
    for path in (ROOT / "tuning").rglob("artefact.yml"):
        device, stack, name = path.relative_to(ROOT / "tuning").parts[:-1]
        artefact = yaml.safe_load(path.read_text())
        assert (module.underscored(artefact["device"]), artefact["name"]) == (device, name)
        assert (ROOT / "stacks" / stack).is_dir()
        assert {file: module.sha256((path.parent / file).read_text()) for file in artefact["files"]} == artefact[
            "files"
        ]
        assert {file.name for file in path.parent.iterdir()} == {"artefact.yml", *artefact["files"]}


# --- what the engine wrote


def nothing_yet() -> tuple[dict, dict]:
    """An artefact before it is collected and measured."""
    artefact, _ = cache()
    return {key: value for key, value in {**artefact, "files": {}}.items() if key != "gain"}, {}


def test_collected_is_what_can_be_installed(node: Node, run: Run) -> None:
    run(cache())
    before = tree(node.folder)
    done = run(nothing_yet(), state="collected")
    assert (done["changed"], done["entries"], tree(node.folder)) == (False, 1, before), done
    assert done["files"] == {"rank.json": cache_text()}
    artefact = {key: value for key, value in done["artefact"].items() if value is not None}
    assert artefact["files"] == {"rank.json": module.sha256(cache_text())}
    gained = {**artefact, "gain": cache()[0]["gain"]}
    assert run((gained, done["files"]))["changed"] is False


def test_ranks_that_tuned_alone_give_one_file(node: Node, run: Run) -> None:
    run(cache())
    cache_files(node)[3].write_text(cache_text(tactic=6))
    done = run(nothing_yet(), state="collected")
    assert done["files"] == {"rank.json": cache_text()}
    assert "The ranks tuned alone and differ; the file of rank_tp0_pp0_dp0.json is for all" in done["notes"][0]


def test_nothing_to_collect(node: Node, run: Run) -> None:
    assert "no rank tuned that far" in run.refusal(nothing_yet(), state="collected")
    artefact, _ = configs()
    assert "The engine writes no python_configs" in run.refusal(({**artefact, "files": {}}, {}), state="collected")
    run(cache())
    cache_files(node)[0].write_text("{")
    assert "is no JSON" in run.refusal(nothing_yet(), state="collected")
