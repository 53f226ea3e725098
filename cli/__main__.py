"""`python -m agentcache.cli`: the command, for an interpreter whose scripts are not on the PATH."""

from agentcache.cli.main import main

main()
