"""Server arguments as a mapping and as words, words as a systemd unit, and what records keep."""

from __future__ import annotations

import re
import statistics
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.errors import AnsibleFilterError

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils import flashinfer_shapes, sglang_options, sglang_release_python


def sglang_args(args: dict[str, Any], *overlays: dict[str, Any]) -> dict[str, Any]:
    """Arguments with overlays laid on, the last one winning; a null removes an option."""
    try:
        return sglang_options.merged(args, *overlays)
    except sglang_options.OptionsError as error:
        raise AnsibleFilterError(str(error)) from error


def sglang_union(first: dict[str, Any], *later: dict[str, Any]) -> dict[str, Any]:
    """Mappings as one, the last one winning.

    As `combine`, which works out the values of each mapping several times, those of the mappings in them as often again: that was a
    third of the controller's time in a deployment with nothing to change.
    """
    return {name: value for one in (first, *later) for name, value in one.items()}


def sglang_argv(args: dict[str, Any]) -> list[str]:
    """Words of the command line."""
    try:
        return sglang_options.words(args)
    except sglang_options.OptionsError as error:
        raise AnsibleFilterError(str(error)) from error


def sglang_unit_words(words: list[str]) -> str:
    """Words quoted for ExecStart= (systemd.service(5)): specifiers and variables stay what they are.

    Each option begins a line of its own, so that a diff of two units shows the option that differs.
    """
    quoted = (_quote(word).replace("$", "$$") for word in words)
    return "".join(f" \\\n  {word}" if word.startswith("--") else f" {word}" for word in quoted).lstrip()


def sglang_unit_environment(environment: dict[str, Any]) -> list[str]:
    """Assignments quoted for Environment= (systemd.exec(5)), sorted by name. Booleans are true and false, as programs read them."""
    pairs = (
        (name, str(value).lower() if isinstance(value, bool) else str(value)) for name, value in environment.items()
    )
    return [_quote(f"{name}={value}", always=True) for name, value in sorted(pairs)]


def sglang_python_version(found: list[dict[str, Any]], locked: list[str]) -> str:
    """The Python that a release is built with, of those that gpu_info found on the node and those that the stack is locked for."""
    return sglang_release_python.choose((python["version"] for python in found), locked)


def sglang_patch_states(looked: list[dict[str, Any]], made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a deployment's record keeps of patches, from results of python_source_patch: those looked at, then those made.

    The same on the run that applies them and on every later one: several patches may touch one file, so its hash is the one
    that the last of them left.
    """
    results = [r for r in looked if r.get("status") in ("applied", "not_needed")] + [r for r in made if "status" in r]
    hashes = {result["path"]: result["sha256_after"] for result in results}
    states = [
        {
            "name": result["patch_name"],
            "status": "not_needed" if result["status"] == "not_needed" else "applied",
            "package_version": result["package_version"],
            "path": result["path"],
            "sha256": hashes[result["path"]],
        }
        for result in results
    ]
    return sorted(states, key=lambda state: state["name"])


def sglang_median(values: list[float]) -> float:
    """The middle one of measured figures."""
    return statistics.median(values)


def sglang_tuning_shapes(config: dict[str, Any], resolved: dict[str, Any], sglang: str) -> list[dict[str, Any]]:
    """What FlashInfer tunes of a model: its config.json and the release's resolved arguments as operations with shapes."""
    try:
        return flashinfer_shapes.operations(config, resolved, sglang)
    except ValueError as error:
        raise AnsibleFilterError(f"The model's shapes are not known: {error}") from error


def _quote(word: str, always: bool = False) -> str:
    if "\n" in word:
        raise AnsibleFilterError(f"A line break cannot stand in a systemd unit: {word!r}")
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return escaped if not always and re.fullmatch(r"[\w@%+=:,./-]+", word) else f'"{escaped}"'


class FilterModule:
    """Filters by name."""

    def filters(self) -> dict[str, Any]:
        return {
            "sglang_args": sglang_args,
            "sglang_argv": sglang_argv,
            "sglang_median": sglang_median,
            "sglang_patch_states": sglang_patch_states,
            "sglang_python_version": sglang_python_version,
            "sglang_tuning_shapes": sglang_tuning_shapes,
            "sglang_union": sglang_union,
            "sglang_unit_words": sglang_unit_words,
            "sglang_unit_environment": sglang_unit_environment,
        }
