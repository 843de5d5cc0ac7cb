"""Whatever the source looks like: the result parses, differs in the item's line alone, and is undone exactly."""

from __future__ import annotations

import ast
import difflib

import python_source_patch as module
from hypothesis import given, settings
from hypothesis import strategies as st
from test_python_source_patch import enable, plan, replace

NAMES = st.sampled_from(["trtllm", "mxfp4", "cutedsl", "é…", "a b", "#x"])
SPACE = st.sampled_from(["", " ", "  "])


@st.composite
def items(draw: st.DrawFn) -> str:
    """One item of a list, as somebody might write it."""
    quote = draw(st.sampled_from("\"'"))
    name = draw(NAMES)
    return draw(
        st.sampled_from(
            [
                f"{quote}{name}{quote}",
                f"{quote}{name}{quote}",
                "OTHER",
                "f('cutlass')",
                "['cutlass']",
                "*REST",
                "('trtllm')",
                "'''\n# \"cutlass\",\n'''",
                "'cut' 'less'",
            ]
        )
    )


@st.composite
def comments(draw: st.DrawFn) -> str:
    return draw(
        st.sampled_from(
            [
                '# "cutlass",',
                "# 'cutlass',",
                '# "cutlass"',
                '#"cutlass",',
                "# TODO: cutlass",
                '# "mxfp4",',
                "#",
                '# "cutlass",  # slow',
            ]
        )
    )


@st.composite
def lists(draw: st.DrawFn) -> str:
    """A list literal in any layout, with comments where they are allowed."""
    parts = [draw(items()) for _ in range(draw(st.integers(0, 4)))]
    parts.insert(draw(st.integers(0, len(parts))), draw(st.sampled_from(['"trtllm"', "'trtllm'"])))
    if draw(st.integers(0, 5)) == 0:
        parts.insert(draw(st.integers(0, len(parts))), '"cutlass"')
    last_comma = draw(st.sampled_from([",", ""]))
    if draw(st.booleans()):
        return "[" + draw(SPACE) + ", ".join(parts) + draw(st.sampled_from([last_comma, last_comma + " "])) + "]"
    indent = draw(st.sampled_from(["        ", "  ", "\t", ""]))
    lines = []
    for index, part in enumerate(parts):
        if draw(st.integers(0, 2)) == 0:
            lines.append(indent + draw(comments()))
        comma = last_comma if index == len(parts) - 1 else ","
        note = "  " + draw(comments()) if draw(st.integers(0, 4)) == 0 else ""
        lines.append(f"{indent}{part}{draw(SPACE) if comma else ''}{comma}{note}")
    if draw(st.booleans()):
        lines.append(indent + draw(comments()))
    closing = draw(st.sampled_from(["", "    "]))
    return "[\n" + "\n".join(lines) + f"\n{closing}]"


@st.composite
def sources(draw: st.DrawFn) -> str:
    body = draw(lists())
    use = draw(
        st.sampled_from(
            ["return name in {}", "if name not in {}:\n            return 1", "x = sorted({})", "return {} + [1]"]
        )
    )
    before = draw(
        st.sampled_from(["", '"""Not this:\n["trtllm",\n# "cutlass",\n]\n"""\n', "# page\x0c\n", 'X = ["trtllm"]\n'])
    )
    after = draw(st.sampled_from(["", "\n", '\n    def other(self):\n        return ["trtllm"]\n', "\n# end"]))
    text = f"{before}class Runner:\n    def gate(self, name):\n        {use.format(body)}{after}"
    return text.replace("\n", draw(st.sampled_from(["\n", "\r\n"])))


@settings(max_examples=150, deadline=None)
@given(sources())
def test_an_item_is_made_active_and_taken_out_again(text: str) -> None:
    step = plan(text)
    if step.text is None:
        assert step.status in ("applied", "drifted")
        return
    assert step.status == "not_applied"
    assert gate_values(step.text) == gate_values(text) | {"cutlass"}
    removed, added = lines_between(text, step.text)
    assert len(added) == 1
    assert "cutlass" in added[0]
    assert (
        removed in ([], [added[0].replace(", 'cutlass'", "")], [added[0].replace(', "cutlass"', "")])
        or [line.replace("# ", "", 1) for line in removed] == added
    )
    assert plan(step.text).status == "applied"
    assert plan(step.text, "absent").text == text


@settings(max_examples=50, deadline=None)
@given(sources(), st.permutations(["cutlass", "routed", "b"]), st.permutations(["cutlass", "routed", "b"]))
def test_three_patches_on_one_list(text: str, order: list[str], out: list[str]) -> None:
    now, made = text, []
    for item in order:
        step = plan(now, edits=[enable(item)])
        if step.text is not None:
            made.append(item)
            now = step.text
    for item in out:
        if item in made:
            step = plan(now, "absent", edits=[enable(item)])
            assert step.text is not None
            now = step.text
    assert now == text


LINES = st.lists(st.sampled_from(["a = 1", "b = 2", "c = 3", "", "d = 4  # é", "# x"]), min_size=1, max_size=9)


@settings(max_examples=250, deadline=None)
@given(LINES, st.data(), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_a_block_is_replaced_and_put_back(lines: list[str], data: st.DataObject, newline: str, final: bool) -> None:
    text = newline.join(lines) + (newline if final else "")
    first = data.draw(st.integers(0, len(lines) - 1))
    before = lines[first : data.draw(st.integers(first + 1, len(lines)))]
    after = data.draw(LINES)
    if before == after or not any(map(str.strip, before)) or not any(map(str.strip, after)):
        return
    edits = [replace("\n".join(before) + "\n", "\n".join(after) + "\n")]
    step = plan(text, edits=edits)
    if step.text is None:
        assert step.status in ("applied", "drifted")
        return
    ast.parse(step.text)
    assert plan(step.text, edits=edits).status == "applied"
    assert plan(step.text, "absent", edits=edits).text == text


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet="abc[]()\"'#,\n\t :=é\r\x0c\\", max_size=60))
def test_any_text_gets_a_verdict(text: str) -> None:
    for state in ("present", "absent", "inspected"):
        step = plan(text, state, edits=[enable(within="a", list_has=("b",))])
        assert step.status in ("not_applied", "applied", "drifted")


def gate_values(text: str) -> set[str]:
    found = module.outline(module.Doc(text, module.Parser()).plain, ["Runner.gate"])
    lists = [items for _, items in found["lists"]["Runner.gate"] if any(value == "trtllm" for value, _ in items)]
    return {value for items in lists for value, _ in items if value is not None}


def lines_between(before: str, after: str) -> tuple[list[str], list[str]]:
    delta = list(difflib.ndiff(before.split("\n"), after.split("\n")))
    return [line[2:] for line in delta if line[0] == "-"], [line[2:] for line in delta if line[0] == "+"]
