# The same changes to $1 files by way of an overlay and in an ordinary folder; everything lies on
# the mount. Each variant of the overlay sees the lower files of the one before.
change() (
    cd "$1"
    rm a/1 a/2
    rm -r b
    mkdir b
    echo new > b/new
    mv a/3 a/moved
    mv c d/c 2>/dev/null || { cp -a c d/c; rm -r c; }
    echo more >> a/4
    chmod 600 a/5
    chown 1:2 a/6
    ln a/7 a/7-linked
    ln -s 8 a/soft
    touch -d 2001-02-03 a/9
    truncate -s 1 a/10
    for n in $(seq 11 $(($2 / 2))); do mv "a/$n" "b/$n"; done
    rm -rf d/e
    setfattr -n user.note -v text a/4
    echo a > f; rm f; echo b > f
)
shown() (
    cd "$1"
    find . -printf '%P %y %m %U %G %l ' -type f -printf '%s %TY %n\n' -o -printf '\n' | sort
    find . -type f -exec getfattr -d -m ^user {} + | sort
)
mkdir lower
for d in a b c d d/e; do mkdir "lower/$d"; done
for n in $(seq "$1"); do echo "$n" > "lower/a/$n"; echo "b $n" > "lower/b/$n"; done
for n in 1 2 3; do echo "c $n" > "lower/c/$n"; echo "e $n" > "lower/d/e/$n"; done
cp -a lower untouched
mkdir merged
for variant in redirect_dir=off redirect_dir=on metacopy=on,redirect_dir=on index=on,xino=on; do
    rm -rf upper work plain
    mkdir upper work
    cp -a lower plain
    change plain "$1"
    upper="lowerdir=lower,upperdir=upper,workdir=work,$variant"
    mount -t overlay overlay -o "$upper" merged
    trap 'umount merged' EXIT
    change merged "$1"
    shown plain > plain.txt
    shown merged > merged.txt
    diff plain.txt merged.txt
    diff -r plain merged
    umount merged
    # What the kernel held of it is gone.
    mount -t overlay overlay -o "$upper" merged
    shown merged > merged.txt
    diff plain.txt merged.txt
    diff -r plain merged
    umount merged
    trap - EXIT
    [ -c upper/a/1 ]
    diff -r lower untouched
done
