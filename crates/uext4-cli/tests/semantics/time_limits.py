"""times beyond what an inode can hold become the nearest that it can, in memory and on disk (generic/402)"""
put("f")
beyond = [-2**40, -2**31 - 1, -2**31, -1, 0, 2**31 - 1, 2**31, 2**33, 2**34 - 2**31 - 1, 2**34 - 2**31, 2**40]
def told():
    s = os.stat("f"); return (s.st_atime_ns, s.st_mtime_ns)
for time in beyond:
    attempt(f"set {time}", lambda: os.utime("f", ns=(time * 10**9 + 7, time * 10**9 + 999_999_999)))
    before = told(); drop(); print(before, told() == before)
