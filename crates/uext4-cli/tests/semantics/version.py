"""FS_IOC_GETVERSION and SETVERSION without checksums of metadata: for the owner, and seen at once"""
# mke2fs: -O ^metadata_csum
GET, SET, EXT4_GET, EXT4_SET = 0x80087601, 0x40087602, 0x80086603, 0x40086604
def get(fd, request=GET): return struct.unpack("I4x", fcntl.ioctl(fd, request, bytes(8)))[0]
def put_version(fd, n, request=SET): fcntl.ioctl(fd, request, struct.pack("I4x", n))
os.chmod(".", 0o777); put("f", b"content"); os.chmod("f", 0o666); os.mkdir("d"); put("d/inside")
fd, other = os.open("f", os.O_RDWR), os.open("f", os.O_RDONLY)
before = os.fstat(fd); time.sleep(0.05)
attempt("set", lambda: put_version(fd, 4711)); print(get(other), get(fd, EXT4_GET))
after = os.fstat(fd); print(after.st_ctime_ns > before.st_ctime_ns, after.st_mtime_ns == before.st_mtime_ns)
attempt("set by ext4's number", lambda: put_version(other, 0xffffffff, EXT4_SET)); print(get(fd))
print(os.pread(fd, 10, 0), os.stat("f").st_size, open("f", "rb").read(), sorted(os.listdir(".")))
sh("ls -l f | wc -l; cat f")
os.pwrite(fd, b"C", 0); os.fsync(fd); os.rename("f", "g"); print(os.pread(other, 10, 0), os.stat("g").st_ino == after.st_ino)
d = os.open("d", os.O_RDONLY); attempt("directory", lambda: put_version(d, 7)); print(get(d), os.listdir("d"), open("d/inside", "rb").read())
program = "import fcntl, os, sys; fcntl.ioctl(os.open(sys.argv[1], os.O_RDWR), 0x40087602, bytes(8))"
for user in [1000, 1001]:
    os.chown("g", 1000, 1000)
    sh(f"python3 -c '{program}' g 2>&1 | tail -1", user=user); print(get(fd))
attempt("set", lambda: put_version(fd, 12)); os.close(fd); os.close(other); os.close(d); drop()
print(get(os.open("g", os.O_RDONLY)), get(os.open("d", os.O_RDONLY)), open("g", "rb").read())
