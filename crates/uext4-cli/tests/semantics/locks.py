"""flock and fcntl locks between processes"""
put("f")
child = f"""
import fcntl, os
for name, call, flags in [("flock", fcntl.flock, os.O_RDWR), ("lockf", fcntl.lockf, os.O_RDWR)]:
    fd = os.open("f", flags)
    try: call(fd, fcntl.LOCK_EX | fcntl.LOCK_NB); print(name, "got")
    except OSError as error: print(name, error.errno)
"""
fd = os.open("f", os.O_RDWR)
fcntl.flock(fd, fcntl.LOCK_EX); print(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout)
fcntl.flock(fd, fcntl.LOCK_UN); fcntl.lockf(fd, fcntl.LOCK_EX, 10, 0)
print(subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout)
