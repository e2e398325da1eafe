// The Vercel AI SDK with its provider for OpenAI, which speaks the Responses interface.
import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { APICallError, generateText, jsonSchema, Output, stepCountIs, streamText, tool } from "ai";
import { addParameters, checkPerson, key, person, run, url } from "./checks.mjs";

globalThis.AI_SDK_LOG_WARNINGS = false;
const provider = createOpenAI({ baseURL: `${url}/v1`, apiKey: key });
const model = provider("fake");
const common = { model, maxRetries: 0 };
const add = tool({
  description: "Add.",
  inputSchema: jsonSchema(addParameters),
  execute: async ({ a, b }) => String(a + b),
});

await run({
  async streaming() {
    const stream = streamText({ ...common, temperature: 0, prompt: "Hi" });
    let text = "";
    for await (const piece of stream.textStream) text += piece;
    assert.equal(text, "Hello!");
    assert.equal((await stream.usage).outputTokens, 7);
    assert.equal(await stream.finishReason, "stop");
  },

  async "responses with branching"() {
    const first = await generateText({ ...common, temperature: 0, prompt: "a" });
    assert.equal(first.text, "A");
    const previousResponseId = first.providerMetadata.openai.responseId;
    for (const [prompt, reply] of [["b", "B"], ["c", "C"]]) {
      const answer = await generateText({
        ...common, temperature: 0, prompt, providerOptions: { openai: { previousResponseId } },
      });
      assert.equal(answer.text, reply);
      const { inputTokens, outputTokens } = first.usage;
      assert.ok(answer.usage.cachedInputTokens >= inputTokens + outputTokens - 1);
    }
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
    const tools = { find: tool({ description: "Find.", inputSchema: jsonSchema(person) }) };
    const stream = streamText({
      ...common, prompt: "untaught", tools, toolChoice: "required",
      providerOptions: { openai: { parallelToolCalls: false } },
    });
    const [call] = await stream.toolCalls;
    checkPerson(call.input);
  },

  async "structured output"() {
    const output = Output.object({ schema: jsonSchema(person) });
    const answer = await generateText({ ...common, prompt: "Who?", output });
    checkPerson(answer.output);
    const stream = streamText({ ...common, prompt: "Who?", output });
    let last = null;
    for await (const partial of stream.partialOutputStream) last = partial;
    checkPerson(last);
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
    const stranger = createOpenAI({ baseURL: `${url}/v1`, apiKey: "wrong" });
    await assert.rejects(
      generateText({ ...common, model: stranger("fake"), prompt }), failed(401),
    );
  },
});
