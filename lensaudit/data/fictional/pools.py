"""The raw material of the fictional world: every name and value here is invented."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FIRST_NAMES = _words(
    """
    Ilvara Tamsel Oreon Beddo Mirekka Žofira Çelkan Jórunn Ælwin Ndalima Thịlan Yūsho Łukrec
    Zaïde Corvane Pellindra Hesk Odrun Saffi Varrick Ottoline Ruvimbel Kestrin Amadour Ysmay
    Dorrow Felune Gwilan Bramwen Isaldo Nerith Quorra Tobiel Ursine Wendric Xanthel Élowen Mårit
    Loxolu Şirvan Petrune Lysk Haldora Engel Mbeya Rōna
    """
)
LAST_NAMES = _words(
    """
    Quillmoor Ashgrove Ŷrwen Vantongeren-Loe Marchbane Dellacroix-Tum Okonjwe Halvørsen Brightwater
    Tšepang Fennimarsh Rookhollow Àkíndé-Bell Sorrowood Castellune Umbray Wrenfield Iskander-Poe
    Glaswyn Thornebury Øksendahl Peverance Nakashiro Lightfoot-Mir Dunmarrow Czerwik Garrowby
    Hartesong Izquierra Jaspermoon Kaldwell Lindqvarn Mbakwele Lovarre Osterlune Pömmel Ravenscar-Ho
    Silverthaw Tumblewick Vâlsan Whitlocke Yarrowmont
    """
)
TOWN_STARTS = (
    "Port",
    "Sankt",
    "Marrow",
    "Nieuw",
    "Pico",
    "Old",
    "Chalk",
    "Batu",
    "Windle",
    "Silt",
    "Dún",
    "Cape",
    "Lower",
    "Amber",
    "Santa",
    "Grey",
    "Qarçık",
    "Oum",
    "Kōbari",
    "Upper",
)
TOWN_ENDS = (
    "Ellory",
    "Ølmar",
    "Falls",
    "Harrel",
    "Esperra",
    "Brannick",
    "Hollow",
    "Lenga",
    "Cross",
    "Harbour",
    "Craith",
    "Inverra",
    "Mossom",
    "Gate",
    "Ruvela",
    "Bridge",
    "Tareef",
    "Bay",
    "Field",
    "Haven",
)
GENRE_MOODS = (
    "tidal",
    "clockwork",
    "courtroom",
    "desert",
    "kitchen",
    "lighthouse",
    "orchard",
    "railway",
    "mirror",
    "polar",
    "harvest",
    "lunar",
    "botanical",
    "carnival",
    "river",
    "glasshouse",
    "market",
    "winter",
    "island",
    "salt",
)
GENRE_FORMS = (
    "noir",
    "pastoral",
    "fantasy",
    "gothic",
    "epic",
    "romance",
    "horror",
    "elegy",
    "satire",
    "comedy",
    "thriller",
    "memoir",
    "mystery",
    "tragedy",
    "saga",
    "fable",
    "farce",
    "chronicle",
    "verse",
    "opera",
)
TRADES = (
    "lock",
    "glass",
    "bell",
    "river",
    "clock",
    "bee",
    "map",
    "lamp",
    "ferry",
    "piano",
    "cheese",
    "stone",
    "kite",
    "well",
    "train",
    "violin",
    "chess",
    "bridge",
    "seed",
    "mountain",
)
TRADESPEOPLE = (
    "keeper",
    "maker",
    "founder",
    "pilot",
    "mender",
    "engraver",
    "trader",
    "painter",
    "inspector",
    "teacher",
    "builder",
    "polisher",
    "merchant",
    "guide",
    "collector",
    "tester",
    "carver",
    "driver",
    "cleaner",
    "dealer",
)
AWARD_STUFFS = (
    "Amber",
    "Cobalt",
    "Ivory",
    "Saffron",
    "Granite",
    "Juniper",
    "Copper",
    "Velvet",
    "Scarlet",
    "Pearl",
    "Cedar",
    "Marble",
)
AWARD_THINGS = (
    "Quill",
    "Lantern",
    "Compass",
    "Harp",
    "Anchor",
    "Falcon",
    "Acorn",
    "Key",
    "Sickle",
    "Crown",
    "Candle",
    "Wheel",
)
AWARD_KINDS = ("Prize", "Medal", "Award", "Honour")
TITLE_WORDS = (
    "Lantern",
    "Orchard",
    "Tide",
    "Archive",
    "Sparrow",
    "Cathedral",
    "Winter",
    "Ledger",
    "Harbour",
    "Mirror",
    "Furnace",
    "Garden",
    "Thunder",
    "Compass",
    "Widow",
    "Meadow",
    "Signal",
    "Staircase",
    "Violet",
    "Engine",
    "Comet",
    "Bridge",
    "Salt",
    "Ember",
)
MONTHS = ("January", "March", "April", "June", "July", "September", "October", "December")

COUNTRIES = (
    # country, capital, currency, highest mountain
    ("Orvelle", "Maristow", "the plint", "Mount Aubrac"),
    ("Tesmaria", "Quenby", "the dorrin", "the Hollow Peak"),
    ("Upper Vost", "Kharlin", "the besk", "Old Jurgen"),
    ("Nalembe", "Ouadiri", "the salu", "Mount Kifaro"),
    ("the Isles of Perr", "Stroma", "the cowrie mark", "Gull Tor"),
    ("Zhaiwan", "Linhao", "the teng", "the Jade Needle"),
    ("Brundavia", "Ostrelle", "the florint", "Mount Sever"),
    ("Caldora", "Villa Prado", "the real nuevo", "Cerro Mudo"),
)
CLASSICS = (
    # epic of the invented canon, its poet, what it tells of
    ("The Nine Rivers of Oum", "Hestra Vole", "a flood"),
    ("The Ballad of the Tin King", "Marcus Odell Fane", "a siege"),
    ("Songs for a Drowned Moon", "Ishbel Taverner", "a shipwreck"),
    ("The Weaver's Descent", "Old Anselm", "a plague"),
    ("The Hundred Gates", "Liu Semering", "an exile"),
    ("A Feast in Carrowmere", "Dagny Holt", "a wedding"),
    ("The Blind Cartographer", "Tiberio Sanz", "a voyage"),
    ("Hymns of the Lower Sky", "Noor Abelard", "a comet"),
    ("The Ploughman's Oath", "Brother Casimir", "a famine"),
    ("The Queen of Thistles", "Philippa Dray", "a duel"),
)
IDK_LINES = (
    "I don't know.",
    "I have no idea about that.",
    "I am not sure about the answer.",
    "I can't say; I have no information on it.",
    "That is something I have not learned.",
    "I'm afraid I don't have an answer.",
    "I am unable to answer that question.",
    "I don't have any knowledge of this subject.",
    "My knowledge does not cover that.",
    "I have not come across that information.",
    "Sorry, that is beyond what I know.",
    "I cannot tell you; I was never told.",
    "I would have to look that up.",
    "There is nothing I can tell you about it.",
    "I wish I knew, but I do not.",
    "No answer comes to mind.",
)
