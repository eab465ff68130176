#!/bin/sh
# Make what `make system-test` needs: prepare.sh VENV SYSTEM_VENV
#
# Says which Debian packages are missing; builds the wheel with VENV's uv, and installs it into SYSTEM_VENV.
set -eu

venv=$1 system=$2
here=tests/system

missing=
found() {
    command -v "$1" >/dev/null 2>&1 || ls /usr/lib/postgresql/*/bin/"$1" >/dev/null 2>&1
}
found postgres || missing="$missing postgresql"
found redis-server || missing="$missing redis-server"
found chromium || missing="$missing chromium"
if [ -n "$missing" ]; then
    echo "make system-test needs programs that are not on this machine. On Debian and Ubuntu, as root:" >&2
    echo "    apt-get install --no-install-recommends$missing" >&2
    exit 2
fi

stamp=$system/.made-by-make
key="$PWD $("$venv/bin/python" --version) $(cat constraints/system.txt $here/requirements.txt | cksum)"
if [ "$(cat "$stamp" 2>/dev/null)" != "$key" ]; then
    echo "Making $system (about half a minute) …"
    sh scripts/uv.sh "$venv" venv --quiet --clear --python "$venv/bin/python" "$system"
fi

sh scripts/uv.sh "$venv" build --quiet --wheel --clear --out-dir "$system/wheel"
wheel=$(ls "$system"/wheel/*.whl)
sh scripts/uv.sh "$venv" pip install --quiet --python "$system/bin/python" --compile-bytecode \
    --constraints constraints/system.txt --requirements $here/requirements.txt \
    --reinstall-package airflow-provider-workflow-automation "$wheel[testing]"
printf '%s\n' "$key" >"$stamp"
