"""FS_IOC_SHUTDOWN: root alone, and nothing can be changed or made durable after it"""
# crashes
# differs: create EIO => create EROFS
# differs: mkdir EIO => mkdir EROFS
# differs: unlink EIO => unlink EROFS
# differs: rename EIO => rename EROFS
# differs: chmod EIO => chmod EROFS
# differs: truncate EIO => truncate EROFS
# differs: write EIO => write EROFS
# differs: fsync of what was never synced EIO => fsync of what was never synced EROFS
# differs: fsync of the directory EIO => fsync of the directory EROFS
# differs: setxattr EIO => setxattr EROFS
# differs: read of what is cached EIO => read of what is cached b'kept'
# differs: open EIO => open ok
put("synced", b"kept"); fd = os.open("synced", os.O_RDWR); os.fsync(fd)
root = os.open(".", os.O_RDONLY); os.chmod(".", 0o777)
def shut(how):
    return fcntl.ioctl(root, 0x8004587d, struct.pack("I", how))
sh("python3 -c 'import fcntl; fcntl.ioctl(open(\"synced\"), 0x8004587d, bytes([2, 0, 0, 0]))' 2>&1 | tail -1", user=1000)
# Right before, since another program's sync(2) would make it durable.
put("unsynced", b"lost"); late = os.open("unsynced", os.O_RDWR)
attempt("shut down", lambda: (shut(2), None)[1])
attempt("create", lambda: os.close(os.open("new", os.O_CREAT | os.O_WRONLY)))
attempt("mkdir", lambda: os.mkdir("dir"))
attempt("unlink", lambda: os.unlink("synced"))
attempt("rename", lambda: os.rename("synced", "other"))
attempt("chmod", lambda: os.chmod("synced", 0o600))
attempt("truncate", lambda: os.ftruncate(fd, 1))
attempt("write", lambda: os.pwrite(fd, b"lost", 0))
attempt("fsync of what was never synced", lambda: os.fsync(late))
attempt("fsync of the directory", lambda: os.fsync(root))
attempt("setxattr", lambda: os.setxattr("synced", "user.a", b"1"))
attempt("read of what is cached", lambda: os.pread(fd, 4, 0))
attempt("open", lambda: os.close(os.open("synced", os.O_RDONLY)))
attempt("stat", lambda: os.stat("synced").st_size)
attempt("listing", lambda: sorted(os.listdir(".")))
attempt("statfs", lambda: os.statvfs(".").f_namemax)
attempt("shut down again", lambda: (shut(2), None)[1])
