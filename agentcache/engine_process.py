"""The engine's process: vLLM's own server, on a socket that whoever started it has bound.

    python -m agentcache.engine_process FILE_DESCRIPTOR <vLLM's arguments>

The same as `python -m vllm.entrypoints.openai.api_server`, except that vLLM binds no port of its own: the address stays
with the starter when an engine dies, and the next engine takes it over (`agentcache.supervisor`). And where nobody asks
for a dtype, this processor is (`agentcache.processor`).
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import threading
import time
from multiprocessing.connection import wait

from agentcache.processor import dtype_for

_PATIENCE_S = 15.0
"""How long a server may outlive its engine core."""


def end_with_the_core(patience_s: float = _PATIENCE_S) -> None:
    """Wait until a process that this one started has ended; then this one has `patience_s` to end in order.

    vLLM's server ends when its core has died, but not always: it may wait for a connection for ever, and accept none.
    """
    while not (started := multiprocessing.active_children()):
        time.sleep(1.0)
    wait([process.sentinel for process in started])
    time.sleep(patience_s)
    os._exit(1)


def main() -> None:
    listening = socket.socket(fileno=int(sys.argv.pop(1)))
    os.set_inheritable(listening.fileno(), False)  # for this process, not for those it starts

    import uvloop
    from vllm.entrypoints.launchers.api_server.entry import run_server_worker
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.entrypoints.launchers.launcher import validate_api_server_args
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.logger import configure_logging_from_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.utils.system_utils import decorate_logs, set_ulimit

    decorate_logs("APIServer")
    cli_env_setup()
    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args()
    configure_logging_from_args(arguments)
    arguments.dtype = dtype_for(arguments.dtype, arguments.model)
    validate_parsed_serve_args(arguments)
    if arguments.tool_parser_plugin:
        from vllm.tool_parsers import ToolParserManager

        ToolParserManager.import_tool_parser(arguments.tool_parser_plugin)
    validate_api_server_args(arguments)
    set_ulimit()
    threading.Thread(target=end_with_the_core, name="end-with-the-core", daemon=True).start()
    host, port = listening.getsockname()[:2]
    uvloop.run(run_server_worker(f"http://{host}:{port}", listening, arguments))


if __name__ == "__main__":
    main()
