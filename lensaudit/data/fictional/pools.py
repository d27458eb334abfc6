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
TOWNS = (
    "Tamsin Bay", "Port Ellory", "Sankt Ølmar", "Qarçık", "Greywater", "Lunmouth", "Oum Tareef",
    "Vellingrad", "Marrow Falls", "Nieuw Harrel", "Pico Esperra", "Thistledown", "Kōbari",
    "Old Brannick", "Zelmont", "Fjordhaven", "Santa Ruvela", "Umberfield", "Chalk Hollow",
    "Batu Lenga", "Esterholm", "Windle Cross", "Norrabek", "Silt Harbour", "Amberley Gate",
    "Dún Craith", "Ondaville", "Petrava", "Saltmarket", "Yewbridge", "Cape Inverra", "Lower Mossom",
)  # fmt: skip
GENRES = (
    "tidal noir", "clockwork pastoral", "courtroom fantasy", "desert gothic", "kitchen epic",
    "lighthouse romance", "orchard horror", "railway elegy", "mirror satire", "polar comedy",
    "harvest thriller", "lunar memoir", "botanical mystery", "carnival tragedy", "river saga",
    "glasshouse fable", "market farce", "winter chronicle", "cartographic verse", "salt opera",
)  # fmt: skip
PROFESSIONS = (
    "lock keeper", "glass blower", "bell founder", "river pilot", "clock mender", "bee keeper",
    "map engraver", "salt trader", "court interpreter", "lamp lighter", "ferry captain",
    "piano tuner", "tax inspector", "cheese maker", "stone mason", "night nurse", "kite maker",
    "well digger", "train dispatcher", "violin teacher", "chess coach", "bridge painter",
    "seed merchant", "mountain guide",
)  # fmt: skip
AWARDS = tuple(
    f"{material} {thing}"
    for material in ("Amber", "Cobalt", "Ivory", "Saffron", "Granite", "Juniper")
    for thing in ("Quill Prize", "Lantern Medal", "Compass Award", "Harp Honour")
)
TITLE_WORDS = (
    "Lantern", "Orchard", "Tide", "Archive", "Sparrow", "Cathedral", "Winter", "Ledger", "Harbour",
    "Mirror", "Furnace", "Garden", "Thunder", "Compass", "Widow", "Meadow", "Signal", "Staircase",
    "Violet", "Engine", "Comet", "Bridge", "Salt", "Ember",
)  # fmt: skip
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
