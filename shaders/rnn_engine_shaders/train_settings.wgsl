// The numbers that the host sets for a step of training.

struct TrainSettings {
    scale: f32,           // of the gradients that are added
    rate: f32,            // the learning rate
    first_bias: f32,      // 1 - beta1^n for update n
    second_bias: f32,     // 1 - beta2^n
    first_factor: f32,    // 1 - beta1
    second_factor: f32,   // 1 - beta2
    epsilon: f32,
    max_norm: f32,        // to which a gradient of greater norm is scaled down
}
