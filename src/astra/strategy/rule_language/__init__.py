"""The language of user rules: a strategy that makes a rule true is dropped.

The notation is that of arXiv 2502.13480. A file holds one rule a line; `#` begins a comment,
a `\\` at the end of a line continues the rule on the next one, and a rule may have a name:

    $tensor_model_parallel_size > 8
    no-flash-selective: $use_flash_attn != None && $recompute_granularity == selective
    $tp * $pp > 64 || !($micro_batch == 1)    # brackets, arithmetic

    rule       = [ NAME ":" ] or
    or         = and { "||" and }
    and        = not { "&&" not }
    not        = { "!" } comparison
    comparison = sum [ ( "==" | "!=" | "<" | "<=" | ">" | ">=" ) sum ]
    sum        = product { ( "+" | "-" ) product }
    product    = unary { ( "*" | "/" | "%" ) unary }
    unary      = { "-" } operand
    operand    = NUMBER | "None" | "true" | "false" | WORD | STRING | VARIABLE | "(" or ")"

    NUMBER     = 8, 0.5, 1e9
    WORD, NAME = letters, digits and "_", with "-" or "." inside; a letter first: A100-80GB-SXM
    STRING     = any text in "double" or 'single' quotes; the same as a word
    VARIABLE   = "$" and a name

What a rule means:

- A variable is a number, a word of a known vocabulary, or a flag. Numbers compare with numbers,
  words with words (capitals do not matter) by `==` and `!=`, flags with `true`, `false` and flags.
- `None` is a value that is not set. `$x == None` asks just that. An unset value equals only
  another unset one; every `<`, `<=`, `>`, `>=` with it is false. Arithmetic on it is unset.
- A flag alone is a condition. One that is off is an option nobody gave, so for flags
  `!= None` means on and `== None` means off.
- A variable may have one value per segment. A comparison is true if it is for any segment in
  use; variables of one comparison are taken segment by segment. So `$tp <= 4` says "some
  segment has at most 4", and `!($tp > 4)` says "every segment has".
- `/` divides without rounding; `%` has the sign of its right side. Dividing by zero leaves no
  value, and every comparison with that, even `!=`, is false.

Text is cut into `tokens`, parsed by `syntax` into a small tree, and checked and turned by `compile`
into operations on `columns`; a rule never runs as Python.
"""

from collections.abc import Mapping
from pathlib import Path

from astra.errors import InputError, shorten
from astra.files import read_text
from astra.strategy.rule_language.columns import Variable, VariableColumn
from astra.strategy.rule_language.compile import CompiledRule, compile_tokens
from astra.strategy.rule_language.tokens import MAX_TOKENS, RuleText, rules_as_tokens

__all__ = [
    "MAX_TOKENS",
    "CompiledRule",
    "Variable",
    "VariableColumn",
    "compile_rule",
    "parse_rules",
    "read_rules",
]

MAX_BYTES = 1 << 20
MAX_RULES = 1_000


def read_rules(path: Path, variables: Mapping[str, Variable]) -> tuple[CompiledRule, ...]:
    """The rules of a file, in its order."""
    return parse_rules(read_text(path), variables, str(path))


def compile_rule(text: str, variables: Mapping[str, Variable], where: str) -> CompiledRule:
    """The one rule that `text` holds."""
    rules = parse_rules(text, variables, where)
    if len(rules) != 1:
        found = f"{len(rules)} rules" if rules else "no rule"
        raise InputError(f"{where}: {shorten(text)}: one rule was expected, {found} found.")
    return rules[0]


def parse_rules(
    text: str, variables: Mapping[str, Variable], where: str
) -> tuple[CompiledRule, ...]:
    """All rules of a text; errors call it `where`."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise InputError(f"{where}: larger than {MAX_BYTES >> 20} MiB. Is this a file of rules?")
    source = RuleText(where, tuple(text.removeprefix("\ufeff").split("\n")))
    rules: list[CompiledRule] = []
    lines: dict[str, int] = {}  # of the rule with this name
    for tokens in rules_as_tokens(source):
        first = tokens[0]
        if len(rules) == MAX_RULES:
            raise source.error(first, f"more than {MAX_RULES:,} rules. Join some with ||.")
        rule = compile_tokens(tokens, variables, source)
        if rule.name in lines:
            raise source.error(
                first,
                f"line {lines[rule.name]} already has a rule named {rule.name}. Try another name.",
            )
        rules.append(rule)
        lines[rule.name] = first.line
    return tuple(rules)
