// Runs checks, and prints a line of JSON for each: what, works, outcome.

export async function run(checks) {
  for (const [what, check] of Object.entries(checks)) {
    let line
    try {
      line = { what, works: true, outcome: JSON.stringify(await check()) }
    } catch (error) {
      line = { what, works: false, outcome: `${error.name}: ${error.message} ${error.responseBody ?? ''}` }
    }
    console.log(JSON.stringify(line))
  }
}

export function holds(text, part) {
  if (!text.includes(part)) throw new Error(`no ${part} in ${JSON.stringify(text)}`)
  return text
}

export function expect(found, what) {
  if (!found) throw new Error(`expected ${what}`)
  return what
}
