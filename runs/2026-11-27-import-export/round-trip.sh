#!/bin/bash
# /usr through an image and back, as an ordinary user: round-trip.sh UEXT4 TREE DIR. As root, who makes
# the archive and compares; uid 65534 imports and exports.
set -eu
uext4=$1 tree=$2 dir=$3
cd "$dir"
truncate -s 12G image; mke2fs -q -F -t ext4 -N 1000000 image; chown 65534 image
as() { setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }
tar --xattrs --acls --numeric-owner --format=posix -c -C "$tree" . | as "$uext4" import - image
as "$uext4" export --numeric image - > back.tar
echo "$(tar -tf back.tar | wc -l) entries, $(stat -c %s back.tar) bytes"
tar --compare --numeric-owner --xattrs --acls -f back.tar -C "$tree" && echo "tar --compare: nothing differs"
rm back.tar
e2fsck -fn image | tail -1
rm image
