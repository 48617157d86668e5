"""A view of the file system in scratch, through which a script of the user's writes without changing any file.

The view is a tree of folders that begins at `/`. A folder in it is a symlink to the user's folder (a passthrough), or a
real folder whose entries are passthroughs, real folders and files that the script wrote. Reading follows the links.
Before the first change below a folder, each folder on the way becomes a real one; a file that is opened for writing
becomes a copy; removing an entry removes its link. The state is thus in the view itself. All processes of the script,
also programs that are not Python's, see the same files by paths relative to the working folder, which lies in the view.

A passthrough is a link with an absolute target outside of scratch. The user's own symlinks are copied into a real
folder; their absolute targets begin in the view. A real folder with many entries is partial: it gets a link when a name
is first used, and the others when it is listed.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import posix
import posixpath
import stat
import threading
import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

native = SimpleNamespace(**vars(posix), builtin_open=builtins.open, open_code=io.open_code)
"""The functions of the system as they were before any of them was replaced."""

_KERNEL = ("/proc/", "/sys/", "/dev/")
"""Outside of the view: devices and the state of processes. Files in `_SHARED_MEMORY` are files."""
_SHARED_MEMORY = "/dev/shm/"
_MAX_LINKS = 40  # as in the kernel
_MIRRORED_ENTRIES = 4_000
_LISTED_ENTRIES = 500
"""Entries from which a folder is partial: a link costs 10 to 100 microseconds, and /home or a data set has 100,000."""
_COUNTED_EVERY_S = 0.2
_COPIED_BYTES = 1 << 26
LIMIT_BYTES = 2 << 30


class View:
    """The view below `SCRATCH/files`; temporary files lie in `SCRATCH/tmp`.

    Paths are strings. `limit_bytes` is the most that a script may write to all its files together.
    """

    def __init__(self, scratch: str | Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self.scratch = os.path.realpath(scratch)
        self.root = f"{self.scratch}/files"
        self.temporary = f"{self.scratch}/tmp"
        self.limit_bytes = limit_bytes
        self._inside = f"{self.scratch}/"
        self._below_root = f"{self.root}/"
        self._lock = threading.RLock()
        self._written: set[str] = set()
        self._counted_s = 0.0
        self._partial: dict[str, tuple[str, set[str]]] = {}
        """Place of a partial folder -> the user's folder, and the names that were used."""
        self._special: tuple[str, ...] = ()
        """Beginnings of absolute paths that are looked at more closely."""
        self._partial_here = False
        self._partial_list = f"{self.scratch}/partial"
        if not _exists(self.root):
            native.mkdir(self.temporary)
            native.mkdir(self._partial_list)
            native.symlink("/", self.root)
            self._make_real(self.root, "", _LISTED_ENTRIES)
        for name in native.listdir(self._partial_list):
            place, source = native.readlink(f"{self._partial_list}/{name}").split("\n")
            self._partial[place] = source, set()
        self._note_partial()

    def mirror(self, folder: str | Path, most_entries: int = _MIRRORED_ENTRIES) -> Path:
        """Make the folder and the folders in it real, outer ones first, and return its place in the view.

        Folders with more than `most_entries` together stay passthroughs: a program that is not Python's would write
        into the user's folder there, unless Landlock forbids it.
        """
        top = self.complete(f"{folder}")
        queue = [top]
        for place in queue:
            with native.scandir(place[len(self.root) :]) as entries:
                names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            for name in names:
                if self.passthrough(f"{place}/{name}"):
                    most_entries -= self._make_real(f"{place}/{name}", "", max(0, most_entries), partial=False)
                    if not self.passthrough(f"{place}/{name}"):
                        queue.append(f"{place}/{name}")
        return Path(top)

    def complete(self, folder: str) -> str:
        """The place of a folder, which becomes a real folder with all its entries."""
        place = self.changed(f"{folder}/.")
        with self._lock:
            if place in self._partial:
                source, used = self._partial[place]
                with native.scandir(source) as entries:
                    there = used.union(native.listdir(place))
                    self._link(place, (entry for entry in entries if entry.name not in there))
                del self._partial[place]
                self._note_partial()
        return place

    def listed(self, folder: str) -> str:
        """Where a reader finds a folder with all its entries."""
        return self.complete(folder) if self.is_partial(self.root + self.user_path(folder)) else self.read(folder)

    def is_partial(self, place: str) -> bool:
        return place in self._partial

    def enter(self, folder: str) -> None:
        """Make a folder the working folder."""
        try:
            place = self.complete(folder)
        except PermissionError:  # it can be entered, not listed
            place = self.changed(f"{folder}/.")
        native.chdir(place)
        self._note_partial()

    def in_scratch(self, path: str) -> bool:
        return path.startswith(self._inside) or path == self.scratch

    def user_path(self, path: str) -> str:
        """The absolute path that the user would write for it. Temporary files stay where they are."""
        if path[:1] != "/":
            path = f"{native.getcwd()}/{path}"
        if path.startswith(self._below_root):
            path = path[len(self.root) :]
        elif path == self.root:
            return "/"
        return posixpath.normpath(path) if "/." in path or path.endswith("/") else path

    def read(self, path: str) -> str:
        """Where a reader finds the path: itself, or its place in the view."""
        if path[:1] == "/" and "/.." not in path and not path.startswith(self._special):
            return self.root + path
        if "/.." in path or path[:2] == ".." or (self._partial_here and path[:1] != "/"):
            path = self.user_path(path)
        if path[:1] != "/" or _of_kernel(path):
            return path
        if path.startswith(self._inside) or path == self.scratch:
            if not self._partial or not path.startswith(self._below_root):
                return path
            path = path[len(self.root) :]
        for place in list(self._partial):
            folder = f"{place[len(self.root) :]}/"
            if path.startswith(folder):
                self._use(place, path[len(folder) :].partition("/")[0])
        return self.root + path

    def changed(self, path: str, follow: bool = True) -> str:
        """The place in scratch at which a change of the path happens. The folders on the way become real, symlinks are
        followed, also the last component with `follow`. The last component may still be a passthrough; of a path that
        ends in `/.` it becomes a real folder."""
        inner = path.endswith("/.")
        path = self.user_path(path)
        if _of_kernel(path):
            return path
        here, names = self._start(path)
        if inner:
            names.insert(0, ".")
        links = 0
        while names:
            name = names.pop()
            if name == ".":
                continue
            if name == "..":
                here = here if here == self.root else posixpath.dirname(here)
                continue
            here, parent = f"{here}/{name}", here
            if parent in self._partial:
                self._use(parent, name)
            try:
                target = native.readlink(here)
            except OSError:  # no link
                continue
            if target[:1] == "/" and not self.in_scratch(target):
                if names and is_folder(target):
                    self._make_real(here, names[-1], _LISTED_ENTRIES)
            elif names or follow:
                links += 1
                if links > _MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                here, more = self._start(target) if target[:1] == "/" else (parent, target.split("/")[::-1])
                names += [name for name in more if name]
        return here

    def passthrough(self, place: str) -> str:
        """The user's file or folder that a place in scratch stands for, or "" if it is the script's own."""
        try:
            target = native.readlink(place)
        except OSError:
            return ""
        return target if target[:1] == "/" and not self.in_scratch(target) else ""

    def reads_through(self, place: str) -> bool:
        """Whether a place is a passthrough, and not a symlink of the user's in an untouched folder."""
        return bool(self.passthrough(place)) and self.in_scratch(real_path(posixpath.dirname(place)))

    def make_private(self, place: str, keep_content: bool) -> None:
        """Replace a passthrough to a file by a copy of the file, or by an empty file. Devices stay what they are.
        Raises OSError where the copy would exceed the limit."""
        source = self.passthrough(place)
        if not source:
            return
        try:
            found = native.stat(source)
        except FileNotFoundError:
            native.unlink(place)
            return
        if stat.S_ISDIR(found.st_mode):
            self._make_real(place, ".", _LISTED_ENTRIES)
        if not stat.S_ISREG(found.st_mode):
            return
        if keep_content:
            self._check(found.st_size)
        staged = f"{place}.{native.getpid()}.{threading.get_ident()}"
        to = native.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_IMODE(found.st_mode))
        try:
            if keep_content:
                source_file = native.open(source, os.O_RDONLY)
                try:
                    while native.sendfile(to, source_file, None, _COPIED_BYTES):
                        pass
                finally:
                    native.close(source_file)
        finally:
            native.close(to)
        native.rename(staged, place)

    def written(self, path: str, keep_content: bool = True, exclusive: bool = False) -> str:
        """The place of a file that is opened for writing. It is the script's own, unless it must not exist before."""
        place = self.changed(path, follow=not exclusive)
        if not exclusive:
            self.make_private(place, keep_content)
        self.count(place)
        return place

    def count(self, place: str) -> None:
        """Note a file that is written. Raises OSError if the files together exceed the limit."""
        self._written.add(place)
        if time.monotonic() > self._counted_s + _COUNTED_EVERY_S:
            self._check(0)
            self._counted_s = time.monotonic()

    def link_target(self, target: str) -> str:
        """What a symlink in the view has to say so that it leads to the target in the view."""
        if target[:1] != "/" or self.in_scratch(target) or _of_kernel(target):
            return target
        return self.root + target

    def _check(self, more_bytes: int) -> None:
        total = more_bytes
        for each in self._written:
            try:
                total += native.lstat(each).st_size
            except OSError:  # removed since
                continue
        if total > self.limit_bytes:
            reason = (
                f"the script wrote more than the {self.limit_bytes / 2**30:.3g} GiB that a dry run keeps in scratch"
            )
            raise OSError(errno.ENOSPC, reason)

    def _start(self, path: str) -> tuple[str, list[str]]:
        """The folder to begin at, and the names from there, the last one first."""
        start = self.root
        if path.startswith(self._below_root):
            path = path[len(self.root) :]
        elif self.in_scratch(path):
            start, path = self.scratch, path[len(self.scratch) :]
        return start, [name for name in path.split("/")[::-1] if name]

    def _make_real(self, place: str, name: str, most_entries: int, *, partial: bool = True) -> int:
        """Replace a passthrough to a folder by a real folder, because `name` in it is used next.

        The folder is partial if it has more entries than `most_entries`, does not list `name` although it exists
        (automounts), or cannot be listed (search permission alone). Without `partial` it then stays a passthrough.
        Returns the number of entries.
        """
        with self._lock:
            source = self.passthrough(place)
            if not source:
                return 0  # another thread was faster
            try:
                with native.scandir(source) as entries:
                    found = list(islice(entries, most_entries + 1))
            except PermissionError:
                found = []
            base = source.rstrip("/")
            all_found = len(found) <= most_entries and (
                name in ("", ".") or any(entry.name == name for entry in found) or not _exists(f"{base}/{name}")
            )
            if not all_found and not partial:
                return 0
            staged = f"{place}.{native.getpid()}"
            native.mkdir(staged)
            if all_found:
                self._link(staged, found)
            else:
                self._partial[place] = base, set()
                native.symlink(f"{place}\n{base}", f"{self._partial_list}/{time.monotonic_ns()}")
                self._note_partial()
            native.unlink(place)
            native.rename(staged, place)
            return len(found)

    def _link(self, folder: str, entries: Iterable[os.DirEntry[str]]) -> None:
        for entry in entries:
            target = native.readlink(entry.path) if entry.is_symlink() else ""
            if entry.path != self.scratch:
                native.symlink(self.link_target(target) or entry.path, f"{folder}/{entry.name}")

    def _use(self, folder: str, name: str) -> None:
        """Link a name of a partial folder when it is used for the first time; later it may have been removed."""
        source, used = self._partial[folder]
        user_path, place = f"{source}/{name}", f"{folder}/{name}"
        if name in used:
            return
        with self._lock:
            if _exists(user_path) and not _exists(place) and user_path != self.scratch:
                try:
                    target = native.readlink(user_path)
                except OSError:
                    target = ""
                native.symlink(self.link_target(target) or user_path, place)
            used.add(name)

    def _note_partial(self) -> None:
        folders = [place[len(self.root) :] for place in self._partial]
        here = self.user_path(".").rstrip("/")
        self._special = (self.scratch, *_KERNEL, *(f"{folder}/" for folder in folders))
        self._partial_here = any(f"{folder}/".startswith(f"{here}/") for folder in folders)


def environment(scratch: str | Path, *, offline: bool = False) -> dict[str, str]:
    """Variables for the worker's process: caches that compilers and other programs write lie in scratch, experiment
    trackers are off, and no bytecode is cached."""
    view = View(scratch)
    cache = f"{view.temporary}/cache"
    return {
        "TMPDIR": view.temporary,
        "PYTHONDONTWRITEBYTECODE": "1",
        "TORCH_EXTENSIONS_DIR": f"{cache}/torch_extensions",
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
        "TRITON_CACHE_DIR": f"{cache}/triton",
        "HF_HUB_DISABLE_XET": "1",  # its downloads are written by Rust, at absolute paths
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
        "WANDB_MODE": "disabled",  # WANDB_DISABLED would make report_to="wandb" fail
        "SWANLAB_MODE": "disabled",
        "COMET_MODE": "DISABLED",
        "NEPTUNE_MODE": "debug",  # nothing is sent
        "CLEARML_OFFLINE_MODE": "1",
        "CLEARML_CACHE_DIR": f"{cache}/clearml",
        "MLFLOW_TRACKING_URI": f"file:{cache}/mlruns",
        "TRACKIO_DIR": f"{cache}/trackio",
        **({"HF_HUB_OFFLINE": "1"} if offline else {}),
    }


def _of_kernel(path: str) -> bool:
    return path.startswith(_KERNEL) and not path.startswith(_SHARED_MEMORY)


def real_path(path: str) -> str:
    """The path without symlinks. Raises OSError if it does not exist."""
    descriptor = native.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        found: str = native.readlink(f"/proc/self/fd/{descriptor}")
        return found
    finally:
        native.close(descriptor)


def is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(native.stat(path).st_mode)
    except OSError:
        return False


def _exists(path: str) -> bool:
    try:
        native.lstat(path)
    except OSError:
        return False
    return True
