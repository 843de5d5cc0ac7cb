"""Facts of a node from recorded texts, and from texts derived from them (data/nvidia-smi/README.md says which is which)."""

from __future__ import annotations

import os
import re
import socket
import sys
import time
from pathlib import Path

import gpu_info as module
import pytest
from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.module_utils import sglang_ports
from helpers import run_module
from hypothesis import given
from hypothesis import strategies as st

from action_plugins import gpu_info as action

DATA = Path(__file__).parent / "data/nvidia-smi"
SERVER = DATA / "8x-server-edition"
H200 = DATA / "2x-h200"
BUSES = ["01", "21", "41", "61", "81", "A1", "C1", "E1"]
EDITION = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
MAX_Q = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"
LOST = (
    "Unable to determine the device handle for GPU6: 0000:C1:00.0: GPU is lost.  Reboot the system to recover this GPU"
)
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22)\nGCC version: 13\n"
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.126"
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running.\n"
)

TCP = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 0 100 0 0 10 0
   1: 0100007F:7530 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 4243 1 0 20 4 30 10 -1
"""


def edited(text: str, *edits: tuple[str, str]) -> str:
    """Each edit replaces every match of a pattern; one that matches nothing is a mistake in the test."""
    for pattern, to in edits:
        text, count = re.subn(pattern, to, text)
        assert count, pattern
    return text


def card(position: int, *edits: tuple[str, str]) -> str:
    """One card of a derived node: the recorded first card, then the later sections of an H200 with this card's figures."""
    first = (SERVER / "q.txt").read_text().split("Attached GPUs                             : 8\n")[1]
    later = (H200 / "q.txt").read_text().partition("        Sync Boost ")[2].partition("\nGPU 00000000")[0]
    ours = [
        (r"00000000:01:00\.0", f"00000000:{BUSES[position]}:00.0"),
        (r"GPU-[0-9-]+", f"GPU-00000000-0000-0000-0000-{position:012d}"),
        (r"143771 MiB", "97887 MiB"),
        (r"Used( +): 1643 MiB", r"Used\1: 3 MiB"),
        (r"700\.00 W", "600.00 W"),
        (r"(    Processes)\n(?:        .*\n)+", r"\1                             : None\n"),
    ]
    return edited(f"{first}        Sync Boost {later}", *ours, *edits)


def node(*cards: str) -> str:
    head = (SERVER / "q.txt").read_text().partition("GPU 00000000")[0]
    return head + "\n".join(cards)


def eight(*edits: tuple[str, str]) -> str:
    return node(*(card(position, *edits) for position in range(8)))


def process(pid: int, kind: str, used: str) -> tuple[str, str]:
    """An edit that gives a card a process, in the recorded layout."""
    lines = [
        "    Processes",
        "        GPU instance ID                   : N/A",
        "        Compute instance ID               : N/A",
        f"        Process ID                        : {pid}",
        f"            Type                          : {kind}",
        "            Name                          : sglang::scheduler",
        f"            Used GPU Memory               : {used}",
    ]
    return r"    Processes +: None", "\n".join(lines)


def parse(text: str, capabilities: str = "") -> list[dict]:
    return module.parse_gpus(module.tree(text), module.parse_capabilities(capabilities), "580.95.05")


# nvidia-smi -q


def test_the_recorded_card_which_is_cut_before_its_memory() -> None:
    [gpu] = parse((SERVER / "q.txt").read_text())
    assert gpu == {
        "index": 0,
        "name": EDITION,
        "bus_id": "00000000:01:00.0",
        "uuid": "GPU-00000000-0000-0000-0000-000000000000",
        "memory_mib": None,
        "memory_used_mib": None,
        "compute_capability": None,
        "driver": "580.95.05",
        "power_limit_w": None,
        "power_max_w": None,
        "power_min_w": None,
        "temperature_c": None,
        "pcie": {"generation": 5, "generation_max": 5, "width": 16, "width_max": 16},
        "numa": None,
        "mig": False,
        "persistence": True,
        "fault": "",
    }


def test_two_recorded_cards_whole() -> None:
    nodes = module.tree((H200 / "q.txt").read_text())
    capabilities = module.parse_capabilities("0, 00000000:00:06.0, 9.0\n1, 00000000:00:07.0, 9.0\n")
    gpus = module.parse_gpus(nodes, capabilities, module.told(nodes, "Driver Version"))
    assert gpus[1] == {
        "index": 1,
        "name": "NVIDIA H200",
        "bus_id": "00000000:00:07.0",
        "uuid": "GPU-00000000-0000-0000-0000-000000000001",
        "memory_mib": 143771,
        "memory_used_mib": 1131,
        "compute_capability": "9.0",
        "driver": "580.159.04",
        "power_limit_w": 700.0,
        "power_max_w": 700.0,
        "power_min_w": 200.0,
        "temperature_c": 36,
        "pcie": {"generation": 5, "generation_max": 5, "width": 16, "width_max": 16},
        "numa": None,
        "mig": False,
        "persistence": True,
        "fault": "",
    }
    assert module.parse_processes(nodes, gpus) == [
        {"gpu": 0, "pid": 571, "command": "python3", "memory_mib": 1634},
        {"gpu": 1, "pid": 571, "command": "python3", "memory_mib": 1122},
    ]


def test_eight_cards_are_told_apart() -> None:
    gpus = parse(eight())
    assert [gpu["bus_id"] for gpu in gpus] == [f"00000000:{bus}:00.0" for bus in BUSES]
    assert [gpu["index"] for gpu in gpus] == list(range(8)) and len({gpu["uuid"] for gpu in gpus}) == 8
    assert {(gpu["memory_mib"], gpu["memory_used_mib"], gpu["power_limit_w"]) for gpu in gpus} == {(97887, 3, 600.0)}


def test_max_q_cards() -> None:
    [gpu] = parse(node(card(0, (EDITION, MAX_Q), (r"600\.00 W", "300.00 W"))))
    assert (gpu["name"], gpu["power_limit_w"], gpu["power_max_w"]) == (MAX_Q, 300.0, 300.0)


def test_a_limit_that_was_lowered() -> None:
    [gpu] = parse(node(card(0, (r"(  Current Power Limit +: )600", r"\g<1>450"))))
    assert (gpu["power_limit_w"], gpu["power_max_w"], gpu["power_min_w"]) == (450.0, 600.0, 200.0)


def test_mixed_cards_keep_their_own_figures() -> None:
    gpus = parse(node(card(0), card(1, (EDITION, "NVIDIA RTX A6000"), (r"97887 MiB", "49140 MiB"))))
    assert [(gpu["name"], gpu["memory_mib"]) for gpu in gpus] == [(EDITION, 97887), ("NVIDIA RTX A6000", 49140)]


def test_an_idle_card_clocks_its_link_down() -> None:
    [gpu] = parse(node(card(0, (r"(PCIe Generation\n +Max +: 5\n +Current +: )5", r"\g<1>1"))))
    assert gpu["pcie"] == {"generation": 1, "generation_max": 5, "width": 16, "width_max": 16}


@pytest.mark.parametrize(
    "word", ["N/A", "[N/A]", "Requested functionality has been deprecated", "Insufficient Permissions", ""]
)
def test_words_in_the_place_of_figures_are_no_fault(word: str) -> None:
    fields = r"((?:Total|Used|Current Temp|Power Limit|Generation|Max|Current|Persistence Mode|Recovery Action) +:).*"
    [gpu] = parse(node(card(0, (fields, rf"\1 {word}"))))
    assert gpu["memory_mib"] is gpu["temperature_c"] is gpu["power_max_w"] is gpu["mig"] is gpu["persistence"] is None
    assert gpu["pcie"] == {"generation": None, "generation_max": None, "width": None, "width_max": None}
    assert gpu["fault"] == ""


def test_mig() -> None:
    split = (r"(MIG Mode\n +Current +: )Disabled", r"\1Enabled")
    device = (
        r"    Accounting Mode  ",
        "    MIG Device\n        FB Memory Usage\n            Total   : 24064 MiB\n    Accounting Mode  ",
    )
    [gpu] = parse(node(card(0, split, device)))
    assert gpu["mig"] is True and gpu["memory_mib"] == 97887


@pytest.mark.parametrize(
    ("edit", "fault"),
    [
        ((r"(Product Name +: ).*", r"\1GPU is lost"), "Product Name: GPU is lost"),
        ((r"(GPU Current Temp +: ).*", r"\1Unknown Error"), "GPU Current Temp: Unknown Error"),
        ((r"(  Current Power Limit +: )600.*", r"\1[Unknown Error]"), "Current Power Limit: Unknown Error"),
        ((r"(Total +: )97887 MiB", r"\1GPU requires reset"), "Total: GPU requires reset"),
        ((r"(GPU Recovery Action +: ).*", r"\1Reset"), "GPU Recovery Action: Reset"),
        ((r"(GPU Recovery Action +: ).*", r"\1Drain and Reset"), "GPU Recovery Action: Drain and Reset"),
        # Not a field that a sound card always has.
        ((r"(Fan Speed +: ).*", r"\1Unknown Error"), ""),
        ((r"(GPU Recovery Action +: ).*", r"\1Unknown Error"), ""),
    ],
)
def test_faults(edit: tuple[str, str], fault: str) -> None:
    assert [gpu["fault"] for gpu in parse(node(card(0), card(1, edit)))] == ["", fault]


def test_capabilities_are_joined_by_bus_id_and_bring_the_index() -> None:
    """Of cards 0 to 2 the middle one is lost: nvidia-smi keeps its number free."""
    rows = f"0, 00000000:01:00.0, 12.0\n{LOST}\n2, 00000000:41:00.0, [N/A]\n"
    first, last = parse(node(card(0), card(2)), rows)
    assert (first["index"], first["compute_capability"]) == (0, "12.0")
    assert (last["index"], last["compute_capability"]) == (2, None)


def test_processes_that_only_draw_are_left_out() -> None:
    texts = [
        card(0, process(11, "C", "88000 MiB")),
        card(1, process(12, "G", "40 MiB")),
        card(2, process(13, "C+G", "N/A")),
        card(3, process(14, "M+C", "300 MiB")),
    ]
    nodes = module.tree(node(*texts))
    found = module.parse_processes(nodes, module.parse_gpus(nodes, {}, ""))
    assert [(one["gpu"], one["pid"], one["memory_mib"]) for one in found] == [
        (0, 11, 88000),
        (2, 13, None),
        (3, 14, 300),
    ]
    assert found[0]["command"] == "sglang::scheduler"


@pytest.mark.parametrize("text", [(H200 / "q.txt").read_text(), node(card(0), card(1, process(11, "C", "1 MiB")))])
def test_a_text_cut_at_any_line_is_read_as_far_as_it_goes(text: str) -> None:
    lines = text.splitlines()
    for cut in range(len(lines)):
        for part in (lines[:cut], lines[cut:]):
            nodes = module.tree("\n".join(part))
            gpus = module.parse_gpus(nodes, {}, "")
            module.parse_processes(nodes, gpus)
            assert len(gpus) == sum(line.startswith("GPU 0") for line in part)


@given(st.text(alphabet="GPU0123:. \t\n[]/ABCx,-\x1b", max_size=200))
def test_no_text_is_too_odd(text: str) -> None:
    nodes = module.tree(text)
    module.parse_processes(nodes, module.parse_gpus(nodes, module.parse_capabilities(text), ""))
    module.parse_matrix(text)
    module.parse_numa(text)


# nvidia-smi topo


def test_recorded_topology_of_eight_cards_on_two_sockets() -> None:
    text = (SERVER / "topo-m.txt").read_text()
    pairs = module.parse_matrix(text)
    assert len(pairs) == 28 and pairs["0-3"] == "NODE" and pairs["3-4"] == "SYS" and pairs["6-7"] == "NODE"
    assert module.parse_numa(text) == {**dict.fromkeys(range(4), 0), **dict.fromkeys(range(4, 8), 1)}


def test_recorded_matrices_of_two_cards() -> None:
    assert module.parse_matrix((H200 / "topo-m.txt").read_text()) == {"0-1": "NV18"}
    assert module.parse_matrix((H200 / "topo-p2p.txt").read_text()) == {"0-1": "OK"}


def test_of_two_directions_the_worse_is_told() -> None:
    text = (H200 / "topo-p2p.txt").read_text()
    for row in (r"( GPU0\tX\t)OK", r"( GPU1\t)OK"):
        assert module.parse_matrix(edited(text, (row, r"\1CNS"))) == {"0-1": "CNS"}


def test_cards_beside_network_cards_and_without_numa() -> None:
    text = "\t\x1b[4mGPU0\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n" + (
        "GPU0\t X \tPIX\tSYS\t0-31\t\t0\t\tN/A\nGPU2\tPIX\t X \tSYS\t0-31\t\t\tN/A\nNIC0\tSYS\tSYS\t X \t\t\t\n"
    )
    assert module.parse_matrix(text) == {"0-2": "PIX"}
    assert module.parse_numa(text) == {0: 0}
    assert module.parse_matrix("") == module.parse_numa("") == module.parse_numa(NO_DRIVER) == {}


# Cards that are not described, and why


@pytest.mark.parametrize(
    "line",
    [
        LOST,
        "Unable to determine the device handle for GPU 0000:C1:00.0: Unknown Error",
        "Unable to determine the device handle for GPU0000:C1:00.0: GPU is lost.  Reboot the system to recover this GPU",
    ],
)
def test_a_lost_card_is_told_once(line: str) -> None:
    devices = {"0000:01:00.0": "nvidia", "0000:c1:00.0": "nvidia"}
    assert module.lost([f"{node(card(0))}\n{line}\n", f"{line}\n"], devices, {"0000:01:00.0"}) == [line]


def test_cards_on_the_bus_that_nvidia_smi_does_not_list() -> None:
    devices = {"0000:01:00.0": "nvidia", "0000:21:00.0": "nvidia", "0000:41:00.0": "vfio-pci", "0000:61:00.0": ""}
    assert module.lost([node(card(0))], devices, {"0000:01:00.0"}) == [
        "0000:21:00.0 is on the PCI bus and nvidia-smi does not list it",
        "0000:41:00.0 is on the PCI bus and nvidia-smi does not list it (its driver is vfio-pci)",
        "0000:61:00.0 is on the PCI bus and nvidia-smi does not list it",
    ]


def test_a_field_that_says_lost_is_a_fault_and_no_lost_card() -> None:
    text = node(card(0, (r"(Product Name +: ).*", r"\1GPU is lost")))
    assert module.lost([text], {}, set()) == [] and parse(text)[0]["fault"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, ["did not answer within 30 s: the driver hangs (dmesg: Xid, GSP)"]),
        (MISMATCH, ["module is 580.95.05", "libraries are 580.126", "Reboot the node", "reload the module"]),
        (MISMATCH.partition("\n")[0], ["module is 580.95.05", "of another version"]),
        (
            NO_DRIVER,
            ["driver is not loaded", "on the PCI bus: 8", "modprobe nvidia", "6.8.0-60-generic", "Secure Boot"],
        ),
        ("No devices were found\n\n", ["nvidia-smi sees no GPU: No devices were found"]),
        (
            "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.\nPlease",
            ["sees no GPU: NVIDIA-SMI couldn't find"],
        ),
    ],
)
def test_why_there_is_no_gpu(answer: str | None, words: list[str]) -> None:
    note = module.why_none(answer, "580.95.05", "6.8.0-60-generic", 8)
    assert all(word in note for word in words), note
    assert "\n" not in note


@pytest.mark.parametrize(
    ("text", "version", "is_open"),
    [
        (OPEN, "580.95.05", True),
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 2024\nGCC version:  12.3.0\n",
            "535.183.01",
            False,
        ),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64 610.43.02 Release Build\n", "610.43.02", True),
        ("", "", None),
    ],
)
def test_the_loaded_module(text: str, version: str, is_open: bool | None) -> None:
    assert (module.module_version(text), module.is_open(text)) == (version, is_open)
    assert module.module_version("580.95.05\n") == "580.95.05"


# /proc and /sys


def test_addresses_as_sysfs_writes_them() -> None:
    assert module.sysfs_name("00000000:C1:00.0") == "0000:c1:00.0"
    assert module.sysfs_name("00010000:E1:00.0") == "10000:e1:00.0"


@pytest.mark.parametrize(
    ("groups", "types", "cmdline", "mode"),
    [
        (0, set(), "iommu=pt", "off"),
        (90, {"identity"}, "", "passthrough"),
        (90, {"DMA-FQ"}, "iommu=pt", "translated"),
        (90, {"identity", "DMA"}, "", "translated"),
        (90, {""}, "quiet iommu=pt", "passthrough"),
        (90, set(), "iommu=off", "off"),
        (90, set(), "quiet", "unknown"),
    ],
)
def test_iommu_mode(groups: int, types: set[str], cmdline: str, mode: str) -> None:
    assert module.iommu_mode(groups, types, cmdline) == mode


def config_space(*capabilities: tuple[int, int, int, int], size: int = 4096) -> bytes:
    """A configuration space with extended capabilities of (offset, id, next offset, word at +6)."""
    space = bytearray(size)
    for at, name, following, word in capabilities:
        space[at : at + 4] = (following << 20 | 1 << 16 | name).to_bytes(4, "little")
        space[at + 6 : at + 8] = word.to_bytes(2, "little")
    return bytes(space)


def test_acs_control_word() -> None:
    error_reporting = (0x100, 0x0001, 0x148, 0)
    assert module.acs_control(config_space(error_reporting, (0x148, 0x000D, 0, 0x001D))) == 0x1D
    assert module.acs_control(config_space((0x100, 0x000D, 0, 0))) == 0
    assert module.acs_control(config_space(error_reporting, (0x148, 0x0019, 0, 0))) == 0
    assert module.acs_control(config_space((0x100, 0x0001, 0x148, 0), (0x148, 0x0001, 0x100, 0))) == 0  # a circle
    assert module.acs_control(config_space((0x100, 0x0001, 0xFFC, 0))) == 0  # past the end
    assert module.acs_control(config_space(size=256)) == 0  # a device without extended capabilities
    assert module.acs_control(b"\xff" * 4096) == 0  # a device that is gone
    assert module.acs_control(config_space(size=64)) is None  # what others than root may read


def test_listeners_are_told_from_connections() -> None:
    assert sglang_ports.listening_inodes(TCP, 30000) == {"4242"}
    assert sglang_ports.listening_inodes(TCP, 40000) == set()


def test_unit_of_a_process() -> None:
    assert module.unit_of("0::/system.slice/sglang.service\n") == "sglang.service"
    assert module.unit_of("0::/user.slice/session-1.scope\n") == ""


def test_memory_and_names() -> None:
    assert module.meminfo("MemTotal:       24604668 kB\nMemAvailable:   1048576 kB\n") == {
        "total": 24027,
        "available": 1024,
    }
    assert module.pretty_name('NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 24.04.3 LTS"\n') == "Ubuntu 24.04.3 LTS"
    assert module.pretty_name("") == ""


@pytest.mark.parametrize(
    ("text", "version", "kib"),
    [
        ("Version=255.4-1ubuntu8.10\nDefaultLimitMEMLOCK=8388608\n", 255, 8192),
        ("Version=v257.2\nDefaultLimitMEMLOCK=infinity\n", 257, -1),
        ("Version=252.36-1~deb12u1\nDefaultLimitMEMLOCK=18446744073709551615\n", 252, -1),
        ("systemd 252 (252.36-1~deb12u1)\n+PAM\n", 252, 0),
        ("Failed to connect to bus: Host is down\n", 0, 0),
    ],
)
def test_systemd_and_its_limit_of_locked_memory(text: str, version: int, kib: int) -> None:
    assert (module.systemd_version(text), module.memlock_kib(text)) == (version, kib)


def test_what_lies_below_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = tmp_path / "release/lib"
    release.mkdir(parents=True)
    with (release / "one").open("wb") as file:
        file.truncate(3 << 20)
    os.link(release / "one", release / "again")
    (release / "link").symlink_to("/proc/kcore")
    found = module.measure(str(tmp_path / "release"))
    assert found["used_mib"] == 3 and found["exists"] is True
    assert module.used_mib(str(release / "one")) == 3
    absent = module.measure(str(tmp_path / "not/there"))
    assert absent == {"free_mib": absent["free_mib"], "used_mib": 0, "exists": False, "device": found["device"]}
    monkeypatch.setattr(module, "ENTRIES", 1)
    assert module.used_mib(str(tmp_path / "release")) == 0


# main() with a stand-in for nvidia-smi


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """/sys and /proc of a node of eight cards with the open driver, its cards on two NUMA nodes behind one bridge with ACS."""
    pci = tmp_path / "pci"
    for position, bus in enumerate(BUSES):
        device(pci / f"0000:{bus.lower()}:00.0", "0x10de", "0x030200", numa_node=str(position // 4))
        device(pci / f"0000:{bus.lower()}:00.1", "0x10de", "0x040300")
    device(pci / "0000:00:01.1", "0x1022", "0x060400")
    (pci / "0000:00:01.1/config").write_bytes(config_space((0x100, 0x000D, 0, 0x001D)))
    (tmp_path / "version").write_text(OPEN)
    (tmp_path / "bin").mkdir()
    for name, path in {"PCI": pci, "IOMMU_GROUPS": tmp_path / "groups", "DRIVER": tmp_path / "version"}.items():
        monkeypatch.setattr(module, name, str(path))
    monkeypatch.setattr(module, "MODULE", str(tmp_path / "absent"))
    # Nothing but stand-ins, in case this machine has an nvidia-smi of its own.
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def device(folder: Path, vendor: str, kind: str, **files: str) -> None:
    folder.mkdir(parents=True)
    for name, text in {"vendor": vendor, "class": kind, **files}.items():
        (folder / name).write_text(text + "\n")


def stand_in(host: Path, q: str, code: int = 0, err: str = "") -> None:
    """A stand-in for nvidia-smi: it answers the four calls of the module from texts, each with `err` and `code`."""
    header = "".join(f"GPU{number}\t" for number in range(8))
    rows = "".join(f" GPU{a}\t" + "".join("X\t" if a == b else "OK\t" for b in range(8)) + "\n" for a in range(8))
    texts = {
        "-q": q,
        "topo -m": (SERVER / "topo-m.txt").read_text(),
        "topo -p2p r": f" \t\x1b[4m{header}\x1b[0m\n{rows}\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n",
        " ".join(module.CAPABILITY): "".join(
            f"{number}, 00000000:{bus}:00.0, 12.0\n" for number, bus in enumerate(BUSES) if f":{bus}:00.0" in q
        ),
    }
    script = ["#!/bin/sh", "# A stand-in for nvidia-smi, for tests.", 'case "$*" in']
    for number, (call, text) in enumerate(texts.items()):
        (host / f"answer-{number}").write_text(text)
        script.append(f"'{call}') /bin/cat {host}/answer-{number} ;;")
    (host / "answer-err").write_text(err)
    script += ["*) exit 2 ;;", "esac", f"/bin/cat {host}/answer-err >&2", f"exit {code}"]
    program(host, "nvidia-smi", "\n".join(script))


def program(host: Path, name: str, script: str) -> None:
    path = host / "bin" / name
    path.write_text(script + "\n")
    path.chmod(0o755)


Capture = pytest.CaptureFixture[str]


def test_a_node_of_eight(host: Path, capsys: Capture) -> None:
    stand_in(host, eight())
    told = run_module(module, capsys)
    assert [gpu["index"] for gpu in told["gpus"]] == list(range(8))
    assert [gpu["numa"] for gpu in told["gpus"]] == [0, 0, 0, 0, 1, 1, 1, 1] and told["sockets"] == 2
    assert {gpu["compute_capability"] for gpu in told["gpus"]} == {"12.0"}
    assert told["gpus_lost"] == [] and told["gpus_note"] == "" and told["processes"] == []
    assert told["driver"] == {"version": "580.95.05", "cuda": "13.0", "open": True}
    assert told["topology"]["0-4"] == "SYS" and set(told["p2p"].values()) == {"OK"} and len(told["p2p"]) == 28
    assert told["acs"] == 1 and told["iommu"] == {"mode": "off", "groups": 0}
    assert told["cpus"] == os.cpu_count() and told["hostname"] and told["os"]
    assert told["cuda"] == {"home": "", "nvcc": ""} and told["python"] == "" and told["paths"] == {}


def test_a_node_where_sysfs_numbers_no_numa_nodes(host: Path, capsys: Capture) -> None:
    for path in (host / "pci").glob("*/numa_node"):
        path.write_text("-1\n")
    stand_in(host, eight())
    assert [gpu["numa"] for gpu in run_module(module, capsys)["gpus"]] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_iommu_of_the_cards(host: Path, capsys: Capture) -> None:
    for position, bus in enumerate(BUSES):
        group = host / f"groups/{position}"
        group.mkdir(parents=True)
        (group / "type").write_text("DMA-FQ\n")
        (host / f"pci/0000:{bus.lower()}:00.0/iommu_group").symlink_to(group)
    stand_in(host, eight())
    assert run_module(module, capsys)["iommu"] == {"mode": "translated", "groups": 8}


def test_acs_is_unknown_to_others_than_root(host: Path, capsys: Capture) -> None:
    (host / "pci/0000:00:01.1/config").write_bytes(config_space(size=64))
    stand_in(host, eight())
    assert run_module(module, capsys)["acs"] is None


def test_a_card_off_the_bus(host: Path, capsys: Capture) -> None:
    """nvidia-smi ends with 15, says which one it is, and describes the other seven."""
    stand_in(host, node(*(card(position) for position in range(8) if position != 6)), code=15, err=LOST + "\n")
    told = run_module(module, capsys)
    assert [gpu["index"] for gpu in told["gpus"]] == [0, 1, 2, 3, 4, 5, 7]
    assert told["gpus_lost"] == [LOST] and told["gpus_note"] == "" and told["topology"]


def test_a_card_that_nvidia_smi_says_nothing_of(host: Path, capsys: Capture) -> None:
    stand_in(host, node(*(card(position) for position in range(7))))
    told = run_module(module, capsys)
    assert told["gpus_lost"] == ["0000:e1:00.0 is on the PCI bus and nvidia-smi does not list it"]


def test_a_driver_that_does_not_match(host: Path, capsys: Capture) -> None:
    stand_in(host, MISMATCH + "\n", code=18)
    told = run_module(module, capsys)
    assert told["gpus"] == told["gpus_lost"] == told["processes"] == [] and told["sockets"] == 0
    assert told["gpus_note"] == (
        "The loaded NVIDIA kernel module is 580.95.05, the NVIDIA libraries are 580.126: the driver was updated after the module "
        "was loaded. Reboot the node, or stop what uses the GPUs and reload the module."
    )
    assert told["driver"] == {"version": "580.95.05", "cuda": "", "open": True}


def test_a_driver_that_is_not_loaded(host: Path, capsys: Capture) -> None:
    (host / "version").unlink()
    stand_in(host, NO_DRIVER, code=9)
    told = run_module(module, capsys)
    assert told["gpus_note"].startswith("The NVIDIA driver is not loaded; NVIDIA cards on the PCI bus: 8.")
    assert told["driver"] == {"version": "", "cuda": "", "open": None} and told["gpus_lost"] == []


def test_no_devices_though_the_driver_answers(host: Path, capsys: Capture) -> None:
    stand_in(host, "No devices were found\n", code=6)
    told = run_module(module, capsys)
    assert told["gpus_note"] == "nvidia-smi sees no GPU: No devices were found" and len(told["gpus_lost"]) == 8


def test_no_nvidia_smi(host: Path, capsys: Capture) -> None:
    told = run_module(module, capsys)
    assert told["gpus"] == told["gpus_lost"] == [] and told["topology"] == told["p2p"] == {}
    assert told["gpus_note"] == "nvidia-smi is not installed; NVIDIA cards on the PCI bus: 8"


def test_a_driver_that_hangs(host: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIMEOUT", 1)
    program(host, "nvidia-smi", "#!/bin/sh\n# A stand-in for nvidia-smi that hangs.\nexec /bin/sleep 60")
    started = time.monotonic()
    told = run_module(module, capsys)
    assert told["gpus_note"] == "nvidia-smi did not answer within 1 s: the driver hangs (dmesg: Xid, GSP)"
    assert told["gpus"] == told["gpus_lost"] == [] and time.monotonic() - started < 45


def test_an_nvidia_smi_that_cannot_be_started(host: Path, capsys: Capture) -> None:
    program(host, "nvidia-smi", "#!/no/such/shell")
    assert "No such file" in run_module(module, capsys)["gpus_note"]


def test_a_process_on_the_gpus_is_this_hosts(host: Path, capsys: Capture) -> None:
    gone = 2**22 + 1  # more than a kernel numbers
    stand_in(host, node(card(0, process(os.getpid(), "C", "88000 MiB")), card(1, process(gone, "C", "5 MiB"))))
    here, elsewhere = run_module(module, capsys)["processes"]
    assert "pytest" in here["command"] or "python" in here["command"]
    assert (here["gpu"], here["pid"], here["memory_mib"]) == (0, os.getpid(), 88000)
    assert elsewhere == {"gpu": 1, "pid": gone, "command": "sglang::scheduler", "memory_mib": 5, "unit": ""}


NVCC = "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 12.9, V12.9.86\n"


@pytest.mark.parametrize(("script", "release"), [(f"#!/bin/sh\necho '{NVCC}'", "12.9"), ("#!/bin/sh\nexit 1", "")])
def test_toolkit_and_interpreter(host: Path, capsys: Capture, script: str, release: str) -> None:
    program(host, "nvcc", script)
    told = run_module(module, capsys, cuda_home=str(host), python=sys.executable)
    assert told["cuda"] == {"home": str(host), "nvcc": release}
    assert told["python"] == f"{sys.version_info[0]}.{sys.version_info[1]}"
    told = run_module(module, capsys, cuda_home=str(host / "none"), python="/nowhere/bin/python")
    assert told["cuda"]["nvcc"] == told["python"] == ""


def test_pythons_on_path_the_plain_one_first_then_the_newest(host: Path, capsys: Capture) -> None:
    says = {"python3": "3.12 True", "python3.9": "3.9 False", "python3.12": "3.12 True", "python3.13": "3.13 False"}
    for name, words in says.items():
        program(host, name, f"#!/bin/sh\necho {words}")
    program(host, "python3.14", "#!/bin/sh\nexit 1")
    program(host, "python3.11-config", "#!/bin/sh\necho 3.11 True")
    told = run_module(module, capsys)
    assert told["pythons"] == [
        {"version": "3.12", "headers": True},
        {"version": "3.13", "headers": False},
        {"version": "3.9", "headers": False},
    ]
    assert told["compilers"] == {"c": "", "cxx": ""}
    for name in ("clang", "c++"):
        program(host, name, "#!/bin/sh")
    found = {"c": str(host / "bin/clang"), "cxx": str(host / "bin/c++")}
    assert run_module(module, capsys)["compilers"] == found


def test_the_owner_of_a_port_is_named(capsys: Capture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        told = run_module(module, capsys, port=server.getsockname()[1], paths=["/opt/sglang/not/there", "", "x/y"])
    assert "pytest" in told["port_owner"]["command"] or "python" in told["port_owner"]["command"]
    assert list(told["paths"]) == list(told["disk_free_mib"]) == ["/opt/sglang/not/there"]
    assert told["disk_free_mib"]["/opt/sglang/not/there"] == told["paths"]["/opt/sglang/not/there"]["free_mib"] > 0
    assert told["gpus"] or told["gpus_note"]


@pytest.mark.parametrize(
    "words",
    ["--api-key sk-SECRET --port 30000", "--api-key=sk-SECRET --port 30000", "--hf-token sk-SECRET --port 30000"],
)
def test_a_command_line_is_told_without_its_secrets(words: str) -> None:
    told = module.masked(f"python -m sglang.launch_server --tp 8 {words} --max-total-tokens 5")
    assert "sk-SECRET" not in told and "--port 30000" in told and "--max-total-tokens" in told


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (AnsibleError("Task failed: Missing sudo password"), "Missing sudo password. Add -K"),
        (AnsibleError("Incorrect su password"), "Incorrect su password. Add -K"),
        (AnsibleConnectionFailure("ssh: Host key verification failed."), "failed. Log in once by hand (ssh)"),
        (AnsibleConnectionFailure("No route to host\r\n"), "No route to host. Check ansible_host"),
    ],
)
def test_why_a_node_cannot_be_looked_at_comes_with_a_remedy(error: AnsibleError, words: str) -> None:
    assert words in action.barred(error)


def test_what_else_goes_wrong_is_no_matter_of_reaching_it() -> None:
    assert action.barred(AnsibleError("the module failed")) == ""
