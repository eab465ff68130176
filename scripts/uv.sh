#!/bin/sh
# Run the uv of a virtual environment: uv.sh VENV ARGUMENT…
#
# uv does not read pip's settings, so it is told here where the user's pip gets its packages from, and whom it trusts.
set -eu

python=$1/bin/python
shift
of_pip() { # prints a setting of pip's, if it has it
    "$python" -m pip config get "global.$1" 2>/dev/null || true
}
if [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then
    index=${PIP_INDEX_URL:-$(of_pip index-url)}
    if [ -n "$index" ]; then
        export UV_DEFAULT_INDEX="$index"
    fi
fi
if [ -z "${SSL_CERT_FILE:-}" ]; then
    cert=${PIP_CERT:-$(of_pip cert)}
    if [ -n "$cert" ]; then
        export SSL_CERT_FILE="$cert"
    fi
fi
exec "$python" -m uv "$@"
