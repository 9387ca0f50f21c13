# One of the three stores of compose.ha.yaml. At the first start `valkey` is the primary and the others follow it; from then on
# Sentinel decides, and writes its decisions into the server's own copy of the configuration.
set -eu
config=/data/server.conf
password=$(sed 's#^[^:]*://[^:]*:\([^@]*\)@.*#\1#' /run/secrets/admin_url)
umask 077
if [ ! -e "$config" ]; then
  cp /etc/penstock/valkey.conf "$config.new"
  [ "$PENSTOCK_SERVER" = valkey ] || echo "replicaof valkey 6379" >>"$config.new"
else
  grep -v -e '^masteruser ' -e '^masterauth ' -e '^replica-announce-ip ' "$config" >"$config.new"
fi
# A replica copies everything and Sentinel may order any server to follow another: both need what an administrator may.
cat >>"$config.new" <<END
replica-announce-ip $PENSTOCK_SERVER
masteruser penstock-admin
masterauth $password
END
mv "$config.new" "$config"
exec "$(command -v valkey-server || command -v redis-server)" "$config" "$@"
