"""Replaying what agents sent: how much of it is reused, by which policy, and why not more."""
