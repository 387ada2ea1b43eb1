"""Points and labels as users have them: arrays, frames, lists, datasets, loaders, names. One way everywhere."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import foretaste as ft
from foretaste.network import MLP, fit
from foretaste.study import fidelity

torch.manual_seed(0)
NET = MLP(4, (6,), 3).eval()  # float32
X = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
X_L, X_U, Y_L = X[:6], X[6:], [0, 1, 2, 0, 1, 2]
NAMES = ["ant", "bee", "cow"]
Y_TEXT = [NAMES[c] for c in Y_L]


def ask(x_L=X_L, y_L=Y_L, x_U=X_U, net=NET, **settings):
    settings = {"batch_size": 4, "ridge": 1e-3} | settings
    return ft.query(net, x_L, y_L, x_U, **settings)


class Rows(Dataset):
    """Map-style: each item is made by ``item``."""

    def __init__(self, x, item=lambda x: x):
        self.x, self.item = x, item

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.item(self.x[i])


class Stream(IterableDataset):
    def __init__(self, x):
        self.x = x

    def __iter__(self):
        return iter(self.x)


def frame(x, **more):
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(np.asarray(x), columns=list("abcd"), **more)


def read_only(x):
    array = x.numpy().copy()
    array.flags.writeable = False
    return array


FORMS = {
    "float64": lambda x: x.double().numpy(),
    "float32": lambda x: x.numpy(),
    "rows by column": lambda x: np.asfortranarray(x.numpy()),
    "backwards": lambda x: x.flip(0).numpy()[::-1],
    "read-only": read_only,
    "big-endian": lambda x: x.numpy().astype(">f8"),
    "long double": lambda x: x.numpy().astype(np.longdouble),
    "lists": lambda x: x.tolist(),
    "tuples": lambda x: tuple(map(tuple, x.tolist())),
    "list of tensors": list,
    "list of arrays": lambda x: list(x.double().numpy()),
    "list of pairs": lambda x: [(row, 1) for row in x],
    "list of pairs of lists": lambda x: [(row.tolist(), 1) for row in x],
    "frame": frame,
    "dataset": Rows,
    "dataset of pairs": lambda x: TensorDataset(x, torch.zeros(len(x))),
    "dataset of arrays": lambda x: Rows(x, lambda row: (row.double().numpy(), "a label")),
    "dataset of dicts": lambda x: Rows(x, lambda row: {"x": row, "label": 1}),
    "loader": lambda x: DataLoader(Rows(x), batch_size=5),
    "loader of pairs": lambda x: DataLoader(TensorDataset(x, torch.zeros(len(x))), batch_size=5),
    "loader of dicts": lambda x: DataLoader(Rows(x, lambda row: {"x": row, "label": 1}), batch_size=4),
    "loader of a stream": lambda x: DataLoader(Stream(x), batch_size=7),
    "loader without batches": lambda x: DataLoader(Rows(x), batch_size=None),
    "opened": lambda x: ft.open(x.numpy()),
}


@pytest.mark.parametrize("form", FORMS)
def test_points_of_every_kind_give_the_query_of_their_tensor(form):
    want, watched = ask(), ask(watch=X_L)
    made = FORMS[form]
    before = torch.get_rng_state()
    x_L = X_L.numpy() if form == "opened" else made(X_L)
    got = ask(x_L, Y_L, made(X_U))
    assert got.indices.tolist() == want.indices.tolist()
    torch.testing.assert_close(got.scores, want.scores, rtol=1e-5, atol=1e-7)
    assert [int(i) for i in got.ids] == want.ids == want.indices.tolist()
    torch.testing.assert_close(ask(watch=made(X_L)).scores, watched.scores, rtol=1e-5, atol=1e-7)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("form", FORMS)
def test_points_of_every_kind_in_linearize_ntk_fit_and_fidelity(form):
    made = FORMS[form]
    x_L = X_L.numpy() if form == "opened" else made(X_L)
    close = {"rtol": 1e-5, "atol": 1e-6}
    state, want = (
        ft.linearize(NET, a, Y_L, b, watch=c, ridge=1e-3) for a, b, c in ((x_L, made(X_U), made(X)), (X_L, X_U, X))
    )
    torch.testing.assert_close(state.lookahead(3, 1), want.lookahead(3, 1), **close)
    torch.testing.assert_close(ft.ntk(NET, made(X_L), made(X_U)), ft.ntk(NET, X_L, X_U), **close)
    nets = [MLP(4, (6,), 3) for _ in range(2)]
    for net, x in zip(nets, (x_L, X_L)):
        fit(net, x, torch.tensor(Y_L), start="cold", steps=5)
    torch.testing.assert_close(nets[0](X), nets[1](X), **close)


def test_fidelity_takes_arrays_and_names():
    how = {"candidates": 2, "repeats": 1, "watch": 4, "train": {"steps": 3}, "outputs": ["sum"], "ridges": [1e-3]}
    want = fidelity(NET, X_L, torch.tensor(Y_L), X_U, y_U=torch.arange(18) % 3, **how)
    y_U = [NAMES[i % 3] for i in range(18)]
    got = fidelity(NET, X_L.numpy(), Y_TEXT, frame(X_U, index=[f"p{i}" for i in range(18)]), y_U=y_U, **how)
    assert got[0]["candidates"] == [f"p{i}" for i in want[0]["candidates"]]
    assert [r["label"] for r in got if r["kind"] == "retraining"] == [
        r["label"] for r in want if r["kind"] == "retraining"
    ]
    assert [r.get("correlation") for r in got] == [r.get("correlation") for r in want]
    other = fidelity(NET, X_L, [NAMES[2 - c] for c in Y_L], X_U, classes=NAMES[::-1], **how)
    assert other[0]["residual"] == pytest.approx(want[0]["residual"])


def test_a_hugging_face_dataset_is_a_table_or_named_inputs():
    datasets = pytest.importorskip("datasets")
    want = ask()
    table = datasets.Dataset.from_pandas(frame(X_U).assign(label=0))
    named = datasets.Dataset.from_dict({"x": X_U.tolist(), "label": [0] * 18})
    for pool in (table, named):
        q = ask(x_U=pool)
        assert q.ids == want.indices.tolist()
        torch.testing.assert_close(q.scores, want.scores, rtol=1e-5, atol=1e-7)
    with pytest.raises(TypeError, match="x_U has columns that are not numbers: city"):
        ask(x_U=datasets.Dataset.from_pandas(frame(X_U).assign(city="Rome")))


def test_pictures_are_bytes_in_0_to_1():
    image = pytest.importorskip("PIL.Image")
    grey = torch.randint(0, 256, (24, 2, 2), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)
    net = nn.Sequential(nn.Flatten(), NET).eval()
    pictures = [image.fromarray(one.numpy()) for one in grey]
    deep = [image.fromarray(one.numpy().astype("uint16") * 257) for one in grey]  # 16 bits a pixel
    want = ask(grey[:6, None] / 255, Y_L, grey[6:, None] / 255, net)
    for given in (pictures, deep):
        assert torch.equal(ask(given[:6], Y_L, given[6:], net).scores, want.scores)
        assert torch.equal(ask(given[:6], Y_L, Rows(given[6:], lambda one: (one, 1)), net).scores, want.scores)


# --- ids ---


def test_the_index_of_a_frame_names_the_candidates():
    pool = frame(X_U, index=[f"p{i}" for i in range(18)])
    q, asked = ask(x_U=pool), []
    assert q.ids == [f"p{j}" for j in q.indices] == pool.index[q.indices].tolist()
    assert "ids=['p" in repr(q)
    ask(x_U=pool, select="sequential", oracle=lambda i: asked.append(i) or 0)
    assert all(i in pool.index for i in asked)
    assert ask(x_U=frame(X)[6:]).ids == [j + 6 for j in q.indices]  # a part of a frame keeps its index
    assert ask(x_U=pool, ids=range(18)).ids == q.indices.tolist()


def test_an_index_that_repeats_is_refused_unless_ids_are_given():
    pool = frame(X_U, index=[0, 1] * 9)
    with pytest.raises(ValueError, match=r"the index of x_U repeats 0, .*reset_index\(drop=True\), or give ids="):
        ask(x_U=pool)
    assert ask(x_U=pool, ids=range(18)).indices.tolist() == ask().indices.tolist()
    assert len(ask(x_L=frame(X_L, index=[0] * 6))) == 4  # only candidates are named


def test_ids_are_taken_by_position():
    """A Series was asked by its index: with rows in another order, every id was another point's."""
    series = pytest.importorskip("pandas").Series([f"n{i}" for i in range(18)], index=range(17, -1, -1))
    want = [f"n{j}" for j in ask().indices]
    for ids in (series, series.tolist(), series.to_numpy(), tuple(series)):
        assert ask(ids=ids).ids == want
    with pytest.raises(ValueError, match=r"ids is a set \(it has no order\); expected a sequence"):
        ask(ids=set(series))
    how = {"candidates": 2, "repeats": 1, "watch": 4, "train": {"steps": 3}, "outputs": ["sum"], "ridges": [1e-3]}
    drawn = [fidelity(NET, X_L, Y_L, X_U, ids=ids, **how)[0]["candidates"] for ids in (series, series.tolist())]
    assert drawn[0] == drawn[1]


def test_points_on_the_test_side_are_neither_trained_on_nor_asked_for(tmp_path):
    y = np.arange(24) % 3
    y[12:16] = -1
    np.savez(tmp_path / "a.npz", x_train=X[:16], y_train=y[:16], x_test=X[16:], y_test=y[16:])
    opened = ft.open(tmp_path / "a.npz")
    assert len(opened) == 24
    got = ask(x_L=opened, y_L=None, x_U=opened)
    assert sorted(got.indices.tolist()) == [12, 13, 14, 15]
    same = ask(x_L=X[:12], y_L=y[:12], x_U=X[12:16])
    np.testing.assert_array_equal(got.indices - 12, same.indices)
    with pytest.raises(ValueError, match="all 12 points of x_U have a label"):
        ask(x_U=opened.take([*range(12), *range(16, 24)]))


def test_what_ft_open_returns_is_asked_about_its_points_without_a_label():
    labels = [Y_TEXT[i // 4] if i % 4 == 0 else None for i in range(24)]
    opened = ft.open(X.numpy(), label=labels)
    L, U = opened.labelled, opened.pool
    want = ask(X[L], opened.y[L], X[U])
    for y_L in (None, opened.known_labels, opened.y[L]):
        q = ask(opened, y_L, opened)
        assert q.indices.tolist() == U[want.indices].tolist()
        assert q.ids == [opened.ids[j] for j in q.indices]
        assert torch.isinf(q.scores[L]).all()
        torch.testing.assert_close(q.scores[U], want.scores)
    assert q.info["classes"] == NAMES if y_L is None else True
    with pytest.raises(KeyError) as told:  # what was answered before is told by positions among all points
        ask(opened, None, opened, select="sequential", oracle=dict(zip(q.ids[:1], ["bee"])).__getitem__)
    assert [(opened.ids[j], y) for j, y in told.value.answered] == [(q.ids[0], "bee")]
    named = ask(opened, None, opened, ids=[f"n{i}" for i in range(24)])
    assert named.ids == [f"n{j}" for j in named.indices]
    done = fit(MLP(4, (6,), 3), opened, None, steps=3)
    assert done.steps == 3
    with pytest.raises(ValueError, match=r"all 24 points of x_U have a label.*give x_U\.x"):
        ask(x_U=ft.open(X.numpy(), label=[NAMES[i % 3] for i in range(24)]))


def test_nothing_labelled_in_any_form():
    want = ft.query(NET, None, None, X_U, batch_size=3, strategy="gain")
    for x_L, y_L in (([], []), (np.zeros((0, 4)), []), (ft.open(X.numpy()), None), (X[:0].tolist(), torch.empty(0))):
        q = ft.query(NET, x_L, y_L, X_U, batch_size=3, strategy="gain")
        assert q.indices.tolist() == want.indices.tolist()
        assert q.info["first"] == want.info["first"]


# --- what numbers become ---


def test_bytes_are_numbers_in_0_to_1_as_in_fit():
    pixels = torch.randint(0, 256, (24, 4), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    want = ask(pixels[:6] / 255, Y_L, pixels[6:] / 255)
    got = ask(pixels[:6].numpy(), Y_L, TensorDataset(pixels[6:]))
    assert got.indices.tolist() == want.indices.tolist()
    torch.testing.assert_close(got.scores, want.scores)


@pytest.mark.parametrize("dtype", ["int64", "int8", "uint16", "uint64", "bool"])
def test_whole_numbers_are_floats_for_a_network_of_floats(dtype):
    x = (X * 3).round().abs().numpy().astype(dtype)
    want = ask(torch.tensor(x.astype("float32"))[:6], Y_L, torch.tensor(x.astype("float32"))[6:])
    for made in (lambda a: a, lambda a: a.tolist(), frame, lambda a: Rows(a)):
        assert torch.equal(ask(made(x[:6]), Y_L, made(x[6:])).scores, want.scores)


def test_token_ids_stay_whole_for_a_network_with_an_embedding():
    net = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 3)).eval()
    ids = torch.randint(0, 9, (24, 3), generator=torch.Generator().manual_seed(2))
    want = ask(ids[:6], Y_L, ids[6:], net)
    for made in (lambda a: a.numpy().astype("int32"), lambda a: a.tolist(), Rows):
        assert torch.equal(ask(made(ids[:6]), Y_L, made(ids[6:]), net).scores, want.scores)


def test_one_number_for_each_point_is_a_column():
    net, x = MLP(1, (6,), 3).eval(), torch.arange(24.0)[:, None]
    want = ask(x[:6], Y_L, x[6:], net)
    for made in (
        lambda a: a[:, 0].numpy(),
        lambda a: a[:, 0].int().numpy(),
        lambda a: a[:, 0].tolist(),
        lambda a: Rows(a[:, 0]),
    ):
        assert torch.equal(ask(made(x[:6]), Y_L, made(x[6:]), net).scores, want.scores)


def test_arrays_in_a_dict():
    class Keyed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = NET

        def forward(self, a, b):
            return self.inner(torch.cat([a, b], 1))

    def parts(x):
        return {"a": x[:, :1], "b": x[:, 1:]}

    want = ask(parts(X_L), Y_L, parts(X_U), Keyed().eval())
    got = ask(parts(X_L.double().numpy()), Y_L, parts(X_U.double().numpy()), Keyed().eval())
    torch.testing.assert_close(got.scores, want.scores, rtol=1e-5, atol=1e-7)


# --- what cannot be points ---


def mixed(x):
    made = frame(x)
    return made.assign(
        city="Rome", kind=made["a"].astype(str).astype("category"), day=made["a"].index.astype("datetime64[s]")
    )


def with_gap(x):
    made = frame(x)
    made.loc[2, "b"] = np.nan
    return made.assign(d=made["d"].round().astype("Int64").mask(made["a"] > 0))


def masked(x):
    return np.ma.masked_greater(x.numpy(), 1)


def nan_at_3(x):
    array = x.numpy().copy()
    array[3, 1] = np.nan
    return array


BAD = {
    "columns of text": (mixed, r"x_U has columns that are not numbers: city, kind, day; .*ft\.open encodes text"),
    "gaps of a frame": (with_gap, r"x_U has \d+ missing or infinite values, in b \(1\), d \(\d+\); fill them in"),
    "a frame without columns": (lambda x: frame(x)[[]], "x_U is a data frame without columns"),
    "other columns": (lambda x: frame(x)[list("abdc")], r"x_L has the columns a, b, c, d and x_U a, b, d, c"),
    "NaN": (nan_at_3, "x_U has 1 NaN or infinite values, first in point 3"),
    "too large for float32": (lambda x: x.double().numpy() * 1e300, r"too large for torch\.float32; scale them"),
    "masked values": (masked, r"x_U is an array with \d+ masked values"),
    "ragged lists": (lambda x: [[1.0, 2.0], [3.0]], "x_U is a list whose points have several lengths"),
    "ragged tensors": (lambda x: [x[0], x[1, :2]], r"items of x_U have 2 shapes: \(4,\) \(1\), \(2,\) \(1\)"),
    "texts": (lambda x: ["a b", "c"], "x_U holds text, such as 'a b'; expected numbers. ft.open encodes text"),
    "an array of text": (lambda x: np.array(["1.0", "2.0"]), "x_U holds text, such as '1.0'"),
    "objects": (lambda x: x.numpy().astype(object), r"of type object, the first a float.*astype\(float\)"),
    "complex numbers": (lambda x: x.numpy() + 1j, "x_U holds values of type complex"),
    "dates": (lambda x: np.array(["2025-01-01"], "datetime64[s]"), "x_U holds values of type datetime64"),
    "a path": (lambda x: "photos/", r"x_U is a str; expected .*ft\.open reads files and folders"),
    "a number": (lambda x: 3.0, "x_U is a float; expected a tensor, an array, a data frame"),
    "one number": (lambda x: np.float32(3), "x_U is a single number"),
    "an iterator": (iter, "x_U is a .*; expected a tensor"),
    "a shuffling loader": (lambda x: DataLoader(Rows(x), shuffle=True), "a DataLoader that shuffles.*shuffle=False"),
    "a loader that drops": (lambda x: DataLoader(Rows(x), 4, drop_last=True), "drops its last points; use drop_last"),
    "an empty list": (lambda x: [], "x_U is empty"),
    "a dataset of texts": (lambda x: Rows(["a", "b"]), "an item of x_U holds text"),
    "a loader of texts": (lambda x: DataLoader(Rows(["a", "b"])), "a batch of x_U is a"),
    "only labels": (lambda x: Rows(x, lambda row: {"label": 1}), "items of x_U have only label"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_points_is_told(case):
    made, message = BAD[case]
    x_L = frame(X_L) if case == "other columns" else X_L
    with pytest.raises((TypeError, ValueError), match=message):
        ask(x_L, Y_L, made(X_U))


def test_a_sparse_matrix_is_told():
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(TypeError, match=r"x_U is a sparse csr_matrix; .*give x_U\.toarray\(\)"):
        ask(x_U=sparse.csr_matrix(X_U.numpy()))


def test_all_sets_are_told_at_once_and_settings_before_a_dataset_is_read():
    with pytest.raises(TypeError, match=r"x_U holds text.*; x_L holds text.*; watch is a str"):
        ask(["a"], [0], ["b"], watch="all")

    class Unread(Rows):
        def __getitem__(self, i):
            pytest.fail("the dataset was read")

    with pytest.raises(ValueError, match="unknown strategy 'gian'"):
        ask(x_U=Unread(X_U), strategy="gian")


# --- names of classes ---


@pytest.mark.parametrize("names", [NAMES, [10, 3, 7], np.array([10, 3, 7])], ids=["text", "numbers", "array"])
def test_names_of_classes_work_alike_everywhere(names):
    y = [names[c] for c in Y_L]
    want, got = ask(), ask(y_L=y, classes=names)
    assert torch.equal(got.scores, want.scores)
    assert got.info["classes"] == list(names)
    for strategy in ("badge", "naive", "margin"):
        options = {"epochs": 1} if strategy == "naive" else None
        by_id = ask(strategy=strategy, options=options).indices.tolist()
        assert ask(y_L=y, classes=names, strategy=strategy, options=options).indices.tolist() == by_id
    said = ask(y_L=y, classes=names, select="sequential", oracle=lambda j: names[j % 3])
    assert said.indices.tolist() == ask(select="sequential", oracle=lambda j: j % 3).indices.tolist()
    assert said.labels == [names[j % 3] for j in said.indices]
    state, ids = (ft.linearize(NET, X_L, a, X_U, classes=b, ridge=1e-3) for a, b in ((y, names), (Y_L, None)))
    assert torch.equal(state.lookahead(2, names[1]), ids.lookahead(2, 1))
    assert torch.equal(state.condition(2, names[1]).mean, ids.condition(2, 1).mean)
    nets = [MLP(4, (6,), 3) for _ in range(2)]
    done = [
        fit(net, X_L, *a, start="cold", steps=5, **b)
        for net, a, b in zip(nets, ((y,), (torch.tensor(Y_L),)), ({"classes": names}, {}))
    ]
    assert torch.equal(nets[0](X), nets[1](X))
    assert done[0].accuracy == done[1].accuracy
    learner = ft.Learner(NET, X, classes=names, labels=dict(enumerate(y)))
    assert learner.classes == list(names)
    assert learner.labels == dict(enumerate(y))
    learner.teach([10, 11], [names[2], names[0]])
    assert (learner.labels[10], learner.labels[11]) == (names[2], names[0])
    assert set(learner.predict().tolist()) <= set(names)


@pytest.mark.parametrize(
    ("classes", "y", "message"),
    [
        ([10, 3, 7], [0, 1, 2] * 2, "unknown class 0; known: 10, 3, 7|unknown class 0"),
        ([10, 3, 7], ["10", "3", "7"] * 2, "unknown class '10'"),
        ([10, 3, 3], [10, 3, 3] * 2, "classes has repeated names: 3"),
        ([10, "b", 7], [10, 3, 7] * 2, "all text, or all whole numbers"),
        ([True, False, 2], [10, 3, 7] * 2, "all text, or all whole numbers"),
        ("abc", ["a", "b", "c"] * 2, "expected a list of names"),
        ([10, 3], [10, 3] * 3, "2 names and the network has 3 outputs|3 outputs and there are 2 classes"),
    ],
)
def test_names_that_do_not_fit_are_told_alike_everywhere(classes, y, message):
    calls = (
        lambda: ask(y_L=y, classes=classes),
        lambda: ft.linearize(NET, X_L, y, X_U, classes=classes),
        lambda: fit(MLP(4, (6,), 3), X_L, y, classes=classes, steps=1),
        lambda: ft.Learner(NET, X, classes=classes, labels=dict(enumerate(y))),
    )
    for call in calls:
        with pytest.raises((TypeError, ValueError), match=message):
            call()


def test_labels_outside_the_classes_may_be_names():
    with pytest.raises(ValueError, match=r"expected 0 to 2\. If they are names, give classes="):
        ask(y_L=[10, 3, 7] * 2)


@pytest.mark.parametrize("made", [np.asarray, tuple, lambda y: torch.tensor(y).numpy()[::-1][::-1]])
def test_labels_in_every_container(made):
    assert torch.equal(ask(y_L=made(Y_L)).scores, ask().scores)
    assert fit(MLP(4, (6,), 3), X_L, made(Y_L), start="cold", steps=3).residual > 0


def test_labels_of_pandas_with_any_index():
    """torch took the index for positions, or refused."""
    pandas = pytest.importorskip("pandas")
    want = ask()
    for series in (
        pandas.Series(Y_L, index=range(50, 56)),
        pandas.Series(Y_L, dtype="Int64"),
        pandas.Series(Y_TEXT, index=list("fedcba")),
        pandas.Series(Y_TEXT, dtype="category"),
    ):
        assert torch.equal(ask(y_L=series).scores, want.scores)
    for gap in ([*Y_L[:5], None], [*Y_TEXT[:5], None]):
        with pytest.raises(ValueError, match=r"no tensor of labels; .*none of them missing"):
            ask(y_L=pandas.Series(gap, dtype=object))


def test_labels_whose_index_is_in_another_order_are_refused():
    y = pytest.importorskip("pandas").Series(Y_TEXT)
    for call in (lambda x, y: ask(x, y), lambda x, y: fit(MLP(4, (6,), 3), x, y, steps=1)):
        call(frame(X_L), y)
        call(frame(X_L, index=range(10, 16)), y)  # another index says nothing
        with pytest.raises(ValueError, match=r"has the index of \w+ in another order.*\.loc\["):
            call(frame(X_L), y[::-1])


@pytest.mark.parametrize("loss", ["l2", "ce"])
def test_one_output_is_trained_on_two_classes_as_it_is_queried(loss):
    y = torch.tensor([0, 1, 0, 1, 1, 0])
    x = X_L + y[:, None]
    for labels in (y, ["no" if c == 0 else "yes" for c in y], y.bool(), y.tolist()):
        net = MLP(4, (8,), 1)
        done = fit(net, x, labels, start="cold", steps=100, loss=loss, max_lr=0.2)
        assert done.accuracy == 1
        assert net(x).shape == (6, 1)
        assert not net.training
        assert ((net(x)[:, 0] > (0.5 if loss == "l2" else 0)) == y.bool()).all()
