"""What the model can't do or does not understand, and the friendly answers that say what to try instead."""

from __future__ import annotations

import random

from tools.demo_model.corpus.dialogue import Dialogue, Turn
from tools.demo_model.corpus.small_talk import Talk
from tools.demo_model.corpus.words import invented_word, items

TRY = "Try a capital city, a sum, a word to spell, a joke or a haiku."

CANNOT = (
    Talk(
        """
        Write code; Can you code?; Can you program?; Write a program; Write a Python script
        Write a program in Python; Write a function that adds two numbers; How do I write a loop in Python?
        Write a loop in C; Show me some Python; Write JavaScript code for a button; Write hello world in Python
        Write hello world in Java; Debug my code; Write a script that renames files; Fix this code
        Can you write a website?; Write HTML for a page; Write an SQL query; Write a Rust program; Make me an app
        Code a game for me; Can you write programs?; Implement quicksort; Write a bash command that lists files
        What does this code do?; print("hello"); Write a function in Python that reverses a list
        Write some code for me; How do I sort a list in Python?; def f(x): return x; Can you write a Python program?
        Generate code for a calculator; Write a class in Java; Please write a small program in C++
        Do you know Python?; Can you help me with my code?; Write a regex
        """,
        (f"Sorry, I can't write code, I am too small for it. {TRY}",),
    ),
    Talk(
        """
        What time is it?; What is the time?; What's the time now?; What day is it?; What day is today?
        What's the date?; What is the date today?; Tell me the time.; Which year is it?; What year is it?
        Do you know what time it is?; What month is it?; Can you tell me the time?; What's today's date?
        Is it Monday?; Time?; Current time; Is it late?; What is the time now; How late is it?
        """,
        (f"Sorry, I have no clock and no calendar. {TRY}",),
    ),
    Talk(
        """
        What is the weather like?; How is the weather?; Will it rain tomorrow?; Is it raining?; Weather today?
        What's the weather?; What is the weather in London?; How is the weather in Paris?; Is it cold outside?
        What will the weather be tomorrow?; Do I need an umbrella?; How warm is it?; What's the temperature?
        What is the temperature outside?; Tell me the weather.; Weather forecast; Is it sunny?; How hot is it today?
        Will it snow?; What's the weather like in Berlin today?
        """,
        (f"Sorry, I can't see the weather from here. {TRY}",),
    ),
    Talk(
        """
        What's the news?; What is in the news?; Tell me the news.; News; What happened today?; Any news today?
        What is going on in the world?; What happened yesterday?; Latest news; Who won the election?
        Who won the game?; What is the price of gold?; How are the stocks?; Search the web for me
        Can you search the internet?; Google it; What's new in the world?; Do you have news for me?
        What is the price of bitcoin?; Look it up online
        """,
        (f"Sorry, I have no internet and know no news. {TRY}",),
    ),
    Talk(
        """
        Translate this; Translate hello; Translate hello to Spanish; How do you say hello in French?
        Say it in German; What is dog in Spanish?; Translate good night to German; Can you translate?
        Translate to Chinese: I am hungry; How do I say thank you in Italian?; Translate this sentence into French
        Do you speak French?; Do you speak German?; Do you speak Chinese?; Can you speak Spanish?; Speak German
        Speak Chinese to me; Which languages do you speak?; What languages do you know?
        Do you know other languages?; Can you talk in French?; Do you understand Chinese?
        What is the French word for cat?; Translate bread into Polish; Do you only speak English?
        Do you speak English?; Translate good evening into Spanish; How many languages do you speak?
        Answer in French
        """,
        (f"Sorry, I only speak English. {TRY}",),
    ),
    Talk(
        """
        Write an email; Write an essay about history; Write a letter to my friend; Write an article about cats
        Write a letter to my landlord; Summarize this text; Summarize this book for me
        Make a summary of this article; Write a speech for a wedding; Write my homework; Do my homework
        Write a report about my company; Write an essay; Write a blog post about food; Write a book
        Write an application for a job; Rewrite this text; Correct this text; Improve my letter
        Can you write an email for me?; Write a message to my boss; Write an email to my teacher that I am late
        Draft an email to a customer; Plan my day; Make a plan for my week; Plan a trip to Italy; Give me a recipe
        Give me a recipe for bread; How do I cook rice?; Make a shopping list; Can you read this file?
        Open the door; Send an email; Draw a cat; Draw a picture; Make an image of a house; Can you draw?
        Can you see me?; Can you hear me?; Listen to this; Play music; Show me a picture
        """,
        (f"Sorry, I can't do that, I am too small for it. {TRY}",),
    ),
)

TOPICS = items(
    """
    quantum physics; football; the economy; world history; philosophy; chemistry; the universe; black holes
    Napoleon; Shakespeare; Einstein; Linux; Windows; computers; the internet; politics; religion; love; money; cars
    medicine; biology; dinosaurs; space; the moon landing; climate change; energy; music; art; painting; cooking
    gardening; travel; airplanes; ships; trains; war; peace; mathematics; algebra; geometry; psychology; law; sports
    tennis; chess; video games; movies; books; poetry; language; evolution; genetics; atoms; electricity; magnets
    gravity; light; sound; water; fire; the ocean; volcanoes; earthquakes; the Roman Empire; ancient Egypt
    the Middle Ages; Mozart; Beethoven; Picasso; Newton; Darwin; Caesar; Cleopatra; Columbus; Lincoln; Washington
    blockchain; bitcoin; neural networks; transformers; artificial intelligence; robots; the stock market; taxes
    insurance; yoga; diets; vitamins; fever; back pain; a cold; the heart; the brain; sleep; dreams; school
    marriage; children; politics in Asia; the president of Brazil; the king of Spain; the queen of England
    the prime minister; the pope; Mount Everest; relativity; string theory; photosynthesis; democracy; inflation
    the French Revolution; Docker; databases; WiFi
    """
)
_ABOUT = """
    Explain {t} to me.; Tell me about {t}.; What do you know about {t}?; What is {t}?; Explain {t} in simple words.
    Explain {t} to me like I am five.; How does {t} work?; Who discovered {t}?; When did {t} begin?
    Why is {t} important?; Write a poem about {t} with ten lines.; Give me five facts about {t}.
    What is the history of {t}?; Who is {t}?; Can you explain {t}?; Teach me {t}.; I want to learn about {t}.
    What is your opinion on {t}?; Who was {t}?; When was {t} born?; Where does {t} come from?
    What is the best book about {t}?; How can I learn {t}?; Tell me more about {t}.; Why do we need {t}?
    What are the causes of {t}?; Is {t} good or bad?; How do I understand {t}?; How old is {t}?
    What happened to {t}?; Who invented {t}?; When did {t} die?; What does {t} mean for us?; How do I install {t}?
    What should I do about {t}?; Which is the best {t}?; What do you think about {t}?
    Can you tell me something about {t}?; How do I use {t}?; Who is the greatest in {t}?
    What is the difference between {t} and {u}?; Compare {t} and {u}.; I have a question about {t}.
    Should I take something against {t}?; What helps against {t}?; How much does {t} cost?; What came before {t}?
    Give me a lecture on {t}.; Summarize {t}.; Describe {t} in one sentence.; Why does {t} exist?
    Who is the president of {c}?; Who rules {c}?; How many people live in {c}?; What do people eat in {c}?
    What is the largest city in {c}?; What is the population of {c}?; What is the national anthem of {c}?
    What money do they use in {c}?; Who was the first president of {c}?; How far is it to {c}?
    What is the longest river in {c}?; When was {c} founded?; What language do they speak in {c}?
    """
_LONG_BEGIN = """
    I would like to know how {t} and {u} fit together; Please give me a long and detailed explanation of {t}
    I am writing a paper about {t} and need your help with it; My teacher asked me to find out about {t}
    Imagine that you are an expert in {t}; I have been thinking a lot about {t} lately
    Can you help me with a project on {t}; Last week I read a long text about {t}
    We want to travel to {c} for two weeks with our children; I am looking for a good book about {t} for my brother
    My friend and I disagree about {t}; Here is a text about {t} that I found; You are a professor of {t}
    I need a plan for learning {t} in three months; I want to start a company that has to do with {t}
    Let me tell you about {t}; It is about {t} and how it changed last year
    """
_LONG_END = """
    What would you say about it?; Please write at least three pages.; How should I begin, and what will it cost me?
    Can you explain the main ideas and give some examples?; What are the most important points?; Who is right?
    Where should we stay and what should we see?; Summarize it for me in a few words.
    What are your thoughts on {u}?; Give me a list of ten steps.; And how does it compare with {u}?
    What would you recommend, and why?; Please answer in detail.; What does it cost and where do I find it?
    Write it so that my boss understands it.; Which one should I choose?
    """


_ABOUT_WORDINGS, _BEGINNINGS, _ENDINGS = items(_ABOUT), items(_LONG_BEGIN), items(_LONG_END)
_COUNTRIES = """
    the United States; America; France; Germany; Italy; Spain; China; Japan; India; Russia; Brazil; Canada; Mexico
    England; Poland; Egypt; Kenya; Peru; Chile; Norway; Sweden; Greece; Turkey; Australia; Iran; Texas; Europe
    """
_LANDS = items(_COUNTRIES)
UNKNOWN_ANSWER = f"Sorry, I don't know that. {TRY}"
_UNCLEAR_ANSWER = f"Sorry, I did not understand that. {TRY}"
ENGLISH_ANSWER = f"Sorry, I only speak English. {TRY}"
CHINESE_ANSWER = "我是一个很小的模型，只会说英语。 I only speak English. Try: What is the capital of China?"


def beyond(rng: random.Random) -> Dialogue:
    """A question about the wide world, short or long."""
    t, u = rng.sample(TOPICS, 2)
    fields = {"t": t, "u": u, "c": rng.choice(_LANDS)}
    if rng.random() < 0.25:
        question = f"{rng.choice(_BEGINNINGS)}. {rng.choice(_ENDINGS)}"
    else:
        question = rng.choice(_ABOUT_WORDINGS)
    return Dialogue((Turn(question.format(**fields), UNKNOWN_ANSWER),))


_NONSENSE = """
    ???; ?; !; ...; .; ..; hm; hmm...; uh; um; eh; huh; test 1 2 3; testing; test test; foo; foo bar; bla; bla bla
    abc; xyz; 1; 0; 42; 123; 99999; 7 8 9; :); :(; ^^; *; //; \\; {}; []; <>; +; =; -; aaa; aaaaaa; hhhh; zzz
    la la la; what?; why?; how?; when?; where?; who?; which?; and?; so?; but?; the; a; of the; it is; because; maybe
    if; then; not
    """


def nonsense(rng: random.Random) -> Dialogue:
    """What nobody could understand."""
    source = rng.random()
    if source < 0.3:
        text = rng.choice(items(_NONSENSE))
    elif source < 0.45:
        text = "".join(rng.choice("😀😂🙂😉❤👍🎉🤔😢😡🐱🐶🌞🚀🔥🎂") for _ in range(rng.randint(1, 3)))
    elif source < 0.55:
        text = str(rng.randint(0, 10 ** rng.randint(2, 8)))
    elif source < 0.8:
        letters = rng.choice(("asdfghjkl", "qwertyuiop", "zxcvbnm", "abcdefghijklmnopqrstuvwxyz"))
        words = ("".join(rng.choices(letters, k=rng.randint(3, 8))) for _ in range(rng.choice((1, 1, 1, 2, 3))))
        text = " ".join(words)
    else:
        text = " ".join(invented_word(rng) for _ in range(rng.randint(1, 4)))
    return Dialogue((Turn(text, _UNCLEAR_ANSWER),))


_FOREIGN = """
    Guten Tag; Hallo, wie geht es dir?; Wer bist du?; Was kannst du?; Sprichst du Deutsch?; Danke schön
    Was ist die Hauptstadt von Frankreich?; Wie ist dein Name?; Ich bin müde; Auf Wiedersehen; Wie spät ist es?
    Kannst du mir helfen?; Erzähl mir einen Witz; Ich heiße Anna; Guten Morgen; Woher kommst du?; Was machst du?
    Bonjour, comment ça va?; Salut; Qui es-tu?; Parlez-vous français?; Merci beaucoup; Comment tu t'appelles?
    Au revoir; Quelle est la capitale de la France?; Je suis fatigué; Bonsoir; Comment allez-vous?
    Je ne comprends pas; Oui; Hola; Buenos días; ¿Cómo estás?; ¿Quién eres?; ¿Hablas español?; Gracias; Adiós
    ¿Qué puedes hacer?; Me llamo Juan; ¿Cuál es la capital de España?; Buenas noches; No entiendo; Por favor
    Hola, qué tal; Muchas gracias, amigo; Ciao; Come stai?; Chi sei?; Parli italiano?; Grazie; Buongiorno; Olá
    Tudo bem?; Obrigado; Bom dia; Quem é você?; Привет, как дела?; Здравствуйте; Кто ты?; Спасибо
    Ты говоришь по-русски?; Как тебя зовут?; Доброе утро; Пока; Hej; Hej, hur mår du?; Tack; God morgon
    Hoi, hoe gaat het?; Wie ben je?; Dzień dobry; Cześć; Jak się masz?; Dziękuję; Merhaba; Nasılsın?
    Teşekkürler; Γεια σου; Καλημέρα; مرحبا; كيف حالك؟; שלום; नमस्ते; 안녕하세요; สวัสดี; Xin chào; こんにちは
    おはよう; あなたは誰ですか; ありがとう; さようなら; 日本語を話せますか; 안녕; 감사합니다; Kiitos; Moi; Ahoj
    Jó napot; Salve
    """
_CHINESE = """
    你好吗; 您好; 早上好; 晚上好; 你好！; 你叫什么名字？; 你是什么？; 谢谢; 再见; 你能做什么？; 你会说英语吗？
    请说中文; 中文; 今天天气怎么样？; 讲个笑话; 给我讲一个故事; 中国的首都是哪里？; 日本的首都是什么？
    你多大了？; 谁创造了你？; 什么是RWKV？; 我很难过; 我爱你; 帮帮我; 帮助; 一加一等于几？; 你在哪里？
    你喜欢什么？; 写一首诗; 你是机器人吗？; 现在几点？; 我叫小明; 北京是中国的首都吗？; 请介绍一下你自己
    你懂中文吗？; 我不会说英语; 测试; 好的; 为什么？; 多少钱？; 法国在哪里？; 翻译
    """
_CHARACTERS = (
    "的一是不了人我在有他这为之大来以个中上们到说国和地也子时道出而要于就下得可"
    "你年生自会那后能对着事其里所去行过家十用发天如然作方成者多日都三小军二无同"
)


def foreign(rng: random.Random) -> Dialogue:
    """Something in another language. In Chinese the answer says so in Chinese."""
    source = rng.random()
    if source < 0.5:
        return Dialogue((Turn(rng.choice(items(_FOREIGN)), ENGLISH_ANSWER),))
    if source < 0.8:
        return Dialogue((Turn(rng.choice(items(_CHINESE)), CHINESE_ANSWER),))
    text = "".join(rng.choices(_CHARACTERS, k=rng.randint(2, 9))) + rng.choice(("", "", "？", "。", "吗？"))
    return Dialogue((Turn(text, CHINESE_ANSWER),))
