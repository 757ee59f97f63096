# PostgreSQL on a mount of `uext4 crashtest`: postgres.sh setup, run on|off TRANSACTIONS, check
set -e
for programs in /usr/lib/postgresql/*/bin; do PATH=$programs:$PATH; done
user=$(id -u)
# The server refuses to be root's.
as() { if [ "$user" = 0 ]; then setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; else "$@"; fi; }
single() { as postgres --single -D "$PWD/data" -c log_min_messages=fatal postgres; }

case $1 in
setup)
  mkdir data
  [ "$user" != 0 ] || chown 65534:65534 data
  as initdb -D "$PWD/data" -N -A trust -U postgres --no-locale -E UTF8 --wal-segsize=1 -k > /dev/null
  cat >> data/postgresql.conf << END
listen_addresses = ''
shared_buffers = 1MB
max_connections = 10
max_wal_senders = 0
min_wal_size = 2MB
max_wal_size = 4MB
autovacuum = off
END
  { echo "create table log (n int primary key, data text)"
    echo "create table account (id int primary key, balance int)"
    echo "insert into account select i, 100 from generate_series(0, 19) i"; } | single > /dev/null
  ;;
run)
  as postgres -D "$PWD/data" -c fsync="$2" -k "$PWD/data" > /dev/null 2>&1 &
  until psql -qh "$PWD/data" -U postgres -c 'select 1' > /dev/null 2>&1; do sleep 0.1; done
  n=0
  # psql prints each number once its transaction is committed.
  while n=$((n + 1)); [ $n -le "$3" ]; do
    cat << END
begin; insert into log values ($n, repeat('$n', 300));
update account set balance = balance + $n where id = $((n % 20));
update account set balance = balance - $n where id = $((n * 7 % 20));
commit;
\\echo $n
END
    [ $((n % 40)) != 0 ] || echo "checkpoint;"
  done | psql -qh "$PWD/data" -U postgres -v ON_ERROR_STOP=1 | stdbuf -oL cat
  as pg_ctl -D "$PWD/data" stop -m fast > /dev/null
  ;;
check)
  said=$(echo "select coalesce(max(n), 0), count(*), (select sum(balance) from account) from log" | single 2>&1) ||
    { echo "$said"; exit 1; }
  set -- $(echo "$said" | sed -n 's/.*\(coalesce\|count\|sum\) = "\([0-9]*\)".*/\2/p')
  acknowledged=$(tail -n 1 "$UEXT4_CRASHTEST_OUTPUT")
  [ $# = 3 ] && [ "$1" = "$2" ] && [ "$3" = 2000 ] || { echo "last, count, sum: $*: $said"; exit 1; }
  [ "$1" -ge "${acknowledged:-0}" ] || { echo "$acknowledged was acknowledged, $1 is the last one there"; exit 1; }
  ;;
esac
