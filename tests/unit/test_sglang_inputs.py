"""Profiles and the names of variables."""

from __future__ import annotations

from pathlib import Path

import yaml

from action_plugins import sglang_inputs

KNOWN = {"sglang_server_port", "sglang_server_host", "sglang_profile"}
PROFILES = {"cpu_demo", "glm52"}


def test_a_misspelt_variable_is_named_with_the_nearest() -> None:
    told = sglang_inputs.misspelt(["sglang_server_prot", "sglang_server_port", "__sglang_server_x", "other"], KNOWN)
    assert told == ["sglang_server_prot is not a variable of any role; did you mean sglang_server_port?"]


def test_a_variable_like_nothing_is_still_refused() -> None:
    assert sglang_inputs.misspelt(["sglang_zzzz"], KNOWN) == ["sglang_zzzz is not a variable of any role"]


def test_profiles() -> None:
    problem = sglang_inputs.profile_problem
    assert problem("glm52", ["gpu_nodes", "glm52"], PROFILES, "n1") == ""
    # -e @group_vars/glm52.yml on a host of another profile's group is the quick way, and allowed.
    assert problem("glm52", ["gpu_nodes", "cpu_demo"], PROFILES, "n1") == ""
    assert "n1 has no profile" in problem("", ["gpu_nodes"], PROFILES, "n1")
    assert "-e @group_vars/NAME.yml" in problem("", [], PROFILES, "n1")
    assert "did you mean glm52?" in problem("glm53", [], PROFILES, "n1")
    assert "groups of 2 profiles: cpu_demo, glm52" in problem("glm52", ["cpu_demo", "glm52"], PROFILES, "n1")


def test_the_projects_own_names_are_known() -> None:
    known = sglang_inputs.known_variables(sglang_inputs.ROOT)
    assert {"sglang_profile", "sglang_server_args_overlay", "gpu_preflight_min_free_mib"} <= known
    assert "cpu_demo" in sglang_inputs.known_profiles(sglang_inputs.ROOT)
    assert "gpu_nodes" not in sglang_inputs.known_profiles(sglang_inputs.ROOT)


def test_values_are_checked_by_their_specs() -> None:
    specs = sglang_inputs.options(sglang_inputs.ROOT)
    assert "sglang_server_port" in sglang_inputs.wrong_type("sglang_server_port", "http", specs["sglang_server_port"])
    # -e port=31000 is a string, and as good.
    assert sglang_inputs.wrong_type("sglang_server_port", "31000", specs["sglang_server_port"]) == ""
    assert "'concurrency'" in sglang_inputs.wrong_type(
        "sglang_bench_loads", [{"concurrency": "many"}], specs["sglang_bench_loads"]
    )


def test_a_profiles_name_without_its_file() -> None:
    profile = yaml.safe_load((sglang_inputs.ROOT / "group_vars/cpu_demo_origin.yml").read_text())
    other = yaml.safe_load((sglang_inputs.ROOT / "group_vars/cpu_demo.yml").read_text())
    told = sglang_inputs.named_alone("cpu_demo_origin", ["cpu_demo"], other, sglang_inputs.ROOT)
    assert "its file is not in force" in told and "-e @" in told
    # A variant, or a value of one's own, over the whole file is no other profile.
    changed = {**profile, "sglang_env_stack": "sglang-cpu-0.5.23", "sglang_model_path": "/mnt/x"}
    assert sglang_inputs.named_alone("cpu_demo_origin", ["cpu_demo"], changed, sglang_inputs.ROOT) == ""
    assert sglang_inputs.named_alone("cpu_demo_origin", ["cpu_demo"], profile, sglang_inputs.ROOT) == ""
    assert sglang_inputs.named_alone("cpu_demo_origin", ["cpu_demo_origin"], other, sglang_inputs.ROOT) == ""


def test_variants() -> None:
    problem = sglang_inputs.variant_problem
    known = {"autotune_off"}
    assert problem(None, None, "glm52", known) == ""
    assert problem("autotune_off", ["glm5", "glm52"], "glm52", known) == ""
    assert "made for glm5, glm52, not for cpu_demo" in problem("autotune_off", ["glm5", "glm52"], "cpu_demo", known)
    assert "did you mean autotune_off?" in problem("autotune_of", ["glm52"], "glm52", known)


def test_what_roles_hand_to_each_other_is_no_input() -> None:
    """The wiring's own templates are left alone; what somebody writes beside or instead of them is looked at."""
    wired = sglang_inputs.wiring(sglang_inputs.ROOT)
    assert wired["sglang_model_python"] == "{{ sglang_env_release_python }}"
    assert all("{{" in str(value) for value in wired.values())
    known = sglang_inputs.options(sglang_inputs.ROOT)
    assert set(wired) <= set(known), "a wired variable that is no role's input"


def test_an_inventory_without_the_wiring_is_told_where_it_is(tmp_path: Path) -> None:
    root = sglang_inputs.ROOT
    wired = sglang_inputs.wiring(root)
    assert sglang_inputs.unwired({"sglang_profile": "cpu_demo", **wired}, root) == ""
    # Roles' own defaults are there all the same.
    told = sglang_inputs.unwired(dict.fromkeys(wired, ""), root)
    # A tree's inventory folder has hosts of its own, those of the demo and of an example.
    assert f"ln -s {root}/group_vars FOLDER/group_vars" in told and "-i " not in told
    (tmp_path / "group_vars").symlink_to(root / "group_vars")
    (tmp_path / "MANIFEST.json").write_text("{}")
    assert f"(-i {tmp_path}/inventory)" in sglang_inputs.unwired(dict.fromkeys(wired, ""), tmp_path)
