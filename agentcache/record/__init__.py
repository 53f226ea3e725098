"""A proxy that writes what agents send as a trace."""
