#!/bin/bash
# find600k.sh UEXT4: memory of the daemon after find(1) over 600,000 files
U=$1; I=/dev/shm/find.img; M=/mnt
rss() { awk '/VmRSS/{r=$2}/VmHWM/{h=$2}END{printf "VmRSS %d kB, VmHWM %d kB\n",r,h}' /proc/$1/status; }
for way in off on; do
  rm -f $I; $U mkfs -N 700000 $I 2G >/dev/null
  [ $way = on ] && echo Y > /sys/module/fuse/parameters/enable_uring
  $U mount -o cache=64M,io_uring=$way $I $M || exit 1
  stat $M >/dev/null; echo N > /sys/module/fuse/parameters/enable_uring
  pid=$(getfattr --only-values -n uext4.pid $M 2>/dev/null)
  echo "io_uring=$way, cache=64M, before: $(rss $pid)"
  python3 - $M <<'P'
import os,sys
for d in range(600):
    p=f"{sys.argv[1]}/d{d}"; os.mkdir(p)
    for n in range(1000): os.close(os.open(f"{p}/f{n}",os.O_CREAT|os.O_WRONLY))
P
  $U umount $M; [ $way = on ] && echo Y > /sys/module/fuse/parameters/enable_uring
  $U mount -o cache=64M,io_uring=$way $I $M; stat $M >/dev/null; echo N > /sys/module/fuse/parameters/enable_uring
  pid=$(getfattr --only-values -n uext4.pid $M 2>/dev/null)
  echo "mounted again: $(rss $pid)"
  echo "files: $(find $M -newermt 1990-01-01 -type f | wc -l)"
  echo "after find: $(rss $pid)"
  find $M -size +0 -type f | wc -l
  echo "after a second: $(rss $pid)"
  s=$(date +%s.%N); $U umount $M; echo "umount: $(echo "$(date +%s.%N)-$s" | bc) s"
done
rm -f $I
