"""Makes `src/astra/data/efficiency` and `docs/reports/efficiency.md` from a folder of measurements.

    python -m tools.efficiency_tables FOLDER        (needs the extra `fit`)

FOLDER holds, as published by their authors and turned into CSV:

    matmul_efficiency.csv                                  attention charts, cuBLASLt results
    opdata/ai-dynamo_aiconfigurator/<system>/gemm_*.csv.gz    products: m, n, k, milliseconds
    opdata/ai-dynamo_aiconfigurator/<system>/context_attention_*.csv.gz, moe_*.csv.gz
    opdata/MooreThreads_SimuMax/op_efficiency_flat.csv.gz     efficiencies of training kernels
    opdata/eth-easl_sailor/aceso_op_profiles/op_times_all.csv.gz
    opdata/Azure_AI-benchmarking-guide/nd_results_flat.csv    bandwidth of memory

`h200-kernels.csv.gz` in the data folder is our own measurement of an H200 and is read from there;
its attention is that of `validation/profiles/h200.json.gz`.
Rows under share-alike licences are not used. A fifth of the shapes is held back, whole (n, k)
pairs; the errors in `docs/reports/efficiency.md` are those on the shapes held back. The tables
that are written use all of them.
"""

import sys
from pathlib import Path

from tools.efficiency_tables.checks import (
    check_directions,
    check_formats,
    check_grouped,
    check_later,
    check_memory,
    check_moe,
)
from tools.efficiency_tables.files import write_kernels, write_table
from tools.efficiency_tables.gemm_tables import fit_table, table_errors
from tools.efficiency_tables.kernels import make_kernels, with_profile
from tools.efficiency_tables.measurements import SYSTEMS, gemm_source, read_products
from tools.efficiency_tables.report import Report, write_page

from astra.hardware.catalogue import find_gpu
from astra.timing.efficiency import FINE, FOLDER


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder, report = Path(sys.argv[1]), Report()
    lent, tables = {}, {}
    for name, system in SYSTEMS.items():
        gpu, seen = find_gpu(name)[0], read_products(folder, system, "bfloat16")
        lent[name], fine = fit_table(seen, gpu), table_errors(report, name, seen, gpu)
        tables[name] = lent[name] if fine is None else fine
        write_table(f"{name}.json", lent[name], gemm_source(folder, name))
        (FOLDER / f"{name}{FINE}").unlink(missing_ok=True)
        if fine is not None:
            write_table(f"{name}{FINE}", fine, gemm_source(folder, name))
    known = with_profile(report, make_kernels(report, folder, tables, lent))
    write_kernels(known)
    check_directions(report, folder)
    check_formats(report, folder)
    check_grouped(report, folder, known.accumulate_bytes)
    check_moe(report, folder)
    check_memory(report)
    check_later(report)
    write_page(report)


if __name__ == "__main__":
    main()
