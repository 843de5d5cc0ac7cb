"""CPU stand-in for `sgl_kernel`, whose wheels on PyPI are CUDA builds only.

Purpose: SGLang imports names of this package on every device; on a CPU it calls few of them.
Here any name, and any submodule, can be imported.

Limits: nothing is faked. A kernel that is not implemented below raises NotImplementedError when it is called, and no
torch operator is registered, so that SGLang's own probe for a CPU kernel library answers "no" and SGLang takes its
torch-native paths. Used by CPU stacks alone; a stack with a GPU installs the real package.
"""

from __future__ import annotations

import ctypes
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

__version__ = "0.0.0+cpu.standin"


class MissingKernel:
    """A name of the CUDA build: can be imported and passed around, and says so when called."""

    def __init__(self, name: str) -> None:
        self.__name__ = name.rsplit(".", 1)[-1]
        self.__qualname__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            f"{self.__qualname__} is a CUDA kernel and this stack runs on a CPU, where sgl_kernel is a stand-in. "
            "Serve a model or use arguments that need no such kernel, or use a stack for GPUs."
        )

    def __getattr__(self, name: str) -> MissingKernel:
        # Dunders answer "absent", or copy, pickle and inspect would take this object for anything they ask about.
        if name.startswith("__"):
            raise AttributeError(name)
        return MissingKernel(f"{self.__qualname__}.{name}")

    def __repr__(self) -> str:
        return f"<missing kernel {self.__qualname__}>"


def _names_of(module: str) -> Callable[[str], MissingKernel]:
    """Return the module-level `__getattr__` (PEP 562) of `module`."""

    def missing(name: str) -> MissingKernel:
        if name.startswith("__"):
            raise AttributeError(name)
        return MissingKernel(f"{module}.{name}")

    return missing


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Answer the import of any `sgl_kernel.x.y` with a module full of missing kernels."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.startswith(f"{__name__}."):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__path__ = []
        module.__getattr__ = _names_of(spec.name)  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: the module is whole when it is created."""


sys.meta_path.insert(0, _Submodules())
__getattr__ = _names_of(__name__)


# SGLang 0.5.23 calls these two on a CPU and has no torch-native path for them. Arguments are named and ordered as in
# its calls: srt/mem_cache/allocation.py and kernels/ops/kvcache/cache_move.py.


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Write each request's new cache slots into its row of the request-to-token table, in place.

    `req_to_token` is (requests, pool_len). Request i takes the next `end_offset[i] - start_offset[i]` entries of
    `out_cache_loc` into columns start to end of row `req_pool_indices[i]`.
    """
    taken = 0
    for row, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist()):
        count = max(end - start, 0)
        req_to_token[row, start : start + count] = out_cache_loc[taken : taken + count].to(req_to_token.dtype)
        taken += count


def copy_all_layer_kv_cache_cpu(data_ptrs: Tensor, strides: Tensor, tgt_loc: Tensor, src_loc: Tensor) -> None:
    """Copy cache rows `src_loc` to `tgt_loc` in every buffer, in place.

    `data_ptrs` are the addresses of the buffers (keys and values of every layer), `strides` their row sizes in bytes.
    All rows are read before the first is written, since the two sets may overlap.
    """
    sources, targets = src_loc.tolist(), tgt_loc.tolist()
    for address, size in zip(data_ptrs.tolist(), strides.tolist()):
        rows = [ctypes.string_at(address + source * size, size) for source in sources]
        for target, row in zip(targets, rows):
            ctypes.memmove(address + target * size, row, size)
