"""O_TMPFILE: files without a name, and linkat that gives them one"""
def link(fd, name):
    path = f"/proc/self/fd/{fd}".encode()
    if libc.linkat(-100, path, -100, name.encode(), 0x400) != 0:
        raise OSError(ctypes.get_errno(), "linkat")
os.mkdir("d"); os.chmod("d", 0o2775); os.chown("d", 0, 1234)
fd = os.open("d", os.O_TMPFILE | os.O_RDWR, 0o640)
print(oct(os.fstat(fd).st_mode), os.fstat(fd).st_nlink, os.fstat(fd).st_gid)
os.write(fd, b"nameless"); os.fsync(fd)
attempt("link", lambda: link(fd, "d/named"))
print(os.fstat(fd).st_nlink, open("d/named", "rb").read(), os.listdir("d"))
os.unlink("d/named")
attempt("link what lost its name", lambda: link(fd, "d/again"))
os.close(fd)
fd = os.open("d", os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o600)
attempt("link of O_EXCL", lambda: link(fd, "d/excl"))
os.close(fd)
attempt("read-only", lambda: os.open("d", os.O_TMPFILE | os.O_RDONLY))
print(os.listdir("d"))
