"""OpenAPI: the document of this interface, made of its endpoints."""

import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from colony.api.endpoints import Answer, Endpoint

_REF: Final = "#/components/schemas/{model}"
_PROBLEM: Final = {
    "type": "object",
    "description": "What is wrong (RFC 9457); `code` is stable.",
    "required": ["type", "title", "status", "code", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string"},
        "detail": {"type": "string"},
    },
}


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """The OpenAPI 3.1 document of these endpoints."""
    models = {model for endpoint in endpoints for model in _models(endpoint)}
    ordered = sorted(models, key=lambda model: model.__name__)
    _, schemas = models_json_schema([(model, "validation") for model in ordered], ref_template=_REF)
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        path = re.sub(r":path\}", "}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {"title": "colony", "version": version("colony-broker")},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": {**schemas.get("$defs", {}), "Problem": _PROBLEM},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _models(endpoint: Endpoint) -> list[type[BaseModel]]:
    answered = [answer.model for found in endpoint.answers.values() for answer in found]
    return [model for model in (endpoint.body, *answered) if model is not None]


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    told: dict[str, Any] = {
        "operationId": endpoint.operation_id,
        "summary": endpoint.summary,
        "parameters": [*_in_path(endpoint), *_in_query(endpoint), *_in_headers(endpoint)],
        "responses": {
            **{str(status): _response(found) for status, found in endpoint.answers.items()},
            "default": {
                "description": "What is wrong.",
                "content": {"application/problem+json": {"schema": _ref("Problem")}},
            },
        },
    }
    if endpoint.body is not None:
        content = {"application/json": {"schema": _ref(endpoint.body.__name__)}}
        told["requestBody"] = {"content": content}
    return told


def _in_path(endpoint: Endpoint) -> list[dict[str, Any]]:
    names = re.findall(r"\{(\w+)(?::path)?\}", endpoint.path)
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in names
    ]


def _in_query(endpoint: Endpoint) -> list[dict[str, Any]]:
    schema = endpoint.query.model_json_schema()
    required = schema.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": found}
        for name, found in schema.get("properties", {}).items()
    ]


def _in_headers(endpoint: Endpoint) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "header", "required": False, "schema": {"type": "string"}}
        for name in endpoint.headers
    ]


def _response(answers: tuple[Answer, ...]) -> dict[str, Any]:
    content = {
        answer.media_type: {"schema": _ref(answer.model.__name__) if answer.model else {}}
        for answer in answers
    }
    return {"description": "Done.", **({"content": content} if content else {})}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
