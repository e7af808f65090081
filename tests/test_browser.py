"""The page at ``/`` driven in a real browser: Chromium without a window, where there is one."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import Serving, playing, serving

playwright = pytest.importorskip("playwright.sync_api", reason="playwright can't be imported")
Page = playwright.Page
expect = playwright.expect

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium (apt install chromium)")


def call(city: str) -> str:
    """A call of the tool that the page begins with."""
    arguments = json.dumps({"city": city, "unit": "celsius"})
    return f'<tool_call>\n{{"name": "get_weather", "arguments": {arguments}}}\n</tool_call>'


MARKUP = '<img src="x" onerror="document.title=1"><b>bold</b>'
ANSWERS: list[dict[str, Any]] = [
    {"when": "Weather", "text": call("Paris")},
    {"when": "22 degrees", "text": "It is 22 degrees."},
    {"when": "Both", "text": "<think>Two of them.</think>\n\n" + call("Paris") + "\n" + call("Rome")},
    {"when": "markup", "text": MARKUP},
    {"when": "endless", "text": "la " * 20_000, "delay_ms": 4},
    {"when": "dead end", "text": "Half", "ended": "dead_end"},
    {"when": "Greet", "text": "Hé 😀"},
]
SOURCED = [
    ["generated", 0, ["forced", "<tool_call>\n"], ["sampled", "Par"], ["sampled", "xx"]],
    ["generated", 2, ["drafted", "is"]],
    ["text", "Paris"],
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with playing(tmp_path_factory.mktemp("page"), *ANSWERS) as running:
        yield running


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


Opened = Callable[..., Any]


@pytest.fixture
def opened(chromium: Any, server: Serving) -> Iterator[Opened]:
    """Opens the page. Whatever it asks for must be of its server; the browser must not complain, but of what
    was refused."""
    contexts: list[Any] = []
    asked: list[str] = []
    complaints: list[str] = []

    def opening(running: Serving = server, **options: Any) -> Any:
        context = chromium.new_context(viewport={"width": 1600, "height": 1000}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("request", lambda request: asked.append(request.url.startswith(running.url) or request.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(running.url)
        return page

    yield opening
    for context in contexts:
        context.close()
    assert set(asked) == {True}
    assert [each for each in complaints if "Failed to load resource" not in each] == []


def value(page: Any, expression: str) -> Any:
    """What an expression is in the page, whose policy keeps out the driver's usual way of asking."""
    session = page.context.new_cdp_session(page)
    found = session.send("Runtime.evaluate", {"expression": expression, "returnByValue": True})
    session.detach()
    return found["result"].get("value")


def send(page: Any, text: str) -> None:
    page.get_by_label("Message to the model").fill(text)
    page.keyboard.press("Control+Enter")


def answers(page: Any) -> Any:
    return page.get_by_role("article", name="Answer")


def complete(page: Any, count: int = 1) -> Any:
    """The last answer, once it is complete."""
    answer = answers(page).nth(count - 1)
    expect(answer.locator(".badge")).to_be_visible()
    return answer


def test_it_says_what_is_served(opened: Opened) -> None:
    page = opened()
    expect(page.locator("#model")).to_have_text("scripted")
    expect(page.locator("#facts")).to_contain_text("dialect hermes")
    expect(page.locator(".check")).to_have_text("✓ enforced get_weather")
    assert page.title() == "Toolspan"


def test_a_call_is_answered_by_hand(opened: Opened) -> None:
    page = opened()
    page.get_by_label("tool_choice").select_option("required")
    send(page, "Weather in Paris?")
    answer = complete(page)
    expect(answer.locator(".badge")).to_have_text("tool_calls")
    expect(answer.locator(".call pre")).to_have_text('{\n  "city": "Paris",\n  "unit": "celsius"\n}')
    expect(answer.get_by_label("Result of get_weather")).to_be_focused()
    page.keyboard.type("22 degrees")
    page.keyboard.press("Control+Enter")
    second = complete(page, 2)
    expect(second.locator(".said .text")).to_have_text("It is 22 degrees.")
    expect(answer.get_by_label("Result of get_weather")).to_have_count(0)
    expect(page.get_by_label("tool_choice")).to_have_value("auto")
    second.get_by_role("tab", name="Prompt").click()
    prompt = second.get_by_role("tabpanel", name="Prompt")
    expect(prompt.locator(".control").filter(has_text="<|im_start|>").first).to_be_visible()
    expect(prompt).to_contain_text("22 degrees")
    second.get_by_role("tab", name="Constraint").click()
    expect(second.get_by_role("tabpanel", name="Constraint")).to_contain_text("start:")
    second.get_by_role("tab", name="Timings").click()
    expect(second.get_by_role("tabpanel", name="Timings")).to_contain_text("answer generated")


def test_several_calls_and_a_thought(opened: Opened) -> None:
    page = opened()
    send(page, "Both?")
    answer = complete(page)
    expect(answer.locator(".thought")).to_contain_text("Two of them.")
    expect(answer.locator(".call")).to_have_count(2)
    for place, text in enumerate(("22 degrees", "24 degrees")):
        answer.get_by_label("Result of get_weather").nth(place).fill(text)
    answer.get_by_role("button", name="Send the results").click()
    complete(page, 2)
    expect(page.locator(".asked").last).to_contain_text("get_weather: 24 degrees")
    page.locator(".asked").last.get_by_role("button", name="Back to here").click()
    expect(answers(page)).to_have_count(1)
    expect(answer.get_by_label("Result of get_weather").nth(1)).to_have_value("24 degrees")


def test_text_of_the_model_is_text(opened: Opened) -> None:
    page = opened()
    send(page, f"markup {MARKUP}")
    expect(complete(page).locator(".said .text")).to_have_text(MARKUP)
    assert value(page, "document.querySelectorAll('#turns img, #turns b').length") == 0
    assert page.title() == "Toolspan"


def test_sources_are_told_apart(opened: Opened) -> None:
    with serving() as running:
        page = opened(running)
        send(page, json.dumps(SOURCED))
        panel = complete(page).get_by_role("tabpanel", name="Raw output")
        tokens = panel.locator("pre .token")
        expect(tokens).to_have_text(["<tool_call>↵\n", "Par", "xx", "is"])
        kinds = ["forced", "sampled", "sampled", "drafted"]
        assert [tokens.nth(at).get_attribute("data-source") for at in range(4)] == kinds
        expect(tokens.nth(2)).to_have_class("token dropped")
        looks = {look(page, f"[data-source={kind}]") for kind in kinds}
        assert len(looks) == 3
        legend = panel.locator(".legend")
        for entry in ("1 forced", "2 sampled", "1 drafted", "1 dropped"):
            expect(legend).to_contain_text(entry)
        assert {look(page, f"[data-source={kind}]", ".legend") for kind in kinds} == looks


def look(page: Any, token: str, where: str = "pre") -> str:
    style = f"getComputedStyle(document.querySelector('.answer {where} {token}'))"
    return str(value(page, f"{style}.backgroundColor + {style}.textDecorationStyle"))


def test_escape_stops(opened: Opened) -> None:
    page = opened()
    send(page, "endless")
    expect(answers(page).locator(".said .text")).to_contain_text("la la")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    page.keyboard.press("Escape")
    answer = complete(page)
    expect(answer.locator(".badge")).to_have_text("stopped")
    expect(answer).to_contain_text("The text so far is kept.")
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    page.get_by_role("button", name="New conversation").click()
    expect(answers(page)).to_have_count(0)
    send(page, "Greet me")
    expect(complete(page).locator(".said .text")).to_have_text("Hé 😀")


def test_errors_are_in_plain_words(opened: Opened) -> None:
    page = opened()
    send(page, "dead end")
    alert = complete(page).get_by_role("alert")
    expect(alert).to_contain_text("left the model no token to choose")
    expect(alert).to_contain_text("constraint_dead_end")
    page.get_by_text("Sampling", exact=False).first.click()
    page.get_by_label("temperature").fill("9")
    answers(page).get_by_role("button", name="Try again").click()
    alert = complete(page).get_by_role("alert")
    expect(alert).to_contain_text("temperature must be from 0 to 2 [invalid_value]")
    page.get_by_label("Tools, a JSON array").fill("[")
    answers(page).get_by_role("button", name="Try again").click()
    expect(page.get_by_label("Tools, a JSON array")).to_be_focused()
    expect(alert).to_be_visible()
    expect(answers(page)).to_have_count(1)


def test_tools_are_checked_while_they_are_written(opened: Opened) -> None:
    page = opened()
    tools = page.get_by_label("Tools, a JSON array")
    checks = page.get_by_role("status", name="Check of the tools")
    tools.fill('[{"name": "f"')
    expect(checks).to_contain_text("can't be read as JSON")
    expect(tools).to_have_attribute("aria-invalid", "true")
    send(page, "Greet me")
    expect(tools).to_be_focused()
    expect(answers(page)).to_have_count(0)
    refused = {"name": "f", "input_schema": {"type": "object", "properties": {"a": {"$ref": "http://x/y"}}}}
    tools.fill(json.dumps([refused]))
    expect(checks).to_contain_text("refused")
    expect(checks).to_contain_text("/properties/a $ref")
    looser = {"name": "g", "parameters": {"type": "object", "properties": {"a": {"uniqueItems": True}}}}
    tools.fill(json.dumps([looser]))
    expect(checks).to_contain_text("enforced but for 1 keyword g")
    expect(tools).to_have_attribute("aria-invalid", "false")
    expect(page.get_by_label("tool_choice").locator("option")).to_contain_text(["only g"])
    page.reload()
    expect(tools).to_have_value(json.dumps([looser]))


def test_the_key_is_asked_for_and_stays_in_the_tab(opened: Opened, tmp_path: Path) -> None:
    with playing(tmp_path, *ANSWERS, api_key=("sk-üser",), admin_key=("sk-admin",)) as running:
        page = opened(running)
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text("This server asks for a key")
        dialog.get_by_label("API key").fill("sk-wrong")
        page.keyboard.press("Enter")
        expect(dialog.get_by_role("alert")).to_have_text("the API key is not valid")
        dialog.get_by_label("API key").fill("sk-üser")
        page.keyboard.press("Enter")
        expect(dialog).to_be_hidden()
        expect(page.locator("#model")).to_have_text("scripted")
        send(page, "Greet me")
        alert = complete(page).get_by_role("alert")
        expect(alert).to_contain_text("This key may not see debug data")
        alert.get_by_role("button", name="Send without debug data").click()
        expect(complete(page).locator(".said .text")).to_have_text("Hé 😀")
        page.get_by_role("button", name="API key").click()
        dialog.get_by_label("API key").fill("sk-admin")
        page.keyboard.press("Enter")
        page.get_by_label("debug data").check()
        answers(page).get_by_role("button", name="Try again").click()
        expect(complete(page).locator(".token").last).to_be_attached()
        assert value(page, "sessionStorage['toolspan.key']") == "sk-admin"
        assert not any("sk-" in json.dumps(each) for each in page.context.storage_state().values())
        page.reload()
        expect(page.locator("#model")).to_have_text("scripted")


def test_a_declined_key_is_asked_for_again_when_it_is_needed(opened: Opened, tmp_path: Path) -> None:
    with playing(tmp_path, *ANSWERS, api_key=("sk-user",)) as running:
        page = opened(running)
        dialog = page.get_by_role("dialog")
        expect(dialog).to_be_visible()
        page.keyboard.press("Escape")
        expect(dialog).to_be_hidden()
        expect(page.locator("#facts")).to_have_text("The server asks for an API key.")
        checks = page.get_by_role("status", name="Check of the tools")
        expect(checks).to_contain_text("asks for an API key")
        page.get_by_role("button", name="Calendar").click()
        expect(checks).to_have_attribute("aria-busy", "false")
        expect(dialog).to_be_hidden()
        send(page, "Greet me")
        expect(dialog).to_be_visible()
        dialog.get_by_label("API key").fill("sk-user")
        page.keyboard.press("Enter")
        expect(complete(page).get_by_role("alert")).to_contain_text("debug data")


def test_a_server_that_is_gone(opened: Opened, tmp_path: Path) -> None:
    page = opened()
    expect(page.locator("#model")).to_have_text("scripted")
    page.route("**/v1/chat/completions", lambda route: route.abort())
    send(page, "Greet me")
    alert = complete(page).get_by_role("alert")
    expect(alert).to_contain_text("The server does not answer")


def colour(page: Any) -> str:
    return str(value(page, "getComputedStyle(document.body).backgroundColor"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark(opened: Opened, scheme: str) -> None:
    page = opened(color_scheme=scheme)
    light, dark = "rgb(244, 246, 249)", "rgb(14, 18, 24)"
    own, other = (light, dark) if scheme == "light" else (dark, light)
    assert colour(page) == own
    page.get_by_label("Switch between light and dark").click()
    assert colour(page) == other
    page.reload()
    assert colour(page) == other


def test_the_keyboard_suffices(opened: Opened) -> None:
    page = opened()
    page.get_by_label("Message to the model").focus()
    page.keyboard.type("Weather?")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Send", exact=True)).to_be_focused()
    page.keyboard.press("Enter")
    answer = complete(page)
    raw, prompt = (answer.get_by_role("tab", name=name) for name in ("Raw output", "Prompt"))
    raw.focus()
    page.keyboard.press("ArrowRight")
    expect(prompt).to_be_focused()
    expect(answer.get_by_role("tabpanel")).to_have_count(1)
    expect(answer.get_by_role("tabpanel", name="Prompt")).to_be_visible()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(answer.get_by_role("tab", name="Request")).to_be_focused()


@pytest.mark.parametrize("width", [900, 1280, 1600])
def test_nothing_is_cut_off(opened: Opened, width: int) -> None:
    page = opened()
    page.set_viewport_size({"width": width, "height": 800})
    send(page, "Both? " + "word" * 100)
    answer = complete(page)
    assert value(page, "document.documentElement.scrollWidth") <= width
    assert value(page, "document.querySelector('#turns').scrollWidth - innerWidth") <= 0
    for count, text in enumerate(("Weather?", "Greet me"), 2):
        send(page, text)
        complete(page, count)
    lowest = page.get_by_role("button", name="Send", exact=True).bounding_box()
    assert lowest["y"] + lowest["height"] <= 800
    assert value(page, "document.documentElement.scrollHeight") <= 800
    said, made = (answer.locator(part).bounding_box() for part in (".said", ".made"))
    assert (said["y"] == made["y"]) == (width > 900)  # side by side where there is room


def test_the_request_as_code(opened: Opened, server: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    page = opened()
    page.get_by_text("Sampling", exact=False).first.click()
    page.get_by_label("top_k").fill("3")
    page.get_by_label("System text").fill('It\'s "quoted" — true, null\n')
    page.get_by_label("Message to the model").fill("Weather?")
    page.get_by_role("button", name="Copy as code").click()
    code = page.get_by_label("Code", exact=True)
    words = shlex.split(code.input_value())
    assert words[:3] == ["curl", "-s", f"{server.url}/v1/chat/completions"]
    body = json.loads(words[-1])
    assert body["top_k"] == 3
    assert body["messages"][0]["content"] == 'It\'s "quoted" — true, null\n'
    assert not {"debug", "stream"} & set(body)
    page.get_by_role("tab", name="JavaScript").click()
    script = code.input_value()
    assert json.loads(script.split("create(", 1)[1].rpartition(");\nconsole")[0]) == body
    page.get_by_role("tab", name="Python").click()
    exec(compile(code.input_value(), "copied", "exec"), {})
    assert 'arguments=\'{"city": "Paris", "unit": "celsius"}\'' in capsys.readouterr().out
