#!/usr/bin/env python3
"""4 KiB overwrites by 8 processes through a mount: an ordinary user beside root.

users.py UEXT4 DIR ROUNDS > users.jsonl    # as root; needs fio and e2fsprogs

Each round is root, user, user, root on one mount (then the other way round), each a fio run of 8
processes that overwrite 8 files of 32 MiB at random places for 3 seconds, without fsync.
"""
import json, os, subprocess, sys, time
program, folder, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
image, at = f"{folder}/users.img", f"{folder}/mnt"
os.makedirs(at, exist_ok=True)
subprocess.run(["truncate", "-s", "1G", image], check=True)
subprocess.run(["mke2fs", "-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=0,lazy_journal_init=0", image], check=True)
subprocess.run([program, "mount", "-o", "allow_other", image, at], check=True)
try:
    for n in range(8):
        with open(f"{at}/f{n}", "wb") as f: f.write(os.urandom(32 << 20))
        os.chown(f"{at}/f{n}", 65534, 65534); os.chmod(f"{at}/f{n}", 0o666)
    os.sync(); subprocess.run([program, "sync", at])
    def turn(who, seconds=3):
        words = ["fio", "--name=w", "--rw=randwrite", "--bs=4k", "--ioengine=psync", "--numjobs=8", f"--runtime={seconds}",
                 "--time_based", "--group_reporting", "--output-format=json", "--size=32M", "--norandommap", "--randrepeat=0",
                 f"--filename_format={at}/f$jobnum", "--allow_file_create=0"]
        if who == "user": words += ["--uid=65534", "--gid=65534"]
        out = json.loads(subprocess.run(words, check=True, capture_output=True, text=True, cwd="/").stdout)
        return out["jobs"][0]["write"]["iops"]
    turn("root", 2)
    for r in range(rounds):
        order = ["root", "user", "user", "root"] if r % 2 == 0 else ["user", "root", "root", "user"]
        for who in order:
            print(json.dumps({"round": r + 1, "who": who, "iops": turn(who)}), flush=True)
finally:
    subprocess.run(["umount", at])
    time.sleep(1)
    print(subprocess.run(["e2fsck", "-fn", image], capture_output=True, text=True).returncode, file=sys.stderr)
    os.unlink(image)
