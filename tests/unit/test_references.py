"""Reference pages: Ansible's markup as Markdown, and what a page says of an option."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import tool

references = tool("references")
LINKS = {"O(port)": "#port", "M(gpu_info)": "../modules/gpu_info.md", "RV(state)": "#state"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Set C(a b) to V(true).", "Set `a b` to `true`."),
        ("see O(port), O(port=1), O(other.x[].y)", "see [`port`](#port), [`port=1`](#port), `other.x[].y`"),
        ("M(gpu_info) returns RV(state)", "[`gpu_info`](../modules/gpu_info.md) returns [`state`](#state)"),
        ("B(bold) I(it) E(HOME)", "**bold** *it* `HOME`"),
        ("U(https://x.example/) L(words,https://x.example/)", "<https://x.example/> [words](https://x.example/)"),
        (r"C(f(x\)) and C(a\\b)", r"`f(x)` and `a\b`"),
        ("V(`)", "`` ` ``"),
        ("<name>-front *.yml [a]", r"&lt;name>-front \*.yml \[a\]"),
        ("C(<name>.service)", "`<name>.service`"),
        ("CUDA(12) is no mark", "CUDA(12) is no mark"),
        ("over\n two lines", "over two lines"),
    ],
)
def test_markup(text: str, shown: str) -> None:
    assert references.markdown(text, LINKS) == shown


@pytest.mark.parametrize(
    ("option", "shown"),
    [
        ({"type": "int", "default": 30000}, "int · default `30000`"),
        ({"type": "list", "elements": "str", "default": []}, "list of str · default `[]`"),
        ({"type": "str", "default": ""}, 'str · default `""`'),
        ({"type": "bool", "default": False}, "bool · default `false`"),
        ({"type": "path", "required": True}, "path · **required**"),
        ({"choices": ["a", "b"], "default": "a"}, "str · default `a` · one of `a`, `b`"),
    ],
)
def test_facts_of_an_option(option: dict[str, Any], shown: str) -> None:
    assert references.facts(option, output=False) == shown


def test_what_lies_inside_is_a_list_as_deep_as_it_goes() -> None:
    option = {
        "type": "dict",
        "options": {"a": {"type": "dict", "options": {"b": {"type": "int", "description": "B."}}}},
    }
    assert references.entries({"o": option}, {})[4:] == ["- `a` · dict", "", "    - `b` · int", "", "        B.", ""]


def test_every_role_and_module_has_a_page_and_a_row() -> None:
    texts = references.wanted()
    for kind, folder, names in (
        ("roles", "roles", [path.name for path in (references.ROOT / "roles").iterdir()]),
        ("modules", "library", [path.stem for path in (references.ROOT / "library").glob("*.py")]),
    ):
        listed = texts[references.FOLDER / f"{kind}.md"]
        for name in names:
            assert f"({kind}/{name}.md)" in listed, folder
            assert texts[references.FOLDER / kind / f"{name}.md"].startswith(f"# {name}\n")
    page = texts[references.FOLDER / "roles/sglang_server.md"]
    assert "### sglang_server_port\n\nint · default `30000`\n" in page
