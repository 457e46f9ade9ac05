"""A process that keeps one core busy until its parent ends: `python -m ... CORE PARENT`.

It prints an empty line when it begins.
"""

import os
import sys

from inference_lab.records.locks import die_with_parent

if __name__ == "__main__":
    die_with_parent(int(sys.argv[2]))
    os.sched_setaffinity(0, {int(sys.argv[1])})
    print(flush=True)
    while True:
        pass
