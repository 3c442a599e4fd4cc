"""States under names: leases, reference counts, and the folder in which persistent states are saved."""
