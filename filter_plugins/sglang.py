"""Turn a mapping of server arguments into the words of a command line, and words into a systemd unit. The one place for both."""

from __future__ import annotations

import json
import re
from typing import Any

from ansible.errors import AnsibleFilterError


def _option(name: str) -> str:
    return name.lstrip("-").replace("_", "-")


def sglang_args(args: dict[str, Any], *overlays: dict[str, Any]) -> dict[str, Any]:
    """Arguments with overlays laid on, the last one winning; a null removes an option.

    Names may be spelt with dashes or underscores; the result has dashes.
    """
    merged: dict[str, Any] = {}
    for layer in (args, *overlays):
        if not isinstance(layer, dict):
            raise AnsibleFilterError(
                f"Server arguments are a mapping of option to value, not {type(layer).__name__}: {layer!r}"
            )
        merged.update({_option(name): value for name, value in layer.items()})
    return {name: value for name, value in merged.items() if value is not None}


def sglang_argv(args: dict[str, Any]) -> list[str]:
    """Words of the command line: true is the bare option, false leaves it out, a list repeats values, a mapping is JSON."""
    words: list[str] = []
    for name, value in sglang_args(args).items():
        if value is False:
            continue
        words.append(f"--{name}")
        if value is True:
            continue
        if isinstance(value, dict):
            words.append(json.dumps(value, sort_keys=True))
        elif isinstance(value, (list, tuple)):
            words += [str(item) for item in value]
        else:
            words.append(str(value))
    return words


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


def sglang_rung(result: dict[str, Any]) -> dict[str, Any]:
    """What a result file keeps of one load measured by the module sglang_bench."""
    return {key: result.get(key) for key in ("load", "metrics", "valid", "problems", "command")}


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
            "sglang_patch_states": sglang_patch_states,
            "sglang_rung": sglang_rung,
            "sglang_unit_words": sglang_unit_words,
            "sglang_unit_environment": sglang_unit_environment,
        }
