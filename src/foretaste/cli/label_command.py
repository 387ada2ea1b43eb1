"""``foretaste label``: a labelling page on this machine; ``status``: how far it is; ``serve``: for Label Studio."""

import os
import secrets
import signal
import sys
import threading
import webbrowser
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretaste.cli import inputs as given
from foretaste.cli.app import app, say, with_examples
from foretaste.errors import counted, printable

if TYPE_CHECKING:
    from foretaste.label import LabelDesk, LabelStore

TOKEN_VARIABLE = "FORETASTE_TOKEN"
KEY_VARIABLE = "LABEL_STUDIO_API_KEY"

# Options by their group in --help.
exchange_option = partial(typer.Option, metavar="PATH", rich_help_panel="Labels in and out")
model_option = partial(typer.Option, rich_help_panel="The model")
people_option = partial(typer.Option, rich_help_panel="Several people")
server_option = partial(typer.Option, rich_help_panel="The server")

SourceArgument = Annotated[Path, typer.Argument(metavar="DATA", help="A folder of pictures, or a table.")]
NewClassesOption = Annotated[
    str | None, given.data_option(help="Names of the classes, separated by commas. Not needed again later.")
]
StoreOption = Annotated[
    Path | None,
    given.data_option(help="Folder of the labels. Default: .foretaste in the folder, or FILE.foretaste beside a CSV."),
]
BackboneOption = Annotated[
    str, model_option(help="A pretrained network for the features, or none: a network on pixels, TF-IDF for text.")
]
HostOption = Annotated[str, server_option(help="Address to listen on. Others than this machine's need a token.")]
PortOption = Annotated[int, server_option(min=0, max=65535, help="Port; the next free one if it is taken.")]
AllowHostOption = Annotated[
    list[str] | None, server_option(metavar="NAME", help="Another name by which browsers may call the server.")
]


@app.command(
    "label",
    **with_examples(
        "foretaste label photos/ --classes cat,dog",
        "foretaste label reviews.csv --text body --classes good,bad",
        "foretaste label photos/ --export labels.csv",
    ),
)
def label_command(
    source: SourceArgument,
    classes: NewClassesOption = None,
    text: given.TextColumnOption = None,
    id_: given.IdColumnOption = None,
    label: given.LabelColumnOption = None,
    store: StoreOption = None,
    task: Annotated[
        str | None,
        given.data_option(
            metavar="one|several|number",
            help="One class an item, several (a yes or no for each), or a number. Default: as the last time, else one.",
        ),
    ] = None,
    scale: Annotated[
        str | None,
        given.data_option(metavar="LOW:HIGH:STEP", help="Of numbers. Default: as the last time, else 0:10:1."),
    ] = None,
    import_: Annotated[
        list[Path] | None,
        exchange_option("--import", help="Take in labels and end: .csv, .jsonl, .parquet, .json or class folders."),
    ] = None,
    export: Annotated[
        list[Path] | None,
        exchange_option(
            help="Write labels and end: .csv, .jsonl, .parquet, .json (Label Studio), .coco.json, or a new folder."
        ),
    ] = None,
    backbone: BackboneOption = "auto",
    check_every: Annotated[int, model_option(min=0, help="One item in so many is random and measures accuracy.")] = 6,
    goal: Annotated[
        float,
        model_option(min=0, max=100, help="Percent of the items without a label that may be wrong when you stop."),
    ] = 2.0,
    graph: Annotated[
        str | None,
        model_option(
            metavar="auto|off", help="Whether items without a label have a say. Default: as the last time, else auto."
        ),
    ] = None,
    retrain: Annotated[bool, model_option("--retrain/--no-retrain", help="Train anew when it is time.")] = True,
    seed: given.SeedOption = 0,
    copies: Annotated[
        int | None, people_option(min=1, help="So many people answer one item. Default: as the last time, else 1.")
    ] = None,
    copies_share: Annotated[
        float | None,
        people_option(min=0, max=100, help="Percent of the items that so many answer, drawn at random. Default: all."),
    ] = None,
    votes: Annotated[
        str | None,
        people_option(
            metavar="majority|reliability",
            help="Which label of several people counts: that of most, or the likeliest by how reliable each is. "
            "Default: as the last time, else majority.",
        ),
    ] = None,
    people: Annotated[
        str | None,
        people_option(help="Names, separated by commas: each gets an address of their own, and you the owner's."),
    ] = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8765,
    allow_host: AllowHostOption = None,
    lease: Annotated[
        float, server_option(min=5, help="Seconds after which an abandoned item returns to the queue.")
    ] = 120.0,
    browser: Annotated[bool, server_option("--browser/--no-browser", help="Open the page in a browser.")] = True,
) -> None:
    """Label a folder of pictures or clips, or the texts or rows of a table, in the browser. The same command resumes.

    Every answer is on the disk before it is acknowledged, and changes the model at once. Ctrl-C stops.
    """
    from foretaste.label import open_desk

    opening = partial(
        open_desk, source, classes=given.split_classes(classes), store=store, text=given.column_or_none(text), id=id_,
        label=given.column_or_none(label), backbone=backbone, check_every=check_every, goal=goal / 100,
        trains_itself=retrain, lease_seconds=lease, seed=seed, graph=graph, copies=copies,
        copies_share=None if copies_share is None else copies_share / 100, votes=votes, task=task, scale=scale,
        start=False,
    )  # fmt: skip
    if import_:
        _import(opening(), import_)
    if export:
        _export(source, store, export)
    if import_ or export:
        return
    names = given.split_names("--people", people)
    opened, token = prepare_server(host, port, bool(names))
    with sigterm_exits(), opened:
        desk = opening()
        try:
            ended_by = _serve(desk, opened, host, token, names, allow_host or [], browser)
        finally:
            close_or_exit(desk)
    end_served(desk, ended_by)


@contextmanager
def sigterm_exits() -> Iterator[None]:
    """SIGTERM ends the command as Ctrl-C does: what is open is closed. The exit code is 143."""
    if threading.current_thread() is not threading.main_thread():  # only that one may listen to signals
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def close_or_exit(desk: "LabelDesk", *first: Callable[[], None]) -> None:
    """Close a desk, which waits until the learner has ended its step. A second signal ends the process without that."""
    from foretaste.label import close_desk

    try:
        for close in first:
            close()
        close_desk(desk)
    except (KeyboardInterrupt, SystemExit):
        desk.store.close()
        os._exit(130)  # at Python's own exit, a thread that is within torch would abort the process


def end_served(desk: "LabelDesk", ended_by: int | None) -> None:
    """The last line of a page that was served, and the exit code of the signal that ended it."""
    state = desk.state()
    say(f"{state['labelled']} of {state['total']} items are labelled. The same command goes on.")
    if ended_by:
        raise typer.Exit(128 + ended_by)


def prepare_server(host: str, port: int, people: bool = False) -> tuple[Any, str | None]:
    """A socket, and a token where other machines can reach it or people have names. Asked for first: it fails fast."""
    try:
        from foretaste.label import is_loopback, map_large_blocks, open_port
    except ImportError as error:
        raise RuntimeError(
            f"{error.name} is not installed, which the page needs; pip install 'foretaste[label]'"
        ) from None
    map_large_blocks()
    needed = people or not is_loopback(host)
    token = os.environ.get(TOKEN_VARIABLE) or (secrets.token_urlsafe(24) if needed else None)
    return open_port(host, port), token


def _serve(
    desk: "LabelDesk", opened: Any, host: str, token: str | None, people: list[str], names: list[str], browser: bool
) -> int | None:
    """Serve the page until a signal comes; which one."""
    from foretaste.label import make_app, person_token, serve_app

    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    # The token stands behind #, so that it is in no log of a server or a proxy. Only this terminal has it.
    plain = f"http://{shown}:{opened.getsockname()[1]}/"
    address = plain + (f"#token={token}" if token else "")
    state = desk.state()
    say(
        f"{desk.title}: {counted(state['total'], 'item')}, {state['labelled']} labelled, {_asked(desk.store)}",
        *(f"  {note}" for note in desk.notes),
        *(f"  WARNING: {said}" for said in desk.contradictions()),
    )
    if state["copies"]:
        one, many = "item is a copy of another and gets its label", "items are copies of others and get their label"
        say(f"  {counted(state['copies'], one, many)}")
    say(f"labels are kept in {desk.store.path}", f"open {address} (Ctrl-C stops)")
    if people and token:
        say("  that is the owner's address; each person has one of their own:")
        say(*(f"  {printable(who)}: {plain}#token={person_token(token, who)}" for who in people))
    if host in ("0.0.0.0", "::"):
        say(f"  from other machines: the same, with this machine's address in place of {shown}")
    page = make_app(desk)  # before the thread: it changes the filters of warnings, which threads share
    desk.worker.start()
    if browser:
        webbrowser.open(address)
    return serve_app(page, opened, host=host, token=token, people=people, names=names)


def _asked(store: "LabelStore") -> str:
    """What is asked, in words."""
    task = store.task
    if task.kind == "number":
        return f"a number from {task.low:g} to {task.high:g} by {task.step:g}"
    return f"{'any of the' if task.kind == 'several' else 'classes'} {', '.join(store.classes)}"


def _import(desk: "LabelDesk", paths: list[Path]) -> None:
    """Take labels into the store of a desk, and close it."""
    from foretaste.label import close_desk, import_labels, read_labels

    try:
        for path in paths:
            rows = read_labels(path, list(desk.data.ids), desk.store.task)
            say(f"{path}: {counted(import_labels(desk.store, rows), 'label')} taken in, of {counted(len(rows), 'row')}")
    finally:
        close_desk(desk)


def _export(source: Path, store: Path | None, outs: list[Path]) -> None:
    """Write what the store has, also while a page is open on it."""
    from foretaste.label import ITEM_FIELDS, export_labels, label_rows

    with _kept_labels(source, store) as kept:
        rows = label_rows(kept, kept.setting("twins", {}), _rows_by_content(kept, source))
        labelled = counted(sum(row.label is not None for row in rows), "label")
        field = ITEM_FIELDS.get(kept.setting("kind", "pictures"), "text")
        root = source if source.is_dir() else source.parent
        for out in outs:
            written = export_labels(
                rows, out, root=None if field == "text" else root, field=field, classes=kept.classes,
                texts=partial(_texts, kept, source), task=kept.task,
            )  # fmt: skip
            say(f"{written}: {labelled}")


def _texts(store: "LabelStore", source: Path) -> dict[str, str]:
    """Item → its text; of a table without a column of text, its cells."""
    from foretaste.data import read_points
    from foretaste.label import name_points

    points = name_points(store, read_points(source, **store.setting("columns", {})))
    return {name: str(item) for name, item in zip(points.ids, points.items)}


def _rows_by_content(store: "LabelStore", source: Path) -> dict[str, int]:
    """Item → its row, where rows have no ids of their own. The file may have changed since, or be gone."""
    if store.setting("ids") != "content":
        return {}
    from foretaste.data import content_names, read_points

    try:
        names = content_names(read_points(source, **store.setting("columns", {})))
    except (OSError, ValueError) as error:
        say(f"the export does not say which row is meant: {error}")
        return {}
    return {name: k for k, name in enumerate(names)}


def _kept_labels(source: Path, store: Path | None) -> "LabelStore":
    """The labels of a source, to read. A mistyped name is not reported as one that nobody has labelled."""
    from foretaste.label import LabelStore, store_folder

    if store is None and not source.exists():
        raise FileNotFoundError(f"{source} does not exist; expected a folder of pictures, or a CSV")
    own = source if (source / "labels.sqlite").is_file() else store_folder(source)
    return LabelStore(store or own, read_only=True)


@app.command("status", **with_examples("foretaste status photos/"))
def status_command(source: SourceArgument, store: StoreOption = None) -> None:
    """Show how far labelling is: counts, accuracy, what is left, when to stop. Also while a page is open."""
    with _kept_labels(source, store) as kept:
        say(*status_lines(kept))


def status_lines(store: "LabelStore") -> list[str]:
    """What the log says, in lines."""
    from foretaste.label import PREQUENTIAL, CopyGroups, measure_agreement, wilson

    current, events = store.current(), store.events()
    said = [e.label for e in current.values() if e.label is not None]
    labels = Counter(name for label in said for name in store.task.names(label))
    kinds = Counter(e.kind for e in current.values() if e.label is None)
    people = Counter(e.who for item, e in current.items() if item not in store.shared())
    people.update(who for heard in store.shared().values() for who in heard.voices)
    total, words = store.setting("total"), {"unsure": "not sure", "ignore": "set aside", "skip": "skipped"}
    done = f"{len(said)} of {total} items are labelled" if total else f"{len(said)} items are labelled"
    others = [f"{n} {words[kind]}" for kind, n in sorted(kinds.items())]
    lines = [
        f"{done}; {', '.join(others)}" if others else done,
        "classes: " + ", ".join(f"{printable(name)} {labels[name]}" for name in store.classes)
        if store.classes
        else _asked(store),
        "people: " + (", ".join(f"{printable(who)} {n}" for who, n in people.most_common()) or "nobody yet"),
        *(f"WARNING: {said}" for said in CopyGroups(store.setting("twins", {})).contradictions(current)),
    ]
    if checked := store.setting("checked", []):
        _, right, of = checked[-1]
        low, high = wilson(right, of)
        drawn = f"{counted(of, 'item')} drawn at random (95 %: {low:.0%} to {high:.0%})"
        lines.append(f"accuracy: {right / of:.0%} on {drawn}")
    shared = store.shared().values()
    if agreed := measure_agreement([heard.labels for heard in shared]):
        between = f"95 %: {agreed.low:.2f} to {agreed.high:.2f}"
        lines.append(f"agreement: {agreed.name} {agreed.value:.2f} on {agreed.items} items ({between})")
    if disagree := sum(heard.disagree for heard in shared):
        lines.append(f"people disagree on {counted(disagree, 'item')}: decide in Review")
    asked = [e for e in events if e.kind == "label" and e.guess and e.purpose != "check"]
    guessed = [store.task.near(str(e.guess), str(e.label)) for e in asked]
    if last := guessed[-PREQUENTIAL:]:
        share = f"{sum(last) / len(last):.0%} of the last {counted(len(last), 'item')} asked"
        lines.append(f"guessed before the answer: {share}")
    lines += [str(advice.get("text", "")) for advice in (store.setting("advice", {}) or {}).values()]
    if events:
        lines.append(f"last answer: {events[-1].at}, by {printable(events[-1].who)}")
    return lines


@app.command("serve", **with_examples("foretaste serve photos/ --classes cat,dog --url http://127.0.0.1:8080"))
def serve_command(
    source: SourceArgument,
    classes: NewClassesOption = None,
    url: Annotated[
        str | None, typer.Option(help="Label Studio's address. Its token is read from $LABEL_STUDIO_API_KEY.")
    ] = None,
    project: Annotated[int, typer.Option(min=1, help="The number of the project in Label Studio.")] = 1,
    text: given.TextColumnOption = None,
    id_: given.IdColumnOption = None,
    label: given.LabelColumnOption = None,
    store: StoreOption = None,
    backbone: BackboneOption = "auto",
    host: HostOption = "127.0.0.1",
    port: PortOption = 9090,
    allow_host: AllowHostOption = None,
    seed: given.SeedOption = 0,
) -> None:
    """Serve Label Studio's ML backend for a folder or a table, and keep its queue in our order.

    Add the address as a model and as a webhook of the project, and choose "Uncertainty sampling".

    Tasks are matched to the items by name; nothing that a task points to is fetched. The labelling page is served too.
    """
    opened, token = prepare_server(host, port)
    from foretaste import label as room

    studio = None
    if url is not None:
        key = os.environ.get(KEY_VARIABLE, "")
        if not key:
            raise ValueError(f"${KEY_VARIABLE} is not set; put the access token of a Label Studio user there")
        studio = room.LabelStudio(url, key)
        studio.call("GET", f"/api/projects/{project}")  # before any work: is it there, and may we?
    with sigterm_exits(), opened:
        desk = room.open_desk(
            source, classes=given.split_classes(classes), store=store, text=given.column_or_none(text), id=id_,
            label=given.column_or_none(label), backbone=backbone, check_every=0, seed=seed, start=False,
        )  # fmt: skip
        if not desk.store.task.one:
            room.close_desk(desk)
            raise ValueError(
                f"Label Studio is asked for one class an item, and the task here is {desk.store.task.kind}"
            )
        address = f"http://{host}:{opened.getsockname()[1]}"
        link = room.LabelStudioLink(desk, studio, project, address=address)
        try:
            web = room.make_app(desk)  # before the threads: it changes the filters of warnings, which threads share
            room.add_ml_backend(web, link)
            desk.worker.start()
            say(
                f"{desk.title}: {counted(len(desk.open_ids), 'item')}, classes {', '.join(desk.store.classes)}",
                f"ML backend {address}, webhook {address}/webhook (Ctrl-C stops)",
            )
            if studio is not None:
                say(*(f"note: {fault}" for fault in link.check()))
            link.start()
            if token:
                say(f"token {token}: the password of the backend, any name; and Authorization: Bearer of the webhook")
            routes = room.WEBHOOK_BODIES
            ended_by = room.serve_app(web, opened, host=host, token=token, names=allow_host or [], routes=routes)
        finally:
            close_or_exit(desk, link.close)
    end_served(desk, ended_by)
