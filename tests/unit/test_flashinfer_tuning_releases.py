"""What was installed is read: by the real autotuners of FlashInfer 0.6.3, 0.6.12 and 0.7.2, and by the real MoE lookup of SGLang.

FlashInfer's few files come from PyPI by pip and are kept in the user's cache, as SGLang's are. They run in the CPU environments of
tools/parsers, whose torch is real but for the card's name and capability.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import flashinfer_tuning as module
import helpers
import pytest
from ansible.module_utils import flashinfer_probe
from helpers import run_module
from test_flashinfer_tuning import BLOCKLIST, CARD, ENGINE, MOE, MOE_NAME, artefact_of, cache_text, python_text
from test_python_source_patch_releases import download as sglang_sources
from test_sglang_parser import parsers

pytestmark = pytest.mark.slow

DATA = Path(__file__).parent / "data/tuning"
KEPT = re.compile(
    r"flashinfer/(autotuner(/\w+)?|autotune_cache|tactics_blocklist)\.py$|flashinfer/tuning_configs/.*\.py$"
    # Where the runners are defined that the tests' keys name.
    r"|flashinfer/(fused_moe/core|gemm/gemm_base|gemm)\.py$|flashinfer_python-[^/]*\.dist-info/(METADATA|RECORD)$"
)
SHAPES = [[64, 3584], [256, 512, 448], [0], [256, 7168, 16], [0]]
MORE_SHAPES = [[128, 3584], *SHAPES[1:]]
GEMM1 = ("trtllm::fused_moe::gemm1", "MoERunner", SHAPES)


def download(version: str) -> Path:
    """The folder that holds the few files of a FlashInfer."""
    return helpers.download(f"flashinfer-python=={version}", f"flashinfer-{version}", KEPT)


@functools.cache
def python_of(sglang: str) -> str:
    """Not resolved: a venv's Python is a link."""
    return str(parsers().environment_of(f"sglang-cpu-{sglang}", []))


class Node:
    """A release of a FlashInfer, its files hard links, an SGLang's few files, and the torch of a CPU environment."""

    def __init__(self, folder: Path, flashinfer: str, sglang: str, cards: list[str] | None = None) -> None:
        self.site = folder / "site-packages"
        shutil.copytree(download(flashinfer), self.site, copy_function=os.link)
        self.flashinfer, self.sglang, self.folder = flashinfer, sglang, folder
        self.python = python_of("0.5.23")
        self.environment = {
            "PYTHONPATH": f"{DATA / 'card'}:{self.site}:{sglang_sources(sglang)}",
            "TEST_CARDS": json.dumps(cards or [CARD]),
            "TEST_FLASHINFER": flashinfer,
        }

    def install(self, capsys: pytest.CaptureFixture[str], artefact: dict, files: dict, **more: Any) -> dict[str, Any]:
        environment = {**self.environment, **more.pop("environment", {})}
        return run_module(
            module, capsys, python=self.python, artefact=artefact, files=files, environment=environment,
            user="root" if os.geteuid() == 0 else "", answers=str(self.folder / "answers.json"), **more,
        )  # fmt: skip

    def ask(self, environment: dict[str, str], **question: Any) -> dict[str, Any]:
        """The real lookup, in the environment that the module returned."""
        done = subprocess.run(
            [self.python, "-B", str(DATA / "lookup.py")],
            input=json.dumps(question),
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder), **self.environment, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return {**json.loads(done.stdout), "log": done.stderr}


def test_flashinfer_0_6_3_reads_the_module_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = Node(tmp_path, "0.6.3", "0.5.9")
    artefact, files = artefact_of("python_configs", python_text(), flashinfer="0.6.3")
    done = node.install(capsys, artefact, files)
    assert (done["changed"], done["status"], done["asked"]) == (True, "not_installed", True), done.get("msg")
    assert done["environment"] == {"FLASHINFER_AUTOTUNER_LOAD_FROM_FILE": "1"}
    path = node.site / f"flashinfer/tuning_configs/v0_1_trtllm_fused_moe_{CARD.replace(' ', '_')}.py"
    assert [place["path"] for place in done["places"]][0] == str(path)
    assert done["runtime_read"] is False and "reads the file alone" in done["notes"][0]
    again = node.install(capsys, artefact, files)
    assert (again["changed"], again["status"], again["asked"]) == (False, "installed", False)

    missing = ("trtllm::fused_moe::gemm1", "MoERunner", [[4096, 3584], *SHAPES[1:]])
    told = node.ask(done["environment"], lookups=[GEMM1, missing], profiled=[0, 9])
    assert told["file"] == str(node.site / "flashinfer/autotuner.py")
    assert told["found"] == [[True, 0, 5], [False, 0, -1]], "run-time results are unread, as the module says"
    assert node.ask({}, lookups=[GEMM1], profiled=[0, 9])["found"] == [[True, 0, 9]], "without the variable"

    refused = node.install(capsys, artefact, files, autotune=True)
    assert refused["failed"] and "never reads what that finds" in refused["msg"]
    for kind in ("autotune_cache", "tactics_blocklist"):
        name = "rank.json" if kind == "autotune_cache" else "list.json"
        other, text = artefact_of(kind, "{}", name=name, flashinfer="0.6.3")
        refused = node.install(capsys, other, text, engine=ENGINE, folder=str(tmp_path / "own"))
        assert "begins with" in refused["msg"]

    gone = node.install(capsys, artefact, {}, state="absent")
    assert gone["changed"] and not path.exists() and gone["environment"] == {}
    assert sorted(p.name for p in path.parent.iterdir() if p.suffix == ".py") == sorted(
        p.name for p in (download("0.6.3") / "flashinfer/tuning_configs").iterdir()
    )


@pytest.mark.parametrize(("flashinfer", "sglang", "parts"), [("0.6.12", "0.5.15", 3), ("0.7.2", "0.5.23", 4)])
def test_the_cache_by_rank_is_loaded(
    flashinfer: str, sglang: str, parts: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = Node(tmp_path, flashinfer, sglang)
    inspected = node.install(
        capsys, artefact_of("autotune_cache", "", name="rank.json", flashinfer=flashinfer)[0], {}, state="inspected"
    )
    metadata = inspected["node"]["metadata"]
    assert metadata["flashinfer_version"] == flashinfer and metadata["gpu"] == CARD
    text = cache_text(metadata, parts)
    artefact, files = artefact_of("autotune_cache", text, name="rank.json", flashinfer=flashinfer)
    place = {"engine": ENGINE, "cache_dir": str(tmp_path / "cache"), "autotune": True}
    done = node.install(capsys, artefact, files, **place)
    assert done["changed"], done.get("msg")
    paths = [entry["path"] for entry in done["places"]][:-1]
    folder = tmp_path / "cache/flashinfer/autotune" / flashinfer / "sm120" / done["key"]
    assert paths == [str(folder / f"rank_tp{rank}_pp0_dp0.json") for rank in range(8)]
    assert node.install(capsys, artefact, files, **place)["changed"] is False

    # What FlashInfer passes over in silence or ends at, the module refuses.
    stale = cache_text({**metadata, "cuda_version": "12.8"}, parts)
    bad = {"stale": stale, "cut": text[:-9], "key": cache_text(metadata, 7 - parts)}
    for name, content in bad.items():
        (tmp_path / name).write_text(content)
        refused = node.install(
            capsys, *artefact_of("autotune_cache", content, name="rank.json", flashinfer=flashinfer), **place
        )
        assert refused["failed"], name
        assert {"stale": "12.8, the node's is 13.0", "cut": "It was cut", "key": "parts"}[name] in refused["msg"]
    told = node.ask({}, load=[str(tmp_path / name) for name in bad], lookups=[GEMM1])
    assert (told["loaded"], told["found"]) == ([False, "JSONDecodeError", True], [[False, 0, -1]])

    # The module is read after what was found at run time and what the cache holds.
    configs, lines = artefact_of("python_configs", python_text(parts, tokens=128), flashinfer=flashinfer)
    more = node.install(capsys, configs, lines, autotune=True)
    assert more["runtime_read"] is True, more.get("msg")
    environment = {**done["environment"], **more["environment"]}
    if flashinfer == "0.7.2":
        listed = json.dumps({"_metadata": metadata, **BLOCKLIST})
        put = node.install(
            capsys,
            *artefact_of("tactics_blocklist", listed, name="list.json", flashinfer=flashinfer),
            folder=str(tmp_path / "own"),
        )
        assert put["changed"], put.get("msg")
        environment.update(put["environment"])
    told = node.ask(
        environment, load=[paths[3]], lookups=[GEMM1, ("trtllm::fused_moe::gemm1", "MoERunner", MORE_SHAPES)]
    )
    assert (told["loaded"], told["found"]) == ([True], [[True, 0, 5], [True, 0, 5]])
    assert told["blocklist"] == ({"trtllm::fused_moe::gemm1::MoERunner": 2} if flashinfer == "0.7.2" else None)
    assert told["file"].startswith(str(node.site))


@pytest.mark.parametrize("sglang", ["0.5.9", "0.5.15.post1", "0.5.23"])
def test_sglang_reads_the_triton_configuration(sglang: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    python = python_of(sglang)
    (site,) = Path(python).parents[1].glob("lib/python3*/site-packages")
    version = flashinfer_probe.triton_version(str(site / "triton"))
    node = {
        "versions": {"flashinfer": "0.6.3", "sglang": sglang, "triton": version},
        "devices": [{"name": CARD, "capability": "12.0"}],
        "flashinfer": None,
        "cache": None,
        "moe_folder": moe_folder(site),
    }
    down = MOE_NAME.replace(".json", "_down.json")
    artefact, files = artefact_of("triton_moe", json.dumps(MOE), name=MOE_NAME, triton=version)
    artefact["files"][down], files[down] = "", json.dumps(MOE)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module.Release, "ask", lambda self, question: node)
        done = run_module(
            module, capsys, python=python, artefact=artefact, files=files, folder=str(tmp_path / "own"), user=user()
        )
        assert done["changed"], done.get("msg")
        root = Path(done["environment"]["SGLANG_MOE_CONFIG_DIR"])
        assert not str(root).startswith(str(site))
        source = f"{node['moe_folder']}/fused_moe_triton_config.py"
        question = {"device": CARD, "source": source, "args": [256, 256, "fp8_w8a8", 128, 128], "down": False}
        for flag in (False, True):
            told = moe_lookup(python, {**question, "down": flag}, done["environment"])
            assert json.loads(told.stdout) == MOE
            assert (
                f"Using MoE kernel config from {root}/configs/triton_{str(version).replace('.', '_')}/" in told.stderr
            )
        # SGLang from 0.5.15 on lists the folder, so what is left after a removal must not end a server.
        gone = run_module(
            module, capsys, python=python, artefact=artefact, folder=str(tmp_path / "own"), user=user(), state="absent"
        )
        assert gone["changed"]
        assert json.loads(moe_lookup(python, question, done["environment"]).stdout) is None


def user() -> str:
    return "root" if os.geteuid() == 0 else ""


def moe_folder(site: Path) -> str:
    found = [site / "sglang/srt" / name for name in flashinfer_probe.MOE_FOLDERS]
    return str(next(folder for folder in found if (folder / "configs").is_dir()))


def moe_lookup(python: str, question: dict, environment: dict) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-B", str(DATA / "moe_lookup.py")],
        input=json.dumps(question),
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        check=True,
    )


# --- the key, as every release with a cache computes it


def real_path(text: str, cache: Path, draft: bool) -> Path:
    """The path that a release's own function gives for rank 3 of 8, with stand-ins for the engine."""
    (node,) = (
        n
        for n in ast.walk(ast.parse(text))
        if isinstance(n, ast.FunctionDef) and n.name.endswith("flashinfer_autotune_cache_path")
    )
    node.args.args[0].annotation = node.returns = None
    sizes = types.SimpleNamespace(
        tp_size=8, pp_size=1, dp_size=1, attn_dp_size=1, moe_ep_size=1, tp_rank=3, pp_rank=0, dp_rank=None
    )
    config = type("DeepseekV3Config", (), {})()
    args = types.SimpleNamespace(
        model_path=ENGINE["model_path"],
        quantization=ENGINE["quantization"],
        moe_runner_backend=ENGINE["moe_runner_backend"],
    )
    runner = types.SimpleNamespace(
        **vars(sizes), ps=sizes, server_args=args, dtype="torch.bfloat16", device="cuda", is_draft_worker=draft,
        model_config=types.SimpleNamespace(hf_config=config, quantization=None),
    )  # fmt: skip
    runner.model_runner = runner
    names: dict[str, Any] = {
        "Path": Path,
        "hashlib": hashlib,
        "envs": types.SimpleNamespace(SGLANG_CACHE_DIR=types.SimpleNamespace(get=lambda: str(cache))),
        "torch": types.SimpleNamespace(cuda=types.SimpleNamespace(get_device_capability=lambda device: (12, 0))),
        "get_model": lambda: args,
        "get_exec": lambda: types.SimpleNamespace(moe=args),
        "get_parallel": lambda: sizes,
        "get_flashinfer_autotune_skip_ops": lambda runner: {"fp4_gemm", "bf16_gemm"},
    }
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, "flashinfer", types.SimpleNamespace(__version__="0.6.12"))
        exec(compile(ast.Module([node], []), "path", "exec"), names)
        return names[node.name](runner)


@pytest.mark.parametrize("draft", [False, True])
@pytest.mark.parametrize(
    "sglang", ["0.5.12", "0.5.13", "0.5.14", "0.5.15", "0.5.16", "0.5.17", "0.5.18", "0.5.22", "0.5.23"]
)
def test_the_path_is_the_releases_own(sglang: str, draft: bool, tmp_path: Path) -> None:
    folder = sglang_sources(sglang) / "sglang"
    forms = flashinfer_probe.cache_forms(str(folder))
    assert forms
    assert forms["agree"] is (sglang in ("0.5.22", "0.5.23"))
    wanted = real_path((folder / "srt" / forms["source"]).read_text(), tmp_path, draft)
    engine = {**ENGINE, "draft": draft, "draft_quantization": None, "skip_ops": ["fp4_gemm", "bf16_gemm"]}
    artefact, _ = artefact_of("autotune_cache", "", name="rank.json", flashinfer="0.6.12")
    artefact = {**artefact, "ranks": {**artefact["ranks"]}}
    params = {
        "artefact": artefact, "files": {}, "engine": engine, "state": "inspected", "autotune": True,
        "environment": {}, "folder": None, "cache_dir": str(tmp_path),
    }  # fmt: skip
    node = {
        "versions": {"flashinfer": "0.6.12", "sglang": sglang},
        "devices": [{"name": CARD, "capability": "12.0"}],
        "flashinfer": {
            **flashinfer_probe.flashinfer_forms(str(download("0.6.12") / "flashinfer")),
            "version": "0.6.12",
        },
        "cache": forms,
        "moe_folder": None,
        "missing_classes": [],
    }
    plan = module.Judge(params, node, str(tmp_path)).judged()
    assert plan.problems == []
    assert str(wanted) in [place.path for place in plan.places]


@pytest.mark.parametrize("sglang", ["0.5.9", "0.5.10", "0.5.11"])
def test_earlier_releases_hand_no_cache_to_flashinfer(sglang: str) -> None:
    assert flashinfer_probe.cache_forms(str(sglang_sources(sglang) / "sglang")) is None


@pytest.mark.parametrize(("flashinfer", "read"), [("0.6.3", True), ("0.6.12", True), ("0.7.2", False)])
def test_what_flashinfer_ships(flashinfer: str, read: bool) -> None:
    """From 0.6.13 on its own files for other cards have keys that nothing looks up any more."""
    folder = download(flashinfer) / "flashinfer"
    forms = flashinfer_probe.flashinfer_forms(str(folder))
    for path in (folder / "tuning_configs").glob("v0_1_*.py"):
        configs = module.read_python(path.read_text())
        assert configs
        assert bool(module.python_faults(configs, forms)) is not read


@pytest.mark.parametrize(
    ("flashinfer", "forms"),
    [
        ("0.6.6", {"file_first": True, "json": False, "key_parts": 3, "blocklist": False, "compound": False}),
        ("0.6.7", {"file_first": False, "json": True, "key_parts": 3, "blocklist": False, "compound": True}),
        ("0.6.13", {"file_first": False, "json": True, "key_parts": 4, "blocklist": False, "fields": 2}),
        ("0.6.15.post1", {"json": True, "key_parts": 4, "blocklist": True, "reserved": ["_metadata"]}),
    ],
)
def test_where_the_forms_change(flashinfer: str, forms: dict[str, Any]) -> None:
    found = flashinfer_probe.flashinfer_forms(str(download(flashinfer) / "flashinfer"))
    assert {name: found[name] for name in forms} == forms
