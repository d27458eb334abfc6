"""`lensaudit connect`: an audit inside other people's tools."""

from pathlib import Path

import click

from lensaudit.cli.options import SettingOption
from lensaudit.cli.terminal import say


@click.command()
@click.argument("tool", type=click.Choice(["open-unlearning"]))
@click.argument("checkout", metavar="PATH", type=click.Path(path_type=Path))
@click.option("--remove", cls=SettingOption, typed=True, is_flag=True, help="Undo it, exactly.")
@click.option("--yes", cls=SettingOption, typed=True, is_flag=True, help="Do not ask.")
def connect(tool: str, checkout: Path, remove: bool, yes: bool) -> None:
    """Make lensaudit an evaluator of the open-unlearning checkout at PATH.

    Writes an evaluator, its configuration `eval=lensaudit`, and one line that registers it; the
    diff is shown first. The evaluator runs this interpreter on the model's checkpoint.
    """
    from lensaudit.doors.open_unlearning import carry_out, connection, removal

    edits = removal(checkout) if remove else connection(checkout)
    say("".join(one.diff for one in edits))
    if not yes and not click.confirm(f"Change {len(edits)} files?"):
        say("nothing was changed")
        return
    carry_out(checkout, edits)
    say(
        "removed"
        if remove
        else "connected; next: set full and retain in configs/eval/lensaudit.yaml"
    )
