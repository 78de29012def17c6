"""The scripts, one transition each."""
