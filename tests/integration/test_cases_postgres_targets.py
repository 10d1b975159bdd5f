"""What a server is named by: URLs, their passwords and drivers, and databases that cannot hold all text. H23, H34."""

from __future__ import annotations

import subprocess
import sys

import pytest
from sqlalchemy import URL, Engine, create_engine, event

from qstore import FormatError, InvalidInput, LocalKvRepository, Naming, QstoreError, TransportRepository, migrate
from tests import postgres
from tests.backends import MOUNTED


@pytest.mark.parametrize(
    "target",
    [
        "postgresql+psycopg:///nowhere?host=/nonexistent&user=u&password=SECRET",
        "postgresql+psycopg://u:SECRET@/nowhere?host=/nonexistent",
        "postgresql+psycopg2://u:SECRET@localhost/nowhere",
        "postgresql+psycopg://u:SECRET@localhost/nowhere?bogus=1",
        "postgresql://u:SECRET@localhost:x/nowhere",
        "postgresql://u:pa@ss:SECRET@localhost/nowhere",
        "mysql://u:SECRET@localhost/nowhere",
    ],
)
def test_no_error_shows_the_password(target: str) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011  whatever it is
        TransportRepository.open(target).close()
    error: BaseException | None = caught.value
    while error is not None:
        assert "SECRET" not in f"{error} {error!r} {vars(error)}"
        error = error.__cause__ or error.__context__


def test_a_url_that_does_not_parse_is_invalid_input() -> None:
    with pytest.raises(InvalidInput):
        TransportRepository.open("postgresql://u:p@localhost:x/nowhere").close()


def test_a_sync_repository_refuses_an_async_driver_by_name() -> None:
    """As open_engine does. In a process of its own: what is not awaited is a warning."""
    code = (
        "from qstore import BackendUnsupported, TransportRepository\n"
        "try: TransportRepository.open('postgresql+asyncpg:///nowhere?host=/nonexistent')\n"
        "except BackendUnsupported: print('refused')\n"
        "except Exception as error: print(repr(error))\n"
    )
    arguments = [sys.executable, "-W", "ignore", "-c", code]
    assert subprocess.run(arguments, capture_output=True, text=True, timeout=30, check=True).stdout == "refused\n"


def test_neither_a_repository_nor_its_errors_show_a_password_of_the_urls_parameters() -> None:
    url = postgres.database()
    secret = url.set(username=None, query={**url.query, "user": url.username or "postgres", "password": "SECRET"})
    engine = create_engine(secret)
    kv = LocalKvRepository(engine, naming=Naming("elsewhere_"))
    assert "SECRET" not in repr(kv)
    with pytest.raises(FormatError) as caught:
        kv.get("k")
    engine.dispose()
    assert "SECRET" not in str(caught.value)


def made_and_used(engine: Engine) -> None:
    migrate.upgrade(engine, naming=MOUNTED)
    TransportRepository(engine, naming=MOUNTED, event_type=str).publish("😀", "😀")


# SQLAlchemy 2.0 does not close the connection on which it fails to read the version.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_cannot_hold_all_text_is_refused_by_name(encoding: str) -> None:
    """Semantics 6: text is the same on every back end."""
    url = postgres.empty_database()
    with postgres.connect(postgres.server()) as connection:
        name = f"{url.database}_encoded"
        connection.execute(
            f"CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0".encode()
        )
    engine = create_engine(url.set(database=name))
    try:
        with pytest.raises(QstoreError, match="UTF"):
            made_and_used(engine)
    finally:
        engine.dispose()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # SQLAlchemy 2.0.36 leaves it open
def test_another_error_on_connecting_is_not_taken_for_one_of_the_encoding(url: URL) -> None:
    engine = create_engine(url)

    def wrong(*_: object) -> None:
        raise TypeError("the host's own")

    event.listen(engine, "connect", wrong)
    with pytest.raises(TypeError, match="the host's own"):
        LocalKvRepository(engine, naming=MOUNTED).get("k")
    engine.dispose()
