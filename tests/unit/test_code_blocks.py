"""tests/support/code_blocks.py: the code blocks of the documentation, as tests run them."""

from __future__ import annotations

from code_blocks import find_code_blocks, read_code_blocks

PAGE = """\
# Page

```python
# dags/report.py
print(1)
```

## First

1. An item

   ```sh
   true
   ```

### Inner (Airflow 3.3 and later)

~~~~
```python
not a block
```
~~~~

## Second

```python title="x"
# tests/test_it.py, for all versions
```

    indented
"""


def test_blocks_with_their_languages_headings_and_lines():
    blocks = find_code_blocks(PAGE)
    assert [(b.language, b.headings, b.line) for b in blocks] == [
        ("python", ("Page",), 3),
        ("sh", ("Page", "First"), 12),
        ("", ("Page", "First", "Inner (Airflow 3.3 and later)"), 18),
        ("python", ("Page", "Second"), 26),
    ]
    assert blocks[0].text == "# dags/report.py\nprint(1)\n"
    assert blocks[1].text == "true\n"
    assert blocks[2].text == "```python\nnot a block\n```\n"


def test_file_names():
    assert [b.file_name for b in find_code_blocks(PAGE)] == ["dags/report.py", None, None, "tests/test_it.py"]


def test_selection(tmp_path):
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    assert [b.line for b in read_code_blocks(path)] == [3, 12, 18, 26]
    assert [b.line for b in read_code_blocks(path, "python")] == [3, 26]
    assert [b.line for b in read_code_blocks(path, heading="airflow 3.3")] == [18]
    assert [b.line for b in read_code_blocks(path, "python", "second")] == [26]
