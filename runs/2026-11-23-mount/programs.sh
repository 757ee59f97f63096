#!/usr/bin/env bash
# git, rsync and tar with attributes on mounts and on the kernel's ext4: programs.sh UEXT4, as root.
set -eu
U=$1; B=/dev/shm/programs; P=/sys/module/fuse/parameters/enable_uring
rm -rf $B; mkdir -p $B/m $B/tree; cd $B
python3 - <<'P'
import os
for d in range(50):
    os.makedirs(f"tree/d{d}")
    for n in range(100):
        with open(f"tree/d{d}/f{n}", "wb") as f: f.write(os.urandom(2000))
        os.setxattr(f"tree/d{d}/f{n}", "user.note", b"text")
P
tar --xattrs -C tree -cf tree.tar .
took() { local s e; s=$(date +%s.%N); "${@:3}" >/dev/null 2>&1; e=$(date +%s.%N); echo "$1 $2 $(echo "$e - $s" | bc)"; }
commit() { git init -q m/r && cp -r tree/. m/r/ && git -C m/r add . && git -C m/r -c user.name=a -c user.email=a@b commit -q -m x; }
all() {
  took "$1" git commit
  took "$1" rsync rsync -aHAX tree/ m/copy/
  took "$1" tar sh -c "mkdir m/x && tar --xattrs --xattrs-include='*' -C m/x -xf tree.tar"
}
for round in 1 2 3; do
  for by in off on; do
    [ $by = off ] || echo Y > $P
    rm -f image; $U mkfs -q image 1G; $U mount -o io_uring=$by image m; echo N > $P
    all io_uring=$by; $U umount m
  done
  rm -f image; truncate -s 1G image; mke2fs -q -F -t ext4 image; mount -o loop image m
  all kernel; umount m
done
rm -rf $B
