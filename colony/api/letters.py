"""Letters: the dead letters over HTTP, to be read, replayed and dropped."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from colony.access import promptly
from colony.api.requests import Limit, Millisecond, NoQuery, Query, access_of


class LettersQuery(Query):
    """Which letters."""

    since: Millisecond = 0
    error_code: str | None = None
    limit: Limit = 100


async def get_letters(request: Request) -> Response:
    """The letters, oldest first, and how many there are."""
    query = LettersQuery.of(request)
    letters = access_of(request).dead_letters
    found = await promptly(
        letters.list(code=query.error_code, since_ms=query.since, limit=query.limit)
    )
    count = await promptly(letters.count())
    return JSONResponse({"dead_letters": [letter.to_json() for letter in found], "count": count})


async def drop_letters(request: Request) -> Response:
    """Forget letters, the oldest first, and answer with what they were."""
    query = LettersQuery.of(request)
    letters = access_of(request).dead_letters
    found = await promptly(
        letters.list(code=query.error_code, since_ms=query.since, limit=query.limit)
    )
    for letter in found:
        await promptly(letters.drop(letter.id))
    count = await promptly(letters.count())
    return JSONResponse({"dead_letters": [letter.to_json() for letter in found], "count": count})


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
