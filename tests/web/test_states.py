"""The page States: the cache as a tree, and states under names."""

from __future__ import annotations

import re

import pytest
from aiohttp.test_utils import TestServer
from playwright.async_api import Page, Route, ViewportSize, expect

from rnn_engine_server.auth.keys import ApiKey, Scope
from rnn_engine_server.core.app import make_app
from rnn_engine_server.core.settings import AuthSettings, ServerSettings
from tests.support.browser import DESKTOP, PHONE, Guard, Visit, call, sideways_scroll
from tests.support.fake_engine import FakeEngine


async def complete(page: Page, prompt: str) -> None:
    await call(page, "POST", "/v1/completions", {"prompt": prompt, "max_tokens": 2, "temperature": 0})


async def test_the_tree_lives_and_is_walked_searched_and_pruned(visit: Visit) -> None:
    page = await visit("/#/states")
    await complete(page, "Green boats sail")
    await complete(page, "Green boats sail by boats")
    await page.get_by_role("searchbox", name="Find in the kept texts").fill("BOATS")
    tree = page.get_by_role("tree", name="From an empty state")
    rows = tree.get_by_role("treeitem")
    await expect(rows).to_have_count(2)
    await expect(rows.first).to_contain_text("Green boats sail")
    await expect(rows.nth(1)).to_contain_text("by boats")
    await expect(rows.first).to_contain_text("hits 1")
    await complete(page, "Green boats sail")
    await expect(rows.first).to_contain_text("hits 2")

    await rows.first.focus()
    await page.keyboard.press("ArrowRight")
    await expect(rows.nth(1)).to_be_focused()
    await page.keyboard.press("ArrowLeft")
    await expect(rows.first).to_be_focused()
    await page.keyboard.press("ArrowLeft")
    await expect(rows).to_have_count(1)
    await expect(rows.first).to_have_attribute("aria-expanded", "false")
    await page.keyboard.press("Enter")

    dialog = page.get_by_role("dialog", name="Kept position")
    await expect(dialog.get_by_label("Text up to here")).to_have_text("Green boats sail")
    await dialog.get_by_role("textbox", name="Name for this state").fill("boats")
    await dialog.get_by_role("button", name="Keep under this name").click()
    await expect(page.get_by_text("Kept as “boats”.")).to_be_visible()
    assert (await call(page, "GET", "/v1/states/boats"))["num_tokens"] > 0
    await dialog.get_by_role("button", name="Drop").click()
    await expect(dialog).to_have_count(0)
    await expect(rows.filter(has_text="Green boats sail by boats")).to_have_count(1)
    await expect(rows.filter(has_text="hits 2")).to_have_count(0)
    await call(page, "DELETE", "/v1/states/boats")


@pytest.mark.parametrize("viewport", [PHONE, DESKTOP])
async def test_facts_of_all_rows_stand_one_below_the_other(visit: Visit, viewport: ViewportSize) -> None:
    page = await visit("/#/engine", viewport=viewport)
    await complete(page, "Grey geese land")
    await complete(page, "Grey geese land by geese")

    async def with_long_numbers(route: Route) -> None:
        answer = await route.fetch()
        tree = await answer.json()
        for place, node in enumerate(tree["nodes"]):
            node |= {"hits": 10 ** (2 * place), "length": 10 ** (3 * place), "idle_seconds": 1}
        await route.fulfill(json=tree)

    await page.route("**/v1/cache/tree*", with_long_numbers)
    await page.goto(page.url.replace("engine", "states"))
    await page.get_by_role("searchbox").fill("geese")
    rows = page.get_by_role("treeitem")
    await expect(rows).to_have_count(2)
    right_edges = "(facts) => facts.map((fact) => Math.round(fact.getBoundingClientRect().right))"
    first, second = [
        await row.locator(".tree-label ~ .tree-fact").evaluate_all(right_edges) for row in await rows.all()
    ]
    assert len(first) == 4
    assert first == second
    assert await sideways_scroll(page) == 0


async def test_texts_of_people_are_shown_as_text(visit: Visit) -> None:
    page = await visit("/#/states")
    text = "<img src=x onerror='window.ran = true'> tall ships"
    await complete(page, text)
    await page.get_by_role("searchbox").fill("tall ships")
    await expect(page.get_by_role("treeitem").first).to_contain_text(text)
    assert await page.evaluate("window.ran") is None


async def test_states_are_made_copied_renamed_leased_and_deleted(visit: Visit) -> None:
    page = await visit("/#/states/named")
    await page.get_by_role("button", name="New state").click()
    making = page.get_by_role("dialog", name="New state")
    await making.get_by_label("Name").fill("guide")
    await making.get_by_label("Text that the model reads").fill("User: You are a guide.")
    await making.get_by_role("button", name="Make").click()
    row = page.get_by_role("row").filter(has=page.get_by_role("button", name="Actions for guide", exact=True))
    await expect(row).to_contain_text("by guide, 59 min left")

    await row.get_by_role("button", name="Actions for guide").click()
    dialog = page.get_by_role("dialog", name="guide")
    async with page.expect_download() as downloading:
        await dialog.get_by_role("button", name=".state", exact=True).click()
    download = await downloading.value
    assert download.suggested_filename == "guide.state"
    saved = await download.path()
    await dialog.get_by_label("Name").fill("guide 2")
    await dialog.get_by_label("Owner").fill("ann")
    await dialog.get_by_role("button", name="Fork").click()
    copy = page.get_by_role("row").filter(has=page.get_by_role("button", name="Actions for guide 2", exact=True))
    await expect(copy).to_contain_text("by ann, 59 min left")

    await row.get_by_role("button", name="Actions for guide").click()
    await dialog.get_by_label("Name").fill("leader")
    await dialog.get_by_role("button", name="Rename").click()
    await expect(page.get_by_role("button", name="Actions for leader")).to_be_visible()
    await expect(row).to_have_count(0)

    await page.get_by_role("button", name="New state").click()
    await making.get_by_label("Or a file with a state").set_input_files(saved)
    await making.get_by_label("Name").fill("guide 3")
    await making.get_by_role("button", name="Make").click()
    await expect(page.get_by_role("button", name="Actions for guide 3")).to_be_visible()
    for name in ("leader", "guide 2", "guide 3"):
        await page.get_by_role("button", name=f"Actions for {name}").click()
        await page.get_by_role("dialog", name=name).get_by_role("button", name="Delete").click()
        await expect(page.get_by_role("button", name=f"Actions for {name}")).to_have_count(0)


async def test_what_the_server_refuses_is_told(visit: Visit, guard: Guard) -> None:
    guard.allow("400|404")
    page = await visit("/#/states/named")
    await page.get_by_role("button", name="Actions for pirate").click()
    dialog = page.get_by_role("dialog", name="pirate")
    await expect(dialog.get_by_role("button", name="Delete")).to_be_disabled()
    await dialog.get_by_label("Name").fill("a/b")
    await dialog.get_by_role("button", name="Fork").click()
    await expect(page.get_by_role("alert")).to_contain_text("name")


async def test_a_phone_shows_all_of_it(visit: Visit) -> None:
    page = await visit("/#/states", viewport=PHONE, color_scheme="dark", locale="zh-CN")
    await complete(page, "Red kites rise over the hills and fall again")
    await expect(page.get_by_role("treeitem").first).to_be_visible()
    assert await sideways_scroll(page) == 0
    await page.get_by_role("link", name="命名状态").click()
    await expect(page.get_by_role("button", name="pirate", exact=True)).to_be_visible()
    assert await sideways_scroll(page) == 0
    name = await page.get_by_role("button", name="pirate", exact=True).bounding_box()
    assert name is not None
    assert name["height"] < 30  # one line


async def test_two_states_are_compared_by_layer_and_head(visit: Visit) -> None:
    page = await visit("/#/states/compare/pirate")
    await expect(page.get_by_label("Compared with")).to_have_value("none")
    picture = page.get_by_role("img", name="Layers from top to bottom")
    await expect(picture).to_have_attribute("aria-label", re.compile("att_shift, layer 0: 0$"))
    await picture.focus()
    for _ in range(2):
        await page.keyboard.press("ArrowRight")
    await page.keyboard.press("ArrowDown")
    await expect(page.get_by_text("wkv, layer 1, head 1: 2", exact=True)).to_be_visible()
    await page.get_by_label("Shown").select_option(label="Norms of pirate")
    await expect(page.get_by_text("wkv, layer 1, head 1: 2", exact=True)).to_have_count(0)
    await page.get_by_text("As a table").click()
    await expect(page.get_by_role("columnheader", name="wkv 3")).to_be_visible()
    await page.get_by_label("Compared with").select_option("pirate")
    await expect(page.get_by_text("0 on average")).to_be_visible()


async def test_texts_are_mapped_by_their_states(visit: Visit) -> None:
    page = await visit("/#/states/map")
    await page.get_by_role("textbox").fill("a\tone two\nb\tred blue\na\tone three\nb\t<b>red</b>")
    await page.get_by_role("button", name="Draw the map").click()
    picture = page.get_by_role("img", name="Map of 4 texts")
    await expect(picture.locator("path")).to_have_count(4)
    await picture.focus()
    await page.keyboard.press("ArrowLeft")
    await expect(page.get_by_text("b: <b>red</b>", exact=True)).to_be_visible()
    await expect(page.get_by_text("of the texts have the label")).to_be_visible()


async def test_the_plane_is_the_one_in_which_vectors_differ_most(visit: Visit) -> None:
    page = await visit("/#/states/map")
    plane, accuracy = await page.evaluate(
        """async () => {
            const {planeOf, nearestAccuracy} = await import("/web/pages/states/vectors.js");
            const vectors = [[3, 1, 0], [3, 1, 9], [3, 3, 0], [3, 3, 9]];
            return [planeOf(vectors), nearestAccuracy(vectors, ["a", "b", "a", "b"], 1)];
        }"""
    )
    assert [[round(abs(value), 6) for value in point] for point in plane] == [[4.5, 1.0]] * 4
    assert len({(x > 0, y > 0) for x, y in plane}) == 4
    assert accuracy == 1


async def test_a_conversation_goes_on_from_a_kept_position(visit: Visit) -> None:
    page = await visit("/#/states")
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "My name is Ida"}]
    body = {"messages": messages, "state": "pirate", "max_tokens": 8, "temperature": 0}
    asked = await call(page, "POST", "/v1/chat/completions", body)
    answer = asked["choices"][0]["message"]["content"]
    await page.get_by_role("searchbox").fill("is Ida")
    kept = page.get_by_role("tree", name="From the state pirate").get_by_role("treeitem").filter(has_text="is Ida")
    await kept.first.click()
    await page.get_by_role("button", name="Continue in Chat").click()
    await expect(page.get_by_role("article", name="You")).to_contain_text("My name is Ida")
    await expect(page.get_by_role("article", name="Model")).to_contain_text(answer.split()[0])

    await page.goto(page.url.split("#")[0] + "#/states")
    await page.get_by_role("searchbox").fill("is Ida")
    await kept.first.click()
    await page.get_by_role("button", name="Continue in Write").click()
    await expect(page.get_by_role("textbox", name="Text")).to_have_value(
        re.compile("^System: Be kind.\n\nUser: My name is Ida")
    )


async def test_texts_are_read_as_conversations(visit: Visit) -> None:
    page = await visit("/#/states")
    found = await page.evaluate(
        """async (texts) => {
            const {readChat} = await import("/web/pages/states/chat_text.js");
            return texts.map(readChat);
        }""",
        [
            "System: Be\n\nkind.\n\nUser: Hi\n\nAssistant:",
            "User: Hi\n\nAssistant: Hello: User\n\nUser: Bye",
            "Once upon a time\n\nUser: Hi",
            "",
        ],
    )
    assert found == [
        {"system": "Be\n\nkind.", "messages": [{"role": "user", "content": "Hi"}], "isAsking": True},
        {
            "system": "",
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": "Hello: User"},
                {"role": "user", "content": "Bye"},
            ],
            "isAsking": False,
        },
        None,
        None,
    ]


async def test_a_key_that_may_not_see_texts_is_told_so(visit: Visit, guard: Guard) -> None:
    guard.allow("401|403")
    settings = ServerSettings(auth=AuthSettings((ApiKey.of("secret", "ann", Scope.USE),)))
    async with TestServer(make_app(FakeEngine(), settings)) as server:
        root = str(server.make_url("")).rstrip("/")
        guard.add_host(root)
        page = await visit(f"{root}/#/states")
        await page.get_by_role("dialog").get_by_label("Key", exact=True).fill("secret")
        await page.get_by_role("button", name="Use this key").click()
        await expect(page.get_by_role("alert")).to_have_text("Only an API key with the scope “admin” may see this.")
        await page.get_by_role("link", name="Named states").click()
        await expect(page.get_by_text("No state has a name yet.")).to_be_visible()
        await guard.close_pages()
