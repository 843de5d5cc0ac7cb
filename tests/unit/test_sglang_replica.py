"""One model over several nodes: who belongs together, and everything that is refused before a node is touched."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

import pytest
import sglang_replica as module
from ansible.errors import AnsibleFilterError
from ansible.module_utils import sglang_replica as replicas
from helpers import run_module

from action_plugins import sglang_inputs
from filter_plugins import sglang_replica as filters

GROUPS = {"gpu_nodes": ["n1", "n2", "n3", "n4"], "replica_big": ["n1", "n2"], "replica_three": ["n3", "n4", "n5"]}
SIXTEEN = {"tensor-parallel-size": 8, "pipeline-parallel-size": 2}


def reader(values: dict[str, dict[str, Any]]) -> replicas.Read:
    return lambda host, name: values.get(host, {}).get(name)


def problems(values: dict[str, Any] | None = None, mode: str = "whole", **hosts: list[str]) -> str:
    """What sglang_inputs says of n1 in a run over all hosts."""
    everywhere = {"sglang_profile": "glm52", "sglang_server_args": SIXTEEN, **(values or {})}
    told = {host: {**everywhere, **(values or {}).get(host, {})} for host in GROUPS["gpu_nodes"]}
    play = (hosts.get("chosen", ["n1", "n2"]), hosts.get("active", ["n1", "n2"]), hosts.get("batch", ["n1", "n2"]))
    return " ".join(sglang_inputs.replica_problems("n1", GROUPS, reader(told), play, mode))


# --- who belongs together -------------------------------------------------------------------------------------------------


def test_a_host_of_no_replica_is_a_server_of_its_own() -> None:
    assert replicas.describe("alone", GROUPS, reader({})) == {}


def test_the_order_in_the_group_is_the_rank() -> None:
    found = replicas.describe("n2", GROUPS, reader({"n1": {"ansible_host": "10.0.0.1"}}))
    assert found == {
        "name": "replica_big",
        "hosts": ["n1", "n2"],
        "rank": 1,
        "head": "n1",
        "nnodes": 2,
        "address": "10.0.0.1",
        "port": 20000,
    }


def test_a_host_may_set_its_rank_and_the_head_the_network() -> None:
    ranks = {"n3": 2, "n4": 0, "n5": "1"}
    values = {host: {"sglang_server_node_rank": rank} for host, rank in ranks.items()}
    values["n4"].update(sglang_server_dist_address="192.168.0.4", ansible_host="10.0.0.4", sglang_server_dist_port=2500)
    found = replicas.describe("n3", GROUPS, reader(values))
    assert found["hosts"] == ["n4", "n5", "n3"] and found["rank"] == 2 and found["head"] == "n4"
    assert (found["address"], found["port"]) == ("192.168.0.4", 2500)


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ({"n5": 3}, "a gap in its ranks: nobody is rank 2 (n3 0, n4 1, n5 3)"),
        ({"n4": 0}, "two heads: n3 and n4"),
        ({"n5": 1}, "rank 1 twice: n4 and n5"),
        ({"n3": 1, "n4": 2, "n5": 3}, "nobody is rank 0"),
    ],
)
def test_ranks_that_are_none(ranks: dict[str, int], said: str) -> None:
    values = {host: {"sglang_server_node_rank": rank} for host, rank in ranks.items()}
    with pytest.raises(replicas.ReplicaError) as caught:
        replicas.describe("n3", GROUPS, reader(values))
    assert said in str(caught.value) and "sglang_server_node_rank on all of its hosts" in str(caught.value)
    with pytest.raises(AnsibleFilterError):
        filters.sglang_replica(GROUPS, "n3", {**dict.fromkeys(("n3", "n4", "n5"), {}), **values})


def test_a_host_of_two_replicas_and_a_replica_of_one_host() -> None:
    with pytest.raises(replicas.ReplicaError, match="n1 is in 2 replicas: replica_big, replica_too"):
        replicas.describe("n1", {**GROUPS, "replica_too": ["n1", "n3"]}, reader({}))
    with pytest.raises(replicas.ReplicaError, match="replica_one has n1 alone"):
        replicas.describe("n1", {"replica_one": ["n1"]}, reader({}))


# --- before a node is asked -----------------------------------------------------------------------------------------------


def test_a_whole_replica_may_go_on() -> None:
    assert problems() == ""


def test_a_part_of_a_replica_is_refused() -> None:
    told = problems(chosen=["n1"], active=["n1"], batch=["n1"])
    assert "leaves out n2" in told and "-l replica_big" in told
    assert "n2 failed before" in problems(active=["n1"], batch=["n1"])
    assert "another turn of this run (serial)" in problems(batch=["n1"])


def test_what_works_on_a_part_is_let_through_or_refused_with_its_own_words() -> None:
    assert problems(mode="head", chosen=["n1"]) == "" and problems(mode="any", chosen=["n1"]) == ""
    assert "this is for a server of its own" in problems(mode="none")


def test_hosts_that_differ_are_refused() -> None:
    told = problems({"n2": {"sglang_profile": "kimi_k25"}})
    assert "sglang_profile differs" in told and "n1 has glm52, n2 has kimi_k25" in told
    assert "sglang_env_stack differs" in problems({"n1": {"sglang_env_stack": "a"}, "n2": {"sglang_env_stack": "b"}})
    # Long ones are not told whole.
    told = problems({"n2": {"sglang_server_args": {**SIXTEEN, "mem-fraction-static": 0.8}}})
    assert "sglang_server_args differs" in told and "0.8" not in told
    # Not set and empty are one.
    assert problems({"n1": {"sglang_server_args_overlay": {}}}) == ""


@pytest.mark.parametrize(
    ("tp", "pp", "nodes", "fine"),
    [(8, 2, 2, True), (16, 1, 2, True), (8, 1, 3, False), (8, 4, 2, True), (8, 3, 2, False), (4, 2, 4, True)],
)
def test_sizes_that_can_be_shared_out(tp: int, pp: int, nodes: int, fine: bool) -> None:
    replica = {"name": "replica_x", "hosts": ["a"], "head": "a", "nnodes": nodes}
    told = replicas.sizes(replica, tp, pp)
    assert (told == "") is fine
    assert fine or f"pipeline-parallel-size to {nodes}" in told


def test_sizes_are_read_under_all_their_names() -> None:
    told = problems({"sglang_server_args": {"tp": 8, "pp_size": 3}})
    assert "tensor-parallel-size 8 x pipeline-parallel-size 3 cannot be shared out over 2 nodes" in told
    overlaid = {"sglang_server_args": {"tp-size": 8}, "sglang_server_args_overlay": {"tp-size": None}}
    assert "1 x pipeline-parallel-size 1 cannot" in problems(overlaid)


def test_ports_of_ones_own() -> None:
    told = problems({"sglang_server_dist_port": 30000, "sglang_server_port": 30000})
    assert "sglang_server_dist_port and sglang_server_port are both 30000" in told


# --- on the nodes ---------------------------------------------------------------------------------------------------------

REPLICA = replicas.describe("n1", GROUPS, reader({}))


def look(**changes: Any) -> dict[str, Any]:
    return {"clock_offset_s": 0.1, "clock_within_s": 0.2, "owner": {}, "fault": "", **changes}


def judged(one: dict[str, Any], other: dict[str, Any], gpus: tuple[int, int] = (8, 8)) -> str:
    return " ".join(replicas.judged(REPLICA, {"n1": one, "n2": other}, dict(zip(("n1", "n2"), gpus, strict=True))))


def test_nodes_that_can_work_together() -> None:
    assert judged(look(), look()) == ""


def test_nodes_that_cannot() -> None:
    assert "n1 has 8, n2 has 7" in judged(look(), look(), (8, 7))
    taken = look(owner={"pid": 7, "name": "etcd", "unit": "etcd.service"})
    assert "port 20000 of the head is in use by process 7 (etcd) of etcd.service" in judged(taken, look())
    assert "sglang_server_dist_port" in judged(taken, look())
    assert "n2: there is no way" in judged(look(), look(fault="there is no way to the head."))
    # Who could not be looked at has failed with words of its own.
    assert "n2 did not come as far as this" in judged(look(), {})


def test_clocks() -> None:
    told = judged(look(clock_offset_s=-9.0), look())
    assert "the clocks of n2 and n1 are 9 s apart (within 0.4 s)" in told and "timedatectl" in told
    # What a slow look cannot tell is no accusation.
    assert judged(look(clock_offset_s=-9.0, clock_within_s=5.0), look()) == ""


def test_who_ended_first_by_the_controllers_clock() -> None:
    """The clock of n2 is 4 s ahead: by the nodes' own clocks n1 would be the first."""
    ends = {
        "n1": {"ended_at": 1001.0, "clock_offset_s": 0.0},
        "n2": {"ended_at": 1003.0, "clock_offset_s": 4.0},
    }
    host, text = replicas.first(REPLICA, ends)
    assert host == "n2" and text == "Of replica_big (n1, n2; head n1) n2 (rank 1) ended first; n1 2.0 s later."
    near = {"n1": {"ended_at": 1001.0}, "n2": {"ended_at": 1001.4}}
    assert "the order is not certain" in replicas.first(REPLICA, near)[1]
    assert replicas.first(REPLICA, {"n1": {}, "n2": {"ended_at": None}}) == ("", "")


# --- the module on a node -------------------------------------------------------------------------------------------------

ADDRESSES = json.dumps(
    [
        {"ifname": "lo", "addr_info": [{"family": "inet", "local": "127.0.0.1"}]},
        {"ifname": "ib0", "addr_info": [{"family": "inet", "local": "192.168.0.4"}, {"family": "inet6"}]},
    ]
)


def test_the_interface_of_an_address() -> None:
    assert module.interface_of(ADDRESSES, "192.168.0.4") == "ib0"
    assert module.interface_of(ADDRESSES, "192.168.0.5") == ""
    assert module.interface_of("", "192.168.0.4") == module.interface_of("not json", "x") == ""


def on(capsys: pytest.CaptureFixture[str], address: str, port: int, rank: int) -> dict[str, Any]:
    return run_module(module, capsys, replica={"address": address, "port": port, "rank": rank}, timeout=0.5)


def test_addresses_that_lead_nowhere(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    told = on(capsys, "127.0.1.1", 20000, 0)
    assert "its own loopback" in told["fault"] and "sglang_server_dist_address" in told["fault"]
    # Of TEST-NET-3 (RFC 5737), which is nobody's.
    assert "no interface has the address 203.0.113.9" in on(capsys, "203.0.113.9", 20000, 0)["fault"]
    told = on(capsys, "no-such-host.invalid", 20000, 1)
    assert "the head's address no-such-host.invalid is not known here" in told["fault"]
    assert told["now"] > 1e9


def test_a_way_that_a_firewall_closes_and_one_where_nobody_listens_yet(capsys: pytest.CaptureFixture[str]) -> None:
    class Asked(module.Look):
        def __init__(self, port: int) -> None:
            self.address, self.port = "127.0.0.1", port
            self.module = type("Params", (), {"params": {"timeout": 0.3}})

    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        port = full.getsockname()[1]
        assert Asked(port).reach("127.0.0.1") == "", "refused: the way is open"
        full.listen(0)
        held = [socket.socket() for _ in range(3)]
        for one in held:  # a queue that is full answers nobody, as a firewall that drops
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
        threading.Event().wait(0.1)
        assert "cannot be reached" in Asked(port).reach("127.0.0.1")
        for one in held:
            one.close()
