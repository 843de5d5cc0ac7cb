"""Arguments as a mapping: laid over each other, turned into words, judged by the options that releases really have."""

from __future__ import annotations

import argparse
import functools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils import sglang_options
from ansible.module_utils.sglang_options import OptionsError, deprecated, destinations, merged, words

STACKS = Path(__file__).resolve().parents[2] / "stacks"
RELEASES = {
    "0.5.9": "sglang-0.5.9-cu128",
    "0.5.15.post1": "sglang-0.5.15.post1-cu130",
    "0.5.23": "sglang-0.5.23-cu130",
}
RESOLVED = sorted(STACKS.glob("*/resolved/*.json"))


@functools.cache
def load(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    return json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)


def options(release: str) -> list[dict[str, Any]]:
    return load(STACKS / RELEASES[release] / "options.json")


def check(release: str, args: dict[str, Any]) -> list[tuple[str, str]]:
    return sglang_options.check(args, options(release), load(STACKS / "renames.yml"))


# Laying over


@pytest.mark.parametrize(
    ("layers", "result"),
    [
        ([{"page-size": 64}, {"page-size": 1}], {"page-size": 1}),
        ([{"page-size": 64, "device": "cuda"}, {"page-size": None}], {"device": "cuda"}),
        ([{"page-size": None}, {"page-size": 64}], {"page-size": 64}),
        ([{"page-size": None}], {}),
        ([{"page-size": 64}, {}], {"page-size": 64}),
        ([{"cuda_graph_max_bs": 256}, {"cuda-graph-max-bs": 64}], {"cuda-graph-max-bs": 64}),
        ([{"cuda-graph-max-bs": 256}, {"cuda_graph_max_bs": None}], {}),
        ([{"--page-size": 64}], {"page-size": 64}),
        # False is a value: it leaves out an option that lies below.
        ([{"enable-metrics": True}, {"enable-metrics": False}], {"enable-metrics": False}),
        ([], {}),
    ],
)
def test_the_last_layer_wins_and_a_null_removes(layers: list[dict[str, Any]], result: dict[str, Any]) -> None:
    assert merged(*layers) == result


def test_an_option_keeps_its_place_when_it_is_laid_over() -> None:
    assert list(merged({"a": 1, "b": 2}, {"c": 3, "a": 4})) == ["a", "b", "c"]


@pytest.mark.parametrize("layer", [["--page-size", "64"], "--page-size 64"])
def test_arguments_that_are_no_mapping_are_refused(layer: Any) -> None:
    with pytest.raises(OptionsError, match=f"a mapping of option to value, not {type(layer).__name__}"):
        merged({"device": "cuda"}, layer)


# Words


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (True, ["--an-option"]),
        (False, []),
        (None, []),
        (8, ["--an-option", "8"]),
        (-1, ["--an-option", "-1"]),
        (0, ["--an-option", "0"]),
        (0.9, ["--an-option", "0.9"]),
        ("", ["--an-option", ""]),
        ("two words", ["--an-option", "two words"]),
        ([1, 2, 4], ["--an-option", "1", "2", "4"]),
        ({"b": True, "a": [1]}, ["--an-option", '{"a": [1], "b": true}']),
        ([{"lora_name": "a"}, "b"], ["--an-option", '{"lora_name": "a"}', "b"]),
    ],
)
def test_a_value_becomes_words(value: Any, line: list[str]) -> None:
    assert words({"an_option": value}) == line


def test_words_stand_in_the_mappings_order() -> None:
    assert words({"tp-size": 8, "enable-metrics": True, "device": "cuda"}) == [
        *("--tp-size", "8"),
        "--enable-metrics",
        *("--device", "cuda"),
    ]


# What a release takes


@pytest.mark.parametrize(
    ("release", "name", "said"),
    [
        ("0.5.23", "tensor-paralel-size", "did you mean tensor-parallel-size?"),
        ("0.5.9", "max-runing-requests", "did you mean max-running-requests?"),
        ("0.5.15.post1", "attention-backed", "did you mean attention-backend?"),
        ("0.5.23", "chunked-prefill", "did you mean chunked-prefill-size?"),
        ("0.5.9", "mem", "did you mean mem-fraction-static?"),
        ("0.5.23", "qqqq", "no option is like it"),
        # Names that came and went.
        ("0.5.23", "nsa-decode-backend", "this release calls it dsa-decode-backend"),
        ("0.5.23", "nsa-prefill-backend", "this release calls it dsa-prefill-backend"),
        ("0.5.9", "dsa-decode-backend", "this release calls it nsa-decode-backend"),
        ("0.5.23", "cuda-graph-max-bs", "this release calls it cuda-graph-max-bs-decode"),
        ("0.5.9", "cuda-graph-max-bs-decode", "this release calls it cuda-graph-max-bs"),
        ("0.5.9", "fp4-gemm-runner-backend", "this release calls it fp4-gemm-backend (the longer name is the field's"),
        ("0.5.23", "enable-nan-detection", "it is gone (the environment variable SGLANG_SPEC_NAN_DETECTION"),
    ],
)
def test_an_option_that_a_release_does_not_have_is_named_with_what_to_write(release: str, name: str, said: str) -> None:
    [(told, text)] = check(release, {name: "trtllm"})
    assert told == name and text.startswith(f"is not an option of this release; {said}")


@pytest.mark.parametrize(
    ("release", "args", "said"),
    [
        ("0.5.9", {"moe-runner-backend": "marlin"}, "choose from auto, deep_gemm, triton,"),
        (
            "0.5.15.post1",
            {"dsa-decode-backend": "flashinfer_sparse_mla"},
            "choose from flashmla_sparse, flashmla_kv, flashmla_auto, fa3, tilelang, aiter, trtllm",
        ),
        ("0.5.23", {"moe-runner-backend": "flashinfer-cutlass"}, "did you mean flashinfer_cutlass?"),
        ("0.5.23", {"tensor-parallel-size": "eight"}, "it takes a whole number"),
        ("0.5.23", {"tensor-parallel-size": 8.5}, "it takes a whole number"),
        ("0.5.9", {"mem-fraction-static": "high"}, "it takes a number"),
        ("0.5.23", {"context-length": "long"}, "it takes a whole number"),
        ("0.5.23", {"context-length": "1.5Ki"}, "it takes a whole number"),
        ("0.5.9", {"context-length": "128k"}, "it takes a whole number"),  # suffixes came later
        ("0.5.9", {"enable-metrics": 1}, "it is a switch: true or false"),
        ("0.5.9", {"enable-metrics": "true"}, "it is a switch: true or false"),
        ("0.5.23", {"disable-cuda-graph": "yes"}, "it is a switch: true or false"),  # deprecated there
        ("0.5.9", {"tensor-parallel-size": True}, "it takes a value, not a switch"),
        ("0.5.9", {"quantization": False}, "it takes a value, not a switch"),
        ("0.5.9", {"page-size": [64]}, "it takes one value, not a list"),
        ("0.5.9", {"cuda-graph-bs": [1, "two"]}, "it takes a whole number"),
        ("0.5.9", {"cuda-graph-bs": []}, "it takes at least one value"),
        ("0.5.9", {"tensor-parallel-size": {"size": 8}}, "it takes a whole number"),
        ("0.5.23", {"moe-runner-backend": {"name": "auto"}}, "choose from auto,"),
        ("0.5.9", {"model-loader-extra-config": "{enable_multithread_load: true}"}, "it is no JSON"),
        ("0.5.23", {"json-model-override-args": "max_position_embeddings=4"}, "it is no JSON"),
        ("0.5.23", {"default-chat-template-kwargs": "{thinking: false}"}, "it is no JSON"),
    ],
)
def test_a_value_that_a_release_does_not_take_is_named_with_what_it_takes(
    release: str, args: dict[str, Any], said: str
) -> None:
    [(told, text)] = check(release, args)
    assert told in args and text.startswith("cannot be ") and said in text


@pytest.mark.parametrize(
    "args",
    [
        {"tensor-parallel-size": 8, "tp_size": "8", "mem-fraction-static": 1, "max-total-tokens": "-1"},
        {"enable-metrics": True, "disable-radix-cache": False, "quantization": None},
        {"attention-backend": "triton", "kv-cache-dtype": "fp8_e4m3"},
        {"model-loader-extra-config": '{"enable_multithread_load": true}'},
        {"model-loader-extra-config": {"enable_multithread_load": True}, "json-model-override-args": {}},
        {"lora-paths": [{"lora_name": "a", "lora_path": "/a"}, "/b"], "lora-target-modules": ["q_proj"]},
        {"model-checksum": True},  # its value may be left away
    ],
)
@pytest.mark.parametrize("release", RELEASES)
def test_what_a_release_takes_is_not_complained_of(release: str, args: dict[str, Any]) -> None:
    assert check(release, args) == []


def test_every_problem_is_told_at_once() -> None:
    told = check("0.5.23", {"nsa-decode-backend": "trtllm", "device": "cuda", "tp-size": "x"})
    assert [name for name, _ in told] == ["nsa-decode-backend", "tp-size"]


# Switches that are on, or left to the release, where nothing is said


@pytest.mark.parametrize("name", ["dllm-fdfo", "enable_dsa_fused_indexer"])
def test_false_for_a_switch_that_is_not_off_by_itself_would_be_lost(name: str) -> None:
    """False leaves an option out; what turns this one off is an option of its own."""
    assert words({name: False}) == []
    dashed = name.replace("_", "-")
    [(told, text)] = check("0.5.23", {name: False})
    assert told == dashed and f"`no-{dashed}: true`" in text
    assert check("0.5.23", {f"no-{name}": True}) == check("0.5.23", {name: True}) == []


def test_false_for_a_switch_that_is_off_by_itself_is_fine() -> None:
    assert check("0.5.23", {"lora-strict-loading": False, "enable-metrics": False}) == []


def test_the_option_that_turns_a_switch_off_sets_false() -> None:
    assert destinations({"no-dllm-fdfo": True}, options("0.5.23")) == {"dllm_fdfo": False}
    assert destinations({"dllm-fdfo": True}, options("0.5.23")) == {"dllm_fdfo": True}


# Against argparse itself, for each sort of option there is


TYPES: dict[str, Any] = {"int": int, "float": float, "loads": json.loads, "json_list_type": json.loads}
VALUES: list[Any] = [True, "text", "8", 8, -1, 0.5, [1, 2], ["a", "b"], {"a": 1}, "[1]"]


def parser_of(entry: dict[str, Any]) -> argparse.ArgumentParser:
    """A parser with the one option, as options.json describes it."""
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False, add_help=False)
    names, kind = entry["names"], entry["kind"]
    if kind == "BooleanOptionalAction":
        parser.add_argument(names[0], action=argparse.BooleanOptionalAction)
    elif entry.get("nargs") == 0:
        parser.add_argument(*names, action="store_true")
    else:
        parser.add_argument(
            *names, nargs=entry.get("nargs"), choices=entry.get("choices"), type=TYPES.get(entry.get("type", ""), str)
        )
    return parser


def takes(parser: argparse.ArgumentParser, argv: list[str]) -> bool:
    try:
        return not parser.parse_known_args(argv)[1]
    except argparse.ArgumentError:
        return False


@pytest.mark.parametrize("release", RELEASES)
def test_for_every_sort_of_option_the_check_agrees_with_argparse(release: str) -> None:
    sorts = {
        json.dumps([entry.get(key) for key in ("kind", "type", "nargs", "choices")]): entry
        for entry in options(release)
        # Their text is stricter than their parser, which takes any; or their numbers have suffixes.
        if entry["dest"] not in sglang_options.JSON_OPTIONS and entry.get("type") != "human_readable_int"
    }
    assert len(sorts) > 20
    for entry in sorts.values():
        name, parser = entry["names"][0].lstrip("-"), parser_of(entry)
        # A list that may be empty is written as [], and true is refused, though its words are the same.
        for value in [*(VALUES[1:] if entry.get("nargs") == "*" else VALUES), *entry.get("choices", [])]:
            assert (check(release, {name: value}) == []) == takes(parser, words({name: value})), (name, value)


# What arguments become


@pytest.mark.parametrize("path", RESOLVED, ids=lambda path: path.stem)
def test_destinations_are_what_the_releases_own_parser_says(path: Path) -> None:
    recorded = load(path)
    given = {name: value for name, value in recorded["given"].items() if name != "model_path"}
    assert given and destinations(recorded["args"], load(path.parents[1] / "options.json")) == given


@pytest.mark.parametrize(
    ("args", "result"),
    [
        # As a variable on the command line of Ansible has them.
        ({"tp-size": "8", "mem-fraction-static": "0.9"}, {"tp_size": 8, "mem_fraction_static": 0.9}),
        ({"context-length": "128k"}, {"context_length": 128000}),
        ({"context-length": "25.6k"}, {"context_length": 25600}),
        ({"context-length": "64Ki"}, {"context_length": 65536}),
        ({"context-length": 4096}, {"context_length": 4096}),
        ({"tensor-parallel-size": 8, "tp-size": 4}, {"tp_size": 4}),
        ({"enable-metrics": False, "quantization": None}, {}),
        # Refused by the check; nothing else is to stumble over them.
        ({"tp-size": "eight", "mem-fraction-static": "high", "enable-metrics": 1, "unheard-of": 1}, {}),
    ],
)
def test_destinations_hold_what_the_parser_would_read(args: dict[str, Any], result: dict[str, Any]) -> None:
    told = destinations(args, options("0.5.23"))
    assert told == result and [type(value) for value in told.values()] == [type(value) for value in result.values()]


def test_an_old_switch_whose_value_is_not_on_record_sets_nothing_known() -> None:
    """The parser would write a word of its own, such as `disabled`, into another option."""
    assert destinations({"disable-piecewise-cuda-graph": True}, options("0.5.15.post1")) == {}


@pytest.mark.parametrize(
    ("release", "names"),
    [
        ("0.5.9", []),
        ("0.5.15.post1", ["cuda-graph-max-bs", "nsa-decode-backend", "disable-cuda-graph"]),
        ("0.5.23", ["disable-cuda-graph"]),
    ],
)
def test_deprecated_options_are_those_that_a_release_calls_so(release: str, names: list[str]) -> None:
    args = {"cuda-graph-max-bs": 64, "nsa-decode-backend": "trtllm", "disable-cuda-graph": True, "page-size": 64}
    assert deprecated(args, options(release)) == names
