"""Every role explains every input once, and the explanation is what the defaults say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir())
# What a role computes for other roles; everything else in vars/ is its own.
HANDED_ON = {
    "gpu_preflight_card_facts",
    "gpu_preflight_errors",
    "gpu_preflight_model_config",
    "gpu_preflight_node",
    "gpu_preflight_node_facts",
    "gpu_preflight_said",
    "sglang_env_cuda",
    "sglang_env_environment",
    "sglang_env_found",
    "sglang_env_lock",
    "sglang_env_node_cuda_home",
    "sglang_env_release",
    "sglang_env_release_python",
    "sglang_env_release_python_version",
    "sglang_env_site_packages",
    "sglang_model_user_exists",
    "sglang_server_answer",
    "sglang_server_away",
    "sglang_server_change",
    "sglang_server_committed",
    "sglang_server_facts",
    "sglang_server_unit_environment",
    "sglang_tuning_content",
    "sglang_tuning_environment",
    "sglang_tuning_paths",
    "sglang_tuning_wanted",
    "sglang_patch_states",
    "sglang_patch_texts",
}


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def options(role: str) -> dict[str, Any]:
    return load(ROOT / "roles" / role / "meta/argument_specs.yml")["argument_specs"]["main"]["options"]


@pytest.mark.parametrize("role", ROLES)
def test_argument_specs_equal_defaults(role: str) -> None:
    defaults = load(ROOT / "roles" / role / "defaults/main.yml")
    specs = options(role)
    assert set(specs) == set(defaults)
    for name, spec in specs.items():
        assert spec["description"], name
        assert spec["default"] == defaults[name], name


@pytest.mark.parametrize("role", ROLES)
def test_inputs_carry_the_roles_name(role: str) -> None:
    assert all(name.startswith(role + "_") for name in options(role))


@pytest.mark.parametrize("role", ROLES)
def test_internal_variables_are_marked(role: str) -> None:
    for path in (ROOT / "roles" / role / "vars").glob("*.yml"):
        assert all(name.startswith(f"__{role}_") for name in set(load(path)) - HANDED_ON), path
    for path in (ROOT / "roles" / role / "tasks").glob("*.yml"):
        registered = re.findall(r"register: (\S+)", path.read_text())
        assert all(name.startswith(f"__{role}_") for name in registered), path


@pytest.mark.parametrize("role", ROLES)
def test_every_input_is_used(role: str) -> None:
    files = [*ROOT.glob("roles/*/[tvd]*/*"), *ROOT.glob("group_vars/*.yml"), *ROOT.glob("action_plugins/*.py")]
    text = "".join(path.read_text() for path in files if path.is_file())
    for name in options(role):
        uses = len(re.findall(rf"\b{name}\b", text))
        assert uses > 1, f"{name} is declared and read nowhere"
