"""Pictures and labels: formats, protocols, loading, and the embedded scenes."""

from pluralis.data import protocols
from pluralis.data.formats import read, read_hints, write, write_hints

__all__ = ["protocols", "read", "read_hints", "write", "write_hints"]
