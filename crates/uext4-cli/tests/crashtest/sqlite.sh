# A database of SQLite on a mount of `uext4 crashtest`: sqlite.sh setup JOURNAL_MODE, or
# sqlite.sh check durable|consistent
case $1 in
setup)
  sqlite3 bank.db "pragma journal_mode=$2;
    create table account (id integer primary key, balance integer, padding blob);
    create table log (n integer primary key, data blob); create index by_data on log (data);
    with recursive i(n) as (select 0 union all select n + 1 from i where n < 19)
    insert into account select n, 100, randomblob(900) from i" > /dev/null
  ;;
check)
  said=$(sqlite3 bank.db 'pragma integrity_check;
    select coalesce(max(n), 0), (select sum(balance) from account) from log' 2>&1) &&
    [ "${said%%
*}" = ok ] || { echo "$said"; exit 1; }
  last=$(echo "$said" | tail -n 1)
  [ "${last#*|}" = 2000 ] || { echo "the balances are ${last#*|} together"; exit 1; }
  [ "$2" = durable ] || exit 0
  acknowledged=$(tail -n 1 "$UEXT4_CRASHTEST_OUTPUT")
  [ "${last%|*}" -ge "${acknowledged:-0}" ] || {
    echo "$acknowledged was acknowledged, ${last%|*} is the last one there"
    exit 1
  }
  ;;
esac
