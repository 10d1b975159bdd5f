"""Host mode by operation by ending: the host's rows and the stores' share one transaction. H12."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.host_modes import (
    BINDS,
    MODES,
    OPERATIONS,
    TRANSACTIONAL,
    HostDatabase,
    Template,
    host_database,
    make_template,
)

each_operation = pytest.mark.parametrize("operation", OPERATIONS)
each_bind = pytest.mark.parametrize("bind", BINDS)
each_mode = pytest.mark.parametrize("mode", MODES)
each_transactional_mode = pytest.mark.parametrize("mode", TRANSACTIONAL)

Around = Callable[[HostDatabase, Callable[[], object]], None]
"""What the host does around the operation: a row of its own before or after, or nothing but a read."""


def _before(host: HostDatabase, act: Callable[[], object]) -> None:
    host.order()
    act()


def _after(host: HostDatabase, act: Callable[[], object]) -> None:
    act()
    host.order()


def _read_only(host: HostDatabase, act: Callable[[], object]) -> None:
    host.look()
    act()


AROUND: dict[str, Around] = {"row before": _before, "row after": _after, "only read": _read_only}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    return make_template(tmp_path_factory.mktemp("template"))


def _commit(host: HostDatabase, operation: str, around: Around) -> None:
    around(host, lambda: OPERATIONS[operation](host))
    host.bind.commit()


def _rollback(host: HostDatabase, operation: str, around: Around) -> None:
    around(host, lambda: OPERATIONS[operation](host))
    host.bind.rollback()


def _savepoint_rollback(host: HostDatabase, operation: str, around: Around) -> None:
    def act() -> None:
        savepoint = host.bind.begin_nested()
        OPERATIONS[operation](host)
        savepoint.rollback()

    around(host, act)
    host.bind.commit()


def _savepoint_then_rollback(host: HostDatabase, operation: str, around: Around) -> None:
    def act() -> None:
        with host.bind.begin_nested():
            OPERATIONS[operation](host)

    around(host, act)
    host.bind.rollback()


def _savepoints_in_each_other(host: HostDatabase, operation: str, around: Around) -> None:
    def act() -> None:
        outer = host.bind.begin_nested()
        with host.bind.begin_nested():
            OPERATIONS[operation](host)
        outer.rollback()

    around(host, act)
    host.bind.commit()


Outcome = tuple[bool, bool]
"""Whether the operation, and whether the host's row, was kept."""

ENDINGS: dict[str, tuple[Callable[[HostDatabase, str, Around], None], Outcome, Outcome]] = {
    # The outcome in a transaction, and where each statement commits (where a savepoint is the only transaction).
    "commit": (_commit, (True, True), (True, True)),
    "rollback": (_rollback, (False, False), (True, True)),
    "savepoint rollback": (_savepoint_rollback, (False, True), (False, True)),
    "savepoint, then rollback": (_savepoint_then_rollback, (False, False), (True, True)),
    "savepoint in a savepoint that rolls back": (_savepoints_in_each_other, (False, True), (False, True)),
}


@each_mode
@each_bind
@each_operation
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_operation_and_the_hosts_row_are_kept_or_undone_as_the_host_ends(
    mode: str, bind: str, operation: str, ending: str, template: Template, tmp_path: Path
) -> None:
    end, in_transaction, at_once = ENDINGS[ending]
    operation_kept, row_kept = at_once if MODES[mode].commits_at_once else in_transaction
    found: dict[str, tuple[bool, list[str]]] = {}
    for name, around in AROUND.items():
        with host_database(tmp_path, mode, bind, template) as host:
            before = host.stored()
            end(host, operation, around)
            found[name] = (host.stored() != before, host.orders())
    rows = ["order"] if row_kept else []
    assert found == {
        "row before": (operation_kept, rows),
        "row after": (operation_kept, rows),
        "only read": (operation_kept, []),
    }


@each_mode
@each_bind
@each_operation
def test_the_transaction_goes_on_after_a_savepoint_was_rolled_back(
    mode: str, bind: str, operation: str, template: Template, tmp_path: Path
) -> None:
    """The operation is undone, done again, and kept."""
    with host_database(tmp_path, mode, bind, template) as host:
        before = host.stored()
        savepoint = host.bind.begin_nested()
        OPERATIONS[operation](host)
        savepoint.rollback()
        OPERATIONS[operation](host)
        host.order()
        host.bind.commit()
        assert host.orders() == ["order"]
        assert host.stored() != before


@each_bind
@each_operation
def test_where_each_statement_commits_the_operation_is_committed_when_it_returns(
    bind: str, operation: str, template: Template, tmp_path: Path
) -> None:
    with host_database(tmp_path, "AUTOCOMMIT", bind, template) as host:
        before = host.stored()
        OPERATIONS[operation](host)
        assert host.stored() != before
        host.sql("INSERT INTO orders VALUES ('the lock is free')")


@each_transactional_mode
@each_bind
@each_operation
def test_before_the_host_commits_nobody_else_sees_the_operation(
    mode: str, bind: str, operation: str, template: Template, tmp_path: Path
) -> None:
    with host_database(tmp_path, mode, bind, template) as host:
        before = host.stored()
        OPERATIONS[operation](host)
        assert host.stored() == before
        host.bind.rollback()
