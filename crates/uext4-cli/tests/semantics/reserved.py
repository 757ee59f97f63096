"""resuid=, resgid=: who may use the blocks reserved for root"""
# mount: resuid=1000,resgid=2000
# mke2fs: -m 20
os.chmod(".", 0o777)
program = """
import errno, os, sys
name, at = sys.argv[1], 0
fd = os.open(name, os.O_WRONLY | os.O_CREAT, 0o644)
try:
    while at < 2 << 20 or name == "all": at += os.pwrite(fd, bytes(1 << 16), at)
    os.fsync(fd)
    print("room")
except OSError as error: print(errno.errorcode[error.errno])
"""
def write(name, *ids):
    words = ["setpriv", *ids] if ids else []
    print(name, " ".join(ids), subprocess.run(words + [sys.executable, "-c", program, name], capture_output=True, text=True).stdout.strip())
stranger = ["--reuid=1001", "--regid=1001", "--clear-groups"]
write("all", *stranger); os.sync()
write("more", *stranger)
write("user", "--reuid=1000", "--regid=1001", "--clear-groups")
write("group", "--reuid=1001", "--regid=2000", "--clear-groups")
write("other_group", "--reuid=1001", "--regid=1001", "--groups=3000,2000")
write("group_of_user", "--reuid=1001", "--regid=1000", "--clear-groups")
# Not root: the kernel asks for CAP_SYS_RESOURCE, which root may lack.
