"""Kernels ahead of time: what compilers' words mean, and the module with a stand-in for FlashInfer and for the compilers."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import flashinfer_kernels as module
import pytest
import yaml
from ansible.errors import AnsibleActionFail
from ansible.module_utils import flashinfer_builder as builder
from ansible.module_utils import sglang_job
from helpers import run_module

from action_plugins import flashinfer_kernels as action

DATA = Path(__file__).parent / "data/kernels"
NORM = {"generator": "flashinfer.jit.norm:gen_norm_module"}


@pytest.mark.parametrize("text", [module.DOCUMENTATION, module.EXAMPLES, module.RETURN])
def test_documentation_is_yaml_and_matches_the_arguments(text: str) -> None:
    loaded = yaml.safe_load(text)
    if text is module.DOCUMENTATION:
        assert set(loaded["options"]) == set(module.SPEC)
        for name, option in loaded["options"].items():
            assert option["type"] == module.SPEC[name]["type"]
            assert option.get("default") == module.SPEC[name].get("default")
    if text is module.RETURN:
        assert set(module.NOTHING) == set(loaded)
        assert set(module.KERNEL) == set(loaded["kernels"]["contains"])


# --- what compilers say


@pytest.mark.parametrize(
    ("log", "cause", "words"),
    [
        ("header", "header", ["norm.cu needs cublasLt.h", "cudaUtils.h:25:10: fatal error", "nvidia-cublas"]),
        ("arch", "architecture", ["135a", "nvcc fatal   : Unsupported gpu architecture 'compute_135a'"]),
        ("compile", "compile", ['norm.cu(23): error: identifier "undeclared_thing" is undefined', "CUDA of the stack"]),
        ("disk", "disk", ["norm.cu", "when writing output to", "Make room"]),
        ("libcuda", "library", ["cannot find -lcuda", "norm.so", "Install the driver"]),
        ("libcublas", "library", ["libcublas.so", "nvidia-cublas", "stack.yml"]),
        ("program", "compiler", ["no-c++ was not found", "g++ is installed"]),
        ("killed-cicc", "memory", ["killed while it compiled", "norm.cu", "no fault of the source", "Set jobs to 4"]),
        ("killed-nvcc", "memory", ["8 jobs ran at once"]),
        ("killed-cc1plus", "memory", ["(cc1plus)"]),
        ("killed-ninja1.11", "memory", ["norm.cu"]),
    ],
)
def test_failed_builds_that_were_recorded(log: str, cause: str, words: list[str]) -> None:
    fault = builder.diagnosis((DATA / f"logs/{log}.log").read_text(), 8)
    assert fault.cause == cause, fault.text
    for word in words:
        assert word in f"{fault.text} {fault.remedy}"


@pytest.mark.parametrize(
    ("output", "cause", "words"),
    [
        ("nvcc error   : 'cicc' died due to signal 9 (Kill signal)", "memory", ["(cicc)", "Set jobs to 1"]),
        ("nvcc error   : 'ptxas' died due to signal 9", "memory", ["(ptxas)"]),
        ("cc1plus: out of memory allocating 65536 bytes after a total of 3 bytes", "memory", ["Memory ran out"]),
        ("terminate called after throwing an instance of 'std::bad_alloc'", "memory", ["bad_alloc"]),
        ("nvcc error   : 'cicc' died due to signal 11 (Invalid memory reference)", "compile", ["signal 11"]),
        ("#error -- unsupported GNU version! gcc versions later than 15 are not supported!", "compiler", ["older g++"]),
        ('x.cu(3): catastrophic error: cannot open source file "Python.h"', "header", ["Python.h", "python3-dev"]),
        ("x.h:1:2: fatal error: acme.h: No such file or directory", "header", ["Install what brings this header"]),
        ("sh: 1: cicc: not found", "compiler", ["cicc was not found"]),
        ("ptxas fatal   : Unresolved extern function 'x'", "compile", ["ptxas fatal"]),
    ],
)
def test_other_words_of_compilers(output: str, cause: str, words: list[str]) -> None:
    log = f"[1/9] nvcc -c /a.cu -o a.o\n[2/9] nvcc -c /x.cu -o x.o\nFAILED: x.o \nnvcc -c /x.cu -o x.o\n{output}\n"
    fault = builder.diagnosis(log + "ninja: build stopped: subcommand failed.\n", 2)
    assert fault.cause == cause, fault.text
    assert "/x.cu" in fault.text or cause == "compiler" or cause == "architecture"
    for word in words:
        assert word in f"{fault.text} {fault.remedy}"


def test_the_first_failure_counts_and_one_job_has_nothing_to_lower() -> None:
    log = "FAILED: [code=2] a.o\nnvcc -c /a.cu\n/a.cu(1): error: no x\nFAILED: [code=137] b.o\nnvcc -c /b.cu\nKilled\n"
    assert [made for _code, made, _block in builder.failures(log)] == ["a.o", "b.o"]
    assert builder.diagnosis(log).text == "/a.cu does not compile: /a.cu(1): error: no x"
    killed = builder.diagnosis("FAILED: [code=137] b.o\nnvcc -c /b.cu\n", 1)
    assert (killed.cause, killed.remedy[:12]) == ("memory", "With one job")
    assert builder.diagnosis("ninja: error: loading 'build.ninja'").text.endswith("ninja: error: loading 'build.ninja'")
    undefined = builder.diagnosis("FAILED: a.so\nc++ a.o\na.o: undefined reference to `cublasCreate_v2'\n")
    assert undefined.cause == "link" and "cublasCreate_v2" in undefined.text


def test_build_files() -> None:
    text = (
        "cuda_home = /cuda\ncommon_cflags = -A $\n    -B\n"
        "ldflags = -shared $\n    -L$cuda_home/lib64 $\n    -lcudart $\n    -lcuda\n\n"
        "build /s/a.o: compile /a.cu\nbuild /s/b.o: compile /b.cu\nbuild /s/x.so: link /s/a.o /s/b.o\ndefault /s/x.so\n"
    )
    assert builder.ldflags_of(text) == ["-shared", "-L/cuda/lib64", "-lcudart", "-lcuda"]
    assert builder.objects_of(text) == 2
    log = "# ninja log v7\n0\t1500\t9\t/s/a.o\tf\n0\t9000\t9\t/other/a.o\tf\n10\t2010\t9\t/s/a.o\tf\n2010\t2510\t9\t/s/x.so\tf\n"
    assert builder.spent(log, "/s") == 2.5, "the second time that an object was made counts"


def test_progress() -> None:
    assert (
        builder.progress_text(["fused_moe_120"], 37, 96, 8, 210.4) == "fused_moe_120: 37 of 96 objects, 8 jobs, 210 s"
    )
    assert builder.progress_text(["norm", "rope"], 0, 4, 1, 0) == "2 kernels: 0 of 4 objects, 1 job, 0 s"


def test_names_that_are_close() -> None:
    known = ["fused_moe_120", "fused_moe_90", "norm", "gemm", "gemm_sm120", "sampling"]
    assert builder.close_to("fused_moe_sm120", known)[0] == "fused_moe_120"
    assert builder.close_to("gemm_120", known)[0] == "gemm_sm120"
    assert builder.close_to("xyz", known) == []


def a_kernel(folder: Path, name: str) -> tuple[str, list[str], builder.Homes]:
    """A build file with headers in the packages, in the toolkit, and in the scratch folder, all below another folder."""
    scratch, packages, cuda = folder / name / "scratch", folder / name / "venv/lib", folder / f"{name}-cuda"
    for path in (scratch, packages / "include/sub", cuda / "include"):
        path.mkdir(parents=True)
    (scratch / "a.cu").write_text(f'#include "{scratch}/b.h"')
    (scratch / "b.h").write_text(f'#include "{packages}/include/c.h"')
    (packages / "include/sub/c.h").write_text("c")
    (cuda / "include/d.h").write_text("d")
    ninja = (
        f"cuda_home = {cuda}\ncommon = -I{packages}/include $\n    -isystem $cuda_home/include -I{scratch}\n"
        f"build {scratch}/a.o: compile {scratch}/a.cu\n"
    )
    return ninja, [str(scratch / "a.cu")], builder.Homes(str(scratch), packages=str(packages), cuda=str(cuda))


def test_what_a_kernel_is_made_of_is_the_same_in_another_folder(tmp_path: Path) -> None:
    one, other = a_kernel(tmp_path, "one"), a_kernel(tmp_path, "other")
    assert builder.included(one[0]) == [
        str(tmp_path / "one/venv/lib/include"), str(tmp_path / "one-cuda/include"), str(tmp_path / "one/scratch"),
    ]  # fmt: skip
    first = builder.made_of(*one, ["13.0"])
    assert builder.made_of(*other, ["13.0"]) == first
    assert builder.made_of(*other, ["13.1"]) != first
    assert builder.made_of(other[0] + "-DX", *other[1:], ["13.0"]) != first


@pytest.mark.parametrize("path", ["scratch/a.cu", "scratch/b.h", "venv/lib/include/sub/c.h", "venv/lib/include/new.h"])
def test_a_header_is_part_of_what_a_kernel_is_made_of(tmp_path: Path, path: str) -> None:
    one, other = a_kernel(tmp_path, "one"), a_kernel(tmp_path, "other")
    (tmp_path / "other" / path).write_text("another")
    assert builder.made_of(*one, []) != builder.made_of(*other, [])


def test_bytecode_and_links_are_no_headers(tmp_path: Path) -> None:
    one, other = a_kernel(tmp_path, "one"), a_kernel(tmp_path, "other")
    include = tmp_path / "other/venv/lib/include"
    (include / "__pycache__").mkdir()
    (include / "__pycache__/x.pyc").write_text("x")
    (include / "gone.h").symlink_to(tmp_path / "nowhere")
    assert builder.made_of(*one, []) == builder.made_of(*other, [])
    (include / "sub/loop").symlink_to(include)
    builder.made_of(*other, [])  # ends


def test_a_name_that_begins_as_a_folder_is_another(tmp_path: Path) -> None:
    homes = builder.Homes("/x/release", packages="/x/release/lib")
    assert homes.taken_out(b"/x/release/a /x/release.2/a /x/release/lib/b -I/x/release") == (
        b"$scratch/a /x/release.2/a $packages/b -I$scratch"
    )


def test_the_stub_has_the_functions_of_the_header() -> None:
    header = "#define cuMemAlloc cuMemAlloc_v2\nCUresult CUDAAPI cuInit(unsigned int Flags); /* CUDA, cuda */ typedef int CUdevice;"
    assert builder.cuda_functions(header) == ["cuInit", "cuMemAlloc", "cuMemAlloc_v2"]


@pytest.mark.skipif(not shutil.which("c++"), reason="there is no C++ compiler")
def test_what_is_linked_with_the_stub_asks_for_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIBRARY_PATH", "")
    (tmp_path / "include").mkdir()
    (tmp_path / "include/cuda.h").write_text("CUresult CUDAAPI cuInit(unsigned int Flags);")
    toolkit = builder.Toolkit.__new__(builder.Toolkit)
    toolkit.home, toolkit.cxx = str(tmp_path), "c++"
    toolkit.stub(str(tmp_path / "stubs"))
    (tmp_path / "a.cc").write_text('extern "C" int cuInit(unsigned); int f() { return cuInit(0); }')
    # As distributions' compilers do by default.
    argv = [
        "c++",
        "-shared",
        "-fPIC",
        "-Wl,--as-needed",
        str(tmp_path / "a.cc"),
        "-lcuda",
        "-o",
        str(tmp_path / "a.so"),
    ]
    assert builder.ran(argv) == (0, "")
    assert b"libcuda.so.1\0" in (tmp_path / "a.so").read_bytes(), "not dropped by the linker"


@pytest.mark.parametrize(
    ("gib", "cores", "jobs"), [(70, 16, 16), (63, 16, 14), (40, 8, 8), (14, 8, 2), (10, 8, 1), (3, 8, 1), (500, 2, 2)]
)
def test_compilers_that_fit_into_memory(gib: float, cores: int, jobs: int) -> None:
    assert module.jobs_for(gib, cores) == jobs


def test_available_memory() -> None:
    assert module.available("MemTotal: 9 kB\nMemAvailable:   10485760 kB\n") == 10.0
    assert module.available("") == 0.0


# --- the module


class Node:
    """A release with the stand-ins, and a scratch folder."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys, self.folder = capsys, folder
        self.site = folder / "venv/lib/python3.12/site-packages"
        self.python, self.work, self.cuda = folder / "venv/bin/python", folder / "work", folder / "cuda"
        shutil.copytree(DATA / "stand_in", self.site, ignore=shutil.ignore_patterns("__pycache__"))
        (self.site / "flashinfer/data/csrc").mkdir(parents=True)
        (self.site / "flashinfer/data/csrc/norm.cu").write_text("source")
        self.aot = self.site / "flashinfer/data/aot"
        for path in (self.python.parent, self.cuda / "bin", self.cuda / "include"):
            path.mkdir(parents=True)
        self.python.symlink_to(sys.executable)
        for name, target in (("ninja", self.python.parent), ("nvcc", self.cuda / "bin"), ("c++", folder)):
            (self.site / name).rename(target / name)
        for name in ("cuda.h", "cuda_runtime.h"):
            (self.cuda / "include" / name).write_text("CUresult cuInit(int);")
        self.environment = {
            "CUDA_HOME": str(self.cuda),
            "CXX": str(folder / "c++"),
            "CC": "sh",
            "PYTHONPATH": str(self.site),
        }

    def run(self, *kernels: Any, check: bool = False, **more: Any) -> dict[str, Any]:
        environment = {**self.environment, **more.pop("environment", {})}
        args = {"architectures": ["12.0a"], "user": "root" if os.geteuid() == 0 else "", "jobs": 2, **more}
        return run_module(
            module, self.capsys, check=check, python=str(self.python), kernels=list(kernels) or ["norm"],
            environment={name: value for name, value in environment.items() if value}, work=str(self.work), **args,
        )  # fmt: skip

    def library(self, name: str = "norm") -> Path:
        return self.aot / name / f"{name}.so"


@pytest.fixture
def node(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Node:
    return Node(tmp_path, capsys)


def test_built_once_and_found_by_a_fresh_process(node: Node) -> None:
    done = node.run("norm", "fused_moe_120")
    assert (done["changed"], done["status"], done.get("msg")) == (True, "built", None), done
    assert done["message"].startswith("Built norm, fused_moe_120 in ")
    assert (done["nvcc"], done["flashinfer"], done["architectures"], done["jobs"]) == ("13.0.88", "0.9.9", ["12.0a"], 2)
    norm = done["kernels"]["norm"]
    assert (norm["state"], norm["path"], norm["objects"], norm["seconds"], norm["loads"]) == (
        "built", str(node.library()), 2, 2.5, True,
    )  # fmt: skip
    about = node.library().stat()
    assert stat.S_IMODE(about.st_mode) == 0o644 and about.st_nlink == 1 and norm["bytes"] == about.st_size
    assert norm["sha256"] == builder.sha256_of(norm["path"])
    assert not node.work.exists(), "the scratch folder is gone"

    again = node.run("norm", "fused_moe_120")
    assert (again["changed"], again["status"], again["asked"]) == (False, "present", False)
    assert again["kernels"]["norm"] == {**norm, "state": "present", "why": "", "loads": None}
    other = node.run("norm", environment={"SGLANG_X": "1"})
    assert (other["changed"], other["status"], other["asked"]) == (False, "present", True), "asked, and not built"
    assert not node.work.exists()


def test_the_record_is_not_believed_blindly(node: Node) -> None:
    first = node.run()["kernels"]["norm"]["sha256"]
    node.library().write_text("edited")
    assert "is not what was built" in node.run(state="inspected")["kernels"]["norm"]["why"]
    assert node.run()["kernels"]["norm"]["sha256"] == first
    node.library().unlink()
    assert node.run()["kernels"]["norm"] == {
        **node.run()["kernels"]["norm"],
        "state": "built",
        "why": "it is not there",
        "loads": True,
    }
    node.library().parents[1].joinpath("flashinfer_kernels.json").write_text("{")
    assert "has no record" in node.run()["kernels"]["norm"]["why"]


@pytest.mark.parametrize("what", ["architecture", "nvcc", "source", "header", "flags"])
def test_other_inputs_are_another_kernel(node: Node, what: str) -> None:
    assert node.run(NORM)["changed"]
    if what == "architecture":
        done = node.run(NORM, architectures=["12.0f"])
    elif what == "nvcc":
        done = node.run(NORM, environment={"TEST_NVCC": "13.2.1"})
    elif what == "source":
        (node.site / "flashinfer/data/csrc/norm.cu").write_text("another source")
        done = node.run(NORM, environment={"X": "so that the release is asked"})
    elif what == "header":
        (node.site / "flashinfer/data/include").mkdir()
        (node.site / "flashinfer/data/include/norm.h").write_text("another header")
        done = node.run(NORM, environment={"X": "so that the release is asked"})
    else:
        done = node.run({**NORM, "arguments": {"flags": ["-DX"]}})
    assert done["changed"] and "other sources, headers, flags or architectures" in done["kernels"]["norm"]["why"]


def test_a_hard_link_is_not_written_through(node: Node) -> None:
    node.library().parent.mkdir(parents=True)
    cache = node.folder / "cache.so"
    cache.write_text("the cache's")
    os.link(cache, node.library())
    assert node.run()["changed"]
    assert cache.read_text() == "the cache's" and cache.stat().st_nlink == 1


def test_what_a_wheel_ships_is_left_alone(node: Node) -> None:
    node.library().parent.mkdir(parents=True)
    node.library().write_text("shipped")
    meta = node.site / "flashinfer_jit_cache-0.9.9.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: flashinfer-jit-cache\nVersion: 0.9.9\n")
    (meta / "RECORD").write_text("flashinfer/data/aot/norm/norm.so,,\n")
    done = node.run()
    assert (done["changed"], done["status"], done["kernels"]["norm"]["state"]) == (False, "present", "shipped")
    assert node.library().read_text() == "shipped"
    assert not node.run()["asked"]
    mixed = node.run("norm", "decode_64")
    assert (mixed["status"], mixed["kernels"]["decode_64"]["state"]) == ("built", "built")


def test_generators_and_their_arguments(node: Node) -> None:
    many = {"generator": "flashinfer.jit.norm:gen_many", "arguments": {"dtype": "torch.bfloat16"}}
    assert sorted(node.run(many)["kernels"]) == ["bf16_a", "bf16_b"]
    failed = node.run({**many, "arguments": {"type": 1}})
    assert failed["cause"] == "generator" and "It takes (dtype)" in failed["msg"]
    failed = node.run({**many, "arguments": {"dtype": "torch.float3"}})
    assert "torch has no float3" in failed["msg"]
    failed = node.run(NORM, environment={"TEST_GENERATOR": "no SM120"})
    assert failed["cause"] == "generator" and "ValueError: no SM120" in failed["msg"]
    failed = node.run({"generator": "flashinfer.jit.norm:gen_nrm_module"})
    assert failed["cause"] == "unknown" and "It has gen_norm_module" in failed["msg"]
    assert node.run({"generator": "flashinfer.jit.nom:x"})["cause"] == "import"
    failed = node.run({"generator": "flashinfer.jit.norm:gen_other"})
    assert failed["cause"] == "unknown" and "not compiled by nvcc" in failed["msg"]


def test_a_name_that_is_not_known(node: Node) -> None:
    failed = node.run("fused_moe_sm120")
    assert failed["failed"] and failed["cause"] == "unknown"
    assert "no module fused_moe_sm120" in failed["msg"] and "Did you mean fused_moe_120" in failed["msg"]
    assert "add_comm: ModuleNotFoundError" in failed["msg"], "what could not be listed is said"


@pytest.mark.parametrize(
    ("kernels", "more", "words"),
    [
        ([{"generator": "norm"}], {}, "Kernel 1 is"),
        (["a/../b"], {}, 'Kernel 1 is "a/../b"'),
        (["norm", 7], {}, "Kernel 2 is 7"),
        ([{**NORM, "argument": {}}], {}, "Expected is a name"),
        (["norm"], {"architectures": ["sm_120"]}, "a form such as 12.0a"),
        (["norm"], {"jobs": -1}, "at least 0"),
        (["norm"], {"timeout": 0}, "at least 1"),
    ],
)
def test_options_are_checked_first(node: Node, kernels: list[Any], more: dict[str, Any], words: str) -> None:
    failed = node.run(*kernels, **more, state="inspected")
    assert failed["failed"] and failed["cause"] == "options" and words in failed["msg"]


def test_check_mode_and_inspection_change_nothing(node: Node) -> None:
    before = sorted(node.folder.rglob("*"))
    would = node.run(check=True)
    assert (would["changed"], would["status"]) == (True, "missing")
    assert would["message"] == "Would build (2 objects): norm, as it is not there."
    seen = node.run(state="inspected")
    assert (seen["changed"], seen["status"], seen["message"][:13]) == (False, "missing", "Not built yet")
    assert sorted(node.folder.rglob("*")) == before
    assert node.run()["changed"]
    assert (node.run(check=True)["changed"], node.run("norm", "decode_64", check=True)["status"]) == (False, "partial")


def test_a_release_that_is_not_built_yet(node: Node) -> None:
    node.python.unlink()
    would = node.run(check=True)
    assert (would["status"], would["changed"], would.get("failed")) == ("no_release", True, None)
    assert (node.run(state="inspected")["status"], node.run(state="inspected")["changed"]) == ("no_release", False)
    assert "The release is built before its kernels" in node.run()["msg"]


def test_inspection_never_fails_for_what_it_finds(node: Node) -> None:
    seen = node.run(state="inspected", environment={"CUDA_HOME": ""})
    assert (seen.get("failed"), seen["status"], seen["cause"]) == (None, "unknown", "nvcc")
    assert "Could not find nvcc" in seen["message"] and "Set CUDA_HOME" in seen["message"]


def test_a_toolkit_that_is_none(node: Node) -> None:
    failed = node.run(environment={"CUDA_HOME": ":/usr/local/cuda-12.8"})
    assert failed["cause"] == "nvcc" and "CUDA_HOME is ':/usr/local/cuda-12.8'; there is no" in failed["msg"]
    (node.cuda / "include/cuda_runtime.h").unlink()
    assert "include/cuda_runtime.h" in node.run()["msg"]


def test_programs_that_are_not_there(node: Node) -> None:
    failed = node.run(environment={"CXX": "no-such-c++"})
    assert failed["cause"] == "compiler" and "no-such-c++ is not found" in failed["msg"]
    (node.python.parent / "ninja").unlink()
    failed = node.run(environment={"PATH": str(node.folder)}, **{})
    assert failed["cause"] == "compiler", "sh is not on this PATH either"
    failed = node.run(environment={"PATH": str(node.folder), "CC": str(node.folder / "c++")})
    assert failed["cause"] == "ninja" and "ninja-build" in failed["msg"]


def test_no_architecture(node: Node) -> None:
    failed = node.run(architectures=[])
    assert failed["cause"] == "architecture" and '["12.0a"]' in failed["msg"]
    done = node.run(architectures=[], environment={"FLASHINFER_CUDA_ARCH_LIST": "12.0f"})
    assert (done["changed"], done["architectures"]) == (True, ["12.0f"])


def test_another_cuda_than_torchs_is_a_note(node: Node) -> None:
    assert "another version" in node.run(environment={"TEST_TORCH": "13.2"})["notes"][0]
    notes = node.run(environment={"TEST_TORCH": "12.8", "X": "1"}, check=True)["notes"]
    assert notes == ["nvcc is of CUDA 13.0 and torch of 12.8, another major version: kernels may not load, or be slow."]


def test_a_stub_where_there_is_no_driver(node: Node) -> None:
    done = node.run(environment={"TEST_LACKS": "cuda"})
    assert done["changed"] and "a stub was" in done["notes"][0]
    failed = node.run("decode_64", environment={"TEST_LACKS": "cublasLt"})
    assert failed["cause"] == "library" and "nvidia-cublas" in failed["msg"], "before anything is compiled"


def test_a_build_that_fails_is_gone_on_with(node: Node) -> None:
    failed = node.run(environment={"TEST_NINJA": str(DATA / "logs/killed-cicc.log")})
    assert (failed["failed"], failed["cause"], failed["changed"]) == (True, "memory", False)
    assert "Set jobs to 1" in failed["msg"]
    assert not node.library().exists() and not (node.work / "job").exists()
    kept = list(node.work.glob("build/.cache/flashinfer/*/cached_ops/norm/build.ninja"))
    assert kept, "ninja goes on from here"
    assert "nvcc fatal" not in (node.work / "build/build.log").read_text()
    assert node.run()["changed"]
    assert not node.work.exists()


def test_what_does_not_prove_itself_is_taken_away(node: Node) -> None:
    failed = node.run(environment={"TEST_NOT_FOUND": "1"})
    assert failed["cause"] == "proof" and "does not find norm" in failed["msg"] and not node.library().exists()
    why = {"TEST_LOADS": "undefined symbol: cuInit"}
    failed = node.run(environment={**why, "TEST_DRIVER": "1"})
    assert failed["cause"] == "proof" and "undefined symbol: cuInit" in failed["msg"] and not node.library().exists()
    done = node.run(environment=why)
    assert (done["changed"], done["kernels"]["norm"]["loads"]) == (True, False)
    assert "not proved on a node without a driver: OSError: undefined symbol: cuInit" in done["notes"][0]


def test_root_writes_only_into_the_release(node: Node) -> None:
    failed = node.run(environment={"TEST_AOT": str(node.folder / "elsewhere")})
    assert failed["cause"] == "place" and "outside of" in failed["msg"]
    assert not (node.folder / "elsewhere").exists()
    secret = node.folder / "secret"
    secret.write_text("x")
    failed = node.run(environment={"TEST_LINK": str(secret)})
    assert failed["failed"] and failed["cause"] == "place" and not node.library().exists()


def test_in_slices_and_a_second_run_follows_the_first(node: Node) -> None:
    slow: dict[str, Any] = {"environment": {"TEST_SLEEP": "2"}}
    step = node.run(slice=0.7, **slow)
    assert step["unfinished"] and not step["changed"]
    pid = json.loads((node.work / "job/job.json").read_text())["pid"]
    while not (step := node.run(slice=0.2, attached=True, **slow)).get("progress"):
        assert step["unfinished"]
    assert step["progress"] == "norm: 0 of 2 objects, 2 jobs, 0 s"
    second = node.run(**slow, jobs=1)
    assert second["changed"] and second["jobs"] == 2, "the first run's"
    assert not sglang_job.members(pid)
    first = node.run(slice=0.2, attached=True, **slow)
    assert (first["changed"], first["status"]) == (False, "present"), "the other run was there first"
    gone = node.run(slice=0.2, attached=True, environment={"TEST_SLEEP": "3"})
    assert gone["failed"] and "other options took its place" in gone["msg"]


def test_a_failure_that_nobody_heard_is_tried_again(node: Node) -> None:
    log = node.folder / "log"
    shutil.copy(DATA / "logs/compile.log", log)
    broken: dict[str, Any] = {"environment": {"TEST_NINJA": str(log), "TEST_SLEEP": "0.5"}}
    assert node.run(slice=0.0, **broken)["unfinished"]
    until = time.monotonic() + 20
    while sglang_job.look(str(node.work / "job"))["running"] and time.monotonic() < until:
        time.sleep(0.1)
    assert sglang_job.look(str(node.work / "job"))["result"]["failed"]["cause"] == "compile"
    (node.python.parent / "ninja").write_text((DATA / "stand_in/ninja").read_text().replace("exit 1; fi", "fi"))
    assert node.run(**broken)["changed"]


def test_the_time_is_over(node: Node) -> None:
    failed = node.run(environment={"TEST_SLEEP": "30"}, timeout=1)
    assert (failed["failed"], failed["cause"]) == (True, "timeout")
    assert "not done within 1 s" in failed["msg"] and (node.work / "build").is_dir()


def test_a_program_that_cannot_be_run(node: Node) -> None:
    node.python.unlink()
    node.python.write_text("#!/bin/sh\necho 'no torch' >&2; exit 3\n")
    node.python.chmod(0o755)
    failed = node.run()
    assert failed["cause"] == "ended" and "(exit status 3): no torch" in failed["msg"]
    node.python.chmod(0o644)
    failed = node.run()
    assert failed["cause"] == "ended" and "must be open to" in failed["msg"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root compiles as somebody else")
def test_compiled_by_another_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Not below pytest's folder, which is root's alone.
    folder = Path("/var/tmp") / f"flashinfer-kernels-{os.getpid()}"
    python = next((path for path in ("/usr/bin/python3", "/usr/local/bin/python3") if Path(path).exists()), "")
    if not python:
        pytest.skip("no Python that nobody may run")
    try:
        folder.mkdir(mode=0o755)
        node = Node(folder, capsys)
        node.python.unlink()
        node.python.symlink_to(python)
        failed = node.run(user="nobody", environment={"TEST_NINJA": str(DATA / "logs/compile.log")})
        assert failed["cause"] == "compile" or "Permission" in failed["msg"]
        assert (node.work / "build").stat().st_uid != 0 and (node.work / "job").exists() is False
        done = node.run(user="a-user-that-is-not-made-yet")
        assert done["changed"], done.get("msg")
        assert node.library().stat().st_uid == 0 and done["kernels"]["norm"]["loads"]
    finally:
        shutil.rmtree(folder)


# --- the action plugin


def test_the_action_plugin_finds_its_helper_by_itself() -> None:
    # As in Ansible's own process, where no test has put the project's module_utils on the path.
    code = "from action_plugins import flashinfer_kernels"
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("name", ["slice", "attached"])
def test_the_action_plugin_keeps_its_own_options(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = action.ActionModule.__new__(action.ActionModule)
    monkeypatch.setattr(action.ActionBase, "run", lambda self, tmp=None, task_vars=None: {})
    made._task = type("Task", (), {"args": {name: 1}, "no_log": False, "action": "flashinfer_kernels"})()
    with pytest.raises(AnsibleActionFail, match=f"{name} belongs to its action plugin"):
        made.run()


def test_the_action_plugin_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[dict[str, Any]] = [{"unfinished": True, "progress": "norm: 1 of 2 objects"}, {"changed": True}]
    said: list[str] = []
    made = action.ActionModule.__new__(action.ActionModule)
    monkeypatch.setattr(action.ActionBase, "run", lambda self, tmp=None, task_vars=None: {})
    monkeypatch.setattr(sglang_job, "PACE", 0.0)
    made._task = type("Task", (), {"args": {"kernels": ["norm"]}, "no_log": False, "action": "flashinfer_kernels"})()
    made._display = type("Display", (), {"display": lambda self, text: said.append(text)})()
    made._execute_module = lambda module_name, module_args, task_vars: dict(steps.pop(0))
    assert made.run(task_vars={"inventory_hostname": "gpu-node"}) == {"changed": True}
    assert said == ["gpu-node: norm: 1 of 2 objects"]
