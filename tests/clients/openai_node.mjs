// The official npm client: its tool runner, whole and streamed, and streamed responses, each twice.

import OpenAI from "openai";

const room = "boiler room";
const question = `Call read_meter for the \`${room}\` and tell me the number.`;
const parameters = { type: "object", properties: { room: { type: "string" } }, required: ["room"] };
const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
let read = [];

function readMeter(argumentsOfCall) {
  if (argumentsOfCall.room !== room) throw new Error(JSON.stringify(argumentsOfCall));
  read.push(10000 + Math.floor(Math.random() * 90000));
  return `the meter shows ${read.at(-1)}`;
}

async function chat(stream) {
  const described = { name: "read_meter", description: "Reads the meter of a room.", parameters };
  const tool = { type: "function", function: { ...described, function: readMeter, parse: JSON.parse } };
  const messages = [{ role: "user", content: question }];
  const runner = client.chat.completions.runTools({ model: "scripted", messages, tools: [tool], stream });
  return runner.finalContent();
}

async function responses() {
  const input = [{ role: "user", content: question }];
  const tools = [{ type: "function", name: "read_meter", parameters, strict: false }];
  for (;;) {
    const answer = await client.responses.stream({ model: "scripted", input, tools }).finalResponse();
    const calls = answer.output.filter((item) => item.type === "function_call");
    if (!calls.length) return answer.output_text;
    for (const { call_id, name, arguments: written } of calls) {
      const output = readMeter(JSON.parse(written));
      input.push({ type: "function_call", call_id, name, arguments: written });
      input.push({ type: "function_call_output", call_id, output });
    }
  }
}

const conversations = { chat: () => chat(false), chat_streamed: () => chat(true), responses_streamed: responses };
for (const [name, converse] of [...Object.entries(conversations), ...Object.entries(conversations)]) {
  read = [];
  const said = await converse();
  if (read.length !== 1 || said !== `the meter shows ${read[0]}`) throw new Error(`${name}: ${said}`);
  console.log(name);
}
