from .jit.core import JitSpec
from .jit.norm import gen_norm_module


def get_default_config():
    return {"head_dim": [64], "add_comm": True, "add_moe": True, "add_misc": True}


def detect_sm_capabilities():
    return {"sm120": True}


def gen_all_modules(head_dim_, sm_capabilities, add_comm, add_moe, add_misc):
    if add_comm:
        import nvshmem_that_is_not_there  # noqa: F401
    if add_moe:
        JitSpec("fused_moe_120")
    if add_misc:
        gen_norm_module()
    for size in head_dim_:
        JitSpec(f"decode_{size}")
