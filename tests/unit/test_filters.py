"""Arguments to words, words to a unit."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from ansible.errors import AnsibleFilterError

from filter_plugins import sglang

ROOT = Path(__file__).resolve().parents[2]


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
    # systemd joins lines, undoes %% and $$ and then unquotes as a shell does for what is used here.
    assert shlex.split(text.replace("\\\n", " ").replace("%%", "%").replace("$$", "$")) == words
    assert text.splitlines()[1].startswith("  --x ")


def test_environment_is_sorted_and_quoted() -> None:
    assert sglang.sglang_unit_environment({"B": True, "A": 'x "y" %'}) == ['"A=x \\"y\\" %%"', '"B=true"']


def test_a_line_break_is_refused() -> None:
    with pytest.raises(AnsibleFilterError, match="line break"):
        sglang.sglang_unit_words(["a\nb"])


def patch(name: str, status: str, before: str, after: str, path: str = "/v/f.py") -> dict[str, str]:
    return {
        "patch_name": name,
        "status": status,
        "package_version": "1",
        "path": path,
        "sha256_before": before,
        "sha256_after": after,
    }


def test_patch_states_are_the_same_on_the_first_run_and_on_later_ones() -> None:
    """Two patches on one file: the first one's hash is of the file before the second was made."""
    looked = [
        patch("b", "not_applied", "0", "0"),
        patch("a", "not_applied", "0", "0"),
        patch("c", "not_needed", "9", "9", "/v/g.py"),
    ]
    made = [patch("b", "not_applied", "0", "1"), patch("a", "not_applied", "1", "2")]
    first = sglang.sglang_patch_states(looked, made)
    later = sglang.sglang_patch_states(
        [patch("b", "applied", "2", "2"), patch("a", "applied", "2", "2"), looked[2]], []
    )
    assert first == later
    assert [(state["name"], state["status"], state["sha256"]) for state in first] == [
        ("a", "applied", "2"),
        ("b", "applied", "2"),
        ("c", "not_needed", "9"),
    ]


def test_the_middle_of_figures() -> None:
    assert sglang.sglang_median([3.0, 1.0, 2.0]) == 2.0


def test_shapes_of_a_profile_as_the_release_resolves_it() -> None:
    config = json.loads((ROOT / "models/configs/glm-5.json").read_text())
    resolved = json.loads((ROOT / "stacks/sglang-0.5.9-cu128-glm5/resolved/glm5.json").read_text())["resolved"]
    (moe,) = sglang.sglang_tuning_shapes(config, resolved, "0.5.9")
    assert (moe["op"], moe["experts"], moe["intermediate"], moe["max_tokens"]) == ("cutlass_fused_moe", 256, 256, 8192)
    with pytest.raises(AnsibleFilterError, match="shapes are not known"):
        sglang.sglang_tuning_shapes(config, {**resolved, "tp_size": 7}, "0.5.9")
