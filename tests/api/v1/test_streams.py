"""The events of a session as a stream: taken up anywhere, and ended where nothing can come."""

import asyncio

import httpx

from colony.testing.claims import eventually
from tests.api.v1.conftest import Serve
from tests.api.v1.served import Told, told
from tests.colonies.agent_colony import calls, rounds, says


def logged(events: list[Told]) -> list[Told]:
    return [event for event in events if event.id is not None]


def text_of(events: list[Told]) -> str:
    return "".join(
        event.data["text"] for event in events if event.data.get("type") == "message.delta"
    )


async def test_a_client_that_is_cut_off_anywhere_hears_the_rest(serve: Serve) -> None:
    script = [{"text": f"Round {n}. ", **calls("look", number=n)} for n in range(3)]
    served = await serve(script=[*script, says("Done.")], stream=True)
    session = await served.session()
    run = await served.ran(session)
    whole = await served.events(session, run_id=run)
    log = logged(whole)
    assert [event.data["seq"] for event in log] == [*range(1, len(log) + 1)]
    assert text_of(whole) == "Round 0. Round 1. Round 2. Done."

    for step in (1, 2, 3, 5, 7):
        heard: list[Told] = []
        while not heard or heard[-1].data["type"] != "result":
            seen = heard[-1].id if heard else None
            async with served.stream(session, run_id=run, seen=seen) as events:
                taken = 0
                async for event in events:
                    if event.id is not None:
                        heard.append(event)
                        taken += 1
                    if taken == step:
                        break
        assert heard == log


async def test_a_run_is_heard_live_by_who_was_cut_off_while_it_went_on(serve: Serve) -> None:
    served = await serve(script=rounds([["look"], ["look"], ["look"]]))
    session = await served.session()
    run = await served.prompted(session)
    heard: list[Told] = []
    finishing = asyncio.create_task(served.harness.finish())
    async with asyncio.timeout(20):
        while not heard or heard[-1].data["type"] != "result":
            seen = heard[-1].id if heard else None
            async with served.stream(session, run_id=run, seen=seen) as events:
                taken = 0
                async for event in events:
                    if event.id is not None:
                        heard.append(event)
                        taken += 1
                    if taken == 4:
                        break
    await finishing

    assert heard == logged(await served.events(session, run_id=run))


async def test_the_cursor_of_a_reconnect_is_newer_than_that_of_the_address(serve: Serve) -> None:
    served = await serve(script=[says("one")])
    session = await served.session()
    await served.ran(session)
    log = logged(await served.events(session, follow="false"))

    rest = await served.events(session, follow="false", cursor=log[0].id, seen=log[-2].id)

    assert [event.id for event in rest if event.id] == [log[-1].id]


async def test_a_run_whose_end_was_seen_has_nothing_more(serve: Serve) -> None:
    served = await serve(script=[says("one")])
    session = await served.session()
    run = await served.ran(session)
    log = logged(await served.events(session, run_id=run))

    over = await served.http.get(
        f"/v1/sessions/{session}/events",
        params={"run_id": run},
        headers={"Last-Event-ID": log[-1].id or ""},
    )

    assert over.status_code == 204


async def test_a_stream_of_a_session_goes_on_with_its_next_run(serve: Serve) -> None:
    served = await serve(script=[says("one")])
    session = await served.session()
    first = await served.ran(session)
    second, heard = "", []
    async with served.stream(session) as events, asyncio.timeout(20):
        async for event in events:
            heard.append(event)
            if event.event == "live":
                second = await served.prompted(session)
                finishing = asyncio.create_task(served.harness.finish())
            if event.data.get("type") == "result" and event.data["run_id"] == second:
                break
    await finishing

    runs = [event.data["run_id"] for event in logged(heard)]
    assert runs == sorted(runs, key=[first, second].index)
    assert set(runs) == {first, second}


async def test_a_cursor_that_is_none_is_a_problem_before_the_stream(serve: Serve) -> None:
    served = await serve(script=[says("one")])
    sessions = [await served.session() for _ in range(2)]
    for session in sessions:
        await served.ran(session)
    log = logged(await served.events(sessions[0], follow="false"))

    def asked(session: str, cursor: str) -> httpx.Request:
        path = f"/v1/sessions/{session}/events"
        return served.http.build_request("GET", path, params={"cursor": cursor})

    for cursor in (log[0].id or "", "nonsense", "1-1@00000000"):
        refused = await served.http.send(asked(sessions[1], cursor))
        assert (refused.status_code, refused.json()["code"]) == (400, "cursor_malformed")
    key = served.harness.keys.session_events(sessions[0])
    await served.harness.link.command("XTRIM", key, "MAXLEN", 1)
    expired = await served.http.send(asked(sessions[0], log[0].id or ""))
    assert (expired.status_code, expired.json()["code"]) == (410, "cursor_expired")


async def test_a_server_that_stops_says_so_in_the_stream(serve: Serve) -> None:
    served = await serve(script=[says("one")])
    session = await served.session()
    async with served.stream(session) as events, asyncio.timeout(20):
        assert (await anext(events)).event == "live"
        served.server.stop()
        last = [event async for event in events][-1]

    assert (last.event, last.data["code"]) == ("error", "server_stopping")


async def test_a_stream_keeps_its_connection_by_comments(serve: Serve) -> None:
    served = await serve(script=[says("one")])
    session = await served.session()

    async with served.http.stream("GET", f"/v1/sessions/{session}/events") as response:
        lines = response.aiter_lines()
        assert (await anext(lines)).startswith(":")

        async def followed() -> bool:
            return served.server._engine.feed.connections == 1

        await eventually(followed)


async def test_a_server_that_stops_takes_no_run_along(serve: Serve) -> None:
    served = await serve(script=[says("one")])
    session = await served.session()
    path = f"/v1/sessions/{session}/prompt"
    sent = {"text": "Go.", "on_disconnect": "cancel"}
    headers = {"Accept": "text/event-stream"}
    async with served.http.stream("POST", path, json=sent, headers=headers) as response:
        events = told(response)
        await anext(events)
        served.server.stop()
        assert [event async for event in events][-1].event == "error"

    await served.harness.finish()
    assert (await served.engine.session(session)).state == "completed"
