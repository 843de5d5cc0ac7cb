"""docs/troubleshooting.md: what a reader gets of a rule's template, and where a rule stands."""

from __future__ import annotations

import pytest
from helpers import tool

page = tool("troubleshooting")


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("Port {{ match.port or 'of the server' }} is taken.", "Port … is taken."),
        ("A card{{ ' (' ~ match.card ~ ')' if match.card else '' }} locked up.", "A card locked up."),
        ("Set `{{ 'a' if old else 'a-new' }}: 256`.", "Set `a / a-new: 256`."),
        ("x{{ gpu.width }}{{ '.' if loop.last else ',' }}", "x…."),
        ("{% if new %}\nSet a.\n{% elif b %} Set b. {%- else -%} Set c.{% endif %}", "Set a. Or: Set b. Or: Set c."),
        ("It ended{%- if a %} early{% elif b %} late{%- endif %}.", "It ended early or late."),
        ("`journalctl -k | grep -iE 'oom|killed'`", "`journalctl -k | grep -iE 'oom|killed'`"),
    ],
)
def test_a_template_for_readers(template: str, text: str) -> None:
    assert page.text_of(template) == text


def test_what_nobody_tells_before_the_start_is_not_said_to_be() -> None:
    told = page.page().split(f"## {page.TITLES['plan']}")[1].split("\n## ")[0]
    assert "### acs-on" in told and "### live-" not in told and "### load-" not in told
