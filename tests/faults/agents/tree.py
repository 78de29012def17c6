"""The agent that is put under faults: three batches of calls, of which the middle one asks."""

import json
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from colony.testing.model_server import ModelRequest
from colony.topology.load import load
from colony.topology.model import TopologySpec

ROOT: Final = Path(__file__).parent
AGENT: Final = "assistant"
AGENT_CELLS: Final = "/assistant/*"
TOOLS: Final = ("/look", "/change")
FOLDER: Final = "folder"

LOOKING: Final = "Let me look first and then change it. "
ANSWER: Final = "It is done and it is blue."

# So long from piece to piece of an answer that somebody can come in between.
PAUSE_S: Final = 0.02


@cache
def spec(**handed: Any) -> TopologySpec:
    """The tree, to be published, with these values for its template."""
    edges: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for path in TOOLS:
            name = path.removeprefix("/")
            _write(root / "main" / name, _tool(name, read_only=name == "look"))
            condition = f"hop.route == 'tool' && has(hop.tool_name) && hop.tool_name == '{name}'"
            edges.append({"from": "./assistant/permit", "to": f".{path}", "condition": condition})
            edges.append({"from": f".{path}", "to": "./assistant/collector"})
        _write(root / "main", {"cell": {"type": "hive"}, "params": {"graph": {"edges": edges}}})
        values = {
            "provider": "openai",
            "model": "small",
            "base_url": "${MODEL_URL}",
            "api_key": "",
            "fold_provider": "openai",
            "fold_model": FOLDER,
            "fold_base_url": "${MODEL_URL}",
            "fold_api_key": "",
            "permissions": {"allow": ["look"], "ask": ["change"]},
            **handed,
        }
        hive = {"cell": {"type": "hive"}, "params": {"template": "agent", "with": values}}
        _write(root / "main" / AGENT, hive)
        return load(root, environment={"MODEL_URL": "http://127.0.0.1:1/v1"}).publishable()


def answer(request: ModelRequest) -> dict[str, Any]:
    """What the model answers: its calls first, and once it has their results its last word."""
    if request.body.get("model") == FOLDER:
        return {"text": "GOAL\nLook and change.", "delay_s": PAUSE_S}
    newest = max(at for at, said in enumerate(request.messages) if said["role"] == "user")
    turn = sum(said["role"] == "assistant" for said in request.messages[newest:])
    if turn:
        return {"text": ANSWER, "pause_s": PAUSE_S}
    made = len(request.messages)
    calls = [
        {"id": f"c{made}-{n}", "name": name, "arguments": {"n": f"{made}-{n}"}}
        for n, name in enumerate(("look", "look", "change", "look"))
    ]
    return {"text": LOOKING, "tool_calls": calls, "pause_s": PAUSE_S}


def _tool(name: str, *, read_only: bool) -> dict[str, Any]:
    tool = {
        "name": name,
        "description": f"To {name}.",
        "parameters": {"type": "object"},
        "read_only": read_only,
    }
    hop = {"route": {"type": "string"}, "error_code": {"type": "string", "required": False}}
    return {
        "cell": {"type": "code"},
        "params": {"handler": f"fault_tools:{name}"},
        "contract": {
            "version": "1",
            "settings": {},
            "consumes": {},
            "emits": {"hop": hop},
            "tool": tool,
        },
    }


def _write(folder: Path, config: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
