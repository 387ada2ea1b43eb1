"""Folders of pictures and tables of labels: what is read, noted and refused."""

import csv
import io
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from foretaste.data import read_points
from foretaste.data.class_names import natural_key
from foretaste.data.dataset import stratified
from foretaste.data.pictures import (
    check_complete,
    decode_pictures,
    glance,
    open_picture,
    oriented_size,
    picture_pixels,
)


def folder(path, test=0.2, skip_broken=False, **how):
    """The pictures of a folder, as a study reads them."""
    return read_points(path, for_study=True, skip_broken=skip_broken, **how).split(test, name=Path(path).name)


def picture(path: Path, seed: int = 0, size: tuple[int, int] = (6, 6), mode: str = "RGB", **save) -> np.ndarray:
    """A picture of noise, (width, height); gives its pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], len(mode))
    array = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(array, mode=None).save(path, **save)
    return array


def classes_of(root: Path, counts: dict[str, int], **how) -> dict[str, np.ndarray]:
    """``counts[name]`` pictures in each class folder; the pixels by relative path."""
    out = {}
    for c, (name, n) in enumerate(counts.items()):
        for k in range(n):
            file = f"{name}/{k}.png"
            out[file] = picture(root / file, seed=100 * c + k, **how)
    return out


def rows(path: Path, lines: list[list[str]], mark: str = ",") -> None:
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=mark).writerows(lines)


def test_class_folders_become_one_tensor_of_their_pixels(tmp_path):
    truth = classes_of(tmp_path, {"class10": 5, "class2": 10, "Class1": 20})
    data = folder(tmp_path)
    assert data.name == tmp_path.name
    assert data.classes == ("Class1", "class2", "class10")
    assert (data.x.dtype, tuple(data.x.shape)) == (torch.uint8, (35, 3, 6, 6))
    for i, file in enumerate(data.files):
        np.testing.assert_array_equal(data.x[i].numpy().transpose(1, 2, 0), truth[file])
        assert data.classes[data.y[i]] == file.split("/")[0]
    assert set(data.files) == set(truth)
    assert np.bincount(data.y[data.test].numpy()).tolist() == [4, 2, 1]
    assert sorted([*data.pool, *data.test]) == list(range(35))
    assert data.notes == ()
    again = folder(tmp_path)
    np.testing.assert_array_equal(again.test, data.test)


def test_progress_ends_with_everything(tmp_path):
    classes_of(tmp_path, {"a": 40, "b": 40})
    seen = []
    folder(tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(32, 80), (64, 80), (80, 80)]


def test_grey_pictures_have_one_channel_unless_told_or_mixed(tmp_path):
    classes_of(tmp_path / "g", {"a": 3, "b": 3}, mode="L")
    assert folder(tmp_path / "g").x.shape[1] == 1
    three = folder(tmp_path / "g", channels=3).x
    assert three.shape[1] == 3
    assert torch.equal(three[:, 0], three[:, 2])
    picture(tmp_path / "g" / "a" / "colour.png", mode="RGB")
    assert folder(tmp_path / "g").x.shape[1] == 3
    assert folder(tmp_path / "g", channels=1).x.shape[1] == 1
    with pytest.raises(ValueError, match="channels is 4; expected 1"):
        folder(tmp_path / "g", channels=4)


def test_sizes_that_differ_are_named_and_size_brings_them_to_one(tmp_path):
    classes_of(tmp_path, {"a": 4, "b": 3})
    picture(tmp_path / "b" / "wide.png", size=(20, 10))
    with pytest.raises(ValueError, match=r"2 sizes.*6×6 \(7\), 20×10 \(1\); give a size in pixels"):
        folder(tmp_path)
    assert tuple(folder(tmp_path, size=8).x.shape) == (8, 3, 8, 8)
    assert tuple(folder(tmp_path, size=(4, 6)).x.shape) == (8, 3, 4, 6)
    with pytest.raises(ValueError, match="size is 0"):
        folder(tmp_path, size=0)


def test_pictures_alike_but_not_square_keep_their_shape(tmp_path):
    classes_of(tmp_path, {"a": 3, "b": 3}, size=(9, 5))
    assert tuple(folder(tmp_path).x.shape) == (6, 3, 5, 9)


@pytest.mark.parametrize("size", [(40, 20), (20, 40), (30, 30)])
def test_resizing_is_shorter_side_to_size_then_the_middle(size):
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    ours, remark = picture_pixels(image.copy(), (10, 10), 3)
    w, h = (round(10 * s / min(size)) for s in size)
    small = image.resize((w, h), Image.Resampling.BILINEAR)
    left, top = (w - 10) // 2, (h - 10) // 2
    expected = np.asarray(small.crop((left, top, left + 10, top + 10))).transpose(2, 0, 1)
    assert remark is None
    # At the cut the two-step way still sees pixels that are cut off afterwards.
    inside = np.s_[:, 1:-1, 1:-1]
    # One byte value: Pillow rounds between its two passes and takes them in the order that costs less.
    assert np.abs(ours[inside].astype(int) - expected[inside].astype(int)).max() <= 1


def test_a_large_jpeg_decoded_small_is_close_to_the_whole_resized(tmp_path):
    at = np.mgrid[0:400, 0:600] / 60.0
    smooth = (127 + 120 * np.sin(at[0] + np.array([0, 1, 2])[:, None, None]) * np.cos(at[1])).astype(np.uint8)
    Image.fromarray(smooth.transpose(1, 2, 0).copy()).save(tmp_path / "a.jpg", quality=95)
    with open_picture(tmp_path / "a.jpg") as image:
        drafted, _ = picture_pixels(image, (16, 16), 3)
    with open_picture(tmp_path / "a.jpg") as image:
        whole, _ = picture_pixels(image.convert("RGB"), (16, 16), 3)
    assert np.abs(drafted.astype(int) - whole.astype(int)).max() <= 4


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_stand_upright_by_their_exif(tmp_path, orientation):
    upright = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3) * 3
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright),
        7: upright.transpose(1, 0, 2)[::-1, ::-1],
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        Image.fromarray(np.ascontiguousarray(stored)).save(tmp_path / name / "0.png", exif=exif)
    data = folder(tmp_path)
    np.testing.assert_array_equal(data.x[0].numpy().transpose(1, 2, 0), upright)


def test_transparency_is_laid_over_white_and_sixteen_bits_are_cut_with_notes(tmp_path):
    classes_of(tmp_path, {"a": 2, "b": 2})
    clear = np.zeros((6, 6, 4), dtype=np.uint8)
    clear[:3, :, 3] = 255
    Image.fromarray(clear).save(tmp_path / "a" / "clear.png")
    deep = (np.arange(36, dtype=np.uint16).reshape(6, 6) * 1800).astype(np.uint16)
    Image.fromarray(deep).save(tmp_path / "b" / "deep.png")
    data = folder(tmp_path)
    at = {file: data.x[i].numpy() for i, file in enumerate(data.files)}
    assert (at["a/clear.png"][:, :3] == 0).all()
    assert (at["a/clear.png"][:, 3:] == 255).all()
    np.testing.assert_array_equal(at["b/deep.png"][0], np.rint(deep / 257).astype(np.uint8))
    assert "1 of 6 pictures have an alpha channel: laid over white" in data.notes
    assert "1 of 6 pictures have 16 bits a pixel: cut to 8" in data.notes


def test_sixteen_bits_become_the_nearest_of_eight(tmp_path):
    """65535 / 255 is 257; halves do not occur, for 257 is odd."""
    deep = np.arange(0, 65536, 37, dtype=np.uint16)[:1764].reshape(42, 42)
    for mode, kind in (("I;16", "<u2"), ("I;16B", ">u2"), ("I", "<i4")):
        image = Image.frombytes(mode, (42, 42), deep.astype(kind).tobytes())
        got, remark = picture_pixels(image, (42, 42), 1)
        assert (got[0] == np.rint(deep / 257)).all()
        assert remark == "have 16 bits a pixel: cut to 8"


@pytest.mark.parametrize("measured", ["test", "val", "Validation"])
def test_train_and_test_folders_are_pool_and_test(tmp_path, measured):
    classes_of(tmp_path / "train", {"a": 3, "b": 2})
    classes_of(tmp_path / measured, {"a": 1, "b": 1})
    data = folder(tmp_path)
    assert {data.files[i].split("/")[0] for i in data.pool} == {"train"}
    assert {data.files[i].split("/")[0] for i in data.test} == {measured}
    assert data.classes == ("a", "b")
    assert data.y[data.test].tolist() == [0, 1]


def test_validation_beside_test_is_left_out_with_a_note(tmp_path):
    for part in ("train", "val", "test"):
        classes_of(tmp_path / part, {"a": 2, "b": 2})
    data = folder(tmp_path)
    assert (len(data.pool), len(data.test), len(data.x)) == (4, 4, 8)
    assert "4 validation pictures were left out; test measures" in data.notes


def test_a_train_folder_alone_is_split_by_share(tmp_path):
    classes_of(tmp_path / "train", {"a": 5, "b": 5})
    data = folder(tmp_path)
    assert data.classes == ("a", "b")
    assert (len(data.pool), len(data.test)) == (8, 2)


def test_classes_may_be_called_train_and_test(tmp_path):
    classes_of(tmp_path, {"train": 5, "test": 5, "bus": 5})
    assert folder(tmp_path).classes == ("bus", "test", "train")


def test_test_pictures_without_class_folders_are_no_class(tmp_path):
    classes_of(tmp_path / "train", {"a": 2, "b": 2})
    picture(tmp_path / "test" / "0.png")
    with pytest.raises(ValueError, match="class folders only in train"):
        folder(tmp_path)


def test_a_class_only_in_test_is_an_error_and_one_only_in_train_a_note(tmp_path):
    classes_of(tmp_path / "train", {"a": 2, "b": 2, "c": 2})
    classes_of(tmp_path / "test", {"a": 2, "b": 2})
    assert "1 class (c) has no picture in test" in folder(tmp_path).notes
    classes_of(tmp_path / "test", {"z": 1})
    with pytest.raises(ValueError, match=r"1 class \(z\) stands only in test"):
        folder(tmp_path)


def test_other_files_hidden_files_and_loose_pictures(tmp_path):
    classes_of(tmp_path, {"a": 3, "b": 3})
    for ignored in (".DS_Store", "a/.hidden.png", "b/Thumbs.db", "a/desktop.ini", ".git/x.png", "__MACOSX/a/x.png"):
        (tmp_path / ignored).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / ignored).write_bytes(b"rubbish")
    assert folder(tmp_path).notes == ()
    (tmp_path / "readme.txt").write_text("x")
    (tmp_path / "a" / "boxes.json").write_text("{}")
    picture(tmp_path / "loose.png")
    data = folder(tmp_path)
    assert len(data.x) == 6
    assert "2 files are not pictures and were left out: 1 .json, 1 .txt" in data.notes
    assert "1 picture (loose.png) lies in no class folder: left out" in data.notes


def test_one_picture_in_two_class_folders_is_named(tmp_path):
    classes_of(tmp_path, {"a": 5, "b": 5})
    (tmp_path / "b" / "copy.png").write_bytes((tmp_path / "a" / "3.png").read_bytes())
    (tmp_path / "a" / "same.png").write_bytes((tmp_path / "a" / "2.png").read_bytes())  # no contradiction
    assert folder(tmp_path).notes == (
        "1 picture has several labels: a/3.png (a) is b/copy.png (b). No network can learn both: give it one label",
    )


def test_class_folders_without_pictures(tmp_path):
    classes_of(tmp_path, {"a": 2, "b": 2})
    (tmp_path / "c").mkdir()
    (tmp_path / "d").mkdir()
    with pytest.raises(ValueError, match=r"2 class folders \(c, d\) are without pictures"):
        folder(tmp_path)
    data = folder(tmp_path, skip_broken=True)
    assert data.classes == ("a", "b")
    assert any("2 class folders (c, d) are without pictures: left out" in note for note in data.notes)


def test_one_class_is_refused(tmp_path):
    classes_of(tmp_path, {"a": 4})
    with pytest.raises(ValueError, match="all 4 pictures are of one class, 'a'"):
        folder(tmp_path)


@pytest.mark.parametrize("make", ["nothing", "loose", "file", "missing"])
def test_no_folder_of_pictures(tmp_path, make):
    path = tmp_path / "x"
    if make in ("nothing", "loose"):
        path.mkdir()
    if make == "loose":
        picture(path / "0.png")
    if make == "file":
        path.write_text("x")
    with pytest.raises((ValueError, FileNotFoundError), match=r"expected (one folder a class|(an )?\.npz, )"):
        folder(path)


def broken_in(root: Path, n: int = 12) -> list[str]:
    names = []
    for k in range(n):
        file = root / "a" / f"broken{k}.png"
        picture(file, seed=k, size=(60, 60))
        raw = file.read_bytes()
        file.write_bytes(raw[: len(raw) // 2] if k % 2 else b"GIF89a rubbish")
        names.append(f"a/broken{k}.png")
    return names


@pytest.mark.parametrize("size", [None, 6])
def test_broken_pictures_are_all_counted_ten_named_and_skipped_on_request(tmp_path, size):
    truth = classes_of(tmp_path, {"a": 3, "b": 3}, size=(60, 60))
    names = broken_in(tmp_path)
    with pytest.raises(ValueError, match=r": 12 of 18 pictures cannot be read: a/broken0\.png \(.*skip_broken=True"):
        folder(tmp_path, size=size)
    data = folder(tmp_path, size=size, skip_broken=True)
    assert set(data.files) == set(truth)
    assert len(data.x) == len(data.y) == 6
    (note,) = [note for note in data.notes if "cannot be read" in note]
    assert note.startswith("12 of 18 pictures")
    assert all(name in note for name in names)
    if size is None:
        for i, file in enumerate(data.files):
            np.testing.assert_array_equal(data.x[i].numpy().transpose(1, 2, 0), truth[file])


def test_the_error_names_ten_and_counts_all(tmp_path):
    classes_of(tmp_path, {"a": 3, "b": 3})
    for k in range(15):
        (tmp_path / "a" / f"x{k}.png").write_bytes(b"rubbish")
    with pytest.raises(ValueError, match=r": 15 of 21 .* and 5 more; mend") as error:
        folder(tmp_path)
    assert str(error.value).count("(not a picture)") == 10


def test_a_class_of_broken_pictures_goes_with_them_and_says_so(tmp_path):
    classes_of(tmp_path, {"a": 3, "b": 3})
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "0.png").write_bytes(b"rubbish")
    data = folder(tmp_path, skip_broken=True)
    assert data.classes == ("a", "b")
    assert any("1 class (c) has no picture that can be read" in note for note in data.notes)


def test_nothing_but_broken_pictures(tmp_path):
    for c in "ab":
        (tmp_path / c).mkdir()
        (tmp_path / c / "0.png").write_bytes(b"rubbish")
    with pytest.raises(ValueError, match="nothing is left"):
        folder(tmp_path, skip_broken=True, size=4, channels=3)


def png_header(width: int, height: int) -> bytes:
    """A PNG of that size without its pixels: what a bomb looks like before it is inflated."""

    def part(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", zlib.compress(b"\0" * 100)) + part(b"IEND", b"")


@pytest.mark.parametrize("side", [10_000, 50_000])
@pytest.mark.parametrize("given", [{}, {"size": 6, "channels": 3}])
def test_pictures_beyond_pillows_limit_are_broken(tmp_path, side, given):
    classes_of(tmp_path, {"a": 3, "b": 3})
    (tmp_path / "a" / "bomb.png").write_bytes(png_header(side, side))
    with pytest.raises(ValueError, match=r"1 of 7 .*a/bomb.png \(more than 89,478,485 pixels, Pillow's limit\)"):
        folder(tmp_path, **given)
    assert len(folder(tmp_path, skip_broken=True, **given).x) == 6


def test_postscript_in_disguise_is_not_run(tmp_path):
    classes_of(tmp_path, {"a": 3, "b": 3})
    (tmp_path / "a" / "x.png").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 6\n%%EndComments\nshowpage\n"
    )
    with pytest.raises(ValueError, match="not a picture"):
        folder(tmp_path)


def test_memory_is_refused_before_it_is_taken(tmp_path):
    classes_of(tmp_path, {"a": 3, "b": 3})
    assert len(folder(tmp_path, most=6 * 3 * 36).x) == 6
    with pytest.raises(ValueError, match=r"6 pictures of 3×6×6 bytes.*above the limit of"):
        folder(tmp_path, most=6 * 3 * 36 - 1)
    with pytest.raises(ValueError, match=r"1\.08e\+03 GB, above the limit of 16 GB"):
        folder(tmp_path, size=245_000)


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="no symbolic links here")
def test_links_that_lead_out_are_refused_and_links_within_are_read(tmp_path):
    root, out = tmp_path / "in", tmp_path / "out"
    classes_of(root, {"a": 3, "b": 3})
    picture(out / "secret.png")
    (root / "b" / "same.png").symlink_to(root / "b" / "0.png")
    assert "b/same.png" in folder(root).files
    (root / "a" / "x.png").symlink_to(out / "secret.png")
    with pytest.raises(ValueError, match=r"1 link \(a/x.png\) leads out of the folder"):
        folder(root)
    (root / "a" / "x.png").unlink()
    (root / "c").symlink_to(out)
    with pytest.raises(ValueError, match=r"1 link \(c\) leads out of the folder or to another folder"):
        folder(root)


@pytest.mark.parametrize("mark", [",", ";", "\t"])
@pytest.mark.parametrize("names", [["file", "label"], ["File Name", "Class"], ["image", "category"]])
def test_a_table_names_files_and_labels(tmp_path, mark, names):
    truth = {f"{k}.png": picture(tmp_path / f"{k}.png", seed=k) for k in range(10)}
    rows(tmp_path / "labels.csv", [[*names, "who"], *[[f"{k}.png", f"kind {k % 2}", "me"] for k in range(10)]], mark)
    data = folder(tmp_path)
    assert data.classes == ("kind 0", "kind 1")
    assert data.y.tolist() == [k % 2 for k in range(10)]
    assert data.files == tuple(truth)
    for i, file in enumerate(data.files):
        np.testing.assert_array_equal(data.x[i].numpy().transpose(1, 2, 0), truth[file])
    assert (len(data.pool), len(data.test)) == (8, 2)
    assert data.notes == ("labels are from labels.csv",)
    assert torch.equal(folder(tmp_path / "labels.csv").x, data.x)


def test_a_table_with_a_split_and_pictures_in_a_folder_of_their_own(tmp_path):
    for k in range(8):
        picture(tmp_path / "images" / f"{k}.png", seed=k)
    picture(tmp_path / "images" / "more.png")
    lines = [[f"{k}.png", str(k % 2 + 9), "valid" if k > 5 else "Train"] for k in range(8)]
    rows(tmp_path / "t.csv", [["path", "y", "Split"], *lines])
    data = folder(tmp_path)
    assert data.classes == ("9", "10")
    assert data.files[0] == "images/0.png"
    assert (data.pool.tolist(), data.test.tolist()) == ([0, 1, 2, 3, 4, 5], [6, 7])
    assert "1 picture of the folder does not stand in t.csv: left out" in data.notes


@pytest.mark.parametrize("linked", [False, True])
def test_absolute_paths_inside_the_folder_are_read(tmp_path, linked):
    for k in range(6):
        picture(tmp_path / "d" / "images" / f"{k}.png", seed=k)
    root = tmp_path / "d"
    if linked:
        root = tmp_path / "link"
        root.symlink_to(tmp_path / "d")
    lines = [[str(tmp_path / "d" / "images" / f"{k}.png"), "ab"[k % 2]] for k in range(5)]
    rows(tmp_path / "d" / "l.csv", [["file", "label"], *lines, ["images/5.png", "b"]])
    assert folder(root).files == tuple(f"images/{k}.png" for k in range(6))


def test_an_absolute_path_and_a_relative_one_to_the_same_file_stand_twice(tmp_path):
    for k in range(4):
        picture(tmp_path / f"{k}.png", seed=k)
    lines = [[f"{k}.png", "ab"[k % 2]] for k in range(4)]
    rows(tmp_path / "l.csv", [["file", "label"], *lines, [str(tmp_path / "0.png"), "a"]])
    with pytest.raises(ValueError, match=r"1 file \(0.png\) stands more than once"):
        folder(tmp_path)


def test_ratings_in_a_table_of_files_are_no_classes(tmp_path):
    for k in range(4):
        picture(tmp_path / f"{k}.png", seed=k)
    rows(tmp_path / "l.csv", [["file", "label"], *[[f"{k}.png", str(k / 2)] for k in range(4)]])
    with pytest.raises(ValueError, match=r"l.csv: 2 of 4 labels are numbers that are not whole.*use regression"):
        folder(tmp_path)


BAD_ROWS = {
    "climbs": ([["../0.png", "a"]], "line 8: ../0.png leads out of the folder"),
    "climbs in the middle": ([["x/../../0.png", "a"]], "leads out of the folder"),
    "absolute": ([["/etc/passwd", "a"]], "/etc/passwd leads out of the folder"),
    "a drive": ([["C:\\x.png", "a"]], "leads out of the folder"),
    "twice": ([["./0.png", "b"]], r"1 file \(0.png\) stands more than once, 1 of them with different labels"),
    "no label": ([["9.png", ""]], "line 8: no label"),
    "no file": ([["", "b"]], "line 8: no file"),
    "cells": ([["1.png", "a", "b"]], "line 8: 3 cells where 2 columns are named"),
    "missing": ([["8.png", "a"], ["9.png", "a"]], r"2 files \(8.png, 9.png\) are missing"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_bad_rows_of_a_table(tmp_path, case):
    lines, says = BAD_ROWS[case]
    for k in range(6):
        picture(tmp_path / "d" / f"{k}.png", seed=k)
    rows(tmp_path / "d" / "l.csv", [["file", "label"], *[[f"{k}.png", "ab"[k % 2]] for k in range(6)], *lines])
    with pytest.raises((ValueError, FileNotFoundError), match=says):
        folder(tmp_path / "d")


def test_missing_files_of_a_table_are_skipped_on_request(tmp_path):
    for k in range(6):
        picture(tmp_path / f"{k}.png", seed=k)
    rows(tmp_path / "l.csv", [["file", "label"], *[[f"{k}.png", "ab"[k % 2]] for k in range(8)]])
    data = folder(tmp_path, skip_broken=True)
    assert len(data.x) == 6
    assert "l.csv: 2 files (6.png, 7.png) are missing: left out" in data.notes


def test_a_table_whose_files_are_all_missing(tmp_path):
    rows(tmp_path / "l.csv", [["file", "label"], ["0.png", "a"], ["1.png", "b"]])
    for for_study in (True, False):
        with pytest.raises(ValueError, match="pictures"):
            read_points(tmp_path / "l.csv", for_study=for_study)


def test_a_link_named_in_a_table_that_leads_out(tmp_path):
    picture(tmp_path / "secret.png")
    for k in range(4):
        picture(tmp_path / "d" / f"{k}.png", seed=k)
    (tmp_path / "d" / ".x.png").symlink_to(tmp_path / "secret.png")  # hidden: the listing passes over it
    rows(tmp_path / "d" / "l.csv", [["file", "label"], *[[f"{k}.png", "ab"[k % 2]] for k in range(4)], [".x.png", "a"]])
    with pytest.raises(ValueError, match=r"1 file \(.x.png\) is a link out of the folder"):
        folder(tmp_path / "d")


def test_tables_without_the_columns_or_in_another_encoding(tmp_path):
    picture(tmp_path / "0.png")
    rows(tmp_path / "l.csv", [["0.png", "a"], ["1.png", "b"]])
    with pytest.raises(ValueError, match=r"no column for the file.*first line is '0.png,a'"):
        folder(tmp_path)
    (tmp_path / "l.csv").write_bytes("file,label\n0.png,Bär\n".encode("latin-1"))
    with pytest.raises(ValueError, match="not UTF-8"):
        folder(tmp_path)
    rows(tmp_path / "l.csv", [["file", "label", "split"], ["0.png", "a", "holdout"]])
    with pytest.raises(ValueError, match="line 2: split 'holdout'; expected pool, train"):
        folder(tmp_path)
    rows(tmp_path / "m.csv", [["file", "label"], ["0.png", "a"]])
    with pytest.raises(ValueError, match=r"2 tables \(l.csv, m.csv\) of labels; give the path of one"):
        folder(tmp_path)


def test_a_table_of_something_else_beside_class_folders_is_an_other_file(tmp_path):
    classes_of(tmp_path, {"a": 3, "b": 3})
    rows(tmp_path / "prices.csv", [["item", "price"], ["x", "3"]])
    data = folder(tmp_path)
    assert data.classes == ("a", "b")
    assert data.notes == ("1 file is not a picture and was left out: 1 .csv",)


def test_a_table_without_files_is_not_taken_for_the_folder_it_lies_in(tmp_path):
    classes_of(tmp_path, {"a": 3, "b": 3})
    rows(tmp_path / "prices.csv", [["item", "price"], ["x", "3"]])
    with pytest.raises(ValueError, match=r"prices.csv has columns price and none for the label"):
        folder(tmp_path / "prices.csv")


def test_natural_order():
    names = ["b", "a10", "a2", "A1", "a", "10", "9", "a2b", "a02"]
    assert sorted(names, key=natural_key) == ["9", "10", "a", "A1", "a02", "a2", "a2b", "a10", "b"]


def test_stratified_is_a_share_of_each_class_and_leaves_one_to_learn_from():
    y = np.repeat([0, 1, 2], [100, 10, 1])
    pool, test = stratified(y, 0.25)
    assert np.bincount(y[test], minlength=3).tolist() == [25, 3, 0]
    assert sorted([*pool, *test]) == list(range(111))
    assert np.bincount(y[stratified(y, 0.99)[0]]).tolist() == [1, 1, 1]
    np.testing.assert_array_equal(stratified(y[:110], 0.25)[1], test)
    assert len(stratified(y, 0.0)[1]) == 0
    for share in (-0.1, 1.0):
        with pytest.raises(ValueError, match=f"test is {share}"):
            stratified(y, share)


def test_the_number_of_threads_changes_nothing(tmp_path):
    truth = classes_of(tmp_path, {"a": 50, "b": 50})
    files = list(truth)
    one, many = (decode_pictures(lambda i: open_picture(tmp_path / files[i]), files, workers=w) for w in (1, 7))
    assert torch.equal(one.x, many.x)
    for i, file in enumerate(files):
        np.testing.assert_array_equal(one.x[i].numpy().transpose(1, 2, 0), truth[file])


def test_a_glance_says_what_pillow_says_or_nothing(tmp_path: Path) -> None:
    rng, plain, other = np.random.default_rng(0), dict[str, bytes](), dict[str, bytes]()
    colour, grey = rng.integers(0, 256, (30, 40, 3), dtype=np.uint8), rng.integers(0, 256, (21, 33), dtype=np.uint8)

    def written(image: Image.Image, ending: str, **how: Any) -> bytes:
        image.save(out := io.BytesIO(), ending, **how)
        return out.getvalue()

    turned = Image.Exif()
    turned[0x0112] = 6
    for name, array in (("colour", colour), ("grey", grey)):
        plain[f"{name}.jpg"] = written(Image.fromarray(array), "JPEG", progressive=name == "grey")
        plain[f"{name}.png"] = written(Image.fromarray(array), "PNG")
        other[f"{name}-turned.jpg"] = written(Image.fromarray(array), "JPEG", exif=turned)
        other[f"{name}-turned.png"] = written(Image.fromarray(array), "PNG", exif=turned)
        other |= {f"{name}-cut{end}": plain[f"{name}{end}"][:-40] for end in (".jpg", ".png")}
    damaged = bytearray(plain["colour.png"])
    damaged[-30] ^= 1
    other |= {"damaged.png": bytes(damaged), "rubbish.jpg": b"\xff\xd8\xff\xe0", "empty.png": b""}
    other["alpha.png"] = written(Image.fromarray(colour).convert("RGBA"), "PNG")
    other["print.jpg"] = written(Image.fromarray(colour).convert("CMYK"), "JPEG")
    for name, raw in (plain | other).items():
        (tmp_path / name).write_bytes(raw)
    for name in plain:
        with open_picture(tmp_path / name) as image:
            assert glance(tmp_path / name) == (*oriented_size(image), len(plain[name]))
            check_complete(image)
    assert [name for name in other if glance(tmp_path / name) is not None] == []
    points = read_points(tmp_path)
    assert sorted(points.ids) == sorted(
        {*plain, *other} - {"grey-cut.jpg", "colour-cut.jpg", "grey-cut.png", "colour-cut.png", "damaged.png"}
        - {"rubbish.jpg", "empty.png"}
    )  # fmt: skip
    assert (points.sizes[30, 40], points.sizes[40, 30]) == (4, 2)
