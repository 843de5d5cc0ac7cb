"""Diagnose a server: send the rules to the node, or read a log here; say what was found, and why; pack it for a report."""

from __future__ import annotations

import gzip
import io
import json
import re
import tarfile
import time
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.errors import AnsibleActionFail
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils import sglang_diagnose, sglang_rules
from ansible.module_utils.sglang_text import wrap

INDENT = "   "
BUNDLED_MIB = 4
BUNDLED_LOG = "server.log"
LABELS = {"cause": "CAUSE", "consequence": "FOLLOWS FROM IT", "slow": "SLOW", "benign": "HARMLESS"}

# What is taken out of a bundle, and what stands in its place. In this order: addresses would eat parts of the others.
QUOTED = r"(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
SCRUB = [
    (
        "secrets",
        re.compile(
            r"(?i)((?:api[_-]?key|token|password|secret|authorization)['\"]?\s*[=:]\s*)(?:bearer\s+)?"
            rf"(?:{QUOTED}|(?!None\b|null\b|\d+\b)[^\s'\",)]{{4,}})"
        ),
        r"\1(secret)",
    ),
    ("secrets", re.compile(r"(?i)\bbearer\s+[\w.~+/-]{8,}=*"), "Bearer (secret)"),
    ("secrets", re.compile(r"\b(?:hf|sk|ghp|gho|glpat)[_-][A-Za-z0-9_-]{10,}"), "(secret)"),
    (
        "prompts",
        re.compile(rf"\b(text|prompt|content|messages|input_text|output_strs?)=(?:{QUOTED}|\[[^\]]*\])"),
        r"\1=(prompt)",
    ),
    ("prompts", re.compile(rf"\"(text|prompt|content)\"\s*:\s*{QUOTED}"), r'"\1": "(prompt)"'),
    ("hardware ids", re.compile(r"\bGPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"), "GPU-(id)"),
    ("addresses", re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b", re.I), "(mac)"),
    (
        "addresses",
        re.compile(r"(?<![\w.])(?!127\.0\.0\.1|0\.0\.0\.0)(?:\d{1,3}\.){3}\d{1,3}(?![\w.])"),
        "(address)",
    ),
    ("addresses", re.compile(r"(?<![\w:])(?:[0-9a-f]{1,4}:){3,7}:?[0-9a-f]{1,4}(?![\w:])", re.I), "(address)"),
    ("users", re.compile(r"/home/[^/\s'\"]+"), "/home/(user)"),
]


def scrubbed(text: str, names: list[str]) -> tuple[str, dict[str, int]]:
    """A text without secrets, prompts, host names, addresses, ids and users, and how many of each were taken out."""
    removed: dict[str, int] = {}
    for kind, pattern, place in SCRUB:
        text, count = pattern.subn(place, text)
        removed[kind] = removed.get(kind, 0) + count
    for name in sorted({name for name in names if len(name) > 2}, key=len, reverse=True):
        text, count = re.subn(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", "(host)", text)
        removed["host names"] = removed.get("host names", 0) + count
    # journald puts the host's own name behind the time of each line.
    text, count = re.subn(
        r"(?m)^(\d{4}-\d\d-\d\dT\S+) (?!\(host\))\S+ (?=[^\s:\[]+(?:\[\d+\])?: )", r"\1 (host) ", text
    )
    removed["host names"] = removed.get("host names", 0) + count
    return text, removed


def opened(path: str) -> tuple[Any, str]:
    """A log's bytes: of a file, a gzip file, or the log in a bundle; and its name for quotes. The caller closes it."""
    try:
        if tarfile.is_tarfile(path):
            with tarfile.open(path) as archive:
                members = [one for one in archive.getmembers() if Path(one.name).name == BUNDLED_LOG]
                stream = archive.extractfile(members[0]) if members else None
                if stream is None:
                    raise AnsibleActionFail(
                        f"{path} is an archive without a {BUNDLED_LOG}; expected a log, or a bundle that doctor.yml wrote."
                    )
                # A bundle's log is some MiB.
                return io.BytesIO(stream.read()), f"{Path(path).name}:{BUNDLED_LOG}"
        with open(path, "rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        return gzip.open(path, "rb") if packed else Path(path).open("rb"), Path(path).name
    except OSError as error:
        raise AnsibleActionFail(
            f"The log {path} cannot be read: {error.strerror or error}. Correct sglang_doctor_log."
        ) from error


def finding_lines(number: int, found: dict[str, Any], name: str) -> list[str]:
    """One finding: what it is, the quoted line and where it stands, cause and remedy, how it is known."""
    when = f", {found['earlier']} start(s) before the last" if found["earlier"] else ""
    of = "kernel messages" if found["source"] == "kernel" else name
    times = f", {found['count']} times" if found["count"] > 1 else ""
    rank = f", rank {found['rank']}" if found["rank"] else ""
    stage = f", while {found['stage']}" if found["stage"] and found["source"] == "log" else ""
    lines = wrap(f"{number}. {LABELS[found['kind']]} ({found['severity']}){when}: {found['cause']}", "", INDENT)
    lines += wrap(f"Remedy: {found['remedy']}", INDENT)
    if found["line"]:
        lines += wrap(f"{of}, line {found['number']}{times}{rank}{stage}:", INDENT)
        lines += wrap(found["line"], "     ")
    if found["foreseen"]:
        lines += wrap("`plan.yml` says this before the start, by the same rule.", INDENT)
    return [*lines, *wrap(f"[{found['id']}] {found['confidence']}; {'; '.join(found['sources'])}", INDENT, "     "), ""]


def report(told: dict[str, Any], host: str, name: str) -> list[str]:
    """Everything for people, at most 80 columns where words allow."""
    log = told["log"]
    state = "it was ready" if log["ready"] else f"it came as far as {log['stage'] or 'its first lines'}"
    lines = wrap(
        f"DOCTOR for {host}: {name}, {log['lines']:,} lines, {log['starts']} start(s); of the last one {state}.",
        "",
        "  ",
    )
    if told.get("record"):
        record = told["record"]
        lines += wrap(
            f"Deployed: {record['profile'] or 'no profile'}, {Path(record['release']).name}, {record['at']}.", "  "
        )
    for gpu, now in enumerate((told.get("live") or {}).get("gpus", [])):
        lines.append(f"  GPU {gpu}: {now['utilization']:.0f} % busy, {now['power_w']:.0f} of {now['limit_w']:.0f} W")
    lines.append("")
    for number, found in enumerate(told["findings"], 1):
        lines += finding_lines(number, found, name)
    if told["unexplained"]:
        unknown = told["unexplained"]
        lines += wrap(f"No rule knows this failure. The innermost error, while {unknown['stage'] or 'starting'}:", "")
        lines += [f"     {line}" for line in unknown["lines"][-8:]]
        if unknown["near"]:
            lines += wrap(f"Nearest rules: {', '.join(unknown['near'])} (rules/).", "  ")
        lines.append("")
    if not told["findings"] and not told["unexplained"]:
        lines += wrap("Nothing that a rule knows is in it." + ("" if log["ready"] else " Its last lines:"), "")
        lines += [] if log["ready"] else [f"     {line}" for line in log["last_lines"][-8:]]
    return lines


def live_findings(told: dict[str, Any], rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What rules say of the server at work: those whose `when` speaks of `live`."""
    if not told.get("live"):
        return []
    return [
        {
            **found,
            **{"kind": "slow", "line": "", "number": 0, "count": 1, "rank": "", "stage": "", "source": "live"},
            **{"earlier": 0, "foreseen": False, "match": {}},
        }
        for found in sglang_rules.judge_about(rules, "live", live=told["live"], args=told["log"]["arguments"])
    ]


def also_lines(texts: list[str]) -> list[str]:
    """What a plan says of the node and its arguments."""
    if not texts:
        return []
    return [
        "What plan.yml says of this node and its arguments:",
        *(line for text in texts for line in wrap(text, "  - ", "    ")),
    ]


def summary(told: dict[str, Any]) -> str:
    """The first finding that explains a failure, for the message of one."""
    for found in told["findings"]:
        if found["kind"] in ("cause", "consequence") and not found["earlier"]:
            return f"{found['cause']} Remedy: {found['remedy']} [{found['id']}]"
    return ""


class ActionModule(ActionBase):
    TRANSFERS_FILES = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        task_vars, args = task_vars or {}, dict(self._task.args)
        own = {key: args.pop(key, None) for key in ("bundle", "src", "also")}
        shown = boolean(args.pop("report", True))
        try:
            rules = sglang_rules.load(str(ROOT / "rules"))
        except (sglang_rules.RulesError, OSError) as error:
            raise AnsibleActionFail(str(error)) from error
        wanted = sglang_diagnose.signatures(rules)
        host = task_vars.get("inventory_hostname", "")
        if own["src"]:
            stream, name = opened(str(own["src"]))
            with stream:
                tail = sglang_diagnose.Tail(stream, BUNDLED_MIB if own["bundle"] else 0)
                told: dict[str, Any] = {"log": sglang_diagnose.scan(tail, wanted)}
                told["text"] = tail.text()
        else:
            before = time.monotonic()
            told = self._execute_module(
                module_name="sglang_doctor",
                module_args={**args, "signatures": wanted, "text_mib": BUNDLED_MIB if own["bundle"] else 0},
                task_vars=task_vars,
            )
            if told.get("failed") or "log" not in told:
                result.update(told)
                return result
            name = str(args.get("log") or args.get("unit") or "sglang.service")
            # It was noted at the end of the look, so what lies between is its way back.
            told["clock_offset_s"] = round(told["now"] - time.time(), 3)
            told["clock_within_s"] = round(min(2.0, time.monotonic() - before), 3)
        version = str((told.get("record") or {}).get("sglang", ""))
        scans = [told["log"], *([told["kernel"]] if told.get("kernel") else [])]
        told["findings"] = sglang_diagnose.findings(scans, rules, version)
        told["findings"] += live_findings(told, rules)
        explained = any(found["kind"] == "cause" and not found["earlier"] for found in told["findings"])
        told["unexplained"] = {} if explained else sglang_diagnose.unexplained(told["log"], rules)
        lines = report(told, host, name) + also_lines(own["also"] or [])
        if shown:
            self._display.display("\n".join(lines))
        if own["bundle"]:
            self._pack(str(own["bundle"]), told, lines, [host, str(task_vars.get("ansible_host", ""))])
        told.pop("text", None)
        result.update(told, changed=False, summary=summary(told))
        return result

    def _pack(self, path: str, told: dict[str, Any], lines: list[str], names: list[str]) -> None:
        """One archive, scrubbed: the report, everything behind it, the log's end, and what was taken out."""
        texts = {
            "report.txt": "\n".join(lines) + "\n",
            "findings.json": json.dumps(
                {key: value for key, value in told.items() if key != "text"}, indent=1, default=str
            ),
            BUNDLED_LOG: told.get("text", ""),
        }
        removed: dict[str, int] = {}
        clean = {}
        for name, text in texts.items():
            clean[name], counted = scrubbed(text, names)
            removed = {kind: removed.get(kind, 0) + count for kind, count in counted.items()}
        said = "Taken out of this bundle: " + ", ".join(f"{count} {kind}" for kind, count in removed.items()) + ".\n"
        clean["REMOVED.txt"] = said + "Look through it before you pass it on: no pattern finds everything.\n"
        try:
            with tarfile.open(path, "w:gz") as archive:
                for name, text in clean.items():
                    data = text.encode()
                    entry = tarfile.TarInfo(f"sglang-doctor/{name}")
                    entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
                    archive.addfile(entry, io.BytesIO(data))
        except OSError as error:
            raise AnsibleActionFail(
                f"The bundle {path} cannot be written: {error.strerror}. Correct sglang_doctor_bundle."
            ) from error
        self._display.display(f"Bundle: {path}. {said.strip()}")
