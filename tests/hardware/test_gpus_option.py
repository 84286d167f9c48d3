"""The option --gpus: forgiving about names, strict about everything else."""

import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.cases import each_case

from astra.errors import InputError
from astra.hardware.catalogue import FOLDER
from astra.hardware.gpus_option import parse_gpus, parse_rank_blocks
from astra.report.words import all_words, words

TINY = 'memory_bytes = "24 GB"\nmemory_bytes_per_s = "1 TB/s"\nbf16_flops_per_s = 1e14\n'


def counts(text: str) -> dict[str, int]:
    return {pool.gpu.name: pool.count for pool in parse_gpus(text)[0].pools}


def test_types_and_counts_are_read_and_sorted_by_name() -> None:
    assert list(counts("h100:512, a100-80g:256").items()) == [
        ("A100-80GB-SXM", 256),
        ("H100-80GB-SXM", 512),
    ]


def test_the_order_of_types_does_not_show() -> None:
    assert parse_gpus("h100:8,l4:8")[0] == parse_gpus("l4:8,h100:8")[0]


def test_notes_say_how_names_were_read() -> None:
    (said,) = parse_gpus("h100:8,L4:8")[1]
    assert words(said) == "h100 was read as H100-80GB-SXM"


def test_a_count_that_leaves_a_node_unfilled_is_noted() -> None:
    (said,) = parse_gpus("B200:12")[1]
    assert words(said) == "12 B200 do not fill nodes of 8: plans use at most 8 of them"
    assert parse_gpus("B200:6")[1] == ()


def test_a_type_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    assert counts(f"{tmp_path}/tiny.toml:16,L4:8") == {"L4": 8, "tiny": 16}


def test_twins_under_two_names_become_one_type(tmp_path: Path) -> None:
    text = (FOLDER / "L40S.toml").read_text().replace('name = "L40S"', 'name = "Aaa"')
    (tmp_path / "twin.toml").write_text(text)
    cluster, notes = parse_gpus(f"{tmp_path}/twin.toml:8,L40S:16")
    assert [(pool.gpu.name, pool.count) for pool in cluster.pools] == [("L40S", 24)]
    assert all_words(notes) == ("Aaa has the same data as L40S: counted as 24 of the latter",)


def test_twins_that_are_too_many_together_are_refused(tmp_path: Path) -> None:
    text = (FOLDER / "L40S.toml").read_text().replace('name = "L40S"', 'name = "Aaa"')
    (tmp_path / "twin.toml").write_text(text)
    with pytest.raises(InputError, match="--gpus: L40S and Aaa are the same GPU"):
        parse_gpus(f"{tmp_path}/twin.toml:9000000,L40S:9000000")


def test_two_gpus_of_one_name_and_different_data_are_refused(tmp_path: Path) -> None:
    (tmp_path / "L4.toml").write_text(TINY)
    with pytest.raises(InputError, match="another GPU is called L4 too"):
        parse_gpus(f"L4:8,{tmp_path}/L4.toml:8")


HOSTILE = [
    ("", ["--gpus is empty", "h100:512"]),
    (" ", ["--gpus is empty"]),
    ("h100", ["entry 1 'h100'", "count is missing", "Try h100:8"]),
    ("h100:", ["entry 1 'h100:'", "count is missing", "Try h100:8"]),
    (":8", ["entry 1 ':8'", "type is missing", "TYPE:COUNT"]),
    ("8", ["entry 1 '8'", "count is missing", "TYPE:COUNT"]),
    ("h100:8,", ["entry 2", "comma too many"]),
    (",h100:8", ["entry 1", "comma too many"]),
    ("h100:8,,l4:8", ["entry 2", "comma too many"]),
    ("h100:0", ["entry 1 'h100:0'", "no GPUs", "Try h100:8".lower()]),
    ("h100:000", ["no GPUs"]),
    ("h100:-8", ["'-8'", "whole number"]),
    ("h100:8.0", ["'8.0'", "whole number"]),
    ("h100:1e3", ["'1e3'", "whole number"]),
    ("h100:eight", ["'eight'", "whole number", "Try h100:8"]),
    ("h100:٨", ["whole number"]),
    ("h100:²", ["whole number"]),
    ("h100:10000001", ["too many", "10,000,000"]),
    ("h100:" + "9" * 100_000, ["too many", "10,000,000"]),
    ("8:h100", ["swapped", "Try h100:8"]),
    ("8xh100", ["Try h100:8"]),
    ("h100=8", ["Try h100:8"]),
    ("h100x64", ["Try h100:64"]),
    ("rtx4090", ["Try rtx4090:8"]),
    ("h100:8,h100:16", ["entry 2 'h100:16'", "given twice", "h100:24"]),
    ("h100:8,H100-80GB-SXM:16", ["given twice", "H100-80GB-SXM:24"]),
    ("h101:8", ["entry 1 'h101:8'", "unknown GPU 'h101'", "Did you mean"]),
    ("zzz:8", ["unknown GPU 'zzz'", "lists all 45", "my-gpu.toml"]),
    ("x" * 100_000 + ":8", ["unknown GPU"]),
    ("./nowhere.toml:8", ["nowhere.toml", "no such file"]),
    ("/:8", ["ends in .toml"]),
    ("\0.toml:8", ["not a plain file"]),
    ("/" + "x" * 5000 + ".toml:8", ["cannot be read"]),
    ("l4:1," * 1000, ["1001 entries"]),
]


@each_case("text, said", HOSTILE)
def test_a_bad_option_is_an_error_that_quotes_the_place_and_says_what_to_try(
    text: str, said: list[str]
) -> None:
    started = time.perf_counter()
    with pytest.raises(InputError) as error:
        parse_gpus(text)
    message = str(error.value)
    assert message.startswith("--gpus") and "\n" not in message
    assert [word for word in said if word not in message] == []
    assert time.perf_counter() - started < 2


pieces = st.sampled_from(["h100", "l4", ":", ",", "8", "0", "-", " ", ".toml", "/", "\0", "A100"])


@settings(deadline=None)
@given(st.text(max_size=40) | st.lists(pieces, max_size=10).map("".join))
@example("l4:8,h100:8,A100:1")
@example("l4:8,h100:0")
def test_any_text_is_a_cluster_or_bad_input(text: str) -> None:
    try:
        cluster, _ = parse_gpus(text)
    except InputError as error:
        assert str(error).startswith("--gpus")
        return
    names = [pool.gpu.name for pool in cluster.pools]
    assert names == sorted(set(names)) and all(1 <= p.count <= 10**7 for p in cluster.pools)


def test_rank_blocks_keep_the_order_in_which_types_are_named() -> None:
    cluster, blocks, notes = parse_rank_blocks("h200:8,a100-80g:16,h200:4")
    assert blocks == (("H200-SXM", 8), ("A100-80GB-SXM", 16), ("H200-SXM", 4))
    assert [(pool.gpu.name, pool.count) for pool in cluster.pools] == [
        ("A100-80GB-SXM", 16),
        ("H200-SXM", 12),
    ]
    assert cluster == parse_gpus("a100-80g:16,h200:12")[0]
    assert len(notes) == len(set(all_words(notes)))


def test_rank_blocks_of_one_type_have_an_upper_bound() -> None:
    with pytest.raises(InputError, match="too many"):
        parse_rank_blocks("h100:9999999,h200:1,h100:9999999")
