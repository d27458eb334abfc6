"""Writes bitsandbytes.json: what bitsandbytes 0.50.2 makes of two small matrices on a CPU.

Run once, where bitsandbytes is installed: python tests/attacks/golden/make_bitsandbytes.py
"""

import json
from pathlib import Path

import torch

DTYPES = {"float32": torch.int32, "bfloat16": torch.int16, "float16": torch.int16}


def bits(tensor):
    return tensor.reshape(-1).view(DTYPES[str(tensor.dtype).removeprefix("torch.")]).tolist()


def matrices():
    """Random weights; the levels, the middles between them and neighbours; a short block.

    In the short block, division and product with the reciprocal round to other sides of a middle.
    """
    from bitsandbytes import functional  # not a dependency of the tests

    levels = functional.get_4bit_type("nf4", device="cpu")
    middles = (levels[:-1] + levels[1:]) / 2
    two = torch.tensor(2.0)
    edges = torch.cat([middles, middles.nextafter(two), middles.nextafter(-two), levels])
    edges = torch.cat([edges, torch.zeros(128 - len(edges))]).reshape(2, 64)
    edges[1, -1] = 1.0
    yield "random", torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    yield "edges", edges
    scale = torch.tensor(1.0 + 3 / 997)
    short = middles * scale
    short = torch.cat([short, short.nextafter(two), short.nextafter(-two), scale.reshape(1)])
    yield "short", short.reshape(2, 23)


def case(name, weight):
    from bitsandbytes import functional

    codes, state = functional.quantize_4bit(weight, blocksize=64, quant_type="nf4")
    rows, scales, _ = functional.int8_vectorwise_quant(weight.to(torch.float16))
    return {
        "name": name,
        "dtype": str(weight.dtype).removeprefix("torch."),
        "shape": list(weight.shape),
        "weight": bits(weight),
        "nf4": bits(functional.dequantize_4bit(codes, state).contiguous()),
        "int8": bits(functional.int8_vectorwise_dequant(rows, scales).to(weight.dtype)),
    }


def main():
    import bitsandbytes

    cases = [
        case(name, weight.to(getattr(torch, dtype)))
        for name, weight in matrices()
        for dtype in DTYPES
    ]
    content = {"bitsandbytes": bitsandbytes.__version__, "torch": torch.__version__, "cases": cases}
    (Path(__file__).parent / "bitsandbytes.json").write_text(json.dumps(content) + "\n")


if __name__ == "__main__":
    main()
