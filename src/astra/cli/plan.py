"""The best plans for a model on GPUs: of one type the fastest of the whole space, proven; over
several types the best found.

Fewer GPUs than given are used when that is faster (1, 2, 4 inside a node, then whole nodes)."""

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from astra.cli.money import add_money_options, money_of
from astra.cli.options import (
    RUNTIMES,
    add_cluster_options,
    add_pipeline_model,
    add_plot_option,
    plot_path,
)
from astra.cli.printing import print_note, print_parts, write_json
from astra.cli.stopping import stop_requests
from astra.errors import either
from astra.search.objectives import OBJECTIVES
from astra.values import number, token_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from astra.api.answers import Answer
    from astra.cli.stopping import StopRequest
    from astra.search.result import Progress

EXAMPLES = """\
examples:
  astra plan llama-3-70b --gpus h100:512 --global-batch 1024 --seq-len 4096
  astra plan ./config.json --gpus a100-80g:64 --global-batch 512 --seq-len 8k --out result.json
  astra plan llama-3-70b --gpus h100:256,a100-80g:512 --global-batch 2048 --seq-len 4096
  astra plan llama-3-70b --gpus h100:1024,h200:1024,b200:1024 --global-batch 1024 --seq-len 4096 \\
    --tokens 1T --deadline 30d
  astra plan mixtral-8x7b --gpus h100:64 --global-batch 256 --seq-len 4096 --set tp=1,2
  astra plan llama-3-8b --gpus h100:8 --global-batch 64 --seq-len 8192 --rules my.rules --json
  astra plan llama-3-8b --gpus h100:64 --global-batch 256 --seq-len 8192 --objective energy

exit code 3: an answer without a plan: nothing fits, or the rules leave none; 130: stopped by Ctrl-C
or SIGTERM, with the best so far printed and written"""
NO_PLAN, STOPPED = 3, 130  # exit codes


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="a known name, a config.json or a small TOML"
    )
    add_cluster_options(parser)
    job = parser.add_argument_group("the job")
    job.add_argument(
        "--global-batch",
        metavar="N[,N...]",
        required=True,
        help="samples per step, or 4M-tokens; several are compared",
    )
    job.add_argument("--seq-len", metavar="N", required=True, help="tokens per sample; 8k is 8192")
    job.add_argument(
        "--precision", metavar="WORD", default="bf16", help="bf16, fp16, fp8, mxfp8 or nvfp4"
    )
    job.add_argument(
        "--runtime",
        metavar="NAME",
        help=f"{', '.join(RUNTIMES)}; default: megatron, for several GPU types flagscale beside "
        "it; any: also replicas that differ, which nobody launches yet",
    )
    job.add_argument("--stack", metavar="NAME", help="software that runs it; `astra stacks`")
    space = parser.add_argument_group("the space")
    space.add_argument(
        "--set",
        metavar="KEY=V[,V...]",
        action="append",
        default=[],
        help="narrow one dimension; may be given often",
    )
    space.add_argument("--rules", metavar="FILE", help="rules of your own; `astra rules --help`")
    space.add_argument("--max-gpus", metavar="N", help="use no more than this")
    space.add_argument(
        "--exact",
        action="store_true",
        help="several GPU types: look at ten times as much; takes minutes",
    )
    space.add_argument("--use-all", action="store_true", help="use no fewer GPUs than given")
    parser.add_argument(
        "--objective",
        metavar="WORD",
        help=_objectives_help(),
    )
    parser.add_argument("--min-tokens-per-s", metavar="X", default="0", help="with gpus")
    parser.add_argument("--all", action="store_true", help="show near-identical plans too")
    parser.add_argument("--top", metavar="K", default="10", help="plans to show; default: 10")
    parser.add_argument(
        "--memory-margin", metavar="X", default="0.05", help="memory to keep free; default: 0.05"
    )
    parser.add_argument(
        "--risk",
        metavar="WORD",
        default="normal",
        help="normal: plans that fit with 97 %%, simpler ones where they are about as fast; "
        "careful: 99 %%; none: the least simulated step; default: normal",
    )
    add_pipeline_model(parser, "what the formula of arXiv 2502.13480 says of the plans, besides")
    parser.add_argument(
        "--time-limit",
        metavar="SECONDS",
        help="for the whole command: the best so far is the answer then, as after Ctrl-C",
    )
    parser.add_argument("--out", metavar="FILE", help="keep the whole answer as JSON")
    add_plot_option(parser)
    add_money_options(parser, goals=True)


def _objectives_help() -> str:
    """`time: the fastest; money or frontier: hours against dollars, ...`."""
    words: dict[str, list[str]] = {}
    for word, row in OBJECTIVES.items():
        words.setdefault(row.about, []).append(word)
    return "; ".join(f"{either(said)}: {about}" for about, said in words.items())


def run(options: argparse.Namespace) -> int:
    from astra.api.answers import best_answer
    from astra.api.saving import out_path, save_json
    from astra.report.answer import answer_json, answer_page, batches_table

    seq_len = token_count(options.seq_len, "--seq-len")
    out = None if options.out is None else out_path(options.out, "--out")
    picture = plot_path(options)
    batches = [_batch(text, seq_len) for text in options.global_batch.split(",")]
    with stop_requests() as request:
        answers = _answers(options, list(dict.fromkeys(batches)), seq_len, request)
    chosen = best_answer(answers)
    if out is not None:
        save_json(answer_json(chosen, answers), out)
    if picture is not None:
        _draw(picture, chosen)
    if options.json:
        write_json(answer_json(chosen, answers))
    else:
        comparison = [batches_table(answers), ""] if len(answers) > 1 else []
        print_parts(*comparison, *answer_page(chosen, options.out))
    if request.is_made:
        return STOPPED
    return 0 if chosen.plans else NO_PLAN


def _answers(
    options: argparse.Namespace, batches: list[int], seq_len: int, request: "StopRequest"
) -> "list[Answer]":
    """One for each batch; the time limit is for all of them, and at least one is answered."""
    limit = None
    if options.time_limit is not None:
        limit = number(options.time_limit, "--time-limit", least=0.001, most=1e9)
    start = time.monotonic()
    answers: list[Answer] = []
    for batch in batches:
        left = None if limit is None else limit - (time.monotonic() - start)
        if answers and (request.is_made or (left is not None and left <= 0)):
            print_note(f"--global-batch {batch} was not looked at")
            continue
        left = None if left is None else max(left, 1e-6)
        answers.append(_answer(options, batch, seq_len, left, request))
    return answers


def _draw(path: Path, answer: "Answer") -> None:
    if answer.best is None and (answer.nothing_fits is None or answer.nothing_fits.closest is None):
        print_note(f"--plot {path}: not written, as there is no plan to draw.")
        return
    answer.plot(path)
    print_note(f"drawn in {path}")


def _answer(
    options: argparse.Namespace,
    batch: int,
    seq_len: int,
    time_limit: float | None,
    request: "StopRequest",
) -> "Answer":
    """The answer for one batch; on a terminal what is done meanwhile is told."""
    if options.json or not sys.stderr.isatty():
        return _search(options, batch, seq_len, None, time_limit, request)
    from astra.cli.progress import ProgressLine

    with ProgressLine(sys.stderr, f"pricing the layers of {Path(options.model).name}") as progress:
        return _search(options, batch, seq_len, progress, time_limit, request)


def _search(
    options: argparse.Namespace,
    batch: int,
    seq_len: int,
    progress: "Callable[[Progress], None] | None",
    time_limit: float | None,
    request: "StopRequest",
) -> "Answer":
    from astra.api.plans import answer_question, limits_of

    question = {
        "gpus": options.gpus,
        "cluster": options.cluster,
        "global_batch": batch,
        "seq_len": seq_len,
        "precision": options.precision,
        "runtime": options.runtime,
        "stack": options.stack,
        "settings": options.set,
        "rules": options.rules,
        "top": options.top,
        "margin": options.memory_margin,
        "risk": options.risk,
        "max_gpus": options.max_gpus,
        "use_all": options.use_all,
        "objective": options.objective,
        "min_tokens_per_s": options.min_tokens_per_s,
        "fold": not options.all,
        "exact": options.exact,
        "pipeline_model": options.pipeline_model,
    }
    limits = limits_of(progress, time_limit, request)
    said = {"time_limit": options.time_limit, "prices": options.prices}
    return answer_question(options.model, question, money_of(options), limits, said)


def _batch(text: str, seq_len: int) -> int:
    """Samples; how `4M-tokens` were read is told."""
    from astra.api.inputs import batch_of

    samples, read_as = batch_of(text, seq_len)
    if read_as is not None:
        print_note(read_as)
    return samples
