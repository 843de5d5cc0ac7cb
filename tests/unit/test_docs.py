"""What the documentation tells a reader to type is there: playbooks, options, variables, targets, programs. Links lead.

A block without a language holds commands; what a program says is ```text.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from ansible.cli.adhoc import AdHocCLI
from ansible.cli.doc import DocCLI
from ansible.cli.playbook import PlaybookCLI
from ansible.parsing.splitter import parse_kv
from markdown_it import MarkdownIt

from action_plugins import sglang_inputs

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    str(path.relative_to(ROOT)) for pattern in ("*.md", "docs/*.md", "*/README.md") for path in ROOT.glob(pattern)
)
KNOWN = sglang_inputs.known_variables(ROOT)
SPECS = sglang_inputs.options(ROOT)
# What else is called sglang_NAME: modules and what they share, roles, filters, metrics.
OTHER_NAMES = {
    *(path.stem for folder in ("library", "module_utils", "roles", "rules") for path in (ROOT / folder).iterdir()),
    *(
        name
        for path in (ROOT / "filter_plugins").glob("*.py")
        for name in re.findall(r'"(sglang_\w+)":', path.read_text())
    ),
    *(
        name
        for path in ROOT.glob("roles/sglang_monitoring/files/*.*")
        for name in re.findall(r"sglang_\w+", path.read_text())
    ),
}
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")} - {
    "results",
    "site",
}
# How a host is reached.
REACHED = re.compile(r"ansible_(host|user|port|connection|become\w*|ssh_\w+|python_interpreter)")
# A reader's own: names in capitals, and files that begin with my.
OWN = re.compile(r"[A-Z][A-Z0-9_]*|my[-_][\w.-]+")
# Programs of others that a page may name, unchecked.
OTHERS = {"ansible-galaxy", "cp", "curl", "export", "find", "git", "journalctl", "openssl", "pip", "systemctl"}
# How the built collection names this tree's playbooks, and where it has the tree's files below a reader's own folder.
COLLECTION = "rtxpro.sglang."
INSTALLED = "collections/ansible_collections/rtxpro/sglang/"
CLIS = {"ansible-playbook": PlaybookCLI, "ansible": AdHocCLI, "ansible-doc": DocCLI}


class Piece(NamedTuple):
    """Code of a page: its language (empty for commands), `inline` for a code span in a line of prose."""

    language: str
    text: str
    line: int


def pieces(markdown: str) -> Iterator[Piece]:
    line = 0
    for token in MarkdownIt("commonmark").enable("table").parse(markdown):
        line = token.map[0] + 1 if token.map else line
        if token.type in ("fence", "code_block"):
            yield Piece(token.info.strip(), token.content, line)
        for child in token.children or []:
            if child.type == "code_inline":
                yield Piece("inline", child.content, line)


def commands(text: str) -> Iterator[list[str]]:
    """Words of each command: a quoted text may span lines, a line that ends in a backslash goes on."""
    held = ""
    for line in text.replace("\\\n", " ").splitlines():
        held += line
        try:
            words = shlex.split(held, comments=True)
        except ValueError:  # within quotes
            held += "\n"
            continue
        held = ""
        for joined, some in itertools.groupby(words, lambda word: word in ("&&", "||", "|")):
            if not joined:
                yield list(some)
    if held:
        yield ["quotes that do not end:", held]


@functools.cache
def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def example_hosts(inventory: Any) -> set[str]:
    """Groups and hosts of an inventory, or of a piece of one."""
    if not isinstance(inventory, dict):
        return set()
    names = set()
    for name, group in inventory.items():
        inner = group if isinstance(group, dict) else {}
        names |= {name, *(inner.get("hosts") or {})} | example_hosts(inner.get("children"))
    return names


@functools.cache
def hosts() -> set[str]:
    """Names that -l may have: of the inventory, and of inventories that a page shows."""
    names = example_hosts(yaml.safe_load(text_of("inventory/hosts.yml"))) | {"gateways", "monitoring", "localhost"}
    for document in DOCUMENTS:
        for piece in pieces(text_of(document)):
            if piece.language == "yaml" and re.search(r"^\s+hosts:", piece.text, re.MULTILINE):
                names |= example_hosts(yaml.safe_load(piece.text))
    return names


def wrong_variables(values: dict[str, Any], reader: str = "") -> list[str]:
    """Variables that nothing reads, and values that are not what they may be. `reader` is the text of the playbook."""
    wrong = sglang_inputs.misspelt(values, KNOWN)
    for name, value in values.items():
        if name in SPECS and not OWN.fullmatch(str(value)) and "{{" not in str(value):
            problem = sglang_inputs.wrong_type(name, value, SPECS[name])
            wrong += [f"{name}: {problem}"] if problem else []
        elif name not in KNOWN and not REACHED.fullmatch(name) and f"{{{{ {name} " not in reader:
            wrong += [] if name.startswith(("sglang_", "gpu_preflight_")) else [f"nothing reads {name}"]
    return wrong


def wrong_extra(extra: str, reader: str) -> list[str]:
    if extra.startswith("@"):
        name = extra[1:].removeprefix(f"{ROOT}/").removeprefix(INSTALLED)
        return [] if OWN.fullmatch(Path(name).stem) or (ROOT / name).is_file() else [f"there is no {name}"]
    try:
        values = yaml.safe_load(extra) if extra.startswith("{") else parse_kv(extra)
    except yaml.YAMLError as error:
        return [f"-e {extra}: {error}"]
    return wrong_variables(values, reader)


def wrong_limit(limit: str) -> list[str]:
    some = [part.lstrip("!&") for part in re.split("[:,]", limit)]
    return [f"no inventory has {part}" for part in some if part not in hosts() and not OWN.fullmatch(part)]


def wrong_ansible(words: list[str]) -> list[str]:
    """A command of Ansible, read by its own parser."""
    cli = CLIS[words[0]](words)
    cli.init_parser()
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            options = cli.parser.parse_args(words[1:])
    except SystemExit:
        return [said.getvalue().strip().splitlines()[-1]]
    wrong = wrong_limit(options.subset) if getattr(options, "subset", None) else []
    if words[0] == "ansible-doc":
        place = {"role": "roles/{}/meta/argument_specs.yml", "module": "library/{}.py"}[options.type]
        return [f"no {options.type} {name}" for name in options.args if not (ROOT / place.format(name)).is_file()]
    if words[0] == "ansible":
        ours = (ROOT / f"library/{options.module_name}.py").is_file()
        there = ours or importlib.util.find_spec(
            f"ansible.modules.{options.module_name.removeprefix('ansible.builtin.')}"
        )
        return wrong if there else [f"no module {options.module_name}"]
    args = [f"{name.removeprefix(COLLECTION)}.yml" if name.startswith(COLLECTION) else name for name in options.args]
    known = [name for name in args if not OWN.fullmatch(Path(name).stem)]
    for name in known:
        if not (ROOT / name).is_file():
            return [*wrong, f"there is no playbook {name}"]
    reader = "".join(text_of(f"playbooks/{Path(name).name}") for name in known)
    return wrong + [problem for extra in options.extra_vars or [] for problem in wrong_extra(extra, reader)]


def wrong_make(words: list[str]) -> list[str]:
    makefile = text_of("Makefile")
    wrong = []
    for word in words[1:]:
        name, given, value = word.partition("=")
        if not given:
            wrong += (
                [] if re.search(rf"^{re.escape(word)}:", makefile, re.MULTILINE) else [f"make has no target {word}"]
            )
        elif f"$({name})" not in makefile and f",{name})" not in makefile and f"$({name}," not in makefile:
            wrong += [] if f"${{{name}:-" in text_of("tools/setup") else [f"make reads no {name}"]
        elif name == "SCENARIO" and not OWN.fullmatch(value) and not (ROOT / "molecule" / value).is_dir():
            wrong.append(f"no scenario {value}")
    return wrong


@functools.cache
def help_of(program: str, *subcommand: str) -> str:
    argv = [str(ROOT / program), *subcommand, "--help"]
    argv = [sys.executable, *argv] if "python" in text_of(program).partition("\n")[0] else argv
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def wrong_program(words: list[str]) -> list[str]:
    """A program of the project: it exists, and its --help names what is given. A first word that it lists has a help of its own."""
    program = words[0]
    if not (ROOT / program).is_file():
        return [f"there is no {program}"]
    told = help_of(program)
    for word in words[1:]:
        if word == "--":  # what follows is another program's
            break
        if re.search(rf"[{{,]{re.escape(word)}[,}}]", told):
            told += help_of(program, word)
        elif word.startswith("-") and not re.search(rf"(?<![\w-]){re.escape(word.split('=')[0])}(?![\w-])", told):
            return [f"{program} has no option {word}"]
    return []


def wrong_command(words: list[str]) -> list[str]:
    while words and re.fullmatch(r"[A-Za-z_]+=.*", words[0]):  # environment
        words = words[1:]
    if not words:
        return []
    if words[0] in (".venv/bin/python", "python3", "python"):
        words = words[1:]
        if words[0] == "-m":
            return []
    name = words[0].removeprefix(".venv/bin/")
    if name in CLIS:
        return wrong_ansible([name, *words[1:]])
    if name == "make":
        return wrong_make(words)
    if name == "pytest":
        files = [word.partition("::")[0] for word in words[1:] if "/" in word]
        return [f"there is no {path}" for path in files if not (ROOT / path).is_file()]
    if "/" in name and not name.startswith(("/", "~")):
        return wrong_program([name, *words[1:]])
    return [] if name in OTHERS else [f"{name} is no command of this project; what a program says is ```text"]


def names_in(value: Any) -> Iterator[dict[str, Any]]:
    """Variables of our own, wherever they stand in a piece of YAML: a profile, an inventory, a play."""
    if isinstance(value, dict):
        yield {name: inner for name, inner in value.items() if str(name).startswith(("sglang_", "gpu_preflight_"))}
        for inner in value.values():
            yield from names_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from names_in(inner)


def wrong_yaml(text: str) -> list[str]:
    try:
        loaded = yaml.safe_load(text.replace("…", "etc"))
    except yaml.YAMLError as error:
        return [f"YAML: {error}"]
    modules = {path.stem for path in ROOT.glob("library/*.py")}
    found = [{name: some[name] for name in set(some) - modules} for some in names_in(loaded)]
    return [problem for some in found for problem in wrong_variables(some)]


def wrong_span(text: str) -> list[str]:
    """A code span of prose: a command, a name of ours, a path."""
    if re.match(r"(ansible(-playbook|-doc)?|make|tools/\w+|\.venv/bin/\S+|[A-Z_]+=\S+ ansible\S*) \S", text):
        return wrong_command(shlex.split(text))
    if text.startswith("-e "):
        return wrong_ansible(["ansible-playbook", "deploy.yml", *shlex.split(text)])
    if re.fullmatch(r"[\w.-]+/[\w./-]*", text) and text.partition("/")[0] in FOLDERS:
        own = any(OWN.fullmatch(Path(part).stem) and part != "README.md" for part in text.split("/"))
        return [] if own or (ROOT / text).exists() else [f"there is no {text}"]
    names = re.findall(r"(?<![\w/.-])(?:sglang|gpu_preflight)_\w+", text)
    return sglang_inputs.misspelt(names, KNOWN | OTHER_NAMES)


def wrong(piece: Piece) -> list[str]:
    """What does not hold of a piece of code."""
    if piece.language == "yaml":
        return wrong_yaml(piece.text)
    if piece.language in ("json", "python"):
        try:
            json.loads(piece.text) if piece.language == "json" else compile(piece.text, "block", "exec")
        except (ValueError, SyntaxError) as error:
            return [f"{piece.language}: {error}"]
    elif piece.language == "inline":
        return wrong_span(piece.text)
    elif piece.language in ("", "bash", "sh"):
        return [problem for words in commands(piece.text) for problem in wrong_command(words)]
    elif piece.language != "text":
        return [f"a block of {piece.language} is checked by nothing"]
    return []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_code_of_a_page(document: str) -> None:
    # A changelog names what is gone, too.
    some = (piece for piece in pieces(text_of(document)) if (document, piece.language) != ("CHANGELOG.md", "inline"))
    found = [f"{document}:{piece.line}: {said}" for piece in some for said in wrong(piece)]
    assert not found, "\n".join(found)


def block(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```\n"


@pytest.mark.parametrize(
    ("markdown", "said"),
    [
        (block("", "ansible-playbook deply.yml -l gpu-node"), "there is no playbook deply.yml"),
        (block("", "ansible-playbook deploy.yml --chek"), "unrecognized arguments: --chek"),
        (block("", "ansible-playbook deploy.yml -l gpu-nod"), "no inventory has gpu-nod"),
        (
            block("", "ansible-playbook deploy.yml \\\n  -e sglang_server_prot=1  # why"),
            "did you mean sglang_server_port?",
        ),
        (block("", "ansible-playbook deploy.yml -e sglang_server_port=many"), "sglang_server_port: "),
        (block("", "ansible-playbook tune.yml -e sglang_tuning_method=offlne"), "sglang_tuning_method: "),
        (block("", 'ansible-playbook compare.yml -e \'{"run": ["latest"]}\''), "nothing reads run"),
        (block("", "ansible-playbook plan.yml -e @group_vars/glm6.yml"), "glm6.yml"),
        (block("", "ansible gpu-node -b -m sglang_gatewy -a state=drained"), "no module sglang_gatewy"),
        (block("", "ansible-playbok deploy.yml"), "ansible-playbok is no command"),
        (block("", "echo 'it ends nowhere"), "quotes that do not end"),
        (block("sh", "make tets"), "no target tets"),
        (block("", "make lint && make tets"), "no target tets"),
        (block("", "make bench ROW=deploy"), "make reads no ROW"),
        (block("", "make molecule SCENARIO=defualt"), "no scenario defualt"),
        (block("", ".venv/bin/python tools/lokcs NAME"), "there is no tools/lokcs"),
        (block("", ".venv/bin/python tools/locks NAME --upgarde"), "no option --upgarde"),
        (block("", ".venv/bin/pytest tests/unit/test_nothing.py"), "there is no tests/unit/test_nothing.py"),
        (block("", "ANSIBLE_LIBRARY=library ansible-doc -t module sglang_evidenc"), "no module sglang_evidenc"),
        (block("yaml", "a: [1"), "YAML: "),
        (block("yaml", "gpu_nodes: {vars: {sglang_server_frnt: true}}"), "did you mean sglang_server_front?"),
        (block("yaml", "sglang_server_front: sometimes"), "sglang_server_front: "),
        (block("json", "{'a': 1}"), "json: "),
        (block("python", "def f(:"), "python: "),
        (block("bsh", "ls"), "checked by nothing"),
        ("Run `make tets`.", "no target tets"),
        ("Set `sglang_server_keeep` (10), or `-e sglang_fleet_seral=1`.", "did you mean sglang_server_keep?"),
        ("Set `-e sglang_fleet_seral=1`.", "did you mean sglang_fleet_serial?"),
        ("See `tests/unit/test_nothing.py`.", "there is no tests/unit/test_nothing.py"),
        ("| a |\n| --- |\n| `make tets` |\n", "no target tets"),
    ],
)
def test_what_is_wrong_is_said(markdown: str, said: str) -> None:
    assert said in "\n".join(problem for piece in pieces(markdown) for problem in wrong(piece))


@pytest.mark.parametrize(
    "markdown",
    [
        block("", "ansible-playbook deploy.yml -l NEW -e @my-variants.yml -e ansible_host=192.0.2.1"),
        block("", "export PATH=$PWD/.venv/bin:$PATH   # then\nSOME=1 make lint"),
        block("", "ansible localhost -m gpu_info -a '{\n  \"a\": 1}'"),
        block("yaml", "- sglang_evidence: {unit: a.service}\n  cause: …"),
        block("text", "anything"),
        "`variants/NAME.yml`, `sglang_gpu_hung`, `/etc/sglang/NAME/`, `sglang.launch_server`",
    ],
)
def test_what_holds_is_let_through(markdown: str) -> None:
    assert [problem for piece in pieces(markdown) for problem in wrong(piece)] == []


def build(folder: Path, extra: str = "") -> str:
    """What mkdocs says of a copy of the documentation: as it is, or with a text at the end of a page and a page in no nav."""
    pictures = [str(path.relative_to(ROOT)) for path in ROOT.glob("docs/img/*")]
    for path in ["mkdocs.yml", "tools/site.py", "docs/site.css", "LICENSE", *pictures, *DOCUMENTS]:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, folder / path)
    for name in ("roles", "modules"):  # made by tools/references, and in no repository
        (folder / "docs/reference").mkdir(exist_ok=True)
        (folder / f"docs/reference/{name}.md").write_text(f"# {name}\n")
    with (folder / "docs/tuning.md").open("a") as page:
        page.write(extra)
    if extra:
        (folder / "docs/forgotten.md").write_text("# Forgotten\n")
    argv = [str(Path(sys.executable).parent / "mkdocs"), "build"]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert bool(done.returncode) == bool(extra), done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_site_is_built_and_its_links_lead(tmp_path: Path) -> None:
    build(tmp_path)
    assert (tmp_path / "site/index.html").is_file() and (tmp_path / "site/docs/tuning.html").is_file()


def test_broken_links_and_forgotten_pages_fail(tmp_path: Path) -> None:
    said = build(
        tmp_path, "\n[a](nothing.md) [b](operating.md#no-such-part) [c](#nowhere) [d](../rules/README.md#an-entry)\n"
    )
    for text in ("'nothing.md'", "operating.md#no-such-part", "'#nowhere'", "docs/forgotten.md"):
        assert text in said
    assert "an-entry" not in said


def test_the_site_needs_nothing_from_elsewhere(tmp_path: Path) -> None:
    build(tmp_path)
    for page in (tmp_path / "site").rglob("*.html"):
        fetched = re.findall(r"<(?:link|script|img)[^>]+?(?:href|src)=\"?(https?://[^\s\">]+)", page.read_text())
        assert fetched == [], page


@pytest.mark.parametrize("folder", ["group_vars", "variants", "patches", "stacks"])
def test_each_is_named_where_its_kind_is_described(folder: str) -> None:
    page = {"group_vars": "docs/profiles.md", "variants": "docs/profiles.md"}.get(folder, f"{folder}/README.md")
    there = {path.stem for path in (ROOT / folder).glob("*.yml")} | {
        path.parent.name for path in (ROOT / folder).glob("*/stack.yml")
    }
    assert [name for name in sorted(there - {"gpu_nodes", "renames", "uv"}) if name not in text_of(page)] == []
