# Layers of a container's image, unpacked in two ways: by removing what a whiteout names, and into
# a folder for each layer, with whiteouts and opaque folders as overlayfs knows them. The container
# must see the same, and write to it.
mkdir 1 2 3
for d in a b c; do mkdir "1/$d"; done
for n in $(seq "$1"); do
    echo "$n" > "1/a/$n"
    echo "b $n" > "1/b/$n"
    [ $((n % 10)) != 0 ] || chown "$n:$n" "1/a/$n"
    [ $((n % 10)) != 1 ] || ln "1/a/$n" "1/a/linked $n"
    [ $((n % 10)) != 2 ] || ln -s "$n" "1/a/soft $n"
    [ $((n % 10)) != 3 ] || chmod 4755 "1/a/$n"
done
setfattr -n user.note -v text 1/a/1
mkdir 2/a 2/b
for n in $(seq 10 10 "$1"); do touch "2/a/.wh.$n"; echo "second $n" > "2/a/new $n"; done
touch 2/b/.wh..wh..opq
echo opaque > 2/b/only
mkdir 3/a 3/d
touch 3/.wh.c
echo third > 3/a/3
for n in $(seq 20 20 "$1"); do echo "third $n" > "3/a/$n"; done
for layer in 1 2 3; do
    tar --xattrs --format=posix -C $layer -cf $layer.tar .
    rm -r $layer
done

mkdir flat
for layer in 1 2 3; do
    mkdir $layer
    tar -tf $layer.tar | while read -r name; do
        base=${name##*/}
        folder=${name%"$base"}
        case $base in
            .wh..wh..opq)
                find "flat/$folder" -mindepth 1 -delete
                mkdir -p "$layer/$folder"
                setfattr -n trusted.overlay.opaque -v y "$layer/$folder" ;;
            .wh.*)
                rm -r "flat/$folder${base#.wh.}"
                mkdir -p "$layer/$folder"
                mknod "$layer/$folder${base#.wh.}" c 0 0 ;;
        esac
    done
    for place in flat $layer; do
        tar --xattrs --exclude='.wh.*' -C $place -xpf $layer.tar
    done
done

shown() (
    cd "$1"
    find . -printf '%P %y %m %U %G %l ' -type f -printf '%s %T@\n' -o -printf '\n' | sort
    getfattr -d a/1
)
mkdir upper work merged
mount -t overlay overlay -o lowerdir=3:2:1,upperdir=upper,workdir=work merged
trap 'umount merged' EXIT
diff -r flat merged
shown flat > flat.txt
shown merged > merged.txt
diff flat.txt merged.txt
for place in flat merged; do
    rm "$place/a/3" "$place/b/only"
    rm -r "$place/d"
    mkdir "$place/c"
    echo "of the container" > "$place/a/5"
    mv "$place/a/6" "$place/c/6"
done
diff -r flat merged
umount merged
trap - EXIT
mount -t overlay overlay -o lowerdir=3:2:1,upperdir=upper,workdir=work merged
trap 'umount merged' EXIT
diff -r flat merged
