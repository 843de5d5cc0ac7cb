"""A hook of mkdocs.yml: the site has the repository's own layout, so that one link works on a Git host and in the site."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pymdownx.slugs import slugify

ROOT = Path(__file__).resolve().parent.parent
SHOWN = ("*.md", "LICENSE", "docs/**/*", "*/README.md")


def on_config(config: MkDocsConfig) -> None:
    # Anchors as Git hosts make them; mkdocs' own fold dashes.
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    themes = [file for file in files if file.src_dir != config.docs_dir]
    shown = sorted({path for pattern in SHOWN for path in ROOT.glob(pattern) if path.is_file()})
    return Files(
        themes
        + [
            File(path.relative_to(ROOT).as_posix(), str(ROOT), config.site_dir, config.use_directory_urls)
            for path in shown
        ]
    )
