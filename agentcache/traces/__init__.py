"""Made-up traffic of the shapes that real agents send, from any repository."""
