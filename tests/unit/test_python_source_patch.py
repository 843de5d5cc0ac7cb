"""What the patch decides, from texts alone: every kind of edit, every status, every way to write a list."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest
import python_source_patch as module
import yaml

ROOT = Path(__file__).resolve().parents[2]
GATE = (Path(__file__).parent / "data/python_source_patch/gate.py").read_text()
PATCHES = sorted((ROOT / "patches").glob("*.yml"))


def params(**changes: Any) -> dict[str, Any]:
    """A patch as the module's parameters, with the argument spec's defaults filled in."""
    patch: dict[str, Any] = {
        "name": "probe",
        "package": "pkg",
        "file": "pkg/gate.py",
        "why": "to try",
        "edits": [enable()],
        **changes,
    }
    return filled(patch, module.PATCH)


def filled(value: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    result = {}
    for key, option in spec.items():
        found = value.get(key, option.get("default"))
        if found is not None and "options" in option:
            found = (
                [filled(x, option["options"]) for x in found]
                if option["type"] == "list"
                else filled(found, option["options"])
            )
        result[key] = found
    assert not set(value) - set(spec), value
    return result


def enable(
    item: str = "cutlass", within: str = "Runner.gate", list_has: tuple[str, ...] = ("trtllm",)
) -> dict[str, Any]:
    return {"enable_list_item": {"in": within, "list_has": list(list_has), "item": item}}


def replace(before: str, after: str, **more: Any) -> dict[str, Any]:
    return {"replace": {"before": before, "after": after, **more}}


def plan(text: str | None, state: str = "present", /, **more: Any) -> module.Plan:
    extra = {key: more.pop(key) for key in list(more) if key in ("files", "pristine_text", "pristine_sha256")}
    patch = module.Patch.parse(params(**more))
    return module.plan(patch, state, text, module.Parser(lists_in=patch.lists_in), **extra)


def gate(body: str, before: str = "", after: str = "") -> str:
    """A file whose Runner.gate holds a list."""
    return f"{before}class Runner:\n    def gate(self, name):\n        return name in {body}\n{after}"


def applied(text: str, **more: Any) -> str:
    """The patched text, after the checks that hold for every patch: it is seen, idempotent and undone exactly."""
    step = plan(text, **more)
    assert step.status == "not_applied", step
    assert step.text is not None
    compile(step.text, "patched", "exec")
    again = plan(step.text, **more)
    assert (again.status, again.text) == ("applied", None)
    assert plan(step.text, "inspected", **more).text is None
    assert plan(text, "absent", **more).text is None
    assert plan(step.text, "absent", **more).text == text
    return step.text


def changed_lines(before: str, after: str) -> list[tuple[str, str]]:
    old, new = before.split("\n"), after.split("\n")
    assert len(old) == len(new)
    return [(a, b) for a, b in zip(old, new) if a != b]


# --- enable_list_item


def test_the_gate_differs_in_one_line_and_keeps_its_comments() -> None:
    edits = [enable("flashinfer_cutlass", "ModelRunner._should_run_flashinfer_autotune", ("flashinfer_trtllm",))]
    after = applied(GATE, edits=edits)
    assert changed_lines(GATE, after) == [
        ('            # "flashinfer_cutlass",', '            "flashinfer_cutlass",'),
    ]


MARKED = "  # added by python_source_patch"
LISTS = {
    "missing": ('[\n            "trtllm",\n        ]', '[\n            "trtllm",\n            "cutlass",MARK\n        ]'),
    "one line": ('["trtllm", "b"]', '["trtllm", "b", "cutlass"]'),
    "one line, comma": ('["trtllm", "b",]', '["trtllm", "b", "cutlass",]'),
    "single quotes": ("['trtllm']", "['trtllm', 'cutlass']"),
    "other indent": ('[\n  "trtllm",\n  # "cutlass",\n]', '[\n  "trtllm",\n  "cutlass",\n]'),
    "tabs": ('[\n\t\t"trtllm",\n\t\t# "cutlass",\n]', '[\n\t\t"trtllm",\n\t\t"cutlass",\n]'),
    "commented in single quotes": ("[\n 'trtllm',\n # 'cutlass',\n]", "[\n 'trtllm',\n 'cutlass',\n]"),
    "comment behind it": ('[\n "trtllm",\n # "cutlass",  # slow\n]', '[\n "trtllm",\n "cutlass",  # slow\n]'),
    "commented out in the middle": ('[\n "trtllm",\n # "cutlass",\n "b"\n]', '[\n "trtllm",\n "cutlass",\n "b"\n]'),
    "commented out first": ('[\n # "cutlass",\n "trtllm",\n]', '[\n "cutlass",\n "trtllm",\n]'),
    # Without the comma before it, uncommenting would join two strings into one.
    "no comma before it": ('[\n "trtllm"\n # "cutlass",\n]', '[\n "trtllm", "cutlass"\n # "cutlass",\n]'),
    "no comma in the comment": ('[\n "trtllm",\n # "cutlass"\n]', '[\n "trtllm",\n "cutlass",MARK\n # "cutlass"\n]'),
    "other form of comment": ('[\n "trtllm",\n #"cutlass",\n]', '[\n "trtllm",\n "cutlass",MARK\n #"cutlass",\n]'),
    "a note that names it": ('[\n "trtllm",  # not "cutlass",\n]', '[\n "trtllm",  # not "cutlass",\n "cutlass",MARK\n]'),
    "closing bracket on the last line": ('[\n "trtllm",\n "b"]', '[\n "trtllm",\n "b", "cutlass"]'),
    "nested list": ('[\n "trtllm",\n [\n  # "cutlass",\n ],\n]', '[\n "trtllm",\n [\n  # "cutlass",\n ],\n "cutlass",MARK\n]'),
    "other expressions": ('[*OTHER, "trtllm", f(x)]', '[*OTHER, "trtllm", f(x), "cutlass"]'),
    "wide characters": ('["é…", "trtllm"]', '["é…", "trtllm", "cutlass"]'),
    "inside a call": ('sorted(["trtllm"])', 'sorted(["trtllm", "cutlass"])'),
    "string that looks like it": (
        '[\n """\n # "cutlass",\n""",\n "trtllm",\n]',
        '[\n """\n # "cutlass",\n""",\n "trtllm",\n "cutlass",MARK\n]',
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_lists_as_people_write_them(name: str, newline: str) -> None:
    before, after = (gate(body).replace("MARK", MARKED).replace("\n", newline) for body in LISTS[name])
    assert applied(before) == after


DRIFTED = {
    "tuple": '("trtllm",)',
    "set": '{"trtllm"}',
    "built by a call": '"trtllm cutlass".split()',
    "built by list()": 'list(("trtllm",))',
    "two lists": '["trtllm"] + ["trtllm"]',
    "commented out twice": '[\n "trtllm",\n # "cutlass",\n # "cutlass",\n]',
    "active twice": '["trtllm", "cutlass", "cutlass"]',
    "in parentheses": '[("trtllm")]',
    "only in a docstring": '"""\n["trtllm",\n# "cutlass",\n]\n"""',
    "only in a nested list": '[["a", f("trtllm")]]',
}


@pytest.mark.parametrize("name", DRIFTED)
def test_nothing_is_guessed(name: str) -> None:
    text = gate(DRIFTED[name])
    for state in ("present", "absent", "inspected"):
        step = plan(text, state)
        assert (step.status, step.text) == ("drifted", None), step
        assert step.reason
        assert "Runner.gate" in step.expected


def test_a_name_that_is_missing_or_there_twice() -> None:
    assert "there is no Other.gate" in plan(gate('["trtllm"]'), edits=[enable(within="Other.gate")]).reason
    twice = gate('["trtllm"]', after='    def gate(self):\n        return ["trtllm"]\n')
    assert "Runner.gate is defined 2 times" in plan(twice).reason


def test_a_class_attribute_and_a_module_constant() -> None:
    text = 'NAMES = ["trtllm"]\n\nclass Runner:\n    names: list = [\n        "trtllm",\n    ]\n'
    assert '["trtllm", "cutlass"]' in applied(text, edits=[enable(within="NAMES")])
    assert '        "cutlass",  # added' in applied(text, edits=[enable(within="Runner.names")])
    both = applied(text, edits=[enable(within="NAMES"), enable(within="Runner.names")])
    assert both.count("cutlass") == 2


HAND_MADE = {
    "uncommented": ('[\n "trtllm",\n "cutlass",\n]', '[\n "trtllm",\n # "cutlass",\n]'),
    "a second line, comment kept": ('[\n "trtllm",\n "cutlass",\n # "cutlass",\n]', '[\n "trtllm",\n # "cutlass",\n]'),
    "in the middle of a line": ('["trtllm", "cutlass", "b"]', '["trtllm", "b"]'),
    "first of a line": ('["cutlass", "trtllm"]', '["trtllm"]'),
    "last line without comma": ('[\n "trtllm",\n "cutlass"\n]', '[\n "trtllm",\n # "cutlass"\n]'),
}


@pytest.mark.parametrize("name", HAND_MADE)
def test_edits_made_by_hand_are_seen_and_taken_out(name: str) -> None:
    text, bare = (gate(body) for body in HAND_MADE[name])
    assert plan(text).status == "applied"
    assert plan(text, "absent").text == bare


def test_the_package_hash_decides_how_a_hand_made_edit_is_taken_out() -> None:
    """Somebody inserted a line where the package has none: in the text alone this looks like an uncommented one."""
    by_hand, shipped = gate('[\n "trtllm",\n "cutlass",\n]'), gate('[\n "trtllm",\n]')
    assert plan(by_hand, "absent", pristine_sha256=lambda text: text == shipped).text == shipped


# --- replace and unified_diff

TEXT = textwrap.dedent("""\
    import os


    class Server:
        limit = 64

        def start(self):
            self.limit = 64
            backend = "auto"
            return backend


    def stop():
        backend = "auto"
        return backend
    """)


def test_replace_with_scope_and_indent() -> None:
    edits = [replace('backend = "auto"', 'backend = "cutlass"', **{"in": "Server.start", "indent": 8})]
    after = applied(TEXT, edits=edits)
    assert changed_lines(TEXT, after) == [('        backend = "auto"', '        backend = "cutlass"')]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("        return backend\n\n\ndef stop():", "        log()\n        return backend\n\n\ndef stop():"),
        ("import os", "import os\nimport sys"),  # its own result holds it
        ("import os\n\n\nclass Server:", "class Server:"),  # it holds its own result
        ('def stop():\n    backend = "auto"\n    return backend', "def stop():\n    return None"),
        ("    limit = 64\n", "    limit = 2048\n"),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("final", [True, False])
def test_replace_keeps_line_ends(before: str, after: str, newline: str, final: bool) -> None:
    text = TEXT if final else TEXT[:-1]
    patched = applied(text.replace("\n", newline), edits=[replace(before, after)])
    expected = text.replace(before.rstrip("\n"), after.rstrip("\n"))
    assert patched == expected.replace("\n", newline)


def test_replace_must_match_once() -> None:
    twice = plan(TEXT, edits=[replace('backend = "auto"', 'backend = "x"', indent=4)])
    assert twice.status == "not_applied", "the line in the method has another indent, so whole lines match once"
    twice = plan(TEXT + TEXT[TEXT.index("def stop") :], edits=[replace('    backend = "auto"', '    backend = "x"')])
    assert twice.status == "drifted"
    assert "2 times as shipped" in twice.reason
    both = plan(TEXT + 'backend = "x"\n', edits=[replace('    backend = "auto"', 'backend = "x"')])
    assert both.status == "drifted"
    assert "1 times as shipped and 1 times as patched" in both.reason


def test_drift_shows_expected_and_nearest_lines() -> None:
    step = plan(TEXT, edits=[replace("    self.limit = 64\n    backend = 'auto'\n    return backend", "    pass")])
    assert step.status == "drifted"
    assert "backend = 'auto'" in step.expected
    assert "    8          self.limit = 64" in step.nearest


DIFF = """\
--- a/pkg/gate.py
+++ b/pkg/gate.py
@@ -4,3 +4,3 @@ class Server:
 class Server:
-    limit = 64
+    limit = 2048

@@ -12,3 +12,7 @@
 def stop():
     backend = "auto"
+    try:
+        probe()
+    except RuntimeError:
+        backend = "none"
     return backend
"""


def test_unified_diff() -> None:
    after = applied(TEXT, edits=[{"unified_diff": {"diff": DIFF}}])
    assert "limit = 2048" in after
    assert 'backend = "none"' in after
    shifted = "# more\n" * 40 + TEXT
    assert applied(shifted, edits=[{"unified_diff": {"diff": DIFF}}]) == "# more\n" * 40 + after
    assert len(plan(TEXT, edits=[{"unified_diff": {"diff": DIFF}}]).found) == 2


@pytest.mark.parametrize(
    ("diff", "says"),
    [
        (DIFF.replace("+12,7", "+12,6"), "longer than its @@ line says"),
        (DIFF.replace("-12,3 +12,7", "-12,4 +12,8"), "shorter than its @@ line says"),
        ("--- a\n+++ b\n", "no hunk"),
        ("@@ -1,2 +1,2 @@\n-a\n+b\n", "shorter"),
        ("@@ -1 +1 @@\n-a\n+b\n+c\n", "expected a hunk"),
        ("@@ -1 +1 @@\n-a\n+b\n--- a/second.py\n+++ b/second.py\n", "second file"),
        ("@@ -1 +1 @@\n-a\n+b\n\\ No newline at end of file\n", "newline at the end"),
        ("@@ -1 +0,0 @@\n-a\n", "'after' is empty"),
        ("@@ -0,0 +1 @@\n+a\n", "'before' is empty"),
    ],
)
def test_diffs_that_are_refused(diff: str, says: str) -> None:
    with pytest.raises(module.Refused, match=says):
        plan(TEXT, edits=[{"unified_diff": {"diff": diff}}])


# --- statuses


def test_several_edits_all_or_none() -> None:
    edits = [replace("import os", "import sys"), replace("    limit = 64", "    limit = 65")]
    applied(TEXT, edits=edits)
    step = plan(TEXT, edits=[*edits, replace("no such line", "other")])
    assert (step.status, step.text) == ("drifted", None)


def test_a_patch_in_part_is_outdated_and_completed_or_taken_out() -> None:
    edits = [replace("import os", "import sys"), replace("    limit = 64", "    limit = 65")]
    part = TEXT.replace("import os", "import sys")
    assert plan(part, edits=edits).status == "outdated"
    assert plan(part, edits=edits).text == applied(TEXT, edits=edits)
    assert plan(part, "absent", edits=edits).text == TEXT


def test_an_earlier_form_is_renewed_or_taken_out() -> None:
    more: dict[str, Any] = {
        "edits": [replace("import os", "import os, sys")],
        "earlier": [{"edits": [replace("import os", "import os\nimport sys")]}],
    }
    old = TEXT.replace("import os", "import os\nimport sys")
    assert plan(old, "inspected", **more).status == "outdated"
    assert plan(old, **more).text == TEXT.replace("import os", "import os, sys")
    assert plan(old, "absent", **more).text == TEXT
    applied(TEXT, **more)


UPSTREAM = [{"file": "pkg/new.py", "in": "gate", "list_has": ["trtllm"], "item": "cutlass"}]


def test_upstream_fix_in_another_file() -> None:
    new = {"pkg/new.py": 'def gate(name):\n    return name in ["trtllm", "cutlass"]\n'}
    step = plan("x = 1\n", upstream=UPSTREAM, files=new.get)
    assert (step.status, step.text) == ("not_needed", None)
    assert "pkg/new.py, gate (line 2)" in step.reason
    assert plan(None, upstream=UPSTREAM, files=new.get).status == "not_needed"
    off = {"pkg/new.py": new["pkg/new.py"].replace(', "cutlass"', "")}
    assert plan("x = 1\n", upstream=UPSTREAM, files=off.get).status == "drifted"
    assert "there is no pkg/gate.py" in plan(None, upstream=UPSTREAM, files=off.get).reason


def test_upstream_fix_by_text() -> None:
    upstream = [{"file": "pkg/gate.py", "in": "Runner.gate", "text": "needs = name in ["}]
    text = gate("[]").replace("return name in []", 'needs = name in ["trtllm", "cutlass"]\n        return needs')
    assert plan(text, upstream=upstream).status == "not_needed"
    assert plan(gate('["trtllm"]'), upstream=upstream).status == "not_applied"


def test_what_the_package_ships_is_not_ours_to_take_out() -> None:
    shipped = gate('["trtllm", "cutlass"]')
    for state in ("present", "absent"):
        step = plan(shipped, state, pristine_text=shipped)
        assert (step.status, step.text) == ("not_needed", None)
    more: dict[str, Any] = {"edits": [enable(), replace("# one", "# two")]}
    half, whole = "# one\n" + shipped, "# two\n" + shipped
    assert plan(half, pristine_text=half, **more).text == whole
    assert plan(whole, "absent", pristine_text=half, **more).text == half


def test_patches_on_one_file_in_any_order() -> None:
    text = gate('[\n "trtllm",\n # "cutlass",\n]', before="limit = 64\n")
    sets: list[dict[str, Any]] = [
        {"edits": [enable()]},
        {"edits": [enable("mxfp4")]},
        {"edits": [enable("routed")]},
        {"edits": [replace("limit = 64", "limit = 65")]},
    ]
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]):
        for out in ([0, 1, 2, 3], [2, 0, 3, 1]):
            now = text
            for index in order:
                now = plan(now, **sets[index]).text or pytest.fail(f"patch {index} of {order}")
            for index in range(4):
                assert plan(now, **sets[index]).status == "applied"
            for index in out:
                now = plan(now, "absent", **sets[index]).text or pytest.fail(f"patch {index} of {out}")
            assert now == text


def test_a_result_that_does_not_parse_is_refused() -> None:
    step = plan(TEXT, edits=[replace("    limit = 64", "    limit = (64")])
    assert (step.status, step.text) == ("drifted", None)
    assert "cannot parse it" in step.reason


def test_edits_that_could_not_be_taken_out_are_refused() -> None:
    """Each fits, but together the second hides the first."""
    edits = [replace("import os", "import sys"), replace("import os\n", "import re", **{"in": None})]
    step = plan(TEXT, edits=edits)
    assert (step.status, step.text) == ("drifted", None)


def test_lone_carriage_returns_are_refused() -> None:
    assert "carriage returns" in plan(gate('["trtllm"]') + "x = 1\ry = 2\n").reason


def test_mixed_line_ends() -> None:
    text = "a = 1\r\nb = 2\nc = 3\n"
    assert applied(text, edits=[replace("b = 2", "b = 3")]) == "a = 1\r\nb = 3\nc = 3\n"
    assert "line ends" in plan(text, edits=[replace("a = 1\nb = 2", "a = 2\nb = 3")]).reason


# --- the patch itself


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"file": "/etc/passwd.py"}, "relative to site-packages"),
        ({"file": "pkg/../../x.py"}, "relative to site-packages"),
        ({"file": "pkg/data.json"}, "must be a .py file"),
        ({"edits": []}, "no edits"),
        ({"edits": [enable(list_has=())]}, "list_has is empty"),
        ({"edits": [enable(item='a"b')]}, "without quotes"),
        ({"edits": [replace("a", "a")]}, "are the same"),
        ({"edits": [replace("a", "\n")]}, "'after' is empty"),
        ({"upstream": [{"file": "pkg/a.py"}]}, "upstream needs"),
        ({"upstream": [{"file": "pkg/a.py", "item": "x"}]}, "upstream needs"),
        ({"upstream": [{"file": "pkg/a.py", "item": "x", "list_has": ["y"]}]}, "upstream needs"),
    ],
)
def test_patches_that_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(module.Refused, match=says):
        module.Patch.parse(params(**changes))


@pytest.mark.parametrize("path", PATCHES, ids=lambda path: path.stem)
def test_patch_files(path: Path) -> None:
    patch = yaml.safe_load(path.read_text())
    assert patch["name"] == path.stem
    assert patch["tried"]
    assert all(isinstance(version, str) for version in patch["tried"])
    assert patch["why"]
    assert patch["proof"]
    assert patch["source"]
    module.Patch.parse(filled(patch, module.PATCH))


def test_documentation_describes_every_option() -> None:
    documented = yaml.safe_load(module.DOCUMENTATION)["options"]

    def check(options: dict[str, Any], spec: dict[str, Any], where: str) -> None:
        assert set(options) == set(spec), where
        for key, option in spec.items():
            said = options[key]
            for fact in ("type", "default", "choices", "elements"):
                assert said.get(fact) == option.get(fact), f"{where}.{key}.{fact}"
            assert said.get("required", False) == option.get("required", False), f"{where}.{key}"
            assert said["description"], f"{where}.{key}"
            if "options" in option:
                check(said["suboptions"], option["options"], f"{where}.{key}")

    check(documented, module.SPEC, "options")


# --- reading source


def test_outline_names_and_places() -> None:
    text = (
        "class A:\n    @staticmethod\n    def f():\n        def g():\n            pass\n\n    x = ['a']\n\n"
        "if 1:\n    def h(): pass\n"
    )
    found = module.outline(text, ["A", "A.x"])
    assert found["names"] == [["A", 1, 7], ["A.f", 2, 5], ["A.f.g", 4, 5], ["A.x", 7, 7], ["h", 10, 10]]
    assert found["lists"]["A"] == found["lists"]["A.x"] == [[[7, 8, 7, 13], [["a", [7, 9, 7, 12]]]]]


def test_form_feeds_do_not_shift_lines() -> None:
    text = "# page\x0cbreak\x0b\x1c\u2028 and more\n" + gate('["trtllm"]')
    assert applied(text).endswith('["trtllm", "cutlass"]\n')


def test_source_that_nobody_parses() -> None:
    step = plan("def f(:\n")
    assert step.status == "drifted"
    assert "cannot parse it" in step.reason
    parser = module.Parser("/no/such/python")
    with pytest.raises(module.Refused, match="give its path as 'python'"):
        parser.check("x = 1\n")


@pytest.mark.parametrize("data", [b"x = 1\n", b"\xef\xbb\xbfx = 1\r\n", b"# coding: latin-1\nx = '\xe9'", b""])
def test_encodings_come_back(data: bytes) -> None:
    text, encoding = module.decoded(data, "a.py")
    assert text is not None
    assert not text.startswith("\ufeff")
    assert encoding.encode(text) == data


def test_undecodable_source_is_refused() -> None:
    for data in (b"# coding: ascii\nx = '\xe9'\n", b"x = '\xff'\n", b"# coding: nonsense\n"):
        with pytest.raises(module.Refused, match="nothing was changed"):
            module.decoded(data, "a.py")
