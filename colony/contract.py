"""A contract at run time: whether a cell gets what it needs, and emits what it promised.

Keys a contract does not name are nobody's business (meclaw, contract).
"""

import uuid
from collections.abc import Mapping

from pydantic import JsonValue

from colony.envelope import Emission, Envelope
from colony.topology.model import Contract, FieldSpec, FieldType


def unmet_needs(envelope: Envelope, contract: Contract) -> list[str]:
    """What `envelope` lacks of the keys the contract requires; optional ones are not looked at."""
    needs = contract.consumes
    return [
        *_problems("hop", envelope.hop, _required(needs.hop)),
        *_problems("context", envelope.context, _required(needs.context)),
        *_problems("body", envelope.body.to_json() if needs.body else {}, _required(needs.body)),
    ]


def broken_promises(emission: Emission, contract: Contract) -> list[str]:
    """What `emission` breaks of the contract; an optional key that is there must be right too.

    An emission that reports a failure promises nothing: it must get out whatever the contract says.
    """
    if "error_code" in emission.hop:
        return []
    promised = contract.emits
    body = emission.body.to_json() if promised.body else {}
    return [
        *_problems("hop", emission.hop, promised.hop),
        *_problems("body", body, promised.body),
    ]


def _required(specs: Mapping[str, FieldSpec]) -> dict[str, FieldSpec]:
    return {name: spec for name, spec in specs.items() if spec.required}


def _problems(
    group: str, values: Mapping[str, JsonValue], specs: Mapping[str, FieldSpec]
) -> list[str]:
    found: list[str] = []
    for name, spec in specs.items():
        if name not in values:
            if spec.required:
                found.append(f"{group}.{name} is missing")
        elif not _is(spec.type, values[name]):
            found.append(f"{group}.{name} is not of type {spec.type}")
        elif spec.values is not None and values[name] not in spec.values:
            found.append(f"{group}.{name} is {values[name]!r}, which is not among its values")
    return found


def _is(kind: FieldType, value: JsonValue) -> bool:
    match kind:
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "number":
            return isinstance(value, (int, float)) and not isinstance(value, bool)
        case "int":
            return isinstance(value, int) and not isinstance(value, bool)
        case "object":
            return isinstance(value, dict)
        case "array":
            return isinstance(value, (list, tuple))
        case "blob_uuid":
            return isinstance(value, str) and _is_uuid(value)


def _is_uuid(text: str) -> bool:
    try:
        return bool(uuid.UUID(text))
    except ValueError:
        return False
