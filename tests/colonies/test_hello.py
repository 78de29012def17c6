async def test_what_is_sent_to_the_greeter_comes_out_of_the_sink_as_a_greeting(start) -> None:
    colony = await start("hello")

    trace = await colony.harness.ask("/greeter", "Ada")

    assert await colony.answer(trace) == "Hello, Ada!"
    await colony.assert_clean(trace)
