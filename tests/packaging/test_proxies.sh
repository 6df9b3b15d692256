#!/usr/bin/env bash
# nginx and Caddy with the configurations in docs/serving.md: in front of an upstream that shows whether events
# are passed on at once, then in front of `lowkey serve` with a key. Skipped (77) without either proxy,
# openssl or the default model.
set -u

bin=${LOWKEY_BIN:?set LOWKEY_BIN to the lowkey program}
source=${LOWKEY_SOURCE:?set LOWKEY_SOURCE to the source directory}
cache=${LOWKEY_CACHE:-$HOME/.cache/lowkey}
model=${LOWKEY_MODEL:-${LOWKEY_MODELS:-$cache/models}/SmolLM2-135M-Instruct.Q4_1.gguf}
[ -f "$model" ] || { echo "no model at $model"; exit 77; }
command -v openssl >/dev/null || { echo "openssl is not installed"; exit 77; }
command -v nginx >/dev/null || command -v caddy >/dev/null ||
  { echo "neither nginx nor caddy is installed"; exit 77; }
work=$(mktemp -d)
server='' proxy=''
trap 'kill $server $proxy 2>/dev/null; wait; rm -rf "$work"' EXIT
die() { echo "FAILED: $*"; cat "$work"/*.log 2>/dev/null | tail -n 20; exit 1; }

# snippet LANGUAGE: the block of the page in this language
snippet() { sed -n "/^\`\`\`$1\$/,/^\`\`\`\$/{/^\`\`\`/d;p}" "$source/docs/serving.md"; }

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# start_nginx PORT UPSTREAM
start_nginx() {
  local messages
  sed -e "s|listen 443 |listen 127.0.0.1:$1 |; /listen \[::\]/d; s|127.0.0.1:8080|127.0.0.1:$2|" \
    -e "s|/etc/ssl/certs/.*;|$work/cert.pem;|; s|/etc/ssl/private/.*;|$work/key.pem;|" \
    <(snippet nginx) >"$work/site.conf"
  cat >"$work/nginx.conf" <<END
daemon off;
pid $work/nginx.pid;
error_log $work/nginx.log;
events {}
http {
    access_log off;
    client_body_temp_path $work/body;
    proxy_temp_path $work/proxy;
    fastcgi_temp_path $work/fastcgi;
    uwsgi_temp_path $work/uwsgi;
    scgi_temp_path $work/scgi;
    include $work/site.conf;
}
END
  messages=$(nginx -t -q -c "$work/nginx.conf" 2>&1) && [ -z "$messages" ] || die "nginx -t: $messages"
  nginx -c "$work/nginx.conf" 2>>"$work/nginx.log" &
  proxy=$!
}

# start_caddy PORT UPSTREAM
start_caddy() {
  snippet caddy >"$work/page.caddy"
  caddy validate --adapter caddyfile --config "$work/page.caddy" >"$work/caddy.log" 2>&1 ||
    die "caddy validate"
  sed -e "s|^{\$|{\n    admin off\n    auto_https disable_redirects|" -e "s|127.0.0.1:8080|127.0.0.1:$2|" \
    -e "s|^llm.example.org {|https://llm.example.org:$1 {\n    bind 127.0.0.1\n    tls $work/cert.pem $work/key.pem|" \
    "$work/page.caddy" >"$work/Caddyfile"
  XDG_DATA_HOME=$work XDG_CONFIG_HOME=$work \
    caddy run --adapter caddyfile --config "$work/Caddyfile" >"$work/caddy.log" 2>&1 &
  proxy=$!
}

# check_proxies WHAT UPSTREAM: see proxy_check.py.
check_proxies() {
  local name port
  for name in nginx caddy; do
    command -v $name >/dev/null || { echo "$name is not installed: not tried"; continue; }
    port=$(free_port)
    "start_$name" "$port" "$2"
    timeout 300 python3 "$source/tests/packaging/proxy_check.py" "$1" $name "$port" "$2" "$work/cert.pem" ||
      die "$name: $1"
    kill "$proxy"
    wait "$proxy"
    proxy=''
  done
}

chmod 755 "$work" # nginx's workers have another user
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=llm.example.org \
  -keyout "$work/key.pem" -out "$work/cert.pem" 2>/dev/null || die "openssl made no certificate"
check_proxies events "$(free_port)"

echo a-key-for-tests >"$work/keys"
"$bin" serve -m "$model" -t 1 -c 2k --port 0 --api-key-file "$work/keys" >"$work/out" 2>"$work/serve.log" &
server=$!
for _ in $(seq 300); do
  grep -q ', cache' "$work/out" && break
  sleep 0.1
done
port=$(sed -n 's/.*:\([0-9]*\), cache.*/\1/p' "$work/out")
[ -n "$port" ] || die "the server did not start"
check_proxies server "$port"
