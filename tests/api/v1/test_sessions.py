"""Sessions over HTTP, and what is refused."""

import pytest

from tests.api.v1.conftest import TOKENS, Serve
from tests.colonies.agent_colony import rounds, says


async def test_a_session_tells_what_it_waits_for_and_what_was_done(serve: Serve) -> None:
    served = await serve(script=rounds([["look", "change"]]), permissions={"ask": ["change"]})
    session = await served.session(limits={"max_turns": 9}, rules={"allow": ["look"]})

    run = await served.ran(session)

    found = (await served.http.get(f"/v1/sessions/{session}")).json()
    assert (found["state"], found["run_id"], found["pending"]) == ("awaiting", run, 1)
    assert (found["limits"]["max_turns"], found["rules"]) == (9, {"allow": ["look"]})
    (ask,) = found["asks"]
    assert (ask["tool"], ask["run_id"], ask["session_id"]) == ("change", run, session)
    assert (found["counters"]["turns"], found["counters"]["tool_calls"]) == (1, 1)
    assert found["used"] > 0
    assert found["window"] > 0


async def test_a_transcript_holds_what_was_said(serve: Serve) -> None:
    served = await serve(script=rounds([["look"]], last="It is blue."))
    session = await served.session()
    await served.ran(session, "What is it?")

    told = (await served.http.get(f"/v1/sessions/{session}/transcript")).json()["messages"]

    assert [row["kind"] for row in told] == ["user", "assistant", "results", "assistant"]
    assert told[0]["messages"][0]["text"] == "What is it?"
    assert told[-1]["messages"][0]["text"] == "It is blue."


async def test_pages_of_sessions_hold_each_once(serve: Serve) -> None:
    served = await serve(script=[says("one")])
    made = {await served.session() for _ in range(5)}

    found, cursor = [], ""
    while True:
        page = await served.http.get("/v1/sessions", params={"cursor": cursor, "limit": 2})
        found += [session["id"] for session in page.json()["sessions"]]
        cursor = page.json()["cursor"]
        if not cursor:
            break

    assert (len(found), set(found)) == (5, made)


async def test_a_fork_has_the_turn_and_what_came_before(serve: Serve) -> None:
    served = await serve(script=rounds([["look"]]))
    session = await served.session()
    run = await served.ran(session)

    forked = await served.post(session, "fork", run_id=run, turn=0)

    assert (forked.status_code, forked.json()["fork_of"]) == (201, session)
    told = await served.http.get(f"/v1/sessions/{forked.json()['id']}/transcript")
    assert [row["kind"] for row in told.json()["messages"]] == ["user", "assistant", "results"]
    assert (await served.post(session, "fork", run_id=run, turn=7)).status_code == 409


async def test_a_session_that_is_deleted_is_gone(serve: Serve) -> None:
    served = await serve(script=[says("one")])
    session = await served.session()

    gone = await served.http.delete(f"/v1/sessions/{session}")

    assert (gone.status_code, gone.json()) == (200, {"id": session, "deleted": True})
    again = await served.http.delete(f"/v1/sessions/{session}")
    assert (again.status_code, again.json()["code"]) == (404, "session_not_found")


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ({}, "invalid_argument"),
        ({"agent": "assistant", "colour": "red"}, "invalid_argument"),
        ({"agent": 7}, "invalid_argument"),
        ({"agent": "assistant", "limits": {"max_turns": -1}}, "invalid_argument"),
        ({"agent": "assistant", "limits": {"max_turn": 1}}, "invalid_argument"),
        ({"agent": "assistant", "rules": {"allow": ["("]}}, "invalid_argument"),
        ({"agent": "assistant", "rules": {"alow": ["look"]}}, "invalid_argument"),
    ],
)
async def test_a_session_that_cannot_be_meant_is_refused(
    serve: Serve, sent: dict[str, object], code: str
) -> None:
    served = await serve(script=[says("one")])

    refused = await served.http.post("/v1/sessions", json=sent)

    assert (refused.status_code, refused.json()["code"]) == (400, code)
    assert refused.headers["content-type"] == "application/problem+json"


async def test_an_agent_that_is_not_there_is_told(serve: Serve) -> None:
    served = await serve(script=[says("one")])

    refused = await served.http.post("/v1/sessions", json={"agent": "nobody"})

    assert (refused.status_code, refused.json()["code"]) == (404, "agent_not_found")


async def test_a_session_of_somebody_else_looks_like_one_that_is_not_there(serve: Serve) -> None:
    served = await serve(owners=True, script=[says("one")])
    served.http.headers["Authorization"] = f"Bearer {TOKENS['ann']}"
    session = await served.session()
    assert (await served.http.get(f"/v1/sessions/{session}")).json()["owner"] == "ann"
    await served.ran(session)

    served.http.headers["Authorization"] = f"Bearer {TOKENS['bob']}"
    calls = [
        ("GET", "", None),
        ("DELETE", "", None),
        ("GET", "/transcript", None),
        ("GET", "/events", None),
        ("POST", "/prompt", {"text": "Go."}),
        ("POST", "/retry", {}),
        ("POST", "/compact", {}),
        ("POST", "/fork", {"run_id": "r", "turn": 0}),
        ("POST", "/controls/cancel", {"run_id": "r"}),
        ("POST", "/controls/steer", {"text": "t"}),
        ("POST", "/controls/resolve-ask", {"run_id": "r", "ask_id": "a", "verdict": "deny"}),
    ]
    for method, path, sent in calls:
        answers = [
            await served.http.request(method, f"/v1/sessions/{named}{path}", json=sent)
            for named in (session, "nothing")
        ]
        told = [answer.text.replace(session, "nothing") for answer in answers]
        assert told[0] == told[1]
        assert [answer.status_code for answer in answers] == [404, 404], path
    assert (await served.http.get("/v1/sessions")).json()["sessions"] == []


async def test_what_is_of_the_colony_is_for_operators(serve: Serve) -> None:
    served = await serve(owners=True, script=[says("one")])

    for name, expected in (("ann", 403), ("ops", 200)):
        served.http.headers["Authorization"] = f"Bearer {TOKENS[name]}"
        assert (await served.http.get("/colony/graph")).status_code == expected
        assert (await served.http.get("/v1/info")).status_code == 200
    served.http.headers["Authorization"] = "Bearer clny_nobody"
    assert (await served.http.get("/v1/info")).status_code == 401


async def test_an_operator_finds_everybodys_sessions(serve: Serve) -> None:
    served = await serve(owners=True, script=[says("one")])
    made = set()
    for name in ("ann", "bob"):
        served.http.headers["Authorization"] = f"Bearer {TOKENS[name]}"
        made.add(await served.session())

    served.http.headers["Authorization"] = f"Bearer {TOKENS['ops']}"

    found = (await served.http.get("/v1/sessions")).json()["sessions"]
    assert {session["id"] for session in found} == made
