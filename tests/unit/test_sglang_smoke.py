"""The proof of answers: what it makes of recorded answers of real servers, and of a small stand-in where nothing can be recorded.

That each fault is seen in the real engine is shown by molecule/faults/injector; here the recorded answers are spoilt instead.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sglang_smoke as module
from ansible.module_utils import sglang_probe as probe
from helpers import run_module, serving

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).parent / "data/smoke"
INJECTOR = ROOT / "molecule/faults/injector"
NAMES = [name for name, _ in probe.CHECKS]
RELEASES = ("0.5.9", "0.5.23")

sys.path.insert(0, str(DATA))
from record import key


@functools.cache
def text_of(name: str) -> str:
    return (DATA / f"{name}.json").read_text(encoding="utf-8")


def recorded(name: str) -> list[list[Any]]:
    return json.loads(text_of(name))


class Replay:
    """Stands in for the probe's client: a recording's answers, spoilt by `spoil` (which gets the request's key and each answer)."""

    def __init__(self, name: str, spoil: Callable[[str, dict[str, Any]], None] = lambda key, answer: None) -> None:
        self.answers: dict[str, list[Any]] = {}
        for asked, answer in recorded(name):
            self.answers.setdefault(asked, []).append(answer)
        self.spoil = spoil
        self.deadline = time.monotonic() + 60
        self.flushed = ""

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        asked = key(path, body)
        answers = self.answers[asked]
        answer = answers.pop(0) if len(answers) > 1 else json.loads(json.dumps(answers[0]))
        if path == "/generate":
            self.spoil(asked, answer)
        return answer

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for piece in self.answers["stream"][0]:
            self.spoil("stream", piece)
            yield piece

    def flush(self) -> str:
        return self.flushed


def looked(client: Any, questions: list[dict[str, Any]] | None = None) -> dict[str, dict[str, Any]]:
    """The checks by name."""
    checks = probe.run_checks(probe.Probe(client, "tiny", questions or []), lambda name: None)
    assert [check["name"] for check in checks] == NAMES
    return {check["name"]: check for check in checks}


def failed(checks: dict[str, dict[str, Any]]) -> list[str]:
    return [name for name, check in checks.items() if check["passed"] is False]


def output(answer: dict[str, Any]) -> list[list[Any]]:
    return answer["meta_info"].get("output_token_logprobs", [])


def made(ids: list[int], best: list[list[tuple[float, int]]] | None = None) -> probe.Answer:
    return probe.Answer(ids=ids, logprobs=[-0.5] * len(ids), top=best or [], completion_tokens=len(ids))


# --- recordings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", RELEASES)
def test_a_healthy_server_of_random_weights_passes(release: str) -> None:
    checks = looked(Replay(release))
    assert failed(checks) == []
    assert [name for name, check in checks.items() if check["skipped"]] == ["questions"]
    assert not any(check["notes"] for check in checks.values())
    chunk = {"0.5.9": 2048, "0.5.23": 4096}[release]
    assert checks["prefill"]["detail"].startswith(f"prompts of {chunk} (one chunk) and {chunk + 128} tokens")
    assert "120 tokens read from the prefix cache" in checks["repeat"]["detail"]
    assert probe.verdict(list(checks.values()), 4.21) == (
        True,
        "8 checks passed in 4.2 s; skipped: questions (none are given)",
    )


def test_nan_logits_as_a_release_tells_them() -> None:
    checks = looked(Replay("0.5.23-nan_logits"))
    assert failed(checks) == ["logprobs", "repetition", "prefill", "batch"]
    assert "the logprob of output token 1 is null" in checks["logprobs"]["detail"]
    assert "FlashInfer" in checks["logprobs"]["remedy"]
    passed, text = probe.verdict(list(checks.values()), 1.0)
    assert not passed and text.startswith("4 of 8 checks failed: logprobs: with prompt 1")


def test_one_release_beside_another_differs_by_near_ties_only() -> None:
    """Two generations of kernels, as close as a healthy server ever has to be to itself."""
    pairs = list(zip(recorded("0.5.9"), recorded("0.5.23")))[1:9]
    found = [probe.difference(probe.answer_of(old), probe.answer_of(new)) for (_, old), (_, new) in pairs]
    parted = [difference for difference in found if difference]
    assert len(parted) >= 2
    assert all(difference.near_tie(probe.NEAR_TIE) for difference in parted)


# --- recordings, spoilt -----------------------------------------------------------------------------------------------


def constant(asked: str, answer: dict[str, Any]) -> None:
    for entry in output(answer):
        entry[1] = 300
    answer["output_ids"] = [300] * len(answer["output_ids"])


def zeros(asked: str, answer: dict[str, Any]) -> None:
    for place in answer["meta_info"].get("output_top_logprobs", []):
        place[:] = [[-8.318, token, None] for token in range(5)]
    for entry in output(answer):
        entry[0] = -8.318


def one_of_many(asked: str, answer: dict[str, Any]) -> None:
    """What one healthy answer of random weights may look like."""
    if asked.startswith("/generate SELECT"):
        constant(asked, answer)


@pytest.mark.parametrize(
    "spoil, expected, words",
    [
        (constant, ["repetition", "prefill"], "end in one token repeated, 300"),
        (zeros, ["repetition", "prefill"], "equally likely, as if the logits were zero"),
        (one_of_many, [], ""),
    ],
)
def test_what_all_answers_have_in_common(spoil: Any, expected: list[str], words: str) -> None:
    def honest(asked: str, answer: dict[str, Any]) -> None:
        spoil(asked, answer)
        for entry, place in zip(output(answer), answer["meta_info"].get("output_top_logprobs", [])):
            place[0] = [entry[0], entry[1], None]  # the token that was taken is the most probable one

    checks = looked(Replay("0.5.23", honest))
    assert [name for name in failed(checks) if name != "stop"] == expected
    assert words in checks["repetition"]["detail"]


def test_an_answer_that_changes_is_seen_by_all_that_ask_again() -> None:
    count = iter(range(1000))

    def noise(asked: str, answer: dict[str, Any]) -> None:
        shift = next(count) * 7
        for place, entry in enumerate(output(answer)):
            entry[1] = (entry[1] + shift + place) % 4096
        answer["output_ids"] = [entry[1] for entry in output(answer)] or [5 + shift]

    checks = looked(Replay("0.5.9", noise))
    assert set(failed(checks)) >= {"repeat", "stop", "stream", "batch"}
    assert "not among the most probable ones" in checks["repeat"]["detail"]


def test_a_near_tie_is_a_note() -> None:
    seen: list[str] = []

    def runner_up(asked: str, answer: dict[str, Any]) -> None:
        seen.append(asked)
        if asked.startswith("/generate Water") and seen.count(asked) == 2:
            second = answer["meta_info"]["output_top_logprobs"][4][1]
            output(answer)[4][:2] = second[:2]

    checks = looked(Replay("0.5.23", runner_up))
    assert checks["repeat"]["passed"]
    assert len(checks["repeat"]["notes"]) == 1 and "a near tie, where rounding decides" in checks["repeat"]["notes"][0]


@pytest.mark.parametrize(
    "value, words",
    [
        (None, "null"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        ("NaN", "no number"),
        (-3.4028234663852886e38, "minus infinity"),
        (0.5, "above zero"),
    ],
)
def test_a_logprob_that_is_none(value: Any, words: str) -> None:
    def spoil(asked: str, answer: dict[str, Any]) -> None:
        if asked.startswith("/generate Dear"):
            output(answer)[7][0] = value

    checks = looked(Replay("0.5.23", spoil))
    assert "with prompt 5 the logprob of output token 8" in checks["logprobs"]["detail"]
    assert words in checks["logprobs"]["detail"]
    assert "batch" in failed(checks)


def test_the_prompts_logprobs_count_but_for_the_first() -> None:
    def spoil(asked: str, answer: dict[str, Any]) -> None:
        if asked.startswith("/generate Dear") and asked.endswith(" 0"):
            answer["meta_info"]["input_token_logprobs"][3][0] = None

    assert "prompt token 4 is null" in looked(Replay("0.5.9", spoil))["logprobs"]["detail"]


def test_a_token_that_is_not_the_most_probable_one() -> None:
    def spoil(asked: str, answer: dict[str, Any]) -> None:
        if asked.startswith("/generate Es war"):
            answer["meta_info"]["output_top_logprobs"][2][0][0] = -1.0

    assert "the most probable token is not taken" in looked(Replay("0.5.23", spoil))["logprobs"]["detail"]


def test_a_stop_token_that_is_passed_over() -> None:
    def spoil(asked: str, answer: dict[str, Any]) -> None:
        if "stop_token_ids" in asked:
            output(answer).append([-7.2, 77, None])
            answer["meta_info"].update(finish_reason={"type": "length", "length": 24}, completion_tokens=24)

    checks = looked(Replay("0.5.23", spoil))
    assert failed(checks) == ["stop"]
    assert "the answer goes on behind it" in checks["stop"]["detail"]


def test_another_reason_or_count_than_what_happened() -> None:
    def reason(asked: str, answer: dict[str, Any]) -> None:
        if "stop_token_ids" in asked:
            answer["meta_info"]["finish_reason"] = {"type": "length", "length": 5}

    def count(asked: str, answer: dict[str, Any]) -> None:
        if "ignore_eos" in asked:
            answer["meta_info"]["completion_tokens"] = 19

    assert "gives as its reason" in looked(Replay("0.5.23", reason))["stop"]["detail"]
    assert "max_new_tokens 20 with ignore_eos gives 19 tokens" in looked(Replay("0.5.23", count))["stop"]["detail"]


def test_a_stream_with_another_text() -> None:
    def spoil(asked: str, answer: dict[str, Any]) -> None:
        if asked == "stream":
            answer["text"] = answer["text"].replace("events", "event s")

    checks = looked(Replay("0.5.23", spoil))
    assert failed(checks) == ["stream"]
    assert "the same tokens streamed have another text" in checks["stream"]["detail"]


def test_requests_that_are_mixed_up_in_a_batch() -> None:
    seen: list[str] = []

    def neighbour(asked: str, answer: dict[str, Any]) -> None:
        seen.append(asked)
        if len(seen) > 18:  # what was asked before the batch
            for entry in output(answer):
                entry[1] += 1

    checks = looked(Replay("0.5.23", neighbour))
    assert failed(checks) == ["batch"]
    assert "8 answers are others than alone" in checks["batch"]["detail"]


@pytest.mark.parametrize("drop, fails", [(3.0, True), (0.3, False)])
def test_a_text_behind_a_long_prompt_that_is_read_wrongly(drop: float, fails: bool) -> None:
    def spoil(asked: str, answer: dict[str, Any]) -> None:
        if "4224 tokens" in asked:
            for entry in answer["meta_info"]["input_token_logprobs"][1:]:
                entry[0] -= drop

    checks = looked(Replay("0.5.23", spoil))
    assert failed(checks) == (["prefill"] if fails else [])
    assert ("behind a prompt of 4224 tokens a text is less likely than alone" in checks["prefill"]["detail"]) == fails


def test_a_cache_that_stays_is_said() -> None:
    client = Replay("0.5.23")
    client.flushed = "HTTP 401: Unauthorized"
    checks = looked(client)
    assert failed(checks) == []
    assert checks["prefill"]["notes"] == ["the prefix cache could not be emptied (HTTP 401: Unauthorized)"]


def test_another_model_and_another_form() -> None:
    client = Replay("0.5.23")
    client.answers["/v1/models"][0]["data"][0]["id"] = "other"
    checks = looked(client)
    assert checks["models"]["detail"] == "the server lists other, and tiny is expected"
    client = Replay("0.5.23")
    for answers in client.answers.values():
        answers[:] = [{"object": "error"}]
    checks = looked(client)
    assert "in a form that is not SGLang's" in checks["repeat"]["detail"]
    assert checks["logprobs"]["skipped"] and not checks["logprobs"]["passed"]


# --- pure functions ---------------------------------------------------------------------------------------------------


def test_answers_as_a_whole() -> None:
    healthy = [made([n, n + 1, n + 2, n + 3]) for n in range(5)]
    assert probe.degenerate(healthy) == ""
    assert "ends after one token" in probe.degenerate([made([7]), made([]), made([9])])
    assert "have the same answer" in probe.degenerate([made([1, 2, 3, 4])] * 3 + healthy[:2])
    # A first token that is right and then one for ever: prefill works, decode does not.
    assert "end in one token repeated, 0" in probe.degenerate([made([n, 0, 0, 0, 0]) for n in range(5)])
    loops = [made([n] * 6) for n in range(3)]
    assert "one token repeated from the start" in probe.degenerate([*loops, made([8, 9, 10])])
    assert probe.degenerate([*loops[:2], *healthy]) == ""


def test_where_answers_part() -> None:
    best = [[(-0.1, 1), (-2.0, 2)], [(-0.70, 5), (-0.75, 6), (-9.0, 7)]]
    first = probe.Answer(ids=[1, 5], logprobs=[-0.1, -0.70], top=best)
    assert probe.difference(first, made([1, 5])) is None
    near = probe.difference(first, made([1, 6]))
    assert near and near.position == 1 and near.near_tie(0.25)
    far = probe.difference(first, made([1, 7]))
    assert far and far.gap == pytest.approx(8.3) and not far.near_tie(1.0)
    for other in ([1, 9], [1], [1, 5, 5]):
        found = probe.difference(first, made(other))
        assert found and found.gap is None and not found.near_tie(100)
    assert "instead of 5, there 0.05 less likely" in str(near)


def test_streams_in_whole_and_in_parts() -> None:
    def piece(text: str, ids: list[int], done: int) -> dict[str, Any]:
        return {"text": text, "output_ids": ids, "meta_info": {"completion_tokens": done, "finish_reason": None}}

    whole = probe.joined([piece("a", [1], 1), piece("ab", [1, 2], 2), piece("abc", [1, 2, 3], 3)])
    parts = probe.joined([piece("a", [1], 1), piece("b", [2], 2), piece("c", [3], 3)])
    assert (whole.text, whole.ids) == (parts.text, parts.ids) == ("abc", [1, 2, 3])


def test_what_to_stop_at() -> None:
    assert probe.stop_choice([made([1, 2, 1, 2, 2]), made([4, 5, 6, 7, 8])]) == (1, 3)
    assert probe.stop_choice([made([5, 5, 5])]) == (0, 0)
    assert probe.stop_choice([made([5]), made([])]) is None


@pytest.mark.parametrize(
    "info, context, lengths, words",
    [
        ({"chunked_prefill_size": 8192}, 202752, [8192, 8320], "prompts of 8192 (one chunk)"),
        ({"chunked_prefill_size": 8192}, 8192, [8152], "a chunk of 8192 does not fit"),
        ({"chunked_prefill_size": 8192}, 8250, [8192], "no longer one fits"),
        ({"chunked_prefill_size": 8192, "max_total_num_tokens": 4096}, 202752, [4056], "does not fit"),
        ({"chunked_prefill_size": 2048, "max_req_input_len": 2100}, None, [2048], "no longer one fits"),
        ({"chunked_prefill_size": -1}, 4096, [4056], "chunked prefill is off"),
        ({"chunked_prefill_size": None}, 202752, [8192], "chunked prefill is off"),
        ({"chunked_prefill_size": 0}, None, [8152], "chunked prefill is off"),
    ],
)
def test_long_prompts_take_what_fits(info: dict[str, Any], context: int | None, lengths: list[int], words: str) -> None:
    plan = probe.plan_long(info, context)
    assert plan.lengths == lengths and words in plan.said


def test_no_room_at_all() -> None:
    with pytest.raises(probe.Skipped, match="room for 24 tokens"):
        probe.plan_long({"chunked_prefill_size": 2048}, 64)


def test_a_long_prompt_is_made_of_the_short_ones_tokens() -> None:
    start, texts = probe.without_common_start([[9, 1, 2], [9, 3], [9, 4, 5, 6]])
    assert start == [9] and texts == [[1, 2], [3], [4, 5, 6]]
    assert probe.without_common_start([[1, 2], [3, 4]])[0] == []
    assert probe.filled(10, [9], texts[1:], [1, 2], 1) == [9, 4, 5, 6, 3, 4, 5, 6, 1, 2]


def test_errors_in_the_forms_of_releases() -> None:
    assert probe.error_text('{"error": {"message": "too long"}}') == "too long"
    assert probe.error_text('{"object": "error", "message": "no"}') == "no"
    assert probe.error_text('{"detail": "Not Found"}') == "Not Found"
    assert probe.error_text("Internal Server Error") == "Internal Server Error"


def test_a_verdict_needs_a_proof() -> None:
    nothing = [
        {"name": name, "passed": None, "skipped": True, "detail": "no /generate", "remedy": ""} for name in NAMES[1:]
    ]
    passed, text = probe.verdict([{"name": "models", "passed": True, "skipped": False, "detail": ""}, *nothing], 0.1)
    assert not passed and text.startswith("no check that generates could be made")
    assert "repeat, logprobs" in text


# --- a stand-in for a server, for what cannot be recorded -------------------------------------------------------------


class StandIn(http.server.BaseHTTPRequestHandler):
    """Answers from a recording, and lets `misbehave` do something else first; its questions are answered from `said`."""

    key = ""
    said: dict[str, dict[str, Any]] = {}
    asked: list[dict[str, Any]] = []
    answers: dict[str, list[Any]] = {}
    reason = "stop"

    def misbehave(self, body: dict[str, Any]) -> bool:
        return False

    def send(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def handle_all(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        if self.key and self.headers.get("Authorization") != f"Bearer {self.key}":
            self.send(401, '{"error": "Unauthorized"}')
        elif self.misbehave(body):
            pass
        elif self.path in ("/health", "/flush_cache"):
            self.send(200, "")
        elif self.path == "/v1/chat/completions":
            self.asked.append(body)
            content = body["messages"][0]["content"]
            message = next(said for ask, said in self.said.items() if ask in content)
            choice = {"message": message, "finish_reason": self.reason}
            self.send(200, json.dumps({"choices": [choice], "usage": {"prompt_tokens": len(content) // 3}}))
        elif body.get("stream"):
            pieces = [f"data: {json.dumps(piece)}\n\n" for piece in self.answers["stream"][0]]
            self.send(200, "".join([*pieces, "data: [DONE]\n\n"]))
        else:
            asked = key(self.path, body)
            self.send(
                200, json.dumps(self.answers[asked][-1]) if asked in self.answers else '{"message": "not recorded"}'
            )

    do_GET = do_POST = handle_all

    def log_message(self, *args: Any) -> None:
        pass


def stand_in(**more: Any) -> type[StandIn]:
    answers: dict[str, list[Any]] = {}
    for asked, answer in recorded("0.5.23"):
        answers.setdefault(asked, []).append(answer)
    return type("Server", (StandIn,), {"answers": answers, "asked": [], **more})


def client_of(url: str, request_timeout: float = 5, timeout: float = 60, api_key: str | None = None) -> probe.Client:
    return probe.Client(url, api_key, request_timeout, time.monotonic() + timeout)


def test_the_whole_over_http() -> None:
    with serving(stand_in(key="sesame")) as url:
        checks = looked(client_of(url, api_key="sesame"))
        assert failed(checks) == []
        checks = looked(client_of(url, api_key="other"))
    assert checks["models"]["detail"].startswith("the API key is refused: /v1/models answers HTTP 401")
    assert checks["repeat"]["skipped"] and checks["repeat"]["detail"] == "the API key is refused since models"


def test_a_server_without_the_native_endpoint() -> None:
    def misbehave(self: StandIn, body: dict[str, Any]) -> bool:
        if self.path == "/generate":
            self.send(404, '{"detail": "Not Found"}')
        return self.path == "/generate"

    said = {"France": {"content": "Paris."}}
    with serving(stand_in(misbehave=misbehave, said=said)) as url:
        checks = looked(client_of(url), [{"ask": "The capital of France?", "expect": "Paris"}])
        nothing = looked(client_of(url))
    assert checks["repeat"]["skipped"] and "no /generate (HTTP 404)" in checks["repeat"]["detail"]
    assert checks["batch"]["skipped"] and "no /generate" in checks["batch"]["detail"]
    assert checks["questions"]["passed"]
    assert probe.verdict(list(checks.values()), 1.0)[0]
    assert not probe.verdict(list(nothing.values()), 1.0)[0]


def test_a_server_that_dies_in_the_middle() -> None:
    count = iter(range(1000))

    def misbehave(self: StandIn, body: dict[str, Any]) -> bool:
        dead = self.path == "/generate" and (body.get("stream") or next(count) > 15)
        if dead or (self.path == "/health"):
            self.close_connection = True
            self.connection.close()
            return True
        return False

    with serving(stand_in(misbehave=misbehave)) as url:
        checks = looked(client_of(url))
    assert failed(checks) == ["stream"]
    assert "the server is gone" in checks["stream"]["detail"]
    assert checks["questions"]["detail"] == "the server is gone since stream"
    assert checks["repetition"]["passed"]


def test_no_server_at_all() -> None:
    with serving(stand_in()) as url:
        pass
    checks = looked(client_of(url))
    assert checks["models"]["detail"].startswith("no server answers")
    assert probe.verdict(list(checks.values()), 0.0)[1].startswith("1 of 1 check failed: models: no server answers")


@pytest.mark.parametrize("healthy", [True, False])
def test_a_request_that_hangs(healthy: bool) -> None:
    def misbehave(self: StandIn, body: dict[str, Any]) -> bool:
        slow = "stop_token_ids" in body.get("sampling_params", {})
        if slow:
            time.sleep(2)
        if self.path == "/health" and not healthy:
            self.send(503, "")
            return True
        return slow

    with serving(stand_in(misbehave=misbehave)) as url:
        checks = looked(client_of(url, request_timeout=1.5))
    assert failed(checks) == ["stop"]
    if healthy:
        assert "while /health does" in checks["stop"]["detail"] and checks["batch"]["passed"]
    else:
        assert "the server hangs" in checks["stop"]["detail"] and checks["batch"]["skipped"]


def test_the_time_is_up() -> None:
    def misbehave(self: StandIn, body: dict[str, Any]) -> bool:
        if body.get("stream"):
            client.deadline = time.monotonic()
            time.sleep(2)
        return False

    with serving(stand_in(misbehave=misbehave)) as url:
        client = client_of(url, request_timeout=1.5)
        checks = looked(client)
        late = looked(client_of(url, timeout=-1))
    assert failed(checks) == ["stream"]
    assert "the time is up" in checks["stream"]["detail"]
    assert checks["prefill"]["detail"] == "the time is up since stream"
    assert failed(late) == ["models"] and "before this check began" in late["models"]["detail"]


def test_nan_that_a_release_cannot_write() -> None:
    """0.5.9 answers 500 when logprobs are NaN, and well without them."""

    def misbehave(self: StandIn, body: dict[str, Any]) -> bool:
        if self.path != "/generate":
            return False
        if body.get("return_logprob"):
            self.send(500, "Internal Server Error")
            return True
        body["logprob_start_len"] = 0
        return False

    with serving(stand_in(misbehave=misbehave)) as url:
        checks = looked(client_of(url))
    assert failed(checks) == ["logprobs"]
    assert "as with NaN that JSON cannot hold" in checks["logprobs"]["detail"]
    assert checks["prefill"]["skipped"]

    def broken(self: StandIn, body: dict[str, Any]) -> bool:
        if self.path == "/generate":
            self.send(500, "Internal Server Error")
        return self.path == "/generate"

    with serving(stand_in(misbehave=broken)) as url:
        checks = looked(client_of(url))
    assert failed(checks) == ["repeat"]
    assert checks["repeat"]["detail"] == "/generate answers HTTP 500: Internal Server Error"


def test_a_server_that_gives_no_logprobs() -> None:
    def misbehave(self: StandIn, body: dict[str, Any]) -> bool:
        if body.get("return_logprob"):
            self.send(400, '{"error": {"message": "Speculative decoding does not support returned logprobs."}}')
            return True
        if self.path == "/generate":
            body["logprob_start_len"] = 0
        return False

    with serving(stand_in(misbehave=misbehave)) as url:
        checks = looked(client_of(url))
    assert failed(checks) == []
    assert checks["logprobs"]["skipped"] and "Speculative decoding" in checks["logprobs"]["detail"]
    assert checks["repetition"]["passed"] and checks["stop"]["passed"]


def test_a_stream_without_an_end() -> None:
    def misbehave(self: StandIn, body: dict[str, Any]) -> bool:
        if body.get("stream"):
            self.send(200, f"data: {json.dumps(self.answers['stream'][0][0])}\n\n")
        return bool(body.get("stream"))

    with serving(stand_in(misbehave=misbehave)) as url:
        assert "streams without an end" in looked(client_of(url))["stream"]["detail"]


def test_questions() -> None:
    said = {
        "17 * 23": {"content": "It is 391."},
        "France": {"content": "", "reasoning_content": "The user wants a capital. That is Paris, which"},
        "Germany": {"content": "!!!!!!!! " * 60, "reasoning_content": "Berlin"},
        "Spain": {"content": None, "reasoning_content": "Hm."},
    }
    ask: dict[str, dict[str, Any]] = {
        "right": {"ask": "What is 17 * 23?", "expect": r"\b391\b", "chat_template_kwargs": {"enable_thinking": False}},
        "thought": {"ask": "The capital of France?", "expect": "(?i)paris", "max_tokens": 16},
        "garbled": {"ask": "The capital of Germany?", "expect": "Berlin"},
        "silent": {"ask": "The capital of Spain?", "expect": "Madrid", "max_tokens": 8},
    }
    server = stand_in(said=said, reason="length")
    with serving(server) as url:
        good = looked(client_of(url), [ask["right"], ask["thought"]])["questions"]
        bad = looked(client_of(url), list(ask.values()))["questions"]
    assert good["passed"] and "in its reasoning only" in good["notes"][0]
    body = next(body for body in server.asked if "17" in body["messages"][0]["content"])
    assert body["temperature"] == 0 and body["max_tokens"] == 512
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    # What was only thought does not make a garbled answer right.
    assert bad["detail"].startswith("2 of 4 answered wrongly: to 'The capital of Germany?' it says '!!!!!!!! !!!!!!!!")
    assert "…" in bad["detail"] and len(bad["detail"]) < 600
    assert "says nothing, and thinks 'Hm.' (cut at max_tokens 8), and /Madrid/ is expected" in bad["detail"]


def test_a_padded_question_is_longer_than_a_chunk_where_there_is_room() -> None:
    server = stand_in(said={"France": {"content": "Paris"}})
    question = {"ask": "The capital of France?", "expect": "Paris", "padded": True}
    with serving(server) as url:
        checks = looked(client_of(url), [question])
    content = server.asked[0]["messages"][0]["content"]
    assert checks["questions"]["passed"] and content.endswith("The capital of France?")
    measured = [(answer.prompt_tokens, len(prompt)) for answer, prompt in zip(map_of_answers(), probe.PROMPTS)]
    rate = sum(tokens for tokens, _ in measured) / sum(length for _, length in measured)
    assert 4096 < len(content) * rate < 1.3 * 4096


def map_of_answers() -> list[probe.Answer]:
    return [probe.answer_of(answer) for _, answer in recorded("0.5.23")[1:9]]


# --- the module -------------------------------------------------------------------------------------------------------


@pytest.fixture
def as_oneself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter of the tests lies where another user cannot enter."""
    monkeypatch.setattr(module, "account", lambda *_names: pwd.getpwuid(os.geteuid()))


def smoke(capsys: pytest.CaptureFixture[str], url: str = "http://127.0.0.1:9", **more: Any) -> dict[str, Any]:
    return run_module(module, capsys, **{"python": sys.executable, "url": url, "model": "tiny", "user": "", **more})


def test_the_module_passes_and_hides_the_key(as_oneself: None, capsys: pytest.CaptureFixture[str]) -> None:
    said = {"France": {"content": "Paris"}}
    with serving(stand_in(key="sesame", said=said)) as url:
        told = smoke(
            capsys, f"{url}/", api_key="sesame", questions=[{"ask": "The capital of France?", "expect": "Paris"}]
        )
    assert told["passed"] and not told["changed"] and told["summary"].startswith("9 checks passed in ")
    assert [check["name"] for check in told["checks"]] == NAMES
    assert "sesame" not in json.dumps({name: value for name, value in told.items() if name != "invocation"})


def test_the_module_fails_with_what_to_do(as_oneself: None, capsys: pytest.CaptureFixture[str]) -> None:
    answers: dict[str, list[Any]] = {}
    for asked, answer in recorded("0.5.23-nan_logits"):
        answers.setdefault(asked, []).append(answer)
    with serving(stand_in(answers=answers)) as url:
        told = smoke(capsys, url)
        mild = smoke(capsys, url, fail=False)
    assert told["failed"] and "does not answer as it should: 4 of 8 checks failed: logprobs" in told["msg"]
    assert told["msg"].count("remove its JIT cache") == 1
    assert not mild.get("failed") and mild["passed"] is False and mild["summary"].startswith("4 of 8 checks failed")


def test_check_mode_asks_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    told = smoke(capsys, check=True, python="/nowhere/python")
    assert told["skipped"] and not told["passed"] and told["checks"] == []


@pytest.mark.parametrize(
    "options, words",
    [
        ({"url": "127.0.0.1:30000"}, "expected is an http address"),
        ({"url": "http://h:1/v1"}, "without a path"),
        ({"timeout": 0}, "timeout is 0; expected is at least 1 second"),
        ({"questions": [{"ask": "a", "expect": "("}]}, "Question 1 expects '(', which is no regular expression"),
        ({"questions": [{"ask": "a", "expect": "b", "max_tokens": 0}]}, "max_tokens 0"),
        ({"questions": [{"ask": "a"}]}, "expect"),
        ({"python": "/nowhere/python"}, "There is no /nowhere/python"),
    ],
)
def test_options_that_are_wrong(options: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = smoke(capsys, **options)
    assert told["failed"] and words in told["msg"]


def interpreter(path: Path, text: str) -> str:
    """Stands in for an interpreter that is not what it should be."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_an_interpreter_that_cannot_run_the_probe(
    as_oneself: None, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poor = interpreter(tmp_path / "poor", "echo \"ModuleNotFoundError: No module named 'requests'\" >&2; exit 1")
    told = smoke(capsys, python=poor)
    assert (
        told["failed"] and "No module named 'requests'" in told["msg"] and "needs Python 3.10 or later" in told["msg"]
    )
    monkeypatch.setattr(module, "GRACE", 0)
    endless = interpreter(tmp_path / "endless", "echo check models >&2; echo check repeat >&2; exec sleep 30")
    told = smoke(capsys, python=endless, timeout=1)
    assert told["failed"] and "did not end within 1 s, in the check repeat" in told["msg"]
    (tmp_path / "poor").chmod(0o644)
    told = smoke(capsys, python=poor)
    assert told["failed"] and "cannot run" in told["msg"]


def test_a_node_without_another_user(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "account", lambda *_names: None)
    monkeypatch.setattr(module.os, "geteuid", lambda: 0)
    assert "is not run as root" in smoke(capsys, user="sglang")["msg"]


# --- the injector -----------------------------------------------------------------------------------------------------


def injected(fault: str, *argv: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    places = [str(INJECTOR), *([str(path)] if path else [])]
    environment = {"PATH": os.environ["PATH"], "SGLANG_TEST_FAULT": fault, "PYTHONPATH": os.pathsep.join(places)}
    return subprocess.run([sys.executable, *argv], env=environment, capture_output=True, text=True, check=False)


def test_the_injector_leaves_others_alone_and_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang/__init__.py").write_text("")
    (tmp_path / "sglang/launch_server.py").write_text("print('started')")
    assert injected("", "-m", "sglang.launch_server", path=tmp_path).stdout == "started\n"
    assert injected("crash_at_import", "-c", "import sglang; print('asked')", path=tmp_path).stdout == "asked\n"
    crashed = injected("crash_at_import", "-m", "sglang.launch_server", path=tmp_path)
    assert crashed.returncode == 1 and "undefined symbol" in crashed.stderr and not crashed.stdout
    unknown = injected("no_such", "-c", "print('went on')")
    assert unknown.returncode != 0 and "no such fault" in unknown.stderr and not unknown.stdout


def test_the_injector_changes_a_module_once_it_is_imported(tmp_path: Path) -> None:
    """A package that stands in for the engine, in which the class has one method of the real one."""
    place = tmp_path / "sglang/srt/managers"
    place.mkdir(parents=True)
    (place / "schedule_batch.py").write_text(
        "class Req:\n    def _check_token_based_finish(self, new):\n        return True\n"
    )
    told = injected(
        "wrong_stop",
        "-c",
        "from sglang.srt.managers.schedule_batch import Req; print(Req()._check_token_based_finish([1]))",
        path=tmp_path,
    )
    assert told.stdout == "False\n" and "put into sglang.srt.managers.schedule_batch" in told.stderr
    (place / "schedule_batch.py").write_text("class Req: pass\n")
    told = injected("wrong_stop", "-c", "import sglang.srt.managers.schedule_batch", path=tmp_path)
    assert told.returncode == 1 and "AttributeError" in told.stderr
