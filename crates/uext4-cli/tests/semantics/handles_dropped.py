"""handles of directories and of files with several names, when the kernel knows no name of them any more"""
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("data", ctypes.c_ubyte * 128)]
def handle(path, flags=0):
    h, mount = Handle(bytes=128), ctypes.c_int()
    if libc.name_to_handle_at(-100, path.encode(), ctypes.byref(h), ctypes.byref(mount), flags) != 0:
        raise OSError(ctypes.get_errno(), "name_to_handle_at")
    return h
top = os.getcwd(); root = os.open(".", os.O_RDONLY)
def opened(h, flags=os.O_RDONLY):
    fd = libc.open_by_handle_at(root, ctypes.byref(h), flags)
    if fd < 0: raise OSError(ctypes.get_errno(), "open_by_handle_at")
    return fd
def where(fd): return os.readlink(f"/proc/self/fd/{fd}").replace(top, "TOP")
os.makedirs("a/b/c/d"); put("a/b/c/d/f", b"deep"); os.link("a/b/c/d/f", "a/other"); os.symlink("f", "a/b/l")
deep, file, link, top_handle = handle("a/b/c/d"), handle("a/b/c/d/f"), handle("a/b/l"), handle(".")
drop()
fd = opened(deep); print(where(fd), sorted(os.listdir(fd)))
print(os.stat("..", dir_fd=fd).st_ino == os.stat("a/b/c").st_ino, os.stat("f", dir_fd=fd).st_nlink)
os.close(fd); drop()
os.rename("a/b", "moved"); drop()
fd = opened(deep); print(where(fd)); put(f"/proc/self/fd/{fd}/made", b"by handle"); os.close(fd)
print(open("moved/c/d/made", "rb").read()); drop()
fd = opened(file, os.O_RDWR); os.pwrite(fd, b"D", 0); os.close(fd); print(open("a/other", "rb").read())
os.unlink("moved/c/d/f"); drop()
fd = opened(file); print(os.read(fd, 10), os.fstat(fd).st_nlink)
os.unlink("a/other"); print(os.fstat(fd).st_nlink, os.pread(fd, 4, 0)); drop()
attempt("open without a name, still in use", lambda: os.pread(opened(file), 4, 0))
os.close(fd); drop()
attempt("gone", lambda: opened(file))
attempt("link", lambda: where(opened(link, os.O_PATH)))
attempt("link for reading", lambda: opened(link))
attempt("root", lambda: where(opened(top_handle)))
kept = os.open("moved/c/d", os.O_RDONLY); os.unlink("moved/c/d/made"); os.rmdir("moved/c/d")
attempt("removed directory, open", lambda: os.listdir(opened(deep)))
os.close(kept); drop()
attempt("removed directory", lambda: opened(deep))
