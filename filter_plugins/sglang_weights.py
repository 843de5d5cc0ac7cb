"""Who gets a model's weights from where, a wave at a time."""

from __future__ import annotations

from typing import Any

SOURCES = ("mirror", "hub")


def given_by(nodes: dict[str, dict[str, Any]], path: str) -> list[str]:
    """Nodes with a complete copy, those first that have its hashes and did not touch a file since."""
    having = [name for name, node in nodes.items() if node.get("complete") and node.get("path") == path]
    return sorted(having, key=lambda name: (not nodes[name].get("digest"), bool(nodes[name].get("doubtful"))))


def agreed(nodes: dict[str, dict[str, Any]], having: list[str], own: str, origin: str) -> tuple[list[str], str]:
    """Nodes whose copies are the same and right, or why that cannot be said.

    What a node had itself before a file of it broke is right; so is what came from the hub's pinned commit; else what most have.
    """
    by: dict[str, list[str]] = {}
    for name in having:
        if nodes[name].get("digest"):
            by.setdefault(nodes[name]["digest"], []).append(name)
    if own in by:
        return by[own], ""
    if len(by) < 2:
        return having, ""
    pinned = [names for names in by.values() if origin and any(nodes[name].get("origin") == origin for name in names)]
    if len(pinned) == 1:
        return pinned[0], ""
    most = max(by.values(), key=len)
    if 2 * len(most) > sum(map(len, by.values())):
        return most, ""
    told = "; ".join(f"{', '.join(names)} ({digest})" for digest, names in sorted(by.items()))
    return [], (
        f"nodes hold different files under one path: {told}. Take away the wrong ones, or have them hashed anew where a file is "
        "corrupt (sglang_model_rehash)"
    )


def no_source(wants: dict[str, Any], kind: str) -> str:
    """Why a source is out of the question; empty when it is not."""
    if kind not in wants["sources"]:
        return f"sglang_model_sources has no {kind}"
    if kind == "mirror" and not wants["mirror"]:
        return "sglang_model_mirror names no folder"
    if kind == "hub" and not wants["repository"]:
        return "no repository is known (sglang_model_spec, sglang_model_repository)"
    return ""


def refusal(name: str, nodes: dict[str, dict[str, Any]], why: list[str]) -> str:
    node = nodes[name]
    wrong = "; ".join(node.get("problems", [])[:3]) or "a file of it is corrupt"
    asked = [other for other in node["wants"]["peers"] if other != name and other in nodes]
    silent = [other for other in node["wants"]["peers"] if other != name and nodes.get(other, {}).get("unreachable")]
    last = f" The last that was tried said: {node['error'].rstrip('.')}." if node.get("error") else ""
    return (
        f"The weights in {node['path']} are not complete ({wrong}), and nobody can bring them: {'; '.join(why)}."
        f"{last} Asked: {', '.join(asked) or 'no other node'}{' (' + ', '.join(silent) + ' did not answer)' if silent else ''}. "
        "Bring them to one node, or name a repository and its commit, or a folder to copy from (docs/operating.md, Weights)."
    )


def sglang_weights_plan(nodes: dict[str, dict[str, Any]], receivers: list[str]) -> dict[str, dict[str, Any]]:
    """What each of the nodes that lack weights does in this wave.

    `kind` (peer, mirror, hub) with `sender`, whether that has `rsync`, and `attach` where it is under way; `wait` for a node
    that is about to have them; or `refuse`, a text. A node gives to one other at a time, so that those who have them double from
    wave to wave.
    """
    told: dict[str, dict[str, Any]] = {}
    busy: set[str] = set()
    for name in receivers:
        running = nodes[name].get("running") or {}
        if running.get("kind") in ("peer", *SOURCES):
            told[name] = {"kind": running["kind"], "sender": running.get("sender", ""), "attach": True, "rsync": True}
            busy.add(told[name]["sender"])
    for name in (name for name in receivers if name not in told):
        node = nodes[name]
        path, wants = node["path"], node["wants"]
        allowed = set(wants["peers"]) - {name} if "peers" in wants["sources"] else set()
        tried = set(node.get("tried", []))
        same, conflict = agreed(nodes, given_by(nodes, path), node.get("digest", ""), wants["origin"])
        senders = [other for other in same if other in allowed and other not in tried]
        free = [other for other in senders if other not in busy]
        if free:
            told[name] = {
                "kind": "peer",
                "sender": free[0],
                "attach": False,
                "rsync": bool(nodes[free[0]].get("rsync")),
            }
            busy.add(free[0])
            continue
        alike = [other for other in told if nodes[other]["path"] == path and other in allowed]
        if senders or any("kind" in told[other] for other in alike):
            told[name] = {"wait": True}
            continue
        why = [conflict or ("no node has them" if not same else "each that has them was tried")]
        for kind in SOURCES:
            reason = no_source(wants, kind)
            failed = [
                other for other in nodes if kind in nodes[other].get("tried", []) and nodes[other].get("path") == path
            ]
            if not reason and failed:
                reason = f"the {kind} failed on {failed[0]}: {nodes[failed[0]].get('error', '').rstrip('.')}"
            if not reason:
                told[name] = {"kind": kind, "sender": kind, "attach": False}
                break
            why.append(reason)
        else:
            told[name] = {"refuse": refusal(name, nodes, why)}
    return told


class FilterModule:
    """Filters by name."""

    def filters(self) -> dict[str, Any]:
        return {"sglang_weights_plan": sglang_weights_plan}
