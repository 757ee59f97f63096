# Each editor that is installed changes a file; mode, owner and links are what it leaves elsewhere.
saved() {
    [ "$(cat notes)" = "$1" ] || { echo "$1: $(cat notes)"; exit 1; }
    [ "$(stat -c %a notes)" = 640 ]
    [ "$(ls -A | grep -c 'notes')" = 1 ]
}
printf 'one\n' > notes
chmod 640 notes
sed -i s/one/two/ notes
saved two
! command -v ed > ed.where || {
    printf 'g/two/s//three/\nw\nq\n' | ed -s notes
    saved three
}
! command -v vim > vim.where || for way in yes no auto; do
    vim -es -u NONE -c "set nocp bkc=$way wb swapfile fsync" -c "%s/.*/by vim $way/" -c wq notes
    saved "by vim $way"
done
