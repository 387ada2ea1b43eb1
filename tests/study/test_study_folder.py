"""The folder of a run: killed anywhere, it goes on to the same records; nobody else's is taken for one's own."""

import errno
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from foretaste import report
from foretaste.files import lock_folder
from foretaste.network import load_network
from foretaste.study import (
    Arm,
    Labels,
    Network,
    Study,
    Train,
    check_folder,
    load,
    prepared,
    run,
    study,
    study_of,
)
from foretaste.study.folder import Task, differences, slug, write_study
from foretaste.study.run import _run_here

SMALL = Study(
    arms=(Arm("gain", "gain"), Arm("random, warm", "random", train={"start": "warm"})),
    seeds=(0, 1),
    labels=Labels(init=20, per_cycle=5, cycles=3, subset=100),
    network=Network("mlp", {"hidden": (16,)}),
    train=Train(steps=40, max_lr=0.5),
)


def timeless(folder):
    """Every record's bytes, timings and the checksum over them aside, by file."""
    return {
        str(path.relative_to(folder)): [
            json.dumps({k: v for k, v in json.loads(text).items() if k not in ("cost", "checksum")})
            for text in path.read_text().splitlines()
        ]
        for path in sorted((folder / "records").rglob("*.jsonl"))
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    run(SMALL, folder)
    return folder


def test_a_run_leaves_records_and_the_last_weights(whole):
    records = load(whole)
    assert len(records) == SMALL.size == 16
    for arm in SMALL.names:
        for seed in SMALL.seeds:
            task = Task(whole, arm, seed)
            assert len(task.records(SMALL.trial(arm))) == 4
            (path,) = (whole / "weights" / slug(arm)).glob(f"{seed}-*")
            assert path.name == f"{seed}-3.safetensors"
            assert load_network(None, path).spec.hidden == (16,)


def test_weights_of_ones_own_network_know_its_options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ours_with_options.py").write_text(
        "from torch import nn\n"
        "def net(inputs, classes, width=3):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), nn.Linear(width, classes))\n"
    )
    run(
        study(
            ("random",),
            seeds=(0,),
            labels=Labels(init=10, per_cycle=5, cycles=0),
            network=Network("ours_with_options:net", {"width": 5}),
            train=Train(steps=3),
        ),
        tmp_path,
    )
    path = tmp_path / "weights/random/0-0.safetensors"
    net = load_network("ours_with_options:net", path, classes=10, shape=(1, 8, 8))
    assert net[1].out_features == 5


def with_times(folder):
    """Every file of records as it is. A second run would take other times."""
    return {path: path.read_bytes() for path in (folder / "records").rglob("*.jsonl")}


def test_a_finished_run_is_not_run_again(whole):
    before = with_times(whole)
    assert len(run(SMALL, whole)) == 16
    assert with_times(whole) == before


def test_more_seeds_and_arms_can_come_later(whole, tmp_path):
    run(replace(SMALL, seeds=(1,), arms=SMALL.arms[1:]), tmp_path)
    run(SMALL, tmp_path)
    assert timeless(tmp_path) == timeless(whole)


def test_a_run_with_a_time_limit_stops_at_a_record_and_resumes(whole, tmp_path, monkeypatch):
    clock = iter(range(0, 10_000, 60))  # a minute passes whenever somebody looks
    monkeypatch.setattr(sys.modules["foretaste.study.run"], "time", SimpleNamespace(time=lambda: next(clock)))
    counts = []
    while len(counts) < 20 and sum(counts[-1:]) < SMALL.size:
        counts.append(len(run(SMALL, tmp_path, minutes=5)))
    assert counts[0] < counts[1] < SMALL.size
    assert counts[-1] == SMALL.size
    assert timeless(tmp_path) == timeless(whole)
    with pytest.raises(ValueError, match="minutes is 0; expected a number above 0"):
        run(SMALL, tmp_path, minutes=0)


@pytest.mark.slow
def test_processes_stop_at_the_time_limit_too(whole, tmp_path):
    assert run(SMALL, tmp_path, processes=2, minutes=1e-6) == []
    assert len(run(SMALL, tmp_path, minutes=60)) == SMALL.size
    assert timeless(tmp_path) == timeless(whole)


def copy_with(whole, folder, change):
    """A copy of a run in which the text of one file of records is another."""
    shutil.copytree(whole, folder)
    path = Task(folder, "gain", 0).path
    path.write_text(change(path.read_text()))
    return folder


def without_checksum(text):
    return re.sub(r', "checksum": "[0-9a-f]{16}"', "", text)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda text: text.replace('"accuracy": 0.', '"accuracy": 0.9', 1), 1),
        (lambda text: text[: text.rfind('"accuracy"')] + text[text.rfind('"accuracy"') :].replace("0.", "0.9", 1), 4),
        (lambda text: text.replace('"cost": {"train": ', '"cost": {"train": 1', 1), 1),
        (lambda text: text.replace('"checksum"', '"checksun"').replace('"checksun"', '"checksum"', 1), 2),
        (lambda text: "".join([*text.splitlines(True)[:1], without_checksum("".join(text.splitlines(True)[1:]))]), 2),
    ],
)
def test_a_record_that_was_changed_is_told_by_report_and_resume(whole, tmp_path, change, line):
    folder = copy_with(whole, tmp_path / "run", change)
    before = Task(folder, "gain", 0).path.read_bytes()
    for read in (load, report.read_run, lambda folder: run(SMALL, folder)):
        with pytest.raises(ValueError, match=rf"0\.jsonl, line {line}, .* it was changed after it was written"):
            read(folder)
    assert Task(folder, "gain", 0).path.read_bytes() == before


def test_records_of_an_earlier_version_have_no_checksum_and_are_read(whole, tmp_path):
    """Lines that are added later have one."""
    folder = copy_with(whole, tmp_path / "run", lambda text: without_checksum("".join(text.splitlines(True)[:2])))
    assert len(load(folder)) == len(report.read_run(folder).records) == 14
    run(SMALL, folder)
    assert timeless(folder) == timeless(whole)
    lines = Task(folder, "gain", 0).path.read_text().splitlines()
    assert ["checksum" in line for line in lines] == [False, False, True, True]
    assert all("checksum" not in record for record in load(folder))
    copy_with(folder, tmp_path / "elsewhere", lambda text: text.replace("\n", "\r\n"))  # as git may check it out
    assert load(tmp_path / "elsewhere") == load(folder)


@pytest.mark.parametrize("cycle", [0, 2, 3])
@pytest.mark.parametrize("torn", [0, 1, 40, -1])
def test_a_torn_last_line_is_written_anew(whole, tmp_path, cycle, torn):
    """As if killed while the record of a cycle was written, with none, some or all but the end of it on disk."""
    of = replace(SMALL, seeds=(1,), arms=SMALL.arms[1:])
    stop_after(of, tmp_path, cycle + 1)
    task = Task(tmp_path, "random, warm", 1)
    lines = task.path.read_bytes().splitlines(keepends=True)
    task.path.write_bytes(b"".join(lines[:-1]) + lines[-1][: torn or 0])
    if cycle > 0:  # the weights of the cycle before are still there when a record is being written
        stop = Task(tmp_path / "twin", "random, warm", 1)
        stop_after(of, tmp_path / "twin", cycle)
        stop._weights_path(cycle - 1).rename(task._weights_path(cycle - 1))
    run(of, tmp_path)
    key = str(task.path.relative_to(tmp_path))
    assert timeless(tmp_path)[key] == timeless(whole)[key]


def stop_after(of, folder, records):
    tasks = [Task(folder, name, seed) for seed in of.seeds for name in of.names]
    going = _run_here(of, tasks, prepared(of.data, "cpu"))
    for _ in range(records):
        next(going)
    going.close()


ZYGOTE = """
import os, sys
import torch, numpy
import foretaste.study, sklearn.model_selection  # once: the children of this process need not import anything
from tests_of_folders import SMALL
from pathlib import Path
print("ready", flush=True)
for line in sys.stdin:
    child = os.fork()
    if not child:
        foretaste.study.run(SMALL, Path(line.strip()))
        os._exit(0)
    print(child, flush=True)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a forked process")
def test_ten_kills_and_a_resume_give_the_same_records(whole, tmp_path):
    """SIGKILL at random moments of a run, and the same command again, until it was killed ten times."""
    shutil.copy(__file__, tmp_path / "tests_of_folders.py")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    zygote = subprocess.Popen(
        [sys.executable, "-c", ZYGOTE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )

    def start(folder, kill_after=None):
        zygote.stdin.write(f"{folder}\n")
        zygote.stdin.flush()
        child = int(zygote.stdout.readline())
        if kill_after is not None:
            time.sleep(kill_after)
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        return int(zygote.stdout.readline())

    try:
        assert zygote.stdout.readline() == "ready\n"  # its imports are no part of a run's length
        began = time.monotonic()
        assert start(tmp_path / "timed") == 0
        length = time.monotonic() - began
        assert timeless(tmp_path / "timed") == timeless(whole)
        killed, rounds, draw = 0, 0, random.Random(0)
        while killed < 10:
            folder = tmp_path / f"run{rounds}"
            while start(folder, kill_after=draw.uniform(0, length / 3)) == -signal.SIGKILL:
                killed += 1
            assert start(folder) == 0
            assert timeless(folder) == timeless(whole)
            rounds += 1
    finally:
        zygote.communicate(timeout=120)


def test_a_folder_of_another_configuration_is_refused(whole):
    with pytest.raises(ValueError, match=r"other settings: train.max_lr is 0.5 there and 0.1 here\. Choose another"):
        run(replace(SMALL, train=replace(SMALL.train, max_lr=0.1)), whole)


def test_a_folder_whose_study_says_otherwise_is_refused(tmp_path):
    write_study(tmp_path, SMALL, {})
    check_folder(tmp_path, replace(SMALL, seeds=(5,), arms=SMALL.arms[:1], title="Another"))
    with pytest.raises(ValueError, match=r"labels.init is 20 there and 30 here; labels.cycles is 3 there and 1 here"):
        check_folder(tmp_path, replace(SMALL, labels=replace(SMALL.labels, init=30, cycles=1)))


def test_a_run_goes_on_to_more_cycles(whole, tmp_path):
    """Its records are those of a run that had so many from the start; earlier ones tell the cycles of their time."""

    def without_cycles(folder):
        found = {path: lines for path, lines in timeless(folder).items() if path.endswith("0.jsonl")}
        return {path: [re.sub(r'"cycles": \d', "", text) for text in lines] for path, lines in found.items()}

    of = replace(SMALL, seeds=(0,))
    for cycles in (0, 1, 2):
        run(replace(of, labels=replace(of.labels, cycles=cycles)), tmp_path)
        if cycles == 1:  # cold starts need no weights; damaged ones were said to be needed by a warm start
            (tmp_path / "weights" / "gain" / "0-1.safetensors").write_bytes(b"damaged")
    shutil.rmtree(tmp_path / "weights" / "gain")
    seen = []
    records = run(of, tmp_path, seen=lambda record: seen.append((record["arm"], record["cycle"])))
    assert len(records) == len(set(seen)) == len(seen) == of.size
    assert without_cycles(tmp_path) == without_cycles(whole)
    assert [json.loads(lines[-2])["config"]["labels"]["cycles"] for lines in timeless(tmp_path).values()] == [3, 3]
    stored = json.loads((tmp_path / "study.json").read_text())
    assert stored["study"]["labels"]["cycles"] == 3
    assert stored["about"]["labels"].endswith(", 3 cycles")  # the page shows it
    assert run(of, tmp_path) == records
    with pytest.raises(ValueError, match=r"labels.cycles is 3 there and 2 here"):
        run(replace(of, labels=replace(of.labels, cycles=2)), tmp_path)


def test_more_cycles_from_warm_starts_need_the_last_network(tmp_path):
    of = replace(SMALL, seeds=(0,), arms=SMALL.arms[1:], labels=replace(SMALL.labels, cycles=1))
    run(of, tmp_path)
    before = timeless(tmp_path)
    shutil.rmtree(tmp_path / "weights")
    with pytest.raises(
        FileNotFoundError, match=r"safetensors is gone, and a warm start needs it; remove .* run it anew"
    ):
        run(replace(of, labels=replace(of.labels, cycles=2)), tmp_path)
    assert timeless(tmp_path) == before
    assert len(run(of, tmp_path)) == 2  # study.json had two cycles, and refused the study of one


def test_a_folder_that_names_the_kernel_of_its_arms_goes_on_under_auto(whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    told = json.loads((folder / "study.json").read_text())
    told["study"]["query"]["output"] = "sum"  # as files of earlier versions have it
    (folder / "study.json").write_text(json.dumps(told))
    check_folder(folder, SMALL)
    with pytest.raises(ValueError, match=r"of arm '.*' with other settings: query.output is 'sum' there and 'first'"):
        check_folder(folder, replace(SMALL, query=replace(SMALL.query, output="first")))


def test_two_processes_on_one_folder(tmp_path):
    with lock_folder(tmp_path), pytest.raises(RuntimeError, match="another process is running in"):
        run(SMALL, tmp_path)
    path = Task(tmp_path, "gain", 0).path
    path.parent.mkdir(parents=True)
    path.write_text('{"cycle": 3}\n')
    with pytest.raises(ValueError, match="its cycle is 3; expected 0"):
        run(SMALL, tmp_path)
    path.write_text("no json\n")
    with pytest.raises(ValueError, match="line 1, is not a record"):
        run(SMALL, tmp_path)


def test_a_full_disk_loses_the_record_in_progress_and_no_more(whole, tmp_path, monkeypatch):
    of = replace(SMALL, seeds=(0,), arms=SMALL.arms[:1])
    full, real = {"at": 8}, os.fsync

    def fsync(descriptor):
        full["at"] -= 1
        if full["at"] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match=r"the disk is full.*free some space"):
        run(of, tmp_path)
    path = Task(tmp_path, "gain", 0).path
    kept = path.read_text()
    assert kept.endswith("\n")
    assert len(kept.splitlines()) in (1, 2)
    monkeypatch.setattr(os, "fsync", real)
    run(of, tmp_path)
    assert timeless(tmp_path) == {k: v for k, v in timeless(whole).items() if k == "records/gain/0.jsonl"}


def test_a_record_that_does_not_fit_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    """A disk with room for half a line: what was written of it goes, and nothing follows when the file is closed."""
    task = Task(tmp_path, "gain", 0)
    task.append({"cycle": 0})
    before = task.path.read_bytes()
    real = io.FileIO.write

    class Full(io.FileIO):
        room = 10

        def write(self, data):
            if not self.room:
                raise OSError(errno.ENOSPC, "No space left on device")
            n, self.room = real(self, bytes(data)[: self.room]), 0
            return n

    monkeypatch.setattr("pathlib.Path.open", lambda self, mode, buffering: Full(self, mode))
    with pytest.raises(OSError, match=r"the disk is full.*0\.jsonl could not be written"):
        task.append({"cycle": 1, "long": "x" * 100})
    monkeypatch.undo()
    assert task.path.read_bytes() == before
    task.append({"cycle": 1})
    assert [r["cycle"] for r in load(tmp_path)] == [0, 1]


def test_weights_on_a_full_disk(tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("foretaste.network.saved.save_file", full)
    with pytest.raises(OSError, match=r"the disk is full.*0-0\.safetensors could not be written"):
        Task(tmp_path, "gain", 0).save_weights(0, torch.nn.Linear(2, 2))


def test_records_are_read_by_seed_and_without_a_line_cut_off(tmp_path):
    for seed in (10, 2):
        for cycle in (0, 1):
            Task(tmp_path, "gain", seed).append({"seed": seed, "cycle": cycle})
    with Task(tmp_path, "gain", 2).path.open("a") as file:
        file.write('{"seed": 2, "cyc')
    assert [(r["seed"], r["cycle"]) for r in load(str(tmp_path))] == [(2, 0), (2, 1), (10, 0), (10, 1)]
    with pytest.raises(FileNotFoundError, match="expected the folder of a run"):
        load(tmp_path / "none")


def test_what_the_folder_has_records_of_stays_in_its_description(tmp_path):
    first = study(("gain", "margin", "random"), seeds=(0, 1, 5))
    write_study(tmp_path, first, {"about": {"seeds": "0, 1, 5"}})
    for arm, seed in (("gain", 0), ("gain", 1), ("random", 0)):
        Task(tmp_path, arm, seed).append({"cycle": 0})
    write_study(tmp_path, study(("badge", "gain"), seeds=(0,)), {"about": {"seeds": "0", "command": "foretaste run x"}})
    told = json.loads((tmp_path / "study.json").read_text())
    assert [arm["name"] for arm in told["study"]["arms"]] == ["badge", "gain", "random"]
    assert told["study"]["seeds"] == [0, 1]
    assert told["about"] == {"seeds": "0, 1", "command": "foretaste run x"}


def test_seeds_of_a_check_of_the_mathematics_stay_too(tmp_path):
    write_study(tmp_path, Study(experiment="theorem", seeds=(3, 4)), {})
    Task(tmp_path, "theorem", 4).append({"cycle": 0})
    write_study(tmp_path, Study(experiment="theorem", seeds=(5,)), {})
    assert json.loads((tmp_path / "study.json").read_text())["study"]["seeds"] == [5, 4]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}"])
def test_a_description_that_was_lost_is_written_anew(tmp_path, text):
    (tmp_path / "study.json").write_text(text)
    check_folder(tmp_path, SMALL)
    write_study(tmp_path, SMALL, {})
    assert json.loads((tmp_path / "study.json").read_text())["study"]["seeds"] == [0, 1]


def test_lost_weights_of_a_warm_start_are_told(tmp_path):
    of = replace(SMALL, seeds=(1,), arms=SMALL.arms[1:])
    stop_after(of, tmp_path, 2)
    for path in (tmp_path / "weights").rglob("*.safetensors"):
        path.unlink()
    with pytest.raises(FileNotFoundError, match="a warm start needs it"):
        run(of, tmp_path)


def test_names_of_files():
    names = ["gain", "Gain", "gain ", "NTK, block", "NTK block", "ähm", "../../etc", ""]
    slugs = [slug(name) for name in names]
    assert len(set(slugs)) == len(names)
    assert slugs[0] == "gain"
    assert all(s.replace("-", "").isalnum() and s.isascii() for s in slugs)


def test_differences():
    assert differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}, "d": 4}) == [
        "a.c is 2 there and 3 here",
        "d is None there and 4 here",
    ]


QUERIES = """
from foretaste.study import *

def queried(seed):
    of = study(("gain", "badge", "random"), seeds=(seed,), labels=Labels(init=20, per_cycle=5, cycles=1, subset=60),
               network=Network("mlp", {"hidden": (16,)}), train=Train(steps=40))
    return [r["queried"] for r in run(of)]
"""


@pytest.mark.slow
def test_same_seed_same_queries_in_a_fresh_process_and_another_seed_others():
    here = {}
    exec(QUERIES, here)
    first, other = here["queried"](0), here["queried"](1)
    salt = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    words = [sys.executable, "-c", f"{QUERIES}\nprint(queried(0))"]
    environment = os.environ | {"PYTHONHASHSEED": salt}
    there = subprocess.run(words, capture_output=True, text=True, check=True, env=environment).stdout
    assert json.loads(there) == first
    assert all(a != b for a, b in zip(first[::2], other[::2]))


def test_noise_and_imbalance_are_of_the_seed_and_the_test_set_stays(tmp_path):
    of = replace(SMALL, data=replace(SMALL.data, noise=0.3, imbalance=0.2), seeds=(0, 1))
    records = run(of)
    from foretaste.data import digits

    truth = digits().y.numpy()
    answers = {
        s: [(i, a) for r in records if r["seed"] == s for i, a in zip(r["queried"], r["labels"])] for s in (0, 1)
    }
    wrong = {s: np.mean([a != truth[i] for i, a in answers[s]]) for s in (0, 1)}
    assert 0.05 < min(wrong.values()) <= max(wrong.values()) < 0.6
    first = {s: next(r for r in records if r["seed"] == s and r["cycle"] == 0) for s in (0, 1)}
    counts = [np.bincount(truth[first[s]["labelled_ids"]], minlength=10) for s in (0, 1)]
    assert not np.array_equal(*counts)


@pytest.mark.usefixtures("two_threads")
def test_a_study_in_python_needs_no_folder():
    records = run(study(("random",), seeds=(0,), labels=Labels(init=20, per_cycle=5, cycles=1), train=Train(steps=5)))
    assert [r["cycle"] for r in records] == [0, 1]
    assert torch.get_num_threads() == 2


BEFORE = Path(__file__).parents[1] / "fixtures" / "run-0.1"  # a run of version 0.1, before pydantic


def test_a_run_of_the_version_before_resumes_and_is_reported(tmp_path, no_figures):
    shutil.copytree(BEFORE, tmp_path / "run")
    stored = json.loads((BEFORE / "study.json").read_text())["study"]
    of = study_of({key: value for key, value in stored.items() if key not in ("arms", "network")} | {
        "strategies": [arm["name"] for arm in stored["arms"]],
        "network": {"name": stored["network"]["name"], **stored["network"]["options"]},
    })  # fmt: skip
    assert json.dumps(of.plain()) == json.dumps(stored)
    before = with_times(tmp_path / "run")
    assert len(run(of, tmp_path / "run")) == 4
    assert with_times(tmp_path / "run") == before
    told = json.loads((tmp_path / "run" / "study.json").read_text())
    assert told["about"]["command"] == "foretaste run old.toml"
    assert "Made before" in report.folder(tmp_path / "run").read_text(encoding="utf-8")


def test_a_run_from_python_can_be_reported(tmp_path, no_figures):
    of = study(("margin", "random"), seeds=(0, 1), title="From Python", labels=Labels(20, 5, 1), train=Train(steps=5))
    run(of, str(tmp_path))
    told = json.loads((tmp_path / "study.json").read_text())
    assert told["study"] == of.plain()
    assert told["classes"] == list("0123456789")
    assert "in Python" in told["about"]["command"]
    assert told["standin"] is None
    page = report.folder(tmp_path).read_text(encoding="utf-8")
    assert "From Python" in page
    assert "data:image" in page
    run(replace(of, seeds=(1, 2)), tmp_path, description={"about": {"command": "another"}})
    told = json.loads((tmp_path / "study.json").read_text())
    assert told["study"]["seeds"] == [1, 2, 0]
    assert told["about"] == {"command": "another", "seeds": "1, 2, 0"}


def test_pictures_of_an_unfinished_run_are_on_its_page(tmp_path, no_figures):
    """They are on disk while it runs, and complete when it is interrupted."""
    of = replace(SMALL, seeds=(0,), arms=SMALL.arms[:1], labels=Labels(init=20, per_cycle=5, cycles=4))
    there, queried = [], []

    def seen(record):
        there.append((tmp_path / "pictures.npz").exists())
        queried.extend(record["queried"])
        if record["cycle"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(of, tmp_path, seen=seen)
    assert all(there)
    with np.load(tmp_path / "pictures.npz") as kept:
        assert kept["ids"].tolist() == queried
    assert "data:image" in report.folder(tmp_path).read_text(encoding="utf-8")


def test_pictures_are_not_written_at_every_record(tmp_path, monkeypatch):
    times, folder_module = [0.0], sys.modules["foretaste.study.folder"]
    monkeypatch.setattr(folder_module, "time", SimpleNamespace(monotonic=lambda: times[0]))
    written = []
    monkeypatch.setattr(folder_module, "save_pictures", lambda folder, data, records: written.append(len(records)))
    pictures = folder_module.PictureFile(tmp_path, None)
    for seconds, queried in ((0, [1]), (1, [2]), (5, [3]), (11, [4]), (30, [])):
        times[0] = seconds
        pictures.add({"queried": queried})
    pictures.write()
    assert written == [1, 4]
    pictures.add({"queried": [5]})
    pictures.add({"queried": [6]})
    pictures.write()
    assert written == [1, 4, 6, 7]
