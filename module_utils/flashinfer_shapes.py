# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""From a model's config.json and a release's resolved arguments to the operations that FlashInfer can tune, with one GPU's sizes.

Pure. The engine finds a tuned choice by the exact shapes of a call's inputs, so they are given here as SGLang makes them. That was
read in 0.5.9, 0.5.15 and 0.5.23: modelopt_quant.py, moe_runner/flashinfer_cutlass.py, token_dispatcher/standard.py, forward_mla.py.

`cutlass_fused_moe`: NVFP4 experts with `flashinfer_cutlass`. The input is BF16 (tokens, hidden), or packed FP4 (tokens, hidden / 2)
where data-parallel attention gathers FP4 tokens. Weights are int64 views: (experts, 2 x intermediate, hidden / 16) and (experts,
hidden, intermediate / 16). Experts are a rank's own, the intermediate size is its share.

`mm_fp4`: linear layers that the checkpoint holds in NVFP4, where the backend is one of FlashInfer's. Which layers those are is
known from the checkpoint's own `quantization_config` alone; a config.json of sizes without it gives none.

`bmm_fp8`: what latent attention absorbs of an FP8 checkpoint. SGLang takes it from FlashInfer in 0.5.23; 0.5.9 and 0.5.15 have a
kernel of their own for it, which reads no file, so none is given for a release before 0.5.23.
"""

from __future__ import annotations

import fnmatch
import re
from typing import Any

from . import sglang_fit

NVFP4 = ("modelopt_fp4",)
FP8 = ("fp8", "modelopt", "modelopt_fp8")
# SGLang's names of backends to FlashInfer's. trtllm's weights are shuffled and are for other cards; marlin is not FlashInfer's.
GEMM = {"flashinfer_cutlass": "cutlass", "flashinfer_cudnn": "cudnn", "flashinfer_cutedsl": "cute-dsl"}
BMM_SINCE = (0, 5, 23)
# Models whose shared expert SGLang adds to the others, unless it is told not to (`determine_num_fused_shared_experts`).
FUSING = ("DeepseekV3ForCausalLM", "GlmMoeDsaForCausalLM")


def max_tokens(resolved: dict[str, Any], gathered: bool = False) -> int:
    """Tokens of the largest call: a prefill chunk, or all requests that run, each with the tokens that speculation adds.

    With data-parallel attention a group of ranks has a chunk of its own, and the experts see those of all groups. ValueError where
    nothing is known.
    """
    parts = sglang_fit.groups(resolved)
    running = (resolved.get("max_running_requests") or 0) * (resolved.get("speculative_num_draft_tokens") or 1)
    chunk = max(resolved.get("chunked_prefill_size") or 0, 0) or resolved.get("max_prefill_tokens") or 0
    most = max(running, chunk * parts) if gathered else max(-(-running // parts), chunk)
    if most < 1:
        raise ValueError(
            "neither max_running_requests nor chunked_prefill_size is resolved, so how many tokens a call has is not known"
        )
    return most


def operations(config: dict[str, Any], resolved: dict[str, Any], sglang: str = "") -> list[dict[str, Any]]:
    """Every operation once: `op`, its sizes on one GPU, `max_tokens`. Empty where the profile uses none of FlashInfer's.

    `resolved` has the release's field names, its parser's defaults among them. ValueError says what does not divide or is missing.
    """
    return [*experts(config, resolved), *linears(config, resolved), *absorbed(config, resolved, sglang)]


def text_of(config: dict[str, Any]) -> dict[str, Any]:
    return config.get("text_config") or config


def share(size: int, ranks: int, name: str) -> int:
    if size % ranks:
        raise ValueError(f"{name} is {size}, which {ranks} ranks cannot share out")
    return size // ranks


def ranks_of(resolved: dict[str, Any]) -> tuple[int, int]:
    """(tensor, expert) parallel size of the experts."""
    tp, ep = resolved.get("tp_size") or 1, resolved.get("ep_size") or 1
    return share(tp, ep * (resolved.get("moe_dp_size") or 1), "tp_size"), ep


def fused(config: dict[str, Any], resolved: dict[str, Any]) -> int:
    """Shared experts that are counted among the routed ones."""
    text, model = text_of(config), sglang_fit.describe(config)
    off = resolved.get("disable_shared_experts_fusion") or ranks_of(resolved)[1] > 1
    fits = model["architecture"] in FUSING and model["experts"] == 256 and text.get("n_shared_experts") == 1
    return 1 if fits and not off else 0


def experts(config: dict[str, Any], resolved: dict[str, Any]) -> list[dict[str, Any]]:
    text, model = text_of(config), sglang_fit.describe(config)
    backend, quantization = resolved.get("moe_runner_backend"), resolved.get("quantization")
    if backend != "flashinfer_cutlass" or quantization not in NVFP4 or not model["experts"]:
        return []
    tp, ep = ranks_of(resolved)
    groups = sglang_fit.groups(resolved)
    gathers = (
        resolved.get("enable_dp_attention") and (resolved.get("moe_a2a_backend") or "none") == "none" and ep == groups
    )
    more = fused(config, resolved)
    return [
        {
            "op": "cutlass_fused_moe",
            "dtype": "nvfp4",
            "input": "nvfp4" if gathers else "bf16",
            "experts": share(model["experts"], ep, "the number of experts") + more,
            "hidden": text["hidden_size"],
            "intermediate": share(text["moe_intermediate_size"], tp, "moe_intermediate_size"),
            "top_k": text["num_experts_per_tok"] + more,
            "tp_size": tp,
            "ep_size": ep,
            "max_tokens": max_tokens(resolved, gathered=True),
        }
    ]


def quantized(config: dict[str, Any], name: str) -> bool:
    """Whether the checkpoint holds this layer in NVFP4, by its own list of those that it does not."""
    told = config.get("quantization_config") or {}
    told = told.get("quantization", told)
    if "NVFP4" not in str(told.get("quant_algo", "")).upper():
        return False
    for pattern in told.get("ignore") or told.get("exclude_modules") or []:
        if pattern.startswith("re:"):
            if re.match(pattern[3:], name):
                return False
        elif fnmatch.fnmatch(name, pattern) or name.startswith(pattern.rstrip("*").rstrip(".") + "."):
            return False
    return True


def linear_layers(config: dict[str, Any], resolved: dict[str, Any]) -> list[tuple[str, int, int]]:
    """(name in the checkpoint, outputs, inputs) on one GPU of every kind of linear layer that is cut as SGLang cuts it."""
    text = text_of(config)
    tp = resolved.get("tp_size") or 1
    own = share(tp, sglang_fit.groups(resolved), "tp_size")
    hidden, heads = text["hidden_size"], share(text.get("num_attention_heads") or own, own, "num_attention_heads")
    dense = text.get("first_k_dense_replace")
    if dense is None:
        dense = (text.get("mlp_layer_types") or []).count("dense")
    first, sparse = "model.layers.0", f"model.layers.{dense}"
    layers = []

    def feed_forward(name: str, size: int) -> None:
        width = share(size, tp, f"the width of {name}")
        layers.append((f"{name}.gate_proj", 2 * width, hidden))
        layers.append((f"{name}.down_proj", hidden, width))

    if dense and text.get("intermediate_size"):
        feed_forward(f"{first}.mlp", text["intermediate_size"])
    if text.get("n_shared_experts") and not fused(config, resolved):
        feed_forward(f"{sparse}.mlp.shared_experts", text["moe_intermediate_size"] * text["n_shared_experts"])
    if text.get("kv_lora_rank") and text.get("q_lora_rank"):
        latent, rope, nope = text["kv_lora_rank"], text["qk_rope_head_dim"], text["qk_nope_head_dim"]
        value = text["v_head_dim"]
        layers += [
            (
                f"{sparse}.self_attn.q_a_proj",
                text["q_lora_rank"] + latent + rope,
                hidden,
            ),  # one matrix with kv_a_proj_with_mqa
            (f"{sparse}.self_attn.q_b_proj", heads * (nope + rope), text["q_lora_rank"]),
            (f"{sparse}.self_attn.kv_b_proj", heads * (nope + value), latent),
            (f"{sparse}.self_attn.o_proj", hidden, heads * value),
        ]
    return layers


def linears(config: dict[str, Any], resolved: dict[str, Any]) -> list[dict[str, Any]]:
    backend = GEMM.get(str(resolved.get("fp4_gemm_runner_backend")))
    if not backend or resolved.get("quantization") not in NVFP4 or not config.get("quantization_config"):
        return []
    sizes = {(n, k): None for name, n, k in linear_layers(config, resolved) if quantized(config, name)}
    most = max_tokens(resolved)
    return [{"op": "mm_fp4", "backend": backend, "n": n, "k": k, "max_tokens": most} for n, k in sizes]


def absorbed(config: dict[str, Any], resolved: dict[str, Any], sglang: str) -> list[dict[str, Any]]:
    text = text_of(config)
    since = tuple(int(part) for part in re.findall(r"\d+", sglang)[:3])
    if resolved.get("quantization") not in FP8 or not text.get("kv_lora_rank") or since < BMM_SINCE:
        return []
    heads = share(
        text["num_attention_heads"],
        share(resolved.get("tp_size") or 1, sglang_fit.groups(resolved), "tp_size"),
        "heads",
    )
    latent, most = text["kv_lora_rank"], max_tokens(resolved)
    sizes = [(text["qk_nope_head_dim"], latent), (latent, text["v_head_dim"])]
    return [
        {"op": "bmm_fp8", "backend": "cublas", "batch": heads, "k": k, "n": n, "scale_dims": 1, "max_tokens": most}
        for k, n in sizes
    ]
