"""Reading a YAML file into frozen structs, with the file, line and key of whatever is wrong.

Three differences from plain PyYAML, each because the plain way misleads people:
`on`, `off`, `yes` and `no` are words, not booleans; a key given twice is an error;
`${VAR}` and `${VAR:-default}` are filled in after parsing, so that a value can never add keys.
"""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin

import msgspec
import yaml

from engine.protocol.errors import ConfigError

T = TypeVar("T")
Key = tuple[str, ...]

SHOWN_CHARS = 100
"""Of a wrong value."""

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class Document:
    """The plain data of one file, and the line on which each key stands.

    filled: keys whose value came from the environment, so is a string whatever is meant
    """

    def __init__(
        self, name: str, data: Any, lines: dict[Key, int], filled: frozenset[Key] = frozenset()
    ) -> None:
        self.name = name
        self.data = data
        self.filled = filled
        self._lines = lines

    def fail(self, key: Key, message: str) -> NoReturn:
        """Raise `ConfigError` as `file:line:key: message`."""
        line = next((self._lines[k] for k in _upwards(key) if k in self._lines), 1)
        raise ConfigError(f"{self.name}:{line}:{'.'.join(key) or '(top)'}: {message}")


def read(path: Path, environ: Mapping[str, str]) -> Document:
    """Parse `path`. Raises `ConfigError` when it is missing, unreadable or not YAML."""
    try:
        text = path.read_text("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file. Create it, or leave out --config.") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path}: cannot be read: {reason}.") from error
    return parse(text, path.name, environ)


def parse(text: str, name: str, environ: Mapping[str, str]) -> Document:
    """Like `read`, of a text. `name` is what messages call the file."""
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        builder = _Builder(loader, name, environ)
        data = {} if root is None else builder.build(root, ())
        return Document(name, data, builder.lines, frozenset(builder.filled))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise ConfigError(f"{name}:{line}:(syntax): {error.problem}.") from error
    except yaml.YAMLError as error:
        reason = str(error).replace("\n", " ")
        raise ConfigError(f"{name}:1:(syntax): {reason}.") from error


def decode(document: Document, kind: type[T]) -> T:
    """The document as a `kind`: unknown keys, wrong types and values out of range are errors."""
    return typing.cast("T", _decode(document, document.data, kind, ()))


class _Loader(yaml.SafeLoader):
    """YAML 1.2's idea of a boolean: `true` and `false`, nothing else."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag != "tag:yaml.org,2002:bool"]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|false)$", re.IGNORECASE), list("tTfF")
)


class _Builder:
    """Turns YAML nodes into plain data and remembers the lines."""

    def __init__(self, loader: _Loader, name: str, environ: Mapping[str, str]) -> None:
        self.lines: dict[Key, int] = {}
        self.filled: set[Key] = set()
        self._loader = loader
        self._name = name
        self._environ = environ

    def build(self, node: yaml.Node, key: Key) -> Any:
        self.lines.setdefault(key, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, key)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*key, str(i))) for i, item in enumerate(node.value)]
        return self._scalar(node, key)

    def _mapping(self, node: yaml.MappingNode, key: Key) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            name = str(key_node.value)
            inner = (*key, name)
            if name in found:
                Document(self._name, None, {inner: key_node.start_mark.line + 1}).fail(
                    inner, f"given twice, first on line {self.lines[inner]}. Remove one."
                )
            self.lines[inner] = key_node.start_mark.line + 1
            found[name] = self.build(value_node, inner)
        return found

    def _scalar(self, node: yaml.Node, key: Key) -> Any:
        text = _VARIABLE.sub(lambda match: self._variable(match, key), node.value)
        if text == node.value:
            return self._loader.construct_object(node, deep=True)
        self.filled.add(key)
        return text

    def _variable(self, match: re.Match[str], key: Key) -> str:
        name, default = match.groups()
        value = self._environ.get(name) or default
        if value is None:
            Document(self._name, None, self.lines).fail(
                key,
                f"the environment variable {name} is not set. Set it, or write "
                f"${{{name}:-default}}.",
            )
        return value


def _decode(document: Document, data: Any, kind: Any, key: Key) -> Any:
    if _is_struct(kind):
        return _decode_struct(document, data, kind, key)
    if get_origin(kind) is dict:
        if not isinstance(data, dict):
            document.fail(key, f"must be a mapping of names, not {_shown(data)}.")
        inner = get_args(kind)[1]
        return {n: _decode(document, value, inner, (*key, n)) for n, value in data.items()}
    if get_origin(kind) is tuple and isinstance(data, list) and _is_struct(get_args(kind)[0]):
        item = get_args(kind)[0]
        return tuple(_decode(document, v, item, (*key, str(i))) for i, v in enumerate(data))
    if get_origin(kind) is Literal and data not in get_args(kind):
        document.fail(key, f"must be one of {', '.join(get_args(kind))}, not {_shown(data)}.")
    optional = [k for k in get_args(kind) if k is not type(None)]
    if len(optional) == 1 and type(None) in get_args(kind):
        return None if data is None else _decode(document, data, optional[0], key)
    try:
        return msgspec.convert(data, kind, strict=key not in document.filled, dec_hook=_construct)
    except msgspec.ValidationError as error:
        document.fail(key, f"{_plain(str(error))}, not {_shown(data)}.")


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _decode_struct(
    document: Document, data: Any, kind: type[msgspec.Struct], key: Key
) -> msgspec.Struct:
    if not isinstance(data, dict):
        document.fail(key, f"must be a mapping of settings, not {_shown(data)}.")
    hints = typing.get_type_hints(kind, include_extras=True)
    known = {field.name: hints[field.name] for field in msgspec.structs.fields(kind)}
    for name in data:
        if name not in known:
            document.fail((*key, name), _unknown(name, known))
    for field in msgspec.structs.fields(kind):
        if field.required and field.name not in data:
            document.fail(key, f"{field.name} is missing.")
    values = {n: _decode(document, value, known[n], (*key, n)) for n, value in data.items()}
    return kind(**values)


def _construct(kind: type[Any], data: Any) -> Any:
    """Types of our own are made from a string: paths and secrets."""
    if not isinstance(data, str):
        raise msgspec.ValidationError("Expected `str`")
    return kind(data)


def suggestion(name: str, known: typing.Iterable[str]) -> str:
    """ " Did you mean x?" for the nearest of `known`, or the whole list of them."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean {near[0]}?" if near else f" Known are: {', '.join(known)}."


def _unknown(name: str, known: Mapping[str, Any]) -> str:
    return f"unknown key.{suggestion(name, known)}"


def _upwards(key: Key) -> typing.Iterator[Key]:
    return (key[:length] for length in range(len(key), -1, -1))


def _plain(message: str) -> str:
    """msgspec's words without its JSON path and backquotes."""
    text = message.split(" - at `")[0].split(", got `")[0].replace("`", "")
    for word, plain in _PLAIN_WORDS.items():
        text = re.sub(rf"\b{word}\b", plain, text)
    return "must be" + text.removeprefix("Expected") if text.startswith("Expected") else text


_PLAIN_WORDS = {"int": "a whole number", "float": "a number", "str": "text", "array": "a list"}


def _shown(data: Any) -> str:
    if data is None:
        return "nothing"
    if isinstance(data, dict | list):
        return "a mapping" if isinstance(data, dict) else "a list"
    text = str(data).lower() if isinstance(data, bool) else repr(data)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"
