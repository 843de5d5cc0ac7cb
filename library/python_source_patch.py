#!/usr/bin/python
# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""Patch the source of an installed Python package as declared, proved, reversible state."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: python_source_patch
short_description: Patch an installed Python package's source safely and reversibly
version_added: "0.1.0"
description:
  - Makes one declared patch present in, or absent from, one source file of an installed Python package.
  - The package is located through its metadata and never imported. An editable install or a source checkout is followed
    to its source.
  - What is there is decided from the file's content on every run. No marker file is kept or trusted, so a reinstalled
    package shows as C(not_applied) again, and an edit that somebody made by hand shows as C(applied).
  - An edit is made only if it fits exactly, if the result parses, and if it can be taken out again byte for byte.
    Otherwise the status is C(drifted), nothing is changed, and the module fails with what it expected, what stands
    there instead, and what to do.
  - The new file replaces the old one by a rename in the same directory, so a hard link (uv's cache, another environment)
    is never written through. Mode, owner, ACL, SELinux context, other extended attributes, encoding, byte order mark
    and line ends are kept. Symbolic links are followed and stay links. Compiled files of the old source are removed.
  - Several patches may touch one file, in any order, and be taken out one by one.
options:
  site_packages:
    description:
      - Path of the environment's C(site-packages) directory, for example
        C(/opt/sglang/releases/glm5-0123abcd/venv/lib/python3.12/site-packages).
      - A directory without metadata of the package works too, if the package's own folder is in it (a source checkout).
    type: path
    required: true
  python:
    description:
      - The environment's interpreter. It parses the new text before it is written, and reads the structure of a file
        whose syntax is too new for the interpreter that runs the module.
      - Found beside O(site_packages) if the environment is a usual virtual environment. Otherwise the interpreter that
        runs the module is used.
    type: path
  state:
    description:
      - V(present) puts the patch in, V(absent) takes it out.
      - V(inspected) changes nothing and never fails for what it finds. It returns the same facts.
    type: str
    choices: [present, absent, inspected]
    default: present
  strict:
    description: Refuse to edit a version that O(patch.tried) does not list. Without it such an edit is made with a warning.
    type: bool
    default: false
  backup_dir:
    description:
      - Directory that keeps every file as it was before a write, named C(<sha256>-<file name>). It lies outside
        C(site-packages), so that a reinstall leaves it alone. Created with the first write.
      - The copy whose hash is the one in the package's RECORD is the pristine one. It also tells which edits the package
        shipped itself. The module works without it.
    type: path
    default: /var/lib/sglang/pristine
  patch:
    description: The patch, as a patch file holds it. C(patches/README.md) shows how to write one.
    type: dict
    required: true
    suboptions:
      name:
        description: Name of the patch, used in messages.
        type: str
        required: true
      package:
        description: Distribution that owns the file, as C(pip) names it.
        type: str
        required: true
      file:
        description: The source file, relative to C(site-packages), with forward slashes.
        type: str
        required: true
      why:
        description: What is wrong without the patch, for people.
        type: str
        required: true
      source:
        description: Where the patch comes from. Links or names.
        type: list
        elements: str
        default: []
      proof:
        description: What shows that the patch works once the program runs, for people.
        type: str
      tried:
        description: Versions of the package on which the patch was really tried. Information, not a condition.
        type: list
        elements: str
        default: []
      edits:
        description: The edits. All are made or none.
        type: list
        elements: dict
        required: true
        suboptions: &edit
          enable_list_item:
            description:
              - Makes a string an active item of a list literal, whether it stands there commented out or is missing.
              - A line that reads C(# "item",) is uncommented. A missing item gets a line of its own after the last item,
                or stands behind the last item where the list has no such lines. Every other byte stays.
              - Two matching lists, an item that is there twice, or a list that is built by a call are C(drifted).
            type: dict
            suboptions: &list_item
              in:
                description: Function, method or attribute that holds the list, for example C(Class.method).
                type: str
                required: true
              list_has:
                description: Items that the list must hold, which tell it from other lists in the same place.
                type: list
                elements: str
                required: true
              item:
                description: The string to make active, without quotes.
                type: str
                required: true
          replace:
            description:
              - Replaces a block of whole lines, which must match exactly and once.
              - The patch is there when RV(edits) finds C(after) exactly once and C(before) not.
            type: dict
            suboptions:
              in:
                description: Function, method, class or attribute to which the search is limited. Default is the file.
                type: str
              before:
                description: The lines as the package ships them.
                type: str
                required: true
              after:
                description: The lines instead. At least one line, so that the patch can be seen and taken out.
                type: str
                required: true
              indent:
                description: Spaces to put before every non-empty line of both blocks, so that YAML need not carry them.
                type: int
                default: 0
          unified_diff:
            description:
              - A unified diff of the one file. Each hunk is a block that must match exactly and once, wherever it is.
                Line numbers and file names are not used.
            type: dict
            suboptions:
              in:
                description: Function, method, class or attribute to which the search is limited. Default is the file.
                type: str
              diff:
                description: The diff's text.
                type: str
                required: true
      earlier:
        description: Earlier forms of this patch. A file that holds one is C(outdated) and is renewed.
        type: list
        elements: dict
        default: []
        suboptions:
          note:
            description: What this form was and who carried it.
            type: str
          edits:
            description: The earlier form's edits, written as in O(patch.edits).
            type: list
            elements: dict
            required: true
            suboptions: *edit
      upstream:
        description:
          - How to see in the source that a version does it itself. The first entry that is found makes C(not_needed).
          - An entry needs O(patch.upstream[].text), or O(patch.upstream[].item) with O(patch.upstream[].list_has) and
            O(patch.upstream[].in), or all of them.
        type: list
        elements: dict
        default: []
        suboptions:
          since:
            description: First version that looks like this, for people.
            type: str
          file:
            description: File to look into, relative to C(site-packages).
            type: str
            required: true
          in:
            description: Function, method, class or attribute to look into. Default is the whole file.
            type: str
          text:
            description: Text that must stand there.
            type: str
          list_has:
            description: Items of the list that must hold O(patch.upstream[].item).
            type: list
            elements: str
            default: []
          item:
            description: String that must be an active item of that list.
            type: str
      show:
        description: Functions to show in RV(excerpt) besides the patched ones. One that is not there is said to be missing.
        type: list
        elements: dict
        default: []
        suboptions:
          file:
            description: File, relative to C(site-packages). It may belong to another package.
            type: str
            required: true
          in:
            description: Function, method, class or attribute.
            type: str
            required: true
attributes:
  check_mode:
    support: full
    description: Says what would be changed. RV(sha256_after) is the hash that the file would have.
  diff_mode:
    support: full
    description: Whole file before and after.
notes:
  - Statuses. C(not_applied) is the package's own text, or one edited elsewhere. C(applied), the patch is there, by this
    module or by hand. C(outdated), an earlier form of the patch is there, or part of its edits. C(not_needed), this version
    does it itself. C(drifted), none of these.
  - V(present) edits C(not_applied) and renews C(outdated). V(absent) takes out C(applied) and C(outdated). Both leave
    C(not_needed) alone and fail on C(drifted).
  - In check mode a package that is not installed yet has the status C(not_installed), since a real run would have
    installed it first. Outside check mode it is an error.
  - Restart what has the package loaded. The module edits files only.
  - Compiled files are looked for in C(__pycache__) beside the source, not below C(PYTHONPYCACHEPREFIX).
  - Two runs on one file wait for each other. A run that was killed leaves the old file or the new one, whole, and the next
    run removes what it left.
author: ["sglang-rtxpro authors (!UNKNOWN)"]
"""

EXAMPLES = r"""
- name: See what is there and what would be done
  python_source_patch:
    site_packages: /opt/sglang/venv/lib/python3.12/site-packages
    patch: "{{ lookup('ansible.builtin.file', 'patches/flashinfer-cutlass-autotune.yml') | from_yaml }}"
    state: inspected
  register: patch

- name: Put the patch in
  python_source_patch:
    site_packages: /opt/sglang/venv/lib/python3.12/site-packages
    patch: "{{ lookup('ansible.builtin.file', 'patches/flashinfer-cutlass-autotune.yml') | from_yaml }}"

- name: Take it out, and accept only versions on which it was tried
  python_source_patch:
    site_packages: /opt/sglang/venv/lib/python3.12/site-packages
    patch: "{{ lookup('ansible.builtin.file', 'patches/flashinfer-cutlass-autotune.yml') | from_yaml }}"
    state: absent
    strict: true

- name: A patch written in the task
  python_source_patch:
    site_packages: /opt/app/venv/lib/python3.11/site-packages
    patch:
      name: longer-timeout
      package: httpbin
      file: httpbin/core.py
      why: Slow networks need more than ten seconds.
      edits:
        - replace:
            in: fetch
            indent: 4
            before: timeout = 10
            after: timeout = 60
"""

RETURN = r"""
status:
  description: What was found, before this run changed anything.
  type: str
  returned: always
  sample: not_applied
  choices: [not_applied, applied, outdated, not_needed, drifted, not_installed]
changed:
  description: Whether the file or a compiled form of it was changed, or would be in check mode.
  type: bool
  returned: always
message:
  description: One sentence about what was found and done.
  type: str
  returned: always
patch_name:
  description: Name of the patch.
  type: str
  returned: always
package_version:
  description: Installed version, from the package's metadata. Null if it is not known (a checkout without metadata).
  type: str
  returned: always
  sample: 0.5.9
tried:
  description: Whether O(patch.tried) lists this version.
  type: bool
  returned: always
path:
  description: Absolute path of the source file, with symbolic links followed.
  type: str
  returned: always
install:
  description: How the package is installed.
  type: str
  returned: always
  choices: [wheel, editable, checkout]
pristine:
  description:
    - Whether the file is now as the package ships it, by the hash in the package's RECORD or by git's HEAD.
    - Null if neither is there to compare with.
  type: bool
  returned: always
sha256_before:
  description: SHA-256 of the file as it was found, in hex. Null if there is no file.
  type: str
  returned: always
sha256_after:
  description: SHA-256 of the file as this run leaves it, or would leave it in check mode.
  type: str
  returned: always
excerpt:
  description:
    - Source of the patched functions as they are now, then of those under O(patch.show), with line numbers. A heading
      names file and function before each.
  type: str
  returned: always
edits:
  description: What was found for each edit. A unified diff gives one entry a hunk.
  type: list
  elements: dict
  returned: always
  contains:
    edit:
      description: The edit in words.
      type: str
    state:
      description: V(absent) if the edit can be made, V(present) if it is there, V(unknown) if neither.
      type: str
    line:
      description: Line in the file as it was found, from 1. Null if there is none.
      type: int
    reason:
      description: Why the state is unknown. Empty otherwise.
      type: str
backup:
  description: The kept copy of what this run replaced. Without a write, the pristine copy if there is one. Else empty.
  type: str
  returned: always
  sample: /var/lib/sglang/pristine/be0…20-model_runner.py
expected:
  description: What the patch expected to find.
  type: str
  returned: when status is drifted
nearest:
  description: The lines that come nearest to it, with line numbers.
  type: str
  returned: when status is drifted
"""

import ast
import base64
import contextlib
import csv
import difflib
import errno
import fcntl
import hashlib
import io
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tokenize
import warnings
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Callable, Iterator, Sequence

from ansible.module_utils.basic import AnsibleModule

ABSENT = "absent"
PRESENT = "present"
UNKNOWN = "unknown"
MARK = "# added by python_source_patch"  # tells an inserted line from an uncommented one when it is taken out
LOCK_SECONDS = 60


class Refused(Exception):
    """Nothing can be done; the text is for the user."""


class Unfit(Exception):
    """The text does not have the form that an edit needs."""


# --- Reading Python source ---------------------------------------------------------------------------------------------


def outline(text: str, lists_in: Sequence[str]) -> dict:
    """Names with their lines, and the lists that hold strings in some of them.

    {"names": [[name, first line, last line]], "lists": {name: [[place, [[string or null, place]]]]}}; a place is [first
    line, column, last line, column]. Lines count from 1, columns from 0 in characters. Depends on nothing outside itself,
    because its source is also sent to the environment's interpreter.
    """
    import ast
    import gc
    import warnings

    collecting = gc.isenabled()
    gc.disable()  # a tree of 100,000 nodes without cycles: looking for some takes a third of the time
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    finally:
        if collecting:
            gc.enable()
    lines = text.split("\n")
    names: list = []
    lists: dict = {}

    def place(node: Any) -> list:
        found = []
        for line, column in ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)):
            found += [line, len(lines[line - 1].encode()[:column].decode())]
        return found

    def value(node: Any) -> Any:
        return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None

    def add(name: str, first: int, node: Any) -> None:
        names.append([name, first, node.end_lineno])
        if name in lists_in:
            found = [x for x in ast.walk(node) if isinstance(x, ast.List) and any(value(item) for item in x.elts)]
            lists.setdefault(name, []).extend(
                [place(x), [[value(item), place(item)] for item in x.elts]] for x in found
            )

    def walk(node: Any, prefix: str, attributes: bool) -> None:
        for part in ("body", "orelse", "handlers", "cases", "finalbody"):
            for child in getattr(node, part, ()):
                if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                    add(prefix + child.name, min(x.lineno for x in [child, *child.decorator_list]), child)
                    walk(child, prefix + child.name + ".", isinstance(child, ast.ClassDef))
                elif attributes and isinstance(child, (ast.Assign, ast.AnnAssign)):
                    for target in child.targets if isinstance(child, ast.Assign) else [child.target]:
                        if isinstance(target, ast.Name):
                            add(prefix + target.id, child.lineno, child)
                else:
                    walk(child, prefix, attributes)

    walk(tree, "", True)
    return {"names": names, "lists": lists}


def own_source(function: Callable) -> str:
    """Source of one of this module's functions, also when Ansible runs the module out of a zip file."""
    spec = globals().get("__spec__")
    if spec is not None and hasattr(spec.loader, "get_source"):
        text = spec.loader.get_source(spec.name)
    else:
        with open(__file__, encoding="utf-8") as handle:
            text = handle.read()
    start = text.index(f"\ndef {function.__name__}(")
    return text[start : text.index("\n\n\n", start)]


class Parser:
    """Reads the structure of Python source, here if this interpreter can, else with the environment's."""

    def __init__(self, python: str | None = None, lists_in: Sequence[str] = ()) -> None:
        self.python = python
        self.lists_in = list(lists_in)
        self.seen: dict[str, dict | str] = {}

    def outline(self, text: str) -> dict:
        """As outline(); raises Unfit if the text does not parse."""
        if text not in self.seen:
            self.seen[text] = self._here(text)
        found = self.seen[text]
        if isinstance(found, str) and self.python:
            found = self.seen[text] = self._there(text)
        if isinstance(found, str):
            raise Unfit(found)
        return found

    def check(self, text: str) -> None:
        """Raise Unfit unless the interpreter that will import the text can parse it."""
        found = self._there(text) if self.python else self._here(text)
        if isinstance(found, str):
            raise Unfit(found)
        self.seen[text] = found

    def _here(self, text: str) -> dict | str:
        try:
            return outline(text, self.lists_in)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line, message = getattr(error, "lineno", None), getattr(error, "msg", None) or str(error)
            said = unparsed(*sys.version_info[:2], message, line)
            return (
                said
                if self.python
                else f"{said}; a newer syntax needs the environment's interpreter, given as 'python'"
            )

    def _there(self, text: str) -> dict | str:
        script = (
            "from __future__ import annotations\nimport json, sys\n"
            + own_source(outline)
            + "\ntry:\n    found = outline(*json.load(sys.stdin))"
            + "\nexcept (SyntaxError, ValueError, RecursionError, MemoryError) as error:"
            + "\n    found = [getattr(error, 'lineno', None), getattr(error, 'msg', None) or str(error)]"
            + "\nprint(json.dumps([list(sys.version_info[:2]), found]))"
        )
        try:
            done = subprocess.run(
                [str(self.python), "-I", "-S", "-c", script],
                input=json.dumps([text, self.lists_in]).encode(),
                capture_output=True,
                check=True,
                timeout=120,
            )
            (major, minor), found = json.loads(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            detail = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip().splitlines()
            raise Refused(
                f"{self.python} could not be run to parse the source ({detail[-1] if detail else error}); expected the "
                "environment's Python interpreter, give its path as 'python'"
            ) from error
        if isinstance(found, dict):
            return found
        line, message = found
        return unparsed(major, minor, message, line)


def unparsed(major: int, minor: int, message: str, line: int | None) -> str:
    return f"Python {major}.{minor} cannot parse it: {message}" + (f" (line {line})" if line else "")


@dataclass(frozen=True)
class Change:
    """Characters start to end of a text become these."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Doc:
    """A source text and its structure. Line numbers count from 1."""

    text: str
    parser: Parser

    @cached_property
    def lines(self) -> list[str]:
        return split_lines(self.text)

    @cached_property
    def contents(self) -> list[str]:
        return [strip_end(line) for line in self.lines]

    @cached_property
    def starts(self) -> list[int]:
        """Offset of each line's first character, and of the end of the text."""
        return list(itertools.accumulate((len(line) for line in self.lines), initial=0))

    @cached_property
    def newline(self) -> str:
        return "\r\n" if self.lines and self.lines[0].endswith("\r\n") else "\n"

    @cached_property
    def plain(self) -> str:
        """The text as a parser is given it, with the same lines."""
        return "\n".join(self.contents) + "\n"

    @cached_property
    def outline(self) -> dict:
        return self.parser.outline(self.plain)

    def span(self, name: str | None) -> tuple[int, int]:
        """First and last line of a function, class or attribute; of the file without a name."""
        if not name:
            return 1, len(self.lines)
        found = [(first, last) for known, first, last in self.outline["names"] if known == name]
        if len(found) != 1:
            raise Unfit(f"{name} is defined {len(found)} times" if found else f"there is no {name}")
        return found[0]

    def around(self, line: int) -> str | None:
        """Name of the innermost function or class around a line."""
        inside = [(last - first, name) for name, first, last in self.outline["names"] if first <= line <= last]
        return min(inside)[1] if inside else None

    def offset(self, line: int, column: int) -> int:
        return self.starts[line - 1] + column

    def line_at(self, offset: int) -> int:
        return self.text.count("\n", 0, offset) + 1

    def numbered(self, first: int, last: int) -> str:
        rows = range(max(first, 1), min(last, len(self.contents)) + 1)
        return "\n".join(f"{row:5d}  {self.contents[row - 1]}".rstrip() for row in rows)

    def with_change(self, change: Change) -> Doc:
        return Doc(self.text[: change.start] + change.text + self.text[change.end :], self.parser)


def split_lines(text: str) -> list[str]:
    """Lines with their ends. str.splitlines would also split at form feeds and others that end no line in Python."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def strip_end(line: str) -> str:
    """A line without its end; of a block, without the last line's."""
    return line[:-2] if line.endswith("\r\n") else line.removesuffix("\n")


# --- Kinds of edit -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    """What one edit finds in a text.

    put_in: the change that makes the edit (state absent). take_out: changes that undo it, the likeliest first (present).
    """

    state: str
    line: int | None = None
    put_in: Change | None = None
    take_out: tuple[Change, ...] = ()
    reason: str = ""
    nearest: str = ""


@dataclass(frozen=True)
class ListItem:
    """Make a string an active item of a list literal."""

    within: str
    list_has: tuple[str, ...]
    item: str

    @property
    def title(self) -> str:
        return f'"{self.item}" an active item of the list in {self.within}'

    @property
    def expected(self) -> str:
        items = ", ".join(f'"{item}"' for item in self.list_has)
        return f'one list literal in {self.within} that holds {items}; "{self.item}" in it or commented out'

    @classmethod
    def parse(cls, options: dict) -> list[ListItem]:
        if not options["list_has"]:
            raise Refused("enable_list_item: list_has is empty; name items that the list must hold")
        for item in [options["item"], *options["list_has"]]:
            if not item or re.search(r"[\"'\\\r\n]", item):
                raise Refused(f"enable_list_item: {item!r} must be a plain string without quotes and backslashes")
        return [cls(options["in"], tuple(options["list_has"]), options["item"])]

    def find(self, doc: Doc) -> Found:
        try:
            first, last = doc.span(self.within)
        except Unfit as error:
            return Found(UNKNOWN, reason=str(error), nearest=nearest_lines(doc, [self.list_has[0], self.item]))
        known = [ListText.of(doc, *entry) for entry in doc.outline["lists"].get(self.within, [])]
        lists = [known_list for known_list in known if set(self.list_has) <= set(known_list.values)]
        if len(lists) != 1:
            reason = f"{len(lists) or 'no'} list literals in {self.within} hold {', '.join(self.list_has)}"
            return Found(UNKNOWN, first, reason=reason, nearest=doc.numbered(first, min(last, first + 40)))
        try:
            return self.find_in(lists[0])
        except (Unfit, tokenize.TokenError, SyntaxError) as error:
            at = lists[0]
            return Found(UNKNOWN, at.first, reason=str(error), nearest=doc.numbered(at.first, at.last))

    def find_in(self, the_list: ListText) -> Found:
        active = [index for index, value in enumerate(the_list.values) if value == self.item]
        comments = the_list.commented(self.item)
        if len(active) > 1 or len(comments) > 1:
            raise Unfit(f'"{self.item}" stands {max(len(active), len(comments))} times in the list')
        if active:
            changes = [
                change
                for change in the_list.ways_out(active[0], bool(comments))
                if the_list.values_after(change) == the_list.values[: active[0]] + the_list.values[active[0] + 1 :]
            ]
            line = the_list.doc.line_at(the_list.base + the_list.items[active[0]][0])
            if not changes:
                raise Unfit(f'"{self.item}" cannot be taken out without a change to another item')
            return Found(PRESENT, line, take_out=tuple(the_list.absolute(change) for change in changes))
        for change in [Change(start, start + 2, "") for start in comments] + the_list.ways_in(self.item):
            values = the_list.values_after(change)
            if any(
                values == the_list.values[:at] + [self.item] + the_list.values[at:] for at in range(len(values or []))
            ):
                absolute = the_list.absolute(change)
                return Found(ABSENT, the_list.doc.line_at(absolute.start), put_in=absolute)
        raise Unfit(f'"{self.item}" cannot be put in without a change to another item')


@dataclass(frozen=True)
class ListText:
    """The text of one list literal, brackets included; offsets count from its opening bracket."""

    doc: Doc
    base: int
    text: str
    values: list[str | None]
    items: list[tuple[int, int]]

    @classmethod
    def of(cls, doc: Doc, place: list[int], items: list) -> ListText:
        base, end = doc.offset(*place[:2]), doc.offset(*place[2:])
        spans = [(doc.offset(*at[:2]) - base, doc.offset(*at[2:]) - base) for _, at in items]
        return cls(doc, base, doc.text[base:end], [value for value, _ in items], spans)

    @property
    def first(self) -> int:
        return self.doc.line_at(self.base)

    @property
    def last(self) -> int:
        return self.doc.line_at(self.base + len(self.text))

    def absolute(self, change: Change) -> Change:
        return Change(self.base + change.start, self.base + change.end, change.text)

    def values_after(self, change: Change) -> list | None:
        """The items once the change is made, others than strings as dumps; None if it is no list any more."""
        text = self.text[: change.start] + change.text + self.text[change.end :]
        after, before = parse_list(text), parse_list(self.text)
        if after is None or before is None:
            return None
        # Other expressions must stay as they are; in self.values they all read None.
        if [x for x in after if x[0] is None] != [x for x in before if x[0] is None]:
            return None
        return [value for value, _ in after]

    def commented(self, item: str) -> list[int]:
        """Offsets of comments on lines of their own that read `# "item",`, not those of a nested list."""
        depth, found = 0, []
        rows = split_lines(self.text)
        starts = list(itertools.accumulate((len(row) for row in rows), initial=0))
        pattern = re.compile(r"# ([\"'])" + re.escape(item) + r"\1,\s*(#|$)")
        for token in tokenize.generate_tokens(io.StringIO("".join(rows).replace("\r\n", " \n")).readline):
            if token.type == tokenize.OP and token.string in "([{":
                depth += 1
            elif token.type == tokenize.OP and token.string in ")]}":
                depth -= 1
            elif token.type == tokenize.COMMENT and depth == 1 and pattern.match(token.string.rstrip()):
                row, column = token.start
                if not rows[row - 1][:column].strip():
                    found.append(starts[row - 1] + column)
        return found

    def line_of(self, offset: int) -> tuple[str, str, int]:
        """What stands before an offset on its line, what from it to the line's end, and where the next line starts."""
        start = self.text.rfind("\n", 0, offset) + 1
        end = self.text.find("\n", offset)
        end = len(self.text) if end < 0 else end + 1
        return self.text[start:offset], self.text[offset:end], end

    def ways_in(self, item: str) -> list[Change]:
        """A line of its own after the last item's, if the items have lines of their own; else behind the last item."""
        start, end = self.items[-1]
        before, _, _ = self.line_of(start)
        _, rest, next_line = self.line_of(end)
        quote = self.text[start] if self.text[start] in "'\"" else '"'
        ways = [Change(end, end, f", {quote}{item}{quote}")]
        if not before.strip() and re.match(r",\s*(#.*)?\r?\n$", rest):
            newline = "\r\n" if rest.endswith("\r\n") else "\n"
            ways.insert(0, Change(next_line, next_line, f"{before}{quote}{item}{quote},  {MARK}{newline}"))
        return ways

    def ways_out(self, index: int, commented: bool) -> list[Change]:
        """The reverse of every way in; with a line of its own, as a comment again or without the line."""
        start, end = self.items[index]
        before, _, _ = self.line_of(start)
        _, rest, next_line = self.line_of(end)
        if not before.strip() and re.match(r",?\s*(#.*)?\r?\n$", rest):
            drop_line = Change(start - len(before), next_line, "")
            if commented or rest[1:].strip() == MARK:
                return [drop_line]
            return [Change(start, start, "# "), drop_line]
        if index:
            return [Change(self.items[index - 1][1], end, "")]
        following = self.items[1][0] if len(self.items) > 1 else len(self.text) - 1
        return [Change(start, following, "")]


def parse_list(text: str) -> list[tuple[str | None, str]] | None:
    """(string or None, dump) of each item of a list literal; None if the text is something else."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            node = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return None
    if not isinstance(node, ast.List):
        return None
    return [
        (item.value if isinstance(item, ast.Constant) and isinstance(item.value, str) else None, ast.dump(item))
        for item in node.elts
    ]


@dataclass(frozen=True)
class Block:
    """Replace lines that must match exactly and once."""

    within: str | None
    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def title(self) -> str:
        changed = next((new for old, new in itertools.zip_longest(self.before, self.after) if old != new), None)
        return f"`{(changed or self.after[-1]).strip()}`" + (f" in {self.within}" if self.within else "")

    @property
    def expected(self) -> str:
        return f"once{f' in {self.within}' if self.within else ''}:\n" + "\n".join(self.before)

    @classmethod
    def parse(cls, options: dict) -> list[Block]:
        pad = " " * options["indent"]
        before, after = (
            tuple(pad + line if line.strip() else line for line in strip_end(options[key]).split("\n"))
            for key in ("before", "after")
        )
        return [cls(options["in"], before, after).checked("replace")]

    @classmethod
    def parse_diff(cls, options: dict) -> list[Block]:
        hunks = split_diff(options["diff"])
        return [cls(options["in"], *hunk).checked("unified_diff") for hunk in hunks]

    def checked(self, kind: str) -> Block:
        for name, block in (("before", self.before), ("after", self.after)):
            if not any(line.strip() for line in block):
                raise Refused(f"{kind}: the block '{name}' is empty; add a line of context, so that it can be found")
        if self.before == self.after:
            raise Refused(f"{kind}: the blocks before and after are the same; one must differ")
        return self

    def find(self, doc: Doc) -> Found:
        try:
            first, last = doc.span(self.within)
        except Unfit as error:
            return Found(UNKNOWN, reason=str(error), nearest=nearest_lines(doc, self.before))
        old = matches(doc.contents, self.before, first - 1, last)
        new = matches(doc.contents, self.after, first - 1, last)
        # A block that only adds lines is found in its own result, and the other way round: the longer one counts.
        if len(self.after) >= len(self.before):
            old = [at for at in old if not any(n <= at and at + len(self.before) <= n + len(self.after) for n in new)]
        else:
            new = [at for at in new if not any(o <= at and at + len(self.after) <= o + len(self.before) for o in old)]
        if (len(old), len(new)) == (1, 0):
            change = self.change(doc, old[0], self.before, self.after)
            return Found(ABSENT, old[0] + 1, put_in=change) if change else self.mixed(doc, old[0])
        if (len(old), len(new)) == (0, 1):
            change = self.change(doc, new[0], self.after, self.before)
            return Found(PRESENT, new[0] + 1, take_out=(change,)) if change else self.mixed(doc, new[0])
        if not old and not new:
            reason = f"the lines are not there as expected{f' in {self.within}' if self.within else ''}"
            return Found(UNKNOWN, reason=reason, nearest=nearest_lines(doc, self.before, first, last))
        places = ", ".join(str(at + 1) for at in sorted(old + new))
        reason = f"the block stands {len(old)} times as shipped and {len(new)} times as patched (lines {places})"
        return Found(UNKNOWN, sorted(old + new)[0] + 1, reason=reason, nearest=numbered_places(doc, old + new))

    def mixed(self, doc: Doc, at: int) -> Found:
        nearest = doc.numbered(at + 1, at + len(self.before))
        return Found(UNKNOWN, at + 1, reason="its lines have different line ends", nearest=nearest)

    @staticmethod
    def change(doc: Doc, at: int, old: tuple[str, ...], new: tuple[str, ...]) -> Change | None:
        """The change of lines, with the line ends that are there; None if those differ among themselves."""
        lines = doc.lines[at : at + len(old)]
        ends = [line[len(strip_end(line)) :] for line in lines]
        newlines = {end for end in ends if end} or {doc.newline}
        if len(newlines) > 1:
            return None
        text = newlines.pop().join(new) + ends[-1]
        return Change(doc.starts[at], doc.starts[at + len(old)], text)


def matches(contents: Sequence[str], block: Sequence[str], first: int, last: int) -> list[int]:
    """Where a block of lines starts, from index first to last."""
    size, wanted = len(block), list(block)
    return [
        at for at in range(first, last - size + 1) if contents[at] == wanted[0] and contents[at : at + size] == wanted
    ]


def split_diff(diff: str) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """(lines before, lines after) of each hunk of a unified diff of one file."""
    hunks: list[tuple[list[str], list[str]]] = []
    left = right = 0
    for number, line in enumerate(diff.replace("\r\n", "\n").rstrip("\n").split("\n"), 1):
        if left or right:
            sign, content = (line[:1] or " "), line[1:]
            if sign not in " -+":
                raise Refused(
                    f"unified_diff: line {number} is {line!r}; expected a line that starts with space, - or +"
                )
            if sign in " -":
                hunks[-1][0].append(content)
                left -= 1
            if sign in " +":
                hunks[-1][1].append(content)
                right -= 1
            if left < 0 or right < 0:
                raise Refused(
                    f"unified_diff: line {number}: the hunk is longer than its @@ line says; make the diff anew"
                )
            continue
        header = re.match(r"@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@", line)
        if header:
            left, right = (1 if count is None else int(count) for count in header.groups())
            hunks.append(([], []))
        elif line.startswith("--- ") and hunks:
            raise Refused("unified_diff: the diff changes a second file; write one patch for each file")
        elif line.startswith("\\"):
            raise Refused(
                "unified_diff: a changed newline at the end of the file is not supported; leave that line out"
            )
        elif hunks and line.strip():
            raise Refused(f"unified_diff: line {number} is {line!r}; expected a hunk that starts with @@ -a,b +c,d @@")
    if left or right:
        raise Refused("unified_diff: the last hunk is shorter than its @@ line says; make the diff anew")
    if not hunks:
        raise Refused("unified_diff: there is no hunk; expected lines that start with @@ -a,b +c,d @@")
    return [(tuple(before), tuple(after)) for before, after in hunks]


def nearest_lines(doc: Doc, block: Sequence[str], first: int = 1, last: int | None = None) -> str:
    """The lines that have most in common with a block, numbered; empty if none has anything."""
    last = len(doc.contents) if last is None else last
    wanted = {line.strip() for line in block if line.strip()}
    hits = [int(line.strip() in wanted) for line in doc.contents[first - 1 : last]]
    if any(hits):
        sums = list(itertools.accumulate(hits, initial=0))
        size = min(len(block), len(hits))
        best = max(range(len(hits) - size + 1), key=lambda at: sums[at + size] - sums[at])
        return doc.numbered(first + best, first + best + size - 1)
    stripped = [line.strip() for line in doc.contents[first - 1 : last]]
    key = max(wanted, key=len) if wanted else ""
    close = difflib.get_close_matches(key, sorted(set(filter(None, stripped))), n=1, cutoff=0.5)
    found = [at for at, line in enumerate(stripped) if line in close or (key and key in line)]
    return doc.numbered(first + found[0] - 2, first + found[0] + 2) if found else ""


def numbered_places(doc: Doc, places: list[int]) -> str:
    return "\n  ...\n".join(doc.numbered(at, at + 2) for at in sorted(places)[:4])


KINDS: dict[str, Callable[[dict], list]] = {
    "enable_list_item": ListItem.parse,
    "replace": Block.parse,
    "unified_diff": Block.parse_diff,
}


# --- The patch and the decision ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Patch:
    """A patch file, checked."""

    name: str
    package: str
    file: str
    tried: tuple[str, ...]
    edits: list
    earlier: list[list]
    upstream: list[dict]
    show: list[dict]

    @classmethod
    def parse(cls, params: dict) -> Patch:
        """Raises Refused with the part of the patch that is wrong."""
        files = [params["file"], *(entry["file"] for entry in params["upstream"] + params["show"])]
        for path in files:
            if os.path.isabs(path) or ".." in path.split("/") or not path.endswith(".py"):
                raise Refused(f"patch {params['name']}: file {path!r} must be a .py file, relative to site-packages")
        for entry in params["upstream"]:
            item = [bool(entry[key]) for key in ("item", "list_has", "in")]
            if not (entry["item"] or entry["text"]) or (any(item[:2]) and not all(item)):
                raise Refused(
                    f"patch {params['name']}: an entry of upstream needs 'text', or 'item' with 'list_has' and 'in'"
                )
        try:
            return cls(
                params["name"],
                params["package"],
                params["file"],
                tuple(params["tried"]),
                cls.parse_edits(params["edits"]),
                [cls.parse_edits(form["edits"]) for form in params["earlier"]],
                params["upstream"],
                params["show"],
            )
        except Refused as error:
            raise Refused(f"patch {params['name']}: {error}") from error

    @property
    def lists_in(self) -> list[str]:
        """Names in whose lists something is looked for."""
        edits = [*self.edits, *itertools.chain.from_iterable(self.earlier)]
        named = [edit.within for edit in edits if isinstance(edit, ListItem)]
        return named + [entry["in"] for entry in self.upstream if entry["item"]]

    @staticmethod
    def parse_edits(entries: list[dict]) -> list:
        if not entries:
            raise Refused("there are no edits; give at least one")
        return [
            edit for entry in entries for kind, parse in KINDS.items() if entry[kind] for edit in parse(entry[kind])
        ]


@dataclass
class Plan:
    """What is there and what to do about it. text is the new text, None when there is nothing to write."""

    state: str
    status: str
    reason: str
    text: str | None = None
    found: list[tuple[Any, Found]] = field(default_factory=list)
    expected: str = ""
    nearest: str = ""


def plan(
    patch: Patch,
    state: str,
    text: str | None,
    parser: Parser,
    files: Callable[[str], str | None] = lambda _: None,
    pristine_text: str | None = None,
    pristine_sha256: Callable[[str], bool] | None = None,
) -> Plan:
    """Decide from texts alone.

    text: the file's, None if there is none. files: the text of another file of the environment, for upstream's own fix.
    pristine_text: the file as the package ships it, where known. pristine_sha256: whether a text is that file, by hash.
    """
    reason = upstream_fix(patch, parser, lambda file: text if file == patch.file else files(file))
    if reason:
        return Plan(state, "not_needed", reason)
    if text is None:
        return drifted(state, [], f"there is no {patch.file}", f"the file {patch.file}", "")
    doc = Doc(text, parser)
    found: list = []
    try:
        if "\r" in text.replace("\r\n", ""):
            raise Unfit("it holds carriage returns that end no line")
        found = [(edit, edit.find(doc)) for edit in patch.edits]
        states = {one.state for _, one in found}
        shipped = shipped_edits(patch.edits, pristine_text, parser)
        if states == {PRESENT} and len(shipped) == len(patch.edits):
            return Plan(state, "not_needed", "the package ships the file with these lines", found=found)
        forms = [form for form in patch.earlier if all(edit.find(doc).state == PRESENT for edit in form)]
        if states == {PRESENT}:
            status, here = "applied", patch.edits
        elif forms:
            status, here = "outdated", forms[0]
        elif states == {PRESENT, ABSENT}:
            status, here = "outdated", [edit for edit, one in found if one.state == PRESENT]
        elif states == {ABSENT}:
            status, here = "not_applied", []
        else:
            edit, one = next((edit, one) for edit, one in found if one.state == UNKNOWN)
            return drifted(state, found, one.reason, edit.expected, one.nearest)
        result = Plan(state, status, "", found=found)
        ours = [edit for edit in here if edit not in shipped]
        if state == "present" and status in ("not_applied", "outdated"):
            bare = take_out(doc, ours, pristine_sha256) if forms else doc
            result.text = put_in(bare, patch.edits).text
        elif state == "absent" and ours:
            after = take_out(doc, ours, pristine_sha256)
            parser.check(after.plain)
            result.text = after.text
        return result
    except Unfit as error:
        return drifted(state, found, str(error), "source that parses, before and after the edits", "")


def drifted(state: str, found: list, reason: str, expected: str, nearest: str) -> Plan:
    return Plan(state, "drifted", reason, None, found, expected, nearest)


def shipped_edits(edits: list, pristine_text: str | None, parser: Parser) -> list:
    """Edits that the package's own file holds, so that they are not ours to take out."""
    if pristine_text is None:
        return []
    doc = Doc(pristine_text, parser)
    return [edit for edit in edits if edit.find(doc).state == PRESENT]


def put_in(doc: Doc, edits: list) -> Doc:
    """All edits made; Unfit unless the result parses and taking them out again gives the same bytes."""
    made, after = [], doc
    for edit in edits:
        found = edit.find(after)
        if found.state == UNKNOWN:
            raise Unfit(f"{edit.title}: {found.reason}, once the other edits are made")
        if found.state == ABSENT:
            after = after.with_change(found.put_in)
            made.append(edit)
    after.parser.check(after.plain)
    for edit in edits:
        if edit.find(after).state != PRESENT:
            raise Unfit(f"{edit.title}: would not be seen once all edits are made")
    if made and take_out(after, made).text != doc.text:
        raise Unfit("it could not be taken out again byte for byte")
    return after


def take_out(doc: Doc, edits: list, is_pristine: Callable[[str], bool] | None = None) -> Doc:
    """All edits undone, the last first. Of several ways the one whose result is the package's own file, else the first."""
    results = list(ways_out(doc, list(reversed(edits))))
    if is_pristine:
        results.sort(key=lambda after: not is_pristine(after.text))
    return results[0]


def ways_out(doc: Doc, edits: list) -> Iterator[Doc]:
    if not edits:
        yield doc
        return
    found = edits[0].find(doc)
    if found.state == UNKNOWN:
        raise Unfit(f"{edits[0].title}: {found.reason}, once the other edits are undone")
    for change in found.take_out or [Change(0, 0, "")]:
        yield from ways_out(doc.with_change(change), edits[1:])


def upstream_fix(patch: Patch, parser: Parser, files: Callable[[str], str | None]) -> str:
    """Where this version does it itself, in words; empty if nowhere."""
    for entry in patch.upstream:
        text = files(entry["file"])
        if text is None:
            continue
        doc = Doc(text, parser)
        try:
            first, last = doc.span(entry["in"])
            body = "\n".join(doc.contents[first - 1 : last])
            if entry["text"] and entry["text"].strip() not in body:
                continue
            line = first
            if entry["item"]:
                found = ListItem(entry["in"], tuple(entry["list_has"]), entry["item"]).find(doc)
                if found.state != PRESENT:
                    continue
                line = found.line or first
        except Unfit:
            continue
        return f"seen in {entry['file']}, {entry['in'] or 'line'} (line {line})"
    return ""


def excerpts(patch: Patch, text: str | None, parser: Parser, files: Callable[[str], str | None]) -> str:
    """The patched functions and those under show, with line numbers and a heading each."""
    wanted: list[tuple[str, str]] = []
    if text is not None:
        doc = Doc(text, parser)
        for edit in patch.edits:
            with contextlib.suppress(Unfit):
                found = edit.find(doc)
                name = edit.within or (doc.around(found.line) if found.line else None)
                if name:
                    wanted.append((patch.file, name))
    wanted += [(entry["file"], entry["in"]) for entry in patch.show]
    parts = []
    for file, name in dict.fromkeys(wanted):
        source = text if file == patch.file else files(file)
        try:
            if source is None:
                raise Unfit("no such file")
            shown = Doc(source, parser)
            body = shown.numbered(*shown.span(name))
        except Unfit as error:
            body = f"       ({error})"
        parts.append(f"== {file}: {name}\n{body}")
    return "\n".join(parts)


# --- Where the package is ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Package:
    """An installed distribution. roots: folders below which its files lie, the likeliest first."""

    version: str | None
    install: str
    roots: tuple[str, ...]
    hashes: dict[str, str]

    def locate(self, file: str) -> str:
        """Path of a file of the environment, links followed; of where it should be if there is none."""
        paths = [os.path.join(root, file) for root in self.roots]
        return os.path.realpath(next((path for path in paths if os.path.isfile(path)), paths[0]))


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def find_package(site: str, name: str, file: str) -> Package:
    """Locate a distribution by its metadata in site-packages. Raises Refused."""
    if not os.path.isdir(site):
        raise NotInstalled(f"{site} is not a directory; expected the environment's site-packages")
    entries = sorted(os.listdir(site))
    infos = [
        entry
        for entry in entries
        if entry.endswith((".dist-info", ".egg-info"))
        and normalized(re.split(r"-\d|\.egg-info$", entry)[0]) == normalized(name)
    ]
    infos = [entry for entry in infos if entry.endswith(".dist-info")] or infos
    if len(infos) > 1:
        raise Refused(f"{site} holds metadata of {name} more than once ({', '.join(infos)}); reinstall the package")
    links = [entry for entry in entries if entry.endswith(".egg-link") and normalized(entry[:-9]) == normalized(name)]
    if links:
        root = read_text(os.path.join(site, links[0])).split("\n")[0].strip()
        return Package(checkout_version(root, name, file), "editable", (root, site), {})
    if not infos or infos[0].endswith(".egg-info"):
        if os.path.exists(os.path.join(site, file.split("/")[0])):
            return Package(checkout_version(site, name, file), "checkout", (site,), {})
        raise NotInstalled(f"{name} is not installed in {site}; install it first or correct site_packages")
    info = os.path.join(site, infos[0])
    version = metadata_version(os.path.join(info, "METADATA"))
    record = list(csv.reader(io.StringIO(read_text(os.path.join(info, "RECORD")))))
    hashes = {row[0]: record_hash(row[1]) for row in record if len(row) > 1 and row[1].startswith("sha256=")}
    if file in hashes:
        return Package(version, "wheel", (site,), hashes)
    roots = editable_roots(site, info, [row[0] for row in record if row], file)
    if roots:
        return Package(version, "editable", (*roots, site), {})
    return Package(version, "wheel", (site,), hashes)


class NotInstalled(Refused):
    """The package is not there (yet)."""


def record_hash(value: str) -> str:
    """RECORD's `sha256=<urlsafe base64 without padding>` as hex."""
    digest = value.split("=", 1)[1]
    return base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4)).hex()


def metadata_version(path: str) -> str | None:
    found = re.search(r"^Version:\s*(\S+)", read_text(path), re.MULTILINE)
    return found.group(1) if found else None


def checkout_version(root: str, name: str, file: str) -> str | None:
    """Version of a source tree: of its egg-info, else the __version__ that the package's own files state."""
    for entry in sorted(os.listdir(root)) if os.path.isdir(root) else []:
        if entry.endswith(".egg-info") and normalized(re.split(r"-\d|\.egg-info$", entry)[0]) == normalized(name):
            return metadata_version(os.path.join(root, entry, "PKG-INFO"))
    for source in ("_version.py", "version.py", "__init__.py"):
        text = read_text(os.path.join(root, file.split("/")[0], source))
        found = re.search(r"^__version__\s*(?::[^=\n]+)?=\s*(?:version\s*=\s*)?[\"']([^\"']+)[\"']", text, re.MULTILINE)
        if found:
            return found.group(1)
    return None


def editable_roots(site: str, info: str, record: list[str], file: str) -> list[str]:
    """Folders of an editable install: from its .pth files, its finder's mapping and its direct_url.json."""
    roots = []
    top = file.split("/")[0]
    for entry in record:
        path = os.path.join(site, entry)
        if entry.endswith(".pth"):
            lines = [line.strip() for line in read_text(path).splitlines()]
            roots += [os.path.join(site, line) for line in lines if line and not line.startswith(("import ", "#"))]
        elif re.match(r"__editable___.*_finder\.py$", entry):
            mapping = re.search(r"^MAPPING\b[^=]*=\s*(\{.*\})", read_text(path), re.MULTILINE)
            with contextlib.suppress(ValueError, SyntaxError):
                target = ast.literal_eval(mapping.group(1)).get(top) if mapping else None
                if target and os.path.basename(target) == top:
                    roots.append(os.path.dirname(target))
    with contextlib.suppress(ValueError, AttributeError):
        direct = json.loads(read_text(os.path.join(info, "direct_url.json")) or "{}")
        if direct.get("dir_info", {}).get("editable") and direct.get("url", "").startswith("file://"):
            from urllib.parse import unquote, urlsplit

            base = unquote(urlsplit(direct["url"]).path)
            roots += [base, os.path.join(base, "src"), os.path.join(base, "python")]
    return [root for root in dict.fromkeys(roots) if os.path.isdir(os.path.join(root, top))]


def environment_python(site: str) -> str | None:
    """The interpreter of the virtual environment that site-packages belongs to."""
    home = os.path.abspath(os.path.join(site, "..", "..", ".."))
    python = os.path.join(home, "bin", "python")
    return python if os.path.exists(os.path.join(home, "pyvenv.cfg")) and os.access(python, os.X_OK) else None


def git_head(path: str) -> bytes | None:
    """The file as git's HEAD holds it; None if there is no git, no repository, or no such file in it."""
    folder, name = os.path.split(path)
    try:
        done = subprocess.run(
            ["git", "-c", "safe.directory=*", "-C", folder, "cat-file", "blob", f"HEAD:./{name}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
            timeout=60,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


# --- Bytes and texts ---------------------------------------------------------------------------------------------------


def read_bytes(path: str) -> bytes | None:
    try:
        with open(path, "rb") as handle:
            return handle.read()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None
    except OSError as error:
        raise Refused(
            f"{path} cannot be read: {error.strerror}; expected a source file that this user may read"
        ) from error


def read_text(path: str) -> str:
    """A metadata file's text; empty if there is none."""
    return (read_bytes(path) or b"").decode("utf-8", "replace")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Encoding:
    """How a source file's bytes become text and back."""

    name: str
    bom: bytes

    @classmethod
    def of(cls, data: bytes) -> Encoding:
        bom = b"\xef\xbb\xbf" if data.startswith(b"\xef\xbb\xbf") else b""
        name, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return cls("utf-8" if name == "utf-8-sig" else name, bom)

    def decode(self, data: bytes) -> str:
        return data[len(self.bom) :].decode(self.name)

    def encode(self, text: str) -> bytes:
        return self.bom + text.encode(self.name)


def decoded(data: bytes | None, path: str) -> tuple[str | None, Encoding]:
    if data is None:
        return None, Encoding("utf-8", b"")
    try:
        encoding = Encoding.of(data)
        text = encoding.decode(data)
        if encoding.encode(text) != data:
            raise UnicodeError("decoding and encoding changes it")
    except (SyntaxError, UnicodeError, LookupError) as error:
        raise Refused(f"{path} is not text in the encoding that it declares ({error}); nothing was changed") from error
    return text, encoding


# --- Writing -----------------------------------------------------------------------------------------------------------


def compiled_files(path: str) -> list[str]:
    """Every .pyc of a source file, of all interpreters and optimization levels."""
    folder, name = os.path.split(path)
    cache, stem = os.path.join(folder, "__pycache__"), name[: -len(".py")]
    entries = sorted(os.listdir(cache)) if os.path.isdir(cache) else []
    return [os.path.join(cache, entry) for entry in entries if entry.startswith(stem + ".") and entry.endswith(".pyc")]


def stale_compiled_files(path: str, data: bytes) -> list[str]:
    """The .pyc files that would be run though they are not of this source: unchecked-hash ones of another text.

    Those that carry the source's time and size are checked by Python itself; write() gives a new time to be safe.
    """
    import _imp

    stale = []
    for compiled in compiled_files(path):
        head = (read_bytes(compiled) or b"")[:16]
        unchecked = len(head) == 16 and int.from_bytes(head[4:8], "little") & 0b11 == 0b01
        if unchecked and _imp.source_hash(int.from_bytes(head[:4], "little"), data) != head[8:]:
            stale.append(compiled)
    return stale


def remove(paths: list[str]) -> None:
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def leftovers(path: str) -> list[str]:
    """Temporary files that a killed run left beside a file."""
    folder, name = os.path.split(path)
    return [os.path.join(folder, entry) for entry in os.listdir(folder) if entry.startswith(temporary_prefix(name))]


def temporary_prefix(name: str) -> str:
    return f".{name}.python_source_patch-"


def sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fill_temporary(folder: str, name: str, data: bytes, like: os.stat_result | None, origin: str = "") -> str:
    """A synced temporary file in a folder, with the mode, owner and attributes of the file that it will replace."""
    descriptor, temporary = tempfile.mkstemp(prefix=temporary_prefix(name), dir=folder)
    try:
        with open(descriptor, "wb") as handle:
            handle.write(data)
            handle.flush()
            if like is None:
                os.fchmod(descriptor, 0o644)
            else:
                now = os.fstat(descriptor)
                if (now.st_uid, now.st_gid) != (like.st_uid, like.st_gid):
                    os.fchown(descriptor, like.st_uid, like.st_gid)
                os.fchmod(descriptor, like.st_mode & 0o7777)
                copy_attributes(origin, temporary)
                # A .pyc is taken for current by the source's size and second: never the same second as before.
                changed = max(time.time(), 0)
                if int(changed) == int(like.st_mtime):
                    changed = int(changed) + 1
                os.utime(temporary, (changed, changed))
            os.fsync(descriptor)
    except BaseException:
        remove([temporary])
        raise
    return temporary


def copy_attributes(origin: str, target: str) -> None:
    """Extended attributes: ACL, SELinux context, and whatever else is set."""
    try:
        names = os.listxattr(origin)
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.ENOSYS):
            return
        raise
    for name in names:
        value = os.getxattr(origin, name)
        with contextlib.suppress(OSError):
            if os.getxattr(target, name) == value:
                continue
        os.setxattr(target, name, value)


def keep_copy(backup_dir: str, name: str, data: bytes) -> str:
    """Keep bytes under their hash; what is there already is checked, not trusted."""
    path = backup_path(backup_dir, name, sha256(data))
    if read_bytes(path) != data:
        os.makedirs(backup_dir, mode=0o755, exist_ok=True)
        temporary = fill_temporary(backup_dir, name, data, None)
        os.replace(temporary, path)
        sync_folder(backup_dir)
    return path


def backup_path(backup_dir: str, name: str, digest: str) -> str:
    return os.path.join(backup_dir, f"{digest}-{name}")


def write(path: str, before: bytes, after: bytes, backup_dir: str) -> str:
    """Replace a file's bytes by a rename; returns the kept copy's path.

    Whenever this is cut short, the file is the old or the new one, whole: uv hard-links site-packages to its cache, so it
    is never opened for writing. Compiled files go before the rename, so that none of the old text outlives it, and once
    more after it, for what an import made in between.
    """
    folder, name = os.path.split(path)
    try:
        kept = keep_copy(backup_dir, name, before)
    except OSError as error:
        raise Refused(
            f"the copy of {path} cannot be kept in {backup_dir}: {error.strerror}; nothing was changed; make the directory "
            "writable with room for the file, or give another backup_dir"
        ) from error
    temporary, replaced = "", False
    try:
        temporary = fill_temporary(folder, name, after, os.stat(path), path)
        remove(compiled_files(path))
        if read_bytes(path) != before:
            raise Refused(f"{path} was changed by somebody else in the meantime; nothing was changed, run again")
        os.replace(temporary, path)
        replaced = True
        sync_folder(folder)
        remove(compiled_files(path))
    except OSError as error:
        done = "the file was replaced, but not all that belongs to it was done" if replaced else "nothing was changed"
        raise Refused(
            f"{path} cannot be replaced: {error.strerror}; {done}; expected a writable directory with room for the file, "
            "and the right to keep its owner and attributes; put that right and run again"
        ) from error
    finally:
        if temporary and not replaced:
            with contextlib.suppress(OSError):
                remove([temporary])
    return kept


@contextlib.contextmanager
def locked(path: str, needed: bool) -> Iterator[None]:
    """Hold the lock of a file's directory, so that two runs see each other's result and not each other's middle."""
    if not needed or not os.path.isdir(os.path.dirname(path)):
        yield
        return
    descriptor = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        until = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise Refused(
                        f"{os.path.dirname(path)} was locked by another run for {LOCK_SECONDS} s; let it end, run again"
                    ) from None
                time.sleep(0.05)
            except OSError:
                break  # a file system without locks: the check before the rename still holds
        yield
    finally:
        os.close(descriptor)


# --- The module --------------------------------------------------------------------------------------------------------

TEXT: dict = {"type": "str"}
NEED: dict = {"type": "str", "required": True}
STRINGS: dict = {"type": "list", "elements": "str", "default": []}
EDIT: dict = {
    "enable_list_item": {
        "type": "dict",
        "options": {"in": NEED, "list_has": {"type": "list", "elements": "str", "required": True}, "item": NEED},
    },
    "replace": {
        "type": "dict",
        "options": {"in": TEXT, "before": NEED, "after": NEED, "indent": {"type": "int", "default": 0}},
    },
    "unified_diff": {"type": "dict", "options": {"in": TEXT, "diff": NEED}},
}
EDITS: dict = {
    "type": "list",
    "elements": "dict",
    "required": True,
    "options": EDIT,
    "mutually_exclusive": [list(EDIT)],
    "required_one_of": [list(EDIT)],
}


def entries(options: dict) -> dict:
    return {"type": "list", "elements": "dict", "default": [], "options": options}


PATCH: dict = {
    "name": NEED,
    "package": NEED,
    "file": NEED,
    "why": NEED,
    "source": STRINGS,
    "proof": TEXT,
    "tried": STRINGS,
    "edits": EDITS,
    "earlier": entries({"note": TEXT, "edits": EDITS}),
    "upstream": entries({"since": TEXT, "file": NEED, "in": TEXT, "text": TEXT, "list_has": STRINGS, "item": TEXT}),
    "show": entries({"file": NEED, "in": NEED}),
}
SPEC: dict = {
    "site_packages": {"type": "path", "required": True},
    "python": {"type": "path"},
    "state": {"type": "str", "choices": ["present", "absent", "inspected"], "default": "present"},
    "strict": {"type": "bool", "default": False},
    "backup_dir": {"type": "path", "default": "/var/lib/sglang/pristine"},
    "patch": {"type": "dict", "required": True, "options": PATCH},
}


@dataclass
class Result:
    """What the module returns; with a failure it fails."""

    facts: dict
    failure: str = ""
    warnings: list[str] = field(default_factory=list)


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    params = module.params
    try:
        patch = Patch.parse(params["patch"])
        package = find_package(params["site_packages"], patch.package, patch.file)
        path = package.locate(patch.file)
        writes = params["state"] != "inspected" and not module.check_mode
        with locked(path, writes):
            result = run(module, patch, package, path, writes)
    except NotInstalled as error:
        result = Result(not_installed(params, str(error)), "" if module.check_mode else str(error))
    except Refused as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}; expected files that this user may read and write")
    for warning in result.warnings:
        module.warn(warning)
    if result.failure:
        module.fail_json(msg=result.failure, **result.facts)
    module.exit_json(**result.facts)


def run(module: AnsibleModule, patch: Patch, package: Package, path: str, writes: bool) -> Result:
    """Read, decide, write where something is to do, and say what was found and done."""
    params, state = module.params, module.params["state"]
    parser = Parser(params["python"] or environment_python(params["site_packages"]), patch.lists_in)
    data = read_bytes(path)
    text, encoding = decoded(data, path)
    digest = package.hashes.get(patch.file)
    pristine_data = pristine_bytes(package, digest, path, data, params["backup_dir"])

    def other(file: str) -> str | None:
        return decoded(read_bytes(package.locate(file)), file)[0]

    step = plan(
        patch,
        state,
        text,
        parser,
        files=other,
        pristine_text=decoded(pristine_data, path)[0],
        pristine_sha256=(lambda new: sha256(encoding.encode(new)) == digest) if digest else None,
    )
    tried = package.version in patch.tried
    refused = params["strict"] and state == "present" and step.text is not None and not tried
    new_text = text if step.text is None or refused else step.text
    new = data if new_text == text else encoding.encode(new_text or "")
    changed = new != data
    old_compiled = []
    if data is not None and state != "inspected" and step.status != "drifted":
        old_compiled = stale_compiled_files(path, data)
    kept = ""
    if writes and data is not None and new is not None:
        remove(leftovers(path))
        if changed:
            kept = write(path, data, new, params["backup_dir"])
        else:
            remove(old_compiled)
    copy = backup_path(params["backup_dir"], os.path.basename(path), digest or sha256(pristine_data or b""))
    facts = {
        "status": step.status,
        "changed": changed or bool(old_compiled),
        "message": message(patch, package, step, not writes, changed, bool(old_compiled)),
        "patch_name": patch.name,
        "package_version": package.version,
        "tried": tried,
        "path": path,
        "install": package.install,
        "pristine": is_pristine(new if writes else data, digest, pristine_data),
        "sha256_before": None if data is None else sha256(data),
        "sha256_after": None if new is None else sha256(new),
        "excerpt": excerpts(patch, new_text if writes else text, parser, other),
        "edits": [
            {"edit": edit.title, "state": one.state, "line": one.line, "reason": one.reason} for edit, one in step.found
        ],
        "backup": kept or (copy if os.path.exists(copy) else ""),
    }
    if step.status == "drifted":
        facts.update(expected=step.expected, nearest=step.nearest)
    if module._diff:
        facts["diff"] = {
            "before_header": path,
            "after_header": path,
            "before": text or "",
            "after": new_text or "",
        }
    result = Result(facts)
    if step.status == "drifted" and state != "inspected":
        result.failure = drift_report(patch, package, path, step)
    elif refused:
        result.failure = (
            f"patch {patch.name} fits {patch.package} {package.version}, but was not tried on it and strict is set; tried on "
            f"{', '.join(patch.tried) or 'none'}; try it there and add the version to 'tried', or leave strict out"
        )
    if changed and state == "present" and not tried:
        result.warnings.append(
            f"patch {patch.name} fits {patch.package} {package.version} exactly, but was not tried on this version"
        )
    if changed and package.install == "wheel" and not within(path, params["site_packages"]):
        result.warnings.append(f"{patch.file} is a link to {path}: whatever else uses that file sees the change too")
    return result


def pristine_bytes(
    package: Package, digest: str | None, path: str, data: bytes | None, backup_dir: str
) -> bytes | None:
    """The file as the package ships it: the file itself or a kept copy, by RECORD's hash; else git's HEAD."""
    if digest is None:
        return None if package.install == "wheel" else git_head(path)
    if data is not None and sha256(data) == digest:
        return data
    kept = read_bytes(backup_path(backup_dir, os.path.basename(path), digest))
    return kept if kept is not None and sha256(kept) == digest else None


def is_pristine(data: bytes | None, digest: str | None, pristine_data: bytes | None) -> bool | None:
    if data is None or (digest is None and pristine_data is None):
        return None
    return sha256(data) == digest if digest else data == pristine_data


def within(path: str, folder: str) -> bool:
    return os.path.realpath(path).startswith(os.path.realpath(folder) + os.sep)


def message(patch: Patch, package: Package, step: Plan, would: bool, changed: bool, compiled: bool) -> str:
    """One sentence for people."""
    where = f"{patch.package} {package.version or '(unknown version)'}"
    places = "; ".join(f"{edit.title} (line {one.line})" for edit, one in step.found if one.line)
    verb = "would be" if would else "was"
    if changed:
        action = {
            ("not_applied", "present"): f"put into {where}: {places}",
            ("outdated", "present"): f"renewed in {where}: {places}",
        }.get((step.status, step.state), f"taken out of {where}")
        return f"Patch {patch.name} {verb} {action}."
    said = {
        "not_applied": f"{where} does not have the patch {patch.name}: {places}",
        "applied": f"{where} has the patch {patch.name}: {places}",
        "outdated": f"{where} has an older form of the patch {patch.name}, or a part of it",
        "not_needed": f"{where} does not need the patch {patch.name}: {step.reason}",
        "drifted": f"{where} does not fit the patch {patch.name}: {step.reason}",
    }[step.status]
    return said + (f"; compiled files of another text {verb} removed" if compiled else "") + "."


def drift_report(patch: Patch, package: Package, path: str, step: Plan) -> str:
    version = package.version or "of unknown version"
    parts = [
        f"patch {patch.name} does not fit {patch.package} {version} ({path}): {step.reason}. Nothing was changed.",
        f"Expected {step.expected}",
        *([f"Nearest lines:\n{step.nearest}"] if step.nearest else []),
        f"Tried on: {', '.join(patch.tried) or 'no version'}. If somebody edited the file, reinstall the package; if this "
        "version is new, read the excerpt and bring the patch file up to date; if it does not need the patch, leave it out.",
    ]
    return "\n".join(parts)


def not_installed(params: dict, reason: str) -> dict:
    """For check mode: what a real run would have installed is not there to look at."""
    result = dict.fromkeys(("package_version", "pristine", "sha256_before", "sha256_after"))
    return {
        **result,
        "status": "not_installed",
        "changed": params["state"] == "present",
        "message": f"{reason}.",
        "patch_name": params["patch"]["name"],
        "tried": False,
        "path": os.path.join(params["site_packages"], params["patch"]["file"]),
        "install": "wheel",
        "excerpt": "",
        "edits": [],
        "backup": "",
    }


if __name__ == "__main__":
    main()
