"""The words the stories are made of.

Every list is closed: the vocabulary of the model is built so that each of
these words is one token. Words that follow "a" begin with a consonant, and no
word stands in two lists, so a fact can be stated in one form only.
"""

NAMES = (
    "Mia Tom Lily Ben Anna Sam Zoe Max Leo Ella Jack Nina Otto Ivy Finn "
    "Ruby Emil Nora Tess Adam Eva Noah Maya Ida Theo").split()

COLORS = "red blue green yellow white black pink brown grey".split()

THINGS = (
    "ball kite hat drum cup doll boat bike bell coat lamp ring map clock "
    "bag book").split()

FOODS = (
    "apples pears bread cheese honey soup nuts plums rice beans cookies").split()

HOMES = (
    "lake forest river school mill market station bridge church castle farm").split()

ITEMS = (
    "key letter coin ladder cake pencil basket broom rope candle spoon "
    "button").split()

SPOTS = tuple(
    f"{where} the {what}"
    for where in ("under", "behind", "beside", "inside")
    for what in "bed table chair door box shelf stove cupboard".split())

ANIMALS = "horse rabbit fox bird cat dog goat duck cow mouse bear".split()

JOBS = (
    "baker farmer sailor painter doctor singer dancer gardener pilot "
    "builder writer").split()
