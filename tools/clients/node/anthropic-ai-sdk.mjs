// The official package of Anthropic for node.
import Anthropic from '@anthropic-ai/sdk'
import { expect, holds, run } from './run.mjs'

const client = new Anthropic({ baseURL: process.argv[2].replace(/\/v1$/, ''), apiKey: '-', maxRetries: 0 })
const FIXED = { model: 'demo', max_tokens: 60 }
const messages = [{ role: 'user', content: 'What is the capital of France?' }]
const asked = [{ role: 'user', content: 'What is the weather in Paris?' }]
const tools = [
  {
    name: 'weather',
    description: 'Return the weather in a city.',
    input_schema: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  },
]

await run({
  'messages.create': async () => holds((await client.messages.create({ ...FIXED, messages })).content[0].text, 'Paris'),
  'messages.stream': async () => holds(await client.messages.stream({ ...FIXED, messages }).finalText(), 'Paris'),
  'messages.create, tools': async () => {
    const first = await client.messages.create({ ...FIXED, messages: asked, tools })
    const [call] = first.content
    const content = `{"temperature": 22, "sky": "sunny", "city": "${call.input.city}"}`
    const said = [
      ...asked,
      { role: 'assistant', content: first.content },
      { role: 'user', content: [{ type: 'tool_result', tool_use_id: call.id, content }] },
    ]
    return holds((await client.messages.create({ ...FIXED, messages: said, tools })).content[0].text, '22')
  },
  'messages.countTokens': async () =>
    expect((await client.messages.countTokens({ model: 'demo', messages })).input_tokens > 0, 'tokens'),
  'models.list': async () => expect((await client.models.list()).data[0].id === 'demo', 'demo'),
  'errors': async () => {
    const error = await client.messages.create({ ...FIXED, messages: [] }).catch((caught) => caught)
    return expect(error instanceof Anthropic.BadRequestError, 'BadRequestError')
  },
})
