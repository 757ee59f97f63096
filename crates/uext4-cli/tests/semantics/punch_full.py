"""an ordinary user punches holes on a full disk, which split extents, and writes into them again (generic/256)"""
os.chmod(".", 0o777)
program = """
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
count = 1000
def allocate(fd, mode, at, size):
    if libc.fallocate(fd, mode, at, size) != 0: return errno.errorcode[ctypes.get_errno()]
files = []
for name in ["written", "preallocated"]:
    fd = os.open(name, os.O_RDWR | os.O_CREAT, 0o644); files.append(fd)
    if name == "written": os.pwrite(fd, b"x" * 4096 * count, 0)
    else: print(allocate(fd, 0, 0, 4096 * count))
    os.fsync(fd)
fill = os.open("fill", os.O_RDWR | os.O_CREAT, 0o644)
at = 0
for size in [1 << 20, 4096]:
    while True:
        try: at += os.pwrite(fill, bytes(size), at)
        except OSError as error:
            full = errno.errorcode[error.errno]; break
try: os.fsync(fill); print("full", full)
except OSError as error: print("fsync", errno.errorcode[error.errno])
for fd in files:
    print("punched", {allocate(fd, 3, 4096 * n, 4096) for n in range(1, count, 2)})
    os.fsync(fd)
    print("zeroed", {allocate(fd, 0x11, 4096 * n, 4096) for n in range(0, count, 4)})
    os.fsync(fd)
def fits(fd, n):
    try: return os.pwrite(fd, b"again", 4096 * n)
    except OSError as error: return errno.errorcode[error.errno]
print("written again", {fits(files[0], n) for n in range(1, 400, 2)})
os.fsync(files[0])
print(os.pread(files[0], 5, 4096), os.fstat(files[0]).st_size)
"""
done = subprocess.run(["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", sys.executable, "-c", program],
                      capture_output=True, text=True)
print(done.stdout, done.stderr)
