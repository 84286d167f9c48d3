"""The software stacks that are known, or one stack's factors and where they come from.

A stack is a framework as it runs on real GPUs: what it adds to kernels measured alone."""

import argparse

from astra.cli.printing import print_note, print_parts, write_json

EXAMPLES = """\
examples:
  astra stacks
  astra stacks megatron
  astra predict llama-3-8b --gpus h100:8 --global-batch 64 --runtime fsdp --stack torch-eager"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="one stack; without it, all")


def run(options: argparse.Namespace) -> int:
    from astra.hardware.stack import find_stack, release_note, stack_names
    from astra.report.stacks import stack_json, stack_page, stacks_table
    from astra.report.words import words

    if options.name is not None:
        stack = find_stack(options.name)
        unknown = release_note(stack)
        if unknown:
            print_note(words(unknown))
        if options.json:
            write_json(stack_json(stack))
        else:
            print_parts(stack_page(stack))
        return 0
    stacks = [find_stack(name) for name in stack_names()]
    if options.json:
        write_json({"stacks": [stack_json(stack) for stack in stacks]})
    else:
        print_parts(stacks_table(stacks))
    return 0
