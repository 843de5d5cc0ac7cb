# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Server arguments as a mapping of option to value: laid over each other, turned into words, judged by a release's options.

The one place where a mapping becomes a command. Names are the release's own, with dashes or underscores, without the leading
dashes. Values: true is the bare option, false leaves it out, null removes it from what lies below, a list repeats values, a
mapping is one word of JSON.
"""

from __future__ import annotations

import decimal
import difflib
import json
import re
from collections.abc import Iterable
from typing import Any

# Options whose text the engine reads as JSON when it starts, though its parser takes any text.
JSON_OPTIONS = {"json_model_override_args", "model_loader_extra_config", "preferred_sampling_params", "kt_method_args"}
NUMBERS = ("int", "float", "human_readable_int")
# What later releases read behind some whole numbers, as in 128k (human_readable_int, 0.5.15 and 0.5.23).
SUFFIXES = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


# Names whose values are nobody's business, of options and of variables. Files of keys and paths of tokens are no secrets; counts of
# tokens are none either.
SECRET = re.compile(r"(API_?KEY|SECRET|PASSW(OR)?D|(^|_)(ACCESS|SECRET|STORAGE|PRIVATE|OPENAI)_KEY|(^|_)TOKEN)$")


def secret(name: str) -> bool:
    """Whether what stands under a name is to be shown and kept nowhere."""
    return bool(SECRET.search(name.upper().replace("-", "_")))


def blanked(value: Any) -> Any:
    """The same, with `***` for what stands under a secret's name."""
    if isinstance(value, dict):
        return {name: "***" if item and secret(str(name)) else blanked(item) for name, item in value.items()}
    return [blanked(item) for item in value] if isinstance(value, list) else value


class OptionsError(ValueError):
    """Says which argument is wrong and what is expected."""


def option(name: str) -> str:
    return str(name).lstrip("-").replace("_", "-")


def merged(*layers: dict[str, Any]) -> dict[str, Any]:
    """Arguments laid over each other, the last one winning; a null removes an option. The result's names have dashes."""
    result: dict[str, Any] = {}
    for layer in layers:
        if not isinstance(layer, dict):
            raise OptionsError(
                f"Server arguments are a mapping of option to value, not {type(layer).__name__}: {layer!r}"
            )
        result.update({option(name): value for name, value in layer.items()})
    return {name: value for name, value in result.items() if value is not None}


def words(args: dict[str, Any]) -> list[str]:
    """The words of the command line, in the mapping's order."""
    result: list[str] = []
    for name, value in merged(args).items():
        if value is False:
            continue
        result.append(f"--{name}")
        if value is True:
            continue
        if isinstance(value, dict):
            result.append(json.dumps(value, sort_keys=True))
        elif isinstance(value, (list, tuple)):
            result += [json.dumps(item, sort_keys=True) if isinstance(item, dict) else str(item) for item in value]
        else:
            result.append(str(value))
    return result


def by_name(options: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """A release's options (stacks/STACK/options.json) by each of their names, without the dashes."""
    return {name.lstrip("-"): entry for entry in options for name in entry["names"]}


def destinations(args: dict[str, Any], options: list[dict[str, Any]]) -> dict[str, Any]:
    """The arguments by the release's own field names, as `given` in the answer of its parser; without those it refuses."""
    known = by_name(options)
    found: dict[str, Any] = {}
    for name, value in merged(args).items():
        entry = known.get(name)
        if entry is None or value is False or wrong_value(value, entry):
            continue
        if "Const" in entry["kind"] or entry["kind"] == "DeprecatedAction":
            continue  # what these set, if anything, is not on record
        found[entry["dest"]] = read(name, value, entry)
    return found


def read(name: str, value: Any, entry: dict[str, Any]) -> Any:
    """One value as the parser reads it from its words."""
    if entry["kind"] == "BooleanOptionalAction":
        return not name.startswith("no-")
    if entry.get("type") not in NUMBERS or isinstance(value, bool):
        return value
    if isinstance(value, (list, tuple)):
        return [number(item, entry["type"]) for item in value]
    return number(value, entry["type"])


def number(value: Any, kind: str) -> int | float:
    """A number as the release's parser reads it; a ValueError where it reads none."""
    text = str(value).strip()
    if kind == "float":
        return float(text)
    found = re.fullmatch(r"(\d+(?:\.\d+(?=[kMGT]$))?)([kMGT]|[KMGT]i)", text) if kind == "human_readable_int" else None
    return int(decimal.Decimal(found[1]) * SUFFIXES[found[2]]) if found else int(text)


def nearest(name: str, known: dict[str, Any]) -> str:
    """The known name that is most like this one: the same words in another order or length count, too."""
    starts = [other for other in known if other.startswith(name)]
    found = starts[:1] or difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return found[0] if found else ""


def meant(name: Any, known: Iterable[Any]) -> str:
    """The end of a sentence that asks for the known name which is written most like this one; empty where none is."""
    near = difflib.get_close_matches(str(name), [str(other) for other in known], n=1)
    return f"; did you mean {near[0]}?" if near else ""


def renamed(name: str, known: dict[str, Any], renames: list[dict[str, Any]]) -> str:
    """What became of an option that this release does not have, from the table of renames; empty when it is not in it."""
    for entry in renames:
        others = [other for other in entry["names"] if other in known]
        if name in entry["names"]:
            note = f" ({entry['note']})" if entry.get("note") else ""
            return f"this release calls it {others[0]}{note}" if others else f"it is gone{note}"
    return ""


def wrong_value(value: Any, entry: dict[str, Any]) -> str:
    """What is wrong with one value by its option; empty when nothing is."""
    takes_value = entry.get("nargs") != 0 and entry["kind"] not in ("StoreTrueAction", "StoreFalseAction")
    if isinstance(value, bool):
        optional = entry.get("nargs") == "?" or entry["kind"] in ("BooleanOptionalAction", "DeprecatedAction")
        return (
            "" if not takes_value or optional or "bool" in str(entry.get("type")) else "it takes a value, not a switch"
        )
    if not takes_value:
        return "it is a switch: true or false"
    several = entry.get("nargs") in ("+", "*") or isinstance(entry.get("nargs"), int)
    if isinstance(value, (list, tuple)):
        if not several and entry["kind"] != "AppendAction":
            return "it takes one value, not a list"
        if not value and entry.get("nargs") != "*":
            return "it takes at least one value"
        return next((text for text in (wrong_value(item, entry) for item in value) if text), "")
    if entry.get("choices") and value not in entry["choices"] and str(value) not in map(str, entry["choices"]):
        return f"choose from {', '.join(map(str, entry['choices']))}{meant(value, entry['choices'])}"
    if entry.get("type") in NUMBERS:
        try:
            number(value, entry["type"])
        except ValueError:
            return f"it takes {'a number' if entry['type'] == 'float' else 'a whole number'}"
    is_json = entry["dest"] in JSON_OPTIONS or entry.get("type") in ("loads", "json_list_type")
    if is_json and isinstance(value, str):
        try:
            json.loads(value)
        except ValueError as error:
            return f"it is no JSON ({error}); write it as a mapping in YAML"
    return ""


def lost(name: str, value: Any, entry: dict[str, Any]) -> str:
    """What is wrong with false for a switch that is on, or the release's to choose, where nothing is said; else empty."""
    if value is not False or entry["kind"] != "BooleanOptionalAction" or entry.get("default") is False:
        return ""
    if name.startswith("no-"):
        return ""
    return f"false leaves an option out, and this one is not off by itself; write `no-{name}: true`"


def check(args: dict[str, Any], options: list[dict[str, Any]], renames: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Arguments that a release does not take: name, and what is wrong. The release's own parser has the last word."""
    known = by_name(options)
    problems = []
    for name, value in merged(args).items():
        if name not in known:
            became = renamed(name, known, renames)
            near = nearest(name, known)
            hint = became or (f"did you mean {near}?" if near else "no option is like it")
            problems.append((name, f"is not an option of this release; {hint}"))
        elif text := wrong_value(value, known[name]) or lost(name, value, known[name]):
            problems.append((name, f"cannot be {value!r}: {text}"))
    return problems


def deprecated(args: dict[str, Any], options: list[dict[str, Any]]) -> list[str]:
    """Options that the release still takes and calls deprecated."""
    known = by_name(options)
    return [name for name in merged(args) if name in known and "Deprecated" in known[name]["kind"]]
