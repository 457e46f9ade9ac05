"""What git says of this checkout: its commit, and what a commit holds."""

import os
import re
import subprocess
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from inference_lab.errors import LabError
from inference_lab.records.files import JSON

_SET_BY_HOOKS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


class NoHistory(LabError):
    """Git says nothing of what was asked; the message says why, in words that follow "not checked: "."""


def state(watched: Iterable[str]) -> JSON:
    """`{commit, dirty}` of this checkout; `dirty` when a watched file differs from it or is not in it.

    Raises NoHistory unless this is the top folder of a repository that tracks the watched files.
    """
    _git("rev-parse", "--git-dir")  # says why there is no history
    paths = [path for path in watched if Path(path).exists()]
    try:
        _git("ls-files", "--error-unmatch", "--", *paths)
    except NoHistory:
        raise NoHistory("git does not track the sources here") from None
    try:
        commit = _git("rev-parse", "--verify", "--quiet", "HEAD")
    except NoHistory:
        raise NoHistory("there is no commit here yet") from None
    changed = _git("status", "--porcelain", "--", *paths)
    return {"commit": commit.decode().strip(), "dirty": bool(changed.strip())}


def file_in(commit: str, path: str) -> bytes:
    """The bytes of a file in a commit. Raises NoHistory when git is silent, or one lacks the other."""
    _git("rev-parse", "--git-dir")  # says why there is no history
    short = commit[:12]
    if not _COMMIT.fullmatch(commit):
        raise NoHistory(f"the run names {commit!r}, which is no commit")
    try:
        _git("cat-file", "-e", f"{commit}^{{commit}}")
    except NoHistory:
        if _git("rev-parse", "--is-shallow-repository").strip() == b"true":
            words = f"the history of this clone does not reach back to commit {short}, which the run names"
            raise NoHistory(f"{words} (git fetch --unshallow)") from None
        words = f"commit {short}, which the run names, is not in this repository"
        raise NoHistory(f"{words} (squashed, rebased or imported)") from None
    if (data := blob(commit, path)) is None:
        raise NoHistory(f"commit {short}, which the run names, does not hold it")
    return data


def commit_of(name: str) -> str:
    """Return the commit that a branch, tag or revision names. Raises NoHistory when there is none."""
    _git("rev-parse", "--git-dir")  # says why there is no history
    try:
        found = _git("rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}")
    except NoHistory:
        raise NoHistory(f"git knows no commit {name!r} here") from None
    return found.decode().strip()


def blob(commit: str, path: str) -> bytes | None:
    """Return the bytes of a file in a commit, None when that commit does not have it."""
    try:
        return _git("cat-file", "blob", f"{commit}:{path}")
    except NoHistory:
        return None


def digests_of(path: str) -> frozenset[str]:
    """Return the sha256 of a file in each commit of this history that changed it. Raises NoHistory."""
    commits = _git("log", "--format=%H", "--diff-filter=AM", "--", path).decode().split()
    if not commits:
        raise NoHistory(f"no commit here has {path}")
    batch = _git("cat-file", "--batch", given="".join(f"{commit}:{path}\n" for commit in commits).encode())
    digests: set[str] = set()
    while batch:
        head, _, batch = batch.partition(b"\n")
        size = int(head.split()[-1])
        digests.add(sha256(batch[:size]).hexdigest())
        batch = batch[size + 1 :]
    return frozenset(digests)


def last_with(path: str) -> str | None:
    """The last commit of this history that has the file, None when none has. Raises NoHistory."""
    return _git("log", "-1", "--format=%h", "--diff-filter=AM", "--", path).decode().strip() or None


def _git(*words: str, given: bytes = b"") -> bytes:
    """What git prints. Raises NoHistory with the reason when it refuses or is not there."""
    environment = {name: value for name, value in os.environ.items() if name not in _SET_BY_HOOKS}
    environment |= {"LC_ALL": "C", "GIT_NO_REPLACE_OBJECTS": "1"}
    # A folder unpacked inside another repository has no history of its own: git looks no further up.
    environment["GIT_CEILING_DIRECTORIES"] = str(Path.cwd().parent)
    try:
        done = subprocess.run(["git", *words], env=environment, input=given, capture_output=True, check=False)
    except FileNotFoundError:
        raise NoHistory("git is not installed") from None
    except OSError as error:
        raise NoHistory(f"git cannot be run ({error.strerror})") from None
    if done.returncode == 0:
        return done.stdout
    said = done.stderr.decode(errors="replace").strip()
    if "dubious ownership" in said or "unsafe repository" in said:
        way_out = "git config --global --add safe.directory and its path allows it"
        raise NoHistory(f"git refuses this folder, which another user owns ({way_out})")
    if "not a git repository" in said:
        raise NoHistory("this folder is no git repository")
    raise NoHistory(f"git refuses: {' '.join(said.split()) or f'exit status {done.returncode}'}")
