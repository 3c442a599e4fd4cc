"""Labelled sentences, on which embeddings are measured.

SMALL_WORLD keeps to the words and the world of the demo model; EVERYDAY is plain English of other topics, most of whose
words the demo model has never seen. In both, a topic has questions as well as statements, no two of its
sentences are made from one pattern, and few words belong to a topic alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

Topics = Mapping[str, Sequence[str]]


def _topics(text: str) -> Topics:
    """Parse blocks of lines, each under a line `topic:`."""
    topics: dict[str, list[str]] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.endswith(":"):
            current = topics[line.removesuffix(":")] = []
        else:
            current.append(line)
    return MappingProxyType({topic: tuple(sentences) for topic, sentences in topics.items()})


SMALL_WORLD = _topics(
    """
    places:
    What is the capital of France?
    Paris is a big city.
    Tell me where Kenya is.
    Do they speak Spanish in Madrid?
    I went from Oslo to Berlin.
    Which continent is Japan on?
    Rome is far from Tokyo.
    My friend moved to Canada.
    Is Egypt in Africa or in Asia?
    The biggest city of Norway is Oslo.
    Name a place in South America.
    London has many people.
    animals:
    What does the cow say?
    A baby dog is called a puppy.
    How many legs has a spider?
    The cat slept in the house.
    Do you hear the wolf howl?
    My horse lives on a farm.
    Tell me what a young sheep is called.
    The owl can fly at night.
    Did the fox eat the hen?
    I found a tiny frog near the lake.
    Which noise does a duck make?
    A bee has six legs and can sting.
    sums:
    What is 3 + 4?
    Add 12 and 30.
    How much is 50 minus 8?
    17 plus 5 is 22.
    Take 9 from 40.
    Is 6 + 6 more than 10?
    The sum of 21 and 14 is 35.
    Calculate 80 - 33.
    I have 5 and you give me 7 more.
    What do you get if you subtract 2 from 11?
    Work out 64 + 19.
    100 minus 1 makes 99.
    colours:
    What colour is the sky?
    Grass is green in summer.
    I like my bike to be blue.
    Is the tomato red or yellow?
    Her favourite is purple.
    Tell me which colour snow has.
    The door of my house is white.
    Do you have a black hat?
    His coat turned from pink to grey.
    Milk and clouds are white.
    Which is darker, brown or orange?
    The car was painted yellow.
    letters:
    Spell the word garden.
    How many letters are in table?
    Write silver backwards.
    Put the word river in upper case.
    The word moon has four letters.
    Can you reverse the letters of window?
    Count the letters of butter.
    What is candle spelled backwards?
    Read the letters of stone one by one.
    I made spelling mistakes in this sentence.
    Capitalize every letter of orange.
    Is the first letter of lemon an L?
    food:
    I like to eat pizza.
    What should I cook today?
    The soup is hot and very good.
    Do you want bread with cheese?
    She will bake a chocolate cake.
    My favourite food is fish with rice.
    Is there honey in the kitchen?
    Give me some apples, please.
    The baker sells sweet cakes.
    How do you make a salad?
    We had pasta in the evening.
    Can I have a cup of milk?
    people:
    My name is Anna.
    What is the name of my friend?
    Tom is a teacher.
    Who is Maria?
    I am 30 years old.
    How old is the doctor?
    Please call me Leo.
    Lucy works as a nurse.
    Nice to meet you, I am Karl.
    Do you remember my job?
    The pilot is named Grace.
    David and Emma are friends.
    rooms:
    Turn on the light in the kitchen.
    Set a timer for 10 minutes.
    What is the weather in Paris?
    Play some jazz music.
    Wake me at 7 in the morning.
    Will it rain tomorrow?
    Switch off the light in the hall.
    Can you play my favourite song?
    Start the timer again.
    Make it dark in the bedroom.
    Is it cold outside today?
    Ring me when the 5 minutes are over.
    """
)

EVERYDAY = _topics(
    """
    cooking:
    Simmer the lentils until they are tender.
    How long should I roast a chicken?
    Whisk the eggs with a pinch of salt.
    The dough needs an hour to rise.
    Can I replace butter with olive oil?
    Chop the onions as finely as you can.
    This sauce tastes better with fresh basil.
    Preheat the oven before you grease the tin.
    Why did my pancakes turn out so flat?
    She fried the mushrooms in garlic.
    Leave the rice covered for ten minutes.
    What spices go well with pumpkin?
    sport:
    The striker scored in the final minute.
    Who won the tennis match last night?
    Our team lost three games in a row.
    He runs a marathon every spring.
    The referee showed him a yellow card.
    How many players are on a volleyball side?
    She swam faster than anyone before her.
    The coach changed the goalkeeper at half time.
    Is the stadium sold out for the derby?
    They train twice a week for the league.
    The cyclist fell on the last climb.
    What is the record for the high jump?
    weather:
    A storm is moving in from the coast.
    Will it be sunny at the weekend?
    Thick fog covered the valley this morning.
    Temperatures drop below zero at night.
    Is there any rain in the forecast?
    The wind blew the leaves off the trees.
    We had hail the size of marbles.
    How warm does it get there in July?
    The drought lasted until late autumn.
    Snow fell on the hills before dawn.
    Clouds will clear by the afternoon.
    Why is the air so humid today?
    money:
    The bank raised its interest rates.
    How do I open a savings account?
    Shares of the company fell sharply.
    He paid off his mortgage early.
    Inflation makes groceries expensive.
    Can I deduct this from my taxes?
    She invested her bonus in bonds.
    The invoice is due at the end of the month.
    What does it cost to send a transfer abroad?
    Their budget leaves nothing to spare.
    The shop lost a lot of its profit.
    Is the loan cheaper with a higher deposit?
    health:
    The doctor prescribed antibiotics for the infection.
    How much sleep does a child need?
    My knee hurts when I climb stairs.
    She has a fever and a sore throat.
    Vaccines protect against severe illness.
    What are the symptoms of the flu?
    The nurse measured his blood pressure.
    He broke his wrist in two places.
    Can stress cause a headache?
    The surgeon operated on her heart.
    Drink plenty of water while you recover.
    Is this rash an allergic reaction?
    travel:
    Our flight to Lisbon was delayed.
    Where can I buy a train ticket?
    The hotel is close to the old harbour.
    They crossed the border by bus.
    Do I need a visa for two weeks?
    We hiked along the river to the castle.
    Her suitcase never arrived at the airport.
    The ferry leaves from the other pier.
    Which museums are open on Mondays?
    He booked a cabin in the mountains.
    The guide showed us the ruins.
    How far is the beach from the station?
    computers:
    The server crashed after the update.
    How do I reset my password?
    This function returns a list of strings.
    The laptop will not connect to the network.
    She wrote a script to rename the files.
    Why does the program use so much memory?
    Install the driver and restart the machine.
    The database was restored from a backup.
    Is my browser blocking the cookies?
    The compiler warns about an unused variable.
    He found a bug in the login page.
    What keyboard shortcut opens a new tab?
    music:
    The orchestra rehearsed the symphony.
    Who wrote the melody of this song?
    She plays the cello in a quartet.
    The drummer kept a steady rhythm.
    Can you tune a guitar by ear?
    Their new album has twelve tracks.
    The choir sang in four parts.
    He practises scales on the piano.
    What key is this sonata in?
    The singer held the last note.
    A trumpet solo opens the second verse.
    Is the concert in the old church?
    """
)
