// The planes of `traced`, each [MAX_TOKENS, WIDTH]: what the kernels of a time mix hand on to one another on the way
// back. After the planes comes the gradient of the bonus, [MAX_TOKENS, H].

const D_Y = 0u;       // at first the gradient of the time mix before its output matrix
const TRACED_Y = 1u;  // the output of the recurrence
const V = 1u;         // later, in its place: v, with RWKV-7's value residual
const TRACED_SA = 2u; // S (-kk), of the state before the token
const KEY = 3u;       // k, in RWKV-7 after the in-context rate
const UNIT_KK = 4u;   // kk, divided by its length
const D_SA = 5u;
const D_REMOVED = 6u; // the gradient of -kk
const D_BONUS = 7u;
