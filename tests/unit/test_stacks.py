"""The stacks: each lock is what its input asks for, and the stand-ins stand in without faking."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

STACKS = Path(__file__).resolve().parents[2] / "stacks"
STACK_FOLDERS = sorted(path.parent for path in STACKS.glob("*/stack.yml"))
CPU_FOLDERS = [path for path in STACK_FOLDERS if "accelerator: cpu" in (path / "stack.yml").read_text(encoding="utf-8")]
# Stacks that deploy an engine; the router's has none.
ENGINES = [
    path for path in STACK_FOLDERS if "accelerator: none" not in (path / "stack.yml").read_text(encoding="utf-8")
]
STANDINS = STACKS / "cpu-standins"

# Distributions that hold CUDA code, or that bring it.
CUDA = re.compile(
    r"torch|(nvidia|flashinfer|cuda|cupy|nvshmem4py)(-.*|_.*)?|sgl-kernel|sglang-kernel|sgl-(deep|flash).*|torchaudio"
)


def stack_file(folder: Path) -> dict[str, Any]:
    return yaml.safe_load((folder / "stack.yml").read_text(encoding="utf-8"))


def locks(folder: Path) -> list[Path]:
    return [folder / f"requirements-{python}.txt" for python in stack_file(folder)["python"]]


def locked(lock: Path) -> dict[str, tuple[str, list[str]]]:
    """Return name -> (version, hashes) of a lock."""
    entries = lock.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    found = {}
    for entry in entries:
        if match := re.match(r"([a-z0-9][a-z0-9.-]*)==(\S+)", entry):
            found[match[1]] = (match[2], re.findall(r"--hash=sha256:[0-9a-f]{64}(?= |$)", entry))
        else:
            assert not entry.strip() or entry.lstrip().startswith("#"), f"{lock}: {entry[:80]}"
    return found


def asked(folder: Path) -> dict[str, str]:
    """Return name -> version constraint of input.txt."""
    lines = (folder / "input.txt").read_text(encoding="utf-8").splitlines()
    requirements = [re.sub(r"\s*(#.*)?$", "", line) for line in lines]
    return dict(re.match(r"([a-z0-9.-]+)(.*)$", line).groups() for line in requirements if line)  # type: ignore[union-attr, misc]


def test_there_are_stacks() -> None:
    assert {path.name for path in CPU_FOLDERS} >= {"sglang-cpu-0.5.9", "sglang-cpu-0.5.23"}


@pytest.mark.parametrize("folder", STACK_FOLDERS, ids=lambda path: path.name)
def test_stack_file_has_what_others_read(folder: Path) -> None:
    stack = stack_file(folder)
    assert set(stack) <= {
        *("summary", "accelerator", "sglang", "python", "torch", "standins", "environment"),
        *("cuda", "cuda_home", "links", "parser"),
    }
    assert stack["accelerator"] in ("cpu", "cuda", "none")
    assert isinstance(stack["summary"], str)
    assert all(re.fullmatch(r"3\.\d+", python) for python in stack["python"])
    # Environment goes into a unit file: values are text, not YAML's booleans and numbers.
    assert all(isinstance(value, str) for value in stack.get("environment", {}).values())


@pytest.mark.parametrize("folder", sorted(set(ENGINES) - set(CPU_FOLDERS)), ids=lambda path: path.name)
def test_gpu_stacks_name_their_compiler_and_who_speaks_for_them(folder: Path) -> None:
    stack = stack_file(folder)
    twin = stack_file(STACKS / stack["parser"])
    assert twin["accelerator"] == "cpu" and twin["sglang"] == stack["sglang"]
    for lock in locks(folder):
        pins = locked(lock)
        if Path(stack["cuda_home"]).is_absolute():
            # The node's own toolkit: no wheel of CUDA 12 has an nvcc.
            assert not any(name.startswith("nvidia-cuda-nvcc") for name in pins)
        else:
            assert {"nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-cccl", "nvidia-cublas"} <= set(
                pins
            )
            assert pins["nvidia-cuda-nvcc"][0].startswith(stack["cuda"])
            assert set(stack["links"].values()) >= {"libcudart.so.13", "libcublas.so.13"}


@pytest.mark.parametrize("folder", STACK_FOLDERS, ids=lambda path: path.name)
def test_every_lock_agrees_with_its_input(folder: Path) -> None:
    for lock in locks(folder):
        pins = locked(lock)
        if folder in ENGINES:
            assert pins["sglang"][0] == stack_file(folder)["sglang"]
        for name, constraint in asked(folder).items():
            assert name in pins, f"{lock}: {name} of input.txt is missing"
            if constraint.startswith("=="):
                assert pins[name][0] == constraint[2:], f"{lock}: {name}"


@pytest.mark.parametrize("folder", STACK_FOLDERS, ids=lambda path: path.name)
def test_every_line_of_a_lock_is_hashed(folder: Path) -> None:
    for lock in locks(folder):
        assert [name for name, (_, hashes) in locked(lock).items() if not hashes] == []


@pytest.mark.parametrize("folder", CPU_FOLDERS, ids=lambda path: path.name)
def test_cpu_stacks_hold_no_cuda_and_leave_torch_out(folder: Path) -> None:
    for lock in locks(folder):
        assert [name for name in locked(lock) if CUDA.fullmatch(name)] == []


@pytest.mark.parametrize("folder", CPU_FOLDERS, ids=lambda path: path.name)
def test_cpu_stacks_name_a_torch_that_no_cuda_build_can_match(folder: Path) -> None:
    assert stack_file(folder)["torch"].endswith("+cpu")


def test_the_cuda_pattern_tells_them_apart() -> None:
    cuda = [
        "torch",
        "nvidia-cublas",
        "flashinfer-python",
        "sgl-kernel",
        "sglang-kernel",
        "cuda-python",
        "sgl-deep-gemm",
    ]
    assert all(CUDA.fullmatch(name) for name in cuda)
    assert not any(CUDA.fullmatch(name) for name in ("torchvision", "torchao", "sglang", "triton"))


@pytest.mark.parametrize("folder", CPU_FOLDERS, ids=lambda path: path.name)
def test_what_overrides_remove_is_not_in_the_lock(folder: Path) -> None:
    lines = (folder / "overrides.txt").read_text(encoding="utf-8").splitlines()
    removed = [line.split(";")[0].strip() for line in lines if "'never'" in line and not line.startswith("#")]
    assert "torch" in removed
    for lock in locks(folder):
        assert [name for name in removed if name in locked(lock)] == []


@pytest.mark.parametrize("folder", sorted(set(STACK_FOLDERS) - set(ENGINES)), ids=lambda path: path.name)
def test_stacks_without_an_engine_bring_no_torch(folder: Path) -> None:
    """A gateway is a small machine."""
    assert not {"sglang", "torch", "standins"} & set(stack_file(folder))
    for lock in locks(folder):
        assert [name for name in locked(lock) if CUDA.fullmatch(name) or name in ("sglang", "transformers")] == []
    assert folder.name == f"sglang-router-{locked(lock)['sglang-router'][0]}"


def test_uv_is_pinned_to_one_wheel() -> None:
    uv = yaml.safe_load((STACKS / "uv.yml").read_text(encoding="utf-8"))
    wheel = uv["x86_64"]
    assert wheel["file"].startswith(f"uv-{uv['version']}-py3-none-manylinux")
    assert wheel["file"].endswith("x86_64.whl")
    assert re.fullmatch(r"[0-9a-f]{64}", wheel["sha256"])


# --- the stand-ins ---


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The stand-in for sgl_kernel, imported as a release does."""
    # A release's digest covers the stand-ins' folder: no __pycache__ of a test in it.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "path", [str(STANDINS), *sys.path])
    for name in [name for name in sys.modules if name.split(".")[0] == "sgl_kernel"]:
        monkeypatch.delitem(sys.modules, name)
    import sgl_kernel

    yield sgl_kernel
    for name in [name for name in sys.modules if name.split(".")[0] == "sgl_kernel"]:
        del sys.modules[name]


def test_any_kernel_can_be_imported_and_none_is_faked(kernels: ModuleType) -> None:
    from sgl_kernel import fused_experts
    from sgl_kernel.some.new import thing

    for kernel, name in ((fused_experts, "sgl_kernel.fused_experts"), (thing, "sgl_kernel.some.new.thing")):
        with pytest.raises(NotImplementedError, match=f"{name} is a CUDA kernel"):
            kernel(1, key=2)
    with pytest.raises(NotImplementedError, match="sgl_kernel.ops.sub.kernel"):
        kernels.ops.sub.kernel()


def test_a_missing_kernel_claims_no_protocol(kernels: ModuleType) -> None:
    assert not hasattr(kernels, "__file_of_something__")
    assert not hasattr(kernels.anything, "__torch_function__")
    assert kernels.anything.__name__ == "anything"


class Row(list):
    """As much of a tensor as the table's rows need: assignment of a slice, `to`, `tolist`."""

    def to(self, dtype: object) -> Row:
        return self

    def tolist(self) -> list[int]:
        return list(self)

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        return Row(found) if isinstance(key, slice) else found


class Table(dict):
    """A (requests, length) tensor that takes `table[row, start:end] = values` of just that length."""

    dtype = "int32"

    def __setitem__(self, key: Any, values: Any) -> None:
        row, columns = key
        assert len(values) == columns.stop - columns.start
        self[row][columns] = values


def test_new_slots_go_to_each_requests_row(kernels: ModuleType) -> None:
    table = Table({0: [9] * 4, 1: [9] * 4, 2: [9] * 4})
    # Request rows 2, 0, 1 take two, none and one new slot.
    kernels.assign_req_to_token_pool_cpu(
        Row([2, 0, 1]), table, Row([1, 3, 0]), Row([3, 3, 1]), Row([70, 71, 72]), pool_len=4
    )
    assert table == {2: [9, 70, 71, 9], 0: [9, 9, 9, 9], 1: [72, 9, 9, 9]}


def test_rows_are_copied_in_every_buffer_also_where_they_overlap(kernels: ModuleType) -> None:
    import ctypes

    narrow, wide = ctypes.create_string_buffer(b"aabbcc", 6), ctypes.create_string_buffer(b"AAAABBBBCCCC", 12)
    pointers = Row([ctypes.addressof(narrow), ctypes.addressof(wide)])
    kernels.copy_all_layer_kv_cache_cpu(pointers, Row([2, 4]), tgt_loc=Row([1, 2]), src_loc=Row([0, 1]))
    assert narrow.raw == b"aaaabb"
    assert wide.raw == b"AAAAAAAABBBB"


def test_torchvision_standin_declares_before_torchvision_is_looked_for(tmp_path: Path) -> None:
    """With a torch and a torchvision that note what happens: the real ones are gigabytes."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("from torch import library\n")
    (tmp_path / "torch" / "library.py").write_text(
        "class Library:\n"
        "    def __init__(self, *names): print('library', *names)\n"
        "    def define(self, signature): print('define', signature.split('(')[0])\n"
    )
    (tmp_path / "torchvision.py").write_text("print('torchvision')\n")
    # The .pth file's line, as Python runs it at its start.
    startup = (STANDINS / "torchvision_on_cpu_torch.pth").read_text(encoding="utf-8")
    program = f"{startup}import sys; assert 'torch' not in sys.modules\nimport json, torchvision; import torchvision\n"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": f"{STANDINS}:{tmp_path}", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.split("\n") == ["library torchvision FRAGMENT", "define nms", "define qnms", "torchvision", ""]
