"""The header of a table of runs: our columns by their names, and by those of frameworks' logs."""

import difflib

from astra.errors import InputError, did_you_mean, shorten

# Without these a file is no table of runs; the others are known and may be missing.
REQUIRED_COLUMNS = ("model", "num_layers", "hidden_size", "seq_len", "global_batch",
          "measured_step_time_s")  # fmt: skip
COLUMNS = ("row_id", *REQUIRED_COLUMNS, "source", "source_date", "framework", "framework_version",
           "ffn_hidden_size", "num_heads", "num_kv_heads", "head_dim", "vocab_size", "gated_mlp",
           "num_experts", "top_k", "dense_layers", "moe_ffn_hidden", "shared_experts", "mla",
           "gpu_id", "num_gpus", "gpus_per_node", "interconnect", "tp", "pp", "vpp", "cp", "ep",
           "etp", "dp", "micro_batch", "zero_stage", "sequence_parallel", "recompute", "precision",
           "flash_attention", "overlap", "measured_peak_memory_GiB", "memory_kind", "notes",
           "source_family", "completeness", "pipelines", "gpu", "causal_flop_convention",
           "measured_tokens_per_s_per_gpu", "measured_tflops_per_gpu", "measured_mfu", "provenance",
           "task", "arch_from", "derived_fields", "gpu_norm", "missing",
           "check_model_tflops_causal", "check_mfu_vs_bf16_peak", "intra_node",
           "inter_node_gbps", "status", "usable")  # fmt: skip
ONE_TYPE = ("gpu_id", "num_gpus")
MIXED = ("pipelines",)

# As Megatron-LM's arguments and what W&B keeps of a run name them; seconds alone, no milliseconds.
COLUMN_ALIASES = {
    "name": "row_id",
    "run": "row_id",
    "run_id": "row_id",
    "seq_length": "seq_len",
    "sequence_length": "seq_len",
    "encoder_seq_length": "seq_len",
    "micro_batch_size": "micro_batch",
    "global_batch_size": "global_batch",
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "virtual_pipeline_model_parallel_size": "vpp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "expert_tensor_parallel_size": "etp",
    "data_parallel_size": "dp",
    "num_attention_heads": "num_heads",
    "num_query_groups": "num_kv_heads",
    "moe_router_topk": "top_k",
    "moe_ffn_hidden_size": "moe_ffn_hidden",
    "world_size": "num_gpus",
    "gpus": "num_gpus",
    "gpu_type": "gpu_id",
    "gpu_name": "gpu_id",
    "iteration_time": "measured_step_time_s",
    "step_time": "measured_step_time_s",
    "step_time_s": "measured_step_time_s",
    "train_step_timing_in_s": "measured_step_time_s",
}
DELIMITERS = (";", "\t", "|")


def delimiter_of(text: str) -> str:
    """What stands between the cells: a comma, unless the first line has none but another."""
    first = text.partition("\n")[0]
    found = max(DELIMITERS, key=first.count)
    return found if "," not in first and found in first else ","


def translated_header(header: list[str]) -> tuple[list[str], list[str]]:
    """The header in our names, and what was read as something else."""
    found, told = [], []
    for name in header:
        plain = name.lower().replace("-", "_").replace(" ", "_")
        ours = COLUMN_ALIASES.get(plain)
        if name not in COLUMNS and ours and ours not in header and ours not in found:
            told.append(f"{shorten(name)} is read as {ours}")
            name = ours
        found.append(name)
    return found, told


def check_header(header: list[str], written: list[str], where: str) -> None:
    """An InputError where this is no table of runs; it names all that is missing.

    `written` is the header as it stands in the file.
    """
    if not any(header):
        raise InputError(f"{where}: the file is empty; a header and one row per run were expected.")
    kind = MIXED if "pipelines" in header else ONE_TYPE
    missing = [name for name in (*REQUIRED_COLUMNS, *kind) if name not in header]
    if missing:
        several = len(missing) > 1
        hint = (not several and did_you_mean(missing[0], header)) or _shown(written)
        raise InputError(
            f"{where}: the column{'s' * several} {', '.join(missing)} "
            f"{'are' if several else 'is'} missing. {hint}"
        )
    for name in header:
        _check_spelling(name, header, where)
    twice = {name for name in header if name and header.count(name) > 1}
    if twice:
        raise InputError(f"{where}: the column {shorten(min(twice))} is there twice.")


def _shown(header: list[str]) -> str:
    names = ", ".join(name[:40] for name in header[:6])
    more = f" and {len(header) - 6} more" if len(header) > 6 else ""
    return f"The file has {names}{more}; docs/calibrate.md says what each column holds."


def _check_spelling(name: str, header: list[str], where: str) -> None:
    """A column that nobody reads, but for one letter, is a mistake; others are someone's notes."""
    if not name or name in COLUMNS:
        return
    missing = [known for known in COLUMNS if known not in header]
    near = difflib.get_close_matches(name.lower(), missing, n=1, cutoff=0.8)
    if near or name.lower() in missing:
        right = near[0] if near else name.lower()
        raise InputError(f"{where}: no column {shorten(name)} is known. Did you mean {right}?")
