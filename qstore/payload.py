"""JSON in and out: what stores hold as text, and how it is read back when the caller asks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Never, TypeVar

from pydantic import BaseModel, JsonValue, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, from_json

from qstore.errors import InvalidInput, InvalidType, UndecodablePayload, shown

__all__ = ["as_text", "decode", "decode_json", "dump", "dump_json", "dump_model"]

T = TypeVar("T")


def dump_json(field: str, value: object) -> str:
    """Compact JSON of a plain value: UTF-8 kept, key order and numbers as they are, nothing coerced.

    InvalidInput for NaN and infinities, InvalidType for what JSON does not have (a key that is not text included).
    """
    try:
        _check_json(field, value)
        dumped = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except RecursionError as error:
        raise InvalidInput(field, "expected JSON, found a value nested too deeply, or within itself") from error
    except ValueError as error:  # Python does not write whole numbers of more than 4,300 digits
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(field, f"expected JSON that can be written: {error}") from error
    if _has_surrogate(dumped):
        raise InvalidInput(field, "expected text that UTF-8 can hold, found a lone surrogate")
    return dumped


def dump_model(field: str, model: BaseModel) -> str:
    """The JSON of a pydantic model, as the seed makes it (`model_dump_json()`), but never with a number lost."""
    return _dumped(field, model.model_dump_json, model.model_dump)


def dump(field: str, value: T, adapter: TypeAdapter[T]) -> str:
    """The JSON of a value of the adapter's type. InvalidType if it is of another."""
    if isinstance(value, BaseModel):
        return dump_model(field, value)  # not through the adapter, which drops what a subclass adds
    return _dumped(
        field,
        lambda: adapter.dump_json(value, warnings="error").decode(),
        lambda: adapter.dump_python(value, warnings="none"),
    )


def decode(id: int, raw: bytes, adapter: TypeAdapter[T]) -> T:
    """Decode a stored payload. UndecodablePayload, with the payload as stored, if it is not what the adapter takes."""
    try:
        # By either name: a model is stored under its fields' names, as the seed has it, even where they have aliases.
        return adapter.validate_json(raw, by_alias=True, by_name=True)
    except ValidationError as error:
        # Without what was found there: errors are logged, and payloads may be secret.
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        told = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}".removeprefix(": ") for each in problems)
        raise UndecodablePayload(
            f"message {id}: the stored payload does not decode: {told}", id=id, raw=_readable(raw)
        ) from error


def decode_json(id: int, raw: bytes) -> JsonValue:
    """Decode stored JSON of any kind. UndecodablePayload if it is none."""
    try:
        value: JsonValue = json.loads(as_text(id, raw), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise UndecodablePayload(
            f"message {id}: the stored payload does not decode: {error}", id=id, raw=_readable(raw)
        ) from error
    return value


def as_text(id: int, raw: bytes) -> str:
    """Decode stored text. UndecodablePayload if it is not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise UndecodablePayload(f"message {id}: the stored payload is not UTF-8: {error}", id=id, raw=raw) from error


def _readable(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _dumped(field: str, to_json: Callable[[], str], to_python: Callable[[], object]) -> str:
    try:
        dumped = to_json()
        from_json(dumped, allow_inf_nan=False)  # what is too deep or too long to be read back is not written
    except (PydanticSerializationError, UnicodeEncodeError) as error:
        if any(isinstance(leaf, str) and _has_surrogate(leaf) for leaf in _leaves(to_python())):
            raise InvalidInput(field, "expected text that UTF-8 can hold, found a lone surrogate") from error
        raise InvalidType(field, f"expected a value that its type serializes to JSON: {error}") from error
    except ValueError as error:
        raise InvalidInput(field, f"expected what can be read back as JSON: {error}") from error
    if "null" in dumped:  # pydantic writes a NaN as null: a number must not be lost without a word
        for leaf in _leaves(to_python()):
            if isinstance(leaf, float) and not math.isfinite(leaf):
                raise InvalidInput(field, f"expected finite numbers, which JSON has, found {leaf}")
    return dumped


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        for key, child in value.items():
            yield key
            yield from _leaves(child)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for child in value:
            yield from _leaves(child)
    else:
        yield value


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _check_json(field: str, value: object) -> None:
    if value is None or isinstance(value, (str, bool, int)):
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidInput(field, f"expected finite numbers, which JSON has, found {value}")
    elif isinstance(value, dict):
        for key, child in value.items():
            if not isinstance(key, str):
                raise InvalidType(field, f"expected str keys, found {shown(key)} ({type(key).__qualname__})")
            _check_json(field, child)
    elif isinstance(value, (list, tuple)):
        for child in value:
            _check_json(field, child)
    else:
        raise InvalidType.of(field, value, "a JSON value or a pydantic model")


def _refuse_constant(constant: str) -> Never:
    raise ValueError(f"{constant} is no JSON")
