"""By hand: interleavings so narrow that chance finds them too seldom, played step by step.

Each leaves a world in which everything may now run to its end; the judge then finds nothing, unless
the guard that it is about is switched off.
"""

from collections.abc import Awaitable, Callable
from itertools import cycle

from tests.simulator.actors import Process
from tests.simulator.conductor import Fate, Job, Parked
from tests.simulator.tree import FAN, LATE, SETTLE, TURN
from tests.simulator.world import World

Interleaving = Callable[[World], Awaitable[None]]


async def completed_while_two_are_under_way(world: World) -> None:
    """A trace is ended as completed by something other than quiet; two branches go on."""
    (message,) = await world.send_all()
    key = world.keys.trace(message.trace_id)
    while int(await world.stage.link.command("HGET", key, "live")) < 2:
        await world.go_on()
    await world.stage.link.command("HSET", key, "state", "ended", "cause", "completed")
    await world.stage.link.command("ZREM", world.keys.open_traces(), message.trace_id)


async def revival_that_comes_late(world: World) -> None:
    """A keeper is about to revive a trace; another has done so, and it is quiet again."""
    await world.send_all()
    await _lose(world, "/settle/planner")
    slow = await _attends_until(world, "revive")
    await _attend_well(world)
    while await world.go_on(withheld=slow.job):
        pass
    await world.conductor.release(slow, Fate.ANSWERED)


async def end_that_comes_late(world: World) -> None:
    """A keeper is about to end a trace that lost its only envelope; an operator replays that."""
    await world.send_all()
    await _lose(world, "/fan")
    await _replay_before(world, "end_quiet")


async def revival_of_what_was_replayed(world: World) -> None:
    """A keeper is about to revive a trace that lost an envelope; an operator replays that."""
    await world.send_all()
    await _lose(world, "/settle/planner")
    await _replay_before(world, "revive")


async def replay_after_the_end(world: World) -> None:
    """A trace lost its only envelope and has ended; an operator replays that."""
    await _replay_after_the_end(world, FAN)


async def answer_of_a_server_that_forgot(world: World) -> None:
    """A worker is told that it may fire the round; the server that said so loses it."""
    await world.send_all()
    while not (claims := _parked(world, "store_update")):
        await world.go_on(reading=True, script="store_update")
    _, before = world.stage.log_size()
    await world.conductor.release(claims[0], Fate.ANSWERED)
    _, after = world.stage.log_size()
    await world.restart(after - before)


async def revival_that_the_server_forgot(world: World) -> None:
    """A keeper has revived a trace; the server loses that, and the keeper goes on."""
    await world.send_all()
    await _lose(world, "/settle/planner")
    parked = await _attends_until(world, "revive")
    _, before = world.stage.log_size()
    await world.conductor.release(parked, Fate.ANSWERED)
    _, after = world.stage.log_size()
    await world.restart(after - before)


async def winner_that_dies(world: World) -> None:
    """A worker is told that it may fire the round, and dies before it has said so."""
    await world.send_all()
    script = "settle" if world.messages[0].target == SETTLE else "store_update"
    while True:
        await world.go_on(script=script)
        for parked in _parked(world, script):
            process = parked.job.owner
            assert isinstance(process, Process)
            await world.conductor.release(parked, Fate.ANSWERED)
            if world.ledger.counted["settle won"] + world.ledger.counted["store_update changed"]:
                await world.crash(process)
                return


async def call_that_dies(world: World) -> None:
    """One call of a round never reaches its tool."""
    await world.send_all()
    await _lose(world, "/settle/a")


async def blob_that_expires_before_its_commit(world: World) -> None:
    """A worker has written a blob, and is so slow to commit that nobody keeps it."""
    await world.send_all()
    while True:
        await world.go_on(script="commit")
        if world.ledger.counted["keep_blob kept"]:
            break
        for commit in _parked(world, "commit")[:1]:
            await world.conductor.release(commit, Fate.ANSWERED)
    await world.pass_ten_minutes()


async def end_that_knows_no_session(world: World) -> None:
    """A keeper is about to end a trace without a session; a replay of what died joins it to one."""
    await world.send_all()
    await _lose(world, LATE)
    slow = await _attends_until(world, "end_quiet")
    await _replay(world)
    while await world.go_on(withheld=slow.job):
        pass
    await world.conductor.release(slow, Fate.ANSWERED)


async def two_that_wait_for_one(world: World) -> None:
    """Of three traces of a session the first is about to end, and the others are parked."""
    await world.send_all()
    while await world.go_on():
        pass


async def first_one_cancelled(world: World) -> None:
    """Two traces of a session wait for the first one, which is ended."""
    await two_that_wait_for_one(world)
    await _cancel(world, world.ledger.turns.due("one")[0])


async def record_lost_before_its_turn_is_over(world: World) -> None:
    """Two traces of a session wait for the first one, whose record a stranger deletes."""
    await two_that_wait_for_one(world)
    first = world.ledger.turns.due("one")[0]
    world.ledger.gone.add(first)
    await world.stage.link.command("DEL", world.keys.trace(first))


async def cancelled_while_it_waits(world: World) -> None:
    """Two traces of a session wait for the first one, and one of them is ended."""
    await two_that_wait_for_one(world)
    await _cancel(world, world.ledger.turns.due("one")[1])


async def cancelled_before_it_is_parked(world: World) -> None:
    """A router is about to ask whether it is the turn of a trace; that is ended."""
    (message,) = await world.send_all()
    while not _parked(world, "park"):
        await world.go_on(script="park")
    await _cancel(world, message.trace_id)


async def replay_into_a_session(world: World) -> None:
    """The only trace of a session lost its only envelope and has ended; that is replayed."""
    await _replay_after_the_end(world, TURN)
    await world.conductor.release(world.conductor.parked[0], Fate.ANSWERED)


def _parked(world: World, script: str) -> list[Parked]:
    return [parked for parked in world.conductor.parked if parked.what == script]


async def _lose(world: World, path: str) -> None:
    """The first envelope for a cell becomes a dead letter; all else comes to rest."""
    turns = cycle(world.processes)
    while not await world.stage.link.command("XLEN", world.keys.cell(path)):
        await world.go_on(processes=[next(turns)])
        await world.go_on(processes=[])
    world.start(world.wardens[0], "bury", world.wardens[0].bury(path))
    await world.conductor.stillness()
    while await world.go_on():
        pass


async def _attends_until(world: World, script: str) -> Parked:
    """The first keeper takes up what is quiet, and stops before a script."""
    warden = world.wardens[0]
    for entry, fields in await warden.read(1):
        job: Job = world.start(warden, "attend", warden.attend(entry, fields))
        await world.conductor.stillness()
        (parked,) = _parked(world, script)
        assert parked.job is job
        return parked
    raise AssertionError("nothing is quiet")


async def _replay_before(world: World, script: str) -> None:
    """The one dead letter is replayed while a keeper is about to run a script for its trace."""
    slow = await _attends_until(world, script)
    await _replay(world)
    await world.go_on(withheld=slow.job, reading=False)
    await world.conductor.release(slow, Fate.ANSWERED)


async def _replay_after_the_end(world: World, path: str) -> None:
    """What died before a cell is replayed when its trace has ended."""
    await world.send_all()
    await _lose(world, path)
    await world.rest()
    await _replay(world)


async def _cancel(world: World, trace_id: str) -> None:
    """A trace is ended from outside."""
    job = world.start(world.clients[0], "end", world.clients[0].end(trace_id, "cancelled"))
    await world.conductor.stillness()
    while mine := [parked for parked in world.conductor.parked if parked.job is job]:
        await world.conductor.release(mine[0], Fate.ANSWERED)


async def _replay(world: World) -> None:
    """A client is about to replay the one dead letter."""
    ((letter, _),) = await world.stage.link.command("XRANGE", world.keys.dead(), "-", "+")
    world.start(world.clients[0], "replay", world.clients[0].replay(letter.decode()))
    await world.conductor.stillness()


async def _attend_well(world: World) -> None:
    """The other keeper does what the first one is about to do."""
    warden = world.wardens[1]
    for entry, fields in await warden.reclaim(1):
        job = world.start(warden, "attend", warden.attend(entry, fields))
        await world.conductor.stillness()
        while mine := [parked for parked in world.conductor.parked if parked.job is job]:
            await world.conductor.release(mine[0], Fate.ANSWERED)
