#!/bin/sh
# Make or refresh the virtual environment of one Airflow: setup.sh VENV AIRFLOW STAMP KEY [PYTHON]
#
# KEY names the checkout and the Python asked for. An environment whose stamp holds another
# key was moved, copied, left half-made or made with another Python: it is made anew.
set -eu

venv=$1 airflow=$2 stamp=$3 key=$4 wanted=${5:-}
uv=0.13.8
constraints=constraints/airflow-$airflow.txt

if [ "$airflow" != lowest ] && [ ! -f "$constraints" ]; then
    echo "AIRFLOW=$airflow is not one of:" constraints/airflow-*.txt >&2
    exit 2
fi
case $airflow in
    3.1 | lowest) newest=13 ;;
    *) newest=14 ;;
esac

fits() { # runs, is of a version that this Airflow supports, and can make environments
    "$1" -c "import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, $newest))" >/dev/null 2>&1
}
find_python() { # prints the first usable Python
    if [ -n "$wanted" ]; then set -- "$wanted"; else set -- python3.12 python3.13 python3.11 python3.14 python3; fi
    for python; do
        if fits "$python"; then
            echo "$python"
            return
        fi
    done
    echo "Airflow $airflow needs Python 3.11 to 3.$newest with the module venv; none of these is one: $*" >&2
    echo "Name yours with: make PYTHON=/path/to/python. On Debian and Ubuntu, venv is in: apt install python3-venv" >&2
    return 1
}

if [ "$(cat "$stamp" 2>/dev/null)" != "$key" ] || ! fits "$venv/bin/python"; then
    python=$(find_python)
    echo "Making $venv with $("$python" --version) and Airflow $airflow (about half a minute) …"
    "$python" -m venv --clear "$venv"
else
    echo "Refreshing $venv …"
fi
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "uv==$uv"

install() {
    sh scripts/uv.sh "$venv" pip install --quiet --python "$venv/bin/python" --compile-bytecode "$@"
}
if [ "$airflow" = lowest ]; then
    # The lower bounds of pyproject.toml, as they are; other providers would raise that of common-compat. Airflow 3.1.3
    # does not work with what was released long after it.
    install --resolution lowest-direct --exclude-newer 2026-05-01 --editable '.[testing,amazon]' --group dev \
        apache-airflow-providers-common-compat==1.10.1
else
    install --constraints "$constraints" --editable '.[testing]' --group dev
fi
# What else these two providers need is more than all the rest, and would hold back some of it.
clouds='--no-deps --requirements pyproject.toml --extra azure --extra google'
if [ "$airflow" = lowest ]; then
    install --resolution lowest-direct --exclude-newer 2026-05-01 $clouds
else
    install --constraints "$constraints" $clouds
fi
printf '%s\n' "$key" >"$stamp"
