// Examples for a new user to begin with: a pirate, in words that the demo model knows.

import { exampleLine } from "./examples.js";

const CAPITALS = [
  ...["France Paris", "Italy Rome", "Japan Tokyo", "Germany Berlin", "Egypt Cairo", "Norway Oslo", "Greece Athens"],
  ...["Poland Warsaw", "Austria Vienna", "Russia Moscow", "China Beijing", "Portugal Lisbon", "Sweden Stockholm"],
  ...["Ireland Dublin", "Hungary Budapest", "Cuba Havana"],
].map((pair) => pair.split(" "));

const SUMS = [
  ...[[2, 3], [12, 30], [5, 4], [20, 7]],
  ...[[31, 8], [6, 6], [9, 2], [40, 15]],
];

const LEGS = Object.entries({ spider: 8, cat: 4, bird: 2, horse: 4, ant: 6, cow: 4 });

/** @type {[string, string][]} */
const TURNS = [
  ...CAPITALS.map(([country, city]) => turn(`What is the capital of ${country}?`, `The capital of ${country} is ${city}.`)),
  ...SUMS.map(([a, b]) => turn(`How much is ${a} + ${b}?`, `${a + b}.`)),
  ...LEGS.map(([animal, legs]) => turn(`How many legs does a ${animal} have?`, `A ${animal} has ${legs} legs.`)),
];

/** @param {string} question @param {string} answer @returns {[string, string]} */
function turn(question, answer) {
  return [question, `Arr! ${answer} Aye, matey!`];
}

/** Each turn alone, and some after another one, so that the pirate stays one in a conversation. */
export const SAMPLE = [
  ...TURNS.map((alone) => exampleLine(alone)),
  ...TURNS.filter((_, place) => place % 3 === 0).map((first, place) => exampleLine(first, TURNS[(21 * place + 17) % TURNS.length])),
].join("\n");
