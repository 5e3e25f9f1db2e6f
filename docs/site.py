"""For `make docs`: pages from outside docs/ join the site; docstrings' arguments become a list."""

from __future__ import annotations

import re
from pathlib import Path

from griffe import Extension
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
OUTSIDE = ("CONTRIBUTING.md", "CHANGELOG.md")


def on_files(files, config):
    """Add the pages of the repository's root, and keep this file out of the site."""
    for name in OUTSIDE:
        files.append(File.generated(config, name, content=(ROOT / name).read_text(encoding="utf-8")))
    found = files.get_file_from_path("site.py")
    if found is not None:
        files.remove(found)
    return files


def on_page_markdown(markdown, page, **_):
    """Links to ../NAME lead to the page that was added, or, for other files, to nothing but their name. From such a
    page docs/NAME is beside it."""
    if page.file.src_uri in OUTSIDE:
        return markdown.replace("](docs/", "](")

    def link(match):
        text, target = match.groups()
        name = target.partition("#")[0]
        return f"[{text}]({target})" if name in OUTSIDE else f"`{name}`"

    return re.sub(r"\[([^\]]*)\]\(\.\./([^)]+)\)", link, markdown)


class Arguments(Extension):
    """The house's docstrings tell arguments as "name: ..." at the margin, with what follows indented."""

    def on_object(self, *, obj, **_):
        if obj.docstring is None:
            return
        lines, in_list = [], False
        for line in obj.docstring.value.splitlines():
            told = re.match(r"([a-z]\w*(?:, [a-z]\w*)*): (.*)", line)
            if told:
                lines += [] if in_list else [""]
                line, in_list = f"- **{told[1]}**: {told[2]}", True
            elif not line.startswith(" "):
                in_list = False
            lines.append(line)
        obj.docstring.value = "\n".join(lines)
