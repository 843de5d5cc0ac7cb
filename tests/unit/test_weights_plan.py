"""Who gets weights from where: waves that double, sources that one node asks, copies that differ."""

from __future__ import annotations

from typing import Any

import pytest

from filter_plugins.sglang_weights import sglang_weights_plan as plan

PATH = "/srv/model"
ALL = [f"n{number}" for number in range(1, 9)]


def node(complete: bool = False, **more: Any) -> dict[str, Any]:
    wants = {
        "peers": ALL, "sources": ["peers", "mirror", "hub"], "mirror": "", "repository": "someone/model", "revision": "f" * 40,
        "origin": "someone/model@" + "f" * 40,
    }  # fmt: skip
    facts: dict[str, Any] = {
        "complete": complete,
        "path": PATH,
        "digest": "d" if complete else "",
        "problems": ["a is missing"],
    }
    return {
        **facts,
        "doubtful": [],
        "running": {},
        "tried": [],
        "error": "",
        "origin": "",
        **more,
        "wants": {**wants, **more.get("wants", {})},
    }


def lacking(nodes: dict[str, dict[str, Any]]) -> list[str]:
    return [name for name in nodes if not nodes[name]["complete"]]


def waves(nodes: dict[str, dict[str, Any]]) -> list[dict[str, str]]:
    """All waves, where everything goes well."""
    seen = []
    while left := lacking(nodes):
        told = plan(nodes, left)
        seen.append({name: step.get("sender", "wait") for name, step in told.items()})
        for name, step in told.items():
            if "kind" in step:
                nodes[name] = {**nodes[name], "complete": True, "digest": "d"}
    return seen


def test_those_that_have_them_double() -> None:
    seen = waves({name: node(name == "n1") for name in ALL})
    assert [sum(sender != "wait" for sender in wave.values()) for wave in seen] == [1, 2, 4]
    for wave in seen:
        senders = [sender for sender in wave.values() if sender != "wait"]
        assert len(set(senders)) == len(senders), "a node gives to one other at a time"


def test_one_node_asks_the_hub_and_the_rest_wait() -> None:
    seen = waves({name: node() for name in ALL[:4]})
    assert seen[0] == {"n1": "hub", "n2": "wait", "n3": "wait", "n4": "wait"}
    assert seen[1:] == [{"n2": "n1", "n3": "wait", "n4": "wait"}, {"n3": "n1", "n4": "n2"}]


def test_each_model_has_its_own_way() -> None:
    nodes = {"n1": node(), "n2": node(path="/srv/other"), "n3": node(path="/srv/other")}
    assert {name: step.get("kind", "wait") for name, step in plan(nodes, ALL[:3]).items()} == {
        "n1": "hub",
        "n2": "hub",
        "n3": "wait",
    }


def test_a_mirror_goes_before_the_hub_and_without_peers_each_asks() -> None:
    wants = {"mirror": "/mnt/model", "sources": ["mirror", "hub"]}
    nodes = {name: node(wants=wants) for name in ALL[:2]} | {"n3": node(True)}
    assert [step["kind"] for step in plan(nodes, ALL[:2]).values()] == ["mirror", "mirror"]


def test_what_an_earlier_run_began_goes_on() -> None:
    nodes = {
        "n1": node(True),
        "n2": node(running={"kind": "peer", "sender": "n1"}),
        "n3": node(),
        "n4": node(running={"kind": "hub", "sender": "x"}),
    }
    told = plan(nodes, ["n2", "n3", "n4"])
    assert told["n2"] == {"kind": "peer", "sender": "n1", "attach": True, "rsync": True} and told["n4"]["attach"]
    assert told["n3"] == {"wait": True}, "its sender is busy"


def test_a_node_with_hashes_is_asked_before_one_without() -> None:
    nodes = {"n1": node(True, digest=""), "n2": node(True, doubtful=["a"]), "n3": node(True), "n4": node()}
    assert plan(nodes, ["n4"])["n4"]["sender"] == "n3"
    nodes["n4"]["tried"] = ["n3"]
    assert plan(nodes, ["n4"])["n4"]["sender"] == "n2"


def test_when_all_were_tried_the_hub_is_next_and_then_it_is_said() -> None:
    nodes = {"n1": node(True), "n2": node(tried=["n1"], error="n1: a came with a wrong hash")}
    assert plan(nodes, ["n2"])["n2"]["kind"] == "hub"
    nodes["n2"]["tried"].append("hub")
    nodes["n2"]["error"] = "hub: it cannot be reached."
    text = plan(nodes, ["n2"])["n2"]["refuse"]
    assert "each that has them was tried" in text and "hub: it cannot be reached." in text and "Asked: n1" in text


def test_a_hub_that_failed_on_one_node_is_not_asked_by_every_other() -> None:
    nodes = {"n1": node(tried=["hub"], error="hub: no route"), "n2": node()}
    told = plan(nodes, ["n2"])
    assert "the hub failed on n1: hub: no route" in told["n2"]["refuse"]


@pytest.mark.parametrize(
    ("wants", "says"),
    [
        ({"sources": ["peers"]}, "sglang_model_sources has no hub"),
        ({"repository": ""}, "no repository is known (sglang_model_spec, sglang_model_repository)"),
    ],
)
def test_nobody_has_them(wants: dict[str, Any], says: str) -> None:
    nodes = {"n1": node(wants=wants), "n2": node(wants=wants, unreachable=True)}
    text = plan(nodes, ["n1"])["n1"]["refuse"]
    for words in (PATH, "a is missing", "no node has them", says, "Asked: n2 (n2 did not answer)", "docs/operating.md"):
        assert words in text, text


def test_copies_that_differ() -> None:
    own = "someone/model@" + "f" * 40
    nodes = {"n1": node(True, digest="x"), "n2": node(True, digest="y"), "n3": node(wants={"sources": ["peers"]})}
    text = plan(nodes, ["n3"])["n3"]["refuse"]
    assert "n1 (x); n2 (y)" in text and "sglang_model_rehash" in text
    assert plan({**nodes, "n4": node(True, digest="y")}, ["n3"])["n3"]["sender"] == "n2", "what most have"
    assert plan({**nodes, "n1": node(True, digest="x", origin=own)}, ["n3"])["n3"]["sender"] == "n1", (
        "what the hub's commit is"
    )
    nodes["n3"]["digest"] = "y"
    assert plan(nodes, ["n3"])["n3"]["sender"] == "n2", "what it had itself before a file broke"
