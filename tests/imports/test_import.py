"""Launch scripts in the usual styles, with all that matters to a plan read from them."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.cases import each_case

from astra.api import import_job, predict_plan
from astra.cli.main import run
from astra.errors import InputError
from astra.imports.read import ImportedJob

SCRIPTS = Path(__file__).parent / "scripts"

# File, what its caller adds, and what its plan must say; `left`: what is not understood.
CASES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "megatron_arrays.sh",
        {"gpus": "a100-80g"},
        {
            "model": "gpt3-175b",
            "summary": "tp 8 pp 16 dp 1 mb 1",
            "precision": "fp16",
            "sharding": "none",
            "global_batch": 1536,
            "grad_reduce_dtype": "fp16",
            "sequence_parallel": False,
            "overlap_grad_reduce": False,
        },
    ),
    (
        "llama3_fp8.sh",
        {},
        {
            "model": "llama-3-8b",
            "summary": "tp 1 pp 1 dp 4 cp 2 mb 1",
            "precision": "fp8",
            "fp8_recipe": "delayed",
            "sharding": "optimizer",
            "shard_group": 8,
            "grad_reduce_dtype": "bf16",
            "seq_len": 8192,
            "overlap_param_gather": True,
            "sequence_parallel": False,  # asked for, but with tp 1 it means nothing
        },
    ),
    (
        "mixtral.sbatch",
        {},
        {
            "model": "mixtral-8x7b",
            "summary": "tp 1 pp 4 dp 32 vpp 8 ep 8 mb 1",
            "dispatcher": "alltoall",
            "overlap_p2p": True,
            "microbatch_group": 4,
        },
    ),
    (
        "deepseek_layout.sh",
        {},
        {
            "model": "deepseek-v3",
            "summary": "tp 1 pp 8 dp 32 vpp 4 ep 32 mb 1 deepep "
            "recompute selective:layernorm+moe_act+mla_up_proj",
            "mtp_layers": 1,
            "dispatcher": "deepep",
            "chunk_layers": (3, *[2] * 29, 0, 0),
        },
    ),
    (
        "bloom_deepspeed.slurm",
        {"gpus": "a100-80g"},
        {
            "model": "bloom-176b",
            "summary": "tp 4 pp 12 dp 8 mb 2 recompute full:uniform:1",
            "layers": (5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5),
            "sharding": "none",
            "global_batch": 2048,
        },
    ),
    (
        "nemo_overrides.sh",
        {},
        {
            "model": "llama-2-70b",
            "summary": "tp 4 pp 4 dp 4 vpp 5 mb 1 recompute full:block:2",
            "sharding": "optimizer",
            "sequence_parallel": True,
            "overlap_grad_reduce": True,
        },
    ),
    (
        "nemo_config.yaml",
        {},
        {"model": "llama-2-13b", "summary": "tp 2 pp 1 dp 8 mb 2", "sharding": "optimizer"},
    ),
    (
        "fsdp_megatron.sh",
        {},
        {
            "model": "llama-2-7b",
            "summary": "tp 1 pp 1 dp 32 mb 2 sharded parameters recompute full:uniform:1",
            "global_batch": 256,
        },
    ),
    (
        "uneven_stages.sh",
        {},
        {
            "model": "llama-3.1-405b",
            "summary": "tp 8 pp 8 dp 1 vpp 8 mb 1 offload 0.5 optimizer",
            "chunk_layers": (1, *[2] * 62, 1),
            "moment_dtypes": ("bf16", "bf16"),
            "grad_reduce_dtype": "bf16",
            "overlap_tp": True,
        },
    ),
    (
        "ds_zero3.json",
        {"gpus": "h100:16", "model": "llama-2-7b", "seq_len": 2048},
        {
            "model": "llama-2-7b",
            "runtime": "deepspeed",
            "summary": "tp 1 pp 1 dp 16 mb 4 sharded parameters offload optimizer",
            "seq_len": 2048,
            "global_batch": 256,
        },
    ),
    (
        "ds_launch.sh",
        {"gpus": "a100-80g", "model": "llama-2-7b"},
        {
            "runtime": "deepspeed",
            "summary": "tp 1 pp 1 dp 16 mb 4 sharded parameters offload optimizer",
        },
    ),
    (
        "titan.toml",
        {"gpus": "h100:256"},
        {
            "model": "llama-3.1-70b",
            "runtime": "fsdp",
            "summary": "tp 8 pp 1 dp 32 mb 8 sharded parameters recompute full:uniform:1",
            "global_batch": 256,
        },
    ),
    (
        "titan_run.sh",
        {},
        {
            "model": "llama-3.1-70b",
            "summary": "tp 8 pp 1 dp 16 cp 2 mb 8 sharded parameters recompute full:uniform:1",
            "seq_len": 16384,
        },
    ),
]


def said_of(job: ImportedJob, name: str) -> Any:
    plan = job.plan
    own = {"model": plan.model.name, "summary": plan.summary(), "layers": plan.pipelines[0].layers}
    return own[name] if name in own else getattr(plan, name)


@each_case("file, given, expected", CASES)
def test_what_matters_is_read(file: str, given: dict[str, Any], expected: dict[str, Any]) -> None:
    job = import_job(SCRIPTS / file, **given)
    assert {name: said_of(job, name) for name in expected} == expected
    assert job.not_understood == ()
    assert job.refused == ()


def test_a_python_configuration_is_read_not_run(tmp_path: Path) -> None:
    file = tmp_path / "run.py"
    text = (SCRIPTS / "titan_module.py.txt").read_text()
    file.write_text(f"{text}\nopen({str(tmp_path / 'ran')!r}, 'w')\n")
    job = import_job(file, gpus="h100:64")
    assert job.plan.summary() == "tp 2 pp 1 dp 32 mb 2 sharded parameters recompute selective"
    assert (job.plan.seq_len, job.plan.global_batch) == (8192, 128)
    assert not (tmp_path / "ran").exists()


def test_what_is_not_understood_is_listed(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    text = (SCRIPTS / "fsdp_megatron.sh").read_text()
    file.write_text(text.replace("--swiglu", "--swiglu --made-up-thing 7"))
    assert import_job(file).not_understood == ("--made-up-thing 7",)


def test_a_plan_the_runtime_refuses_is_read_all_the_same(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    text = (SCRIPTS / "megatron_arrays.sh").read_text()
    file.write_text(text.replace("--global-batch-size 1536", "--global-batch-size 1537 --bf16"))
    file.write_text(file.read_text().replace("--micro-batch-size 1", "--micro-batch-size 2"))
    assert any("batch" in reason for reason in import_job(file).refused)


# What of a good script is replaced, what its caller adds, and the error.
SPOILED: list[tuple[dict[str, str], dict[str, Any], str]] = [
    ({"NPROC_PER_NODE=8": "N=8", "--nproc_per_node ${NPROC_PER_NODE}": ""}, {}, "--world-size"),
    ({"--num-layers 32": ""}, {}, "--num-layers is missing"),
    ({"--micro-batch-size 2": "--micro-batch-size $(nproc)"}, {}, "only the shell knows"),
    ({"--seq-length 4096": "--seq-length long"}, {}, "no whole number"),
    ({"--hidden-size 4096": "--hidden-size 4032", "Llama2": "Other"}, {}, "--vocab-size"),
    ({"--num-layers 32": "--num-layers 33 --pipeline-model-parallel-size 2"}, {}, "do not divide"),
    ({}, {"gpus": "h100:32", "world_size": 64}, "differ"),
    ({}, {"gpus": "h100:4,a100"}, "entry 2 .a100.: the count is missing"),
    ({}, {"gpus": "h100:4,a100-80g:2"}, "starts 32 GPUs, and --gpus h100:4,a100-80g:2 are 6"),
    ({}, {"gpus": "h100:4,a100-80g:2", "world_size": 8}, "differ"),
]


@each_case("changes, given, words", SPOILED)
def test_errors_say_what_to_try(
    changes: dict[str, str], given: dict[str, Any], words: str, tmp_path: Path
) -> None:
    file = tmp_path / "run.sh"
    text = (SCRIPTS / "fsdp_megatron.sh").read_text()
    for before, after in changes.items():
        assert before in text
        text = text.replace(before, after)
    file.write_text(text)
    with pytest.raises(InputError, match=words):
        import_job(file, **given)


def test_the_command_writes_a_plan_that_predict_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan.json"
    assert (
        run(["import", str(SCRIPTS / "nemo_overrides.sh"), "--gpus", "h100", "--out", str(out)])
        == 0
    )
    assert "llama-2-70b on 64 x H100-80GB-SXM" in capsys.readouterr().out
    plan = import_job(SCRIPTS / "nemo_overrides.sh", gpus="h100").plan
    assert predict_plan(out).plan == plan and plan.dp == 4
    assert run(["import", str(SCRIPTS / "titan.toml"), "--gpus", "h100:8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["framework"] == "torchtitan"


MEGATRON = """torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 24 --hidden-size 2048 \\
  --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 50257 \\
  --micro-batch-size 1 --global-batch-size 64 """


@pytest.mark.parametrize(
    "option",
    [
        "--expert-tensor-parallel-num-weight-shards 2",
        "--experimental-attention-variant dsa",
        "--optimizer muon",
        "--distribute-saved-activations",
        "--optimizer-cuda-graph",
    ],
)
def test_an_option_that_counts_is_not_passed_over(option: str, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text(MEGATRON + option)
    assert import_job(tmp_path / "job.sh", gpus="h100").not_understood == (option,)
    (tmp_path / "job.sh").write_text(f"{MEGATRON} --optimizer adam --exp_name a --lr 1e-4")
    assert import_job(tmp_path / "job.sh", gpus="h100").not_understood == ()


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ("Et*12|lt*12L", "layers are E, t, m and L"),
        ("Et*12|t*12l", "layers are E, t, m and L"),
        ("t*12|t*12L", "the first layer is the only E"),
        ("Et*8|t*8|t*8L", "pp 2 does not divide them"),
        ("Et*12|t*12mL", "has 1 m, and --mtp-num-layers is 0"),
    ],
)
def test_a_layout_that_megatron_refuses_is_refused(layout: str, said: str, tmp_path: Path) -> None:
    options = f"--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout '{layout}'"
    (tmp_path / "job.sh").write_text(MEGATRON + options)
    with pytest.raises(InputError, match=f"job.sh: --pipeline-model-parallel-layout .*{said}"):
        import_job(tmp_path / "job.sh", gpus="h100")


def test_options_behind_a_condition_are_told(tmp_path: Path) -> None:
    head = 'ARGS="--bf16"\nif [ $TP -gt 1 ]; then ARGS="$ARGS --sequence-parallel"; fi\n'
    more = '[ -n "$FP8" ] && MORE=(--fp8-format hybrid)\n'
    (tmp_path / "job.sh").write_text(head + more + MEGATRON + '$ARGS "${MORE[@]}"')
    told = import_job(tmp_path / "job.sh", gpus="h100").assumed
    assert [line.split()[0] for line in told if "branch" in line] == ["ARGS", "MORE"]


TITAN = """[model]\nname = "llama3"\nflavor = "8B"\n{model}\n[training]\n{training}
[parallelism]\npipeline_parallel_degree = 2\n{parallelism}\n[activation_checkpoint]\n{ac}
"""


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ("training", "mixed_precision_reduce = 'bfloat16'"),
        ("training", "dtype = 'bfloat16'"),
        ("parallelism", "pipeline_parallel_schedule = 'ZBVZeroBubble'"),
        ("ac", "mode = 'memory_budget'"),
        ("model", "converters = ['quantize.linear.nvfp4']"),
    ],
)
def test_what_torchtitan_has_and_a_plan_has_not_is_listed(
    section: str, line: str, tmp_path: Path
) -> None:
    said = {"model": "", "training": "", "parallelism": "", "ac": ""}
    (tmp_path / "job.toml").write_text(TITAN.format(**said))
    assert import_job(tmp_path / "job.toml", gpus="h100:16").not_understood == ()
    (tmp_path / "job.toml").write_text(TITAN.format(**said | {section: line}))
    (left,) = import_job(tmp_path / "job.toml", gpus="h100:16").not_understood
    assert line.partition(" = ")[0] in left


@pytest.mark.parametrize(
    ("converters", "recipe"),
    [("float8", "tensorwise"), ("quantize.linear.float8", "tensorwise"), ("mx", "mxfp8")],
)
def test_fp8_of_torchtitan_has_its_recipe(converters: str, recipe: str, tmp_path: Path) -> None:
    said = {"model": f"converters = ['{converters}']", "training": "", "parallelism": "", "ac": ""}
    (tmp_path / "job.toml").write_text(TITAN.format(**said))
    plan = import_job(tmp_path / "job.toml", gpus="b200:16").plan
    assert (plan.precision, plan.fp8_recipe) == ("fp8", recipe)


EXPERIMENT = """\
defaults:
  - _self_
  - train: 7b   # its task
experiment:
  task:
    type: train
    backend: megatron
  runner:
    nnodes: 2
    nproc_per_node: 8
action: run
"""
TASK = """\
system:
  tensor_model_parallel_size: 2
  sequence_parallel: true
  use_distributed_optimizer: true
  recompute_granularity: selective
  recompute_modules:
    - layernorm
    - mlp
  precision:
    bf16: true
model:
  num_layers: 32
  hidden_size: 4096
  num_attention_heads: 32
  seq_length: 2048
  max_position_embeddings: 2048
  use_rotary_position_embeddings: true
  swiglu: true
  multiple_of: 256
  normalization: RMSNorm
  untie_embeddings_and_output_weights: true
  disable_bias_linear: true
  micro_batch_size: 1
  global_batch_size: 64
data:
  tokenizer:
    vocab_size: 100008
"""


def flagscale_job(folder: Path, experiment: str = EXPERIMENT, task: str = TASK) -> Path:
    (folder / "train").mkdir(exist_ok=True)
    (folder / "train" / "7b.yaml").write_text(task)
    (folder / "config.yaml").write_text(experiment)
    return folder / "config.yaml"


def test_flagscales_experiment_leads_to_its_task(tmp_path: Path) -> None:
    job = import_job(flagscale_job(tmp_path), gpus="h100")
    plan = job.plan
    assert (job.framework, job.not_understood) == ("FlagScale", ())
    assert (sum(plan.gpus.values()), plan.dp, plan.global_batch, plan.seq_len) == (16, 8, 64, 2048)
    (segment,) = plan.pipelines[0].segments
    assert (segment.tp, segment.recompute) == (2, "selective:layernorm+mlp")
    assert plan.model.ffn == 11008  # as Llama 7B has it: two thirds of 4 x 4,096, up to 256s
    wide = TASK.replace("multiple_of: 256", "multiple_of: 4096\n  hidden_dim_multiplier: 1.3")
    model = import_job(flagscale_job(tmp_path, task=wide), gpus="h100").plan.model
    assert model.ffn == 16384  # 1.3 x 10,922 is 14,198


@pytest.mark.parametrize(
    ("experiment", "task", "said"),
    [
        (EXPERIMENT.replace("train: 7b", "train: 70b"), TASK, "70b.yaml, which is not there"),
        (EXPERIMENT.replace("  - train: 7b", "  - serve: 7b"), TASK, "name no `train: TASK`"),
        (EXPERIMENT.replace("nnodes: 2", "ssh_port: 22"), TASK, "--world-size N"),
        (EXPERIMENT, TASK + "  hetero:\n    enable_hetero: true\n", "several GPU types"),
        (EXPERIMENT, TASK.replace("of: 256", "of: 8\n  hidden_dim_multiplier: x"), "no number"),
    ],
)
def test_what_a_flagscale_job_lacks_is_said(
    experiment: str, task: str, said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said):
        import_job(flagscale_job(tmp_path, experiment, task), gpus="h100")


def test_slots_of_a_hostfile_are_counted(tmp_path: Path) -> None:
    text = EXPERIMENT.replace("nnodes: 2", "hostfile: hosts").replace("nproc_per_node: 8", "x: 1")
    (tmp_path / "hosts").write_text("# mine\na slots=8 type=H100\nb slots=8\n\n")
    job = import_job(flagscale_job(tmp_path, text), gpus="h100")
    assert sum(job.plan.gpus.values()) == 16


def trainer_job(folder: Path, flags: str, document: dict[str, Any]) -> Path:
    (folder / "ds.json").write_text(json.dumps(document))
    (folder / "run.sh").write_text(f"deepspeed --num_gpus 8 train.py --deepspeed ds.json {flags}\n")
    return folder / "run.sh"


AUTO: dict[str, Any] = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "zero_optimization": {"stage": 3},
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto"},
}
FLAGS = "--model_name_or_path meta-llama/Meta-Llama-3-8B --max_seq_length 8192 --bf16 True"


def test_what_a_trainer_fills_in_is_filled_in(tmp_path: Path) -> None:
    flags = f"{FLAGS} --per_device_train_batch_size 2 --gradient_accumulation_steps 4"
    job = import_job(trainer_job(tmp_path, f"{flags} --gradient_checkpointing True", AUTO))
    plan = job.plan
    assert (plan.model.name, plan.seq_len, plan.precision) == ("llama-3-8b", 8192, "bf16")
    assert (plan.micro_batch, plan.global_batch, plan.dp) == (2, 64, 8)
    assert plan.pipelines[0].segments[0].recompute == "full:uniform:1"
    assert not any("does not say" in text for text in job.assumed)


def test_a_trainers_own_defaults_are_told(tmp_path: Path) -> None:
    job = import_job(trainer_job(tmp_path, FLAGS.replace("--bf16", "--fp16"), AUTO))
    assert (job.plan.micro_batch, job.plan.global_batch, job.plan.precision) == (8, 64, "fp16")
    assert "train_micro_batch_size_per_gpu = 8: the Trainer's default" in job.assumed
    assert job.plan.pipelines[0].segments[0].recompute == "none"


def test_a_trainers_flags_that_count_and_are_not_read_are_listed(tmp_path: Path) -> None:
    flags = f"{FLAGS} --optim adamw_bnb_8bit --use_peft True --torch_compile False"
    job = import_job(trainer_job(tmp_path, flags, AUTO))
    assert job.not_understood == ("--optim adamw_bnb_8bit", "--use-peft True")
    plain = import_job(trainer_job(tmp_path, f"{FLAGS} --optim adamw_torch", AUTO))
    assert plain.not_understood == ()


@pytest.mark.parametrize(
    ("flags", "changed", "said"),
    [
        (f"{FLAGS} --per_device_train_batch_size 2",
         {"train_micro_batch_size_per_gpu": 4}, "a Trainer refuses that"),
        (FLAGS.replace("meta-llama/Meta-Llama-3-8B", "acme/foo"), {}, "Or say it: --model"),
    ],
)  # fmt: skip
def test_a_trainers_job_that_cannot_be_read_says_why(
    flags: str, changed: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said):
        import_job(trainer_job(tmp_path, flags, AUTO | changed))


def test_accelerates_configuration_is_no_job(tmp_path: Path) -> None:
    file = tmp_path / "acc.yaml"
    file.write_text("compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\n")
    with pytest.raises(InputError, match="neither the model nor the batch"):
        import_job(file)


def test_a_script_whose_model_is_in_a_file_that_is_not_there_names_it(tmp_path: Path) -> None:
    run_sh = tmp_path / "run.sh"
    run_sh.write_text("source sizes.sh\ntorchrun --nproc-per-node 8 pretrain_gpt.py $SIZES"
                      " --micro-batch-size 1 --global-batch-size 64 --bf16\n")  # fmt: skip
    with pytest.raises(InputError, match=r"sources 'sizes\.sh', which is not there"):
        import_job(run_sh)
    (tmp_path / "sizes.sh").write_text(
        'SIZES="--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 512 '
        '--max-position-embeddings 512 --vocab-size 32000"\n'
    )
    job = import_job(run_sh)
    assert job.plan.model.layers == 4 and "sizes.sh, which it sources" in " ".join(job.assumed)


LLAMA_13B = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 40 --hidden-size 5120 "
    "--num-attention-heads 40 --ffn-hidden-size {ffn} --swiglu --normalization RMSNorm "
    "--disable-bias-linear --untie-embeddings-and-output-weights --vocab-size {vocab} "
    "--seq-length 4096 --max-position-embeddings 4096 --position-embedding-type {positions} "
    "--micro-batch-size 1 --global-batch-size 8 --bf16\n"
)


@pytest.mark.parametrize(
    ("positions", "ffn", "vocab", "name", "kind"),
    [
        ("alibi", 13824, 32000, "job", "alibi"),  # the shape of Llama 2 13B
        ("none", 13824, 32000, "job", "none"),
        ("rope", 13824, 32000, "llama-2-13b", "rope"),
        ("alibi", 13696, 125696, "baichuan2-13b", "alibi"),
        ("none", 13696, 125696, "baichuan2-13b", "alibi"),  # as exports write it
        ("rope", 13696, 125696, "job", "rope"),
    ],
)
def test_positions_are_those_of_the_job(
    positions: str, ffn: int, vocab: int, name: str, kind: str, tmp_path: Path
) -> None:
    script = tmp_path / "job.sh"
    script.write_text(LLAMA_13B.format(positions=positions, ffn=ffn, vocab=vocab))
    job = import_job(script, gpus="h100")
    assert (job.plan.model.name, job.plan.model.positions) == (name, kind)
    assert any("without positions" in each for each in job.assumed) is (
        (positions, kind) == ("none", "alibi")
    )
    assert job.not_understood == ()


def test_positions_of_an_unknown_kind_are_not_understood(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(LLAMA_13B.format(positions="relative", ffn=13824, vocab=32000))
    job = import_job(script, gpus="h100")
    assert job.not_understood == ("--position-embedding-type relative",)
