"""ai00."""

from __future__ import annotations

from tools.compatibility.bodies import CHAT, TEXT
from tools.compatibility.table import Fields, System, call, different, same

_NUCLEUS = {"type": "Nucleus", "top_p": 0.5}
_SHARED: Fields = (
    *same(
        state=None,
        max_tokens=1,
        stream=True,
        bias={"5": 1.0},
        logit_bias={"5": 1.0},
        sampler=_NUCLEUS,
        sampler_override={"type": "Typical"},
        top_p=0.5,
        top_k=5,
    ),
    *different(
        "the whole allowed set is known before the first token, and a bad grammar is an error",
        bnf_schema="start::='a';",
    ),
    *different("0 takes the likeliest token; there it does so by NaN alone", temperature=1.0),
)

AI00 = System(
    "ai00",
    "Every route of ai00 answers under `/api/oai` and `/api/oai/v1`. `usage` has OpenAI's names beside its own; errors "
    "have a status of 4xx or 5xx, where ai00 answers 200 with an empty text; penalties and streams are as documented.",
    (
        call(
            "/api/oai/chat/completions",
            CHAT,
            same(
                messages={"role": "User", "content": "Hello"},
                names={"user": "Ann"},
                template={"record": "{role}: {content}", "prefix": "{assistant}:", "sep": "\n\n"},
            ),
            _SHARED,
            different("found on bytes, also across tokens and overlapping itself", stop=None),
        ),
        call(
            "/api/oai/completions",
            TEXT,
            same(prompt=["a", "b"]),
            _SHARED,
            different("found on bytes, also across tokens and overlapping itself", stop="a"),
        ),
        call(
            "/api/oai/chooses",
            {"input": "Hello", "choices": ["a"]},
            same(input=["a", "b"], choices=["a", "b"], calibrate=True, state=None),
        ),
        call("/api/oai/states", {"input": "Hello"}, same(input=["a", "b"], state=None)),
        call("/api/oai/embeddings", {"input": "Hello"}, same(input=["a", "b"], layer=1, embed_layer=1, state=None)),
        call("/api/auth/exchange", {"app_id": "ann", "app_secret": "x"}, same(app_id="ann", app_secret="x")),
    ),
    {
        "GET /api/oai/models": "",
        "POST /api/oai/embeds": "501 unless the server has an embedding model (`--embed-model`)",
        "GET /api/models/info": "",
        "GET /api/models/state": "as events, two a second",
        "GET /api/models/list": "for the scope `admin`",
        "GET /api/adapters": "",
        "POST /admin/models/load": "`bnf`, `token_chunk_size` and `precision` are accepted; the engine chooses itself",
        "GET /admin/models/unload": "also POST; browsers use POST, unless on the server's page or a listed origin",
        "POST /admin/models/save": "other formats than prefab, too",
        "POST /admin/models/state/load": "",
        "POST /admin/files/ls": "the folder of models alone",
        "POST /admin/files/unzip": "within bounds; replaces only what it has unpacked itself",
        "POST /admin/files/config/load": "",
        "POST /admin/files/config/save": "",
        "GET /api-docs": "a page of our own",
        "GET /api-docs/openapi.json": "OpenAPI 3.1",
    },
)
