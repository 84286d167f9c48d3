"""Megatron-LM's layout string as it is read: what it holds, and what is refused as there."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.cases import each_case

from astra.errors import InputError
from astra.strategy.pipeline_layout import parse_pipeline_layout


@each_case(
    "layout, pp, chunks, predicting",
    [
        ("Et*3|(tt|)*2m|L", 5, (3, 2, 2, 0, 0), 1),
        ("E|t|ttt|L", 2, (0, 1, 3, 0), 0),
        ("Ett,|(t|)*3tL", 5, (2, 1, 1, 1, 1), 0),
        ("Et*4|(t*4|)*14tmL", 16, (*(4,) * 15, 1), 1),
        ("Et*3|(tt|)*6L", 4, (3, 2, 2, 2, 2, 2, 2, 0), 0),
        ("Et|*3tL", 4, (1, 0, 0, 1), 0),
        ("Et*0|tL", 2, (0, 1), 0),
        ("(E)*1(t|)*3(L)*1", 4, (1, 1, 1, 0), 0),
        ("EtmmL", 1, (1,), 2),
    ],
)
def test_repeats_are_written_out(
    layout: str, pp: int, chunks: tuple[int, ...], predicting: int
) -> None:
    assert parse_pipeline_layout(layout, pp, "layout") == (chunks, predicting)


@each_case(
    "layout, said",
    [
        ("El|tL", "layers are E, t, m and L"),  # no layer, and no loss
        ("Et|tl", "layers are E, t, m and L"),
        ("Et| tL", "layers are E, t, m and L"),
        ("(Et|tL)", "layers are E, t, m and L"),
        ("E((t|)*2t)*2L", "layers are E, t, m and L"),
        ("Et*2*2|L", "layers are E, t, m and L"),
        ("Et*|L", "layers are E, t, m and L"),
        ("", "the only E"),
        ("|", "the only E"),
        ("t|tL", "the only E"),
        ("Et|t", "the only L"),
        ("Et|EtL", "the only E"),
        ("EtL|tL", "the only L"),
        ("EtL|m", "the last the only L"),
        ("Etm|tL", "no t comes after an m"),
        ("Et|m|m|L", "all m are in one stage"),
        ("Et|t|L", "3 stages, and pp 2 does not divide them"),
        ("Et|m|t*0|L", "m is in one of the last 2 stages"),
        ("Et*999999|L", "longer than any pipeline"),
        ("E" + "t*9999" * 50 + "|(tttt|)*9999L", "longer than any pipeline"),
        ("Et*" + "9" * 5000, "longer than any pipeline"),
        ("(" * 50_000, "layers are E, t, m and L"),
    ],
)
def test_what_megatron_refuses_is_refused_with_the_reason(layout: str, said: str) -> None:
    with pytest.raises(InputError, match=f"^layout .*{said}"):
        parse_pipeline_layout(layout, 2, "layout")


PARTS = {"t": 1, "t*3": 3, "tt,": 2, "|": 0, "(tt|)*2": 4, "|t*11|": 11}  # and their layers


@given(st.lists(st.sampled_from(sorted(PARTS)), min_size=1, max_size=9), st.integers(1, 4))
@settings(max_examples=300, deadline=None)
def test_layers_of_a_layout_are_counted_and_its_chunks_fill_the_stages(
    parts: list[str], pp: int
) -> None:
    text = f"E{''.join(parts)}L"
    try:
        chunks, predicting = parse_pipeline_layout(text, pp, "layout")
    except InputError as error:
        assert str(error).startswith("layout ")
        return
    assert len(chunks) % pp == 0 and predicting == 0
    assert sum(chunks) == sum(PARTS[part] for part in parts)


@given(st.text("EtmL|()*,0123 l", max_size=30), st.integers(1, 4))
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_layout_or_an_input_error(text: str, pp: int) -> None:
    with contextlib.suppress(InputError):
        parse_pipeline_layout(text, pp, "layout")
