"""The questions that come from elsewhere: the command line's words as JSON, answered by the API.

`--seq-len` is `seq_len`, a flag is true or false, and what the command line reads from a file is
given itself: a config, a cluster, a plan, rules, the text of a script.
"""

import dataclasses
import io
import zipfile
from collections.abc import Callable
from typing import Any

import msgspec

from astra.api import explain, export, import_job, predict, predict_plan
from astra.api.inputs import model_of
from astra.api.plans import answer_question, limits_of
from astra.cost.result import PricedPlan
from astra.errors import InputError
from astra.explain.result import ExplanationDocument
from astra.files import convert
from astra.model.shape import Model
from astra.model.zoo import known_model
from astra.money.options import MoneyOptions
from astra.report.answer import answer_json
from astra.report.document import AnswerDocument
from astra.report.explain import explanation_json
from astra.report.priced_plan import priced_json
from astra.search.result import Progress
from astra.strategy.complete import PlanSettings
from astra.strategy.plan import Plan
from astra.timeline.step import StepTimeline
from astra.values import number
from astra.web.pictures import ChartsAnswer, ChartsQuestion, TraceQuestion

WHERE = "question"
ZIP_DATE = (1980, 1, 1, 0, 0, 0)  # the first there is
NO_MONEY = MoneyOptions()

Text = str | dict[str, Any]  # a name, or what a file of it would hold
Gpus = str | dict[str, int]
Rank = int | str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answering:
    """How a question is answered: how long it may take, who is told, who may stop it."""

    time_limit_s: float
    watch: Callable[[Progress | str], None] = lambda _: None
    is_cancelled: Callable[[], bool] = lambda: False


class PlanQuestion(MoneyOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The best plans for a model on GPUs, in the words of `astra plan`."""

    model: Text
    global_batch: int | str
    seq_len: int | str
    gpus: Gpus | None = None
    cluster: dict[str, Any] | None = None
    runtime: str | None = None
    stack: str | None = None
    precision: str = "bf16"
    set: tuple[str, ...] | dict[str, Any] = ()
    rules: tuple[str | dict[str, str], ...] | None = None
    top: int = 10
    memory_margin: float = 0.05
    risk: str = "normal"
    max_gpus: int | None = None
    use_all: bool = False
    objective: str | None = None
    min_tokens_per_s: float = 0.0
    all: bool = False
    exact: bool = False
    pipeline_model: str = "simulated"
    time_limit: float | None = None
    what_if: str | tuple[str, ...] | None = None  # type: ignore[assignment]

    def answer(self, how: Answering) -> object:
        limit = how.time_limit_s
        if self.time_limit is not None:
            limit = min(limit, number(self.time_limit, "--time-limit", least=0.001, most=1e9))
        question = {
            "gpus": self.gpus,
            "cluster": self.cluster,
            "global_batch": self.global_batch,
            "seq_len": self.seq_len,
            "runtime": self.runtime,
            "stack": self.stack,
            "precision": self.precision,
            "settings": self.set,
            "rules": self.rules,
            "top": self.top,
            "margin": self.memory_margin,
            "risk": self.risk,
            "max_gpus": self.max_gpus,
            "use_all": self.use_all,
            "objective": self.objective,
            "min_tokens_per_s": self.min_tokens_per_s,
            "fold": not self.all,
            "exact": self.exact,
            "pipeline_model": self.pipeline_model,
        }
        limits = limits_of(how.watch, limit, how.is_cancelled)
        said = {"time_limit": self.time_limit}
        found = answer_question(_model(self.model), question, _about_money(self), limits, said)
        return answer_json(found, [found])


class _Priced(MoneyOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `astra predict` takes besides the settings of a plan."""

    model: Text | None = None
    plan: dict[str, Any] | None = None
    rank: Rank | None = None
    gpus: Gpus | None = None
    cluster: dict[str, Any] | None = None
    runtime: str | None = None
    stack: str | None = None
    memory_margin: float = 0.05
    pipeline_model: str = "simulated"

    def answer(self, how: Answering) -> object:  # noqa: ARG002 - nothing is searched
        settings = {
            field.name: said
            for field in dataclasses.fields(PlanSettings)
            if (said := getattr(self, field.name)) is not None
        }
        common: dict[str, Any] = {
            "margin": self.memory_margin,
            "pipeline_model": self.pipeline_model,
            "money": _about_money(self),
        }
        if self.plan is not None:
            others = ("model", "gpus", "cluster", "runtime", "stack")
            given = [name for name in others if getattr(self, name) is not None] + list(settings)
            if given:
                raise InputError(f"plan is a whole plan; leave out {', '.join(given)}.")
            return priced_json(predict_plan(_plans(self.plan), _rank(self.rank), **common))
        if self.model is None:
            raise InputError("model is missing: a name (`astra models` lists them), or give plan.")
        if self.rank is not None:
            raise InputError("rank chooses among the plans of an answer; give plan with it.")
        priced = predict(
            _model(self.model),
            gpus=self.gpus,
            cluster=self.cluster,
            runtime=self.runtime,  # type: ignore[arg-type]
            stack=self.stack,
            **common,
            **settings,
        )
        return priced_json(priced)


def _setting_type(field: dataclasses.Field[Any]) -> Any:
    """Batch and length may be said with their unit."""
    return int | str | None if field.name in ("global_batch", "seq_len") else field.type


PredictQuestion = msgspec.defstruct(
    "PredictQuestion",
    [(field.name, _setting_type(field), None) for field in dataclasses.fields(PlanSettings)],
    bases=(_Priced,),
    namespace={"__doc__": "One plan, checked and priced, in the words of `astra predict`."},
    module=__name__,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
)


class ExplainQuestion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a plan, and why not another, in the words of `astra explain`."""

    plan: dict[str, Any]  # an answer of plan, a priced or a bare plan
    rank: Rank = 1
    against: str | dict[str, Any] | None = None
    quick: bool = False
    memory_margin: float | None = None

    def answer(self, how: Answering) -> object:
        return explanation_json(
            explain(
                _plans(self.plan),
                self.against,
                _rank(self.rank),
                quick=self.quick,
                margin=self.memory_margin,
                say=how.watch,
            )
        )


class ExportQuestion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Launch files for a plan as texts, in the words of `astra export`. Nothing is written."""

    plan: dict[str, Any]
    to: str
    rank: Rank = 1
    launcher: str = "torchrun"
    train_iters: int = 100
    lr: float = 1e-4
    zip: bool = False

    def answer(self, how: Answering) -> object:  # noqa: ARG002 - nothing is searched
        job = export(
            _plans(self.plan),
            self.to,
            None,
            rank=self.rank,
            launcher=self.launcher,
            train_iters=self.train_iters,
            learning_rate=self.lr,
        )
        files = tuple(FileText(name=name, text=job.texts[name]) for name in job.files)
        return ExportAnswer(
            files=files,
            zip=_zipped(files) if self.zip else None,
            expected=job.expected,
            not_expressed=job.not_expressed,
            next_steps=job.next_steps,
            notes=job.notes,
        )


class FileText(msgspec.Struct, frozen=True, kw_only=True):
    """A launch file."""

    name: str
    text: str


class ExportAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Launch files, and what to know about them."""

    files: tuple[FileText, ...]
    zip: bytes | None = None  # all of them, where it is asked for; base64 in JSON
    expected: tuple[str, ...]
    not_expressed: tuple[str, ...]
    next_steps: tuple[str, ...]
    notes: tuple[str, ...]


def _zipped(files: tuple[FileText, ...]) -> bytes:
    """The same files give the same bytes; scripts may be started."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in files:
            entry = zipfile.ZipInfo(file.name, ZIP_DATE)
            is_script = file.text.startswith("#!")
            entry.external_attr = (0o755 if is_script else 0o644) << 16
            archive.writestr(entry, file.text, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


class ImportQuestion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The plan of a job that runs today, from the text of its launch file."""

    text: str
    name: str = "launch.sh"  # by its ending it is known what it is
    gpus: Gpus = "h100"
    world_size: int | None = None
    model: Text | None = None
    seq_len: int | str | None = None
    vocab_size: int | None = None

    def answer(self, how: Answering) -> object:  # noqa: ARG002 - nothing is searched
        job = import_job(
            self.name,
            text=self.text,
            gpus=self.gpus,
            world_size=self.world_size,
            model=None if self.model is None else _model(self.model),
            seq_len=self.seq_len,
            vocab_size=self.vocab_size,
        )
        return ImportAnswer(
            plan=job.plan,
            framework=job.framework,
            assumed=job.assumed,
            not_understood=job.not_understood,
            refused=job.refused,
        )


class ImportAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it was read."""

    plan: Plan
    framework: str
    assumed: tuple[str, ...]
    not_understood: tuple[str, ...]
    refused: tuple[str, ...]


# By name: the words of the question, and what the answer is.
QUESTIONS: dict[str, tuple[Any, type]] = {
    "plan": (PlanQuestion, AnswerDocument),
    "predict": (PredictQuestion, PricedPlan),
    "explain": (ExplainQuestion, ExplanationDocument),
    "export": (ExportQuestion, ExportAnswer),
    "import": (ImportQuestion, ImportAnswer),
    "charts": (ChartsQuestion, ChartsAnswer),
    "trace": (TraceQuestion, StepTimeline),
}


def answer(name: str, body: bytes, how: Answering) -> bytes:
    """The JSON that answers a question; an InputError where its words cannot be used."""
    try:
        said = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{WHERE}: not valid JSON: {error}.") from None
    except RecursionError:
        raise InputError(f"{WHERE}: JSON nested too deep to be a question.") from None
    if not isinstance(said, dict):
        raise InputError(f'{WHERE}: an object with words is needed, {{"model": "llama-3-8b"}}.')
    kind, _ = QUESTIONS[name]
    return msgspec.json.encode(convert(said, kind, WHERE).answer(how))


def _model(said: Text) -> Model:
    """By its name or of its config; never by a path."""
    return known_model(said.strip()) if isinstance(said, str) else model_of(said)


def _about_money(said: MoneyOptions) -> dict[str, Any]:
    """What was said about money, as arguments of the API."""
    given = {name: getattr(said, name) for name in MoneyOptions.__struct_fields__}
    return {name: value for name, value in given.items() if value != getattr(NO_MONEY, name)}


def _plans(document: dict[str, Any]) -> dict[str, Any]:
    """An answer or a plan; rules must stand in it, not in a file that it names."""
    request = document.get("request")
    if isinstance(request, dict) and request.get("rules") is not None:
        raise InputError(
            "plan: request.rules names a file, and no file is read here. Put the rules themselves "
            'into request.rule_texts, ["$tp > 4"], and null in its place.'
        )
    return document


def _rank(said: Rank | None) -> Any:
    return 1 if said is None else said
