// Weights in blocks. The WGSL of a format says how many eights of a row share a scale and an offset, a part, and how many
// parts make a block. It declares `Figures`, the scales and offsets of a block, and loads them and the numbers.

const BLOCK_EIGHTS = PART_EIGHTS * BLOCK_PARTS;

// Return eight weights: numbers times the scale of their part, plus its offset.
fn load_weights(row: u32, eight: u32) -> Eight {
    let figures = load_figures(row, eight);
    let of_part = figures_of(figures, eight / PART_EIGHTS % BLOCK_PARTS);
    return affine(load_numbers(row, eight), of_part.x, of_part.y);
}
