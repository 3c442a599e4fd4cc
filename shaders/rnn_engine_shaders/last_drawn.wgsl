// The token that was last drawn for a slot. A following run starts from it.

const HALTED = 0xffffffffu; // no run may follow: the token may end the text, or the draw was left to the host
