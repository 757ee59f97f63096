"""inodes of 128 bytes: no nanoseconds, years to 2038, no birth times (ext4/043)"""
# mke2fs: -I 128
put("f"); os.mkdir("d"); os.symlink("f", "l")
def told(name):
    s = os.lstat(name); return (s.st_atime_ns, s.st_mtime_ns, s.st_ctime_ns)
def whole(what):
    print(what, [all(time % 10**9 == 0 for time in told(name)) for name in ["f", "d", "l"]])
whole("new")
for name in ["f", "d"]:
    os.utime(name); os.chmod(name, 0o700)
put("d/inside"); whole("changed")
os.utime("f", ns=(1_999_999_999, 5_000_000_001)); print(told("f")[:2]); whole("set")
for time in [-2**31 - 1, 2**31 - 1, 2**31]:
    attempt(f"set {time}", lambda: os.utime("f", ns=(time * 10**9 + 1, time * 10**9 + 999_999_999)))
    before = told("f"); drop(); print(before[:2], told("f") == before)
fd = os.open("f", os.O_RDWR); os.write(fd, b"x"); os.fsync(fd); whole("written"); drop(); whole("dropped")
sh("stat -c %W f")
attempt("xattr", lambda: os.setxattr("f", "user.a", b"1")); print(os.stat("f").st_blocks)
