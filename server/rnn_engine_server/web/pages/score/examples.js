// Examples for a new user to begin with.

export const EXAMPLE = {
  question: "What is the capital of France?",
  choices: [
    "The capital of France is Paris.",
    "The capital of France is Rome.",
    "The capital of France is Madrid.",
    "I do not know.",
  ],
};

export const TABLE = `question,A,B,C,answer
What is the capital of France?,The capital of France is Paris.,The capital of France is Rome.,The capital of France is Lima.,A
What is the capital of Italy?,The capital of Italy is Madrid.,The capital of Italy is Rome.,The capital of Italy is Oslo.,B
What is the capital of Japan?,The capital of Japan is Tokyo.,The capital of Japan is Paris.,The capital of Japan is Cairo.,A
What is 2 plus 3?,4,5,6,5
What is 7 plus 8?,15,14,16,15
What is 9 minus 4?,3,5,6,5
`;
