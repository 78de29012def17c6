"""Letters: the dead letters over HTTP, to be read, replayed and dropped."""

from typing import Annotated

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from colony.access import promptly
from colony.api.requests import Limit, Millisecond, NoQuery, Query, access_of
from colony.dead_letters import Which

LetterId = Annotated[str, Field(pattern=r"^[0-9]{1,19}-[0-9]{1,19}$")]


class LettersQuery(Query):
    """Which letters. `after` is the id of the last one that was seen."""

    error_code: str | None = None
    trace_id: str | None = None
    to_path_prefix: str | None = None
    from_path_prefix: str | None = None
    since: Millisecond | None = None
    until: Millisecond | None = None
    after: LetterId | None = None
    limit: Limit = 100

    def which(self) -> Which:
        """What the dead letters are asked for."""
        return Which(
            code=self.error_code,
            trace_id=self.trace_id,
            to_path_prefix=self.to_path_prefix,
            from_path_prefix=self.from_path_prefix,
            since=self.since,
            until=self.until,
            after=self.after,
        )


class BulkQuery(LettersQuery):
    """With which letters something is done, once `dry_run` is false."""

    dry_run: bool = True


async def get_letters(request: Request) -> Response:
    """The letters, oldest first, and how many there are."""
    query = LettersQuery.of(request)
    letters = access_of(request).dead_letters
    found = await promptly(letters.list(query.which(), limit=query.limit))
    count = await promptly(letters.count())
    return JSONResponse({"dead_letters": [letter.to_json() for letter in found], "count": count})


async def drop_letters(request: Request) -> Response:
    """Forget letters, the oldest first, and answer with how many of which kind those were."""
    query = BulkQuery.of(request)
    access = access_of(request)
    tally = await promptly(access.drop_all(query.which(), limit=query.limit, dry_run=query.dry_run))
    return JSONResponse(tally.to_json())


async def replay_letters(request: Request) -> Response:
    """Send the envelopes of letters again, the oldest first, but for those sent again before."""
    query = BulkQuery.of(request)
    access = access_of(request)
    tally = await promptly(
        access.replay_all(query.which(), limit=query.limit, dry_run=query.dry_run)
    )
    return JSONResponse(tally.to_json(), 200 if query.dry_run else 202)


async def get_letter(request: Request) -> Response:
    """One letter, the whole envelope with it."""
    NoQuery.of(request)
    letter = await promptly(access_of(request).dead_letters.get(request.path_params["id"]))
    return JSONResponse({"dead_letter": letter.to_json()})


async def drop_letter(request: Request) -> Response:
    """Forget one letter and answer with what it was."""
    NoQuery.of(request)
    letter = await promptly(access_of(request).dead_letters.drop(request.path_params["id"]))
    return JSONResponse({"dead_letter": letter.to_json()})


async def replay_letter(request: Request) -> Response:
    """Send a letter's envelope again; a repetition sends nothing and answers the same."""
    NoQuery.of(request)
    trace_id = await promptly(access_of(request).replay(request.path_params["id"]))
    return JSONResponse({"trace_id": trace_id}, 202)
