"""Scripts are read as text: variables and arrays filled in, nothing ever run."""

from pathlib import Path

import pytest
from tests.support.cases import each_case

from astra.imports.shell import read_script


def words_of(text: str) -> list[str]:
    return read_script(text).commands[-1]


@each_case(
    "text, words",
    [
        ("A=4\nrun --tp $A", ["run", "--tp", "4"]),
        ("A=4; run --tp ${A}", ["run", "--tp", "4"]),
        ("run --tp ${A:-8} ${B-x}", ["run", "--tp", "8", "x"]),
        ("A=2\nrun ${A:-8}", ["run", "2"]),
        (': "${A:=4}"\nrun --tp $A', ["run", "--tp", "4"]),
        ('A=2\n: "${A:=4}" "${B:=8}"\nrun $A$B', ["run", "28"]),
        ("run ${A:-4} $A", ["run", "4", "$A"]),
        ("A=2 B=3\nrun $((A * B)) $(($A+1)) $((64 / ${A}))", ["run", "6", "3", "32"]),
        ("ARGS=(--a 1\n  --b 2 # why\n)\nrun ${ARGS[@]}", ["run", "--a", "1", "--b", "2"]),
        ('ARGS=(--a "x y")\nARGS+=(--c)\nrun "${ARGS[@]}"', ["run", "--a", "x y", "--c"]),
        ('ARGS=" --a 1 \\\n --b 2"\nrun $ARGS', ["run", "--a", "1", "--b", "2"]),
        ('A="--a 1"\nA="$A --b"\nA+=" --c"\nrun $A', ["run", "--a", "1", "--b", "--c"]),
        ("run --a \\\n  --b 2 \\\n  --c", ["run", "--a", "--b", "2", "--c"]),
        ("run 'single $A' \"double ${A}\"", ["run", "single $A", "double ${A}"]),
        ("export A=1\ndeclare -r B=2\nrun $A$B", ["run", "12"]),
        ('export "A=4" B=2\nrun $A$B', ["run", "42"]),
        ("run --a 1 > log.txt 2>&1", ["run", "--a", "1"]),
        ("run --a 1 2>&1 | tee log", ["tee", "log"]),
        ("A=1\r\nrun $A\r\n", ["run", "1"]),
        ('run "$@" --a', ["run", "--a"]),
        ("cat <<EOT > x.json\n{ run }\nEOT\nrun --a", ["run", "--a"]),
        ("A=`cat x y`\nrun --tp $A", ["run", "--tp", "`cat x y`"]),
        ("for A in 1 2 $B 4; do\n  run --tp $A\ndone", ["run", "--tp", "4"]),
    ],
)
def test_words_are_what_a_shell_would_make_of_them(text: str, words: list[str]) -> None:
    assert words_of(text) == words


def test_what_only_a_shell_knows_stays_text_and_is_listed(tmp_path: Path) -> None:
    canary = tmp_path / "ran"
    text = f"A=$(touch {canary})\nB=`touch {canary}`\nrun $A --b $B --c $NOBODY; touch {canary}"
    script = read_script(text)
    assert not canary.exists()
    assert script.commands[0][-1] == "$NOBODY"
    assert script.unknown == [f"$(touch {canary})", f"`touch {canary}`", "$NOBODY"]


def test_a_value_set_in_a_branch_is_told() -> None:
    script = read_script("A=1\nif [ $1 ]; then\n  A=2\nfi\nB=3\nrun $A")
    assert script.branched == ["A"]
    assert script.commands[-1] == ["run", "2"]


def test_slurm_says_how_many_nodes() -> None:
    script = read_script("#SBATCH --nodes=4\n#SBATCH --ntasks-per-node 8\nrun $SLURM_NTASKS")
    assert script.scheduler == {"nodes": "4", "ntasks-per-node": "8"}
    assert script.commands == [["run", "32"]]


@each_case(
    "text",
    [
        "${",
        "$((",
        "$(",
        "`",
        "'",
        '"',
        "A=(",
        "${A[@",
        "$((1/0))",
        "$((9**9**9))",
        "<<",
        "((((",
        "\\",
    ],
)
def test_broken_scripts_end(text: str) -> None:
    read_script(f"run {text}")
    read_script(text)


def test_sums_are_worked_out_and_nothing_else() -> None:
    text = "$((__import__('os').system('true')))"
    assert words_of(f"run {text}") == ["run", text]


@pytest.mark.parametrize(
    "text",
    [
        "[ -n x ] && A=1",
        "test -f y || A=1",
        "[ -n x ] &&\n  A+=(--b)",
        "if true; then\n A=1\nfi",
        "for A in 1 2; do :; done",
    ],
)
def test_what_may_be_set_or_not_is_told(text: str) -> None:
    assert read_script(f"{text}\nB=2").branched == ["A"]


def test_what_follows_a_condition_is_certain_again() -> None:
    assert read_script("cd x && run &\nA=1 | B=2; C=3\nD=4").branched == []


def test_a_file_that_is_sourced_is_read_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "sizes.sh").write_text("A=8\nB=$((A / 2))\n")
    (tmp_path / "again.sh").write_text(". again.sh\nC=1\n")
    text = 'A=2\n{} sizes.sh\nsource "$(dirname "$0")/again.sh"\nrun $A $B $C'
    for word in ("source", "."):
        script = read_script(text.format(word), tmp_path)
        assert script.commands == [["run", "8", "4", "1"]]
        assert (script.sourced, script.absent) == (["sizes.sh", "again.sh"], [])
    alone = read_script(text.format("source"))
    assert alone.commands[-1][:2] == ["run", "2"] and alone.absent[0] == "sizes.sh"
    assert read_script("source /etc/hosts\nrun", tmp_path).absent == ["/etc/hosts"]
