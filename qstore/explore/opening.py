"""Open a view on whatever the caller has."""

from __future__ import annotations

from sqlalchemy import Connection, Engine
from sqlalchemy.orm import Session, scoped_session

from qstore.awaited import is_async
from qstore.clock import Clock
from qstore.engines import Bind, Target, viewing
from qstore.errors import FormatError, InvalidType
from qstore.explore.pages import temporary_views
from qstore.explore.view import View
from qstore.formats import FORMATS
from qstore.naming import Naming
from qstore.places import places_in, shown, urls_at

__all__ = ["open_view"]


def open_view(
    target: Target | Bind, *, naming: Naming | None = None, clock: Clock | None = None, immutable: bool = False
) -> View:
    """Look at the stores of a place without ever writing to it, beside any number of writers.

    `target`: a file, a data directory, a URL; or an Engine, Connection or Session of a host's (it reads in the
    caller's transaction). `naming`: that of a mount (`stores.naming`); without, it is found by the names of tables.
    `immutable`: for a file that nobody writes to, in a directory where no file can be made. FormatError if there is no
    store. It needs no event loop, and works within one.
    """
    if is_async(target):
        raise InvalidType(
            "target",
            f"expected a path, a URL or a bind that is not async, found {type(target).__qualname__}: a view is read"
            " without await, also in a running event loop; pass the path or URL, or the engine's sync twin",
        )
    if naming is not None and not isinstance(naming, Naming):
        raise InvalidType.of("naming", naming, "a Naming")
    if isinstance(target, (Engine, Connection, Session, scoped_session)):
        return View(places_in(target, naming), clock=clock)
    return _opened(target, naming, clock, immutable=immutable)


def _opened(target: Target, naming: Naming | None, clock: Clock | None, *, immutable: bool) -> View:
    urls = urls_at(target)
    if not urls:
        raise FormatError(
            "there is nothing to look at",
            found="no file",
            supported=", ".join(f"{store}.sqlite" for store in FORMATS),
            target=shown(target),
        )
    engines = tuple(viewing.create(url, immutable=immutable) for url in urls)
    try:
        places = [place for engine in engines for place in places_in(engine, naming)]
    except BaseException:
        for engine in engines:
            engine.dispose()
        raise
    for place in places:
        viewing.define(place.engine, temporary_views(place.store, place.naming.of(place.store)))
    return View(places, clock=clock, owned=engines)
