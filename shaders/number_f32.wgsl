alias Number = f32;
