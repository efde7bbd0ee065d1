"""A cache's state as bytes or a file, and back into any cache of the same model.

saving.py       the methods of an engine
state.py        the rows that are saved, and what is checked before they are loaded
fingerprint.py  which model they belong to
files.py        files that are written whole or not at all
"""

from ubjax.saving.saving import Saving

__all__ = ["Saving"]
