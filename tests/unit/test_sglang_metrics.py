"""The engine's Prometheus page, of recorded releases and of ranks and copies."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.module_utils import sglang_metrics

DATA = Path(__file__).parent / "data/sglang_bench"


@pytest.mark.parametrize(("name", "tokens"), [("0.5.9", 11.0), ("0.5.15.post1", 24.0), ("0.5.23", 11.0)])
def test_recorded_pages_of_three_releases(name: str, tokens: float) -> None:
    state = sglang_metrics.engine_state((DATA / f"metrics-{name}.txt").read_text())
    gauges = dict.fromkeys(["running", "queued", "token_usage", "accept_length", "cache_hit_rate", "retracted"], 0.0)
    assert state == {**gauges, "prompt_tokens": tokens, "cached_tokens": 0.0}


def test_a_page_that_is_not_the_engines() -> None:
    assert sglang_metrics.engine_state((DATA / "metrics-router-0.3.2.txt").read_text()) == {}
    assert sglang_metrics.engine_state("") == {}


def test_of_a_copy_one_rank_counts_and_copies_add_up() -> None:
    page = "".join(
        f'sglang:{name}{{model_name="a \\"b\\" c",dp_rank="{dp}",tp_rank="{tp}"}} {value}\n'
        for dp, running, usage, length in ((0, 10, 0.5, 2.0), (1, 7, 0.9, 3.0))
        for tp in (0, 1)
        for name, value in (
            *(("num_running_reqs", running), ("num_queue_reqs", dp), ("token_usage", usage)),
            *(("spec_accept_length", length), ("num_running_reqs_offline_batch", 99)),
        )
    )
    state = sglang_metrics.engine_state(page)
    assert state == {"running": 17.0, "queued": 1.0, "token_usage": 0.9, "accept_length": 2.5}


def test_priorities_are_parts_of_the_total() -> None:
    page = "".join(
        f'sglang:num_running_reqs{{priority="{name}"}} {count}\n' for name, count in (("", 8), (1, 5), (2, 9))
    )
    assert sglang_metrics.engine_state(page) == {"running": 8.0}


def test_counters_are_sums_and_nan_is_nothing() -> None:
    page = (
        'sglang:prompt_tokens_total{is_streaming="true"} 100\nsglang:prompt_tokens_total{is_streaming="false"} 1e2\n'
        'sglang:cached_tokens_total{cache_source="device"} 30\nsglang:cached_tokens_total{cache_source="host"} 12\n'
        "sglang:token_usage NaN\nsglang:num_queue_reqs nonsense\n"
    )
    assert sglang_metrics.engine_state(page) == {"prompt_tokens": 200.0, "cached_tokens": 42.0}
