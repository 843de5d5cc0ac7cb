"""Operations of the profiles: sizes that the engine's calls have on one GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils import flashinfer_shapes as shapes

ROOT = Path(__file__).resolve().parents[2]
GLM5 = json.loads((ROOT / "models/configs/glm-5.json").read_text())
KIMI = json.loads((ROOT / "models/configs/kimi-k2.json").read_text())
KIMI_INT4 = json.loads((ROOT / "models/configs/kimi-k2.5.json").read_text())
NVFP4 = {
    "quantization_config": {"quant_algo": "NVFP4", "quant_method": "modelopt", "ignore": ["lm_head", "*.self_attn*"]}
}


def resolved(stack: str, name: str) -> dict[str, Any]:
    return json.loads((ROOT / f"stacks/{stack}/resolved/{name}.json").read_text())["resolved"]


def test_glm_5_with_tensor_parallel_8() -> None:
    (moe,) = shapes.operations(GLM5, resolved("sglang-0.5.9-cu128-glm5", "glm5"))
    assert moe == {
        "op": "cutlass_fused_moe", "dtype": "nvfp4", "input": "bf16", "experts": 256, "hidden": 6144, "intermediate": 256,
        "top_k": 8, "tp_size": 8, "ep_size": 1, "max_tokens": 8192,
    }  # fmt: skip


def test_kimi_k2_thinking_with_the_variant_that_flashinfer_serves() -> None:
    (moe,) = shapes.operations(KIMI, resolved("sglang-0.5.9-cu128", "kimi_k2_thinking+moe_flashinfer_cutlass"))
    assert (moe["experts"], moe["hidden"], moe["intermediate"], moe["top_k"]) == (384, 7168, 256, 8)
    assert moe["max_tokens"] == 8192, "a prefill chunk is more than the 2,048 requests that run"


@pytest.mark.parametrize(
    ("config", "stack", "name"),
    [(KIMI, "sglang-0.5.9-cu128", "kimi_k2_thinking"), (KIMI_INT4, "sglang-0.5.9-cu128", "kimi_k25")],
)
def test_what_flashinfer_does_not_run_gives_none(config: dict[str, Any], stack: str, name: str) -> None:
    assert shapes.operations(config, resolved(stack, name)) == []


BASE = {
    "tp_size": 8,
    "moe_runner_backend": "flashinfer_cutlass",
    "quantization": "modelopt_fp4",
    "chunked_prefill_size": 8192,
}


def test_a_shared_expert_that_is_fused_is_one_more() -> None:
    (moe,) = shapes.operations(GLM5, BASE)
    assert (moe["experts"], moe["top_k"]) == (257, 9)
    (moe,) = shapes.operations(KIMI, BASE)
    assert (moe["experts"], moe["top_k"]) == (384, 8), "SGLang fuses with 256 experts alone"


def test_expert_parallel_ranks_hold_whole_experts() -> None:
    (moe,) = shapes.operations(GLM5, {**BASE, "ep_size": 8})
    assert (moe["experts"], moe["intermediate"], moe["tp_size"], moe["ep_size"]) == (32, 2048, 1, 8)
    (moe,) = shapes.operations(GLM5, {**BASE, "ep_size": 2})
    assert (moe["experts"], moe["intermediate"], moe["tp_size"]) == (128, 512, 4)
    with pytest.raises(ValueError, match="tp_size is 8, which 3 ranks cannot share out"):
        shapes.operations(GLM5, {**BASE, "ep_size": 3})


def test_data_parallel_attention_gathers_packed_tokens_of_all_groups() -> None:
    args = {**BASE, "ep_size": 8, "dp_size": 8, "enable_dp_attention": True, "chunked_prefill_size": 1024}
    (moe,) = shapes.operations(GLM5, args)
    assert (moe["input"], moe["max_tokens"]) == ("nvfp4", 8192)
    (moe,) = shapes.operations(GLM5, {**args, "moe_a2a_backend": "flashinfer"})
    assert moe["input"] == "bf16"


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        ({"max_running_requests": 2048, "chunked_prefill_size": 512}, 2048),
        ({"max_running_requests": 64, "chunked_prefill_size": 8192}, 8192),
        ({"max_running_requests": 64, "chunked_prefill_size": -1, "max_prefill_tokens": 16384}, 16384),
        ({"max_running_requests": 600, "speculative_num_draft_tokens": 4, "chunked_prefill_size": 2048}, 2400),
    ],
)
def test_tokens_of_the_largest_call(given: dict[str, int], tokens: int) -> None:
    assert shapes.max_tokens(given) == tokens


def test_tokens_that_are_not_known() -> None:
    with pytest.raises(ValueError, match="neither max_running_requests nor chunked_prefill_size"):
        shapes.operations(GLM5, {**BASE, "chunked_prefill_size": None})


def test_dense_layers_of_a_checkpoint_that_says_which_are_quantized() -> None:
    args = {**BASE, "disable_shared_experts_fusion": True, "fp4_gemm_runner_backend": "flashinfer_cutlass"}
    found = [one for one in shapes.operations({**GLM5, **NVFP4}, args) if one["op"] == "mm_fp4"]
    assert [(one["n"], one["k"], one["backend"]) for one in found] == [
        (2 * 12288 // 8, 6144, "cutlass"),
        (6144, 12288 // 8, "cutlass"),
        (2 * 2048 // 8, 6144, "cutlass"),
        (6144, 2048 // 8, "cutlass"),
    ]
    assert all(one["max_tokens"] == 8192 for one in found)
    all_of_it = {"quantization_config": {"quant_algo": "NVFP4", "ignore": ["lm_head"]}}
    found = [one for one in shapes.operations({**GLM5, **all_of_it}, args) if one["op"] == "mm_fp4"]
    assert {(6144, 8 * 256), (2048 + 512 + 64, 6144), (8 * 256, 2048), (8 * 448, 512)} <= {
        (one["n"], one["k"]) for one in found
    }
    assert len(found) == len({(one["n"], one["k"]) for one in found}), "every shape once"


@pytest.mark.parametrize(
    ("config", "backend"),
    [({**GLM5, **NVFP4}, "marlin"), ({**GLM5, **NVFP4}, "auto"), ({**GLM5, **NVFP4}, None), (GLM5, "flashinfer_cutlass"),
     ({**GLM5, "quantization_config": {"quant_method": "fp8"}}, "flashinfer_cutlass")],
)  # fmt: skip
def test_no_dense_layers_where_that_is_not_known_or_not_flashinfers(
    config: dict[str, Any], backend: str | None
) -> None:
    found = shapes.operations(config, {**BASE, "fp4_gemm_runner_backend": backend})
    assert [one["op"] for one in found] == ["cutlass_fused_moe"]


def test_layers_that_the_checkpoint_excludes() -> None:
    def config(*patterns: str) -> dict[str, Any]:
        return {"quantization_config": {"quantization": {"quant_algo": "NVFP4", "exclude_modules": list(patterns)}}}

    name = "model.layers.3.mlp.shared_experts.gate_proj"
    assert shapes.quantized(config("lm_head", "model.layers.3.self_attn*"), name)
    for pattern in (
        "re:.*shared_experts.*",
        "*.shared_experts.*",
        "model.layers.3.mlp",
        "model.layers.3.mlp.shared_experts*",
    ):
        assert not shapes.quantized(config(pattern), name), pattern
    assert shapes.quantized(config("model.layers.3.ml"), name), "a part of a name is no name"


def test_absorbed_projections_of_an_fp8_checkpoint() -> None:
    args = {"tp_size": 8, "quantization": "fp8", "chunked_prefill_size": 4096}
    found = shapes.operations(GLM5, args, "0.5.23")
    assert [(one["op"], one["batch"], one["k"], one["n"], one["max_tokens"]) for one in found] == [
        ("bmm_fp8", 8, 192, 512, 4096),
        ("bmm_fp8", 8, 512, 256, 4096),
    ]
    assert shapes.operations(GLM5, args, "0.5.15.post1") == [], "this one has a kernel of its own"
    assert shapes.operations(GLM5, args) == []
