"""``foretaste serve``: the ML backend of Label Studio."""

import os
from pathlib import Path
from typing import Annotated

import typer

from foretaste.cli.app import app, say, with_examples
from foretaste.cli.inputs import DATA_PANEL, column_or_none, split_classes
from foretaste.cli.label_command import (
    MODEL_PANEL,
    SERVER_PANEL,
    SourceArgument,
    StoreOption,
    close_or_exit,
    end_served,
    prepare_server,
    sigterm_exits,
)
from foretaste.errors import counted

KEY_VARIABLE = "LABEL_STUDIO_API_KEY"


@app.command(
    "serve",
    **with_examples(
        "foretaste serve photos/ --classes cat,dog --url http://127.0.0.1:8080",
    ),
)
def serve_command(
    source: SourceArgument,
    classes: Annotated[str | None, typer.Option(help="Names of the classes, separated by commas.")] = None,
    url: Annotated[
        str | None, typer.Option(help="Label Studio's address. Its token is read from $LABEL_STUDIO_API_KEY.")
    ] = None,
    project: Annotated[int, typer.Option(min=1, help="The number of the project in Label Studio.")] = 1,
    text: Annotated[
        str | None, typer.Option(help="The column of a table that holds the text.", rich_help_panel=DATA_PANEL)
    ] = None,
    id_: Annotated[
        str | None, typer.Option("--id", help="The column of a table that holds ids.", rich_help_panel=DATA_PANEL)
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(help="The column of a table that holds labels given already.", rich_help_panel=DATA_PANEL),
    ] = None,
    store: StoreOption = None,
    backbone: Annotated[
        str, typer.Option(help="A pretrained network for the features, or none.", rich_help_panel=MODEL_PANEL)
    ] = "auto",
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on. Others than this machine's need a token.", rich_help_panel=SERVER_PANEL
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Port; the next free one if it is taken.", rich_help_panel=SERVER_PANEL),
    ] = 9090,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Another name by which the server may be called.", rich_help_panel=SERVER_PANEL
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of random orders and trainings.", rich_help_panel=MODEL_PANEL)] = 0,
) -> None:
    """Serve Label Studio's ML backend for a folder or a table, and keep its queue in our order.

    Add the address as a model and as a webhook of the project, and choose "Uncertainty sampling".

    Tasks are matched to the items by name; nothing that a task points to is fetched. The labelling page is served too.
    """
    opened, token = prepare_server(host, port)
    from foretaste.label import (
        WEBHOOK_BODIES,
        LabelStudio,
        LabelStudioLink,
        add_ml_backend,
        make_app,
        open_desk,
        serve_app,
    )

    studio = None
    if url is not None:
        key = os.environ.get(KEY_VARIABLE, "")
        if not key:
            raise ValueError(f"${KEY_VARIABLE} is not set; put the access token of a Label Studio user there")
        studio = LabelStudio(url, key)
        studio.call("GET", f"/api/projects/{project}")  # before any work: is it there, and may we?
    with sigterm_exits(), opened:
        desk = open_desk(
            Path(source), classes=split_classes(classes), store=store, text=column_or_none(text), id=id_,
            label=column_or_none(label), backbone=backbone, check_every=0, seed=seed, start=False,
        )  # fmt: skip
        address = f"http://{host}:{opened.getsockname()[1]}"
        link = LabelStudioLink(desk, studio, project, address=address)
        try:
            web = make_app(desk)  # before the threads: it changes the filters of warnings, which threads share
            add_ml_backend(web, link)
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
            ended_by = serve_app(web, opened, host=host, token=token, names=allow_host or [], routes=WEBHOOK_BODIES)
        finally:
            close_or_exit(desk, link.close)
    end_served(desk, ended_by)
