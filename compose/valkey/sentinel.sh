# One of the three sentinels of compose.ha.yaml: two of them must agree that the primary is gone before a replica takes its place.
# Gateways and workers log in as at the store and may only ask who the primary is.
set -eu
config=/data/sentinel.conf
password=$(sed 's#^[^:]*://[^:]*:\([^@]*\)@.*#\1#' /run/secrets/admin_url)
umask 077
may_ask() {
  echo "user $1 on #$(sed -n "s/^user $1 .*#\([0-9a-f]\{64\}\).*/\1/p" /run/secrets/store_users) resetchannels -@all +@connection" \
    "+ping +info +sentinel|get-master-addr-by-name +sentinel|get-primary-addr-by-name +sentinel|masters +sentinel|primaries" \
    "+sentinel|master +sentinel|replicas +sentinel|slaves +sentinel|sentinels"
}
if [ ! -e "$config" ]; then
  cat >"$config" <<END
port 26379
dir /data
protected-mode no
user default off resetchannels -@all
user penstock-admin on >$password ~* &* +@all
$(may_ask penstock-gateway)
$(may_ask penstock-worker)
sentinel sentinel-user penstock-admin
sentinel sentinel-pass $password
sentinel resolve-hostnames yes
sentinel announce-hostnames yes
sentinel announce-ip $PENSTOCK_SERVER
sentinel monitor penstock valkey 6379 2
sentinel auth-user penstock penstock-admin
sentinel auth-pass penstock $password
sentinel down-after-milliseconds penstock 3000
sentinel failover-timeout penstock 15000
END
fi
exec "$(command -v valkey-server || command -v redis-server)" "$config" --sentinel
