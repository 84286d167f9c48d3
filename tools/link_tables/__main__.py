"""Fits the link figures of `astra/data/links` on a folder of measured collectives.

    python -m tools.link_tables FOLDER

FOLDER holds `collectives.csv` and, under `opdata`, the tables of vTrain, SimAI, Sailor and
aiconfigurator. Writes `inside.toml` and `across.toml`, and `docs/reports/links.md` with the
errors, those on systems, GPUs and group sizes that were left out of the fit among them.
"""

import argparse
from pathlib import Path

from tools.link_tables.across import fit_across
from tools.link_tables.files import write_tables
from tools.link_tables.inside import fit_all_inside, seen_in_steps
from tools.link_tables.page import document
from tools.link_tables.rows import read_other_releases, read_rows

from astra.errors import InputError

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the folder of measured tables")
    parser.add_argument("--data", type=Path, default=ROOT / "src" / "astra" / "data" / "links")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs" / "reports" / "links.md")
    given = parser.parse_args()
    if not (given.folder / "collectives.csv").exists():
        raise InputError(f"{given.folder}: there is no collectives.csv in it.")
    rows = read_rows(given.folder)
    tables = (*fit_all_inside(rows), seen_in_steps())
    across = fit_across(rows, tables)
    write_tables(tables, across, given.data)
    text = document(rows, list(read_other_releases(given.folder)), tables, across)
    given.docs.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
