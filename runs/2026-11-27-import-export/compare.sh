#!/bin/bash
# import and export beside tar on a loop mount, fuse2fs and debugfs, in turns. As root, on Linux with a
# loop driver: compare.sh UEXT4 TREE DIR [ROUNDS]. DIR is on tmpfs and has 8 GB free. Prints seconds.
set -eu
uext4=$1 tree=$2 dir=$3 rounds=${4:-3}
cd "$dir"
mkdir -p mnt
timed() { # timed NAME COMMAND...
  local name=$1 start=$EPOCHREALTIME; shift
  "$@" >/dev/null 2>&1
  local end=$EPOCHREALTIME
  awk -v n="$name" -v s="$start" -v e="$end" 'BEGIN { printf "%-22s %.2f\n", n, e - s }'
}
kernel_import() { mount -o loop kernel.img mnt; tar -xpf tree.tar -C mnt; sync -f mnt; umount mnt; }
kernel_export() { tar -cf out.tar -C mnt .; }
fuse_export() { fuse2fs -o ro kernel.img mnt; tar -cf out.tar -C mnt .; umount mnt; }
debugfs_export() { mkdir -p out; debugfs -R "rdump / out" kernel.img; }
tar -cf tree.tar -C "$tree" .
echo "archive: $(stat -c %s tree.tar) bytes, $(tar -tf tree.tar | wc -l) entries"
for round in $(seq "$rounds"); do
  echo "round $round"
  for image in own kernel; do
    rm -f $image.img; truncate -s 2G $image.img; mke2fs -q -F -t ext4 $image.img
  done
  timed "import uext4" "$uext4" import tree.tar own.img
  timed "import kernel" kernel_import
  rm -f out.tar; timed "export uext4" "$uext4" export own.img out.tar
  tar --compare -f out.tar -C "$tree" && echo "export: nothing differs"
  rm -f out.tar; mount -o loop,ro kernel.img mnt
  timed "export kernel" kernel_export
  umount mnt; rm -f out.tar
  timed "export uext4 directory" "$uext4" export --devices own.img out; rm -rf out
done
timed "export fuse2fs" fuse_export; rm -f out.tar
timed "export debugfs rdump" debugfs_export; rm -rf out
e2fsck -fn own.img | tail -1
rm -f tree.tar own.img kernel.img; rmdir mnt
