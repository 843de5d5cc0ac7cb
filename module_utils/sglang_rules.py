# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Rules as data: what cannot work, what costs, what is worth knowing, judged from facts before anything starts.

A rule is an entry of rules/*.yml; rules/README.md describes its keys and the context that it is judged in. Everything here is
pure but `load`, which reads a folder. PyYAML, Jinja and packaging come with Ansible on the controller and are imported where
they are needed, so that the shapes can be imported where they are not.
"""

from __future__ import annotations

import difflib
import os
import re
from typing import Any, Callable, Dict, List, Tuple

from .sglang_diagnose import CONFIDENCES, KINDS, SEVERITIES

Rule = Dict[str, Any]
Finding = Dict[str, Any]

REQUIRED = ("id", "severity", "cause", "remedy", "sources", "confidence")
OPTIONAL = ("when", "signature")  # one of them at least; `signature` is the doctor's
NAMES = (
    "given", "args", "versions", "stack", "model", "card", "gpus", "environment", "patches", "autotune", "fit", "node", "live",
    "rung", "option",
)  # fmt: skip
# What the texts of a signature may speak of: the line that was found, and what the log around it says.
LOG_NAMES = ("match", "line", "stage", "rank", "args", "sglang")
SIGNATURE: Dict[str, Any] = {
    **{"find": list, "match": str, "unless": str, "source": ("log", "kernel")},
    **{"kind": KINDS, "stage": list, "last": bool, "times": int, "sglang": str},
    **{"cause": str, "remedy": str},
}
OPERATORS: Dict[str, Callable[[Any, Any], bool]] = {
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    "==": lambda one, other: one == other,
    "!=": lambda one, other: one != other,
    ">=": lambda one, other: one >= other,
    ">": lambda one, other: one > other,
}


class RulesError(Exception):
    """A rule, or what was asked of the rules, is wrong. Says what, where, what was expected and what to do."""


# --- the language of `when`, `cause` and `remedy` ---------------------------------------------------------------------


def is_version(version: str, other: str, operator: str = "==") -> bool:
    """Ansible's test of the same name, for versions of Python packages: 0.5.10rc0 < 0.5.10 < 0.5.10.post1.

    A build label (+cu130) is not a version of its own, so it counts only where `other` has one too.
    """
    from packaging.version import Version

    if operator not in OPERATORS:
        raise ValueError(f"'{operator}' does not compare versions; expected one of {' '.join(OPERATORS)}")
    one, two = Version(str(version)), Version(str(other))
    return OPERATORS[operator](one if two.local else Version(one.public), two)


def environment() -> Any:
    """Jinja for rules: a name that does not exist is an error, and nothing of the context can be changed."""
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    jinja = ImmutableSandboxedEnvironment(undefined=StrictUndefined)
    jinja.tests["version"] = is_version
    return jinja


def names(context: Dict[str, Any]) -> Dict[str, Any]:
    """What an expression sees: the context, and `option`, which saves each rule from asking in two places."""

    def option(*dests: str) -> Any:
        """What the release makes of an option, else what the operator set; None when neither is known.

        Several names are the same option in several releases.
        """
        for values in (context["args"], context["given"]):
            for dest in dests:
                if values.get(dest) is not None:
                    return values[dest]
        return None

    return {**context, "option": option}


def conditions(rule: Rule) -> List[str]:
    when = rule.get("when", [])
    return [when] if isinstance(when, str) else when


# --- loading ----------------------------------------------------------------------------------------------------------


def load(folder: str, checked: bool = False) -> List[Rule]:
    """Every rule of the folder's *.yml, in the order of files and entries. `file`, where it stands, is added to each.

    `checked` where the same run has loaded them before: looking through every expression takes a third of a second.
    """
    import yaml

    # Ten times as fast as yaml.safe_load, where there is libyaml.
    from ansible.module_utils.common.yaml import yaml_load

    jinja = environment()
    rules: List[Rule] = []
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".yml"):
            continue
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            try:
                entries = yaml_load(file)
            except yaml.YAMLError as error:
                raise RulesError(f"{name} is no YAML: {' '.join(str(error).split())}. Correct it there.") from error
        if not isinstance(entries, list):
            raise RulesError(f"{name} holds {kind(entries)}; expected a list of rules. Begin each entry with '- id:'.")
        for position, entry in enumerate(entries, 1):
            if not checked:
                check(entry, f"{name}, entry {position}", jinja)
            for rule in rules:
                if rule["id"] == entry["id"]:
                    raise RulesError(
                        f"{name}, rule {entry['id']}: {rule['file']} has a rule of this id already; expected ids to be "
                        "unique, since findings are accepted by them. Rename one."
                    )
            rules.append({**entry, "file": name})
    return rules


def check(entry: Any, where: str, jinja: Any) -> None:
    """Refuse an entry that is not a rule, naming its id as soon as it is known."""
    if not isinstance(entry, dict):
        raise RulesError(f"{where} is {kind(entry)}; expected a mapping. Write it as keys and values.")
    if isinstance(entry.get("id"), str):
        where = f"{where.split(',')[0]}, rule {entry['id']}"

    def refuse(found: str, expected: str, remedy: str) -> None:
        raise RulesError(f"{where}: {found}; expected {expected}. {remedy}")

    for key in entry:
        if key not in REQUIRED + OPTIONAL:
            near = difflib.get_close_matches(str(key), REQUIRED + OPTIONAL, 1)
            meant = f"Did you mean '{near[0]}'?" if near else "Remove it."
            refuse(f"unknown key '{key}'", ", ".join(REQUIRED + OPTIONAL), meant)
    missing = [key for key in REQUIRED if not entry.get(key)]
    if missing:
        refuse(f"no {' and no '.join(missing)}", "every rule to have " + ", ".join(REQUIRED), "Add it.")
    if not any(key in entry for key in OPTIONAL):
        refuse("neither when nor signature", "one of them, or the rule never speaks", "Add what it is judged by.")
    for key in ("id", "severity", "cause", "remedy", "confidence"):
        if not isinstance(entry[key], str):
            refuse(f"{key} is {kind(entry[key])}", "text", "Put it in quotes.")
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", entry["id"]):
        refuse(f"id '{entry['id']}'", "lower-case words with dashes, as in moe-trtllm-sm120", "Rename it.")
    for key, allowed in (("severity", SEVERITIES), ("confidence", CONFIDENCES)):
        if entry[key] not in allowed:
            refuse(f"{key} '{entry[key]}'", f"one of {', '.join(allowed)}", "Choose one.")
    for key in ("sources", "when"):
        value = [entry[key]] if key == "when" and isinstance(entry.get(key), str) else entry.get(key, [""])
        if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
            refuse(f"{key} is {kind(value)}", "a list of texts, not an empty one", "Put each item in quotes.")
    names = NAMES if "when" in entry else LOG_NAMES
    for key in ("when", "cause", "remedy"):
        for text in conditions(entry) if key == "when" else [entry[key]]:
            _check_names(jinja, key, text, names, refuse)
    if "signature" in entry:
        check_signature(entry["signature"], jinja, refuse)


def check_signature(signature: Any, jinja: Any, refuse: Callable[[str, str, str], None]) -> None:
    """Refuse what a scan could not use."""
    if not isinstance(signature, dict):
        refuse(f"signature is {kind(signature)}", "a mapping", "See rules/README.md.")
    for key, value in signature.items():
        wanted = SIGNATURE.get(key)
        if wanted is None:
            refuse(f"unknown key '{key}' of signature", ", ".join(SIGNATURE), "Remove it.")
        elif isinstance(wanted, tuple):
            if value not in wanted:
                refuse(f"{key} '{value}' of signature", f"one of {', '.join(wanted)}", "Choose one.")
        elif not isinstance(value, wanted):
            refuse(f"{key} of signature is {kind(value)}", f"a {wanted.__name__}", "Correct it.")
    literals = signature.get("find")
    if not literals or not all(isinstance(text, str) and len(text) >= 4 for text in literals):
        refuse("signature has no find", "literal texts of 4 characters or more, which make it fast", "Add them.")
    for key in ("match", "unless"):
        try:
            re.compile(signature.get(key, ""))
        except re.error as error:
            refuse(f"{key} '{signature[key]}' of signature ({error})", "a regular expression", "Correct it.")
    for key in ("cause", "remedy"):
        _check_names(jinja, key, signature.get(key, ""), LOG_NAMES, refuse)


def _check_names(
    jinja: Any, key: str, text: str, names: Tuple[str, ...], refuse: Callable[[str, str, str], None]
) -> None:
    """Names are checked while loading, since an expression may not come to a misspelt one for a long time."""
    from jinja2 import TemplateError, nodes

    try:
        # jinja2.meta would write a program for each text to know the same, for half the time of a plan's rules.
        tree = jinja.parse(f"{{{{ {text} }}}}" if key == "when" else text)
        for kind_of, known in ((nodes.Filter, jinja.filters), (nodes.Test, jinja.tests)):
            for used in tree.find_all(kind_of):
                if used.name not in known:
                    raise TemplateError(f"No {kind_of.__name__.lower()} named '{used.name}'.")
        asked = list(tree.find_all(nodes.Name))
        made = {name.name for name in asked if name.ctx != "load"}
        unknown = {name.name for name in asked if name.ctx == "load"} - made - {*names, "loop"}
    except TemplateError as error:
        refuse(f"{key} '{text.strip()}' cannot be read ({error})", "a Jinja expression or template", "Correct it.")
        return
    if unknown:
        refuse(f"{key} asks for '{min(unknown)}'", f"names of the context ({', '.join(names)})", "Correct the name.")


def kind(value: Any) -> str:
    words = {type(None): "empty", dict: "a mapping", list: "a list", str: "a text", bool: "a boolean"}
    return words.get(type(value), f"{value!r}")


# --- judging ----------------------------------------------------------------------------------------------------------


def judge(rules: List[Rule], context: Dict[str, Any]) -> List[Finding]:
    """What the rules with `when` say of a context: errors, then warnings, then notes, each in the order of the rules."""
    jinja = environment()
    known = names(context)
    findings = []
    for rule in rules:
        if "when" in rule and all(_holds(jinja, rule, text, known) for text in conditions(rule)):
            findings.append(
                {
                    "id": rule["id"],
                    "severity": rule["severity"],
                    "cause": _render(jinja, rule, "cause", known),
                    "remedy": _render(jinja, rule, "remedy", known),
                    "sources": rule["sources"],
                    "confidence": rule["confidence"],
                }
            )
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding["severity"]))


def findings(rules: List[Rule], rung: Dict[str, Any], arguments: Dict[str, Any]) -> List[Finding]:
    """What the rules about a measured load say of it: `id`, `severity`, `cause` and `remedy`, as run.json keeps them.

    `rung` has `load`, `metrics` and `telemetry` (schemas/run.schema.json); `arguments` are the server's resolved ones, or empty.
    """
    told = judge_about(rules, "rung", rung=rung, args=arguments)
    return [{key: found[key] for key in ("id", "severity", "cause", "remedy")} for found in told]


def judge_about(rules: List[Rule], name: str, **known: Any) -> List[Finding]:
    """What the rules that speak of one name of the context say, where little else is known."""
    context: Dict[str, Any] = {other: {} for other in NAMES if other != "option"}
    context.update(patches=[], gpus=0, **known)
    spoken = [rule for rule in rules if any(re.search(rf"\b{name}\b", text) for text in conditions(rule))]
    return judge(spoken, context)


def _holds(jinja: Any, rule: Rule, text: str, known: Dict[str, Any]) -> bool:
    try:
        return bool(jinja.compile_expression(text, undefined_to_none=False)(**known))
    except Exception as error:  # an expression raises whatever its operands do
        raise _failed(rule, "when", text, error) from error


def _render(jinja: Any, rule: Rule, key: str, known: Dict[str, Any]) -> str:
    try:
        return " ".join(jinja.from_string(rule[key]).render(known).split())
    except Exception as error:
        raise _failed(rule, key, rule[key], error) from error


def _failed(rule: Rule, key: str, text: str, error: Exception) -> RulesError:
    where = f"{rule['file']}, rule {rule['id']}" if "file" in rule else f"rule {rule['id']}"
    return RulesError(
        f"{where}: {key} '{text.strip()}' cannot be judged ({error}); expected it to hold or not in every context. Correct the "
        "rule, or give it the fact that it asks for."
    )


def accept(findings: List[Finding], ids: List[str], rules: List[Rule]) -> Tuple[List[Finding], List[Finding]]:
    """Findings that are still open, and those that the operator accepts by id. An id that no rule has is refused."""
    known = [rule["id"] for rule in rules]
    for name in ids:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, cutoff=0)
            meant = f" Did you mean '{near[0]}'?" if near else ""
            raise RulesError(f"'{name}' is accepted and no rule has this id; expected an id of rules/*.yml.{meant}")
    return (
        [finding for finding in findings if finding["id"] not in ids],
        [finding for finding in findings if finding["id"] in ids],
    )
