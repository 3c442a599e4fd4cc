// Texts of four kinds, in the words that the demo model knows.

const KINDS = {
  greeting: ["Hello!", "Hi there", "Good morning", "Good evening to you", "Hey, how are you?", "Hello, nice to meet you"],
  sum: ["What is 2 plus 3?", "What is 4 plus 5?", "How much is 7 minus 2?", "What is 9 minus 4?", "What is 6 plus 1?", "How much is 8 plus 2?"],
  feeling: ["I am sad today", "I feel happy", "I am so tired", "I am angry with my friend", "I feel lonely", "I am afraid of the dark"],
  capital: ["What is the capital of France?", "What is the capital of Italy?", "What is the capital of Japan?", "What is the capital of Spain?", "What is the capital of Egypt?", "What is the capital of Germany?"],
};

/** As lines `label<TAB>text`. */
export const EXAMPLE = Object.entries(KINDS)
  .flatMap(([label, texts]) => texts.map((text) => `${label}\t${text}`))
  .join("\n");
