"""What the bencher reads, sums up and says; and the program itself beside a script that stands in for the client.

data/sglang_bench/README.md says where the recorded files are from.
"""

from __future__ import annotations

import http.server
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from ansible.module_utils import sglang_bencher as bencher
from helpers import serving

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).parent / "data" / "sglang_bench"
PROGRAM = ROOT / "module_utils/sglang_bencher.py"
SCHEMA = json.loads((ROOT / "schemas/run.schema.json").read_text())
QUERY = [*bencher.SHOWN, bencher.EVENT]


def valid(telemetry: dict[str, Any]) -> dict[str, Any]:
    """The same, if it is what the schema of run.json has; its JSON is strict."""
    jsonschema.validate(telemetry, {**SCHEMA["$defs"]["telemetry"], "$defs": SCHEMA["$defs"]})
    json.dumps(telemetry, allow_nan=False)
    return telemetry


# --- nvidia-smi


def test_recorded_lines_of_the_query() -> None:
    lines = (DATA / "nvidia-smi-lms.csv").read_text().splitlines()
    found = [bencher.parse_smi(line, QUERY) for line in lines]
    assert len(found) == 6 and [gpu["power_w"] for gpu in found[:2]] == [116.06, 97.1]
    assert found[0] == {
        **{"index": 0, "name": "NVIDIA H200", "power_w": 116.06, "limit_w": 700.0, "utilization_percent": 0.0},
        **{"sm_clock_mhz": 375.0, "temperature_c": 34.0, "memory_mib": 0.0, "reasons": 1},
    }


def test_a_recorded_file_with_units_and_other_columns() -> None:
    header, *lines = (DATA / "nvidia-smi.csv").read_text().splitlines()
    columns = [column.partition(" [")[0].strip() for column in header.split(",")]
    found = [bencher.parse_smi(line, columns) for line in lines]
    assert len(found) > 200 and all(found)
    assert found[0]["power_w"] == 121.63 and found[0]["sm_clock_mhz"] == 1980 and found[0]["memory_mib"] == 44976


@pytest.mark.parametrize("text", ["[N/A]", "[Not Supported]", "[Unknown Error]", ""])
def test_a_field_that_a_card_lacks_is_none(text: str) -> None:
    gpu = bencher.parse_smi(f"3, Some Card, {text}, 600.00, {text}, 100, 50, 1, {text}", QUERY)
    assert (
        gpu["index"] == 3 and gpu["power_w"] is None and gpu["utilization_percent"] is None and gpu["reasons"] is None
    )
    assert gpu["limit_w"] == 600


@pytest.mark.parametrize(
    "line", ["", "Unable to determine the device handle for GPU0: Unknown Error", "No devices were found"]
)
def test_what_is_no_line_of_a_gpu(line: str) -> None:
    assert bencher.parse_smi(line, QUERY) == {}


def test_throttle_reasons_of_a_mask() -> None:
    assert bencher.reasons(0x1) == bencher.reasons(0x2) == bencher.reasons(0) == bencher.reasons(None) == []
    assert bencher.reasons(0x4 | 0x1) == ["sw_power_cap"]
    assert bencher.reasons(0x8 | 0x40) == ["hw_slowdown", "hw_thermal_slowdown"]
    assert bencher.reasons(0x20 | 0x80) == ["sw_thermal_slowdown", "hw_power_brake_slowdown"]
    assert bencher.reasons(0x8000) == ["bit_0x8000"]


def test_cached_tokens_of_the_measured_phase() -> None:
    def page(t: float, prompt: float, hits: float) -> tuple[float, dict[str, float]]:
        return t, {"prompt_tokens": prompt, "cached_tokens": hits}

    pages = [page(1, 100, 50), page(2, 200, 80), page(3, 700, 90), page(9, 1200, 180)]
    assert bencher.cached(pages, 2.5) == {"prompt_tokens": 1000, "cached_tokens": 100}
    assert bencher.cached(pages[1:], 0.0) == {"prompt_tokens": 1000, "cached_tokens": 100}
    assert bencher.cached(pages[:1], 0.0) is None and bencher.cached([], 0.0) is None
    assert bencher.cached([(1, {"running": 1}), (2, {"running": 1})], 0.0) is None
    # A server that was started anew counts from the beginning.
    assert bencher.cached([page(1, 900, 9), page(2, 100, 0)], 1.5) is None


# --- the host


def test_proc() -> None:
    text = "cpu  100 5 45 800 50 3 7 10 90 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
    assert bencher.parse_stat(text) == (170, 1020)
    used, total = bencher.parse_meminfo(
        "MemTotal:  2048000 kB\nMemFree: 5 kB\nMemAvailable:  1024000 kB\nSwapTotal: 1 kB\n"
    )
    assert (used, total) == (1000.0, 2000.0)
    host = bencher.Host()
    assert host.now()["cpu_percent"] is None
    time.sleep(0.05)
    seen = host.now()
    assert 0 <= (seen["cpu_percent"] or 0) <= 100 and 0 < (seen["memory_used_mib"] or 0) < (
        seen["memory_total_mib"] or 0
    )


# --- the client's output


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("  0%|          | 0/32 [00:00<?, ?it/s]", (0, 32)),
        (" 53%|█████▎    | 17/32 [00:01<00:01, 14.24it/s]", (17, 32)),
        ("100%|##########| 32/32 [00:01<00:00,  2.1s/it]", (32, 32)),
        (" 53%|█████▎    | 17/3", None),
        ("tokenizer.json: 100%|██████████| 9/9 [00:00<00:00, 1.2MB/s]", None),
        ("Generating system prompt:   0%|          | 0/64 [00:00<?, ?it/s]", None),
        ("Starting warmup with 1 sequences...", None),
    ],
)
def test_the_bar(text: str, found: tuple[int, int] | None) -> None:
    assert bencher.parse_bar(text) == found


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_recorded_output_in_pieces_of_any_size(tmp_path: Path, size: int) -> None:
    data = (DATA / "output-0.5.15.post1.txt").read_bytes()
    first = data[: data.index(b"FutureWarning", data.index(b"FutureWarning") + 1)]
    output = bencher.Output(str(tmp_path / "log"))
    stages = set()
    for place in range(0, len(first), size):
        output.feed(first[place : place + size])
        stages.add(output.progress(128.0).split(",")[0])
    output.close()
    assert (output.done, output.total) == (4, 4) and output.warm and output.first is not None
    assert {"the client starts", "100 %"} <= stages and (size > 7 or {"warm-up", "0 %", "50 %"} <= stages)
    log = (tmp_path / "log").read_text()
    assert "Serving Benchmark Result" in log and "it/s]" not in log


def test_words_of_progress() -> None:
    assert bencher.bar_text(0, 256, 3.0, 64) == "0 %, none of 256 requests answered yet"
    assert bencher.bar_text(115, 256, 65.0, 459.0) == "44 %, 812 output tok/s so far, 1 min 20 s left"
    assert bencher.bar_text(1, 4, 2.0, None) == "25 %, 0.5 requests/s so far, 6 s left"
    assert bencher.bar_text(4, 4, 2.0, None).startswith("100 %")
    assert [bencher.duration_text(seconds) for seconds in (59.4, 59.6, 60, 3599, 3599.6, 7260)] == [
        "59 s",
        "1 min 0 s",
        "1 min 0 s",
        "59 min 59 s",
        "1 h 0 min",
        "2 h 1 min",
    ]


def test_progress_is_said_when_it_changes_and_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    now = SimpleNamespace(t=0.0)
    lines: list[str] = []
    monkeypatch.setattr(bencher.time, "monotonic", lambda: now.t)
    speaker = bencher.Speaker(lines.append)
    for now.t, text in ((0.0, "a"), (0.5, "b"), (1.1, "b"), (5.0, "b"), (6.2, "c")):
        speaker.say(text)
    assert [json.loads(line)["progress"] for line in lines] == ["a", "b", "c"]


# --- the summary


def gpu(
    index: int, watts: float | None = 300.0, busy: float | None = 100.0, mask: int | None = 0, **more: Any
) -> bencher.Gpu:
    return {
        **{
            "index": index,
            "name": "Card",
            "power_w": watts,
            "limit_w": 600.0,
            "utilization_percent": busy,
            "reasons": mask,
        },
        **{"sm_clock_mhz": 2400.0, "temperature_c": 60.0, "memory_mib": 9e4},
        **more,
    }


def sample(t: float, *gpus: bencher.Gpu, running: float | None = None, **engine: float) -> bencher.Sample:
    host = {"cpu_percent": 10.0 * t, "memory_used_mib": 1000.0, "memory_total_mib": 4000.0}
    state = {} if running is None else {"running": running, **engine}
    return bencher.Sample(t, {one["index"]: one for one in gpus}, host, state)


def test_energy_by_trapezoid() -> None:
    assert bencher.integral([(0, 100), (10, 100)], 0, 10) == 1000
    assert bencher.integral([(-5, 0), (5, 100), (15, 0)], 0, 10) == pytest.approx(5 * 75 + 5 * 75)
    # What lies beyond the points is as the nearest of them.
    assert bencher.integral([(2, 100), (4, 200)], 0, 6) == pytest.approx(200 + 300 + 400)
    assert bencher.integral([(2, 100)], 0, 6) is None and bencher.integral([], 0, 6) is None
    assert bencher.integral([(0, 1), (1, 1)], 1, 1) is None


def test_two_gpus() -> None:
    samples = [sample(t, gpu(0, 200.0 + 100 * t), gpu(1, 400.0, 50.0, 0x4 | 0x20 * (t == 2))) for t in range(-1, 6)]
    told = valid(bencher.summary(samples, 4.0, 1.0, None, 8000.0, ["x"]))
    assert (
        told["samples"] == 5
        and told["window"] == {"kind": "whole", "from_s": 0, "to_s": 4}
        and told["missing"] == ["x"]
    )
    first, second = told["gpus"]
    assert first["power_w"] == {"mean": 400, "peak": 600, "min": 200} and first["throttle"] == {}
    assert second["throttle"] == {"sw_power_cap": 1.0, "sw_thermal_slowdown": 0.2} and second["name"] == "Card"
    assert told["power_w"]["mean"] == 800 and told["limit_w"] == 1200 and told["power_of_limit"] == 0.667
    assert told["utilization_percent"] == {"mean": 75, "peak": 75, "min": 75}
    assert told["energy_j"] == 3200 and told["output_tokens_per_j"] == 2.5
    assert told["host"]["cpu_percent"]["peak"] == 40 and told["host"]["memory_total_mib"] == 4000
    assert told["engine"] == {}


def test_the_steady_window_is_where_the_load_is_whole() -> None:
    ramp = [1, 4, 8, 7, 8, 3, 8, 2, 0]
    samples = [sample(t, gpu(0, 100.0 * held), running=held, queued=0.0) for t, held in enumerate(ramp)]
    told = valid(bencher.summary(samples, 8.0, 1.0, 8))
    assert told["window"] == {"kind": "whole", "from_s": 0, "to_s": 8} and told["samples"] == 9
    samples[5] = sample(5, gpu(0, 800.0), running=2, queued=6.0, token_usage=0.5, retracted=2.0, accept_length=0.0)
    told = valid(bencher.summary(samples, 8.0, 1.0, 8))
    assert told["window"] == {"kind": "steady", "from_s": 2, "to_s": 6} and told["samples"] == 4
    assert told["engine"]["running"]["min"] == 2 and told["engine"]["retracted"] == 2
    assert "accept_length" not in told["engine"] and told["engine"]["token_usage"]["peak"] == 0.5
    # Where arrivals decide, nothing says when the load is whole. Samples beyond the measured phase are not of it.
    assert bencher.summary(samples, 8.0, 1.0, None)["window"]["kind"] == "whole"
    assert bencher.summary(samples, 3.0, 1.0, 8)["window"]["kind"] == "whole"
    # Energy is of the whole phase, whatever the window.
    assert told["energy_j"] == bencher.summary(samples, 8.0, 1.0, None)["energy_j"]


def test_what_could_not_be_read_is_null() -> None:
    told = valid(bencher.summary([], 3.0, 0.5))
    assert told["gpus"] == [] and told["energy_j"] is None and told["power_w"]["mean"] is None and told["samples"] == 0
    samples = [sample(t, gpu(0), gpu(1, None, None, None)) for t in range(3)]
    told = valid(bencher.summary(samples, 2.0, 0.5, None, 100.0))
    # Half of the power is not the power.
    assert told["power_w"]["mean"] is None and told["energy_j"] is None and told["output_tokens_per_j"] is None
    assert told["gpus"][0]["power_of_limit"] == 0.5 and told["gpus"][1]["power_of_limit"] is None
    told = valid(bencher.summary([sample(0, gpu(0, limit_w=None)), sample(1)], 1.0, 0.5))
    assert told["limit_w"] is None and told["gpus"][0]["power_w"]["mean"] == 300


def test_rows_of_the_csv() -> None:
    header, *lines = bencher.rows([sample(-0.5), sample(0.5, gpu(0, mask=0xC), gpu(1, None), running=3)])
    assert header[:3] == ["t_s", "gpu", "power_w"] and [line[:3] for line in lines] == [
        [-0.5, "", ""],
        [0.5, 0, 300.0],
        [0.5, 1, ""],
    ]
    assert lines[1][header.index("throttle")] == "sw_power_cap+hw_slowdown"
    assert lines[0][header.index("running_requests")] == "" and lines[1][header.index("running_requests")] == 3


# --- the program

CLIENT = """\
import json, sys, time
steps, pause = int(sys.argv[1]), float(sys.argv[2])
print("Starting warmup with 1 sequences...", flush=True)
time.sleep(0.1)
print("Warmup completed with 1 sequences. Starting main benchmark run...", flush=True)
time.sleep(0.2)
began = time.perf_counter()
for done in range(steps + 1):
    sys.stderr.write(f"\\r{100 * done // steps:3d}%|####| {done}/{steps} [00:00<00:00, 1.0it/s]")
    sys.stderr.flush()
    time.sleep(pause)
with open("result.jsonl", "w") as file:
    file.write(json.dumps({"duration": time.perf_counter() - began, "total_output_tokens": 64 * steps}) + "\\n")
print("\\nThe last line")
"""
SMI = """\
#!/bin/sh
case "$*" in
  *--query-compute-apps*) {apps}; exit;;
  *--query-gpu=index,uuid*) printf '0, GPU-a\\n1, GPU-b\\n'; exit;;
esac
{old}
case "$* " in *--id=1' '*) only=1;; *--id=0' '*) only=0;; esac
while :; do
  test "$only" = 1 || echo "0, Card, 300.00, 600.00, {busy}, 2400, 60, 900, 0x0000000000000004"
  test "$only" = 0 || echo "1, Card, 500.00, 600.00, {busy}, 2400, 60, 900, 0x0000000000000001"
  sleep 0.05
done
"""
# The server of these tests is this process.
BOTH = f"printf 'GPU-a, {os.getpid()}\\nGPU-b, {os.getpid()}\\n'"
OLD = """case "$*" in *clocks_event*) echo 'Field "clocks_event_reasons.active" is not a valid field to query.'; exit 2;; esac"""


def smi(apps: str = BOTH, old: str = "", busy: Any = 97) -> str:
    """A script that stands in for nvidia-smi: two GPUs, and `apps` prints who computes on them."""
    return SMI.format(apps=apps, old=old, busy=busy)


@pytest.fixture
def engine() -> Iterator[SimpleNamespace]:
    state = SimpleNamespace(health=[], metrics=200, pages=0, keys=set(), page="", delay=0.0)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = (state.health.pop(0) if state.health else 200), ""
            if self.path == "/metrics":
                state.keys.add(self.headers.get("Authorization"))
                state.pages += 1
                time.sleep(state.delay)
                status, body = state.metrics, state.page.replace("PROMPT", str(100 * state.pages))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        do_POST = do_GET

        def log_message(self, *args: Any) -> None:
            pass

    state.page = "sglang:num_running_reqs 8\nsglang:num_queue_reqs 0\nsglang:prompt_tokens_total PROMPT\n"
    with serving(Handler) as state.url:
        yield state


def ask(
    tmp_path: Path,
    engine: SimpleNamespace,
    script: str | None = None,
    env: dict[str, str] | None = None,
    **changes: Any,
) -> tuple[dict[str, Any], list[str]]:
    """The program's result and what it said on its way. Without `script` the node has no nvidia-smi."""
    (tmp_path / "bin").mkdir(exist_ok=True)
    if script is not None:
        (tmp_path / "bin/nvidia-smi").write_text(script)
        (tmp_path / "bin/nvidia-smi").chmod(0o755)
    (tmp_path / "client.py").write_text(CLIENT)
    question = {
        "command": [sys.executable, str(tmp_path / "client.py"), "10", "0.08"],
        **{"folder": str(tmp_path), "result": str(tmp_path / "result.jsonl"), "timeout": 30},
        **{"url": engine.url, "ready_timeout": 5, "flush": True, "prompts": 10, "output_len": 64.0},
        **{"telemetry": True, "period_s": 0.1, "gpus": "", "concurrency": 8},
        **changes,
    }
    done = subprocess.run(
        [sys.executable, "-I", "-B", str(PROGRAM)],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={"PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.defpath}", **(env or {})},
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return lines[-1]["result"], [line["progress"] for line in lines[:-1]]


def test_a_load_with_everything_seen(tmp_path: Path, engine: SimpleNamespace) -> None:
    result, said = ask(tmp_path, engine, smi(), {"OPENAI_API_KEY": "k"})
    assert result["code"] == 0 and result["flush"] is None and result["unhealthy"] == ""
    assert said[0] == "the client starts" and any("output tok/s so far" in text for text in said)
    told = valid(result["telemetry"])
    assert told["missing"] == [] and told["samples"] >= 4
    assert told["window"]["kind"] == "steady" and told["engine"]["running"]["mean"] == 8
    assert [one["power_w"]["mean"] for one in told["gpus"]] == [300, 500]
    assert [one["throttle"] for one in told["gpus"]] == [{"sw_power_cap": 1.0}, {}]
    assert told["power_of_limit"] == pytest.approx(800 / 1200, abs=1e-3)
    seconds = json.loads((tmp_path / "result.jsonl").read_text())["duration"]
    assert told["energy_j"] == pytest.approx(800 * seconds, rel=0.01)
    assert told["output_tokens_per_j"] == pytest.approx(640 / told["energy_j"], rel=0.01)
    # Each page of the stand-in has 100 more tokens: those before the first request are not counted.
    assert 0 < result["cached"]["prompt_tokens"] < 100 * engine.pages and result["cached"]["cached_tokens"] == 0
    assert engine.keys == {"Bearer k"}
    assert (tmp_path / "output.txt").read_text().splitlines()[-1] == "The last line"
    lines = (tmp_path / "telemetry.csv").read_text().splitlines()
    assert lines[0].split(",") == list(bencher.COLUMNS) and len(lines) > 2 * told["samples"]
    assert float(lines[1].split(",")[0]) < 0 < float(lines[-1].split(",")[0])


# --- the server's GPUs


UNKNOWN = "which of them the server uses cannot be told"


@pytest.mark.parametrize(
    ("apps", "changes", "indexes", "said"),
    [
        ("echo GPU-b, OWN", {}, [1], ""),
        # A process of the server's tree: the script's parent is the program, whose parent is this process.
        ("echo GPU-a, $PPID", {}, [0], ""),
        # What does not concern the server: the first process of the node, and one that is gone.
        ("printf 'GPU-a, 1\\nGPU-a, 999999999\\nGPU-b, OWN\\n'", {}, [1], ""),
        ("echo GPU-b, 1", {"gpus": "0"}, [0], ""),
        ("echo GPU-b, 1", {}, [0, 1], "nvidia-smi names none of the server's processes, as in a container"),
        ("echo GPU-b, [N/A]", {}, [0, 1], "nvidia-smi names none of the server's processes"),
        ("echo No devices were found", {}, [0, 1], "nvidia-smi names none of the server's processes"),
        ("echo GPU-elsewhere, OWN", {}, [0, 1], "nvidia-smi names none of the server's processes"),
    ],
)
def test_only_the_servers_gpus_are_looked_at(
    tmp_path: Path, engine: SimpleNamespace, apps: str, changes: dict[str, Any], indexes: list[int], said: str
) -> None:
    told = valid(ask(tmp_path, engine, smi(apps.replace("OWN", str(os.getpid()))), **changes)[0]["telemetry"])
    assert [one["index"] for one in told["gpus"]] == indexes and told["samples"] >= 4
    assert told["power_w"]["mean"] == sum((300, 500)[index] for index in indexes)
    missing = told["missing"]
    assert len(missing) == bool(said) and (not said or (UNKNOWN in missing[0] and f"({said}" in missing[0]))
    assert not said or missing[0].endswith("GPUs that are not the server's may be among them")


def test_a_question_that_hangs_costs_the_load_nothing(
    tmp_path: Path, engine: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, _ = ask(tmp_path, engine, smi("exec sleep 100"))
    assert result["code"] == 0 and result["seconds"] < 60 and "it said nothing" in result["telemetry"]["missing"][0]
    # A load that is longer than the question sees all GPUs.
    monkeypatch.setattr(bencher, "WHOSE_TIMEOUT", 0.3)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    gpus = bencher.Gpus(0.1, "", engine.url)
    gpus.start()
    until = time.monotonic() + 10
    while len(gpus.latest) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    (missing,) = gpus.close()
    assert set(gpus.latest) == {0, 1} and UNKNOWN in missing and "did not answer within 0.3 s" in missing


def test_what_listens_for_a_url() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
        assert (
            bencher.listening(f"http://127.0.0.1:{port}")
            == {os.getpid()}
            == bencher.listening(f"http://0.0.0.0:{port}")
        )
        # 192.0.2.0/24 is for documentation, and nobody's.
        with pytest.raises(bencher.Unknown, match=f"http://192.0.2.1:{port} is no address of this node"):
            bencher.listening(f"http://192.0.2.1:{port}")
    with pytest.raises(bencher.Unknown, match=f"no process that this user may look at listens on port {port}"):
        bencher.listening(f"http://127.0.0.1:{port}")


def test_processes_of_a_server() -> None:
    """Descendants before the group, the group before the session.

    All in a session of its own: the one that the tests run in may lie outside their pid namespace, where it has no number.
    """
    script = "sleep 60 & echo $!; sleep 60 & echo $!; set -m; sleep 60 & echo $!; wait"
    shell = subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
    assert shell.stdout
    child, mate, apart = (int(shell.stdout.readline()) for _ in range(3))
    try:
        assert bencher.related({child, apart, stranger.pid}, {shell.pid}) == {child, apart}
        assert bencher.related({child}, {stranger.pid}) == set()
        # Neither is the other's descendant: group, then session.
        assert bencher.related({mate, apart, stranger.pid}, {child}) == {mate}
        assert bencher.related({apart, stranger.pid}, {child}) == {apart}
        assert bencher.related({child, 999999999}, {999999998}) == set()
    finally:
        os.kill(apart, 9)
        os.killpg(shell.pid, 9)
        stranger.kill()
        shell.wait()
        stranger.wait()


# --- the program, again


def test_an_older_driver_names_the_reasons_otherwise(tmp_path: Path, engine: SimpleNamespace) -> None:
    told = valid(ask(tmp_path, engine, smi(old=OLD))[0]["telemetry"])
    assert told["missing"] == [] and told["gpus"][0]["throttle"] == {"sw_power_cap": 1.0}


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (None, "there is no nvidia-smi on this node"),
        ("#!/bin/sh\nexec sleep 100\n", "it said nothing"),
        ("#!/bin/sh\necho 'No devices were found'\nexit 6\n", "ended with status 6: No devices were found"),
        ("#!/nonexistent\n", "cannot be run"),
        (smi(busy="[N/A]"), "gives no utilization.gpu here"),
    ],
    ids=["missing", "hangs", "fails", "broken", "lacks a field"],
)
def test_the_measurement_goes_on_without_gpus(
    tmp_path: Path, engine: SimpleNamespace, script: str | None, said: str
) -> None:
    result, _ = ask(tmp_path, engine, script)
    told = valid(result["telemetry"])
    assert result["code"] == 0 and len(told["missing"]) == 1 and said in told["missing"][0]
    assert told["engine"]["running"]["mean"] == 8 and told["host"]["memory_total_mib"] > 0
    assert not told["gpus"] or told["gpus"][0]["utilization_percent"]["mean"] is None
    assert (tmp_path / "telemetry.csv").read_text().count("\n") > told["samples"]


def test_a_hanging_nvidia_smi_is_ended(tmp_path: Path, engine: SimpleNamespace) -> None:
    ask(tmp_path, engine, '#!/bin/sh\necho $$ > "$(dirname "$0")/pid"\nexec sleep 100\n')
    pid = int((tmp_path / "bin/pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    ("status", "page", "said"),
    [(404, "", "enable-metrics"), (200, "other 1\n", "holds nothing of SGLang"), (500, "", "HTTP 500")],
)
def test_a_server_without_metrics(tmp_path: Path, engine: SimpleNamespace, status: int, page: str, said: str) -> None:
    engine.metrics, engine.page = status, page
    result, _ = ask(tmp_path, engine, smi())
    told = valid(result["telemetry"])
    assert len(told["missing"]) == 1 and said in told["missing"][0]
    assert result["cached"] is None and told["engine"] == {} and told["window"]["kind"] == "whole"
    # What is refused is asked for once.
    assert engine.pages == 1 or status == 200


def test_a_slow_page_is_asked_for_seldom(tmp_path: Path, engine: SimpleNamespace) -> None:
    engine.delay = 0.3
    result, _ = ask(tmp_path, engine, period_s=0.05)
    # One at the start, one after the warm-up, one at the end.
    assert engine.pages <= 3 and result["cached"]["prompt_tokens"] > 0


def test_no_telemetry_looks_at_nothing(tmp_path: Path, engine: SimpleNamespace) -> None:
    result, _ = ask(tmp_path, engine, telemetry=False)
    assert result["code"] == 0 and result["telemetry"] is None and result["cached"] is None and engine.pages == 0


def test_a_client_without_a_bar(tmp_path: Path, engine: SimpleNamespace) -> None:
    result, said = ask(tmp_path, engine, command=["sh", "-c", "sleep 0.4; exit 3"])
    told = valid(result["telemetry"])
    assert result["code"] == 3 and said == ["the client starts"] and "bar was not seen" in told["missing"][-1]
    assert told["window"]["to_s"] > 0


def test_the_timeout_ends_the_whole_group(tmp_path: Path, engine: SimpleNamespace) -> None:
    script = f"sleep 321 & echo $! > {tmp_path}/child; sleep 321"
    result, _ = ask(tmp_path, engine, command=["sh", "-c", script], timeout=0.5)
    assert result["code"] is None and result["seconds"] < 10
    child = int((tmp_path / "child").read_text())
    until = time.monotonic() + 5
    while Path(f"/proc/{child}").exists() and time.monotonic() < until:
        time.sleep(0.05)
    stat = Path(f"/proc/{child}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_server_that_still_starts_is_waited_for(tmp_path: Path, engine: SimpleNamespace) -> None:
    engine.health = [503, 503]
    result, said = ask(tmp_path, engine)
    assert result["code"] == 0 and said[0] == f"waits for {engine.url}/health (HTTP 503 Service Unavailable)"


@pytest.mark.parametrize(("health", "why"), [([503] * 9, "HTTP 503"), ([404], "HTTP 404")])
def test_a_server_that_is_not_ready(tmp_path: Path, engine: SimpleNamespace, health: list[int], why: str) -> None:
    engine.health = health
    result, _ = ask(tmp_path, engine, ready_timeout=1.2)
    assert result["server_gone"] and why in result["failed"] and not (tmp_path / "output.txt").exists()


def test_a_client_that_cannot_be_run(tmp_path: Path, engine: SimpleNamespace) -> None:
    result, _ = ask(tmp_path, engine, command=["/nonexistent/python"])
    assert result["failed"] == "/nonexistent/python cannot be run: No such file or directory."


@pytest.mark.parametrize("text", ["", "\n\n", '{"duration": NaN}\n', "[1]\n", '{"duration": "x"}', "{"])
def test_figures_of_a_line_that_has_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "r").write_text(text)
    assert bencher.figures(str(tmp_path / "r")) == {} == bencher.figures(str(tmp_path / "none"))


def test_a_clock_that_jumps_changes_no_duration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: SimpleNamespace
) -> None:
    """The wall clock goes back by an hour at each look; what ended is still after what began."""
    real = bencher.datetime.datetime
    looks = SimpleNamespace(n=0)

    class Jumping(real):  # type: ignore[misc, valid-type]
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            looks.n += 1
            return real.now(tz) - clock.timedelta(hours=looks.n)

    clock = SimpleNamespace(datetime=Jumping, timedelta=bencher.datetime.timedelta, timezone=bencher.datetime.timezone)
    monkeypatch.setattr(bencher, "datetime", clock)
    question = {
        **{"command": ["sh", "-c", "sleep 1.2"], "folder": str(tmp_path), "result": str(tmp_path / "r"), "timeout": 20},
        **{"url": engine.url, "ready_timeout": 0, "flush": False, "prompts": 1, "output_len": None},
        **{"telemetry": False, "period_s": 0.1, "gpus": "", "concurrency": 1},
    }
    result = bencher.run(question, lambda text: None)
    began, ended = (real.strptime(result[name], "%Y-%m-%dT%H:%M:%SZ") for name in ("started", "finished"))
    assert 1 <= (ended - began).total_seconds() <= 60
