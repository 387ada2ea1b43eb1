"""``foretaste serve``: the ML backend of Label Studio."""

import os
from typing import Annotated

import typer

from foretaste.cli import inputs as given
from foretaste.cli import label_command as page
from foretaste.cli.app import app, say, with_examples
from foretaste.errors import counted

KEY_VARIABLE = "LABEL_STUDIO_API_KEY"


@app.command("serve", **with_examples("foretaste serve photos/ --classes cat,dog --url http://127.0.0.1:8080"))
def serve_command(
    source: page.SourceArgument,
    classes: page.NewClassesOption = None,
    url: Annotated[
        str | None, typer.Option(help="Label Studio's address. Its token is read from $LABEL_STUDIO_API_KEY.")
    ] = None,
    project: Annotated[int, typer.Option(min=1, help="The number of the project in Label Studio.")] = 1,
    text: given.TextColumnOption = None,
    id_: given.IdColumnOption = None,
    label: given.LabelColumnOption = None,
    store: page.StoreOption = None,
    backbone: page.BackboneOption = "auto",
    host: page.HostOption = "127.0.0.1",
    port: page.PortOption = 9090,
    allow_host: page.AllowHostOption = None,
    seed: given.SeedOption = 0,
) -> None:
    """Serve Label Studio's ML backend for a folder or a table, and keep its queue in our order.

    Add the address as a model and as a webhook of the project, and choose "Uncertainty sampling".

    Tasks are matched to the items by name; nothing that a task points to is fetched. The labelling page is served too.
    """
    opened, token = page.prepare_server(host, port)
    from foretaste import label as room

    studio = None
    if url is not None:
        key = os.environ.get(KEY_VARIABLE, "")
        if not key:
            raise ValueError(f"${KEY_VARIABLE} is not set; put the access token of a Label Studio user there")
        studio = room.LabelStudio(url, key)
        studio.call("GET", f"/api/projects/{project}")  # before any work: is it there, and may we?
    with page.sigterm_exits(), opened:
        desk = room.open_desk(
            source, classes=given.split_classes(classes), store=store, text=given.column_or_none(text), id=id_,
            label=given.column_or_none(label), backbone=backbone, check_every=0, seed=seed, start=False,
        )  # fmt: skip
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
            page.close_or_exit(desk, link.close)
    page.end_served(desk, ended_by)
