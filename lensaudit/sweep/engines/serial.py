"""One after another, in this process."""

from collections.abc import Sequence

from lensaudit.sweep.work import Order, Report, work


def run_serial(orders: Sequence[Order], *, report: Report) -> None:
    """Do the orders in turn."""
    for order in orders:
        work(order, report)
