"""A checker for the part of OpenAPI that describes OpenAI's answers."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "boolean": (bool,),
    "null": (type(None),),
    "integer": (int,), "number": (int, float),
}  # fmt: skip


class OpenApi:
    """Schemas by name. `faults` lists what is wrong with a value; nothing means it conforms."""

    def __init__(self, path: Path) -> None:
        """path: of JSON, or of packed YAML."""
        if path.suffix == ".gz":
            whole = yaml.load(gzip.decompress(path.read_bytes()), yaml.CSafeLoader)
        else:
            whole = json.loads(path.read_bytes())
        self._schemas: dict[str, Any] = whole["components"]["schemas"]

    def faults(self, name: str, value: Any) -> list[str]:
        return list(self._check({"$ref": f"#/components/schemas/{name}"}, value, name))

    def _check(self, schema: dict[str, Any], value: Any, path: str) -> Iterator[str]:
        if "$ref" in schema:
            target = self._schemas[schema["$ref"].rsplit("/", 1)[1]]
            if not (value is None and schema.get("nullable")):
                yield from self._check(target, value, path)
            return
        if value is None and schema.get("nullable"):
            return
        for key in ("anyOf", "oneOf"):
            if key in schema and all(list(self._check(s, value, path)) for s in schema[key]):
                yield f"{path}: none of {key} fits {value!r}"
        for part in schema.get("allOf", ()):
            yield from self._check(part, value, path)
        yield from self._check_type(schema, value, path)

    def _check_type(self, schema: dict[str, Any], value: Any, path: str) -> Iterator[str]:
        kind = schema.get("type")
        if kind is not None:
            wrong_bool = isinstance(value, bool) and kind != "boolean"
            if wrong_bool or not isinstance(value, _TYPES[kind]):
                yield f"{path}: {value!r} is no {kind}"
                return
        if "enum" in schema and value not in schema["enum"]:
            yield f"{path}: {value!r} is not in {schema['enum']}"
        if isinstance(value, list):
            for index, item in enumerate(value):
                yield from self._check(schema.get("items", {}), item, f"{path}[{index}]")
        if isinstance(value, dict):
            yield from self._check_object(schema, value, path)

    def _check_object(
        self, schema: dict[str, Any], value: dict[str, Any], path: str
    ) -> Iterator[str]:
        for name in schema.get("required", ()):
            if name not in value:
                yield f"{path}.{name} is missing"
        properties = schema.get("properties", {})
        more = schema.get("additionalProperties")
        for name, item in value.items():
            if name in properties:
                yield from self._check(properties[name], item, f"{path}.{name}")
            elif isinstance(more, dict):
                yield from self._check(more, item, f"{path}.{name}")
