"""The GPUs that are known, or one GPU's facts, and where they come from.

A GPU that is not known is described in a TOML file of ten lines and named by its path.
"""

import argparse
import sys

from astra.cli.printing import print_parts, write_json

EXAMPLES = """\
examples:
  astra gpus
  astra gpus --filter hopper
  astra gpus h100
  astra gpus "NVIDIA A100-SXM4-80GB" --json
  astra gpus ./my-gpu.toml

my-gpu.toml, figures as SI numbers or as text with a unit:
  name = "my-gpu"
  memory_bytes = "64 GB"
  memory_bytes_per_s = "1.6 TB/s"
  bf16_flops_per_s = "320 TFLOP/s"   # dense
  [link]                             # without it: PCIe
  bytes_per_s = "200 GB/s"           # one direction, all links of a GPU
  domain_gpus = 8
  [node]
  gpus = 8
  nic_bytes_per_s = "200 Gbps"       # per GPU

my-cluster.toml, for --cluster; what is left out is the typical node's (`docs/clusters.md`):
  [[pools]]
  gpu = "h100"                       # or ./my-gpu.toml
  count = 64
  gpus_per_node = 4
  nic_bytes_per_s = "200 Gbps"
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="?", metavar="NAME|FILE", help="one GPU; without it, all of them"
    )
    parser.add_argument(
        "--filter",
        metavar="TEXT",
        help="list only GPUs with these words in name, alias, maker, architecture or form",
    )


def run(options: argparse.Namespace) -> int:
    from astra.errors import InputError

    if options.name is not None and options.filter is not None:
        raise InputError("a NAME and --filter exclude each other. Try without the name.")
    return _one(options) if options.name is not None else _listing(options)


def _listing(options: argparse.Namespace) -> int:
    from astra.api import gpus
    from astra.report.gpus import GPUS_LEGEND, gpus_json, gpus_table

    found = gpus(options.filter or "")
    if options.json:
        write_json(gpus_json(found))
    elif not found:
        sys.stdout.write(f"No GPU matches. `astra gpus` lists all {len(gpus())}.\n")
    else:
        print_parts(gpus_table(found), "", GPUS_LEGEND)
    return 0


def _one(options: argparse.Namespace) -> int:
    from astra.hardware.catalogue import find_gpu
    from astra.report.gpus import gpu_json, gpu_page
    from astra.report.words import words

    gpu, note = find_gpu(options.name)
    if options.json:
        write_json(gpu_json(gpu, words(note) if note else None))
    else:
        print_parts(*([f"{words(note)}.", ""] if note else []), gpu_page(gpu))
    return 0
