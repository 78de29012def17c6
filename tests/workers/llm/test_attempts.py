"""How often a model is asked the same, and what is shown of the attempts."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from colony.body import Entry
from colony.host import Admission
from colony.testing.host import RecordingBudget, Settled
from workers.llm.asking.admission import Clock, estimated, settlement
from workers.llm.asking.attempts import Again, Attempts, Policy, Tried, following
from workers.llm.asking.holding import HeldBack
from workers.llm.provider import Answer, Call, Failure, Generation, Listener, Reply, Request, Tool

POLICY = Policy(attempts=3, attempt_s=500.0, total_s=1000.0, broken_s=100.0)
REQUEST = Request(
    entries=(Entry.say("user", "x" * 40),),
    system="s" * 20,
    tools=(),
    generation=Generation(model="m", max_tokens=100),
    seed="s",
)
ANSWER = Answer(
    model="m",
    outcome="message",
    finish_reason="stop",
    text="done",
    tokens_prompt=30,
    tokens_completion=4,
)
CUT = ANSWER.model_copy(
    update={
        "outcome": "truncated",
        "finish_reason": "length",
        "calls": (Call(id="c", name="look", arguments='{"a', problem="truncated"),),
    }
)
BUSY = Failure("rate_limited", "slow down", disposition="retryable", retry_after_s=7.0)
DOWN = Failure("provider_error", "no", kind="connection", disposition="retryable")
WRONG = Failure("auth", "no", disposition="permanent")


@dataclass
class Stepped:
    """A clock that moves when somebody sleeps; its chances are always the same."""

    chance: float = 0.5
    at: float = 0.0
    slept: list[float] = field(default_factory=list)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.at += seconds

    @property
    def clock(self) -> Clock:
        return Clock(now=lambda: self.at, sleep=self.sleep, draw=lambda: self.chance)


@dataclass
class Replies:
    """A provider that says what it is given: each reply after the fragments that come with it."""

    replies: list[Reply | tuple[Sequence[str], Reply]]
    asked: list[Request] = field(default_factory=list)

    async def complete(self, request: Request, listener: Listener) -> Reply:
        self.asked.append(request)
        given = self.replies.pop(0)
        fragments, reply = given if isinstance(given, tuple) else ((), given)
        for fragment in fragments:
            hear = listener.reasoning if fragment.startswith("?") else listener.text
            await hear(fragment)
        return reply

    async def close(self) -> None:
        """Nothing is held."""


class Silent(Replies):
    """A provider that does not answer its first request."""

    async def complete(self, request: Request, listener: Listener) -> Reply:
        if not self.asked:
            self.asked.append(request)
            await forever()
        return await super().complete(request, listener)


@dataclass
class Heard:
    """Who hears an answer, and what was recorded before."""

    fragments: list[str] = field(default_factory=list)

    async def text(self, fragment: str) -> None:
        self.fragments.append(fragment)

    async def reasoning(self, fragment: str) -> None:
        self.fragments.append(fragment)

    async def commit(self) -> None:
        self.fragments.append("<recorded>")


class Asking:
    """One question, and everything around it where a test can see it."""

    def __init__(self, *replies: Any, policy: Policy = POLICY, chance: float = 0.5) -> None:
        self.provider = Replies([*replies])
        self.budget = RecordingBudget()
        self.time = Stepped(chance)
        self.heard = Heard()
        self.policy = policy

    async def ask(self, request: Request = REQUEST) -> Any:
        attempts = Attempts(self.provider, self.budget, self.policy, self.time.clock)
        return await attempts.ask(
            request, name="m-1", hearing=lambda: HeldBack(self.heard, self.heard.commit)
        )


def tried(**given: Any) -> Tried:
    return replace(Tried(made=1, enlarged=False, visible=False, left_s=100.0), **given)


def after(reply: Reply, *, chance: float = 0.5, **given: Any) -> Again | None:
    return following(reply, REQUEST, tried=tried(**given), policy=POLICY, chance=chance)


# What follows a reply


@pytest.mark.parametrize("reply", [ANSWER, WRONG, replace(DOWN, disposition="unknown")])
def test_nothing_follows_what_another_call_cannot_help(reply: Reply) -> None:
    assert after(reply) is None


def test_nothing_follows_what_somebody_saw_or_the_last_attempt() -> None:
    assert after(DOWN) is not None
    assert after(DOWN, visible=True) is None
    assert after(DOWN, made=3) is None
    assert after(CUT) is not None
    assert after(CUT, visible=True) is None
    assert after(CUT, made=3) is None


@pytest.mark.parametrize(("made", "most"), [(1, 1.0), (2, 2.0), (20, 30.0)])
def test_the_wait_is_all_chance_below_a_bound_that_doubles(made: int, most: float) -> None:
    policy = replace(POLICY, attempts=99)
    waits = [
        following(DOWN, REQUEST, tried=tried(made=made), policy=policy, chance=chance)
        for chance in (0.0, 0.5, 1.0)
    ]

    assert waits == [Again(0.0), Again(most / 2), Again(most)]


def test_a_wait_begins_after_what_the_provider_asked_for() -> None:
    assert after(BUSY, chance=0.0) == Again(7.0)
    assert after(BUSY, chance=0.5) == Again(7.5)


def test_a_wait_that_is_longer_than_what_is_left_is_not_begun() -> None:
    assert after(BUSY, chance=0.0, left_s=7.1) is not None
    assert after(BUSY, chance=0.0, left_s=7.0) is None


def test_a_cut_answer_is_asked_for_longer_once_where_its_length_is_ours() -> None:
    assert after(CUT) == Again(enlarged=True)
    assert after(CUT, enlarged=True) is None
    for changed in (
        {"max_tokens": None},
        {"provider_extra": {"max_tokens": None}},
        {"provider_extra": {"max_completion_tokens": 100}},
    ):
        generation = REQUEST.generation.model_copy(update=changed)
        request = replace(REQUEST, generation=generation)
        assert following(CUT, request, tried=tried(), policy=POLICY, chance=0.5) is None


# The attempts of a question


async def test_a_call_is_made_again_until_it_is_answered() -> None:
    asking = Asking(DOWN, BUSY, ANSWER)

    asked = await asking.ask()

    assert (asked.reply, asked.attempts) == (ANSWER, 3)
    assert asking.provider.asked == [REQUEST] * 3
    assert asking.time.slept == [0.5, 8.0]


async def test_the_last_failure_is_the_reply_and_says_that_nothing_was_seen() -> None:
    asked = await Asking(DOWN, DOWN, replace(BUSY, progress="visible")).ask()

    assert asked.attempts == 3
    assert asked.reply == replace(BUSY, progress="precommit")


async def test_a_permanent_failure_is_not_asked_again() -> None:
    asked = await Asking(WRONG).ask()

    assert (asked.reply, asked.attempts) == (replace(WRONG, progress="precommit"), 1)


async def test_all_attempts_end_within_the_time_of_the_question() -> None:
    asked = await Asking(BUSY, BUSY, policy=replace(POLICY, total_s=10.0)).ask()

    assert asked.attempts == 2
    assert asked.reply.retry_after_s == 7.0


async def test_a_provider_that_does_not_answer_in_time_is_asked_again() -> None:
    asking = Asking(policy=replace(POLICY, attempt_s=0.01))
    asking.provider = Silent([ANSWER])

    asked = await asking.ask()

    assert (asked.reply, asked.attempts) == (ANSWER, 2)
    assert [one.outcome for one in asking.budget.settled] == ["failed", "answered"]


async def test_a_cut_answer_is_asked_for_with_twice_the_length() -> None:
    asking = Asking(CUT, ANSWER)

    asked = await asking.ask()

    assert (asked.reply, asked.attempts) == (ANSWER, 2)
    assert [one.generation.max_tokens for one in asking.provider.asked] == [100, 200]


@pytest.mark.parametrize("longer", [CUT, WRONG])
async def test_a_cut_answer_stands_where_a_longer_one_does_not_come(longer: Reply) -> None:
    asked = await Asking(CUT, longer).ask()

    assert (asked.reply, asked.attempts) == (CUT, 2)


async def test_warnings_of_all_attempts_are_counted() -> None:
    odd = replace(DOWN, warnings=("done_missing",))
    answer = ANSWER.model_copy(update={"warnings": ("done_missing", "id_synthesized")})

    asked = await Asking(odd, odd, answer).ask()

    assert asked.warnings == {"done_missing": 3, "id_synthesized": 1}


# What is shown


async def test_nothing_shows_of_an_attempt_that_is_discarded() -> None:
    asking = Asking((["?thought", " \n"], DOWN), (["?again", "\n", "It", " is"], ANSWER))

    await asking.ask()

    assert asking.heard.fragments == ["<recorded>", "?again", "\n", "It", " is"]


async def test_a_failure_after_a_text_showed_is_not_asked_again_and_says_so() -> None:
    asking = Asking((["It is"], DOWN), ANSWER)

    asked = await asking.ask()

    assert (asked.reply, asked.attempts) == (replace(DOWN, progress="visible"), 1)
    assert asking.heard.fragments == ["<recorded>", "It is"]


async def test_a_whole_answer_without_a_text_shows_what_was_held_back() -> None:
    calls = ANSWER.model_copy(
        update={"text": None, "calls": (Call(id="c", name="n", arguments=""),)}
    )
    asking = Asking((["?thought"], calls))

    await asking.ask()

    assert asking.heard.fragments == ["?thought"]


async def test_a_text_that_cannot_be_recorded_does_not_show() -> None:
    asking = Asking((["It"], ANSWER))
    asking.heard.commit = refuse  # type: ignore[method-assign]

    with pytest.raises(RuntimeError):
        await asking.ask()

    assert asking.heard.fragments == []
    assert [one.outcome for one in asking.budget.settled] == ["neutral"]


async def forever() -> None:
    await asyncio.Event().wait()


async def refuse() -> None:
    raise RuntimeError("fenced")


# The budget


def test_a_call_is_expected_to_cost_its_prompt_and_its_longest_answer() -> None:
    tool = Tool("t", {"a": "b" * 70})

    assert estimated(REQUEST) == 60 // 4 + 100
    assert estimated(replace(REQUEST, tools=(tool,))) > estimated(REQUEST)


@pytest.mark.parametrize(
    ("reply", "cost", "outcome", "pause_s"),
    [
        (ANSWER, 34, "answered", None),
        (ANSWER.model_copy(update={"tokens_prompt": None}), None, "answered", None),
        (BUSY, 0, "limited", 7.0),
        (replace(BUSY, retry_after_s=None), 0, "limited", None),
        (DOWN, None, "failed", None),
        (replace(DOWN, code="timeout"), None, "failed", None),
        (replace(DOWN, retry_after_s=3.0), None, "limited", 3.0),
        (replace(DOWN, code="no_choices"), None, "neutral", None),
        (WRONG, None, "neutral", None),
        (replace(WRONG, source="request"), 0, "neutral", None),
    ],
)
def test_a_budget_is_told_what_a_reply_says_of_the_endpoint(
    reply: Reply, cost: int | None, outcome: str, pause_s: float | None
) -> None:
    told = settlement(reply)

    assert (told.cost, told.outcome, told.pause_s) == (cost, outcome, pause_s)


async def test_every_attempt_is_taken_and_settled_discarded_ones_too() -> None:
    asking = Asking(DOWN, CUT, ANSWER)

    await asking.ask()

    assert asking.budget.taken == [("m-1", 115), ("m-1", 115), ("m-1", 215)]
    assert asking.budget.settled == [
        Settled("m-1", None, "failed", None),
        Settled("m-1", 34, "answered", None),
        Settled("m-1", 34, "answered", None),
    ]


async def test_a_call_waits_for_its_place_a_little_longer_than_it_is_told() -> None:
    asking = Asking(ANSWER)
    asking.budget.admissions = [Admission(20.0, "cooldown"), Admission(0.5, "cooldown")]

    asked = await asking.ask()

    assert (asked.reply, asked.attempts) == (ANSWER, 1)
    assert asking.time.slept == [20.25, 0.75]


@pytest.mark.parametrize("why", ["requests", "tokens", "in_flight", "cooldown"])
async def test_a_call_without_a_place_in_time_is_rate_limited(why: str) -> None:
    asking = Asking()
    asking.budget.admissions = [Admission(1000.0, why)]

    asked = await asking.ask()

    assert (asked.reply.code, asked.reply.kind, asked.attempts) == ("rate_limited", why, 0)
    assert asked.reply.prospects == {
        "retry_disposition": "retryable",
        "stream_progress": "precommit",
        "retry_after_s": 1000.0,
    }
    assert asking.time.slept == []


async def test_a_broken_provider_is_waited_for_no_longer_than_the_policy_says() -> None:
    asking = Asking()
    asking.budget.admissions = [Admission(30.0, "breaker")] * 10

    asked = await asking.ask()

    assert (asked.reply.code, asked.reply.kind) == ("provider_error", "breaker")
    assert asking.time.slept == [30.25] * 3


async def test_who_is_stopped_while_it_asks_for_a_place_holds_none() -> None:
    class Slow(RecordingBudget):
        async def take(self, call: str, *, cost: int, lease_ms: int) -> Admission:
            await super().take(call, cost=cost, lease_ms=lease_ms)
            # It is let through, and does not hear of it any more.
            await forever()
            return Admission()

    asking = Asking()
    asking.budget = Slow()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asking.ask(), 0.01)

    assert asking.budget.settled == [Settled("m-1", None, "neutral", None)]


@pytest.mark.parametrize(
    ("attempt_s", "kind", "outcome"),
    [(500.0, "out_of_time", "neutral"), (0.011, "timeout", "failed")],
)
async def test_a_call_that_is_cut_short_by_its_question_says_nothing_of_the_endpoint(
    attempt_s: float, kind: str, outcome: str
) -> None:
    asking = Asking(policy=replace(POLICY, attempts=1, attempt_s=attempt_s, total_s=0.01))
    asking.provider = Silent([])

    asked = await asking.ask()

    assert (asked.reply.code, asked.reply.kind) == ("timeout", kind)
    assert [one.outcome for one in asking.budget.settled] == [outcome]


async def test_what_a_lost_worker_held_is_given_back() -> None:
    asking = Asking()

    await Attempts(asking.provider, asking.budget, POLICY).abandon("m-1")

    assert asking.budget.settled == [Settled("m-1", None, "neutral", None)]


async def test_a_second_attempt_without_a_place_leaves_the_failure_of_the_first() -> None:
    asking = Asking(DOWN)
    asking.budget.admissions = [Admission(), Admission(30.0, "breaker"), Admission(99.0, "breaker")]

    asked = await asking.ask()

    assert (asked.reply, asked.attempts) == (replace(DOWN, progress="precommit"), 1)
