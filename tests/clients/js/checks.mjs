// A list of checks that run one after another; the first that fails ends the script.
import assert from "node:assert/strict";

export const url = process.env.TENURE_URL;
export const key = process.env.TENURE_KEY;

export const addParameters = {
  type: "object",
  properties: { a: { type: "integer" }, b: { type: "integer" } },
  required: ["a", "b"],
  additionalProperties: false,
};

export const person = {
  type: "object",
  properties: {
    name: { type: "string", enum: ["Ada", "Grace"] },
    born: { type: "integer", minimum: 1800, maximum: 1999 },
  },
  required: ["name", "born"],
  additionalProperties: false,
};

export function checkPerson(found) {
  assert.deepEqual(Object.keys(found), ["name", "born"]);
  assert.ok(["Ada", "Grace"].includes(found.name));
  assert.ok(Number.isInteger(found.born) && found.born >= 1800 && found.born <= 1999);
}

export async function run(checks) {
  for (const [name, check] of Object.entries(checks)) {
    try {
      await check();
      console.log(`ok ${name}`);
    } catch (error) {
      console.error(`failed: ${name}\n${error.stack}`);
      process.exit(1);
    }
  }
}
