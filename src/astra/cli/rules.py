"""What makes a plan illegal, who says so, and why; and the names for rules of your own.

The layer says who refuses a plan that breaks the rule: parser (the runtime's command line and its
validation), config (its configuration classes), layout (its pipeline layout), runtime (the running
program), ours (only Astra)."""

import argparse
from pathlib import Path

from astra.cli.options import RUNTIMES
from astra.cli.printing import print_parts, write_json
from astra.errors import InputError, did_you_mean, shorten
from astra.values import word

EXAMPLES = """\
examples:
  astra rules                          what Megatron-LM accepts
  astra rules --runtime fsdp           the same for another runtime
  astra rules tp-divides-heads         one rule in full
  astra rules --names                  the names that rules of your own may use
  astra rules my.rules                 check a file of your own rules

my.rules, one rule a line; a plan that makes one true is dropped:
  $tensor_model_parallel_size > 8
  small-tp: $tp < 4 && $gpu == h100
  $use_flash_attn != None && $recompute_granularity == selective"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME|FILE", help="one rule, or a file of rules")
    parser.add_argument("--runtime", default="megatron", metavar="NAME", help=", ".join(RUNTIMES))
    parser.add_argument("--names", action="store_true", help="the names for rules of your own")


def run(options: argparse.Namespace) -> int:
    from astra.report import rules as report
    from astra.strategy.rules.registry import rules_for

    runtime = word(options.runtime, "--runtime", RUNTIMES)
    if options.names:
        variables = report.all_variables()
        if options.json:
            write_json(report.variables_json(variables))
        else:
            print_parts(report.variables_table(variables))
        return 0
    rules = rules_for(runtime)
    if options.name is not None:
        return _one(options)
    if options.json:
        write_json(report.rules_json(rules, runtime))
    else:
        print_parts(report.rules_table(rules, runtime))
    return 0


def _one(options: argparse.Namespace) -> int:
    from astra.report import rules as report
    from astra.strategy.rules.registry import rules_for

    known = {rule.name: rule for rule in rules_for(options.runtime)}
    if options.name in known:
        rule = known[options.name]
        if options.json:
            write_json(report.rule_json(rule))
        else:
            print_parts(report.rule_page(rule))
        return 0
    if not _is_there(options.name):
        hint = did_you_mean(options.name, known, "`astra rules` lists them.")
        raise InputError(
            f"{shorten(options.name)}: neither a rule of the runtime {options.runtime} "
            f"nor a file. {hint}"
        )
    from astra.strategy.rule_language import read_rules

    user_rules = read_rules(Path(options.name), report.all_variables())
    if options.json:
        write_json(report.user_rules_json(user_rules))
    else:
        print_parts(report.user_rules_table(user_rules, options.name))
    return 0


def _is_there(name: str) -> bool:
    """Whether a file has this name; a text that cannot be a name has none."""
    try:
        return Path(name).exists()
    except OSError:  # too long
        return False
