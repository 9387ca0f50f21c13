# The proxy of compose.ha.yaml: penstock.conf beside this file, before the two gateways there. Without TLS, because Compose publishes
# its port on loopback only; for another port take penstock.conf itself, with a certificate.
set -eu
sed -e 's#server 10.0.0.11:8080#server gateway:8080#' -e 's#server 10.0.0.12:8080#server gateway-2:8080#' \
  -e 's#listen 443 ssl http2;#listen 8080;#' -e 's#server_name .*#server_name _;#' -e '/^ *ssl_/d' \
  /etc/penstock/penstock.conf >/tmp/penstock.conf
cat >/tmp/nginx.conf <<'END'
daemon off;
pid /tmp/nginx.pid;
error_log /dev/stderr;
events { worker_connections 4096; }
http {
    access_log off;
    client_body_temp_path /tmp/bodies;
    proxy_temp_path /tmp/proxied;
    fastcgi_temp_path /tmp/fastcgi;
    uwsgi_temp_path /tmp/uwsgi;
    scgi_temp_path /tmp/scgi;
    include /tmp/penstock.conf;
}
END
exec nginx -e /dev/stderr -c /tmp/nginx.conf
