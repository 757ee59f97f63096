# Processes that count together, each number under a lock of one kind; a lock goes with its holder.
import fcntl, os, signal, struct, sys

PROCESSES, rounds = 4, int(sys.argv[1])
OFD_SETLKW = 38

def whole(kind):
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0)

WAYS = {
    "flock": (lambda fd: fcntl.flock(fd, fcntl.LOCK_EX), lambda fd: fcntl.flock(fd, fcntl.LOCK_UN)),
    "fcntl": (lambda fd: fcntl.lockf(fd, fcntl.LOCK_EX), lambda fd: fcntl.lockf(fd, fcntl.LOCK_UN)),
    "open file": (lambda fd: fcntl.fcntl(fd, OFD_SETLKW, whole(fcntl.F_WRLCK)),
                  lambda fd: fcntl.fcntl(fd, OFD_SETLKW, whole(fcntl.F_UNLCK))),
}

def count(name, lock, unlock):
    fd = os.open(name, os.O_RDWR)
    for _ in range(rounds):
        lock(fd)
        number = int(os.pread(fd, 20, 0) or b"0")
        os.pwrite(fd, b"%d" % (number + 1), 0)
        unlock(fd)

def child(work):
    number = os.fork()
    if number:
        return number
    status = 1
    try:
        work()
        status = 0
    finally:
        os._exit(status)

for name, (lock, unlock) in WAYS.items():
    os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
    numbers = [child(lambda: count(name, lock, unlock)) for _ in range(PROCESSES)]
    for number in numbers:
        assert os.waitpid(number, 0)[1] == 0, name
    with open(name) as file:
        assert int(file.read()) == PROCESSES * rounds, (name, open(name).read())
    # Killed with the lock in its hand.
    heard, said = os.pipe()
    def hold():
        fd = os.open(name, os.O_RDWR)
        lock(fd)
        os.write(said, b"x")
        signal.pause()
    number = child(hold)
    assert os.read(heard, 1) == b"x"
    try:
        fd = os.open(name, os.O_RDWR)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert name != "flock"
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        raise AssertionError(f"{name}: two have it")
    except BlockingIOError:
        pass
    finally:
        os.close(fd)
        os.kill(number, signal.SIGKILL)
        os.waitpid(number, 0)
    fd = os.open(name, os.O_RDWR)
    lock(fd)
    os.close(fd)
