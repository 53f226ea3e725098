"""TCP sockets that are made before anybody is told their address."""

from __future__ import annotations

import socket

from agentcache.errors import UsageError


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to an address (IPv4 or IPv6), not yet listening. port: 0 takes a free one. UsageError if it is
    taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise UsageError(
            f"port {port} on {host} is in use or not allowed; choose another with --port"
        ) from error
    return bound


def listen(host: str, port: int, backlog: int = 128) -> socket.socket:
    """As `bind`, and listening: who connects now waits until somebody accepts, `backlog` of them at most."""
    listening = bind(host, port)
    listening.listen(backlog)
    return listening
