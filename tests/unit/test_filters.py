"""Arguments to words, words to a unit."""

from __future__ import annotations

import shlex

import pytest
from ansible.errors import AnsibleFilterError

from filter_plugins import sglang


def test_overlays_and_nulls() -> None:
    base = {"tp-size": 8, "max-running-requests": 2048, "disable-cuda-graph": True}
    assert sglang.sglang_args(base, {"max_running_requests": 64, "disable-cuda-graph": None}) == {
        "tp-size": 8,
        "max-running-requests": 64,
    }


def test_arguments_that_are_no_mapping() -> None:
    with pytest.raises(AnsibleFilterError, match="mapping of option to value, not str"):
        sglang.sglang_args({}, "--tp 8")  # type: ignore[arg-type]


def test_values_of_every_kind() -> None:
    words = sglang.sglang_argv(
        {"a": True, "b": False, "c": None, "d": 0.85, "e": ["x", 2], "f": {"threads": 16, "on": True}, "g_h": "plain"}
    )
    assert words == ["--a", "--d", "0.85", "--e", "x", "2", "--f", '{"on": true, "threads": 16}', "--g-h", "plain"]


def test_words_survive_systemd() -> None:
    words = ["/venv/bin/python", "--x", '{"a": "b c"}', "100%", "$HOME", "back\\slash", ""]
    text = sglang.sglang_unit_words(words)
    # systemd undoes %% and $$ and then unquotes as a shell does for what is used here.
    assert shlex.split(text.replace("%%", "%").replace("$$", "$")) == words


def test_environment_is_sorted_and_quoted() -> None:
    assert sglang.sglang_unit_environment({"B": True, "A": 'x "y" %'}) == ['"A=x \\"y\\" %%"', '"B=true"']


def test_a_line_break_is_refused() -> None:
    with pytest.raises(AnsibleFilterError, match="line break"):
        sglang.sglang_unit_words(["a\nb"])
