"""The patch files on the real sources of sglang's releases, from PyPI by pip, kept in the user's cache."""

from __future__ import annotations

import ast
import difflib
import functools
import hashlib
import itertools
import operator
import os
import re
import shutil
import types
from pathlib import Path
from typing import Any

import helpers
import pytest
import python_source_patch as module
import yaml
from helpers import run_module
from test_python_source_patch import filled, replace

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
AUTOTUNE = yaml.safe_load((ROOT / "patches/flashinfer-cutlass-autotune.yml").read_text())
SM120 = yaml.safe_load((ROOT / "patches/sm120-extend-attention.yml").read_text())
RUNNER = "sglang/srt/model_executor/model_runner.py"
KEPT = re.compile(
    r"sglang/srt/(server_args|model_executor/(model_runner|runner/(base_runner|flashinfer_autotune)))\.py$"
    r"|sglang/srt/layers/attention/(nsa_backend|triton_ops/extend_attention)\.py$"
    r"|sglang/kernels/ops/attention/extend_attention\.py$"
    r"|sglang-[^/]*\.dist-info/(METADATA|RECORD)$"
)
# Every later form of the gate, by the first release that has it; 0.5.14 and 0.5.15 moved it.
NOT_NEEDED = ["0.5.13", "0.5.14", "0.5.15", "0.5.16", "0.5.17", "0.5.18", "0.5.22", "0.5.23"]
NO_GATE = ["0.5.5", "0.5.6"]


def download(version: str) -> Path:
    """The folder that holds a release's few files."""
    return helpers.download(f"sglang=={version}", version, KEPT, "--platform", "manylinux_2_34_x86_64")


@pytest.fixture
def site(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """site-packages with the release that the test names, its files hard links as uv makes them."""
    target = tmp_path / "site-packages"
    shutil.copytree(download(request.param), target, copy_function=os.link)
    return target


def releases(*versions: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("site", versions, indirect=True)


def apply(
    capsys: pytest.CaptureFixture[str], site: Path, patch: dict[str, Any], state: str = "present", **more: Any
) -> dict[str, Any]:
    kept = str(site.parent / "kept")
    return run_module(module, capsys, site_packages=str(site), patch=patch, state=state, backup_dir=kept, **more)


def round_trip(capsys: pytest.CaptureFixture[str], site: Path, patch: dict[str, Any]) -> tuple[str, str]:
    """(text before, text after) of a patch that fits; it is idempotent and undone to RECORD's hash on the way."""
    path = site / patch["file"]
    before = path.read_text()
    first = apply(capsys, site, patch, _ansible_diff=True)
    assert (first["status"], first["changed"], first["pristine"]) == ("not_applied", True, False), first.get("msg")
    after = path.read_text()
    assert (first["diff"]["before"], first["diff"]["after"]) == (before, after)
    assert (apply(capsys, site, patch)["status"], path.read_text()) == ("applied", after)
    last = apply(capsys, site, patch, "absent")
    assert (last["changed"], last["pristine"]) == (True, True)
    record = next(site.glob("sglang-*.dist-info/RECORD")).read_text()
    digest = re.search(rf"^{re.escape(patch['file'])},sha256=([^,]+)", record, re.MULTILINE)
    assert digest
    assert module.record_hash("sha256=" + digest[1]) == hashlib.sha256(path.read_bytes()).hexdigest()
    assert apply(capsys, site, patch, "absent")["changed"] is False
    return before, after


def difference(before: str, after: str) -> list[str]:
    rows = difflib.unified_diff(before.split("\n"), after.split("\n"), lineterm="", n=0)
    return [row for row in rows if not row.startswith(("---", "+++", "@@"))]


# --- the autotune gate


@releases(*AUTOTUNE["tried"])
def test_the_gate_is_opened_and_closed_again(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = round_trip(capsys, site, AUTOTUNE)
    assert difference(before, after) == ['-            # "flashinfer_cutlass",', '+            "flashinfer_cutlass",']
    cached = helpers.SOURCES / next(site.glob("*.dist-info")).name.split("-")[1].removesuffix(".dist")
    assert (cached / RUNNER).read_text() == before, "the hard link in the cache"


@releases(*NOT_NEEDED)
def test_upstream_does_it_itself(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for state in ("inspected", "present", "absent"):
        found = apply(capsys, site, AUTOTUNE, state)
        assert (found["status"], found["changed"], found["pristine"]) == ("not_needed", False, True)
        assert "hould_run_flashinfer_autotune (line " in found["message"]


@releases("0.5.13", "0.5.23")
def test_upstream_is_seen_without_record_too(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    next(site.glob("*.dist-info/RECORD")).unlink()
    found = apply(capsys, site, AUTOTUNE)
    assert (found["status"], found["pristine"]) == ("not_needed", None)


@releases(*NO_GATE)
def test_other_gates_are_left_alone(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (site / RUNNER).read_bytes()
    found = apply(capsys, site, AUTOTUNE)
    assert (found["failed"], found["status"]) == (True, "drifted")
    assert found["package_version"] in found["msg"]
    assert (site / RUNNER).read_bytes() == before


@releases("0.5.9", "0.5.12.post1")
def test_excerpt_shows_the_functions_around_the_gate(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (site / "flashinfer").mkdir()
    (site / "flashinfer/autotuner.py").write_text("def autotune(tune_mode=True):\n    yield\n")
    excerpt = apply(capsys, site, AUTOTUNE, "inspected")["excerpt"]
    headings = [row[3:] for row in excerpt.split("\n") if row.startswith("== ")]
    assert headings == [
        f"{RUNNER}: ModelRunner._should_run_flashinfer_autotune",
        f"{RUNNER}: ModelRunner._flashinfer_autotune",
        f"{RUNNER}: ModelRunner._dummy_run",
        "flashinfer/autotuner.py: autotune",
    ]
    assert "(there is no" not in excerpt


BACKENDS = ["auto", "cutlass", "triton", "deep_gemm", "flashinfer_cutlass", "flashinfer_cutedsl", "flashinfer_mxfp4"]
BACKENDS += ["flashinfer_trtllm", "flashinfer_trtllm_routed"]
SPECULATIVE = ["none", "eagle", "standalone", "ngram"]
CAPABILITIES = [(8, 0), (8, 9), (9, 0), (10, 0), (12, 0)]
CASES = list(itertools.product(BACKENDS, CAPABILITIES, SPECULATIVE, [True, False], [True, False], ["none", "deepep"]))


def gate_answers(text: str) -> dict[tuple, bool]:
    """What the gate in a source text says for each case."""
    name = "_should_run_flashinfer_autotune"
    (node,) = (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef) and n.name == name)
    names: dict[str, Any] = {}
    exec(compile(ast.Module([node], []), "gate", "exec"), names)
    return {case: gate_answer(names, *case) for case in CASES}


def gate_answer(
    names: dict[str, Any], backend: str, capability: tuple, speculative: str, draft: bool, disabled: bool, a2a: str
) -> bool:
    """The gate's answer with a stand-in for self and for torch."""
    algorithm = {f"is_{kind}": functools.partial(operator.eq, kind, speculative) for kind in SPECULATIVE}
    algorithm["is_speculative"] = functools.partial(operator.ne, "none", speculative)
    runner = types.SimpleNamespace(
        server_args=types.SimpleNamespace(
            disable_flashinfer_autotune=disabled, moe_runner_backend=backend, moe_a2a_backend=a2a
        ),
        spec_algorithm=types.SimpleNamespace(**algorithm),
        is_draft_worker=draft,
    )
    names["torch"] = types.SimpleNamespace(cuda=types.SimpleNamespace(get_device_capability=lambda: capability))
    return names["_should_run_flashinfer_autotune"](runner)


@releases(*AUTOTUNE["tried"])
def test_the_patched_gate_answers_otherwise_for_cutlass_alone(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = gate_answers((site / RUNNER).read_text())
    apply(capsys, site, AUTOTUNE)
    after = gate_answers((site / RUNNER).read_text())
    assert not any(answer for case, answer in before.items() if case[0] == "flashinfer_cutlass")
    changed = {case for case in CASES if before[case] != after[case]}
    assert changed == {
        case
        for case in CASES
        for backend, capability, speculative, draft, disabled, _ in [case]
        if backend == "flashinfer_cutlass"
        and capability >= (9, 0)
        and not disabled
        and (speculative == "none" or not draft)
    }
    assert ("flashinfer_cutlass", (12, 0), "none", False, False, "none") in changed


# --- what people on this card carry as scripts


@releases(*SM120["tried"])
def test_block_sizes_for_this_card(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = round_trip(capsys, site, SM120)
    assert block_sizes(before, 12) != block_sizes(after, 12)
    upstream = (download("0.5.9") / SM120["file"]).read_text()
    for major in (7, 8, 9, 10, 12):
        assert block_sizes(after, major) == block_sizes(upstream, major)


def block_sizes(text: str, major: int) -> list[tuple]:
    name = "_get_block_sizes_for_extend_attention"
    (node,) = (n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef) and n.name == name)
    triton = types.SimpleNamespace(next_power_of_2=lambda x: 1 << (x - 1).bit_length())
    names: dict[str, Any] = {"_is_hip": False, "_is_cuda": True, "CUDA_CAPABILITY": (major, 0), "triton": triton}
    exec(compile(ast.Module([node], []), "sizes", "exec"), names)
    return [names[name](size, size) for size in (64, 128, 192, 256, 288, 576)]


@releases("0.5.9", "0.5.12", "0.5.15", "0.5.16", "0.5.23")
def test_block_sizes_are_upstreams_later(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert apply(capsys, site, SM120)["status"] == "not_needed"


def patch_of(file: str, *edits: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": "probe",
        "package": "sglang",
        "file": file,
        "why": "to try",
        "tried": ["0.5.9"],
        "edits": list(edits),
    }


SPARSE = 'self.nsa_prefill_backend = "flashmla_sparse"'
TILELANG = 'self.nsa_prefill_backend = "tilelang"'
DEFAULTS = patch_of(
    "sglang/srt/server_args.py",
    replace(
        "if not user_set_prefill:\n    self.nsa_prefill_backend = \"flashmla_auto\"",
        f"if not user_set_prefill:\n    {TILELANG}",
        indent=12,
        **{"in": "ServerArgs._set_default_nsa_backends"},
    ),
    replace(
        f'if major >= 10:\n    if not user_set_prefill:\n        {SPARSE}',
        f'if major >= 10:\n    if not user_set_prefill:\n        {TILELANG}',
        indent=12,
        **{"in": "ServerArgs._set_default_nsa_backends"},
    ),
    replace(
        f"# Hopper defaults for bfloat16\nif not user_set_prefill:\n    {SPARSE}",
        f"# Hopper defaults for bfloat16\nif not user_set_prefill:\n    {TILELANG}",
        indent=16,
        **{"in": "ServerArgs._set_default_nsa_backends"},
    ),
)  # fmt: skip


@releases("0.5.9")
def test_a_default_in_several_places(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = round_trip(capsys, site, DEFAULTS)
    assert (before.count(TILELANG), after.count(TILELANG)) == (0, 3)
    assert after.count("flashmla_auto") == before.count("flashmla_auto") - 1
    loose = patch_of(DEFAULTS["file"], replace(f"    {SPARSE}", f"    {TILELANG}", indent=16))
    assert "2 times as shipped" in apply(capsys, site, loose)["msg"]


@releases("0.5.9")
def test_the_example_of_the_readme(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "patches/README.md").read_text(), re.DOTALL)
    before, after = round_trip(capsys, site, yaml.safe_load(text))
    assert len(difference(before, after)) == 2


GUARD = patch_of(
    "sglang/srt/layers/attention/nsa_backend.py",
    {
        "unified_diff": {
            "in": "NativeSparseAttnBackend.init_forward_metadata",
            "diff": """\
@@ -633,5 +633,8 @@
-                paged_mqa_schedule_metadata = deep_gemm.get_paged_mqa_logits_metadata(
-                    seqlens_32, 64, deep_gemm.get_num_sms()
-                )
+                try:
+                    paged_mqa_schedule_metadata = deep_gemm.get_paged_mqa_logits_metadata(
+                        seqlens_32, 64, deep_gemm.get_num_sms()
+                    )
+                except RuntimeError:  # no kernel for compute capability 12
+                    paged_mqa_schedule_metadata = None
             except (ImportError, ModuleNotFoundError):
                 paged_mqa_schedule_metadata = None
""",
        }
    },
)


@releases("0.5.9", "0.5.10", "0.5.11")
def test_a_call_wrapped_in_try_and_except(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = round_trip(capsys, site, GUARD)
    assert len(difference(before, after)) == 9
    assert after.count("except RuntimeError:  # no kernel") == 1


# --- the versions that the patch file names


def test_tried_is_what_is_tried_here() -> None:
    """The tests above make the edit on every version listed; the others here have the gate in another form."""
    assert not set(AUTOTUNE["tried"]) & {*NOT_NEEDED, *NO_GATE}
    assert {entry["since"] for entry in AUTOTUNE["upstream"]} <= set(NOT_NEEDED)


@pytest.mark.parametrize("version", NOT_NEEDED)
def test_each_upstream_entry_is_what_finds_its_release(version: str) -> None:
    """Without its entries the patch would not call these releases not_needed."""
    folder = download(version)
    bare = module.Patch.parse(filled({**AUTOTUNE, "upstream": []}, module.PATCH))
    text = (folder / RUNNER).read_text()
    assert module.plan(bare, "present", text, module.Parser(lists_in=bare.lists_in)).status == (
        "applied" if version == "0.5.13" else "drifted"
    )
