# Handles of N files (name_to_handle_at), opened after the kernel has dropped their names, after
# they were renamed, and after they were removed.
import ctypes, errno, os, sys

count = int(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)

class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]

def handle(path):
    found, mount = Handle(bytes=128), ctypes.c_int()
    if libc.name_to_handle_at(-100, path.encode(), ctypes.byref(found), ctypes.byref(mount), 0):
        raise OSError(ctypes.get_errno(), "name_to_handle_at")
    return found

root = os.open(".", os.O_RDONLY)

def content(found):
    fd = libc.open_by_handle_at(root, ctypes.byref(found), os.O_RDONLY)
    if fd < 0:
        raise OSError(ctypes.get_errno(), "open_by_handle_at")
    try:
        return os.read(fd, 100).decode()
    finally:
        os.close(fd)

def drop():
    fd = os.open(".", os.O_RDONLY)
    libc.syncfs(fd)
    os.close(fd)
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("2")

handles = []
for n in range(count):
    folder = f"{n % 7}/{n % 11}"
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/{n}", "w") as file:
        file.write(f"content {n}")
    handles.append(handle(f"{folder}/{n}"))
drop()
for n, found in enumerate(handles):
    assert content(found) == f"content {n}", (n, content(found))
for n in range(0, count, 3):
    os.rename(f"{n % 7}/{n % 11}/{n}", f"{(n + 1) % 7}/renamed {n}")
for n in range(1, count, 3):
    os.unlink(f"{n % 7}/{n % 11}/{n}")
# Their numbers are used again.
for n in range(count // 3):
    with open(f"{n % 7}/new {n}", "w") as file:
        file.write("new")
drop()
for n, found in enumerate(handles):
    try:
        assert content(found) == f"content {n}" and n % 3 != 1, (n, content(found))
    except OSError as error:
        assert n % 3 == 1 and error.errno == errno.ESTALE, (n, error)
