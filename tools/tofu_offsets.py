r"""Where do annotated spans of TOFU lie? Makes the tables that the project ships.

    python tools/tofu_offsets.py forget10_filtered.json
    python tools/tofu_offsets.py retain_annotated.json --config retain_perturbed \
        -o tofu_data/retain_validity_offsets.json

The argument is a file in the annotated schema with the `idx` of locuslab/TOFU forget10, or of
another configuration. The table holds numbers and hashes, no text; it takes a second, and the same
file gives the same bytes.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import astuple, fields
from pathlib import Path

from lensaudit.data.facts import load_facts
from lensaudit.data.tofu import FORGET10, TOFU_HUB, Offsets, located
from lensaudit.files import write_bytes

TABLE = Path(__file__).parents[1] / "tofu_data" / "forget10_offsets.json"


def main(arguments: Sequence[str] | None = None) -> Path:
    """Write the table of an annotated file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("annotated", type=Path, help="JSON or JSONL: idx … prefix, entity")
    parser.add_argument("-o", "--out", type=Path, default=TABLE)
    parser.add_argument("--config", default=FORGET10, help="of the data set")
    options = parser.parse_args(arguments)
    examples = sorted(load_facts(options.annotated), key=lambda example: example.idx)
    rows = ",\n".join(json.dumps(astuple(located(example))) for example in examples)
    columns = [field.name for field in fields(Offsets)]
    head = json.dumps({"dataset": TOFU_HUB, "config": options.config, "columns": columns})
    write_bytes(options.out, f'{head[:-1]}, "rows": [\n{rows}\n]}}\n'.encode())
    print(options.out)
    return options.out


if __name__ == "__main__":
    main()
