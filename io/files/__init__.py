"""Files as a sink: JSON Lines, published exactly once.

from penstock.io.files import WriteJsonLines

records | WriteJsonLines("/data/out", table=lambda r: r.table_name, key=lambda r: r.keys, shards=4)
"""

from penstock.io.files.local import OutputError
from penstock.io.files.publication import PublishedFile
from penstock.io.files.write import WriteJsonLines

__all__ = ["OutputError", "PublishedFile", "WriteJsonLines"]
