"""The first layers of a model file as a file of its own, with the whole vocabulary and template."""
import os
import re
import struct

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # bytes of GGUF's values by type
STRING, ARRAY = 8, 9
ALIGNMENT = 32
CONTEXT = 131072  # tokens: what the model was trained with does not matter to a part of it


class Reader:
    def __init__(self, file):
        self.file = file

    def number(self, form):
        return struct.unpack("<" + form, self.file.read(struct.calcsize(form)))[0]

    def text(self):
        return self.file.read(self.number("Q"))

    def skip(self, kind):
        if kind == STRING:
            self.text()
        elif kind == ARRAY:
            inner, n = self.number("I"), self.number("Q")
            if inner in SIZES:
                self.file.seek(SIZES[inner] * n, os.SEEK_CUR)
            else:
                for _ in range(n):
                    self.skip(inner)
        else:
            self.file.seek(SIZES[kind], os.SEEK_CUR)


def align(n):
    return -(-n // ALIGNMENT) * ALIGNMENT


def write_first_layers(source, target, n_layer):
    """Writes the first `n_layer` layers of the GGUF file `source` to `target`. Architectures whose layers are all alike."""
    with open(source, "rb") as file:
        reader = Reader(file)
        magic, version, n_tensor, n_key = file.read(4), reader.number("I"), reader.number("Q"), reader.number("Q")
        assert magic == b"GGUF", f"{source} is not a GGUF file"
        keys = b""
        for _ in range(n_key):
            start = file.tell()
            key, kind = reader.text().decode(), reader.number("I")
            at = file.tell()
            reader.skip(kind)
            end = file.tell()
            file.seek(start)
            entry = file.read(end - start)
            if key.endswith((".block_count", ".context_length")):
                entry = entry[:at - start] + struct.pack("<I", n_layer if key.endswith("count") else CONTEXT)
            keys += entry
        infos = []
        for _ in range(n_tensor):
            name, n_dim = reader.text(), reader.number("I")
            shape = file.read(8 * n_dim)
            infos.append([name, struct.pack("<I", n_dim) + shape + file.read(4), reader.number("Q")])
        data = align(file.tell())
        ends = sorted([info[2] for info in infos] + [os.path.getsize(source) - data])
        kept, head, n_byte = [], b"", 0
        for name, shape, offset in infos:
            layer = re.match(rb"blk\.(\d+)\.", name)
            if layer and int(layer.group(1)) >= n_layer:
                continue
            size = min(end for end in ends if end > offset) - offset
            head += struct.pack("<Q", len(name)) + name + shape + struct.pack("<Q", n_byte)
            kept.append((data + offset, size))
            n_byte += align(size)
        with open(target, "wb") as out:
            out.write(magic + struct.pack("<IQQ", version, len(kept), n_key) + keys + head)
            for offset, size in kept:
                out.write(bytes(align(out.tell()) - out.tell()))
                file.seek(offset)
                out.write(file.read(size))
