from colony.body import Body, Entry
from colony.envelope import Envelope
from colony.testing.host import Kept, RecordingHost
from workers.sink import Sink


async def test_sink_keeps_the_message_and_emits_nothing() -> None:
    body = Body.of(Entry.say("assistant", "the answer"))
    envelope = Envelope(
        id="m", trace_id="t", target="/out", ttl=1, hop={"finish_reason": "stop"}, body=body
    )
    host = RecordingHost.of("sink")

    assert await Sink(Sink.Params()).handle(envelope, host) == []
    assert host.kept == [Kept(body, {"finish_reason": "stop"})]
