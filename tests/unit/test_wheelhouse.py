"""tools/wheelhouse and tools/locks: what is decided from text, and a wheelhouse filled by a pip that is stood in."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import helpers
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
STACKS = ROOT / "stacks"


tool = helpers.tool("wheelhouse")
locks = helpers.tool("locks")
Requirement, Wheel = tool.Requirement, tool.Wheel

A, B, C = ("a" * 64, "b" * 64, "c" * 64)


# --- decided from text ---


@pytest.mark.parametrize("path", [STACKS / "uv.yml", *sorted(STACKS.glob("*/stack.yml"))], ids=lambda p: p.parent.name)
def test_the_small_reader_reads_what_a_yaml_parser_reads(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    truth = yaml.safe_load(text)
    scalars = tool.read_mapping(text)
    expected = {}
    for key, value in truth.items():
        if isinstance(value, str) and "\n" not in value and key != "summary":
            expected[key] = value
        if isinstance(value, dict):
            expected.update({f"{key}.{inner}": scalar for inner, scalar in value.items()})
    assert expected
    assert {key: scalars.get(key) for key in expected} == expected


def test_the_small_reader_nests_and_leaves_comments() -> None:
    text = "---\na: '1' # why\nb:\n  # c: 2\n  d: \"3\"\n  e:\n    f: 4\ng: 5\n"
    assert tool.read_mapping(text) == {"a": "1", "b.d": "3", "b.e.f": "4", "g": "5"}


def test_a_lock_is_read_with_its_hashes() -> None:
    text = (
        f"# head\nfoo==1.0 \\\n    --hash=sha256:{A} \\\n    --hash=sha256:{B}\n    # via bar\n"
        f"x.y==2 \\\n    --hash=sha256:{C}\n"
    )
    assert tool.read_lock(text) == [
        Requirement("foo", "1.0", frozenset([A, B])),
        Requirement("x.y", "2", frozenset([C])),
    ]


@pytest.mark.parametrize("line", ["foo==1.0", f"foo>=1 --hash=sha256:{A}", "foo==1 --hash=sha256:12", "-e ."])
def test_a_lock_line_without_pin_or_hash_is_refused(line: str) -> None:
    with pytest.raises(tool.WheelhouseError, match="tools/locks"):
        tool.read_lock(line)


@settings(max_examples=25, deadline=None)  # a busy machine is no fault
@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z0-9-]{0,8}[a-z0-9]", fullmatch=True),
        st.tuples(
            st.from_regex(r"[0-9]\.[0-9]{1,2}(\+cpu)?", fullmatch=True),
            st.sets(st.integers(0, 16**64 - 1).map("{:064x}".format), min_size=1, max_size=3),
        ),
    )
)
def test_what_pip_is_given_reads_back(entries: dict[str, tuple[str, set[str]]]) -> None:
    requirements = [Requirement(name, version, frozenset(hashes)) for name, (version, hashes) in entries.items()]
    assert tool.read_lock("\n".join(requirement.line() for requirement in requirements)) == requirements


def test_hashed_requirements_are_met_by_hash_alone() -> None:
    requirement = Requirement("foo", "1.0", frozenset([A, B]))
    assert tool.fits(Wheel("foo-1.0-py3-none-any.whl", B, 1), requirement)
    assert not tool.fits(Wheel("foo-1.0-py3-none-any.whl", C, 1), requirement)


def test_torch_without_hash_is_met_by_the_exact_local_version_only() -> None:
    torch = Requirement("torch", "2.13.0+cpu")
    assert tool.fits(Wheel("torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl", A, 1), torch)
    assert not tool.fits(Wheel("torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl", A, 1), torch)
    assert not tool.fits(Wheel("torchvision-2.13.0+cpu-cp311-cp311-linux_x86_64.whl", A, 1), torch)


def test_what_is_missing_is_named() -> None:
    foo, bar = Requirement("foo", "1", frozenset([A])), Requirement("bar", "2", frozenset([B]))
    wheel = Wheel("foo-1-py3-none-any.whl", A, 1)
    assert tool.select([foo, bar], [wheel, Wheel("stray-1-py3-none-any.whl", C, 1)]) == ([wheel], [bar])


def test_torch_is_fetched_in_a_run_of_its_own() -> None:
    torch = Requirement("torch", "1")
    others = [Requirement(f"p{number}", "1", frozenset([A])) for number in range(tool.GROUP + 1)]
    assert [len(group) for group in tool.groups([*others, torch])] == [1, tool.GROUP, 1]
    assert next(tool.groups([*others, torch])) == [torch]


def test_pip_is_asked_for_the_nodes_python_and_never_for_sources(tmp_path: Path) -> None:
    arguments = tool.pip_arguments("3.12", tmp_path / "list", tmp_path, hashed=True, index=None)
    text = " ".join(arguments)
    for expected in ("--python-version 3.12", "--abi cp312", "--only-binary :all:", "--no-deps", "--require-hashes"):
        assert expected in text
    assert "--platform manylinux_2_28_x86_64" in text
    assert "--index-url" not in text
    torch = " ".join(tool.pip_arguments("3.11", tmp_path / "list", tmp_path, hashed=False, index="https://x/cpu"))
    assert "--require-hashes" not in torch
    assert "--index-url https://x/cpu" in torch


def test_locks_and_wheels_are_for_the_same_glibc() -> None:
    assert f"x86_64-manylinux_2_{tool.GLIBC}" == locks.PLATFORM


NO_MATCH = (
    "ERROR: Could not find a version that satisfies the requirement x\nERROR: No matching distribution found for x"
)
UNREACHABLE = "WARNING: Retrying … NewConnectionError('Failed to establish a new connection')\n" + NO_MATCH
MISMATCH = """ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have updated …
    foo==1.0 from https://index/foo-1.0-py3-none-any.whl:
        Expected sha256 aaaa
             Got        bbbb
"""


@pytest.mark.parametrize(
    ("output", "name", "says"),
    [
        (NO_MATCH, "torch", r"torch==1.0: no such build.*CUDA build of gigabytes.*https://.*--torch-index"),
        (UNREACHABLE, "torch", r"no way to the package index for torch==1.0.*proxy"),
        (UNREACHABLE, "foo", r"no way to the package index for foo==1.0"),
        (MISMATCH, "foo", r"hash mismatch: foo==1.0 from https://index/foo.*find-links.*tools/locks"),
        ("ERROR: Could not install: [Errno 28] No space left on device", "foo", r"/house: the disk is full.*--dir"),
        (NO_MATCH, "foo", r"could not fetch one of foo==1.0: ERROR: No matching distribution"),
    ],
)
def test_each_failure_names_the_thing_and_the_remedy(output: str, name: str, says: str) -> None:
    assert re.search(says, tool.explain(output, [Requirement(name, "1.0")], Path("/house")))


def test_an_unknown_stack_is_answered_with_the_known() -> None:
    with pytest.raises(tool.WheelhouseError, match=r"nope: no such stack.*sglang-cpu-0\.5\.23, sglang-cpu-0\.5\.9"):
        tool.find_stack("nope")
    with pytest.raises(locks.LocksError, match=r"nope: no such stack.*sglang-cpu-0\.5\.23"):
        locks.select(["nope"])


def test_a_python_without_a_lock_is_answered_with_those_that_have_one() -> None:
    with pytest.raises(tool.WheelhouseError, match=r"no lock for Python 3\.9\. There is one for: 3\.11"):
        tool.wanted(STACKS / "sglang-cpu-0.5.23", "3.9")


def test_a_cpu_stack_wants_torch_its_lock_and_uv() -> None:
    requirements = tool.wanted(STACKS / "sglang-cpu-0.5.23", "3.11")
    assert requirements[0] == Requirement("torch", "2.13.0+cpu")
    assert requirements[-1].name == "uv"
    assert len(requirements[-1].sha256) == 1
    assert "sglang" in [requirement.name for requirement in requirements]


# --- a wheelhouse, with pip stood in ---


def content(name: str) -> bytes:
    return f"the wheel of {name}".encode()


class Pip:
    """Stands in for `pip download`: makes a file for each line of the requirements file, or fails as told."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fail: dict[str, str] = {}

    def __call__(self, command: list[str], **options: Any) -> SimpleNamespace:
        into = Path(command[command.index("--dest") + 1])
        for line in Path(command[command.index("--requirement") + 1]).read_text().splitlines():
            name, version = line.split()[0].split("==")
            self.asked.append(name)
            if name in self.fail:
                return SimpleNamespace(returncode=1, stdout=self.fail[name])
            (into / f"{name}-{version}-py3-none-any.whl").write_bytes(content(name))
        return SimpleNamespace(returncode=0, stdout="")


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> Pip:
    stand_in = Pip()
    monkeypatch.setattr(tool.subprocess, "run", stand_in)
    monkeypatch.setattr(tool, "GROUP", 1)
    monkeypatch.setattr(tool, "PARALLEL", 1)
    return stand_in


@pytest.fixture
def stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stack `small` that wants torch, foo, bar and uv."""
    folder = tmp_path / "stacks"
    (folder / "small").mkdir(parents=True)
    (folder / "uv.yml").write_text(
        f"version: '9'\nx86_64:\n  file: uv-9\n  sha256: {hashlib.sha256(content('uv')).hexdigest()}\n"
    )
    (folder / "small" / "stack.yml").write_text("torch: 1+cpu\npython: ['3.11']\n")
    write_lock(folder, "foo", "bar")
    monkeypatch.setattr(tool.find_stack, "__defaults__", (folder,))
    return folder


def write_lock(stacks: Path, *names: str) -> None:
    lines = [f"{name}==1 --hash=sha256:{hashlib.sha256(content(name)).hexdigest()}\n" for name in names]
    (stacks / "small" / "requirements-3.11.txt").write_text("".join(lines))


@pytest.fixture
def wheelhouse(tmp_path: Path, stacks: Path, pip: Pip, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run the program on the small stack and the folder `house`; return its exit status."""

    def run(*arguments: str, stack: str = "small") -> int:
        monkeypatch.setattr(sys, "argv", ["wheelhouse", stack, "--dir", str(tmp_path / "house"), *arguments])
        pip.asked.clear()
        return tool.main()

    return run


def files(tmp_path: Path) -> list[str]:
    return sorted(path.name.split("-")[0] for path in (tmp_path / "house").glob("*.whl"))


def test_an_empty_folder_is_filled_and_indexed(tmp_path: Path, wheelhouse: Callable[..., int], pip: Pip) -> None:
    assert wheelhouse() == 0
    assert pip.asked == ["torch", "foo", "bar", "uv"]
    index = json.loads((tmp_path / "house" / "wheelhouse.json").read_text())
    assert (index["stack"], index["python"]) == ("small", "3.11")
    assert {file["name"].split("-")[0]: (file["sha256"], file["size"]) for file in index["files"]} == {
        name: (hashlib.sha256(content(name)).hexdigest(), len(content(name))) for name in ("bar", "foo", "torch", "uv")
    }
    assert sorted(path.name for path in (tmp_path / "house").iterdir() if path.suffix != ".whl") == [
        ".lock",
        "wheelhouse.json",
    ]


def test_torch_that_pip_does_not_know_is_asked_of_pytorchs_index(
    tmp_path: Path, wheelhouse: Callable[..., int], pip: Pip, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_find_links(command: list[str], **options: Any) -> SimpleNamespace:
        pip.fail = (
            {} if tool.TORCH_INDEX in command else {"torch": "ERROR: No matching distribution found for torch==1+cpu"}
        )
        return pip(command, **options)

    monkeypatch.setattr(tool.subprocess, "run", without_find_links)
    assert wheelhouse() == 0 and pip.asked.count("torch") == 2 and "torch" in files(tmp_path)
    (tmp_path / "house/torch-1+cpu-py3-none-any.whl").unlink()
    assert wheelhouse("--torch-index", "https://my-mirror/cpu") == 1 and pip.asked == ["torch"]


def test_a_complete_folder_is_left_alone(
    tmp_path: Path, wheelhouse: Callable[..., int], pip: Pip, capsys: pytest.CaptureFixture[str]
) -> None:
    wheelhouse()
    capsys.readouterr()
    assert wheelhouse() == 0
    assert pip.asked == []
    assert "is complete: 4 wheels" in capsys.readouterr().out


def test_an_interrupted_run_leaves_no_index_and_the_next_fetches_the_rest(
    tmp_path: Path, wheelhouse: Callable[..., int], pip: Pip, capsys: pytest.CaptureFixture[str]
) -> None:
    pip.fail["bar"] = UNREACHABLE
    assert wheelhouse() == 1
    assert "no way to the package index for bar==1" in capsys.readouterr().err
    assert not (tmp_path / "house" / "wheelhouse.json").exists()
    pip.fail.clear()
    assert wheelhouse() == 0
    assert "bar" in pip.asked
    assert "torch" not in pip.asked
    assert files(tmp_path) == ["bar", "foo", "torch", "uv"]


def test_a_cut_wheel_is_found_by_its_size(
    tmp_path: Path, wheelhouse: Callable[..., int], pip: Pip, capsys: pytest.CaptureFixture[str]
) -> None:
    wheelhouse()
    cut = next((tmp_path / "house").glob("foo-*"))
    cut.write_bytes(b"cut")
    assert wheelhouse() == 0
    assert pip.asked == ["foo"]
    assert cut.read_bytes() == content("foo")
    assert "foo-1-py3-none-any.whl: 3 bytes, 16 recorded: to be fetched again" in capsys.readouterr().out


def test_an_altered_wheel_of_the_same_size_is_found_by_verify(
    tmp_path: Path, wheelhouse: Callable[..., int], pip: Pip
) -> None:
    wheelhouse()
    altered = next((tmp_path / "house").glob("torch-*"))
    altered.write_bytes(content("torch")[::-1])
    assert wheelhouse() == 0
    assert pip.asked == []
    assert wheelhouse("--verify") == 0
    assert pip.asked == ["torch"]
    assert altered.read_bytes() == content("torch")


def test_a_new_lock_fetches_what_is_new_and_drops_what_is_gone_and_nothing_else(
    tmp_path: Path, stacks: Path, wheelhouse: Callable[..., int], pip: Pip
) -> None:
    wheelhouse()
    (tmp_path / "house" / "mine-1-py3-none-any.whl").write_bytes(b"not from here")
    write_lock(stacks, "bar", "new")
    assert wheelhouse() == 0
    assert pip.asked == ["new"]
    assert files(tmp_path) == ["bar", "mine", "new", "torch", "uv"]


def test_a_file_that_is_not_what_the_lock_asks_for_is_never_taken_for_it(
    wheelhouse: Callable[..., int], pip: Pip, stacks: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (stacks / "small" / "requirements-3.11.txt").write_text(f"foo==1 --hash=sha256:{A}\n")
    assert wheelhouse() == 1
    assert "foo==1: pip fetched another file" in capsys.readouterr().err
    assert not (tmp_path / "house" / "wheelhouse.json").exists()


def test_the_wheelhouse_of_another_stack_is_refused(
    tmp_path: Path, stacks: Path, wheelhouse: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    wheelhouse()
    shutil.copytree(stacks / "small", stacks / "other")
    assert wheelhouse(stack="other") == 1
    assert "is the wheelhouse of small for Python 3.11, not of other" in capsys.readouterr().err
    assert files(tmp_path) == ["bar", "foo", "torch", "uv"]


def test_a_broken_index_is_named(
    tmp_path: Path, wheelhouse: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    wheelhouse()
    (tmp_path / "house" / "wheelhouse.json").write_text('{"stack": "small"')
    assert wheelhouse() == 1
    assert "wheelhouse.json: not an index of wheels" in capsys.readouterr().err


# --- the real pip, on a folder instead of an index ---


def make_wheel(folder: Path, name: str, version: str, note: str = "") -> Path:
    """Write a wheel that pip accepts."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: {note}\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def offline_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip's configuration: nothing but a folder of wheels. Returns the folder."""
    links = tmp_path / "links"
    links.mkdir()
    for variable in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "PIP_CONSTRAINT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    return links


def house(tmp_path: Path) -> Any:
    return tool.Wheelhouse(tmp_path, "small", "3.11")


def test_pip_takes_the_exact_local_version_of_torch(tmp_path: Path, offline_pip: Path) -> None:
    make_wheel(offline_pip, "torch", "2.13.0")
    make_wheel(offline_pip, "torch", "2.13.0+cpu")
    fetched = house(tmp_path).fetch(0, [Requirement("torch", "2.13.0+cpu")], None)
    assert [path.name for path in fetched.glob("*.whl")] == ["torch-2.13.0+cpu-py3-none-any.whl"]


def test_pips_words_for_no_such_torch_are_understood(tmp_path: Path, offline_pip: Path) -> None:
    make_wheel(offline_pip, "torch", "2.13.0")
    with pytest.raises(tool.WheelhouseError, match=r"torch==2\.13\.0\+cpu: no such build.*CUDA build of gigabytes"):
        house(tmp_path).fetch(0, [Requirement("torch", "2.13.0+cpu")], None)


def test_pips_words_for_a_hash_mismatch_are_understood(tmp_path: Path, offline_pip: Path) -> None:
    make_wheel(offline_pip, "foo", "1.0", note="another file")
    with pytest.raises(tool.WheelhouseError, match=r"hash mismatch: (foo==1\.0|file:\S*foo\S*) "):
        house(tmp_path).fetch(0, [Requirement("foo", "1.0", frozenset([A]))], None)


@pytest.mark.slow  # pip waits before it tries again
def test_pips_words_for_no_network_are_understood(
    tmp_path: Path, offline_pip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # the discard port: nothing listens
    # pip tells of a failed connection when it tries again, and not at all otherwise. Its default is five times.
    monkeypatch.setenv("PIP_RETRIES", "1")
    with pytest.raises(tool.WheelhouseError, match=r"no way to the package index for foo==1\.0"):
        house(tmp_path).fetch(0, [Requirement("foo", "1.0", frozenset([A]))], None)


# --- tools/locks ---


def test_uv_is_asked_for_wheels_with_hashes_for_the_nodes_platform(tmp_path: Path) -> None:
    text = " ".join(locks.arguments(tmp_path, "3.11", tmp_path / "out", upgrade=False))
    for expected in (
        "--generate-hashes",
        "--only-binary :all:",
        "--python-version 3.11",
        f"--python-platform {locks.PLATFORM}",
    ):
        assert expected in text
    assert "--overrides" not in text
    assert "--upgrade" not in text
    (tmp_path / "overrides.txt").touch()
    text = " ".join(locks.arguments(tmp_path, "3.11", tmp_path / "out", upgrade=True))
    assert "--overrides overrides.txt" in text
    assert "--upgrade" in text


def test_a_change_is_shown_as_versions() -> None:
    old = f"foo==1 \\\n    --hash=sha256:{A}\nbar==2 \\\n    --hash=sha256:{B}\n"
    new = f"foo==1 \\\n    --hash=sha256:{C}\nbar==3 \\\n    --hash=sha256:{B}\n"
    assert locks.changes(old, new) == ["-bar==2", "+bar==3"]
    assert locks.changes(old, old) == []


def test_python_versions_are_a_list_of_text(tmp_path: Path) -> None:
    (tmp_path / "stack.yml").write_text("python: [3.11]\n")
    with pytest.raises(locks.LocksError, match="list of quoted versions"):
        locks.pythons(tmp_path)


@pytest.mark.slow
def test_the_committed_locks_are_what_their_inputs_resolve_to() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "locks"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
