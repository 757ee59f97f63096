#!/usr/bin/env bash
# Streams and random direct reads: stream.sh UEXT4, as root.
U=$1; cd /dev/shm; mkdir -p sm
one() { # name
 dd if=/dev/zero of=sm/f bs=1M count=768 conv=fsync 2>&1 | tail -1 | awk '{print "'$1' write", $(NF-1), $NF}'
 echo 3 > /proc/sys/vm/drop_caches
 dd if=sm/f of=/dev/null bs=1M 2>&1 | tail -1 | awk '{print "'$1' read", $(NF-1), $NF}'
 fio --name=r --filename=sm/f --rw=randread --bs=4k --direct=1 --numjobs=16 --size=512M --runtime=4 --time_based --group_reporting --ioengine=psync --output-format=terse 2>/dev/null | awk -F';' '{print "'$1' randread16 iops", $8}'
}
for r in 1 2 3; do
for t in off on; do
[ $t = on ] && echo Y > /sys/module/fuse/parameters/enable_uring
rm -f s.img; $U mkfs -q s.img 1536M; $U mount -o io_uring=$t s.img sm; echo N > /sys/module/fuse/parameters/enable_uring
one uring_$t; $U umount sm
done
rm -f s.img; truncate -s 1536M s.img; mke2fs -q -F -t ext4 s.img; mount -o loop s.img sm; one kernel; umount sm
done; rm -f s.img; rmdir sm
