// Texts and a query for a new user to begin with, in words that the demo models know.

import { isForVectors } from "../../server.js";

const FACTS = {
  texts: [
    "The capital of France is Paris.",
    "A spider has eight legs.",
    "The capital of Japan is Tokyo.",
    "A cat has four legs.",
  ].join("\n"),
  query: "What is the capital of Japan?",
};

const TOWN = {
  texts: [
    "The bakery is in Mill Lane.",
    "The bakery is closed on Sunday. The owner is a friendly man.",
    "You can go to the library from ten on.",
    "The bread shop opens at six in the morning.",
  ].join("\n"),
  query: "How early can I go to the baker?",
};

/** @returns {{texts: string, query: string}} The example for the chosen model: models made for embedding know a town. */
export function exampleForModel() {
  return isForVectors() ? TOWN : FACTS;
}
