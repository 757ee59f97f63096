# Two processes that map one file and hand it to each other; a third way reads and writes it by calls.
import mmap, os, sys

turns, PAGES = int(sys.argv[1]), 64
SIZE = PAGES * mmap.PAGESIZE
fd = os.open("mapped", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, SIZE)

def place(turn):
    return mmap.PAGESIZE * (1 + turn % (PAGES - 1)) + turn * 8 % (mmap.PAGESIZE - 8)

def play(own):
    """Waits for its turn, which stands in the first page, and checks what the other one wrote."""
    fd = os.open("mapped", os.O_RDWR)
    with mmap.mmap(fd, SIZE, mmap.MAP_SHARED) as view:
        turn = own
        while turn < turns:
            while int.from_bytes(view[:8], "little") != turn:
                os.sched_yield()
            if turn:
                at = place(turn - 1)
                assert int.from_bytes(view[at:at + 8], "little") == turn - 1, turn
                assert int.from_bytes(os.pread(fd, 8, at), "little") == turn - 1, turn
            at = place(turn)
            if turn % 5 == 4:
                os.pwrite(fd, turn.to_bytes(8, "little"), at)
            else:
                view[at:at + 8] = turn.to_bytes(8, "little")
            if turn % 64 == 63:
                view.flush()
            view[:8] = (turn + 1).to_bytes(8, "little")
            turn += 2
    os.close(fd)

other = os.fork()
if not other:
    status = 1
    try:
        play(1)
        status = 0
    finally:
        os._exit(status)
play(0)
assert os.waitpid(other, 0)[1] == 0
os.fsync(fd)
for turn in range(max(0, turns - 50), turns):
    assert int.from_bytes(os.pread(fd, 8, place(turn)), "little") == turn, turn
