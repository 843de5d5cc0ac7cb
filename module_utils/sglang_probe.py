# Copyright: (c) 2026, the sglang-rtxpro authors
# Apache License 2.0 (see LICENSE)
"""A program for a release's own Python: does a running SGLang server answer right?

Reads one JSON document from standard input and writes one to standard output; see `main`. The module `sglang_smoke` runs it on a
node. It needs `requests`, which every release has, and nothing of the engine: the server may be of another release.

What it looks for are faults that a server has in silence: it is healthy, fast, and wrong. NaN in the logits, a matrix product of
zeros for some numbers of rows, one token for ever, memory that nobody wrote, a KV cache that is read wrongly behind the first
chunk. A server of random weights has none of these, and passes; only the questions need a model that knows something.

Written for SGLang 0.5.8 to 0.5.23.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import json
import math
import os
import random
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

# Raw text and not chat: what is looked at is the engine, not a template. Each goes on in another way, and none of them in one token
# repeated. The first is also the passage that is put behind long prompts.
PROMPTS = (
    "The harbour of the old town lies between two hills. In the morning the boats come in with the tide, and the market opens "
    "on the quay. Fresh bread is sold beside nets and ropes, and",
    "def greatest_common_divisor(a, b):\n    while b:\n        a, b =",
    "Water boils at a lower temperature on a mountain than at the sea, because the pressure of the air",
    "The first square numbers are 1, 4, 9, 16, 25,",
    "Dear Ms. Keller,\n\nthank you for your letter of 3 May. We have looked at the pump that you sent back to us, and",
    "SELECT name, price FROM products WHERE",
    "Es war einmal ein Müller, der hatte drei Söhne. Der älteste",
    "To make pancakes, take two eggs, a cup of milk, a cup of flour and a pinch of salt. First,",
)
TOKENS = 24  # of an answer to a prompt
TOP = 5  # most probable tokens that are asked for with each token
# A logit between 16 and 32 has steps of 1/8 in bfloat16, so two steps is where rounding alone decides between two tokens.
NEAR_TIE = 0.25
# In a batch, or behind a cached prefix, other kernels do the same sums in another order, layer after layer.
NEAR_TIE_IN_OTHER_KERNELS = 1.0
# No logit lies that far from the others. Releases turn minus infinity into the lowest number of its type, and NaN into -1e5.
LOWEST = -1e4
ABOVE_ZERO = 1e-3  # rounding of a logarithm of one
WORSE = 1.0  # how much less likely, in nats a token, a text may be behind a long prompt than alone
BEYOND_CHUNK = 128  # tokens of a long prompt that are left to its second chunk
LONGEST = 8192  # tokens of a long prompt where the server sets no chunk
BATCH = 8
NOT_THERE = (404, 405, 501)

NAN_REMEDY = (
    "A kernel computes wrongly: try another attention, MoE or FP4 GEMM backend. With NVFP4, FlashInfer before 0.6.6 has a race "
    "that does this; take a newer one and remove its JIT cache."
)
GARBAGE_REMEDY = (
    "A kernel or an all-reduce computes wrongly: try disable-custom-all-reduce, another MoE, FP4 GEMM or attention backend, and a "
    "bf16 KV cache, one at a time."
)


class Failed(Exception):
    """A check that the server does not pass."""

    def __init__(self, detail: str, remedy: str = "") -> None:
        super().__init__(detail)
        self.remedy = remedy


class Skipped(Exception):
    """A check that cannot be made on this server."""


class Missing(Skipped):
    """The server has no such endpoint."""


class Refused(Failed):
    """The server answers a request with an error."""

    def __init__(self, detail: str, remedy: str = "", status: int = 0) -> None:
        super().__init__(detail, remedy)
        self.status = status


class End(Exception):
    """Nothing further can be asked: there is no server any more, or no time. `short` says it in a few words."""

    def __init__(self, short: str, detail: str, remedy: str = "The server's log says why.") -> None:
        super().__init__(f"{short}: {detail}")
        self.short = short
        self.remedy = remedy


# --- what an answer says ----------------------------------------------------------------------------------------------


@dataclass
class Answer:
    """One answer of /generate. Logprobs are as they came: a number, null for what JSON cannot hold, or absent (empty)."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    top: list[list[tuple[Any, int]]] = field(default_factory=list)
    inputs: list[tuple[Any, int]] = field(default_factory=list)
    finish: dict[str, Any] = field(default_factory=dict)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


def answer_of(data: Any) -> Answer:
    """What /generate returned, of any release. Without logprobs the ids are `output_ids`."""
    if not isinstance(data, dict) or not isinstance(data.get("meta_info"), dict):
        raise Failed(f"/generate answers in a form that is not SGLang's: {shorten(json.dumps(data), 200)}")
    meta = data["meta_info"]
    told = [(entry[0], int(entry[1])) for entry in meta.get("output_token_logprobs") or []]
    finish = meta.get("finish_reason")
    return Answer(
        text=data.get("text") or "",
        ids=[token for _, token in told] or [int(token) for token in data.get("output_ids") or []],
        logprobs=[value for value, _ in told],
        top=[[(entry[0], int(entry[1])) for entry in top or []] for top in meta.get("output_top_logprobs") or []],
        inputs=[(entry[0], int(entry[1])) for entry in meta.get("input_token_logprobs") or []],
        finish=finish if isinstance(finish, dict) else {"type": finish},
        prompt_tokens=int(meta.get("prompt_tokens") or 0),
        completion_tokens=int(meta.get("completion_tokens") or 0),
        cached_tokens=int(meta.get("cached_tokens") or 0),
    )


def joined(chunks: Iterable[dict[str, Any]]) -> Answer:
    """The whole answer of a stream: releases send everything so far in each piece or, when told to, only what is new."""
    text, last = "", Answer()
    ids: list[int] = []
    for chunk in chunks:
        last = answer_of(chunk)
        whole = len(last.ids) >= last.completion_tokens and last.ids[: len(ids)] == ids
        text = last.text if whole else text + last.text
        ids = last.ids if whole else ids + last.ids
    last.text, last.ids = text, ids
    return last


def shorten(text: str, width: int) -> str:
    """In one line, without its middle where it is longer than `width`: an answer's end often says more than its middle."""
    line = " ".join(text.split())
    return line if len(line) <= width else f"{line[: width // 2].rstrip()} … {line[-(width // 2) :].lstrip()}"


def bad_number(value: Any) -> str:
    """What is wrong with a logprob; empty when nothing is. JSON has no NaN: releases write null, Python's own writer NaN."""
    if value is None:
        return "null, which is how a release writes NaN or an infinity"
    if isinstance(value, str) or not isinstance(value, (int, float)):
        return f"{value!r}, which is no number"
    if math.isnan(value) or math.isinf(value):
        return f"{value}"
    if value < LOWEST:
        return f"{value:.3g}, which stands for minus infinity"
    if value > ABOVE_ZERO:
        return f"{value:.3g}, above zero"
    return ""


def numbers_wrong(answer: Answer) -> str:
    """The first logprob that is none, in the output, its alternatives or the prompt; empty when all are right."""
    if answer.finish.get("matched") == "NaN happened":
        return "the engine stopped at a token outside the vocabulary (NaN happened)"
    for position, value in enumerate(answer.logprobs):
        wrong = bad_number(value)
        if wrong:
            return f"the logprob of output token {position + 1} is {wrong}"
    for position, alternatives in enumerate(answer.top):
        for value, _ in alternatives:
            # A token that cannot be, such as the padding of a vocabulary, may have no probability.
            if value is None or not isinstance(value, (int, float)) or math.isnan(value) or value > ABOVE_ZERO:
                return f"a logprob among the most probable at output token {position + 1} is {bad_number(value)}"
    for position, (value, _) in enumerate(answer.inputs):
        wrong = bad_number(value)
        if wrong and (position or value is not None):  # nothing precedes the first one
            return f"the logprob of prompt token {position + 1} is {wrong}"
    return ""


def not_greedy(answer: Answer) -> str:
    """Where a token is clearly not the most probable one, which temperature 0 takes; empty when nowhere."""
    for position, (value, alternatives) in enumerate(zip(answer.logprobs, answer.top)):
        best = max((other for other, _ in alternatives), default=value)
        if best - value > NEAR_TIE:
            return f"output token {position + 1} has the logprob {value:.2f}, and another one {best:.2f}"
    return ""


def tied(alternatives: list[tuple[Any, int]]) -> bool:
    """Whether all of the most probable tokens are equally so: what a layer of zeros leaves."""
    values = {value for value, _ in alternatives}
    return len(alternatives) >= TOP and len(values) == 1 and isinstance(values.pop(), float)


def flat(answers: list[Answer]) -> bool:
    """Whether the model has no opinion at more than a quarter of all places."""
    places = [alternatives for answer in answers for alternatives in answer.top]
    return bool(places) and sum(map(tied, places)) > len(places) / 4


@dataclass
class Difference:
    """Where two answers part. `gap` says how much less likely the second one's token was to the first; None: not among its best."""

    position: int
    first: int | None
    second: int | None
    gap: float | None

    def near_tie(self, limit: float) -> bool:
        return self.gap is not None and self.gap <= limit

    def __str__(self) -> str:
        how = "not among the most probable ones" if self.gap is None else f"{self.gap:.2f} less likely"
        return f"at token {self.position + 1} {self.second} instead of {self.first}, there {how}"


def difference(first: Answer, second: Answer) -> Difference | None:
    """The first place where two answers to one prompt differ; behind it they answer different texts."""
    for position in range(max(len(first.ids), len(second.ids))):
        one, two = (answer.ids[position] if position < len(answer.ids) else None for answer in (first, second))
        if one == two:
            continue
        best = first.top[position] if position < len(first.top) else []
        found = next((value for value, token in best if token == two), None)  # null is not known either
        chosen = first.logprobs[position] if position < len(first.logprobs) else None
        return Difference(position, one, two, None if chosen is None or found is None else chosen - found)
    return None


def parted(alone: list[Answer], other: list[Answer]) -> list[str]:
    """Which answers part from those that were computed in another way, and not by rounding."""
    told = []
    for number, (one, two) in enumerate(zip(alone, other), 1):
        found = difference(one, two)
        # Without logprobs nobody knows how near a tie was; garbage parts at once.
        if found and not (found.near_tie(NEAR_TIE_IN_OTHER_KERNELS) if one.top else found.position > 2):
            told.append(f"prompt {number} has {found}")
    return told


def largest_shift(first: Answer, second: Answer) -> float:
    """How far a logprob moved between two answers, up to where they part."""
    shifts = [0.0]
    for one, two, left, right in zip(first.ids, second.ids, first.logprobs, second.logprobs):
        if one != two or left is None or right is None:
            break
        shifts.append(abs(left - right))
    return max(shifts)


def degenerate(answers: list[Answer]) -> str:
    """What is wrong with answers to different prompts as a whole; empty when nothing is.

    A healthy model of random weights often falls into a loop: to 300 prompts, the tests' tiny model answered 4 % with one token
    from the start, and 17 % with one token in the whole second half, some forty different ones. So one answer proves nothing;
    what is looked for is what all or most of them have in common.
    """
    ids = [answer.ids for answer in answers]
    total = len(ids)
    if flat(answers):
        return f"the most probable tokens are all equally likely, as if the logits were zero: {quoted(answers[0])}"
    if all(len(tokens) <= 1 for tokens in ids):
        return f"each of {total} answers ends after one token or none"
    tails = {token for tokens in ids for token in tokens[len(tokens) // 2 :]}
    if len(tails) == 1:
        return f"all {total} answers end in one token repeated, {tails.pop()}: {quoted(answers[0])}"
    same = max(ids.count(tokens) for tokens in ids)
    if same > total / 2:
        text = quoted(next(answer for answer in answers if ids.count(answer.ids) == same))
        return f"{same} of {total} prompts have the same answer, {text}"
    repeated = [answer for answer in answers if len(answer.ids) > 1 and len(set(answer.ids)) == 1]
    if len(repeated) > total / 2:
        return (
            f"{len(repeated)} of {total} answers are one token repeated from the start, such as {quoted(repeated[0])}"
        )
    return ""


def quoted(answer: Answer) -> str:
    return f"'{shorten(answer.text, 60)}'" if answer.text.strip() else f"tokens {answer.ids[:6]}"


def stop_choice(answers: list[Answer]) -> tuple[int, int] | None:
    """What to stop at: an answer, and the place of a token that is not in it before. Not the very first one where possible."""
    places = [
        (number, place)
        for number, answer in enumerate(answers)
        for place, token in enumerate(answer.ids[:-1])
        if token not in answer.ids[:place]
    ]
    return next(((number, place) for number, place in places if place >= 3), places[0] if places else None)


def mean(values: Iterable[Any]) -> float | None:
    known = [value for value in values if isinstance(value, (int, float))]
    return sum(known) / len(known) if known else None


# --- what a server has room for ---------------------------------------------------------------------------------------


def whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def room_of(info: dict[str, Any], context: int | None) -> int | None:
    """Tokens that one request may have in all; None when the server says nothing of it."""
    limits = (
        context,
        whole(info.get("context_length")),
        whole(info.get("max_req_input_len")),
        whole(info.get("max_total_num_tokens")),
    )
    return min((limit for limit in limits if limit), default=None)


@dataclass
class Long:
    """Lengths of long prompts in tokens, and what to say of them."""

    lengths: list[int]
    said: str


def plan_long(info: dict[str, Any], context: int | None) -> Long:
    """One prompt of exactly one chunk, whose last logits come from a product of that many rows; one that needs a second chunk."""
    most = (room_of(info, context) or LONGEST) - TOKENS - 16  # what the engine keeps for itself
    if most < 64:
        raise Skipped(f"the server has room for {max(most, 0)} tokens of a prompt")
    chunk = whole(info.get("chunked_prefill_size"))
    if chunk is None:
        length = min(most, LONGEST)
        return Long([length], f"chunked prefill is off, so one prompt of {length} tokens")
    if chunk > most:
        return Long([most], f"one prompt of {most} tokens, since a chunk of {chunk} does not fit")
    if chunk + BEYOND_CHUNK > most:
        return Long([chunk], f"one prompt as long as a chunk, {chunk} tokens; no longer one fits")
    return Long([chunk, chunk + BEYOND_CHUNK], f"prompts of {chunk} (one chunk) and {chunk + BEYOND_CHUNK} tokens")


def filled(length: int, start: list[int], pieces: list[list[int]], end: list[int], turn: int) -> list[int]:
    """A prompt of exactly `length` tokens: `pieces` again and again from number `turn`, between a start and an end."""
    wanted = length - len(start) - len(end)
    tokens: list[int] = []
    while len(tokens) < wanted:
        tokens += pieces[turn % len(pieces)]
        turn += 1
    return start + tokens[:wanted] + end


def without_common_start(prompts: list[list[int]]) -> tuple[list[int], list[list[int]]]:
    """What the tokenizer puts before every text, and the texts' own tokens."""
    count = 0
    while all(len(tokens) > count + 1 for tokens in prompts) and len({tokens[count] for tokens in prompts}) == 1:
        count += 1
    return prompts[0][:count], [tokens[count:] for tokens in prompts]


# --- HTTP -------------------------------------------------------------------------------------------------------------


def reason(error: BaseException) -> str:
    """The innermost reason of an error of `requests`, which wraps it in several others."""
    text = str(error)
    for known in (
        "Connection refused",
        "Connection reset by peer",
        "Remote end closed connection",
        "Connection aborted",
    ):
        if known.lower() in text.lower():
            return known.lower()
    return shorten(text, 160)


class Client:
    """Requests within two limits, their own and what is left of the whole. The server's death is told apart from its refusals."""

    def __init__(self, url: str, api_key: str | None, request_timeout: float, deadline: float) -> None:
        import requests

        self.requests = requests
        self.url = url.rstrip("/")
        self.headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self.request_timeout = request_timeout
        self.deadline = deadline
        self.met = False  # whether it ever answered

    def limit(self) -> float:
        return max(0.05, min(self.request_timeout, self.deadline - time.monotonic()))

    def session(self) -> Any:
        session = self.requests.Session()
        session.trust_env = False  # a proxy has no business between a node and its own server
        return session

    def late(self, path: str, limit: float) -> Exception:
        """The request took too long: is it the server, or only this request?"""
        if self.deadline <= time.monotonic():
            return time_is_up(f"{path} was waited for since {limit:.0f} s")
        if self.alive():
            return Failed(f"{path} did not answer within {limit:.0f} s, while /health does")
        return End("the server hangs", f"{path} did not answer within {limit:.0f} s, and /health does not either")

    def broken(self, path: str, error: BaseException) -> Exception:
        if self.alive():
            return Failed(f"{path} broke off ({reason(error)}), while /health answers")
        if not self.met:
            return End("no server answers", f"{self.url}{path} ended in {reason(error)}", "Start it, or give its url.")
        return End("the server is gone", f"{path} ended in {reason(error)}, and /health does not answer")

    def alive(self) -> bool:
        """/health generates a token itself, and gives up after 20 s."""
        try:
            with self.session() as session:
                limit = max(0.05, min(25.0, self.deadline - time.monotonic()))
                reply = session.get(f"{self.url}/health", headers=self.headers, timeout=limit)
                return reply.status_code in (200, *NOT_THERE)
        except self.requests.RequestException:
            return False

    def checked(self, path: str, reply: Any) -> Any:
        self.met = True
        if reply.status_code in NOT_THERE:
            raise Missing(f"the server has no {path} (HTTP {reply.status_code})")
        if reply.status_code != 200:
            told = shorten(error_text(reply.text), 240)
            raise Refused(f"{path} answers HTTP {reply.status_code}: {told}", status=reply.status_code)
        return reply

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """The whole answer as JSON."""
        limit = self.limit()
        try:
            with self.session() as session:
                reply = session.request(method, self.url + path, json=body, headers=self.headers, timeout=limit)
                text = self.checked(path, reply).text
        except self.requests.Timeout:
            raise self.late(path, limit) from None
        except self.requests.RequestException as error:
            raise self.broken(path, error) from None
        try:
            return json.loads(text)
        except ValueError:
            raise Failed(f"{path} answers something that is not JSON: {shorten(text, 160)}") from None

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The pieces of a stream of events, up to its [DONE]."""
        limit = self.limit()
        end = time.monotonic() + limit
        try:
            with self.session() as session:
                reply = session.post(self.url + path, json=body, headers=self.headers, timeout=limit, stream=True)
                for line in self.checked(path, reply).iter_lines():
                    if time.monotonic() > end:
                        raise self.late(path, limit)
                    if not line.startswith(b"data:"):
                        continue
                    text = line[5:].decode("utf-8", "replace").strip()
                    if text == "[DONE]":
                        return
                    piece = json.loads(text)
                    if "error" in piece:
                        raise Refused(f"{path} breaks off with an error: {shorten(error_text(text), 240)}")
                    yield piece
        except self.requests.Timeout:
            raise self.late(path, limit) from None
        except self.requests.RequestException as error:
            raise self.broken(path, error) from None
        except ValueError as error:
            raise Failed(f"{path} streams something that is not JSON: {error}") from None
        raise Failed(f"{path} streams without an end: the last piece is not [DONE]")

    def flush(self) -> str:
        """Empty the prefix cache; empty when it is, else why not. Right behind a request the engine may still be busy with it."""
        told = ""
        for pause in (0.0, 0.3, 1.0):
            time.sleep(pause)
            try:
                with self.session() as session:
                    reply = session.post(f"{self.url}/flush_cache", headers=self.headers, timeout=self.limit())
            except self.requests.RequestException as error:
                return reason(error)
            if reply.status_code == 200:
                return ""
            told = f"HTTP {reply.status_code}: {shorten(error_text(reply.text), 120)}"
            if reply.status_code != 400:
                break
        return told


def time_is_up(detail: str) -> End:
    return End("the time is up", detail, "Raise timeout, or see why the server is slow.")


def error_text(text: str) -> str:
    """The message of an error, in any of the forms that releases give it."""
    try:
        data = json.loads(text)
    except ValueError:
        return text
    for key in ("error", "message", "detail"):
        if isinstance(data, dict) and data.get(key):
            return error_text(json.dumps(data[key])) if isinstance(data[key], dict) else str(data[key])
    return text


# --- the checks -------------------------------------------------------------------------------------------------------


class Probe:
    """One look at one server. Checks run in order; what an earlier one learned is kept for the later ones."""

    def __init__(self, client: Client, model: str, questions: list[dict[str, Any]]) -> None:
        self.client = client
        self.model = model
        self.questions = questions
        self.notes: list[str] = []
        self.context: int | None = None
        self.answers: list[Answer] = []
        self.without_logprobs = ""  # why the server gives none
        self.unwritable = False  # whether that is since they are no numbers
        self.native = "the prompts have no answers (see repeat)"  # why there are none, for the checks that need them
        self.information: dict[str, Any] | None = None

    # What is asked

    def generate(
        self, prompt: str | list[int], tokens: int = TOKENS, inputs: int = 0, **sampling: Any
    ) -> dict[str, Any]:
        """The body of a request. `inputs`: from which token of the prompt on its own logprobs are wanted, -1 for none.

        All that changes probabilities is said, since a server may have its own idea of a default.
        """
        neutral = {"temperature": 0, "frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1}
        body: dict[str, Any] = {
            "text" if isinstance(prompt, str) else "input_ids": prompt,
            "sampling_params": {**neutral, "max_new_tokens": tokens, **sampling},
        }
        if not self.without_logprobs:
            body.update(return_logprob=True, top_logprobs_num=TOP, logprob_start_len=inputs)
        return body

    def answer(self, prompt: str | list[int], **how: Any) -> Answer:
        try:
            found = answer_of(self.client.ask("POST", "/generate", self.generate(prompt, **how)))
        except Refused as error:
            if error.status == 500 and not self.without_logprobs:
                error.remedy = (
                    "The server's log says why. NaN among logprobs is one cause: JSON cannot hold it. " + NAN_REMEDY
                )
            raise
        if found.finish.get("type") == "abort":
            raise Failed(f"the server aborts a request: {shorten(str(found.finish.get('message')), 240)}")
        return found

    def first(self, prompt: str) -> Answer:
        """The first answer to a prompt; without logprobs, from then on, where it is they that the server cannot give."""
        try:
            return self.answer(prompt)
        except Refused as error:
            if self.without_logprobs or not (error.status >= 500 or "logprob" in str(error).lower()):
                raise
            self.without_logprobs, self.unwritable = str(error), error.status >= 500
        try:
            return self.answer(prompt)
        except Failed:
            told, self.without_logprobs, self.unwritable = self.without_logprobs, "", False
            raise Failed(told, "The server's log says why.") from None

    def known(self) -> list[Answer]:
        if not self.answers:
            raise Skipped(self.native)
        return self.answers

    def info(self) -> dict[str, Any]:
        """What the server says of itself, under the old or the new name; empty where it says nothing."""
        if self.information is None:
            self.information = {}
            for path in ("/server_info", "/get_server_info"):
                with contextlib.suppress(Failed, Skipped):
                    found = self.client.ask("GET", path)
                    self.information = found if isinstance(found, dict) else {}
                    break
        return self.information

    def fresh(self) -> bool:
        """Empty the prefix cache, so that what is computed twice is computed twice."""
        why = self.client.flush()
        if why:
            self.notes.append(f"the prefix cache could not be emptied ({why})")
        return not why

    # The checks, in their order

    def models(self) -> str:
        try:
            listed = self.client.ask("GET", "/v1/models").get("data") or []
        except Refused as error:
            if error.status not in (401, 403):
                raise
            raise End("the API key is refused", str(error), "Give the server's own key as api_key.") from None
        names = [str(entry.get("id")) for entry in listed]
        if self.model not in names:
            raise Failed(
                f"the server lists {', '.join(names) or 'no model'}, and {self.model} is expected",
                "Another server answers here, or served-model-name differs.",
            )
        self.context = whole(next(entry for entry in listed if str(entry.get("id")) == self.model).get("max_model_len"))
        return f"{self.model} is served"

    def repeat(self) -> str:
        self.fresh()
        try:
            answers = [self.first(prompt) for prompt in PROMPTS]
        except (Failed, Skipped) as error:
            self.native = f"the prompts have no answers ({error})"
            raise
        self.answers = answers
        self.fresh()
        again = [self.answer(prompt) for prompt in PROMPTS[:3]]
        shifts = [largest_shift(one, two) for one, two in zip(answers, again)]
        for number, (one, two) in enumerate(zip(answers, again), 1):
            self.tolerate(f"prompt {number}", one, two, "asked again")
        cached = self.from_cache(answers[: len(again)])
        what = "tokens" if self.without_logprobs else f"tokens, and logprobs to {max(shifts):.3f}"
        return f"{len(again)} prompts asked twice have the same {what}{cached}"

    def from_cache(self, answers: list[Answer]) -> str:
        """Once more, with the prompt's KV cache read and not computed: what each further turn of a conversation does.

        Prompts whose logprobs are wanted are computed anew, so these are not. Other kernels are at work, as in a batch.
        """
        found = [self.answer(prompt, inputs=-1) for prompt in PROMPTS[: len(answers)]]
        apart = parted(answers, found)
        tokens = sum(answer.cached_tokens for answer in found)
        if len(apart) > 1:
            raise Failed(
                f"with {tokens} tokens read from the prefix cache, {len(apart)} of {len(found)} answers are others: {apart[0]}",
                "The KV cache is read wrongly: try a bf16 KV cache, another attention backend, or no hierarchical cache.",
            )
        self.notes += [f"from the prefix cache {text}" for text in apart]
        return f", also with {tokens} tokens read from the prefix cache" if tokens else ""

    def tolerate(self, name: str, one: Answer, two: Answer, how: str) -> bool:
        """Whether two answers to a prompt are the same.

        A real near tie is noted: rounding decides there, and it may differ with what else the engine has in batch and cache.
        """
        found = difference(one, two)
        if found is None:
            return True
        if not found.near_tie(NEAR_TIE):
            raise Failed(
                f"{name} {how} has another answer at temperature 0: {found}",
                "Something computes differently each time: a kernel reads what nobody wrote, or ranks disagree. "
                + GARBAGE_REMEDY,
            )
        self.notes.append(f"{name} {how} differs {found}: a near tie, where rounding decides")
        return False

    def logprobs(self) -> str:
        answers = self.known()
        if self.unwritable:
            raise Failed(
                f"asked for logprobs, {self.without_logprobs}; without them it answers, as with NaN that JSON cannot hold",
                NAN_REMEDY,
            )
        if self.without_logprobs:
            raise Skipped(f"the server gives no logprobs: {self.without_logprobs}")
        count = sum(len(answer.logprobs) for answer in answers)
        if not count:
            raise Failed("the answers come without the logprobs that were asked for")
        for number, answer in enumerate(answers, 1):
            wrong = numbers_wrong(answer)
            if wrong:
                raise Failed(f"with prompt {number} {wrong}", NAN_REMEDY)
            wrong = not_greedy(answer)
            if wrong:
                raise Failed(f"with prompt {number} the most probable token is not taken: {wrong}", GARBAGE_REMEDY)
        prompts = sum(len(answer.inputs) for answer in answers)
        return f"{count} logprobs of answers and {prompts} of prompts are finite and not above zero"

    def repetition(self) -> str:
        answers = self.known()
        wrong = degenerate(answers)
        if wrong:
            raise Failed(wrong, GARBAGE_REMEDY)
        distinct = {tuple(answer.ids) for answer in answers}
        return f"{len(answers)} prompts have {len(distinct)} different answers, and no token is repeated for ever"

    def stop(self) -> str:
        answers = self.known()
        choice = stop_choice(answers)
        if choice is None:
            raise Skipped("the answers are too short to stop in")
        number, place = choice
        base = answers[number]
        token = base.ids[place]
        found = self.answer(PROMPTS[number], stop_token_ids=[token])
        reached = token in found.ids
        if reached and found.ids.index(token) < len(found.ids) - 1:
            raise Failed(
                f"token {token} is a stop token, and the answer goes on behind it ({len(found.ids)} tokens)",
                "Stop tokens are not honoured: clients would wait for max_tokens each time.",
            )
        if not reached:
            # Another answer than before: the repeat's business. Whether it would have stopped is not known.
            self.tolerate(f"prompt {number + 1}", base, found, "with a stop token")
            self.notes.append("the stop token was not reached")
        elif found.finish.get("type") != "stop" or found.finish.get("matched") != token:
            raise Failed(f"the answer stops at stop token {token} and gives as its reason {json.dumps(found.finish)}")
        elif found.completion_tokens != len(found.ids):
            raise Failed(f"the answer has {len(found.ids)} tokens, and {found.completion_tokens} are counted")
        full = self.answer(PROMPTS[0], tokens=TOKENS - 4, ignore_eos=True)
        if full.finish.get("type") != "length" or full.completion_tokens != TOKENS - 4:
            raise Failed(
                f"max_new_tokens {TOKENS - 4} with ignore_eos gives {full.completion_tokens} tokens and the reason "
                f"{json.dumps(full.finish)}"
            )
        where = f"a stop token ends the answer at token {place + 1}, " if reached else ""
        return f"{where}max_new_tokens is honoured"

    def stream(self) -> str:
        base = self.known()[0]
        found = joined(self.client.stream("/generate", {**self.generate(PROMPTS[0]), "stream": True}))
        if not self.tolerate("prompt 1", base, found, "streamed"):
            return f"streamed, prompt 1 has the same {difference(base, found).position} first tokens"  # type: ignore[union-attr]
        if found.text != base.text:
            raise Failed(
                f"the same tokens streamed have another text: '{shorten(found.text, 80)}' instead of '{shorten(base.text, 80)}'"
            )
        if found.finish.get("type") != base.finish.get("type"):
            raise Failed(
                f"streamed, the answer ends for another reason: {json.dumps(found.finish)} instead of {json.dumps(base.finish)}"
            )
        return f"{len(found.ids)} tokens and their text are the same streamed"

    def prefill(self) -> str:
        answers = self.known()
        info = self.info()
        if not info:
            raise Skipped(
                "the server does not say how long its prefill chunks are (no /server_info, no /get_server_info)"
            )
        if self.without_logprobs:
            raise Skipped("tokens of prompts are known by their logprobs, which the server does not give")
        plan = plan_long(info, self.context)
        start, texts = without_common_start([[token for _, token in answer.inputs] for answer in answers])
        passage = texts[0][-max(1, min(len(texts[0]), plan.lengths[0] // 2)) :]
        # What was computed before is not computed again: where the cache stays, another start makes another prompt.
        head = [] if self.fresh() else random.sample([token for text in texts for token in text], 8)
        found = []
        for turn, length in enumerate(plan.lengths):
            prompt = filled(length, start + head, texts[1:], passage, 3 * turn)
            found.append(self.answer(prompt, inputs=length - len(passage)))
        alone = mean(value for value, _ in answers[0].inputs[-len(passage) :])
        for length, answer in zip(plan.lengths, found):
            self.judge_long(length, answer, alone)
        constant = {answer.ids[0] for answer in found if len(set(answer.ids)) == 1 and len(answer.ids) > 1}
        if len(found) > 1 and len(constant) == 1 and all(len(set(answer.ids)) == 1 for answer in found):
            raise Failed(f"behind long prompts the answers are one token repeated, {quoted(found[0])}", GARBAGE_REMEDY)
        return f"{plan.said}: answers are finite, and a text behind them is as likely as alone"

    def judge_long(self, length: int, answer: Answer, alone: float | None) -> None:
        name = f"behind a prompt of {length} tokens"
        wrong = numbers_wrong(answer)
        if wrong:
            raise Failed(f"{name} {wrong}", NAN_REMEDY)
        known = [value for value, _ in answer.inputs if value is not None]
        if (answer.top and tied(answer.top[0])) or (len(known) > 4 and len(set(known)) == 1):
            raise Failed(f"{name} all tokens are equally likely, as if the logits were zero", GARBAGE_REMEDY)
        behind = mean(known)
        if alone is not None and behind is not None and behind < alone - WORSE:
            raise Failed(
                f"{name} a text is less likely than alone, by {alone - behind:.1f} a token ({behind:.2f} instead of {alone:.2f})",
                "What stands before it is read wrongly. " + GARBAGE_REMEDY,
            )
        if answer.cached_tokens > length // 2:
            self.notes.append(f"{answer.cached_tokens} of {length} tokens came from the prefix cache")

    def batch(self) -> str:
        answers = self.known()
        running = whole(self.info().get("max_running_requests")) or BATCH
        count = min(BATCH, running, len(answers))
        if count < 2:
            raise Skipped("the server runs one request at a time")
        found = at_once([functools.partial(self.answer, prompt) for prompt in PROMPTS[:count]])
        for number, answer in enumerate(found, 1):
            wrong = numbers_wrong(answer)
            if wrong:
                raise Failed(f"in a batch of {count} with prompt {number} {wrong}", NAN_REMEDY)
        apart = parted(answers, found)
        if len(apart) > count / 4:
            raise Failed(
                f"in a batch of {count}, {len(apart)} answers are others than alone, and not by rounding: {apart[0]}",
                "Kernels compute wrongly for some numbers of rows, or requests are mixed up. " + GARBAGE_REMEDY,
            )
        if apart:
            self.notes.append(f"in the batch {apart[0]}")
        return f"{count} requests at once have the answers that they have alone"

    def questioned(self) -> str:
        if not self.questions:
            raise Skipped("none are given")
        begun = time.monotonic()
        told = at_once([functools.partial(self.question, question) for question in self.questions])
        wrong = [text for text in told if text]
        if wrong:
            raise Failed(
                f"{len(wrong)} of {len(told)} answered wrongly: {'; '.join(wrong)}",
                "If the answer is right in other words, change expect; if it is garbled: " + GARBAGE_REMEDY,
            )
        return f"{len(told)} answered as expected, at once, in {time.monotonic() - begun:.1f} s"

    def question(self, question: dict[str, Any]) -> str:
        """What is wrong with the answer to one question; empty when it is as expected."""
        content, tokens = question["ask"], int(question.get("max_tokens") or 512)
        if question.get("padded"):
            content = self.padded(content, tokens)
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": content}],
            "temperature": 0,
            "max_tokens": tokens,
        }
        if question.get("chat_template_kwargs"):
            body["chat_template_kwargs"] = question["chat_template_kwargs"]
        data = self.client.ask("POST", "/v1/chat/completions", body)
        name = f"'{shorten(question['ask'], 60)}'" + (" behind a long text" if question.get("padded") else "")
        try:
            choice = data["choices"][0]
            message = choice["message"]
        except (KeyError, IndexError, TypeError):
            return f"{name} has no answer: {shorten(json.dumps(data), 160)}"
        text, thought = message.get("content") or "", message.get("reasoning_content") or ""
        if question.get("padded"):
            self.say_padding(name, (data.get("usage") or {}).get("prompt_tokens"))
        if re.search(question["expect"], text, re.DOTALL):
            return ""
        # What was thought counts where nothing was said: the model computes right, it only was not let finish.
        if not text.strip() and re.search(question["expect"], thought, re.DOTALL):
            self.notes.append(f"{name} is answered in its reasoning only; more max_tokens would let it say so")
            return ""
        said = f"'{shorten(text, 160)}'" if text.strip() else f"nothing, and thinks '{shorten(thought, 160)}'"
        cut = f" (cut at max_tokens {tokens})" if choice.get("finish_reason") == "length" else ""
        return f"to {name} it says {said}{cut}, and /{question['expect']}/ is expected"

    def padded(self, content: str, tokens: int) -> str:
        """The question behind numbered lines, a fifth longer than a prefill chunk, or as long as there is room for."""
        info = self.info()
        most = (room_of(info, self.context) or LONGEST) - tokens - 256
        wanted = min((whole(info.get("chunked_prefill_size")) or LONGEST) * 1.2, most / 1.2)  # the rate is an estimate
        measured = [(answer.prompt_tokens, len(prompt)) for answer, prompt in zip(self.answers, PROMPTS)]
        rate = sum(n for n, _ in measured) / sum(n for _, n in measured) if measured else 0.3  # tokens a character
        lines, length, number = [], 0.0, 0
        while length < wanted - 64:
            number += 1
            lines.append(f"Note {number}: {PROMPTS[0].split('. ')[number % 3]}.")
            length += rate * (len(lines[-1]) + 1)
        return "\n".join([*lines, "", "The notes above do not matter. " + content])

    def say_padding(self, name: str, prompt_tokens: Any) -> None:
        chunk = whole(self.info().get("chunked_prefill_size"))
        if chunk and whole(prompt_tokens) and prompt_tokens <= chunk:
            self.notes.append(f"{name} had {prompt_tokens} tokens, which is no more than a prefill chunk ({chunk})")


def at_once(calls: list[Callable[[], Any]]) -> list[Any]:
    """All results in order. The server's death is told before what else went wrong because of it."""
    with concurrent.futures.ThreadPoolExecutor(max_workers=BATCH) as pool:
        running = [pool.submit(call) for call in calls]
    errors = [future.exception() for future in running]
    for error in sorted((error for error in errors if error), key=lambda error: not isinstance(error, End)):
        raise error
    return [future.result() for future in running]


CHECKS: tuple[tuple[str, Callable[[Probe], str]], ...] = (
    ("models", Probe.models),
    ("repeat", Probe.repeat),
    ("logprobs", Probe.logprobs),
    ("repetition", Probe.repetition),
    ("stop", Probe.stop),
    ("stream", Probe.stream),
    ("prefill", Probe.prefill),
    ("batch", Probe.batch),
    ("questions", Probe.questioned),
)
# Those that show that the server generates: without one of them nothing was proved.
PROOFS = ("repeat", "repetition", "batch", "questions")


def run_checks(probe: Probe, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Every check, whatever the one before it found, unless there is no server any more."""
    told: list[dict[str, Any]] = []
    gone = ""
    for name, check in CHECKS:
        begun = time.monotonic()
        entry: dict[str, Any] = {
            "name": name,
            "passed": None,
            "skipped": False,
            "detail": "",
            "remedy": "",
            "notes": [],
        }
        probe.notes = []
        if gone:
            entry.update(skipped=True, detail=gone)
        else:
            say(name)
            try:
                if probe.client.deadline <= begun:
                    raise time_is_up("it was over before this check began")
                entry.update(passed=True, detail=check(probe))
            except Failed as error:
                entry.update(passed=False, detail=str(error), remedy=error.remedy)
            except Skipped as error:
                entry.update(skipped=True, detail=str(error))
            except End as error:
                entry.update(passed=False, detail=str(error), remedy=error.remedy)
                gone = f"{error.short} since {name}"
            except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
                entry.update(
                    passed=False, detail=f"the answer has a form that is not known: {type(error).__name__}: {error}"
                )
        entry["notes"] = list(dict.fromkeys(probe.notes))
        entry["seconds"] = round(time.monotonic() - begun, 2)
        told.append(entry)
    return told


def verdict(checks: list[dict[str, Any]], seconds: float) -> tuple[bool, str]:
    """Whether the server passes, and one sentence of it."""
    failed = [check for check in checks if check["passed"] is False]
    skipped = [check for check in checks if check["skipped"]]
    passed = [check for check in checks if check["passed"]]
    if failed:
        made = len(failed) + len(passed)
        text = f"{len(failed)} of {made} check{'' if made == 1 else 's'} failed: " + "; ".join(
            f"{check['name']}: {check['detail']}" for check in failed
        )
    elif not any(check["name"] in PROOFS for check in passed):
        text = f"no check that generates could be made in {seconds:.1f} s"
    else:
        text = f"{len(passed)} check{'' if len(passed) == 1 else 's'} passed in {seconds:.1f} s"
    reasons: dict[str, list[str]] = {}
    for check in skipped:
        reasons.setdefault(check["detail"], []).append(check["name"])
    if reasons:
        text += "; skipped: " + "; ".join(f"{', '.join(names)} ({why})" for why, names in reasons.items())
    return not failed and any(check["name"] in PROOFS for check in passed), text


def main() -> None:
    """Answer {url, model, questions, timeout, request_timeout, api_key} with {passed, summary, checks, seconds}.

    A check is {name, passed (null when skipped), skipped, detail, remedy, notes, seconds}. The check that is being made is named on
    standard error, for one who has to end this program.
    """
    asked = json.load(sys.stdin)
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    begun = time.monotonic()
    client = Client(asked["url"], asked.get("api_key"), asked["request_timeout"], begun + asked["timeout"])
    probe = Probe(client, asked["model"], asked.get("questions") or [])
    checks = run_checks(probe, lambda name: print(f"check {name}", file=sys.stderr, flush=True))
    seconds = round(time.monotonic() - begun, 2)
    passed, summary = verdict(checks, seconds)
    json.dump({"passed": passed, "summary": summary, "checks": checks, "seconds": seconds}, answer)
    answer.close()


if __name__ == "__main__":
    main()
