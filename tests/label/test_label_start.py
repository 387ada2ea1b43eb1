"""From a folder or a file to a desk: what is asked for, what is left out, and where it resumes."""

import itertools
import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
import urllib.request
import zlib
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import foretaste as ft
from foretaste.cli import app
from foretaste.cli.label_command import close_or_exit
from foretaste.label import LabelStore, StoreError, close_desk, make_app, open_desk, person_token
from foretaste.label.guard import Guard
from label_cases import Client


def picture(path, shade):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(shade).integers(0, 255, (12, 12, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "photos"
    for k in range(8):
        picture(root / f"{k}.png", k)
    return root


def opened(source, **rest):
    return open_desk(source, **{"backbone": "none", "start": False, "classes": ["cat", "dog"]} | rest)


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def told(*words):
    got = CliRunner().invoke(app, [str(w) for w in words])
    assert got.exit_code == 2, got.output
    return " ".join(got.stderr.split())


def test_whether_the_pool_has_a_say_is_kept(folder):
    def chosen(**rest):
        desk = opened(folder, **rest)
        try:
            return desk.store.setting("graph"), desk.worker._build(lambda done, total: None).learner._now.graph
        finally:
            close_desk(desk)

    for k in range(8, 14):
        picture(folder / f"{k}.png", k)
    first = chosen()
    assert first[0] == "auto"
    assert first[1] is not None
    assert chosen(graph="off") == ("off", None)
    assert chosen() == ("off", None)
    assert chosen(graph="auto")[1] is not None
    with pytest.raises(ValueError, match="unknown graph 'of'; did you mean 'off'"):
        opened(folder, graph="of")
    assert "unknown graph 'on'" in told("label", folder, "--graph", "on")


def test_a_desk_resumes_where_it_was_left(folder):
    desk = opened(folder)
    item = desk.next("tab-1", "Ada")[0]
    desk.answer("tab-1", "Ada", item, "label", "dog")
    close_desk(desk)
    again = opened(folder, classes=None)  # the classes are known
    assert again.store.classes == ("cat", "dog")
    assert again.store.labels() == {item: "dog"}
    assert again.title == "photos"
    close_desk(again)
    assert sorted(p.name for p in folder.iterdir()) == [".foretaste", *(f"{k}.png" for k in range(8))]


def test_the_learner_is_built_behind_and_says_what_it_sees(folder):
    desk = opened(folder, start=True, check_every=0, fit_options={"steps": 40})
    for k in range(4):
        desk.answer("tab-1", "Ada", f"{k}.png", "label", ["cat", "dog"][k % 2])
    until(lambda: desk.worker.describe()["phase"] == "ready" and desk.worker.view.likely)
    state = desk.state()
    assert state["model"]["words"] == "a small network on 32×32 pixels"
    assert state["model"]["labels"] == 4
    item = desk.next("tab-1", "Ada")[0]
    until(lambda: item in desk.worker.view.reasons)
    shown = desk.show(item)
    assert {entry["name"] for entry in shown["likely"]} == {"cat", "dog"}
    assert shown["reason"]["text"].startswith("If it is ")
    until(lambda: set(desk.worker.view.advice) == {"stop", "retrain"})
    until(lambda: desk.store.setting("advice"))  # kept while the page is open, where `foretaste status` reads it
    status = CliRunner().invoke(app, ["status", str(folder)])
    assert "advice to stop needs 20" in status.stdout, status.output
    close_desk(desk)


def test_the_goal_is_the_users(folder):
    desk = opened(folder, start=True, check_every=0, goal=0.5, fit_options={"steps": 40})
    goals, status = [], ft.Learner.status
    for k in range(4):
        desk.answer("tab-1", "Ada", f"{k}.png", "label", ["cat", "dog"][k % 2])
    until(lambda: desk.worker.describe()["phase"] == "ready" and desk.worker.view.likely)
    learner = desk.worker._learner
    learner.status = lambda *, goal: goals.append(goal) or status(learner, goal=goal)
    desk.answer("tab-1", "Ada", "4.png", "label", "cat")
    until(lambda: goals)
    close_desk(desk)
    assert set(goals) == {0.5}
    assert "goal" in told("label", folder, "--goal", "200")


def test_advice_to_stop_goes_on_after_a_restart(folder):
    """Who labels a few items a day would never get it."""
    desk = opened(folder, start=True, check_every=0, fit_options={"steps": 40})
    for k in range(4):
        desk.answer("tab-1", "Ada", f"{k}.png", "label", ["cat", "dog"][k % 2])
    until(lambda: desk.worker.describe()["phase"] == "ready" and desk.worker.view.likely)
    for k in (4, 5):
        desk.answer("tab-1", "Ada", f"{k}.png", "label", ["cat", "dog"][k % 2])
    until(lambda: desk.worker.view.record and desk.worker.describe()["labels"] == 6)
    close_desk(desk)
    again = opened(folder, start=True, check_every=0, fit_options={"steps": 40})
    before = again.store.setting("record")
    assert {p["id"] for p in before} <= {"4.png", "5.png"}
    until(lambda: again.worker.describe()["phase"] == "ready" and again.worker.view.likely)
    again.answer("tab-1", "Ada", "6.png", "label", "cat")
    until(lambda: [p["id"] for p in again.worker.view.record] == [*(p["id"] for p in before), "6.png"])
    close_desk(again)


def test_labels_in_the_data_count_once_and_people_count_more(tmp_path):
    root = tmp_path / "photos"
    for k, name in enumerate(["cat/a.png", "dog/b.png", "unlabelled/c.png"]):
        picture(root / name, k)
    desk = opened(root, classes=None)
    assert desk.store.classes == ("cat", "dog")
    assert desk.store.labels() == {"cat/a.png": "cat", "dog/b.png": "dog"}
    assert {e.who for e in desk.store.events()} == {"given"}
    assert desk.next("tab-1", "Ada") == ["unlabelled/c.png"]
    assert desk.state("Ada")["people"] == []  # the page counts people, and the data are none
    desk.answer("tab-1", "Ada", "cat/a.png", "relabel", "dog")
    close_desk(desk)
    again = opened(root, classes=None)
    assert again.store.labels()["cat/a.png"] == "dog"
    close_desk(again)


def test_copies_follow_their_first_and_broken_pictures_are_named(folder):
    (folder / "copy.png").write_bytes((folder / "3.png").read_bytes())
    (folder / "rubbish.png").write_bytes(b"no picture")
    (folder / "vector.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>")
    (folder / "page.html").write_text("<script>alert(1)</script>")
    desk = opened(folder)
    assert desk.twins == {"copy.png": "3.png"}
    assert "rubbish.png" in " ".join(desk.notes)
    assert not {"rubbish.png", "vector.svg", "page.html"} & set(desk.data.ids)
    close_desk(desk)


def test_a_copy_that_is_added_later_and_sorts_first_is_not_asked(folder):
    desk = opened(folder, check_every=0)
    for k in range(7):
        desk.answer("tab-1", "Ada", f"{k}.png", "label", "cat" if k % 2 else "dog")
    close_desk(desk)
    (folder / "0 new.png").write_bytes((folder / "3.png").read_bytes())
    for _ in range(2):  # and after a restart
        again = opened(folder, check_every=0)
        assert again.wanted("0 new.png") == "cat"
        assert again.wanted("3.png") == ""
        assert again.next("tab-1", "Ada") == ["7.png"]
        assert again.contradictions() == []
        close_desk(again)
    out = folder / "labels.csv"
    assert CliRunner().invoke(app, ["label", str(folder), "--export", str(out)]).exit_code == 0
    assert "0 new.png,cat,label,Ada," in out.read_text()


def test_copies_with_different_labels_are_named_at_the_start(tmp_path, monkeypatch):
    root = tmp_path / "photos"
    for k, name in enumerate(["cat/a.png", "dog/b.png", "c.png"]):
        picture(root / name, k)
    (root / "dog" / "copy.png").write_bytes((root / "cat" / "a.png").read_bytes())
    monkeypatch.setattr("foretaste.label.serve_app", lambda *_, **__: None)
    monkeypatch.setattr("foretaste.label.worker.LearnerWorker.start", lambda self: None)
    words = ["--backbone", "none", "--no-browser", "--port", "0"]
    got = CliRunner().invoke(app, ["label", str(root), *words])
    assert got.exit_code == 0, got.output
    said = "cat/a.png (cat, in the data) and dog/copy.png (dog, in the data) are copies: dog counts"
    assert said in " ".join(got.stdout.split())
    assert said in " ".join(CliRunner().invoke(app, ["status", str(root)]).stdout.split())


def test_a_label_that_changes_in_the_data_is_taken_in_unless_a_person_has_answered(tmp_path):
    rows = tmp_path / "rows.csv"
    table = "id,width,colour,label\na,1,red,cat\nb,2,blue,dog\nc,3,red,{}\nd,4,blue,{}\n"
    rows.write_text(table.format("cat", "dog"))
    desk = opened(rows, classes=None)
    desk.answer("tab-1", "Ada", "d", "relabel", "cat")
    close_desk(desk)
    rows.write_text(table.format("dog", "dog"))
    again = opened(rows, classes=None)
    assert again.store.labels() == {"a": "cat", "b": "dog", "c": "dog", "d": "cat"}
    close_desk(again)


def test_texts_and_rows_of_a_csv(tmp_path):
    reviews = tmp_path / "reviews.csv"
    lines = [
        f"{k},It was a long evening and number {k} was the {'best' if k % 2 else 'worst'} of all." for k in range(12)
    ]
    reviews.write_text("id,review\n" + "\n".join(lines) + "\n")
    desk = opened(reviews, text="review", start=True, check_every=0)
    assert desk.data.kind == "text"
    until(lambda: desk.worker.describe()["phase"] == "first labels")
    assert desk.worker.describe()["words"] == "TF-IDF of the words"
    item = Client(Guard(make_app(desk))).get("/api/item/3").json
    assert (item["item"], "number 3 was the best" in item["text"]) == ("3", True)
    close_desk(desk)
    assert (tmp_path / "reviews.csv.foretaste" / "labels.sqlite").is_file()
    rows = tmp_path / "flowers.csv"
    rows.write_text("id,width,colour\n" + "\n".join(f"f{k},{k},{'red' if k % 2 else 'blue'}" for k in range(9)) + "\n")
    desk = opened(rows)
    cells = Client(Guard(make_app(desk))).get("/api/item/3").json["cells"]
    close_desk(desk)
    assert dict(cells)["width"] == "3"
    assert dict(cells)["colour"] == "red"


# What cannot be labelled


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "are no classes; name at least two, such as --classes cat,dog"),
        (("--classes", "cat"), "--classes names 1 class, cat; expected at least two"),
        (("--classes", "cat,cat"), "expected different names"),
        (("--classes", "cat,,dog"), "expected different names"),
        (("--classes", "cat,dog", "--host", "203.0.113.7"), "choose another port"),
    ],
)
def test_bad_options_are_told_in_a_line(folder, words, error):
    assert error in told("label", folder, "--no-browser", "--port", "0", *words)
    assert not (folder / ".foretaste" / "labels.sqlite").exists() or LabelStore(folder / ".foretaste").close() is None


def test_an_empty_folder_and_a_missing_one(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("empty", "missing"):
        assert name in told("label", tmp_path / name, "--classes", "cat,dog", "--no-browser", "--port", "0")
        assert not (tmp_path / name / ".foretaste").exists()


def test_links_that_lead_out_are_refused(folder, tmp_path):
    picture(tmp_path / "secret.png", 1)
    (folder / "link.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(ValueError, match="out of the folder"):
        opened(folder)
    (folder / "link.png").unlink()
    (tmp_path / "elsewhere").mkdir()
    (folder / ".foretaste").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="is a link"):
        opened(folder)
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("by", ["the file", "its folder", "a table"])
def test_a_picture_that_becomes_a_link_later_is_not_served(tmp_path, by):
    """Someone changes the folder while the page is open."""
    folder, secret = tmp_path / "photos", tmp_path / "secret"
    for k in range(4):
        picture(folder / "unsorted" / f"{k}.png", k)
        picture(secret / f"{k}.png", 10 + k)
    source = folder
    if by == "a table":
        source = folder / "labels.csv"
        source.write_text("file,label\n" + "".join(f"unsorted/{k}.png,\n" for k in range(4)))
    desk = opened(source)
    client = Client(Guard(make_app(desk)))
    if by == "its folder":
        (folder / "unsorted").rename(folder / "was")
        (folder / "unsorted").symlink_to(secret)
    else:
        (folder / "unsorted" / "3.png").unlink()
        (folder / "unsorted" / "3.png").symlink_to(secret / "3.png")
    got = client.get("/api/picture/3/large")
    assert (got.status, got.headers["content-type"]) == (422, "application/json")
    assert "unsorted/3.png cannot be read (it has become a link out of the folder)" in got.json["error"]
    with pytest.raises(ValueError, match="out of the folder"):
        desk.data.items.digest_of(3)
    if by == "the file":  # links within the folder are followed
        (folder / "unsorted" / "3.png").unlink()
        (folder / "unsorted" / "3.png").symlink_to(folder / "unsorted" / "2.png")
        assert client.get("/api/picture/3/large").body == client.get("/api/picture/2/large").body
        os.unlink(folder / "unsorted" / "2.png")
        assert client.get("/api/picture/2/small").status == 422
    close_desk(desk)


def test_decompression_bombs_are_refused(folder):
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    desk = opened(folder)
    (folder / "3.png").write_bytes(b"\x89PNG\r\n\x1a\n" + body)  # after the folder was read
    got = Client(Guard(make_app(desk))).get("/api/picture/3/large")
    close_desk(desk)
    assert got.status == 422
    assert "pixels" in got.json["error"]
    again = opened(folder)
    assert "3.png" in " ".join(again.notes)
    assert "3.png" not in again.data.ids
    close_desk(again)


# The command line

ENDLESS = """
import sys
from functools import partial
import foretaste.label
from foretaste.network import sgd
sgd.PROGRESS_REPORTS = 3000  # every 100 steps: between two reports nothing stops a training
foretaste.label.open_desk = partial(foretaste.label.open_desk, fit_options={"steps": 300_000})
from foretaste.cli import app
app(sys.argv[1:])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_closes_the_page_while_the_network_is_trained(folder, sent, code):
    """Ctrl-C could abort the process, cut off in a training; SIGTERM killed it with the store open."""
    words = ["label", folder, "--classes", "cat,dog", "--backbone", "none", "--check-every", 0, "--no-browser"]
    page = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, *map(str, [*words, "--port", 0])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert page.stdout is not None
    try:
        [address] = itertools.islice((m[1] for line in page.stdout if (m := re.search(r"open (http\S+/)", line))), 1)

        def post(path, **more):
            body = json.dumps({"tab": "tab-00000001", "who": "Ada", **more}).encode()
            request = urllib.request.Request(address + path, body, {"content-type": "application/json"})
            with urllib.request.urlopen(request, timeout=60) as reply:
                return json.load(reply)

        for k in range(4):
            post("api/answer", item=f"{k}.png", kind="label", label=["cat", "dog"][k % 2])
        until(lambda: post("api/alive")["state"]["model"]["phase"] == "training", 120)
        page.send_signal(sent)
        out, errors = page.communicate(timeout=300)
    finally:
        page.kill()
    assert (page.returncode, errors) == (code, "")
    assert out.splitlines() == ["4 of 8 items are labelled. The same command goes on."]
    assert sorted(p.name for p in (folder / ".foretaste").glob("labels.sqlite*")) == ["labels.sqlite"]  # it is closed
    with LabelStore(folder / ".foretaste") as store:
        assert store.labels() == {f"{k}.png": ["cat", "dog"][k % 2] for k in range(4)}


@pytest.mark.parametrize("second", [KeyboardInterrupt, SystemExit])
def test_a_second_signal_waits_for_no_step_of_the_learner_and_closes_the_store(folder, monkeypatch, second):
    class LeftError(Exception):
        pass

    def leave(code):
        raise LeftError(code)

    def interrupted(seconds=None):
        raise second

    desk = opened(folder)
    monkeypatch.setattr(desk.worker, "close", interrupted)
    monkeypatch.setattr("foretaste.cli.label_command.os._exit", leave)
    with pytest.raises(LeftError, match="130"):
        close_or_exit(desk)
    with LabelStore(folder / ".foretaste") as store:  # another process may write now
        assert store.classes == ("cat", "dog")


def test_the_learners_thread_ends_with_a_program_that_never_closed_it(folder, monkeypatch):
    desk = opened(folder, start=True)
    until(lambda: desk.worker.describe()["phase"] == "first labels")
    assert not desk.worker.daemon
    monkeypatch.setattr("threading.main_thread", lambda: SimpleNamespace(is_alive=lambda: False))
    desk.worker.join(60)
    monkeypatch.undo()
    assert not desk.worker.is_alive()
    close_desk(desk)


def test_status_export_and_import(folder, tmp_path):
    desk = opened(folder, check_every=0)
    desk.answer("tab-1", "Ada", "1.png", "label", "cat")
    desk.answer("tab-1", "Ada", "2.png", "label", "dog")
    desk.answer("tab-1", "Ada", "3.png", "unsure")
    run = CliRunner().invoke
    status = run(app, ["status", str(folder)])  # while another process, or this one, is labelling
    assert status.exit_code == 0, status.output
    assert "2 of 8 items are labelled; 1 not sure" in status.stdout
    assert "classes: cat 1, dog 1" in status.stdout
    assert "people: Ada 3" in status.stdout
    outs = [tmp_path / name for name in ("labels.csv", "labels.jsonl", "tasks.json", "sorted")]
    got = run(app, ["label", str(folder), *(w for out in outs for w in ("--export", str(out)))])
    assert got.exit_code == 0, got.output
    assert sorted(p.relative_to(outs[3]).as_posix() for p in outs[3].rglob("*.png")) == ["cat/1.png", "dog/2.png"]
    assert "another process is labelling" in told("label", folder, "--no-browser", "--port", "0")
    close_desk(desk)
    from foretaste.label import import_labels, read_labels

    for k, out in enumerate(outs):
        fresh = opened(folder, store=tmp_path / f"store{k}")
        assert import_labels(fresh.store, read_labels(out, fresh.data.ids)) == (3 if k < 2 else 2)
        assert fresh.store.labels() == {"1.png": "cat", "2.png": "dog"}
        close_desk(fresh)


def test_an_import_ends_without_a_server(folder, tmp_path, monkeypatch):
    """It went on to serve the page."""

    def serve(*args, **options):
        raise AssertionError("a server was started")

    monkeypatch.setattr("foretaste.cli.label_command.prepare_server", serve)
    (tmp_path / "labels.csv").write_text("file,label\n1.png,cat\n2.png,dog\n")
    words = ["--classes", "cat,dog", "--import", tmp_path / "labels.csv", "--export", tmp_path / "again.jsonl"]
    got = CliRunner().invoke(app, ["label", str(folder), *map(str, words)])
    assert got.exit_code == 0, got.output
    assert "2 labels taken in, of 2 rows" in got.stdout
    assert len((tmp_path / "again.jsonl").read_text().splitlines()) == 2
    with LabelStore(folder / ".foretaste") as store:
        assert store.labels() == {"1.png": "cat", "2.png": "dog"}
    assert "item (3.pgn) is not here" in told("label", folder, "--import", typo(tmp_path))
    with LabelStore(folder / ".foretaste") as store:  # and the folder was given back
        assert len(store.events()) == 2


def typo(folder):
    (folder / "typo.csv").write_text("file,label\n3.pgn,cat\n")
    return folder / "typo.csv"


def test_an_export_into_the_folder_is_its_labels(folder):
    """The column was called item, and ``ft.open`` left the file out."""
    desk = opened(folder, check_every=0)
    for item, kind, label in (("1.png", "label", "cat"), ("2.png", "label", "dog"), ("3.png", "unsure", None)):
        desk.answer("tab-1", "Ada", item, kind, label)
    close_desk(desk)
    got = CliRunner().invoke(app, ["label", str(folder), "--export", str(folder / "labels.csv")])
    assert got.exit_code == 0, got.output
    points = ft.open(folder, encoder="pixels", size=8, store=False)
    assert {points.ids[i]: points.labels[i] for i in points.labelled} == {"1.png": "cat", "2.png": "dog"}
    assert len(points) == 8
    again = opened(folder, classes=None)  # and labelling goes on as before
    assert again.store.labels() == {"1.png": "cat", "2.png": "dog"}
    close_desk(again)


def test_status_of_a_folder_that_was_never_labelled(tmp_path):
    assert "start with `foretaste label`" in told("status", tmp_path)
    for words in (["status", tmp_path / "photso"], ["label", tmp_path / "photso", "--export", tmp_path / "a.csv"]):
        assert "photso does not exist; expected a folder of pictures, or a CSV" in told(*words)


def test_the_routes_are_made_before_the_learners_thread_starts(folder, monkeypatch):
    """Making them changes the filters of warnings, which are the whole process's: a thread may then raise a warning."""
    made = []
    monkeypatch.setattr("foretaste.label.make_app", lambda desk: made.append(desk.worker.is_alive()) or make_app(desk))
    monkeypatch.setattr("foretaste.label.serve_app", lambda *_, **__: made.append("served"))
    for command in (["label", "--no-browser"], ["serve"]):
        words = [command[0], str(folder), *command[1:], "--classes", "cat,dog", "--backbone", "none", "--port", "0"]
        got = CliRunner().invoke(app, words)
        assert got.exit_code == 0, got.output
    assert made == [False, "served"] * 2


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_who_listens_for_others_says_which_address_they_need(folder, host, monkeypatch):
    monkeypatch.setattr("foretaste.label.serve_app", lambda *_, **__: None)
    words = ["--classes", "cat,dog", "--backbone", "none", "--no-browser", "--port", "0", "--host", host]
    got = CliRunner().invoke(app, ["label", str(folder), *words])
    assert got.exit_code == 0, got.output
    assert ("with this machine's address in place of 127.0.0.1" in got.stdout) == (host == "0.0.0.0")


def test_each_person_gets_an_address_and_how_many_answer_an_item_is_kept(folder, monkeypatch):
    served, run = [], partial(CliRunner().invoke, app)
    monkeypatch.setattr("foretaste.label.serve_app", lambda *_, **given: served.append(given))
    monkeypatch.setenv("FORETASTE_TOKEN", "the-token-of-the-owner")
    command = ["label", str(folder), "--no-browser", "--backbone", "none", "--port", "0"]
    got = run([*command, "--classes", "cat,dog", "--copies", "2", "--copies-share", "50", "--people", "Ada, Ben"])
    for who in ("Ada", "Ben"):
        assert f"  {who}: http://127.0.0.1:" in got.stdout
        assert f"#token={person_token('the-token-of-the-owner', who)}" in got.stdout
    assert served[0]["people"] == ["Ada", "Ben"]
    with LabelStore(folder / ".foretaste") as store:
        assert (store.setting("copies"), store.setting("copies_share")) == (2, 0.5)
        for k, item in enumerate(["a", "b", "c", "d", "e", "f"]):
            store.record(item, "label", "cat", who="Ada")
            store.record(item, "label", ("cat", "dog")[k == 0], who="Ben", purpose="second")
    told = run(["status", str(folder)]).stdout
    assert "people: Ada 6, Ben 6" in told
    assert "agreement: Cohen's kappa 0.00 on 6 items (95 %: -1.00 to 0.82)" in told
    assert "people disagree on 1 item: decide in Review" in told
    desk = open_desk(folder, start=False)
    assert (desk.voices_each, desk.voices_share) == (2, 0.5)
    close_desk(desk)
    assert run([*command, "--people", "Ada,Ada"]).exit_code == 2
