"""The kernel's NFS server over a mount, and its client on the same machine: names and handles.

Usage: nfs.py DIR EXPORT. Prints what came of each step, without numbers that differ by chance.
There is no mountd: what it would answer is written into the server's caches beforehand.
"""
import errno, os, subprocess, sys, time

served, client = sys.argv[1], sys.argv[2]

def tell(path, line):
    with open(path, "w") as file:
        file.write(line)

def attempt(what, call):
    try:
        print(what, call())
    except OSError as error:
        print(what, errno.errorcode[error.errno])

def drop():
    """Has the kernel forget names and pages, the server's and the client's."""
    os.sync()
    tell("/proc/sys/vm/drop_caches", "3")

def serve():
    for module in ["nfsd", "nfsv4"]:
        subprocess.run(["modprobe", module], check=True)
    subprocess.run(["mount", "-t", "nfsd", "none", "/proc/fs/nfsd"], check=True)
    end = int(time.time()) + 86400
    # Flags: any port (2), no check of subtrees (0x400), a number given (0x2000); the root of NFS 4 is number 0.
    tell("/proc/net/rpc/auth.unix.ip/channel", f"nfsd 127.0.0.1 {end} here\n")
    tell("/proc/net/rpc/nfsd.export/channel", f"here {served} {end} {0x2402} 65534 65534 0\n")
    tell("/proc/net/rpc/nfsd.fh/channel", f"here 1 \\x00000000 {end} {served}\n")
    tell("/proc/fs/nfsd/versions", "-2 -3 +4 +4.1 +4.2\n")
    # No client of before can come back: the server need not wait for one.
    os.makedirs("/var/lib/nfs/v4recovery", exist_ok=True)
    for limit in ["nfsv4leasetime", "nfsv4gracetime"]:
        tell(f"/proc/fs/nfsd/{limit}", "10\n")
    tell("/proc/fs/nfsd/threads", "4\n")
    options = "vers=4.2,sec=sys,addr=127.0.0.1,clientaddr=127.0.0.1"
    words = ["mount", "-i", "-t", "nfs4", "-o", options, "127.0.0.1:/", client]
    subprocess.run(words, check=True)

def end():
    """The server's caches hold the mount."""
    subprocess.run(["umount", client], check=True)
    tell("/proc/fs/nfsd/threads", "0\n")
    for cache in ["nfsd.fh", "nfsd.export", "auth.unix.ip"]:
        tell(f"/proc/net/rpc/{cache}/flush", f"{int(time.time()) + 1}\n")
    subprocess.run(["umount", "/proc/fs/nfsd"], check=True)

def work():
    os.chdir(client)
    for n in range(100):
        os.makedirs(f"d{n % 10}/{n}")
        with open(f"d{n % 10}/{n}/f", "w") as file:
            file.write(str(n) * 1000)
    print("names", sorted(os.listdir(".")), sorted(os.listdir("d3")))
    held = {n: os.open(f"d{n % 10}/{n}/f", os.O_RDONLY) for n in range(0, 100, 7)}
    attempt("held", lambda: all(os.pread(fd, 9999, 0) == str(n).encode() * 1000 for n, fd in held.items()))
    drop()
    attempt("dropped", lambda: all(os.pread(fd, 9999, 0) == str(n).encode() * 1000 for n, fd in held.items()))
    os.rename(f"{served}/d7/7", f"{served}/moved")
    drop()
    attempt("moved by the server", lambda: os.pread(held[7], 4, 0))
    folder = os.open("d4/4", os.O_RDONLY)
    os.rename(f"{served}/d4", f"{served}/d5/d4")
    drop()
    attempt("a folder in one that moved", lambda: os.listdir(folder))
    os.unlink(f"{served}/d1/21/f")
    os.close(os.open(f"{served}/d1/21/new", os.O_CREAT))
    drop()
    time.sleep(1)
    attempt("removed by the server", lambda: os.pread(held[21], 4, 0))
    os.unlink("d8/28/f")
    drop()
    attempt("removed by the client, held", lambda: os.pread(held[28], 4, 0))
    with open("d2/2/f", "r+") as file:
        file.truncate(10)
        file.seek(20)
        file.write("end")
        file.flush()
        os.fsync(file.fileno())
    attempt("written", lambda: open(f"{served}/d2/2/f").read())
    attempt("link", lambda: (os.link("d2/2/f", "d2/g"), os.stat("d2/g").st_nlink)[1])
    attempt("symlink", lambda: (os.symlink("d2/g", "s"), os.readlink(f"{served}/s"))[1])
    attempt("chmod", lambda: (os.chmod("d2/g", 0o640), oct(os.stat(f"{served}/d2/g").st_mode))[1])
    attempt("xattr", lambda: (os.setxattr("d2/g", "user.a", b"1"), os.getxattr(f"{served}/d2/g", "user.a"))[1])
    fd = os.open("d2/g", os.O_RDWR)
    attempt("allocate", lambda: (os.posix_fallocate(fd, 0, 100000), os.fstat(fd).st_size)[1])
    attempt("hole", lambda: os.lseek(fd, 0, os.SEEK_HOLE) >= 23)
    target = os.open("copy", os.O_CREAT | os.O_RDWR)
    attempt("copy", lambda: os.copy_file_range(fd, target, 23))
    for open_file in [fd, target, folder, *held.values()]:
        os.close(open_file)
    os.chdir("/")

serve()
work()
end()
