"""Choice: who answers for a cell with these params, and under which budget."""

from colony.envelope import digest
from colony.errors import TopologyError
from colony.host import Budget, Host
from workers.llm.asking.admission import Unlimited
from workers.llm.asking.listening import Unheard
from workers.llm.offline.scripted import Scripted
from workers.llm.params import Params
from workers.llm.provider import Provider
from workers.llm.servers.extras import NO_ANTHROPIC, missing_extra
from workers.llm.servers.wire import Wire


def provider_of(params: Params) -> Provider:
    """The provider that the params name; raises TopologyError where its library is not installed.

    Nothing is sent yet. Unless the params say `stream`, nothing is heard before an answer is whole.
    """
    named = _named(params)
    return named if params.stream else Unheard(named)


def _named(params: Params) -> Provider:
    # Imported when they are needed: each takes longer to load than all the rest of a worker.
    match params.provider:
        case "openai":
            from workers.llm.servers.bounded_client import Patience
            from workers.llm.servers.chat_completions import ChatCompletions

            patience = Patience(params.first_byte_timeout_ms / 1000, params.idle_timeout_ms / 1000)
            return ChatCompletions(
                api_key=params.api_key.get_secret_value(),
                base_url=params.base_url,
                headers=_attribution(params),
                timeout_s=params.external_timeout_ms / 1000,
                patience=patience if params.stream else None,
                wire=Wire(params.id_profile, params.content_null),
                text_calls=params.text_calls,
            )
        case "anthropic":
            if missing_extra(params.provider):
                raise TopologyError(detail=NO_ANTHROPIC)
            from workers.llm.servers.anthropic_messages import AnthropicMessages
            from workers.llm.servers.bounded_client import Patience

            patience = Patience(params.first_byte_timeout_ms / 1000, params.idle_timeout_ms / 1000)
            return AnthropicMessages(
                api_key=params.api_key.get_secret_value(),
                base_url=params.base_url,
                headers=_attribution(params),
                timeout_s=params.external_timeout_ms / 1000,
                patience=patience if params.stream else None,
            )
        case "extractive":
            from workers.llm.offline.extractive import Extractive

            return Extractive(model=params.model or params.provider)
        case "scripted":
            return Scripted(params.script, model=params.model or params.provider)


def budget_of(params: Params, host: Host) -> Budget:
    """The budget that all cells with this endpoint and this key share, in whichever tree."""
    if not params.is_remote:
        return Unlimited()
    return host.budget(budget_name(params), params.call_limits)


def budget_name(params: Params) -> str:
    """The name of the budget: it tells endpoints and keys apart, and gives no key away."""
    return digest([params.provider, params.base_url, params.api_key.get_secret_value()])


def _attribution(params: Params) -> dict[str, str]:
    """The headers by which some servers attribute traffic."""
    named = {"HTTP-Referer": params.http_referer, "X-Title": params.x_title}
    return {name: value for name, value in named.items() if value}
