"""A commit that cannot be had: without a write-ahead log one reader is enough to refuse it."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from qstore import Event, StoreBusy, write_session
from tests import write_lock
from tests.integration.host_modes import BINDS, MODES, OPERATIONS, STORES, Template, host_database, make_template
from tests.integration.situations import reader_open

HOSTS_OWN = [name for name in MODES if name != "open_engine"]  # that one has a log, always
each_mode = pytest.mark.parametrize("mode", HOSTS_OWN)
each_operation = pytest.mark.parametrize("operation", OPERATIONS)
PATIENCE = 50


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return make_template(tmp_path_factory.mktemp("template"))


@each_mode
@each_operation
def test_a_repository_on_an_engine_leaves_nothing_in_the_pool_to_be_committed_later(
    mode: str, operation: str, template: Template, tmp_path: Path
) -> None:
    """Otherwise the call that is repeated, or whatever comes next on that connection, would commit both."""
    with host_database(tmp_path, mode, "Connection", template, patience=PATIENCE) as host:
        host.bind.close()
        host.bind = host.engine
        before = host.stored()
        with reader_open(host.path), pytest.raises(StoreBusy):
            OPERATIONS[operation](host)
        assert write_lock.is_free(host.path)
        with host.engine.begin() as connection:
            connection.exec_driver_sql("INSERT INTO orders VALUES ('order')")
        assert host.stored() == before
        OPERATIONS[operation](host)
        assert host.stored() != before


@each_mode
def test_a_write_session_leaves_nothing_in_the_pool_either(mode: str, template: Template, tmp_path: Path) -> None:
    with host_database(tmp_path, mode, "Connection", template, patience=PATIENCE) as host:
        host.bind.close()
        before = host.stored()

        def work() -> None:
            with write_session(host.engine) as session:
                STORES.transport(session).publish("new", Event(kind="new"))

        with reader_open(host.path), pytest.raises((StoreBusy, OperationalError)):
            work()
        assert write_lock.is_free(host.path)
        work()
        assert len(host.stored()["qstore_transport_messages"]) == len(before["qstore_transport_messages"]) + 1


@each_mode
@pytest.mark.parametrize("bind", BINDS)
def test_the_hosts_own_commit_can_be_repeated(mode: str, bind: str, template: Template, tmp_path: Path) -> None:
    """The commit is the host's, and so is its error; qstore's part is in the transaction like the host's rows."""
    if MODES[mode].commits_at_once:
        pytest.skip("the commit is the operation's own there")
    with host_database(tmp_path, mode, bind, template, patience=PATIENCE) as host:
        before = host.stored()
        driver = (host.bind if bind == "Connection" else host.bind.connection()).connection.driver_connection
        host.order()
        OPERATIONS["publish"](host)
        with reader_open(host.path), pytest.raises(OperationalError):
            host.bind.commit()
        assert driver.in_transaction
        driver.rollback()
        assert (host.orders(), host.stored()) == ([], before)
