"""Export targets of installed packages, found by their entry points."""

import json
import sys
from pathlib import Path

import msgspec
import pytest
from tests.support.launch_plans import plain_plan

import astra
from astra.cli.main import main, run
from astra.errors import InputError
from astra.export.targets import TARGETS, export_files, target_named

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_target"
MODULE = "import astra\nTARGET = astra.Target(name='x', runtime='megatron', files={files})\n"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Install":
    return Install(tmp_path / "site", monkeypatch)


class Install:
    """Puts packages where importlib.metadata finds them, without pip."""

    def __init__(self, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.site, self.monkeypatch = site, monkeypatch
        site.mkdir()
        monkeypatch.syspath_prepend(str(site))

    def __call__(self, package: str, entry: str, text: str | None = None) -> None:
        """`entry`: `name = module:object`; `text`: of the module, where it is not there."""
        info = self.site / f"{package.replace('-', '_')}-0.1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1.0\n")
        (info / "entry_points.txt").write_text(f"[astra.targets]\n{entry}\n")
        module = entry.partition("= ")[2].partition(":")[0]
        if text is not None:
            (self.site / f"{module}.py").write_text(text)
        self.monkeypatch.delitem(sys.modules, module, raising=False)


@pytest.fixture
def plan_file(tmp_path: Path) -> str:
    path = tmp_path / "plan.json"
    path.write_text(export_files(plain_plan(), "megatron")["plan.json"])
    return str(path)


@pytest.fixture
def example(install: Install) -> None:
    """The package of `examples/my_target`, as its pyproject.toml names it."""
    (entry,) = [
        line.replace('"', "")
        for line in (EXAMPLE / "pyproject.toml").read_text().splitlines()
        if line.startswith("my-trainer = ")
    ]
    install("my-target", entry, (EXAMPLE / "my_target.py").read_text())


@pytest.mark.usefixtures("example")
def test_the_example_is_found_written_and_started_like_any_target(
    tmp_path: Path, plan_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "job"
    assert run(["export", plan_file, "--to", "my-trainer", "--out", str(out), "--lr", "3e-5"]) == 0
    page = capsys.readouterr().out
    assert "trainer.json" in page and "export TRAIN_SCRIPT=train.py" in page
    plan, said = plain_plan(), json.loads((out / "trainer.json").read_text())
    assert said["parallel"]["tp"] == plan.tp and said["learning_rate"] == 3e-5
    script = (out / "launch.sh").read_text()
    assert "exec torchrun" in script and '--config "$here/trainer.json"' in script
    for name in ("env.txt", "plan.json", "README.md", "expected.json", "check.py"):
        assert (out / name).exists()
    assert "Written by Astra for my trainer." in (out / "README.md").read_text()


@pytest.mark.usefixtures("example")
def test_every_launcher_starts_an_installed_target(tmp_path: Path) -> None:
    for launcher, file in (("slurm", "job.sbatch"), ("kubernetes", "jobset.yaml")):
        job = astra.export(plain_plan(), "my-trainer", tmp_path / launcher, launcher=launcher)
        assert file in job.files and job.notes == ()


@pytest.mark.usefixtures("example")
def test_an_installed_target_is_listed_beside_the_built_in_ones(
    tmp_path: Path, plan_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(["export", "--help"])
    assert "deepspeed, my-trainer" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(InputError, match="Did you mean my-trainer"):
        run(["export", plan_file, "--to", "my-trainr", "--out", str(tmp_path / "job")])
    with pytest.raises(InputError, match=r"Use one of megatron, .*deepspeed, my-trainer"):
        astra.export(plan_file, "zzz", tmp_path / "job")


@pytest.mark.usefixtures("example")
def test_the_rules_of_its_runtime_and_its_own_refusals_hold(tmp_path: Path) -> None:
    fsdp = astra.predict(
        "llama-3-8b", gpus={"h100": 16}, global_batch=64, seq_len=4096, runtime="fsdp"
    )
    with pytest.raises(InputError, match="is not my trainer's; plan it again with runtime="):
        astra.export(fsdp, "my-trainer", tmp_path / "job")
    interleaved = astra.predict(
        "llama-3-8b", gpus={"h100": 16}, global_batch=64, seq_len=4096, tp=2, pp=4, vpp=2
    )
    with pytest.raises(InputError, match=r"no words for interleaved stages.*Megatron-LM can"):
        astra.export(interleaved, "my-trainer", tmp_path / "job")


@pytest.mark.usefixtures("example")
def test_verify_says_that_it_has_no_check_of_its_own(tmp_path: Path) -> None:
    job = astra.export(plain_plan(), "my-trainer", tmp_path / "job", verify=True)
    assert job.verified[0].startswith("my-trainer: not checked")


BROKEN = {
    "cannot be imported: ImportError: no torch": (
        "bad = bad_one:TARGET",
        "raise ImportError('no torch')",
    ),
    "cannot be imported: AttributeError": ("bad = bad_two:TARGET", ""),
    "an astra.Target is needed, not 7": ("bad = bad_three:TARGET", "TARGET = 7"),
    "runtime 'slow' is not known. Use one of megatron": (
        "bad = bad_four:TARGET",
        MODULE.format(files="dict").replace("megatron", "slow"),
    ),
    "7 is not a function": ("bad = bad_five:TARGET", MODULE.format(files="7")),
}


@pytest.mark.parametrize("words", BROKEN)
def test_a_broken_target_is_an_error_where_it_is_asked_for_and_a_note_elsewhere(
    words: str,
    install: Install,
    tmp_path: Path,
    plan_file: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install("bad-package", *BROKEN[words])
    with pytest.raises(InputError, match="--to bad: bad-package ") as error:
        run(["export", plan_file, "--to", "bad", "--out", str(tmp_path / "job")])
    assert words in str(error.value)
    assert run(["export", plan_file, "--to", "megatron", "--out", str(tmp_path / "job")]) == 0
    assert words in capsys.readouterr().err
    assert run(["gpus", "h100"]) == 0
    assert "bad-package" not in "".join(capsys.readouterr())


def test_a_built_in_name_stays_ours_with_a_note(install: Install, tmp_path: Path) -> None:
    install("shadow", "megatron = shadowing:TARGET", MODULE.format(files="dict"))
    assert target_named("megatron") is TARGETS["megatron"]
    job = astra.export(plain_plan(), "megatron", tmp_path / "job")
    assert "args.txt" in job.files
    assert "megatron is a target of Astra's own" in job.notes[0] and "shadow" in job.notes[0]


def test_two_packages_with_one_name_are_both_named(install: Install, tmp_path: Path) -> None:
    install("one", "same = one_module:TARGET", MODULE.format(files="dict"))
    install("two", "same = two_module:TARGET", MODULE.format(files="dict"))
    with pytest.raises(InputError, match=r"one \(.*\) and two \(.*\) both name a target same"):
        astra.export(plain_plan(), "same", tmp_path / "job")


FILES = {
    "its files are 7; a dict is needed": "lambda *_, **__: 7",
    "'../x' is no name of a file": "lambda *_, **__: {'../x': ''}",
    "'/etc/x' is no name of a file": "lambda *_, **__: {'/etc/x': ''}",
    "a.json: its text is 7": "lambda *_, **__: {'a.json': 7}",
    "plan.json is written by Astra": "lambda *_, **__: {'plan.json': ''}",
}


@pytest.mark.parametrize("words", FILES)
def test_files_that_cannot_be_written_are_refused(
    words: str, install: Install, tmp_path: Path
) -> None:
    install("files", "odd = odd_files:TARGET", MODULE.format(files=FILES[words]))
    with pytest.raises(InputError) as error:
        astra.export(plain_plan(), "odd", tmp_path / "job")
    assert words in str(error.value)
    assert not (tmp_path / "job").exists()


def test_a_script_of_its_own_stands(install: Install) -> None:
    own = "lambda *_, **__: {'launch.sh': 'true'}"
    install("own", "own = own_script:TARGET", MODULE.format(files=own))
    assert export_files(plain_plan(), "own")["launch.sh"] == "true"


FAULTS = {
    "its refusals are 'vpp'; a list of texts is needed": "refusals=lambda plan: 'vpp'",
    "its unsupported are 'data'; a list of texts is needed": "unsupported=lambda plan: 'data'",
    "its refusals are [7]; a list of texts is needed": "refusals=lambda plan: [7]",
    "its refusals failed: ZeroDivisionError: division by zero": "refusals=lambda plan: 1 / 0",
    "its files failed: KeyError: 'no key'": "files=lambda *_, **__: {}['no key']",
}


@pytest.mark.parametrize("words", FAULTS)
def test_a_fault_inside_a_target_names_the_target_and_its_package(
    words: str, install: Install, tmp_path: Path, plan_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = "" if FAULTS[words].startswith("files") else "files=lambda *_, **__: {}, "
    text = (
        f"import astra\nTARGET = astra.Target(name='x', runtime='megatron', {more}{FAULTS[words]})"
    )
    install("faulty", "faulty = faulty_module:TARGET", text)
    command = ["astra", "export", plan_file, "--to", "faulty", "--out", str(tmp_path / "job")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", command)
        assert main() == 2
    said = capsys.readouterr().err
    assert f"x, of faulty (faulty = faulty_module:TARGET): {words}" in said
    assert ("faulty_module.py, line 2" in said) == ("failed" in words)
    assert not (tmp_path / "job").exists()


def test_a_faulty_target_is_not_advised_in_place_of_another(install: Install) -> None:
    faulty = MODULE.format(files="dict").replace(")\n", ", refusals=lambda plan: 1 / 0)\n")
    install("faulty", "a-faulty = advised_module:TARGET", faulty)
    refuses = MODULE.format(files="dict").replace(")\n", ", refusals=lambda plan: ['it'])\n")
    install("refuses", "refuses = refusing_module:TARGET", refuses)
    with pytest.raises(InputError, match=r"no words for it\. Megatron-LM can"):
        export_files(plain_plan(), "refuses")


@pytest.mark.usefixtures("example")
def test_the_example_keeps_quiet_about_no_setting(tmp_path: Path) -> None:
    plan = astra.predict(
        "llama-3-8b", gpus={"h100": 16}, global_batch=64, seq_len=4096, tp=2, recompute="full"
    ).plan
    job = astra.export(plan, "my-trainer", tmp_path / "job")
    assert job.not_expressed == ("sharding = optimizer", f"recompute = {plan.recompute}")
    offloaded = msgspec.structs.replace(plan, offload_optimizer_fraction=1.0)
    with pytest.raises(InputError, match=r"my trainer cannot run this plan: .*offload"):
        astra.export(offloaded, "my-trainer", tmp_path / "other")
