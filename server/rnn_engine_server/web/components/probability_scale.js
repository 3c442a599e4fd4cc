// The steps of probability by which tokens are coloured: the less likely, the stronger the colour.

/** The least probability of each step; the last step has no other bound. */
export const STEPS = [0.5, 0.2, 0.05, 0.01, 0];

/**
 * Return the step of a log-probability, from 0.
 * @param {number} logprob
 */
export function stepOf(logprob) {
  const probability = Math.exp(logprob);
  const step = STEPS.findIndex((least) => probability >= least);
  return step === -1 ? STEPS.length - 1 : step;
}
