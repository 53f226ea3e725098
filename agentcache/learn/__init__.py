"""Learning from traffic: prompt text that is no source block, generated answers, and how a client shows files.

The engine's scheduler half notes what a request had to compute (`note`, `runs`), the worker process asks for the notes,
decides what is worth keeping (`learner`, `ledger`), and has it computed by itself in idle time (`agentcache.warm`).
"""
