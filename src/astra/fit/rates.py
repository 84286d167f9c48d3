"""A step's seconds where a run printed only a rate."""

from astra.fit.csv_row import CsvRow

# FLOPs of a GPT's step are c B S L H^2 (1 + S / 6H + V / wLH): Narayanan et al. (arXiv 2104.04473,
# section 5.1), attention over the whole square. Words of `causal_flop_convention`, c and w: with
# the forward pass that full recomputation repeats, and without it.
CONVENTIONS = (("96bslh^2", 96, 16), ("sc21-style model flops without recompute", 72, 12))
SHAPE = ("global_batch", "seq_len", "num_layers", "hidden_size", "vocab_size")


def step_of(csv_row: CsvRow) -> tuple[float | None, str | None]:
    """Seconds of a step and where they come from, if they were not printed. [s]

    >>> step_of(CsvRow({"measured_tokens_per_s_per_gpu": "1000", "num_gpus": "8",
    ...                 "global_batch": "64", "seq_len": "4096"}))
    (32.768, 'step time not stated: from tokens a second')
    """
    step_s = csv_row.positive("measured_step_time_s")
    if step_s is not None:
        return step_s, None
    tokens = csv_row.positive("measured_tokens_per_s_per_gpu")
    gpus = csv_row.count("num_gpus")
    if gpus and tokens is not None:
        batch = csv_row.required_count("global_batch") * csv_row.required_count("seq_len")
        return batch / (tokens * gpus), "step time not stated: from tokens a second"
    tflops = csv_row.positive("measured_tflops_per_gpu")
    flops = _flops(csv_row)
    if gpus and tflops is not None and flops is not None:
        said = "step time not stated: from TFLOP/s, by the formula named"
        return flops / (tflops * 1e12 * gpus), said
    return None, None


def _flops(csv_row: CsvRow) -> float | None:
    """FLOPs of a step as the source counts them; None where it does not say how."""
    said = csv_row.lower_text("causal_flop_convention")
    found = next((row for row in CONVENTIONS if row[0] in said), None)
    if found is None:
        return None
    sizes = [csv_row.count(name) for name in SHAPE]
    if None in sizes:
        return None
    batch, seq, layers, hidden, vocab = (float(size or 0) for size in sizes)
    _, products, head = found
    square = batch * seq * layers * hidden**2
    return products * square * (1 + seq / (6 * hidden) + vocab / (head * layers * hidden))
