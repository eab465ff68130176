"""
How Sphinx builds the site: `make docs`.

The project's folder is the source, so that links to SECURITY.md, CHANGELOG.md and the example DAGs are the same here
as on a code host. The pages are plain Markdown; the navigation is the tables of links in index.md, and the first page
begins as the README does.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import importlib
import inspect
import os
import pkgutil
import re
import typing
from importlib.metadata import version as version_of
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sphinx.search
from docutils import nodes
from sphinx.addnodes import desc_parameter, pending_xref
from sphinx.pycode import ModuleAnalyzer
from sphinx.search.en import SearchEnglish
from sphinx.transforms import SphinxTransform
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import find_pending_xref_condition, make_refnode

# Airflow reads its configuration when autodoc imports it, and makes one where there is none.
os.environ["AIRFLOW_HOME"] = str(Path(__file__).parent / "_build" / "airflow")
os.environ["AIRFLOW__LOGGING__LOGGING_LEVEL"] = "WARNING"

if TYPE_CHECKING:
    from sphinx.application import Sphinx

PROJECT = Path(__file__).parent.parent
PACKAGE = "workflow_automation_provider"

project = "Workflow Automation provider for Apache Airflow"
release = version = version_of("airflow-provider-workflow-automation")
html_show_copyright = False

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
nitpicky = True
root_doc = "docs/index"
include_patterns = [
    "docs/*.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "CODE_OF_CONDUCT.md",
]
# No other folder is searched.
exclude_patterns = [
    path.name for path in PROJECT.iterdir() if path.is_dir() and path.name != "docs"
]
exclude_patterns += ["docs/_build"]

# The same anchors as on a code host.
myst_heading_anchors = 4
myst_links_external_new_tab = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
add_module_names = False
maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"Workflow Automation provider {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
# Whoever opens the folder of the site gets to the first page.
html_extra_path = ["_extra"]
copybutton_exclude = ".linenos, .gp, .go"


# The navigation ------------------------------------------------------------------------------------------

_HEADING_OR_LINK = re.compile(
    r"^(?:## (?P<heading>.+)|\| .*\| \[(?P<title>[^]]+)\]\((?P<page>[^)#]+)\.md\) \|)$",
    re.MULTILINE,
)


def add_navigation(_app: Sphinx, page: str, source: list[str]) -> None:
    """Make the navigation of the tables of links that a reader sees, under their headings."""
    if page != "docs/index":
        return
    parts: dict[str, list[str]] = {}
    caption = ""
    for found in _HEADING_OR_LINK.finditer(source[0]):
        if found["heading"]:
            caption = found["heading"]
        else:
            parts.setdefault(caption, []).append(f"{found['title']} <{found['page']}>")
    for heading, pages in parts.items():
        options = [":hidden:", *([f":caption: {heading}"] if heading else [])]
        source[0] += "\n".join(["", "```{toctree}", *options, "", *pages, "```", ""])


def add_readme(_app: Sphinx, page: str, source: list[str]) -> None:
    """Begin the first page of the site with the README, which is the first page on a code host."""
    if page != "docs/index":
        return
    readme = (PROJECT / "README.md").read_text(encoding="utf-8").partition("\n## Where next\n")[0]
    # What only a code host draws.
    readme = re.sub(r"^```mermaid\n.*?^```\n", "", readme, flags=re.MULTILINE | re.DOTALL)
    # The page is a folder deeper.
    readme = re.sub(r"\]\((?!\w+:|#)", "](../", readme).replace("](../docs/", "](")
    _, _, tables = source[0].partition("\n## ")
    source[0] = f"{readme}\n## {tables}"


# Tables and the search -----------------------------------------------------------------------------------


class NarrowTables(SphinxTransform):
    """
    Put type and default of an argument under its name, so that its meaning gets the width.

    Those columns stay columns on a code host, where there is no stylesheet.
    """

    default_priority = 500

    def apply(self, **_: Any) -> None:
        """Change the tables of a page that have a meaning, and something to put under the name."""
        for table in list(self.document.findall(nodes.table)):
            head, *rows = table.findall(nodes.row)
            titles = [entry.astext() for entry in head]
            moved = [number for number, title in enumerate(titles) if title in _BELOW and number]
            if "Meaning" not in titles or not moved:
                if len(titles) > MAX_COLUMNS:
                    stack(table, titles, rows)
                continue
            table["classes"].append("arguments")
            for row in rows:
                below = nodes.paragraph(classes=["below"])
                for number in moved:
                    if said := under_the_name(titles[number], row[number]):
                        below += [nodes.Text(", "), *said] if below.children else said
                if below.children:
                    row[0] += below
            specs = list(table.findall(nodes.colspec))
            for row in (head, *rows, specs):
                for number in reversed(moved):
                    row[number].parent.remove(row[number])
            table[0]["cols"] = len(titles) - len(moved)


MAX_COLUMNS = 3


def stack(table: nodes.table, titles: list[str], rows: list[nodes.row]) -> None:
    """Give each cell its title, which the stylesheet shows where the columns would be too narrow to read."""
    table["classes"].append("stacked")
    for row in rows:
        for title, cell in list(zip(titles, row, strict=True))[1:]:
            if title and cell.astext():
                cell[0].insert(0, nodes.inline("", f"{title}: ", classes=["title"]))


class LongNames(SphinxTransform):
    """Let long names in the first column of a table break after dots and underscores, and nowhere else."""

    default_priority = 510

    def apply(self, **_: Any) -> None:
        """Put a place to break into each such name."""
        for table in self.document.findall(nodes.table):
            for row in table.findall(nodes.row):
                for name in list(row[0].findall(nodes.literal)):
                    if not _LONG_NAME.match(name.astext()):
                        continue
                    stacked = {"stacked"} if len(row) == 2 else set()
                    table["classes"] = sorted({*table["classes"], "names", *stacked})
                    first, *others = re.split(r"(?<=[._])", name.astext())
                    name[:] = [nodes.Text(first)]
                    for part in others:
                        name += [nodes.raw("", "<wbr>", format="html"), nodes.Text(part)]


_LONG_NAME = re.compile(r"[\w.]{30,}$")

_BELOW = ("Type", "JSON field", "Default", "Required")


def under_the_name(title: str, cell: nodes.entry) -> list[nodes.Node]:
    """Return what a cell says where its column has no title."""
    text = cell.astext()
    content = [child.deepcopy() for paragraph in cell for child in paragraph.children]
    match title, text:
        case (_, "") | ("Required", "no"):
            return []
        case "Required", "yes":
            return [nodes.Text("required")]
        case "Default", "required":
            return content
        case "Default", _:
            return [nodes.Text("default "), *content]
    return content


class WithNumbers(SearchEnglish):
    """Indexes statuses such as 503, which Sphinx leaves out."""

    def word_filter(self, word: str) -> bool:
        """Return whether a search finds the word."""
        return word not in self.stopwords


sphinx.search.languages["en"] = WithNumbers


def search_numbers(app: Sphinx, error: Exception | None) -> None:
    """Let the search look for them: Sphinx leaves numbers out of a query."""
    if error is None and app.builder.name == "html":
        script = app.outdir / "_static" / "searchtools.js"
        text = script.read_text(encoding="utf-8")
        skip = " || queryTerm.match(/^\\d+$/)"
        if text.count(skip) != 1:
            raise ValueError("Sphinx's searchtools.js skips numbers in another way.")
        script.write_text(text.replace(skip, ""), encoding="utf-8")


# The API reference ---------------------------------------------------------------------------------------


def names_of(module: str) -> dict[str, str]:
    """Return what each name at the top of a module stands for, also where it is imported for type checkers alone."""
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    found = {}
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(origin), names=names, level=0):
                found |= {name.asname or name.name: f"{origin}.{name.name}" for name in names}
            case ast.Import(names=names):
                found |= {name.asname or name.name: name.name for name in names}
    for node in tree.body:
        match node:
            case (
                ast.ClassDef(name=name)
                | ast.FunctionDef(name=name)
                | ast.AnnAssign(target=ast.Name(id=name))
            ):
                found[name] = f"{module}.{name}"
            case ast.Assign(targets=[ast.Name(id=name)]):
                found[name] = f"{module}.{name}"
    return found


class Names:
    """What the names in signatures and docstrings stand for."""

    def __init__(self) -> None:
        package = importlib.import_module(PACKAGE)
        modules = [found.name for found in pkgutil.walk_packages(package.__path__, f"{PACKAGE}.")]
        self._by_module = {
            module: names_of(module) for module in modules if not module.endswith("__main__")
        }

    def objects(self, target: str, module: str | None) -> list[object]:
        """
        Return the objects that a target may be, the likeliest first.

        :param module: where it is written; where that does not know it, any module of the package may
        """
        first, _, rest = target.lstrip(".").partition(".")
        known = [self._by_module[module]] if module in self._by_module else []
        others = [names for name, names in self._by_module.items() if name != module]
        here, elsewhere = (
            [f"{names[first]}.{rest}".rstrip(".") for names in group if first in names]
            for group in (known, others)
        )
        below = [name for name in self._by_module if name.endswith(f".{target.lstrip('.')}")]
        candidates = [*here, target, f"builtins.{target}", *below, *elsewhere]
        return [found for name in dict.fromkeys(candidates) if (found := lookup(name)) is not None]


def lookup(name: str) -> object | None:
    """Import what a dotted name stands for, None if there is no such thing."""
    parts = name.split(".")
    if parts[0] == "builtins" and len(parts) == 2:
        return getattr(builtins, parts[1], None)
    for end in range(len(parts), 0, -1):
        try:
            value: object = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for part in parts[end:]:
            value = getattr(value, part, None)
        return value
    return None


def is_folder(page: str, target: str) -> bool:
    """Return whether a link leads to a folder of the project, which a code host shows and a site does not."""
    return bool(target) and (PROJECT / page).parent.joinpath(target).is_dir()


class Resolver(SphinxPostTransform):
    """
    Link types that are documented under another name, and leave those that exist elsewhere as text.

    A reference to what does not exist is left to Sphinx: it stays a warning, and fails the build.
    """

    default_priority = 5  # before Sphinx's own, which warns

    def run(self, **_: Any) -> None:
        """Resolve the references of a page."""
        domain = self.env.domains.python_domain
        documented = {
            id(value): name for name in domain.objects if (value := lookup(name)) is not None
        }
        for node in list(self.document.findall(pending_xref)):
            target = node.get("reftarget", "")
            if node["reftype"] == "myst" and is_folder(node["refdoc"], target):
                node.replace_self(node[0].deepcopy())
                continue
            if (
                node.get("refdomain") != "py"
                or node["reftype"] in ("meth", "attr")
                or target in domain.objects
            ):
                continue
            found = names().objects(target, node.get("py:module"))
            # Types in signatures come in two lengths.
            short = find_pending_xref_condition(node, "resolved")
            content = (short[0] if short else node[0]).deepcopy()
            for value in found:
                if name := documented.get(id(value)):
                    entry = domain.objects[name]
                    page = self.env.current_document.docname
                    node.replace_self(
                        make_refnode(
                            self.app.builder, page, entry.docname, entry.node_id, content, name
                        )
                    )
                    break
            else:
                if found:
                    node.replace_self(content)


@functools.cache
def names() -> Names:
    """Return what the names of the package stand for, read once."""
    return Names()


def readable(
    _app: Sphinx,
    _what: str,
    _name: str,
    _object: object,
    _options: object,
    signature: str | None,
    returns: str | None,
) -> tuple[str | None, str | None]:
    """Write defaults as Python: without that, Sphinx cannot parse what a dataclass makes."""
    return signature and signature.replace("<factory>", "...").replace(
        "= not given", "= UNSET"
    ), returns


def with_comment(
    _app: Sphinx, what: str, name: str, _object: object, _options: object, lines: list[str]
) -> None:
    """Give a constant that is imported into types.py the comment where it is defined: autodoc looks for none there."""
    module, _, short = name.rpartition(".")
    if what != "data" or module != f"{PACKAGE}.types":
        return
    home, _, own = names_of(module)[short].rpartition(".")
    lines[:] = ModuleAnalyzer.for_module(home).find_attr_docs()["", own]


def without_limits(_app: Sphinx, target: Any, _bound: bool) -> None:
    """Have annotations say types alone: the tables say which values fit."""
    for owner in (target, getattr(target, "__init__", None)):
        found = getattr(owner, "__annotations__", None)
        if found and str(getattr(owner, "__module__", "")).startswith(f"{PACKAGE}.testing"):
            with contextlib.suppress(NameError):  # of what is imported for type checkers alone
                found.update(typing.get_type_hints(owner))


class WithoutSentinels(SphinxTransform):
    """Show only that an argument may be left out: the tables say what holds then."""

    default_priority = 500

    def apply(self, **_: Any) -> None:
        """Change ``flow_id: str = UNSET`` into ``flow_id: str = ...``."""
        for parameter in self.document.findall(desc_parameter):
            if parameter.astext().endswith("= UNSET"):
                parameter[-1][:] = [nodes.Text("...")]


def setup(app: Sphinx) -> None:
    """Connect what is above."""
    app.connect("autodoc-before-process-signature", without_limits)
    app.connect("autodoc-process-signature", readable)
    app.connect("autodoc-process-docstring", with_comment)
    app.connect("source-read", add_navigation)
    app.connect("source-read", add_readme)
    app.connect("build-finished", search_numbers)
    app.add_transform(NarrowTables)
    app.add_transform(LongNames)
    app.add_transform(WithoutSentinels)
    app.add_post_transform(Resolver)
