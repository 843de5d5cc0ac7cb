#!/usr/bin/python
# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""What a node is, as far as a deployment depends on it."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gpu_info
short_description: Facts of a node that serves models
version_added: "0.1.0"
description:
  - Reads the node's GPUs, how they are connected, who uses them, the driver, the CUDA toolkit, memory, disks, the service manager
    and the owner of a port in one round trip. Changes nothing.
  - GPUs are read from C(nvidia-smi -q), C(nvidia-smi topo) and /sys. nvidia-smi may end with an error and still describe the
    other cards; what it printed is used. A call that is not answered within 30 s is given up, as a driver that hangs never answers.
  - A node without a GPU is described like any other; RV(gpus_note) says why none was seen.
options:
  port:
    description: TCP port to look up. Who listens on it is returned as RV(port_owner).
    type: int
  paths:
    description: Paths that are measured, they and their file systems. A path that does not exist yet stands for its nearest parent;
      one that is not absolute is left out.
    type: list
    elements: path
    default: []
  cuda_home:
    description: Folder of a CUDA toolkit to look at. Without it none is looked for.
    type: path
  python:
    description: Interpreter of an environment that is to be there already. Its version is returned as RV(python).
    type: path
  tell_unreached:
    description: A node that cannot be reached is no failure, and nothing but RV(unreached) is returned. Read on the controller.
    type: bool
    default: false
author: ["sglang-rtxpro authors (!UNKNOWN)"]
attributes:
  check_mode: {support: full, description: Reads only., details: []}
  diff_mode: {support: none, description: Reads only., details: []}
"""

EXAMPLES = r"""
- name: Look at the node
  gpu_info:
    port: 30000
    paths: [/opt/sglang, /var/lib/sglang]
    cuda_home: /usr/local/cuda
  register: node

- name: Refuse a node with a card missing
  ansible.builtin.assert:
    that: node.gpus_lost == [] and node.gpus | map(attribute='fault') | select | list == []
"""

RETURN = r"""
gpus:
  description: One entry a GPU, in nvidia-smi's order, from C(nvidia-smi -q). A number that nvidia-smi does not tell is null.
  type: list
  elements: dict
  returned: always
  contains:
    index: {description: Number that nvidia-smi and CUDA_VISIBLE_DEVICES (in PCI order) know it by., type: int, returned: always}
    name: {description: Product name., type: str, returned: always}
    bus_id: {description: "PCI address as nvidia-smi writes it, such as V(00000000:01:00.0).", type: str, returned: always}
    uuid: {description: UUID., type: str, returned: always}
    memory_mib: {description: Memory of the card in MiB., type: int, returned: always}
    memory_used_mib: {description: "Memory in use in MiB, by whomever.", type: int, returned: always}
    compute_capability: {description: "Such as V(12.0), from C(--query-gpu).", type: str, returned: always}
    driver: {description: Version of the driver., type: str, returned: always}
    power_limit_w: {description: Limit in force in W., type: float, returned: always}
    power_max_w: {description: Highest limit that can be set in W., type: float, returned: always}
    power_min_w: {description: Lowest limit that can be set in W., type: float, returned: always}
    temperature_c: {description: Temperature of the GPU in degrees Celsius., type: int, returned: always}
    pcie:
      description: PCIe link. An idle card clocks it down to generation 1, so a low generation of now proves nothing.
      type: dict
      returned: always
      contains:
        generation: {description: Generation of now., type: int, returned: always}
        width: {description: Lanes of now., type: int, returned: always}
        generation_max: {description: Generation that card and slot can do together., type: int, returned: always}
        width_max: {description: Lanes that card and slot can do together., type: int, returned: always}
    numa:
      description: NUMA node, from /sys, else from C(topo -m). Null where the host numbers none.
      type: int
      returned: always
    mig: {description: Whether the card is split by MIG. Null where it cannot be., type: bool, returned: always}
    persistence: {description: Whether persistence mode is on., type: bool, returned: always}
    fault:
      description: What nvidia-smi says of a card that is lost, in error or in want of a reset, as C(field, colon, words). Empty for
        a sound card.
      type: str
      returned: always
gpus_lost:
  description: Cards that nvidia-smi could not describe, one sentence a card. These are its own lines, and NVIDIA display devices
    in /sys/bus/pci/devices that it does not list. Empty where it describes no card for a reason of the whole node, which
    RV(gpus_note) gives.
  type: list
  elements: str
  returned: always
gpus_note:
  description: Why RV(gpus) is empty, and the remedy where one is known. Empty when there are GPUs.
  type: str
  returned: always
driver:
  description: NVIDIA's driver. C(version), C(cuda) (highest CUDA version that it runs), C(open) (whether the kernel modules are
    the open ones, from /proc/driver/nvidia/version; null when no module is loaded). Texts are empty when unknown.
  type: dict
  returned: always
topology:
  description: Path between each two GPUs from C(nvidia-smi topo -m), such as C({"0-1" = "NODE"}). The lower index comes first.
    Empty when unknown.
  type: dict
  returned: always
p2p:
  description: Whether each two GPUs can read each other's memory, from C(nvidia-smi topo -p2p r), as C({"0-1" = "OK"}). Of two
    directions that differ, the one that is not V(OK) is told. Empty when unknown.
  type: dict
  returned: always
sockets:
  description: Number of NUMA nodes that the GPUs hang on; 0 when unknown.
  type: int
  returned: always
processes:
  description: Compute processes on the GPUs, one entry a process and GPU. C(gpu) (index), C(pid), C(command) (from /proc, else
    nvidia-smi's name for it), C(memory_mib) (may be null), C(unit) (systemd service, may be empty). Graphics alone is left out.
  type: list
  elements: dict
  returned: always
cuda:
  description: C(home) is O(cuda_home), C(nvcc) the release of C(bin/nvcc) in it, such as V(12.9). Empty when missing.
  type: dict
  returned: always
python:
  description: Version of O(python), such as V(3.12). Empty when it does not run or was not asked for.
  type: str
  returned: always
unreached:
  description: Why the node could not be reached or its sudo not used, and what to do.
  type: str
  returned: when it could not, with O(tell_unreached)
pythons:
  description: The Pythons 3 on PATH, one entry a version, that of C(python3) first, then the newest first. C(version), such as
    V(3.12), and C(headers), whether Python.h is there for it, which Triton compiles with.
  type: list
  elements: dict
  returned: always
compilers:
  description: Paths of the compilers that Triton (C(c)) and nvcc (C(cxx)) look for on PATH. Empty when missing.
  type: dict
  returned: always
paths:
  description: For each of O(paths), C(free_mib) (free in its file system), C(used_mib) (apparent size in MiB of what lies below
    it, links not followed, a file with several names counted once; at most 20000 entries are looked at, so a larger tree is
    larger than told), C(exists), C(device) (number of its file system; equal for two paths that share their space).
  type: dict
  returned: always
disk_free_mib:
  description: Free space in MiB for each of O(paths).
  type: dict
  returned: always
memlock_kib:
  description: Locked memory in KiB that systemd gives a service by default; -1 without limit, 0 when unknown.
  type: int
  returned: always
iommu:
  description: C(mode) is V(off), V(passthrough), V(translated) (of the GPUs' own groups where they have some, else from
    /proc/cmdline) or V(unknown). C(groups) is the number of IOMMU groups.
  type: dict
  returned: always
acs:
  description: Number of PCI bridges that send peer-to-peer requests up to the root (ACS, request redirect). Null when it cannot be
    read, which takes root.
  type: int
  returned: always
cpus:
  description: Number of logical CPUs.
  type: int
  returned: always
memory_mib:
  description: Main memory in MiB, C(total) and C(available).
  type: dict
  returned: always
shm_mib:
  description: Size of /dev/shm in MiB.
  type: int
  returned: always
port_owner:
  description: Who listens on O(port). C(pid), C(command), C(unit) (systemd unit, may be empty). Empty when nobody does.
  type: dict
  returned: always
uid:
  description: Effective user id that modules run with on the node; 0 is root.
  type: int
  returned: always
systemd:
  description: Version of systemd; 0 where it is not the service manager.
  type: int
  returned: always
machine:
  description: Architecture, as C(uname -m) says.
  type: str
  returned: always
hostname:
  description: The node's own name.
  type: str
  returned: always
kernel:
  description: Release of the running kernel, as C(uname -r) says.
  type: str
  returned: always
os:
  description: Name of the distribution, PRETTY_NAME of /etc/os-release.
  type: str
  returned: always
glibc:
  description: Version of glibc; empty where there is another C library.
  type: str
  returned: always
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.sglang_ports import listeners, read
from ansible.module_utils.sglang_smi import cards, fault, integer, number, told, tree, whether

PCI = "/sys/bus/pci/devices"
IOMMU_GROUPS = "/sys/kernel/iommu_groups"
DRIVER = "/proc/driver/nvidia/version"
MODULE = "/sys/module/nvidia/version"
TIMEOUT = 30  # seconds that a command may take
ENTRIES = 20_000  # files and folders of a path that are measured
PYTHON = """import os, sys, sysconfig
print("%d.%d" % sys.version_info[:2], os.path.isfile(os.path.join(sysconfig.get_paths()["include"], "Python.h")))"""

CAPABILITY = ["--query-gpu=index,pci.bus_id,compute_cap", "--format=csv,noheader"]


def parse_capabilities(text: str) -> dict[str, tuple[int, str | None]]:
    """Index and compute capability by bus id, from rows of `--query-gpu`. Lines that are no such row are left out."""
    found = re.findall(r"^\s*(\d+), *([0-9A-Fa-f:.]+), *(.*?)\s*$", text, re.M)
    return {
        bus.lower(): (int(index), capability if re.fullmatch(r"\d+\.\d+", capability) else None)
        for index, bus, capability in found
    }


def parse_gpus(nodes: list, capabilities: dict[str, tuple[int, str | None]], driver: str) -> list[dict]:
    """The cards of a tree. Their NUMA nodes are not in it."""
    gpus = []
    for position, (bus, card) in enumerate(cards(nodes)):
        # nvidia-smi keeps the numbers of lost cards free, so the place in the list is only a guess.
        index, capability = capabilities.get(bus.lower(), (position, None))
        link, power = ("PCI", "GPU Link Info"), "GPU Power Readings"
        gpus.append(
            {
                "index": index,
                "name": told(card, "Product Name"),
                "bus_id": bus,
                "uuid": told(card, "GPU UUID"),
                "memory_mib": integer(told(card, "FB Memory Usage", "Total")),
                "memory_used_mib": integer(told(card, "FB Memory Usage", "Used")),
                "compute_capability": capability,
                "driver": driver,
                "power_limit_w": number(told(card, power, "Current Power Limit")),
                "power_max_w": number(told(card, power, "Max Power Limit")),
                "power_min_w": number(told(card, power, "Min Power Limit")),
                "temperature_c": integer(told(card, "Temperature", "GPU Current Temp")),
                "pcie": {
                    "generation": integer(told(card, *link, "PCIe Generation", "Current")),
                    "generation_max": integer(told(card, *link, "PCIe Generation", "Max")),
                    "width": integer(told(card, *link, "Link Width", "Current")),
                    "width_max": integer(told(card, *link, "Link Width", "Max")),
                },
                "numa": None,
                "mig": whether(told(card, "MIG Mode", "Current")),
                "persistence": whether(told(card, "Persistence Mode")),
                "fault": fault(card),
            }
        )
    return gpus


def parse_processes(nodes: list, gpus: list[dict]) -> list[dict]:
    """Compute processes of the cards, as nvidia-smi names them."""
    found = []
    for gpu, (_bus, card) in zip(gpus, cards(nodes)):
        for key, pid, fields in [node for section in card if section[0] == "Processes" for node in section[2]]:
            # Types are C, G, C+G and, under MPS, M+C.
            if key == "Process ID" and pid.isdecimal() and "C" in told(fields, "Type").split("+"):
                memory = integer(told(fields, "Used GPU Memory"))
                found.append(
                    {"gpu": gpu["index"], "pid": int(pid), "command": told(fields, "Name"), "memory_mib": memory}
                )
    return found


# The matrices of `nvidia-smi topo`: cells between tabs, the header underlined by a terminal code even into a pipe.


def rows(text: str) -> tuple[list[str], dict[int, list[str]]]:
    """The header's cells, and the cells of each GPU's row by index."""
    header: list[str] = []
    found = {}
    for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines():
        cells = [cell.strip() for cell in line.split("\t")]
        if not header and not cells[0] and "GPU" in line:
            header = cells
        elif re.fullmatch(r"GPU\d+", cells[0]):
            found[int(cells[0][3:])] = cells
    return header, found


def parse_matrix(text: str) -> dict[str, str]:
    header, found = rows(text)
    pairs: dict[str, str] = {}
    for one, cells in sorted(found.items()):
        for name, cell in zip(header, cells):
            other = int(name[3:]) if re.fullmatch(r"GPU\d+", name) else one
            pair = f"{min(one, other)}-{max(one, other)}"
            if other != one and cell and pairs.get(pair, "OK") == "OK":
                pairs[pair] = cell
    return pairs


def parse_numa(text: str) -> dict[int, int]:
    """NUMA node by GPU index. Some drivers put an empty cell before it, so it is the first filled one after the CPUs."""
    header, found = rows(text)
    if "CPU Affinity" not in header:
        return {}
    after = header.index("CPU Affinity") + 1
    first = {index: next(filter(None, cells[after:]), "") for index, cells in found.items()}
    return {index: int(cell) for index, cell in first.items() if cell.isdecimal()}


def lost(texts: Iterable[str], devices: dict[str, str], listed: set[str]) -> list[str]:
    """Cards that nvidia-smi could not describe, from its messages, and from the PCI devices (name: driver) that it left out."""
    found = re.findall(r"^\s*(Unable to determine the device handle.*\S)", "\n".join(texts), re.M | re.I)
    lines = list(dict.fromkeys(found))  # every call repeats them
    for name, driver in devices.items():
        if name not in listed and not any(name in line.lower() for line in lines):
            # A card that was given to a virtual machine is not broken.
            holder = f" (its driver is {driver})" if driver not in ("nvidia", "") else ""
            lines.append(f"{name} is on the PCI bus and nvidia-smi does not list it{holder}")
    return lines


def module_version(text: str) -> str:
    """Version of the loaded module in the text of /proc/driver/nvidia/version or /sys/module/nvidia/version."""
    found = re.search(r"\b\d{3,}(?:\.\d+)+", text)
    return found.group() if found else ""


def is_open(text: str) -> bool | None:
    return "Open Kernel Module" in text if text.strip() else None


def why_none(answer: str | None, loaded: str, kernel: str, devices: int) -> str:
    """Why nvidia-smi describes no card: from what it said (None: nothing in time) and the loaded module's version."""
    if answer is None:
        return f"nvidia-smi did not answer within {TIMEOUT} s: the driver hangs (dmesg: Xid, GSP)"
    if "version mismatch" in answer:
        library = re.search(r"NVML library version: (\S+)", answer)
        return (
            f"The loaded NVIDIA kernel module is {loaded or 'of unknown version'}, the NVIDIA libraries are "
            f"{library.group(1) if library else 'of another version'}: the driver was updated after the module was loaded. "
            "Reboot the node, or stop what uses the GPUs and reload the module."
        )
    if "communicate with the NVIDIA driver" in answer:
        return (
            f"The NVIDIA driver is not loaded; NVIDIA cards on the PCI bus: {devices}. Try `modprobe nvidia`; if that fails, the "
            f"module is not built for kernel {kernel} (dkms status), or Secure Boot refuses it (dmesg)."
        )
    return f"nvidia-smi sees no GPU: {' '.join(answer.split())[:300]}"


# /proc and /sys


def sysfs_name(bus_id: str) -> str:
    """The address as /sys writes it: in small letters, with a domain of four digits unless it needs more."""
    domain, _colon, rest = bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def nvidia_devices() -> dict[str, str]:
    """NVIDIA's display devices on the PCI bus and the driver of each, empty for none. Virtual functions are no cards."""
    found = {}
    for name in sorted(os.listdir(PCI)) if os.path.isdir(PCI) else ():
        folder = os.path.join(PCI, name)
        ids = read(f"{folder}/vendor").strip(), read(f"{folder}/class").strip()[:4]
        if ids == ("0x10de", "0x03") and not os.path.exists(f"{folder}/physfn"):
            driver = os.path.realpath(f"{folder}/driver")
            found[name] = os.path.basename(driver) if os.path.exists(driver) else ""
    return found


def iommu_mode(groups: int, types: set[str], cmdline: str) -> str:
    """Mode from the number of groups, the types of the GPUs' groups and the kernel's command line."""
    if not groups:
        return "off"
    if types & {"DMA", "DMA-FQ"}:
        return "translated"
    if "identity" in types or re.search(r"\biommu=pt\b|\biommu\.passthrough=1\b", cmdline):
        return "passthrough"
    return "off" if re.search(r"\biommu=off\b", cmdline) else "unknown"


def iommu(names: Iterable[str]) -> dict:
    groups = len(os.listdir(IOMMU_GROUPS)) if os.path.isdir(IOMMU_GROUPS) else 0
    types = {read(f"{PCI}/{name}/iommu_group/type").strip() for name in names}
    return {"mode": iommu_mode(groups, types, read("/proc/cmdline")), "groups": groups}


def acs_control(config: bytes) -> int | None:
    """ACS control word in a device's configuration space: 0 without ACS, None when what lies past the header was kept back."""
    if len(config) < 256:
        return None
    # The list of extended capabilities begins at 0x100. Each has its id in 16 bits and the next one's address in the upper 12.
    at = 0x100
    for _step in range(64):  # a broken device may link in a circle
        if at < 0x100 or at + 8 > len(config):
            return 0
        head = int.from_bytes(config[at : at + 4], "little")
        if head & 0xFFFF == 0x000D:
            return int.from_bytes(config[at + 6 : at + 8], "little")
        at = head >> 20
    return 0


def acs() -> int | None:
    words = []
    for name in os.listdir(PCI) if os.path.isdir(PCI) else ():
        if read(f"{PCI}/{name}/class").startswith("0x0604"):
            try:
                with open(f"{PCI}/{name}/config", "rb") as file:
                    words.append(acs_control(file.read()))
            except OSError:
                words.append(None)
    known = [word for word in words if word is not None]
    return sum(word >> 2 & 1 for word in known) if len(known) == len(words) else None


def unit_of(cgroup: str) -> str:
    """The systemd service in the text of /proc/PID/cgroup, if any."""
    found = re.findall(r"/([^/\n]+\.service)", cgroup)
    return found[-1] if found else ""


def masked(command: str) -> str:
    """A command line without the values of options that carry a secret: it goes into messages."""
    return re.sub(
        r"(?i)(--?[\w-]*(?:key|token(?![a-z])|secret|password)[\w-]*)(=|\s+)(?!-)\S+", r"\1\2(secret)", command
    )


def command_of(pid: int) -> str:
    return masked(" ".join(read(f"/proc/{pid}/cmdline").replace("\0", " ").split()))[:200]


def meminfo(text: str) -> dict[str, int]:
    found = dict(re.findall(r"^(MemTotal|MemAvailable):\s+(\d+) kB$", text, re.M))
    return {"total": int(found.get("MemTotal", 0)) // 1024, "available": int(found.get("MemAvailable", 0)) // 1024}


def systemd_version(text: str) -> int:
    """From `systemctl show` (a Version line) or `systemctl --version`."""
    found = re.search(r"^(?:Version=\D*|systemd )(\d+)", text, re.M)
    return int(found.group(1)) if found else 0


def memlock_kib(text: str) -> int:
    """DefaultLimitMEMLOCK from `systemctl show`, in bytes there."""
    found = re.search(r"^DefaultLimitMEMLOCK=(\d+|infinity)$", text, re.M)
    if not found:
        return 0
    # Without limit it is the word, or from an old systemd the largest number.
    return -1 if found.group(1) in ("infinity", str(2**64 - 1)) else int(found.group(1)) // 1024


def pretty_name(text: str) -> str:
    found = re.search(r"^PRETTY_NAME=[\"']?([^\"'\n]*)", text, re.M)
    return found.group(1) if found else ""


def glibc() -> str:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").rpartition(" ")[2]
    except (ValueError, OSError):
        return ""


def port_owner(port: int) -> dict:
    for process in listeners(port):
        return {
            "pid": process.pid,
            "command": command_of(process.pid) or process.name,
            "unit": unit_of(process.cgroups),
        }
    return {}


def nearest(path: str) -> str:
    """The path, or its nearest parent that exists."""
    while not os.path.exists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


def free_mib(path: str) -> int:
    stats = os.statvfs(nearest(path))
    return stats.f_bavail * stats.f_frsize >> 20


def used_mib(path: str) -> int:
    """Apparent size of what lies below a path, or of as much of it as the first entries tell."""
    if os.path.isfile(path):
        return os.path.getsize(path) >> 20
    total, entries, seen = 0, 0, set()
    for folder, folders, files in os.walk(path):
        entries += len(folders)
        for name in files:
            entries += 1
            if entries > ENTRIES:
                return total >> 20
            try:
                stats = os.lstat(os.path.join(folder, name))
            except OSError:
                continue  # gone since
            # Releases share their files by hard links.
            if (stats.st_dev, stats.st_ino) not in seen:
                seen.add((stats.st_dev, stats.st_ino))
                total += stats.st_size
    return total >> 20


def measure(path: str) -> dict:
    return {
        "free_mib": free_mib(path),
        "used_mib": used_mib(path),
        "exists": os.path.exists(path),
        "device": os.stat(nearest(path)).st_dev,
    }


# Commands


def ask(argv: list[str]) -> str | None:
    """What a command prints, its errors last; None when it does not end in time."""
    environment = dict(os.environ, LC_ALL="C")
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=environment)
    except OSError as error:
        return str(error)
    try:
        out, err = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        # Not waited for, as subprocess.run would: a process that hangs inside the driver cannot be killed.
        process.kill()
        return None
    return f"{out.decode(errors='replace')}\n{err.decode(errors='replace')}"


def look_at_gpus(smi: str | None) -> dict:
    """All that nvidia-smi tells, completed from /proc and /sys. It is asked no further when it describes no card."""
    devices, loaded = nvidia_devices(), read(DRIVER)
    answer = ask([smi, "-q"]) if smi else ""
    nodes = tree(answer or "")
    version = told(nodes, "Driver Version") or module_version(loaded) or module_version(read(MODULE))
    more = ["", "", ""]
    if smi and cards(nodes):
        more = [ask([smi, *argv]) or "" for argv in (CAPABILITY, ["topo", "-m"], ["topo", "-p2p", "r"])]
    capabilities, topo, p2p = more

    gpus = parse_gpus(nodes, parse_capabilities(capabilities), version)
    numa = parse_numa(topo)
    for gpu in gpus:
        node = integer(read(f"{PCI}/{sysfs_name(gpu['bus_id'])}/numa_node").strip())
        gpu["numa"] = node if node is not None and node >= 0 else numa.get(gpu["index"])
    processes = parse_processes(nodes, gpus)
    for process in processes:
        process["command"] = command_of(process["pid"]) or process["command"][:200]
        process["unit"] = unit_of(read(f"/proc/{process['pid']}/cgroup"))

    note = ""
    if not smi:
        note = f"nvidia-smi is not installed; NVIDIA cards on the PCI bus: {len(devices)}"
    elif not gpus:
        note = why_none(answer, version, os.uname().release, len(devices))
    # Where the driver answers nothing at all, the note says it once for all cards.
    answers = bool(gpus) or "No devices were found" in (answer or "")
    listed = {sysfs_name(gpu["bus_id"]) for gpu in gpus}
    # Later drivers tell the CUDA version of the library apart from that of the kernel module.
    cuda = told(nodes, "CUDA Version") or told(nodes, "CUDA UMD Version")
    return {
        "gpus": gpus,
        "gpus_lost": lost([answer or "", *more], devices if answers else {}, listed),
        "gpus_note": note,
        "driver": {
            "version": version,
            "cuda": cuda if re.fullmatch(r"\d+\.\d+", cuda) else "",
            "open": is_open(loaded),
        },
        "topology": parse_matrix(topo),
        "p2p": parse_matrix(p2p),
        "sockets": len({gpu["numa"] for gpu in gpus} - {None}),
        "processes": processes,
        "iommu": iommu(devices),
    }


def look_at_cuda(home: str | None) -> dict:
    nvcc = os.path.join(home, "bin/nvcc") if home else ""
    found = re.search(r"release (\d+\.\d+)", ask([nvcc, "--version"]) or "") if os.path.exists(nvcc) else None
    return {"home": home or "", "nvcc": found.group(1) if found else ""}


def look_at_python(path: str) -> dict:
    """Version and headers of an interpreter; nothing where it does not run, or is older than 3."""
    found = re.match(r"(3\.\d+) (True|False)\n", ask([path, "-c", PYTHON]) or "")
    return {"version": found.group(1), "headers": found.group(2) == "True"} if found else {}


def look_at_pythons(path: str) -> list[dict]:
    """All that lie in the folders of a PATH."""
    names = {
        name
        for folder in path.split(os.pathsep)
        if os.path.isdir(folder)
        for name in os.listdir(folder)
        if re.fullmatch(r"python3\.\d+", name)
    }
    ordered = ["python3", *sorted(names, key=lambda name: -int(name.rpartition(".")[2]))]
    found = [look_at_python(program) for program in map(shutil.which, ordered) if program]
    return [one for place, one in enumerate(found) if one and one not in found[:place]]


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "port": {"type": "int"},
            "paths": {"type": "list", "elements": "path", "default": []},
            "cuda_home": {"type": "path"},
            "python": {"type": "path"},
            "tell_unreached": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    port, python = module.params["port"], module.params["python"]
    paths = {path: measure(path) for path in module.params["paths"] if os.path.isabs(path)}
    systemctl = module.get_bin_path("systemctl")
    manager = ""
    # systemctl alone may be there without systemd as the service manager, as in a container.
    if systemctl and os.path.isdir("/run/systemd/system"):
        manager = ask([systemctl, "show", "--property=Version,DefaultLimitMEMLOCK"]) or ""
        # The manager answers only whom it lets; the program knows its own version.
        manager += "" if systemd_version(manager) else ask([systemctl, "--version"]) or ""
    module.exit_json(
        changed=False,
        **look_at_gpus(module.get_bin_path("nvidia-smi")),
        cuda=look_at_cuda(module.params["cuda_home"]),
        python=look_at_python(python).get("version", "") if python else "",
        pythons=look_at_pythons(os.environ.get("PATH", "")),
        compilers={
            "c": shutil.which("gcc") or shutil.which("clang") or "",
            "cxx": shutil.which("c++") or "",
        },
        paths=paths,
        disk_free_mib={path: found["free_mib"] for path, found in paths.items()},
        systemd=systemd_version(manager),
        memlock_kib=memlock_kib(manager),
        acs=acs(),
        cpus=os.cpu_count() or 0,
        memory_mib=meminfo(read("/proc/meminfo")),
        shm_mib=(lambda s: s.f_blocks * s.f_frsize >> 20)(os.statvfs("/dev/shm")) if os.path.isdir("/dev/shm") else 0,
        port_owner=port_owner(port) if port else {},
        uid=os.geteuid(),
        machine=os.uname().machine,
        hostname=os.uname().nodename,
        kernel=os.uname().release,
        os=pretty_name(read("/etc/os-release")),
        glibc=glibc(),
    )


if __name__ == "__main__":
    main()
