"""Pictures and labels: formats, protocols, loading, and the embedded scenes."""

from pluralis.data.formats import read, write

__all__ = ["read", "write"]
