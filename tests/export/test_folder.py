"""The folder of launch files: all of it or nothing."""

import os
import stat
from pathlib import Path

import pytest

from astra.errors import InputError
from astra.export.folder import check_writable, write_folder

FILES = {"args.txt": "--a 1\n", "env.txt": "A=1\n", "launch.sh": "#!/bin/sh\n", "plan.json": "{}\n"}


def names_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_all_files_are_written_and_scripts_can_run(tmp_path: Path) -> None:
    write_folder(tmp_path / "job", FILES)
    assert names_in(tmp_path / "job") == sorted(FILES)
    for name, text in FILES.items():
        assert (tmp_path / "job" / name).read_text() == text
    modes = {name: stat.S_IMODE((tmp_path / "job" / name).stat().st_mode) for name in FILES}
    assert modes == {"args.txt": 0o644, "env.txt": 0o644, "launch.sh": 0o755, "plan.json": 0o644}


def test_folders_above_and_inside_are_made(tmp_path: Path) -> None:
    write_folder(tmp_path / "a" / "b", {"rank-001/args.txt": "x", "rank-002/args.txt": "y"})
    assert (tmp_path / "a" / "b" / "rank-002" / "args.txt").read_text() == "y"


def test_existing_files_are_replaced_and_others_stay(tmp_path: Path) -> None:
    (tmp_path / "args.txt").write_text("old")
    (tmp_path / "notes.md").write_text("mine")
    write_folder(tmp_path, FILES)
    assert (tmp_path / "args.txt").read_text() == "--a 1\n"
    assert (tmp_path / "notes.md").read_text() == "mine"
    assert names_in(tmp_path) == sorted([*FILES, "notes.md"])


def test_a_link_in_place_of_a_file_is_replaced_and_its_target_left_alone(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("precious")
    job = tmp_path / "job"
    job.mkdir()
    (job / "args.txt").symlink_to(tmp_path / "elsewhere")
    write_folder(job, FILES)
    assert (tmp_path / "elsewhere").read_text() == "precious"
    assert (job / "args.txt").read_text() == "--a 1\n"


def test_what_is_only_tried_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("old")
    for name in ("old.json", "new.json", "a/b/new.json"):
        check_writable(tmp_path / name)
    assert names_in(tmp_path) == ["old.json"] and (tmp_path / "old.json").read_text() == "old"


@pytest.mark.parametrize("inside", ["", "more", "more/and/more"])
def test_a_file_in_the_way_of_the_folder_is_an_error_and_nothing_is_written(
    tmp_path: Path, inside: str
) -> None:
    (tmp_path / "job").write_text("a file")
    with pytest.raises(InputError, match="job: is a file where a folder belongs"):
        write_folder(tmp_path / "job" / inside, FILES)
    assert names_in(tmp_path) == ["job"] and (tmp_path / "job").read_text() == "a file"


def test_a_folder_in_the_way_of_a_file_leaves_everything_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "launch.sh").mkdir()
    (tmp_path / "args.txt").write_text("old")
    with pytest.raises(InputError, match=r"launch\.sh: is a folder; name a file"):
        write_folder(tmp_path, FILES)
    assert names_in(tmp_path) == ["args.txt", "launch.sh"]
    assert (tmp_path / "args.txt").read_text() == "old"


def test_a_file_in_the_way_of_a_rank_leaves_no_new_folder(tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    (job / "rank-002").write_text("a file")
    with pytest.raises(InputError, match="rank-002: is a file"):
        write_folder(job, {"rank-001/args.txt": "x", "rank-002/args.txt": "y"})
    assert names_in(job) == ["rank-002"]


def test_a_dangling_link_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "job").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="job: is a file where a folder belongs"):
        write_folder(tmp_path / "job", FILES)
    assert not (tmp_path / "nowhere").exists()


def test_a_name_that_is_too_long_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written: File name too long"):
        write_folder(tmp_path / "a" / ("x" * 300), FILES)
    assert names_in(tmp_path) == []


def test_the_longest_name_that_a_folder_holds_is_written(tmp_path: Path) -> None:
    name = "n" * 250 + ".json"
    write_folder(tmp_path, {name: "text"})
    assert (tmp_path / name).read_text() == "text"


def test_text_that_cannot_be_encoded_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UnicodeEncodeError):
        write_folder(tmp_path / "job", {"args.txt": "fine", "env.txt": "\ud800"})
    assert names_in(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_an_input_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="cannot be written"):
        write_folder(tmp_path / "job", FILES)
