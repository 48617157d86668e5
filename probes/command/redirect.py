"""Python's functions on files act in the view of `files`, in this process and in those that it forks."""

from __future__ import annotations

import errno
import functools
import os
import resource
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import extensions, landlock
from .files import LIMIT_BYTES, View, is_folder, native, real_path

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_READING = frozenset({"r", "rb"})
_LINKED_FROM_BYTES = 1 << 20
"""A copy of a larger file of the user's is a link to it until it is changed."""

Functions = dict[str, Callable[..., Any]]


def install(scratch: str | Path, *, limit_bytes: int = LIMIT_BYTES, wall: bool = True) -> View:
    """Let this process read and change files through the view in `scratch`, in whose mirror it stands.

    `wall` also lets the kernel refuse all other writes where it can, for good: see `landlock`. Call it before threads
    are started. A process that is started, not forked, is covered by its working folder, by the paths among its
    arguments, and by the wall.
    """
    view = View(scratch, limit_bytes)
    tempfile.tempdir = view.temporary
    sys.dont_write_bytecode = True
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes if hard < 0 else min(limit_bytes, hard), hard))
    if wall:
        landlock.restrict_writes((view.scratch, "/dev", "/proc"))
    functions = _readers(view) | _openers(view) | _makers(view) | _movers(view) | {"scandir": _scandir(view)}
    replaced = {getattr(native, name): _as(getattr(native, name), new) for name, new in functions.items()}
    replaced[shutil.copyfile] = _as(shutil.copyfile, _copyfile(view, shutil.copyfile))
    for functions_with in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        functions_with |= {replaced[each] for each in functions_with if each in replaced}
    extensions.rebind(replaced)
    shutil._use_fd_functions = False  # type: ignore[attr-defined]  # trees are removed by paths
    popen: Any = subprocess.Popen
    popen.__init__ = _popen(view, popen.__init__)
    extensions.install(view)
    return view


def _as(original: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function under the original's name, by which it is pickled."""
    return functools.update_wrapper(function, original)


# ---------------------------------------------------------------------- arguments and errors


def _text(path: Any) -> str | None:
    """The path as text; None for descriptors and for what the real function refuses."""
    if isinstance(path, os.PathLike):
        path = os.fspath(path)
    return os.fsdecode(path) if isinstance(path, bytes) else path if isinstance(path, str) else None


def _at(path: Any, options: dict[str, Any], folder: str = "dir_fd") -> Any:
    """The path without the descriptor of its folder."""
    descriptor = options.pop(folder, None)
    text = None if descriptor is None else _text(path)
    return path if text is None else os.path.join(native.readlink(f"/proc/self/fd/{descriptor}"), text)


def _named(error: OSError, path: Any, second: Any = None) -> OSError:
    """The error with the paths that the script knows."""
    if error.filename is not None:
        error.filename = path
        if second is not None:
            error.filename2 = second
    return error


# ---------------------------------------------------------------------- functions, by the names that they replace


def _readers(view: View) -> Functions:
    read = view.read

    def reader(function: Callable[..., Any], read: Callable[[str], str] = read) -> Callable[..., Any]:
        def call(path: Any = ".", *arguments: Any, **options: Any) -> Any:
            if options:
                path = _at(path, options)
            text = path if type(path) is str else _text(path)
            if text is None:
                return function(path, *arguments, **options)
            try:
                place = read(text)
                return function(os.fsencode(place) if isinstance(path, bytes) else place, *arguments, **options)
            except OSError as error:
                raise _named(error, path) from None

        return call

    names = ("access", "getxattr", "listxattr", "pathconf", "statvfs")
    plain_stat = reader(native.stat)

    def absolute(path: Any) -> str:
        return os.path.join(native.getcwd(), os.fsdecode(path))

    def lstat_place(path: Any) -> os.stat_result:
        place = absolute(path)
        found: os.stat_result = native.lstat(place)
        if stat.S_ISLNK(found.st_mode) and view.in_scratch(place) and view.reads_through(place):
            found = native.stat(place)
        return found

    def target(path: Any) -> Any:
        place = absolute(path)
        found = native.readlink(place)
        if view.in_scratch(place) and view.reads_through(place):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        found = view.user_path(found) if found[:1] == "/" else found
        return os.fsencode(found) if isinstance(path, bytes) else found

    plain_lstat = reader(lstat_place)

    def find(path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
        found: os.stat_result
        if type(path) is str and dir_fd is None and follow_symlinks:
            try:
                found = native.stat(read(path))
            except OSError as error:
                raise _named(error, path) from None
        else:
            path = _at(path, {"dir_fd": dir_fd})
            found = plain_stat(path) if follow_symlinks or isinstance(path, int) else plain_lstat(path)
        return found

    def lstat(path: Any, *, dir_fd: int | None = None) -> os.stat_result:
        return find(path, dir_fd=dir_fd, follow_symlinks=False)

    return {
        **{name: reader(getattr(native, name)) for name in names},
        "listdir": reader(native.listdir, view.listed),
        "stat": find,
        "lstat": lstat,
        "readlink": reader(target),
    }


def _openers(view: View) -> Functions:
    read = view.read

    def open_descriptor(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        path = _at(path, {"dir_fd": dir_fd})
        text = _text(path)
        try:
            if text is None:
                place = path
            elif not flags & _WRITING:
                place = read(text)
            else:
                place = view.written(text, keep_content=not flags & os.O_TRUNC, exclusive=bool(flags & os.O_EXCL))
            descriptor: int = native.open(place, flags, mode)
            return descriptor
        except OSError as error:
            raise _named(error, path) from None

    def builtin_open(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        text = file if type(file) is str else _text(file)
        try:
            if text is None:
                place = file
            elif mode in _READING or not set("wax+") & set(mode):
                place = read(text)
            else:
                place = view.written(text, keep_content="w" not in mode, exclusive="x" in mode)
            return native.builtin_open(place, mode, *arguments, **options)
        except OSError as error:
            raise _named(error, file) from None

    def open_code(path: str) -> Any:
        return native.open_code(read(path))

    def truncate(path: Any, length: int) -> None:
        text = _text(path)
        native.truncate(path if text is None else view.written(text), length)

    return {"open": open_descriptor, "builtin_open": builtin_open, "open_code": open_code, "truncate": truncate}


def _makers(view: View) -> Functions:
    """Functions on an entry of a folder, and on its attributes."""

    def maker(name: str) -> Callable[..., Any]:
        function = getattr(native, name)

        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            path = _at(path, options)
            text = _text(path)
            try:
                place = path if text is None else view.changed(text, follow=False)
                if text is not None and (view.is_partial(place) or is_folder(view.passthrough(place))):
                    if name in ("remove", "unlink"):
                        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
                    if name == "rmdir":
                        place = view.complete(text)
                return function(place, *arguments, **options)
            except OSError as error:
                raise _named(error, path) from None

        return call

    def attribute(name: str) -> Callable[..., Any]:
        function = getattr(native, name)

        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            path = _at(path, options)
            text = _text(path)
            try:
                if text is None:
                    return function(path, *arguments, **options)
                place = view.changed(text, options.get("follow_symlinks", True) and name != "lchown")
                if not view.passthrough(place):
                    return function(place, *arguments, **options)
                native.stat(place)  # a user's file keeps its attributes: a copy only for them would cost its size
            except OSError as error:
                raise _named(error, path) from None

        return call

    entries = ("mkdir", "mkfifo", "mknod", "remove", "rmdir", "unlink")
    attributes = ("chmod", "chown", "lchown", "removexattr", "setxattr", "utime")
    return {name: maker(name) for name in entries} | {name: attribute(name) for name in attributes}


def _movers(view: View) -> Functions:
    def mover(function: Callable[..., None]) -> Callable[..., None]:
        def call(src: Any, dst: Any, **options: Any) -> None:
            src, dst = _at(src, options, "src_dir_fd"), _at(dst, options, "dst_dir_fd")
            try:
                places = [view.changed(os.fsdecode(path), follow=False) for path in (src, dst)]
                for place in places:
                    if view.is_partial(place) or is_folder(view.passthrough(place)):
                        view.complete(place)
                function(*places, **options)
                view.count(places[1])
            except OSError as error:
                raise _named(error, src, dst) from None

        return call

    def symlink(src: Any, dst: Any, target_is_directory: bool = False, *, dir_fd: int | None = None) -> None:
        dst = _at(dst, {"dir_fd": dir_fd})
        try:
            native.symlink(view.link_target(os.fsdecode(src)), view.changed(os.fsdecode(dst), follow=False))
        except OSError as error:
            raise _named(error, src, dst) from None

    def chdir(path: Any) -> None:
        text = native.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else os.fsdecode(path)
        try:
            view.enter(text)
        except OSError as error:
            raise _named(error, path) from None

    moves = {name: mover(getattr(native, name)) for name in ("link", "rename", "replace")}
    return {**moves, "symlink": symlink, "chdir": chdir, "fchdir": chdir}


class _Entry:
    """`os.DirEntry` of a folder of the view: a passthrough is what it stands for."""

    def __init__(self, view: View, entry: os.DirEntry[str], folder: str) -> None:
        self.name = entry.name
        self.path = os.path.join(folder, entry.name)
        self._entry = entry
        self._passes = entry.is_symlink() and bool(view.passthrough(entry.path))

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._entry.is_dir(follow_symlinks=follow_symlinks or self._passes)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self._entry.is_file(follow_symlinks=follow_symlinks or self._passes)

    def is_symlink(self) -> bool:
        return not self._passes and self._entry.is_symlink()

    def is_junction(self) -> bool:
        return False

    def inode(self) -> int:
        return self.stat(follow_symlinks=False).st_ino

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return self._entry.stat(follow_symlinks=follow_symlinks or self._passes)


class _Entries:
    """The iterator that `os.scandir` returns."""

    def __init__(self, view: View, place: str, folder: str) -> None:
        with native.scandir(place) as entries:
            self._entries = iter([_Entry(view, each, folder) for each in entries])

    def __iter__(self) -> _Entries:
        return self

    def __next__(self) -> _Entry:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass


def _scandir(view: View) -> Callable[..., Any]:
    def scandir(path: Any = ".") -> Any:
        text = "." if path is None else _text(path)
        if text is None:
            return native.scandir(path)
        try:
            place = view.listed(text)
            real = real_path(place)
            if isinstance(path, bytes) or (not view.in_scratch(real) and (text[:1] != "/" or real == text)):
                return native.scandir(path)  # the user's folder, of which nothing was changed
            return _Entries(view, real, text)
        except OSError as error:
            raise _named(error, path) from None

    return scandir


def _copyfile(view: View, function: Callable[..., Any]) -> Callable[..., Any]:
    def copyfile(src: Any, dst: Any, *, follow_symlinks: bool = True) -> Any:
        try:
            source = real_path(view.read(os.fsdecode(src)))
            found = native.stat(source)
        except OSError:
            return function(src, dst, follow_symlinks=follow_symlinks)
        is_large = stat.S_ISREG(found.st_mode) and found.st_size > _LINKED_FROM_BYTES
        if not is_large or view.in_scratch(source) or not follow_symlinks:
            return function(src, dst, follow_symlinks=follow_symlinks)
        place = view.written(os.fsdecode(dst), keep_content=False)
        native.symlink(source, f"{place}.link")
        native.rename(f"{place}.link", place)
        return dst

    return copyfile


def _popen(view: View, start: Callable[..., None]) -> Callable[..., None]:
    def argument(value: Any) -> Any:
        """A program may write at an absolute path among its arguments."""
        text = value if isinstance(value, str | os.PathLike) else ""
        text = os.fspath(text)
        if not isinstance(text, str) or text[:1] != "/" or "\0" in text:
            return value
        place = view.changed(text)
        if is_folder(view.passthrough(place)):
            return view.complete(text)
        return place if is_folder(os.path.dirname(place)) else value

    def call(process: Any, args: Any, *arguments: Any, **options: Any) -> None:
        if options.get("cwd") is not None:
            options["cwd"] = view.complete(os.fsdecode(options["cwd"]))
        if isinstance(args, list | tuple) and args:
            args = [args[0], *map(argument, args[1:])]
        start(process, args, *arguments, **options)

    return call
