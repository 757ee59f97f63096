"""Batches of LevelDB, each acknowledged by its number once it is written.

leveldb.py sync|nosync BATCHES, or leveldb.py check
"""
import os
import sys

import plyvel

def value(n):
    return (b"%06d" % n) * (n * 37 % 400 + 1)

def open_store():
    # A small buffer: tables are written and merged, too. With paranoid_checks a store would not be
    # opened whose log ends in a write that was under way.
    return plyvel.DB("store", create_if_missing=True, write_buffer_size=64 << 10,
                     max_file_size=64 << 10)

def write(sync, count):
    store = open_store()
    for n in range(1, count + 1):
        with store.write_batch(transaction=True, sync=sync) as batch:
            batch.put(b"last", b"%d" % n)
            for key in range(5):
                batch.put(b"%d" % (n * key % 97), value(n))
        os.write(1, b"%d\n" % n)

def check():
    store = open_store()
    last = int(store.get(b"last", b"0"))
    with open(os.environ["UEXT4_CRASHTEST_OUTPUT"]) as file:
        said = file.read().split()
    acknowledged = int(said[-1]) if said else 0
    assert last >= acknowledged, f"{acknowledged} was acknowledged, {last} is the last one there"
    expected = {b"%d" % (n * key % 97): value(n) for n in range(1, last + 1) for key in range(5)}
    found = {key: data for key, data in store if key != b"last"}
    assert found == expected, f"{len(found)} keys, not the {len(expected)} of batch {last}"

check() if sys.argv[1] == "check" else write(sys.argv[1] == "sync", int(sys.argv[2]))
