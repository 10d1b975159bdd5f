"""A copy that stops after so many rows and waits there to be killed: `python -m tests.integration.copied_slowly`.

Arguments: source, target, the table, and the number of its rows that are done by then.
"""

from __future__ import annotations

import sys
import time

from qstore.copying import copy


def main(source: str, target: str, table: str, rows: str) -> None:
    """Copy, and stop."""

    def stop(at: str, done: int, _total: int) -> None:
        if at.endswith(table) and done >= int(rows):
            print("ready", flush=True)
            time.sleep(60)

    copy(source, target, progress=stop)
    print("finished", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
