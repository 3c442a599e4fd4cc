// The token that a slot has drawn last. A run that follows starts from it.

const HALTED = 0xffffffffu; // no run may follow: the token may end the text, or the draw was left to the host
