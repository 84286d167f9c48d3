"""The notebook of the examples runs from its first cell to its last."""

import json
import re
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples" / "tour.ipynb"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_tour_runs() -> None:
    import nbclient
    import nbformat

    notebook = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    shown = [kind for output in outputs for kind in output.get("data", ())]
    assert shown.count("text/html") >= 4 and "image/svg+xml" in shown
    assert "Did you mean micro_batch" in json.dumps(outputs)


def test_the_tour_has_no_words_of_the_command_line_and_no_outputs() -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    strings = [text for cell in code for text in re.findall(r'"([^"]*)"', cell)]
    assert strings and not [text for text in strings if re.search(r"--|\w:\d|\w=\w", text)]
    assert not any(cell.get("outputs") for cell in cells)
