"""User rules: what they mean, and what is said when they cannot be read."""

import itertools
import operator
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.cases import each_case

from astra.errors import InputError
from astra.strategy.rule_language import (
    MAX_TOKENS,
    CompiledRule,
    Variable,
    VariableColumn,
    compile_rule,
    parse_rules,
    read_rules,
)

Table = dict[str, VariableColumn]

GPUS = ("H100-80GB-SXM", "A100-80GB-SXM", "a b")
OTHER_GPUS = ("spare", "a100-80gb-sxm", "H100-80GB-SXM")
RECOMPUTE = ("selective", "full")
ALIASES = {"h100": "H100-80GB-SXM", "b200": "B200-180GB-SXM"}


def variable(name: str, kind: Any, words: tuple[str, ...] | None = None, **more: Any) -> Variable:
    def read(plans: Table) -> VariableColumn:
        return plans[name]

    return Variable(name=name, kind=kind, words=words, read=read, meaning=name, **more)


VARIABLES = {
    "tp": variable("tp", "number"),
    "tensor_model_parallel_size": variable("tp", "number"),
    "pp": variable("pp", "number"),
    "micro_batch": variable("micro_batch", "number"),
    "fraction": variable("fraction", "number"),
    "replicas": variable("replicas", "number"),
    "gpu": variable("gpu", "word", GPUS, alias=lambda word: ALIASES.get(word.lower())),
    "next_gpu": variable("next_gpu", "word", OTHER_GPUS),
    "recompute_granularity": variable("recompute_granularity", "word", RECOMPUTE),
    "use_flash_attn": variable("use_flash_attn", "flag"),
    "sequence_parallel": variable("sequence_parallel", "flag"),
}


def rule(text: str) -> CompiledRule:
    return compile_rule(text, VARIABLES, "rules.txt")


def numbers(*values: Any) -> VariableColumn:
    """One value per plan; None is unset."""
    return VariableColumn(
        np.array([0 if value is None else value for value in values]),
        is_set=np.array([value is not None for value in values]),
    )


def words(vocabulary: tuple[str, ...], *values: str | None) -> VariableColumn:
    return numbers(*(None if value is None else vocabulary.index(value) for value in values))


def flags(*values: bool) -> VariableColumn:
    return VariableColumn(np.array(values, bool))


def holds(text: str, **columns: VariableColumn) -> list[bool]:
    found = rule(text).holds(columns)
    assert found.dtype == np.bool_
    assert found.ndim == 1
    result: list[bool] = found.tolist()
    return result


# What rules mean


def test_the_first_example_of_the_paper() -> None:
    assert holds("$tensor_model_parallel_size > 8", tp=numbers(4, 8, 16)) == [False, False, True]


def test_the_second_example_of_the_paper() -> None:
    dropped = holds(
        "$use_flash_attn != None && $recompute_granularity == selective",
        use_flash_attn=flags(True, True, True, False),
        recompute_granularity=words(RECOMPUTE, "selective", "full", None, "selective"),
    )
    assert dropped == [True, False, False, False]


@each_case(
    "text, expected",
    [
        ("$pp == 4", [True, False, False]),
        ("$pp != 4", [False, True, True]),
        ("$pp < 100", [True, False, True]),
        ("$pp >= 0", [True, False, True]),
        ("$pp == None", [False, True, False]),
        ("$pp != None", [True, False, True]),
        ("None == $pp", [False, True, False]),
        ("$pp + 1 == None", [False, True, False]),
        ("$pp + 1 != 5", [False, True, True]),
        ("$pp == $micro_batch", [False, True, True]),
        ("$pp != $micro_batch", [True, False, False]),
        ("-$pp < -3.5", [True, False, False]),
    ],
)
def test_none_is_a_value_that_is_not_set(text: str, expected: list[bool]) -> None:
    assert holds(text, pp=numbers(4, None, 2), micro_batch=numbers(None, None, 2)) == expected


@each_case(
    "text",
    [
        "$sequence_parallel",
        "$sequence_parallel == true",
        "$sequence_parallel == True",
        "true == $sequence_parallel",
        "$sequence_parallel != false",
        "$sequence_parallel != None",
        "!($sequence_parallel == None)",
        "!!$sequence_parallel",
        "!$sequence_parallel == false",
        "$sequence_parallel != $use_flash_attn",
    ],
)
def test_a_flag_is_on_or_off_and_off_is_unset(text: str) -> None:
    columns = {
        "sequence_parallel": VariableColumn(
            np.array([1, 0, 1]), is_set=np.array([True, True, False])
        ),
        "use_flash_attn": flags(False, False, False),
    }
    assert holds(text, **columns) == [True, False, False]


def test_a_segments_value_matches_if_any_segment_in_use_does() -> None:
    tp = VariableColumn(
        np.array([[4, 2, 1], [8, 8, 1]]), exists=np.array([[True, True, True], [True, False, True]])
    )
    assert holds("$tp == 8", tp=tp) == [True, False, False]
    assert holds("$tp != 4", tp=tp) == [True, True, True]
    assert holds("!($tp == 8)", tp=tp) == [False, True, True]
    assert holds("$tp == None", tp=tp) == [False, False, False]
    assert holds("$tp * $pp == 8", tp=tp, pp=numbers(2, 4, 1)) == [True, True, False]


def test_variables_of_one_comparison_are_taken_segment_by_segment() -> None:
    columns = {
        "tp": VariableColumn(np.array([[4, 8], [8, 4]])),
        "gpu": VariableColumn(np.array([[0, 1], [1, 1]])),
        "replicas": VariableColumn(np.array([[4, 1], [2, 1]])),
    }
    assert holds("$tp * $replicas == 8", **columns) == [False, True]
    assert holds("$tp == 8 && $gpu == H100-80GB-SXM", **columns) == [True, False]


@each_case("comparison", ["==", "!=", "<", "<=", ">", ">="])
@each_case("side", ["1 / $pp", "1 % $pp", "0 / $pp", "1 / (1 / $pp)", "-(5 % $pp)"])
def test_division_by_zero_makes_a_comparison_false(comparison: str, side: str) -> None:
    columns = {"pp": numbers(0, 0), "micro_batch": numbers(7, None)}
    assert holds(f"{side} {comparison} 0", **columns) == [False, False]
    assert holds(f"$micro_batch {comparison} {side}", **columns) == [False, False]
    assert holds(f"{side} {comparison} $micro_batch", **columns) == [False, False]


def test_words_match_whatever_their_capitals_and_by_alias() -> None:
    gpu = words(GPUS, "H100-80GB-SXM", "A100-80GB-SXM", "a b")
    assert holds("$gpu == a100-80gb-sxm", gpu=gpu) == [False, True, False]
    assert holds("$gpu == H100", gpu=gpu) == [True, False, False]
    assert holds("$gpu != b200", gpu=gpu) == [True, True, True]
    assert holds("$gpu == 'A B' || \"h100\" == $gpu", gpu=gpu) == [True, False, True]


def test_words_of_two_vocabularies_compare_by_word() -> None:
    gpu = words(GPUS, "A100-80GB-SXM", "H100-80GB-SXM", "a b", None, None)
    other = words(OTHER_GPUS, "a100-80gb-sxm", "spare", "spare", "spare", None)
    same = [True, False, False, False, True]
    assert holds("$gpu == $next_gpu", gpu=gpu, next_gpu=other) == same
    assert holds("$next_gpu == $gpu", gpu=gpu, next_gpu=other) == same
    assert holds("$next_gpu != $gpu", gpu=gpu, next_gpu=other) == [not it for it in same]


@each_case(
    "text, same",
    [
        ("$tp == 1 || $pp == 1 && $tp == 2", "$tp == 1 || ($pp == 1 && $tp == 2)"),
        ("$tp == 1 && $pp == 1 || $tp == 2", "($tp == 1 && $pp == 1) || $tp == 2"),
        ("!$tp == 1 && $pp == 1", "(!($tp == 1)) && $pp == 1"),
        ("!$tp == 1 || $pp == 1", "(!($tp == 1)) || $pp == 1"),
        ("$tp + 2 * $pp == 5", "($tp + (2 * $pp)) == 5"),
        ("$tp - $pp - 1 == 0", "(($tp - $pp) - 1) == 0"),
        ("$tp / $pp * 2 == 4", "(($tp / $pp) * 2) == 4"),
        ("-$tp * -2 == 4", "((-$tp) * (-2)) == 4"),
        ("-$tp % 3 == 1", "((-$tp) % 3) == 1"),
        ("$tp-1==$pp", "($tp - 1) == $pp"),
        ("1 - -$tp > 3", "(1 - (-$tp)) > 3"),
    ],
)
def test_precedence(text: str, same: str) -> None:
    grid = np.array(list(itertools.product(range(5), range(5)))).T
    columns = {"tp": VariableColumn(grid[0]), "pp": VariableColumn(grid[1])}
    found = holds(text, **columns)
    assert found == holds(same, **columns)
    assert any(found)
    assert not all(found)


def test_numbers_compare_across_kinds_and_any_size() -> None:
    tp = VariableColumn(np.array([1, 3, 127], np.int8))
    assert holds("$tp > 2.5", tp=tp) == [False, True, True]
    assert holds("$tp < 300", tp=tp) == [True, True, True]
    assert holds("$tp * $tp * 1e9 > 1e13", tp=tp) == [False, False, True]
    assert holds("$tp < 99999999999999999999999999", tp=tp) == [True, True, True]
    assert holds("$tp * 1e308 * 10 > 1", tp=tp) == [True, True, True]
    assert holds(".5 * $tp == 1.5", tp=tp) == [False, True, False]


def test_an_empty_table_gives_an_empty_answer() -> None:
    assert holds("$tp == 1", tp=VariableColumn(np.zeros((2, 0), np.int64))) == []


# The same by a plain interpreter, one row at a time

COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
LEVEL = {"||": 1, "&&": 2, "!": 3, "cmp": 4, "+": 5, "-": 5, "*": 6, "/": 6, "%": 6, "neg": 7}
UNDEFINED = object()
ROWS, SEGMENTS, PIPELINES = 5, 2, 2

number_leaves = st.one_of(
    st.sampled_from(["$tp", "$pp", "$micro_batch", "$fraction", "$replicas"]),
    st.sampled_from(["0", "1", "2", "4", "2.5", "1e1"]),
)
arithmetic = st.recursive(
    number_leaves,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from("+-*/%"), inner, inner), st.tuples(st.just("neg"), inner)
    ),
    max_leaves=4,
)
equal = st.sampled_from(["==", "!="])
number_words = st.sampled_from(["$tp", "$pp", "$micro_batch", "$fraction", "$replicas"])
word_sides = st.sampled_from(["$gpu", "$next_gpu", "H100-80GB-SXM", "None"])
flag_names = st.sampled_from(["$sequence_parallel", "$use_flash_attn"])
comparisons = st.one_of(
    st.tuples(st.just("cmp"), st.sampled_from(list(COMPARE)), number_words, arithmetic),
    st.tuples(st.just("cmp"), st.sampled_from(list(COMPARE)), arithmetic, number_words),
    st.tuples(st.just("cmp"), equal, number_words, st.just("None")),
    st.tuples(st.just("cmp"), equal, st.just("$gpu"), word_sides),
    st.tuples(st.just("cmp"), equal, word_sides, st.just("$next_gpu")),
    st.tuples(
        st.just("cmp"),
        equal,
        st.just("$recompute_granularity"),
        st.sampled_from(["full", "selective", "None"]),
    ),
    st.tuples(st.just("cmp"), equal, flag_names, st.sampled_from(["true", "false", "None"])),
    st.tuples(st.just("cmp"), equal, flag_names, flag_names),
    flag_names,
)
conditions = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["&&", "||"]), inner, inner), st.tuples(st.just("!"), inner)
    ),
    max_leaves=6,
)


def written(tree: Any, level: int = 0) -> str:
    """The tree as a rule, with brackets only where they are needed."""
    if isinstance(tree, str):
        return tree
    own = LEVEL[tree[0]]
    if tree[0] == "cmp":
        text = f"{written(tree[2], own + 1)} {tree[1]} {written(tree[3], own + 1)}"
    elif tree[0] in ("!", "neg"):
        text = f"{'!' if tree[0] == '!' else '-'}{written(tree[1], own)}"
    else:
        text = f"{written(tree[1], own)} {tree[0]} {written(tree[2], own + 1)}"
    return f"({text})" if own < level else text


def variables_in(tree: Any) -> set[str]:
    if isinstance(tree, str):
        return {tree[1:]} if tree.startswith("$") else set()
    return set().union(*(variables_in(part) for part in tree[1:]))


def entry(table: Table, name: str, place: tuple[int, int, int]) -> tuple[Any, bool]:
    """The value of a variable at (pipeline, segment, plan), and whether it exists."""
    column = table[name]
    index = place[3 - column.values.ndim :]
    exists = column.exists is None or bool(column.exists[index])
    value: Any = column.values[index].item()
    is_set = column.is_set is None or bool(column.is_set[index])
    known = VARIABLES[name]
    if known.kind == "flag":
        return bool(value) and is_set, exists
    if known.words is not None and is_set:
        return known.words[value % len(known.words)].lower(), exists
    return (value if is_set else None), exists


def value_of(tree: Any, table: Table, place: tuple[int, int, int]) -> Any:
    if isinstance(tree, str):
        if tree.startswith("$"):
            return entry(table, tree[1:], place)[0]
        constants = {"None": None, "true": True, "false": False}
        if tree in constants:
            return constants[tree]
        return float(tree) if tree[0].isdigit() else tree.lower()
    parts = [value_of(part, table, place) for part in tree[1:]]
    if None in parts:
        return None
    if UNDEFINED in parts:
        return UNDEFINED
    if tree[0] == "neg":
        return -parts[0]
    if tree[0] in "/%" and parts[1] == 0:
        return UNDEFINED
    apply = {"+": operator.add, "-": operator.sub, "*": operator.mul}
    apply |= {"/": operator.truediv, "%": operator.mod}
    return apply[tree[0]](float(parts[0]), float(parts[1]))


def compares(tree: Any, table: Table, place: tuple[int, int, int]) -> bool:
    _, sign, left, right = tree
    a, b = value_of(left, table, place), value_of(right, table, place)
    if UNDEFINED in (a, b):
        return False
    if isinstance(a, bool) or isinstance(b, bool):
        a, b = bool(a), bool(b)
    if (a is None or b is None) and sign not in ("==", "!="):
        return False
    return COMPARE[sign](a, b)


def interpreted(tree: Any, table: Table, plan: int) -> bool:
    if tree[0] == "!":
        return not interpreted(tree[1], table, plan)
    if tree[0] == "&&":
        return interpreted(tree[1], table, plan) and interpreted(tree[2], table, plan)
    if tree[0] == "||":
        return interpreted(tree[1], table, plan) or interpreted(tree[2], table, plan)
    comparison = ("cmp", "==", tree, "true") if isinstance(tree, str) else tree
    return any(
        compares(comparison, table, (pipeline, segment, plan))
        for pipeline in range(PIPELINES)
        for segment in range(SEGMENTS)
        if all(
            entry(table, name, (pipeline, segment, plan))[1] for name in variables_in(comparison)
        )
    )


@st.composite
def tables(draw: st.DrawFn) -> Table:
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def mask(shape: tuple[int, ...]) -> Any:
        return random.random(shape) < 0.7 if random.random() < 0.7 else None

    def column(choices: list[Any], *front: int) -> VariableColumn:
        shape = (*front, ROWS)
        exists = mask(shape) if front else None
        return VariableColumn(random.choice(choices, shape), mask(shape), exists)

    return {
        "tp": column([1, 2, 4, 8], SEGMENTS),
        "pp": column([0, 1, 2, 4]),
        "micro_batch": column([0, 1, 2]),
        "fraction": column([0.0, 0.5, 2.5], SEGMENTS),
        "replicas": column([1, 2, 5], PIPELINES, SEGMENTS),
        "gpu": column([0, 1, 2], SEGMENTS),
        "next_gpu": column([0, 1, 2], PIPELINES, SEGMENTS),
        "recompute_granularity": column([0, 1], SEGMENTS),
        "use_flash_attn": column([0, 1]),
        "sequence_parallel": column([False, True], SEGMENTS),
    }


@pytest.mark.slow
@given(conditions, tables())
@settings(max_examples=300, deadline=None)
def test_columns_agree_with_a_plain_interpreter(tree: Any, table: Table) -> None:
    text = written(tree)
    found = rule(text).holds(table)
    expected = [interpreted(tree, table, plan) for plan in range(ROWS)]
    assert found.tolist() == expected, text


@given(conditions, tables())
@settings(max_examples=50, deadline=None)
def test_a_rule_never_changes_the_table(tree: Any, table: Table) -> None:
    compiled = rule(written(tree))
    before = {name: column.values.copy() for name, column in table.items()}
    compiled.holds(table)[:] = True
    assert all(np.array_equal(table[name].values, before[name]) for name in table)


# What is said of rules that cannot be read

PIECES = [
    *("$tp", "$pp", "$gpu", "$sequence_parallel", "$nope", "tp", "selective", "8", "0.5", "1e9"),
    *("None", "true", "&&", "||", "!", "==", "!=", "<", ">=", "+", "-", "*", "/", "%", "(", ")"),
    *("&", "=", "and", "not", ":", '"a b"', "'", "#", "\\", "\n", " ", "80GB", "$", "\u2264", "\0"),
]
some_text = st.one_of(
    st.text(max_size=60),
    st.lists(st.sampled_from(PIECES), max_size=20).map(" ".join),
    st.lists(st.sampled_from(PIECES), max_size=20).map("".join),
)


@pytest.mark.slow
@given(some_text)
@settings(max_examples=500, deadline=None)
def test_any_text_is_a_rule_or_an_input_error(text: str) -> None:
    table = {name: VariableColumn(np.array([1, 0])) for name in VARIABLES}
    try:
        rules = parse_rules(text, VARIABLES, "rules.txt")
    except InputError as error:
        message = str(error)
        assert message.startswith("rules.txt:")
        assert message.isprintable()
        assert len(message) < 600
    else:
        assert all(each.holds(table).shape == (2,) for each in rules)


HOSTILE = {
    "$tensor_model_paralel_size > 8": ":1:1:|no variable|Did you mean $tensor_model_parallel_size",
    "$tensor-model-parallel-size > 8": "Did you mean $tensor_model_parallel_size",
    "$TP > 8": "no variable $TP|$tp",
    "$zzz > 8": "no variable $zzz|There are: $fraction, $gpu",
    "$tp > 8 & $pp > 8": ":1:9:|& is not|Try &&",
    "$tp > 8 | $pp > 8": "Try ||",
    "$tp = 8": ":1:5:|Try ==",
    "$tp === 8": "Try ==.",
    "$tp <> 8": "Try !=",
    "$tp => 8": "Try >=",
    "$tp ≤ 8": "Try <=",
    "$tp > 8 and $pp > 8": ":1:9:|and is not an operator|Try &&",
    "$tp > 8 OR $pp > 8": "Try ||",
    "not $tp > 8": "Try !",
    "not ($tp > 8)": "Try !",
    "$pp > 8 && not $sequence_parallel": "Try !",
    "$gpu is h100": "Try ==",
    "$gpu in h100": "no lists",
    "$gpu == h100, a100": "no lists",
    "tp > 8": ":1:1:|has no variable|Try $tp",
    "tp > $pp": "tp is a word; $pp is a number|Try $tp.",
    "--tensor-model-parallel-size > $pp": "arithmetic needs numbers|$tensor_model_parallel_size",
    "($tp > 8": ":1:1:|never closed",
    "$tp > 8)": ":1:8:|closes no bracket",
    ")": "closes no bracket",
    "()": ") stands after (",
    "$tp > [8]": "Brackets are round",
    "${tp} > 8": "Try $tp",
    "$ tp > 8": "nothing between",
    "$gpu == 80GB": ':1:9:|80GB is a number followed by letters|"80GB"',
    "$tp > 0x10": "number followed by letters",
    "$tp > 1.2.3": "number followed by letters",
    "$tp > 1e999": "too large",
    f"$tp > {'9' * 9000}": "too large",
    "$tp == selective": ":1:8:|$tp is a number; selective is a word|with a number",
    '$tp == "8"': "Leave out the quotes",
    "$tp == none": "None",
    "$tp == true": "$tp is a number; true is a flag",
    "$gpu == 4": "$gpu is a word; 4 is a number|H100-80GB-SXM",
    "$sequence_parallel == 1": "true or false",
    "$sequence_parallel == on": "$sequence_parallel is a flag; on is a word|true or false",
    "$recompute_granularity == selectve": "never selectve|Did you mean selective",
    "$recompute_granularity == xyz": "It can be selective or full",
    "$recompute_granularity == none": "A value that is not set is None",
    "$gpu == tp": "Try $tp",
    "$gpu < h100": "$gpu is a word; < orders numbers only",
    "$tp < None": "None is no value; < orders numbers only",
    "$sequence_parallel > false": "orders numbers only",
    "$gpu + 1 == 2": "$gpu is a word; arithmetic needs numbers",
    "$tp + None == 2": "arithmetic needs numbers",
    "($tp > 8) + 1 > 2": "a condition cannot be compared",
    "($tp > 8) == ($pp > 8)": "a condition cannot be compared",
    "$tp == !$pp": "! stands before a whole condition",
    "1 < $tp < 8": ":1:9:|cannot be chained|Try 1 < $tp && $tp < ...",
    "true": "would drop all or none",
    "8": "would drop all or none",
    "None": "would drop all or none",
    "selective": "would drop all or none",
    "1 == 1": "has no variable",
    "$tp > 8 || true": ":1:12:|has no variable",
    "$tp > 8 || 1 < 2": "this comparison has no variable",
    "$tp": "$tp is a number, not a condition",
    "$gpu && $tp > 8": "$gpu is a word, not a condition",
    "!($tp + 1)": "the arithmetic is a number, not a condition",
    "$tp >": ":1:6:|ends after >",
    "&& $tp > 8": "&& stands where",
    "$tp > > 8": "> stands after >",
    "$tp 8": "an operator is missing between $tp and 8",
    "$gpu == a b": 'put it in quotes: "a b"',
    '$gpu == "a b': "quotes are not closed",
    "$gpu == “a b”": "plain quotes",
    "$tp ** 2 > 8": "no powers",
    "$tp > 8 // big": "begins with #",
    "$tp > 8; $pp > 8": "one rule a line",
    "$tp \\ > 8": "last character of its line",
    "$tp > \\": "no further line",
    "my rule: $tp > 8": ":1:8:|name of a rule",
    "$tp: 8": "name of a rule",
    "big:": "big says nothing",
    "$tp > 8\x00": "\\x00 is not part",
    "": "no rule",
    "# nothing": "no rule",
    "$tp > 8\n$pp > 8": "2 rules",
    "$tp > 8 && \\\n  $nope > 1": "rules.txt:2:3:|'$nope > 1'",
    "(" * 4000 + "$tp > 8" + ")" * 4000: ":1:101:|more than 100 deep",
    "!" * 5000 + "$sequence_parallel": "more than 100 deep",
    "-" * 5000 + "$tp > 8": "more than 100 deep",
    "$tp > 8 || $tp - (" * 1000: "more than 100 deep",
    "(" * 200_000: "longer than 10,000",
    " || ".join(["$tp > 8"] * 10_000): "longer than 10,000|any of them is true",
    "#" * (1 << 20) + "#": "larger than 1 MiB",
    "$tp > 1\n" * 1001: ":1001:1:|more than 1,000 rules",
    "a: $tp > 1\na: $tp > 2": ":2:1:|line 1 already has a rule named a",
    "rule-2: $tp > 1\n$tp > 2": "named rule-2",
    "a" * 101 + ": $tp > 1": "at most 100 characters",
}


@each_case("text, parts", HOSTILE.items())
def test_an_error_says_where_what_and_what_to_try(text: str, parts: str) -> None:
    start = time.perf_counter()
    with pytest.raises(InputError) as caught:
        rule(text)
    message = str(caught.value)
    assert message.startswith("rules.txt:")
    for part in parts.replace("||", "\0").split("|"):
        assert part.replace("\0", "||") in message
    assert len(message) < 400
    assert time.perf_counter() - start < 2


def test_a_long_line_is_quoted_around_the_mistake() -> None:
    with pytest.raises(InputError) as caught:
        rule("$tp > 8 || " * 50 + "$tp = 8 || " + "$tp > 8 || " * 50 + "$tp > 8")
    assert ":1:555:" in str(caught.value)
    assert "$tp = 8" in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("sign", ["||", "&&"])
def test_chains_may_be_thousands_long(sign: str) -> None:
    terms = MAX_TOKENS // 4
    text = f" {sign} ".join(["$tp > 8"] * terms)
    assert holds(text, tp=numbers(4, 16)) == [False, True]
    assert holds(" + ".join(["$tp"] * 4000) + " > 20000", tp=numbers(4, 16)) == [False, True]


def test_brackets_may_be_many_deep() -> None:
    text = "(" * 90 + "$tp > 8" + ")" * 90
    assert holds(text, tp=numbers(4, 16)) == [False, True]
    assert holds("!" * 90 + "$sequence_parallel", sequence_parallel=flags(True)) == [True]


# Files


def test_a_file_has_names_comments_and_continued_lines(tmp_path: Path) -> None:
    path = tmp_path / "rules.txt"
    path.write_bytes(
        b"\xef\xbb\xbf# what we never want \\\r\n"
        b"\r\n"
        b"$tp > 8   # too wide\r\n"
        b"no-a100: $gpu == A100-80GB-SXM \\  \r\n"
        b"    && $tp > 4  # both\r\n"
        b'odd: $gpu == "a b"  # a "quoted # sign"'
    )
    rules = read_rules(path, VARIABLES)
    assert [each.name for each in rules] == ["rule-3", "no-a100", "odd"]
    assert [each.text for each in rules] == [
        "$tp > 8",
        "$gpu == A100-80GB-SXM && $tp > 4",
        '$gpu == "a b"',
    ]
    assert rules[1].where == f"{path}:4"
    assert set(rules[1].variables) == {"gpu", "tp"}


def test_a_file_of_comments_has_no_rules(tmp_path: Path) -> None:
    path = tmp_path / "rules.txt"
    path.write_text("# none yet\n\n")
    assert read_rules(path, VARIABLES) == ()


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_rules(tmp_path / "rules.txt", VARIABLES)


def test_a_million_rows_take_milliseconds() -> None:
    random = np.random.default_rng(0)
    columns = {
        "tp": VariableColumn(random.integers(1, 9, 1_000_000)),
        "pp": VariableColumn(random.integers(1, 9, 1_000_000)),
        "gpu": VariableColumn(random.integers(0, 3, 1_000_000)),
    }
    compiled = rule("$tp * $pp > 32 && $gpu == h100 || $tp > 4")
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        compiled.holds(columns)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.05
