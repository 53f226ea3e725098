"""What keeping a repository warm takes: bytes, time, and when it pays."""
