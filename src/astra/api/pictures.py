"""Charts of an answer, written to a file."""

from pathlib import Path
from typing import Any

import msgspec

from astra.api.saving import out_path
from astra.errors import InputError


def save_picture(answer: msgspec.Struct, path: str | Path) -> Path:
    """As .svg, .png or .html, as the name ends."""
    from astra.export.folder import write_folder
    from astra.report.plot import picture_format, plot, shown_charts

    kind, place = picture_format(str(path)), out_path(path, "--plot")
    document: dict[str, Any] = msgspec.to_builtins(answer)
    if not shown_charts(document):
        raise InputError("there is nothing to draw: the answer holds no plan and no change.")
    write_folder(place.parent, {place.name: plot(document, kind)})
    return place
