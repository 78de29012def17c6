"""Ask deadlines: an ask that nobody answers in time counts as denied."""

from typing import Final

from colony.agent.asks import Decision
from colony.errors import AskNotPending, StaleRunControl
from colony.keys import Keys
from colony.link import Link
from colony.log import get_logger
from colony.runs.asks import RunAsks

LOOK_S: Final = 1.0
PAGE: Final = 64

EXPIRED: Final = Decision(verdict="deny", reason="nobody answered in time", by="deadline")

log = get_logger("colony.keeper")


class AskDeadlines:
    """The asks of one partition that are overdue. Any number of keepers may look."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self.link = link
        self.keys = keys
        self._asks = RunAsks(link, keys)

    async def look(self) -> int:
        """Deny the asks whose deadline has passed by the server's clock; returns how many."""
        seconds, micros = await self.link.command("TIME")
        denied = 0
        for session_id, run_id, ask_id in await self._asks.due(
            int(seconds) * 1000 + int(micros) // 1000, PAGE
        ):
            asked = await self._asks.find(run_id, ask_id, session_id)
            try:
                if asked is None:
                    raise AskNotPending(ask_id=ask_id)
                await self._asks.decide(asked, EXPIRED, token="")
                denied += 1
            except (AskNotPending, StaleRunControl):
                # Somebody was faster: whoever decides takes it off the list. What stays there
                # belongs to a run that is gone.
                member = f"{session_id} {run_id} {ask_id}"
                await self.link.command("ZREM", self.keys.ask_deadlines(), member)
        if denied:
            log.info("asks_expired", count=denied)
        return denied
