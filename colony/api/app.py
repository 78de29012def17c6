"""The application: every route of the HTTP interface, over one colony."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route

from colony.access import Access
from colony.api import events, health, letters, messages, problems, reads
from colony.api.auth import Auth
from colony.api.spells import Spells
from colony.errors import ColonyError


def make_app(access: Access, *, token: str | None) -> Starlette:
    """The application; with a token, every route but those of health asks for it."""
    app = Starlette(
        routes=[
            Route("/messages", messages.post_message, methods=["POST"]),
            Route("/colony/registry", reads.get_registry),
            Route("/colony/graph", reads.get_graph),
            Route("/colony/status", reads.get_status),
            Route("/colony/trace", reads.get_trace),
            Route("/colony/traces", reads.get_traces),
            Route("/colony/messages", reads.get_messages),
            Route("/colony/rounds", reads.get_rounds),
            Route("/colony/rounds/{turn_id:path}", reads.get_rounds),
            Route("/colony/threads/{question:path}/request", reads.get_request),
            Route("/colony/threads/{question:path}", reads.get_thread),
            Route("/colony/documents/{handle}", reads.get_document),
            Route("/colony/dead_letters", letters.get_letters),
            Route("/colony/dead_letters", letters.drop_letters, methods=["DELETE"]),
            Route("/colony/dead_letters/replay", letters.replay_letters, methods=["POST"]),
            Route("/colony/dead_letters/{id}", letters.get_letter),
            Route("/colony/dead_letters/{id}", letters.drop_letter, methods=["DELETE"]),
            Route("/colony/dead_letters/{id}/replay", letters.replay_letter, methods=["POST"]),
            Route("/colony/events", events.get_events),
            Route("/healthz", health.get_health),
            Route("/health", health.get_health),
            Route("/readyz", health.get_ready),
        ],
        middleware=[Middleware(Auth, token=token)],
        exception_handlers={
            problems.Problem: problems.on_problem,
            ColonyError: problems.on_colony_error,
            HTTPException: problems.on_http_exception,
            Exception: problems.on_anything_else,
        },
    )
    app.router.redirect_slashes = False
    app.state.access = access
    app.state.spells = Spells()
    return app
