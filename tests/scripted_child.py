"""A measuring process that says and does what the script it is given has written down for it.

`script[process]` lists what happens: a mapping is said as a line of JSON, a text is printed as it is, a
number is the signal that ends it. It imports nothing that takes time.
"""

import json
import os
import sys

if __name__ == "__main__":
    script, task = map(json.loads, sys.argv[1:])
    for happens in script[task["process"]]:
        if isinstance(happens, int):
            os.kill(os.getpid(), happens)
        print(happens if isinstance(happens, str) else json.dumps(happens), end="", flush=True)
        if not isinstance(happens, str):
            print(flush=True)
