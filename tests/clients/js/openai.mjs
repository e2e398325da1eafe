// The `openai` package; nothing is changed but the address.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { addParameters, checkPerson, key, person, run, url } from "./checks.mjs";

const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
const model = "fake";
const temperature = 0;
const user = (content) => ({ role: "user", content });
const add = { name: "add", description: "Add.", parameters: addParameters };
const tools = [{ type: "function", function: add }];
const responseTools = [{ type: "function", strict: null, ...add }];
const total = (text) => String(Object.values(JSON.parse(text)).reduce((a, b) => a + b));

await run({
  async chat() {
    const answer = await client.chat.completions.create({
      model, temperature, messages: [user("Hi")],
    });
    assert.equal(answer.choices[0].message.content, "Hello!");
    assert.equal(answer.choices[0].finish_reason, "stop");
  },

  async streaming() {
    const stream = await client.chat.completions.create({
      model, temperature, messages: [user("Hi")], stream: true,
      stream_options: { include_usage: true },
    });
    let text = "";
    let usage = null;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta.content ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, "Hello!");
    assert.equal(usage.completion_tokens, 7);
  },

  async "required and named tools"() {
    for (const choice of ["required", { type: "function", function: { name: "add" } }]) {
      const answer = await client.chat.completions.create({
        model, messages: [user("untaught")], tools, tool_choice: choice,
        parallel_tool_calls: false, seed: 1,
      });
      const [call] = answer.choices[0].message.tool_calls;
      assert.equal(answer.choices[0].finish_reason, "tool_calls");
      assert.deepEqual(Object.keys(JSON.parse(call.function.arguments)), ["a", "b"]);
    }
  },

  async "streamed tools"() {
    const stream = client.chat.completions.stream({
      model, messages: [user("untaught")], tools, tool_choice: "required",
      parallel_tool_calls: false, seed: 2,
    });
    const answer = await stream.finalChatCompletion();
    const [call] = answer.choices[0].message.tool_calls;
    assert.deepEqual(Object.keys(JSON.parse(call.function.arguments)), ["a", "b"]);
  },

  async "structured output"() {
    const format = { type: "json_schema", json_schema: { name: "p", strict: true, schema: person } };
    const answer = await client.chat.completions.parse({
      model, messages: [user("Who?")], response_format: format, seed: 3,
    });
    checkPerson(answer.choices[0].message.parsed);
    const text = { format: { type: "json_schema", name: "p", strict: true, schema: person } };
    const response = await client.responses.create({ model, input: "Who?", text });
    checkPerson(JSON.parse(response.output_text));
  },

  async "an agent over chat"() {
    const messages = [{ role: "system", content: "Count." }, user("Go.")];
    let before = null;
    for (let n = 0; n < 5; n++) {
      const answer = await client.chat.completions.create({ model, temperature, messages, tools });
      const cached = answer.usage.prompt_tokens_details.cached_tokens;
      assert.equal(cached, before ?? cached);
      before = answer.usage.total_tokens - 1;
      const message = answer.choices[0].message;
      const [call] = message.tool_calls;
      messages.push(message);
      messages.push({
        role: "tool", tool_call_id: call.id, content: total(call.function.arguments),
      });
    }
    const last = await client.chat.completions.create({ model, temperature, messages, tools });
    assert.equal(last.choices[0].message.content, "5 it is.");
  },

  async "an agent over responses"() {
    let input = "Go.";
    let previous = null;
    let before = null;
    for (let n = 0; n < 5; n++) {
      const answer = await client.responses.create({
        model, temperature, instructions: "Count.", input, tools: responseTools,
        previous_response_id: previous,
      });
      const cached = answer.usage.input_tokens_details.cached_tokens;
      assert.equal(cached, before ?? cached);
      before = answer.usage.total_tokens - 1;
      previous = answer.id;
      const [call] = answer.output;
      input = [{
        type: "function_call_output", call_id: call.call_id, output: total(call.arguments),
      }];
    }
  },

  async "responses with branching"() {
    const first = await client.responses.create({ model, temperature, input: "a" });
    assert.equal(first.output_text, "A");
    for (const [question, reply] of [["b", "B"], ["c", "C"]]) {
      const answer = await client.responses.create({
        model, temperature, input: question, previous_response_id: first.id,
      });
      assert.equal(answer.output_text, reply);
      assert.ok(
        answer.usage.input_tokens_details.cached_tokens >= first.usage.total_tokens - 1,
      );
    }
  },

  async errors() {
    const ask = { model, messages: [user("Hi")] };
    const create = (body) => client.chat.completions.create({ ...ask, ...body });
    await assert.rejects(create({ model: "gpt" }), OpenAI.NotFoundError);
    await assert.rejects(create({ temperature: -1 }), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.equal(error.param, "temperature");
      return true;
    });
    const schema = { not: {} };
    const format = { type: "json_schema", json_schema: { name: "p", strict: true, schema } };
    await assert.rejects(create({ response_format: format }), OpenAI.BadRequestError);
    const stranger = new OpenAI({ baseURL: `${url}/v1`, apiKey: "wrong", maxRetries: 0 });
    await assert.rejects(
      stranger.chat.completions.create(ask), OpenAI.AuthenticationError,
    );
  },
});
