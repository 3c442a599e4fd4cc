// Coordinates of vectors in the plane, and a measure of how well their labels separate.

const ROUNDS = 60;

/**
 * Return the coordinates of vectors along the two directions in which they differ most (principal components).
 * @param {number[][]} vectors
 * @returns {[number, number][]}
 */
export function planeOf(vectors) {
  const rows = centred(vectors);
  const first = principal(rows, []);
  const second = principal(rows, [first]);
  return rows.map((row) => [dot(row, first), dot(row, second)]);
}

/**
 * Return the share of vectors that have the label most frequent among their `count` nearest others. Nearness is the
 * cosine after subtracting the mean; of labels that are equally frequent, the nearest counts.
 * @param {number[][]} vectors
 * @param {string[]} labels
 * @param {number} count
 */
export function nearestAccuracy(vectors, labels, count) {
  const rows = centred(vectors).map(unit);
  const right = rows.filter((row, index) => {
    const nearest = rows
      .map((other, place) => ({ place, near: place === index ? -Infinity : dot(row, other) }))
      .sort((one, two) => two.near - one.near)
      .slice(0, Math.min(count, rows.length - 1));
    return majority(nearest.map(({ place }) => labels[place])) === labels[index];
  });
  return right.length / rows.length;
}

/** @param {string[]} labels The nearest first. */
function majority(labels) {
  const counts = Map.groupBy(labels, (label) => label);
  return [...counts].reduce((best, next) => (next[1].length > best[1].length ? next : best))[0];
}

/** @param {number[][]} vectors */
function centred(vectors) {
  const mean = vectors[0].map((_, place) => vectors.reduce((sum, vector) => sum + vector[place], 0) / vectors.length);
  return vectors.map((vector) => vector.map((value, place) => value - mean[place]));
}

/**
 * Return the unit vector along which rows differ most, of those at right angles to `others`.
 * @param {number[][]} rows
 * @param {number[][]} others
 */
function principal(rows, others) {
  let direction = unit(withoutParts(rows[0].map((_, place) => Math.sin(1 + place)), others));
  for (let round = 0; round < ROUNDS; round++) {
    const next = direction.map(() => 0);
    for (const row of rows) {
      const weight = dot(row, direction);
      for (let place = 0; place < next.length; place++) next[place] += weight * row[place];
    }
    direction = unit(withoutParts(next, others));
  }
  return direction;
}

/** @param {number[]} vector @param {number[][]} others Unit vectors at right angles. */
function withoutParts(vector, others) {
  return others.reduce((left, other) => {
    const part = dot(left, other);
    return left.map((value, place) => value - part * other[place]);
  }, vector);
}

/** @param {number[]} vector */
function unit(vector) {
  const length = Math.sqrt(dot(vector, vector));
  return length === 0 ? vector : vector.map((value) => value / length);
}

/** @param {number[]} one @param {number[]} two */
function dot(one, two) {
  let sum = 0;
  for (let place = 0; place < one.length; place++) sum += one[place] * two[place];
  return sum;
}
