"""A unit beside a server: what is decided, and what becomes of files and unit when something fails or a run is killed."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sglang_companion as module
from ansible.module_utils import sglang_node as node
from ansible.module_utils.sglang_ports import Process
from ansible.module_utils.testing import patch_module_args
from helpers import documentation

Capture = pytest.CaptureFixture[str]
HEAD = "# Written by sglang-rtxpro.\n"
KEY, FILE_KEY = "sk-vault.key-1234567890", "sk-file-key-0987654321"
SERVICE, TIMER = "sglang-front.service", "sglang-supervise.timer"


@pytest.mark.parametrize("text", [module.DOCUMENTATION, module.EXAMPLES, module.RETURN])
def test_documentation_is_yaml_and_matches_the_arguments(text: str) -> None:
    loaded = documentation(module, text)
    if text is module.DOCUMENTATION:
        assert set(loaded["options"]["files"]["suboptions"]) == set(module.SPEC["files"]["options"])


# --- what is decided --------------------------------------------------------------------------------------------------

UNIT = module.File("/u/sglang-front.service", HEAD, 0o644, 0, "unit")
CONF = module.File("/etc/front.conf", "c", 0o644, 0)
HERE = {
    UNIT.path: module.Found(HEAD, 0o644, module.OWNER, 0),
    CONF.path: module.Found("c", 0o644, module.OWNER, 0),
}
SHOWN = {"ActiveState": "active", "UnitFileState": "enabled", "LoadState": "loaded", "NeedDaemonReload": "no"}
LOADED = {UNIT.path: module.digest(HEAD), CONF.path: module.digest("c")}


def decide(**changes: Any) -> module.Plan:
    values: dict[str, Any] = {
        "files": [CONF, UNIT],
        "found": HERE,
        "read": {},
        "shown": SHOWN,
        "loaded": LOADED,
        "deaf": (),
        "start": SERVICE,
        "reload": True,
    }
    return module.plan(**{**values, **changes})


def test_nothing_to_do() -> None:
    assert decide() == module.Plan([], []) and not decide()
    # After a boot nobody noted what was loaded: it is what is on disk.
    assert not decide(loaded=None)


@pytest.mark.parametrize(
    ("changes", "reason", "action", "writes"),
    [
        ({"found": {**HERE, CONF.path: module.Found()}}, "/etc/front.conf is new", "reload", 1),
        ({"found": {**HERE, CONF.path: HERE[CONF.path]._replace(text="d")}}, "/etc/front.conf differs", "reload", 1),
        ({"found": {**HERE, CONF.path: HERE[CONF.path]._replace(mode=0o666)}}, "another owner or mode", "reload", 1),
        ({"found": {**HERE, CONF.path: HERE[CONF.path]._replace(uid=12345)}}, "another owner or mode", "reload", 1),
        ({"found": {**HERE, UNIT.path: HERE[UNIT.path]._replace(text=HEAD + "x")}}, "differs", "restart", 1),
        ({"found": {**HERE, UNIT.path: module.Found(masked=True)}}, "was masked by hand", "restart", 1),
        ({"loaded": {**LOADED, CONF.path: "0"}}, "written but not loaded, as a run was interrupted", "reload", 0),
        ({"loaded": {**LOADED, UNIT.path: "0"}}, "written but not loaded, as a run was interrupted", "restart", 0),
        ({"loaded": {UNIT.path: LOADED[UNIT.path]}}, "/etc/front.conf is written but not loaded", "reload", 0),
        ({"shown": {**SHOWN, "ActiveState": "failed"}}, "sglang-front.service is failed", "restart", 0),
        ({"shown": {**SHOWN, "ActiveState": "activating"}}, "is activating", "restart", 0),
        ({"shown": {**SHOWN, "UnitFileState": "disabled"}}, "does not start at boot", "", 0),
        ({"shown": {**SHOWN, "NeedDaemonReload": "yes"}}, "systemd has read another text", "", 0),
        ({"deaf": [8000]}, "does not listen on port 8000", "restart", 0),
        ({"reload": False, "loaded": {**LOADED, CONF.path: "0"}}, "not loaded", "restart", 0),
        ({"start": TIMER, "loaded": {**LOADED, CONF.path: "0"}}, "not loaded", "restart", 0),
        ({"read": {"/c.pem": "new"}, "loaded": {**LOADED, "/c.pem": "old"}}, "/c.pem changed since", "reload", 0),
    ],
)
def test_reasons(changes: dict[str, Any], reason: str, action: str, writes: int) -> None:
    step = decide(**changes)
    assert len(step.reasons) == 1 and reason in step.reasons[0]
    assert step.action == action and len(step.write) == writes


def test_another_port_is_a_matter_of_the_file() -> None:
    """The port is not held yet, and a reload takes it."""
    assert decide(loaded={**LOADED, CONF.path: "0"}, deaf=[8001]).action == "reload"


def test_files_that_others_write() -> None:
    assert not decide(read={"/c.pem": "x"}, loaded={**LOADED, "/c.pem": "x"})
    assert not decide(read={"/c.pem": "x"}), "it was never noted, so it is what was loaded"
    assert not decide(read={"/c.pem": "x"}, loaded=None)


def test_what_a_program_says() -> None:
    log = "nginx: [warn] 16384 worker_connections\nnginx: [emerg] unknown directive\nconfiguration file test failed\n"
    assert module.telling(log) == "nginx: [emerg] unknown directive"
    # SGLang's router: what ran before says that a worker is down, and argparse what is wrong after all options that there are.
    log = (
        '\x1b[2m18:23\x1b[0m \x1b[33m WARN\x1b[0m Step failed \x1b[3merror\x1b[0m="connection failed: transport error"\n'
        "[--log-level {debug,error}]\nrouter.py: error: unrecognized arguments: --no-such-option 1\n"
    )
    assert module.telling(log) == "router.py: error: unrecognized arguments: --no-such-option 1"
    assert module.telling("\x1b[31mit failed\x1b[0m") == "it failed"
    assert module.telling("a\nit failed: x\nb\nit failed: x\n") == "it failed: x"
    assert module.telling("one\ntwo\n\nthree\nfour.\n") == "two / three / four"
    assert module.telling("") == ""


def test_who_has_a_port() -> None:
    own = Process(7, "nginx", "0::/system.slice/sglang-front.service\n", ())
    other = Process(8, "nginx", "0::/system.slice/nginx.service\n", ())
    assert module.of_unit(own, SERVICE) and not module.of_unit(other, SERVICE)
    assert not module.of_unit(own, "front.service")
    assert module.owner(other) == "nginx (pid 8, nginx.service)"
    assert module.owner(Process(9, "python3", "0::/\n", ())) == "python3 (pid 9)"


def test_somebody_elses_unit() -> None:
    assert module.foreign(module.Found("[Unit]\n"))
    assert not module.foreign(module.Found(HEAD + "[Unit]\n"))
    assert not module.foreign(module.Found()) and not module.foreign(module.Found(masked=True))


# --- a node -----------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The run ends here, as by SIGKILL."""


class Node:
    """systemd, journald and ports of a node, and a program that judges files."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.units = root / "etc/systemd/system"
        self.units.mkdir(parents=True)
        (root / "run").mkdir()
        self.known: dict[str, str] = {}  # what systemd has read
        self.running: dict[str, dict[str, str]] = {}  # unit: the texts that it was loaded with
        self.enabled: set[str] = set()
        self.states: dict[str, str] = {}  # other than active and inactive
        self.calls: list[str] = []
        self.fails: dict[str, str] = {}  # a systemctl verb: what it says, once
        self.dies: set[str] = set()  # texts with which a unit ends right after its start
        self.refuses = ""  # a text that the check does not like
        self.says = ""
        self.deaf = False
        self.others: list[Process] = []
        self.kill = ""  # a systemctl verb before which the run is killed
        self.proof = (0, "")

    def texts(self) -> dict[str, str]:
        paths = [path for path in (self.root / "etc").rglob("*") if path.is_file() and not path.is_symlink()]
        return {str(path.relative_to(self.root)): path.read_text() for path in paths}

    def path(self, unit: str) -> Path:
        return self.units / unit

    def masked(self, unit: str) -> bool:
        return self.path(unit).is_symlink()

    def systemctl(self, *argv: str) -> tuple[int, str]:
        verb, unit = argv[0], argv[-1]
        if verb == "show":
            return 0, self.show(unit)
        self.calls.append(" ".join(word for word in argv if not word.startswith("-")))
        if verb == self.kill:
            raise Killed
        if verb in self.fails:
            return 1, self.fails.pop(verb)
        if verb == "daemon-reload":
            self.known = {
                path.name: path.read_text()
                for path in self.units.iterdir()
                if path.suffix in (".service", ".timer") and not path.is_symlink()
            }
        elif verb == "enable":
            self.enabled.add(unit)
        elif verb == "disable":
            self.enabled.discard(unit)
        elif verb == "stop":
            self.running.pop(unit, None)
        elif verb in ("restart", "reload"):
            return self.load(verb, unit)
        return 0, ""

    def load(self, verb: str, unit: str) -> tuple[int, str]:
        if unit not in self.known:
            return 5, f"Unit {unit} not found."
        self.states.pop(unit, None)
        texts = self.texts()
        if verb == "reload":
            assert unit in self.running
            kept = f"etc/systemd/system/{unit}"
            texts[kept] = self.running[unit][kept]
        self.running.pop(unit, None)
        if self.dies & set(texts.values()):
            self.states[unit] = "failed"
        else:
            self.running[unit] = texts
        return 0, ""

    def show(self, unit: str) -> str:
        state = self.states.get(unit) or ("active" if unit in self.running else "inactive")
        load = "masked" if self.masked(unit) else "loaded" if unit in self.known else "not-found"
        file = "masked" if self.masked(unit) else "enabled" if unit in self.enabled else "disabled"
        on_disk = self.path(unit).read_text() if self.path(unit).is_file() and not self.masked(unit) else None
        stale = "yes" if unit in self.known and self.known[unit] != on_disk else "no"
        fragment = self.path(unit) if unit in self.known else ""
        return (
            f"LoadState={load}\nActiveState={state}\nSubState=x\nUnitFileState={file if load != 'not-found' else ''}\n"
            f"NeedDaemonReload={stale}\nFragmentPath={fragment}\nNRestarts=0\n"
        )

    def listeners(self, port: int) -> list[Process]:
        own = [Process(7, "nginx", f"0::/system.slice/{unit}\n", ()) for unit in self.running]
        return self.others + ([] if self.deaf else own)

    def run(self, argv: list[str]) -> tuple[int, str]:
        self.calls.append(argv[0])
        if argv[0] == "journalctl":
            return 0, self.says
        if argv[0] == "/usr/sbin/nginx":
            assert os.path.isdir(argv[-1].rstrip("/")), "the folder of the check is there"
            bad = [text for text in self.texts().values() if self.refuses and self.refuses in text]
            quoted = " ".join(bad[:1]).replace("\n", " ")
            return (1, f"nginx: [emerg] {quoted}\nnginx: configuration file test failed") if bad else (0, "")
        if argv[0] == "prove":
            return self.proof
        return 0, ""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node(tmp_path)
    monkeypatch.setattr(node, "UNITS", str(made.units))
    monkeypatch.setattr(node, "RUN", str(tmp_path / "run/sglang"))
    monkeypatch.setattr(node, "systemctl", made.systemctl)
    monkeypatch.setattr(module, "ETC", str(tmp_path / "etc/sglang"))
    monkeypatch.setattr(module, "OWNER", os.geteuid())
    monkeypatch.setattr(module, "GROUP", os.getegid())
    monkeypatch.setattr(module, "run", made.run)
    monkeypatch.setattr(module, "listeners", made.listeners)
    monkeypatch.setattr(module, "PATIENCE", 0.15)
    monkeypatch.setattr(module, "SETTLE", 0.05)
    return made


Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(host: Node, capsys: Capture) -> Run:
    """One run for the front; what is named differs. Nothing it prints holds a secret."""

    def once(dry: bool = False, conf: str = "conf 1", unit: str = "1", **more: Any) -> dict[str, Any]:
        etc = host.root / "etc/sglang/sglang"
        arguments = {
            "name": "sglang-front",
            "units": {SERVICE: f"{HEAD}[Service]\nExecStart=/bin/{unit}\n"},
            "start": SERVICE,
            "files": [{"path": str(etc / "front.conf"), "content": conf}],
            "secrets": {str(etc / "keys.conf"): f'{HEAD}"~^{KEY}\\z" 1;\n'},
            "check": ["/usr/sbin/nginx", "-t", "-p", "{folder}/"],
            "listens": [8000],
            **more,
        }
        host.calls.clear()
        with (
            patch_module_args({**arguments, "_ansible_check_mode": dry, "_ansible_diff": True}),
            pytest.raises(SystemExit),
        ):
            module.main()
        out = capsys.readouterr().out
        assert KEY not in out and FILE_KEY not in out and KEY.replace(".", "\\.") not in out
        told: dict[str, Any] = json.loads(out)
        return told

    return once


def loaded(host: Node, unit: str = SERVICE) -> bool:
    """Whether what runs was loaded with what is on disk."""
    return host.running.get(unit) == host.texts()


def quiet(run: Run, **same: Any) -> None:
    told = run(**same)
    assert told["changed"] is False and told["reasons"] == [] and not told["restarted"] and not told["reloaded"], told


def test_a_first_run_and_a_second(host: Node, run: Run) -> None:
    told = run()
    assert told["changed"] and told["restarted"] and not told["reloaded"]
    assert [reason.rsplit("/", 1)[-1] for reason in told["reasons"]] == [
        "front.conf is new",
        "keys.conf is new",
        "sglang-front.service is new",
        "sglang-front.service is inactive",
    ]
    assert host.calls == [
        *("systemd-analyze", "/usr/sbin/nginx", "daemon-reload"),
        *(f"enable {SERVICE}", f"reset-failed {SERVICE}", f"restart {SERVICE}"),
    ]
    etc = host.root / "etc/sglang/sglang"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [*etc.iterdir(), *host.units.iterdir()]}
    assert modes == {"front.conf": 0o644, "keys.conf": 0o640, SERVICE: 0o644}
    assert stat.S_IMODE((host.root / "run/sglang/sglang-front.loaded").stat().st_mode) == 0o600
    assert [path.name for path in (host.root / "run/sglang").iterdir()] == ["sglang-front.loaded"]
    assert loaded(host) and host.enabled == {SERVICE}
    quiet(run)
    assert host.calls == []


def test_a_file_that_the_unit_does_not_read_is_written_and_loads_nothing(host: Node, run: Run) -> None:
    path = host.root / "etc/sglang/sglang/prove.py"
    aside = {"path": str(path), "content": "1", "loaded": False}
    conf = {"path": str(host.root / "etc/sglang/sglang/front.conf"), "content": "conf 1"}
    run(files=[conf, aside])
    told = run(files=[conf, {**aside, "content": "2"}], reload=False)
    assert told["changed"] and told["reasons"] == [f"{path} differs"]
    assert not told["restarted"] and not told["reloaded"] and host.calls == ["/usr/sbin/nginx"]
    assert path.read_text() == "2"
    quiet(run, files=[conf, {**aside, "content": "2"}], reload=False)


def test_a_unit_that_runs_and_does_not_do_its_work_is_put_back(host: Node, run: Run) -> None:
    run(prove=["prove"])
    assert host.calls[-1] == "prove"
    quiet(run, prove=["prove"])
    before = host.texts()
    host.proof = (1, "first line\nno worker answers.\n")
    told = run(conf="conf 2", unit="2", prove=["prove"])
    assert (
        told["failed"]
        and "runs, but does not do its work: no worker answers. The files are as they were" in told["msg"]
    )
    assert host.texts() == before and loaded(host) and host.enabled == {SERVICE}
    quiet(run, prove=["prove"])
    host.proof = (1, "")
    assert "prove ended with 1. " in run(conf="conf 2", prove=["prove"])["msg"] and loaded(host)


def test_a_first_unit_that_does_not_do_its_work_is_stopped(host: Node, run: Run) -> None:
    host.proof = (1, "nothing")
    assert "did not run before and was stopped" in run(prove=["prove"])["msg"]
    assert host.texts() == {} and host.running == {} and host.enabled == set()


def test_files_reload_and_units_restart(host: Node, run: Run) -> None:
    run()
    told = run(conf="conf 2")
    assert told["reloaded"] and not told["restarted"] and loaded(host)
    assert host.calls == ["/usr/sbin/nginx", f"reset-failed {SERVICE}", f"reload {SERVICE}"]
    told = run(conf="conf 2", unit="2")
    assert told["restarted"] and not told["reloaded"] and loaded(host)
    told = run(conf="conf 3", unit="2", reload=False)
    assert told["restarted"] and loaded(host)
    quiet(run, conf="conf 3", unit="2")


def test_a_diff_says_of_a_program_that_it_is_another() -> None:
    program = module.File("/etc/sglang/supervise.py", "import os\nprint(1)\n", 0o644, 0)
    [entry] = module.diff([program], {program.path: HERE[CONF.path]._replace(text="old\n")})
    assert entry["after_header"] == program.path and "2 lines" in entry["after"] and "print" not in entry["after"]
    assert entry["before"] != entry["after"]


def test_a_diff_shows_files_and_of_secrets_that_they_change(host: Node, run: Run) -> None:
    keys = str(host.root / "etc/sglang/sglang/keys.conf")
    first = {entry["after_header"]: entry for entry in run()["diff"]}
    assert first[keys]["before"] == "" and first[keys]["after"] == "(secret, changed)\n"
    told = run(conf="conf 2", secrets={keys: '"~^another-key-1234567\\z" 1;\n'})
    shown = {entry["after_header"]: (entry["before"], entry["after"]) for entry in told["diff"]}
    assert shown == {
        str(host.root / "etc/sglang/sglang/front.conf"): ("conf 1", "conf 2"),
        keys: ("(secret)\n", "(secret, changed)\n"),
    }
    assert "another-key" not in json.dumps(told) and "another-key" in Path(keys).read_text()
    assert told["reloaded"] and not told["restarted"]


def test_check_mode_touches_nothing(host: Node, run: Run) -> None:
    told = run(dry=True, group="a-group-that-a-real-run-would-have-made")
    assert told["changed"] and told["restarted"] and host.calls == [] and host.texts() == {}
    assert list((host.root / "run").iterdir()) == []
    run()
    told = run(dry=True, conf="conf 2")
    assert told["reloaded"] and host.calls == [] and loaded(host)
    quiet(run, dry=True)


# --- what fails ---


def test_files_that_are_refused_are_never_loaded(host: Node, run: Run) -> None:
    run()
    before = host.texts()
    host.refuses = "conf 2"
    told = run(conf="conf 2", unit="2")
    assert "nginx refuses what is written: nginx: [emerg] conf 2" in told["msg"]
    assert told["msg"].endswith("The files are as they were, and nothing was loaded.")
    assert host.texts() == before and loaded(host)
    assert not [call for call in host.calls if call.startswith(("restart", "reload", "daemon"))]
    quiet(run)


def test_what_nginx_quotes_of_a_secret_is_not_told(host: Node, run: Run) -> None:
    host.refuses = KEY
    told = run()
    assert "nginx refuses what is written" in told["msg"] and "********" in told["msg"]
    assert host.texts() == {}


def test_a_reload_that_fails(host: Node, run: Run) -> None:
    run()
    before = host.texts()
    host.fails, host.says = {"reload": "Job failed. See journalctl."}, "x\nnginx: [emerg] zero size shared memory\n"
    told = run(conf="conf 2")
    assert "sglang-front.service cannot be reloaded: nginx: [emerg] zero size" in told["msg"]
    assert told["msg"].endswith("The files are as they were, and sglang-front.service runs with them.")
    assert host.texts() == before and loaded(host)
    quiet(run)


def test_a_restart_that_fails_brings_the_old_unit_back(host: Node, run: Run) -> None:
    run()
    before = host.texts()
    host.dies, host.says = {"conf 2"}, "cannot bind"
    told = run(conf="conf 2", unit="2")
    assert "sglang-front.service ended right after its start: cannot bind." in told["msg"]
    assert "runs with them" in told["msg"]
    assert host.texts() == before and loaded(host) and host.known[SERVICE] == before[f"etc/systemd/system/{SERVICE}"]
    quiet(run)


def test_a_first_start_that_fails_leaves_nothing(host: Node, run: Run) -> None:
    host.dies = {"conf 1"}
    told = run()
    assert "did not run before and was stopped" in told["msg"] and "it logged nothing" in told["msg"]
    assert host.texts() == {} and host.running == {} and host.enabled == set() and host.known == {}
    host.dies = set()
    run()
    assert loaded(host)


def test_what_was_before_ends_too(host: Node, run: Run) -> None:
    run()
    host.dies = {"conf 1", "conf 2"}
    told = run(conf="conf 2", unit="2")
    assert "AND what was before could not be put back" in told["msg"] and "ends with the old files too" in told["msg"]
    assert "conf 1" in host.texts().values()


def test_a_port_that_another_has(host: Node, run: Run) -> None:
    run()
    before = host.texts()
    host.deaf, host.others = True, [Process(8, "nginx", "0::/system.slice/nginx.service\n", ())]
    told = run(conf="conf 2")
    assert "does not listen on port 8000" in told["msg"]
    assert "nginx (pid 8, nginx.service) listens on port 8000: stop that, or choose another port." in told["msg"]
    assert host.texts() == before and loaded(host)


def test_a_full_disk(host: Node, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run()
    before = host.texts()
    write = module.node.write

    def full(path: str, text: str, *more: int) -> None:
        if text == f"{HEAD}[Service]\nExecStart=/bin/2\n":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        write(path, text, *more)

    monkeypatch.setattr(module.node, "write", full)
    told = run(conf="conf 2", unit="2")
    assert "No space left on device" in told["msg"] and "nothing was loaded" in told["msg"]
    assert host.texts() == before and loaded(host)


def test_a_program_that_is_not_there() -> None:
    with pytest.raises(module.CompanionError, match="/nonexistent is not on the node"):
        module.run(["/nonexistent"])


def test_a_user_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(module.CompanionError, match="The user nobody-of-that-name is not on the node"):
        module.as_user("nobody-of-that-name", str(tmp_path))
    assert module.as_user(None, str(tmp_path)) == []


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"group": "no-such-group"}, "The group no-such-group is not on the node"),
        ({"start": "other.service"}, "start is other.service, expected one of units: sglang-front.service"),
        (
            {"files": [{"path": "/x", "mode": "rw"}]},
            'The mode of /x is rw, expected octal digits in quotes, such as "0644"',
        ),
        ({"key_file": "/x"}, "missing parameter"),
    ],
)
def test_arguments_that_are_wrong(host: Node, run: Run, more: dict[str, Any], reason: str) -> None:
    assert reason in run(**more)["msg"]
    assert host.texts() == {} and host.calls == []


# --- what others did, and runs that were killed ---


@pytest.mark.parametrize("verb", ["daemon-reload", "restart"])
def test_a_run_killed_between_writing_and_restarting_is_finished(host: Node, run: Run, verb: str) -> None:
    run()
    host.kill = verb
    with pytest.raises(Killed):
        run(conf="conf 2", unit="2")
    host.kill = ""
    assert not loaded(host)
    told = run(conf="conf 2", unit="2")
    assert told["restarted"] and "not loaded, as a run was interrupted" in told["reasons"][0]
    assert loaded(host)
    quiet(run, conf="conf 2", unit="2")


def test_a_run_killed_before_the_reload_is_finished(host: Node, run: Run) -> None:
    run()
    host.kill = "reload"
    with pytest.raises(Killed):
        run(conf="conf 2")
    host.kill = ""
    told = run(conf="conf 2")
    assert told["reloaded"] and not told["restarted"] and loaded(host)


def test_a_killed_run_that_is_taken_back(host: Node, run: Run) -> None:
    """The next run wants the old files again, which are still what is loaded."""
    run()
    host.kill = "reload"
    with pytest.raises(Killed):
        run(conf="conf 2")
    host.kill = ""
    assert run()["reloaded"] and loaded(host)
    quiet(run)


def test_after_a_boot_what_is_on_disk_runs(host: Node, run: Run) -> None:
    run()
    (host.root / "run/sglang/sglang-front.loaded").unlink()
    quiet(run)
    assert (host.root / "run/sglang/sglang-front.loaded").exists(), "noted for the next run"


def test_a_run_killed_as_the_first_one_after_a_boot(host: Node, run: Run) -> None:
    run()
    (host.root / "run/sglang/sglang-front.loaded").unlink()
    host.kill = "reload"
    with pytest.raises(Killed):
        run(conf="conf 2")
    host.kill = ""
    assert run(conf="conf 2")["reloaded"] and loaded(host)


def test_a_killed_run_and_a_boot(host: Node, run: Run) -> None:
    run()
    host.kill = "restart"
    with pytest.raises(Killed):
        run(conf="conf 2", unit="2")
    host.kill = ""
    (host.root / "run/sglang/sglang-front.loaded").unlink()
    host.systemctl("daemon-reload")
    host.systemctl("restart", SERVICE)  # by the boot
    quiet(run, conf="conf 2", unit="2")


def test_a_temporary_file_of_a_killed_run(host: Node, run: Run) -> None:
    etc = host.root / "etc/sglang/sglang"
    etc.mkdir(parents=True)
    (etc / "keys.conf.77.new").write_text("half")
    run()
    assert sorted(path.name for path in etc.iterdir()) == ["front.conf", "keys.conf"]


def test_a_masked_unit_is_healed_and_said(host: Node, run: Run) -> None:
    run()
    host.systemctl("stop", SERVICE)
    host.path(SERVICE).unlink()
    host.path(SERVICE).symlink_to("/dev/null")
    told = run()
    assert f"{host.path(SERVICE)} was masked by hand" in told["reasons"]
    assert told["restarted"] and loaded(host) and not host.path(SERVICE).is_symlink()
    quiet(run)


def test_a_masked_unit_that_cannot_start_is_masked_again(host: Node, run: Run) -> None:
    host.path(SERVICE).symlink_to("/dev/null")
    host.dies = {"conf 1"}
    assert "was stopped" in run()["msg"]
    assert os.readlink(host.path(SERVICE)) == "/dev/null" and host.texts() == {}


def test_somebody_elses_unit_is_refused(host: Node, run: Run) -> None:
    host.path(SERVICE).write_text("[Service]\nExecStart=/mine\n")
    told = run()
    assert "was not written by this project" in told["msg"] and "Move it away" in told["msg"]
    assert list(host.texts()) == [f"etc/systemd/system/{SERVICE}"] and host.calls == []


@pytest.mark.parametrize(
    ("spoil", "reason", "calls"),
    [
        (lambda host: host.systemctl("stop", SERVICE), "is inactive", [f"restart {SERVICE}"]),
        (lambda host: host.systemctl("disable", SERVICE), "does not start at boot", [f"enable {SERVICE}"]),
        (
            lambda host: (host.root / "etc/sglang/sglang/keys.conf").chmod(0o644),
            "has another owner or mode",
            [f"reload {SERVICE}"],
        ),
        (
            lambda host: (host.root / "etc/sglang/sglang/front.conf").write_text("by hand"),
            "differs",
            [f"reload {SERVICE}"],
        ),
        (lambda host: host.path(SERVICE).unlink(), "is new", ["daemon-reload", f"restart {SERVICE}"]),
    ],
)
def test_what_was_changed_by_hand_is_put_right(
    host: Node, run: Run, spoil: Callable[[Node], Any], reason: str, calls: list[str]
) -> None:
    run()
    spoil(host)
    told = run()
    assert told["changed"] and any(reason in said for said in told["reasons"])
    assert [call for call in host.calls if "reset" not in call and " " in call or "daemon" in call] == calls
    assert loaded(host) and host.enabled == {SERVICE}
    quiet(run)


def test_a_front_that_lost_its_port(host: Node, run: Run) -> None:
    run()
    host.deaf = True
    told = run()
    assert "does not listen on port 8000" in told["reasons"][0] and "does not listen" in told["msg"]
    host.deaf = False
    quiet(run)


def test_a_renewed_certificate(host: Node, run: Run) -> None:
    chain = host.root / "front.pem"
    run(reads=[str(chain)])
    for text in ("first", "second"):
        chain.write_text(text)
        told = run(reads=[str(chain)])
        assert told["reloaded"] and told["reasons"] == [f"{chain} changed since it was loaded"]
        quiet(run, reads=[str(chain)])


# --- timers, key files ---


def supervise(text: str = "1", timer: str = "1", **more: Any) -> dict[str, Any]:
    return {
        "name": "sglang-supervise",
        "units": {"sglang-supervise.service": f"{HEAD}{text}", TIMER: f"{HEAD}{timer}"},
        "start": TIMER,
        "files": [],
        "secrets": {},
        "check": [],
        "listens": [],
        **more,
    }


def test_a_timer(host: Node, run: Run) -> None:
    told = run(**supervise())
    assert told["restarted"] and host.enabled == {TIMER} and set(host.running) == {TIMER}
    quiet(run, **supervise())
    assert run(**supervise("2"))["restarted"] and run(**supervise("2", "2"))["restarted"]
    told = run(**supervise("2", "2", files=[{"path": str(host.root / "etc/program"), "mode": "0755"}]))
    assert told["restarted"] and not told["reloaded"] and os.access(host.root / "etc/program", os.X_OK)


def key_file(host: Node, text: str, mode: int = 0o600) -> dict[str, Any]:
    path = host.root / "keys"
    path.write_text(text)
    path.chmod(mode)
    return {"key_file": str(path), "key_target": str(host.root / "etc/sglang/sglang/keys.conf")}


def test_keys_of_a_file_on_the_node_are_added(host: Node, run: Run) -> None:
    run(**key_file(host, f"# ours\n{FILE_KEY}\n"))
    target = host.root / "etc/sglang/sglang/keys.conf"
    assert target.read_text() == f'{HEAD}"~^{KEY}\\z" 1;\n"~^{FILE_KEY}\\z" 1;\n'
    quiet(run, **key_file(host, f"{FILE_KEY}\n"))
    told = run(**key_file(host, f"{FILE_KEY}-next\n", 0o400), secrets={})
    assert told["reloaded"] and target.read_text().splitlines()[1:] == [f'"~^{FILE_KEY}-next\\z" 1;']
    host.refuses = FILE_KEY
    assert "********" in run(**key_file(host, f"{FILE_KEY}-third\n"))["msg"]


def test_no_key_file(host: Node, run: Run) -> None:
    """As the role gives it: empty, with its target."""
    run(key_file="", key_target=str(host.root / "etc/sglang/sglang/keys.conf"))
    assert loaded(host)


@pytest.mark.parametrize(
    ("text", "mode", "reason"),
    [
        (FILE_KEY, 0o644, "has mode 0644 and owner"),
        (FILE_KEY, 0o640, "has mode 0640 and owner"),
        ("# none\n", 0o600, "holds no key"),
        (f"{FILE_KEY}\nshort\n", 0o600, "Key 2 of .* has 5 characters"),
        (f'{FILE_KEY}"\n', 0o600, "Key 1 of .* holds"),
    ],
)
def test_key_files_that_are_refused(host: Node, run: Run, text: str, mode: int, reason: str) -> None:
    told = run(**key_file(host, text, mode))
    assert re.search(reason, told["msg"]) and host.texts() == {}


def test_a_key_file_that_is_not_there(host: Node, run: Run) -> None:
    given = key_file(host, FILE_KEY)
    (host.root / "keys").unlink()
    told = run(**given)
    assert "cannot be read: No such file or directory" in told["msg"] and "install -m 0600" in told["msg"]


# --- absent ---


def test_absent_takes_everything(host: Node, run: Run) -> None:
    run()
    told = run(dry=True, state="absent")
    assert told["changed"] and told["restarted"] and loaded(host)
    told = run(state="absent", secrets={str(host.root / "etc/sglang/sglang/keys.conf"): ""})
    assert told["changed"] and host.texts() == {} and host.running == {} and host.known == {} and host.enabled == set()
    assert not (host.root / "etc/sglang/sglang").exists() and (host.root / "etc/sglang").exists()
    assert list((host.root / "run/sglang").iterdir()) == []
    quiet(run, state="absent")
    assert host.calls == []


def test_absent_leaves_what_is_not_its_own(host: Node, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[str] = []
    monkeypatch.setattr(module.AnsibleModule, "warn", lambda _, text: warned.append(text))
    run()
    (host.root / "etc/sglang/sglang/note").write_text("mine")
    assert run(state="absent")["changed"]
    assert list(host.texts()) == ["etc/sglang/sglang/note"]
    host.path(SERVICE).write_text("[Service]\n")
    host.systemctl("daemon-reload")
    host.systemctl("restart", SERVICE)
    told = run(state="absent")
    assert not told["changed"] and "was not written by this project and stays" in warned[0]
    assert SERVICE in host.running


@pytest.mark.parametrize("verb", ["stop", "disable", "daemon-reload", "reset-failed"])
def test_absent_finishes_what_was_begun(host: Node, run: Run, verb: str) -> None:
    run()
    host.kill = verb
    with pytest.raises(Killed):
        run(state="absent")
    host.kill = ""
    assert run(state="absent")["changed"]
    assert host.texts() == {} and host.running == {} and host.known == {}
    quiet(run, state="absent")


def test_absent_of_a_masked_unit(host: Node, run: Run) -> None:
    host.path(SERVICE).symlink_to("/dev/null")
    assert run(state="absent")["changed"] and not host.path(SERVICE).is_symlink()
    quiet(run, state="absent")
