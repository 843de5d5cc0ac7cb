# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Whether a model fits: GiB of weights and of KV cache a GPU, and how many tokens that is.

SGLang's own reckoning (`profile_max_num_token` of 0.5.9 to 0.5.23): of what is free before the weights are loaded, the share
`mem-fraction-static` holds weights and KV cache; the rest is for activations and CUDA graphs. Sizes are GiB, as in the
engine's log, which calls them GB.
"""

from __future__ import annotations

from typing import Any

# Bytes an element. `auto` is what the checkpoint asks for, else the model's own, which is bfloat16 for all served here.
ELEMENT = {"fp8_e4m3": 1, "fp8_e5m2": 1, "bfloat16": 2, "bf16": 2, "float16": 2, "float32": 4, "auto": 2}
# The sparse indexer's keys: 128 bytes of FP8 and a scale of 4 a token and layer (code of 0.5.9).
INDEXER = 132
# FP8 KV of the sparse attention kernels: 512 bytes, 16 of scales, and the rotary part of 64 in BF16 (code of 0.5.9 and 0.5.23).
SPARSE_FP8 = 656


def describe(config: dict[str, Any]) -> dict[str, Any]:
    """Facts of a config.json that decide memory and kernels: architecture, layers, attention, experts, context length."""
    text = config.get("text_config") or config
    heads = text.get("num_attention_heads") or 1
    return {
        "heads": text.get("num_attention_heads") or 0,
        "architecture": (config.get("architectures") or text.get("architectures") or [""])[0],
        "layers": text.get("num_hidden_layers") or 0,
        "mla": bool(text.get("kv_lora_rank")),
        "dsa": bool(text.get("index_topk")),
        "kv_lora_rank": text.get("kv_lora_rank") or 0,
        "qk_rope_head_dim": text.get("qk_rope_head_dim") or 0,
        "kv_heads": text.get("num_key_value_heads") or heads,
        "head_dim": text.get("head_dim") or (text.get("hidden_size") or 0) // heads,
        "experts": text.get("n_routed_experts") or text.get("num_experts") or text.get("num_local_experts") or 0,
        "context_length": text.get("max_position_embeddings") or 0,
    }


def groups(args: dict[str, Any]) -> int:
    """Groups of ranks that attend by themselves, under the option's new name and its old one; 1 without data-parallel attention."""
    return max(args.get("attn_dp_size") or 1, (args.get("dp_size") or 1) if args.get("enable_dp_attention") else 1)


def bytes_a_token(model: dict[str, Any], args: dict[str, Any], kv_dtype: str) -> int:
    """Bytes of KV cache that one token takes on one GPU. Latent attention (MLA) keeps the same on every rank."""
    element = ELEMENT.get(kv_dtype, 2)
    layers = -(-model["layers"] // max(1, args.get("pp_size") or 1))
    if model["mla"]:
        latent = (model["kv_lora_rank"] + model["qk_rope_head_dim"]) * element
        decode = args.get("dsa_decode_backend") or args.get("nsa_decode_backend")
        if model["dsa"] and element == 1 and args.get("attention_backend") in ("dsa", "nsa") and decode != "trtllm":
            latent = SPARSE_FP8
        return layers * (latent + (INDEXER if model["dsa"] else 0))
    heads = max(1, model["kv_heads"] // max(1, (args.get("tp_size") or 1) // groups(args)))
    return layers * 2 * heads * model["head_dim"] * element


def weights(spec: dict[str, Any], tp: int, pp: int) -> float | None:
    """GiB of weights a GPU: what was reported for this tensor parallel size, or shared out from what was for another."""
    known = {int(size): gib for size, gib in (spec.get("weights_gib") or {}).items()}
    if not known:
        return None
    if pp == 1 and tp in known:
        return known[tp]
    size, gib = max(known.items())
    return gib * size / (tp * pp)


def fit(card: dict[str, Any], spec: dict[str, Any], model: dict[str, Any], args: dict[str, Any]) -> dict[str, Any]:
    """Weights, KV cache and tokens on this card; empty where the weights' size is not known.

    `card` has memory_mib and reserved_gib, `spec` is models/NAME.yml, `model` is `describe` of its config, `args` are the
    resolved arguments by the release's field names.
    """
    tp, pp = args.get("tp_size") or 1, args.get("pp_size") or 1
    load = weights(spec, tp, pp)
    fraction = args.get("mem_fraction_static")
    # With data-parallel attention each group holds the attention weights whole: what a GPU then takes is on no record.
    if load is None or not fraction or not model.get("layers") or groups(args) > 1 or min(tp, pp) < 1:
        return {}
    available = card["memory_mib"] / 1024 - card["reserved_gib"]
    kv_dtype = args.get("kv_cache_dtype") or "auto"
    if kv_dtype == "auto":
        kv_dtype = spec.get("kv_cache_dtype") or "auto"
    cell = bytes_a_token(model, args, kv_dtype)
    room = available * fraction - load
    tokens = max(0, int(room * 2**30 / cell))
    if args.get("max_total_tokens"):
        tokens = min(tokens, args["max_total_tokens"])
    context = args.get("context_length") or model["context_length"]
    return {
        "weights_gib": round(load, 2),
        "available_gib": round(available, 2),
        "kv_gib": round(max(0.0, room), 2),
        "kv_dtype": kv_dtype,
        "bytes_a_token": cell,
        "kv_tokens": tokens,
        "context_length": context,
        # With data-parallel attention each group of ranks keeps requests of its own.
        "full_requests": round(groups(args) * tokens / context, 1) if context else 0,
        "fits": room > 0,
    }


def sentence(found: dict[str, Any]) -> str:
    """The fit in one line, for people."""
    if not found:
        return "not known: the weights' size or the memory share for these arguments is not on record"
    if not found["fits"]:
        return (
            f"{found['weights_gib']:.1f} GiB of weights a GPU do not fit into the share of {found['available_gib']:.1f} GiB that "
            "mem-fraction-static sets"
        )
    tokens = round(found["kv_tokens"], -3 if found["kv_tokens"] > 9999 else 0)
    return (
        f"{found['weights_gib']:.1f} GiB of weights, {found['kv_gib']:.1f} GiB of KV cache ({found['kv_dtype']}) a GPU, about "
        f"{tokens:,} tokens, {found['full_requests']:.1f} requests of full context at once"
    )
