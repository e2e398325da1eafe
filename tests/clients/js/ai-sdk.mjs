// The Vercel AI SDK with its provider for servers that speak OpenAI's interface.
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, jsonSchema, Output, stepCountIs, streamText, tool } from "ai";
import { addParameters, checkPerson, key, person, run, url } from "./checks.mjs";

globalThis.AI_SDK_LOG_WARNINGS = false;
const provider = createOpenAICompatible({
  name: "tenure", baseURL: `${url}/v1`, apiKey: key, includeUsage: true,
  supportsStructuredOutputs: true,
});
const model = provider("fake");
const common = { model, maxRetries: 0 };
const add = tool({
  description: "Add.",
  inputSchema: jsonSchema(addParameters),
  execute: async ({ a, b }) => String(a + b),
});

await run({
  async chat() {
    const answer = await generateText({ ...common, temperature: 0, prompt: "Hi" });
    assert.equal(answer.text, "Hello!");
    assert.equal(answer.finishReason, "stop");
  },

  async streaming() {
    const stream = streamText({ ...common, temperature: 0, prompt: "Hi" });
    let text = "";
    for await (const piece of stream.textStream) text += piece;
    assert.equal(text, "Hello!");
    assert.equal((await stream.usage).outputTokens, 7);
  },

  async "an agent of five calls"() {
    const answer = await generateText({
      ...common, temperature: 0, system: "Count.", prompt: "Go.", tools: { add },
      stopWhen: stepCountIs(6),
    });
    assert.equal(answer.text, "5 it is.");
    assert.equal(answer.steps.length, 6);
    let before = null;
    for (const step of answer.steps) {
      const { inputTokens, outputTokens, cachedInputTokens } = step.usage;
      assert.equal(cachedInputTokens, before ?? cachedInputTokens);
      before = inputTokens + outputTokens - 1;
    }
  },

  async "required and streamed tools"() {
    const stream = streamText({
      ...common, prompt: "untaught", seed: 2, tools: { add }, toolChoice: "required",
    });
    const calls = await stream.toolCalls;
    assert.ok(calls.length >= 1);
    assert.deepEqual(Object.keys(calls[0].input), ["a", "b"]);
  },

  async "structured output"() {
    const output = Output.object({ schema: jsonSchema(person) });
    const answer = await generateText({ ...common, prompt: "Who?", seed: 3, output });
    checkPerson(answer.output);
    const stream = streamText({ ...common, prompt: "Who?", seed: 4, output });
    let last = null;
    for await (const partial of stream.partialOutputStream) last = partial;
    checkPerson(last);
  },

  async "a session by header"() {
    const headers = { "x-session-id": "js" };
    for (const [prompt, reply] of [["a", "A"], ["b", "B"]]) {
      const answer = await generateText({ ...common, temperature: 0, prompt, headers });
      assert.equal(answer.text, reply);
    }
  },

  async errors() {
    const failed = (status) => (error) => {
      assert.ok(APICallError.isInstance(error), String(error));
      assert.equal(error.statusCode, status);
      return true;
    };
    const prompt = "Hi";
    await assert.rejects(
      generateText({ ...common, model: provider("gpt"), prompt }), failed(404),
    );
    await assert.rejects(generateText({ ...common, temperature: -1, prompt }), failed(400));
    const stranger = createOpenAICompatible({ name: "t", baseURL: `${url}/v1`, apiKey: "wrong" });
    await assert.rejects(
      generateText({ ...common, model: stranger("fake"), prompt }), failed(401),
    );
  },
});
