"""The engine for code without an event loop, over a colony that runs."""

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from colony.access import Access
from colony.errors import SessionNotFound
from colony.keys import Keys
from colony.roles import Router, Worker
from colony.sync import SyncEngine
from tests.colonies.agent_colony import ROOT, agent_tree, rounds, says


@contextmanager
def running(redis_url: str, tree: Path, **handed: object) -> Iterator[SyncEngine]:
    """An agent that runs in a thread, and an engine in this one."""
    spec, ended = agent_tree(tree, **handed), threading.Event()

    async def serve() -> None:
        async with Access(redis_url, "colony") as access:
            await access.publication.publish(spec)
        keys = Keys("colony")
        roles = [Router(redis_url, keys), Worker(redis_url, keys, root=ROOT)]
        serving = [asyncio.create_task(role.serve()) for role in roles]
        published.set()
        await asyncio.to_thread(ended.wait)
        for role in roles:
            role.stop()
        await asyncio.gather(*serving)

    published = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        published.wait(20)
        with SyncEngine.connect(redis_url) as engine:
            yield engine
    finally:
        ended.set()
        thread.join()


def test_a_script_holds_a_conversation(redis_url: str, tmp_path: Path) -> None:
    with running(redis_url, tmp_path, script=[says("Blue."), says("Red.")]) as engine:
        assert engine.agents() == ["assistant"]
        session = engine.create_session("assistant")
        for _ in range(2):
            run = engine.run(session.id, "What is it?")
            kinds = [event.kind for event in run.events()]
            assert (kinds[0], kinds[-1]) == ("session.init", "result")
            assert run.result().stop == "end_turn"
        assert len(engine.transcript(session.id)) == 4
        with pytest.raises(SessionNotFound):
            engine.session("nothing")


def test_a_script_answers_what_a_run_asks(redis_url: str, tmp_path: Path) -> None:
    script = rounds([["change"]])
    with running(redis_url, tmp_path, script=script, permissions={"ask": ["change"]}) as engine:
        session = engine.create_session("assistant")
        run = engine.run(session.id, "Go.")
        for event in run.events():
            if event.kind == "permission.ask":
                run.resolve(str(event.payload["ask_id"]), "allow_once")

        assert run.result().state == "completed"


def test_who_stops_listening_may_listen_again(redis_url: str, tmp_path: Path) -> None:
    script = rounds([["change"]])
    with running(redis_url, tmp_path, script=script, permissions={"ask": ["change"]}) as engine:
        session = engine.create_session("assistant")
        run = engine.run(session.id, "Go.")
        for _ in range(2):
            with closing(run.events()) as events:
                assert next(events).kind == "session.init"

        assert run.cancel()
        assert engine.attach(session.id, run.id).result().state == "cancelled"


def test_who_is_interrupted_leaves_nothing_running(redis_url: str, tmp_path: Path) -> None:
    script = rounds([["change"]])
    with running(redis_url, tmp_path, script=script, permissions={"ask": ["change"]}) as engine:
        session = engine.create_session("assistant")
        run = engine.run(session.id, "Go.")
        main = threading.get_ident()

        events = run.events()
        while next(events).kind != "permission.ask":
            pass
        threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            next(events)

        assert engine.session(session.id).state == "awaiting"
        assert run.cancel()
