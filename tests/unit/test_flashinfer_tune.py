"""The module flashinfer_tune and its program's pure parts; the program itself is a stand-in here that writes what a test gives."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import flashinfer_tune as module
import pytest
from ansible.module_utils import flashinfer_tuner as tuner
from ansible.module_utils import sglang_job
from helpers import run_module

CARD = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
BMM = {"op": "bmm_fp8", "batch": 8, "n": 512, "k": 192, "max_tokens": 4096}
MOE = {
    "op": "cutlass_fused_moe",
    "experts": 384,
    "hidden": 7168,
    "intermediate": 256,
    "top_k": 8,
    "tp_size": 8,
    "max_tokens": 8192,
}
CACHE = '{"_metadata": {}}'
LOG = "2026-11-30 06:15:50,770 - INFO - autotuner.py:1834 - flashinfer.jit: [Autotuner]: Loaded 3 configs from /x/rank.json\n"
TOLD: dict[str, Any] = {
    "made": True, "why": "", "kind": "autotune_cache", "file": "rank.json", "entries": 3, "failed_tactics": 2, "seconds": 12.5,
    "gain": {"what": "µs", "before": 10.0, "after": 8.0, "percent": 20.0}, "spread_percent": 0.5, "shapes": [], "log": "after1.log",
    "node": {"versions": {"flashinfer": "0.6.12", "sglang": "0.5.15", "torch": "2.11.0", "triton": None},
             "devices": [{"name": CARD, "capability": "12.0"}], "driver": "580.126.09"},
}  # fmt: skip


# --- the program's pure parts


def test_token_counts() -> None:
    assert tuner.tuning_sizes({"max_tokens": 8192}) == [8192]
    assert tuner.tuning_sizes({"max_tokens": 6000}) == [8192, 6000], "6,000 is looked up under 8,192 by some versions"
    assert tuner.tuning_sizes({"max_tokens": 1}) == [1]
    assert tuner.measured_at([1, 2, 4, 8, 16], 12) == [1, 2, 3, 4, 6, 8, 10, 12]
    assert tuner.measured_at([1, 2, 4, 8, 16], 16) == [1, 2, 3, 4, 6, 8, 12, 16], "prefill chunks are among them"
    assert tuner.measured_at([], 8) == [8]
    assert tuner.tokens_of((8, 64, 192)) == tuner.tokens_of((64, 3584)) == 64


class Key:
    """As FlashInfer from 0.6.18 on keeps it."""

    file_key = "('op', 'Second', ((4, 8),), ())"


def test_entries_are_named_as_each_version_looks_them_up() -> None:
    key = ("op", "Second", 123, ((4, 8),))
    first = {"op": "First"}
    found = {"('op', 'First', ((4, 8),))": (1, 5)}
    assert tuner.entries({key: (1, 5, None)}, {"key_parts": 3}, first) == found
    assert tuner.entries({(*key, ("bf16",)): (1, 5, None)}, {"key_parts": 3}, first) == found, (
        "0.6.12 leaves it out of a file"
    )
    forms = {"key_parts": 4}
    assert tuner.entries({(*key, ()): (1, [2, (3, True)], None)}, forms, first) == {
        "('op', 'Second', ((4, 8),), ())": (1, (2, (3, True)))
    }
    assert tuner.entries({Key(): (7, None)}, forms, first) == {Key.file_key: (0, 7)}
    made: dict[str, Any] = {}
    exec(tuner.python_text({"('a', 'B', ((1,),))": (0, (1, 2))}), made)
    assert made["best_configs"] == {"('a', 'B', ((1,),))": (0, (1, 2))}


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (
            RuntimeError(
                "Ninja build failed. Ninja output:\n[1/2] nvcc -c a.cu\n/a.cu(3): error: no x\n/a.cu(4): error: no y"
            ),
            "build",
            ["of bmm: /a.cu(3): error: no x", "MAX_JOBS"],
        ),
        (
            RuntimeError("Ninja build failed.\nc++: fatal error: Killed signal terminated program cc1plus"),
            "build",
            ["Killed"],
        ),
        (
            type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried 3 GiB"),
            "memory",
            ["Tried 3 GiB", "max_tokens"],
        ),
        (OSError(errno.ENOSPC, "No space left on device", "/x"), "disk", ["/x", "Make room"]),
        (
            ValueError("No suitable backend for compute capability 12.0"),
            "refused",
            ["does not run bmm", "No suitable backend"],
        ),
    ],
)
def test_errors_are_named_with_a_remedy(error: Exception, kind: str, words: list[str]) -> None:
    found = tuner.explained(error, "bmm")
    assert found.told["kind"] == kind
    for word in words:
        assert word in str(found)


@pytest.mark.parametrize(
    ("wanted", "json_cache", "cache", "sglang", "kind"),
    [
        ("auto", True, {}, "/s", "autotune_cache"),
        ("auto", True, None, "/s", "python_configs"),
        ("auto", True, None, None, "autotune_cache"),
        ("auto", False, None, "/s", "python_configs"),
        ("python_configs", True, {}, "/s", "python_configs"),
    ],
)
def test_the_kind_that_the_release_reads(wanted: str, json_cache: bool, cache: Any, sglang: Any, kind: str) -> None:
    forms = {"json": json_cache, "python_configs": True}
    node = {"flashinfer": forms, "cache": cache, "sglang_folder": sglang, "versions": {"flashinfer": "0.6.3"}}
    assert tuner.kind_of(wanted, node) == kind


def test_a_kind_of_another_version() -> None:
    forms = {"json": False, "python_configs": True}
    node = {"flashinfer": forms, "cache": None, "sglang_folder": None, "versions": {"flashinfer": "0.6.3"}}
    with pytest.raises(tuner.Failed, match="0.6.3 keeps no cache: it begins with 0.6.7. Make python_configs"):
        tuner.kind_of("autotune_cache", node)


def rounds_of(before: list[list[float]], after: list[list[float]], **wrong: Any) -> list[dict[str, Any]]:
    def side(values: list[float], hit: bool, more: dict[str, Any]) -> list[dict[str, Any]]:
        points = [{"operation": 0, "tokens": 1 << i, "us": us, "hit": hit, "error": ""} for i, us in enumerate(values)]
        points[-1].update(more)
        return points

    return [{"before": side(b, False, {}), "after": side(a, True, wrong)} for b, a in zip(before, after)]


def judged(before: list[list[float]], after: list[list[float]], min_gain: float = 1.0, **wrong: Any) -> dict[str, Any]:
    return tuner.compared([BMM], [{"buckets": [1, 2]}], rounds_of(before, after, **wrong), min_gain)


def test_the_gain_is_a_geometric_mean_of_medians() -> None:
    told = judged([[100, 400], [101, 404], [99, 396]], [[50, 400], [50.5, 404], [49.5, 396]])
    assert told["made"] and told["why"] == ""
    assert told["gain"]["before"] == 200.0 and told["gain"]["after"] == pytest.approx(141.421)
    assert told["gain"]["percent"] == 29.29 and "geometric mean" in told["gain"]["what"]
    assert told["spread_percent"] == 2.0
    assert [(s["tokens"], s["before_us"], s["after_us"], s["ratio"], s["hit"]) for s in told["shapes"]] == [
        (1, 100, 50, 2.0, True),
        (2, 400, 400, 1.0, True),
    ]


@pytest.mark.parametrize(
    ("after", "wrong", "why"),
    [
        ([[100, 400], [100, 400]], {}, "no gain: 0 %, and at least 1 % is asked for"),
        ([[120, 400], [120, 400]], {}, "no gain: -9.54 %"),
        ([[95, 400], [105, 400]], {}, "no gain"),
        ([[95, 400], [85, 360]], {}, "no gain that is certain: 7.53 %, and the rounds differ by 10.82 %"),
        ([[50, 400], [50, 400]], {"hit": False}, "fell back: this version's own reader does not find 1 shapes"),
        (
            [[50, 400], [50, 400]],
            {"us": None, "error": "only 2 algorithms"},
            "with the file bmm_fp8 (batch=8, n=512, k=192) at 2 to",
        ),
    ],
)
def test_without_a_gain_nothing_is_made(after: list[list[float]], wrong: dict[str, Any], why: str) -> None:
    told = judged([[100, 400], [100, 400]], after, **wrong)
    assert not told["made"] and told["why"].startswith(why), told["why"]


# --- the module


def program(
    folder: Path, told: Any, seconds: float = 0.0, failed: dict[str, str] | None = None, text: str = CACHE
) -> str:
    """An interpreter that is none: it writes what the tuning program would."""
    result = {"failed": failed} if failed else {"written": "result.json"}
    script = folder / "python"
    script.write_text(
        "#!/usr/bin/env python3\n"
        "import json, pathlib, sys, time\n"
        "question = json.load(sys.stdin)\n"
        "folder = pathlib.Path(question['folder'])\n"
        "print(json.dumps({'progress': 'tuning at 64 tokens'}), flush=True)\n"
        f"time.sleep({seconds})\n"
        f"(folder / 'rank.json').write_text({text!r})\n"
        f"(folder / 'after1.log').write_text({LOG!r})\n"
        f"(folder / 'result.json').write_text({json.dumps(told)!r})\n"
        f"print(json.dumps({{'result': {result!r}}}))\n"
    )
    script.chmod(0o755)
    return str(script)


class Node:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys, self.out = folder, capsys, folder / "out"
        self.python = str(folder / "python")

    def run(self, check: bool = False, **more: Any) -> dict[str, Any]:
        args = {
            "python": self.python, "operations": [BMM], "out": str(self.out), "name": "k2-moe", "profile": "kimi", "by": "a person",
            "user": "root" if os.geteuid() == 0 else "",
        }  # fmt: skip
        return run_module(module, self.capsys, check=check, **{**args, **more})


@pytest.fixture
def node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Node:
    return Node(tmp_path, capsys)


def test_an_artefact_is_made_once(node: Node) -> None:
    program(node.folder, TOLD)
    done = node.run(operations=[MOE])
    assert (done["changed"], done["made"], done["why"]) == (True, True, ""), done.get("msg")
    assert done["files"] == {"rank.json": CACHE}
    assert (done["verdict"], done["fallbacks"]) == ("loaded", [])
    artefact = done["artefact"]
    assert (artefact["device"], artefact["compute_capability"], artefact["driver"]) == (CARD, "12.0", "580.126.09")
    assert artefact["versions"] == {"flashinfer": "0.6.12", "sglang": "0.5.15", "torch": "2.11.0"}
    assert artefact["ranks"] == {"tp": 8, "pp": 1, "dp": 1, "dp_attention": False}
    assert artefact["files"] == {"rank.json": hashlib.sha256(CACHE.encode()).hexdigest()}
    assert artefact["gain"] == TOLD["gain"] and artefact["made"]["by"] == "a person"
    assert (node.out / "rank.json").read_text() == CACHE
    assert json.loads((node.out / "artefact.yml").read_text()) == artefact
    assert sorted(path.name for path in node.out.iterdir()) == ["artefact.yml", "rank.json", "result.json"], (
        "nothing half done"
    )

    Path(node.python).unlink()
    again = node.run(operations=[MOE])
    assert (again["changed"], again["artefact"], again["files"]) == (False, artefact, done["files"])
    assert again["message"].startswith("Measured before: k2-moe gains 20 %")
    other = node.run(operations=[{**MOE, "max_tokens": 4096}])
    assert "There is no" in other["msg"], "other options are another result"
    (node.out / "rank.json").write_text("{}")
    assert "There is no" in node.run(operations=[MOE])["msg"], "an artefact that was edited is made again"


def test_one_without_gain_is_told_and_not_made(node: Node) -> None:
    program(node.folder, {**TOLD, "made": False, "why": "no gain: 0 %, and at least 1 % is asked for"})
    done = node.run()
    assert (done["changed"], done["made"], done["artefact"], done["files"]) == (True, False, {}, {})
    assert done["message"] == "No artefact of k2-moe: no gain: 0 %, and at least 1 % is asked for."
    assert [path.name for path in node.out.iterdir()] == ["result.json"]
    assert node.run()["changed"] is False


def test_check_mode_says_what_would_be_tuned(node: Node) -> None:
    done = node.run(check=True, operations=[BMM, MOE])
    assert (done["changed"], done["made"]) == (True, False)
    assert "bmm_fp8 (batch=8, n=512, k=192) up to 4096 tokens; cutlass_fused_moe (experts=384" in done["message"]
    assert not node.out.exists()


def test_it_is_followed_in_slices_and_taken_up_again(node: Node) -> None:
    program(node.folder, TOLD, seconds=2)
    step = node.run(slice=0.5)
    assert (step["unfinished"], step["changed"], step["progress"]) == (True, False, "tuning at 64 tokens")
    step = node.run(slice=0.1)
    assert step["unfinished"], "another run that wants the same follows it"
    done = node.run(slice=20, attached=True)
    assert done["made"] and "unfinished" not in done
    gone = node.run(slice=1, attached=True)
    assert "The tuning that this task began is gone" in gone["msg"]


def test_other_options_take_its_place(node: Node) -> None:
    program(node.folder, TOLD, seconds=60)
    assert node.run(slice=0.3)["unfinished"]
    program(node.folder, TOLD)
    assert node.run(rounds=5)["made"]
    assert "is gone" in node.run(slice=0.1, attached=True)["msg"]


def test_time_that_is_over_ends_it(node: Node) -> None:
    program(node.folder, TOLD, seconds=60)
    began = time.monotonic()
    done = node.run(timeout=1)
    assert "not done within 1 s, and was ended while tuning at 64 tokens" in done["msg"]
    assert time.monotonic() - began < 30
    assert not sglang_job.look(str(node.out / ".job"))


@pytest.mark.parametrize("kind", ["gpu", "busy", "memory", "crash"])
def test_what_failed_is_told_with_its_remedy(node: Node, kind: str) -> None:
    program(node.folder, TOLD, failed={"kind": kind, "text": "It stands still.", "remedy": "Push it."})
    done = node.run()
    assert done["failed"] and done["msg"] == "It stands still. Push it."
    assert not (node.out / "result.json").exists()
    program(node.folder, TOLD)
    assert node.run()["made"], "the next run begins anew"


def test_a_program_that_ends_without_a_word(node: Node) -> None:
    Path(node.python).write_text("#!/bin/sh\necho 'ModuleNotFoundError: torch' >&2\nexit 3\n")
    Path(node.python).chmod(0o755)
    assert "without a result (exit status 3), while it began: ModuleNotFoundError: torch" in node.run()["msg"]


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's file")
def test_a_link_to_somebody_elses_file_is_not_taken(node: Node) -> None:
    secret = node.folder / "secret"
    secret.write_text(json.dumps(TOLD))
    program(node.folder, TOLD)
    script = Path(node.python)
    script.write_text(
        script.read_text()
        + f"(folder / 'result.json').unlink(); (folder / 'result.json').symlink_to({str(secret)!r})\n"
    )
    assert "The program left no" in node.run()["msg"]


def test_a_disk_that_is_full(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    program(node.folder, TOLD)

    def full(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.os, "replace", full)
    with monkeypatch.context() as patched:
        patched.setattr(module.sglang_job, "begin", lambda *args: None)
        patched.setattr(
            module.sglang_job,
            "wait",
            lambda *args: {"running": False, "seconds": 1.0, "result": {"written": "result.json"}},
        )
        patched.setattr(
            module, "taken", lambda path, user: (json.dumps(TOLD) if path.endswith("result.json") else CACHE).encode()
        )
        done = node.run()
    assert "rank.json cannot be written: No space left on device. Make room" in done["msg"]
    assert not [path for path in node.out.iterdir() if path.name.startswith(("rank.json", "artefact"))]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"operations": []}, "operations is empty"),
        (
            {"operations": [{"op": "gemm", "max_tokens": 1}]},
            "Operation 1 has op 'gemm'; expected is one of bmm_fp8, cutlass_fused_moe",
        ),
        ({"operations": [BMM, {"op": "bmm_fp8", "batch": 1, "n": 8}]}, "Operation 2 (bmm_fp8) lacks k, max_tokens."),
        ({"operations": [{**BMM, "tokens": 9}]}, "has tokens, which is not known"),
        ({"operations": [{**BMM, "k": "many"}]}, "has k 'many'; expected is a number from 1 on"),
        ({"operations": [{**BMM, "max_tokens": 0}]}, "has max_tokens 0; expected is a number from 1 on"),
        ({"operations": [{**MOE, "intermediate": 200}]}, "no multiples of 16"),
        ({"rounds": 0}, "rounds is 0; expected is at least 1"),
        ({"name": "a/b"}, "name is 'a/b'"),
    ],
)
def test_options_that_are_wrong(node: Node, given: dict[str, Any], words: str) -> None:
    done = node.run(**given)
    assert done["failed"] and words in done["msg"]
    assert not node.out.exists()


def test_numbers_may_come_as_text() -> None:
    assert module.cleaned([{**BMM, "max_tokens": "64"}])[0]["max_tokens"] == 64
