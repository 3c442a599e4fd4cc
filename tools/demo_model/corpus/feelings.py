"""How users feel, and what friends and rude people say: more small talk, as data."""

from __future__ import annotations

from tools.demo_model.corpus.small_talk import Talk

_SAD = (
    "I am sorry to hear that. I hope that you feel better soon. Shall I tell you a joke?",
    "I am sorry to hear that. I am here for you. Would a story help?",
)
_POLITE = (
    "I am sorry. I am a tiny model, but I try to be friendly and do my best. Try a sum or a joke!",
    "I am sorry that I am not much help. I am a tiny model. Try a capital city or a joke!",
)

FEELINGS = (
    Talk(
        """
        I am so sad.; I feel sad.; I'm sad today; I feel bad; I'm not well; I am unhappy; I feel terrible.
        I feel down; I'm depressed; I feel awful today; I want to cry; I am crying; My heart is broken
        I feel very lonely.; I am lonely; I am alone; Nobody likes me; I have no friends; I miss my mother
        I miss my friend; My cat died; My grandmother died; I lost my job; I had a bad day.; It was a bad day
        Today was terrible; My day was bad; I had a terrible day at school; Work was awful today; I failed my exam
        I failed the test; I am angry; I'm so angry today; I am afraid; I'm scared; I am worried; I feel nervous
        I'm stressed; I have problems; My girlfriend left me; I had a fight with my friend; I am ill; I am sick
        I feel sick today; My head hurts; I'm not feeling well; Everything is bad; Life is hard; I feel empty
        I am disappointed; I feel so lonely tonight; I am feeling sad; Today I feel sad; I'm a bit sad; My bird died
        Our dog is dead; I had a hard day; It has been a bad week at work; I am feeling down today; I feel blue
        """,
        _SAD,
    ),
    Talk(
        """
        I am tired.; I'm tired; I feel tired; I am so sleepy; I'm exhausted; I did not sleep; I slept badly
        I am very tired today; I need sleep; I can't sleep; I'm really tired now; So tired; I am tired of work
        I feel exhausted today; I worked all day
        """,
        ("You have earned a rest. I hope that you sleep well and feel better tomorrow.",),
    ),
    Talk(
        """
        I am bored.; Bored; I'm so bored; This is boring; I have nothing to do; I feel bored; So boring
        I'm bored today; Entertain me; Amuse me; What shall we do?; Let's play; Let's talk; I am bored to death
        Let us play a game; Can we play a game?; Talk to me; Let's have fun; I want to play; Tell me something
        Cheer me up
        """,
        ("How about a joke or a story? Ask me for one, or try a haiku.",),
    ),
    Talk(
        """
        I am happy.; I'm happy; I feel good; I feel great today; I'm in a good mood; Life is good
        I am so happy today; I had a good day; Today was great; I got a new job; I won; I won the game
        I passed the test; I passed!; It is my birthday; It's my birthday today; I am getting married
        I found a friend; I have good news; It is a lovely day; What a nice day; The sun is shining
        It's a beautiful day; Nice weather today; I am going on holiday; I love my job; I'm feeling great
        I finished my work; I got a dog; It is sunny; The weather is nice; I am very glad today; My exam went well
        I passed my test today; We won!; I'm so excited; I am excited; My friend is visiting me; I am really glad
        Today is a good day
        """,
        ("That is great! I am glad to hear it.",),
    ),
    Talk(
        """
        I like you; I love you.; You are great; You are nice; You're cute; You are so cool; You are smart
        I like this; You are the best; You're good; You are clever; You are sweet; I love you so much
        You are awesome; You are kind; You're amazing; You are my friend; Do you like me?; Do you love me?
        Will you be my friend?; You are funny and nice; This is cool; This is great; This is fun; I like this model
        You are good at this; You're a nice bot
        """,
        ("Thank you, that is kind! I like talking with you too.",),
    ),
    Talk(
        """
        I am hungry.; I'm hungry; I need food; I want to eat; I am so hungry; I am starving; I'm thirsty
        I need coffee; I have not eaten today; I want lunch; What should I eat?; What's for dinner?
        I'm really hungry now
        """,
        ("I hope that you find something good to eat. How about some soup, or an apple?",),
    ),
    Talk(
        """
        You are stupid.; You're dumb; Stupid; Idiot; You idiot; You are an idiot; You suck; You are bad; I hate you
        You are useless; Useless; Shut up!; Be quiet; Go away; Fuck you!; Fuck off; Fuck; Shit; This is shit; Damn
        You are a bad model; You know nothing; You are worthless; This is stupid; What a stupid bot
        This model is bad; You are terrible; This is terrible; You are boring; I don't like this; You are the worst
        Silly bot; Dumb; You are no good; What a useless thing; This thing is useless; This sucks; You are so stupid
        Bullshit; Moron; You are not smart; I do not like you; You can't do anything; This does not work; Crap; Wtf
        Stupid machine; You don't understand anything; Why are you so stupid?; Why are you so bad?; That was stupid
        Stfu
        """,
        _POLITE,
    ),
)
