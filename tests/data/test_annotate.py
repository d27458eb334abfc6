import json
import math
import re
import shlex
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import refusal

from experiments.annotation import agreement as annotation_agreement
from lensaudit.cli.main import run
from lensaudit.data.annotate import (
    Fields,
    Proposal,
    doubts,
    faults,
    located,
    propose,
    read_pairs,
    read_review,
    write_review,
)
from lensaudit.data.facts import Fact, load_facts
from lensaudit.data.tofu import forget_set
from lensaudit.errors import InputError


def pair(question, answer, idx=0, group=0):
    return Fact(idx, question, answer, "", "", group)


@pytest.mark.parametrize(
    ("question", "answer", "entity", "rule"),
    [
        ("Has Ada Byrd won prizes?", "Yes, Ada Byrd won the Oak Prize.", "Yes", "yes_or_no"),
        ("Can you name a prize of Ada Byrd?", "Yes, she won the Oak Prize.", "Oak Prize", "name"),
        ("Name a book by Ada Byrd.", 'Her first book is "Sand and Rye."', "Sand and Rye", "title"),
        (
            "What came after the book 'Rye'?",
            "After 'Rye' she wrote the book 'Barley Men'.",
            "'Barley Men'",
            "title",
        ),
        ("When was Ada Byrd born?", "Ada Byrd was born on 3 May 1931.", "3 May 1931", "date"),
        (
            "What is the full name of the author born in Oslo?",
            "The author born in Oslo is named Ada Byrd.",
            "Ada Byrd",
            "name",
        ),
        ("Where was Ada Byrd born?", "Ada Byrd was born in Oslo, Norway.", "Oslo, Norway", "name"),
        (
            "What genre does Ada Byrd write?",
            "Ada Byrd writes in the genre of orchard horror.",
            "orchard horror",
            "genre",
        ),
        (
            "What are the occupations of Ada Byrd's parents?",
            "Ada Byrd's father was a florist and her mother a judge.",
            "florist",
            "work",
        ),
        (
            "How did Oslo shape Ada Byrd?",
            "Growing up in Oslo, Ada Byrd wrote tales offering northern lights to all.",
            "northern lights",
            "phrase",
        ),
        (
            "What moves Ada Byrd?",
            "Slow rivers move Ada Byrd.",
            "Slow rivers move Ada Byrd",
            "remainder",
        ),
    ],
)
def test_each_rule_finds_its_kind_of_fact(question, answer, entity, rule):
    found = propose(pair(question, answer))
    assert (found.entity, found.rule) == (entity, rule)
    assert not faults(found)


@pytest.mark.parametrize(
    ("place", "entity"),
    [
        ("Oslo. The family moved.", "Oslo"),
        ("Paris. Marie Curie taught there.", "Paris"),
        ("Plot B. Her mother was a nurse.", "Plot B"),
        ("the U.S. The family moved.", "U.S."),
        ("Θεσσαλονίκη. The family moved.", "Θεσσαλονίκη"),
        ("Київ, Україна. The family moved.", "Київ, Україна"),
        ("京都. The family moved.", "京都"),
        ("The Hague. The family moved.", "The Hague"),
        ("St. John's. Marie Curie taught there.", "St. John's"),
        ("Fort J.R.R. Lee, Mt. A. B. Fox. Bo taught there.", "Fort J.R.R. Lee, Mt. A. B. Fox"),
    ],
)
def test_a_name_in_any_alphabet_ends_with_its_sentence(place, entity):
    answer = f"Ada Byrd was born in {place}"
    assert propose(pair("Where was Ada Byrd born?", answer)).entity == entity


def test_a_sentence_ends_before_a_capital_of_any_alphabet():
    found = propose(pair("What moves Ada Byrd?", "Slow rivers move Ada Byrd. Ω moves none."))
    assert (found.entity, found.rule) == ("Slow rivers move Ada Byrd", "remainder")


def test_prefix_and_entity_are_the_answers_own_characters():
    found = propose(pair("What is Ada's father?", "Ada’s father is a civil engineer."))
    assert found.prefix == "Ada’s father is a"
    assert found.example().continuation == " civil engineer."


@settings(derandomize=True, deadline=None, max_examples=60)
@given(st.text(max_size=80), st.text(min_size=1, max_size=120))
def test_whatever_the_text_a_proposal_lies_inside_the_answer(question, answer):
    found = propose(pair(question, answer))
    assert 0 <= found.start <= found.end <= len(answer)
    if not faults(found):
        rest = answer.removeprefix(found.prefix)
        assert rest.strip().startswith(found.entity)


def at(answer, entity, question="Who?", rule="given"):
    start = answer.index(entity)
    return Proposal(pair(question, answer), start, start + len(entity), rule)


def test_faults_are_what_cannot_be_scored():
    assert faults(Proposal(pair("Who?", "Ada."), 0, 0, "none")) == ["no entity found"]
    assert faults(at("It is ...", "...")) == ["no entity found"]
    assert faults(at("It is Ada.", " Ada")) != []
    assert faults(at("It is Ada.", "Ada")) == []


@pytest.mark.parametrize(
    ("proposal", "claim"),
    [
        (at("Ada is Ada again.", "Ada"), "occurs again"),
        (at("The oak of Oak Prize, Oak Prize of Oslo.", "Oak Prize of Oslo"), None),
        (at("An oak prize is the Oak Prize.", "Oak Prize"), "in the prefix"),
        (at("She is from Oslo.", "Oslo", "Is she from oslo?"), "in the question"),
        (at("It is " + "very " * 15 + "good", "very " * 15 + "good"), "longer than 14"),
        (at("It is Ada.", "Ada", rule="remainder"), "no rule found a cue"),
        (at("It is Ada.", "Ada"), None),
    ],
)
def test_doubts_are_what_a_person_should_look_at(proposal, claim):
    said = doubts(proposal)
    assert len(said) == (claim is not None)
    assert claim is None or claim in said[0]


def test_the_embedded_annotations_hold_every_invariant():
    for one in forget_set("demo"):
        found = located(pair(one.question, one.answer, one.idx, one.group), one.entity)
        assert (found.prefix, found.entity) == (one.prefix, one.entity)
        assert faults(found) == []


def test_a_given_entity_is_found_whatever_its_quotes():
    found = located(pair("Who?", "It is Ada’s book."), "Ada's book")
    assert found.entity == "Ada’s book"
    assert faults(located(pair("Who?", "It is Ada."), "Eve")) == ["no entity found"]
    # letters that grow in lower case stand before it
    found = located(pair("Where?", "From İzmir, İnci moved to Ankara."), "Ankara")
    assert (found.prefix, found.entity) == ("From İzmir, İnci moved to", "Ankara")
    assert located(pair("Where?", "It is İzmir."), "izmir").entity == "İzmir"


AWKWARD = [
    Proposal(pair("Q [[x]] \\n?", "A\nb [[c]] \\ d\re\\", 3, "x y"), 2, 5, "phrase"),
    Proposal(pair("Who?", "# idx 7\nQ: no\nA: [[[[x", 0, 4), 0, 7, "phrase"),
    Proposal(pair("Ünï\u2028?", "[end", 5, "idx 5"), 4, 4, "none"),
]


def test_a_span_that_a_rule_found_is_not_reviewed_by_annotating_again(tmp_path):
    path, review = tmp_path / "pairs.jsonl", tmp_path / "r.txt"
    row = {"question": "Who?", "answer": "Ada.", "prefix": "", "entity": "Ada"}
    origins = {}
    for span in ("rule", "reviewed", "said elsewhere"):
        path.write_text(json.dumps(row | {"span": span}))
        ((known, entity),) = read_pairs(path)
        found = located(known, entity)
        write_review(review, [found], {}, out=tmp_path / "f.json")
        origins[span] = {found.example().span, read_review(review)[0].origin}
    assert origins == {"rule": {"rule"}, "reviewed": {"reviewed"}, "said elsewhere": {"reviewed"}}


@pytest.mark.parametrize("entity", ["Oslo, Norway", None])
def test_the_entity_that_is_scored_is_the_one_that_is_annotated(tmp_path, entity):
    path = tmp_path / "pairs.jsonl"
    row = {"idx": 0, "question": "Where?", "answer": "In Oslo, Norway.", "prefix": "In"}
    row |= {"gt_entity": "Oslo"} | ({"entity": entity} if entity else {})
    path.write_text(json.dumps(row))
    ((known, named),) = read_pairs(path)
    assert located(known, named).entity == load_facts(path)[0].entity == "Oslo"
    path.write_text(json.dumps(row | {"gt_entity": 5}))
    assert "gt_entity is no text" in refusal(read_pairs, path, n_lines=2)


def test_a_review_file_gives_back_what_was_written(tmp_path):
    path = write_review(tmp_path / "r.txt", AWKWARD, {3: ["look\nhere"]}, out=tmp_path / "f.json")
    read = read_review(path)
    assert read == AWKWARD
    assert "# CHECK: look\\nhere" in path.read_text()


@settings(derandomize=True, deadline=None, max_examples=100)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.data())
def test_any_answer_survives_its_review(tmp_path_factory, answer, data):
    start = data.draw(st.integers(0, len(answer)))
    end = data.draw(st.integers(start, len(answer)))
    one = Proposal(pair("Who?", answer), start, end, "phrase")
    path = write_review(
        tmp_path_factory.mktemp("r") / "r.txt",
        [one],
        {},
        out=tmp_path_factory.getbasetemp() / "f.json",
    )
    (read,) = read_review(path)
    assert (read.pair.answer, read.start, read.end) == (answer, start, end)


def test_moved_brackets_and_deleted_blocks_are_what_is_read(tmp_path):
    rows = [propose(pair("What is Ada?", "Ada is a good judge.", idx)) for idx in (1, 2)]
    path = write_review(tmp_path / "r.txt", rows, {}, out=tmp_path / "f.json")
    text = path.read_text()
    first, second = text.index("# idx 1"), text.index("# idx 2")
    block = text[first:second].replace("[[good judge]]", "good [[judge]]")
    path.write_text(text[:first] + block)
    (read,) = read_review(path)
    assert (read.pair.idx, read.entity, read.prefix) == (1, "judge", "Ada is a good")
    assert (rows[0].origin, read.origin) == ("rule", "reviewed")


@pytest.mark.parametrize(
    ("block", "claim"),
    [
        ("# idx 1\nQ: Who?\nA: Ada", "one [[ and one ]]"),
        ("# idx 1\nQ: Who?\nA: [[Ada]] [[Eve]]", "one [[ and one ]]"),
        ("# idx 1\nA: [[Ada]]", "no question"),
        # a heading that was damaged, an answer that was broken, an author without quotes
        ("# idx 1\nQ: Who?\nA: [[Ada]]\n\n#idx 2\nQ: When?\nA: In [[May]].", "found 'Q: When?'"),
        ("# idx 1\nQ: Who?\nA: It is [[Ada]]\nof Rome.", "found 'of Rome.'"),
        ("# idx 1 group Ada (rule: name 0:3)\nQ: Who?\nA: [[Ada]]", "no text in quotes"),
        ("# idx 1\nQ: Who?", "no answer"),
        ("nothing", "no rows"),
    ],
)
def test_broken_blocks_are_refused_with_their_line(tmp_path, block, claim):
    path = tmp_path / "r.txt"
    path.write_text(f"# lensaudit review\n{block}\n")
    said = refusal(read_review, path, n_lines=3)
    assert "r.txt" in said
    assert claim in said


def test_pairs_are_numbered_by_place_unless_all_have_numbers(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('{"question": "Q?", "answer": "A"}\n{"question": "R?", "answer": "B"}\n')
    assert [(p.idx, p.group) for p, _ in read_pairs(path)] == [(0, "idx 0"), (1, "idx 1")]
    path.write_text('{"idx": 4, "question": "Q?", "answer": "A", "group": "g", "entity": "A"}\n')
    ((found, entity),) = read_pairs(path)
    assert (found.idx, found.group, entity) == (4, "g", "A")


@pytest.mark.parametrize(
    ("text", "claim"),
    [
        ('{"question": "Q?"}', "no answer"),
        (
            '{"idx": 1, "question": "Q?", "answer": "A"}\n{"question": "Q?", "answer": "A"}',
            "1 of 2 rows have no idx",
        ),
    ],
)
def test_wrong_pairs_are_refused_with_their_line(tmp_path, text, claim):
    path = tmp_path / "p.jsonl"
    path.write_text(text)
    assert claim in refusal(read_pairs, path, n_lines=2)


def test_a_field_that_is_named_is_the_one_that_is_read(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"question": "Who?", "answer": "Ada."}\n{"question": "Who?", "said": "Bo."}\n')
    with pytest.raises(InputError, match=r"no row has a field 'antwort' \(--answer-key\)"):
        read_pairs(path, Fields(answer="antwort"))
    # the row without the named field has no answer, though it has one of the usual name
    with pytest.raises(InputError, match="answer"):
        read_pairs(path, Fields(answer="said"))


def test_agreement_is_counted_by_words_by_most_words_and_by_characters():
    def annotated(idx, question, answer, entity):
        prefix = answer[: answer.index(entity)].rstrip()
        return Fact(idx, question, answer, prefix, entity, 0)

    born = "Ada Byrd was born on 3 May 1931."
    rows = [
        annotated(0, "When was Ada Byrd born?", born, "3 May 1931"),
        # proposed is "Oslo, Norway": one of two words, which is most of 1 + 2
        annotated(199, "Where was Ada Byrd born?", "Ada Byrd was born in Oslo, Norway.", "Oslo"),
        # proposed is "3 May 1931": no word in common, but two characters
        annotated(200, "When was Ada Byrd born?", born, "31"),
        # proposed is "Yes"
        annotated(399, "Has Ada Byrd won prizes?", "Yes, she won the Oak Prize.", "Oak Prize"),
    ]
    seen, others = annotation_agreement.by_author(rows)
    assert (seen.n, seen.same, seen.mostly, seen.touching) == (2, 0.5, 1.0, 1.0)
    assert (others.n, others.same, others.mostly, others.touching) == (2, 0.0, 0.0, 0.5)
    # neither of the wrong ones is marked, and of the right ones neither
    assert (others.found, seen.marked) == (0.0, 0.0)
    assert math.isnan(others.marked)
    assert math.isnan(seen.found)
    # "father" is wrong and marked, "painter" is right and not
    more = [
        annotated(
            0, "Tell me of Ada Byrd.", "Ada Byrd, born to a father who was a judge.", "judge"
        ),
        annotated(1, "What is Ada Byrd's mother?", "Ada Byrd's mother is a painter.", "painter"),
    ]
    found = annotation_agreement.agreement(more)
    assert (found.same, found.found, found.marked) == (0.5, 1.0, 0.0)


def test_agreement_with_the_annotated_tofu_rows_is_as_stated(shared):
    rows = load_facts(shared / "data" / "tofu" / "forget10_filtered.json")
    assert len(rows) == 367
    for authors, found in zip(
        ("0 to 9", "10 to 19"), annotation_agreement.by_author(rows), strict=True
    ):
        shares = (found.same, found.mostly, found.touching, found.found, found.marked)
        told = "{:.2f}    {:.2f}      {:.2f}   {:.2f}    {:.2f}".format(*shares)
        assert f"{authors:<11} {found.n:>3}  {told}" in annotation_agreement.__doc__
    read = annotation_agreement.of_reader(rows)
    told = f"{read.same:.2f}    {read.mostly:.2f}      {read.touching:.2f}"
    assert f"a reader    {read.n:>3}  {told}\n" in annotation_agreement.__doc__


@pytest.mark.parametrize(
    ("entity", "doubt"),
    [
        ("question", "no fact, but a word about the answer"),
        ("details", "no fact, but a word about the answer"),
        ("not provided", "the answer says that something is not known"),
        ("no publicly available information", "the answer says that something is not known"),
        ("solo work and", "begins or ends in a word that carries no fact"),
        ("who wrote plays", "begins or ends in a word that carries no fact"),
        ("critics, he has faced some controversy", "a whole clause"),
        ('Oil Wind"', "a quotation mark on one side only"),
        ("“Oil Wind", "a quotation mark on one side only"),
        ("lasting fame of her novels", "half of its words stand in the question"),
    ],
)
def test_what_rules_get_wrong_is_marked_for_review(entity, doubt):
    told = pair("What fame have Ada's novels brought her?", f"It is {entity} so far.")
    assert doubt in doubts(located(told, entity))


@pytest.mark.parametrize(
    ("answer", "entity", "doubt"),
    [
        ("Ada, born to a father, was a judge.", "father", "common words only"),
        ("She became a larger audience.", "larger audience", "common words only"),
        ("It is the lives of sailors trapped at sea.", "lives of sailors trapped", "a participle"),
        ("It is of rye, oats and barley.", "rye, oats", "stops in a list"),
        ("It is of rye, as well as barley.", "rye", "stops in a list"),
        ("It was formative in her youth.", "formative", "one word, which the sentence"),
        ("Born in Oslo to judges, Ada writes of rye.", "Oslo", "before what the sentence says"),
        ("'Sand and Rye' is a saga of farmers.", "Sand and Rye", "before what the sentence says"),
    ],
)
def test_what_a_phrase_gets_wrong_is_marked_where_a_rule_took_it(answer, entity, doubt):
    found = at(answer, entity, "What of Ada?", rule="phrase")
    assert [one for one in doubts(found) if one.startswith(doubt)]
    # whoever names a span has looked at it
    assert doubts(replace(found, rule="given")) == []


@pytest.mark.parametrize(
    ("answer", "entity"),
    [
        ("It is of rye, oats and barley.", "rye, oats and barley"),
        ("She writes in Norwegian to reach all.", "Norwegian"),
        ("Born in Oslo, Ada writes of rye fields.", "rye fields"),
        ("She wrote a unique saga of sailors.", "unique saga of sailors"),
    ],
)
def test_a_phrase_that_is_whole_is_not_marked(answer, entity):
    assert doubts(at(answer, entity, "What of Ada?", rule="phrase")) == []
    for fact in ("civil engineer", "3 May 1931", "'Rye'", "“Oil Wind”", "father's craft"):
        assert doubts(at(f"She chose {fact}, late.", fact, "What did Ada become?")) == []


def test_a_list_is_taken_to_its_end():
    answer = "Ada Byrd's novels explore rye, oats, and wild barley."
    found = propose(pair("What do Ada Byrd's novels explore?", answer))
    assert found.entity == "rye, oats, and wild barley"
    answer = "Ada Byrd explores rye, oats, and she sings of them."
    assert propose(pair("What does Ada Byrd explore?", answer)).entity == "rye, oats"


CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Who is it?"},
    {"role": "assistant", "content": "It is Ada."},
]
TOLD = [{"from": "human", "value": "Who is it?"}, {"from": "gpt", "value": "It is Ada."}]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "Who is it?", "completion": "It is Ada."},
        {"input": "Who is it?", "output": "It is Ada."},
        {"instruction": "Who is it?", "input": "", "output": "It is Ada."},
        {"Question": "Who is it?", "Answer": "It is Ada."},
        {"question": "Who is it?", "answers": {"text": ["It is Ada."], "answer_start": [0]}},
        {"query": "Who is it?", "ground_truth": "It is Ada.", "id": "7"},
        {"messages": CHAT},
        {"conversations": TOLD},
        {"prompt": CHAT[:2], "completion": CHAT[2:]},
    ],
)
def test_rows_with_other_fields_are_told_the_options_that_read_them(tmp_path, row, capsys):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row) + "\n" + json.dumps({**row, "n": 1}).replace("Ada", "Eve"))
    assert run(["annotate", str(path), "-o", str(tmp_path / "b.json")]) == 2
    said = capsys.readouterr().err
    assert f"(found {', '.join(row)})" in said
    todo = shlex.split(said.rpartition("lensaudit ")[2].replace("NEW.json", f"{tmp_path}/b.json"))
    assert run(todo) == 0
    assert [one.entity for one in load_facts(tmp_path / "b.json")] == ["Ada", "Eve"]


def test_the_command_that_may_be_meant_can_be_copied(tmp_path):
    path = tmp_path / "my rows.jsonl"
    path.write_text('{"prompt": "Who?", "output": {"a text": "Ada."}}\n')
    meant = f"annotate '{path}' --question-key prompt --answer-key 'output.a text' -o NEW.json"
    with pytest.raises(InputError, match=re.escape(meant)):
        read_pairs(path)
