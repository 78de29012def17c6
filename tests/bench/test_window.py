"""What `bench.window` claims of long results and long conversations, of shorter ones."""

from bench.window import conversation, long_document, sent, with_rules, without_rules

ROOM = 4_096
SIZE = 400_000


async def test_a_long_result_costs_a_bounded_part_of_itself_in_every_round(
    redis_url: str,
) -> None:
    bounded = await sent(redis_url, with_rules(), long_document(SIZE), questions=1)
    unbounded = await sent(redis_url, without_rules(), long_document(SIZE), questions=1)

    asked, *rounds = bounded.sizes
    assert max(rounds) < asked + 16_384 + ROOM
    assert unbounded.total > 5 * SIZE
    assert len(unbounded.sizes) == len(bounded.sizes)


async def test_requests_of_a_long_conversation_stop_growing(redis_url: str) -> None:
    questions = 30

    bounded = await sent(redis_url, with_rules(), conversation(questions), questions=questions)
    unbounded = await sent(redis_url, without_rules(), conversation(questions), questions=questions)

    asked, *others = bounded.sizes
    assert max(others) < asked + 20 * (2_000 + 200)
    assert unbounded.largest > unbounded.sizes[0] + (questions - 1) * 2_000
    assert len(unbounded.sizes) == len(bounded.sizes)
