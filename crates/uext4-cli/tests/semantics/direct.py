"""direct writes beside buffered reads (generic/451), and shared mappings of O_DIRECT files"""
size = 1 << 16
put("f", bytes(size))
buffered = os.open("f", os.O_RDONLY)
direct = os.open("f", os.O_RDWR | os.O_DIRECT)
page = mmap.mmap(-1, 4096)
stale = 0
for n in range(1, 200):
    at = (n % 16) * 4096
    os.pread(buffered, size, 0)
    page[:] = bytes([n]) * 4096
    os.pwrite(direct, page, at)
    stale += os.pread(buffered, 4096, at) != page[:]
print("stale reads:", stale)
mapped = mmap.mmap(direct, size, mmap.MAP_SHARED)
mapped[100:104] = b"here"
print(os.pread(buffered, 4, 100))
mapped.flush()
os.preadv(direct, [page], 0); print(page[100:104])
other = mmap.mmap(buffered, size, mmap.MAP_SHARED, mmap.PROT_READ); print(other[100:104])
