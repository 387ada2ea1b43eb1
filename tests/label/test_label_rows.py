"""Labels of rows stay on their rows: a table without ids may be sorted, filled in or edited between two runs."""

import csv
import random

import numpy as np
import pytest
from typer.testing import CliRunner

from foretaste.cli import app
from foretaste.data import content_names, read_points
from foretaste.label import LabelStore, close_desk, open_desk, store_folder

TEXTS = [f"It was a long evening and number {k} was the {'best' if k % 2 else 'worst'} of all." for k in range(20)]


def write(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def write_texts(path, texts):
    return write(path, [["review"], *[[text] for text in texts]])


def write_flowers(path, rows, head=("width", "height", "colour")):
    return write(path, [head, *rows])


def opened(source, **rest):
    return open_desk(source, **{"backbone": "none", "start": False, "classes": ["good", "bad"]} | rest)


def contents(desk):
    """Label by what the item shows."""
    shown = {name: desk.data.items[k] for k, name in enumerate(desk.data.ids)}
    return {
        str(shown[name] if isinstance(shown[name], str) else sorted(shown[name].items())): label
        for name, label in desk.store.labels().items()
        if name in shown
    }


def label_some(source, count=10, **rest):
    desk = opened(source, **rest)
    for k, name in enumerate(desk.data.ids[:count]):
        desk.answer("tab-1", "Ada", name, "label", ["good", "bad"][k % 2])
    before = contents(desk)
    close_desk(desk)
    return before


def reopened(source, **rest):
    desk = opened(source, **{"classes": None} | rest)
    got, notes = contents(desk), list(desk.notes)
    close_desk(desk)
    return got, notes


FLOWERS = [[k / 4, 7 - k, ["red", "blue", "white"][k % 3]] for k in range(15)]
NUMBERS = [[k / 4, 7 - k, k % 3] for k in range(15)]


def test_rows_of_the_test_side_are_not_shown_and_keep_the_others_in_their_rows(tmp_path):
    rows = [[f"{k}", "good" if k in (0, 4) else "", "test" if k < 3 else "train"] for k in range(9)]
    source = write(tmp_path / "t.csv", [["width", "label", "split"], *rows])
    desk = opened(source)
    assert "3 points of the test or validation split are left out" in desk.notes
    assert (len(desk.data.ids), sorted(desk.rows[name] for name in desk.data.ids)) == (6, [3, 4, 5, 6, 7, 8])
    assert list(contents(desk).values()) == ["good"]
    close_desk(desk)


@pytest.mark.parametrize("kind", ["text", "table", "features", "npz"])
def test_labels_follow_rows_that_move(tmp_path, kind):
    def save(order):
        if kind == "npz":
            np.savez(tmp_path / "t.npz", x=np.array(NUMBERS)[order])
            return tmp_path / "t.npz"
        if kind == "text":
            return write_texts(tmp_path / "t.csv", [TEXTS[k] for k in order])
        return write_flowers(tmp_path / "t.csv", [(FLOWERS if kind == "table" else NUMBERS)[k] for k in order])

    order = list(range(15))
    before = label_some(save(order))
    assert len(before) == 10
    random.Random(0).shuffle(order)
    assert reopened(save(order))[0] == before


def test_a_label_column_that_is_filled_in_changes_no_name(tmp_path):
    path = write(tmp_path / "t.csv", [["review", "label"], *[[text, ""] for text in TEXTS]])
    before = label_some(path)
    write(path, [["label", "review"], *[["good", text] for text in reversed(TEXTS)]])
    got, _ = reopened(path)
    assert {text: got[text] for text in before} == before


def test_a_gap_in_one_row_renames_no_other(tmp_path):
    """With a gap the table is mixed, and cells are words; without, rows are numbers."""
    path = write_flowers(tmp_path / "t.csv", NUMBERS)
    before = read_points(path)
    assert before.kind == "features"
    write_flowers(path, [[f"{a:.3f}", str(float(b)), c] for a, b, c in NUMBERS[:14]] + [[3.5, "", 2]])
    after = read_points(path)
    assert after.kind == "table"
    assert content_names(after)[:14] == content_names(before)[:14]
    assert content_names(after)[14] != content_names(before)[14]


def test_order_of_columns_and_a_column_of_names_change_no_name(tmp_path):
    rows = [[f"owner {k}", *row] for k, row in enumerate(FLOWERS)]
    names = content_names(read_points(write_flowers(tmp_path / "a.csv", rows, ("owner", "width", "height", "colour"))))
    turned = [row[::-1] for row in rows] * 2  # now every owner occurs twice, and is a category
    again = read_points(write_flowers(tmp_path / "b.csv", turned, ("colour", "height", "width", "owner")))
    assert content_names(again)[:15] == names


def test_copies_are_counted_and_names_can_be_read(tmp_path):
    points = read_points(write_texts(tmp_path / "t.csv", ["What a film!", "so dull", "What a film!", "?!"]))
    names = content_names(points)
    assert names[0].startswith("what-a-film-")
    assert names[2] == f"{names[0]}-2"
    assert len({*names}) == 4
    assert names[3].startswith("text-")
    assert points.ids == ["0", "1", "2", "3"]  # a query names rows by their position


def test_rows_that_changed_are_counted_and_a_file_of_others_is_refused(tmp_path):
    path = write_texts(tmp_path / "t.csv", TEXTS)
    before = label_some(path)
    write_texts(path, ["edited since", *TEXTS[1:]])
    got, notes = reopened(path)
    assert len(got) == 9
    assert got.items() <= before.items()
    assert any("1 item with an answer is not in t.csv now" in note for note in notes)
    write_texts(path, [f"another text, number {k}" for k in range(20)])
    with pytest.raises(ValueError, match=r"none of the 10 items with an answer is in .*t\.csv.*--store"):
        opened(path)


def test_ids_that_come_later_leave_labels_where_they_are(tmp_path):
    path = write_texts(tmp_path / "t.csv", TEXTS)
    before = label_some(path)
    write(path, [["id", "review"], *[[f"r{k}", text] for k, text in enumerate(reversed(TEXTS))]])
    assert reopened(path)[0] == before


def test_ids_that_are_gone_are_told(tmp_path):
    path = write(tmp_path / "t.csv", [["id", "review"], *[[f"r{k}", text] for k, text in enumerate(TEXTS)]])
    label_some(path)
    write_texts(path, TEXTS)
    with pytest.raises(ValueError, match=r"kept under ids, and .*t\.csv has none now; put their column back"):
        opened(path)


def test_a_store_of_an_earlier_version_with_positions_is_refused_with_what_to_do(tmp_path):
    path = write_texts(tmp_path / "t.csv", TEXTS)
    with LabelStore(store_folder(path)) as old:
        old.set_classes(["good", "bad"])
        for k in range(10):
            old.record(str(k), "label", ["good", "bad"][k % 2], who="Ada")
    with pytest.raises(ValueError, match=r"names rows by their position.*a column id of 0, 1, 2"):
        opened(path)
    write(path, [["id", "review"], *[[k, text] for k, text in enumerate(TEXTS)]])
    assert reopened(path)[0] == {text: ["good", "bad"][k % 2] for k, text in enumerate(TEXTS[:10])}


def test_positions_of_an_earlier_version_are_not_taken_for_ids_that_are_found_now(tmp_path):
    """It knew no customer_id, and called the first row 0; now a row is called 1 that was 0."""
    path = write_flowers(tmp_path / "t.csv", [[k + 1, *row] for k, row in enumerate(FLOWERS)], ("customer_id", *"abc"))
    with LabelStore(store_folder(path)) as old:
        old.set_classes(["good", "bad"])
        old.record("1", "label", "good", who="Ada")
    with pytest.raises(ValueError, match="names rows by their position"):
        opened(path)
    desk = opened(path, id="customer_id")  # who named it then names it now
    assert desk.store.labels() == {"1": "good"}
    close_desk(desk)


def test_the_columns_that_were_named_are_remembered(tmp_path):
    rows = [["a", "b"], *[[f"one two three four {k}", f"five six seven eight {k}"] for k in range(12)]]
    path = write(tmp_path / "t.csv", rows)
    before = label_some(path, text="b")
    assert reopened(path)[0] == before


def test_exports_say_which_row_is_meant(tmp_path):
    path = write_texts(tmp_path / "t.csv", TEXTS)
    before = label_some(path)
    write_texts(path, TEXTS[::-1])
    got = CliRunner().invoke(app, ["label", str(path), "--export", str(tmp_path / "out.csv")])
    assert got.exit_code == 0, got.output
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {TEXTS[::-1][int(row["row"])]: row["label"] for row in rows} == before
    for row in rows:
        assert row["item"].startswith("it-was-a-long-evening-")
    fresh = opened(path, store=tmp_path / "other")
    from foretaste.label import import_labels, read_labels

    assert import_labels(fresh.store, read_labels(tmp_path / "out.csv", fresh.data.ids)) == 10
    assert contents(fresh) == before
    close_desk(fresh)
    path.write_text("")  # an export does not need the table
    got = CliRunner().invoke(app, ["label", str(path), "--export", str(tmp_path / "again.csv")])
    assert got.exit_code == 0, got.output
    assert "does not say which row is meant" in got.stdout
    assert "row" not in (tmp_path / "again.csv").read_text().splitlines()[0].split(",")
