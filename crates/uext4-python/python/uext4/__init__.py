"""ext4 in user space: images of ext4 file systems, read and written without mounting them.

>>> import uext4
>>> uext4.mkfs("disk.img", 64 << 20)
>>> with uext4.Volume("disk.img", "r+") as volume:
...     (volume / "etc").mkdir()
...     (volume / "etc" / "hostname").write_text("box\\n")
...     for name in (volume / "etc").iterdir():
...         print(name, name.stat().st_size)

The guide is docs/python.md. With fsspec the same images are ``uext4://`` URLs: `uext4.fs`.
"""

from ._file import File
from ._make import CheckResult, Finding, fsck, mkfs
from ._partition import Partition, partitions
from ._path import Path
from ._volume import Volume
from ._uext4 import VERSION as __version__

__all__ = [
    "CheckResult",
    "File",
    "Finding",
    "Partition",
    "Path",
    "Volume",
    "__version__",
    "fsck",
    "mkfs",
    "partitions",
]
