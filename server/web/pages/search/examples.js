// Texts and a query for a new user to begin with, in words that the demo model knows.

export const EXAMPLE = {
  texts: [
    "The capital of France is Paris.",
    "A spider has eight legs and no wings.",
    "Bread is made of flour and water.",
    "A cat sleeps on the red sofa.",
  ].join("\n"),
  query: "How many legs does a spider have?",
};
