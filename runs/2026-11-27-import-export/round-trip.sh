#!/bin/bash
# A tree through an image and back: round-trip.sh UEXT4 TREE DIR [UID]. As root, who
# writes the archive and compares; UID (65534 if not given, 0 is root) imports and exports. With UID 0 the
# image is also filled from the tree itself, and exported into a directory that is compared too.
set -eu
uext4=$1 tree=$2 dir=$3 user=${4:-65534}
cd "$dir"
as() { setpriv --reuid "$user" --regid "$user" --clear-groups "$@"; }
fresh() { rm -f image; truncate -s 12G image; mke2fs -q -F -t ext4 -N 1000000 image; chown "$user" image; }
archive() { tar --xattrs --acls --numeric-owner --format=posix -c -C "$1" .; }
compare() { # compare ARCHIVE TREE
  echo "$(tar -tf "$1" | wc -l) entries, $(stat -c %s "$1") bytes"
  tar --compare --numeric-owner --xattrs --acls -f "$1" -C "$2" && echo "tar --compare: nothing differs"
}
echo "$tree as uid $user: archive in, archive out"
fresh
archive "$tree" | as "$uext4" import --numeric - image
as "$uext4" export --numeric image - > back.tar
compare back.tar "$tree"
e2fsck -fn image | tail -1
if [ "$user" = 0 ]; then
  echo "$tree as uid 0: directory in, directory out"
  fresh
  "$uext4" import --numeric "$tree" image
  "$uext4" export --numeric --devices image out
  archive "$tree" > there.tar
  compare there.tar out
  e2fsck -fn image | tail -1
  rm -rf out there.tar
fi
rm back.tar image
