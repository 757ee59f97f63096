"""name_to_handle_at and open_by_handle_at, also of names that the kernel has dropped (NFS)"""
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]
def handle(path):
    h, mount = Handle(bytes=128), ctypes.c_int()
    if libc.name_to_handle_at(-100, path.encode(), ctypes.byref(h), ctypes.byref(mount), 0) != 0:
        raise OSError(ctypes.get_errno(), "name_to_handle_at")
    return h
root = os.open(".", os.O_RDONLY)
def content(h):
    fd = libc.open_by_handle_at(root, ctypes.byref(h), os.O_RDONLY)
    if fd < 0: raise OSError(ctypes.get_errno(), "open_by_handle_at")
    try: return os.read(fd, 10)
    finally: os.close(fd)
os.makedirs("a/b"); put("a/b/f", b"found"); put("a/gone", b"gone")
f, gone = handle("a/b/f"), handle("a/gone")
attempt("cached", lambda: content(f))
drop()
attempt("dropped", lambda: content(f))
os.rename("a/b/f", "a/elsewhere"); drop()
attempt("renamed", lambda: content(f))
os.unlink("a/gone"); drop()
attempt("removed", lambda: content(gone))
for n in range(50): put(f"a/new{n}")
drop()
attempt("removed, its number perhaps used again", lambda: content(gone))
