"""Facts of a node from recorded texts."""

from __future__ import annotations

import socket

import gpu_info as module
import pytest
from ansible.module_utils import sglang_ports
from helpers import run_module

TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 0 100 0 0 10 0
   1: 0100007F:7530 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 4243 1 0 20 4 30 10 -1
"""


def test_gpus_with_fields_that_are_no_numbers() -> None:
    text = (
        "0, NVIDIA RTX PRO 6000 Blackwell Server Edition, 97887, 580.126.09, 12.0\n"
        "1, NVIDIA RTX PRO 6000 Blackwell Server Edition, [N/A], 580.126.09, [Not Supported]\n"
    )
    first, second = module.parse_gpus(text)
    assert first == {
        "index": 0,
        "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "memory_mib": 97887,
        "driver": "580.126.09",
        "compute_capability": "12.0",
    }
    assert second["memory_mib"] is None and second["compute_capability"] is None
    assert module.parse_gpus("No devices were found\n") == []


def test_listeners_are_told_from_connections() -> None:
    assert sglang_ports.listening_inodes(TCP, 30000) == {"4242"}
    assert sglang_ports.listening_inodes(TCP, 40000) == set()


def test_unit_of_a_process() -> None:
    assert module.unit_of("0::/system.slice/sglang.service\n") == "sglang.service"
    assert module.unit_of("0::/user.slice/session-1.scope\n") == ""


def test_memory_and_systemd() -> None:
    assert module.meminfo("MemTotal:       24604668 kB\nMemAvailable:   1048576 kB\n") == {
        "total": 24027,
        "available": 1024,
    }
    assert module.systemd_version("systemd 252 (252.36-1~deb12u1)\n+PAM\n") == 252
    assert module.systemd_version("") == 0


def test_the_owner_of_a_port_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        told = run_module(module, capsys, port=server.getsockname()[1], paths=["/opt/sglang/not/there", "", "x/y"])
    assert "pytest" in told["port_owner"]["command"] or "python" in told["port_owner"]["command"]
    assert (
        list(told["disk_free_mib"]) == ["/opt/sglang/not/there"] and told["disk_free_mib"]["/opt/sglang/not/there"] > 0
    )
    assert told["gpus"] or told["gpus_note"]
