#!/usr/bin/env python3
"""emulated.py EMULATOR COMMAND...: the command, where programs for 64-bit ARM run as if they were this machine's: scripts/arm64.sh.

The system knows the emulator for this command and its children only: since Linux 6.7 a user namespace has such a table of its own. As root
all users are there, else only root, who stands for the user. Status 125: this system allows no such thing."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

NEW_USERS, NEW_MOUNTS = 0x10000000, 0x00020000  # CLONE_NEWUSER, CLONE_NEWNS
TABLE = "/proc/sys/fs/binfmt_misc"
# 64-bit, little-endian, for ARM: a program, or one that can lie anywhere.
MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"


def enter_namespaces():
    """A parent's right to name all users is lost on entering: a process that stays behind names them."""
    entered = os.pipe()
    own, user, group = os.getpid(), os.geteuid(), os.getegid()
    stays = os.fork()
    if stays == 0:
        os.read(entered[0], 1)
        if user == 0:
            maps = {"uid_map": "0 0 4294967295", "gid_map": "0 0 4294967295"}
        else:
            maps = {"setgroups": "deny", "uid_map": f"0 {user} 1", "gid_map": f"0 {group} 1"}
        try:
            for name, text in maps.items():
                Path(f"/proc/{own}/{name}").write_text(text, encoding="ascii")
        except OSError as error:
            print(f"emulated.py: {error}", file=sys.stderr)
            os._exit(1)
        os._exit(0)
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.unshare(NEW_USERS | NEW_MOUNTS) != 0
    error = ctypes.get_errno()
    os.write(entered[1], b"\n")
    mapped = os.waitpid(stays, 0)[1] == 0
    for end in entered:
        os.close(end)
    if failed:
        raise OSError(error, os.strerror(error))
    if not mapped:
        raise OSError("the users could not be named")


def main():
    emulator, *command = sys.argv[1:]
    try:
        enter_namespaces()
        subprocess.run(["mount", "-t", "binfmt_misc", "none", TABLE], check=True)
        # P: a program sees the name by which it was called. F: the emulator is opened now, so it need not be in a chroot.
        Path(f"{TABLE}/register").write_text(f":arm64:M::{MAGIC}:{MASK}:{emulator}:PF", encoding="ascii")
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"emulated.py: {error}", file=sys.stderr)
        sys.exit(125)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
