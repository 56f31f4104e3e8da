"""Becomes a process whose command line and mappings keep every reader waiting; needs no rights.

hanging.py FUSE-DEVICE FOLDER TITLE, within a user and a mount namespace of its own. A file system
of its own (FUSE) never answers a read. One thread reads a page of it by way of /proc/self/mem, which
holds the lock of the address space meanwhile; a second one wants to change that, and whoever reads
/proc/PID/cmdline waits behind it. Writes its process id to standard output, and ends with its
standard input.
"""

import ctypes
import errno
import mmap
import os
import signal
import struct
import sys
import threading
import time

ATTRIBUTES = struct.Struct("<QQQQQQIIIIIIIIII")
INIT, LOOKUP, GETATTR, OPEN, READ, FORGET = 26, 1, 3, 14, 15, 2


def attributes(node):
    mode, size = (0o40755, 0) if node == 1 else (0o100644, 1 << 20)
    owner = (os.getuid(), os.getgid())
    return ATTRIBUTES.pack(node, size, 0, 0, 0, 0, 0, 0, 0, mode, 1, *owner, 0, 4096, 0)


def serve(device):
    while True:
        try:
            request = os.read(device, 1 << 20)
        except OSError:
            return
        _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
        body, error = b"", 0
        if opcode == INIT:
            body = struct.pack("<IIIIHHIIHHIIHH24x", 7, 31, 0, 0, 1, 1, 4096, 1, 0, 0, 0, 0, 0, 0)
            body = body[:64]
        elif opcode == LOOKUP:
            body = struct.pack("<QQQQII", 2, 0, 1000, 1000, 0, 0) + attributes(2)
        elif opcode == GETATTR:
            body = struct.pack("<QII", 1000, 0, 0) + attributes(node)
        elif opcode == OPEN:
            body = struct.pack("<QII", 0, 0, 0)
        elif opcode in (READ, FORGET):
            continue
        else:
            error = -errno.ENOSYS
        os.write(device, struct.pack("<IiQ", 16 + len(body), error, unique) + body)


def hang(folder, title):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.prctl(15, title.encode(), 0, 0, 0)
    file = os.open(folder + "/file", os.O_RDONLY)
    place = libc.mmap(None, 4096, mmap.PROT_READ, mmap.MAP_SHARED, file, 0)
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    threading.Thread(target=os.pread, args=(memory, 16, place), daemon=True).start()
    time.sleep(0.3)
    anonymous = (mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    libc.mmap(None, 4096, *anonymous)


def main():
    path, folder, title = sys.argv[1:4]
    device = os.open(path, os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
    if libc.mount(b"hanging", folder.encode(), b"fuse", 0, options.encode()) != 0:
        sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
    threading.Thread(target=serve, args=(device,), daemon=True).start()
    child = os.fork()
    if child == 0:
        os.close(device)
        hang(folder, title)
        os._exit(0)
    time.sleep(0.8)
    print(child, flush=True)
    sys.stdin.read()
    os.kill(child, signal.SIGKILL)
    os._exit(0)


main()
