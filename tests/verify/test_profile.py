"""`astra profile` on a CPU with torch: every kernel runs, links by gloo. No figure is claimed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.frameworks import needs

needs("torch")

ROOT = Path(__file__).parents[2]


def profile(path: Path, *words: str, before: tuple[str, ...] = ()) -> dict[str, Any]:
    """Runs the command in a process of its own and reads its answer."""
    command = [sys.executable, *before, "-m", "astra", "profile", "--device", "cpu", "--json"]
    done = subprocess.run(
        [*command, "--out", str(path), *words],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": "src", "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_every_family_runs_on_a_cpu_and_is_marked_so(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    eager = "gemm,attention,embedding,grouped,permute,adam"
    answer = profile(path, "--only", eager, "--minutes", "2")
    assert answer["measured"] >= 40
    document = json.loads(path.read_text())
    assert document["machine"]["device"] == "cpu" and "says nothing" in document["machine"]["note"]
    measured = {row["op"] for row in document["entries"] if "median_s" in row}
    assert measured == set(eager.split(","))
    failed = [row["key"] for row in document["entries"] if "error" in row]
    known = ("attention/cudnn", "gemm/wgrad/", "attention/flash")  # those have no kernel on a CPU
    assert all(key.startswith(known) for key in failed), failed
    again = profile(path, "--only", eager, "--minutes", "2")
    assert again["measured"] == again["failed"] == 0 or answer["left"] > 0


def test_kernels_bound_by_memory_run_eager_and_compiled(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    profile(path, "--only", "norm,activation,rope,residual,loss", "--minutes", "1.5")
    rows = json.loads(path.read_text())["entries"]
    assert not [row["key"] for row in rows if "error" in row]
    assert {"forward", "backward"} <= {row["variant"].split(".")[1] for row in rows}
    assert {"eager", "compiled"} <= {row["variant"].split(".")[2] for row in rows}


def test_without_a_gpu_the_error_says_so(tmp_path: Path) -> None:
    hidden = os.environ | {"PYTHONPATH": "src", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-m", "astra", "profile", "--out", str(tmp_path / "p.json")],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
        env=hidden,
        check=False,
    )
    assert (done.returncode, done.stdout, list(tmp_path.iterdir())) == (2, "", [])
    assert "nothing to measure" in done.stderr and "--device cpu" in done.stderr


def test_two_processes_measure_every_collective(tmp_path: Path) -> None:
    path = tmp_path / "links.json"
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29533")
    answer = profile(path, "--minutes", "2", before=launcher)
    rows = json.loads(path.read_text())["entries"]
    assert answer["failed"] == 0 and answer["left"] == 0
    assert {row["variant"].split(".")[0] for row in rows} == {
        "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p",
    }  # fmt: skip
    beside = [row for row in rows if row["variant"].endswith("beside")]
    assert beside and all(row["alone_s"] > 0 and row["compute_s"] > 0 for row in beside)
