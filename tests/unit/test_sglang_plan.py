"""What would run on a host, judged before it runs: the project's own profiles, recorded cards, and wrong input."""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpu_info
import pytest
import test_gpu_info as recorded
import yaml
from ansible.errors import AnsibleError
from ansible.module_utils import sglang_rules, sglang_summary
from ansible.parsing.dataloader import DataLoader

from action_plugins import sglang_inputs, sglang_plan
from filter_plugins.sglang import sglang_unit_words

ROOT = sglang_plan.ROOT
STACKS = ROOT / "stacks"
PROFILES = sorted(sglang_inputs.known_profiles(ROOT))
VARIANTS = [
    (profile, path.stem)
    for path in sorted((ROOT / "variants").glob("*.yml"))
    for profile in yaml.safe_load(path.read_text(encoding="utf-8"))["sglang_variant_profiles"]
]
ALL = [*((name, "") for name in PROFILES), *VARIANTS]
MODEL = "/var/lib/sglang/models/GLM-5.2-NVFP4"


@pytest.fixture(autouse=True, scope="module")
def read_once() -> Iterator[None]:
    """Rules, cards and stacks are read once for all tests, and a rule's expressions compiled once."""
    jinja = sglang_rules.environment()
    jinja.compile_expression = functools.cache(jinja.compile_expression)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sglang_rules, "load", functools.cache(sglang_rules.load))
        patch.setattr(sglang_rules, "environment", lambda: jinja)
        patch.setattr(sglang_plan, "load", functools.cache(sglang_plan.load))
        patch.setattr(sglang_plan, "stack_of", functools.cache(sglang_plan.stack_of))
        yield


@functools.cache
def tagged(path: Path) -> dict[str, Any]:
    """A file of variables as Ansible reads it: keys and values know their line."""
    return DataLoader().load_from_file(str(path))


@functools.cache
def defaults() -> dict[str, Any]:
    """The roles' own, with the one template among them filled in."""
    found = {}
    for path in sorted(ROOT.glob("roles/*/defaults/main.yml")):
        found.update(tagged(path))
    return {**found, "sglang_env_stacks_dir": str(STACKS)}


def variables(profile: str, variant: str = "", **more: Any) -> dict[str, Any]:
    """What Ansible would know of a host with this profile, and with what else was set."""
    overlay = tagged(ROOT / f"variants/{variant}.yml") if variant else {}
    return {**defaults(), **tagged(ROOT / f"group_vars/{profile}.yml"), **overlay, **more}


def judged(
    profile: str,
    variant: str = "",
    node: dict[str, Any] | None = None,
    answer: dict[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    raw = variables(profile, variant, **more)
    return sglang_plan.judge(raw, {name: raw.get(name) for name in sglang_plan.VARIABLES}, node or {}, answer or {})


def overlaid(args: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The plan of glm52 with arguments laid over."""
    return judged("glm52", sglang_server_args_overlay=args, **more)


def said(plan: dict[str, Any], severity: str = "error", rules: bool = True) -> list[str]:
    """The messages of a plan; without `rules` those of the plan's own judgement."""
    found = [one for one in plan["findings"] if one["severity"] == severity and (rules or not one["id"])]
    return [sglang_plan.message(one) for one in found]


def paged(plan: dict[str, Any], changes: list[str] | None = None) -> list[str]:
    text = sglang_plan.node_text(plan["node"], "")
    return sglang_plan.page({**plan, "host": "node1", "changes": changes or [], "node_text": text})


def flat(lines: list[str]) -> str:
    return " ".join(" ".join(lines).split())


# A node: recorded cards, and plain words for the rest


def facts(text: str, rows: str = "", **others: Any) -> dict[str, Any]:
    """What gpu_info would say of cards that nvidia-smi describes like this; nothing else is wrong unless said."""
    nodes = gpu_info.tree(text)
    gpus = gpu_info.parse_gpus(nodes, gpu_info.parse_capabilities(rows or capabilities(text)), "580.95.05")
    room = {"free_mib": 2_000_000, "used_mib": 0, "exists": True, "device": 1}
    found = {
        "gpus": gpus,
        "gpus_lost": [],
        "gpus_note": "",
        "driver": {"version": "580.95.05", "cuda": "13.0", "open": True},
        "topology": {},
        "p2p": {},
        "sockets": 1,
        "processes": [{**one, "unit": ""} for one in gpu_info.parse_processes(nodes, gpus)],
        "cuda": {"home": "/usr/local/cuda", "nvcc": "12.8"},
        "python": "",
        "pythons": [{"version": "3.12", "headers": True}, {"version": "3.11", "headers": True}],
        "compilers": {"c": "/usr/bin/gcc", "cxx": "/usr/bin/c++"},
        "paths": {"/opt/sglang": room, MODEL: {**room, "used_mib": 404 * 1024, "device": 2}},
        "disk_free_mib": {"/opt/sglang": 2_000_000, MODEL: 2_000_000},
        "memlock_kib": -1,
        "iommu": {"mode": "off", "groups": 0},
        "acs": 0,
        "cpus": 128,
        "memory_mib": {"total": 1_547_000, "available": 1_510_000},
        "shm_mib": 773_500,
        "port_owner": {},
        "uid": 0,
        "systemd": 255,
        "machine": "x86_64",
        "hostname": "node1",
        "kernel": "6.1.0",
        "os": "Ubuntu 24.04.3 LTS",
        "glibc": "2.39",
    }
    assert others.keys() <= found.keys()
    return {**found, **others}


def capabilities(text: str) -> str:
    """The rows of --query-gpu for these cards."""
    of = {"H200": "9.0", "A6000": "8.6", "Blackwell": "12.0"}
    found = re.findall(r"^GPU (\S+)\n.*?Product Name +: (.*?)$", text, re.M | re.S)
    assert len(found) == len(re.findall(r"^GPU 0", text, re.M))
    return "".join(
        f"{number}, {bus}, {next((sm for word, sm in of.items() if word in name), '[N/A]')}\n"
        for number, (bus, name) in enumerate(found)
    )


def glm52(text: str = "", **others: Any) -> dict[str, Any]:
    """The plan of a profile for eight cards on a node."""
    return judged("glm52", node=facts(text or recorded.eight(), **others))


def path_facts(where: str, **changed: Any) -> dict[str, Any]:
    paths = facts(recorded.eight())["paths"]
    return {**paths, where: {**paths[where], **changed}}


def some(number: int, *edits: tuple[str, str]) -> str:
    return recorded.node(*(recorded.card(position, *edits) for position in range(number)))


def test_the_node_of_these_tests_has_what_gpu_info_returns() -> None:
    assert set(facts(recorded.eight())) == set(yaml.safe_load(gpu_info.RETURN)) - {"unreached"}


@pytest.mark.parametrize("profile", [name for name in PROFILES if name.startswith(("glm", "kimi"))])
def test_nothing_stands_against_a_sound_node(profile: str) -> None:
    path = variables(profile)["sglang_model_path"]
    sound = facts(recorded.eight())
    sound["paths"][path] = {"free_mib": 2_000_000, "used_mib": 0, "exists": True, "device": 2}
    plan = judged(profile, node=sound)
    assert said(plan) == said(plan, "warning", rules=False) == []


def test_a_page_names_no_card_in_a_sentence_that_ends_once() -> None:
    plan = glm52("no card", gpus_note="It hangs.", driver={"version": "", "cuda": "", "open": None})
    assert "no GPU (It hangs)." in flat(paged(plan))


def test_two_cards_where_eight_are_needed() -> None:
    [text] = said(glm52(some(2)), rules=False)
    assert "use 8 GPUs (tensor-parallel-size 8)" in text and "the node has 2" in text and "sglang_server_args" in text


@pytest.mark.parametrize(
    ("args", "sizes", "need"),
    [
        (
            {"tensor-parallel-size": 4, "pipeline-parallel-size": 4},
            "tensor-parallel-size 4 x pipeline-parallel-size 4",
            16,
        ),
        # Copies of the model have cards of their own; groups of data-parallel attention share them.
        ({"data-parallel-size": 2}, "tensor-parallel-size 8 x data-parallel-size 2", 16),
        ({"attn-dp-size": 8}, "", 8),
        ({"data-parallel-size": 8, "enable-dp-attention": True}, "", 8),
    ],
)
def test_how_many_cards_arguments_use(args: dict[str, Any], sizes: str, need: int) -> None:
    told = said(overlaid(args, node=facts(recorded.eight())), rules=False)
    assert any(f"use {need} GPUs ({sizes})" in text for text in told) == (need > 8)


def test_nodes_with_one_model_have_a_share_each() -> None:
    replica = {"name": "replica_big", "hosts": ["n1", "n2"], "rank": 1, "head": "n1", "nnodes": 2}
    pipeline = overlaid({"pipeline-parallel-size": 2}, node=facts(recorded.eight()), sglang_server_replica=replica)
    assert not [text for text in said(pipeline) if "GPUs" in text]
    alone = overlaid({"pipeline-parallel-size": 2}, node=facts(recorded.eight()))
    assert any("The arguments use 16 GPUs" in text for text in said(alone))
    across = overlaid({"tensor-parallel-size": 16}, node=facts(recorded.eight()), sglang_server_replica=replica)
    assert any("Tensor parallelism goes over 2 nodes" in text for text in said(across, "warning"))


def test_cards_of_another_kind() -> None:
    text = (recorded.H200 / "q.txt").read_text(encoding="utf-8")
    wrong = overlaid({"tensor-parallel-size": 2}, node=facts(text, processes=[]))
    [told] = [one for one in said(wrong, rules=False) if "compute capability" in one]
    assert "12.0 (NVIDIA RTX PRO 6000 Blackwell Server Edition)" in told and "the node has 9.0" in told
    assert "gpu_preflight_card" in told
    right = judged("gpu_demo", node=facts(text, processes=[]))
    assert said(right, rules=False) == said(right, "warning", rules=False) == []


@pytest.mark.parametrize(
    "edition", [recorded.EDITION, recorded.MAX_Q, "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"]
)
def test_every_edition_of_the_card_will_do(edition: str) -> None:
    plan = glm52(recorded.eight((recorded.EDITION, edition)))
    assert said(plan, rules=False) == said(plan, "warning", rules=False) == []


def test_a_card_of_the_same_capability_and_another_name_is_mentioned() -> None:
    plan = glm52(recorded.eight((recorded.EDITION, "NVIDIA RTX PRO 5000 Blackwell")))
    [text] = said(plan, "warning", rules=False)
    assert "NVIDIA RTX PRO 5000 Blackwell" in text and "gpu_preflight_card" in text
    assert said(plan, rules=False) == []


def test_mixed_editions_are_a_warning_that_names_both() -> None:
    cards = [recorded.card(position, *([(recorded.EDITION, recorded.MAX_Q)] * (position > 5))) for position in range(8)]
    plan = glm52(recorded.node(*cards))
    [text] = said(plan, "warning", rules=False)
    assert recorded.EDITION in text and recorded.MAX_Q in text and said(plan, rules=False) == []


def test_an_older_card_among_the_others_is_an_error() -> None:
    old = recorded.card(7, (recorded.EDITION, "NVIDIA RTX A6000"), (r"97887 MiB", "49140 MiB"))
    plan = glm52(recorded.node(*(recorded.card(position) for position in range(7)), old))
    capability, memory = said(plan, rules=False)
    assert "the node has 8.6" in capability
    assert "GPU 7 has 49140 MiB; the profile is for 97887" in memory


def test_a_card_beside_those_that_are_enough_is_left_alone() -> None:
    """A node has eight cards for the model and one for its screen; a second server has others."""
    old = recorded.card(7, (recorded.EDITION, "NVIDIA RTX A6000"), (r"97887 MiB", "49140 MiB"))
    seven = recorded.node(*(recorded.card(position) for position in range(7)), old)
    beside = said(overlaid({"tensor-parallel-size": 4}, node=facts(seven)), rules=False)
    assert not any("the node has 8.6" in text or "49140" in text for text in beside)
    half = {"tensor-parallel-size": 4}
    other = facts(recorded.eight(), processes=[{"gpu": 6, "pid": 9, "command": "x", "unit": "second.service"}])
    seen = overlaid(half, node=other, sglang_server_environment={"CUDA_VISIBLE_DEVICES": "0,1,2,3"})
    assert not any("is used by process" in text for text in said(seen, rules=False))
    assert any("is used by process" in text for text in said(overlaid(half, node=other), rules=False))
    few = overlaid({}, node=facts(recorded.eight()), sglang_server_environment={"CUDA_VISIBLE_DEVICES": "0,1,2,3"})
    assert any("The arguments use 8 GPUs" in text and "has 4" in text for text in said(few, rules=False))


@pytest.mark.parametrize(
    ("overlay", "rule"),
    [
        ({"disable-shared-experts-fusion": False}, "glm-shared-experts-fusion"),
        ({"disable-custom-all-reduce": False}, "custom-all-reduce"),
    ],
)
def test_false_in_an_overlay_takes_a_switch_away_as_null_does(overlay: dict[str, Any], rule: str) -> None:
    for value in (False, None):
        plan = judged("glm5", sglang_server_args_overlay=dict.fromkeys(overlay, value))
        assert any(found["id"] == rule for found in plan["findings"]), value


def test_one_option_under_two_names_and_a_null_that_removes_nothing() -> None:
    twice = said(judged("kimi_k2_thinking", sglang_server_args_overlay={"tp-size": 4}), rules=False)
    assert any("'tp-size' and 'tensor-parallel-size' are one option" in text for text in twice)
    [null] = said(judged("kimi_k2_thinking", sglang_server_args_overlay={"disable-cuda-grph": None}), rules=False)
    assert "removes no option" in null and "disable-cuda-graph" in null


@pytest.mark.parametrize(
    ("overlay", "words"),
    [
        ({"tensor-parallel-size": -8}, "tp-size is -8; it is 1 or more"),
        ({"mem-fraction-static": 1.5}, "mem-fraction-static is 1.5"),
        ({"tensor-parallel-size": 6}, "64 attention heads cannot be shared by tensor-parallel-size 6"),
    ],
)
def test_sizes_that_no_engine_can_run_with(overlay: dict[str, Any], words: str) -> None:
    assert any(words in text for text in said(overlaid(overlay), rules=False))


def test_a_cache_that_is_small_for_the_context_is_told() -> None:
    few = judged("kimi_k25", sglang_server_args_overlay={"mem-fraction-static": 0.78})
    assert any("fewer than one request of full context" in text for text in said(few, "warning", rules=False))
    longer = judged("glm52", sglang_server_args_overlay={"context-length": 1000000})
    assert any("the model's own is 202,752" in text for text in said(longer, "warning", rules=False))


def test_an_environment_of_ones_own_is_not_judged_as_the_profiles_stack() -> None:
    plan = judged("glm52", sglang_env_python="/opt/mine/bin/python", sglang_server_args_overlay={"foo-bar": 1})
    assert not plan["is_resolved"] and plan["autotune"]["runs"] is None
    assert any("Arguments are not judged here" in text for text in said(plan, "note"))
    assert not any(found["severity"] == "error" for found in plan["findings"])


@pytest.mark.parametrize(
    "name", ["AWS_SECRET_ACCESS_KEY", "MINIO_SECRET_KEY", "AZURE_STORAGE_KEY", "REDIS_PASSWD", "HF_TOKEN"]
)
def test_names_of_secrets(name: str) -> None:
    plan = judged("glm52", sglang_server_environment={name: "hush", "MAX_TOKENS": "5", "KEYBOARD": "us"})
    [text] = said(plan, rules=False)
    assert f"sets {name}" in text and "hush" not in text and "hush" not in "\n".join(paged(plan))


def test_a_lost_card_is_an_error_where_it_is_needed_and_a_rules_warning_elsewhere() -> None:
    node = facts(some(7), gpus_lost=[recorded.LOST])
    lost = f"A GPU is lost: {recorded.LOST}."
    assert lost in said(overlaid({}, node=node), "error")
    enough = overlaid({"tensor-parallel-size": 4}, node=node)
    assert lost not in said(enough, "error") and any("[gpu-lost]" in text for text in said(enough, "warning"))


@pytest.mark.parametrize(("overlay", "severity"), [({}, "error"), ({"tensor-parallel-size": 7}, "warning")])
def test_a_card_in_want_of_a_reset_is_not_counted(overlay: dict[str, Any], severity: str) -> None:
    cards = [recorded.card(position) for position in range(7)]
    node = facts(recorded.node(*cards, recorded.card(7, (r"(GPU Recovery Action +: ).*", r"\1Reset"))))
    told = said(overlaid(overlay, node=node), severity, rules=False)
    assert "GPU 7 (00000000:E1:00.0): GPU Recovery Action: Reset." in told
    assert any("the node has 7" in text for text in told) == (severity == "error")


def test_why_no_card_is_seen_is_told_in_the_nodes_words() -> None:
    note = gpu_info.why_none(recorded.MISMATCH, "580.95.05", "6.8.0-60-generic", 8)
    plan = glm52("no card", gpus_note=note)
    [text] = said(plan, rules=False)
    assert "needs 8 x NVIDIA RTX PRO 6000 Blackwell Server Edition" in text and note in text and ".." not in text
    assert "Reboot the node" in flat(paged(plan))


def test_a_process_on_a_card_is_named_with_its_unit() -> None:
    node = facts(recorded.node(recorded.card(0, recorded.process(11, "C", "9 MiB")), *map(recorded.card, range(1, 8))))
    [text] = said(judged("glm52", node=node), rules=False)
    assert "GPU 0 is used by process 11 (sglang::scheduler): stop it" in text
    node["processes"][0]["unit"] = "vllm.service"
    [text] = said(judged("glm52", node=node), rules=False)
    assert "process 11 (sglang::scheduler) of vllm.service" in text
    node["processes"][0]["unit"] = "sglang.service"
    assert said(judged("glm52", node=node), rules=False) == []
    # Two servers on one node: the other one's processes are not this one's.
    assert said(judged("glm52", node=node, sglang_server_name="second"), rules=False)


def test_cards_do_not_matter_to_a_cpu_profile() -> None:
    text = (recorded.H200 / "q.txt").read_text(encoding="utf-8")
    for node in (facts(text), facts("no card", gpus_note="nvidia-smi is not installed")):
        assert said(judged("cpu_demo", node=node), rules=False) == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"uid": 1000}, ["user id 1000", "needs root", "become"]),
        ({"machine": "aarch64"}, ["aarch64", "x86_64"]),
        ({"systemd": 0}, ["systemd is not the service manager"]),
        (
            {"pythons": [{"version": "3.13", "headers": True}]},
            [
                "has Python 3.13",
                "sglang-0.5.23-cu130 is locked for 3.11 and 3.12",
                "Install python3.12",
                "docs/operating.md",
            ],
        ),
        ({"pythons": []}, ["Python nowhere on its PATH", "Install python3.12"]),
        (
            {"port_owner": {"pid": 7, "command": "python3 -m vllm", "unit": "vllm.service"}},
            ["Port 30000", "process 7 (python3 -m vllm) of vllm.service", "sglang_server_port"],
        ),
        ({"port_owner": {"pid": 7, "command": "nginx", "unit": ""}}, ["process 7 (nginx): stop it"]),
    ],
)
def test_what_else_a_node_may_lack(changed: dict[str, Any], words: list[str]) -> None:
    [text] = said(glm52(**changed), rules=False)
    assert [word for word in words if word not in text] == []


def test_the_servers_own_port_is_its_own() -> None:
    owner = {"pid": 7, "command": "python -m sglang.launch_server", "unit": "sglang.service"}
    assert said(glm52(port_owner=owner), rules=False) == []


def test_an_interpreter_of_the_operators_own_needs_no_other() -> None:
    node = facts(recorded.eight(), python="3.10", pythons=[])
    plan = judged("glm52", node=node, sglang_env_python="/opt/v/bin/python")
    assert said(plan, rules=False) == [] and plan["python_version"] == "3.10"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, ""),
        (
            {"sglang_server_front": True, "sglang_server_front_keys": ["k" * 20]},
            "nginx at http://0.0.0.0:8000, 1 key; without a certificate",
        ),
        (
            {
                "sglang_server_front": True,
                "sglang_server_front_key_file": "/etc/keys",
                "sglang_server_front_certificate": "/c",
                "sglang_server_front_port": 443,
            },
            "nginx at https://0.0.0.0:443, keys of a file on the node",
        ),
    ],
)
def test_a_page_says_who_may_ask_from_outside(given: dict[str, Any], words: str) -> None:
    text = flat(paged(judged("cpu_demo", **given)))
    assert (f"front {words}" in text) if words else (" front " not in text)
    assert "kkkk" not in text


@pytest.mark.parametrize(
    ("stack", "release", "sources", "refused"),
    [
        ({"torch": "2.13.0+cpu", "name": "s"}, {"status": "absent"}, False, True),
        ({"torch": "2.13.0+cpu", "name": "s"}, {"status": "absent"}, True, False),
        ({"torch": "2.13.0+cpu", "name": "s"}, {"status": "sealed"}, False, False),
        ({"torch": "2.13.0+cpu", "name": "s"}, {}, False, False),  # no node was looked at
        ({"name": "s"}, {"status": "absent"}, False, False),
        ({}, {"status": "absent"}, False, False),
    ],
)
def test_a_cpu_build_of_torch_has_to_come_from_somewhere(
    stack: dict[str, Any], release: dict[str, Any], sources: bool, refused: bool
) -> None:
    found = list(sglang_plan.torch_findings(stack, release, sources))
    assert len(found) == refused
    assert not refused or "tools/wheelhouse s" in sglang_plan.message(found[0])


def test_an_interpreter_of_the_operators_own_has_to_run() -> None:
    [text] = said(judged("glm52", node=facts(recorded.eight()), sglang_env_python="/opt/v/bin/python"), rules=False)
    assert "/opt/v/bin/python is no Python that runs on the node" in text and "sglang_env_python" in text


@pytest.mark.parametrize(
    ("pythons", "python"),
    [(["3.12", "3.13", "3.11"], "3.12"), (["3.11", "3.12"], "3.11"), (["3.13", "3.12", "3.11"], "3.12"), ([], "3.12")],
)
def test_the_nodes_own_python_is_chosen_before_newer_ones(pythons: list[str], python: str) -> None:
    node = facts(recorded.eight(), pythons=[{"version": version, "headers": True} for version in pythons])
    assert judged("glm52", node=node)["python_version"] == python
    assert judged("glm52", node=node, sglang_env_python_version="3.11")["python_version"] == "3.11"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"compilers": {"c": "", "cxx": ""}}, ["lacks a C compiler and a C++ compiler."]),
        ({"compilers": {"c": "/usr/bin/gcc", "cxx": ""}}, ["lacks a C++ compiler.", "python3.12-dev"]),
        ({"pythons": [{"version": "3.12", "headers": False}]}, ["lacks Python.h of Python 3.12.", "python3.12-dev"]),
        ({"pythons": [{"version": v, "headers": v == "3.12"} for v in ("3.12", "3.11")]}, []),
    ],
)
def test_what_kernels_are_compiled_with_is_asked_for(changed: dict[str, Any], words: list[str]) -> None:
    found = [text for text in said(glm52(**changed)) if "Triton and FlashInfer compile" in text]
    assert len(found) == bool(words) and [word for word in words if word not in found[0]] == []


# Disks


def test_too_little_room_for_weights() -> None:
    [text] = said(glm52(paths=path_facts(MODEL, free_mib=40 * 1024, used_mib=100)), rules=False)
    assert "nvidia/GLM-5.2-NVFP4 take 404 GiB" in text and "40 GiB free" in text and "sglang_model_path" in text


@pytest.mark.parametrize(
    ("used", "free", "errors"), [(404, 9, 0), (370, 9, 0), (300, 9, 1), (300, 150, 0), (0, 500, 0)]
)
def test_weights_that_are_there_need_no_more_room(used: int, free: int, errors: int) -> None:
    """Where nearly all of it is there, the role of the model finds out how whole it is."""
    paths = path_facts(MODEL, free_mib=free * 1024, used_mib=used * 1024)
    assert len(said(glm52(paths=paths), rules=False)) == errors


@pytest.mark.parametrize(("free", "room"), [(500, "500 GiB free."), (40, "40 GiB free: make room too")])
def test_weights_that_nobody_put_there(free: int, room: str) -> None:
    [text] = said(glm52(paths=path_facts(MODEL, used_mib=0, exists=False, free_mib=free * 1024)), rules=False)
    assert f"{MODEL} does not exist" in text and "nvidia/GLM-5.2-NVFP4" in text and "sglang_model_path" in text
    assert f"They take 404 GiB; its file system has {room}" in text


@pytest.mark.parametrize(
    ("used", "begun", "free", "errors"),
    [(0, 0, 500, 0), (0, 0, 40, 1), (0, 380, 40, 0), (100, 0, 310, 0), (0, 100, 290, 1)],
)
def test_weights_that_are_brought_need_room_for_what_is_not_there(
    used: int, begun: int, free: int, errors: int
) -> None:
    paths = path_facts(MODEL, used_mib=used * 1024, exists=used > 0, free_mib=free * 1024)
    paths[MODEL + ".incomplete"] = {**paths[MODEL], "used_mib": begun * 1024}
    plan = judged("glm52", node=facts(recorded.eight(), paths=paths), sglang_model_fetch=True)
    told = said(plan, rules=False)
    assert len(told) == errors and plan["brings_model"] is (used == 0)
    if errors:
        assert "nvidia/GLM-5.2-NVFP4 take 404 GiB" in told[0] and f"{free} GiB free" in told[0]


def test_a_model_that_is_made_on_the_node_may_be_missing() -> None:
    path = variables("cpu_demo")["sglang_model_path"]
    node = facts("no card")
    node["paths"] = {"/opt/sglang": node["paths"]["/opt/sglang"], path: {**node["paths"][MODEL], "exists": False}}
    plan = judged("cpu_demo", node=node)
    assert said(plan, rules=False) == [] and plan["makes_model"] is True
    node["paths"][path]["exists"] = True
    assert judged("cpu_demo", node=node)["makes_model"] is False


def test_a_full_file_system_is_told_once() -> None:
    paths = path_facts("/opt/sglang", free_mib=100)
    [text] = said(glm52(paths=paths), rules=False)
    assert "/opt/sglang has 100 MiB free, 8192 are asked for" in text and "gpu_preflight_min_free_mib" in text
    # The weights lie on the same one.
    paths[MODEL] = {**paths[MODEL], "free_mib": 100, "device": 1}
    assert len(said(glm52(paths=paths), rules=False)) == 1
    paths[MODEL]["device"] = 2
    assert len(said(glm52(paths=paths), rules=False)) == 2


# Locks, stacks, answers on record


@pytest.mark.parametrize(
    "lock", sorted(STACKS.glob("*/requirements-*.txt")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_every_package_of_a_lock_is_read_with_its_version(lock: Path) -> None:
    found = sglang_plan.pins(lock)
    assert found.get("sglang") == sglang_plan.load(lock.parent / "stack.yml").get("sglang")
    assert len(found) == sum("==" in line and not line.startswith("#") for line in lock.read_text().splitlines())


def test_a_locked_package_with_a_marker_and_a_build_label(tmp_path: Path) -> None:
    lock = tmp_path / "requirements.txt"
    lock.write_text("# a==1\nsgl-kernel==0.3.21+cu128 \\\n    --hash=sha256:0\nzope.event==5 ; python_version < '4'\n")
    assert sglang_plan.pins(lock) == {"sgl-kernel": "0.3.21+cu128", "zope.event": "5"}


def test_a_stack_without_a_lock_or_without_anything() -> None:
    there = sglang_plan.stack_of(STACKS / "sglang-0.5.23-cu130", "3.99", ())
    assert there["lock"] is False and there["versions"] == {} and there["options"]
    assert sglang_plan.stack_of(STACKS / "cpu-standins", "3.12", ()) == {}


RESOLVED = sorted(STACKS.glob("*/resolved/*.json"))


def wanted(path: Path, **changed: Any) -> dict[str, Any]:
    """What was asked when this answer was recorded."""
    document = json.loads(path.read_text(encoding="utf-8"))
    keys = ("card", "model", "patches", "environment", "args")
    return {**{key: document[key] for key in keys}, "profile": path.stem.split("+")[0], **changed}


def record(path: Path, **changed: Any) -> tuple[dict[str, Any], str]:
    return sglang_plan.on_record(path.parents[1], wanted(path, **changed))


@pytest.mark.parametrize("path", RESOLVED, ids=lambda path: path.stem)
def test_an_answer_on_record_is_found_again(path: Path) -> None:
    assert record(path) == (json.loads(path.read_text(encoding="utf-8")), "exact")


def test_other_arguments_find_the_profiles_own_answer() -> None:
    path = STACKS / "sglang-0.5.23-cu130/resolved/glm52+autotune_off.json"
    own = json.loads((path.parent / "glm52.json").read_text(encoding="utf-8"))
    for change in ({"args": {"tensor-parallel-size": 8}}, {"patches": ["another"]}, {"environment": {"A": "1"}}):
        assert record(path, **change) == (own, "near")
    # A profile that was asked about in this stack with a variant only.
    variant = path.with_name("glm5+glm5_on_0_5_23.json")
    assert record(variant, args={}) == (json.loads(variant.read_text(encoding="utf-8")), "near")


@pytest.mark.parametrize("change", [{"profile": "mine"}, {"card": "h200"}, {"model": "kimi-k2.5"}])
def test_an_answer_for_another_profile_card_or_model_says_nothing(change: dict[str, Any]) -> None:
    path = STACKS / "sglang-0.5.23-cu130/resolved/glm52.json"
    assert record(path, **{"args": {}, **change}) == ({}, "")


def test_no_answer_is_on_record_for_a_stack_of_ones_own(tmp_path: Path) -> None:
    assert sglang_plan.on_record(tmp_path, wanted(RESOLVED[0])) == ({}, "")


def test_what_was_given_is_laid_over_an_answer_for_other_arguments() -> None:
    plan = overlaid({"mem-fraction-static": 0.8})
    assert plan["resolved_text"].startswith("These arguments are not on record") and plan["is_resolved"]
    assert plan["resolved"]["mem_fraction_static"] == 0.8 and plan["resolved"]["attention_backend"] == "dsa"


def test_an_option_that_was_taken_away_is_not_kept_from_the_profiles_answer() -> None:
    plan = overlaid({"mem-fraction-static": None, "max-running-requests": None})
    assert plan["resolved"]["mem_fraction_static"] is plan["resolved"]["max_running_requests"] is None
    assert plan["fit"] == {}
    assert "mem-fraction-static" not in flat(paged(plan))


def test_the_nodes_own_answer_comes_first() -> None:
    answer = {
        "resolved": {"tp_size": 8, "mem_fraction_static": 0.5},
        "autotune": {"runs": None, "why": "the gate could not be asked"},
        "versions": {"sglang": "0.5.23"},
        "options": sglang_plan.stack_of(STACKS / "sglang-0.5.23-cu130", "3.12", ())["options"],
    }
    plan = judged("glm52", answer=answer)
    assert plan["resolved"]["mem_fraction_static"] == 0.5 and plan["resolved"].get("attention_backend") is None
    assert plan["autotune_text"] == "not known: the gate could not be asked"
    assert "on the node" in plan["resolved_text"]


def test_a_refusal_of_the_release_is_passed_on() -> None:
    refusal = "The release's parser refuses it."
    assert refusal in said(judged("glm52", answer={"refusal": refusal}))


# Where a value comes from


@pytest.mark.parametrize(
    ("line", "comment"),
    [
        ("  page-size: 64 # what the cache is laid out in", "what the cache is laid out in"),
        ("  page-size: 64", ""),
        ('  name: "a # b"', ""),
        ('  name: "a # b" # why', "why"),
        ("  name: 'a # b' # it's so", "it's so"),
        ("  name: a#b # why", "why"),
        ("  name: a#b", ""),
        ("  name: 64 #why", "why"),
        ("  name: 64   #   why  ", "why"),
        ("  name: [1, 2, 4] # a list", "a list"),
        ("  name: ['#', 'b # c'] # a list", "a list"),
        ("  name: {a: '1 # 2', b: 3} # a mapping", "a mapping"),
        ('  name: "say \\"a # b\\"" # why', "why"),
        ("  name: 64 # first # second", "first # second"),
        ("  name: don't # why", "why"),
        ("  name: don't", ""),
        ("  name: 64 #", ""),
        ("", ""),
    ],
)
def test_the_comment_behind_a_value_is_why(tmp_path: Path, line: str, comment: str) -> None:
    (tmp_path / "vars.yml").write_text(f"---\nsglang_server_args:\n{line}\nlast: 1 # not this\n", encoding="utf-8")
    assert sglang_plan.why(str(tmp_path / "vars.yml"), 3) == comment


def test_a_file_that_is_gone_or_shorter_gives_no_why(tmp_path: Path) -> None:
    (tmp_path / "vars.yml").write_text("a: 1 # why\n", encoding="utf-8")
    assert sglang_plan.why(str(tmp_path / "vars.yml"), 9) == sglang_plan.why(str(tmp_path / "none.yml"), 1) == ""


def test_a_place_is_a_variable_and_where_it_was_set() -> None:
    path = str(ROOT / "group_vars/glm52.yml")
    assert sglang_plan.place(("sglang_server_args", path, 22)) == "sglang_server_args (group_vars/glm52.yml, line 22)"
    assert sglang_plan.place(("sglang_server_args_overlay", "", 0)) == "sglang_server_args_overlay"
    assert sglang_plan.place(("a", "/elsewhere/vars.yml", 3)) == "a (/elsewhere/vars.yml, line 3)"
    assert sglang_plan.place(None) == "sglang_server_args"


def line_of(path: Path, text: str) -> int:
    [number] = [number for number, line in enumerate(path.read_text().splitlines(), 1) if line.strip().startswith(text)]
    return number


def test_an_unknown_option_is_told_with_its_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.yml"
    path.write_text("---\nsglang_server_args_overlay:\n  page-size: 64\n  cuda_graph_max_bs: 64 # an old name\n")
    [text] = said(judged("glm52", **tagged(path)))
    assert text == (
        f"sglang_server_args_overlay ({path}, line 4): 'cuda-graph-max-bs' is not an option of this release; this release calls "
        "it cuda-graph-max-bs-decode."
    )


def test_a_profile_on_another_release_is_told_which_lines_to_change() -> None:
    told = said(judged("glm5", sglang_env_stack="sglang-0.5.23-cu130"))
    for name in ("prefill", "decode"):
        line = line_of(ROOT / "group_vars/glm5.yml", f"nsa-{name}-backend:")
        place = f"sglang_server_args (group_vars/glm5.yml, line {line}): 'nsa-{name}-backend' is not an option"
        assert any(text.startswith(place) and f"dsa-{name}-backend" in text for text in told)


def test_the_last_variable_that_sets_an_option_is_the_one_to_change() -> None:
    [text] = said(overlaid({"page_size": "large"}))
    assert text == "sglang_server_args_overlay: 'page-size' cannot be 'large': it takes a whole number."


# Wrong input


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"tensor-parallel-size": "eight"}, "sglang_server_args_overlay: 'tensor-parallel-size' cannot be 'eight'"),
        ({"mem-fraction-static": "high"}, "sglang_server_args_overlay: 'mem-fraction-static' cannot be 'high'"),
        ({"tensor-parallel-size": {"a": 1}}, "sglang_server_args_overlay: 'tensor-parallel-size' cannot be {'a': 1}"),
        ({"dllm-fdfo": False}, "sglang_server_args_overlay: 'dllm-fdfo' cannot be False"),
        ({"tensor-parallel-size": 4}, "112.0 GiB of weights a GPU do not fit"),
    ],
)
def test_a_wrong_argument_is_one_error_and_no_other(args: dict[str, Any], words: str) -> None:
    [text] = said(overlaid(args), rules=False)
    assert text.startswith(words)


@pytest.mark.parametrize(
    ("changed", "lock"),
    [
        ({"sglang_env_stack": "sglang-0.5.32"}, "sglang-0.5.32/requirements-*.txt"),
        ({"sglang_env_python_version": "3.10"}, "sglang-0.5.23-cu130/requirements-3.10.txt"),
    ],
)
def test_a_lock_that_is_not_there_is_named_with_the_variables(changed: dict[str, Any], lock: str) -> None:
    [text] = said(judged("glm52", **changed), rules=False)
    assert f"stacks/{lock}" in text and "sglang_env_stack or sglang_env_python_version" in text


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"gpu_preflight_card": "rtx6000"}, ["gpu_preflight_card is 'rtx6000'", "rtx-pro-6000-blackwell"]),
        ({"sglang_model_spec": "glm"}, ["sglang_model_spec is 'glm'", "glm-5.2-nvfp4"]),
        ({"gpu_preflight_accept": ["shm-nine"]}, ["gpu_preflight_accept", "'shm-nine'", "Did you mean 'shm-none'?"]),
        ({"sglang_server_args": ["--tp-size", "8"]}, ["sglang_server_args is a list", "mapping"]),
        ({"sglang_server_args_overlay": '{"tp-size": 8}'}, ["sglang_server_args_overlay is a text", "mapping"]),
        ({"sglang_server_environment": "A=1"}, ["sglang_server_environment is a text", "mapping"]),
    ],
)
def test_what_cannot_be_judged_is_refused_by_the_variables_name(changed: dict[str, Any], words: list[str]) -> None:
    with pytest.raises((AnsibleError, sglang_rules.RulesError, sglang_plan.sglang_options.OptionsError)) as refused:
        judged("glm52", **changed)
    assert [word for word in words if word not in str(refused.value)] == []


@pytest.mark.parametrize(
    ("args", "plain"),
    [
        ({"tensor-parallel-size": "8"}, {"tensor-parallel-size": 8}),
        ({"mem-fraction-static": "0.8"}, {"mem-fraction-static": 0.8}),
        ({"max-total-tokens": "128k"}, {"max-total-tokens": 128000}),
        ({"context-length": "64Ki"}, {"context-length": 65536}),
    ],
)
def test_numbers_may_be_texts_as_on_a_command_line(args: dict[str, Any], plain: dict[str, Any]) -> None:
    text, number = (overlaid(overlay) for overlay in (args, plain))
    assert said(text) == [] and text["fit"] == number["fit"] and text["fit"]["fits"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"port": 31000}, ["sets port", "sglang_server_port"]),
        ({"served_model_name": "glm"}, ["sets served-model-name", "sglang_server_model_name"]),
        ({"api-key": "abc"}, ["sets api-key", "Put a front with a key"]),
        ({"nnodes": 2}, ["sets nnodes", "an inventory group replica_NAME"]),
        (
            {"dist-init-addr": "n1:5000"},
            ["sets dist-init-addr", "sglang_server_dist_address and sglang_server_dist_port"],
        ),
    ],
)
def test_an_option_that_has_its_place_elsewhere(args: dict[str, Any], words: list[str]) -> None:
    [text] = said(overlaid(args), rules=False)
    assert text.startswith("sglang_server_args_overlay ") and [word for word in words if word not in text] == []


def test_a_secret_in_the_environment_is_told_by_its_name_only() -> None:
    [text] = said(judged("glm52", sglang_server_environment={"HF_TOKEN": "hf_abc", "MAX_TOKENS": "5"}), rules=False)
    assert "sglang_server_environment sets HF_TOKEN" in text and "sglang_server_environment_file" in text
    assert "hf_abc" not in text
    removed: dict[str, Any] = {"sglang_server_environment_overlay": {"HF_TOKEN": None}}
    assert said(judged("glm52", sglang_server_environment={"HF_TOKEN": "hf_abc"}, **removed), rules=False) == []


def test_a_finding_is_accepted_by_its_id() -> None:
    node = facts(recorded.eight(), shm_mib=0)
    assert any("[shm-none]" in text for text in said(judged("glm52", node=node)))
    for accept in (["shm-none"], "shm-none"):  # the second as -e gives it
        plan = judged("glm52", node=node, gpu_preflight_accept=accept)
        assert not any("[shm-none]" in text for text in said(plan))
        assert [one["id"] for one in plan["accepted"]] == ["shm-none"]
        assert "ACCEPTED by gpu_preflight_accept" in paged(plan)


# The project's own profiles


@pytest.mark.parametrize(("profile", "variant"), ALL)
def test_nothing_stands_against_a_profile_by_itself(profile: str, variant: str) -> None:
    assert said(judged(profile, variant)) == []


@pytest.mark.parametrize(("profile", "variant"), ALL)
def test_a_profile_for_a_card_is_on_record_and_fits(profile: str, variant: str) -> None:
    plan = judged(profile, variant)
    if plan["card"]:
        assert "Asked of the release's own code" in plan["resolved_text"]
        assert plan["fit"].get("fits") is (True if profile != "gpu_demo" else None)


def comments(path: Path) -> dict[str, str]:
    """Key and comment of each indented line of a file of variables."""
    return dict(re.findall(r"^  ([\w-]+): (?:'[^'\n]*'|[^{\[\n]*?) # (.+)$", path.read_text(encoding="utf-8"), re.M))


@pytest.mark.parametrize(("profile", "variant"), ALL)
def test_a_page_is_80_columns_wide_and_tells_every_why(profile: str, variant: str) -> None:
    plan = judged(profile, variant)
    lines = paged(plan)
    assert [line for line in lines if len(line) > 80 and " " in line.strip()] == []
    text, whys = flat(lines), comments(ROOT / f"group_vars/{profile}.yml")
    if variant:
        whys |= comments(ROOT / f"variants/{variant}.yml")
    for name in [*plan["args"], *plan["environment"]]:
        assert name in text and " ".join(whys[name].split()) in text
    for told in ("summary", "source", "date", "verified"):
        assert plan["about"][told] in text
    assert sglang_plan.load(ROOT / f"models/{variables(profile)['sglang_model_spec']}.yml")["repository"] in text
    assert lines[0] == f"PLAN for node1: {profile}{' + ' + variant if variant else ''}"
    assert "RESULT: nothing known stands against it, without a look at the node; 0 errors" in " ".join(text.split())


def section(lines: list[str], title: str) -> list[str]:
    """The lines of a page from a title to the next empty line."""
    start = lines.index(title) + 1
    return lines[start : lines.index("", start)]


def test_a_page_tells_versions_and_what_the_release_adds_to_what_was_given() -> None:
    lines = paged(judged("glm52"))
    assert "stack sglang-0.5.23-cu130, Python 3.12 sglang 0.5.23, torch 2.14.1, flashinfer-python 0.7.2" in flat(lines)
    added = section(lines, "WHAT THE RELEASE MAKES OF THEM on NVIDIA RTX PRO 6000 Blackwell Server Edition")
    assert any(line.split() == ["attention-backend", "dsa"] for line in added)
    given = [line.split() for line in section(lines, "ARGUMENTS, and why")]
    assert ["kv-cache-dtype", "fp8_e4m3"] in given and ["enable-metrics", "on"] in given
    assert not any(line.split()[0] == "kv-cache-dtype" for line in added)


def test_a_page_shows_no_secret() -> None:
    plan = overlaid({"api-key": "s3cret"}, sglang_server_environment={"HF_TOKEN": "s3cret", "MAX_TOKENS": "5"})
    text = flat(paged(plan))
    assert "s3cret" not in text and "HF_TOKEN=(set)" in text and "MAX_TOKENS=5" in text


def test_a_page_sorts_findings_by_what_they_mean() -> None:
    plan = glm52(recorded.node(*(recorded.card(position) for position in range(7))), gpus_lost=[recorded.LOST])
    lines = paged({**plan, "findings": [*plan["findings"], *judged("glm5")["findings"]]})
    for title, severity in (("WHAT STANDS AGAINST IT", "error"), ("WARNINGS", "warning"), ("WORTH KNOWING", "note")):
        told = [line for line in section(lines, title) if re.match(r"  \w+: ", line)]
        assert told and all(line.startswith(f"  {severity}: ") for line in told)


def test_a_page_of_a_node_that_was_looked_at() -> None:
    plan = glm52(recorded.eight(), processes=[{"gpu": 0, "pid": 7, "command": "x" * 90, "unit": "", "memory_mib": 1}])
    lines = paged(plan, ["build the release /opt/sglang/releases/a", "start the server, since there is no unit yet"])
    assert [line for line in lines if len(line) > 80 and " " in line.strip()] == []
    text = flat(lines)
    assert "8 x NVIDIA RTX PRO 6000 Blackwell Server Edition; driver 580.95.05, open modules." in text
    assert "Ubuntu 24.04.3 LTS, 128 CPUs, 1510 GiB of memory" in text and f"{MODEL}: 404.0 GiB there" in text
    assert "A DEPLOY WOULD build the release /opt/sglang/releases/a start the server" in text
    assert "WHAT STANDS AGAINST IT" in lines and "a deploy would be refused; 1 error, 0 warnings" in text


def test_a_page_says_why_no_node_was_seen() -> None:
    plan = judged("glm52")
    text = sglang_plan.node_text({}, "Connection timed out")
    page = flat(sglang_plan.page({**plan, "host": "node1", "changes": [], "node_text": text}))
    assert "No node was looked at: Connection timed out. What depends on it is not judged." in page


def test_a_page_holds_long_values_within_its_width() -> None:
    wide = {f"option_number_{number}": number for number in range(9)}
    plan = overlaid({"json-model-override-args": wide}, sglang_server_environment={"A": "b " * 60})
    lines = paged(plan)
    assert [line for line in lines if len(line) > 80] == []
    assert json.dumps(wide, sort_keys=True) in flat(lines)


def test_a_page_says_whether_autotuning_runs_and_why() -> None:
    assert "autotuning runs: the release's gate takes moe-runner-backend flashinfer_cutlass" in flat(
        paged(judged("glm52"))
    )
    off = flat(paged(judged("glm52", "autotune_off")))
    assert "autotuning does not run: disable-flashinfer-autotune is set" in off
    assert "autotuning not known: the release was not asked" in flat(paged(judged("cpu_demo")))


def test_a_page_does_not_call_parser_defaults_the_releases_word() -> None:
    assert "disable-custom-all-reduce" not in flat(paged(judged("cpu_demo")))


# What a deploy would change


SWITCH = {"phase": "committed", "running": {"pid": 7}, "reasons": [], "diff": {}}


@pytest.mark.parametrize(
    ("profile", "release", "change", "lines"),
    [
        ("glm52", {}, {}, []),
        ("glm52", {"path": "/r", "status": "absent"}, {}, ["build the release /r"]),
        ("glm5", {"path": "/r"}, {}, ["build the release /r", "patch it: flashinfer-cutlass-autotune"]),
        ("glm5", {"path": "/r", "status": "sealed"}, {}, ["use the release /r"]),
        ("glm52", {}, SWITCH, ["leave the server as it is: it runs what is wanted"]),
        ("glm52", {}, {**SWITCH, "reasons": ["the unit differs"]}, ["restart the server, since the unit differs"]),
        (
            "glm52",
            {},
            {**SWITCH, "running": {"pid": 0}, "reasons": ["there is no unit yet", "the server is inactive"]},
            ["start the server, since there is no unit yet; the server is inactive"],
        ),
    ],
)
def test_what_a_deploy_would_do(
    profile: str, release: dict[str, Any], change: dict[str, Any], lines: list[str]
) -> None:
    assert sglang_plan.changes(judged(profile), release, change) == lines


def unit(profile: str, digest: str, release: str, **more: Any) -> str:
    """A unit as the role writes it, as far as a diff of two goes."""
    args = sglang_plan.sglang_options.words(judged(profile, **more)["args"])
    words = [f"/opt/sglang/releases/{release}/venv/bin/python", "-m", "sglang.launch_server", *args]
    return (
        f"# Written by sglang-rtxpro for the deployment {digest}.\n[Unit]\nDescription=SGLang server sglang: {digest}\n"
        f'[Service]\nEnvironment="PATH=/opt/sglang/releases/{release}/venv/bin:/usr/bin"\n'
        f'Environment="SGLANG_DEPLOYMENT={digest}"\nExecStart={sglang_unit_words(words)}\nKillMode=mixed\n'
    )


def test_the_options_that_would_change_are_told_one_a_line() -> None:
    before = unit("glm52", "d1", "a")
    after = unit(
        "glm52", "d2", "b", sglang_server_args_overlay={"max-running-requests": 64, "page-size": None, "tp": 8}
    )
    assert sglang_summary.option_changes({"before": before, "after": after}) == [
        "  - --page-size 64",
        "  - --max-running-requests 256",
        "  + --max-running-requests 64",
        "  + --tp 8",
    ]


def test_a_last_option_that_is_no_longer_the_last_has_not_changed() -> None:
    """Each line but the last ends with a backslash."""
    before = unit("glm52", "d1", "a")
    after = unit("glm52", "d1", "a", sglang_server_args_overlay={"log-level": "debug"})
    assert sglang_summary.option_changes({"before": before, "after": after}) == ["  + --log-level debug"]


@pytest.mark.parametrize("diff", [{}, {"before": "", "after": "[Unit]\n"}])
def test_a_first_unit_is_not_told_line_by_line(diff: dict[str, str]) -> None:
    assert sglang_summary.option_changes(diff) == []


def test_a_restart_tells_the_options_after_its_reason() -> None:
    diff = {
        "before": unit("glm52", "d1", "a"),
        "after": unit("glm52", "d2", "a", sglang_server_args_overlay={"page-size": 1}),
    }
    change = {**SWITCH, "reasons": ["the unit differs"], "diff": diff}
    assert sglang_plan.changes(judged("glm52"), {}, change) == [
        "restart the server, since the unit differs",
        "  - --page-size 64",
        "  + --page-size 1",
    ]


def test_a_judgement_leaves_its_input_as_it_was() -> None:
    node = facts(recorded.eight())
    before = copy.deepcopy(node)
    glm = variables("glm52")
    judged("glm52", node=node)
    assert node == before and variables("glm52") == glm


# --- who could reach the server ---------------------------------------------------------------------------------------

FRONT = {"sglang_server_front": True, "sglang_server_front_keys": ["a key"]}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"sglang_server_host": "0.0.0.0"}, "expected a loopback address"),
        ({"sglang_server_host": "::"}, "expected a loopback address"),
        ({"sglang_server_host": "10.0.0.5"}, "set sglang_server_front to true"),
        ({"sglang_server_front": True}, "has no key"),
        ({**FRONT, "sglang_server_front_certificate": "/etc/x.pem"}, "belong together"),
        ({**FRONT, "sglang_server_front_port": 30000}, "each needs its own"),
        ({"sglang_env_index_url": "http://index.example/simple"}, "over TLS only"),
        ({"sglang_env_torch_index_url": "http://index.example/whl"}, "over TLS only"),
        ({"sglang_server_args_overlay": {"trust-remote-code": True}}, "nothing says why"),
    ],
)
def test_what_would_stand_open_is_refused(given: dict[str, Any], says: str) -> None:
    assert says in " ".join(said(judged("cpu_demo", **given)))


@pytest.mark.parametrize(
    "given",
    [
        {"sglang_server_host": "::1"},
        {"sglang_server_host": "127.0.0.2"},
        FRONT,
        {**FRONT, "sglang_server_port": None, "sglang_server_front_port": None},
        {"sglang_server_front": True, "sglang_server_front_key_file": "/root/keys"},
        {"sglang_server_front": True, "sglang_server_front_host": "127.0.0.1"},
        {"sglang_env_index_url": "http://127.0.0.1:8080/simple"},
    ],
)
def test_what_is_closed_is_taken(given: dict[str, Any]) -> None:
    assert said(judged("cpu_demo", **given)) == []
