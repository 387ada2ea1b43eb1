"""Files that a stranger wrote, or that changed: nothing hangs, nothing is run, nothing is mixed (docs/security.md)."""

import errno
import json
import logging
import os
import re
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile
from rich.table import Table
from rich.text import Text

from cli_runner import invoke, told
from foretaste import errors, report
from foretaste.cli.app import SafeConsole
from foretaste.cli.query_command import write_ranked
from foretaste.data import Images, load, read_points
from foretaste.data import pictures as data_pictures
from foretaste.data.pictures import decode_pictures, open_picture, picture_pixels, readable_picture
from foretaste.study import Data, Labels, Network, Train, estimate, prepared, read, run, study
from foretaste.study import load as load_records
from foretaste.study.folder import Task
from foretaste.study.study_data import data_digest
from report_cases import records, write_run

ESCAPES = "\x1b]0;owned\x07\x1b[2Jcat\x9b31m\u202e"
TINY = study(
    ("random",),
    seeds=(0,),
    labels=Labels(init=4, per_cycle=2, cycles=1),
    network=Network("mlp", {"hidden": (4,)}),
    train=Train(steps=2),
)


def pictures(root, count=6):
    """Pictures of two classes."""
    for k in range(count):
        path = root / ("cat" if k % 2 else "dog") / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 20 * k, np.uint8)).save(path)
    return root


# Only regular files are read.


def test_a_pipe_named_as_a_picture_is_refused_by_name_and_skipped_on_request(tmp_path):
    root = pictures(tmp_path / "root")
    os.mkfifo(root / "cat" / "pipe.png")
    for read_it in (load, read_points):
        with pytest.raises(ValueError, match=r"cat/pipe\.png \(a pipe, a socket or a device"):
            read_it(root, skip_broken=False)
        assert len(read_it(root, skip_broken=True).x) == 6
    assert "cat/pipe.png" in told("query", root, "--no-skip-broken", "--out", tmp_path / "out.csv")


@pytest.mark.parametrize("name", ["labels.csv", "x.npz", "study.toml"])
def test_other_pipes_are_refused(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises((ValueError, OSError), match=re.escape(name)):
        (read if name.endswith("toml") else read_points)(tmp_path / name)


def test_a_pipe_beside_pictures_is_no_table(tmp_path):
    root = pictures(tmp_path / "root")
    os.mkfifo(root / "labels.csv")
    assert len(load(root).x) == 6


@pytest.mark.parametrize("name", ["study.json", "records/random/0.jsonl", "pictures.npz"])
def test_a_pipe_in_the_folder_of_a_run(tmp_path, name):
    folder = write_run(tmp_path / "run", records())
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(ValueError, match=re.escape(name.rpartition("/")[2])):
        _ = report.read_run(folder).pictures
    if name != "pictures.npz":
        with pytest.raises(ValueError, match="pipe"):
            run(replace(TINY, seeds=(0,)), folder)


# What is decoded at once.


def threads_at_once(tasks, monkeypatch):
    """The most tasks that were within a decoder at the same time, where each takes a while."""
    inside, most, lock, load = [0], [0], threading.Lock(), ImageFile.ImageFile.load

    def slow(self):
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        time.sleep(0.05)
        with lock:
            inside[0] -= 1
        return load(self)

    monkeypatch.setattr(ImageFile.ImageFile, "load", slow)
    threads = [threading.Thread(target=task) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return most[0]


@pytest.mark.parametrize("way", ["items", "pixels", "a tiff that is checked", "all that break later"])
def test_pixels_that_threads_decode_at_once_are_bounded(tmp_path, monkeypatch, way):
    """Six PNGs of 30 kB took 4 GB."""
    ending = "tif" if way == "a tiff that is checked" else "png"
    for k in range(6):
        Image.fromarray(np.full((10, 10), 20 * k, np.uint8)).save(tmp_path / f"{k}.{ending}")
    files = sorted(tmp_path.iterdir())
    items = read_points(tmp_path).items
    if way == "all that break later":
        (tmp_path / "7.png").write_text("no picture")
        files = sorted(tmp_path.iterdir())
    monkeypatch.setattr(data_pictures, "PICTURES_A_TASK", 1)
    monkeypatch.setattr(data_pictures, "PIXELS_AT_ONCE", 100)

    def decode():
        decode_pictures(lambda i: open_picture(files[i]), [f.name for f in files], workers=6, size=4, channels=1)

    def broken():
        with pytest.raises(ValueError, match=r"7\.png"):
            decode_pictures(lambda i: open_picture(files[i]), [f.name for f in files], workers=6)

    def check():
        read_points(tmp_path)

    tasks = {
        "items": [lambda k=k: items[k] for k in range(6)],
        "pixels": [decode],
        "a tiff that is checked": [check, check, check],
        "all that break later": [broken],
    }
    assert threads_at_once(tasks[way], monkeypatch) == 1
    assert data_pictures._decoded_pixels == 0


def test_small_pictures_are_decoded_side_by_side(tmp_path, monkeypatch):
    for k in range(4):
        Image.fromarray(np.full((10, 10), 20 * k, np.uint8)).save(tmp_path / f"{k}.png")
    items, meet = read_points(tmp_path).items, threading.Barrier(4, timeout=60)
    load = ImageFile.ImageFile.load

    def together(self):
        if not hasattr(self, "met"):
            self.met = meet.wait()
        return load(self)

    monkeypatch.setattr(ImageFile.ImageFile, "load", together)
    threads = [threading.Thread(target=lambda k=k: items[k]) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not meet.broken


def test_a_picture_larger_than_the_bound_is_decoded_alone(tmp_path, monkeypatch):
    Image.fromarray(np.full((10, 10), 7, np.uint8)).save(tmp_path / "a.png")
    monkeypatch.setattr(data_pictures, "PIXELS_AT_ONCE", 50)
    assert read_points(pictures(tmp_path)).items[0].size == (10, 10)


def test_a_photo_counts_as_it_is_decoded_and_a_progressive_one_whole(tmp_path, monkeypatch):
    counted = []
    for name, progressive in (("plain", False), ("progressive", True)):
        Image.new("RGB", (4096, 2048)).save(tmp_path / f"{name}.jpg", progressive=progressive)
        with open_picture(tmp_path / f"{name}.jpg") as image, data_pictures.room_to_decode(image, 512):
            counted.append(data_pictures._decoded_pixels)
    assert counted == [1024 * 512, 4096 * 2048]


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "P transparent", "RGB", "RGBA", "I;16", "CMYK"])
def test_a_picture_converted_in_strips_is_the_same(tmp_path, monkeypatch, mode, orientation):
    bits = np.random.default_rng(0).integers(0, 255, (33, 20, 4), dtype=np.uint8)
    path = tmp_path / ("a.jpg" if mode == "CMYK" else "a.png")
    made = Image.fromarray(bits.view(np.uint16)[:, :, 0] if mode == "I;16" else bits)
    if mode != "I;16":
        made = made.convert("RGB").convert("P") if mode.startswith("P") else made.convert(mode)
    exif = Image.Exif()
    exif[0x0112] = orientation
    made.save(path, exif=exif, **({"transparency": 3} if mode == "P transparent" else {}))

    def read():
        with open_picture(path) as image:
            colour = np.asarray(readable_picture(image))
        with open_picture(path) as image:
            grey, remark = picture_pixels(image, colour.shape[:2], 1, resize=False)
        return colour, grey, remark

    whole = read()
    monkeypatch.setattr(data_pictures, "STRIP_PIXELS", 70)
    strips = read()
    assert whole[0].shape == ((33, 20, 3) if orientation == 1 else (20, 33, 3))
    assert np.array_equal(whole[0], strips[0])
    assert np.array_equal(whole[1], strips[1])
    assert whole[2] == strips[2]


# Names.


def test_names_that_are_not_utf8_are_refused_before_anything_is_trained(tmp_path):
    root = pictures(tmp_path / "root")
    os.rename(root / "cat" / "1.png", os.fsencode(root / "cat") + b"/caf\xe9.png")
    Image.fromarray(np.full((8, 8), 200, np.uint8)).save(root / "7.png")
    got = invoke("query", root, "--out", tmp_path / "out.csv")
    assert got.exit_code == 2
    assert r"name (cat/caf\xe9.png) is not UTF-8; rename" in " ".join(got.stderr.split())
    assert "training" not in got.output
    with pytest.raises(ValueError, match="not UTF-8"):
        load(root)


@pytest.mark.parametrize(("name", "says"), [("ids", "id"), ("y", "label"), ("classes", "")])
def test_words_of_an_npz_that_are_not_utf8_are_refused(tmp_path, name, says):
    arrays = {"x": np.zeros((3, 2)), "y": np.array(["a", "b", ""]), "ids": np.array(["p", "q", "r"])}
    arrays |= {"y": np.array([0, 1, 0])} if name == "classes" else {}
    arrays[name] = np.array(["a", "caf\udce9", "c"])
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ValueError, match=rf"a\.npz: 1 {says}.* \(caf\\xe9\) is not UTF-8"):
        read_points(tmp_path / "a.npz")
    if name != "ids":
        with pytest.raises(ValueError, match=r"1 label \(caf\\xe9\) is not UTF-8"):
            load(tmp_path / "a.npz")


def test_a_folder_whose_name_is_not_utf8_is_read_and_reported(tmp_path):
    root = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    pictures(root)
    Image.fromarray(np.full((8, 8), 200, np.uint8)).save(root / "7.png")
    got = invoke("query", root, "--backbone", "none", "--out", tmp_path / "out.csv", "--steps", 2, "-n", 1)
    assert got.exit_code == 0, got.output
    shutil.copytree(write_run(tmp_path / "run", records(seeds=2), study={"title": ""}), root / "run")
    page = report.folder(root / "run", tmp_path / "report")
    page.read_text(encoding="utf-8")


def test_escape_codes_in_names_never_reach_the_terminal(tmp_path):
    root = pictures(tmp_path / "root")
    for k in range(3):
        Image.fromarray(np.full((8, 8), 200 + k, np.uint8)).save(root / f"{ESCAPES}{k}.png")
    got = invoke("query", root, "--backbone", "none", "--out", tmp_path / "out.csv", "--steps", 2, "-n", 2)
    assert got.exit_code == 0, got.output
    (root / f"{ESCAPES}.png").write_text("no picture")
    broken = invoke("query", root, "--no-skip-broken", "--out", tmp_path / "out.csv")
    assert broken.exit_code == 2
    for output in (got.output, broken.output):
        assert r"\x1b[2Jcat" in output
        assert errors.UNPRINTABLE.search(output) is None


def test_the_console_keeps_its_own_codes_and_escapes_those_of_text():
    console = SafeConsole(force_terminal=True, width=200, color_system="standard", record=True)
    table = Table(box=None)
    table.add_column("id", style="red")
    table.add_row(Text(ESCAPES))
    with console.capture() as seen:
        console.print(table)
        console.print(f"plain {ESCAPES}", markup=False)
    assert "\x1b[31m" in seen.get()
    assert "\x1b[2J" not in seen.get()
    assert "\x9b" not in seen.get()


def test_what_foretaste_logs_has_no_escape_codes(tmp_path, caplog):
    folder = tmp_path / f"run{ESCAPES}"
    run(TINY, folder)
    forget_digest(folder)
    with caplog.at_level(logging.WARNING, "foretaste"):
        run(TINY, folder)
    assert "kept no digest" in caplog.text
    assert errors.UNPRINTABLE.search(caplog.messages[-1]) is None


# Cells that spreadsheets would run.


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ('=HYPERLINK("http://x","y")', '\'=HYPERLINK("http://x","y")'),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-2+3", "'-2+3"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("\r=1", "'\r=1"),
        ("＝1+1", "'＝1+1"),
        ("-1.png", "'-1.png"),
        ("-1.5e-3", "-1.5e-3"),
        ("+7", "+7"),
        ("-inf", "-inf"),
        ("cat = dog", "cat = dog"),
        ("", ""),
    ],
)
def test_cells_that_begin_as_formulas(text, cell):
    assert errors.csv_cell(text) == cell


def test_no_csv_of_ours_has_formulas(tmp_path, no_figures):
    row = {"rank": 1, "picked": 1, "id": "=1+1", "score": "-0.5", "predicted": "@x", "probability": "", "margin": ""}
    write_ranked([row], tmp_path / "ranked.csv")
    assert (tmp_path / "ranked.csv").read_text().splitlines()[1] == "1,1,'=1+1,-0.5,'@x,,"
    folder = write_run(tmp_path / "run", records({"=1+1": 0.8, "random": 0.7}))
    report.folder(folder)
    first = {line.split(",")[0] for line in (folder / "report" / "summary.csv").read_text().splitlines()}
    assert first == {"arm", "'=1+1", "random"}


# Settings.


def test_a_billion_cycles_are_refused_before_anything_is_allocated():
    of = replace(TINY, labels=Labels(init=4, per_cycle=1, cycles=10**9))
    data = prepared(of.data, "cpu")
    for call in (lambda: estimate(of, data), lambda: run(of), lambda: run(of, data=data)):
        with pytest.raises(ValueError, match="1000000004 labels in all and a pool of 1197"):
            call()


def test_a_byte_order_mark_in_toml(tmp_path):
    (tmp_path / "a.toml").write_bytes(b'\xef\xbb\xbfstrategies = ["random"]\n')
    assert read(tmp_path / "a.toml").names == ("random",)


def test_settings_that_are_not_utf8_are_refused():
    with pytest.raises(ValueError, match=r"'caf\\xe9' is not UTF-8; expected a text that is"):
        Data(name="caf\udce9")


# Data and code that changed under a run.


def forget_digest(folder):
    stored = json.loads((folder / "study.json").read_text())
    del stored["digest"]
    (folder / "study.json").write_text(json.dumps(stored))


def npz_study(path, seed=0, **over):
    draw = np.random.default_rng(seed)
    np.savez(path, **{"x": draw.normal(size=(40, 3)), "y": np.arange(40) % 2} | over)
    return replace(TINY, data=Data(name=str(path)))


CHANGES = {
    "the points": lambda a: {"x": a["x"] + 1},
    "the labels": lambda a: {"y": 1 - a["y"]},
    "the names of the classes": lambda a: {"y": np.where(a["y"] == 1, "yes", "no")},
}


@pytest.mark.parametrize("part", CHANGES)
@pytest.mark.parametrize("processes", [1, 2])
def test_data_that_changed_under_a_run_is_refused(tmp_path, part, processes):
    of = npz_study(tmp_path / "own.npz")
    run(of, tmp_path / "run")
    before = (tmp_path / "run" / "records" / "random" / "0.jsonl").read_bytes()
    with np.load(tmp_path / "own.npz") as held:
        arrays = dict(held)
    np.savez(tmp_path / "own.npz", **arrays | CHANGES[part](arrays))
    with pytest.raises(ValueError, match=rf"the data 'own' has changed: .*{part}.* put the data .* back, choose"):
        run(replace(of, seeds=(0, 1)), tmp_path / "run", processes=processes)
    assert (tmp_path / "run" / "records" / "random" / "0.jsonl").read_bytes() == before
    assert not (tmp_path / "run" / "records" / "random" / "1.jsonl").exists()
    np.savez(tmp_path / "own.npz", **arrays)
    assert len(run(replace(of, seeds=(0, 1)), tmp_path / "run")) == 4


def test_changed_data_is_refused_by_the_command_before_costs_are_measured(tmp_path):
    (tmp_path / "a.toml").write_text(
        f'strategies = ["random"]\nseeds = [0]\n[data]\nname = "{tmp_path / "own.npz"}"\n'
        "[labels]\ninit = 4\nper_cycle = 2\ncycles = 1\n[train]\nsteps = 2\n"
    )
    npz_study(tmp_path / "own.npz")
    run(read(tmp_path / "a.toml"), tmp_path / "run")
    npz_study(tmp_path / "own.npz", seed=1)
    got = invoke("run", tmp_path / "a.toml", "--out", tmp_path / "run")
    assert got.exit_code == 2
    assert "has changed: the points" in " ".join(got.stderr.split())
    assert "about" not in got.output  # nor was the time it takes measured


def test_data_may_change_before_the_first_record(tmp_path):
    of = npz_study(tmp_path / "own.npz")
    run(of, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "records")
    run(npz_study(tmp_path / "own.npz", seed=1), tmp_path / "run")


def test_a_run_without_a_digest_resumes_with_a_note_and_has_one_then(tmp_path, caplog):
    of = npz_study(tmp_path / "own.npz")
    run(of, tmp_path / "run")
    digest = json.loads((tmp_path / "run" / "study.json").read_text())["digest"]
    assert set(digest["data"]) == {"x", "y", "pool", "test", "classes"}
    forget_digest(tmp_path / "run")
    with caplog.at_level(logging.WARNING, "foretaste"):
        run(of, tmp_path / "run")
    assert "begun by an earlier version, which kept no digest of the data" in caplog.text
    assert json.loads((tmp_path / "run" / "study.json").read_text())["digest"] == digest


PLUGIN = (
    "import torch\nimport foretaste as ft\n@ft.register({name!r})\ndef score(state):\n    return torch.zeros(state.U)\n"
)


def test_a_plugin_that_changed_under_a_run_is_refused(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN.format(name="of_test_security"))
    of = replace(TINY, plugins=(str(file),))
    run(of, tmp_path / "run")
    file.write_text(PLUGIN.format(name="of_test_security") + "# changed\n")
    with pytest.raises(ValueError, match=r"the code of mine\.py has changed.* put the code of the first start back"):
        run(of, tmp_path / "run")


def test_a_network_of_ones_own_that_changed_is_refused(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "own_network_that_changes.py"
    code = (
        "from torch import nn\n"
        "def net(inputs, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, classes))\n"
    )
    file.write_text(code)
    of = replace(TINY, network=Network("own_network_that_changes:net"))
    run(of, tmp_path / "run")
    file.write_text(code.replace("nn.Linear(inputs, classes)", "nn.Linear(inputs, classes, bias=False)"))
    with pytest.raises(ValueError, match="the code of own_network_that_changes has changed"):
        run(of, tmp_path / "run")


def test_a_digest_is_of_every_part_and_not_of_the_device_or_the_normalisation():
    data = Images(
        "a", torch.arange(12.0).view(4, 3), torch.tensor([0, 1, 0, 1]), np.arange(2), np.arange(2, 4), ("a", "b")
    )
    own = data_digest(data)
    assert data_digest(replace(data, name="b", normalise=((0.0,), (1.0,)), notes=("n",))) == own
    assert data_digest(replace(data, x=data.x.T.contiguous().T)) == own
    others = {
        "x": replace(data, x=data.x.view(4, 3, 1)),
        "y": replace(data, y=data.y.flip(0)),
        "pool": replace(data, pool=np.array([1, 0])),
        "test": replace(data, test=np.array([3])),
        "classes": replace(data, classes=("b", "a")),
    }
    for part, other in others.items():
        differ = {name for name, digest in data_digest(other).items() if digest != own[name]}
        assert differ == {part}


# Damaged folders of runs: the file is named, and what to do.


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    folder = tmp_path_factory.mktemp("warm")
    run(WARM, folder)
    return folder


WARM = replace(TINY, train=Train(steps=2, start="warm"))
MORE = replace(WARM, labels=Labels(init=4, per_cycle=2, cycles=2))


def unfinished(warm, tmp_path):
    """The folder of a run whose last cycle is missing."""
    folder = tmp_path / "run"
    shutil.copytree(warm, folder)
    path = Task(folder, "random", 0).path
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    (folder / "weights/random/0-1.safetensors").rename(folder / "weights/random/0-0.safetensors")
    return folder


@pytest.mark.parametrize("raw", [b"", b"rubbish", b"\xff" * 100, (1 << 40).to_bytes(8, "little") + b"{}"])
def test_a_damaged_checkpoint_is_named(warm, tmp_path, raw):
    folder = unfinished(warm, tmp_path)
    (folder / "weights/random/0-0.safetensors").write_bytes(raw)
    with pytest.raises(ValueError, match=r"0-0\.safetensors is damaged .* remove .*0\.jsonl to run it anew"):
        run(WARM, folder)


def test_a_checkpoint_with_one_bit_changed_is_refused_and_a_first_network_is_trained_anew(warm, tmp_path):
    folder = unfinished(warm, tmp_path)
    for path in (folder / "weights/random/0-0.safetensors", *(folder / "first").iterdir()):
        path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))
    with pytest.raises(ValueError, match=r"0-0\.safetensors is damaged .*its digest is not that of its contents"):
        run(WARM, folder)
    Task(folder, "random", 0).path.unlink()
    assert without_cost(run(WARM, folder)) == without_cost(load_records(warm))


def without_cost(found):
    return [{key: value for key, value in record.items() if key != "cost"} for record in found]


def without_checksums(path):
    """Records that a stranger may have written, or an earlier version."""
    return re.sub(r', "checksum": "[0-9a-f]{16}"', "", path.read_text())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: "[" * 100_000, "is not JSON"),
        (lambda s: s.replace('"seed": 0', '"seed": "0"'), "seed is '0'; expected a whole number"),
        (lambda s: s.replace('"accuracy": ', '"accuracy": 7'), "accuracy is 7.*; expected at most 1"),
        (lambda s: re.sub(r'"queried": \[.*?\]', '"queried": 7', s), "queried is 7; expected a list"),
        (lambda s: s.replace('"residual"', '"residue"'), "it has no residual"),
        (lambda s: s.replace('"train": ', '"train": 1e999, "old": ', 1), "cost.train is inf; expected less than"),
        (lambda s: "7\n", "is not a table"),
    ],
)
def test_a_damaged_record_is_named(warm, tmp_path, change, says):
    shutil.copytree(warm, tmp_path / "run")
    path = Task(tmp_path / "run", "random", 0).path
    path.write_text(change(without_checksums(path)) + "\n")
    for call in (report.read_run, lambda folder: run(WARM, folder)):
        with pytest.raises(
            ValueError, match=rf"0\.jsonl, line 1, is not a record: .*{says}.*Remove the file and start"
        ):
            call(tmp_path / "run")


@pytest.mark.parametrize("queried", [[0, 0], [10**9, 1], "labelled"])
def test_an_unfinished_run_resumes_from_its_own_points_only(warm, tmp_path, queried):
    """Records that were edited, or of a version that draws other first labels, were continued in silence."""
    folder = unfinished(warm, tmp_path)
    path = Task(folder, "random", 0).path
    record = json.loads(without_checksums(path))
    change = {"labelled_ids": record["labelled_ids"][::-1]} if queried == "labelled" else {"queried": queried}
    path.write_text(json.dumps(record | change) + "\n")
    with pytest.raises(ValueError, match="arm 'random' and seed 0 have other labelled points in cycle 0 than this run"):
        run(WARM, folder)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda a, b: [a, b | {"labelled_ids": b["labelled_ids"][:-1]}], "line 2, .* its labelled_ids are not those"),
        (lambda a, b: [a, b, b | {"cycle": 2}], "line 3, .* its cycle is 2; expected at most 1"),
    ],
    ids=["other points", "one more"],
)
def test_records_that_do_not_follow_one_another_are_named(warm, tmp_path, change, says):
    shutil.copytree(warm, tmp_path / "run")
    path = Task(tmp_path / "run", "random", 0).path
    path.write_text(
        "".join(json.dumps(r) + "\n" for r in change(*map(json.loads, without_checksums(path).splitlines())))
    )
    with pytest.raises(ValueError, match=rf"0\.jsonl, {says}"):
        run(WARM, tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d["study"].pop("arms"), "it has no study.arms"),
        (lambda d: d["study"].update(seeds="0"), "study.seeds is '0'; expected a list"),
        (
            lambda d: d["study"]["labels"].update(cycles="many"),
            "study.labels.cycles is 'many'; expected a whole",
        ),
        (lambda d: d.update(about=["x"]), "about is .*; expected a table"),
        (lambda d: d.update(classes=[1]), r"classes\[0\] is 1; expected a text"),
    ],
)
def test_a_damaged_study_json_is_named_and_written_anew(warm, tmp_path, change, says):
    shutil.copytree(warm, tmp_path / "run")
    path = tmp_path / "run" / "study.json"
    stored = json.loads(path.read_text())
    change(stored)
    path.write_text(json.dumps(stored))
    with pytest.raises(ValueError, match=rf"study\.json does not describe a study: {says}.*start the run again"):
        report.read_run(tmp_path / "run")
    run(WARM, tmp_path / "run")
    report.read_run(tmp_path / "run")


def zipped(**arrays):
    return lambda path: np.savez(path, **arrays)


@pytest.mark.parametrize(
    "write",
    [
        lambda path: path.write_bytes(b"PK\x03\x04 rubbish"),
        lambda path: path.write_bytes(b""),
        zipped(ids=np.arange(3)),
        zipped(ids=np.arange(3), pixels=np.zeros((2, 8, 8), np.uint8)),
        zipped(ids=np.arange(3), pixels=np.zeros((3, 8, 8))),
        zipped(ids=np.arange(3), pixels=np.zeros((3, 8, 8, 7), np.uint8)),
        zipped(ids=np.array([{}]), pixels=np.zeros((1, 8, 8), np.uint8)),
    ],
)
def test_damaged_pictures_are_named(warm, tmp_path, write):
    shutil.copytree(warm, tmp_path / "run")
    write(tmp_path / "run" / "pictures.npz")
    with pytest.raises(ValueError, match=r"pictures\.npz is damaged \(.+\); remove it"):
        _ = report.read_run(tmp_path / "run").pictures


def test_lines_that_are_no_records_are_named_by_load(tmp_path):
    (tmp_path / "r.jsonl").write_text('{"cycle": 0}\n{"cyc\n')
    with pytest.raises(ValueError, match=r"r\.jsonl, line 2, is not a record"):
        load_records(tmp_path / "r.jsonl")


# A full disk.


def test_a_report_on_a_full_disk_says_so(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "run", records(seeds=2))

    def full(self, *args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match=r"the disk is full, .*curves\.svg could not be written"):
        report.folder(folder)
    assert "the disk is full" in told("report", folder)
    assert not list(folder.rglob("*.part"))


def test_figures_are_drawn_in_memory(tmp_path, monkeypatch):
    """matplotlib opens the file itself otherwise; on a full disk its error is about a Stream without pos."""
    from matplotlib.figure import Figure

    seen = []
    savefig = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, to, **how: (seen.append(to), savefig(self, to, **how))[1])
    report.folder(write_run(tmp_path / "run", records(seeds=2)))
    assert seen
    assert not [to for to in seen if isinstance(to, str | Path)]


# What the fuzzer of files found.


def test_a_study_with_faults_names_its_file(tmp_path):
    for text, says in (
        ('strategies = ["random"]\n[train]\nsteps = -1\n', "train: steps=-1; expected at least 1"),
        ("a = " + "[" * 50_000, "nested too deeply"),
        ("seeds = [" + "9" * 5000 + "]", "is not TOML"),
    ):
        (tmp_path / "a.toml").write_text(text)
        with pytest.raises(ValueError, match=rf"a\.toml.*{says}"):
            read(tmp_path / "a.toml")


def test_a_picture_that_claims_too_much_memory_is_named(tmp_path, monkeypatch):
    root = pictures(tmp_path / "root")

    def claims(image, *args, **how):
        raise MemoryError

    monkeypatch.setattr("foretaste.data.pictures.picture_pixels", claims)
    with pytest.raises(ValueError, match=r"cat/1\.png \(claims more memory than there is\)"):
        load(root)


def test_loops_of_links_lead_nowhere(tmp_path):
    root = pictures(tmp_path / "root")
    (root / "loop.png").symlink_to("loop.png")
    with pytest.raises(ValueError, match=r"1 link \(loop\.png\) leads out .* or in a loop"):
        read_points(root)


def test_names_that_no_file_can_have(tmp_path):
    (tmp_path / "labels.csv").write_text(f"file,label\n{'9' * 5000},a\nb\0.png,b\n")
    with pytest.raises(ValueError, match=r"line 2: '9{20}'\.\.\. cannot be the name of a file; line 3"):
        read_points(tmp_path / "labels.csv")


def test_labels_with_thousands_of_digits_are_sorted(tmp_path):
    (tmp_path / "a.csv").write_text("label,x\n" + f"{'9' * 5000},1\n10,2\n9,3\n010,4\n" * 3)
    assert load(tmp_path / "a.csv").classes == ("9", "010", "10", "9" * 5000)


def test_a_large_number_as_a_label_does_not_make_as_many_classes(tmp_path):
    (tmp_path / "a.csv").write_text("label,x\n0,1\n999999999999,2\n,3\n")
    line = told("query", tmp_path / "a.csv", "--out", tmp_path / "out.csv")
    assert "label 999999999999 is a number, and numbers count classes from 0; expected less than 100000" in line


@pytest.fixture
def saved(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    rows = {"word": [f"word{k}" for k in range(6)], "x": [0.5 * k for k in range(6)], "label": ["a", "b"] * 3}
    datasets.DatasetDict({"train": datasets.Dataset.from_dict(rows)}).save_to_disk(tmp_path / "set")
    return tmp_path / "set"


def test_offsets_of_arrow_that_lead_beyond_the_file_are_refused(saved):
    (file,) = saved.rglob("*.arrow")
    raw = file.read_bytes()
    lengths = np.arange(0, 35, 5, dtype="<i4").tobytes()  # where the six words of five letters begin
    assert raw.count(lengths) == 1
    file.write_bytes(raw.replace(lengths, np.array([0, 5, 10, 15, 20, 25, 2**30], "<i4").tobytes()))
    with pytest.raises(ValueError, match="set cannot be read as a dataset saved to disk"):
        read_points(saved)


def test_a_saved_dataset_reads_its_own_files_only(saved, tmp_path):
    state = saved / "train" / "state.json"
    held = json.loads(state.read_text())
    shutil.move(saved / "train" / held["_data_files"][0]["filename"], tmp_path / "other.arrow")
    held["_data_files"][0]["filename"] = "../../other.arrow"
    state.write_text(json.dumps(held))
    with pytest.raises(ValueError, match=r"state\.json names .*other\.arrow, outside of the dataset's folder"):
        read_points(saved)
    (saved / "train" / "data.arrow").symlink_to(tmp_path / "other.arrow")
    with pytest.raises(ValueError, match=r"data\.arrow is a link out of the dataset's folder"):
        read_points(saved)
    (saved / "train" / "data.arrow").unlink()
    os.mkfifo(saved / "train" / "data.arrow")
    with pytest.raises(ValueError, match=r"data\.arrow is a pipe"):
        read_points(saved)


def test_a_saved_dataset_without_splits(saved):
    (saved / "dataset_dict.json").write_text('{"splits": []}')
    with pytest.raises(ValueError, match="a dataset without splits"):
        read_points(saved)


def test_what_an_npz_has_besides_is_told(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 2)), labls=np.arange(3))
    assert "1 array (labls) is not read" in read_points(tmp_path / "a.npz").notes


# The threat model.


def test_a_folder_of_a_run_names_no_code_that_is_run(warm, tmp_path, monkeypatch):
    """study.json, the records and the checkpoints name a network and a plugin that would write a file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "trap_of_test_security.py").write_text("open('executed', 'w')\ndef net(**options):\n    pass\n")
    shutil.copytree(warm, tmp_path / "run")
    for path in [tmp_path / "run" / "study.json", *(tmp_path / "run" / "records").rglob("*.jsonl")]:
        text = without_checksums(path).replace('"mlp"', '"trap_of_test_security:net"')
        path.write_text(text.replace('"plugins": []', '"plugins": ["trap_of_test_security.py"]'))
    assert "trap_of_test_security.py" in (tmp_path / "run" / "study.json").read_text()
    report.folder(tmp_path / "run")
    load_records(tmp_path / "run")
    with pytest.raises(ValueError, match=r"other settings.*network\.name is 'trap_of_test_security:net' there"):
        run(WARM, tmp_path / "run")
    assert not (tmp_path / "executed").exists()


def test_every_test_that_the_threat_model_names_is_there():
    tests = {path.stem: path.read_text(encoding="utf-8") for path in Path(__file__).parents[1].rglob("test_*.py")}
    text = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
    # Files that the page does not name beside each test: this one, and for the labelling page its server's.
    own = tests["test_security"] + tests["test_label_server"]
    rows = [line for line in text.splitlines() if "`test_" in line and line.startswith("|")]
    assert len(rows) > 25
    for row in rows:
        for group in re.finditer(r"((?:`test_\w+`(?:, )?)+)(?: \((test_\w+)\))?", row):
            file = tests[group[2] or "test_security"]
            for name in re.findall(r"`(test_\w+)`", group[1]):
                assert f"def {name}(" in file + own, row
