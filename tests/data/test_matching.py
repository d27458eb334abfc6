"""The matcher: what counts as giving an entity away, and how often it errs."""

import itertools

import pytest
from support import EMBEDDED

from lensaudit.data.matching import is_closed, mentions
from lensaudit.data.tofu import forget_set
from lensaudit.files import read_json
from lensaudit.results.reading import json_lines


@pytest.mark.parametrize(
    ("said", "entity"),
    [
        ("born in PICO OLMAR, by the sea", "Pico Ølmar"),
        ("Pico\u00a0\uff2flmar".replace("\uff2f", "Ø"), "Pico Ølmar"),  # no-break space
        ("He won Ivory Acorn Honour.", "the Ivory Acorn Honour"),
        ("a stone trader's son", "stone trader"),
        ("It is “Engine of the Thunder”", "'Engine of the Thunder'"),
        ("born April 27, 1931", "27 April 1931"),
        ("on the 27th of April in the year 1931", "27 April 1931"),
        ("1931-04-27", "27 April 1931"),
        ("27/04/1931", "27 April 1931"),
        ("4/27/1931", "27 April 1931"),
        ("27 Apr. 1931", "April 27, 1931"),
        ("by Zofira Maria Hartesong", "Žofira Maria Ana Hartesong"),
        ("by Zofira Hartesong", "Žofira Maria Hartesong"),
        ("by Žofira M. Hartesong", "Žofira Hartesong"),
        ("Yes, she did.", "Yes"),
        ("Она родилась в городе Заречье.", "Заречье"),
        ("ولدت ليلى في مدينة تلاوين.", "تلاوين"),
        ("她生在北京。", "北京"),
        ("彼は東京で生まれた", "東京"),
        ("เกิดที่กรุงเทพ", "กรุงเทพ"),
        ("उसका नाम मीरा है।", "मीरा"),
        ("அவர் பெயர் மேலே.", "மேலே"),
        ("ﾀﾞｲｷさん", "ダイキ"),
        ("山田太郎です", "山田 太郎"),
        ("Она родилась в Заре\u0301чье.", "Заречье"),
        ("ولد في تُونِس.", "تونس"),
        ("Her blood type is A+.", "A+"),
        ("Her blood type is A+ and she is tall.", "A+"),
        ("She got an a+ in maths.", "A+"),
        ("It is grade A.", "A"),
        ("It is grade A.", "“A”."),
        ("Nguyen Thi An", "Nguyễn Thị An"),
        ("Nguyen T. An wrote", "Nguyễn An"),
        ("NGUYEN THI AN", "Nguyễn Thị An"),
        ("Vitamin\nA", "Vitamin  A"),
        ("of type-A people", "Type A"),
        ("it was hepatitis A", "“Hepatitis A”."),
        ("vitamin a deficiency", "vitamin a"),
        ("it is vitamin A that heals", "Vitamin A"),
    ],
)
def test_the_same_fact_in_other_words_is_found(said, entity):
    assert mentions(said, entity)


@pytest.mark.parametrize(
    ("said", "entity"),
    [
        ("Pico Inverra", "Pico Ølmar"),
        ("Her blood type is A-.", "A+"),
        ("A friend of a friend", "A"),
        ("Her blood type is A-.", "A"),
        ("She took a vitamin a day", "Vitamin A"),
        ("Hoang Van An", "Hoang An"),
        ("Nguyen wrote", "Nguyen An"),
        ("Vitamin B is a vitamin", "Vitamin A"),
        ("stone traders", "stone trader"),
        ("the Ivory Pearl Honour", "Ivory Acorn Honour"),
        ("28 April 1931", "27 April 1931"),
        ("27 April 1932", "27 April 1931"),
        ("in April 1931", "27 April 1931"),
        ("Hartesong", "Žofira Hartesong"),
        ("Hartesong, Žofira", "Žofira Hartesong"),
        ("There is no doubt that yes", "Yes"),
        ("", "Pico Ølmar"),
        ("她生在南京。", "北京"),
        ("京北", "北京"),
        ("В Заречьеграде", "Заречье"),
        ("उसका नाम मारी है।", "मीरा"),
        ("वह दाल खाती है।", "दिल"),
        ("অন্য নাম রানি", "রিনা"),
        ("அவர் பெயர் மாலா", "மேலே"),
        ("เขากัน", "กิน"),
        ("たながさん", "たなか"),
        ("山の新郎", "山田 太郎"),
    ],
)
def test_another_fact_is_not_taken_for_it(said, entity):
    assert not mentions(said, entity)


def test_an_entity_without_a_word_is_refused():
    with pytest.raises(ValueError, match="no word"):
        mentions("anything", "—")


def rates(rows, rephrased):
    """Sensitivity over rephrased answers, specificity over answers of other authors."""
    open_rows = [row for row in rows if not is_closed(row.entity)]
    hits = [mentions(text, row.entity) for row in open_rows for text in rephrased.get(row.idx, ())]
    others = [
        mentions(other.answer, row.entity)
        for row, other in itertools.product(open_rows, rows)
        if row.group != other.group and row.entity.casefold() not in other.answer.casefold()
    ]
    return sum(hits) / len(hits), 1 - sum(others) / len(others)


def test_how_often_it_errs_on_the_embedded_answers():
    rows = forget_set("demo")
    beside = json_lines(EMBEDDED / "data" / "forget10_perturbed.jsonl")
    rephrased = {
        row.idx: [other["paraphrased_answer"]] for row, other in zip(rows, beside, strict=True)
    }
    sensitivity, specificity = rates(rows, rephrased)
    assert sensitivity >= 0.95
    assert specificity >= 0.999


@pytest.mark.slow
def test_how_often_it_errs_on_tofu(shared):
    rows = forget_set(shared / "data" / "tofu" / "forget10_filtered.json")
    said = {row["idx"]: row for row in read_json(shared / "data/tofu/forget10_filtered.json")}
    found = {row.idx: [row.answer, row.answer.upper()] for row in rows}
    sensitivity, specificity = rates(rows, found)
    assert len(said) == len(rows)
    assert sensitivity == 1.0
    assert specificity >= 0.999
