// The AI SDK of Vercel.
import { createOpenAI } from '@ai-sdk/openai'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { embedMany, generateObject, generateText, jsonSchema, Output, stepCountIs, streamObject, streamText, tool } from 'ai'
import { holds, run } from './run.mjs'

const baseURL = process.argv[2]
const MODEL = 'demo'
const FRANCE = 'What is the capital of France?'
const WEATHER = 'What is the weather in Paris?'
const PERSON = 'Anna is 31 years old and likes red and blue.'
const FIXED = { temperature: 0, maxRetries: 0, maxOutputTokens: 120 }

const openai = createOpenAI({ baseURL, apiKey: '-' })
const compatible = createOpenAICompatible({ name: 'served', baseURL, apiKey: '-', supportsStructuredOutputs: true })
const models = {
  'createOpenAI (responses)': openai(MODEL),
  'createOpenAI.chat': openai.chat(MODEL),
  createOpenAICompatible: compatible(MODEL),
}
const person = jsonSchema({
  type: 'object',
  properties: {
    name: { type: 'string', minLength: 1, maxLength: 20 },
    age: { type: 'integer', minimum: 0, maximum: 150 },
    likes: { type: 'array', items: { enum: ['red', 'green', 'blue'] }, maxItems: 3 },
  },
  required: ['name', 'age', 'likes'],
  additionalProperties: false,
})
const weather = tool({
  description: 'Return the weather in a city.',
  inputSchema: jsonSchema({
    type: 'object',
    properties: { city: { type: 'string' } },
    required: ['city'],
    additionalProperties: false,
  }),
  execute: async ({ city }) => `{"temperature": 22, "sky": "sunny", "city": "${city}"}`,
})

async function joined(parts) {
  let text = ''
  for await (const part of parts) text += part
  return text
}

const checks = {}
for (const [name, model] of Object.entries(models)) {
  checks[`generateText, ${name}`] = async () =>
    holds((await generateText({ model, prompt: FRANCE, ...FIXED })).text, 'Paris')
  checks[`streamText, ${name}`] = async () =>
    holds(await joined(streamText({ model, prompt: FRANCE, ...FIXED }).textStream), 'Paris')
  checks[`generateObject, ${name}`] = async () =>
    (await generateObject({ model, schema: person, prompt: PERSON, ...FIXED })).object
  checks[`streamObject, ${name}`] = async () => {
    const result = streamObject({ model, schema: person, prompt: PERSON, ...FIXED })
    for await (const _ of result.partialObjectStream);
    return await result.object
  }
  checks[`Output.object, ${name}`] = async () =>
    (await generateText({ model, output: Output.object({ schema: person }), prompt: PERSON, ...FIXED })).output
  checks[`tool loop, ${name}`] = async () => {
    const result = await generateText({ model, tools: { weather }, stopWhen: stepCountIs(3), prompt: WEATHER, ...FIXED })
    return holds(result.text, '22')
  }
  checks[`tool loop as a stream, ${name}`] = async () => {
    const result = streamText({ model, tools: { weather }, stopWhen: stepCountIs(3), prompt: WEATHER, ...FIXED })
    return holds(await joined(result.textStream), '22')
  }
}
checks['openai.completion'] = async () =>
  (await generateText({ model: openai.completion(MODEL), prompt: FRANCE, ...FIXED, maxOutputTokens: 8 })).text
checks['embedMany'] = async () =>
  (await embedMany({ model: openai.embedding(MODEL), values: ['One', 'Two'] })).embeddings.length

await run(checks)
