#!/bin/bash
# Grows an image of 1 GiB with content to 64 GiB, by uext4 and by resize2fs in turns.
# measure.sh UEXT4 FOLDER [ROUNDS]
set -eu
uext4=$1 dir=$2 rounds=${3:-5}
base=$dir/base.img image=$dir/grown.img mnt=$dir/mnt
rm -f "$base" && mkdir -p "$mnt"
truncate -s 1G "$base"
mke2fs -q -F -t ext4 -E lazy_itable_init=1 "$base"
"$uext4" cp -r /usr/share/doc /usr/include "$base:/"
digest() {
    mount -o loop,ro "$1" "$mnt"
    (cd "$mnt" && find . -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum)
    umount "$mnt"
}
want=$(digest "$base")
for round in $(seq "$rounds"); do
    for tool in uext4 resize2fs; do
        rm -f "$image"
        cp --sparse=always "$base" "$image"
        sync -f "$image"
        start=$(date +%s.%N)
        case $tool in
        uext4) "$uext4" resize -q "$image" 64G ;;
        resize2fs) resize2fs -f "$image" 64G > /dev/null 2>&1 ;;
        esac
        end=$(date +%s.%N)
        sync -f "$image"
        synced=$(date +%s.%N)
        e2fsck -fn "$image" > /dev/null 2>&1 && clean=clean || clean=NOT-CLEAN
        [ "$(digest "$image")" = "$want" ] && same=same || same=DIFFERENT
        used=$(($(stat -c %b "$image") / 2))
        echo "$round $tool $(echo "$end - $start" | bc) $(echo "$synced - $start" | bc)" \
            "$clean $same ${used}K"
    done
done
rm -f "$base" "$image"
