"""Record what a real server answers to the probe, for the unit tests: every request once, answers trimmed to what is read.

    venv/bin/python tests/unit/data/smoke/record.py http://127.0.0.1:30000 MODEL > tests/unit/data/smoke/RELEASE.json

The interpreter needs `requests`. A file is a list of [key, answer] in the order of the requests, see `key`; the stream's answer is
the list of its pieces. RELEASE-FAULT.json are of a server with a fault of molecule/faults/injector put into it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[4] / "module_utils"))
import sglang_probe

META = ("finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens")
LOGPROBS = ("input_token_logprobs", "output_token_logprobs", "output_top_logprobs")
INFO = ("chunked_prefill_size", "context_length", "max_req_input_len", "max_total_num_tokens", "max_running_requests", "version")


def key(path: str, body: dict[str, Any] | None) -> str:
    """What makes a request another one than before. A prompt of tokens is named by its length."""
    if not body or "sampling_params" not in body:
        return path
    prompt = body.get("text", f"{len(body.get('input_ids', []))} tokens")
    sampling = {name: value for name, value in body["sampling_params"].items() if name in ("stop_token_ids", "ignore_eos")}
    return f"{path} {prompt} {sampling or ''} {body.get('logprob_start_len')}".strip()


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, list):
        return [rounded(item) for item in value if not isinstance(item, str)]
    return value


def trimmed(answer: Any) -> Any:
    if isinstance(answer, dict) and "meta_info" in answer:
        meta = answer["meta_info"]
        kept = {name: meta[name] for name in META if name in meta}
        kept.update({name: rounded(meta[name]) for name in LOGPROBS if name in meta})
        return {"text": answer["text"], "output_ids": answer.get("output_ids"), "meta_info": kept}
    if isinstance(answer, dict) and "chunked_prefill_size" in answer:
        return {name: answer.get(name) for name in INFO}
    return answer


class Recorder(sglang_probe.Client):
    def __init__(self, url: str) -> None:
        super().__init__(url, None, 120, time.monotonic() + 600)
        self.seen: list[list[Any]] = []

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        answer = super().ask(method, path, body)
        self.seen.append([key(path, body), trimmed(answer)])
        return answer

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        pieces = list(super().stream(path, body))
        kept = [trimmed(piece) for piece in pieces]
        for piece in kept:
            for name in LOGPROBS:
                piece["meta_info"].pop(name, None)
        self.seen.append(["stream", kept])
        yield from pieces


def main() -> None:
    recorder = Recorder(sys.argv[1])
    probe = sglang_probe.Probe(recorder, sys.argv[2], [])
    checks = sglang_probe.run_checks(probe, lambda name: None)
    print("[")
    print(",\n".join(json.dumps(pair, separators=(",", ":"), ensure_ascii=False) for pair in recorder.seen))
    print("]")
    print(sglang_probe.verdict(checks, 0.0)[1], file=sys.stderr)


if __name__ == "__main__":
    main()
