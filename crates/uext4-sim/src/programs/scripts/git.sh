# $1 files in a repository: add, commit, gc, fsck, check-out, clone. $HOME lies on the mount.
export HOME=$PWD
git init -q -b main repository
cd repository
git config user.email a@example.org
git config user.name a
for d in $(seq 10); do
    mkdir "$d"
    for n in $(seq $(($1 / 10))); do echo "$d $n" > "$d/$n"; done
done
git add .
git commit -q -m one
rm -r 1
echo changed > 2/7
git commit -q -a -m two
git gc -q
git fsck --full --strict > ../said 2>&1
grep -v '^$' ../said && exit 1
[ -z "$(git status --porcelain)" ]
git checkout -q HEAD~1
[ "$(cat 2/7)" = "2 7" ]
[ "$(git ls-files | wc -l)" = $(($1 / 10 * 10)) ]
git checkout -q main
cd ..
git clone -q "file://$PWD/repository" clone
git -C clone fsck --full --strict
diff -r --exclude=.git repository clone
rm -rf clone
