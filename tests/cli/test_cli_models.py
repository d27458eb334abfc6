import subprocess
import sys


def test_listing_loads_no_heavy_package():
    code = (
        "import sys; from lensaudit.cli.main import run; run(['models']); "
        "sys.exit(bool({'torch', 'transformers', 'datasets'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
