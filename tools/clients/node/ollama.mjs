// The official package of Ollama for node.
import { Ollama } from 'ollama'
import { expect, holds, run } from './run.mjs'

const client = new Ollama({ host: process.argv[2].replace(/\/v1$/, '') })
const FIXED = { model: 'demo', options: { temperature: 0, num_predict: 60 } }
const messages = [{ role: 'user', content: 'What is the capital of France?' }]
const parameters = { type: 'object', properties: { city: { type: 'string', enum: ['Paris', 'Rome'] } }, required: ['city'] }
const tools = [{ type: 'function', function: { name: 'weather', description: 'Return the weather.', parameters } }]

await run({
  chat: async () => holds((await client.chat({ ...FIXED, messages })).message.content, 'Paris'),
  'chat, stream': async () => {
    let text = ''
    for await (const part of await client.chat({ ...FIXED, messages, stream: true })) text += part.message.content
    return holds(text, 'Paris')
  },
  'chat, tools': async () => {
    const said = [{ role: 'user', content: 'What is the weather in Paris?' }]
    const { message } = await client.chat({ ...FIXED, messages: said, tools })
    const [call] = message.tool_calls
    const content = `{"temperature": 22, "sky": "sunny", "city": "${call.function.arguments.city}"}`
    const answered = [...said, message, { role: 'tool', tool_name: 'weather', content }]
    return holds((await client.chat({ ...FIXED, messages: answered, tools })).message.content, '22')
  },
  'chat, format': async () => JSON.parse((await client.chat({ ...FIXED, messages, format: parameters })).message.content),
  generate: async () => holds((await client.generate({ ...FIXED, prompt: messages[0].content })).response, 'Paris'),
  embed: async () => expect((await client.embed({ model: 'demo', input: ['One', 'Two'] })).embeddings.length === 2, 'two vectors'),
  list: async () => expect((await client.list()).models[0].name === 'demo', 'demo'),
  ps: async () => expect((await client.ps()).models[0].name === 'demo', 'demo'),
  show: async () => (await client.show({ model: 'demo' })).capabilities,
  pull: async () => {
    const error = await client.pull({ model: 'other' }).catch((caught) => caught)
    return holds(String(error), 'folder of models')
  },
})
