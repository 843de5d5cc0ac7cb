"""Alert rules, dashboard and targets: judged by Prometheus' own tool, and held against what was recorded of real exporters."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from ansible.module_utils import sglang_node
from helpers import tool
from test_sglang_collect import SMI, collect, record

from filter_plugins.sglang_monitoring import sglang_scrape_targets

ROOT = Path(__file__).resolve().parents[2]
ROLE = ROOT / "roles/sglang_monitoring"
RULES = ROLE / "files/alerts.yml"
DATA = ROOT / "tests/unit/data/monitoring"
PROMTOOL = shutil.which("promtool", path=f"{os.environ['PATH']}:/usr/local/bin")
needs_promtool = pytest.mark.skipif(not PROMTOOL, reason="promtool is not installed: tools/setup --system")
KEY = "a-key-for-metrics-alone"
Pages = dict[str, list[tuple[str, str]]]  # where and text, by kind


metrics = tool("metrics")
BOARD: dict[str, Any] = json.loads((ROLE / "files/sglang.json").read_text())
ALERTS = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def promtool(*words: str) -> str:
    done = subprocess.run([str(PROMTOOL), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


# --- rules ------------------------------------------------------------------------------------------------------------


@needs_promtool
def test_prometheus_takes_the_rules() -> None:
    assert f"{len(ALERTS)} rules found" in promtool("check", "rules", str(RULES))


@needs_promtool
def test_the_rules_fire_when_they_have_to() -> None:
    promtool("test", "rules", str(DATA / "alerts.test.yml"))


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_each_alert_is_made_to_fire_and_says_what_to_do(rule: dict[str, Any]) -> None:
    told = rule["annotations"]
    assert set(told) == {"summary", "remedy", "docs"} and rule["labels"]["severity"] in ("critical", "warning")
    assert "$labels.node" in told["summary"]
    assert (ROOT / told["docs"]).is_file()
    cases = yaml.safe_load((DATA / "alerts.test.yml").read_text())["tests"]
    fires = [e["expr"] for case in cases for e in case.get("promql_expr_test", []) if e["exp_samples"]]
    fires += [
        f'alertname="{a["alertname"]}"' for case in cases for a in case.get("alert_rule_test", []) if a["exp_alerts"]
    ]
    fires += [s["labels"] for case in cases for e in case.get("promql_expr_test", []) for s in e["exp_samples"]]
    assert any(f'alertname="{rule["alert"]}"' in text for text in fires), "no case makes it fire"


def test_thresholds_that_the_rules_read_are_inputs_and_their_numbers_are_told() -> None:
    specs = yaml.safe_load((ROLE / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
    inputs = specs["sglang_monitoring_thresholds"]["options"]
    read = dict(re.findall(r"sglang_threshold:(\w+) or vector\(([\d.]+)\)", RULES.read_text()))
    assert set(read) == set(inputs)
    for name, number in read.items():
        assert f"({number})" in inputs[name]["description"], name


def test_errors_of_programs_are_those_that_the_doctor_takes_for_such() -> None:
    rules = yaml.safe_load((ROOT / "rules/log-node.yml").read_text())
    (pattern,) = (rule["signature"]["match"] for rule in rules if rule["id"] == "xid-program")
    (numbers,) = re.findall(r"\(\?P<xid>([\d|]+)\)", pattern)
    found = {rule["alert"]: rule["expr"] for rule in ALERTS}
    assert f'xid!~"{numbers}"' in found["SglangGpuXid"] and f'xid=~"{numbers}"' in found["SglangGpuXidOfProgram"]


# --- the dashboard ----------------------------------------------------------------------------------------------------


@needs_promtool
def test_prometheus_takes_the_dashboards_expressions(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{n}", "expr": metrics.filled(e.text)} for n, e in enumerate(metrics.of_dashboard())]
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", str(tmp_path / "panels.yml"))


def test_the_dashboard_is_whole() -> None:
    """Structure alone: Grafana itself is not at hand."""
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] >= 0 and at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, f"{panel['title']} lies on another panel"
        taken |= cells
    variables = {variable["name"] for variable in BOARD["templating"]["list"]}
    assert variables == {"datasource", "node", "model", "gateway"}
    for panel in (panel for panel in panels if panel["type"] != "row"):
        assert panel["description"] and panel["targets"], panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
        for target in panel["targets"]:
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            assert used <= variables and (used or "ALERTS" in target["expr"]), target["expr"]
    assert not re.search(r'"uid": "(?!\$|sglang-rtxpro)', json.dumps(BOARD)), "somebody's own data source"


def test_counters_are_never_shown_as_they_are() -> None:
    """They begin anew when the engine does."""
    for one in metrics.expressions():
        for name in re.findall(r"\b((?:sglang:|smg_)\w+_(?:total|bucket|sum|count))\b", one.text):
            assert re.search(rf"(?:rate|increase)\({re.escape(name)}\b", one.text), one


@pytest.mark.parametrize(
    ("panel", "unit"),
    [
        ("TTFT", "s"), ("TPOT", "s"), ("ITL", "s"), ("Output token throughput", "suffix: tok/s"), ("KV cache use", "percentunit"),
        ("Cache hit rate", "percentunit"), ("Power", "watt"), ("SM clock", "hertz"), ("Temperature", "celsius"),
        ("Queued requests", "short"), ("Requests", "reqps"), ("Disk left", "percentunit"), ("Memory used", "bytes"),
    ],
)  # fmt: skip
def test_units(panel: str, unit: str) -> None:
    shown = {p["title"]: p["fieldConfig"]["defaults"]["unit"] for p in BOARD["panels"] if p["type"] == "timeseries"}
    assert shown[panel] == unit


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("sglang:token_usage", ["sglang:token_usage"]),
        ('sum by (le, node) (rate(a_bucket{le="0.5",x=~"b{}\\"or c"}[5m] offset 1h))', ["a_bucket"]),
        ("a / on (node) group_left (name) b", ["a", "b"]),
        ("max without (x) (a) > bool 3e2 and b unless c", ["a", "b", "c"]),
        ("histogram_quantile(0.9, sum(a)) # of b", ["a"]),
        ("topk(3, a) or vector(0)", ["a"]),
        ("a[5m:1m] @ 1609746000", ["a"]),
        ("Inf + NaN - 0x1f * a", ["a"]),
        ("label_replace(a, 'b', '$1', 'c', '(d)')", ["a"]),
    ],
)
def test_names_in_an_expression(text: str, found: list[str]) -> None:
    assert list(metrics.names(metrics.need(text))) == found


@pytest.mark.parametrize(
    ("text", "there", "fits"),
    [
        ("a or b", {"b"}, True),
        ("a or b", {"c"}, False),
        ("c * (a or on (x) b)", {"a", "c"}, True),
        ("c * (a or on (x) b)", {"a", "b"}, False),
        ("a or b + c", {"b"}, False),
        ("sum(rate(a[1m]) or rate(b[1m])) / c", {"b", "c"}, True),
        ("x > scalar(t or vector(2))", {"x"}, True),
    ],
)
def test_what_an_expression_needs(text: str, there: set[str], fits: bool) -> None:
    assert metrics.satisfied(metrics.need(text), there) == fits


def test_what_is_no_promql_is_said() -> None:
    for text in ("sum(a", 'a{x="1"', "a ; b"):
        with pytest.raises(ValueError):
            metrics.need(text)


def recorded() -> Pages:
    """Pages of real exporters by kind."""
    found: Pages = {}
    for kind in ("engine", "gateway", "node"):
        found[kind] = [(path.name, path.read_text()) for path in sorted(DATA.glob(f"{kind}-*.txt"))]
    for version in ("0.5.9", "0.5.15.post1", "0.5.23"):
        found["engine"].append(
            (f"metrics-{version}.txt", (DATA.parent / f"sglang_bench/metrics-{version}.txt").read_text())
        )
    return found


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pages:
    """What was recorded; a node exporter's page with what the collector makes of a record and of a recorded nvidia-smi."""
    found = recorded()
    ((where, text),) = found["node"]
    monkeypatch.setattr(sglang_node, "RUN", str(tmp_path / "run"))
    sglang_node.write(str(tmp_path / "run/sglang/supervise.json"), json.dumps({"looked": 1.0, "failing_since": 0.0}))
    server, gpu = collect.Page(), collect.gpu_page((SMI / "2x-h200/q.txt").read_text())
    units = {"sglang.service": {"ActiveState": "active", "NRestarts": "0"}}
    collect.server_page(server, record(tmp_path), units, {"verdict": "tuned", "fallbacks": 0})
    for name in ("hung", "read_success", "xid_errors_total", "xid_last_timestamp_seconds"):
        gpu.add(f"sglang_gpu_{name}", "", 1)
    found["node"] = [(where, text + server.text()), (f"{where} with GPUs", text + server.text() + gpu.text())]
    return found


def test_all_that_is_named_was_exported_by_real_engines_gateways_and_nodes(pages: Pages) -> None:
    wrong = metrics.problems(pages, live=True)
    assert not wrong, "\n".join(wrong)


def test_what_begins_with_an_event_is_known_to_its_program(pages: Pages) -> None:
    """Words of sglang-router's own binary; what the collector writes it wrote from recorded outputs above."""
    words = set((DATA / "words-router-0.3.2.txt").read_text().split())
    named = {name for one in metrics.expressions() for name in metrics.names(metrics.need(one.text))}
    for name in {name for name in named if name.startswith("smg_")}:
        assert re.sub(r"_bucket$", "", name) in words, name
    engine = {name for name in metrics.EVENTUAL if name.startswith("sglang:")}
    assert engine <= metrics.exported((DATA / "engine-0.5.23.txt").read_text())
    node = metrics.exported(pages["node"][1][1])
    assert {
        name for name in named if name.startswith(("sglang_server", "sglang_gpu", "sglang_tuning", "sglang_disk"))
    } <= node
    assert {name for name in metrics.EVENTUAL if name.startswith("sglang_")} <= node


@pytest.mark.parametrize(
    ("kind", "gone", "says"),
    [
        ("engine", "sglang:token_usage", "alerts.yml: SglangKvCacheFull"),
        ("engine", "sglang:time_to_first_token_seconds_bucket", "sglang.json: TTFT"),
        ("gateway", "smg_worker_health", "SglangWorkerUnhealthy"),
        ("node", "node_textfile_mtime_seconds", "SglangMetricsOld"),
        ("node", "sglang_gpu_throttled", "SglangGpuThrottled"),
    ],
)
def test_a_name_that_is_gone_is_missed(kind: str, gone: str, says: str, pages: Pages) -> None:
    found = dict(pages)
    found[kind] = [
        (where, re.sub(rf"^{re.escape(gone)}\b", "renamed", text, flags=re.MULTILINE)) for where, text in found[kind]
    ]
    wrong = metrics.problems(found, live=True)
    assert any(gone in line and says in line for line in wrong), wrong


def test_one_release_that_lacks_a_name_is_missed(pages: Pages) -> None:
    found = dict(pages)
    found["engine"] = [
        (where, re.sub(r"^sglang:token_usage", "gone", text, flags=re.MULTILINE) if "0.5.9" in where else text)
        for where, text in found["engine"]
    ]
    wrong = metrics.problems(found, live=True)
    assert wrong and all(line.startswith("metrics-0.5.9.txt lacks sglang:token_usage") for line in wrong)


# --- targets ----------------------------------------------------------------------------------------------------------


FRONT = {"sglang_server_front": True, "sglang_server_front_metrics_keys": [KEY]}


def targets(hosts: dict[str, dict[str, Any]], gateways: tuple[str, ...] = (), **other: Any) -> dict[str, Any]:
    wanted = {
        "engines": [host for host in hosts if host not in (*gateways, "watch")], "gateways": list(gateways),
        "node_port": 9100, "key": KEY, "here": "watch", **other,
    }  # fmt: skip
    return sglang_scrape_targets(wanted, {"watch": {"ansible_host": "10.0.0.9"}, **hosts})


def test_engines_and_their_nodes_are_reached_through_their_fronts() -> None:
    tls = {"ansible_host": "10.0.0.1", **FRONT, "sglang_server_front_certificate": "/etc/ssl/node.pem"}
    found = targets({"one": tls, "two": {**FRONT, "sglang_server_front_port": 81}})
    assert found["problems"] == []
    engine, node = found["jobs"]
    assert (engine["name"], engine["key"], node["name"], node["key"]) == ("sglang-engine", True, "sglang-node", True)
    assert engine["targets"] == [
        {"targets": ["10.0.0.1:8000"], "labels": {"job": "sglang-engine", "node": "one", "__scheme__": "https"}},
        {"targets": ["two:81"], "labels": {"job": "sglang-engine", "node": "two", "__scheme__": "http"}},
    ]
    assert {target["labels"]["__metrics_path__"] for target in node["targets"]} == {"/node/metrics"}


def test_gateways_have_no_front() -> None:
    gateway = {"ansible_host": "10.0.0.2", "sglang_gateway_metrics_host": "0.0.0.0"}
    found = targets({"one": FRONT, "gw": gateway}, gateways=("gw",))
    assert [job["name"] for job in found["jobs"]] == [
        "sglang-engine",
        "sglang-node",
        "sglang-gateway",
        "sglang-node-direct",
    ]
    assert found["jobs"][2]["targets"][0]["targets"] == ["10.0.0.2:29000"]
    assert found["jobs"][3]["targets"] == [
        {"targets": ["10.0.0.2:9100"], "labels": {"job": "sglang-node", "node": "gw"}}
    ]


def test_a_node_that_watches_itself_needs_no_front_and_no_key() -> None:
    found = targets({"one": {"sglang_server_port": 30001, "sglang_monitoring_dcgm_port": 9400}}, here="one", key="")
    assert found["problems"] == []
    assert [(job["name"], job["key"], job["targets"][0]["targets"]) for job in found["jobs"]] == [
        ("sglang-engine", False, ["127.0.0.1:30001"]),
        ("sglang-node", False, ["127.0.0.1:9100"]),
        ("sglang-dcgm", False, ["one:9400"]),
    ]


def test_two_servers_of_one_node_have_one_node_exporter() -> None:
    one = {"ansible_host": "10.0.0.1", **FRONT}
    found = targets({"a": one, "b": {**one, "sglang_server_front_port": 8001}})
    assert [len(job["targets"]) for job in found["jobs"]] == [2, 1]


@pytest.mark.parametrize(
    ("hosts", "key", "says"),
    [
        ({"one": {}}, KEY, "The engine of one listens on its node alone"),
        ({"one": {"sglang_server_front": True}}, KEY, "The front of one passes no metrics on"),
        ({"one": FRONT}, "", "The front of one wants a key"),
        ({"one": FRONT}, "another-key-of-somebody", "is none of the sglang_server_front_metrics_keys of one"),
        (
            {"one": {**FRONT, "sglang_server_front_metrics_keys": ["short"]}},
            "short",
            "sglang_monitoring_key has 5 characters",
        ),
        ({}, KEY, "There is nothing to watch"),
    ],
)
def test_what_cannot_be_watched_is_said(hosts: dict[str, dict[str, Any]], key: str, says: str) -> None:
    (problem,) = targets(hosts, key=key)["problems"]
    assert says in problem and (KEY not in problem) and "another-key" not in problem


def test_a_gateway_that_tells_its_own_node_alone() -> None:
    (problem,) = targets({"one": FRONT, "gw": {}}, gateways=("gw",))["problems"]
    assert "sglang_gateway_metrics_host" in problem
    found = targets({"one": FRONT, "gw": {"sglang_server_front_metrics_keys": [KEY]}}, gateways=("gw",), here="gw")
    assert found["problems"] == []


def test_a_host_that_is_not_in_the_inventory() -> None:
    assert targets({}, engines=["gone"])["problems"] == ["gone is not in the inventory."]


# --- configuration ----------------------------------------------------------------------------------------------------


def render(template: str, **variables: Any) -> str:
    loader = jinja2.FileSystemLoader(ROLE / "templates")
    environment = jinja2.Environment(
        loader=loader, trim_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    )
    environment.filters.update(to_json=json.dumps, bool=bool)
    return environment.get_template(template).render(variables)


@needs_promtool
@pytest.mark.parametrize("alertmanagers", [[], ["10.0.0.3:9093"]])
def test_prometheus_takes_its_configuration(tmp_path: Path, alertmanagers: list[str]) -> None:
    found = targets(
        {"one": {**FRONT, "sglang_server_front_certificate": "x"}, "gw": {"sglang_gateway_metrics_host": "::"}},
        gateways=("gw",),
    )
    text = render(
        "prometheus.yml.j2",
        sglang_monitoring_interval=15,
        sglang_monitoring_alertmanagers=alertmanagers,
        sglang_monitoring_web_config="",
        sglang_monitoring_ca_file="",
        sglang_monitoring_verify=False,
        __sglang_monitoring_self="127.0.0.1:9090",
        __sglang_monitoring_jobs=found["jobs"],
    )
    thresholds = render("thresholds.yml.j2", sglang_monitoring_thresholds={"kv_usage_ratio": 0.9, "restarts": None})
    assert [rule["record"] for rule in yaml.safe_load(thresholds)["groups"][0]["rules"]] == [
        "sglang_threshold:kv_usage_ratio"
    ]
    assert yaml.safe_load(render("thresholds.yml.j2", sglang_monitoring_thresholds={}))["groups"][0]["rules"] == []
    for name, content in (("alerts.yml", RULES.read_text()), ("thresholds.yml", thresholds), ("key", KEY)):
        (tmp_path / name).write_text(content)
    (tmp_path / "prometheus.yml").write_text(text.replace("/etc/sglang/monitoring", str(tmp_path)))
    promtool("check", "config", str(tmp_path / "prometheus.yml"))
    jobs = {job["job_name"]: job for job in yaml.safe_load(text)["scrape_configs"]}
    assert jobs["sglang-engine"]["authorization"] == {"credentials_file": "/etc/sglang/monitoring/key"}
    assert "authorization" not in jobs["sglang-gateway"] and "authorization" not in jobs["sglang-node-direct"]
    assert KEY not in text
