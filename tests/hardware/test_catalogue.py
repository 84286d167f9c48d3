"""The catalogue: what it holds, and how forgivingly it is asked."""

import math
from collections import Counter
from pathlib import Path

import pytest
from tests.support.cases import each_case

from astra.errors import InputError
from astra.hardware.catalogue import all_gpus, find_gpu, gpu_names, normalized_name
from astra.hardware.gpu_file import check_gpu, gpu_of
from astra.hardware.pools import gpu_specs
from astra.notes import Note, NoteCode

GIB = 2**30


def test_forty_five_gpus_load_and_are_named_like_their_files() -> None:
    assert len(gpu_names()) == 45
    assert tuple(gpu.name for gpu in all_gpus()) == gpu_names()


@each_case("name", gpu_names())
def test_every_gpu_holds_together_and_names_its_source(name: str) -> None:
    gpu, note = find_gpu(name)
    assert note is None
    check_gpu(gpu, name)
    assert gpu.bf16_flops_per_s or gpu.fp16_flops_per_s
    assert gpu.source.kind in ("vendor", "published", "guessed") and gpu.source.where
    assert gpu.source.certainty in ("high", "medium", "low")
    assert gpu.source.read_on == "2026-11-15"
    assert gpu.source.certainty != "high" or gpu.source.checked_against


@each_case("name", gpu_names())
def test_a_catalogue_file_may_be_a_users_file_and_needs_no_guess_for_its_figures(name: str) -> None:
    known = find_gpu(name)[0]
    from astra.files import read_toml
    from astra.hardware.catalogue import FOLDER

    read = gpu_of(read_toml(FOLDER / f"{name}.toml"), "mine.toml", "mine")
    assert set(read.assumed) - set(known.assumed) <= {"fp16_flops_per_s: as bf16"}
    assert read.usable_bytes == known.usable_bytes and read.link == known.link


def test_spot_values_are_in_si_units() -> None:
    h100 = find_gpu("H100-80GB-SXM")[0]
    assert h100.memory_bytes == 80e9
    assert math.isclose(h100.usable_bytes, 79.1 * GIB, rel_tol=1e-9)
    assert h100.memory_bytes_per_s == 3.35e12
    assert (h100.bf16_flops_per_s, h100.fp8_flops_per_s) == (989.4e12, 1978.9e12)
    assert (h100.link.bytes_per_s, h100.link.domain_gpus) == (450e9, 8)
    assert (h100.node.nic_bytes_per_s, h100.node.pcie_bytes_per_s) == (50e9, 63e9)
    a100 = find_gpu("A100-80GB-SXM")[0]
    assert (a100.fp8_flops_per_s, a100.node.nic_bytes_per_s) == (None, 25e9)
    gb200 = find_gpu("GB200")[0]
    assert (gb200.node.gpus, gb200.link.domain_gpus) == (4, 72)
    v100 = find_gpu("V100-32GB-SXM2")[0]
    assert (v100.bf16_flops_per_s, v100.fp16_flops_per_s) == (None, 125e12)
    assert (v100.link.bytes_per_s, v100.link.peer_bytes_per_s) == (150e9, 50e9)
    assert find_gpu("GH200-96GB")[0].node.pcie_bytes_per_s == 450e9


def test_no_two_gpus_share_a_name_or_an_alias() -> None:
    spoken = Counter(
        normalized_name(word) for gpu in all_gpus() for word in {gpu.name, *gpu.aliases}
    )
    assert [word for word, times in spoken.items() if times > 1] == []


def test_no_two_gpus_have_the_same_data() -> None:
    assert len({gpu_specs(gpu) for gpu in all_gpus()}) == 45


@each_case(
    "text, name",
    [
        ("h100", "H100-80GB-SXM"),
        ("H100-SXM", "H100-80GB-SXM"),
        ("h100-80g", "H100-80GB-SXM"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB-SXM"),
        ("h200", "H200-SXM"),
        ("a100", "A100-80GB-SXM"),
        ("a100-80g", "A100-80GB-SXM"),
        ("A100-80GB", "A100-80GB-SXM"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB-SXM"),
        ("a100_40g", "A100-40GB-SXM"),
        ("v100", "V100-16GB-SXM2"),
        ("Tesla V100-SXM2-32GB", "V100-32GB-SXM2"),
        ("gh200", "GH200-96GB"),
        ("4090", "RTX-4090"),
        ("RTXPRO6000", "RTX-PRO-6000-Blackwell-SE"),
        ("RTXA6000", "RTX-A6000"),
        ("A6000", "RTX-A6000"),
    ],
)
def test_a_loose_name_finds_its_gpu_and_the_answer_says_how_it_was_read(
    text: str, name: str
) -> None:
    gpu, note = find_gpu(text)
    assert gpu.name == name
    expected = Note(NoteCode.GPU_READ_AS, {"written": text, "gpu": name})
    assert note == (None if normalized_name(text) == normalized_name(name) else expected)


@pytest.mark.parametrize(
    "text", ["h100 80gb_sxm", "H100-80G-SXM", " h10080gsxm ", "nvidia h100-80gb-sxm"]
)
def test_case_spaces_dashes_maker_and_gb_do_not_matter(text: str) -> None:
    gpu, note = find_gpu(text)
    assert (gpu.name, note) == ("H100-80GB-SXM", None)


@pytest.mark.parametrize(
    ("text", "near"),
    [("h10", "H100"), ("a100-90g", "A100-80GB"), ("mi300", "MI300X"), ("rtx-4080", "RTX-4090")],
)
def test_an_unknown_name_gets_near_names_and_the_way_out(text: str, near: str) -> None:
    with pytest.raises(InputError) as error:
        find_gpu(text)
    assert text in str(error.value) and near in str(error.value)
    assert "my-gpu.toml" in str(error.value)


def test_a_gpu_is_found_by_the_path_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text(
        'memory_bytes = "24 GB"\nmemory_bytes_per_s = 9e11\nfp16_flops_per_s = "70 TFLOPS"\n'
    )
    gpu, note = find_gpu(str(path))
    assert (gpu.name, note) == ("tiny", None)
    assert gpu.fp16_flops_per_s == 70e12
    assert gpu.source.where == str(path)
