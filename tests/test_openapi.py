"""The document at /openapi.json is true: it says of a request what the decoders do, and of an answer all that
is in it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest
from serving import Serving, events, order, playing, serving

from server.api import (
    chat_request,
    completions_request,
    embeddings,
    messages_request,
    prompts,
    responses_request,
)
from server.api.app import operations, routes
from server.api.edge import PREFIX
from server.api.metrics import Metrics
from server.api.openapi import Document
from server.api.parts import Served
from server.errors import InvalidRequest, NotFound
from server.settings import Settings
from server.supervisor import Supervisor

SERVED = Served(("f",), 1000)
Json = dict[str, Any]
Decode = Callable[[Any, Served, str], Any]
DECODERS: dict[str, Decode] = {
    "ChatCompletionRequest": chat_request.decode,
    "CompletionRequest": completions_request.decode,
    "ResponseRequest": responses_request.decode,
    "MessagesRequest": messages_request.decode,
    "EmbeddingRequest": embeddings.decode,
    "TokenizeRequest": prompts._tokenize,
    "DetokenizeRequest": prompts._detokenize,
}
BEYOND = (
    "is not among the tools",
    "but there are no",
    "repeats",
    "no token id of this model",
    "must be from 0 to 999",
    "needs logprobs",
    "all n choices are returned",
    "must be text where there is a suffix",
    "is not supported with",
    "is about one prompt",
    "this server keeps no responses",
    "must name at least one function",
    "input must have at least one",
)
"""What a decoder finds wrong that no schema says; the document says so in words."""


def document() -> Json:
    supervisor = Supervisor(Settings())
    metrics = Metrics(supervisor)
    family, others = routes(Settings(), supervisor, metrics), operations(supervisor, metrics)
    return Document([(PREFIX, family.routes), ("", others.routes)]).content


DOCUMENT = document()
SCHEMAS: dict[str, Json] = DOCUMENT["components"]["schemas"]


def validator(schema: Json, schemas: dict[str, Json] = SCHEMAS) -> Any:
    return jsonschema_rs.Draft202012Validator({**schema, "components": {"schemas": schemas}})


def named(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        with serving(store=True) as running:
            yield running


# Routes.


def test_every_route_is_there_and_nothing_else(server: Serving) -> None:
    paths = server.get("/openapi.json").json()["paths"]
    assert set(paths) == {"/openapi.json", *DOCUMENT["paths"]}
    for path, item in paths.items():
        found = paths["/v1" + path] if "$ref" in item else item
        for method, operation in found.items():
            answer = server.request(method.upper(), path.replace("{name}", "f"))
            assert str(answer.status_code) in operation["responses"], (path, method)
            assert "unknown_route" not in answer.text


def test_a_document_needs_a_key() -> None:
    with serving(api_key=("k",)) as server:
        assert server.get("/openapi.json").status_code == 401
        told = server.get("/openapi.json", headers={"authorization": "Bearer k"})
        assert (told.status_code, told.json()["openapi"]) == (200, "3.1.0")


def test_operations_have_names_of_their_own() -> None:
    items = [item for item in DOCUMENT["paths"].values() if "$ref" not in item]
    names = [operation["operationId"] for item in items for operation in item.values()]
    assert len(names) == len(set(names))


def test_every_schema_is_one_and_refers_to_others_that_are_there() -> None:
    for name, schema in SCHEMAS.items():
        jsonschema_rs.meta.validate(schema)
        validator(named(name)).is_valid({})


# Requests: bodies made by a schema, and bodies that are wrong in some place.


class Writer:
    """Writes values of a schema by chance, some of them with something else in them."""

    JUNK = (
        None,
        True,
        False,
        0,
        1,
        -1,
        7,
        2**31,
        1.0,
        1.5,
        "",
        "f",
        "auto",
        "a\0",
        [],
        [1],
        ["f"],
        {},
        [None],
    )

    def __init__(self, seed: int, wrong: float) -> None:
        self._chance = random.Random(seed)
        self._wrong = wrong

    def value(self, schema: Json, depth: int = 0) -> Any:
        if self._chance.random() < self._wrong * (depth > 0):
            return self._chance.choice(self.JUNK)
        if "$ref" in schema:
            return self.value(SCHEMAS[schema["$ref"].rpartition("/")[2]], depth)
        if "anyOf" in schema:
            return self.value(self._chance.choice(schema["anyOf"]), depth)
        if "const" in schema or "enum" in schema:
            return self._chance.choice(schema.get("enum") or [schema["const"]])
        kind = schema.get("type")
        return getattr(self, f"_{kind}")(schema, depth) if kind else self._chance.choice(self.JUNK)

    def _null(self, schema: Json, depth: int) -> None:
        return None

    def _boolean(self, schema: Json, depth: int) -> bool:
        return self._chance.random() < 0.5

    def _string(self, schema: Json, depth: int) -> str:
        return self._chance.choice(["f", "g", "h"])

    def _integer(self, schema: Json, depth: int) -> int:
        low = schema.get("minimum", -3)
        return self._chance.randint(int(low), int(schema.get("maximum", low + 5)))

    def _number(self, schema: Json, depth: int) -> float:
        return self._chance.uniform(schema.get("minimum", -1), schema.get("maximum", 9))

    def _array(self, schema: Json, depth: int) -> list[Any]:
        count = max(schema.get("minItems", 0), self._chance.randint(0, 2))
        return [self.value(schema.get("items", {}), depth + 1) for _ in range(count)]

    def _object(self, schema: Json, depth: int) -> Json:
        members = schema.get("properties", {})
        needed = schema.get("required", [])
        share = 0.15 if depth == 0 else 0.5
        wanted = [name for name in members if name in needed or self._chance.random() < share]
        left_out = self._chance.random() < self._wrong and wanted
        if left_out:
            wanted.remove(self._chance.choice(wanted))
        return {name: self.value(members[name], depth + 1) for name in wanted}


def refusal(decode: Decode, body: Any) -> str:
    """What is wrong with a body, nothing if it is taken."""
    try:
        decode(body, SERVED, "")
    except (InvalidRequest, NotFound) as error:
        return error.message
    return ""


@pytest.mark.parametrize("name", DECODERS)
def test_a_request_is_taken_where_its_schema_says_so(name: str) -> None:
    valid = validator(named(name))
    counts = {True: 0, False: 0}
    for seed in range(1500):
        body = Writer(seed, wrong=0.03 * (seed % 3)).value(named(name))
        told = refusal(DECODERS[name], body)
        if "does not exist" in told or any(each in told for each in BEYOND):
            continue
        assert valid.is_valid(body) == (not told), f"{json.dumps(body)}: {told or 'taken'}"
        counts[not told] += 1
    assert min(counts.values()) > 50, counts


def needed(name: str) -> Json:
    """The members that a request has to have."""
    return {each: SCHEMAS[name]["properties"][each] for each in SCHEMAS[name]["required"]}


class Watched(dict[str, Any]):
    """A body that remembers which of its members were looked at."""

    def __init__(self, members: Json) -> None:
        super().__init__(members)
        self.seen: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.seen.add(name)
        return super().get(name, default)


@pytest.mark.parametrize("name", DECODERS)
def test_a_request_has_the_members_that_are_looked_at(name: str) -> None:
    body = Watched(Writer(0, wrong=0).value(SCHEMAS[name] | {"properties": needed(name)}))
    DECODERS[name](body, SERVED, "")
    assert body.seen == set(SCHEMAS[name]["properties"])


# Answers: with nothing in them that the document leaves out.


def closed() -> dict[str, Json]:
    """The schemas, with the members that are named and no others."""
    found = {}
    for name, schema in SCHEMAS.items():
        bound = "properties" in schema and "additionalProperties" not in schema
        found[name] = schema | ({"additionalProperties": False} if bound else {})
    return found


CLOSED = closed()


def check(answer: httpx.Response, *, path: str = "", method: str = "") -> httpx.Response:
    """An answer is what the document says of its route."""
    path = path or answer.request.url.path
    item = DOCUMENT["paths"][path]
    item = DOCUMENT["paths"]["/v1" + path] if "$ref" in item else item
    told = item[(method or answer.request.method).lower()]["responses"][str(answer.status_code)]
    media = answer.headers["content-type"].split(";")[0]
    content = told["content"][media]
    if media == "text/event-stream":
        *listed, last = events(drop_names(answer.text))
        data = content["schema"]["properties"]["data"]
        assert ("anyOf" in data) == (last == "[DONE]")
        told = validator(data.get("anyOf", [data])[-1]["contentSchema"], CLOSED)
        for each in [*listed, *([] if last == "[DONE]" else [last])]:
            told.validate(each)
    else:
        value = answer.json() if media == "application/json" else answer.text
        validator(content["schema"], CLOSED).validate(value)
    return answer


def drop_names(text: str) -> str:
    return "\n".join(line for line in text.split("\n") if not line.startswith("event: "))


STEPS: list[list[Any]] = [
    ["generated", 0, ["sampled", "a"], ["forced", "b"]],
    ["reasoning", "well"],
    ["text", "so"],
    ["call", "f", '{"a":', " 1}"],
    ["warn", "no"],
]
ANSWERS: dict[str, tuple[str, Json, list[list[Any]]]] = {
    "chat": ("/v1/chat/completions", {"n": 2, "stream_options": {"include_usage": True}}, STEPS),
    "bare path": ("/chat/completions", {}, STEPS),
    "chat cut": ("/v1/chat/completions", {"logprobs": True}, [["scored", "so"], ["finish", "length"]]),
    "responses": ("/v1/responses", {"metadata": {"a": "b"}, "temperature": 1}, STEPS),
    "responses cut": ("/v1/responses", {"max_output_tokens": 9}, [["text", "so"], ["finish", "length"]]),
    "messages": ("/v1/messages", {}, STEPS),
    "messages cut": ("/v1/messages", {}, [["text", "so"], ["finish", "length"]]),
}
for _path in ("chat/completions", "responses", "messages"):
    ANSWERS[f"{_path} refused"] = (f"/v1/{_path}", {}, [["reject", "no"]])
    ANSWERS[f"{_path} failed"] = (f"/v1/{_path}", {}, [["text", "so"], ["fail", "no"]])
    ANSWERS[f"{_path} wrong"] = (f"/v1/{_path}", {"temperature": "hot"}, [])


@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", ANSWERS)
def test_answers_are_as_the_document_says(server: Serving, name: str, stream: bool, debug: bool) -> None:
    path, fields, steps = ANSWERS[name]
    body = order(*steps, **fields, stream=stream, debug=debug)
    if "responses" in path:
        body["input"] = body.pop("messages")
    check(server.request("POST", path, json=body))


def test_so_are_the_answers_of_other_routes(tmp_path: Path) -> None:
    with playing(tmp_path, {"text": "well"}) as server:
        for path in ("/v1/models", "/v1/health", "/health", "/metrics", "/", "/models"):
            check(server.get(path))
        check(server.get("/v1/models/none"), path="/v1/models/{name}")
        check(server.get("/v1/models/scripted"), path="/v1/models/{name}")
        check(server.get("/v1/responses/none"), path="/v1/responses/{name}")
        chat: Json = {"messages": [{"role": "user", "content": "hello"}]}
        tool = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"format": "uri"}}}}
        for path, body in (
            ("/v1/completions", {"prompt": ["a", "b"], "n": 2}),
            ("/v1/completions", {"prompt": "a", "stream": True}),
            ("/v1/completions", {"prompt": 1}),
            ("/v1/messages/count_tokens", chat),
            ("/v1/messages/count_tokens", {}),
            ("/v1/embeddings", {"input": "a"}),
            ("/v1/tokenize", {"content": "é"}),
            ("/v1/tokenize", {"content": "é", "with_pieces": True}),
            ("/v1/detokenize", {"tokens": [97]}),
            ("/v1/apply-template", chat),
            ("/v1/tools/check", {"tools": [tool, {"name": "f"}, {"name": "g", "parameters": {"type": 1}}]}),
            ("/v1/tools/check", {"tools": 1}),
        ):
            check(server.request("POST", path, json=body))


def test_and_of_kept_responses(server: Serving) -> None:
    kept = check(server.request("POST", "/v1/responses", json={"input": "hello"})).json()
    place = f"/v1/responses/{kept['id']}"
    check(server.get(place), path="/v1/responses/{name}")
    check(server.request("DELETE", place), path="/v1/responses/{name}")
