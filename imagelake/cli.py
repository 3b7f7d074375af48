"""From mixed image-text sources to a verified corpus for text-to-image pre-training.

`imagelake run` runs every stage; each stage is a command of its own too. Exit codes: 0 done, 1 failure, 2 a mistake in the configuration,
the sources or the command, 3 a broken quality rule, 75 failed for now, 99 nothing to do.
"""

from __future__ import annotations

import typer

from imagelake.commands import ask, corpora, stages
from imagelake.commands.maintain import maintain
from imagelake.commands.plan import plan
from imagelake.commands.run import run

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=__doc__, pretty_exceptions_enable=False)
app.command()(run)
stages.add_to(app)
for command in (plan, maintain, ask.sql, corpora.lineage, corpora.diff, corpora.loader_config, ask.report, ask.doctor, ask.version):
    app.command()(command)


def main() -> None:
    app()


if __name__ == "__main__":
    main()
