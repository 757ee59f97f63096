"""idmapped mounts (-o idmap): owners, rights and access lists of a bind mount with other owners"""
# own: idmap
import tempfile
def check(result, what):
    if result < 0: raise OSError(ctypes.get_errno(), what)
    return result
def user_namespace(ids):
    process = subprocess.Popen(["unshare", "--user", "sleep", "50"])
    own = os.readlink("/proc/self/ns/user")
    while os.readlink(f"/proc/{process.pid}/ns/user") == own: time.sleep(0.01)
    for name in ["uid_map", "gid_map"]:
        with open(f"/proc/{process.pid}/{name}", "w") as file: file.write(ids)
    fd = os.open(f"/proc/{process.pid}/ns/user", os.O_RDONLY)
    process.kill(); process.wait()
    return fd
def bind(of, at, ids):
    tree = check(libc.syscall(428, -100, of.encode(), 1 | os.O_CLOEXEC), "open_tree")
    attributes = struct.pack("QQQQ", 0x100000, 0, 0, user_namespace(ids))
    check(libc.syscall(442, tree, b"", 0x1000, attributes, 32), "mount_setattr")
    check(libc.syscall(429, tree, b"", -100, at.encode(), 4), "move_mount")
def owner(path): s = os.lstat(path); return (s.st_uid, s.st_gid, oct(s.st_mode))
os.mkdir("d"); os.chmod("d", 0o777); os.chmod(".", 0o755)
for name, uid in [("own", 1000), ("roots", 0), ("foreign", 5000)]:
    put("d/" + name); os.chmod("d/" + name, 0o600); os.chown("d/" + name, uid, uid)
mapped = tempfile.mkdtemp(); os.chmod(mapped, 0o755); m = mapped + "/"
def run(user, command):
    done = subprocess.run(["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "sh", "-c", command], cwd=mapped,
                          capture_output=True, text=True, env={"LC_ALL": "C", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    print(user, "$", command, "->", done.returncode, (done.stdout + done.stderr).strip())
try:
    bind("d", mapped, "0 0 1\n1000 2000 100\n")
    try:
        for name in ["own", "roots", "foreign"]: print(name, owner("d/" + name), owner(m + name))
        for user in [2000, 1000, 5000]:
            run(user, "cat own; echo $$ >/dev/null; cat foreign")
        run(2000, "echo made > made; mkdir sub; ln -s made link; mkfifo fifo; echo again >> own; ln own hard; mv made moved")
        for name in ["moved", "sub", "link", "fifo", "own"]: print(name, owner("d/" + name), owner(m + name))
        run(1000, "echo > unmapped")
        run(2001, "rm -f moved; chmod 777 sub; echo > sub/x")
        attempt("chown", lambda: os.chown(m + "own", 2003, 2004)); print(owner("d/own"), owner(m + "own"))
        attempt("chown to an unmapped user", lambda: os.chown(m + "own", 1000, -1))
        attempt("chown of a foreign file", lambda: os.chown(m + "foreign", 2000, 2000)); print(owner("d/foreign"))
        run(2003, "chmod 6755 own; chgrp 2003 own"); print(owner("d/own"))
        os.chmod("d/own", 0o6777); run(2000, "echo x >> own"); print(owner("d/own"), owner(m + "own"))
        run(2003, "setfacl -m u:2050:r own; getfacl -cn own"); sh("getfacl -cn d/own")
        fd = os.open(mapped, os.O_TMPFILE | os.O_RDWR, 0o600); print(os.fstat(fd).st_uid); os.close(fd)
        run(2005, "python3 -c 'import os; f = os.open(\".\", os.O_TMPFILE | os.O_RDWR); print(os.fstat(f).st_uid); os.posix_fallocate(f, 0, 5000)'")
        attempt("trusted", lambda: os.setxattr(m + "own", "trusted.a", b"1")); print(os.listxattr(m + "own"))
    finally: libc.umount2(mapped.encode(), 2)
except OSError as error: print(error.strerror, errno.errorcode[error.errno])
os.rmdir(mapped)
print(sorted(os.listdir("d")))
