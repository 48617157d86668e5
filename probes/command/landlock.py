"""Landlock: the kernel refuses writes outside of some folders to this thread and to all that it starts.

It also holds for programs that are not Python's. System calls and structures: Linux, `include/uapi/linux/landlock.h`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # numbers on all architectures that torch supports
_VERSION_FLAG = 1
_PATH_BENEATH = 1
_NO_NEW_PRIVILEGES = 38  # prctl
_WRITE_FILE = 1 << 1
_CHANGE_FOLDERS = sum(1 << bit for bit in range(4, 13))  # remove and make folders, files, links, sockets, devices
_REFER = 1 << 13  # rename and link between folders; before ABI 2 always refused, which scripts do not expect
_TRUNCATE = 1 << 14
_TRUNCATE_SINCE, _FIRST_ABI = 3, 2


class _Ruleset(ctypes.Structure):
    _fields_ = [("handled_access_fs", ctypes.c_uint64)]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


def restrict_writes(folders: Iterable[str]) -> bool:
    """Refuse writes outside of `folders` (EACCES). Returns whether the kernel can: Linux 5.19 with Landlock enabled.

    It cannot be undone. Call it before threads are started.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    abi = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION_FLAG)
    if abi < _FIRST_ABI:
        return False
    rights = _WRITE_FILE | _CHANGE_FOLDERS | _REFER | (_TRUNCATE if abi >= _TRUNCATE_SINCE else 0)
    attributes = _Ruleset(rights)
    ruleset = libc.syscall(_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(ctypes.sizeof(attributes)), 0)
    if ruleset < 0:
        return False
    try:
        for folder in folders:
            descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
            try:
                rule = _PathBeneath(rights, descriptor)
                if libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0):
                    return False
            finally:
                os.close(descriptor)
        return not libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) and not libc.syscall(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
