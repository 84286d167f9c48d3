"""Cells of free text, as published tables write them."""

import pytest
from tests.support.cases import each_case

from astra.errors import InputError
from astra.fit.csv_row import CsvRow, flags_of
from astra.fit.framework_defaults import (
    FRAMEWORKS,
    MEGATRON,
    MLPERF,
    NEMO,
    PYTORCH,
    fitted_stack,
    framework_defaults,
    release_of,
)
from astra.fit.row_cluster import GBPS, in_nodes, networked, nic_bytes_per_s
from astra.fit.row_words import (
    cuda_graph_of,
    dispatcher_of,
    overlap_of,
    precision_of,
    recompute_of,
    sharding_of,
)
from astra.fit.split import RowSplit, split_counting_ends, split_in_order, split_of
from astra.hardware.catalogue import find_gpu
from astra.model.zoo import zoo_model

H100 = find_gpu("h100")[0]


@each_case(
    "text, setting",
    [
        ("", "none"),
        ("none", "none"),
        ("none in the recipe", "none"),
        ("full", "full:uniform:1"),
        ("full (use_checkpoint=true in the matching vTrain config)", "full:uniform:1"),
        ("full, num_layers=5", "full:block:5"),
        ("full (method=uniform layers=1 modules=)", "full:uniform:1"),
        ("full (method=block layers=3 modules=)", "full:block:3"),
        ("full (remat_policy=save_qkv_proj)", "full:uniform:1"),
        ("selective", "selective"),
        ("selective (per-op SAC)", "selective"),
        ("selective (attention core) + sequence parallel", "selective"),
        ("selective: core_attn", "selective"),
        ("selective: mla_up_proj", "selective:mla_up_proj"),
        ("selective: mlp, core_attn", "selective:core_attn+mlp"),
        (
            "selective (method= layers= modules=[layernorm mla_up_proj mlp moe_act])",
            "selective:layernorm+mlp+moe_act+mla_up_proj",
        ),
    ],
)
def test_recompute_cells_become_our_grammar(text: str, setting: str) -> None:
    assert recompute_of(text)[0] == setting


def test_a_module_name_inside_another_is_not_read_twice() -> None:
    assert recompute_of("selective: moe_act")[0] == "selective:moe_act"


def test_an_unknown_recompute_is_refused_and_a_missing_one_is_assumed() -> None:
    with pytest.raises(InputError, match="not understood"):
        recompute_of("sometimes")
    assert recompute_of("") == ("none", "recompute not stated: none")


@each_case(
    "text, precision, recipe",
    [
        ("bf16", "bf16", None),
        ("bf16 (amp)", "bf16", None),
        ("fp16 mixed", "fp16", None),
        ("mxfp8", "fp8", "mxfp8"),
        ("fp8 (per-tensor current scaling)", "fp8", "tensorwise"),
        ("fp8 blockwise", "fp8", "blockwise"),
        ("fp8 linear + bf16", "fp8", "tensorwise"),
        ("nvfp4 (+fp8)", "fp4", None),
        ("fp32", "fp32", None),
    ],
)
def test_precision_cells(text: str, precision: str, recipe: str | None) -> None:
    csv_row = CsvRow({"precision": text, "source_date": "2025-05"})
    assert precision_of(csv_row, PYTORCH, H100)[:2] == (precision, recipe)


def test_a_missing_precision_depends_on_gpu_notes_and_framework() -> None:
    v100 = find_gpu("V100-16GB-SXM2")[0]
    assert precision_of(CsvRow({}), NEMO, v100)[0] == "fp16"
    assert precision_of(CsvRow({}), NEMO, H100)[0] == "bf16"
    noted = CsvRow({"notes": "paper: A100 80GB, fp16 mixed precision"})
    assert precision_of(noted, NEMO, H100)[0] == "fp16"
    sailor = framework_defaults(CsvRow({"framework": "megatron-deepspeed (sailor fork)"}))
    assert precision_of(CsvRow({}), sailor, H100)[0] == "fp32"


@each_case(
    "text, kind, group",
    [
        ("fsdp FULL_SHARD (zero3)", "parameters", 64),
        ("fsdp SHARD_GRAD_OP (zero2)", "gradients", 64),
        ("fsdp2 full shard over 4x cp2", "parameters", 8),
        ("fsdp2 shard=32", "parameters", 32),
        ("megatron-fsdp optim_grads_params", "parameters", 64),
        ("HSDP", "parameters", 8),
        ("distributed optimizer (zero1)", "optimizer", 64),
        ("zero1 shard=8", "optimizer", 8),
        ("zero1 shard=all dp", "optimizer", 64),
        ("none (plain DDP)", "none", 1),
        ("none (optimizer_sharding=false)", "none", 1),
        ("DDP (FSDP=0 in source)", "optimizer", 64),
        ("", "optimizer", 64),
        ("3", "parameters", 64),
    ],
)
def test_sharding_cells(text: str, kind: str, group: int) -> None:
    shards = sharding_of(text, NEMO, copies=64, node=8)
    assert (shards.kind, shards.group) == (kind, group)


def test_a_shard_group_that_cannot_be_is_all_copies_and_said() -> None:
    shards = sharding_of("zero1 shard=48", NEMO, copies=64, node=8)
    assert shards.group == 64 and "does not fit" in shards.assumed[0]


@each_case(
    "text, gbps",
    [
        ("1600 Gbps/node RoCE", 200),
        ("NVLink; 4 x 100 Gb OmniPath per node (Jean Zay)", 50),
        ("NVLink3; 8x HDR IB 200 Gb/s per node (Selene)", 200),
        ("NVLink3; HDR IB 200 Gb/s per GPU (Selene)", 200),
        ("NVLink; RDMA 400 Gb/s per GPU", 400),
        ("NVLink; 400 Gb/s CX-7 per GPU", 400),
        ("NVLink3; inter-node 800 Gb/s per node total (vTrain validation config)", 100),
        ("PCIe in node, 50 Gb/s Ethernet per node (AMP cluster_info 50e9)", 6.25),
        ("NVLink2; 25 Gb/s Ethernet per node (p3.16xlarge)", 3.125),
        ("800 Gbps (as stated; per node)", 100),
        ("NVLINK Gen4 900 GB/s; 8x NVIDIA ConnectX-7 IB NDR 400Gb/s", 400),
        ("Storage: 2x ConnectX-7 IB NDR 400Gb/s, Compute: 8x ConnectX-7 IB NDR 400Gb/s", 400),
        ("8x ConnectX-8 IB XDR 800Gb/s + 400Gb/s Ethernet NIC", 800),
        ("NVLink5 NVL72 domain (DGX-GB300)", None),
        ("18x 5th Gen NVLink, 14.4 TB/s aggregated bandwidth; InfiniBand", None),
        ("PCIe-NIC: 500 GB/s", None),
        ("", None),
    ],
)
def test_network_speeds_are_each_gpus_share_of_a_node_of_eight(
    text: str, gbps: float | None
) -> None:
    rate = nic_bytes_per_s(text, per_node=8)
    assert rate == (None if gbps is None else pytest.approx(gbps * GBPS))


def test_a_network_that_is_not_understood_stays_the_catalogues_and_is_said() -> None:
    gpu, said = networked(H100, "NVLink; pigeons")
    assert gpu == H100 and said == ["network ' pigeons' not understood: 400 Gb/s a GPU"]
    slingshot, said = networked(H100, "NVLink in node; Slingshot")
    assert slingshot.node.nic_bytes_per_s == 25e9 and said


def test_a_link_domain_follows_the_node_unless_it_spans_nodes() -> None:
    assert in_nodes(H100, 4).link.domain_gpus == 4
    assert in_nodes(find_gpu("V100-32GB-SXM2")[0], 16).link.domain_gpus == 16
    assert in_nodes(find_gpu("GB200")[0], 8).link.domain_gpus == 72
    assert in_nodes(find_gpu("T4")[0], 4).link.domain_gpus == 1


def test_splits_as_frameworks_make_them() -> None:
    llama, deepseek = zoo_model("llama-3.1-405b"), zoo_model("deepseek-v3")
    even = split_of(CsvRow({}), zoo_model("llama-3-8b"), 4, 2)
    assert even.chunks == (4,) * 8 and not even.uneven and not even.assumed
    ends = split_of(CsvRow({}), llama, 8, 4)
    assert ends.chunks == split_counting_ends(126, 32) and ends.stages(8) == (15, *(16,) * 6, 15)
    assert split_of(CsvRow({}), deepseek, 4, 1).chunks == split_in_order(61, 4) == (16, 16, 16, 13)


def test_splits_that_rows_give_as_a_layout() -> None:
    gpt = zoo_model("gpt2-medium")  # 24 layers

    def split(layout: str) -> RowSplit:
        return split_of(CsvRow({"overlap": f"pp_layout={layout}"}), gpt, 2, 1)

    found = split("Et*7|(t*6|)*2,t*5,mmL")
    assert found.chunks == (7, 6, 6, 5) and (found.vpp, found.mtp_layers) == (2, 2)
    assert split("Et*7|t*7L").assumed == (
        "pipeline layout 'Et*7|t*7L' does not fit and was left out",
    )
    for refused in ("Et*12|lt*12L", "Et*8|t*8|t*8L", "t*12|t*12L"):
        with pytest.raises(InputError, match=r"pipeline layout .* Megatron-LM refuses it"):
            split(refused)


def test_splits_that_rows_print_in_modules() -> None:
    gpt = zoo_model("gpt2-medium")  # 24 layers
    bounds = "layer partition boundaries [0, 9, 15, 21, 30] over 30 pipeline modules (24 ...)"
    assert split_of(CsvRow({"notes": bounds}), gpt, 4, 1).chunks == (7, 6, 6, 5)
    stages = "layers per stage [12, 14] over 26 modules (embedding + blocks + head)"
    assert split_of(CsvRow({"notes": stages}), gpt, 2, 1).chunks == (11, 13)


def test_options_in_notes_and_overlap_cells() -> None:
    notes = "CI test; mtp-num-layers=1, moe_layer_freq=([0]*3+[1]*12), cuda-graph-impl=local"
    flags = flags_of(notes)
    assert flags["mtp-num-layers"] == "1" and flags["moe-layer-freq"] == "([0]*3+[1]*12)"
    csv_row = CsvRow({"notes": notes, "overlap": "moe_a2a_overlap=True; x_backend=hybridep"})
    assert cuda_graph_of(csv_row, MEGATRON, moe=True) == "local"
    assert dispatcher_of(csv_row, MEGATRON) == "hybridep"
    assumed: list[str] = []
    flags_found = overlap_of(csv_row, MEGATRON, chunks=True, tp=2, assumed=assumed)
    assert flags_found["overlap_ep"] and not flags_found["overlap_grad_reduce"] and not assumed
    full = CsvRow({"overlap": "cuda_graph_impl=local; cuda_graph_scope=full_iteration"})
    off = CsvRow({"overlap": "cuda_graph_impl=none; cuda_graph_scope=full_iteration"})
    found = [cuda_graph_of(each, MEGATRON, moe=False) for each in (full, off)]
    assert found == ["full_iteration", "none"]


def test_recipes_of_megatron_bridge_run_experts_as_their_release_does() -> None:
    row = {"framework": "megatron-bridge", "gpu_id": "GB300"}
    late = CsvRow({**row, "framework_version": "NeMo container 26.08"})
    early = CsvRow({**row, "framework_version": "NeMo container 26.04"})
    defaults = framework_defaults(late)
    assert cuda_graph_of(late, defaults, moe=True) == "full_iteration"
    assert cuda_graph_of(late, defaults, moe=False) == "none"
    assert dispatcher_of(late, defaults) == "hybridep"
    assert overlap_of(late, defaults, chunks=False, tp=1, assumed=[])["overlap_ep"]
    assert dispatcher_of(early, framework_defaults(early)) == "alltoall"
    hopper = CsvRow({"framework": "megatron-bridge", "gpu_id": "H100-80GB-SXM"})
    assert dispatcher_of(hopper, framework_defaults(hopper)) == "deepep"
    assert overlap_of(hopper, framework_defaults(hopper), chunks=False, tp=1, assumed=[])[
        "overlap_ep"
    ]
    assert not overlap_of(early, framework_defaults(early), chunks=False, tp=1, assumed=[])[
        "overlap_ep"
    ]


@pytest.mark.parametrize(
    ("version", "framework", "release"),
    [
        ("NeMo container 26.02.01", "megatron-bridge", "26.02.01"),
        ("dgxc-benchmarking recipe v25.02", "nemo", "dgxc-25.02"),
        ("eos_n64", "NVIDIA NeMo Framework Release 24.09", "24.09"),
        ("commit 8c8dd48f", "llm-foundry", "8c8dd48f"),
        ("v2.x (2021-04)", "megatron-lm", "2021-04"),
        ("main", "nemo-automodel", None),
    ],
)
def test_releases_are_read_as_stacks_name_them(
    version: str, framework: str, release: str | None
) -> None:
    row = CsvRow({"framework_version": version, "framework": framework})
    assert release_of(row) == release


def test_frameworks_are_known_by_words_in_their_names() -> None:
    assert (
        framework_defaults(CsvRow({"framework": "NVIDIA NeMo Framework Release 25.09"})) == MLPERF
    )
    assert framework_defaults(CsvRow({"framework": "nemo", "notes": "GA=4"})) == NEMO
    old = framework_defaults(CsvRow({"framework": "megatron-lm", "source_date": "2021-01"}))
    assert old.sharding == "none" and not old.flash
    assert not framework_defaults(CsvRow({"framework": "abacus"})).known
    titan = CsvRow({"framework": "torchtitan", "notes": "FSDP + torch.compile"})
    assert framework_defaults(titan).stack == "torch-fsdp"
    eager = CsvRow({"framework": "torchtitan", "notes": "FSDP eager; seq len 8192"})
    assert framework_defaults(eager).stack == "torch-fsdp-eager"


def test_every_stack_leads_to_one_that_is_known() -> None:
    for _, defaults in FRAMEWORKS:
        assert fitted_stack(defaults.stack, ["megatron"]) == "megatron"
    assert fitted_stack("torch-compile", ["megatron", "torch-compile"]) == "torch-compile"


@each_case("text", ["x", "nan", "1e400", "1" * 60, "8 GPUs", "1.5", "-3", "0"])
def test_a_count_that_is_none_names_its_column(text: str) -> None:
    with pytest.raises(InputError, match="tp = "):
        CsvRow({"tp": text}).count("tp")


def test_years_are_dates_or_releases() -> None:
    dated = [("2024-09", 2024), ("25.02", 2025), ("2026-08 (HEAD d98e8a64)", 2026), ("", None)]
    assert [CsvRow({"source_date": text}).year() for text, _ in dated] == [y for _, y in dated]
