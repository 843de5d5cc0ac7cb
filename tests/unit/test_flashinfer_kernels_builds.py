"""Real builds: FlashInfer's `norm` for SM120 by the machine's nvcc, found and loaded by a fresh process that can compile nothing,
and shipped to another release whose nvcc compiles nothing.

FlashInfer comes from PyPI without its largest parts, with the headers of cuBLAS and cuRAND, which the kernels include. All is kept
in the user's cache. One version takes about a minute on two busy cores, so the others are for SGLANG_TEST_FULL=1.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import flashinfer_kernels as module
import helpers
import pytest
from ansible.module_utils import flashinfer_cache, sglang_job
from helpers import run_module
from test_flashinfer_tuning_releases import python_of

NVCC = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin/nvcc"
FULL = os.environ.get("SGLANG_TEST_FULL") == "1"
full = pytest.mark.skipif(not FULL, reason="takes a minute; SGLANG_TEST_FULL=1 runs it")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not NVCC.exists(), reason=f"there is no {NVCC}"),
    pytest.mark.skipif(not shutil.which("c++"), reason="there is no C++ compiler"),
]
# Tests and docs aside, what the generators of FlashInfer's list read, and what `norm` includes.
KEPT = re.compile(
    r"flashinfer/(?!data/).*\.(py|json|jinja|cuh?|h)$"
    r"|flashinfer/data/(include|cccl)/|flashinfer/data/csrc/(norm\.cu|flashinfer_norm_binding\.cu|tvm_ffi_utils\.h|[^/]*\.jinja)$"
    r"|flashinfer_python-[^/]*\.dist-info/(METADATA|RECORD)$"
)
HEADERS = {"nvidia-cublas": "13.1.1.3", "nvidia-curand": "10.4.0.35"}
LOAD = """
import sys
from flashinfer.jit.norm import gen_norm_module
spec = gen_norm_module()
print(spec.is_aot, spec.get_library_path(), spec.jit_library_path.exists(), spec.build_and_load().rmsnorm)
"""


@functools.cache
def libraries() -> str:
    """What FlashInfer imports and a CPU environment lacks."""
    return str(helpers.download("nvidia-ml-py==13.615.71", "nvidia-ml-py", re.compile(r"pynvml\.py$")))


def toolkit(folder: Path) -> Path:
    """The machine's toolkit with the headers that it may lack, as a stack puts it together."""
    home = NVCC.parents[1]
    folder.mkdir()
    for path in home.iterdir():
        if path.name != "include":
            (folder / path.name).symlink_to(path)
    (folder / "include").mkdir()
    folders = [
        helpers.download(f"{name}=={version}", f"{name}-headers", re.compile(r".*/include/.*\.h(pp)?$"))
        / "nvidia/cu13/include"
        for name, version in HEADERS.items()
    ]
    for path in [path for folder in (home / "include", *folders) for path in folder.iterdir()]:
        if not (folder / "include" / path.name).exists():
            (folder / "include" / path.name).symlink_to(path)
    return folder


class Release:
    def __init__(self, folder: Path, version: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys, self.folder, self.version = capsys, folder, version
        self.site, self.work = folder / "site-packages", folder / "work"
        folder.mkdir(exist_ok=True)
        kept = helpers.download(f"flashinfer-python=={version}", f"flashinfer-{version}-sources", KEPT)
        shutil.copytree(kept, self.site, copy_function=os.link)
        self.python = python_of("0.5.23")
        self.environment = {
            "PYTHONPATH": f"{self.site}:{libraries()}",
            "CUDA_HOME": str(toolkit(folder / "cuda")),
            "LD_LIBRARY_PATH": str(NVCC.parents[1] / "lib64"),
        }

    def build(self, **more: Any) -> dict[str, Any]:
        args = {"kernels": ["norm"], "architectures": ["12.0a"], "user": "root" if os.geteuid() == 0 else "", **more}
        return run_module(
            module, self.capsys, python=self.python, environment=self.environment, work=str(self.work), **args
        )

    def loaded(self) -> str:
        """What a fresh process says that finds neither ninja nor nvcc."""
        home = self.folder / "home"
        home.mkdir()
        own = {
            "PATH": "/nowhere",
            "HOME": str(home),
            "PYTHONPATH": self.environment["PYTHONPATH"],
            "LD_LIBRARY_PATH": self.environment["LD_LIBRARY_PATH"],
            "FLASHINFER_CUDA_ARCH_LIST": "12.0a",
        }
        done = subprocess.run([self.python, "-B", "-c", LOAD], env=own, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout


@pytest.mark.parametrize("version", ["0.6.12", *(pytest.param(one, marks=full) for one in ("0.6.3", "0.7.2"))])
def test_built_ahead_and_loaded_without_a_compiler(
    version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    release = Release(tmp_path, version, capsys)
    done = release.build()
    assert (done["changed"], done["status"], done.get("msg")) == (True, "built", None)
    norm = done["kernels"]["norm"]
    place = release.site / "flashinfer/data/aot/norm/norm.so"
    assert (norm["path"], norm["objects"], norm["loads"]) == (str(place), 2, True), done["notes"]
    assert norm["seconds"] > 5 and done["flashinfer"] == version and done["architectures"] == ["12.0a"]
    assert not release.work.exists()
    found = release.loaded()
    assert found.split()[:3] == ["True", str(place), "False"] and "Function" in found

    again = release.build()
    assert (again["changed"], again["status"], again["asked"]) == (False, "present", False)
    # The release says the same when it is asked, from another scratch folder.
    release.environment["X"] = "1"
    asked = release.build()
    assert (asked["changed"], asked["asked"], asked["kernels"]["norm"]["state"]) == (False, True, "present")
    shipped(release, done, Release(tmp_path / "another", version, capsys))


def shipped(release: Release, done: dict[str, Any], other: Release) -> None:
    """To a release of another path, and after something in it was changed."""
    cache = flashinfer_cache.Cache(release.folder / "cache")
    record = {
        "name": "norm",
        "host": "one",
        **{key: done["kernels"]["norm"][key] for key in ("made_of", "sha256", "bytes")},
    }
    cache.put(record, lambda target: Path(shutil.copy(done["kernels"]["norm"]["path"], target)) and None)
    # Who compiles with it leaves a line; FlashInfer 0.7.2 asks what it can compile for.
    nvcc, calls = other.folder / "cuda/bin/nvcc", other.folder / "calls"
    (other.folder / "cuda/bin").unlink()
    nvcc.parent.mkdir()
    nvcc.write_text(
        f'#!/bin/sh\ncase "$1" in --version | --list-gpu-arch) exec {NVCC} "$1" ;; esac\necho "$*" >> {calls}\nexit 1\n'
    )
    nvcc.chmod(0o755)

    looked = other.build(stage="look")
    assert looked["lacking"] == {"norm": record["made_of"]}, "the same key at another place"
    sent = other.folder / "sent"
    sent.mkdir()
    shutil.copy(cache.library(record), sent)
    taken = other.build(stage="take", offers={"norm": record}, sent=str(sent))
    norm = taken["kernels"]["norm"]
    assert (taken["changed"], taken["status"], norm["state"], norm["loads"]) == (True, "received", "received", True)
    assert other.loaded().split()[:3] == ["True", str(other.site / "flashinfer/data/aot/norm/norm.so"), "False"]
    assert not calls.exists() and not other.work.exists()

    # A header of FlashInfer's own that only this release has in another form.
    header = other.site / "flashinfer/data/include/flashinfer/norm.cuh"
    text = header.read_text()
    header.unlink()  # a hard link to what is downloaded
    header.write_text(text + "// another\n")
    other.environment["X"] = "1"
    looked = other.build(stage="look")
    assert looked["lacking"]["norm"] != record["made_of"] and not calls.exists()


def ended(job: Path, program: str) -> None:
    """End a compiler of a job by signal 9, as the kernel does."""
    until = time.monotonic() + 120
    pid = int(re.findall(r'"pid": (\d+)', (job / "job.json").read_text())[0])
    while time.monotonic() < until:
        for one in sglang_job.members(pid):
            if Path(f"/proc/{one}/comm").read_text().strip() == program:
                os.kill(one, signal.SIGKILL)
                return
        time.sleep(0.05)
    raise AssertionError(f"no {program} was seen")


@full
def test_a_compiler_that_is_killed_and_what_comes_after(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    release = Release(tmp_path, "0.6.12", capsys)
    assert release.build(slice=0.0, jobs=1)["unfinished"]
    ended(release.work / "job", "cicc")
    failed = release.build(attached=True)
    assert (failed["failed"], failed["cause"]) == (True, "memory"), failed["msg"]
    assert release.build(jobs=1)["changed"]


def test_a_name_that_this_version_does_not_have(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = Release(tmp_path, "0.6.12", capsys).build(kernels=["fused_moe_sm120"])
    assert failed["cause"] == "unknown" and "Did you mean fused_moe_120" in failed["msg"]
