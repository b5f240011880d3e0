"""Streams: chunks of rows that are scored, then learned."""

from skvi._stream._run import stream

__all__ = ["stream"]
