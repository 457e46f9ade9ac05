"""Stands for vLLM's API server: says and does what `--act` names. Imports nothing that takes time.

serve: gets ready, logs two steps, dies when asked · exit: dies of an error · hang: never ready
"""

import argparse
import os
import signal
import socket
import sys
import time

LOG = """\
41 1.5 INFO vllm.v1.core.kv_cache_utils:2327 CPU KV cache size: 1,024 tokens, Maximum concurrency ...
2000000000 1.5 INFO vllm.v1.metrics.loggers:199 Engine 000: Iteration(0): 1 context requests, 37 context \
tokens, 2 generation requests, 3 generation tokens, iteration elapsed time: 72.42 ms, CPU KV cache usage: 0.0%
3000000000 1.5 INFO vllm.v1.metrics.loggers:199 Engine 000: Iteration(1): 0 context requests, 0 context \
tokens, 1 generation requests, 1 generation tokens, iteration elapsed time: 0.50 ms, CPU KV cache usage: 0.0%
"""
METRICS = b'vllm:cache_config_info{_block_size_resolved="True",block_size="32",cache_dtype="auto"} 1.0\n'

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="api_server.py")
    parser.add_argument("--act", default="serve")
    parser.add_argument("--port", type=int)
    args, _ = parser.parse_known_args()
    if args.act == "exit":
        sys.exit("Traceback:\nValueError: the cause\nTraceback:\nRuntimeError: see above\n(more)")
    if args.act == "hang":
        time.sleep(60)
    with socket.create_server(("127.0.0.1", args.port)) as listener:
        print(LOG, end="", flush=True)
        while True:
            peer, _ = listener.accept()
            with peer:
                request = peer.recv(4096)
                if b"/die" in request:
                    os.kill(os.getpid(), signal.SIGKILL)
                body = METRICS if b"/metrics" in request else b""
                peer.sendall(
                    b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
                )
