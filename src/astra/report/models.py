"""Models for people and programs: the list of known ones, and one in full."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from astra.model.flops import FORWARD_AND_BACKWARD
from astra.model.parameters import count
from astra.model.summary import ModelSummary
from astra.report.console import new_console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

FULL_LIST_COLUMNS = 96  # columns from which the list shows everything
PIPED_COLUMNS = 200  # columns where nobody watches: nothing is cut or wrapped

PART_NAMES = {
    "attention": "attention",
    "mlp": "dense MLP",
    "routed_experts": "routed experts",
    "shared_experts": "shared experts",
    "router": "router",
    "norms": "norms",
    "embedding": "embedding",
    "positions": "learned positions",
    "head": "output head",
    "final_norm": "final norm",
}


# ------------------------------------------------------------------------------- for programs


def listing_json(summary: Sequence[ModelSummary]) -> dict[str, Any]:
    """`astra models --json`."""
    return {"models": [short_json(each) for each in summary]}


def short_json(summary: ModelSummary) -> dict[str, Any]:
    """One line of the list."""
    model = summary.model
    return {
        "name": model.name,
        "hf_id": model.hf_id,
        "family": model.family,
        "parameters": summary.parameters.total,
        "active_parameters": summary.parameters.active,
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "attention": summary.attention,
        "experts": model.moe.experts if model.moe else 0,
        "top_k": model.moe.top_k if model.moe else 0,
        "max_positions": model.max_positions,
        "source": msgspec.to_builtins(model.source),
    }


def model_json(summary: ModelSummary) -> dict[str, Any]:
    """`astra models NAME --json`: the full shape, then what follows from it."""
    shape: dict[str, Any] = msgspec.to_builtins(summary.model)
    parameters = summary.parameters
    first = {
        "name": summary.model.name,
        "parameters": parameters.total,
        "active_parameters": parameters.active,
    }
    rest = {name: value for name, value in shape.items() if name not in first}
    tail = {"assumed": rest.pop("assumed"), "source": rest.pop("source")}
    return {
        **first,
        **rest,
        "attention": summary.attention,
        "mtp_parameters": parameters.mtp_total,
        "parameters_by_part": parameters.by_part,
        "layer_kinds": layer_kinds_json(summary),
        "flops_per_token": flops_json(summary),
        **tail,
    }


def layer_kinds_json(summary: ModelSummary) -> list[dict[str, Any]]:
    """Each kind of layer: how many, what it holds, by what it is divided, what it costs."""
    return [
        {
            "kind": entry.kind.name,
            "layers": entry.layers,
            "attention": entry.kind.attention,
            "window": entry.kind.window,
            "chunked": entry.kind.chunked,
            "mlp": entry.kind.mlp,
            "parameters": count(entry.weights),
            "parameters_by_cut": {
                name: count(entry.weights, sharded_by=name)
                for name in ("tp", "kv", "whole", "ep_etp", "ep")
            },
            "forward_matmul_flops_per_token": flops.matmul_flops,
            "forward_attention_flops_per_token": flops.attention_flops,
        }
        for entry, flops in zip(summary.parameters.kinds, summary.layer_flops, strict=True)
    ]


def flops_json(summary: ModelSummary) -> dict[str, float]:
    """Per token at one sequence length; `train` is forward and backward."""
    flops = summary.flops
    return {
        "seq_len": summary.seq_len,
        "forward_matmul": flops.matmul_flops,
        "forward_attention": flops.attention_flops,
        "forward_head": flops.head_flops,
        "forward_mtp": flops.mtp_flops,
        "forward": flops.total_flops,
        "train": FORWARD_AND_BACKWARD * flops.total_flops,
    }


# --------------------------------------------------------------------------------- for people


def print_listing(summary: Sequence[ModelSummary]) -> None:
    """The list as a table; in a narrow terminal certainty shrinks to a star."""
    console = _console()
    wide = console.width >= FULL_LIST_COLUMNS
    _show(console, listing_table(summary, wide))
    if not wide:
        console.print("* less than certain: `astra models NAME` shows the source")


def listing_table(summary: Sequence[ModelSummary], wide: bool = True) -> "Table":
    """One model a row."""
    table = _table()
    table.add_column("name", no_wrap=True, overflow="ignore")
    for title in ("params", "active", "layers", "hidden", "heads/kv"):
        table.add_column(title if wide else _narrow(title), justify="right", no_wrap=True)
    table.add_column("attention" if wide else "attn", no_wrap=True)
    table.add_column("experts" if wide else "exp", justify="right", no_wrap=True)
    table.add_column("context" if wide else "ctx", justify="right", no_wrap=True)
    if wide:
        table.add_column("certainty", no_wrap=True)
    for each in summary:
        certainty = each.model.source.certainty or "not said"
        star = "" if wide or certainty == "high" else "*"
        cells = [each.model.name + star, *_cells(each)]
        table.add_row(*cells, *([certainty] if wide else []))
    return table


def _narrow(title: str) -> str:
    return {"layers": "lay", "heads/kv": "heads"}.get(title, title)


def _cells(summary: ModelSummary) -> list[str]:
    model = summary.model
    return [
        short(summary.parameters.total),
        short(summary.parameters.active) if model.moe else "",
        str(model.layers),
        str(model.hidden),
        f"{model.heads}/{model.kv_heads}",
        summary.attention,
        f"{model.moe.top_k}/{model.moe.experts}" if model.moe else "",
        positions(model.max_positions),
    ]


def print_model(summary: ModelSummary) -> None:
    """One model in full."""
    console = _console()
    model = summary.model
    title = f"[bold]{_without_markup(model.name)}[/bold]"
    console.print(title if model.hf_id is None else f"{title}  {_without_markup(model.hf_id)}")
    _show(console, _shape_table(summary))
    _show(console, _parts_table(summary), "parameters by part")
    _show(console, _kinds_table(summary), "kinds of layers")
    where = f"FLOPs a token at {summary.seq_len:,} positions, causal attention counted at half"
    _show(console, _flops_table(summary), where)
    console.print()
    for line in model.assumed:
        console.print(f"assumed: {_without_markup(line)}", soft_wrap=_piped(console))
    _print_source(console, summary)


def _shape_table(summary: ModelSummary) -> "Table":
    table = _table(show_header=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, value in _shape_rows(summary):
        table.add_row(name, _without_markup(value))
    return table


def _shape_rows(summary: ModelSummary) -> list[tuple[str, str]]:
    model, parameters = summary.model, summary.parameters
    ends = "tied" if model.tied_embeddings else "not tied"
    head = f"{model.heads} heads of {model.head_dim}, {model.kv_heads} for keys and values"
    rows = [("parameters", f"{parameters.total:,}  ({short(parameters.total)})")]
    if model.moe:
        rows.append(("active", f"{parameters.active:,}  ({short(parameters.active)})"))
    if model.advertised_parameters:
        rows.append(("sold as", short(model.advertised_parameters)))
    rows += [
        ("layers", str(model.layers)),
        ("hidden", str(model.hidden)),
        ("attention", f"{summary.attention}: {head}"),
        ("MLP", _mlp(summary)),
        ("vocabulary", f"{model.vocab:,}, embedding and head {ends}"),
    ]
    if model.mla:
        ranks = f"query rank {model.mla.q_lora_rank or 'none'}, latent {model.mla.kv_lora_rank}"
        rows.append(("latent", ranks))
    if model.moe:
        rows.append(("experts", _experts(summary)))
    if model.window:
        rows.append(("window", _window(summary)))
    if model.max_positions:
        kind = ", ALiBi" if model.positions == "alibi" else ""
        rows.append(("context", f"{model.max_positions:,} positions{kind}"))
    if model.mtp_layers:
        rows.append(
            ("prediction", f"{model.mtp_layers} further tokens, {short(parameters.mtp_total)} more")
        )
    return rows


def _mlp(summary: ModelSummary) -> str:
    model = summary.model
    gate = "gated" if model.gated_mlp else "not gated"
    return f"{model.ffn} wide, {model.activation}, {gate}; {model.norms_per_layer} x {model.norm}"


def _experts(summary: ModelSummary) -> str:
    moe = summary.model.moe
    assert moe is not None
    shared = f", {moe.shared_experts} shared ({moe.shared_ffn} wide)" if moe.shared_experts else ""
    return f"{moe.top_k} of {moe.experts}, each {moe.moe_ffn} wide{shared}"


def _window(summary: ModelSummary) -> str:
    window = summary.model.window
    assert window is not None
    word = "chunks of" if window.chunked else "at most"
    where = "every layer" if window.layers is None else f"{len(window.layers)} layers"
    return f"{word} {window.tokens:,} positions in {where}"


def _parts_table(summary: ModelSummary) -> "Table":
    table = _table()
    table.add_column("part", no_wrap=True)
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    total = summary.parameters.total
    for part, number in summary.parameters.by_part.items():
        table.add_row(PART_NAMES.get(part, part), f"{number:,}", f"{number / total:.1%}")
    return table


def _kinds_table(summary: ModelSummary) -> "Table":
    table = _table()
    table.add_column("kind", no_wrap=True)
    for title in ("layers", "parameters each", "GFLOPs a token"):
        table.add_column(title, justify="right", no_wrap=True)
    for entry, flops in zip(summary.parameters.kinds, summary.layer_flops, strict=True):
        cost = f"{flops.total_flops / 1e9:,.3f}"
        table.add_row(entry.kind.name, str(entry.layers), f"{count(entry.weights):,}", cost)
    return table


def _flops_table(summary: ModelSummary) -> "Table":
    flops = summary.flops
    table = _table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    rows = {
        "matrix products of the layers": flops.matmul_flops,
        "attention": flops.attention_flops,
        "output head": flops.head_flops,
        "further tokens": flops.mtp_flops,
        "forward": flops.total_flops,
        "forward and backward": FORWARD_AND_BACKWARD * flops.total_flops,
    }
    for name, value in rows.items():
        if value:
            table.add_row(name, f"{value / 1e9:,.3f} GFLOPs")
    return table


def _print_source(console: "Console", summary: ModelSummary) -> None:
    source = summary.model.source
    sure = f", certainty {source.certainty}" if source.certainty else ""
    wrap = _piped(console)
    console.print(f"source: {source.kind}{sure}: {_without_markup(source.where)}", soft_wrap=wrap)
    for check in source.checked_against:
        console.print(f"checked: {_without_markup(check)}", soft_wrap=wrap)
    if source.note:
        console.print(f"note: {_without_markup(source.note)}", soft_wrap=wrap)


def short(number: int) -> str:
    """8,030,261,248 as 8.03B; what rounds to a thousand is one of the next unit.

    >>> short(8_030_261_248), short(999_885_952), short(999_499_999)
    ('8.03B', '1.00B', '999M')
    """
    for size, letter in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= 0.9995 * size:
            scaled = number / size
            digits = f"{scaled:.0f}" if scaled >= 99.95 else f"{scaled:#.3g}"
            return f"{digits}{letter}"
    return str(number)


def positions(number: int | None) -> str:
    """131,072 as 128k; what is no round number stays as it is."""
    if number is None:
        return ""
    if number % 2**20 == 0:
        return f"{number // 2**20}M"
    return f"{number // 1024}k" if number % 1024 == 0 else str(number)


def _console() -> "Console":
    """As wide as the terminal; wide enough for everything where there is none."""
    console = new_console()
    return console if console.is_terminal else new_console(width=PIPED_COLUMNS)


def _piped(console: "Console") -> bool:
    return not console.is_terminal


def _show(console: "Console", table: "Table", title: str | None = None) -> None:
    """A table under its title, without blanks at the ends of lines."""
    if title is not None:
        console.print(f"\n[bold]{title}[/bold]")
    with console.capture() as captured:
        console.print(table)
    lines = [line.rstrip() for line in captured.get().splitlines()]
    console.file.write("\n".join(lines) + "\n")


def _table(show_header: bool = True) -> "Table":
    from rich.table import Table

    return Table(
        box=None,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        header_style="dim",
        show_header=show_header,
    )


def _without_markup(text: str) -> str:
    """Brackets in names and notes are no markup."""
    from rich.markup import escape

    return escape(text)
