import os
from pathlib import Path

import tvm_ffi

PACKAGE = Path(__file__).resolve().parents[1]
JIT = Path(os.environ["FLASHINFER_WORKSPACE_BASE"]) / ".cache/flashinfer/0.9.9/cached_ops"


class Registry:
    def __init__(self):
        self.specs = {}

    def get_all_specs(self):
        return dict(self.specs)


jit_spec_registry = Registry()


class OtherSpec:
    def __init__(self, name):
        self.name = name
        jit_spec_registry.specs[name] = self


class JitSpec:
    def __init__(self, name, flags=()):
        self.name, self.flags = name, flags
        self.sources = [PACKAGE / "data/csrc/norm.cu"]
        jit_spec_registry.specs.setdefault(name, self)

    ninja_path = property(lambda self: JIT / self.name / "build.ninja")
    jit_library_path = property(lambda self: JIT / self.name / f"{self.name}.so")
    is_aot = property(lambda self: self.aot_path.exists() and "TEST_NOT_FOUND" not in os.environ)

    @property
    def aot_path(self):
        return Path(os.environ.get("TEST_AOT", PACKAGE / "data/aot")) / self.name / f"{self.name}.so"

    def write_ninja(self):
        self.ninja_path.parent.mkdir(parents=True, exist_ok=True)
        made = self.ninja_path.parent
        self.ninja_path.write_text(
            f"cuda_home = {os.environ['CUDA_HOME']}\ncommon_cflags = -I{PACKAGE}/data/include\nflags = {' '.join(self.flags)} {os.environ['FLASHINFER_CUDA_ARCH_LIST']}\n"
            "ldflags = -shared $\n    -L$cuda_home/lib64 $\n    -lcuda\n\n"
            f"build {made}/a.o: compile a.cu\nbuild {made}/b.o: compile b.cu\nbuild {made}/{self.name}.so: link a.o b.o\n"
        )

    def build_and_load(self):
        assert os.environ["FLASHINFER_DISABLE_JIT"] == "1" and self.is_aot
        return tvm_ffi.load_module(str(self.aot_path))
