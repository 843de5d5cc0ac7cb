import os

from .core import JitSpec, OtherSpec


def gen_norm_module(flags=(), dtype=None):
    if os.environ.get("TEST_GENERATOR"):
        raise ValueError(os.environ["TEST_GENERATOR"])
    return JitSpec("norm", flags)


def gen_many(dtype):
    return [JitSpec(f"{dtype}_a"), JitSpec(f"{dtype}_b")]


def gen_other():
    return OtherSpec("cute")
