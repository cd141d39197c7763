"""Texts and files of others, fetched by pinned id and hash: the only fetcher of both packages.

A catalog row says where a text is published and what its bytes hash to; nothing that is read is
ever executed, and no text of others stands in the repository.
"""

from __future__ import annotations

from judgezoo.assets.catalog import AssetRow, read_catalog
from judgezoo.assets.store import Asset, AssetStatus, AssetStore, default_cache_dir

__all__ = [
    "Asset",
    "AssetRow",
    "AssetStatus",
    "AssetStore",
    "default_cache_dir",
    "read_catalog",
]
