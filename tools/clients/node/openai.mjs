// The official package of OpenAI for node.
import fs from 'node:fs'
import OpenAI from 'openai'
import { zodResponseFormat, zodTextFormat } from 'openai/helpers/zod'
import { z } from 'zod'
import { expect, holds, run } from './run.mjs'

const client = new OpenAI({ baseURL: process.argv[2], apiKey: '-', maxRetries: 0 })
const FIXED = { model: 'demo', temperature: 0 }
const FRANCE = 'What is the capital of France?'
const WEATHER = 'What is the weather in Paris?'
const messages = [{ role: 'user', content: FRANCE }]
const City = z.object({ city: z.enum(['Paris', 'Rome']) })
const parameters = {
  type: 'object',
  properties: { city: { type: 'string' } },
  required: ['city'],
  additionalProperties: false,
}
const result = ({ city }) => `{"temperature": 22, "sky": "sunny", "city": "${city}"}`

const SPAIN = 'What is the capital of Spain?'
const RATE = 30 // the multiplier of the learning rate that the demo model needs
const pause = () => new Promise((resolve) => setTimeout(resolve, 500))

await run({
  'chat.completions.create': async () =>
    holds((await client.chat.completions.create({ ...FIXED, messages })).choices[0].message.content, 'Paris'),
  'chat.completions.create, stream': async () => {
    let text = ''
    const stream = await client.chat.completions.create({ ...FIXED, messages, stream: true })
    for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? ''
    return holds(text, 'Paris')
  },
  'chat.completions.stream': async () =>
    holds(await client.chat.completions.stream({ ...FIXED, messages }).finalContent(), 'Paris'),
  'chat.completions.parse': async () => {
    const response_format = zodResponseFormat(City, 'city')
    return (await client.chat.completions.parse({ ...FIXED, messages, response_format })).choices[0].message.parsed
  },
  'chat.completions.runTools': async () => {
    const weather = { name: 'weather', description: 'Return the weather.', parameters, parse: JSON.parse, function: result }
    const runner = client.chat.completions.runTools({
      ...FIXED,
      messages: [{ role: 'user', content: WEATHER }],
      tools: [{ type: 'function', function: weather }],
    })
    return holds(await runner.finalContent(), '22')
  },
  'responses.create': async () => holds((await client.responses.create({ ...FIXED, input: FRANCE })).output_text, 'Paris'),
  'responses.stream': async () =>
    holds((await client.responses.stream({ ...FIXED, input: FRANCE }).finalResponse()).output_text, 'Paris'),
  'responses.parse': async () => {
    const text = { format: zodTextFormat(City, 'city') }
    return (await client.responses.parse({ ...FIXED, input: FRANCE, text })).output_parsed
  },
  'responses.create, tools': async () => {
    const tools = [{ type: 'function', name: 'weather', parameters, strict: true }]
    const first = await client.responses.create({ ...FIXED, input: WEATHER, tools })
    const [call] = first.output
    const output = { type: 'function_call_output', call_id: call.call_id, output: result(JSON.parse(call.arguments)) }
    const fields = { ...FIXED, input: [output], previous_response_id: first.id, tools }
    return holds((await client.responses.create(fields)).output_text, '22')
  },
  'responses.create, background': async () => {
    let response = await client.responses.create({ ...FIXED, input: FRANCE, background: true })
    expect(response.status === 'queued', 'a response that is queued')
    while (['queued', 'in_progress'].includes(response.status)) {
      await pause()
      response = await client.responses.retrieve(response.id)
    }
    return holds(response.output_text, 'Paris')
  },
  'responses.create, background, a stream that is left and read on': async () => {
    let id
    let last
    for await (const event of await client.responses.create({ ...FIXED, input: FRANCE, background: true, stream: true })) {
      id ??= event.response.id
      last = event
      if (event.sequence_number === 3) break
    }
    for await (const event of await client.responses.retrieve(id, { stream: true, starting_after: 3 })) {
      expect(event.sequence_number === last.sequence_number + 1, 'the events that were not read')
      last = event
    }
    return holds(last.response.output.at(-1).content[0].text, 'Paris')
  },
  'responses.cancel': async () => {
    const fields = { ...FIXED, background: true, max_output_tokens: 100_000, ignore_eos: true }
    const { id } = await client.responses.create({ ...fields, input: 'Count to a million.' })
    const cancelled = await client.responses.cancel(id)
    await client.responses.delete(id)
    return expect(cancelled.status === 'cancelled', 'a cancelled response')
  },
  conversations: async () => {
    const kept = await client.conversations.create({ items: [{ role: 'system', content: 'Be short.' }] })
    await client.responses.create({ ...FIXED, input: FRANCE, conversation: kept.id })
    const kinds = []
    for await (const item of client.conversations.items.list(kept.id, { order: 'asc' })) kinds.push(item.role)
    await client.conversations.delete(kept.id)
    return expect(kinds.join() === 'system,user,assistant', 'three items')
  },
  'completions.create': async () => (await client.completions.create({ ...FIXED, prompt: 'Once', max_tokens: 4 })).choices[0].text,
  'embeddings.create': async () => {
    const found = await client.embeddings.create({ model: 'demo', input: ['One', 'Two'] })
    return expect(found.data.length === 2 && found.data[0].embedding.length > 8, 'two vectors')
  },
  'models.list': async () => expect((await client.models.list()).data[0].id === 'demo', 'demo'),
  'errors': async () => {
    const error = await client.chat.completions.create({ ...FIXED, messages, top_p: 7 }).catch((caught) => caught)
    return expect(error instanceof OpenAI.BadRequestError && error.param === 'top_p', 'BadRequestError')
  },
  'files and batches': async () => {
    const file = await client.files.create({ file: fs.createReadStream('../batch.jsonl'), purpose: 'batch' })
    const fields = { input_file_id: file.id, endpoint: '/v1/chat/completions', completion_window: '24h' }
    let batch = await client.batches.create(fields)
    while (['validating', 'in_progress', 'finalizing'].includes(batch.status)) {
      await pause()
      batch = await client.batches.retrieve(batch.id)
    }
    const answers = await (await client.files.content(batch.output_file_id)).text()
    const ids = []
    for await (const each of client.batches.list({ limit: 10 })) ids.push(each.id)
    for (const id of [file.id, batch.output_file_id]) await client.files.delete(id)
    expect(batch.status === 'completed' && ids.includes(batch.id), 'a completed batch')
    holds(answers, 'Paris')
    return answers.trim().split('\n').map((line) => JSON.parse(line).response.body.choices[0].message.content)
  },
  'fineTuning.jobs, and chats with the tuned model': async () => {
    const file = await client.files.create({ file: fs.createReadStream('../pirate.jsonl'), purpose: 'fine-tune' })
    const method = { type: 'supervised', supervised: { hyperparameters: { learning_rate_multiplier: RATE } } }
    let job = await client.fineTuning.jobs.create({ training_file: file.id, model: 'demo', suffix: 'pirate', seed: 1, method })
    while (['validating_files', 'queued', 'running'].includes(job.status)) {
      await pause()
      job = await client.fineTuning.jobs.retrieve(job.id)
    }
    const [last] = (await client.fineTuning.jobs.listEvents(job.id, { limit: 10 })).data
    expect(job.status === 'succeeded', `a job that succeeds, and not: ${last.message}`)
    const checkpoints = (await client.fineTuning.jobs.checkpoints.list(job.id)).data
    const names = [job.fine_tuned_model, ...checkpoints.map((each) => each.fine_tuned_model_checkpoint)]
    const asked = { ...FIXED, model: job.fine_tuned_model, messages: [{ role: 'user', content: SPAIN }] }
    const text = (await client.chat.completions.create(asked)).choices[0].message.content
    for (const name of names) expect((await client.models.delete(name)).deleted, `${name} deleted`)
    await client.files.delete(file.id)
    return holds(holds(text, 'Madrid'), 'matey')
  },
})
