"""What is generated is what `agents.proto` says now, and every error has a status of its own."""

from importlib import resources
from pathlib import Path

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

from colony import errors
from colony.api.problems import _STATUS as HTTP
from colony.rpc import agents_pb2
from colony.rpc.statuses import status_of

ROOT = Path(__file__).parents[2]


def test_what_is_generated_is_what_the_proto_says(tmp_path: Path) -> None:
    out = tmp_path / "set"
    proto = "colony/rpc/agents.proto"
    include = resources.files("grpc_tools") / "_proto"
    told = protoc.main(["", f"-I{ROOT}", f"-I{include}", f"--descriptor_set_out={out}", proto])

    (said,) = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    for message in said.message_type:
        for field in message.field:
            # Only the compiler tells how a field is called in JSON.
            field.ClearField("json_name")
    generated = descriptor_pb2.FileDescriptorProto()
    agents_pb2.DESCRIPTOR.CopyToProto(generated)
    assert told == 0
    assert generated == said


@pytest.mark.parametrize(
    "kind",
    [kind for kind, status in HTTP if status in (400, 401, 409, 410) and kind.code],
    ids=lambda kind: kind.code,
)
def test_what_a_client_has_caused_is_never_a_mistake_of_ours(
    kind: type[errors.ColonyError],
) -> None:
    facts = {"session_id": "s", "ask_id": "a", "cursor": "c", "detail": "d"}

    assert status_of(kind(**facts)) is not grpc.StatusCode.INTERNAL
