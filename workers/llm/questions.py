"""Questions: the request that a message makes of a model, on top of the state it leaves."""

import json
from collections.abc import Sequence

from colony.body import Body, Entry
from colony.envelope import Envelope, iteration_of
from colony.errors import BodyError
from colony.host import Host
from colony.topology.model import ToolDeclaration
from workers.llm import overrides, system_state
from workers.llm.params import Params
from workers.llm.provider import Failure, Request, Tool
from workers.llm.threads.pairing import repaired


async def question_in(envelope: Envelope, params: Params, host: Host) -> Request | Failure | None:
    """The request of a message; None of one that only changes the state.

    A message that cannot be asked is a failure, and changes nothing.
    """
    body = envelope.body
    try:
        state = await _state(body, params, host)
        if body.messages is None:
            return None
        if body.attachments:
            raise BodyError(detail="attachments cannot be sent to a model")
        entries, repairs = repaired(body.entries)
        if repairs:
            host.log.warning("thread_repaired", **repairs)
        return Request(
            entries=entries,
            system=system_state.render(state, params.system_order),
            tools=system_state.tools(state) or _declared(host.tools),
            generation=overrides.overlaid(params, state),
            seed=_seed(envelope),
            iteration=max(0, iteration_of(envelope.context)),
        )
    except BodyError as error:
        return Failure(
            "invalid_input",
            str(error),
            source="request",
            disposition="permanent",
            progress="precommit",
        )


def one_token(params: Params, tools: Sequence[ToolDeclaration]) -> Request:
    """The least that a model can be asked; one of this process is offered its tools as well."""
    return Request(
        entries=(Entry.say("user", "ping"),),
        system=None,
        tools=() if params.is_remote else _declared(tools),
        generation=overrides.overlaid(params, {}).model_copy(update={"max_tokens": 1}),
        seed="probe",
    )


async def _state(body: Body, params: Params, host: Host) -> dict[str, str]:
    """The state as this message leaves it; raises BodyError, with nothing changed."""
    scope, extra = params.state_scope, body.__pydantic_extra__
    change = system_state.parse(body.system or {})
    state = await host.state(scope)
    params.system_limits.check(change, state)
    change.put.update(overrides.parse(extra["params"]) if "params" in extra else {})
    wanted = change.applied_to(state)
    overrides.overlaid(params, wanted)
    system_state.tools(wanted)
    if wanted == state:
        return state
    return await host.update_state(scope, change.put, change.remove)


def _declared(tools: Sequence[ToolDeclaration]) -> tuple[Tool, ...]:
    return tuple(
        Tool(
            tool.name,
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                },
            },
        )
        for tool in tools
    )


def _seed(envelope: Envelope) -> str:
    turn = envelope.context.get("turn_id")
    if turn is None:
        return envelope.id
    return json.dumps([turn, envelope.context.get("iter")])
