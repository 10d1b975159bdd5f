"""The `qstore` command; `python -m qstore` is the same program."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line, or say what it takes to have one."""
    try:
        from qstore.cli import run  # noqa: PLC0415  the command's libraries are an extra
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(f"qstore: the command line needs {error.name}, which is not installed: pip install 'qstore[cli]'")
    run()


if __name__ == "__main__":
    main()
