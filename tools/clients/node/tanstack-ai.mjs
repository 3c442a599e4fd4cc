// TanStack AI, by its adapters for servers of OpenAI's API: over chats and over responses.
import { chat, toolDefinition } from '@tanstack/ai'
import { createOpenaiChat, createOpenaiChatCompletions } from '@tanstack/ai-openai'
import { z } from 'zod'
import { expect, holds, run } from './run.mjs'

const server = { baseURL: process.argv[2] }
const adapters = {
  chats: createOpenaiChatCompletions('demo', '-', server),
  responses: createOpenaiChat('demo', '-', server),
}
const asked = (content) => ({ messages: [{ role: 'user', content }], modelOptions: { temperature: 0 } })
const FRANCE = asked('What is the capital of France?')
const WEATHER = asked('What is the weather in Paris?')
const cities = []
const weather = toolDefinition({
  name: 'weather',
  description: 'Return the weather in a city.',
  inputSchema: z.object({ city: z.string() }),
}).server(async ({ city }) => {
  cities.push(city)
  return { temperature: 22, sky: 'sunny', city }
})

async function joined(parts) {
  let text = ''
  for await (const part of parts) if (part.type === 'TEXT_MESSAGE_CONTENT') text += part.delta
  return text
}

const checks = {}
for (const [name, adapter] of Object.entries(adapters)) {
  checks[`chat, ${name}`] = async () => holds(await chat({ adapter, ...FRANCE, stream: false }), 'Paris')
  checks[`chat as a stream, ${name}`] = async () => holds(await joined(chat({ adapter, ...FRANCE })), 'Paris')
  checks[`tool loop, ${name}`] = async () => {
    await joined(chat({ adapter, ...WEATHER, tools: [weather] }))
    return expect(cities.pop() === 'Paris', 'the tool called for Paris')
  }
}

await run(checks)
