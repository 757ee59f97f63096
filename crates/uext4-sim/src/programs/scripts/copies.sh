# A tree of $1 files, copied by rsync and by tar with everything that belongs to them.
mkdir tree
for d in $(seq 10); do
    mkdir "tree/$d"
    for n in $(seq $(($1 / 10))); do echo "$d $n" > "tree/$d/$n"; done
    setfattr -n user.note -v "folder $d" "tree/$d"
done
ln tree/3/1 hard
ln -s hard soft
setfattr -n user.note -v text hard
setfacl -m u:1:r hard
mkfifo fifo
truncate -s 30M sparse
printf end >> sparse
chmod 4755 tree/4/2
touch -d 1970-01-02 tree/5/3
rsync -aHAXS tree hard soft fifo sparse copy/
again=$(rsync -aHAXSin --checksum tree hard soft fifo sparse copy/)
[ -z "$again" ] || { echo "copied again: $again"; exit 1; }
rsync -aHAXS --stats tree hard soft fifo sparse copy/ | grep -q 'files transferred: 0$'
diff -r tree copy/tree
[ "$(getfattr --only-values -n user.note copy/hard)" = text ]
[ copy/hard -ef copy/tree/3/1 ]
[ "$(stat -c %b copy/sparse)" -lt 100 ]
tar --xattrs --acls -Scf a.tar tree hard soft fifo sparse
mkdir x
tar --xattrs --acls -C x -xpf a.tar
diff -r tree x/tree
[ -z "$(rsync -aHAXSin --checksum tree hard soft fifo sparse x/)" ]
getfacl -c x/hard | grep -q daemon
rm -rf copy x a.tar
