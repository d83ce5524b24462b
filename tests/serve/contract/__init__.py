"""Checks of what docs/server.md promises, against the server's program on loopback."""
