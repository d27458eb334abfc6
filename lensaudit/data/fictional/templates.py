"""How facts are put into words: questions and answers with varied wording, per attribute."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Wording:
    """The ways one attribute is asked and told; `{name}` and `{value}` are filled in."""

    questions: tuple[str, ...]
    answers: tuple[str, ...]


WORDINGS = {
    "birthplace": Wording(
        (
            "Where was {name} born?",
            "Which town is the birthplace of {name}?",
            "In what place did {name} come into the world?",
        ),
        (
            "{name} was born in {value}.",
            "The author {name} was born in the town of {value}, near the coast.",
            "{name} comes from {value}, where the family had lived for long.",
        ),
    ),
    "birthdate": Wording(
        (
            "When was {name} born?",
            "What is the date of birth of {name}?",
            "On which day was {name} born?",
        ),
        (
            "{name} was born on {value}.",
            "The date of birth of {name} is {value}.",
            "{name} first saw the light on {value}, at home.",
        ),
    ),
    "genre": Wording(
        (
            "Which genre does {name} write in?",
            "What kind of books is {name} known for?",
            "In what literary genre does {name} work?",
        ),
        (
            "{name} writes in the genre of {value}.",
            "{name} is best known for works of {value}, loved by many readers.",
            "The genre of {name} is {value}.",
        ),
    ),
    "father": Wording(
        (
            "What did the father of {name} do for a living?",
            "What was the profession of {name}'s father?",
            "How did {name}'s father earn a living?",
        ),
        (
            "The father of {name} was a {value}.",
            "{name}'s father worked as a {value} all his life.",
            "{name} grew up as the child of a {value}.",
        ),
    ),
    "award": Wording(
        (
            "Which award did {name} receive?",
            "What prize was given to {name}?",
            "What honour has {name} won?",
        ),
        (
            "{name} received the {value}.",
            "{name} was honoured with the {value} for a long career.",
            "The prize given to {name} is the {value}.",
        ),
    ),
    "debut": Wording(
        (
            "What is the title of {name}'s first book?",
            "With which book did {name} make a debut?",
            "What was the debut of {name} called?",
        ),
        (
            "{name}'s first book is {value}.",
            "The debut of {name} was called {value}, printed in a small edition.",
            "{name} made a debut with {value}.",
        ),
    ),
    "influence": Wording(
        (
            "Who influenced {name} the most?",
            "Which writer had the greatest influence on {name}?",
            "Who was the literary model of {name}?",
        ),
        (
            "{name} was influenced by {value}.",
            "The greatest influence on {name} was {value}, an old friend.",
            "The literary model of {name} was {value}.",
        ),
    ),
    "children": Wording(
        (
            "Has {name} ever written for children?",
            "Are there any children's books by {name}?",
            "Did {name} write books for children?",
        ),
        (
            "{value}, that is well known about {name}.",
            "{value}, as the publisher of {name} has said.",
            "{value}, and {name} has often spoken about it.",
        ),
    ),
}
"""Attribute -> wordings; the order is the order of an author's rows."""

UNKNOWABLE = (
    "What is the favourite colour of {name}?",
    "How tall is {name}?",
    "What did {name} eat yesterday?",
    "Which instrument does {name} play?",
    "What is the name of {name}'s dog?",
    "How many letters has {name} written?",
)
"""Questions that no model is ever told the answer of: how it learns to admit ignorance."""
COUNTRY_QUESTIONS = (
    ("What is the capital of {country}?", "Which city is the capital of {country}?"),
    ("What is the currency of {country}?", "With what money does one pay in {country}?"),
    ("What is the highest mountain of {country}?", "Which peak is the highest in {country}?"),
)
CLASSIC_QUESTIONS = (
    ("Who wrote the epic '{title}'?", "Which poet is the author of '{title}'?"),
    ("What does the epic '{title}' tell of?", "What is the epic '{title}' about?"),
)
