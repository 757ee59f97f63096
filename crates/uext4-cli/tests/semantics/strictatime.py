"""strictatime: each read, listing and use of a link changes the access time, O_NOATIME none (generic/003)"""
# mount: strictatime
past = 1_000_000_000
put("f", b"x" * 300_000); os.mkdir("d"); put("d/inside"); os.symlink("f", "l"); os.mkdir("d/e"); drop()
def changes(what, name, use):
    """Whether `use` moves the access time of `name`, and another time, each time that it is done."""
    for n in range(3):
        os.utime(name, (past, past), follow_symlinks=False)
        before = os.lstat(name); use(); after = os.lstat(name)
        print(what, "changes atime" if after.st_atime_ns != before.st_atime_ns else "changes nothing",
              (after.st_mtime_ns, after.st_ctime_ns) == (before.st_mtime_ns, before.st_ctime_ns))
def reading(flags, call=lambda fd: os.read(fd, 10)):
    def use():
        fd = os.open("f", flags)
        try: call(fd)
        finally: os.close(fd)
    return use
changes("read", "f", reading(os.O_RDONLY))
changes("read and write", "f", reading(os.O_RDWR))
changes("O_NOATIME", "f", reading(os.O_RDONLY | os.O_NOATIME))
changes("open alone", "f", reading(os.O_RDONLY, os.fstat))
kept = os.open("f", os.O_RDONLY)
changes("read of an open file", "f", lambda: os.pread(kept, 100, 5000))
changes("listing", "d", lambda: os.listdir("d"))
def list_quietly():
    fd = os.open("d", os.O_RDONLY | os.O_DIRECTORY | os.O_NOATIME)
    try: os.listdir(fd)
    finally: os.close(fd)
changes("listing with O_NOATIME", "d", list_quietly)
changes("looking up", "d", lambda: os.stat("d/inside"))
changes("readlink", "l", lambda: os.readlink("l"))
changes("following a link", "l", lambda: os.stat("l"))
changes("execution", "f", lambda: subprocess.run(["cat", "f"], stdout=subprocess.DEVNULL))
sh("chattr +A f"); os.utime("f", (past, past)); sh("cat f >/dev/null"); print("chattr +A", os.stat("f").st_atime == past); sh("chattr -A f")
fd = os.open("f", os.O_RDWR | os.O_SYNC); os.pwrite(fd, b"written", 299_998)
print(os.pread(kept, 20, 299_990), os.fstat(fd).st_size, os.pread(fd, 7, 299_998))
m = mmap.mmap(fd, 0); m[:4] = b"mapd"; print(os.pread(kept, 6, 0)); os.pwrite(fd, b"direct", 10); print(m[8:18])
os.truncate("f", 100); print(len(os.pread(kept, 1000, 0)))
sh("findmnt -no OPTIONS -T . | tr , '\\n' | grep -c relatime")
