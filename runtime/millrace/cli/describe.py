"""`millrace describe`: a topology as text, in Kafka Streams' format, or as a diagram."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from millrace.cli.application import (
    ApplicationIdOption,
    EntrypointArgument,
    ManifestOption,
    SettingOption,
    application,
    show,
)


class Format(StrEnum):
    """The format in which a topology is shown."""

    TEXT = "text"
    MERMAID = "mermaid"
    SVG = "svg"


def describe(
    entrypoint: EntrypointArgument = None,
    file: ManifestOption = None,
    form: Annotated[Format, typer.Option("--format", help="The text is the same as Kafka Streams'.")] = Format.TEXT,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to a file.", show_default=False)] = None,
    application_id: ApplicationIdOption = None,
    config: SettingOption = None,
) -> None:
    """Show the nodes of a topology as text, Mermaid or SVG.

    For example:

    - `millrace describe wordcount:topology`
    - `millrace describe -f streamsapp.yaml --format svg -o topology.svg`
    """
    if file is None and application_id is None:
        application_id = "application"
    app = application(entrypoint, file, settings=config or (), options={"application.id": application_id})
    topology = app.topology()
    if form is Format.TEXT:
        text = str(topology.describe())
    else:
        from millrace.topology.diagram import graphs_of, mermaid, svg

        draw = mermaid if form is Format.MERMAID else svg
        text = draw(graphs_of(topology.build(app.config)))
    show(text, output)
