"""Notes in words: every code has a sentence, and nobody but `report` makes or asks for one."""

import ast
import re
from pathlib import Path

import pytest

import astra
from astra.notes import HEADINGS, Note, NoteCode, has, note
from astra.report.words import SENTENCES, joined_words, words

SOURCE = Path(astra.__file__).parent
GIB = 2**30


def test_every_code_has_its_sentence() -> None:
    assert set(SENTENCES) == set(NoteCode)


def test_every_code_is_said_somewhere() -> None:
    """A code that nothing makes is a sentence that nobody reads."""
    rooms = [path for path in SOURCE.rglob("*.py") if path.name not in ("notes.py", "words.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in rooms)
    unused = [code.name for code in NoteCode if f"NoteCode.{code.name}" not in text]
    assert unused == []


def test_no_room_below_report_reads_sentences() -> None:
    """`warnings` are for people and for JSON; code asks `notes`."""
    below = ("cost", "search", "explain", "fit", "money", "hardware", "strategy")
    found = [
        f"{path.relative_to(SOURCE)}:{node.lineno}"
        for room in below
        for path in (SOURCE / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr == "warnings"
    ]
    assert found == []


@pytest.mark.parametrize(
    ("said", "text"),
    [
        (
            note(NoteCode.DOES_NOT_FIT, stage=3, needed_bytes=80 * GIB, usable_bytes=75.1 * GIB),
            "does not fit: stage 3 needs 80.0 GiB, 75.1 GiB are usable beside the margin",
        ),
        (note(NoteCode.TRY_GPUS, count=40, gpu=None), "40 GPUs"),
        (note(NoteCode.TRY_GPUS, count=40, gpu="L4"), "40 L4"),
        (note(NoteCode.MORE_NETWORK, factor=2), "2 x the network"),
        (note(NoteCode.MORE_NETWORK, factor=2, gpu="L4"), "2 x the network of L4"),
        (
            note(NoteCode.RAM_UNKNOWN_OF_PLANS, ranks=[2, 5], needed_bytes=700 * GIB),
            "plans 2, 5 offload up to 700 GiB a node, and how much RAM a node has is not known: "
            "see that it is enough, or give ram_bytes in a cluster file",
        ),
    ],
    ids=lambda value: value.code if isinstance(value, Note) else "",
)
def test_numbers_are_put_into_words(said: Note, text: str) -> None:
    assert words(said) == text


def test_headings_lead_what_follows_them() -> None:
    vendor = note(NoteCode.OF_VENDOR, vendor="AMD")
    other = note(NoteCode.OF_VENDOR, vendor="NVIDIA")
    assert vendor.code in HEADINGS
    said = [vendor, note(NoteCode.TRY_SEQ_LEN, seq_len=1), other, note(NoteCode.TRY_FEWER_SETTINGS)]
    assert joined_words(said) == "AMD: --seq-len 1; NVIDIA: fewer --set"


def test_sentences_stand_beside_their_codes() -> None:
    found = astra.predict("llama-3-70b", gpus="h100:8", tp=8, global_batch=64, seq_len=4096)
    assert has(found.notes, NoteCode.DOES_NOT_FIT) and len(found.notes) == len(found.warnings)
    assert re.match(r"does not fit: stage 0 needs \d+", found.warnings[0])
    origin = found.provenance
    assert len(origin.sources) == len(origin.notes)
    assert "h100 was read as H100-80GB-SXM" in origin.notes
