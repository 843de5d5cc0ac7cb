# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""One model over several nodes: who belongs together, in which order, and what stands against it.

An inventory group `replica_NAME` is one such model. Everything here is decided from facts alone: groups, variables of hosts, and
what the module sglang_replica saw on each node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Callable

PREFIX = "replica_"
PORT = 20000  # of the rendezvous, as in SGLang's own examples
# Seconds that two clocks may differ. More, and the order in which nodes failed cannot be told; certificates suffer as well.
CLOCKS = 5.0
# What has to be the same on all hosts of a replica. Environment and paths may differ: interfaces and mounts do.
SAME = (
    "sglang_profile",
    "sglang_variant",
    "sglang_env_stack",
    "sglang_env_python_version",
    "sglang_patch_patches",
    "sglang_server_args",
    "sglang_server_args_overlay",
    "sglang_server_dist_port",
    "sglang_tuning_artefacts",
)

Read = Callable[[str, str], Any]


class ReplicaError(ValueError):
    """What makes no replica, with the remedy."""


# --- who belongs together -------------------------------------------------------------------------------------------------


def names_of(host: str, groups: Mapping[str, Iterable[str]]) -> list[str]:
    """The replica groups that a host is in."""
    return sorted(name for name, hosts in groups.items() if name.startswith(PREFIX) and host in list(hosts))


def ordered(name: str, hosts: list[str], given: Mapping[str, Any]) -> list[str]:
    """Hosts by rank: a host's place in its group, unless it sets one."""
    by_rank: dict[int, list[str]] = {}
    for place, host in enumerate(hosts):
        rank = place if given.get(host) in (None, "") else int(given[host])
        by_rank.setdefault(rank, []).append(host)
    mend = "Set sglang_server_node_rank on all of its hosts, from 0, or on none: then their order in the group counts."
    for rank, same in sorted(by_rank.items()):
        if len(same) > 1:
            what = "two heads" if rank == 0 else f"rank {rank} twice"
            raise ReplicaError(f"{name} has {what}: {' and '.join(same)}. {mend}")
    missing = sorted(set(range(len(hosts))) - set(by_rank))
    if missing:
        ranks = ", ".join(f"{same[0]} {rank}" for rank, same in sorted(by_rank.items()))
        raise ReplicaError(f"{name} has a gap in its ranks: nobody is rank {missing[0]} ({ranks}). {mend}")
    return [by_rank[rank][0] for rank in range(len(hosts))]


def describe(host: str, groups: Mapping[str, Iterable[str]], read: Read) -> dict[str, Any]:
    """A host's replica: `name`, `hosts` by rank, `rank` of this one, `head`, `nnodes`, `address` and `port` of the rendezvous.

    Empty for a server of its own. `read` gives a host's variable, None where it is not set.
    """
    names = names_of(host, groups)
    if not names:
        return {}
    if len(names) > 1:
        raise ReplicaError(f"{host} is in {len(names)} replicas: {', '.join(names)}. A server is part of one.")
    members = list(groups[names[0]])
    if len(members) < 2:
        raise ReplicaError(f"{names[0]} has {host} alone. Add its other hosts, or take the group away.")
    hosts = ordered(names[0], members, {member: read(member, "sglang_server_node_rank") for member in members})
    head = hosts[0]
    address = read(head, "sglang_server_dist_address") or read(head, "ansible_host") or head
    return {
        "name": names[0],
        "hosts": hosts,
        "rank": hosts.index(host),
        "head": head,
        "nnodes": len(hosts),
        "address": str(address),
        "port": int(read(head, "sglang_server_dist_port") or PORT),
    }


def title(replica: Mapping[str, Any]) -> str:
    """A replica and its hosts, for a message."""
    return f"{replica['name']} ({', '.join(replica['hosts'])}; head {replica['head']})"


# --- before anything is touched -------------------------------------------------------------------------------------------


def whole(replica: Mapping[str, Any], chosen: Iterable[str], active: Iterable[str], batch: Iterable[str]) -> str:
    """Why this run cannot work on a replica; empty when all of its hosts are in the batch.

    `chosen` are the hosts that the run is for (-l), `active` those that did not fail, `batch` those of this turn (serial).
    """
    hosts, chosen, active, batch = replica["hosts"], set(chosen), set(active), set(batch)
    left_out = [host for host in hosts if host not in chosen]
    if left_out:
        return (
            f"{title(replica)} serves one model, and this run leaves out {', '.join(left_out)}. Its hosts are switched together: "
            f"-l {replica['name']}."
        )
    lost = [host for host in hosts if host not in active]
    if lost:
        return f"{title(replica)} serves one model, and {', '.join(lost)} failed before. Mend that, and run again."
    later = [host for host in hosts if host not in batch]
    if later:
        return (
            f"{title(replica)} serves one model, and {', '.join(later)} would come in another turn of this run (serial). Its hosts "
            f"are switched together: -l {replica['name']} -e sglang_fleet_serial={len(hosts)}."
        )
    return ""


def differing(replica: Mapping[str, Any], read: Read) -> list[str]:
    """Sentences about what has to be the same on all hosts of a replica, and is not."""
    found = []
    for variable in SAME:
        values = {host: read(host, variable) for host in replica["hosts"]}
        values = {host: value or None for host, value in values.items()}  # not set, or nothing
        others = [host for host, value in values.items() if value != values[replica["head"]]]
        if others:
            simple = all(value is None or isinstance(value, (str, int)) for value in values.values())
            told = "" if not simple else ": " + ", ".join(f"{host} has {value}" for host, value in values.items())
            where = "" if simple else f" ({', '.join(others)} and the head)"
            found.append(
                f"{variable} differs within {title(replica)}{where}{told}. Set it for the group, not for a host."
            )
    return found


def sizes(replica: Mapping[str, Any], tp: int, pp: int) -> str:
    """Why the ranks of the engine cannot be shared out over the nodes; empty when they can. As the engine does it.

    SGLang 0.5.9 to 0.5.23 (_calculate_rank_ranges): whole pipeline stages on a node, or a stage over whole nodes.
    """
    nodes = replica["nnodes"]
    if (pp % nodes == 0 or nodes % pp == 0) and (tp * pp) % nodes == 0:
        return ""
    return (
        f"{title(replica)}: tensor-parallel-size {tp} x pipeline-parallel-size {pp} cannot be shared out over {nodes} nodes. Set "
        f"tensor-parallel-size to the GPUs of a node, and pipeline-parallel-size to {nodes}."
    )


def judged(replica: Mapping[str, Any], looks: Mapping[str, Mapping[str, Any]], gpus: Mapping[str, int]) -> list[str]:
    """What stands against a replica on its nodes. `looks` are results of sglang_replica, `gpus` how many cards a node has."""
    found = []
    where = title(replica)
    missing = [host for host in replica["hosts"] if "clock_offset_s" not in looks.get(host, {})]
    if missing:
        return [
            f"{where} serves one model, and {', '.join(missing)} did not come as far as this. What it says is the cause."
        ]
    if len({gpus.get(host, 0) for host in replica["hosts"]}) > 1:
        told = ", ".join(f"{host} has {gpus.get(host, 0)}" for host in replica["hosts"])
        found.append(
            f"{where}: the nodes have different numbers of GPUs: {told}. Each carries the same share of the model."
        )
    head = looks[replica["head"]]
    owner = head.get("owner") or {}
    if owner:
        of = f" of {owner['unit']}" if owner.get("unit") else ""
        found.append(
            f"{where}: port {replica['port']} of the head is in use by process {owner['pid']} ({owner['name']}){of}. Stop it, or "
            "choose another sglang_server_dist_port."
        )
    for host in replica["hosts"]:
        if looks[host].get("fault"):
            found.append(f"{where}: {host}: {looks[host]['fault']}")
    apart = clocks(replica, looks)
    return [*found, apart] if apart else found


def clocks(replica: Mapping[str, Any], looks: Mapping[str, Mapping[str, Any]]) -> str:
    """Whose clocks are apart by more than can be told from the time that a look takes; empty when none are."""
    offsets = {host: (looks[host]["clock_offset_s"], looks[host]["clock_within_s"]) for host in replica["hosts"]}
    (fast, (ahead, one)), (slow, (behind, other)) = (
        choose(offsets.items(), key=lambda item: item[1][0]) for choose in (max, min)
    )
    if ahead - behind - one - other <= CLOCKS:
        return ""
    return (
        f"{title(replica)}: the clocks of {fast} and {slow} are {ahead - behind:.0f} s apart (within {one + other:.1f} s). Let "
        "both keep the time (systemd-timesyncd or chrony; timedatectl shows it)."
    )


# --- when it fails --------------------------------------------------------------------------------------------------------


def first(replica: Mapping[str, Any], ends: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    """The host whose unit ended first, and that in a sentence; empty when none did.

    `ends` has for each host that failed `ended_at` (seconds of its own clock) and `clock_offset_s`, what that clock is ahead of the
    controller's.
    """
    at = {
        host: ends[host]["ended_at"] - (ends[host].get("clock_offset_s") or 0.0)
        for host in replica["hosts"]
        if (ends.get(host) or {}).get("ended_at")
    }
    if not at:
        return "", ""
    order = sorted(at, key=lambda host: at[host])
    one = order[0]
    text = f"Of {title(replica)} {one} (rank {replica['hosts'].index(one)}) ended first"
    later = [f"{host} {at[host] - at[one]:.1f} s later" for host in order[1:]]
    doubt = ""
    if later and at[order[1]] - at[one] < 1.0:
        doubt = " Less than a second apart, the order is not certain."
    return one, f"{text}{'; ' + ', '.join(later) if later else ''}.{doubt}"
