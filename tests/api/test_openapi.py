"""The document of the interface: whole, valid, and true."""

from typing import Any

import httpx
import jsonschema
from openapi_spec_validator import OpenAPIV31SpecValidator

from colony.api.app import ENDPOINTS


async def test_the_document_is_one_of_openapi(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()

    OpenAPIV31SpecValidator(document).validate()


async def test_every_endpoint_has_a_name_of_its_own_and_says_what_it_does(
    http: httpx.AsyncClient,
) -> None:
    document = (await http.get("/openapi.json")).json()

    told = [found for path in document["paths"].values() for found in path.values()]
    assert len(told) == len(ENDPOINTS)
    assert len({found["operationId"] for found in told}) == len(told)
    assert all(found["summary"].endswith(".") for found in told)


async def test_what_is_answered_is_what_the_document_says(http: httpx.AsyncClient) -> None:
    document: dict[str, Any] = (await http.get("/openapi.json")).json()

    for path in ("/v1/info", "/v1/sessions"):
        answer = document["paths"][path]["get"]["responses"]["200"]
        schema = answer["content"]["application/json"]["schema"]
        jsonschema.validate(
            (await http.get(path)).json(), {**schema, "components": document["components"]}
        )
