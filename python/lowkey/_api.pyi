# _api.py is written by generate_api.py when the package is built.
from typing import Any

ffi: Any
