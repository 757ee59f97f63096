#!/bin/bash
# Least sizes, like for like: mkfs -d --shrink beside mke2fs -d into an ample image and resize2fs -M
# until that no longer shrinks. Both: blocks of 4 KiB, -m 0, the same features, journal and tree.
# Inodes: as many in a group as ours has, because resize2fs drops groups and keeps what is in each.
#     shrink.sh UEXT4 FOLDER [TREE...]
set -eu
uext4=$1 folder=$2
shift 2
export LC_ALL=C PATH=$PATH:/sbin:/usr/sbin

# Trees of which the sizes are known.
make_trees() {
    mkdir -p "$folder/small-20000" "$folder/big" "$folder/small-100"
    for i in $(seq 20000); do
        [ $((i % 100)) = 1 ] && dir=$folder/small-20000/$((i / 100)) && mkdir -p "$dir"
        head -c $((i * 7919 % 4000 + 1)) /dev/zero | tr '\0' x >"$dir/file-$i"
    done
    for i in 1 2 3 4 5; do head -c $((i * 37000000)) /dev/urandom >"$folder/big/$i"; done
    for i in $(seq 100); do head -c $((i * 97)) /dev/urandom >"$folder/small-100/$i"; done
}

field() { dumpe2fs -h "$2" 2>/dev/null | sed -n "s/^$1: *//p"; }

clean() { e2fsck -fn "$1" >/dev/null 2>&1 || { echo "e2fsck: $1 is not clean" >&2; exit 1; }; }

# least TREE JOURNAL_MIB FEATURES
least() {
    local ours=$folder/ours.img theirs=$folder/theirs.img tree=$1 journal=$2 features=$3
    rm -f "$ours" "$theirs"
    "$uext4" mkfs -q -b 4096 -J size="$journal" -O "$features" --shrink -d "$tree" "$ours"
    clean "$ours"
    local blocks per_group ample groups
    blocks=$(field 'Block count' "$ours") per_group=$(field 'Inodes per group' "$ours")
    ample=$((blocks * 3 / 2 + 8192)) groups=$(((blocks * 3 / 2 + 8192 + 32767) / 32768))
    mke2fs -q -F -t ext4 -b 4096 -m 0 -J size="$journal" -O "$features" \
        -E lazy_itable_init=0,lazy_journal_init=0 \
        -N $((per_group * groups)) -d "$tree" "$theirs" $ample >/dev/null
    local before=0 now=$ample rounds=0
    while [ "$now" != $before ]; do
        before=$now
        e2fsck -fy "$theirs" >/dev/null 2>&1 || true
        resize2fs -M "$theirs" >/dev/null 2>&1
        now=$(field 'Block count' "$theirs") rounds=$((rounds + 1))
    done
    clean "$theirs"
    printf '| %s | %s | %s | %s | %s | %s (%s) | %s | %s | %s |\n' "$(basename "$tree")" "$journal" \
        "$features" "$blocks" "$(field 'Inodes per group' "$ours")" "$now" \
        "$(field 'Inodes per group' "$theirs")" "$(field 'Free blocks' "$ours")" \
        "$(field 'Free blocks' "$theirs")" "$(echo "scale=4; $blocks / $now" | bc)"
    rm -f "$ours" "$theirs"
}

[ $# -gt 0 ] || {
    make_trees
    set -- /usr/share /usr/include "$folder"/small-20000 "$folder"/big "$folder"/small-100
}
echo '| tree | journal, MiB | features | ours, blocks | inodes a group | theirs (inodes a group) | free, ours | free, theirs | ratio |'
echo '|---|---|---|---|---|---|---|---|---|'
for tree; do
    for features in resize_inode ^resize_inode; do
        least "$tree" 4 $features
    done
done
for tree; do least "$tree" 16 resize_inode; done
