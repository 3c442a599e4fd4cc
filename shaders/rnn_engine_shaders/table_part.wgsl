// A part of a table with a row for each token id. A table larger than a binding is cut into parts, one per dispatch.

struct Part {
    first: u32,        // the token id of its first row
    num_rows: u32,
    panel_blocks: u32, // blocks of a panel
}

@group(0) @binding(1) var<storage, read> part: Part;
