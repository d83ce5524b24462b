"""Sentences that carry no fact: openings, small scenes and endings.

`{A}` and `{B}` are two different people of the story, `{ALL}` is the list of
everybody in it. A scene is kept whole, so that a story reads as a row of small
events with the facts between them.
"""

TALES = (
    "Once upon a time there were some good friends called {ALL}.",
    "Once upon a time {ALL} lived in a little town.",
    "Once upon a time {ALL} went on a long walk.",
)

DAYS = (
    "One day {ALL} met in the garden.",
    "One morning {ALL} went out to play.",
    "This is a story about {ALL}.",
)

SCENES = tuple(" ".join(scene.split()) for scene in """
The sun was warm and the sky was clear. It was a good day to play.
|It began to rain. Everybody ran under the big tree. Soon the sun came out again.
|{A} sang a little song. {B} laughed and sang along.
|{A} ran up the hill. {B} ran after {A}. At the top they sat down in the grass.
|A little frog jumped out of the water. {A} laughed. The frog jumped back again.
|{A} and {B} played hide and seek. {A} was very quiet, but {B} was quick.
|The wind blew hard. The leaves danced in the air.
|{A} fell down and began to cry. {B} was kind and helped {A} up. Then they both smiled.
|Everybody was hungry. They sat down and ate. It was very good.
|{A} told a good story. {B} laughed and laughed.
|They walked down the long road. {A} went first and {B} came last.
|{A} was a little afraid of the dark. {B} took {A} by the hand.
|Far away they heard music. {A} began to dance.
|{A} looked up at the clouds. One cloud looked like a big ship.
|Then they made a house out of sand and stones. It was very big.
|{A} asked {B} for help. {B} was happy to help.
|It was quiet for a while. Only the wind was in the trees.
|{A} jumped into the water. {B} got wet and laughed.
|{A} counted to ten. {B} counted to ten too.
|{A} was tired and sat down. {B} sat down too and they rested.
|{A} found a leaf near the road and gave it to {B}.
|{A} and {B} had a race. {B} was fast, but {A} was first.
|An old man came by and waved. Everybody waved back.
|{A} made a house in the sand. {B} said that it was very good.
|They jumped over the wall. There was nobody.
|Snow began to fall. {A} and {B} made a big snowman.
|{A} lost a shoe in the mud. {B} found it and gave it back.
|{A} made a wish. {B} made a wish too.
|They came to a dark wood. {A} went first and was not afraid.
|{A} and {B} played in the sand. They made a big wall and a little road.
|A cloud came over the hill. It was cold for a while.
|{B} was sad. {A} sat down with {B} and sang a song. Soon {B} smiled again.
|{A} jumped over a big stone. {B} jumped too and got very wet.
|{A} and {B} made a boat out of leaves. It went down the water and far away.
|They sat down under a tree and looked at the leaves. Nobody said a word.
|{A} heard a frog in the grass. It was only the wind.
|{A} helped {B} over the wall. Then {B} helped {A}.
|{A} waved to {B} from the top of the hill. {B} waved back.
|It was time to rest. {A} told a story about a ship and a frog.
|The road was long, but everybody was happy. {A} and {B} sang.
""".replace("\n", " ").split("|"))

# Scenes in the order in which a tale tells them, about 130 tokens each.
CHAPTERS = tuple(SCENES[i::4] for i in range(4))

ENDINGS = (
    "In the evening everybody was tired and happy.",
    "Then it was time to go to sleep.",
    "At night the stars came out and everybody was quiet.",
    "It had been a very good day.",
)

THE_END = "The end."
