#!/bin/sh
# Renew constraints/: for each Airflow, and for other targets of make, the package versions that were seen to work.
set -eu

venv=$1
compile() { # NAME OPTION…: writes one file, good for all supported Pythons; reads more requirements
    name=$1
    shift
    echo "constraints/$name.txt"
    sh scripts/uv.sh "$venv" pip compile --quiet --upgrade --universal --python-version 3.11 --extra testing \
        --no-annotate --no-emit-index-url --custom-compile-command "make constraints" \
        --output-file "constraints/$name.txt" "$@" pyproject.toml - >/dev/null
}
airflow() { # VERSION OPTION…
    version=$1
    shift
    # Airflow's Celery provider cannot import celery 5.7.
    printf '%s\n' "apache-airflow==$version.*" apache-airflow-providers-standard 'celery<5.7' |
        compile "airflow-$version" --group dev "$@"
    # What scripts/setup.sh installs alone.
    sh scripts/uv.sh "$venv" pip compile --quiet --no-deps --universal --python-version 3.11 --no-annotate --no-header \
        --no-emit-index-url --constraint "constraints/airflow-$version.txt" --extra azure --extra google "$@" pyproject.toml |
        grep -E '^apache-airflow-providers-(google|microsoft-azure)=' >>"constraints/airflow-$version.txt"
}
# Newer packages than these days' break Airflow's old releases.
airflow 3.1 --exclude-newer 2026-05-01
airflow 3.2 --exclude-newer 2026-06-15
airflow 3.3
airflow 3.4 # for as long as there is no release, uv takes the newest pre-release

compile system --constraint constraints/airflow-3.3.txt tests/system/requirements.txt </dev/null
for group in mutants docs dist; do
    compile "$group" --constraint constraints/airflow-3.3.txt --group "$group" </dev/null
done
