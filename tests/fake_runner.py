"""A runner without a model, for tests of what stands before it: does what the last message says.

That message is a JSON list of steps, such as ``[["text", "Hi"], ["sleep", 0.1], ["exit", 3]]``; any other
text is echoed. How it loads comes from the file ``settings.replay``: a JSON list with one word for each
start (``ok`` beyond its end); starts are counted in a file next to it. ``settings.model`` is the name.
"""

import json
import os
import signal
import socket
import sys
import threading
import time

import msgspec

from server.errors import ErrorData
from server.events import (
    CallArguments,
    CallEnd,
    CallStart,
    Finish,
    Generated,
    GeneratedToken,
    Reasoning,
    Source,
    Text,
    Timings,
    TokenLogprob,
    Usage,
    Warning,
)
from server.frames import (
    Accepted,
    Ask,
    Cancel,
    Decoder,
    Emitted,
    Failed,
    Finished,
    Generate,
    LoadFailed,
    ModelFacts,
    Origin,
    PromptPart,
    Ready,
    Rejected,
    Shutdown,
    Status,
    Tokenized,
    Told,
    ToRunner,
    encode,
)
from server.settings import Settings
from server.turn import Message, Turn

ORIGIN = Origin((PromptPart("<s>", True), PromptPart("hello", False)), "start: text")


class Runner:
    def __init__(self, connection):
        self.connection = connection
        self.lock = threading.Lock()
        self.cancelled = {}
        self.preparing_s = 0.0

    def send(self, frame):
        self.write(encode(frame))

    def write(self, data):
        with self.lock:
            self.connection.sendall(data)

    def run(self):
        threading.Thread(target=self.report, daemon=True).start()
        decoder = Decoder(ToRunner)
        while data := self.connection.recv(65536):
            for frame in decoder.feed(data):
                match frame:
                    case Generate(number, turn):
                        self.cancelled[number] = threading.Event()
                        threading.Thread(target=self.answer, args=(number, turn), daemon=True).start()
                    case Ask(number, question):
                        self.cancelled[number] = threading.Event()
                        threading.Thread(target=self.tell, args=(number, question), daemon=True).start()
                    case Cancel(number):
                        if number in self.cancelled:
                            self.cancelled[number].set()
                    case Shutdown():
                        return

    def report(self):
        while True:
            self.send(Status(active=len(self.cancelled), waiting=0, preparing_s=self.preparing_s))
            time.sleep(0.05)

    def answer(self, number, turn):
        try:
            Answer(self, number, turn).play()
        finally:
            self.cancelled.pop(number, None)

    def tell(self, number, question):
        """Takes the steps of a text that is to be tokenized, then says that it is one token."""
        (content,) = question.parts
        asked = Answer(self, number, Turn((Message("user", content),)))
        steps = asked.steps if content.startswith("[[") else []
        try:
            if not any(getattr(asked, name)(*arguments) == "over" for name, *arguments in steps):
                self.send(Told(number, Tokenized((1,), (content.encode(),))))
        finally:
            self.cancelled.pop(number, None)


class Answer:
    def __init__(self, runner, number, turn):
        self.runner, self.number, self.turn = runner, number, turn
        self.cancelled = runner.cancelled[number]
        content = turn.messages[-1].content or ""
        self.steps = json.loads(content) if content.startswith("[[") else [["text", content]]
        self.calls = 0
        self.reason = None
        self.warnings = ()

    def play(self):
        accepted = False
        for name, *arguments in self.steps:
            if not accepted and name not in ("reject", "prepare"):
                self.runner.send(Accepted(self.number, 7, ORIGIN if self.turn.debug else None))
                accepted = True
            if getattr(self, name)(*arguments) == "over" or self.cancelled.is_set():
                return
        self.emit(Finish(self.reason or ("tool_calls" if self.calls else "stop")))
        counts = {"sampled_tokens": 2, "forced_tokens": 1, "drafted_tokens": 2, "rejected_tokens": 3}
        timings = Timings(queue_ms=1, prefill_ms=2, decode_ms=3, **counts)
        self.runner.send(Finished(self.number, Usage(7, 5, 3), timings, self.warnings))

    def emit(self, *events):
        for choice in range(self.turn.choices):
            self.runner.send(Emitted(self.number, choice, events))

    def text(self, text):
        self.emit(Text(text))

    def letters(self, text):
        for letter in text:
            self.emit(Text(letter))

    def scored(self, text):
        self.emit(Text(text, (TokenLogprob(text, text.encode(), float("-inf")),)))

    def generated(self, start, *tokens):
        made = tuple(GeneratedToken(5, text.encode(), Source(source)) for source, text in tokens)
        self.emit(Generated(start, made))

    def reasoning(self, text):
        self.emit(Reasoning(text))

    def call(self, name, *fragments):
        index, self.calls = self.calls, self.calls + 1
        for choice in range(self.turn.choices):
            identifier = f"c{self.number}x{choice}x{index}"
            fragment_events = [CallArguments(index, each) for each in fragments]
            events = (CallStart(index, identifier, name), *fragment_events, CallEnd(index))
            self.runner.send(Emitted(self.number, choice, events))

    def finish(self, reason):
        self.reason = reason

    def warn(self, message):
        self.warnings = (Warning("schema_not_enforced", message),)

    def echo(self):
        self.emit(Text(msgspec.json.encode(self.turn).decode()))

    def sleep(self, seconds):
        self.cancelled.wait(seconds)

    def prepare(self, seconds):
        self.cancelled.wait(seconds)

    def preparing(self, seconds):
        self.runner.preparing_s = seconds
        self.cancelled.wait(60)

    def flood(self, count):
        for _ in range(count):
            if self.cancelled.is_set():
                return
            self.emit(Text("x" * 10_000))

    def reject(self, code):
        self.runner.send(
            Rejected(self.number, ErrorData(400, "invalid_request_error", code, "no", "messages"))
        )
        return "over"

    def fail(self, code):
        self.runner.send(Failed(self.number, ErrorData(500, "server_error", code, "broke")))
        return "over"

    def disorder(self):
        self.runner.send(Emitted(self.number, 99, (Text("x"),)))

    def signal(self, name):
        os.kill(os.getpid(), getattr(signal, name))
        time.sleep(60)

    def exit(self, status):
        os._exit(status)

    def close(self):
        self.runner.connection.shutdown(socket.SHUT_RDWR)
        time.sleep(60)

    def garbage(self):
        self.runner.write(b"\x00\x00\x00\x04junk")

    def half(self):
        self.runner.write(b"\x00\x00\x01\x00half")
        os._exit(0)

    def huge(self):
        self.runner.write(b"\x7f\xff\xff\xff")


def load(connection, settings):
    number, words = 0, []
    if settings.replay:
        with open(settings.replay + ".starts", "a+") as starts:
            starts.write(".")
            starts.flush()
            number = starts.tell() - 1
        with open(settings.replay) as script:
            words = json.load(script)
    match words[number] if number < len(words) else "ok":
        case "load_failed":
            error = ErrorData(500, "server_error", "load_failed", "no such model")
            connection.sendall(encode(LoadFailed(error)))
            sys.exit(1)
        case "crash":
            os.kill(os.getpid(), signal.SIGABRT)
        case "hang":
            time.sleep(60)
        case "slow":
            time.sleep(1.5)


def main():
    connection = socket.socket(fileno=int(sys.argv[-1]))
    settings = msgspec.json.decode(os.environ["TOOLSPAN_RUNNER_SETTINGS"], type=Settings)
    assert not settings.asks_for_key
    load(connection, settings)
    runner = Runner(connection)
    runner.send(
        Ready(
            ModelFacts(
                name=settings.model,
                architecture="fake",
                context=4096,
                context_train=8192,
                slots=settings.slots,
                dialect="hermes",
                tools=True,
                parallel_calls=True,
                reasoning=False,
                vocabulary=1000,
                device="CPU",
                layers=0,
                offloaded_layers=0,
            )
        )
    )
    runner.run()


if __name__ == "__main__":
    main()
