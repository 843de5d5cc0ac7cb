"""What would run on a host, judged before anything starts: options, rules, fit and the node, as findings and as a page."""

from __future__ import annotations

import json
import math
import re
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.errors import AnsibleActionFail, AnsibleError
from ansible.module_utils.common.yaml import yaml_load
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils import sglang_fit, sglang_options, sglang_release_python, sglang_rules, sglang_summary
from ansible.module_utils.sglang_text import wrap

# What a page tells of the resolved arguments beside those that were given: what decides kernels, memory and load.
TOLD = [
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "dsa_prefill_backend",
    "dsa_decode_backend",
    "nsa_prefill_backend",
    "nsa_decode_backend",
    "moe_runner_backend",
    "fp4_gemm_runner_backend",
    "fp8_gemm_runner_backend",
    "kv_cache_dtype",
    "page_size",
    "mem_fraction_static",
    "chunked_prefill_size",
    "max_running_requests",
    "cuda_graph_max_bs",
    "cuda_graph_max_bs_decode",
    "disable_cuda_graph",
    "disable_custom_all_reduce",
    "disable_shared_experts_fusion",
    "sampling_backend",
    "device",
]
LOOPBACK = re.compile(r"127(\.\d+){3}|::1|\[::1\]|localhost")
# Options that the role sets from variables of their own.
OWN_VARIABLES = {
    "model-path": "sglang_server_model_path",
    "model": "sglang_server_model_path",
    "served-model-name": "sglang_server_model_name",
    "host": "sglang_server_host",
    "port": "sglang_server_port",
    "nnodes": "an inventory group replica_NAME",
    "node-rank": "sglang_server_node_rank, in an inventory group replica_NAME,",
    "dist-init-addr": "sglang_server_dist_address and sglang_server_dist_port, in an inventory group replica_NAME,",
    "nccl-init-addr": "sglang_server_dist_address and sglang_server_dist_port, in an inventory group replica_NAME,",
}
SECRET_OPTIONS = {"api-key", "admin-api-key", "ssl-keyfile-password"}
# What brings a CPU build of torch.
TORCH_SOURCES = ("sglang_env_wheelhouse", "sglang_env_node_wheelhouse", "sglang_env_torch_index_url")
# Variables that a plan reads, beside the roles' own defaults.
VARIABLES = [
    "sglang_profile",
    "sglang_profile_about",
    "sglang_variant",
    "sglang_variant_about",
    "gpu_preflight_card",
    "gpu_preflight_accept",
    "gpu_preflight_min_free_mib",
    "sglang_env_stack",
    "sglang_env_stacks_dir",
    "sglang_env_python",
    "sglang_env_python_version",
    "sglang_model_path",
    "sglang_model_spec",
    "sglang_model_generator",
    "sglang_model_fetch",
    "sglang_patch_patches",
    "sglang_server_args",
    "sglang_server_args_overlay",
    "sglang_server_environment",
    "sglang_server_environment_overlay",
    "sglang_server_name",
    "sglang_server_port",
    "sglang_server_replica",
    "sglang_server_host",
    "sglang_server_front",
    "sglang_server_front_host",
    "sglang_server_front_port",
    "sglang_server_front_keys",
    "sglang_server_front_key_file",
    "sglang_server_front_certificate",
    "sglang_server_front_certificate_key",
    "sglang_env_index_url",
    "sglang_env_torch_index_url",
]


# --- what the project knows: cards, models, stacks -------------------------------------------------------------------


def load(path: Path) -> Any:
    return yaml_load(path.read_text(encoding="utf-8"))


def named(folder: str, name: str, variable: str) -> dict[str, Any]:
    """The entry of cards/ or models/ that a variable names; empty when it names none."""
    if not name:
        return {}
    path = ROOT / folder / f"{name}.yml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in path.parent.glob("*.yml")))
        raise AnsibleActionFail(f"{variable} is '{name}', and there is no {folder}/{name}.yml. Known: {known}.")
    return load(path)


def pins(lock: Path) -> dict[str, str]:
    """Package and version of a lock."""
    return dict(re.findall(r"^([a-z0-9][a-z0-9.-]*)==([^\s;\\]+)", lock.read_text(encoding="utf-8"), re.M))


def stack_of(folder: Path, given: str, found: tuple[str, ...]) -> dict[str, Any]:
    """A stack as a plan needs it: its description, the lock's versions, its release's options. Empty where there is no stack.

    `python` is the version that was given, or the first of those found on the node that fits; `locked` are all with a lock.
    """
    if not (folder / "stack.yml").is_file():
        return {}
    description = load(folder / "stack.yml")
    python = given or sglang_release_python.choose(found, description["python"])
    lock, options = folder / f"requirements-{python}.txt", folder / "options.json"
    return {
        **description,
        "name": folder.name,
        "python": python,
        "locked": description["python"],
        "versions": pins(lock) if lock.is_file() else {},
        "options": json.loads(options.read_text(encoding="utf-8")) if options.is_file() else [],
        "lock": lock.is_file(),
    }


def on_record(folder: Path, wanted: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The release's own answer for these arguments, and how it is known: `exact`, `near` (another set of arguments) or ``."""
    near: dict[str, Any] = {}
    for path in sorted((folder / "resolved").glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        if all(found.get(key) == wanted[key] for key in ("card", "model", "patches", "environment", "args")):
            return found, "exact"
        if any(found.get(key) != wanted[key] for key in ("card", "model")):
            continue  # another card's kernels and memory say nothing of this one
        if path.stem == wanted["profile"] or (not near and path.stem.split("+")[0] == wanted["profile"]):
            near = found
    return near, "near" if near else ""


def resolved(options: list[dict[str, Any]], answer: dict[str, Any], args: dict[str, Any]) -> dict[str, Any]:
    """All arguments: the parser's defaults, what the release makes of them, and what was given."""
    values = {entry["dest"]: entry.get("default") for entry in options}
    if answer.get("exact"):
        return {**values, **answer["resolved"]}
    # The answer is for other arguments: an option that only they set is not set here.
    given = sglang_options.destinations(args, options)
    gone = set(answer.get("given", {})) - set(given)
    near = {key: value for key, value in answer.get("resolved", {}).items() if key not in gone}
    return {**values, **near, **given}


# --- where a value comes from ----------------------------------------------------------------------------------------


def origin(value: Any) -> tuple[str, int]:
    """File and line that a variable's key or value was read from, as Ansible tags it; empty for what was made elsewhere."""
    try:
        from ansible._internal._datatag._tags import Origin
    except ImportError:  # the tag is Ansible's own business; without it a message names the variable only
        return "", 0
    tag = Origin.get_tag(value)
    if tag is None:
        return "", 0
    return str(tag.path or ""), int(tag.line_num or 0)


def shown(path: str) -> str:
    """A path as a reader of the project knows it."""
    return str(Path(path).resolve().relative_to(ROOT)) if Path(path).resolve().is_relative_to(ROOT) else path


def sources(variables: list[tuple[str, Any]]) -> dict[str, tuple[str, str, int]]:
    """Option to variable, file and line, the last variable that sets it winning."""
    found = {}
    for variable, value in variables:
        if isinstance(value, dict):
            found.update({sglang_options.option(key): (variable, *origin(key)) for key in value})
    return found


def place(source: tuple[str, str, int] | None, fallback: str = "sglang_server_args") -> str:
    """Where an option was set, for a message."""
    if source is None:
        return fallback
    variable, path, line = source
    return f"{variable} ({shown(path)}, line {line})" if path else variable


def why(path: str, line: int) -> str:
    """The comment behind a value in a YAML file: what it is for."""
    try:
        text = Path(path).read_text(encoding="utf-8").splitlines()[line - 1]
    except (OSError, IndexError):
        return ""
    found = re.search(r"""^(?:[^'"#]|'[^']*'|"(?:[^"\\]|\\.)*"|(?<=\w)'|(?<!\s)\#)*?\s\#\s*(.+)$""", text)
    return found.group(1).strip() if found else ""


# --- the node --------------------------------------------------------------------------------------------------------


def node_problems(node: dict[str, Any], wanted: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What stands against a deployment on this node, or speaks about it: severity and sentence. Empty when no node was seen."""
    if not node:
        return
    if node["uid"] != 0:
        yield (
            "error",
            f"Tasks run as user id {node['uid']}, and a deployment needs root: log in as root, or leave become on and "
            "give the user sudo.",
        )
    if node["machine"] != "x86_64":
        yield "error", f"The node is {node['machine']}; the stacks are locked for x86_64."
    if node["systemd"] == 0:
        yield "error", "systemd is not the service manager here; the server is a systemd service."
    owner = node["port_owner"]
    # The doctor looks at servers of others, whose port is theirs: without a port of ours there is nothing to compare.
    if owner and wanted["port"] and owner["unit"] != f"{wanted['name']}.service":
        of = f" of {owner['unit']}" if owner["unit"] else ""
        yield (
            "error",
            f"Port {wanted['port']} is in use by process {owner['pid']} ({owner['command']}){of}: stop it, or choose another "
            "sglang_server_port.",
        )
    yield from python_problems(node, wanted)
    yield from disk_problems(node, wanted)
    yield from gpu_problems(node, wanted)


def pythons_of(node: dict[str, Any]) -> list[str]:
    """Versions of the Pythons that were found on the node."""
    return [python["version"] for python in node.get("pythons", [])]


def python_problems(node: dict[str, Any], wanted: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Whether the node has the Python that is to be used."""
    if wanted["own_python"]:
        if not node.get("python"):
            yield (
                "error",
                f"{wanted['own_python']} is no Python that runs on the node; sglang_env_python names it. Correct it, or leave it "
                "empty to have a release built.",
            )
        return
    found = pythons_of(node)
    if wanted["python"] and wanted["python"] not in found:
        yield (
            "error",
            f"The node has Python {' and '.join(found) or 'nowhere on its PATH'}; {wanted['stack']} is locked for "
            f"{' and '.join(wanted['locked'])}. Install python{wanted['python']} on the node (docs/operating.md, What a node "
            "needs), or choose a lock for another with sglang_env_python_version.",
        )


def disk_problems(node: dict[str, Any], wanted: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Free space on the file systems of the releases and of the weights, which may be one."""
    paths = node.get("paths", {})
    full = {
        facts["device"]: path for path, facts in reversed(paths.items()) if facts["free_mib"] < wanted["min_free_mib"]
    }
    for path, facts in paths.items():
        if path in full.values():
            yield (
                "error",
                f"The file system of {path} has {facts['free_mib']} MiB free, {wanted['min_free_mib']} are asked for: make room, "
                "or lower gpu_preflight_min_free_mib.",
            )
    model = paths.get(wanted["model_path"])
    need = wanted["disk_gib"]
    if model and wanted["fetch"]:
        begun = paths.get(f"{wanted['model_path']}.incomplete", {})
        here = (model["used_mib"] + begun.get("used_mib", 0)) / 1024
        free = model["free_mib"] / 1024
        if here < 0.9 * need and here + free < need:
            yield (
                "error",
                f"The weights of {wanted['repository'] or wanted['model_path']} take {need} GiB, of which {here:.0f} are there; "
                f"the file system of {wanted['model_path']} has {free:.0f} GiB free. Make room, or set sglang_model_path to a "
                "larger one.",
            )
        return
    if model and not model["exists"] and not wanted["generator"]:
        what = f"the weights of {wanted['repository']}" if wanted["repository"] else "the model"
        free = model["free_mib"] // 1024
        room = "" if free >= need else ": make room too, or choose a larger one"
        size = f" They take {need} GiB; its file system has {free} GiB free{room}." if need else ""
        yield (
            "error",
            f"{wanted['model_path']} does not exist: put {what} there, or name their folder with sglang_model_path.{size}",
        )
    if model and model["exists"] and need:
        here, free = model["used_mib"] / 1024, model["free_mib"] / 1024
        # Nearly all of it is there: whether it is complete is the model role's question.
        if here < 0.9 * need and here + free < need:
            yield (
                "error",
                f"The weights of {wanted['repository'] or wanted['model_path']} take {need} GiB; {wanted['model_path']} has "
                f"{here:.0f} GiB of them, and its file system {free:.0f} GiB free. Make room, or set sglang_model_path to a larger "
                "one.",
            )


def chosen(gpus: list[dict[str, Any]], wanted: dict[str, Any]) -> list[dict[str, Any]]:
    """The cards that the server would use: those that CUDA_VISIBLE_DEVICES names, or of the profile's kind if they are enough."""
    visible = [text.strip() for text in wanted["visible"].split(",")] if wanted["visible"] else []
    if visible and all(text.isdigit() for text in visible):
        return [gpu for gpu in gpus if str(gpu["index"]) in visible]
    alike = [gpu for gpu in gpus if gpu["compute_capability"] == wanted["card"]["capability"]]
    return alike if len(alike) >= wanted["gpus"] else gpus


def gpu_problems(node: dict[str, Any], wanted: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The cards against those that the profile is for."""
    card, need = wanted["card"], wanted["gpus"]
    if not card:
        return
    gpus = chosen([gpu for gpu in node["gpus"] if not gpu.get("fault")], wanted)
    if not node["gpus"]:
        note = node["gpus_note"].rstrip(".") or "nvidia-smi describes no GPU"
        yield "error", f"The profile needs {need} x {card['name']}, and none can be used. {note}."
        return
    for gpu in node["gpus"]:
        if gpu.get("fault"):
            yield "error" if len(gpus) < need else "warning", f"GPU {gpu['index']} ({gpu['bus_id']}): {gpu['fault']}."
    if len(gpus) < need:  # otherwise a rule says it
        yield from (("error", f"A GPU is lost: {lost.rstrip('.')}.") for lost in node.get("gpus_lost", []))
    if len(gpus) < need:
        yield (
            "error",
            f"The arguments use {need} GPUs ({wanted['sizes']}); the node has {len(gpus)}. Set tensor-parallel-size in "
            "sglang_server_args to what is there, if the model fits, or use a node with more.",
        )
    others = sorted({gpu["compute_capability"] for gpu in gpus if gpu["compute_capability"]} - {card["capability"]})
    if others:
        yield (
            "error",
            f"The profile is for compute capability {card['capability']} ({card['name']}); the node has {', '.join(others)}. "
            "Choose a profile for these cards, or set gpu_preflight_card.",
        )
    names = sorted({gpu["name"] for gpu in gpus})
    if len(names) > 1:
        yield (
            "warning",
            f"The cards differ: {', '.join(names)}. All work at the pace of the slowest, and with the least memory.",
        )
    elif names and names[0] not in card.get("names", [card["name"]]) and not others:
        yield "warning", f"The cards are {names[0]}; gpu_preflight_card describes {card['name']}."
    small = [gpu for gpu in gpus if gpu["memory_mib"] and gpu["memory_mib"] < 0.98 * card["memory_mib"]]
    if small:
        yield (
            "error",
            f"GPU {small[0]['index']} has {small[0]['memory_mib']} MiB; the profile is for {card['memory_mib']}. What is said of "
            "the fit does not hold: set gpu_preflight_card.",
        )
    taken = {gpu["index"] for gpu in gpus}
    for process in node.get("processes", []):
        if process["unit"] != f"{wanted['name']}.service" and process["gpu"] in taken:
            of = f" of {process['unit']}" if process["unit"] else ""
            yield (
                "error",
                f"GPU {process['gpu']} is used by process {process['pid']} ({process['command'][:60]}){of}: stop it first.",
            )


# --- the page --------------------------------------------------------------------------------------------------------


def row(label: str, text: str) -> list[str]:
    return wrap(text, f"  {label:<11} ", " " * 14)


def value_text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return json.dumps(value, sort_keys=True) if isinstance(value, (dict, list)) else str(value)


def argument_lines(plan: dict[str, Any]) -> Iterator[str]:
    """Each argument with its value, and below it why it is so."""
    width = min(34, max((len(name) for name in plan["args"]), default=0))
    for name, value in plan["args"].items():
        told = "(set)" if name in SECRET_OPTIONS else value_text(value)
        yield from wrap(f"{name:<{width}}  {told}", "  ", "      ")
        if plan["whys"].get(name):
            yield from wrap(plan["whys"][name], "      ")


def finding_lines(findings: list[dict[str, Any]]) -> Iterator[str]:
    for finding in findings:
        yield from wrap(f"{finding['severity']}: {finding['cause']}", "  ", "    ")
        if finding.get("remedy"):
            yield from wrap(f"Remedy: {finding['remedy']}", "    ")
        if finding.get("id"):
            known = f"{finding['confidence']}; {'; '.join(finding['sources'])}"
            yield from wrap(f"[{finding['id']}] {known}", "    ", "      ")


def page(plan: dict[str, Any]) -> list[str]:
    """The plan for people, at most 80 columns."""
    about, versions = plan["about"], plan["stack"].get("versions", {})
    lines = [f"PLAN for {plan['host']}: {plan['profile']}{' + ' + plan['variant'] if plan['variant'] else ''}", ""]
    lines += row("profile", about.get("summary", ""))
    if plan["variant"]:
        lines += row("variant", plan["variant_about"] or "not described (sglang_variant_about)")
    lines += row("source", f"{about.get('source', 'not told')} ({about.get('date', 'no date')})")
    lines += row("verified", about.get("verified", "not told"))
    lines += row("model", plan["model_text"])
    lines += row("stack", f"{plan['stack'].get('name') or plan['python']}, Python {plan['python_version']}")
    shown_versions = [
        f"{name} {versions[name]}"
        for name in ("sglang", "torch", "flashinfer-python", "sgl-kernel", "sglang-kernel", "triton", "transformers")
        if name in versions
    ]
    if shown_versions:
        lines += row("", ", ".join(shown_versions))
    if plan["patches"]:
        lines += row("patches", ", ".join(plan["patches"]))
    if plan["front_text"]:
        lines += row("front", plan["front_text"])
    lines += ["", "ARGUMENTS, and why"]
    lines += list(argument_lines(plan))
    if plan["environment"]:
        lines += ["", "ENVIRONMENT, and why"]
        for name, value in plan["environment"].items():
            lines += wrap(f"{name}={'(set)' if sglang_options.secret(name) else value}", "  ", "      ")
            if plan["whys"].get(f"environment {name}"):
                lines += wrap(plan["whys"][f"environment {name}"], "      ")
    lines += ["", f"WHAT THE RELEASE MAKES OF THEM{' on ' + plan['card']['name'] if plan['card'] else ' on a CPU'}"]
    lines += wrap(plan["resolved_text"])
    for name in TOLD if plan["is_resolved"] else []:
        if plan["resolved"].get(name) is not None and name not in plan["given"]:
            lines.append(f"  {name.replace('_', '-'):<34}  {value_text(plan['resolved'][name])}")
    lines += row("autotuning", plan["autotune_text"])
    if plan["card"]:
        lines += row("fit", sglang_fit.sentence(plan["fit"]))
    for title, key in (("WHAT STANDS AGAINST IT", "error"), ("WARNINGS", "warning"), ("WORTH KNOWING", "note")):
        found = [finding for finding in plan["findings"] if finding["severity"] == key]
        if found:
            lines += ["", title, *finding_lines(found)]
    if plan["accepted"]:
        lines += ["", "ACCEPTED by gpu_preflight_accept", *finding_lines(plan["accepted"])]
    lines += ["", "THE NODE", *(line for text in plan["node_text"] for line in wrap(text))]
    if plan["changes"]:
        lines += ["", "A DEPLOY WOULD", *(line for text in plan["changes"] for line in wrap(text, "  ", "    "))]
    count = {key: sum(f["severity"] == key for f in plan["findings"]) for key in ("error", "warning")}
    sound = "nothing known stands against it" + ("" if plan["node"] else ", without a look at the node")
    verdict = "a deploy would be refused" if count["error"] else sound
    counted = ", ".join(f"{number} {key}{'s' if number != 1 else ''}" for key, number in count.items())
    lines += ["", *wrap(f"RESULT: {verdict}; {counted}. Nothing was changed.", "", "  ")]
    return lines


def node_text(node: dict[str, Any], unreached: str) -> list[str]:
    """What was seen of the node, in a few lines."""
    if not node:
        return [f"No node was looked at: {unreached or 'none was asked'}. What depends on it is not judged."]
    counts: dict[str, int] = {}
    for gpu in node["gpus"]:
        counts[gpu["name"]] = counts.get(gpu["name"], 0) + 1
    cards = (
        ", ".join(f"{count} x {name}" for name, count in counts.items()) or f"no GPU ({node['gpus_note'].rstrip('.')})"
    )
    driver = node.get("driver") or {}
    kind = {True: ", open modules", False: ", proprietary modules", None: ""}[driver.get("open")]
    lines = [f"{cards}{'; driver ' + driver['version'] + kind if driver.get('version') else ''}."]
    memory = node["memory_mib"]["total"] // 1024
    lines.append(
        f"{node.get('os') or 'Linux'}, {node.get('cpus', '?')} CPUs, {memory} GiB of memory, /dev/shm {node['shm_mib']} MiB, "
        f"systemd {node['systemd']}."
    )
    for path, facts in node.get("paths", {}).items():
        lines.append(f"{path}: {facts['used_mib'] / 1024:.1f} GiB there, {facts['free_mib'] // 1024} GiB free.")
    return lines


def changes(plan: dict[str, Any], release: dict[str, Any], change: dict[str, Any]) -> list[str]:
    """What a deploy would do on the node, in the order in which it does it. Empty when no node was seen."""
    lines = []
    if release.get("path"):
        there = release.get("status") in ("built", "sealed")
        lines.append(f"{'use' if there else 'build'} the release {release['path']}")
        if plan["patches"] and not there:
            lines.append(f"patch it: {', '.join(plan['patches'])}")
    if plan["makes_model"]:
        lines.append("make the model")
    if plan["brings_model"]:
        lines.append("bring the weights")
    if change.get("reasons"):
        lines.append(
            f"{'restart' if change['running']['pid'] else 'start'} the server, since {'; '.join(change['reasons'])}"
        )
        lines += sglang_summary.option_changes(change.get("diff") or {})
    elif change.get("phase"):
        lines.append("leave the server as it is: it runs what is wanted")
    return lines


# --- the judgement ---------------------------------------------------------------------------------------------------


def finding(severity: str, cause: str, remedy: str = "") -> dict[str, Any]:
    """A finding of this file's own; a rule's has an id, by which it can be accepted."""
    return {"id": "", "severity": severity, "cause": cause, "remedy": remedy}


def message(found: dict[str, Any]) -> str:
    """A finding in one line: cause, remedy, and the id."""
    accept = f" [{found['id']}]" if found.get("id") else ""
    return " ".join(text for text in (found["cause"], found.get("remedy", "")) if text) + accept


def option_findings(
    args: dict[str, Any], options: list[dict[str, Any]], where: dict[str, tuple[str, str, int]]
) -> Iterator[dict[str, Any]]:
    """Options that the release does not take, and those that it calls deprecated."""
    for name, text in sglang_options.check(args, options, load(ROOT / "stacks/renames.yml")) if options else []:
        yield finding("error", f"{place(where.get(name))}: '{name}' {text}{'' if text.endswith('?') else '.'}")
    for name in sglang_options.deprecated(args, options):
        yield finding("note", f"{place(where.get(name))}: '{name}' is deprecated in this release and still taken.")


def misplaced_findings(
    args: dict[str, Any], variables: dict[str, Any], where: dict[str, tuple[str, str, int]]
) -> Iterator[dict[str, Any]]:
    """Options with a variable of their own, and secrets, which a unit, a log and a record would show."""
    for name in args:
        if name in OWN_VARIABLES:
            yield finding("error", f"{place(where.get(name))} sets {name}. Set {OWN_VARIABLES[name]} instead.")
        if name in SECRET_OPTIONS:
            yield finding(
                "error",
                f"{place(where.get(name))} sets {name}. On a command line it can be read by everybody on the node, and the engine "
                "writes it into its log.",
                "Put a front with a key before the server.",
            )
    environment = merged_environment(variables)
    for variable in ("sglang_server_environment", "sglang_server_environment_overlay"):
        for name in variables[variable] or {}:
            if name in environment and sglang_options.secret(name):
                yield finding(
                    "error",
                    f"{variable} sets {name}. The unit can be read by everybody on the node, and the record keeps it.",
                    "Put it into a file on the node (NAME=value lines, owner root, mode 0600), and its path into "
                    "sglang_server_environment_file.",
                )


def exposure_findings(
    args: dict[str, Any], variables: dict[str, Any], whys_given: dict[str, str]
) -> Iterator[dict[str, Any]]:
    """Who could reach the server without a key, and what would come in unchecked."""
    host = str(variables["sglang_server_host"] or "127.0.0.1")
    if not LOOPBACK.fullmatch(host):
        yield finding(
            "error",
            f"sglang_server_host is {host}, expected a loopback address: the engine that is given a key writes it into its log and "
            "returns it from /server_info, and it takes new requests while it drains.",
            "Leave sglang_server_host out and set sglang_server_front to true with sglang_server_front_keys: a front on the node "
            "holds the port, the keys and the drain.",
        )
    if variables["sglang_server_front"]:
        outside = str(variables["sglang_server_front_host"] or "0.0.0.0")
        keys = variables["sglang_server_front_keys"] or variables["sglang_server_front_key_file"]
        if not keys and not LOOPBACK.fullmatch(outside):
            yield finding(
                "error",
                f"The front listens on {outside} and has no key, so that everybody who reaches port "
                f"{variables['sglang_server_front_port']} would be served.",
                "Set sglang_server_front_keys (from a vault) or sglang_server_front_key_file (on the node), or "
                "sglang_server_front_host to 127.0.0.1.",
            )
        pair = [variables[f"sglang_server_front_certificate{part}"] or "" for part in ("", "_key")]
        if bool(pair[0]) != bool(pair[1]):
            yield finding(
                "error",
                "sglang_server_front_certificate and sglang_server_front_certificate_key belong together; one of them is empty.",
            )
        # Both are unknown to a play without the role, as the doctor's.
        port = variables["sglang_server_port"]
        if port is not None and str(variables["sglang_server_front_port"]) == str(port):
            yield finding(
                "error",
                f"sglang_server_front_port and sglang_server_port are both {port}; each needs its own.",
            )
    for name in ("sglang_env_index_url", "sglang_env_torch_index_url"):
        url = str(variables[name] or "")
        if url.startswith("http://") and not LOOPBACK.fullmatch(urllib.parse.urlsplit(url).hostname or ""):
            yield finding("error", f"{name} is {url}: packages are fetched over TLS only.", "Use https://.")
    if args.get("trust-remote-code") and not whys_given.get("trust-remote-code"):
        yield finding(
            "error",
            "trust-remote-code runs code that comes with the model, and nothing says why that is wanted.",
            "Say why in a comment behind it, in the profile or in a file of variables (-e @FILE).",
        )


def stack_findings(variables: dict[str, Any], stack: dict[str, Any], folder: Path) -> Iterator[dict[str, Any]]:
    if not stack.get("lock") and not variables["sglang_env_python"]:
        python = stack.get("python") or variables["sglang_env_python_version"] or "*"
        yield finding(
            "error",
            f"There is no lock for the stack '{variables['sglang_env_stack']}' and Python {python}: expected "
            f"{shown(str(folder))}/requirements-{python}.txt.",
            "Correct sglang_env_stack or sglang_env_python_version, or set sglang_env_python to use an environment that is "
            "already on the node.",
        )


def torch_findings(stack: dict[str, Any], release: dict[str, Any], sources: bool) -> Iterator[dict[str, Any]]:
    """A release that is yet to be built from a CPU build of torch, and nothing that has it."""
    if stack.get("torch") and release.get("status", "sealed") not in ("built", "sealed") and not sources:
        yield finding(
            "error",
            f"The release is not built yet, and {stack['name']} runs on torch {stack['torch']}, a CPU build that the default index "
            "lacks.",
            f"Fill a folder on the controller (tools/wheelhouse {stack['name']}) and name it with sglang_env_wheelhouse, or name "
            "an index that has this build with sglang_env_torch_index_url.",
        )


def unjudged_findings(stack: dict[str, Any], variables: dict[str, Any], judged: bool) -> Iterator[dict[str, Any]]:
    """What cannot be said here, rather than nothing."""
    if judged or not (stack or variables["sglang_env_python"]):
        return
    what = f"stacks/{stack['name']} has no options.json" if stack else "sglang_env_python is an environment of your own"
    yield finding("note", f"Arguments are not judged here, since {what}: the release itself is asked on the node.")


def layer_findings(layers: list[tuple[str, Any]], options: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Nulls that remove nothing, and one option under two names, of which the engine would take the last."""
    known = sglang_options.by_name(options)
    names: dict[str, str] = {}
    below: set[str] = set()
    for variable, value in layers:
        for key, setting in value.items() if isinstance(value, dict) else ():
            name = sglang_options.option(key)
            if name not in known:
                if options and setting is None and name not in below:
                    near = sglang_options.nearest(name, known)
                    hint = f" Did you mean {near}?" if near else ""
                    yield finding("error", f"{variable}: '{name}: null' removes no option of this release.{hint}")
                below.add(name)
                continue
            other = names.setdefault(known[name]["dest"], name)
            if other != name and "Const" not in known[name]["kind"] and not name.startswith("no-"):
                yield finding("error", f"{variable}: '{name}' and '{other}' are one option. Write it as '{other}'.")


def size_findings(values: dict[str, Any], model: dict[str, Any], found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Sizes that no engine can run with, and a cache that is small for the context."""
    for name in ("tp_size", "pp_size", "dp_size", "ep_size"):
        if isinstance(values.get(name), int) and values[name] < 1:
            yield finding("error", f"{name.replace('_', '-')} is {values[name]}; it is 1 or more.")
    fraction = values.get("mem_fraction_static")
    if isinstance(fraction, (int, float)) and not 0 < fraction <= 1:
        yield finding("error", f"mem-fraction-static is {fraction}; it is a share between 0 and 1.")
    tp, heads = (values.get("tp_size") or 1) // sglang_fit.groups(values), model.get("heads") or 0
    if tp > 1 and heads and heads % tp:
        yield finding(
            "error", f"{heads} attention heads cannot be shared by tensor-parallel-size {tp}.", "Choose a divisor."
        )
    longest = model.get("context_length") or 0
    if longest and (values.get("context_length") or 0) > longest:
        yield finding(
            "warning",
            f"context-length is {values['context_length']:,}; the model's own is {longest:,}, and answers beyond it are noise.",
        )
    if found.get("fits") and found["context_length"] and found["kv_tokens"] < found["context_length"]:
        yield finding(
            "warning" if found["full_requests"] < 0.25 else "note",
            f"The KV cache holds about {found['kv_tokens']:,} tokens, fewer than one request of full context "
            f"({found['context_length']:,}): longer requests are refused.",
            "Lower context-length, raise mem-fraction-static as far as activations leave room, or use more GPUs.",
        )


def fit_findings(found: dict[str, Any], fraction: Any) -> Iterator[dict[str, Any]]:
    if found and not found["fits"]:
        yield finding(
            "error",
            f"{sglang_fit.sentence(found)} ({found['available_gib']:.1f} x {fraction}).",
            "Use more GPUs (tensor-parallel-size, pipeline-parallel-size), or raise mem-fraction-static.",
        )


def rule_findings(
    context: dict[str, Any], accepted: list[str], has_options: bool, checked: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What rules say, and what of it was accepted.

    Without the engine's version, or the options that its parser has, rules that ask for them cannot be judged. `checked`: the rules
    were loaded before in this run.
    """
    rules = sglang_rules.load(str(ROOT / "rules"), checked)
    unknown = [] if has_options else ["option(", "args.", "given."]
    unknown += [] if context["versions"].get("sglang") else ["versions."]
    rules = [
        rule
        for rule in rules
        if not any(
            word in text for text in (*sglang_rules.conditions(rule), rule["cause"], rule["remedy"]) for word in unknown
        )
    ]
    found = sglang_rules.judge(rules, context)
    try:
        return sglang_rules.accept(found, accepted, rules)
    except sglang_rules.RulesError as error:
        raise AnsibleActionFail(f"gpu_preflight_accept: {error}") from error


def mapping(variables: dict[str, Any], name: str) -> dict[str, Any]:
    """A variable that holds a mapping; empty where it is not set."""
    value = variables[name] or {}
    if not isinstance(value, dict):
        raise AnsibleActionFail(
            f"{name} is {sglang_rules.kind(value)}; expected a mapping. On the command line it is written as JSON, whole: "
            f"-e '{{\"{name}\": {{…}}}}'."
        )
    return value


def merged_environment(variables: dict[str, Any]) -> dict[str, str]:
    """The server's variables as the profile and its overlay set them, without the stack's."""
    names = ("sglang_server_environment", "sglang_server_environment_overlay")
    merged = {key: value for name in names for key, value in mapping(variables, name).items()}
    return {key: str(value) for key, value in merged.items() if value is not None}


def model_text(path: str, spec: dict[str, Any], model: dict[str, Any]) -> str:
    """The model in one line."""
    what = spec.get("repository") or "made on the node, random weights" if spec else "not described (sglang_model_spec)"
    disk = f"{spec['disk_gib']} GiB on disk" if spec.get("disk_gib") else ""
    more = [text for text in (model.get("architecture"), spec.get("quantization"), disk) if text]
    return ", ".join([f"{path}: {what}", *more])


def front_text(variables: dict[str, Any]) -> str:
    """Who may ask from outside, in one line; empty where the server has no front."""
    if not boolean(variables["sglang_server_front"] or False):
        return ""
    host, port = variables["sglang_server_front_host"] or "0.0.0.0", variables["sglang_server_front_port"]
    count = len(variables["sglang_server_front_keys"] or [])
    keys = (
        "keys of a file on the node"
        if variables["sglang_server_front_key_file"]
        else f"{count} key{'s' if count != 1 else ''}"
    )
    tls = variables["sglang_server_front_certificate"]
    return (
        f"nginx at {'https' if tls else 'http'}://{host}:{port}, {keys}"
        f"{'' if tls else '; without a certificate keys and prompts cross the network as they are'}"
    )


RESOLVED_TEXT = {
    "node": "Asked of the release's own code on the node.",
    "exact": "Asked of the release's own code, with this card stood in (stacks/*/resolved).",
    "near": "These arguments are not on record: below is the release's word for the profile without the changes, with what was "
    "given laid over. The release itself is asked when it is built.",
    "": "Not on record: the release itself is asked when it is built.",
}


def judge(
    raw: dict[str, Any], variables: dict[str, Any], node: dict[str, Any], answer: dict[str, Any]
) -> dict[str, Any]:
    """Everything about a host's profile, for a page and for a refusal.

    `raw` are the variables as Ansible read them, with the places that they come from; `variables` the same with templates
    filled in; `node` the facts of gpu_info or nothing; `answer` the release's own word (sglang_args) or nothing.
    """
    card = named("cards", variables["gpu_preflight_card"] or "", "gpu_preflight_card")
    spec = named("models", variables["sglang_model_spec"] or "", "sglang_model_spec")
    config = answer.get("config") or (
        json.loads((ROOT / "models/configs" / spec["config"]).read_text(encoding="utf-8")) if spec else {}
    )
    model = sglang_fit.describe(config)
    folder = Path(variables["sglang_env_stacks_dir"] or ROOT / "stacks") / (variables["sglang_env_stack"] or "none")
    asked_python = str(variables["sglang_env_python_version"] or "")
    stack = {} if variables["sglang_env_python"] else stack_of(folder, asked_python, tuple(pythons_of(node)))
    python = stack.get("python") or asked_python or node.get("python", "")
    versions = answer.get("versions") or stack.get("versions", {})
    patches, environment = variables["sglang_patch_patches"] or [], merged_environment(variables)
    # A null takes a variable of the stack away, too.
    removed = {
        key: "" for key, value in mapping(variables, "sglang_server_environment_overlay").items() if value is None
    }
    layers = [(name, raw.get(name)) for name in ("sglang_server_args", "sglang_server_args_overlay")]
    where = sources(layers)
    args = sglang_options.merged(*(mapping(variables, name) for name, _ in layers))
    options = answer.get("options") or stack.get("options", [])
    given = answer.get("given") or sglang_options.destinations(args, options)
    wanted = {
        "profile": variables["sglang_profile"],
        "card": variables["gpu_preflight_card"] or "",
        "model": variables["sglang_model_spec"] or "",
        "patches": patches,
        "environment": environment,
        "args": args,
    }
    known, how = (answer, "node") if answer.get("resolved") else on_record(folder, wanted) if stack else ({}, "")
    values = resolved(options, {**known, "exact": how in ("node", "exact")}, args)
    sizes = {name: values.get(f"{name[0]}p_size") or 1 for name in ("tensor", "pipeline", "data")}
    if sglang_fit.groups(values) > 1:
        sizes["data"] = 1  # these share the cards of one copy
    # Of several nodes with one model, each has its share.
    nodes = (variables["sglang_server_replica"] or {}).get("nnodes", 1)
    gpus = math.prod(sizes.values()) // nodes
    if nodes > 1:
        values = {**values, "nnodes": nodes}
    found_fit = sglang_fit.fit(card, spec, model, values) if card and spec else {}
    autotune = known.get("autotune") or {"runs": None, "why": "the release was not asked about these arguments"}
    expected = {
        "name": variables["sglang_server_name"] or "sglang",
        "port": variables["sglang_server_port"],
        "python": stack.get("python", ""),
        "locked": stack.get("locked", []),
        "own_python": variables["sglang_env_python"] or "",
        "stack": stack.get("name", ""),
        "min_free_mib": int(variables["gpu_preflight_min_free_mib"] or 0),
        "model_path": variables["sglang_model_path"],
        "generator": variables["sglang_model_generator"],
        "fetch": boolean(variables["sglang_model_fetch"] or False) and not variables["sglang_model_generator"],
        "disk_gib": spec.get("disk_gib", 0),
        "repository": spec.get("repository", ""),
        "card": card,
        "visible": environment.get("CUDA_VISIBLE_DEVICES", ""),
        "gpus": gpus,
        "sizes": " x ".join(f"{name}-parallel-size {n}" for name, n in sizes.items() if n > 1 or name == "tensor")
        + (f", over {nodes} nodes" if nodes > 1 else ""),
    }
    context = {
        "given": given,
        "args": values,
        "versions": versions,
        "stack": {
            "name": stack.get("name", ""),
            "accelerator": stack.get("accelerator", "cuda" if card else "cpu"),
            "cuda": stack.get("cuda", ""),
            "python": python,
        },
        "model": {key: model[key] for key in ("architecture", "mla", "dsa", "experts")}
        | {key: spec.get(key, "") for key in ("quantization", "repository")},
        "card": {"name": "", "memory_mib": 0, "names": [], **card}
        | {"sm": int(card.get("capability", "0").replace(".", ""))},
        "gpus": gpus if card else 0,
        "environment": {
            key: value for key, value in {**stack.get("environment", {}), **removed, **environment}.items() if value
        },
        "patches": patches,
        "autotune": autotune,
        "fit": found_fit,
        "node": node,
        "live": {},  # what a server does at work is the doctor's
        "rung": {},  # and what it did under a load the benchmark's
    }
    accept = variables["gpu_preflight_accept"] or []
    accept = accept.split(",") if isinstance(accept, str) else accept
    ruled, accepted = rule_findings(context, accept, bool(options or known.get("resolved")), checked=bool(answer))
    wrong = list(option_findings(args, options, where))
    sound = not any(found["severity"] == "error" for found in wrong)
    findings = [
        *stack_findings(variables, stack, folder),
        *misplaced_findings(args, variables, where),
        *exposure_findings(args, variables, whys(raw, where)),
        *wrong,
        *unjudged_findings(stack, variables, bool(options or known.get("resolved"))),
        *layer_findings(layers, options),
        # What a wrong value would come to is of no interest.
        *(size_findings(values, model, found_fit) if sound else []),
        # The release said no: its own words.
        *([finding("error", answer["refusal"])] if answer.get("refusal") else []),
        *(finding(severity, text) for severity, text in node_problems(node, expected)),
        *(fit_findings(found_fit, values.get("mem_fraction_static")) if sound else []),
        *ruled,
    ]
    here = node.get("paths", {}).get(variables["sglang_model_path"], {}).get("exists", False)
    return {
        "profile": variables["sglang_profile"] or "no profile",
        "variant": variables["sglang_variant"] or "",
        "variant_about": variables["sglang_variant_about"] or "",
        "about": variables["sglang_profile_about"] or {},
        "stack": {**stack, "versions": versions},
        "python": variables["sglang_env_python"] or "",
        "python_version": python,
        "patches": patches,
        "model_text": model_text(variables["sglang_model_path"], spec, model),
        "front_text": front_text(variables),
        "makes_model": bool(variables["sglang_model_generator"] and node and not here),
        "brings_model": bool(expected["fetch"] and node and not here),
        "args": args,
        "given": given,
        "whys": whys(raw, where),
        "environment": environment,
        "card": card,
        "resolved": values,
        "resolved_text": RESOLVED_TEXT[how],
        "is_resolved": bool(how),
        "autotune": autotune,
        "autotune_text": f"{TUNES[autotune['runs']]}: {autotune['why']}",
        "fit": found_fit,
        "findings": sorted(findings, key=lambda found: sglang_rules.SEVERITIES.index(found["severity"])),
        "accepted": accepted,
        "node": node,
    }


TUNES = {True: "runs", False: "does not run", None: "not known"}


def whys(raw: dict[str, Any], where: dict[str, tuple[str, str, int]]) -> dict[str, str]:
    """The comments behind arguments, and behind variables of the environment under `environment NAME`."""
    found = {name: why(path, line) for name, (_, path, line) in where.items() if path}
    for name in ("sglang_server_environment", "sglang_server_environment_overlay"):
        mapping = raw.get(name)
        for key in mapping if isinstance(mapping, dict) else {}:
            found[f"environment {key}"] = why(*origin(key))
    return found


# --- the action ------------------------------------------------------------------------------------------------------


class ActionModule(ActionBase):
    """Judges and shows; whether to go on is the next task's business."""

    _requires_connection = False
    _VALID_ARGS = frozenset({"node", "answer", "release", "change", "page", "said", "quiet"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        raw, asked = task_vars or {}, self._task.args
        quiet = boolean(asked.get("quiet", False))
        variables = {name: self._read(raw, name, quiet) for name in VARIABLES}
        node = asked.get("node") or {}
        unreached = str(node.get("unreached", ""))
        try:
            answer = {} if (asked.get("answer") or {}).get("skipped") else asked.get("answer") or {}
            plan = judge(raw, variables, {} if unreached else node, answer)
        except (sglang_rules.RulesError, sglang_options.OptionsError) as error:
            raise AnsibleActionFail(str(error)) from error
        host = raw.get("inventory_hostname", "")
        if asked.get("page"):
            sources = any(self._templar.template(raw.get(name)) for name in TORCH_SOURCES)
            plan["findings"] = [*torch_findings(plan["stack"], asked.get("release") or {}, sources), *plan["findings"]]
        lines = page(
            {
                **plan,
                "host": host,
                "changes": changes(plan, asked.get("release") or {}, asked.get("change") or {}),
                "node_text": node_text(plan["node"], unreached.removesuffix(".")),
            }
        )
        if asked.get("page"):
            self._display.display("\n".join(lines))
        said = set(asked.get("said") or [])
        speaks = not asked.get("page") and not quiet
        if speaks and plan["fit"] and "said" not in asked:
            self._display.display(f"{host}: {sglang_fit.sentence(plan['fit'])}")
        # A deployment says the fit and warnings once, in passing; errors are its failure's words, notes are the plan's.
        for found in plan["findings"] if speaks else []:
            if found["severity"] == "warning" and found["cause"] not in said:
                self._display.display(f"{host}: warning: {message(found)}", color="yellow")
        result.update(
            changed=False,
            errors=[message(found) for found in plan["findings"] if found["severity"] == "error"],
            warnings_found=[message(found) for found in plan["findings"] if found["severity"] == "warning"],
            said=[found["cause"] for found in plan["findings"]],
            fit=plan["fit"],
            autotune=plan["autotune"],
            page=lines,
        )
        return result

    def _read(self, raw: dict[str, Any], name: str, quiet: bool) -> Any:
        """A variable with its templates filled in. The doctor, who is quiet, does without one that asks for what is not there."""
        try:
            return self._templar.template(raw[name]) if name in raw else None
        except AnsibleError as error:
            if quiet:
                return None
            raise AnsibleActionFail(
                f"{name} cannot be worked out: {' '.join(str(error).split())}. Define what it names, in the inventory or with -e "
                "(a vault: -e @my-vault.yml --ask-vault-pass)."
            ) from None
