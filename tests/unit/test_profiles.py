"""Profiles and variants: each says where it comes from and why, names what is there, and is what the releases were asked about."""

from __future__ import annotations

import functools
import json
import re
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils import sglang_options

from action_plugins import sglang_inputs

ROOT = sglang_inputs.ROOT
STACKS = ROOT / "stacks"
# The router's stack has none.
WITH_ENGINE = [
    path for path in sorted(STACKS.glob("*/stack.yml")) if "accelerator: none" not in path.read_text(encoding="utf-8")
]
PROFILES = sorted(sglang_inputs.known_profiles(ROOT))
VARIANTS = sorted(path.stem for path in (ROOT / "variants").glob("*.yml"))
REASONED = ("sglang_server_args", "sglang_server_environment")


@functools.cache
def load(path: str) -> Any:
    text = (ROOT / path).read_text(encoding="utf-8")
    return json.loads(text) if path.endswith(".json") else yaml.safe_load(text)


def profile(name: str) -> dict[str, Any]:
    return load(f"group_vars/{name}.yml")


def variant(name: str) -> dict[str, Any]:
    return load(f"variants/{name}.yml")


@functools.cache
def parsers() -> Any:
    """The program tools/parsers, which has no suffix."""
    loader = SourceFileLoader("parsers", str(ROOT / "tools/parsers"))
    spec = spec_from_loader("parsers", loader)
    assert spec
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


CASES = {case["name"]: case for case in parsers().cases()}


def written(path: str, variable: str) -> dict[str, yaml.Node]:
    """The values of a variable's mapping as the file writes them; empty where it is not set."""
    top: Any = yaml.compose((ROOT / path).read_text(encoding="utf-8"))
    found = {key.value: value for key, value in top.value}.get(variable)
    return {key.value: value for key, value in found.value} if found else {}


def without_why(path: str, variable: str) -> list[str]:
    """Keys of a variable's mapping whose values are not followed by a comment."""
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
    marks = {name: value.end_mark for name, value in written(path, variable).items()}
    return [name for name, end in marks.items() if not re.fullmatch(r" +# \S.*", lines[end.line][end.column :])]


# Profiles


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_is_named_as_its_file(name: str) -> None:
    assert profile(name)["sglang_profile"] == name


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_says_what_it_is_where_it_is_from_and_what_was_verified(name: str) -> None:
    about = profile(name)["sglang_profile_about"]
    assert set(about) == {"summary", "source", "date", "verified"}
    assert all(isinstance(text, str) and text.strip() for text in about.values())
    assert re.fullmatch(r"20\d\d-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?", about["date"])
    date = written(f"group_vars/{name}.yml", "sglang_profile_about")["date"]
    assert isinstance(date, yaml.ScalarNode) and date.style == '"'  # or YAML makes a day of it


@pytest.mark.parametrize("name", PROFILES)
def test_every_argument_and_variable_of_a_profile_has_a_reason(name: str) -> None:
    assert [without_why(f"group_vars/{name}.yml", variable) for variable in REASONED] == [[], []]


def test_a_value_without_a_reason_is_found(tmp_path: Path) -> None:
    path = tmp_path / "p.yml"
    path.write_text(
        'sglang_server_args:\n  a: "1 # 2"\n  b: 2   # why\n  c: [1] # why\n  d: 3 #\n  e: "#" # it\'s so\n'
    )
    assert without_why(str(path), "sglang_server_args") == ["a", "d"]


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_names_what_is_there(name: str) -> None:
    given = profile(name)
    stack = STACKS / given["sglang_env_stack"]
    assert "sglang_env_python_version" not in given  # which Python there is is the node's affair
    assert (stack / "options.json").is_file()
    spec = load(f"models/{given['sglang_model_spec']}.yml")
    assert (ROOT / "models/configs" / spec["config"]).is_file()
    card = given["gpu_preflight_card"]
    assert (load(str(stack / "stack.yml"))["accelerator"] == "cuda") == bool(card)
    if card:
        assert (ROOT / f"cards/{card}.yml").is_file()
    for patch in given["sglang_patch_patches"]:
        assert (ROOT / f"patches/{patch}.yml").is_file()
    if given["sglang_model_generator"]:
        assert list(ROOT.glob(f"roles/*/files/{given['sglang_model_generator']}"))


@pytest.mark.parametrize(
    "path", [f"group_vars/{name}.yml" for name in PROFILES] + [f"variants/{v}.yml" for v in VARIANTS]
)
def test_a_profile_or_variant_sets_only_variables_that_something_reads(path: str) -> None:
    assert sglang_inputs.misspelt(load(path), sglang_inputs.known_variables(ROOT)) == []
    assert [name for name in load(path) if not name.startswith(("sglang_", "gpu_preflight_"))] == []


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_sets_all_that_tells_it_from_another(name: str) -> None:
    """So that passing one profile's file on a host of another's group (-e @FILE) leaves nothing of the other."""
    assert {variable for other in PROFILES for variable in profile(other)} - set(profile(name)) == set()


@pytest.mark.parametrize("name", PROFILES)
def test_a_server_has_time_to_start_and_loads_that_it_admits(name: str) -> None:
    given = profile(name)
    args = sglang_options.merged(given["sglang_server_args"])
    # The engine's watchdog ends a start that the deployment would wait for.
    assert given["sglang_server_start_timeout"] > args.get("watchdog-timeout", 0)
    loads = [rung["concurrency"] for rung in given["sglang_bench_loads"]]
    assert loads == sorted(set(loads)) and loads[-1] <= args["max-running-requests"]


# Variants


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_is_named_as_its_file_and_made_for_profiles_that_exist(name: str) -> None:
    made_for = variant(name)["sglang_variant_profiles"]
    assert variant(name)["sglang_variant"] == name
    assert made_for and set(made_for) <= set(PROFILES)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_lays_over_and_gives_its_reasons(name: str) -> None:
    overlays = [f"{variable}_overlay" for variable in REASONED]
    assert [without_why(f"variants/{name}.yml", variable) for variable in overlays] == [[], []]
    # The profile's own arguments are laid over, never replaced.
    assert not set(REASONED) & set(variant(name))
    assert variant(name)["sglang_server_args_overlay"]


@pytest.mark.parametrize(
    ("name", "made_for"), [(v, p) for v in VARIANTS for p in variant(v)["sglang_variant_profiles"]]
)
def test_a_variant_takes_away_only_what_the_profile_sets(name: str, made_for: str) -> None:
    for variable in REASONED:
        overlay, below = variant(name).get(f"{variable}_overlay", {}), profile(made_for)[variable]
        assert {key for key, value in overlay.items() if value is None} <= set(below)
        # And changes something: what is as below needs no overlay.
        assert [key for key, value in overlay.items() if value is not None and below.get(key) == value] == []


@pytest.mark.parametrize("path", sorted(STACKS.glob("*/stack.yml")), ids=lambda path: path.parent.name)
def test_a_stack_has_a_lock_for_each_of_its_pythons(path: Path) -> None:
    pythons = load(str(path))["python"]
    assert [f"requirements-{python}.txt" for python in pythons] == sorted(
        p.name for p in path.parent.glob("requirements-*")
    )


@pytest.mark.parametrize("name", VARIANTS)
def test_what_a_variant_names_is_there(name: str) -> None:
    for made_for in variant(name)["sglang_variant_profiles"]:
        both = {**profile(made_for), **variant(name)}
        assert (STACKS / both["sglang_env_stack"] / "stack.yml").is_file()
    for patch in variant(name).get("sglang_patch_patches", []):
        assert (ROOT / f"patches/{patch}.yml").is_file()


# What releases were asked (tools/parsers)


def complaints(case: dict[str, Any]) -> list[tuple[str, str]]:
    options = load(f"stacks/{case['stack']}/options.json")
    return sglang_options.check(case["args"], options, load("stacks/renames.yml"))


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case["name"])
def test_a_release_takes_the_arguments_that_a_profile_gives_it(case: dict[str, Any]) -> None:
    assert complaints(case) == []


def test_a_profile_that_names_an_option_its_release_does_not_know_is_found() -> None:
    other = {**CASES["glm5"], "stack": "sglang-0.5.23-cu130"}
    assert [name for name, _ in complaints(other)] == ["nsa-prefill-backend", "nsa-decode-backend"]
    typo = {**CASES["glm52"], "args": {**CASES["glm52"]["args"], "dsa-decod-backend": "trtllm"}}
    assert [name for name, _ in complaints(typo)] == ["dsa-decod-backend"]


def test_every_profile_and_every_variant_is_a_case() -> None:
    pairs = [f"{made_for}+{name}" for name in VARIANTS for made_for in variant(name)["sglang_variant_profiles"]]
    assert sorted(CASES) == sorted([*PROFILES, *pairs])


@pytest.mark.parametrize("case", [case for case in CASES.values() if case["card"]], ids=lambda case: case["name"])
def test_the_answer_on_record_is_to_what_the_profile_asks_now(case: dict[str, Any]) -> None:
    """Where this fails, a profile was changed: run tools/parsers."""
    document = load(f"stacks/{case['stack']}/resolved/{case['name']}.json")
    asked = {key: case[key] for key in ("card", "model", "patches", "environment", "args")}
    assert {key: document[key] for key in asked} == asked
    assert document["sglang"] == load(f"stacks/{case['stack']}/stack.yml")["sglang"]


def test_no_answer_is_left_over() -> None:
    wanted = {f"{case['stack']}/resolved/{case['name']}.json" for case in CASES.values() if case["card"]}
    assert {str(path.relative_to(STACKS)) for path in STACKS.glob("*/resolved/*")} == wanted


def same_options(stack: str) -> list[dict[str, Any]]:
    """A stack's options; choices that a release keeps in a set come in any order."""
    return [
        {**entry, "choices": sorted(map(str, entry["choices"]))} if "choices" in entry else entry
        for entry in load(f"stacks/{stack}/options.json")
    ]


def test_stacks_of_one_release_have_the_same_options_and_others_have_others() -> None:
    by_release: dict[str, list[str]] = {}
    for path in WITH_ENGINE:
        by_release.setdefault(load(str(path))["sglang"], []).append(path.parent.name)
    assert max(map(len, by_release.values())) > 1
    for stacks in by_release.values():
        assert all(same_options(stack) == same_options(stacks[0]) for stack in stacks)
    first = [stacks[0] for stacks in by_release.values()]
    assert all(same_options(one) != same_options(other) for one in first for other in first if one < other)


@pytest.mark.parametrize("path", WITH_ENGINE, ids=lambda path: path.parent.name)
def test_a_stack_is_answered_for_by_a_cpu_stack_of_the_same_release(path: Path) -> None:
    parser = load(str(path)).get("parser", path.parent.name)
    other = load(f"stacks/{parser}/stack.yml")
    assert (other["accelerator"], other["sglang"]) == ("cpu", load(str(path))["sglang"])
