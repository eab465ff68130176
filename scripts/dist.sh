#!/bin/sh
# Build the source distribution and the wheel into dist/, and check them: dist.sh VENV
#
# Both are built again from the unpacked source distribution, and must come out the same byte for byte.
set -eu

venv=$1
again=$(mktemp -d)
trap 'rm -rf "$again"' EXIT

build() { # SOURCES FOLDER
    sh scripts/uv.sh "$venv" build --quiet --clear --build-constraints constraints/dist.txt --out-dir "$2" "$1"
}
build . dist
mkdir "$again/sources"
tar -xzf dist/*.tar.gz -C "$again/sources" --strip-components 1
build "$again/sources" "$again/dist"
for file in dist/*.whl dist/*.tar.gz; do
    cmp "$file" "$again/$file"
done
"$venv/bin/python" -m twine check --strict dist/*.whl dist/*.tar.gz
# What the wheel is to have: the package, and the examples in it.
package=$again/sources/provider/workflow_automation_provider
cp -R "$again/sources/example_dags" "$package/example_dags"
"$venv/bin/python" -m check_wheel_contents --no-config --package "$package" dist/*.whl
# All of its 10 points but those for an author and a URL of the project.
"$venv/bin/python" -m pyroma --min 7 dist/*.tar.gz
# The workflows that build and publish them.
"$venv/bin/zizmor" --offline --no-progress --quiet --strict-collection --persona pedantic .github
sha256sum dist/*.whl dist/*.tar.gz
echo "Built twice, with the same bytes."
