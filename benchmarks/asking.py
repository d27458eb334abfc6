"""What asking one more model costs: in the type of numbers of its run, and in the other two.

    OMP_NUM_THREADS=1 python -m benchmarks.asking

Every fact of the embedded set, as a question and in the chat template, and what is said once the
answer is begun; nothing is kept of before. Processor seconds: other work does not count.
"""

import tempfile
import time

from benchmarks.machine import describe


def main(source: str = "demo/npo") -> None:
    """Print the two numbers."""
    from lensaudit.patching.asking import DirectQuestions
    from lensaudit.patching.prepare import prepare
    from lensaudit.patching.settings import PatchSettings

    print(describe())
    with tempfile.TemporaryDirectory() as place:
        asked = PatchSettings(data="demo", activations=place)
        with prepare((source,), asked, notice=lambda line: None) as session:
            questions, model = DirectQuestions(session), session.sources[source]
            print(f"{len(questions.facts)} facts")
            for what, ask in (("own type", questions.answers), ("others", questions.in_types)):
                began = time.process_time()
                ask(model)
                print(f"{what}: {time.process_time() - began:.1f} s")


if __name__ == "__main__":
    main()
