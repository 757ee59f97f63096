"""Transactions of SQLite, each acknowledged by its number once it is committed.

sqlite.py JOURNAL_MODE SYNCHRONOUS TRANSACTIONS
"""
import os
import sqlite3
import sys

mode, synchronous, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
db = sqlite3.connect("bank.db", isolation_level=None)
db.execute(f"pragma journal_mode={mode}")
db.execute(f"pragma synchronous={synchronous}")
for n in range(1, count + 1):
    db.execute("begin immediate")
    db.execute("insert into log values (?, ?)", (n, os.urandom(n * 700 % 5000)))
    db.execute("update account set balance = balance + ? where id = ?", (n, n % 20))
    db.execute("update account set balance = balance - ? where id = ?", (n, n * 7 % 20))
    if n % 5 == 0:
        db.execute("delete from log where n <= ?", (n - 10,))
    db.execute("commit")
    os.write(1, b"%d\n" % n)
