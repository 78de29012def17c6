"""Multi-tool LLM agents as a message topology, scaled out on Redis."""
