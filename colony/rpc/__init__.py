"""The gRPC interface: agents to whoever generates a client from `agents.proto`."""
