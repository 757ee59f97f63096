"""statx: birth time, and block, size and link counts"""
put("f", b"x" * 5000); os.mkdir("d")
sh("stat -c '%h %s %b %B %o %F' f d")
now = time.time()
for name in ["f", "d"]:
    born = subprocess.run(["stat", "-c", "%W", name], capture_output=True, text=True).stdout
    print(name, "was born just now:", abs(int(born) - now) < 60)
os.utime("f", (1, 1))
print("times do not move a birth:", subprocess.run(["stat", "-c", "%W", "f"], capture_output=True, text=True).stdout != "1\n")
