"""tools/testhosts: what it decides. Nothing here needs root, boots a host or touches the network."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "testhosts"


def load():
    """The tool has no .py suffix, as it is a command."""
    loader = SourceFileLoader("testhosts_tool", str(TOOL))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module  # dataclasses look their module up
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # no __pycache__ beside the tools
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module


th = load()
NET = th.Network("sgth0", "10.213.7")
STATE = Path("/var/tmp/state")
HOST = th.Host("gpu-node", NET, STATE)
SETTINGS = th.Settings("10.213.7.11", "bookworm", "/k/id.pub", "ssh-ed25519 AAAA", ("/srv/w:/srv/w:ro", "/a:/b"))


# Names


def test_names_of_two_states_never_meet():
    other = th.Host("gpu-node", th.Network("sgth1", "10.213.8"), STATE)
    for part in ("machine", "veth", "cgroup"):
        assert getattr(HOST, part) != getattr(other, part)
    assert NET.table != other.network.table


def test_names_fit_the_kernel_at_their_longest():
    host = th.Host("a" * 48, th.Network("b" * 15, "10.213.7"), STATE)
    assert len(host.veth) <= 15
    assert len(host.machine) <= 64


def test_machine_name_splits_into_bridge_and_host():
    assert HOST.machine.partition("-") == ("sgth0", "-", "gpu-node")
    with pytest.raises(th.Problem):
        th.check_bridge("with-hyphen")


@pytest.mark.parametrize("name", ["", "-a", "a-", "Upper", "under_score", "a.b", "../x", "a" * 49])
def test_bad_host_names_are_refused(name):
    with pytest.raises(th.Problem, match="host name"):
        th.check_name(name)


@pytest.mark.parametrize("name", ["a", "gpu-node", "1", "a" * 48])
def test_good_host_names(name):
    assert th.check_name(name) == name


@pytest.mark.parametrize("bridge", ["", "b" * 16, "0br", "br 0", "br/0"])
def test_bad_bridges_are_refused(bridge):
    with pytest.raises(th.Problem, match="--bridge"):
        th.check_bridge(bridge)


@pytest.mark.parametrize("prefix", ["10.213", "10.213.7.0", "10.213.256", "8.8.8", "127.0.0", "169.254.1", "x"])
def test_bad_nets_are_refused(prefix):
    with pytest.raises(th.Problem, match="--net"):
        th.check_prefix(prefix)


def test_folders_that_overlay_cannot_name_are_refused():
    assert th.check_folder("/var/tmp/x", "--state") == Path("/var/tmp/x")
    for bad in ("/a,b", "/a:b", "/a b"):
        with pytest.raises(th.Problem, match="--state"):
            th.check_folder(bad, "--state")


def test_mac_follows_from_the_address_and_is_local_unicast():
    assert th.mac("10.213.7.11") == "02:00:0a:d5:07:0b"
    assert int(th.mac("10.213.7.11")[:2], 16) & 0b11 == 0b10


# Arguments


def test_address_inside_the_subnet():
    assert th.check_address("10.213.7.11", NET, {"10.213.7.12": "two"}) == "10.213.7.11"


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("10.213.8.11", "outside 10.213.7.0/24"),
        ("10.213.7.1", "the network's own"),
        ("10.213.7.0", "the network's own"),
        ("10.213.7.255", "the network's own"),
        ("10.213.7.12", "taken by host two"),
        ("10.213.7", "expected an IPv4 address"),
        ("fe80::1", "expected an IPv4 address"),
    ],
)
def test_bad_addresses_are_refused(address, words):
    with pytest.raises(th.Problem, match=re.escape(words)):
        th.check_address(address, NET, {"10.213.7.12": "two"})


def test_binds():
    def everything(_path):
        return True

    assert th.check_bind("/srv/w:/data", everything) == "/srv/w:/data"
    assert th.check_bind("/srv/w/:/data/:ro", everything) == "/srv/w:/data:ro"
    for bad in ("/srv/w", "/srv/w:/data:rw", "/a:/b:ro:ro", "/srv/w:data", "/srv/w:/", ":/data"):
        with pytest.raises(th.Problem, match="--bind"):
            th.check_bind(bad, everything)
    with pytest.raises(th.Problem, match="make it first"):
        th.check_bind("/srv/w:/data", lambda path: False)


def test_public_key_is_read_without_its_comment(tmp_path):
    key = tmp_path / "id.pub"
    key.write_text("ssh-ed25519 AAAAC3 me@here\n")
    assert th.read_public_key(key) == "ssh-ed25519 AAAAC3"


def test_missing_or_private_key_is_refused(tmp_path):
    with pytest.raises(th.Problem, match=r"ssh-keygen .*/id`"):
        th.read_public_key(tmp_path / "id.pub")
    private = tmp_path / "id"
    private.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nb3Blb\n")
    with pytest.raises(th.Problem, match="give the .pub file"):
        th.read_public_key(private)


def test_settings_survive_their_file_and_name_what_differs():
    assert th.Settings.from_json(SETTINGS.to_json()) == SETTINGS
    other = th.Settings("10.213.7.12", "bookworm", "/elsewhere/id.pub", "ssh-ed25519 AAAA", ())
    assert SETTINGS.differences(other) == ["--address", "--bind"]
    assert SETTINGS.differences(SETTINGS) == []


def test_all_missing_commands_are_named_with_one_remedy():
    assert th.missing_commands(lambda command: f"/usr/bin/{command}") == ""
    message = th.missing_commands(lambda command: None if command in ("nft", "mmdebstrap") else "/x")
    assert "mmdebstrap, nft" in message
    assert message.endswith("apt-get install -y --no-install-recommends mmdebstrap nftables")


def test_where_is_taken_before_or_after_the_command_or_from_the_environment(monkeypatch):
    monkeypatch.setenv("TESTHOSTS_BRIDGE", "fromenv")
    monkeypatch.delenv("TESTHOSTS_STATE", raising=False)
    parse = th.arguments().parse_args
    assert parse(["--state", "/a", "list"]).state == "/a"
    assert parse(["list", "--state", "/b"]).state == "/b"
    assert parse(["list"]).state == th.DEFAULT_STATE
    assert parse(["list"]).bridge == "fromenv"
    assert parse(["list", "--bridge", "given"]).bridge == "given"


def test_ssh_takes_the_command_as_it_is():
    options = th.arguments().parse_args(["ssh", "one", "ls", "-la", "--all"])
    assert options.command == ["ls", "-la", "--all"]
    argv = th.ssh_command(SETTINGS, options.command)
    assert argv[:3] == ["ssh", "-i", "/k/id"]
    assert argv[-4:] == ["root@10.213.7.11", "ls", "-la", "--all"]


# The network


def interface(name, *addresses):
    held = [dict(zip(("local", "prefixlen"), (a.split("/")[0], int(a.split("/")[1])))) for a in addresses]
    return {"ifname": name, "addr_info": [{"family": "inet6" if ":" in h["local"] else "inet", **h} for h in held]}


@pytest.mark.parametrize("taken", ["10.213.7.200/24", "10.0.0.5/8", "10.213.7.9/32"])
def test_a_subnet_in_use_is_seen(taken):
    assert th.overlap(NET, [interface("lo", "127.0.0.1/8", "::1/128"), interface("eth0", taken)]) == f"eth0 ({taken})"


def test_own_bridge_and_other_subnets_do_not_overlap():
    assert (
        th.overlap(NET, [interface("sgth0", "10.213.7.1/24"), interface("eth0", "10.213.8.1/24", "fd00::2/64")]) == ""
    )


def link(name, alias=None):
    return {name: {"ifname": name, **({"ifalias": alias} if alias else {})}}


MINE = f"sglang-testhosts:10.213.7:{STATE}"
OTHERS = "sglang-testhosts:10.213.9:/var/tmp/other"


@pytest.mark.parametrize(
    ("recorded", "known", "own"),
    [
        pytest.param(None, {}, None, id="new state"),
        pytest.param(NET, link("sgth0", MINE), NET, id="as recorded"),
        pytest.param(NET, {}, NET, id="recorded, bridge gone with a reboot of the machine"),
        pytest.param(NET, link("sgth0"), NET, id="killed between making the bridge and naming its owner"),
        pytest.param(NET, link("sgth0", OTHERS), None, id="another state has taken the bridge since"),
        pytest.param(None, link("sgth0", MINE), NET, id="record removed by hand"),
        pytest.param(None, link("sgth0", OTHERS), None, id="another state's bridge"),
        pytest.param(None, link("sgth0"), None, id="a bridge of something else"),
        pytest.param(None, link("sgth0", "sglang-testhosts:10.213.7:/var/tmp/state2"), None, id="a longer name"),
    ],
)
def test_whose_network_it_is(recorded, known, own):
    assert th.own_network(STATE, recorded, known) == own


def test_bridge_alias_is_the_one_that_is_recognised():
    add, name = th.bridge_commands(NET, STATE)
    assert add[:5] == ["ip", "link", "add", "name", "sgth0"]
    assert th.own_network(STATE, None, link("sgth0", name[name.index("alias") + 1])) == NET


def test_a_state_keeps_its_network(tmp_path):
    assert th.choose_network(NET, tmp_path) == NET
    (tmp_path / "network.json").write_text(json.dumps({"bridge": "sgth0", "prefix": "10.213.7"}))
    assert th.choose_network(NET, tmp_path) == NET
    with pytest.raises(th.Problem, match="another --state"):
        th.choose_network(th.Network("sgth1", "10.213.8"), tmp_path)


def test_nat_rules_replace_the_table_at_once():
    rules = th.nat_rules(NET)
    assert rules.count("table ip sglang-testhosts-sgth0") == 3
    assert 'ip saddr 10.213.7.0/24 oifname != "sgth0" masquerade' in rules
    assert rules.count("{") == rules.count("}")


# Plans


def test_link_puts_the_address_inside_and_the_other_end_on_the_bridge():
    commands = [" ".join(command) for command in th.link_commands(HOST, "10.213.7.11")]
    assert "ip netns add sgth0-gpu-node" in commands
    assert f"ip link set dev {HOST.veth} master sgth0 up" in commands
    assert "ip -netns sgth0-gpu-node address add 10.213.7.11/24 dev eth0" in commands
    assert commands[-1] == "ip -netns sgth0-gpu-node route add default via 10.213.7.1"


def test_nspawn_boots_without_machined_and_binds_folders():
    argv = th.nspawn_command(HOST, SETTINGS)
    for word in (
        "--boot",
        "--register=no",
        "--keep-unit",
        "--machine=sgth0-gpu-node",
        "--hostname=gpu-node",
        "--network-namespace-path=/run/netns/sgth0-gpu-node",
        "--directory=/var/tmp/state/hosts/gpu-node/root",
        "--bind-ro=/srv/w:/srv/w",
        "--bind=/a:/b",
    ):
        assert word in argv


def test_runner_starts_again_after_a_reboot_and_ends_with_anything_else(tmp_path):
    """The guest asked for two reboots, then ended with 7."""
    count = tmp_path / "count"
    guest = f'echo x >> {count}; [ "$(wc -l < {count})" = 3 ] && exit 7; exit {th.REBOOT}'
    done = subprocess.run(
        ["sh", "-c", th.RUNNER, "runner", "sh", "-c", guest], capture_output=True, text=True, check=False, timeout=10
    )
    assert done.returncode == 7
    assert count.read_text().count("x") == 3
    assert "ended with status 7" in done.stdout


def test_sources_of_the_machine_for_another_release():
    text = "Suites: bookworm bookworm-updates\n\nSuites: bookworm-security\nURIs: http://mirror/bookworms\n"
    assert th.suite_sources(text, "bookworm", "trixie") == (
        "Suites: trixie trixie-updates\n\nSuites: trixie-security\nURIs: http://mirror/bookworms\n"
    )


def test_base_is_named_after_all_that_goes_in():
    names = {
        th.base_name("bookworm", "sources", [b"a"]),
        th.base_name("trixie", "sources", [b"a"]),
        th.base_name("bookworm", "others", [b"a"]),
        th.base_name("bookworm", "sources", [b"b"]),
    }
    assert len(names) == 4
    assert th.base_name("bookworm", "sources", [b"a"]) in names


MOUNTINFO = """\
25 1 254:0 / / rw,relatime - ext4 /dev/vda rw
90 25 0:39 / /s/hosts/one/root rw,relatime - overlay testhosts-a-one rw,lowerdir=/c/base-x-1,upperdir=/s/u,workdir=/s/w
91 90 0:40 / /s/hosts/one/root/proc rw - proc proc rw
92 25 0:41 / /s/hosts/one2/root rw - overlay testhosts-a-one2 rw,lowerdir=/c2/base-x-1,upperdir=/s/u2,workdir=/s/w2
"""


def test_mounts_are_found_deepest_first_and_only_below():
    assert th.mounts_below(Path("/s/hosts/one"), MOUNTINFO) == ["/s/hosts/one/root/proc", "/s/hosts/one/root"]
    assert th.mounts_below(Path("/nowhere"), MOUNTINFO) == []


def test_a_cache_in_use_is_seen():
    assert th.lowers_below(Path("/c"), MOUNTINFO) == ["/s/hosts/one/root"]
    assert th.lowers_below(Path("/c3"), MOUNTINFO) == []


# Files and locks


def test_lock_may_be_removed_by_its_holder_and_waits_for_others(tmp_path):
    lock = tmp_path / "deep" / "lock"
    with th.locked(lock):
        assert not try_lock(lock)
        lock.unlink()
        assert try_lock(lock)  # a new file: the next one need not wait for a lock that nobody can find
    assert try_lock(lock)


def try_lock(path):
    code = (
        "import fcntl, sys\n"
        "try: fcntl.flock(open(sys.argv[1], 'a'), fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except BlockingIOError: sys.exit(1)"
    )
    return subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 0


def test_an_empty_state_folder_goes_one_with_a_network_stays(tmp_path):
    state = tmp_path / "state"
    with th.changing(state):
        (state / "hosts").mkdir()
    assert not state.exists()
    with th.changing(state):
        (state / "network.json").write_text("{}")
    assert (state / "network.json").exists()


def test_a_failed_command_says_its_words():
    with pytest.raises(th.Problem, match=r"`sh -c 'echo no luck >&2; exit 3'` failed with status 3: no luck"):
        th.run(["sh", "-c", "echo no luck >&2; exit 3"])


def test_help_explains_itself():
    done = subprocess.run([sys.executable, str(TOOL), "--help"], capture_output=True, text=True, check=True)
    for word in ("example session", "testhosts up one", "gc", "cut", "mend", "TESTHOSTS_STATE"):
        assert word in done.stdout


def test_not_root_is_refused(monkeypatch):
    monkeypatch.setattr(th, "machine_release", lambda: {"ID": "debian"})
    monkeypatch.setattr(th.os, "geteuid", lambda: 1000)
    with pytest.raises(th.Problem, match="need root"):
        th.check_machine()


@pytest.mark.parametrize(("platform", "release"), [("linux", {"ID": "fedora"}), ("darwin", {}), ("linux", {})])
def test_other_machines_are_refused(monkeypatch, platform, release):
    monkeypatch.setattr(th.sys, "platform", platform)
    monkeypatch.setattr(th, "machine_release", lambda: release)
    with pytest.raises(th.Problem, match="Debian machine"):
        th.check_machine()
