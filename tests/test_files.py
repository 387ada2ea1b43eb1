"""Files are written whole or not at all, and errors of the disk say what to do."""

import errno
import os
import stat

import pytest

from foretaste.files import explain_failed_write, whole_file, whole_folder, write_whole


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_text_and_bytes_are_written_with_their_folders(tmp_path):
    write_whole(tmp_path / "a" / "b.txt", "é\n")
    assert (tmp_path / "a" / "b.txt").read_bytes() == "é\n".encode()
    write_whole(tmp_path / "a" / "b.txt", b"\r\n")
    assert (tmp_path / "a" / "b.txt").read_bytes() == b"\r\n"
    assert names(tmp_path / "a") == ["b.txt"]


def fill(whole, path, error):
    """Begin to write a file or a folder, and fail."""
    with whole(path) as part:
        (part / "x" if part.is_dir() else part).write_text("new, but ha")
        raise error


@pytest.mark.parametrize("error", [RuntimeError("mine"), KeyboardInterrupt()])
def test_what_fails_half_way_changes_nothing(tmp_path, error):
    write_whole(tmp_path / "a.txt", "old")
    for whole, name in ((whole_file, "a.txt"), (whole_file, "b.txt"), (whole_folder, "c")):
        with pytest.raises(type(error)):
            fill(whole, tmp_path / name, error)
    assert (tmp_path / "a.txt").read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_a_folder_appears_when_it_is_complete(tmp_path):
    (tmp_path / "out").mkdir()
    with whole_folder(tmp_path / "out") as part:
        (part / "a").write_text("1")
        assert names(tmp_path / "out") == []
    assert names(tmp_path) == ["out"]
    assert names(tmp_path / "out") == ["a"]
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o755


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("whole", [whole_file, whole_folder])
def test_a_full_disk_is_told_by_the_name_of_the_file(tmp_path, whole, code):
    with pytest.raises(OSError, match=r"the disk is full, .*/a could not be written; free some space") as told:
        fill(whole, tmp_path / "a", OSError(code, os.strerror(code)))
    assert told.value.errno == code
    assert names(tmp_path) == []


def test_a_place_that_cannot_be_written_to_is_named(tmp_path):
    path = tmp_path / "a.txt"
    denied = OSError(errno.EROFS, os.strerror(errno.EROFS), str(path.with_name(".a.txt.1.part")))
    said = str(explain_failed_write(denied, path))
    assert "a.txt cannot be written (Read-only file system); choose another folder" in said
    of_another_file = PermissionError(errno.EACCES, "Permission denied", "/somewhere/picture.png")
    assert explain_failed_write(of_another_file, path) is of_another_file
