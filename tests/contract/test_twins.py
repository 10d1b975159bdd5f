"""The async twins are the sync repositories, awaited: the same methods with the same arguments, and no others."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, get_overloads

import pytest

import qstore
from qstore import migrate
from tests.backends import TWINS

ENTERED = {"__enter__": "__aenter__", "__exit__": "__aexit__"}
AT_ONCE = {"__init__", "open", "iter_prefix"}
"""What a twin has that is not awaited itself: what `open` and `iter_prefix` return is."""

each_pair = pytest.mark.parametrize(("sync", "twin"), TWINS.items(), ids=[kind.__name__ for kind in TWINS])


def _public(kind: type) -> list[str]:
    """The names of a class and of its bases that are callers' to use, in order."""
    return [
        name
        for each in inspect.getmro(kind)
        if each.__module__.startswith("qstore.")
        for name in vars(each)
        if not name.startswith("_") or name in {"__init__", "__repr__", *ENTERED, *ENTERED.values()}
    ]


def _said(function: Callable[..., Any], *otherwise: tuple[str, str]) -> list[tuple[Any, ...]]:
    """The arguments (name, kind, default, annotation) and what is returned, with some of the types exchanged."""
    signature = inspect.signature(function)
    said: list[tuple[Any, ...]] = [
        (each.name, each.kind, each.default, str(each.annotation)) for each in signature.parameters.values()
    ]
    said.append(("return", str(signature.return_annotation)))
    for expression, other in otherwise:
        said = [(*rest, re.sub(expression, other, annotation)) for *rest, annotation in said]
    return said


@each_pair
def test_a_twin_has_the_same_methods_in_the_same_order_and_no_more(sync: type, twin: type) -> None:
    assert [ENTERED.get(name, name) for name in _public(sync)] == _public(twin)
    assert twin.__name__ == f"Async{sync.__name__}"
    assert twin.__name__ in qstore.__all__


@each_pair
def test_a_twin_takes_the_same_arguments_and_returns_the_same(sync: type, twin: type) -> None:
    for name in set(_public(sync)):
        otherwise = [(r"\bBind\b", "AsyncBind"), (r"\bIterator\b", "AsyncIterator")]
        if name == "open":
            otherwise.append((r"^Self$", "Opening[Self]"))
        assert _said(getattr(sync, name), *otherwise) == _said(getattr(twin, ENTERED.get(name, name))), name


@each_pair
def test_a_twins_methods_are_awaited_and_what_is_opened_or_walked_as_well(sync: type, twin: type) -> None:
    for name in set(_public(twin)) - {"__repr__"}:
        assert inspect.iscoroutinefunction(getattr(twin, name)) is (name not in AT_ONCE), name
    for name in set(_public(sync)):
        assert isinstance(inspect.getattr_static(sync, name), classmethod) is (name == "open"), name
        twins = inspect.getattr_static(twin, ENTERED.get(name, name))
        assert isinstance(twins, classmethod) is (name == "open"), name


@each_pair
def test_a_pair_of_methods_says_what_it_does_and_the_twins_where_that_is_written(sync: type, twin: type) -> None:
    assert f"`{sync.__name__}`" in (inspect.getdoc(twin) or "")
    for name in set(_public(sync)) - {"__repr__", *ENTERED}:
        assert vars(sync).get(name, getattr(sync, name)).__doc__, name
        said = vars(twin).get(name, getattr(twin, name)).__doc__
        assert said, name
        assert f"`{sync.__name__}.{name}`" in said or name in {"__init__", "close"}, name


def _of_migrate(name: str) -> Any:
    return getattr(migrate, name)


BOUND = [
    name
    for name in migrate.__all__
    if inspect.isfunction(_of_migrate(name)) and "bind" in inspect.signature(_of_migrate(name)).parameters
]


def test_each_migration_that_takes_a_bind_has_an_awaited_one_and_no_other_has() -> None:
    sync = [name for name in migrate.__all__ if f"{name}_async" in migrate.__all__]
    assert sorted(BOUND) == sorted([*sync, *(f"{name}_async" for name in sync)])
    assert sync == ["check", "current", "downgrade", "repair", "stamp", "upgrade"]


@pytest.mark.parametrize("name", [name for name in BOUND if not name.endswith("_async")])
def test_an_awaited_migration_takes_the_same_arguments_and_returns_the_same(name: str) -> None:
    sync, twin = _of_migrate(name), _of_migrate(f"{name}_async")
    assert _said(sync, (r"\bBind\b", "AsyncBind | Engine")) == _said(twin)
    assert inspect.iscoroutinefunction(twin)
    assert sync.__doc__
    assert f"`{name}`" in twin.__doc__


@pytest.mark.parametrize(
    ("sync", "twin"),
    [(qstore.open_engine, qstore.open_async_engine), (qstore.write_session, qstore.async_write_session)],
    ids=["open_engine", "write_session"],
)
def test_an_engine_or_session_of_a_twin_takes_the_same_arguments(
    sync: Callable[..., Any], twin: Callable[..., Any]
) -> None:
    otherwise = [(r"\b(Engine|Session|Iterator)\b", r"Async\1"), (r"\bsessionmaker\b", "async_sessionmaker")]
    assert _said(sync, *otherwise) == _said(twin)
    assert sync.__doc__
    assert f"`{sync.__name__}`" in (twin.__doc__ or "")
    assert twin.__name__ in qstore.__all__


def test_a_mount_binds_both_twins_with_the_same_arguments() -> None:
    """By the overloads that a type checker sees: first those for a sync bind, then the same for an async one."""
    for name in ("transport", "localkv", "localqueue"):
        overloads = get_overloads(getattr(qstore.MountedStores, name))
        half = len(overloads) // 2
        assert half
        for sync, twin in zip(overloads[:half], overloads[half:], strict=True):
            otherwise = [(r"\bBind\b", "AsyncBind"), (r"^(\w+Repository)", r"Async\1")]
            assert _said(sync, *otherwise) == _said(twin)
