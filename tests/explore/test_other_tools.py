"""Tools that know nothing of qstore read its files: `%sql` of jupysql, datasette."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from qstore import LocalQueueRepository, checkpoint, open_engine

SQL = """
import sys
from IPython.core.interactiveshell import InteractiveShell
import qstore
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "sql")
shell.run_line_magic("config", "SqlMagic.displaycon = False")
shell.user_ns["engine"] = qstore.open_view(sys.argv[1]).engine
shell.run_line_magic("sql", "engine")
result = shell.run_line_magic("sql", "SELECT id, payload, state FROM qstore_queue_view ORDER BY id")
print(result.DataFrame()[["payload", "state"]].values.tolist())
"""


def test_the_sql_magic_reads_the_engine_of_a_view_and_pins_nothing(tmp_path: Path) -> None:
    with LocalQueueRepository.open(tmp_path) as queue:
        queue.send_many(["a", "b"])
        done = subprocess.run(
            [sys.executable, "-c", SQL, str(tmp_path / "localqueue.sqlite")],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert "[['a', 'ready'], ['b', 'ready']]" in done.stdout.splitlines(), done
        engine = open_engine(tmp_path / "localqueue.sqlite")
        assert not checkpoint(engine).busy
        engine.dispose()


def test_datasette_serves_a_store_that_is_in_use(tmp_path: Path) -> None:
    with LocalQueueRepository.open(tmp_path) as queue:
        queue.send_many(["a", "b"])
        done = subprocess.run(
            [
                *(sys.executable, "-m", "datasette", str(tmp_path / "localqueue.sqlite")),
                *("--get", "/localqueue/messages.json?_shape=array"),
            ],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert [row["payload_data"] for row in json.loads(done.stdout)] == ["a", "b"], done
