"""Forward passes in plain numpy: the measure of correctness, and what runs where there is no GPU."""
