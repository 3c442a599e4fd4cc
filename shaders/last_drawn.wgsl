// What a slot has drawn last, from which a run that follows goes on.

const HALTED = 0xffffffffu; // a token that may end the text, or none since a row did not decide
