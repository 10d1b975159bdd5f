"""The command line: `qstore`, or `python -m qstore`.

Exit codes: 0 done; 1 done, and the answer is no (nothing there, something wrong with a store); 2 refused or failed,
with the reason in a line on stderr.
"""

import sys

import typer

from qstore.cli import demonstrating, keys, looking, messages, migrating, moving
from qstore.engines import ERRORS, in_one_line
from qstore.errors import QstoreError

__all__ = ["app", "run"]

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback()
def commands() -> None:
    """Durable queues and a key-value store on SQLAlchemy: look at them, use them, move them.

    PLACE is a file, a data directory (transport.sqlite, localkv.sqlite, localqueue.sqlite) or a URL
    (postgresql+psycopg://…). In an application's own database the stores are found under their prefix.

    Exit codes: 0 done; 1 the answer is no, or something is wrong with a store; 2 refused or failed.
    """


for each in (looking, messages, keys, moving, migrating, demonstrating):
    each.add_to(app)


def run() -> None:
    """Run the program, and end it with what went wrong in one line."""
    try:
        app()
    except (QstoreError, OSError, *ERRORS) as error:
        words = sys.argv[1:3] if sys.argv[1] in GROUPS else sys.argv[1:2]
        said = str(error) if isinstance(error, QstoreError) else in_one_line(error)
        typer.echo(f"qstore {' '.join(words)}: {' '.join(said.split())}", err=True)
        sys.exit(2)


GROUPS = ("kv", "migrate")
"""Commands with commands of their own."""
