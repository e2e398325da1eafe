"""Rewrite a GGUF file with its block-quantised matrices as Q8_0. Runs under the peer's interpreter.

usage: python _requantise.py SOURCE TARGET

Weights are dequantised to float32 and rounded to Q8_0 as llama.cpp's own tool does it with
`--allow-requantize`: metadata, norms and tensors that are Q8_0 already are copied as they are.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gguf
from gguf.quants import dequantize, quantize

KEPT = {
    gguf.GGMLQuantizationType.F32,
    gguf.GGMLQuantizationType.F16,
    gguf.GGMLQuantizationType.Q8_0,
}
TARGET = gguf.GGMLQuantizationType.Q8_0


def copy_metadata(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    """Every field but those that the writer makes itself."""
    for field in reader.fields.values():
        own = field.name.startswith("GGUF.") or field.name == gguf.Keys.General.ARCHITECTURE
        if own or field.name == gguf.Keys.General.FILE_TYPE:
            continue
        kind, *rest = field.types
        writer.add_key_value(field.name, field.contents(), kind, rest[-1] if rest else None)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)


def requantise(source: Path, target: Path) -> None:
    reader = gguf.GGUFReader(source)
    arch = reader.fields[gguf.Keys.General.ARCHITECTURE].contents()
    writer = gguf.GGUFWriter(target, arch)
    copy_metadata(reader, writer)
    for tensor in reader.tensors:
        if tensor.tensor_type in KEPT:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        else:
            wide = dequantize(tensor.data, tensor.tensor_type)
            writer.add_tensor(tensor.name, quantize(wide, TARGET), raw_dtype=TARGET)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    requantise(Path(sys.argv[1]), Path(sys.argv[2]))
