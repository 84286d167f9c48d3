"""Who may import whom, how long things may get, and that every fact names its source."""

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from tests.support.cases import each_case

SOURCE = Path(__file__).parents[1] / "src" / "astra"

# Left to right: a room sees only rooms to its left, never its neighbours.
ROOMS = (
    {"model", "hardware"},
    {"strategy"},
    {"memory", "timing", "simulate", "money"},
    {"cost"},
    {"recommend", "timeline"},
    {"search", "fit"},
    {"explain"},
    {"report", "export", "imports"},
    {"cli", "web"},
)
BELOW_ALL = {"errors", "files", "columns", "notes", "values"}
DOORS = {"__init__", "__main__"}  # the package's own front: may name anything public
ALLOWED = {
    room: BELOW_ALL.union(*ROOMS[:place]) for place, rooms in enumerate(ROOMS) for room in rooms
}
ALLOWED["simulate"] = set()  # shares no formula with anyone, so that each can catch the other
ALLOWED["profile"] = {"errors"}  # runs on bare training machines: torch and nothing else
ALLOWED["api"] = BELOW_ALL.union(*ROOMS[:8])  # the command line's words as functions
ALLOWED["cli"] |= {"api", "profile", "web"}  # `astra serve` starts it
ALLOWED["web"] |= {"api"}
ALLOWED["errors"] = ALLOWED["columns"] = ALLOWED["notes"] = set()
ALLOWED["files"] = ALLOWED["values"] = {"errors"}


@cache
def modules() -> tuple[Path, ...]:
    return tuple(sorted(SOURCE.rglob("*.py")))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def room_of(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def imports_of(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in the file, by its full name."""
    yield from imports_in(tree_of(path), ("astra", *path.relative_to(SOURCE).parts[:-1]))


def imports_in(tree: ast.Module, package: tuple[str, ...]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            name = ".".join([*base, *([node.module] if node.module else [])])
            yield name
            yield from (f"{name}.{alias.name}" for alias in node.names)


def name_of(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def test_every_room_has_its_place() -> None:
    rooms = {room_of(path) for path in modules()}
    assert rooms <= {*ALLOWED, *DOORS}
    assert {"model", "hardware", "strategy", "search", "cli"} <= rooms


@each_case("path", modules())
def test_imports_go_left_only(path: Path) -> None:
    room = room_of(path)
    if room in DOORS:
        return
    seen = set()
    for name in imports_of(path):
        parts = name.split(".")
        if parts[0] == "astra" and len(parts) > 1:
            seen.add(parts[1])
    known = {*ALLOWED, *DOORS}
    assert (seen & known) - {room} <= ALLOWED[room]


def test_only_profile_imports_torch() -> None:
    frameworks = {"torch", "transformers", "megatron", "deepspeed", "triton"}
    found = {
        name_of(path)
        for path in modules()
        if room_of(path) != "profile"
        and any(name.split(".")[0] in frameworks for name in imports_of(path))
    }
    assert found == set()


def test_only_the_doors_print_or_read_the_environment() -> None:
    """No printing and no environment variables below `cli`."""
    found = []
    for path in modules():
        if room_of(path) in {*DOORS, "cli", "web"}:
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print":
                found.append(f"{name_of(path)}:{node.lineno} print")
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv"):
                found.append(f"{name_of(path)}:{node.lineno} environment")
    assert found == []


def test_the_import_reader_sees_every_way_to_import() -> None:
    """The checks above rest on it: imports inside functions and relative ones count too."""
    text = (
        "import a.b\nfrom astra.model import zoo\nfrom ..memory import states\n"
        "def f():\n    from . import x\n    import torch\n"
    )
    found = set(imports_in(ast.parse(text), ("astra", "search")))
    assert {"a.b", "astra.model.zoo", "astra.memory.states", "astra.search.x", "torch"} <= found


def test_functions_fit_on_a_screen_or_two() -> None:
    long = [
        f"{name_of(path)}:{node.name} {length} lines"
        for path in modules()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or 0) - node.lineno + 1) > 70
    ]
    assert long == []


def test_files_have_one_subject() -> None:
    lengths = {
        name_of(path): len(path.read_text(encoding="utf-8").splitlines()) for path in modules()
    }
    assert {name: lines for name, lines in lengths.items() if lines > 600} == {}


def test_files_of_tools_and_benchmarks_have_one_subject_too() -> None:
    root = SOURCE.parents[1]
    paths = [path for room in ("tools", "benchmarks") for path in (root / room).rglob("*.py")]
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    assert len(lengths) > 10
    assert {name: lines for name, lines in lengths.items() if lines > 500} == {}


def test_every_module_says_what_it_is_about() -> None:
    silent = [
        name_of(path)
        for path in modules()
        if path.read_text(encoding="utf-8").strip() and not ast.get_docstring(tree_of(path))
    ]
    assert silent == []


DATA = tuple(sorted((SOURCE / "data").rglob("*.toml")))


# Says in its head where its facts come from: they are about names, not numbers.
IN_WORDS = {"data/huggingface.toml": "Facts about the classes of transformers"}


def sources_in(node: object) -> Iterator[object]:
    """Every table that is called a source, however deep."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "source" or key.endswith("_source"):
                yield value
            else:
                yield from sources_in(value)
    elif isinstance(node, list):
        for value in node:
            yield from sources_in(value)


@each_case("path", DATA)
def test_every_data_file_names_its_source(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if name_of(path) in IN_WORDS:
        assert IN_WORDS[name_of(path)] in text[:1000]
        return
    document = tomllib.loads(text)
    sources = list(sources_in(document))
    assert sources
    assert "source" in document or path.parent.name not in ("models", "gpus")
    for source in sources:
        assert isinstance(source, dict)
        assert source["kind"] in ("vendor", "published", "measured", "fitted", "guessed")
        assert len(source["where"]) > 10


def module_name(path: Path) -> str:
    parts = ("astra", *path.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports_between_modules() -> dict[str, frozenset[str]]:
    """Which modules each module imports, wherever in the file; the package's own front left out."""
    names = {module_name(path): path for path in modules() if room_of(path) not in DOORS}
    return {
        name: frozenset(imported for imported in imports_of(path) if imported in names) - {name}
        for name, path in names.items()
    }


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports inside functions and under TYPE_CHECKING count: they hide a cycle, they do not
    break it."""
    sorter = TopologicalSorter(imports_between_modules())
    try:
        sorter.prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_no_two_classes_share_a_name() -> None:
    homes: dict[str, list[str]] = {}
    for path in modules():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(name_of(path))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def lines_of(room: str) -> dict[str, int]:
    return {
        name_of(path): len(path.read_text(encoding="utf-8").splitlines())
        for path in modules()
        if room_of(path) == room
    }


def test_rooms_that_ask_stay_small() -> None:
    cost, explain, search = (lines_of(room) for room in ("cost", "explain", "search"))
    assert sum(cost.values()) < 1850
    assert sum(explain.values()) + sum(search.values()) < 5500
    assert max((cost | explain | search).values()) <= 500
