"""Options of a command line as a table, and which of them were read."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from astra.errors import InputError, shorten

HYDRA = re.compile(r"\+{0,2}([A-Za-z_][\w.]*)=(.*)", re.DOTALL)

# What changes neither the seconds of a step nor the memory, by how the name begins.
IGNORED = (
    *("lr", "min-lr", "weight-decay", "adam-", "adam", "sgd-", "clip-grad", "seed"),
    *("save", "load", "log", "logger", "tensorboard", "wandb", "exp-", "explicit", "timing"),
    "no-log",
    *("data-path", "data-cache", "data-impl", "data-args", "dataset", "dataloader", "split"),
    *("train-data", "valid-data", "test-data", "mock-data", "train-iters", "train-samples"),
    *("tokenizer", "vocab-file", "merge-file", "num-workers", "eod-", "reset-", "seq-per"),
    *("eval", "exit-", "distributed-backend", "distributed-timeout", "init-method", "override-"),
    *("ckpt", "auto-detect", "async-save", "dist-ckpt", "no-save", "no-load", "finetune"),
    *("master-", "node-rank", "rdzv", "max-restarts", "tee", "role", "hostfile", "start-method"),
    *("standalone", "module", "monitor", "job-name", "container", "mpi", "kill-on-bad-exit"),
    *("label", "unbuffered", "cpu-bind", "norm-epsilon", "layernorm-epsilon", "manual-gc"),
    *("attention-softmax-in-fp32", "no-masked-softmax-fusion", "apply-query-key", "rotary-"),
    *("use-rotary-position-embeddings", "no-position-embedding", "no-rope-fusion", "use-rope"),
    *("attention-dropout", "hidden-dropout", "cross-entropy", "te-rng", "no-gradient-acc"),
    *("bias-gelu", "no-bias", "bias-dropout", "use-mcore-models", "use-cpu-init", "no-create"),
    *("check-", "no-check", "loss-scale", "initial-loss-scale", "loss-scale-window", "hysteresis"),
    *("moe-aux-loss", "moe-router-load", "moe-router-dtype", "moe-router-score", "moe-z-loss"),
    *("moe-router-pre", "moe-router-enable", "moe-router-bias", "moe-router-topk-scaling"),
    *("moe-router-num-groups", "moe-router-group-topk", "moe-permute-fusion", "use-legacy"),
    *("deepspeed-activation", "local-rank", "force", "create-moe", "no-pipeline-parallel"),
    *("make-vocab-size-divisible-by", "mtp-loss", "disable-straggler", "profile", "nccl-"),
    *("fp8-amax", "fp8-margin", "fp8-interval", "fp8-param", "reuse-grad-buf", "sft", "legacy"),
    *("max-steps", "max-epochs", "mcore-gpt", "apply-layernorm-1p", "calculate-per-token-loss"),
    *("enable-experimental", "high-priority", "overlap-cpu-optimizer", "megatron-fsdp"),
)


class LaunchOptions:
    """`--name value ...` and Hydra's `section.name=value`, by their plain names."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.values: dict[str, list[str]] = {}
        self.read: set[str] = set()

    def add(self, words: Iterable[str]) -> None:
        """Words of a command; an option that comes twice is the later one."""
        name = None
        for word in words:
            hydra = HYDRA.fullmatch(word)
            if word.startswith("--") and len(word) > 2:
                name, equals, value = word[2:].partition("=")
                name = option_name(name)
                self.values[name] = [value] if equals else []
            elif hydra and "." in hydra[1]:
                self.values[option_name(hydra[1])] = [hydra[2].strip("'\"")]
                name = None
            elif name is not None:
                self.values[name].append(word)

    def put(self, name: str, value: Any) -> None:
        """One option, unless it is there already."""
        if value is not None:
            self.values.setdefault(option_name(name), [str(value)])

    def flag(self, *names: str) -> bool:
        """Whether one of these is on. Said without a value, or as true."""
        return any(self._flag(name) for name in names)

    def _flag(self, name: str) -> bool:
        self.read.add(name)
        if name not in self.values:
            return False
        said = self.values[name][:1]
        return not said or said[0].lower() not in ("false", "0", "no", "none", "null")

    def text(self, *names: str) -> str | None:
        """The value of the first of these that has one."""
        self.read.update(names)
        for name in names:
            if self.values.get(name) and self.values[name][0].lower() not in ("null", "none"):
                return self.values[name][0]
        return None

    def many(self, name: str) -> list[str]:
        self.read.add(name)
        return self.values.get(name, [])

    def whole(self, *names: str, default: int | None = None) -> int | None:
        """The same as a whole number."""
        said = self.text(*names)
        if said is None:
            return default
        name = next(name for name in names if self.values.get(name))
        try:
            return int(float(said)) if re.fullmatch(r"\d+(\.0*)?(e\d+)?", said) else int(said)
        except ValueError:
            raise InputError(
                f"{self.where}: --{name} {shorten(said)} is no whole number here. A value that "
                "only the shell knows must be filled in: replace it in a copy of the file."
            ) from None

    def need(self, *names: str) -> int:
        found = self.whole(*names)
        if found is None:
            raise InputError(f"{self.where}: --{names[0]} is missing; a plan needs it.")
        return found

    def left(self) -> list[str]:
        """What was neither read nor known to change nothing, as it was written."""
        names = [name for name in self.values if name not in self.read]
        names = [name for name in names if not name.rpartition(".")[2].startswith(IGNORED)]
        return [" ".join([f"--{name}", *self.values[name][:3]]) for name in names]


def option_name(name: str) -> str:
    return name.replace("_", "-")


def training_words(commands: Sequence[Sequence[str]], known: Iterable[str]) -> list[str]:
    """Words of the command that says most of a plan; options alone on lines are one command.

    A command inside a word (`srun bash -c "torchrun ..."`) is taken apart.
    """
    wanted = {option_name(name) for name in known}
    opened = [[piece for word in words for piece in _pieces(word)] for words in commands]
    bare = [word for words in opened if words[0].startswith("--") for word in words]
    best: list[str] = []
    most = 0
    for words in [*opened, bare]:
        said = sum(_name(word) in wanted for word in words)
        if said > most:
            best, most = words, said
    return best


def _pieces(word: str) -> list[str]:
    return word.split() if " --" in word or (" " in word and ".py" in word) else [word]


def _name(word: str) -> str:
    if word.startswith("--"):
        return option_name(word[2:].partition("=")[0])
    match = HYDRA.fullmatch(word)
    return option_name(match[1].rpartition(".")[2]) if match and "." in match[1] else ""
