# The store is healthy once its log is loaded; before that, it answers PING with LOADING.
REDISCLI_AUTH=$(cat /run/secrets/gateway_password)
export REDISCLI_AUTH VALKEYCLI_AUTH="$REDISCLI_AUTH"
client=$(command -v valkey-cli || command -v redis-cli)
[ "$("$client" --user penstock-gateway ping)" = PONG ]
