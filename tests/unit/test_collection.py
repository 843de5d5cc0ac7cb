"""tools/collection: the tree as a collection, with full names; what it cannot place ends the build."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import tomllib
import yaml
from helpers import tool

collection = tool("collection")
Unplaced = collection.Unplaced
ROOT = Path(__file__).resolve().parents[2]
NAMES = collection.Names(
    modules=frozenset({"sglang_look", "sglang_args"}),
    utils=frozenset({"sglang_log"}),
    filters=frozenset({"sglang_args", "sglang_union"}),
    roles=frozenset({"sglang_server"}),
)


def test_actions_and_roles_by_their_place() -> None:
    text = """\
- name: sglang_look
  hosts: gpu_nodes
  tasks:
    - name: A block
      block:
        - name: sglang_server
          sglang_look: # why
            sglang_look: 1
          vars: {sglang_args: 2}
      rescue:
        - ansible.builtin.import_role:
            name: sglang_server
  roles:
    - role: sglang_server
"""
    new = text.replace("          sglang_look: #", "          rtxpro.sglang.sglang_look: #")
    new = new.replace("            name: sglang_server", "            name: rtxpro.sglang.sglang_server")
    new = new.replace("role: sglang_server", "role: rtxpro.sglang.sglang_server")
    assert collection.tasks(text, NAMES, "play.yml") == new


def test_an_action_that_nothing_brings() -> None:
    with pytest.raises(
        Unplaced, match=r"tasks.yml, line 2: 'sglang_lok' is neither a keyword nor one of the project's modules"
    ):
        collection.tasks("- name: Look\n  sglang_lok:\n", NAMES, "tasks.yml")


@pytest.mark.parametrize(
    ("text", "new"),
    [
        ("{{ a | sglang_union(b) }}", "{{ a | rtxpro.sglang.sglang_union(b) }}"),
        ("{{ a\n  |sglang_union(b)|length }}", "{{ a\n  |rtxpro.sglang.sglang_union(b)|length }}"),
        ("{{ a | map('sglang_args') }}", "{{ a | map('rtxpro.sglang.sglang_args') }}"),
        ("sglang_args: {{ sglang_args | length }}", "sglang_args: {{ sglang_args | length }}"),
        ("{{ a | sglang_union_of(b) }}", "{{ a | sglang_union_of(b) }}"),
        ("'{{ role_path }}/../../results'", "'{{ 'results' | ansible.builtin.realpath }}'"),
        ("{{ x | default(role_path ~ '/../../tuning') }}", "{{ x | default('tuning' | ansible.builtin.realpath) }}"),
        ("{{ role_path }}/../../stacks", "{{ role_path }}/../../stacks"),
        ("role_path ~ '/../../module_utils/a.py'", "role_path ~ '/../../plugins/module_utils/a.py'"),
    ],
)
def test_filters_and_paths(text: str, new: str) -> None:
    assert collection.jinja(text, NAMES, "vars.yml") == new


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: 1\nb: {{ sglang_union(a, b) }}", "vars.yml, line 2: the filter sglang_union is not behind a pipe"),
        ("{{ role_path }}/../../secrets/key", r"vars.yml, line 1: /../../secrets is in no collection"),
    ],
)
def test_filters_and_paths_that_have_no_place(text: str, why: str) -> None:
    with pytest.raises(Unplaced, match=re.escape(why)):
        collection.jinja(text, NAMES, "vars.yml")


PLUGIN = """\
from pathlib import Path

import ansible.module_utils
from ansible.module_utils.basic import AnsibleModule
from ansible.plugins.action import ActionBase

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils import sglang_log as log
from ansible.module_utils.sglang_log import (
    Line,
)

RULES = ROOT / "rules"
RESULTS = ROOT / "results"


class ActionModule(ActionBase):
    def run(self):
        return self._execute_module(module_name="sglang_look")
"""
FULL_PLUGIN = """\
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.plugins.action import ActionBase

ROOT = Path(__file__).resolve().parents[2]

from ansible_collections.rtxpro.sglang.plugins.module_utils import sglang_log as log
from ansible_collections.rtxpro.sglang.plugins.module_utils.sglang_log import (
    Line,
)

RULES = ROOT / "rules"
RESULTS = Path.cwd() / "results"


class ActionModule(ActionBase):
    def run(self):
        return self._execute_module(module_name="rtxpro.sglang.sglang_look")
"""


def test_a_plugin() -> None:
    assert collection.python(PLUGIN, NAMES, "look.py") == FULL_PLUGIN


def test_documentation_of_a_module() -> None:
    text = 'DOCUMENTATION = r"""\nmodule: sglang_look\ndescription: As M(sglang_args).\n"""\nEXAMPLES = r"""\n- sglang_look:\n"""\n'
    new = text.replace("M(sglang_args)", "M(rtxpro.sglang.sglang_args)").replace(
        "- sglang_look", "- rtxpro.sglang.sglang_look"
    )
    assert collection.python(text, NAMES, "look.py") == new


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("from ansible.module_utils import basic, sglang_log\n", "line 1: one import of Ansible's and of our own"),
        ('self._execute_module("sglang_lok")\n', "line 1: 'sglang_lok' is no module of ours"),
        ('A = ROOT / "elsewhere/a"\n', 'line 1: ROOT / "elsewhere" is in no collection'),
        ("A = Path(__file__).parent\n", "line 1: Path(__file__) is written otherwise than in its neighbours"),
        ("\nansible.module_utils.__path__.append(A)\n", "line 2: ansible.module_utils.__path__ is written otherwise"),
    ],
)
def test_python_that_has_no_place(text: str, why: str) -> None:
    with pytest.raises(Unplaced, match=re.escape(f"look.py, {why}")):
        collection.python(text, NAMES, "look.py")


def test_an_ignored_finding_of_a_file_that_is_gone(tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    assert collection.ignored("*.py shebang # why\n", tmp_path) == "a.py shebang # why\n"
    with pytest.raises(Unplaced, match="no file of the collection is b.py"):
        collection.ignored("b.py shebang # why\n", tmp_path)


def test_the_changelog_and_the_collection_have_the_version_of_pyproject() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert collection.galaxy(collection.project(ROOT))["version"] == version
    headings = re.findall(r"(?m)^## \[(.+?)\](?: - (\d{4}-\d{2}-\d{2}))?$", (ROOT / "CHANGELOG.md").read_text())
    assert headings[0] == ("Unreleased", "")
    assert headings[1][0] == version
    assert all(date for _, date in headings[1:])


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the collection, as ansible-galaxy leaves it there, and an inventory."""
    folder = tmp_path_factory.mktemp("installed")
    tarball = collection.build(ROOT, folder / "built")
    target = folder / "collections/ansible_collections/rtxpro/sglang"
    target.mkdir(parents=True)
    with tarfile.open(tarball) as archive:
        archive.extractall(target, filter="data")
    (folder / "hosts.yml").write_text("glm52: {hosts: {here: {ansible_connection: local}}}\n")
    return folder


def ansible(folder: Path, program: str, *words: str) -> str:
    """Output of one of Ansible's programs in a folder, with no configuration."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    environment = {
        **kept,
        "ANSIBLE_COLLECTIONS_PATH": str(folder / "collections"),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_DEPRECATION_WARNINGS": "1",
        "PYTHONWARNINGS": "ignore",
    }
    argv = [str(Path(sys.executable).parent / program), *words]
    done = subprocess.run(argv, cwd=folder, env=environment, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr, done.stderr
    return done.stdout


@pytest.mark.slow
def test_an_inventory_of_the_collection_before_ones_own(installed: Path) -> None:
    source = "collections/ansible_collections/rtxpro/sglang/inventory"
    told = json.loads(ansible(installed, "ansible-inventory", "-i", source, "-i", "hosts.yml", "--host", "here"))
    assert told["sglang_profile"] == "glm52"
    assert "rtxpro.sglang.sglang_union" in told["sglang_server_stack_environment"]


@pytest.mark.slow
def test_the_doctor_of_the_collection_reads_a_log(installed: Path) -> None:
    log = next((ROOT / "tests/unit/data").rglob("*.log"))
    told = ansible(
        installed, "ansible-playbook", "-i", "hosts.yml", "rtxpro.sglang.doctor", "-e", f"sglang_doctor_log={log}"
    )
    assert f"DOCTOR for localhost: {log.name}" in told


@pytest.mark.slow
def test_every_module_and_role_of_the_collection_is_documented(installed: Path) -> None:
    modules = json.loads(ansible(installed, "ansible-doc", "--list", "--json", "rtxpro.sglang"))
    assert set(modules) == {f"rtxpro.sglang.{path.stem}" for path in ROOT.glob("library/*.py")}
    roles = json.loads(ansible(installed, "ansible-doc", "--list", "--json", "-t", "role", "rtxpro.sglang"))
    assert set(roles) == {f"rtxpro.sglang.{path.name}" for path in ROOT.glob("roles/*")}


def test_nothing_that_is_shipped_has_a_short_name(installed: Path) -> None:
    """What the tool replaced, held against what Ansible itself takes for a task."""
    names = collection.Names.of(ROOT)
    target = installed / "collections/ansible_collections/rtxpro/sglang"
    files = [*target.glob("playbooks/**/*.yml"), *target.glob("roles/*/tasks/*.yml")]
    assert len(files) > 60
    for path in files:
        for key in re.findall(r"(?m)^\s*(?:- )?(\w+):(?:$| #)", path.read_text()):
            assert key not in names.modules or key in yaml.safe_load((ROOT / "playbooks/vars/names.yml").read_text()), (
                path
            )
    assert (target / "inventory/group_vars").is_symlink()
    assert json.loads((target / "MANIFEST.json").read_text())["collection_info"]["name"] == "sglang"


# What Ansible 2.21 takes out of a result and gives a meaning and a type of its own.
RESERVED = {
    *(
        "ansible_facts",
        "ansible_job_id",
        "ansible_stats",
        "async_result",
        "attempts",
        "deprecations",
        "exception",
        "failed",
    ),
    *("finished", "invocation", "notify", "rc", "results", "retries", "skipped", "unreachable", "warnings"),
}


@pytest.mark.parametrize("path", sorted(ROOT.glob("library/*.py")), ids=lambda path: path.stem)
def test_no_module_returns_what_is_ansibles_own(path: Path) -> None:
    returned = yaml.safe_load(collection.constant(collection.ast.parse(path.read_text()), "RETURN"))
    assert not RESERVED & set(returned or {})
