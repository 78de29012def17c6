"""Windows: how many tokens a model reads at once, where nobody has said so."""

# By the beginning of a model's name; of several the longest counts.
CATALOGUE = {
    "claude-": 200_000,
    "codestral": 256_000,
    "deepseek-": 128_000,
    "gemini-": 1_048_576,
    "gpt-3.5-turbo": 16_385,
    "gpt-4": 8_192,
    "gpt-4-turbo": 128_000,
    "gpt-4.1": 1_047_576,
    "gpt-4o": 128_000,
    "gpt-5": 400_000,
    "mistral-": 128_000,
    "o1": 200_000,
    "o3": 200_000,
    "o4-mini": 200_000,
}
OTHERWISE = 128_000


def window_of(model: str, configured: int) -> int:
    """The window of a model: what the tree says, what is known of the model, or a usual one."""
    if configured:
        return configured
    # Some servers put the maker before the name.
    name = model.lower().rpartition("/")[2]
    known = [begin for begin in CATALOGUE if name.startswith(begin)]
    return CATALOGUE[max(known, key=len)] if known else OTHERWISE
