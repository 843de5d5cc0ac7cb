"""Rules: each fires where it should and is quiet next to it; the engine says what is wrong with a rule."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils import sglang_rules
from ansible.module_utils.sglang_rules import RulesError, accept, is_version, judge, load

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/unit/data/rules"
RULES = load(str(ROOT / "rules"))
BY_ID = {rule["id"]: rule for rule in RULES}
BASES = yaml.safe_load((DATA / "bases.yml").read_text())
CASES = [
    case for path in sorted(DATA.glob("*.yml")) if path.stem != "bases" for case in yaml.safe_load(path.read_text())
]
CASE_IDS = [f"{case['rule']}-{number}" for number, case in enumerate(CASES)]
CPU = {"card.sm": 0, "stack.accelerator": "cpu"}


def put(context: dict[str, Any], path: str, value: Any) -> None:
    """Set what a path such as node.gpus.3.fault names; `absent` takes it out."""
    *way, last = path.split(".")
    target: Any = context
    for step in way:
        target = target[int(step)] if isinstance(target, list) else target[step]
    if value == "absent":
        target.pop(last, None)
    else:
        target[int(last) if isinstance(target, list) else last] = value


def own(value: Any) -> Any:
    """A copy without shared parts: YAML's aliases are one object, and one GPU's change would be every GPU's."""
    if isinstance(value, dict):
        return {key: own(item) for key, item in value.items()}
    return [own(item) for item in value] if isinstance(value, list) else value


def laid_over(context: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    changed = own(context)
    for path, value in changes.items():
        put(changed, path, own(value))
    return changed


def case_context(case: dict[str, Any]) -> dict[str, Any]:
    return laid_over(BASES[case["base"]]["context"], case["set"])


def fired(context: dict[str, Any], *ids: str) -> dict[str, dict[str, Any]]:
    """Findings by id, of all rules or of those named."""
    return {finding["id"]: finding for finding in judge([BY_ID[name] for name in ids or BY_ID], context)}


def rule(**changes: Any) -> dict[str, Any]:
    entry = {
        "id": "one-rule",
        "severity": "error",
        "when": "gpus > 1",
        "cause": "It is so.",
        "remedy": "Change it.",
        "sources": ["a page, 2026-01-01"],
        "confidence": "code",
    }
    return {key: value for key, value in {**entry, **changes}.items() if value is not None}


# --- the rules --------------------------------------------------------------------------------------------------------


def test_every_rule_has_a_firing_and_a_quiet_case() -> None:
    judged = {entry["id"] for entry in RULES if "when" in entry}
    assert {case["rule"] for case in CASES if case["near"]} == judged


@pytest.mark.parametrize("case", CASES, ids=CASE_IDS)
def test_fires(case: dict[str, Any]) -> None:
    finding = fired(case_context(case), case["rule"])[case["rule"]]
    for text in case.get("says", []):
        assert text in f"{finding['cause']} {finding['remedy']}"


@pytest.mark.parametrize("case", CASES, ids=CASE_IDS)
def test_is_quiet_when_one_fact_differs(case: dict[str, Any]) -> None:
    for change in case["near"]:
        # Two options that are set together are one fact.
        assert len({path.rsplit(".", 1)[0] for path in change}) == 1
        assert not fired(laid_over(case_context(case), change), case["rule"]), change


@pytest.mark.parametrize("entry", RULES, ids=[entry["id"] for entry in RULES])
def test_every_condition_is_what_keeps_a_case_quiet(entry: dict[str, Any]) -> None:
    jinja = sglang_rules.environment()
    first = set()
    for case in CASES:
        if case["rule"] == entry["id"]:
            # A server at work is judged alike on a CPU.
            for change in [*case["near"], *([] if entry["id"].startswith(("live-", "load-")) else [CPU])]:
                known = sglang_rules.names(laid_over(case_context(case), change))
                holds = (bool(jinja.compile_expression(text)(**known)) for text in sglang_rules.conditions(entry))
                first.add(next((number for number, one in enumerate(holds) if not one), None))
    assert first == set(range(len(sglang_rules.conditions(entry))))


@pytest.mark.parametrize("case", [case for case in CASES if not case["rule"].startswith(("live-", "load-"))])
def test_is_quiet_on_a_cpu(case: dict[str, Any]) -> None:
    assert not fired(laid_over(case_context(case), CPU), case["rule"])


@pytest.mark.parametrize("base", BASES)
def test_findings_of_the_bases(base: str) -> None:
    """What a profile's own values bring up, and no error among it."""
    found = fired(BASES[base]["context"])
    assert set(found) == set(BASES[base]["findings"])
    assert not [finding for finding in found.values() if finding["severity"] == "error"]


@pytest.mark.parametrize("base", BASES)
def test_tolerates_what_is_not_known(base: str) -> None:
    """No resolved arguments, no node, no autotune verdict; and a node with nothing but unknowns."""
    context = laid_over(BASES[base]["context"], {"args": {}, "autotune": {"runs": None, "why": ""}, "fit": {}})
    judge(RULES, {**context, "node": {}})
    pcie = dict.fromkeys(["generation", "generation_max", "width", "width_max"])
    gpu = {**dict.fromkeys(["memory_mib", "compute_capability", "power_limit_w", "power_max_w", "numa", "mig"])}
    node = {
        "gpus": [{"index": 0, "name": "", "driver": "", "fault": "", **gpu, "pcie": pcie}] * 2,
        **{"gpus_lost": [], "gpus_note": "", "driver": {"version": "", "cuda": "", "open": None}},
        **{"topology": {}, "p2p": {}, "sockets": 0, "processes": [], "cuda": {"home": "", "nvcc": ""}},
        **{"memory_mib": {"total": 0, "available": 0}, "shm_mib": None, "memlock_kib": 0},
        **{"iommu": {"mode": "unknown", "groups": 0}, "acs": None, "glibc": ""},
        **{"pythons": [], "compilers": {"c": "", "cxx": ""}},
    }
    about_node = {entry["id"] for entry in RULES if entry["file"] == "node.yml"}
    assert not about_node & set(fired({**context, "node": node}))


@pytest.mark.parametrize("entry", RULES, ids=[entry["id"] for entry in RULES])
def test_rules_are_for_readers(entry: dict[str, Any]) -> None:
    assert not any("FIELD" in source for source in entry["sources"])
    if entry["file"] == "node.yml":
        assert sglang_rules.conditions(entry)[0].startswith("node")
    # What a remedy names is what this project reads.
    for name in re.findall(r"\bsglang_\w+", entry["remedy"]):
        assert name in {
            *{"sglang_server_args", "sglang_server_environment", "sglang_server_start_timeout"},
            *{"sglang_patch_patches", "sglang_env_stack", "sglang_model_fetch", "sglang_model_rehash"},
        }
    for patch in re.findall(r"\bAdd ([\w-]+) to sglang_patch_patches|add ([\w-]+) to", entry["remedy"]):
        assert (ROOT / f"patches/{''.join(patch)}.yml").is_file()


# --- the engine -------------------------------------------------------------------------------------------------------


def context(**changes: Any) -> dict[str, Any]:
    return {**BASES["cpu"]["context"], **changes}


def test_errors_come_first_and_keep_their_order() -> None:
    severities = ["note", "warning", "error", "warning", "error"]
    rules = [rule(id=f"r{number}", severity=severity) for number, severity in enumerate(severities)]
    assert [finding["id"] for finding in judge(rules, context(gpus=2))] == ["r2", "r4", "r1", "r3", "r0"]


def test_a_finding_is_rendered() -> None:
    entry = rule(cause="{{ gpus }} cards,\n  {% if gpus > 2 %}many{% endif %} too.", remedy="Take {{ gpus - 1 }}.")
    assert judge([entry], context(gpus=8)) == [
        {
            "id": "one-rule",
            "severity": "error",
            "cause": "8 cards, many too.",
            "remedy": "Take 7.",
            "sources": ["a page, 2026-01-01"],
            "confidence": "code",
        }
    ]


def test_all_of_a_list_must_hold() -> None:
    entry = rule(when=["gpus > 1", "model.mla"])
    assert not judge([entry], context(gpus=2))
    assert judge([entry], context(gpus=2, model={"mla": True}))
    assert not judge([rule(when=None, signature={"line": "boom"})], context(gpus=2))


def test_option_is_what_the_release_makes_of_it() -> None:
    entry = rule(when="option('new', 'old') == 'a'")
    assert judge([entry], context(args={"old": "a"}, given={"old": "b"}))
    assert judge([entry], context(args={"old": None}, given={"old": "a"}))
    assert not judge([entry], context(args={"old": False}, given={"old": "a"}))
    assert not judge([entry], context())


@pytest.mark.parametrize(
    ("one", "operator", "other"),
    [
        ("0.5.10rc0", "<", "0.5.10"),
        ("0.5.10", "<", "0.5.10.post1"),
        ("0.5.9", "<", "0.5.10"),
        ("0.5.15.post1", ">=", "0.5.15"),
        ("0.6.7.post2", ">", "0.6.7"),
        ("0.6.7.post2", "<", "0.6.7.post10"),
        ("2.11.0+cu130", "==", "2.11.0"),
        ("2.11.0+cu130", "<=", "2.11"),
        ("2.11.0+cu130", "!=", "2.11.0+cpu"),
        ("0.5.10.post1", "<", "0.5.11"),
    ],
)
def test_versions(one: str, operator: str, other: str) -> None:
    assert is_version(one, other, operator)
    opposite = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "=="}[operator]
    assert not is_version(one, other, opposite)
    assert judge([rule(when=f"versions.sglang is version('{other}', '{operator}')")], context(versions={"sglang": one}))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"when": "modell.mla"}, "rule one-rule: when 'modell.mla' cannot be judged ('modell' is undefined)"),
        ({"when": "model.mlaa"}, "has no attribute 'mlaa'"),
        ({"when": "versions.torch is version('2.9', '<')"}, "has no attribute 'torch'"),
        ({"when": "gpus < none"}, "'<' not supported"),
        ({"when": "'main' is version('0.5', '<')"}, "Invalid version: 'main'"),
        ({"when": "'1' is version('0.5', '=<')"}, "'=<' does not compare versions"),
        ({"when": "given.update({'a': 1})"}, "cannot be judged"),
        ({"when": "gpus", "cause": "{{ model.nothing }}"}, "rule one-rule: cause"),
    ],
)
def test_what_cannot_be_judged_names_the_rule(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(RulesError, match=re.escape(expected)) as raised:
        judge([rule(**changes)], context())
    assert "one-rule" in str(raised.value)


def write(folder: Path, *rules: Any, name: str = "topic.yml") -> str:
    (folder / name).write_text(yaml.safe_dump(list(rules)))
    return str(folder)


def test_load_gives_rules_in_order_and_says_where_they_stand(tmp_path: Path) -> None:
    write(tmp_path, rule(id="b"), rule(id="a", when=None, signature={"find": ["a shape of a line"]}), name="z.yml")
    write(tmp_path, rule(id="c", when=["gpus", "node"]), name="k.yml")
    (tmp_path / "README.md").write_text("no rules")
    assert [(entry["file"], entry["id"]) for entry in load(str(tmp_path))] == [
        ("k.yml", "c"),
        ("z.yml", "b"),
        ("z.yml", "a"),
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"severty": "error"}, "unknown key 'severty'; expected id, severity"),
        ({"severty": "error"}, "Did you mean 'severity'?"),
        ({"cause": None, "remedy": ""}, "no cause and no remedy; expected every rule to have"),
        ({"sources": []}, "no sources"),
        ({"sources": "a page"}, "sources is a text; expected a list of texts"),
        ({"sources": [{"sglang": "0.5.9"}]}, "sources is a list; expected a list of texts"),
        ({"severity": "fatal"}, "severity 'fatal'; expected one of error, warning, note"),
        ({"confidence": "sure"}, "confidence 'sure'; expected one of measured, code, reported, derived"),
        ({"id": "One_Rule"}, "id 'One_Rule'; expected lower-case words with dashes"),
        ({"id": "one-"}, "id 'one-'"),
        ({"id": 7}, "id is 7; expected text"),
        ({"when": None}, "neither when nor signature"),
        ({"when": []}, "when is a list; expected a list of texts, not an empty one"),
        ({"when": {"gpus": 1}}, "when is a mapping"),
        ({"when": True}, "when is a boolean"),
        ({"when": "gpus >"}, "when 'gpus >' cannot be read"),
        ({"when": "false and nodes"}, "when asks for 'nodes'; expected names of the context (given,"),
        ({"when": "gpus is versoin('1')"}, "cannot be read (No test named 'versoin'"),
        ({"remedy": "Use {{ crad.name }}."}, "remedy asks for 'crad'"),
        ({"cause": "{% if gpus %}never ended"}, "cause '{% if gpus %}never ended' cannot be read"),
    ],
)
def test_load_refuses_a_wrong_rule(changes: dict[str, Any], expected: str, tmp_path: Path) -> None:
    entry = {**rule(), **changes}
    entry = {key: value for key, value in entry.items() if value is not None}
    with pytest.raises(RulesError, match=re.escape(expected)) as raised:
        load(write(tmp_path, entry))
    assert str(raised.value).startswith("topic.yml, ")
    assert str(entry.get("id", "")) in str(raised.value) or not isinstance(entry["id"], str)


def test_load_refuses_an_id_twice(tmp_path: Path) -> None:
    write(tmp_path, rule(), name="a.yml")
    with pytest.raises(RulesError, match=r"b\.yml, rule one-rule: a\.yml has a rule of this id already"):
        load(write(tmp_path, rule(), name="b.yml"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id: one", "topic.yml holds a mapping; expected a list of rules"),
        ("", "topic.yml holds empty"),
        ("- one", "topic.yml, entry 1 is a text; expected a mapping"),
        ("- {a: b", "topic.yml is no YAML"),
        ("- {severity: note}", "topic.yml, entry 1: no id and no cause"),
    ],
)
def test_load_refuses_a_wrong_file(text: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "topic.yml").write_text(text)
    with pytest.raises(RulesError, match=re.escape(expected)):
        load(str(tmp_path))


def test_accept_parts_the_findings() -> None:
    rules = [rule(id="one"), rule(id="two"), rule(id="three", when="false")]
    findings = judge(rules, context(gpus=2))
    still, accepted = accept(findings, ["two", "three"], rules)
    assert [finding["id"] for finding in still] == ["one"]
    assert [finding["id"] for finding in accepted] == ["two"]
    assert accept(findings, [], rules) == (findings, [])


def test_accept_refuses_an_id_that_no_rule_has() -> None:
    with pytest.raises(RulesError, match=r"'custom-allreduce' is accepted.*Did you mean 'custom-all-reduce'\?"):
        accept([], ["custom-allreduce"], RULES)
