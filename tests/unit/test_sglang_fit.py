"""Whether a model fits, against what engines logged and people reported."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils import sglang_fit
from ansible.module_utils.sglang_fit import bytes_a_token, describe, sentence

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "tests/unit/data/sglang_log"
RTX = "rtx-pro-6000-blackwell"
GQA = {"layers": 92, "mla": False, "dsa": False, "kv_heads": 8, "head_dim": 128, "context_length": 202752}  # GLM-4.7


@functools.cache
def load(path: str) -> Any:
    text = (ROOT / path).read_text(encoding="utf-8")
    return json.loads(text) if path.endswith(".json") else yaml.safe_load(text)


def model(name: str) -> dict[str, Any]:
    return describe(load(f"models/configs/{load(f'models/{name}.yml')['config']}"))


def fit(name: str, card: str = RTX, **args: Any) -> dict[str, Any]:
    """A model of models/ with arguments, on a card of cards/."""
    return sglang_fit.fit(load(f"cards/{card}.yml"), load(f"models/{name}.yml"), model(name), args)


def logged(name: str) -> dict[str, float]:
    """What an engine's log says of its memory: the first rank that says it."""
    text = (LOGS / name).read_text(encoding="utf-8")
    patterns = {
        "available": r"Load weight begin\. avail mem=([\d.]+) GB",
        "weights": r"Load weight end\..* mem usage=([\d.]+) GB",
        "tokens": r"KV Cache is allocated\..*#tokens: (\d+)",
        "kv": r"KV size: ([\d.]+) GB",
        "k": r"K size: ([\d.]+) GB",
        "context": r"context_len=(\d+)",
    }
    found = {key: re.search(pattern, text) for key, pattern in patterns.items()}
    return {key: float(match[1]) for key, match in found.items() if match}


# Reported tokens of KV cache


@pytest.mark.parametrize(
    ("name", "args", "tokens"),
    [
        # voipmonitor/rtx6kpro models/glm5.md, 2026-03.
        (
            "glm-5-nvfp4",
            {"mem_fraction_static": 0.92, "kv_cache_dtype": "bf16", "attention_backend": "flashinfer"},
            314304,
        ),
        # Log of magik6k's run of 5,816 total tok/s, 2026-01-29; the checkpoint asks for FP8.
        ("kimi-k2-thinking-nvfp4", {"mem_fraction_static": 0.848, "kv_cache_dtype": "auto"}, 180191),
        # NVIDIA/nvidia-gcp-samples glm-5.2-nvfp4, 2026-07: "about 470,000".
        (
            "glm-5.2-nvfp4",
            {
                "mem_fraction_static": 0.9,
                "kv_cache_dtype": "fp8_e4m3",
                "attention_backend": "dsa",
                "dsa_decode_backend": "flashinfer_sparse_mla",
            },
            470000,
        ),
    ],
)
def test_tokens_are_within_a_tenth_of_what_was_reported(name: str, args: dict[str, Any], tokens: int) -> None:
    found = fit(name, tp_size=8, **args)
    assert found["fits"] and found["kv_tokens"] == pytest.approx(tokens, rel=0.1)


def test_the_cache_of_kimi_k2_thinking_is_as_large_as_logged() -> None:
    found = fit("kimi-k2-thinking-nvfp4", tp_size=8, mem_fraction_static=0.848)
    told = logged("sm120-k2-thinking-5816.log")
    assert found["kv_dtype"] == "fp8_e4m3"
    assert found["weights_gib"] == pytest.approx(told["weights"], abs=0.01)
    assert found["available_gib"] == pytest.approx(told["available"], abs=0.01)
    assert found["kv_gib"] == pytest.approx(told["kv"], abs=0.05) and told["kv"] == 5.9
    assert found["context_length"] == told["context"]


def test_a_cache_of_a_few_thousand_tokens_is_known_roughly_only() -> None:
    """Kimi K2.5 with the engine's own fraction: 0.25 GiB are left of 72.58, so a slip of 0.1 % of them is a third of the cache."""
    found = fit("kimi-k2.5", tp_size=8, mem_fraction_static=0.7714564)
    assert found["fits"] and found["kv_tokens"] == pytest.approx(4578, rel=0.25)


# Logged tokens and sizes give the bytes of one token, whatever the fraction was


@pytest.mark.parametrize(
    ("log", "shape", "kv_dtype", "tp"),
    [
        ("sm120-k2-thinking-5816.log", model("kimi-k2-thinking-nvfp4"), "fp8_e4m3", 8),
        ("sm120-glm-4.7-fp8.log", GQA, "auto", 8),
        ("cpu-0.5.23.log", model("tiny-glm4-moe"), "auto", 1),
    ],
)
def test_bytes_a_token_are_those_of_the_log(log: str, shape: dict[str, Any], kv_dtype: str, tp: int) -> None:
    told = logged(log)
    size = told.get("kv") or 2 * told["k"]
    # The log rounds to 0.01, which is much of the tiny model's cache.
    assert bytes_a_token(shape, {"tp_size": tp}, kv_dtype) * told["tokens"] / 2**30 == pytest.approx(size, abs=0.011)


def test_a_whole_log_of_grouped_query_attention_is_reckoned() -> None:
    told = logged("sm120-glm-4.7-fp8.log")
    spec = {"weights_gib": {8: told["weights"]}}
    found = sglang_fit.fit(load(f"cards/{RTX}.yml"), spec, GQA, {"tp_size": 8, "mem_fraction_static": 0.848})
    assert found["kv_tokens"] == pytest.approx(told["tokens"], rel=0.01)


def test_what_is_gone_before_weights_is_known_by_card() -> None:
    told = logged("h200-0.5.15.post1.log")
    card = load("cards/h200.yml")
    assert card["memory_mib"] / 1024 - card["reserved_gib"] == pytest.approx(told["available"], abs=0.01)


# How arguments change it


def test_four_cards_do_not_hold_kimi_k2_thinking() -> None:
    found = fit("kimi-k2-thinking-nvfp4", tp_size=4, mem_fraction_static=0.95)
    assert not found["fits"] and found["kv_gib"] == found["kv_tokens"] == 0
    assert found["weights_gib"] == pytest.approx(2 * 73.87, abs=0.01)


def test_pipeline_stages_share_out_layers_and_weights() -> None:
    one, two = (fit("glm-5-nvfp4", tp_size=8, pp_size=size, mem_fraction_static=0.9) for size in (1, 2))
    assert two["weights_gib"] == pytest.approx(one["weights_gib"] / 2, abs=0.01)
    assert two["bytes_a_token"] * 2 == one["bytes_a_token"]
    # Of 61 layers one stage has 31.
    kimi = model("kimi-k2.5")
    assert bytes_a_token(kimi, {"pp_size": 2}, "bf16") * 61 == bytes_a_token(kimi, {}, "bf16") * 31


def test_latent_attention_is_kept_whole_on_every_rank_and_other_heads_are_shared_out() -> None:
    kimi, tiny = model("kimi-k2.5"), model("tiny-glm4-moe")
    assert bytes_a_token(kimi, {"tp_size": 8}, "bf16") == bytes_a_token(kimi, {"tp_size": 1}, "bf16") == 61 * 576 * 2
    assert [bytes_a_token(tiny, {"tp_size": size}, "bf16") for size in (1, 2, 4, 8)] == [
        4 * 2 * heads * 32 * 2 for heads in (4, 2, 1, 1)
    ]


@pytest.mark.parametrize("args", [{"dp_size": 4, "enable_dp_attention": True}, {"attn_dp_size": 4}])
def test_with_data_parallel_attention_a_rank_keeps_more_heads(args: dict[str, Any]) -> None:
    assert bytes_a_token(GQA, {"tp_size": 8, **args}, "bf16") == 4 * bytes_a_token(GQA, {"tp_size": 8}, "bf16")


@pytest.mark.parametrize(
    "args",
    [
        {"dp_size": 8, "enable_dp_attention": True},
        {"attn_dp_size": 8},
        # The old switch on a release that has the new option too, which says 1 where nobody set it.
        {"dp_size": 8, "enable_dp_attention": True, "attn_dp_size": 1},
    ],
)
def test_with_data_parallel_attention_the_weights_of_a_gpu_are_on_no_record(args: dict[str, Any]) -> None:
    """Each group holds the attention weights whole: Kimi K2.5-NVFP4 took about 90.5 GiB a GPU instead of 74 (NVIDIA, 2026-07)."""
    assert fit("glm-5-nvfp4", tp_size=8, mem_fraction_static=0.9)
    assert fit("glm-5-nvfp4", tp_size=8, mem_fraction_static=0.9, **args) == {}


def test_data_parallel_copies_change_nothing_on_a_card() -> None:
    one, two = (fit("glm-5-nvfp4", tp_size=8, dp_size=size, mem_fraction_static=0.9) for size in (1, 2))
    assert one == two


def test_the_indexer_of_sparse_attention_is_counted_beside_the_latents() -> None:
    glm = model("glm-5.2-nvfp4")
    assert bytes_a_token(glm, {}, "bfloat16") == 78 * (576 * 2 + 132)


@pytest.mark.parametrize(
    ("args", "latent"),
    [
        ({"attention_backend": "dsa", "dsa_decode_backend": "flashinfer_sparse_mla"}, 656),
        ({"attention_backend": "nsa", "nsa_decode_backend": "flashmla_kv"}, 656),
        ({"attention_backend": "nsa", "nsa_decode_backend": "trtllm"}, 576),
        ({"attention_backend": "flashinfer", "nsa_decode_backend": "trtllm"}, 576),
        ({"attention_backend": "flashinfer"}, 576),
    ],
)
def test_sparse_kernels_keep_fp8_latents_with_scales(args: dict[str, Any], latent: int) -> None:
    assert bytes_a_token(model("glm-5.2-nvfp4"), args, "fp8_e4m3") == 78 * (latent + 132)


def test_a_limit_of_tokens_caps_them_and_nothing_else() -> None:
    free, low, high = (
        fit("glm-5-nvfp4", tp_size=8, mem_fraction_static=0.9, max_total_tokens=limit) for limit in (None, 1000, 10**9)
    )
    assert low["kv_tokens"] == 1000 and low["kv_gib"] == free["kv_gib"]
    assert high["kv_tokens"] == free["kv_tokens"] > 1000


def test_a_shorter_context_gives_more_requests_of_full_context() -> None:
    own, short = (fit("glm-5-nvfp4", tp_size=8, mem_fraction_static=0.9, context_length=size) for size in (None, 50688))
    assert own["context_length"] == 202752 and short["context_length"] == 50688
    assert short["full_requests"] == pytest.approx(4 * own["full_requests"], rel=0.05)


def test_weights_reported_for_another_number_of_cards_are_shared_out() -> None:
    spec = {"weights_gib": {4: 30.0, 8: 20.0}}
    gib = {(4, 1): 30, (8, 1): 20, (2, 1): 80, (16, 1): 10, (4, 2): 20}
    assert {sizes: sglang_fit.weights(spec, *sizes) for sizes in gib} == gib


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("tiny-glm4-moe", {"tp_size": 1, "mem_fraction_static": 0.9}),  # nobody weighed it
        ("glm-5-nvfp4", {"tp_size": 8}),  # the release was not asked, so its fraction is not known
    ],
)
def test_what_is_not_known_is_not_guessed(name: str, args: dict[str, Any]) -> None:
    assert fit(name, **args) == {}


# config.json


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("glm-5-nvfp4", {"architecture": "GlmMoeDsaForCausalLM", "mla": True, "dsa": True, "experts": 256}),
        ("kimi-k2.5", {"architecture": "KimiK25ForConditionalGeneration", "mla": True, "dsa": False, "experts": 384}),
        ("tiny-glm4-moe", {"architecture": "Glm4MoeForCausalLM", "mla": False, "dsa": False, "experts": 8}),
    ],
)
def test_a_config_is_described_also_where_the_text_is_a_part_of_it(name: str, facts: dict[str, Any]) -> None:
    assert facts.items() <= model(name).items()


def test_a_config_that_says_little_is_described_as_far_as_it_goes() -> None:
    nothing = describe({})
    assert (nothing["architecture"], nothing["layers"], nothing["experts"], nothing["mla"]) == ("", 0, 0, False)
    plain = describe({"num_attention_heads": 8, "hidden_size": 256})
    assert (plain["kv_heads"], plain["head_dim"]) == (8, 32)


# In a line


def test_the_sentence_tells_weights_cache_tokens_and_requests() -> None:
    told = sentence(fit("kimi-k2-thinking-nvfp4", tp_size=8, mem_fraction_static=0.848))
    assert told == (
        "73.9 GiB of weights, 5.9 GiB of KV cache (fp8_e4m3) a GPU, about 181,000 tokens, 0.7 requests of full context at once"
    )


def test_the_sentence_names_the_option_where_weights_do_not_fit() -> None:
    told = sentence(fit("kimi-k2-thinking-nvfp4", tp_size=4, mem_fraction_static=0.9))
    assert "147.7 GiB of weights a GPU do not fit" in told and "94.1 GiB" in told and "mem-fraction-static" in told


def test_the_sentence_of_a_small_cache_does_not_say_zero() -> None:
    told = sentence(fit("glm-5-nvfp4", tp_size=8, mem_fraction_static=0.9, max_total_tokens=400))
    assert "about 400 tokens" in told


def test_the_sentence_says_what_is_not_known() -> None:
    assert sentence({}) == "not known: the weights' size or the memory share for these arguments is not on record"
