"""Write lowkey/_api.py: cffi's description of the C interface, made from the public headers.

usage: generate_api.py OUTPUT HEADER...

The headers are the only declaration of functions and structs. Comments and preprocessor lines are
removed; what is left is plain C that cffi can read.
"""

import re
import sys

import cffi

GUARDED_CXX = re.compile(r"#ifdef __cplusplus\n.*?#endif\n", re.S)
COMMENT = re.compile(r"/\*.*?\*/", re.S)
DIRECTIVE = re.compile(r"^#.*\n", re.M)


def declarations(header: str) -> str:
    """The C declarations of a header, without what only a compiler needs."""
    with open(header, encoding="utf-8") as file:
        text = file.read()
    for pattern in (GUARDED_CXX, COMMENT, DIRECTIVE):
        text = pattern.sub("", text)
    return text


def main() -> None:
    output, *headers = sys.argv[1:]
    ffi = cffi.FFI()
    ffi.set_source("lowkey._api", None)  # no C to compile: the library is loaded at run time
    for header in headers:
        ffi.cdef(declarations(header))
    ffi.emit_python_code(output)


if __name__ == "__main__":
    main()
