"""Check a host's profile and the names of its variables, before anything touches the host."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.errors import AnsibleError
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.common.yaml import yaml_load
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils import sglang_options
from ansible.module_utils import sglang_replica as replicas

# Files of group_vars, and groups, that are no profiles.
SHARED = {"all", "ungrouped", "gpu_nodes"}
# What tells one profile's file from another's, and is changed by nothing else.
TELLING = "sglang_profile_about"


def options(root: Path) -> dict[str, dict[str, Any]]:
    """All inputs of all roles, with their specs."""
    found: dict[str, dict[str, Any]] = {}
    for specs in root.glob("roles/*/meta/argument_specs.yml"):
        for entry in yaml_load(specs.read_text(encoding="utf-8"))["argument_specs"].values():
            found.update(entry.get("options") or {})
    return found


def known_variables(root: Path) -> set[str]:
    """All inputs of all roles, what roles hand to each other, and the playbooks' own variables."""
    names = set(options(root)) | set(yaml_load((root / "playbooks/vars/names.yml").read_text(encoding="utf-8")))
    for computed in root.glob("roles/*/vars/main.yml"):
        names |= set(yaml_load(computed.read_text(encoding="utf-8")))
    return names


def known_profiles(root: Path) -> set[str]:
    return {path.stem for path in (root / "group_vars").glob("*.yml")} - SHARED


def named_alone(profile: str, groups: list[str], variables: dict[str, Any], root: Path) -> str:
    """Whether somebody set the profile's name without its file, so that another profile would be deployed under it."""
    path = root / "group_vars" / f"{profile}.yml"
    if profile in groups or not path.is_file():
        return ""
    if variables.get(TELLING) == yaml_load(path.read_text(encoding="utf-8")).get(TELLING):
        return ""
    return f"sglang_profile says '{profile}', but its file is not in force ({TELLING} is another's). Pass it whole: -e @{path}"


def wiring(root: Path) -> dict[str, Any]:
    """What roles hand to each other in group_vars/gpu_nodes.yml, nobody's input: templates of what tasks have yet to find out."""
    told = yaml_load((root / "group_vars/gpu_nodes.yml").read_text(encoding="utf-8")) or {}
    return {name: value for name, value in told.items() if "{{" in str(value)}


def unwired(variables: dict[str, Any], root: Path) -> str:
    """Whether the roles were left unconnected: the inventory brings no group_vars/gpu_nodes.yml."""
    if any(variables.get(name) == value for name, value in wiring(root).items()):
        return ""
    # A collection's inventory has no host; a tree's folder has those of its example and of its demo as well.
    named = (
        f"name its inventory before your own (-i {root}/inventory), or " if (root / "MANIFEST.json").is_file() else ""
    )
    return (
        f"Nothing of {root}/group_vars/gpu_nodes.yml is in force, which hands to each role what the others made. To have it, "
        f"{named}link that group_vars beside your inventory: ln -s {root}/group_vars FOLDER/group_vars"
    )


def misspelt(names: Iterable[str], known: set[str]) -> list[str]:
    """A sentence for each variable that nothing reads, with the nearest name that something does."""
    sentences = []
    for name in sorted(names):
        if name.startswith(("sglang_", "gpu_preflight_")) and name not in known:
            sentences.append(f"{name} is not a variable of any role{sglang_options.meant(name, known)}")
    return sentences


def wrong_type(name: str, value: Any, spec: dict[str, Any]) -> str:
    """What is wrong with a value by its role's spec; empty when nothing is."""
    return "; ".join(ArgumentSpecValidator({name: spec}).validate({name: value}).error_messages)


def profile_problem(profile: Any, groups: list[str], profiles: set[str], host: str) -> str:
    """What is wrong with the host's profile; empty when nothing is."""
    choose = f"Known profiles: {', '.join(sorted(profiles))}."
    remedy = f"Put {host} into the group of one profile in the inventory, or pass -e @group_vars/NAME.yml. {choose}"
    serving = sorted(profiles & set(groups))
    if len(serving) > 1:
        return f"{host} is in the groups of {len(serving)} profiles: {', '.join(serving)}. A host serves one. {choose}"
    if not profile:
        return f"{host} has no profile. {remedy}"
    if profile not in profiles:
        meant = sglang_options.meant(profile, profiles) or "."
        return f"{host} asks for the profile '{profile}', which is unknown{meant} {remedy}"
    return ""


def variant_problem(variant: Any, made_for: Any, profile: Any, known: set[str]) -> str:
    """Whether an overlay is laid over a profile that it was not made for; empty when it fits, or there is none."""
    if not variant and not made_for:
        return ""
    if variant not in known:
        meant = sglang_options.meant(variant, known)
        return f"sglang_variant is '{variant}', and there is no variants/{variant}.yml{meant}"
    if profile not in (made_for or []):
        return (
            f"variants/{variant}.yml is made for {', '.join(made_for or []) or 'no profile'}, not for {profile}. If it fits, add "
            f"{profile} to its sglang_variant_profiles"
        )
    return ""


# Names of an option of the engine, and what it is without one.
TENSOR, PIPELINE = ("tensor-parallel-size", "tp-size", "tp"), ("pipeline-parallel-size", "pp-size", "pp")


def size_of(args: dict[str, Any], names: tuple[str, ...]) -> int:
    """A size among arguments; 1 where it is not set, or is no number: the plan says that."""
    given = {sglang_options.option(name): value for name, value in args.items()}
    found = next((given[name] for name in names if name in given), 1)
    return int(found) if str(found).isdigit() and int(found) > 0 else 1


def replica_problems(
    host: str, groups: dict[str, Any], read: replicas.Read, hosts: tuple[Iterable[str], ...], mode: str
) -> list[str]:
    """What stands against a host's replica, before any of its nodes is asked.

    `hosts` are those chosen, active and of this batch. `mode` is what a playbook does with a replica: it works on all of it
    (whole), on its head (head), on none (none), or looks (any).
    """
    try:
        replica = replicas.describe(host, groups, read)
    except replicas.ReplicaError as error:
        return [str(error)]
    if not replica or mode == "any":
        return []
    if mode == "none":
        return [
            f"{host} is part of {replicas.title(replica)}: this is for a server of its own. Put what is to be tried into an "
            "overlay, run deploy.yml on the replica, and bench.yml"
        ]
    if mode == "head":
        return []
    problem = replicas.whole(replica, *hosts)
    if problem:
        return [problem]
    problems = replicas.differing(replica, read)
    args = {**(read(host, "sglang_server_args") or {}), **(read(host, "sglang_server_args_overlay") or {})}
    wrong = replicas.sizes(replica, size_of(args, TENSOR), size_of(args, PIPELINE))
    problems += [wrong] if wrong else []
    for variable in ("sglang_server_port", "sglang_server_front_port"):
        if str(read(host, variable)) == str(replica["port"]):
            problems.append(f"sglang_server_dist_port and {variable} are both {replica['port']}; each needs its own")
    return problems


class ActionModule(ActionBase):
    """Fails with everything that is wrong at once."""

    _requires_connection = False
    _VALID_ARGS = frozenset({"profile", "replica"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        variables = task_vars or {}
        host = variables["inventory_hostname"]
        profile = self._templar.template(variables.get("sglang_profile", ""))
        groups = variables.get("group_names", [])
        profiles = known_profiles(ROOT) | ({profile} & set(variables.get("groups", {})) - SHARED)
        problems = misspelt(variables, known_variables(ROOT))
        problems += self._wrong_types(variables)
        problem = ""
        if boolean(self._task.args.get("profile", True)):
            problem = (
                unwired(variables, ROOT)
                or profile_problem(profile, groups, profiles, host)
                or named_alone(profile, groups, variables, ROOT)
            )
        problems = [problem, *problems] if problem else problems
        variant, made_for = (
            self._templar.template(variables.get(name)) for name in ("sglang_variant", "sglang_variant_profiles")
        )
        known = {path.stem for path in (ROOT / "variants").glob("*.yml")}
        wrong = variant_problem(variant, made_for, profile, known)
        problems += [wrong] if wrong else []
        problems += self._replica(host, variables)
        if problems:
            result.update(
                failed=True, msg=" ".join(text if text.endswith((".", "?")) else text + "." for text in problems)
            )
        else:
            result.update(changed=False, profile=profile)
        return result

    def _replica(self, host: str, variables: dict[str, Any]) -> list[str]:
        groups = variables.get("groups") or {}
        if not replicas.names_of(host, groups):
            return []
        hostvars = variables["hostvars"]
        play = tuple(
            variables.get(name) or [] for name in ("ansible_play_hosts_all", "ansible_play_hosts", "ansible_play_batch")
        )

        def read(other: str, name: str) -> Any:
            try:
                return hostvars[other].get(name)
            except AnsibleError:
                return None  # made of something that a task has yet to find out

        return replica_problems(host, groups, read, play, str(self._task.args.get("replica", "whole")))

    def _wrong_types(self, variables: dict[str, Any]) -> list[str]:
        """Roles check their inputs when their turn comes; a wrong one is said before the first of them has done anything."""
        found, wired = [], wiring(ROOT)
        for name, spec in options(ROOT).items():
            if name in variables and variables[name] != wired.get(name):
                try:
                    value = self._templar.template(variables[name])
                except AnsibleError:
                    continue  # made of something that a task has yet to find out
                found.append(wrong_type(name, value, spec))
        return [text for text in found if text]
