"""The load client or the reference server as a process of a measurement.

`python -m inference_lab.experiments.serving_child load|serve-reference OPTIONS...` dies with its parent, and
refuses to run code that is not what the record's digests name.
"""

import sys

from inference_lab.errors import LabError
from inference_lab.records.installed import check_loaded
from inference_lab.records.locks import die_with_parent


def main() -> int:
    """The exit code of the program that the first word names."""
    program, *options = sys.argv[1:]
    try:
        die_with_parent()
        if program == "load":
            from inference_lab.stream_load import cli
        else:
            from inference_lab.stream_load.reference import cli
        check_loaded()
    except LabError as error:
        print(error, file=sys.stderr)
        return 2
    return cli.main(options)


if __name__ == "__main__":
    sys.exit(main())
