"""By hand, of agents: interleavings so narrow that chance finds them too seldom.

Each leaves a world in which everything may now run to its end; the judge then finds nothing, unless
the guard that it is about is switched off.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from colony.dead_letters import DeadLetters
from tests.simulator.agent_tree import AGENT, ASIDE, SESSIONS, Plan
from tests.simulator.agent_world import AgentWorld
from tests.simulator.agents import Prompt, Steer
from tests.simulator.conductor import Fate, Job, Parked
from tests.simulator.tree import REVIVALS

Scene = Callable[[AgentWorld], Awaitable[None]]

HERE, ELSEWHERE = SESSIONS


def one(plan: Plan, *, long: bool = False) -> Prompt:
    """A prompt of a session in which nothing else is said."""
    return Prompt(HERE, "prompt", plan, "by hand", long=long)


BRIEF: Final = one(Plan())
FAILING: Final = one(Plan(end="retryable"))
SECOND: Final = Prompt(HERE, "prompt", Plan(), "by hand, second")


async def aside_behind_the_end(world: AgentWorld) -> None:
    """A run completes while something is under way that nobody waits for."""
    await _begin(world)
    stream = world.keys.cell(ASIDE)
    while not await world.stage.link.command("XLEN", stream):
        await world.go_on(but=stream)
    while await world.go_on(but=stream):
        pass


async def steered_at_its_end(world: AgentWorld) -> None:
    """A run is about to end, and somebody says something to it."""
    await _begin(world)
    ending = await _reach(world, "finish_run")
    await _steer(world)
    await world.conductor.release(ending, Fate.ANSWERED)


async def steered_after_one_that_was_cancelled(world: AgentWorld) -> None:
    """A run that is about to end is cancelled; the next one of its session is steered meanwhile."""
    await _begin(world)
    ending = await _reach(world, "finish_run")
    await _cancel(world)
    await _begin(world)
    await _steer(world)
    await world.conductor.release(ending, Fate.ANSWERED)


async def replayed_before_it_fails(world: AgentWorld) -> None:
    """A keeper is about to end a run all of whose envelopes died; an operator replays one."""
    await _begin(world)
    warden = world.wardens[0]
    for _ in range(1 + REVIVALS):
        while not await world.stage.link.command("XLEN", world.keys.cell(AGENT)):
            await world.go_on(processes=world.processes[:2])
        await _see_to(world, world.start(warden, "bury", warden.bury(AGENT)))
        (report,) = await warden.read(1)
        job = world.start(warden, "attend", warden.attend(*report))
        await world.conductor.stillness()
        while (parked := _of(world, job)) and parked.what != "end_run":
            await world.conductor.release(parked, Fate.ANSWERED)
    ((letter, _), *_) = await world.stage.link.command("XRANGE", world.keys.dead(), "-", "+")
    await DeadLetters(world.late_link, world.keys).replay(letter.decode(), ttl=1000)
    await _see_to(world, job)


async def blob_that_expires_before_the_birth(world: AgentWorld) -> None:
    """A client has written a blob, and is so slow to begin its run that nobody keeps it."""
    await world.begin(world.unsent.pop())
    await world.pass_ten_minutes()


async def shown_behind_the_end(world: AgentWorld) -> None:
    """A worker is about to say that something is visible; the run is cancelled."""
    await _begin(world)
    showing = await _reach(world, "show_run")
    await _cancel(world)
    await world.conductor.release(showing, Fate.ANSWERED)


async def answered_in_another_session(world: AgentWorld) -> None:
    """A client takes a run that asks for one of another session."""
    await _begin(world)
    while await world.go_on():
        pass
    run = world.books()[0].live
    assert run is not None
    await world.answer(run, min(run.pending), session=ELSEWHERE)


async def prompted_where_a_retry_is_owed(world: AgentWorld) -> None:
    """A retry ended before it was tried; a prompt comes before the next one."""
    for _ in range(3):
        await _begin(world)
        while await world.go_on():
            pass


OWING: Final = (
    FAILING,
    Prompt(HERE, "retry", Plan(end="owed"), "by hand, retry"),
    SECOND,
)


async def _begin(world: AgentWorld) -> None:
    """The next run begins, or is refused."""
    prompt = world.unsent.pop(0)
    client = world.clients[0]
    await _see_to(world, world.start(client, "begin", client.begin(prompt)))


async def _steer(world: AgentWorld) -> None:
    client = world.clients[0]
    doing = client.steer(Steer(HERE, "", "one more thing"))
    await _see_to(world, world.start(client, "steer", doing))


async def _cancel(world: AgentWorld) -> None:
    client, run = world.clients[0], world.books()[0].live
    assert run is not None
    await _see_to(world, world.start(client, "end", client.cancel(run.id, HERE)))


async def _reach(world: AgentWorld, script: str) -> Parked:
    """Whoever is about to run a script does not yet."""
    while not (found := [one for one in world.conductor.parked if one.what == script]):
        await world.go_on(script=script)
    return found[0]


async def _see_to(world: AgentWorld, job: Job) -> None:
    """A job comes to its end."""
    await world.conductor.stillness()
    while parked := _of(world, job):
        await world.conductor.release(parked, Fate.ANSWERED)


def _of(world: AgentWorld, job: Job) -> Parked | None:
    return next((parked for parked in world.conductor.parked if parked.job is job), None)
