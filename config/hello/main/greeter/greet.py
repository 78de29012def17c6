"""A cell: a message comes in on stdin, what the cell has to say leaves on stdout."""

import json
import sys

message = json.load(sys.stdin)
name = message["body"]["messages"][0]["text"]
greeting = {"origin": "assistant", "type": "text", "text": f"Hello, {name}!"}
print(json.dumps({"header": {"route": "done"}, "messages": [greeting]}))
