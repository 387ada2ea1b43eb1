"""Tables: which column is what, and that it is said; CSV, TSV and Parquet by one reader."""

import csv
import re
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import foretaste as ft
from cli_runner import invoke, table, told
from foretaste.cli import app
from foretaste.data import load, read_points
from foretaste.data.columns import TableRows
from foretaste.data.tables import Table, read_table


def write(path, columns):
    """Columns by name as a CSV or TSV, or as Parquet with types of its own."""
    if path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.table(columns), path)
        return path
    with path.open("w", newline="") as file:
        out = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        out.writerow(columns)
        out.writerows(["" if v is None else v for v in row] for row in zip(*columns.values()))
    return path


def without_page(monkeypatch):
    """``foretaste label`` reads, says what it read, and ends: no page, no learner's thread."""
    monkeypatch.setattr("foretaste.label.serve_app", lambda *_, **__: None)
    monkeypatch.setattr("foretaste.label.worker.LearnerWorker.start", lambda worker: None)


AGES = [20 + 3 * k % 41 for k in range(30)]
PLANS = [["basic", "full", "trial"][k % 3] for k in range(30)]
CHURN = [["yes", "no"][k % 2] if k % 5 == 0 else None for k in range(30)]


# Ids


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("customer_id", [1000 + 7 * k for k in range(30)]),
        ("CustomerID", [float(1000 + k) for k in range(30)]),  # as pandas writes whole numbers of a column with gaps
        ("PassengerId", range(1, 31)),
        ("userid", [f"u{k}" for k in range(30)]),
        ("order uuid", [f"{k:032x}" for k in range(30)]),
        ("id_client", range(30)),
        ("", range(30)),  # the index of a data frame
        ("Unnamed: 0", range(30)),
        ("index", range(30)),
    ],
)
def test_a_column_that_identifies_rows_is_the_id_and_no_feature(tmp_path, name, values):
    points = ft.open(write(tmp_path / "t.csv", {"age": AGES, name: list(values), "label": CHURN}))
    assert points.columns == ("age",)
    assert points.ids == [str(v) for v in values]
    assert points.own_ids
    assert points.x.shape == (30, 1)
    expected = f"columns: id = {name} (no value repeats); label = label (by its name); features = age"
    assert points.notes[0] == expected


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("bmi", [20 + k / 7 for k in range(30)]),  # a measurement is a feature, whatever its values
        ("rapid", range(30)),
        ("paid", [1000 + 13 * k for k in range(30)]),
        ("population", [10_000 + 77 * k for k in range(30)]),
        ("index", [1 + k / 10 for k in range(30)]),
        ("key", [k / 3 for k in range(30)]),
        ("acid_id", [k / 3 for k in range(30)]),
        ("store_id", [k % 6 for k in range(30)]),  # of the shop, not of the row
    ],
)
def test_a_column_of_measurements_stays_a_feature(tmp_path, name, values):
    points = ft.open(write(tmp_path / "t.csv", {"age": AGES, name: list(values), "label": CHURN}))
    assert points.columns == ("age", name)
    assert not points.own_ids
    assert points.ids == [str(k) for k in range(30)]


def test_of_two_columns_of_ids_one_is_the_id_and_the_other_is_left_out(tmp_path):
    columns = {
        "order_id": list(range(30)), "customer_id": [k if k else 1 for k in range(30)], "age": AGES, "label": CHURN,
    }  # fmt: skip
    points = ft.open(write(tmp_path / "t.csv", columns))
    assert (points.id_column, points.columns) == ("order_id", ("age",))
    assert "1 column (customer_id) has ids, mostly different: left out" in points.notes
    assert ft.open(tmp_path / "t.csv", id="order_id").notes[0].startswith("columns: id = order_id (as given)")


def test_a_query_says_which_columns_it_uses(tmp_path):
    columns = {"customer_id": list(range(500, 530)), "age": AGES, "plan": PLANS, "label": CHURN}
    write(tmp_path / "t.csv", columns)
    got = invoke("query", tmp_path / "t.csv", "-n", 3, "--steps", 50, "--out", tmp_path / "r.csv")
    assert got.exit_code == 0, got.output
    said = "columns: id = customer_id (no value repeats); label = label (by its name); features = age, plan"
    assert said in " ".join(got.stdout.split())
    assert {row["id"] for row in table(tmp_path / "r.csv")} == {str(500 + k) for k in range(30) if k % 5}


# The label


SPARSE = {
    "words": CHURN,
    "whole numbers": [None if v is None else int(v == "yes") for v in CHURN],
    "many classes": [f"class {k % 12}" if k % 2 else None for k in range(60)],
}


@pytest.mark.parametrize("kind", SPARSE)
def test_a_label_of_another_name_is_asked_for(tmp_path, kind):
    values = SPARSE[kind]
    columns = {"age": (AGES * 2)[: len(values)], "churn": values}
    path = write(tmp_path / "t.csv", columns)
    with pytest.raises(ValueError, match=r"no column is called label, and churn \(.*\) may be it; name it with label="):
        ft.open(path)
    known = ft.open(path, label="churn")
    assert known.columns == ("age",)
    assert len(known.labelled) == sum(v is not None for v in values)
    assert known.notes[0] == "columns: label = churn (as given); features = age"
    none = ft.open(path, label=False)
    assert none.columns == ("age", "churn")
    assert not len(none.labelled)


@pytest.mark.parametrize(
    "column",
    [
        {"spouse": [f"name {k}" if k < 9 else None for k in range(30)]},  # no value repeats
        {"dose": [k % 4 / 3 if k < 12 else None for k in range(30)]},  # measurements
        {"since": ["2024-01-01" if k % 2 else "2024-02-01" for k in range(12)] + [None] * 18},
        {"flag": ["yes" if k < 9 else None for k in range(30)]},
        {"plan": [["basic", "full"][k % 2] if k < 20 else None for k in range(30)]},  # mostly there
    ],
    ids=str,
)
def test_other_columns_with_gaps_are_features_without_a_question(column):
    points = ft.open([dict(zip(("age", *column), row)) for row in zip(AGES, *column.values())])
    assert not len(points.labelled)
    assert points.notes[0].startswith("columns: label = none; features = age")


def test_in_regression_a_column_of_numbers_that_is_mostly_empty_may_be_the_label():
    rows = [{"age": age, "price": k / 3 if k < 9 else None} for k, age in enumerate(AGES)]
    assert not len(ft.open(rows).labelled)
    with pytest.raises(ValueError, match=r"price \(numbers, 9 of 30 cells filled\) may be it"):
        ft.open(rows, regression=True)
    assert len(ft.open(rows, regression=True, label="price").labelled) == 9


def test_a_pool_beside_labelled_points_is_not_asked_for_its_label(tmp_path):
    columns = {"age": AGES, "code": SPARSE["words"]}
    write(tmp_path / "L.csv", columns | {"label": PLANS})
    write(tmp_path / "U.csv", {"age": [a + 0.5 for a in AGES], "code": SPARSE["words"]})
    words = ["--labelled", tmp_path / "L.csv", "--pool", tmp_path / "U.csv", "-n", 3, "--steps", 50]
    got = invoke("query", *words, "--out", tmp_path / "r.csv")
    assert got.exit_code == 0, got.output


def test_labels_that_come_beside_a_table_leave_nothing_to_ask():
    rows = [{"age": age, "code": code} for age, code in zip(AGES, SPARSE["words"])]
    assert len(ft.open(rows, label=PLANS).labelled) == 30
    frame = pytest.importorskip("pandas").DataFrame(rows)
    assert len(ft.open(frame, label=PLANS).labelled) == 30
    with pytest.raises(ValueError, match=r"code .* may be it"):
        ft.open(frame)


def test_query_and_label_ask_and_take_the_answer(tmp_path, monkeypatch):
    path = write(tmp_path / "t.csv", {"age": AGES, "plan": PLANS, "churn": CHURN})
    asked = "name it with --label churn, or --label none if nothing is labelled yet"
    assert told("query", path, "--out", tmp_path / "r.csv").endswith(asked)
    got = invoke("query", path, "--label", "churn", "-n", 3, "--steps", 50, "--out", tmp_path / "r.csv")
    assert got.exit_code == 0, got.output
    got = invoke("query", path, "--label", "none", "-n", 3, "--out", tmp_path / "r.csv")
    assert got.exit_code == 0, got.output
    without_page(monkeypatch)
    words = ["label", str(path), "--no-browser", "--port", "0", "--classes", "yes,no"]
    assert "may be it" in told(*words)
    for more in (["--label", "churn"], []):  # the second time it is remembered
        got = CliRunner().invoke(app, [*words, *more])
        assert got.exit_code == 0, got.output
        assert "30 items, 6 labelled" in got.stdout


def test_label_takes_text_none_as_its_note_advises(tmp_path, monkeypatch):
    columns = {"note": [f"a few words here {k}" for k in range(30)], "age": AGES, "plan": PLANS}
    path = write(tmp_path / "t.csv", columns)
    without_page(monkeypatch)
    words = ["label", str(path), "--no-browser", "--port", "0", "--classes", "a,b"]
    assert "--text none on the command line" in " ".join(CliRunner().invoke(app, words).stdout.split())
    got = CliRunner().invoke(app, [*words, "--text", "none", "--store", str(tmp_path / "other")])
    assert got.exit_code == 0, got.output
    assert "features = note, age, plan" in " ".join(got.stdout.split())


# Formats


MIXED = {"id": [f"p{k}" for k in range(30)], "age": AGES, "plan": PLANS, "label": CHURN}
TABLES = {
    "mixed": MIXED,
    "text": {"review": [f"one {['fine', 'dull'][k % 2]} film, number {k}" for k in range(30)], "label": CHURN},
    "features": {"width": [k / 8 for k in range(30)], "height": AGES, "label": CHURN},
    "with a gap": MIXED | {"age": [None, *AGES[1:]]},
}


@pytest.mark.parametrize("ending", ["tsv", "parquet"])
@pytest.mark.parametrize("kind", TABLES)
def test_a_table_is_the_same_in_every_format(tmp_path, kind, ending):
    a, b = (ft.open(write(tmp_path / f"t.{end}", TABLES[kind])) for end in ("csv", ending))
    assert (a.kind, a.ids, a.labels, a.columns, a.notes) == (b.kind, b.ids, b.labels, b.columns, b.notes)
    assert torch.equal(a.x, b.x)
    one, two = (load(tmp_path / f"t.{end}") for end in ("csv", ending))
    assert torch.equal(one.x, two.x)
    assert (one.pool == two.pool).all()


def test_types_of_parquet_are_cells(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from datetime import date, datetime

    columns = {
        "whole": pyarrow.array([1, None, 3], "int64"),
        "real": pyarrow.array([0.1, float("nan"), 2.0], "float32"),
        "truth": [True, None, False],
        "day": [date(2024, 1, 31), None, date(2024, 2, 1)],
        "time": [datetime(2024, 1, 31, 12), None, datetime(2024, 2, 1)],
        "kind": pyarrow.array(["a", None, " "]).dictionary_encode(),
        "list": [[1.0, 2.0], [3.0, 4.0], None],
        "raw": [b"\x00", b"", None],
    }
    got = read_table(write(tmp_path / "t.parquet", columns))
    assert {name: cells for name, cells in got.columns.items() if name != "real"} == {
        "whole": ["1", None, "3"], "truth": ["True", None, "False"], "day": ["2024-01-31", None, "2024-02-01"],
        "time": ["2024-01-31T12:00:00", None, "2024-02-01T00:00:00"], "kind": ["a", None, None],
    }  # fmt: skip
    assert [cell and float(cell) for cell in got.columns["real"]] == [float(np.float32(0.1)), None, 2.0]
    (note,) = got.notes
    assert re.search(r"2 columns \(list: list<.*, raw: binary\) have no words or numbers: left out; for lists", note)


def test_a_parquet_file_that_names_pictures(tmp_path):
    for k in range(4):
        Image.new("RGB", (6, 6), (k, 0, 0)).save(tmp_path / f"{k}.png")
    path = write(tmp_path / "l.parquet", {"file": [f"{k}.png" for k in range(4)], "label": ["a", "b", None, "a"]})
    points = read_points(path)
    assert (points.kind, points.labels) == ("pictures", ["a", "b", None, "a"])
    assert read_points(tmp_path).labels == points.labels


def test_parquet_without_pyarrow_says_how_to_install_it(tmp_path, monkeypatch):
    path = write(tmp_path / "t.parquet", MIXED)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match=r"needs the package pyarrow: pip install 'foretaste\[parquet\]'"):
        ft.open(path)
    assert "pip install 'foretaste[parquet]'" in told("query", path)


def test_damaged_parquet_is_refused_by_name(tmp_path):
    path = write(tmp_path / "t.parquet", MIXED)
    whole = path.read_bytes()
    for raw in (b"", b"PAR1", whole[:-20], whole[: len(whole) // 2], b"rubbish" * 30):
        path.write_bytes(raw)
        with pytest.raises(ValueError, match=r"t\.parquet cannot be read as Parquet"):
            ft.open(path)
    path.write_bytes(whole)
    write(path, {"a": [], "b": []})
    with pytest.raises(ValueError, match="has no points"):
        ft.open(path)


def test_a_parquet_file_that_unpacks_to_too_much_is_not_read(tmp_path, monkeypatch):
    path = write(tmp_path / "t.parquet", {"a": [f"{k:01000}" for k in range(1000)]})
    monkeypatch.setattr("foretaste.data.tables.LARGEST_TABLE", path.stat().st_size)
    with pytest.raises(ValueError, match=r"unpacks to .*; for more than .* use an \.npz"):
        ft.open(path)


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
@pytest.mark.parametrize("columns", [{"text": ["a café in Köln"] * 9000}, {"file": ["café.png"], "label": ["a"]}])
def test_a_csv_in_latin_1_says_how_to_save_it_as_utf_8(tmp_path, encoding, columns):
    path = tmp_path / "t.csv"
    lines = ["plain,line" if len(columns) == 2 else "plain line"] * 3000
    rows = [",".join(row) for row in zip(*columns.values())]
    path.write_bytes("\n".join([",".join(columns), *lines, *rows]).encode(encoding))
    with pytest.raises(ValueError, match=r"t\.csv is not UTF-8: line 3002, near '.*café") as error:
        read_points(path)
    assert str(error.value).endswith("iconv -f WINDOWS-1252 -t UTF-8 t.csv > utf8-t.csv")
    assert 'Save it as "CSV UTF-8"' in str(error.value)


def test_a_csv_in_utf_16_with_its_mark_is_read(tmp_path):
    """Spreadsheets write it as "Unicode text"."""
    (tmp_path / "t.csv").write_text("text\tlabel\na café in Köln\ta\nanother place\t\n", encoding="utf-16")
    points = ft.open(tmp_path / "t.csv", text="text")
    assert (points.items[0], points.labels) == ("a café in Köln", ["a", None])
    (tmp_path / "t.csv").write_bytes(b"\xff\xfea\x00,\x00b\x00\n\x00\x00\xd8,")
    with pytest.raises(ValueError, match="begins as UTF-16 does and cannot be read as such; save it as UTF-8"):
        ft.open(tmp_path / "t.csv")


def test_commas_at_the_ends_of_lines_are_no_columns(tmp_path):
    (tmp_path / "t.csv").write_text("width,label,,\n1,a,,\n2,b,,\n3,,,\n")
    assert ft.open(tmp_path / "t.csv").columns == ("width",)


# Hugging Face


@pytest.mark.parametrize("kind", ["dataset", "saved"])
def test_a_dataset_has_the_same_rules(tmp_path, kind):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    columns = {"customer_id": list(range(500, 530)), "age": AGES, "size": [k / 7 for k in range(30)]}

    def given(**more):
        made = datasets.Dataset.from_dict(columns | more)
        if kind == "saved":
            made.save_to_disk(str(tmp_path / f"d{len(more)}"))
            return tmp_path / f"d{len(more)}"
        return made

    points = ft.open(given(label=CHURN))
    assert (points.kind, points.columns, points.id_column) == ("features", ("age", "size"), "customer_id")
    assert points.ids == [str(500 + k) for k in range(30)]
    assert points.labels == CHURN
    assert points.notes[0].startswith("columns: id = customer_id (no value repeats); label = label (by its name)")
    with pytest.raises(ValueError, match=r"churn .* may be it"):
        ft.open(given(churn=CHURN, plan=PLANS))
    assert ft.open(given(churn=CHURN, plan=PLANS), label="churn").columns == ("age", "size", "plan")


def test_rows_of_a_table_of_features_alone_can_be_taken_and_named():
    rows = TableRows(Table("t", {"a": ["1", "2", "3"], "b": ["x", "", "y"]}, [2, 3, 4]))
    taken = rows.take([2, 0])
    assert list(taken) == [{"a": "3", "b": "y"}, {"a": "1", "b": "x"}]
    assert list(taken.contents()) == [list(rows.contents())[k] for k in (2, 0)]


def test_a_learner_takes_a_dataset_of_number_columns():
    datasets = pytest.importorskip("datasets")
    x = np.random.default_rng(0).normal(size=(30, 2)).astype(np.float32)
    data = datasets.Dataset.from_dict(
        {"a": x[:, 0], "b": x[:, 1], "patient_id": [f"p{k}" for k in range(30)], "label": [*PLANS[:2], *[None] * 28]}
    )
    learner = ft.Learner(pool=data, classes=sorted(set(PLANS)), fit_options={"steps": 20})
    assert learner.ids == [f"p{k}" for k in range(30)]
    assert learner.labels == dict(zip(learner.ids, PLANS[:2]))
    learner = ft.Learner(pool=data.remove_columns("label"), classes=["left", "right"], fit_options={"steps": 20})
    plain = ft.Learner(pool=x, ids=learner.ids, classes=["left", "right"], fit_options={"steps": 20})
    assert learner.query(3) == plain.query(3)
    tokens = datasets.Dataset.from_dict({"input_ids": [[1, 2]] * 5, "attention_mask": [[1, 1]] * 5})
    with pytest.raises(ValueError, match="a dict of tensors, for which there is no default network; give net="):
        ft.Learner(pool=tokens, classes=["left", "right"])
