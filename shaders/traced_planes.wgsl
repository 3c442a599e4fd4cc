// The planes of `traced`, each [MAX_TOKENS, WIDTH]: what the kernels of a time mix hand on to one another on the way
// back. After the planes comes the gradient of RWKV-7's bonus, [MAX_TOKENS, H].

const D_Y = 0u;       // at first the gradient of the time mix before its output matrix
const TRACED_Y = 1u;  // the output of the recurrence
const TRACED_SA = 2u; // S (-kk), of the state before the token
const V = 3u;         // with the value residual
const KEY = 4u;       // k after the in-context rate
const UNIT_KK = 5u;   // kk, divided by its length
const D_SA = 6u;
const D_REMOVED = 7u; // the gradient of -kk
const D_BONUS = 8u;
