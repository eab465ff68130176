#!/bin/sh
# Write sbom.cdx.json: what pip installs with the wheel beside Airflow, in the versions of constraints/: sbom.sh VENV AIRFLOW
#
# CycloneDX in JSON, the same for the same wheel and constraints.
set -eu

venv=$1
airflow=$2
installed=$(mktemp -d)
trap 'rm -rf "$installed"' EXIT

uv() {
    sh scripts/uv.sh "$venv" "$@"
}
uv venv --quiet --python "$venv/bin/python" "$installed"
uv pip install --quiet --python "$installed/bin/python" --constraints "constraints/airflow-$airflow.txt" .
"$venv/bin/python" -m cyclonedx_py environment --pyproject pyproject.toml --mc-type library --spec-version 1.6 \
    --output-reproducible --output-file sbom.cdx.json "$installed/bin/python"
echo "sbom.cdx.json names what a wheel of this version is installed with."
