"""The command line from the outside: exit codes, streams, help, and bad input of every kind."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.cases import each_case

from astra.cli import main as door
from astra.cli.main import COMMANDS, help_text, parser_for, run
from astra.errors import InputError
from astra.strategy.rules.registry import rules_for
from astra.values import number, whole_number, word

Capture = pytest.CaptureFixture[str]
Call = Callable[..., tuple[int, str, str]]
ASTRA = Path(sys.executable).parent / "astra"
JOB = ("--gpus", "h100:16", "--global-batch", "64")


@pytest.fixture
def call(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> Call:
    """`astra WORDS` in this process: exit code, standard output, standard error."""

    def astra(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["astra", *words])
        try:
            code = door.main()
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 1
        out, err = capsys.readouterr()
        return code, out, err

    return astra


@pytest.fixture
def plan_file(tmp_path: Path, call: Call) -> Path:
    code, out, _ = call("predict", "llama-3-8b", *JOB, "--tp", "2", "--json")
    assert code == 0
    path = tmp_path / "plan.json"
    path.write_text(out)
    return path


# ------------------------------------------------------------------ help


@each_case("command", sorted(COMMANDS))
def test_the_help_of_every_command_has_examples_of_that_command(call: Call, command: str) -> None:
    code, out, err = call(command, "--help")
    assert (code, err) == (0, "")
    assert "examples:" in out and f"astra {command}" in out.partition("examples:")[2]
    assert "--json" in out


@pytest.mark.parametrize("words", [(), ("-h",), ("--help",), ("help",)])
def test_without_a_command_every_command_is_listed(call: Call, words: tuple[str, ...]) -> None:
    code, out, err = call(*words)
    assert (code, err) == (0, "")
    assert all(f"  {name} " in out and what in out for name, what in COMMANDS.items())


@each_case("command", sorted(COMMANDS))
def test_examples_in_the_help_are_options_that_exist(command: str) -> None:
    """Every option that an example uses is one the parser knows."""
    parser = parser_for(command)
    known = {text for action in parser._actions for text in action.option_strings}
    lines = [line for line in (parser.epilog or "").splitlines() if f"astra {command}" in line]
    assert lines
    for line in lines:
        call_only = line.partition(f"astra {command}")[2].split(">")[0]
        used = {text for text in call_only.split() if text.startswith("--")}
        assert used <= known, line


def test_examples_of_the_first_help_page_name_known_commands() -> None:
    lines = [line.split() for line in help_text().splitlines() if line.startswith("  astra ")]
    assert lines and all(words[1] in COMMANDS for words in lines)


def test_version_is_one_line(call: Call) -> None:
    code, out, err = call("--version")
    assert (code, err, len(out.splitlines())) == (0, "", 1) and out.startswith("astra ")


# ------------------------------------------------------------------ answers


ANSWERS = [
    ("models",),
    ("models", "llama-3-8b"),
    ("gpus",),
    ("gpus", "h100"),
    ("rules",),
    ("rules", "--runtime", "fsdp"),
    ("rules", "tp-divides-heads"),
    ("rules", "--names"),
    ("predict", "llama-3-8b", *JOB),
    ("predict", "mixtral-8x7b", *JOB, "--ep", "8"),
]


@each_case("words", ANSWERS)
def test_json_is_alone_on_standard_output(call: Call, words: tuple[str, ...]) -> None:
    code, out, _ = call(*words, "--json")
    assert code == 0
    assert isinstance(json.loads(out), dict)
    assert out.endswith("}\n")


MISTAKES = (
    ("plan llama-3-8 --gpus h100:8 --global-batch 8 --seq-len 4k", "model", "llama-3-8b"),
    ("plan llama-3-8b --gpus h10:8 --global-batch 8 --seq-len 4k", "gpus", "H100"),
    ("plan llama-3-8b --gpus h100:8 --global-batch 8 --seq-len 8q", "seq_len", None),
    ("plan llama-3-8b --gpus h100:8 --seq-len 8k", "global_batch", None),
    ("plan llama-3-8b --global-batch 8 --seq-len 8k", "gpus", None),
    ("explain gone.json", None, None),
    ("plann", None, "plan"),
)


@each_case("mistake", MISTAKES)
def test_a_mistake_is_json_too_where_json_was_asked_for(
    mistake: tuple[str, str | None, str | None], call: Call
) -> None:
    words, field, meant = mistake
    code, out, err = call(*words.split(), "--json")
    error = json.loads(out)["error"]
    assert code == 2 and err == f"astra: {error['message']}\n"
    assert error["field"] == field
    assert meant in error["suggestions"] if meant else error["suggestions"] == []


def test_a_refused_plan_names_its_rules_and_what_would_mend_each(call: Call) -> None:
    words = ("predict", "llama-3-8b", "--gpus", "h100:48", "--global-batch", "48")

    def refused(tp: int) -> tuple[list[dict[str, Any]], str]:
        _, out, err = call(*words, "--tp", str(tp), "--vpp", "2", "--json")
        return json.loads(out).get("error", {}).get("refused", []), err

    rules, err = refused(6)
    sources = {rule.name: rule.where for rule in rules_for("megatron")}
    assert len(rules) > 3 and all(rule["sentence"] in err for rule in rules[:3])
    for rule in rules:
        assert rule["sentence"].endswith(f"[rule {rule['rule']}]")
        assert rule["source"] == sources[rule["rule"]]
    mended = {
        rule["rule"]: each for rule in rules for each in rule["try"] if each["setting"] == "tp"
    }
    assert mended
    for name, each in mended.items():
        for value in each["values"]:
            assert name not in [rule["rule"] for rule in refused(value)[0]]


@pytest.mark.parametrize("words", ANSWERS, ids=" ".join)
def test_an_answer_for_people_has_no_trailing_blanks_and_fits_the_screen(
    call: Call, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    code, out, err = call(*words)
    assert (code, err) == (0, "")
    assert out.strip()
    for line in out.splitlines():
        assert line == line.rstrip()
        assert len(line) <= 100 or " " not in line.strip(), line


def test_export_as_json_has_the_texts_and_needs_no_folder(
    call: Call, plan_file: Path, tmp_path: Path
) -> None:
    words = ("export", str(plan_file), "--to", "megatron")
    code, out, _ = call(*words, "--json")
    answer = json.loads(out)
    assert code == 0 and answer["out"] is None and sorted(answer["texts"]) == answer["files"]
    assert call(*words, "--out", str(tmp_path / "job"))[0] == 0
    for name, text in answer["texts"].items():
        assert (tmp_path / "job" / name).read_text(encoding="utf-8") == text, name
    code, out, err = call(*words)
    assert (code, out) == (2, "") and "--out DIR" in err


def test_a_priced_plan_can_be_priced_again_with_the_same_answer(
    call: Call, plan_file: Path
) -> None:
    first = json.loads(plan_file.read_text())
    code, out, _ = call("predict", "--plan", str(plan_file), "--json")
    again = json.loads(out)
    assert code == 0
    for name in ("plan", "gpus", "summary", "step_s", "memory", "checkpoint_bytes"):
        assert again[name] == first[name], name


def test_rules_of_ones_own_are_checked(call: Call, tmp_path: Path) -> None:
    own = tmp_path / "my.rules"
    own.write_text("small: $tp < 4 && $gpu == h100\n")
    code, out, _ = call("rules", str(own), "--json")
    assert code == 0 and json.loads(out)["rules"][0]["name"] == "small"


# ------------------------------------------------------------------ export


def test_export_writes_the_files_it_names(call: Call, plan_file: Path, tmp_path: Path) -> None:
    out_folder = tmp_path / "job"
    words = ("export", str(plan_file), "--to", "megatron", "--out", str(out_folder))
    code, out, err = call(*words, "--json")
    assert (code, err) == (0, "")
    named = json.loads(out)["files"]
    own = ["args.txt", "env.txt", "launch.sh", "plan.json"]
    assert named == sorted([*own, "README.md", "check.py", "expected.json"])
    assert sorted(path.name for path in out_folder.iterdir()) == named
    code, out, err = call(*words)
    assert code == 0 and f"Wrote 7 files to {out_folder}" in " ".join(out.split())


def test_export_of_all_ranks_makes_one_folder_each(
    call: Call, plan_file: Path, tmp_path: Path
) -> None:
    priced = json.loads(plan_file.read_text())
    result = tmp_path / "result.json"
    result.write_text(json.dumps({"plans": [priced, priced, priced]}))
    words = ("export", str(result), "--to", "megatron", "--rank")
    assert call(*words, "all", "--out", str(tmp_path / "all"))[0] == 0
    folders = sorted(path.name for path in (tmp_path / "all").iterdir())
    assert folders == ["rank-001", "rank-002", "rank-003"]
    assert call(*words, "3", "--out", str(tmp_path / "third"))[0] == 0
    third, last = tmp_path / "third", tmp_path / "all" / "rank-003"
    assert sorted(p.name for p in third.iterdir()) == sorted(p.name for p in last.iterdir())
    for path in third.iterdir():
        assert path.read_text() == (last / path.name).read_text()


def test_an_exported_plan_can_be_priced_and_exported_again(
    call: Call, plan_file: Path, tmp_path: Path
) -> None:
    for source, folder in ((plan_file, "one"), (tmp_path / "one" / "plan.json", "two")):
        words = ("export", str(source), "--to", "megatron", "--out", str(tmp_path / folder))
        assert call(*words)[0] == 0
    one, two = (tmp_path / folder for folder in ("one", "two"))
    assert (one / "args.txt").read_text() == (two / "args.txt").read_text()
    assert call("predict", "--plan", str(two / "plan.json"))[0] == 0


def test_an_export_that_fails_leaves_nothing(call: Call, plan_file: Path, tmp_path: Path) -> None:
    plan = json.loads(plan_file.read_text())["plan"]
    plan["pipelines"][0]["segments"][0]["tp"] = 3
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(plan))
    code, out, err = call("export", str(broken), "--to", "megatron", "--out", str(tmp_path / "x"))
    assert (code, out) == (2, "") and "Megatron-LM cannot run this plan" in err
    assert not (tmp_path / "x").exists()


# ------------------------------------------------------------------ bad input

LONG = "x" * 5000
PREDICT = ("predict", "llama-3-8b")
BAD: list[tuple[tuple[str, ...], str]] = [
    (("plam",), "unknown command 'plam'"),
    (("predct",), "Did you mean predict?"),
    (("modles",), "Did you mean models"),
    (("",), "unknown command ''"),
    (("--json",), "unknown command '--json'"),
    ((LONG,), "unknown command"),
    (("models", "--jsn"), "Did you mean --json?"),
    (("plan", "llama-3-8b", "--gpus", "h100:8", "--seq-lenn", "8k"), "Did you mean --seq-len"),
    (("plan", "--gpu", "h100:8"), "'--gpu'. Did you mean --gpus or --max-gpus? (`astra plan"),
    (("explain", "--gpu", "h100:8"), "unknown option '--gpu'. (`astra explain --help`"),
    (("models", "--filter"), "expected one argument"),
    (("models", "llama-3-8b", "extra"), "one argument too many: 'extra'"),
    (("gpus", "", ""), "one argument too many: ''"),
    (("models", "llama3-8b"), "Did you mean"),
    (("models", "lama-3-8b"), "llama-3-8b"),
    (("models", ""), "no model given"),
    (("models", LONG), "neither a model's name nor a path"),
    (("models", "no/such/file.json"), "no such file"),
    (("models", "/"), "holds no config.json"),
    (("models", "nobody/nothing"), "nothing is fetched"),
    (("models", "llama-3-8b", "--filter", "x"), "leave it out"),
    (("models", "--filter", "zzzzzz"), "no known model"),
    (("models", "--seq-len", "0"), "whole number from 1"),
    (("models", "--seq-len", "-5"), "whole number from 1"),
    (("models", "--seq-len", "1e9"), "whole number from 1"),
    (("models", "--seq-len", "9" * 300), "whole number from 1"),
    (("gpus", "h1000"), "Did you mean"),
    (("gpus", ""), "unknown GPU"),
    (("gpus", LONG), "unknown GPU"),
    (("gpus", "./none.toml"), "no such file"),
    (("gpus", "h100", "--filter", "x"), "exclude each other"),
    (("rules", "tp-divides-head"), "Did you mean tp-divides-heads"),
    (("rules", LONG), "neither a rule"),
    (("rules", "--runtime", "megatrn"), "Did you mean megatron?"),
    (("rules", "--runtime", ""), "--runtime '': not known"),
    (("rules", "/"), "is a folder"),
    (("rules", "/dev/null", "--runtime", "x"), "not known"),
    (("predict",), "name a model"),
    (PREDICT, "--gpus h100:64"),
    ((*PREDICT, "--gpus", "h100:16"), "--global-batch is missing"),
    ((*PREDICT, "--global-batch", "64"), "give the GPUs"),
    ((*PREDICT, "--gpus", "h100", "--global-batch", "64"), "Try h100:8"),
    ((*PREDICT, "--gpus", "h100:0", "--global-batch", "64"), "no GPUs at all"),
    ((*PREDICT, "--gpus", "h100:-8", "--global-batch", "64"), "not a whole number of GPUs"),
    ((*PREDICT, "--gpus", "h100:1e3", "--global-batch", "64"), "not a whole number of GPUs"),
    ((*PREDICT, "--gpus", f"h100:{'9' * 400}", "--global-batch", "64"), "too many"),
    ((*PREDICT, "--gpus", "h100:8,h100:8", "--global-batch", "64"), "given twice"),
    ((*PREDICT, "--gpus", "x100:8", "--global-batch", "64"), "unknown GPU 'x100'"),
    ((*PREDICT, "--gpus", "", "--global-batch", "64"), "--gpus is empty"),
    ((*PREDICT, *JOB, "--cluster", "c.toml"), "and not both"),
    ((*PREDICT, "--cluster", "none.toml", "--global-batch", "64"), "no such file"),
    ((*PREDICT, "--gpus", "h100:16", "--global-batch", "0"), "must lie between 1"),
    ((*PREDICT, "--gpus", "h100:16", "--global-batch", "-64"), "must lie between 1"),
    ((*PREDICT, "--gpus", "h100:16", "--global-batch", "many"), "not a whole number"),
    ((*PREDICT, "--gpus", "h100:16", "--global-batch", "1e3"), "not a whole number"),
    ((*PREDICT, "--gpus", "h100:16", "--global-batch", "9" * 400), "must lie between 1"),
    ((*PREDICT, "--gpus", "h100:16", "--global-batch", "65"), "[rule batch-adds-up]"),
    ((*PREDICT, *JOB, "--tp", "3"), "do not divide into replicas of 3"),
    (("predict", "gpt2-xl", *JOB, "--tp", "2"), "(tp 2, heads 25) [rule tp-divides-heads]"),
    ((*PREDICT, *JOB, "--tp", ""), "not a whole number"),
    ((*PREDICT, *JOB, "--pp", "99"), "Try --pp 32"),
    ((*PREDICT, *JOB, "--dp", "99"), "Try --dp 16"),
    ((*PREDICT, *JOB, "--vpp", "3"), "Try"),
    ((*PREDICT, *JOB, "--ep", "2"), "needs a model with experts"),
    ((*PREDICT, *JOB, "--etp", "2"), "expert settings belong to models with experts"),
    ((*PREDICT, *JOB, "--seq-len", "0"), "must lie between 1"),
    ((*PREDICT, *JOB, "--mtp-layers", "10000000"), "must lie between 0 and 1,000,000"),
    ((*PREDICT, *JOB, "--sharding", "optimiser"), "Did you mean optimizer"),
    ((*PREDICT, *JOB, "--precision", "fp12"), "Did you mean"),
    ((*PREDICT, *JOB, "--precision", "fp4"), "no units for this precision"),
    ((*PREDICT, *JOB, "--recompute", "some"), "not a recompute setting"),
    ((*PREDICT, *JOB, "--recompute", "selective:mpl"), "Did you mean mlp"),
    ((*PREDICT, *JOB, "--layers-per-stage", "16,x"), "entry 2 'x': not a whole number"),
    ((*PREDICT, *JOB, "--layers-per-stage", "16,15"), "[rule holds-every-layer]"),
    ((*PREDICT, *JOB, "--layers-per-stage", "16,16", "--pp", "4"), "give one entry per stage"),
    ((*PREDICT, *JOB, "--chunk-layers", "1,2,3"), "chunk_layers has 3 entries"),
    ((*PREDICT, *JOB, "--moment-dtypes", "fp32"), "give two"),
    ((*PREDICT, *JOB, "--moment-dtypes", "fp32,fp33"), "Did you mean fp32"),
    ((*PREDICT, *JOB, "--offload-optimizer-fraction", "2"), "must lie between 0 and 1"),
    ((*PREDICT, *JOB, "--offload-optimizer-fraction", "nan"), "must lie between 0 and 1"),
    ((*PREDICT, *JOB, "--offload-activations", "core_attn,mlp_norm"), "no module"),
    ((*PREDICT, *JOB, "--offload-activations", ""), "no module"),
    ((*PREDICT, *JOB, "--capacity-factor", "x"), "not a number"),
    ((*PREDICT, *JOB, "--sequence-paralel"), "Did you mean --sequence-parallel"),
    ((*PREDICT, *JOB, "--sequence-parallel"), "[rule sequence-parallel-needs-tp]"),
    ((*PREDICT, *JOB, "--no-tp"), "unknown option"),
    ((*PREDICT, *JOB, "--runtime", "fdsp"), "Did you mean fsdp"),
    ((*PREDICT, *JOB, "--memory-margin", "1.5"), "must lie between 0 and 0.9"),
    ((*PREDICT, *JOB, "--memory-margin", "-0.1"), "must lie between 0 and 0.9"),
    ((*PREDICT, *JOB, "--memory-margin", "5%"), "not a number"),
    ((*PREDICT, *JOB, "--rank", "2"), "give --plan FILE"),
    ((*PREDICT, "--plan", "p.json"), "leave out model"),
    (("predict", "--plan", "p.json", *JOB), "leave out --gpus, --global-batch"),
    (
        ("predict", "--plan", "p.json", "--tp", "2", "--no-overlap-tp"),
        "leave out --tp, --overlap-tp",
    ),
    (("predict", "--plan", "p.json", "--runtime", "fsdp"), "leave out --runtime"),
    (("predict", "--plan", "p.json", "--stack", "megatron"), "leave out --stack"),
    (("predict", "--plan", "none.json"), "none.json: no such file"),
    (("predict", "--plan", "/"), "is a folder"),
    (("predict", "--plan", "/dev/zero"), "is a device"),
    (("predict", "--plan", ""), "is a folder"),
    (("predict", "--plan", LONG), "cannot be read"),
    (("predict", "--plan", "p.json", "--rank", "0"), "--rank '0'"),
    (("predict", "nobody.toml", *JOB), "no such file"),
    (("export",), "the following arguments are required: FILE, --to"),
    (("export", "p.json", "--to", "megatron"), "--out DIR: where are the launch files to go?"),
    (("export", "p.json", "--to", "megatrn", "--out", "x"), "Did you mean megatron"),
    (("export", "p.json", "--to", "megatron", "--out", ""), "not the name of a folder"),
    (("export", "p.json", "--to", "megatron", "--out", "\udcff"), "not the name of a folder"),
    (("export", "p.json", "--to", "megatron", "--out", "x", "--rank", "al"), "--rank 'al'"),
    (("export", "p.json", "--to", "megatron", "--out", "x", "--lr", "0"), "--lr '0'"),
    (
        ("export", "p.json", "--to", "megatron", "--out", "x", "--train-iters", "-1"),
        "--train-iters",
    ),
    (("export", "none.json", "--to", "megatron", "--out", "x"), "no such file"),
]


@each_case("words, said", BAD)
def test_bad_input_is_told_in_one_paragraph_and_code_two(
    call: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call(*words)
    assert (code, out) == (2, "")
    assert err.startswith("astra: ") and err.endswith("\n")
    assert said in err.encode(errors="replace").decode()
    assert err.count("\n") == 1 and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


PLAN_FILES = {
    "{": "was it cut off",
    "[]": "holds no plan",
    "\x00": "not valid JSON",
    '{"plan": {"model": 1}}': "plan: model = 1",
    '{"pipelines": []}': "is missing",
    "[" * 10_000: "nested too deep",
}


@each_case("text", sorted(PLAN_FILES))
@each_case("command", ["predict", "export"])
def test_a_broken_plan_file_is_bad_input(
    call: Call, tmp_path: Path, command: str, text: str
) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    words: dict[str, tuple[str, ...]] = {
        "predict": ("predict", "--plan", str(path)),
        "export": ("export", str(path), "--to", "megatron", "--out", str(tmp_path / "job")),
    }
    code, out, err = call(*words[command])
    assert (code, out) == (2, "") and PLAN_FILES[text] in err
    assert not (tmp_path / "job").exists()


@given(st.lists(st.text(max_size=12), max_size=4), st.sampled_from(sorted(COMMANDS)))
@settings(max_examples=120, deadline=None)
def test_any_words_are_an_answer_or_an_input_error(words: list[str], command: str) -> None:
    if any(word in ("-h", "--help") for word in words):
        return
    arguments = [word for word in words if not word.startswith(("/", "."))]
    try:
        parser_for(command).parse_args(arguments)
    except InputError as error:
        assert str(error).isprintable()


# ------------------------------------------------------------------ numbers and words


@given(st.text(max_size=30) | st.floats().map(str) | st.floats(-1, 3).map(str))
@example("2")
def test_a_number_on_the_command_line_is_in_range_or_an_input_error(text: str) -> None:
    try:
        assert 1 <= whole_number(text, "--n", least=1, most=100) <= 100
    except InputError as error:
        assert str(error).startswith("--n ")
    try:
        assert 0.5 <= number(text, "--x", least=0.5, most=2.0) == float(text) <= 2
    except InputError as error:
        assert str(error).startswith("--x ")


@given(st.integers(-(10**30), 10**30))
def test_whole_numbers_are_taken_at_their_word(value: int) -> None:
    if 1 <= value <= 10**7:
        assert whole_number(str(value), "--n") == value
    else:
        with pytest.raises(InputError, match="must lie between 1 and 10,000,000"):
            whole_number(str(value), "--n")


@pytest.mark.parametrize("text", ["0" * 19 + "12", "0" * 30 + "7", "9" * 21])
def test_a_number_is_never_read_in_part(text: str) -> None:
    with pytest.raises(InputError, match="must lie between"):
        whole_number(text, "--n")


def test_a_word_must_be_one_of_the_known() -> None:
    assert word("flash", "--attention", ("flash", "unfused")) == "flash"
    with pytest.raises(InputError, match="Did you mean flash"):
        word("flsh", "--attention", ("flash", "unfused"))


# ------------------------------------------------------------------ as a program


def program(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ASTRA), *words], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_installed_program_answers_and_refuses() -> None:
    good = program("rules", "tp-divides-heads", "--json")
    assert (good.returncode, good.stderr) == (0, "")
    assert json.loads(good.stdout)["name"] == "tp-divides-heads"
    bad = program("rules", "tp-divides-head")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.startswith("astra: 'tp-divides-head'")


def test_python_dash_m_is_the_same_program() -> None:
    words = [sys.executable, "-m", "astra", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == program("--version").stdout


def test_a_reader_that_stops_early_is_no_error() -> None:
    script = f'"{ASTRA}" models | true; echo "${{PIPESTATUS[0]}}"'  # gone before the first line
    words = ["bash", "-c", script]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device")
def test_a_full_disk_is_told_without_a_traceback() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [str(ASTRA), "gpus"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr == "astra: the answer cannot be written: No space left on device.\n"


@pytest.mark.slow
def test_bytes_that_are_no_text_are_bad_input() -> None:
    for words in (["models"], ["gpus"], ["rules"], ["predict", "--plan"]):
        done = subprocess.run(
            [os.fsencode(ASTRA), *map(os.fsencode, words), b"\xff\xfe"],
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout) == (2, b"")
        assert done.stderr.startswith(b"astra: ") and b"Traceback" not in done.stderr


def test_nothing_heavy_is_imported_for_help() -> None:
    code = "import sys; from astra.cli.main import run; run(['--help']); print(sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = done.stdout.splitlines()[-1]
    for heavy in ("numpy", "rich", "msgspec", "torch", "yaml"):
        assert f"'{heavy}'" not in loaded


def test_run_raises_what_main_prints() -> None:
    with pytest.raises(InputError, match="unknown command"):
        run(["nonsense"])


def test_export_verify_writes_nothing_that_the_framework_refuses(
    call: Call, plan_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from astra.export import verify as verifying

    words = ("export", str(plan_file), "--to", "megatron", "--launcher", "slurm", "--verify")
    monkeypatch.setattr(verifying, "_found", lambda _: False)
    code, out, err = call(*words, "--out", str(tmp_path / "job"))
    assert (code, err) == (0, "") and (tmp_path / "job" / "job.sbatch").is_file()
    assert "megatron: not checked: megatron.training is not installed" in " ".join(out.split())
    refused = verifying.FrameworkCheck("megatron", "refused", "AssertionError: no")
    monkeypatch.setattr(verifying, "verify", lambda *_: [refused])
    code, out, err = call(*words, "--out", str(tmp_path / "other"))
    assert code == 2 and "megatron: refused: AssertionError: no. Nothing was written" in err
    assert not (tmp_path / "other").exists()
