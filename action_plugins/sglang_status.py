"""Look at a node through the module of this name, or show the looks of all hosts of a play as one page."""

from __future__ import annotations

import collections
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.module_utils.parsing.convert_bool import boolean
from ansible.plugins.action import ActionBase

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT / "module_utils") not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.sglang_text import WIDTH, wrap

# The variable that each host's look is registered in.
LOOK = "__sglang_status_look"
DEFAULT_NAME = "sglang"
HEAD = ("HOST", "STATE", "MODEL", "ID", "SINCE", "UP", "RST", "PROOF", "DRIFT")
LOAD_HEAD = ("HOST", "GPUS", "BUSY", "WATTS", "RUNNING", "QUEUED", "KV")
LONG = 24  # characters of a host's name from which on a domain that all share is left out
MODEL_WIDTH = 14  # as much as a long host's name leaves a model's
REASON = 400  # characters of a failure that are told
SHORT = 3  # hosts of one kind that are told with their times
NO_SMI = "nvidia-smi is not installed"
DOCTOR = "doctor.yml says why."
GAP = "  "

Look = Mapping[str, Any]
Remark = tuple[str, str, str]  # label, text, remedy


# --- words ----------------------------------------------------------------------------------------------------------------


def age(seconds: float | None) -> str:
    """A span in four characters at most."""
    if seconds is None:
        return "-"
    for limit, size, unit in ((60, 1, "s"), (3600, 60, "m"), (172800, 3600, "h")):
        if seconds < limit:
            return f"{seconds // size:.0f}{unit}"
    return f"{seconds // 86400:.0f}d"


def cut(text: str, width: int, head: float = 0.5) -> str:
    """A name within a column: `head` of what is left of it stands before the dots."""
    if len(text) <= width:
        return text
    first = round((width - 2) * head)
    return f"{text[:first]}..{text[len(text) - (width - 2 - first) :]}"


def distinct(names: list[str], width: int) -> list[str]:
    """Names within a column, cut where they are alike, so that they are told apart where that can be."""
    ways = [[cut(name, width, head) for name in names] for head in (0.5, 1, 0)]
    return next((way for way in ways if len(set(way)) == len(set(names))), ways[0])


def domain(names: list[str]) -> str:
    """The end, from a dot on, that long names of hosts share."""
    if len(names) < 2 or max(map(len, names)) <= LONG:
        return ""
    parts = [name.split(".") for name in names]
    shared = 0
    while all(len(part) > shared + 1 for part in parts) and len({part[-shared - 1] for part in parts}) == 1:
        shared += 1
    return "".join("." + part for part in parts[0][len(parts[0]) - shared :])


def ended(text: str, width: int = WIDTH) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 2].rstrip() + ".."


def sentence(text: str) -> str:
    text = ended(text, REASON).rstrip()
    return text if text.endswith((".", "!", "?", "..")) else text + "."


def times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def who(by: Look) -> str:
    name = "@".join(str(by[key]) for key in ("user", "host") if by.get(key)) or "somebody"
    return f"{name} (pid {by['pid']})" if by.get("pid") else name


def trouble(look: Look) -> tuple[str, str]:
    """Why a host has no look, as state and reason; empty when it has one."""
    said = re.sub(r"^Task failed: ", "", " ".join(str(look.get("msg", "")).split()))
    if look.get("unreachable"):
        return "unreachable", said or "no reason was given"
    if look.get("error") or "state" not in look:
        return "not looked at", str(look.get("error") or said or "no look was registered")
    return "", ""


def label(host: str, look: Look) -> str:
    name = look.get("name") or DEFAULT_NAME
    return host if name == DEFAULT_NAME else f"{host}/{name}"


# --- the table ------------------------------------------------------------------------------------------------------------


def table(head: tuple[str, ...], rows: list[tuple[str, ...]], widths: list[int], right: set[int]) -> list[str]:
    """Rows below their head; a row of two cells runs on to the page's edge."""
    lines = []
    hosts = distinct([row[0] for row in rows], widths[0])
    for row in [head, *((host, *row[1:]) for host, row in zip(hosts, rows, strict=True))]:
        if len(row) == 2:
            first = f"{row[0]:<{widths[0]}}{GAP}"
            lines.append(first + ended(row[1], WIDTH - len(first)))
            continue
        cells = [
            f"{cut(cell, width):>{width}}" if place in right else f"{cut(cell, width):<{width}}"
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(GAP.join(cells).rstrip())
    return lines


def longest(rows: list[tuple[str, ...]]) -> int:
    return max(len("HOST"), *(len(row[0]) for row in rows))


def needed(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[int]:
    full = [row for row in [head, *rows] if len(row) == len(head)]
    return [max(len(row[place]) for row in full) for place in range(len(head))]


def row_of(host: str, look: Look) -> tuple[str, ...]:
    """A host's line; of two cells where there is nothing to lay out."""
    state, reason = trouble(look)
    if state:
        # ssh's own word stands last; the whole of it is below.
        return host, f"{state}: {reason.rsplit(': ', 1)[-1] if state == 'unreachable' else reason}"
    deployed, unit, smoke = look["deployment"], look["unit"], look["proof"].get("smoke", {})
    if look["state"] == "nothing":
        return host, "nothing deployed"
    real = sum(not found["hint"] for found in look["drift"])
    models = look["answers"]["models"]
    number = deployed.get("id", "")
    return (
        host,
        look["state"],
        deployed.get("model") or unit["model"] or (models[0] if models else "-"),
        str(int(number)) if number.isdigit() else number or "-",
        age(deployed.get("age_s")),
        age(unit["uptime_s"]),
        str(unit["restarts"]),
        {True: "passed", False: "FAILED"}.get(smoke.get("passed"), "-"),
        str(real) if real else "-",
    )


def overview(looks: Mapping[str, Look]) -> list[str]:
    """A line a host. Names of hosts and models share what the other columns leave."""
    rows = [row_of(label(host, look), look) for host, look in looks.items()]
    widths = needed(HEAD, rows)
    rest = WIDTH - sum(widths[place] for place in range(len(HEAD)) if place not in (0, 2)) - 2 * (len(HEAD) - 1)
    # A host is told by its name alone; a model by others of its row too.
    model = min(widths[2], max(rest - longest(rows), MODEL_WIDTH))
    widths[0], widths[2] = min(longest(rows), rest - model), model
    return table(HEAD, rows, widths, {3, 4, 5, 6, 8})


def load(looks: Mapping[str, Look]) -> list[str]:
    """What GPUs and engines do at the moment, of the hosts that can say it."""
    rows: list[tuple[str, ...]] = []
    for host, look in looks.items():
        gpus, engine = look.get("gpus") or {}, look.get("engine") or {}
        if not gpus.get("count") and not engine:
            continue
        busy, power, limit = (gpus.get(key) for key in ("utilization", "power_w", "limit_w"))
        rows.append(
            (
                label(host, look),
                str(gpus.get("count") or "-"),
                "-" if busy is None else f"{busy:.0f} %",
                "-" if power is None else f"{power:.0f} of {limit:.0f}" if limit else f"{power:.0f}",
                *(f"{engine[key]:.0f}" if key in engine else "-" for key in ("running", "queued")),
                f"{100 * engine['token_usage']:.0f} %" if "token_usage" in engine else "-",
            )
        )
    if not rows:
        return []
    widths = needed(LOAD_HEAD, rows)
    widths[0] = min(longest(rows), WIDTH - sum(widths[1:]) - 2 * (len(LOAD_HEAD) - 1))
    return ["", "LOAD", *table(LOAD_HEAD, rows, widths, {1, 2, 3, 4, 5, 6})]


# --- who deployed what ----------------------------------------------------------------------------------------------------


def deployed_lines(looks: Mapping[str, Look]) -> list[str]:
    """What is committed, from which commit and by whom; hosts that are alike stand together."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for host, look in looks.items():
        found = look.get("deployment")
        if not found:
            continue
        by, tuning = found["by"], look["proof"].get("tuning", {})
        words = [
            found["profile"] or "no profile",
            f"SGLang {found['sglang']}" if found["sglang"] else "",
            Path(found["release"]).name,
            f"from {by['commit'][:20]}" if by.get("commit") else "",
            f"by {who(by)}" if by.get("user") or by.get("host") else "",
            f"tuning: {tuning['verdict']}" if tuning.get("verdict") else "",
            f"rank {found['replica']['rank']} of {found['replica']['name']}" if found.get("replica") else "",
        ]
        groups.setdefault(", ".join(filter(None, words)), []).append((label(host, look), found["at"]))
    lines = []
    for what, members in groups.items():
        if len(members) <= SHORT:
            hosts = ", ".join(f"{host} {at}" for host, at in members)
        else:
            all_at = sorted(at for _host, at in members)
            names = "all" if len(groups) == 1 else ", ".join(host for host, _at in members)
            hosts = f"{names}, {all_at[0]} to {all_at[-1]}"
        lines += wrap(f"{what}: {hosts}", "  ", "    ")
    return ["", "DEPLOYED", *lines] if lines else []


# --- what there is to say -------------------------------------------------------------------------------------------------


def of_the_server(look: Look) -> list[Remark]:
    """What the unit does that it should not."""
    unit, answers, state = look["unit"], look["answers"], look["state"]
    found: list[Remark] = []
    if unit["there"] and not unit["ours"] and not look["deployment"]:
        found.append(("NOTE", f"{look['name']}.service was not deployed by this project.", ""))
    elif unit["ours"] and not look["deployment"]:
        found.append(("NOTE", f"{look['name']}.service is of this project, and no record says what it is.", ""))
    elif state == "by hand" and not look["deployment"]:
        found.append(
            ("NOTE", f"A server that no unit of this name started answers or listens at {answers['url']}.", "")
        )
    if state == "by hand" and unit["there"]:
        found.append(("SERVER", f"The unit itself is {unit['active']}.", ""))
    elif state == "failed":
        before = f"; systemd restarted it {times(unit['restarts'])} before" if unit["restarts"] else ""
        found.append(("SERVER", f"It has failed ({unit['result']}){before}.", f"{DOCTOR} deploy.yml starts it again."))
    elif state == "stopped":
        found.append(("SERVER", "It does not run.", "deploy.yml starts it."))
    elif state == "silent":
        what = f"It has run for {age(unit['uptime_s'])} and does not answer at {answers['url']}"
        found.append(("SERVER", f"{what}: {answers['said']}.", DOCTOR))
    elif state == "restarting":
        found.append(("SERVER", f"It ends, and systemd starts it again: {times(unit['restarts'])} so far.", DOCTOR))
    if unit["restarts"] and state not in ("failed", "restarting"):
        found.append(("SERVER", f"systemd restarted it {times(unit['restarts'])}.", DOCTOR))
    return found


def of_the_run(look: Look) -> list[Remark]:
    """Lock, record and proof."""
    record, lock, smoke = look["record"], look["lock"], look["proof"].get("smoke", {})
    found: list[Remark] = []
    if lock:
        what = f"{who(lock['by'])} holds the lock since {lock['at'] or 'an unknown time'}"
        if lock["forsaken"]:
            found.append(("LOCK", f"{what}, and no longer counts: {lock['forsaken']}.", "deploy.yml takes it over."))
        else:
            found.append(("LOCK", f"{what}; its last sign of life was {age(lock['silent_s'])} ago.", ""))
    if record["damaged"]:
        what = f"Cannot be read: {', '.join(record['damaged'])}."
        found.append(("RECORD", what, "deploy.yml goes on from what can be read."))
    if record["interrupted"]:
        what = f"A run switched at {record['at']} and never came to its end."
        found.append(("RUN", what, "deploy.yml finishes it; rollback.yml goes back."))
    elif record["under_way"]:
        found.append(("RUN", f"A run switched at {record['at']} and is not through yet.", ""))
    elif record["phase"] == "restored":
        what = f"Put back at {record['at']}: {record['reason'] or 'no reason was kept'}"
        found.append(("RUN", sentence(what), "Mend the cause, then deploy.yml."))
    if smoke.get("passed") is False:
        found.append(("PROOF", sentence(f"Its answers failed: {smoke.get('summary') or 'no reason was kept'}"), DOCTOR))
    return found


def of_what_stands_beside(look: Look) -> list[Remark]:
    """Front, supervisor, GPUs."""
    front, supervisor, note = look["front"], look["supervisor"], look["gpus"]["note"]
    found: list[Remark] = []
    if front["there"] and not front["active"]:
        what = f"{look['name']}-front.service does not run: nobody gets through."
        found.append(("FRONT", what, "deploy.yml puts it right."))
    elif front["there"] and front["gate_closed"]:
        if look["lock"] and not look["lock"]["forsaken"]:
            found.append(("FRONT", "The gate is closed while a run is at work: requests are refused (503).", ""))
        else:
            what = "The gate is closed and no run is at work: requests are refused (503)."
            found.append(("FRONT", what, "deploy.yml opens it."))
    if supervisor["there"] and not supervisor["active"]:
        what = f"{look['name']}-supervise.timer does not run."
        found.append(("SUPERVISOR", what, "deploy.yml puts it right."))
    found += [("SUPERVISOR", sentence(f"{deed['at']} {deed['text']}"), "") for deed in supervisor["deeds"]]
    told = any(note and note in drift["text"] for drift in look["drift"])
    if note and note != NO_SMI and not told:
        found.append(("GPU", sentence(f"nvidia-smi: {note}"), "doctor.yml says what is known of it."))
    return found


def remarks(look: Look) -> list[Remark]:
    """Everything that is to be said of a host, what weighs most first."""
    state, reason = trouble(look)
    if state:
        return [(state.upper(), sentence(reason), "")]
    drift = sorted(look["drift"], key=lambda found: found["hint"])
    return [
        *of_the_server(look),
        *of_the_run(look),
        *of_what_stands_beside(look),
        *(("HINT" if one["hint"] else "DRIFT", one["text"], one["remedy"]) for one in drift),
    ]


def blocks(looks: Mapping[str, Look]) -> list[str]:
    """What there is to say, a block a host; hosts of which the same is said share one."""
    groups: dict[tuple[Remark, ...], list[str]] = {}
    for host, look in looks.items():
        found = tuple(remarks(look))
        if found:
            groups.setdefault(found, []).append(label(host, look))
    lines: list[str] = []
    for found, hosts in groups.items():
        lines += ["", *wrap(", ".join(hosts), "", "")]
        for (kind, text, remedy), after in zip(found, [*found[1:], ("", "", "")], strict=True):
            lines += wrap(f"{kind}: {text}", "  ", "    ")
            # Said once below those that share it.
            lines += wrap(f"Remedy: {remedy}", "    ", "    ") if remedy and remedy != after[2] else []
    return lines


def of_replicas(looks: Mapping[str, Look]) -> list[str]:
    """Nodes that are to serve one model and were not deployed together, a block a replica."""
    found: dict[str, dict[str, list[str]]] = {}
    for host, look in looks.items():
        replica = (look.get("deployment") or {}).get("replica")
        if replica:
            found.setdefault(replica["name"], {}).setdefault(replica["together"], []).append(label(host, look))
    lines: list[str] = []
    for name, sets in found.items():
        if len(sets) > 1:
            what = " and ".join(", ".join(hosts) for hosts in sets.values())
            lines += ["", *wrap(name, "", "")]
            lines += wrap(f"REPLICA: {what} are of different deployments of it.", "  ", "    ")
            lines += wrap(f"Remedy: `deploy.yml -l {name}` makes them one again.", "    ", "    ")
    return lines


# --- the page -------------------------------------------------------------------------------------------------------------


def title(looks: Mapping[str, Look], now: str, left_out: str) -> list[str]:
    states = collections.Counter(trouble(look)[0] or look["state"] for look in looks.values())
    drifted = len(drifting(looks))
    words = {"serves": "serve" if states["serves"] != 1 else "serves", "nothing": "with nothing deployed"}
    said = [f"{number} {words.get(state, state)}" for state, number in states.most_common()]
    said += [f"{drifted} with drift"] if drifted else []
    without = f" Names are without {left_out}." if left_out else ""
    return wrap(
        f"STATUS of {len(looks)} host{'' if len(looks) == 1 else 's'}, {now}: {', '.join(said)}.{without}", "", "  "
    )


def drifting(looks: Mapping[str, Look]) -> list[str]:
    return [host for host, look in looks.items() if any(not found["hint"] for found in look.get("drift") or [])]


def page(looks: Mapping[str, Look], now: str) -> list[str]:
    """All hosts: a line each, who deployed what, the load, and what there is to say; 80 columns."""
    if not looks:
        return [f"STATUS, {now}: there are no hosts."]
    left_out = domain(list(looks))
    looks = {host.removesuffix(left_out): look for host, look in looks.items()}
    said = blocks(looks) + of_replicas(looks)
    if not said and any(look["deployment"] for look in looks.values()):
        said = ["", "Everything is as it was committed."]
    return [*title(looks, now, left_out), "", *overview(looks), *deployed_lines(looks), *load(looks), *said]


class ActionModule(ActionBase):
    """A host that cannot be looked at does not fail: the page tells it."""

    TRANSFERS_FILES = False
    _VALID_ARGS = frozenset({"name", "root", "page"})

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        args = dict(self._task.args)
        if boolean(args.pop("page", False)):
            hosts = task_vars.get("ansible_play_hosts_all") or []
            looks = {host: task_vars["hostvars"][host].get(LOOK) or {} for host in hosts}
            lines = page(looks, time.strftime("%Y-%m-%dT%H:%MZ", time.gmtime()))
            self._display.display("\n".join(lines))
            result.update(changed=False, page=lines, drifted=drifting(looks))
            return result
        try:
            told = self._execute_module(module_name="sglang_status", module_args=args, task_vars=task_vars)
        except AnsibleConnectionFailure:
            raise  # unreachable is Ansible's own word
        except AnsibleError as error:
            told = {"failed": True, "msg": str(error)}
        if told.pop("failed", False):
            said = [str(told.get(key) or "") for key in ("msg", "module_stderr", "module_stdout")]
            told = {"error": " ".join(" ".join(filter(None, said)).split()), "name": args.get("name", DEFAULT_NAME)}
        result.update(told, changed=False)
        return result
