// Examples for a new user to begin with: texts to continue, and a constraint of each kind.

/** @type {Record<string, string>} */
export const EXAMPLES = {
  grammar: 'root ::= "The answer is " number "."\nnumber ::= [0-9]+ | "unknown"\n',
  kbnf: 'start ::= "The answer is " #"[0-9]+" ".";\n',
  regex: "[A-Z][a-z]+(, [a-z]+){2}\\.",
  json: '{\n  "type": "object",\n  "properties": {\n    "city": {"type": "string"},\n    "people": {"type": "integer"}\n  },\n  "required": ["city", "people"]\n}\n',
};

export const TEXTS = [
  "User: What is the capital of France?\n\nAssistant:",
  "User: Tell me a joke.\n\nAssistant:",
  "User: What is 12 plus 30?\n\nAssistant:",
];
